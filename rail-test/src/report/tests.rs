use std::time::Duration;

use rail_agreement::Digest;
use rail_agreement::message::HostName;
use rdma_model::error_class::ErrorClass;

use super::*;
use crate::addresses::Own;
use crate::asked::Cross;
use crate::draw::{Colour, colour, svg};
use crate::pairs::{Pattern, Schedule};
use crate::transport::{LaneId, Moved, Outcome};

fn asked(nodes: u32, rails: u8) -> Asked {
    Asked {
        run: "job.1".parse().unwrap(),
        digest: Digest::of_text("x"),
        rank: 0,
        nodes,
        host: HostName::sanitized("node-0"),
        schedule: Schedule::new(Pattern::Ring, nodes, 0),
        cross: Cross::First,
        rails: (0..rails).map(|rail| format!("rdma{rail}")).collect(),
        lost: Vec::new(),
        round: Duration::from_secs(1),
        own: Own::default(),
    }
}

type Fake<'a> = &'a dyn Fn(u32, u32, LaneId) -> Result<Measured, Fault>;

/// What all nodes tell where `fake` says how it went from a node to a partner.
fn told_by(asked: &Asked, fake: Fake) -> BTreeMap<u32, Told> {
    let mut all = BTreeMap::new();
    for rank in 0..asked.nodes {
        let host = HostName::sanitized(&format!("node-{rank}"));
        let mut told = Told::new(host, vec![3; asked.rails.len()]);
        for round in 0..asked.schedule.rounds() {
            let Some(partner) = asked.schedule.partner(round, rank) else {
                continue;
            };
            for lane in asked.lanes(round) {
                let sent = fake(rank, partner, lane);
                told.add(partner, lane, Outcome { sent });
            }
        }
        all.insert(rank, told);
    }
    all
}

fn good(_: u32, _: u32, _: LaneId) -> Result<Measured, Fault> {
    Ok(Measured {
        median_ns: 2000,
        p99_ns: 4000,
        rate: 12_000,
    })
}

fn found(asked: &Asked, fake: Fake) -> Findings {
    Findings::new(asked, told_by(asked, fake), &[], &BTreeMap::new())
}

#[test]
fn where_all_works_the_first_line_says_so() {
    let found = found(&asked(3, 4), &good);
    let text = found.text();
    assert!(
        text.starts_with("all rails work: 3 nodes, 4 rails, pattern ring, 12 pairs\n"),
        "{text}"
    );
    assert!(
        text.contains("rdma0  3      0       2.0        4.0     12000"),
        "{text}"
    );
    let verdict = found.verdict();
    assert_eq!(
        (verdict.broken, verdict.failed, verdict.lines),
        (false, 0, Vec::new())
    );
    assert_eq!(found.cross, (72, 72));
}

#[test]
fn the_fault_that_says_most_is_the_cause() {
    // The NIC's port is down; its partners just hear nothing.
    let found = found(&asked(4, 2), &|from, to, lane| match (from, to, lane) {
        (1, _, LaneId(1, 1)) => Err(Fault::of(Why::PortDown)),
        (_, 1, LaneId(1, 1)) => Err(Fault {
            why: Why::NoAnswer,
            number: 12,
        }),
        _ => good(from, to, lane),
    });
    let text = found.text();
    let first = "FAIL: rdma1 of node-1 (rank 1): all its pairs fail (3): its port is down\n";
    assert!(text.starts_with(first), "{text}");
    assert_eq!(found.verdict().failed, 0b10);
    // Each rail has the cause of its own.
    let why = first.trim_start_matches("FAIL: ").trim_end();
    assert_eq!(found.verdict().failed_rails(), [(1, why.to_owned())]);
    assert_eq!(found.verdict().unexplained(), None);
    assert_eq!(
        ErrorClass::of(&found.verdict().error().unwrap()),
        ErrorClass::Sick
    );
    assert_eq!(colour(&found, (1, 1)), Colour::Bad);
    assert_eq!(colour(&found, (0, 1)), Colour::Good);
}

#[test]
fn rails_that_do_not_reach_each_other_are_a_warning() {
    let found = found(&asked(3, 2), &|from, to, lane| match lane.is_straight() {
        true => good(from, to, lane),
        false => Err(Fault::of(Why::NoNeighbour)),
    });
    let text = found.text();
    assert!(
        text.starts_with("warning: no rail reaches another rail"),
        "{text}"
    );
    assert!(text.contains("NCCL_CROSS_NIC=0"), "{text}");
    let verdict = found.verdict();
    assert_eq!((verdict.broken, verdict.apart), (false, true));
}

#[test]
fn a_broken_nic_is_no_reason_to_warn_of_crossing() {
    let found = found(&asked(3, 2), &|from, to, lane| match (from, to, lane) {
        (1, _, LaneId(0, _)) | (_, 1, LaneId(_, 0)) => Err(Fault::of(Why::NoAnswer)),
        _ => good(from, to, lane),
    });
    assert_eq!(found.causes.len(), 1, "{:?}", found.causes);
    assert_eq!(found.causes[0].culprit, Some(Culprit::Nic(1, 0)));
    assert!(!found.verdict().apart);
}

#[test]
fn a_slow_rail_and_another_mtu_are_warnings_with_figures() {
    let asked = asked(4, 4);
    let mut told = told_by(&asked, &|from, to, lane| match lane.0 {
        3 => Ok(Measured {
            median_ns: 9000,
            p99_ns: 9000,
            rate: 5000,
        }),
        _ => good(from, to, lane),
    });
    told.get_mut(&2).unwrap().mtus[0] = 5;
    told.get_mut(&2).unwrap().moved = vec![Moved(1, "out_of_sequence".into(), 7)];
    let found = Findings::new(&asked, told, &[], &BTreeMap::new());
    let lines = found.verdict().lines;
    let expected = [
        "rdma0: the active MTUs differ: 1024 on 3 nodes, 4096 on node-2 (rank 2)",
        "rail rdma3: slower than the others: 5000.0 MB/s, the median is 12000.0 MB/s",
        "rail rdma3: slower than the others: 9.0 µs, the median is 2.0 µs",
    ];
    let lines: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(lines, expected);
    assert!(!found.verdict().broken);
    assert!(found.text().contains("out_of_sequence +7"));
    assert_eq!(colour(&found, (0, 3)), Colour::Warn);
}

#[test]
fn a_node_that_tells_nothing_is_missing_and_no_pair_fails() {
    let asked = asked(4, 2);
    let mut told = told_by(&asked, &|from, to, lane| match to {
        3 => Err(Fault::of(Why::Absent)),
        _ => good(from, to, lane),
    });
    told.remove(&3);
    let found = Findings::new(&asked, told, &[3], &BTreeMap::new());
    let verdict = found.verdict();
    assert_eq!((verdict.failed, &verdict.missing), (0, &vec![3]));
    assert_eq!(
        ErrorClass::of(&verdict.error().unwrap()),
        ErrorClass::Disagreed
    );
    assert_eq!(found.causes.len(), 1);
    assert_eq!(colour(&found, (3, 0)), Colour::Gone);
}

#[test]
fn a_node_that_lies_spoils_its_own_pairs_alone() {
    let asked = asked(6, 2);
    let found = found(&asked, &|from, to, lane| match from {
        2 => Err(Fault::of(Why::Contents)),
        _ => good(from, to, lane),
    });
    let failed: Vec<Edge> = found.failed().map(|(tested, _, _)| tested.edge).collect();
    assert!(
        failed.iter().all(|edge| edge.a == 2 || edge.b == 2),
        "{failed:?}"
    );
    assert_eq!(found.causes[0].culprit, Some(Culprit::Node(2)));
}

#[test]
fn json_has_every_pair() {
    let json = found(&asked(5, 2), &good).json();
    let pairs = json["pairs"].as_array().unwrap();
    // Five nodes, each with two partners, on two rails.
    assert_eq!(pairs.len(), 20);
    assert_eq!(pairs[0]["by_a"]["mb_s"], 12_000);
}

#[test]
fn the_picture_has_a_cell_for_each_nic_and_is_well_formed() {
    let mut asked = asked(3, 2);
    asked.rails[0] = "<&\">".to_owned();
    let svg = svg(&found(&asked, &|from, to, lane| match from {
        1 => Err(Fault::of(Why::NoAnswer)),
        _ => good(from, to, lane),
    }));
    assert_eq!(svg.matches("<title>").count(), 6);
    assert_eq!(
        svg.matches(&format!("fill=\"{}\"><title>", "#d1242f"))
            .count(),
        2
    );
    assert!(
        svg.contains("&lt;&amp;&quot;&gt;") && !svg.contains("<&"),
        "{svg}"
    );
}

/// Rails that differ at the end of their names, and rows too thin for a name each.
#[test]
fn the_picture_of_many_nodes_says_which_they_are() {
    let mut asked = asked(100, 2);
    asked.rails = vec!["192.168.10.0/24".to_owned(), "192.168.11.0/24".to_owned()];
    let mut told = told_by(&asked, &|from, to, lane| match (from, lane.0) {
        (33, 1) => Err(Fault::of(Why::NoAnswer)),
        _ => good(from, to, lane),
    });
    let host = HostName::sanitized("a-name-that-is-longer-than-the-label");
    told.get_mut(&32).unwrap().host = host;
    let svg = svg(&Findings::new(&asked, told, &[], &BTreeMap::new()));
    for text in [
        ">192.168.10.0/24</text>",
        ">192.168.11.0/24</text>",
        ">node-16 (rank 16)</text>",
        ">a-name-tha (rank 32)</text>",
    ] {
        assert!(svg.contains(text), "no {text} in {svg}");
    }
    assert_eq!(svg.matches("<title>").count(), 200);
}

#[test]
fn a_rail_that_a_node_lacks_breaks_jobs() {
    let mut asked = asked(3, 2);
    asked.lost = vec!["rdma7: missing on node-2: port down".to_owned()];
    let found = found(&asked, &good);
    let first = "FAIL: rdma7: missing on node-2: port down; NCCL takes other NICs there\n";
    assert!(found.text().starts_with(first), "{}", found.text());
    assert!(found.verdict().broken);
}
