//! Which device node `/dev/infiniband/uverbsN` an HCA will have inside. The nodes go into
//! config.json before the NICs move, and a soft-RoCE link that is made again there, or in the
//! exclusive mode each HCA that moves, gets a new number from the kernel: it has to be foretold.

use std::collections::{BTreeMap, BTreeSet};

use rdma_model::snapshot::{CharDevice, Hca, Snapshot};

/// The device nodes that these HCAs will have, by HCA.
pub type NodesInside = BTreeMap<String, CharDevice>;

/// The kernel hands out the lowest free number (ib_uverbs_add_one,
/// drivers/infiniband/core/uverbs_main.c); the first 32 have major 231 and minors from 192. Those
/// that move get theirs one at a time, in ascending order of the numbers that they have: each the
/// one that it has just given up, or a lower gap. One behind the first 32 is left out.
pub fn predict_uverbs<'a>(host: &Snapshot, moving: impl Iterator<Item = &'a Hca>) -> NodesInside {
    let here = host
        .hcas
        .iter()
        .filter_map(|h| h.uverbs.as_ref())
        .filter_map(uverbs_number);
    let mut used: BTreeSet<u32> = here.chain(host.verbs_elsewhere.iter().copied()).collect();
    let mut moving: Vec<(u32, &Hca)> = moving
        .filter_map(|h| Some((uverbs_number(h.uverbs.as_ref()?)?, h)))
        .collect();
    moving.sort_by_key(|(n, _)| *n);
    let mut nodes = NodesInside::new();
    for (number, hca) in moving {
        used.remove(&number);
        let Some(free) = (0..32).find(|n| !used.contains(n)) else {
            continue;
        };
        used.insert(free);
        nodes.insert(
            hca.name.to_string(),
            CharDevice {
                name: format!("uverbs{free}"),
                major: 231,
                minor: 192 + free,
            },
        );
    }
    nodes
}

/// N of `uverbsN`.
pub fn uverbs_number(device: &CharDevice) -> Option<u32> {
    device.name.strip_prefix("uverbs")?.parse().ok()
}
