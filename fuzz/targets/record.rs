//! A record of NICs that are away, and the way home that is planned from it.
#![no_main]

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use rdma_model::snapshot::{Netdev, Snapshot};
use rdmaprep::plan::rails;
use rdmaprep::record::{Record, salvage};
use rdmaprep::restore::plan::{Goal, plan_restore, reassert};
use rdmaprep::verify;
use serde::Deserialize;
use serde_json::Value;

/// A record, and what there is of its NICs by now.
#[derive(Deserialize)]
struct Case {
    record: Value,
    #[serde(default)]
    host: Snapshot,
    #[serde(default)]
    inside: Option<Snapshot>,
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    rdmaprep_fuzz::json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let described = salvage(text).describe();
    assert!(!described.is_empty());
    let _ = Record::parse(text);
    let Ok(case) = serde_json::from_str::<Case>(text) else {
        return;
    };
    let Ok(record) = Record::parse(&case.record.to_string()) else {
        return;
    };
    assert_eq!(
        Record::parse(&record.print().expect("a record as JSON")).expect("ours"),
        record
    );
    let here = with(&case.host, record.held.iter().map(|h| &h.before.netdev));
    let there = with(
        &Snapshot::default(),
        record.held.iter().map(|h| &h.inside.netdev),
    );
    for host in [&case.host, &here] {
        for inside in [None, case.inside.as_ref(), Some(&there)] {
            plan_restore(&record.held, host, inside, Goal::Exact);
        }
        verify::rdma_drift(&record.held, host);
    }
    let states: Vec<_> = record.held.iter().map(|h| h.inside.clone()).collect();
    reassert(&record.held, &there);
    verify::drift(&states, &there);
    rails::drift(&states, &there);
    rdmaprep_fuzz::print_heap();
});

/// A namespace with these netdevs in it as well.
fn with<'a>(seen: &Snapshot, more: impl Iterator<Item = &'a Netdev>) -> Snapshot {
    let mut seen = seen.clone();
    seen.netdevs.extend(more.cloned());
    seen
}
