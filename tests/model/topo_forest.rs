//! Whatever the PCI tree is like, a topology file is one that NCCL reads, with every kept NIC in it
//! once; and the model of NCCL's parser refuses what NCCL does.

use std::collections::{BTreeMap, BTreeSet};

use nccl_rules::levels::Levels;
use nccl_rules::topology_xml::topology;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use rdma_model::ids::{BusId, HcaName};
use rdma_model::snapshot::{PciFunction, Snapshot};
use rdmaprep::drawing::{self, picture};
use serde_json::json;
use testkit::topo_xml::{Node, parse, read};

/// What a function is made of: its class, what it is below, how its address goes on from that of
/// the one before, its node and link.
type Seed = (
    u32,
    Option<Index>,
    u8,
    Option<i32>,
    (Option<String>, Option<u32>),
);

fn seed() -> impl Strategy<Value = Seed> {
    let class = select(vec![
        0x060400_u32,
        0x060400,
        0x060400,
        0x020000,
        0x020700,
        0x0c0600,
        0x030200,
        0x030200,
        0,
        0x010802,
    ]);
    let speed = select(vec![
        "8.0 GT/s PCIe",
        "16.0 GT/s PCIe",
        "64.0 GT/s PCIe",
        "Unknown",
        "5 GT/s",
        "1 GT/s \"",
        "1 GT/s <",
        "",
    ]);
    let link = (
        proptest::option::of(speed.prop_map(str::to_owned)),
        proptest::option::of(select(vec![0_u32, 1, 16, 255])),
    );
    (
        class,
        proptest::option::weighted(0.9, any::<Index>()),
        0_u8..4,
        proptest::option::of(-1..3_i32),
        link,
    )
}

/// A machine. Only bridges have something below them; where `circles` may be, one may be below
/// itself.
fn forest(seeds: Vec<Seed>, nics: &[Index], circles: bool) -> Snapshot {
    // Addresses are one each, as in a directory.
    let mut made: BTreeMap<BusId, (PciFunction, Option<Index>)> = BTreeMap::new();
    let mut at = BusId {
        domain: 0,
        bus: 0,
        device: 0,
        function: 0,
    };
    for (class, above, step, numa, (speed, width)) in seeds {
        at = match step {
            0 if at.function < 7 => BusId {
                function: at.function + 1,
                ..at
            },
            1 if at.device < 31 => BusId {
                device: at.device + 1,
                function: 0,
                ..at
            },
            2 if at.bus < 255 => BusId {
                bus: at.bus + 1,
                device: 0,
                function: 0,
                ..at
            },
            _ => BusId {
                domain: (at.domain * 2 + 1) % 0xfffff,
                bus: 0,
                device: 0,
                function: 0,
            },
        };
        let function = json!({
            "address": at, "class": class, "vendor": 0x10de, "numa": numa, "max_link_speed": speed,
            "max_link_width": width,
        });
        made.entry(at)
            .or_insert((serde_json::from_value(function).unwrap(), above));
    }
    let bridges: Vec<BusId> = made
        .values()
        .filter(|(f, _)| f.is_bridge())
        .map(|(f, _)| f.address)
        .collect();
    let below = |(mut f, above): (PciFunction, Option<Index>)| {
        let there: Vec<&BusId> = bridges
            .iter()
            .filter(|b| circles || **b < f.address)
            .collect();
        f.bridge = above
            .filter(|_| !there.is_empty())
            .map(|above| **above.get(&there));
        f
    };
    let pci: Vec<PciFunction> = made.into_values().map(below).collect();
    let leaves: Vec<BusId> = pci
        .iter()
        .filter(|f| !f.is_bridge() && !f.is_gpu())
        .map(|f| f.address)
        .collect();
    let hca = |(n, at): (usize, &Index)| {
        let place = (!leaves.is_empty() && n % 7 != 6).then(|| *at.get(&leaves));
        json!({"name": format!("mlx5_{n}"), "pci": place, "ports": []})
    };
    let hcas: Vec<_> = nics.iter().enumerate().map(hca).collect();
    let mut snapshot: Snapshot =
        serde_json::from_value(json!({"schema": 1, "netdevs": [], "hcas": hcas})).unwrap();
    snapshot.pci = pci;
    snapshot
}

/// The ways down to each net and to each leaf without one: names, addresses, the node.
fn ways(node: &Node, above: &[String], found: &mut BTreeMap<String, Vec<String>>) {
    let at = node
        .get("busid")
        .or(node.get("numaid"))
        .unwrap_or_default()
        .to_owned();
    let way = [std::slice::from_ref(&at), above].concat();
    node.children
        .iter()
        .for_each(|child| ways(child, &way, found));
    if let Some(name) = node.get("name") {
        // Nothing of net and nic has an address.
        found.insert(
            name.to_owned(),
            above.iter().filter(|a| !a.is_empty()).cloned().collect(),
        );
    } else if node.tag == "pci" && node.children.is_empty() {
        found.insert(
            at,
            above.iter().filter(|a| !a.is_empty()).cloned().collect(),
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn every_forest_gives_a_file_with_each_kept_nic_once(
        seeds in prop_oneof![4 => proptest::collection::vec(seed(), 0..60),
            1 => proptest::collection::vec(seed(), 300..500)],
        nics in proptest::collection::vec(any::<Index>(), 0..40),
        dropped in 1_usize..5,
        circles in any::<bool>(),
    ) {
        let snapshot = forest(seeds, &nics, circles);
        let kept: BTreeSet<HcaName> =
            snapshot.hcas.iter().enumerate().filter(|(n, _)| n % dropped == 0)
                .map(|(_, h)| h.name.clone()).collect();
        let made = topology(&snapshot, &kept);
        let unplaced: BTreeSet<HcaName> = made.unplaced.iter().map(|(hca, _)| hca.clone())
            .collect();
        let text = match made.xml() {
            Ok(text) => text,
            Err(e) => {
                prop_assert!(format!("{e:#}").contains("a topology file holds 255 \
                    elements"), "{e:#}");
                return Ok(());
            }
        };
        let file = read(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        let nets: Vec<HcaName> = file.all("net").map(|n| n.get("name").unwrap().parse().unwrap())
            .collect();
        let placed: BTreeSet<HcaName> = nets.iter().cloned().collect();
        prop_assert_eq!(nets.len(), placed.len());
        prop_assert!(placed.is_disjoint(&unplaced));
        prop_assert_eq!(&placed | &unplaced, kept);
        // Each GPU is there once, and where every second function above it says.
        let mut found = BTreeMap::new();
        ways(&file, &[], &mut found);
        let levels = Levels::new(&snapshot);
        for gpu in snapshot.gpus() {
            let mut way: Vec<String> = levels.switches(gpu.address).iter().map(BusId::to_string)
                .collect();
            way.push(levels.numa(gpu.address).to_string());
            prop_assert_eq!(found.get(&gpu.address.to_string()), Some(&way), "{} in\n{}",
                gpu.address, text);
        }
    }

    #[test]
    fn every_forest_is_drawn_in_a_hundred_columns(
        seeds in proptest::collection::vec(seed(), 0..80),
        nics in proptest::collection::vec(any::<Index>(), 0..20),
        circles in any::<bool>(),
    ) {
        let snapshot = forest(seeds, &nics, circles);
        let kept = snapshot.hcas.iter().step_by(2).map(|h| h.name.clone()).collect();
        let drawn = picture(&snapshot, &drawing::listed(&kept, &snapshot));
        let text = drawing::text(&drawn);
        for line in text.lines() {
            prop_assert!(line.chars().count() <= 100 && line.trim_end() == line, "{:?}", line);
        }
        let svg = drawing::svg(&drawn);
        for hca in &snapshot.hcas {
            let line = |l: &&str| l.contains(&format!("NIC {} ", hca.name))
                || l.ends_with(&format!("NIC {}", hca.name));
            prop_assert_eq!(text.lines().filter(line).count(), 1, "{}\n{}", hca.name, text);
            prop_assert_eq!(svg.matches(&format!(">{}</text>", hca.name)).count(), 1, "{}\n{}",
                hca.name, svg);
        }
        for gpu in 0..drawn.gpus.len() {
            prop_assert_eq!(svg.matches(&format!(">GPU {gpu}</text>")).count(), 1);
        }
        // A kept NIC that has a switch in common with a GPU belongs to one.
        let levels = Levels::new(&snapshot);
        for nic in drawn.nics.iter().filter_map(|n| Some((n.place.as_ref()?, n))) {
            let shares = |gpu: &PciFunction| {
                let below = levels.switches(gpu.address);
                levels.switches(nic.0.address).iter().any(|s| below.contains(s))
            };
            prop_assert_eq!(nic.1.nearest.as_ref().is_some_and(|n| n.is_close()),
                snapshot.gpus().any(shares));
        }
    }
}

#[test]
fn the_parsers_model_refuses_what_nccl_does() {
    let value = |n: usize| {
        format!(
            "<system version=\"1\"><cpu numaid=\"0\" affinity=\"{}\"/></system>",
            "f".repeat(n)
        )
    };
    let attributes = |n: usize| {
        let all: String = (0..n).map(|i| format!(" a{i}=\"\"")).collect();
        format!("<system{all}/>")
    };
    let children = |n: usize| format!("<system version=\"1\">{}</system>", "<cpu/>".repeat(n));
    for (text, good) in [
        ("<system version=\"1\"/>", true),
        ("<system version='1'>\r\n  <cpu/>\n</system>\n", true),
        ("<?xml version=\"1.0\"?><system version=\"1\"/>", false),
        ("<system  version=\"1\"/>", false),
        ("<system\nversion=\"1\"/>", false),
        ("<system\tversion=\"1\"/>", false),
        ("<system version=\"1\">\t<cpu/></system>", false),
        ("<system version=1/>", false),
        ("<system version=\"1\" />", false),
        ("<system version=\"1\"><pci/></system>", false),
        ("<system version=\"1\"><cpu></system>", false),
        ("<system version=\"1\"><cpu>", false),
        ("<system version=\"&amp;\"/>", false),
        ("<system version=\"1\" version=\"1\"/>", false),
        (&value(253), true),
        (&value(254), false),
        (&attributes(16), true),
        (&attributes(17), false),
        (&children(254), true),
        (&children(255), false),
    ] {
        let short: String = text.chars().take(90).collect();
        assert_eq!(parse(text).is_ok(), good, "{short}: {:?}", parse(text));
    }
    let cpu = "numaid=\"0\" arch=\"arm64\"";
    let pci = |attributes: &str| {
        format!("<system version=\"1\"><cpu {cpu}><pci {attributes}/></cpu></system>")
    };
    let rest = "class=\"0x020000\" link_speed=\"\" link_width=\"0\"";
    read(&pci(&format!("busid=\"0000:05:00.0\" {rest}"))).unwrap();
    read(&pci(&format!("busid=\"10000:05:00.0\" {rest}"))).unwrap();
    for bad in [
        rest.to_owned(),
        format!("busid=\"0000:0A:00.0\" {rest}"),
        format!("busid=\"0000:05:00\" {rest}"),
        "busid=\"0000:05:00.0\" class=\"0x020000\"".to_owned(),
        "busid=\"0000:05:00.0\" class=\"0x060400\" link_speed=\"\" link_width=\"0\"".to_owned(),
    ] {
        read(&pci(&bad)).unwrap_err();
    }
    read("<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\"><nic/></cpu></system>")
        .unwrap_err();
    read("<system version=\"2\"/>").unwrap_err();
}
