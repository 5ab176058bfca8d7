//! Every captured /sys tree is read without a panic and as its description says; trees made by hand
//! hold the traps that no capture has. Captured trees are not part of the repository:
//! RDMAPREP_REALDATA names where they are.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::unistd::mkfifo;
use rdma_model::ids::BusId;
use rdma_model::snapshot::{GidKind, Hca, Netdev, Snapshot};
use rdma_netlink::nldev::{CharDev, Device, Port};
use rdmaprep::kernel::rdma::{NlFacts, NlHca};
use rdmaprep::kernel::sysfs::{self, Survey, SysTree};
use tempfile::TempDir;
use testkit::trees::{TREES, captured, unpacked};

// ---- captured trees

fn read(root: &Path) -> SysTree {
    Survey::open(root).unwrap().facts()
}

#[test]
#[ignore = "needs RDMAPREP_REALDATA"]
fn captured_trees_hold_what_their_description_says() {
    let trees = captured();
    for (name, hcas, netdevs, pci, gpus) in TREES {
        let (_dir, root) = unpacked(&trees, name);
        let s = sysfs::tree_snapshot(&root).unwrap();
        let found = (s.hcas.len(), s.netdevs.len(), s.pci.len(), s.gpus().count());
        assert_eq!(
            found,
            (hcas, netdevs, pci, gpus),
            "{name}: {:#?}",
            s.warnings
        );
        // What was read can be written down and read back.
        let json = serde_json::to_string(&s).unwrap();
        assert_eq!(
            serde_json::from_str::<Snapshot>(&json).unwrap(),
            s,
            "{name}"
        );
        // The directory above does as well.
        assert_eq!(
            sysfs::tree_snapshot(root.parent().unwrap()).unwrap(),
            s,
            "{name}"
        );
        println!("{name}: {found:?}, {} warnings", s.warnings.len());
    }
}

#[test]
#[ignore = "needs RDMAPREP_REALDATA"]
fn captured_machines_are_joined_as_they_were() {
    let trees = captured();
    let (_dir, root) = unpacked(&trees, "hwloc-32em64t-2n8c+dax+nvme+mic+dimms");
    let s = sysfs::tree_snapshot(&root).unwrap();
    let mlx4 = hca(&s, "mlx4_0");
    assert_eq!(
        (mlx4.pci, mlx4.driver.as_deref()),
        (bus("0000:82:00.0"), Some("mlx4_core"))
    );
    let port = &mlx4.ports[0];
    assert_eq!(
        (port.state.as_deref(), port.link_layer.as_deref()),
        (Some("ACTIVE"), Some("InfiniBand"))
    );
    // A tree of before dev_port: one port, one netdev, one function. 127 of the 128 GIDs are
    // unused.
    assert_eq!((netdev(port), port.gids.len()), (Some("ib0"), 1));
    assert!(
        s.warnings.iter().any(|w| w.contains("scif0 leads nowhere")),
        "{:#?}",
        s.warnings
    );

    let (_dir, root) = unpacked(&trees, "hwloc-fakepcilocalities");
    let qib = &read(&root).hcas[0];
    assert_eq!(
        (netdev(&qib.ports[0]), qib.ports[0].gids.len()),
        (Some("ib0"), 1)
    );

    let (_dir, root) = unpacked(&trees, "dgx-a100");
    let s = sysfs::tree_snapshot(&root).unwrap();
    assert_eq!(hca(&s, "mlx5_9").pci, bus("0000:e1:00.1"));
    let nic = s
        .pci
        .iter()
        .find(|f| Some(f.address) == bus("0000:0c:00.0"))
        .unwrap();
    assert_eq!(
        (nic.bridge, nic.driver.as_deref()),
        (bus("0000:0b:00.0"), Some("mlx5_core"))
    );
    assert!(
        s.warnings.iter().any(|w| w == "mlx5_0 shows no ports"),
        "{:#?}",
        s.warnings
    );

    let (_dir, root) = unpacked(&trees, "gpud-h100-class-infiniband");
    let s = sysfs::tree_snapshot(&root).unwrap();
    assert_eq!(
        hca(&s, "mlx5_bond_0").ports[0].link_layer.as_deref(),
        Some("Ethernet")
    );
    assert_eq!(
        hca(&s, "mlx5_0").ports[0].rate.as_deref(),
        Some("400 Gb/sec (4X NDR)")
    );
}

// ---- trees made by hand

/// A /sys that grows by attribute.
struct Tree(TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(TempDir::new().unwrap());
        tree.dir("class");
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn dir(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    fn file(&self, path: &str, value: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), value).unwrap();
    }

    /// A link whose target is given from the root, as sysfs makes them: relative, through `..`.
    fn link(&self, path: &str, target: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        let up = "../".repeat(path.split('/').count() - 1);
        symlink(format!("{up}{target}"), self.path(path)).unwrap();
    }

    /// A PCI function below others.
    fn function(&self, path: &str, class: &str) {
        let address = path.rsplit('/').next().unwrap();
        self.file(&format!("devices/{path}/class"), class);
        self.file(&format!("devices/{path}/numa_node"), "1\n");
        self.link(
            &format!("devices/{path}/driver"),
            "bus/pci/drivers/mlx5_core",
        );
        self.link(
            &format!("bus/pci/devices/{address}"),
            &format!("devices/{path}"),
        );
    }

    /// An HCA of one Ethernet port below a device, or below none.
    fn hca(&self, device: Option<&str>, name: &str) {
        let parent = device.unwrap_or("virtual");
        let home = format!("devices/{parent}/infiniband/{name}");
        self.file(&format!("{home}/node_guid"), "0c42:a103:0065:1234\n");
        self.port(&home, 1, "Ethernet");
        if device.is_some() {
            self.link(&format!("{home}/device"), &format!("devices/{parent}"));
        }
        self.link(&format!("class/infiniband/{name}"), &home);
    }

    fn port(&self, home: &str, number: u32, layer: &str) {
        self.file(&format!("{home}/ports/{number}/state"), "4: ACTIVE\n");
        self.file(
            &format!("{home}/ports/{number}/link_layer"),
            &format!("{layer}\n"),
        );
        self.dir(&format!("{home}/ports/{number}/gids"));
    }

    fn gid(&self, port: &str, index: u32, gid: &str, kind: Option<&str>, ndev: Option<&str>) {
        self.file(&format!("{port}/gids/{index}"), &format!("{gid}\n"));
        self.file(
            &format!("{port}/gid_attrs/types/{index}"),
            kind.unwrap_or(""),
        );
        self.file(
            &format!("{port}/gid_attrs/ndevs/{index}"),
            ndev.unwrap_or(""),
        );
    }

    fn netdev(&self, device: Option<&str>, name: &str, ifindex: u32, dev_port: &str) {
        let parent = device.unwrap_or("virtual");
        let home = format!("devices/{parent}/net/{name}");
        self.file(&format!("{home}/ifindex"), &format!("{ifindex}\n"));
        self.file(&format!("{home}/iflink"), &format!("{ifindex}\n"));
        self.file(
            &format!("{home}/address"),
            &format!("02:00:00:00:00:{ifindex:02x}\n"),
        );
        self.file(&format!("{home}/dev_port"), dev_port);
        self.file(&format!("{home}/type"), "1\n");
        self.file(&format!("{home}/flags"), "0x1003\n");
        self.file(&format!("{home}/operstate"), "up\n");
        if device.is_some() {
            self.link(&format!("{home}/device"), &format!("devices/{parent}"));
        }
        self.link(&format!("class/net/{name}"), &home);
    }

    fn snapshot(&self) -> Snapshot {
        sysfs::tree_snapshot(self.0.path()).unwrap()
    }
}

/// What `flags` says of a netdev in a capture: up, promiscuous, all multicast.
#[test]
fn a_capture_tells_who_listens_to_all() {
    let tree = rail();
    tree.netdev(Some(RAIL), "rdma0", 2, "0\n");
    let seen = |flags: &str| {
        tree.file(&format!("devices/{RAIL}/net/rdma0/flags"), flags);
        let dev = tree.snapshot().netdevs.remove(0);
        (dev.up, dev.promisc, dev.allmulti)
    };
    assert_eq!(seen("0x1303\n"), (true, true, true));
    assert_eq!(seen("0x1103\n"), (true, true, false));
    assert_eq!(seen("0x1202\n"), (false, false, true));
}

const RAIL: &str = "pci0000:00/0000:00:01.0/0000:0c:00.0";

/// One function with its HCA mlx5_0.
fn rail() -> Tree {
    let tree = Tree::new();
    tree.function("pci0000:00/0000:00:01.0", "0x060400\n");
    tree.function(RAIL, "0x020000\n");
    tree.hca(Some(RAIL), "mlx5_0");
    tree
}

fn bus(text: &str) -> Option<BusId> {
    Some(text.parse().unwrap())
}

fn hca<'s>(s: &'s Snapshot, name: &str) -> &'s Hca {
    s.hca(&name.parse().unwrap()).unwrap()
}

fn netdev(port: &rdma_model::snapshot::Port) -> Option<&str> {
    port.netdev.as_ref().map(|n| n.as_str())
}

fn warned(s: &Snapshot, text: &str) -> bool {
    s.warnings.iter().any(|w| w.contains(text))
}

#[test]
fn a_rail_is_joined_by_function_and_dev_port() {
    let tree = rail();
    tree.netdev(Some(RAIL), "hsi0", 5, "0\n");
    tree.file("class/misc/rdma_cm/dev", "10:123\n");
    for (name, minor) in [("uverbs3", 195), ("uverbs3x", 0)] {
        tree.file(&format!("class/infiniband_verbs/{name}/ibdev"), "mlx5_0\n");
        tree.file(
            &format!("class/infiniband_verbs/{name}/dev"),
            &format!("231:{minor}\n"),
        );
    }
    for name in ["umad3", "issm3"] {
        tree.file(&format!("class/infiniband_mad/{name}/ibdev"), "mlx5_0");
        tree.file(&format!("class/infiniband_mad/{name}/dev"), "231:3");
    }
    let s = tree.snapshot();
    let mlx5 = hca(&s, "mlx5_0");
    assert_eq!(
        (mlx5.pci, mlx5.numa, mlx5.driver.as_deref()),
        (bus("0000:0c:00.0"), Some(1), Some("mlx5_core"))
    );
    assert_eq!(netdev(&mlx5.ports[0]), Some("hsi0"));
    assert_eq!(
        mlx5.uverbs.as_ref().map(|d| (d.name.as_str(), d.minor)),
        Some(("uverbs3", 195))
    );
    assert_eq!(
        mlx5.umad
            .iter()
            .map(|d| d.name.as_str())
            .collect::<Vec<_>>(),
        ["umad3"]
    );
    assert_eq!(
        s.rdma_cm.as_ref().map(|d| (d.major, d.minor)),
        Some((10, 123))
    );
    let hsi0 = &s.netdevs[0];
    assert_eq!(
        (hsi0.pci, hsi0.up, hsi0.running, hsi0.link),
        (bus("0000:0c:00.0"), true, true, None)
    );
    assert_eq!(s.pci[1].bridge, bus("0000:00:01.0"));
    assert_eq!(s.warnings, Vec::<String>::new());
}

#[test]
fn plain_files_dangling_links_and_circles_are_survived() {
    let tree = rail();
    tree.file("class/net/bonding_masters", "bond0\n");
    tree.link("class/net/gone0", "devices/virtual/net/gone0");
    tree.link("class/net/loop0", "class/net/loop0");
    tree.link(
        "class/infiniband/scif0",
        "devices/scif_dma_0/infiniband/scif0",
    );
    tree.link("bus/pci/devices/0000:01:00.0", "devices/nowhere");
    tree.file("bus/pci/devices/oddity/class", "0x020000");
    tree.link(
        &format!("devices/{RAIL}/infiniband/mlx5_0/ports/2"),
        &format!("devices/{RAIL}/infiniband/mlx5_0/ports/2"),
    );
    tree.link(
        &format!("devices/{RAIL}/infiniband/mlx5_0/ports/1/up"),
        &format!("devices/{RAIL}/infiniband/mlx5_0"),
    );
    let s = tree.snapshot();
    assert_eq!(
        (
            s.hcas.len(),
            s.netdevs.len(),
            s.pci.len(),
            hca(&s, "mlx5_0").ports.len()
        ),
        (1, 0, 2, 1)
    );
    for text in [
        "gone0 leads nowhere",
        "loop0 leads",
        "scif0 leads",
        "01:00.0 leads",
        "oddity is no PCI address",
    ] {
        assert!(warned(&s, text), "{text}: {:#?}", s.warnings);
    }
    assert!(!warned(&s, "bonding_masters"));
}

#[test]
fn nothing_outside_the_root_is_read() {
    let outside = TempDir::new().unwrap();
    fs::create_dir(outside.path().join("eth9")).unwrap();
    fs::write(outside.path().join("eth9/ifindex"), "9\n").unwrap();
    fs::write(outside.path().join("guid"), "0c42:a103:0065:9999\n").unwrap();
    let tree = Tree::new();
    tree.netdev(None, "eth0", 1, "0\n");
    symlink(outside.path().join("eth9"), tree.path("class/net/eth9")).unwrap();
    tree.dir("class/infiniband/mlx5_0/ports/1");
    symlink(
        outside.path().join("guid"),
        tree.path("class/infiniband/mlx5_0/node_guid"),
    )
    .unwrap();
    // A pipe in place of an attribute would block the reader.
    mkfifo(
        &tree.path("class/infiniband/mlx5_0/fw_ver"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    let s = tree.snapshot();
    assert_eq!(
        s.netdevs
            .iter()
            .map(|n| n.name.as_str())
            .collect::<Vec<_>>(),
        ["eth0"]
    );
    assert!(warned(&s, "eth9 leads nowhere"));
    assert_eq!(
        (hca(&s, "mlx5_0").node_guid, &hca(&s, "mlx5_0").firmware),
        (None, &None)
    );
}

#[test]
fn wide_pci_domains_and_plain_function_directories_are_read() {
    let tree = Tree::new();
    tree.function("pci10000:e0/10000:e0:06.0/10000:e1:00.0", "0x010802\n");
    tree.file("bus/pci/devices/0000:17:00.0/class", "0x030200");
    tree.file("bus/pci/devices/0000:17:00.0/vendor", "0x10de");
    tree.file("bus/pci/devices/0000:17:00.0/numa_node", "-1");
    tree.dir("bus/pci/devices/0000:18:00.0");
    let s = tree.snapshot();
    let found: Vec<_> = s
        .pci
        .iter()
        .map(|f| (f.address.to_string(), f.class, f.numa, f.bridge))
        .collect();
    let bridge = bus("10000:e0:06.0");
    assert_eq!(found[0], ("0000:17:00.0".into(), 0x030200, Some(-1), None));
    assert_eq!(found[1], ("0000:18:00.0".into(), 0, None, None));
    assert_eq!(
        found[2],
        ("10000:e1:00.0".into(), 0x010802, Some(1), bridge)
    );
    assert_eq!(s.gpus().count(), 1);
    assert!(warned(&s, "1 PCI functions have no readable class"));
}

#[test]
fn two_netdevs_on_one_function_are_distinguished_or_left_alone() {
    // mlx4: two ports, one function, and names that say nothing.
    let tree = rail();
    tree.port(&format!("devices/{RAIL}/infiniband/mlx5_0"), 2, "Ethernet");
    tree.netdev(Some(RAIL), "eth7", 7, "1\n");
    tree.netdev(Some(RAIL), "eth8", 8, "0\n");
    let s = tree.snapshot();
    let mlx = hca(&s, "mlx5_0");
    assert_eq!(
        mlx.ports.iter().map(netdev).collect::<Vec<_>>(),
        [Some("eth8"), Some("eth7")]
    );

    let tree = rail();
    tree.netdev(Some(RAIL), "eth7", 7, "0\n");
    tree.netdev(Some(RAIL), "eth8", 8, "0\n");
    let s = tree.snapshot();
    assert_eq!(netdev(&hca(&s, "mlx5_0").ports[0]), None);
    assert_eq!(
        hca(&s, "mlx5_0").conflicts,
        ["port 1: eth7 and eth8 all have dev_port 0"]
    );

    // The GIDs know the uplink from its representor.
    let port = format!("devices/{RAIL}/infiniband/mlx5_0/ports/1");
    tree.gid(&port, 0, "fe80::1", Some("RoCE v2"), Some("eth8"));
    let s = tree.snapshot();
    assert_eq!(
        (
            netdev(&hca(&s, "mlx5_0").ports[0]),
            hca(&s, "mlx5_0").conflicts.len()
        ),
        (Some("eth8"), 0)
    );
}

#[test]
fn gids_of_a_foreign_netdev_conflict_and_of_the_bond_do_not() {
    let tree = rail();
    let port = format!("devices/{RAIL}/infiniband/mlx5_0/ports/1");
    tree.netdev(Some(RAIL), "eth7", 7, "0\n");
    tree.gid(&port, 0, "fe80::1", Some("RoCE v2"), Some("bond0"));
    let s = tree.snapshot();
    assert_eq!(
        hca(&s, "mlx5_0").conflicts,
        ["port 1: dev_port says eth7, the GIDs say bond0"]
    );

    tree.link(
        &format!("devices/{RAIL}/net/eth7/master"),
        "devices/virtual/net/bond0",
    );
    tree.netdev(None, "bond0", 9, "0\n");
    tree.dir("devices/virtual/net/bond0/bonding");
    let s = tree.snapshot();
    assert_eq!(
        (
            netdev(&hca(&s, "mlx5_0").ports[0]),
            hca(&s, "mlx5_0").conflicts.len()
        ),
        (Some("eth7"), 0)
    );
    assert_eq!(s.netdevs[1].kind.as_deref(), Some("bond"));
    assert_eq!(
        s.netdevs[0].master.as_ref().map(|m| m.as_str()),
        Some("bond0")
    );
}

#[test]
fn children_do_not_compete_with_the_netdev_of_the_function() {
    let tree = rail();
    // A sub-function's HCA and netdev sit on an auxiliary device below the function.
    let sf = format!("{RAIL}/mlx5_core.sf.4");
    tree.hca(Some(&sf), "mlx5_1");
    tree.netdev(Some(RAIL), "eth7", 7, "0\n");
    tree.netdev(Some(&sf), "eth8", 8, "0\n");
    // virtio: the netdev sits on a child of the function; EFA: no netdev at all.
    tree.function("pci0000:00/0000:00:03.0", "0x020000\n");
    tree.hca(Some("pci0000:00/0000:00:03.0"), "virtio_rdma0");
    tree.netdev(Some("pci0000:00/0000:00:03.0/virtio0"), "eth0", 2, "0\n");
    // An IPoIB child shares device and dev_port with its parent.
    tree.netdev(Some(RAIL), "eth7.8001", 9, "0\n");
    tree.file(&format!("devices/{RAIL}/net/eth7.8001/iflink"), "7\n");
    let s = tree.snapshot();
    let behind: Vec<_> = s
        .hcas
        .iter()
        .map(|h| (h.name.as_str(), netdev(&h.ports[0]), h.pci))
        .collect();
    let rail = bus("0000:0c:00.0");
    assert_eq!(
        behind,
        [
            ("mlx5_0", Some("eth7"), rail),
            ("mlx5_1", Some("eth8"), rail),
            ("virtio_rdma0", Some("eth0"), bus("0000:00:03.0"))
        ]
    );
    assert_eq!(hca(&s, "mlx5_1").numa, Some(1), "from the function above");
}

#[test]
fn two_hcas_on_one_netdev_are_reported() {
    let tree = rail();
    tree.hca(Some(RAIL), "mlx5_1");
    tree.netdev(Some(RAIL), "bond0", 5, "0\n");
    let s = tree.snapshot();
    assert!(
        warned(&s, "bond0 is the netdev of mlx5_0 and mlx5_1"),
        "{:#?}",
        s.warnings
    );
}

#[test]
fn empty_and_broken_attributes_are_absent() {
    let tree = rail();
    let home = format!("devices/{RAIL}/infiniband/mlx5_0");
    for (name, value) in [
        ("node_guid", ""),
        ("sys_image_guid", "zz"),
        ("fw_ver", "\n"),
        ("ports/1/state", "\n"),
    ] {
        tree.file(&format!("{home}/{name}"), value);
    }
    tree.file(&format!("{home}/ports/1/link_layer"), "Unknown");
    tree.file(&format!("{home}/ports/1/rate"), &"x".repeat(9000));
    tree.dir(&format!("{home}/ports/nonsense"));
    tree.netdev(Some(RAIL), "eth7", 7, "");
    tree.file(&format!("devices/{RAIL}/net/eth7/ifindex"), "");
    tree.file(&format!("devices/{RAIL}/net/eth7/address"), "\n");
    tree.file(&format!("devices/{RAIL}/net/eth7/mtu"), "99999999999999");
    let s = tree.snapshot();
    let mlx5 = hca(&s, "mlx5_0");
    assert_eq!(
        (mlx5.node_guid, mlx5.sys_image_guid, &mlx5.firmware),
        (None, None, &None)
    );
    assert_eq!(
        (&mlx5.ports[0].state, mlx5.ports[0].link_layer.as_deref()),
        (&None, Some("Unknown"))
    );
    assert_eq!(mlx5.ports[0].rate.as_ref().map(String::len), Some(4096));
    assert_eq!(
        (s.netdevs[0].ifindex, &s.netdevs[0].mac, s.netdevs[0].mtu),
        (0, &None, 0)
    );
    assert!(warned(&s, "eth7 has no readable ifindex"));
}

#[test]
fn only_used_gids_are_kept() {
    let tree = rail();
    let home = format!("devices/{RAIL}/infiniband/mlx5_0");
    let port = format!("{home}/ports/1");
    let zero = "0000:0000:0000:0000:0000:0000:0000:0000";
    for index in (0..256).filter(|i| ![2, 10, 11].contains(i)) {
        tree.gid(&port, index, zero, None, None);
    }
    tree.gid(
        &port,
        2,
        "0000:0000:0000:0000:0000:ffff:0a00:0001",
        Some("IB/RoCE v1\n"),
        Some("eth7\n"),
    );
    tree.gid(
        &port,
        10,
        "0000:0000:0000:0000:0000:ffff:0a00:0001",
        Some("RoCE v2\n"),
        Some("eth7\n"),
    );
    tree.gid(&port, 11, "2001:db8:0:1::", None, None);
    let sys = fs::File::open(tree.0.path()).unwrap().into();
    let gids = |port| sysfs::gids(&sys, &"mlx5_0".parse().unwrap(), port).unwrap();
    let first = gids(1);
    let kinds: Vec<_> = first
        .iter()
        .map(|g| (g.index, g.kind, g.netdev.is_some()))
        .collect();
    let (v1, v2) = (Some(GidKind::IbRoceV1), Some(GidKind::RoceV2));
    assert_eq!(kinds, [(2, v1, true), (10, v2, true), (11, None, false)]);
    assert_eq!(first[0].ip().to_string(), "10.0.0.1");
    assert_eq!(tree.snapshot().hcas[0].ports[0].gids, first);
    assert!(gids(2).is_empty());

    // InfiniBand fills unused entries with its prefix, whichever that is.
    tree.port(&home, 2, "InfiniBand");
    let port = format!("{home}/ports/2");
    for (index, gid) in [
        "fe80::2:c903:f9:bfa1",
        "fe80::",
        "fec0:0:0:7::",
        "fec0:0:0:7:2:c903:f9:bfa1",
    ]
    .iter()
    .enumerate()
    {
        tree.gid(&port, index as u32, gid, None, None);
    }
    assert_eq!(gids(2).iter().map(|g| g.index).collect::<Vec<_>>(), [0, 3]);
}

#[test]
fn soft_roce_says_what_it_sits_on() {
    let tree = Tree::new();
    tree.hca(None, "rxe0");
    tree.file("devices/virtual/infiniband/rxe0/parent", "rdma0\n");
    tree.netdev(None, "rdma0", 4, "0\n");
    let s = tree.snapshot();
    let rxe = hca(&s, "rxe0");
    assert!(rxe.is_rxe());
    assert_eq!(
        (netdev(&rxe.ports[0]), rxe.pci, rxe.numa),
        (Some("rdma0"), None, None)
    );
}

#[test]
fn what_is_no_tree_is_a_clear_error() {
    let empty = TempDir::new().unwrap();
    for path in [empty.path().to_owned(), empty.path().join("gone")] {
        let e = format!("{:#}", sysfs::tree_snapshot(&path).unwrap_err());
        assert!(e.starts_with("reading ") && !e.contains('\n'), "{e}");
    }
}

#[test]
fn this_machine_is_read() {
    let started = std::time::Instant::now();
    let full = read(Path::new("/sys"));
    println!(
        "{} netdevs, {} PCI functions in {:?}",
        full.netdevs.len(),
        full.pci.len(),
        started.elapsed()
    );
    for netdev in fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = netdev.file_name().into_string().unwrap();
        let found = full.netdevs.iter().any(|n| n.name.as_str() == name);
        assert_eq!(found, netdev.path().is_dir(), "{name}");
    }
}

// ---- joining with netlink

fn nl_hca(name: &str, netdev: Option<&str>) -> NlHca {
    let guid = Some("0c42:a103:0065:1234".parse().unwrap());
    let device = Device {
        index: 3,
        name: name.into(),
        node_guid: guid,
        protocol: Some("roce".into()),
        ..Device::default()
    };
    let netdev = netdev.map(str::to_owned);
    NlHca {
        device,
        ports: vec![Port {
            number: 1,
            state: Some(4),
            netdev,
            ..Port::default()
        }],
        uverbs: None,
    }
}

fn joined(tree: &Tree, hcas: Vec<NlHca>, live: Option<Vec<Netdev>>) -> Snapshot {
    sysfs::merge(
        read(tree.0.path()),
        Some(NlFacts {
            hcas,
            ..NlFacts::default()
        }),
        live,
    )
}

#[test]
fn agreeing_sources_make_no_conflict() {
    let tree = rail();
    tree.netdev(Some(RAIL), "eth7", 7, "0\n");
    let s = joined(&tree, vec![nl_hca("mlx5_0", Some("eth7"))], None);
    let mlx5 = hca(&s, "mlx5_0");
    assert_eq!(
        (mlx5.index, mlx5.protocol.as_deref(), netdev(&mlx5.ports[0])),
        (Some(3), Some("roce"), Some("eth7"))
    );
    assert_eq!((mlx5.conflicts.len(), s.warnings.len()), (0, 0));
    // What sysfs alone cannot decide is no conflict once netlink has answered.
    tree.netdev(Some(RAIL), "eth8", 8, "0\n");
    let s = joined(&tree, vec![nl_hca("mlx5_0", Some("eth8"))], None);
    assert_eq!(
        (
            netdev(&hca(&s, "mlx5_0").ports[0]),
            hca(&s, "mlx5_0").conflicts.len()
        ),
        (Some("eth8"), 0)
    );
    assert!(warned(&s, "mlx5_0: port 1: eth7 and eth8"));
}

#[test]
fn quarrelling_sources_are_a_conflict_and_netlink_wins() {
    let tree = rail();
    tree.netdev(Some(RAIL), "eth7", 7, "0\n");
    let mut one = nl_hca("mlx5_0", Some("eth9"));
    one.device.node_guid = Some("0c42:a103:0065:9999".parse().unwrap());
    one.ports[0].state = Some(1);
    let s = joined(&tree, vec![one], None);
    let mlx5 = hca(&s, "mlx5_0");
    assert_eq!(
        (mlx5.ports[0].state.as_deref(), netdev(&mlx5.ports[0])),
        (Some("DOWN"), Some("eth9"))
    );
    assert_eq!(
        mlx5.conflicts,
        [
            "node GUID: RDMA netlink says 0c42:a103:0065:9999, sysfs says 0c42:a103:0065:1234",
            "netdev of port 1: RDMA netlink says eth9, sysfs says eth7",
        ]
    );
    // Known to one source only.
    let s = joined(&tree, vec![nl_hca("mlx5_7", None)], None);
    assert_eq!(
        hca(&s, "mlx5_0").conflicts,
        ["sysfs shows mlx5_0, RDMA netlink does not"]
    );
    assert!(warned(&s, "mlx5_7 is in RDMA netlink, but not in sysfs"));
    assert_eq!(hca(&s, "mlx5_7").ports[0].state.as_deref(), Some("ACTIVE"));
}

#[test]
fn a_bond_stands_for_its_member() {
    let tree = rail();
    tree.netdev(Some(RAIL), "eth7", 7, "0\n");
    tree.link(
        &format!("devices/{RAIL}/net/eth7/master"),
        "devices/virtual/net/bond0",
    );
    tree.netdev(None, "bond0", 9, "0\n");
    let s = joined(&tree, vec![nl_hca("mlx5_0", Some("bond0"))], None);
    assert_eq!(
        (
            netdev(&hca(&s, "mlx5_0").ports[0]),
            hca(&s, "mlx5_0").conflicts.len()
        ),
        (Some("bond0"), 0)
    );
}

#[test]
fn the_driver_id_tells_software_from_the_card_below_it() {
    let tree = rail();
    let mut one = nl_hca("mlx5_0", None);
    one.uverbs = Some(CharDev {
        name: "uverbs0".into(),
        major: 231,
        minor: 192,
        abi: None,
        driver: Some(18),
    });
    let s = joined(&tree, vec![one], None);
    let siw = hca(&s, "mlx5_0");
    assert_eq!(
        (
            siw.driver.as_deref(),
            siw.pci,
            siw.uverbs.as_ref().map(|u| u.minor)
        ),
        (Some("siw"), None, Some(192))
    );
}

#[test]
fn sysfs_of_another_namespace_adds_nothing_to_live_netdevs() {
    let tree = rail();
    tree.netdev(Some(RAIL), "eth7", 7, "0\n");
    let seen = read(tree.0.path()).netdevs.remove(0);
    let live = |ifindex: u32| Netdev {
        ifindex,
        pci: None,
        driver: None,
        dev_port: None,
        ..seen.clone()
    };

    let s = joined(
        &tree,
        vec![nl_hca("mlx5_0", Some("eth7"))],
        Some(vec![live(7)]),
    );
    assert_eq!(
        (s.netdevs[0].pci, s.netdevs[0].dev_port),
        (bus("0000:0c:00.0"), Some(0))
    );
    assert_eq!(netdev(&hca(&s, "mlx5_0").ports[0]), Some("eth7"));

    // Same name, another netdev: sysfs shows its own netdev, and netlink shows none of ours behind
    // the port.
    let s = joined(&tree, vec![nl_hca("mlx5_0", None)], Some(vec![live(8)]));
    assert_eq!((s.netdevs[0].pci, s.netdevs[0].dev_port), (None, None));
    assert_eq!(netdev(&hca(&s, "mlx5_0").ports[0]), None);
    assert_eq!(hca(&s, "mlx5_0").conflicts.len(), 0);
}
