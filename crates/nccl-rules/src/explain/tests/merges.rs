//! Which NICs become one from 2.24.3 on.

use super::*;

/// HCAs of one port, each at its PCI address below a root port of its NUMA node.
fn hcas(all: &[(&str, &str, i32)]) -> Snapshot {
    let port = json!({"number": 1, "state": "ACTIVE", "link_layer": "Ethernet"});
    let hca = |(index, (name, pci, _)): (usize, &(&str, &str, i32))| {
        let ports = [&port];
        json!({"name": name, "index": index, "pci": pci, "ports": ports})
    };
    let hcas: Vec<Value> = all.iter().enumerate().map(hca).collect();
    let function = |(_, pci, numa): &(&str, &str, i32)| {
        let class = 0x020000;
        json!({"address": pci, "class": class, "vendor": 0x15b3, "device": 0x1021, "numa": numa})
    };
    let pci: Vec<Value> = all.iter().map(function).collect();
    Snapshot {
        hcas: serde_json::from_value(hcas.into()).unwrap(),
        pci: serde_json::from_value(pci.into()).unwrap(),
        ..node()
    }
}

fn add_port(hca: &mut Hca) {
    let mut second = hca.ports[0].clone();
    second.number = 2;
    hca.ports.push(second);
}

/// What becomes one, and why NCCL does not start.
fn merged(node: &Snapshot, env: &[(&str, &str)], version: &str) -> (Vec<String>, Vec<String>) {
    let settings = Settings::of(env.iter().copied(), "");
    let explained = explain(&settings, node, version.parse().unwrap(), &|_| None);
    let ends = explained.warnings.iter().filter(|w| w.trap == Trap::Merge);
    let groups = explained.merged.iter().map(|group| group.join("+"));
    (groups.collect(), ends.map(|w| w.text.clone()).collect())
}

fn one(group: &str) -> (Vec<String>, Vec<String>) {
    (vec![group.to_owned()], Vec::new())
}

fn ends(why: &str) -> (Vec<String>, Vec<String>) {
    (Vec::new(), vec![why.to_owned()])
}

const NONE: (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());

#[test]
fn nics_of_two_numa_nodes_become_one_up_to_2_30_4() {
    let node = hcas(&[("a", "0000:05:00.0", 0), ("b", "0000:85:00.0", 1)]);
    let forced = [("NCCL_NET_FORCE_MERGE", "a,b")];
    let why = |release: &str| {
        format!(
            "NCCL {release} ends with ncclInvalidArgument: a:1, b:1 are of different NUMA nodes, \
            which it makes no NIC of"
        )
    };
    assert_eq!(merged(&node, &forced, "2.30.4"), one("a:1+b:1"));
    for release in ["2.30.7", "2.32.3"] {
        let said = format!("NCCL_NET_FORCE_MERGE=a,b: {}", why(release));
        assert_eq!(merged(&node, &forced, release), ends(&said));
        let level = [("NCCL_NET_MERGE_LEVEL", "SYS")];
        let said = format!(
            "{}; NCCL_NET_MERGE_LEVEL=LOC keeps NICs apart",
            why(release)
        );
        assert_eq!(merged(&node, &level, release), ends(&said));
    }
    let near = hcas(&[("a", "0000:05:00.0", 0), ("b", "0000:85:00.0", 0)]);
    assert_eq!(merged(&near, &forced, "2.32.3"), one("a:1+b:1"));
    let file = [forced[0], ("NCCL_TOPO_FILE", "/topo.xml")];
    assert_eq!(merged(&node, &file, "2.32.3"), one("a:1+b:1"));
}

#[test]
fn nics_within_the_level_become_one() {
    let mut node = hcas(&[
        ("a", "0000:05:00.0", 0),
        ("b", "0000:05:00.1", 0),
        ("c", "0000:06:00.0", 0),
    ]);
    let level = |level| [("NCCL_NET_MERGE_LEVEL", level)];
    assert_eq!(merged(&node, &[], "2.24.3"), one("a:1+b:1"));
    assert_eq!(merged(&node, &level("LOC"), "2.32.3"), NONE);
    assert_eq!(merged(&node, &level("PXN"), "2.32.3"), one("a:1+b:1"));
    assert_eq!(merged(&node, &level("PHB"), "2.32.3"), one("a:1+b:1+c:1"));
    let forced = [("NCCL_NET_FORCE_MERGE", "b,c")];
    assert_eq!(merged(&node, &forced, "2.32.3"), one("b:1+c:1"));
    assert_eq!(merged(&node, &[("NCCL_NET", "Socket")], "2.32.3"), NONE);
    let rails = [
        level("PHB")[0],
        ("NCCL_NET_MERGE_POLICY", "RAIL"),
        ("NCCL_IB_HCA", "a::1,b::2,c::1"),
    ];
    assert_eq!(merged(&node, &rails, "2.30.7"), one("a:1+c:1"));
    assert_eq!(merged(&node, &rails, "2.32.3"), one("a:1+c:1"));
    let without = [rails[0], rails[1], ("NCCL_IB_HCA", "a::1,b,c::1")];
    assert_eq!(merged(&node, &without, "2.30.7"), one("a:1+c:1"));
    assert_eq!(merged(&node, &without, "2.32.3"), NONE);
    let off = [("NCCL_IB_MERGE_NICS", "0")];
    assert_eq!(merged(&node, &off, "2.26.2"), NONE);
    let said = "NCCL 2.25.1 ends with ncclInvalidUsage: NCCL_IB_MERGE_NICS=0 forbids it; \
        NCCL_NET_MERGE_LEVEL=LOC keeps NICs apart";
    assert_eq!(merged(&node, &off, "2.25.1"), ends(said));
    node.hcas[0].ports[0].link_layer = Some("InfiniBand".to_owned());
    assert_eq!(merged(&node, &level("PHB"), "2.32.3"), one("b:1+c:1"));
}

#[test]
fn vfs_of_a_card_are_one_place_from_2_27_3_on() {
    let mut vfs = hcas(&[
        ("a", "0000:05:00.2", 0),
        ("b", "0000:05:01.3", 0),
        ("c", "0000:05:00.0", 0),
        ("d", "0000:05:01.0", 0),
    ]);
    vfs.hcas.truncate(2);
    assert_eq!(merged(&vfs, &[], "2.26.2"), NONE);
    assert_eq!(merged(&vfs, &[], "2.27.3"), one("a:1+b:1"));
    let apart = [("NCCL_IB_MERGE_VFS", "0")];
    assert_eq!(merged(&vfs, &apart, "2.27.3"), NONE);
}

#[test]
fn nics_whose_function_0_is_none_are_one_on_the_first_processor() {
    let nics = [
        ("a", "0000:05:01.0", 0),
        ("b", "0000:06:01.0", 0),
        ("c", "0000:07:00.0", 1),
    ];
    let mut node = hcas(&nics);
    let level = |level| [("NCCL_NET_MERGE_LEVEL", level)];
    assert_eq!(merged(&node, &[], "2.30.4"), one("a:1+b:1"));
    assert_eq!(merged(&node, &level("PXB"), "2.30.4"), one("a:1+b:1"));
    assert_eq!(merged(&node, &level("SYS"), "2.30.4"), one("a:1+b:1+c:1"));
    // Which processor is the first one, the GPUs say.
    assert_eq!(merged(&node, &level("PHB"), "2.30.4"), NONE);
    let apart = [("NCCL_IB_MERGE_VFS", "0")];
    assert_eq!(merged(&node, &apart, "2.30.4"), NONE);
    for hca in &mut node.hcas {
        hca.pci = None;
    }
    assert_eq!(merged(&node, &[], "2.30.4"), NONE);
    for hca in &mut node.hcas {
        hca.driver = Some("rxe".to_owned());
    }
    assert_eq!(merged(&node, &[], "2.30.4"), one("a:1+b:1+c:1"));
}

#[test]
fn at_most_four_nics_become_one() {
    let places = ["1", "2", "3", "4", "5", "6"].map(|n| format!("0000:0{n}:00.0"));
    let all: Vec<_> = ["a", "b", "c", "d", "e", "f"].iter().zip(&places).collect();
    let all: Vec<_> = all
        .iter()
        .map(|(name, pci)| (**name, pci.as_str(), 0))
        .collect();
    let node = hcas(&all);
    let groups = ["a:1+b:1+c:1+d:1", "e:1+f:1"].map(str::to_owned).to_vec();
    for release in ["2.24.3", "2.30.3", "2.32.3"] {
        let phb = [("NCCL_NET_MERGE_LEVEL", "PHB")];
        assert_eq!(merged(&node, &phb, release), (groups.clone(), Vec::new()));
    }
    let five = [("NCCL_NET_FORCE_MERGE", "a,b,c,d,e")];
    let said = "NCCL_NET_FORCE_MERGE=a,b,c,d,e: NCCL 2.32.3 ends with ncclInvalidUsage: at most \
        4 become one";
    assert_eq!(merged(&node, &five, "2.32.3"), ends(said));
}

#[test]
fn a_group_has_to_fit_as_many_ports_as_it_has_names() {
    let mut node = hcas(&[("a", "0000:05:00.0", 0), ("b", "0000:06:00.0", 0)]);
    add_port(&mut node.hcas[0]);
    let forced = [("NCCL_NET_FORCE_MERGE", "gone,a")];
    assert_eq!(merged(&node, &forced, "2.31.2"), one("a:1+a:2"));
}

#[test]
fn two_ports_of_an_hca_end_2_32() {
    let mut node = hcas(&[("a", "0000:05:00.0", 0), ("b", "0000:06:00.0", 0)]);
    add_port(&mut node.hcas[1]);
    let said = "NCCL 2.32.3 ends with ncclInvalidUsage: b:1 and b:2 have one name, and different \
        planes; name one port of the HCA, as b:1";
    assert_eq!(merged(&node, &[], "2.32.3"), ends(said));
    assert_eq!(merged(&node, &[], "2.31.2"), one("b:1+b:2"));
    assert_eq!(merged(&node, &[("NCCL_IB_HCA", "=a,b:1")], "2.32.3"), NONE);
    let planes = |second| merged(&node, &[("NCCL_IB_HCA", second)], "2.32.3");
    assert_eq!(planes("=a,b:1:0:1,b:2:0:1"), one("b:1+b:2"));
    assert_eq!(planes("=a,b:1:0:1,b:2:0:2"), ends(said));
    assert_eq!(planes("=a,b:1:0,b:2:0"), ends(said));
}

#[test]
fn a_list_of_the_network_counts_the_ports_of_a_card() {
    let node = hcas(&[("a", "0000:17:00.0", 0), ("b", "0000:17:00.1", 0)]);
    let forced = |list| merged(&node, &[("NCCL_NET_FORCE_MERGE", list)], "2.30.7");
    assert_eq!(forced("a:1,b:2"), one("a:1+b:1"));
    let said = "NCCL_NET_FORCE_MERGE=a:1,b:1: NCCL 2.30.7 ends with ncclInvalidUsage: it counts \
        the ports of a card on, and has b:2";
    assert_eq!(forced("a:1,b:1"), ends(said));
    let ring = |list| {
        let env = [("NCCL_OOB_NET_ENABLE", "1"), ("NCCL_OOB_NET_IFNAME", list)];
        let settings = Settings::of(env, "");
        explain(&settings, &node, Version::NEWEST, &|_| None).ring
    };
    assert_eq!(ring("=b:2"), Some(Ring::Uses("b:1".to_owned())));
    assert!(matches!(ring("=b:1"), Some(Ring::Fails(_))));
}

#[test]
fn with_data_direct_2_an_hca_is_two_devices() {
    let mut node = hcas(&[("mlx5_0", "0000:05:00.0", 0)]);
    node.hcas[0].driver = Some("mlx5_core".to_owned());
    let env = [
        ("NCCL_NET_FORCE_MERGE", "mlx5_0,mlx5_0_dma"),
        ("NCCL_IB_DATA_DIRECT", "2"),
    ];
    assert_eq!(merged(&node, &env, "2.30.7").1, [""; 0]);
}

#[test]
fn a_group_of_more_names_than_are_read_is_said() {
    let names = ["a", "b", "c", "d", "e"].map(|name| (name, format!("0000:0{name}:00.0"), 0));
    let node = hcas(
        &names
            .each_ref()
            .map(|(name, pci, numa)| (*name, pci.as_str(), *numa)),
    );
    let settings = Settings::of([("NCCL_NET_FORCE_MERGE", "a,b,c,d,e")], "");
    let explained = explain(&settings, &node, "2.28.9".parse().unwrap(), &|_| None);
    let said = "NCCL_NET_FORCE_MERGE=a,b,c,d,e: of 5 names NCCL 2.28.9 reads 4";
    assert!(explained.warnings.iter().any(|w| w.text == said));
    assert_eq!(explained.merged, [["a:1", "b:1", "c:1", "d:1"]]);
}
