//! `rdmaprep metrics` as text, its page, and the dashboard that is made for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use openmetrics_parser::{openmetrics as strict, prometheus as older};
use rdma_netlink::counters::{Direction, LinkCounters, Pauses};
use rdmaprep::kernel::counters::Counted;
use rdmaprep::kernel::sysfs::PortCounters;
use rdmaprep::metrics::{
    FAMILIES, Fault, Holder, Kind, LinkState, MEANS, Owner, Place, Rail, RecordState, Runs, Seen,
    openmetrics, prometheus,
};
use rdmaprep::report::Report;
use serde_json::Value;

use crate::docs::{compare, read, section_is};

fn counters(pairs: &[(&str, u64)]) -> Option<BTreeMap<String, u64>> {
    let all = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    Some(all.collect())
}

/// A rail in a pod, with all that can be known of one, and one that has gone.
fn seen() -> Seen {
    let link = LinkCounters {
        received: Direction {
            bytes: 1_000,
            packets: 10,
            errors: 1,
            drops: 2,
        },
        sent: Direction {
            bytes: u64::MAX,
            packets: 20,
            errors: 3,
            drops: 4,
        },
    };
    let pause = Pauses {
        received: 5,
        sent: 6,
    };
    let owner = Owner {
        container: "train\"er\\".to_owned(),
        pod: Some("job-0".to_owned()),
        namespace: Some("team".to_owned()),
    };
    let mut rail = Rail {
        name: "rdma0".to_owned(),
        netdev: Some("eth1".to_owned()),
        hca: Some("mlx5_0".to_owned()),
        port: Some(1),
        place: Place::Container,
        holder: Some(owner.clone()),
        link: Some(LinkState {
            up: true,
            carrier: true,
            mtu: 9000,
        }),
        ..Rail::default()
    };
    let counted = Counted {
        link,
        speed: Some(400_000),
        pauses: Some(pause),
        priority_pauses: Some([pause; 8]),
    };
    let port = PortCounters {
        state: Some("DOWN".to_owned()),
        gigabits: Some(2.5),
        counters: counters(&[
            ("port_xmit_data", 3),
            ("port_rcv_data", 4),
            ("link_downed", 1),
        ]),
        hw_counters: counters(&[("out_of_sequence", 7), ("np_cnp_sent", 8), ("odd", 9)]),
    };
    rail.take(Some(counted), Some(Some(port)));
    let gone = Rail {
        name: "rdma1".to_owned(),
        faults: BTreeSet::from([Fault::Absent]),
        ..Rail::default()
    };
    let mut reports = Vec::new();
    for (outcome, micros, time) in [("ok", 1_000, 5), ("ok", 3_000, 4), ("refused", 7, 6)] {
        let mut report = Report::new("hook createRuntime");
        report.outcome = outcome.to_owned();
        (report.micros, report.time) = (micros, Some(time));
        reports.push(report);
    }
    Seen {
        rails: vec![rail, gone],
        holders: vec![Holder {
            netns: 4026532182,
            plan: "default".to_owned(),
            owner,
            nics: 1,
            seconds: Some(90.0),
        }],
        records: BTreeMap::from([(RecordState::Attached, 1), (RecordState::HeldBack, 2)]),
        hooks: Runs::of(&reports),
        seconds: 0.25,
    }
}

#[test]
fn metrics_are_those_of_the_case() {
    let folder = "tests/cases/metrics";
    for (name, text) in [
        ("pod.openmetrics", openmetrics(seen()).unwrap()),
        ("pod.prom", prometheus(seen()).unwrap()),
    ] {
        let file = format!("{folder}/{name}");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
        let now = fs::read_to_string(path).unwrap_or_default();
        compare(&file, &now, &text);
    }
}

#[test]
fn metrics_are_read_by_another_parser() {
    let text = openmetrics(seen()).unwrap();
    let read = strict::parse_openmetrics(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let names: BTreeSet<String> = read.families.keys().cloned().collect();
    let all = FAMILIES.iter().map(|family| family.name.to_owned());
    assert_eq!(names, all.collect());
    let text = prometheus(seen()).unwrap();
    let read = older::parse_prometheus(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(read.families.len(), FAMILIES.len());
    // Nothing found is a document, too.
    let text = openmetrics(Seen::default()).unwrap();
    strict::parse_openmetrics(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
}

#[test]
fn metrics_have_the_labels_that_they_name() {
    for family in &FAMILIES {
        let samples = family.samples(&seen());
        let own = match family.is_of_rails() {
            true => 8,
            false => 0,
        };
        assert!(!samples.is_empty(), "{}", family.name);
        for sample in samples {
            let labels: Vec<&str> = sample.labels.iter().map(|(name, _)| *name).collect();
            assert_eq!(labels[own..], *family.labels, "{}", family.name);
        }
        assert!(family.name.starts_with("rdmaprep_") && !family.name.ends_with("_total"));
        assert!(family.help.ends_with('.'), "{}", family.help);
    }
    // A driver's name has one meaning.
    let names: Vec<&str> = MEANS
        .iter()
        .flat_map(|(_, names)| *names)
        .copied()
        .collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

fn printed(name: &str, kind: Kind) -> String {
    match kind {
        Kind::Counter => format!("{name}_total"),
        Kind::Gauge => name.to_owned(),
    }
}

#[test]
fn metrics_in_docs_are_those_of_the_program() {
    let mut table = "| metric | what it says | labels |\n|---|---|---|\n".to_owned();
    for family in &FAMILIES {
        let own = family.labels.iter().map(|label| format!("`{label}`"));
        let mut labels: Vec<String> = own.collect();
        if family.is_of_rails() {
            labels.insert(0, "of the rail".to_owned());
        }
        table += &format!(
            "| `{}` | {} | {} |\n",
            printed(family.name, family.kind),
            family.help.trim_end_matches('.'),
            labels.join(", ")
        );
    }
    section_is("docs/metrics.md", "metrics", &table);
    let mut table = "| reason | what is wrong |\n|---|---|\n".to_owned();
    for fault in Fault::ALL {
        table += &format!("| `{}` | {} |\n", fault.name(), fault.meaning());
    }
    section_is("docs/metrics.md", "reasons", &table);
    let mut table = "| state | of a record |\n|---|---|\n".to_owned();
    for state in RecordState::ALL {
        table += &format!("| `{}` | {} |\n", state.name(), state.meaning());
    }
    section_is("docs/metrics.md", "states", &table);
    let mut table = "| means | what happened | counters |\n|---|---|---|\n".to_owned();
    for (means, names) in &MEANS {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        table += &format!(
            "| `{}` | {} | {} |\n",
            means.name(),
            means.meaning(),
            names.join(", ")
        );
    }
    section_is("docs/metrics.md", "means", &table);
}

/// Words of queries that are names of ours, and values of labels that they select by.
fn asked(query: &str) -> (BTreeSet<String>, Vec<(String, String)>) {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("rdmaprep_"));
    let mut chosen = Vec::new();
    for part in query.split(['{', ',', '}']) {
        if let Some((label, value)) = part.split_once("=\"") {
            let label = label.trim().trim_end_matches('!');
            chosen.push((label.to_owned(), value.trim_matches('"').to_owned()));
        }
    }
    (names.map(str::to_owned).collect(), chosen)
}

#[test]
fn dashboard_asks_for_metrics_that_exist() {
    let text = read("hooks/grafana/rdmaprep.json");
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let (mut queries, mut ids) = (Vec::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        queries.extend(variable["query"]["query"].as_str().map(str::to_owned));
    }
    assert!(queries.len() > 10, "{queries:?}");
    let names: BTreeSet<String> = FAMILIES.iter().map(|f| printed(f.name, f.kind)).collect();
    let text = openmetrics(seen()).unwrap();
    let means: BTreeSet<&str> = MEANS.iter().map(|(means, _)| means.name()).collect();
    for query in &queries {
        let (asked, chosen) = asked(query);
        assert!(!asked.is_empty(), "{query}");
        for name in asked {
            assert!(names.contains(&name), "{name} in {query}");
        }
        for (label, value) in chosen.iter().filter(|(_, value)| !value.starts_with('$')) {
            let is_known = match label.as_str() {
                "means" => means.contains(value.as_str()),
                _ => text.contains(&format!("{label}=\"{value}\"")),
            };
            assert!(is_known, "{label}={value} in {query}");
        }
    }
}
