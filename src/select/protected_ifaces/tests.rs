//! What the test machine's kernel has not: VRFs, RDMA devices, and many connections.

use std::time::{Duration, Instant};

use rdma_model::snapshot::{Leg, Matched, Question};
use serde_json::{Value, json};

use super::*;

const CONNECTION: &str = "10.0.0.9";

fn name(text: &str) -> IfName {
    serde_json::from_value(json!(text)).unwrap()
}

fn link(ifindex: u32, name: &str, address: Option<&str>, more: &Value) -> Value {
    let addresses: Vec<Value> = address
        .into_iter()
        .map(|a| json!({ "address": a, "prefix": 24 }))
        .collect();
    let mut all = json!({ "name": name, "ifindex": ifindex, "link_type": 1, "up": true,
        "addresses": addresses });
    all.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    all
}

fn host(netdevs: Value, rdma: &[&str]) -> Snapshot {
    let hca = |(i, dev): (usize, &&str)| {
        json!({ "name": format!("mlx5_{i}"),
            "ports": [{ "number": 1, "netdev": dev }] })
    };
    let hcas: Vec<Value> = rdma.iter().enumerate().map(hca).collect();
    let (netdevs, hcas) = (
        serde_json::from_value(netdevs).unwrap(),
        serde_json::from_value(json!(hcas)).unwrap(),
    );
    Snapshot {
        netdevs,
        hcas,
        ..Snapshot::default()
    }
}

fn route(table: u32, to: &str, dev: &str) -> Answer {
    let legs = vec![Leg {
        dev: name(dev),
        gateway: None,
    }];
    Answer::Route(Matched {
        table,
        prefix: to.parse().unwrap(),
        metric: None,
        legs,
        segments: Vec::new(),
        preferred: None,
        chosen: None,
    })
}

fn asked(host: Snapshot, facts: Facts, mut ask: impl FnMut(&Question) -> Answer) -> Snapshot {
    let job = JobAddresses::default();
    let mut inquiry = Inquiry::new(&host, &job, facts);
    loop {
        let questions = inquiry.questions();
        if questions.is_empty() {
            break;
        }
        for question in questions {
            let answer = ask(&question);
            inquiry.answer(question, answer);
        }
    }
    let paths = Some(inquiry.paths());
    Snapshot { paths, ..host }
}

fn guarded(host: &Snapshot) -> Vec<String> {
    uplinks(false, host)
        .unwrap()
        .into_keys()
        .map(|name| name.to_string())
        .collect()
}

fn unreachable() -> Answer {
    Answer::Unreachable("no route".to_owned())
}

fn in_vrf(vrf: &str) -> Value {
    json!({ "master": vrf })
}

fn vrfs() -> Snapshot {
    let vrf = json!({ "kind": "vrf" });
    let links = json!([
        link(1, "blue", None, &vrf),
        link(2, "red", None, &vrf),
        link(3, "r0", Some("10.0.0.1"), &in_vrf("blue")),
        link(4, "r1", Some("10.1.0.1"), &in_vrf("blue")),
        link(5, "r2", Some("10.2.0.1"), &in_vrf("red")),
    ]);
    host(links, &[])
}

#[test]
fn socket_in_a_vrf_guards_the_member_that_the_kernel_uses() {
    let to = CONNECTION.parse().unwrap();
    let socket = |from: &str| Socket {
        question: Question {
            from: Some(from.parse().unwrap()),
            oif: Some(1),
            ..Question::to(to)
        },
        connection: serde_json::from_value(
            json!({ "protocol": 6, "local_port": 9000, "remote_port": 179 }),
        )
        .unwrap(),
    };
    let answer = |q: &Question| {
        if q.to == to {
            route(10, "10.0.0.0/24", "r0")
        } else {
            unreachable()
        }
    };
    let of = |from: &str| {
        asked(
            vrfs(),
            Facts {
                sockets: vec![socket(from)],
                ..Facts::default()
            },
            answer,
        )
    };
    assert_eq!(guarded(&of("10.0.0.1")), ["r0"]);
    let both = of("10.1.0.1");
    assert_eq!(
        guarded(&both),
        ["r0", "r1"],
        "who owns its address keeps it"
    );
    let why = &uplinks(false, &both).unwrap()[&name("r1")];
    assert_eq!(
        why,
        "is in use: BGP to 10.0.0.9 goes out by r1, whose address it owns (TCP from 10.1.0.1:9000 \
        to 10.0.0.9:179)"
    );
}

#[test]
fn only_way_out_by_vrf_is_kept_and_a_vrf_per_rail_is_not() {
    let out = |q: &Question| match (q.to.is_ipv4(), q.oif) {
        (true, Some(1)) => route(10, "0.0.0.0/0", "r0"),
        _ => unreachable(),
    };
    assert_eq!(guarded(&asked(vrfs(), Facts::default(), out)), ["r0"]);
    let each = |q: &Question| match (q.to.is_ipv4(), q.oif) {
        (true, Some(2)) => route(20, "0.0.0.0/0", "r2"),
        _ => out(q),
    };
    assert!(guarded(&asked(vrfs(), Facts::default(), each)).is_empty());
    let main = |q: &Question| match q.to.is_ipv4() && q.oif.is_none() {
        true => route(254, "0.0.0.0/0", "r2"),
        false => out(q),
    };
    assert_eq!(
        guarded(&asked(vrfs(), Facts::default(), main)),
        ["r2"],
        "the host has another way out"
    );
}

/// The tables of the other rails are in containers with these.
#[test]
fn rail_with_its_own_table_is_taken_if_another_card_leads_out() {
    let card = json!({ "pci": "0000:01:00.0" });
    let rail = json!({ "pci": "0000:02:00.0" });
    let links = |pci: &Value| {
        json!([
            link(1, "mgmt", Some("192.0.2.1"), pci),
            link(2, "r0", Some("10.0.0.1"), &rail)
        ])
    };
    let own = "10.0.0.1".parse().unwrap();
    let answer = |q: &Question| {
        if q.from == Some(own) {
            route(100, "0.0.0.0/0", "r0")
        } else {
            unreachable()
        }
    };
    let of = |pci: &Value, rdma: &[&str]| {
        guarded(&asked(host(links(pci), rdma), Facts::default(), answer))
    };
    assert!(of(&card, &["r0"]).is_empty());
    assert_eq!(
        of(&json!({}), &["r0"]),
        ["r0"],
        "a bridge of containers is nothing to live on"
    );
    assert_eq!(
        of(&card, &["r0", "mgmt"]),
        ["r0"],
        "any of them may be what the host lives on"
    );
    assert_eq!(of(&card, &[]), ["r0"]);
}

/// As recorded of a host with two ports on one device.
#[test]
fn storage_over_rdma_guards_the_links_of_its_device() {
    let links = json!([
        link(1, "r0", Some("10.0.0.1"), &json!({})),
        link(2, "r1", Some("10.1.0.1"), &json!({})),
        link(3, "r2", Some("10.2.0.1"), &json!({})),
    ]);
    let of = |port: Value, to: Value| {
        let uses = json!([{ "hca": "mlx5_1", "port": port, "user": "nvme_rdma", "peer": to }]);
        let facts = Facts {
            rdma: serde_json::from_value(uses).unwrap(),
            ..Facts::default()
        };
        let mut host = host(links.clone(), &["r0", "r1"]);
        host.hcas[1]
            .ports
            .push(serde_json::from_value(json!({ "number": 2, "netdev": "r2" })).unwrap());
        uplinks(false, &asked(host, facts, |_| unreachable())).unwrap()
    };
    let one = of(json!(1), json!("10.1.0.9"));
    assert_eq!(
        one[&name("r1")],
        "is in use: nvme_rdma of this host uses mlx5_1 to reach 10.1.0.9"
    );
    assert_eq!(one.len(), 1);
    let any = of(json!(null), json!(null));
    assert_eq!(
        any[&name("r2")],
        "is in use: nvme_rdma of this host uses mlx5_1"
    );
    assert_eq!(any.len(), 2);
}

#[test]
fn server_over_rdma_is_reached_as_any_other() {
    let to = CONNECTION.parse().unwrap();
    let connection =
        serde_json::from_value(json!({ "protocol": 0, "local_port": 0, "remote_port": 4420 }))
            .unwrap();
    let question = Question {
        from: Some("10.0.0.1".parse().unwrap()),
        ..Question::to(to)
    };
    let mut host = host(
        json!([link(1, "r0", Some("10.0.0.1"), &json!({}))]),
        &["r0"],
    );
    // A rule that looks at ports: the kernel takes no question about a protocol 0.
    let rule = json!({ "family": 4, "priority": 5, "table": 9, "action": 1,
        "other": { "24": "bb01bb01" } });
    host.rules = vec![serde_json::from_value(rule).unwrap()];
    let answer = |q: &Question| {
        assert!(q.flow.is_none_or(|flow| flow.protocol != 0), "{q:?}");
        if q.to == to {
            route(254, "10.0.0.0/24", "r0")
        } else {
            unreachable()
        }
    };
    let facts = Facts {
        sockets: vec![Socket {
            question,
            connection,
        }],
        ..Facts::default()
    };
    let why = &uplinks(false, &asked(host, facts, answer)).unwrap()[&name("r0")];
    assert_eq!(
        why,
        "is in use: NVMe to 10.0.0.9 goes out by r0 (RDMA from 10.0.0.1 to 10.0.0.9:4420: table \
        main)"
    );
}

/// Unnumbered BGP runs over the NIC itself; a session through a router, or from another NIC's
/// address, does not.
#[test]
fn a_session_over_a_nics_own_cable_is_told_from_others() {
    let of = |from: &str, remote: u16, gateway: Option<&str>| {
        let connection = json!({ "protocol": 6, "local_port": 9000, "remote_port": remote });
        let (to, from) = (CONNECTION.parse().unwrap(), from.parse().ok());
        let question = Question {
            from,
            ..Question::to(to)
        };
        let connection = serde_json::from_value(connection).unwrap();
        let answer = |q: &Question| match route(254, "10.0.0.0/24", "r0") {
            Answer::Route(mut matched) if q.to == to => {
                matched.legs[0].gateway = gateway.map(|g| g.parse().unwrap());
                Answer::Route(matched)
            }
            _ => unreachable(),
        };
        let facts = Facts {
            sockets: vec![Socket {
                question,
                connection,
            }],
            ..Facts::default()
        };
        let host = asked(vrfs(), facts, answer);
        let found = by_own_sessions(&uplinks(true, &host).unwrap(), &host);
        Vec::from_iter(found)
    };
    assert_eq!(of("10.0.0.1", 179, None), [name("r0")]);
    for (from, remote, gateway) in [
        ("10.0.0.1", 22, None),
        ("10.1.0.1", 179, None),
        ("10.0.0.1", 179, Some("10.0.0.254")),
    ] {
        assert_eq!(of(from, remote, gateway), [], "{from} {remote} {gateway:?}");
    }
}

#[test]
fn many_connections_and_routes_are_judged_at_once() {
    const MANY: u32 = 20_000;
    let to = |i: u32| IpAddr::from([10, 200 + (i >> 16) as u8, (i >> 8) as u8, i as u8]);
    let mut host = host(json!([link(1, "r0", Some("10.0.0.1"), &json!({}))]), &[]);
    let route_to = |i: u32| {
        json!({ "destination": format!("{}/32", to(i)), "table": 254,
            "hops": [{ "dev": "r0" }] })
    };
    host.routes = (0..MANY)
        .map(|i| serde_json::from_value(route_to(i)).unwrap())
        .collect();
    let connection =
        serde_json::from_value(json!({ "protocol": 6, "local_port": 1, "remote_port": 2 }))
            .unwrap();
    let socket = |i: u32| Socket {
        question: Question::to(to(i)),
        connection,
    };
    let facts = Facts {
        sockets: (0..MANY).map(socket).collect(),
        ..Facts::default()
    };
    let host = asked(host, facts, |q| {
        route(
            254,
            &format!("{}/{}", q.to, if q.to.is_ipv4() { 32 } else { 128 }),
            "r0",
        )
    });
    let start = Instant::now();
    assert_eq!(guarded(&host), ["r0"]);
    // One look at each route for each connection would be 400 million.
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}
