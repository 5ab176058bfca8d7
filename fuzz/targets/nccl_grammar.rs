//! NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_COMM_ID and their like: `NAME=VALUE` lines, as a
//! container's environment has them.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use nccl_rules::explain::{check, explain};
use nccl_rules::ifname::{Entry, Patterns};
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use rdma_model::snapshot::Snapshot;
use rdmaprep::report::{explanation_table, json};

static HOST: LazyLock<Snapshot> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../examples/snapshot.json")).expect("a snapshot")
});

const VERSIONS: [Version; 4] = [
    Version::NEWEST,
    Version::new(2, 29, 2),
    Version::new(2, 27, 7),
    Version::new(2, 18, 3),
];

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let env: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    for (_, value) in &env {
        VERSIONS
            .into_iter()
            .for_each(|version| printed_is_parsed(value, version));
    }
    check(env.iter().copied(), &HOST, None);
    for version in VERSIONS {
        let explained = explain(
            &Settings::of(env.iter().copied(), "the environment"),
            &HOST,
            version,
            &|_| None,
        );
        assert!(!explanation_table(&explained).contains(|c: char| c.is_control() && c != '\n'));
        json(&explained).expect("an explanation as JSON");
    }
    rdmaprep_fuzz::print_heap();
});

/// A value that is parsed, printed and parsed again means the same, and takes the same devices.
fn printed_is_parsed(value: &str, version: Version) {
    let parsed = Patterns::parse(value, 16, version);
    let again = Patterns::parse(&print(&parsed), 16, version);
    assert_eq!(
        parsed.entries.iter().map(plain).collect::<Vec<_>>(),
        again.entries.iter().map(plain).collect::<Vec<_>>()
    );
    assert_eq!(
        (parsed.exclude, parsed.exact),
        (again.exclude, again.exact),
        "{value:?}"
    );
    let opposite = Patterns {
        exclude: !parsed.exclude,
        ..parsed.clone()
    };
    let names = HOST
        .hcas
        .iter()
        .map(|h| h.name.as_str())
        .chain(parsed.entries.iter().map(|e| e.name.as_str()));
    for name in names {
        for port in [None, Some(1), Some(2)] {
            assert_eq!(
                parsed.takes(name, port),
                again.takes(name, port),
                "{name:?} of {value:?}"
            );
            assert_ne!(parsed.takes(name, port), opposite.takes(name, port));
        }
    }
}

fn plain(e: &Entry) -> (&str, Option<i32>, Option<i32>, Option<i32>) {
    (&e.name, e.port, e.rail, e.plane)
}

fn print(patterns: &Patterns) -> String {
    let mark = |set: bool, mark: &'static str| if set { mark } else { "" };
    let field = |n: Option<i32>| n.map(|n| n.to_string()).unwrap_or_default();
    let entry = |e: &Entry| match (e.port, e.rail, e.plane) {
        (None, None, None) => e.name.clone(),
        (port, None, None) => format!("{}:{}", e.name, field(port)),
        (port, rail, plane) => format!(
            "{}:{}:{}:{}",
            e.name,
            field(port),
            field(rail),
            field(plane)
        ),
    };
    let list = patterns
        .entries
        .iter()
        .map(entry)
        .collect::<Vec<_>>()
        .join(",");
    // An entry without a name counts for nothing; without one, a first name that begins with a mark
    // would be one.
    format!(
        "{}{},{list}",
        mark(patterns.exclude, "^"),
        mark(patterns.exact, "=")
    )
}
