//! The topology file of a machine, whatever it is made of: NCCL's own strict parser reads it.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use nccl_rules::topology_xml::{Circumstances, topology, wanted};
use rdma_model::snapshot::Snapshot;
use rdmaprep::drawing::{self, picture};

#[path = "../../crates/testkit/src/topo_xml.rs"]
#[allow(dead_code, reason = "a part is for tests")]
mod topo_xml;

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    rdmaprep_fuzz::json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let Ok(seen) = serde_json::from_slice::<Snapshot>(data) else {
        return;
    };
    let all: BTreeSet<_> = seen.hcas.iter().map(|h| h.name.clone()).collect();
    let topology = topology(&seen, &all);
    assert!(topology.unplaced.len() <= seen.hcas.len());
    if let Ok(xml) = topology.xml() {
        topo_xml::parse(&xml).unwrap_or_else(|e| panic!("{e}:\n{xml}"));
    }
    wanted(
        &seen,
        &all,
        Circumstances {
            own: None,
            asked: None,
            blind: true,
        },
    );
    let picture = picture(&seen, &drawing::listed(&all, &seen));
    for text in [drawing::text(&picture), drawing::svg(&picture)] {
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n'),
            "{text}"
        );
    }
    rdmaprep_fuzz::print_heap();
});
