//! What the real NCCL made of NICs and GPUs, in folders `tests/cases/judged/MACHINE`:
//! `snapshot.json` is the machine as `examples/gpu-topology/machine.py` made it up around real
//! GPUs, the dumps are NCCL's (`examples/gpu-topology/run`), by a tree over /sys and by our
//! topology file. Every GPU and NIC has to be where our file has it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nccl_rules::topology_xml::topology;
use rdma_model::snapshot::Snapshot;
use testkit::topo_xml::Node;

/// The addresses from the CPU down to each GPU, by its own, and to each NIC, by its name.
fn places(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    walk(&testkit::topo_xml::read(text).unwrap(), &[], &mut found);
    found
}

fn walk(node: &Node, above: &[String], found: &mut BTreeMap<String, Vec<String>>) {
    let key = match node.tag.as_str() {
        "cpu" => node.get("numaid"),
        "pci" => node.get("busid"),
        _ => None,
    };
    let path: Vec<String> = above
        .iter()
        .cloned()
        .chain(key.map(str::to_owned))
        .collect();
    match node.tag.as_str() {
        "pci"
            if node
                .get("class")
                .is_some_and(|class| class.starts_with("0x03")) =>
        {
            found.insert(path.last().unwrap().clone(), path.clone());
        }
        "net" => drop(found.insert(node.get("name").unwrap().to_owned(), path.clone())),
        _ => {}
    }
    node.children
        .iter()
        .for_each(|child| walk(child, &path, found));
}

#[test]
fn nccl_has_every_gpu_and_nic_where_our_file_has_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/judged");
    let mut judged = 0;
    for machine in fs::read_dir(root).unwrap().map(|e| e.unwrap().path()) {
        let snapshot: Snapshot =
            serde_json::from_slice(&fs::read(machine.join("snapshot.json")).unwrap()).unwrap();
        let kept = ["mlx5_0", "mlx5_1"]
            .map(|name| name.parse().unwrap())
            .into();
        let ours = places(&topology(&snapshot, &kept).xml().unwrap());
        let dumps = fs::read_dir(&machine).unwrap().map(|e| e.unwrap().path());
        for dump in dumps.filter(|path| path.extension().is_some_and(|e| e == "xml")) {
            let theirs = places(&fs::read_to_string(&dump).unwrap());
            // By its Data Direct function, where it has one.
            let has_nic = ["mlx5_0", "mlx5_0_dma"]
                .iter()
                .any(|name| theirs.contains_key(*name));
            assert!(theirs.len() >= 2 && has_nic, "{}", dump.display());
            for (name, place) in &theirs {
                assert_eq!(ours.get(name), Some(place), "{name} in {}", dump.display());
                judged += 1;
            }
        }
    }
    assert!(judged >= 18, "{judged}");
}
