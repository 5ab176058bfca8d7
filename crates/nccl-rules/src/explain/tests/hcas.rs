//! On which HCAs which releases crash, and what they merge.

use super::*;

/// Of these HCAs: name, PCI address, GUID of the card, and the ports.
fn hcas(all: &[(&str, Option<&str>, &str, usize)]) -> Snapshot {
    let port = |n: usize| json!({"number": n + 1, "state": "ACTIVE", "link_layer": "Ethernet"});
    let hca = |(index, (name, pci, guid, ports)): (usize, &(&str, Option<&str>, &str, usize))| {
        let ports: Vec<Value> = (0..*ports).map(port).collect();
        let guid = format!("0000:0000:0000:{guid}");
        json!({"name": name, "index": index, "pci": pci, "sys_image_guid": guid, "ports": ports})
    };
    let hcas: Vec<Value> = all.iter().enumerate().map(hca).collect();
    Snapshot {
        hcas: serde_json::from_value(hcas.into()).unwrap(),
        ..node()
    }
}

#[test]
fn hcas_without_a_pci_path_crash_nccl() {
    let (pci, rxe) = (
        ("mlx5_0", Some("0000:05:00.0"), "0001", 1),
        ("rxe0", None, "0002", 1),
    );
    let crashes =
        |all: &[(&str, Option<&str>, &str, usize)], env: &[(&str, &str)], version: &str| {
            let e = explain(
                &Settings::of(env.iter().copied(), ""),
                &hcas(all),
                version.parse().unwrap(),
                &|_| None,
            );
            let traps: Vec<_> = e
                .warnings
                .iter()
                .filter(|w| w.fatal)
                .map(|w| w.trap)
                .collect();
            assert!(
                traps.is_empty() || traps == [Trap::Crash],
                "{:?}",
                e.warnings
            );
            !traps.is_empty()
        };
    let releases = [
        "2.19.3", "2.20.5", "2.23.4", "2.24.3", "2.29.3", "2.29.7", "2.32.3",
    ];
    let by = |all: &[_], env: &[_]| releases.map(|release| crashes(all, env, release));
    assert_eq!(
        by(&[rxe, pci], &[]),
        [true, true, true, true, true, false, false]
    );
    assert_eq!(
        by(&[pci, rxe], &[]),
        [false, true, true, false, false, false, false]
    );
    assert_eq!(
        by(&[rxe, ("rxe1", None, "0003", 1)], &[]),
        [false, true, true, false, false, false, false]
    );
    assert_eq!(by(&[rxe], &[]), [false; 7]);
    assert_eq!(by(&[rxe, pci], &[("NCCL_IB_HCA", "=mlx5_0")]), [false; 7]);
    assert_eq!(
        by(&[rxe, pci], &[("NCCL_IB_DEVICE_PCI_ORDER", "0")]),
        [true; 7]
    );
    assert_eq!(by(&[pci, rxe], &[("NCCL_IB_MERGE_NICS", "0")]), [false; 7]);
    // Two ports that are one device already are compared with no more.
    let two = ("mlx5_1", Some("0000:06:00.0"), "0004", 2);
    assert_eq!(by(&[two, rxe], &[]), [false; 7]);
}

#[test]
fn two_ports_of_a_card_were_one_device() {
    let card = [
        ("a", Some("0000:05:00.0"), "0001", 1),
        ("b", Some("0000:05:00.1"), "0001", 1),
    ];
    let other = ("c", Some("0000:06:00.0"), "0002", 1);
    let merged = |all: &[_], env: &[(&str, &str)], version: &str| {
        explain(
            &Settings::of(env.iter().copied(), ""),
            &hcas(all),
            version.parse().unwrap(),
            &|_| None,
        )
        .merged
    };
    let pair = vec![vec!["a:1".to_owned(), "b:1".to_owned()]];
    for (version, two, three) in [
        ("2.19.3", 0, 0),
        ("2.21.5", 1, 1),
        ("2.22.3", 1, 0),
        ("2.23.4", 1, 0),
        ("2.24.3", 1, 1),
    ] {
        let three_cards = [&card[..], &[other]].concat();
        assert_eq!(merged(&card, &[], version), pair[..two], "{version}");
        assert_eq!(
            merged(&three_cards, &[], version),
            pair[..three],
            "{version}"
        );
        assert!(merged(&card, &[("NCCL_IB_MERGE_NICS", "0")], version).is_empty());
    }
    // Cards of one bus, which VFs are as well; and cards of another GUID.
    let vfs = [card[0], ("b", Some("0000:05:03.2"), "0001", 1)];
    assert_eq!(merged(&vfs, &[], "2.21.5"), pair);
    assert!(merged(&vfs, &[("NCCL_IB_MERGE_VFS", "0")], "2.21.5").is_empty());
    assert!(
        merged(
            &[card[0], ("b", Some("0000:05:00.1"), "0002", 1)],
            &[],
            "2.21.5"
        )
        .is_empty()
    );
}

#[test]
fn what_nccl_writes_past_its_memory_is_fatal() {
    let names: Vec<String> = (0..32).map(|i| format!("m{i}")).collect();
    let buses: Vec<String> = (0..32).map(|i| format!("0000:{i:02x}:00.0")).collect();
    let mut all: Vec<_> = names
        .iter()
        .zip(&buses)
        .map(|(n, b)| (n.as_str(), Some(b.as_str()), "0001", 1))
        .collect();
    let said = |all: &[_], env: &[(&str, &str)], version: &str| {
        let e = explain(
            &Settings::of(env.iter().copied(), ""),
            &hcas(all),
            version.parse().unwrap(),
            &|_| None,
        );
        let fatal = e.warnings.iter().filter(|w| w.fatal);
        (
            e.hcas.len(),
            fatal.map(|w| (w.trap, w.text.clone())).collect::<Vec<_>>(),
        )
    };
    assert_eq!(
        said(&all, &[("NCCL_IB_MERGE_NICS", "0")], "2.29.3"),
        (32, vec![])
    );
    // There is room when the last one is looked at, for one port of two.
    all[31].3 = 2;
    for (version, does) in [
        ("2.29.3", "takes them as well"),
        ("2.32.3", "takes wrong ones, or crashes"),
    ] {
        let text = format!(
            "NCCL {version} has 32 places and takes 33 HCA ports: it writes past them, and {does}"
        );
        assert_eq!(said(&all, &[], version), (33, vec![(Trap::Overrun, text)]));
    }
    let (long, list) = (
        format!("^{}", "x".repeat(64)),
        format!("=m0,{}", "y".repeat(60)).repeat(20),
    );
    let few = |env: &[(&str, &str)], version| {
        said(&all[..2], env, version)
            .1
            .into_iter()
            .map(|w| w.0)
            .collect::<Vec<_>>()
    };
    for variable in ["NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"] {
        let env = [(variable, long.as_str())];
        assert_eq!(
            (few(&env, "2.30.4"), few(&env, "2.30.7")),
            (vec![Trap::Overrun], vec![])
        );
    }
    let logged = [("NCCL_IB_HCA", list.as_str()), ("NCCL_DEBUG", "info")];
    assert_eq!(
        (few(&logged, "2.19.3"), few(&logged, "2.20.5")),
        (vec![Trap::Overrun], vec![])
    );
    assert_eq!(few(&logged[..1], "2.19.3"), []);
}

#[test]
fn an_image_names_its_release() {
    let all = hcas(&[
        ("rxe0", None, "0001", 1),
        ("mlx5_0", Some("0000:05:00.0"), "0002", 1),
    ]);
    let found = |env: &[(&str, &str)], named: Option<&str>| {
        let all = check(env.iter().copied(), &all, named.map(|v| v.parse().unwrap()));
        all.into_iter()
            .filter(|w| w.trap == Trap::Crash)
            .map(|w| (w.fatal, w.text))
            .collect::<Vec<_>>()
    };
    let crash = |release: &str| {
        let found = found(&[("NCCL_VERSION", release)], None);
        // Another library may run: no job is refused for what an image says.
        assert!(found.iter().all(|(fatal, _)| !fatal), "{found:?}");
        found.into_iter().map(|(_, text)| text).collect::<String>()
    };
    let said = "NCCL 2.25.1 crashes: rxe0 has no PCI path, and it is compared with that of \
        mlx5_0; the image names 2.25.1 (NCCL_VERSION): if that is what runs, prepare \
        --nccl-version 2.25.1 leaves such HCAs out of the list, NCCL 2.32.3 takes them";
    assert_eq!(
        ["2.25.1-1", "2.30.7-1", "", "none"].map(crash),
        [said, "", "", ""]
    );
    // The host's word counts, and the image's is not asked then.
    let image = ("NCCL_VERSION", "2.25.1");
    let fatal = |env: &[(&str, &str)], named: Option<&str>| {
        found(env, named)
            .into_iter()
            .map(|(fatal, _)| fatal)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (fatal(&[image], Some("2.30.7")), fatal(&[], Some("2.25.1"))),
        (vec![], vec![true])
    );
    // What both do is no guess.
    let unsorted = ("NCCL_IB_DEVICE_PCI_ORDER", "0");
    assert_eq!(
        (fatal(&[unsorted], None), fatal(&[unsorted, image], None)),
        (vec![true], vec![true])
    );
}

#[test]
fn what_one_of_two_releases_does_is_not_fatal() {
    let mut node = node();
    for n in node
        .netdevs
        .iter_mut()
        .filter(|n| n.name.as_str() == "eth0")
    {
        n.running = false;
    }
    let all = |env: &[(&str, &str)], named: Option<Version>| {
        let found = check(env.iter().copied(), &node, named)
            .into_iter()
            .filter(|w| w.trap == Trap::NoInterface);
        found.map(|w| (w.fatal, w.text)).collect::<Vec<_>>()
    };
    let (asked, old) = (
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("NCCL_VERSION", "2.21.5-1"),
    );
    let why = "NCCL does not start: NCCL_SOCKET_IFNAME==eth0 fits no interface that can be used";
    assert_eq!(all(&[asked], None), [(true, why.to_owned())]);
    let doubtful = format!("{why}; not so in NCCL 2.21.5, which the image names (NCCL_VERSION)");
    assert_eq!(all(&[asked, old], None), [(false, doubtful)]);
    assert_eq!(
        all(&[asked, old], Some(Version::NEWEST)),
        [(true, why.to_owned())]
    );
    // And the other way round.
    let long = "x".repeat(64);
    let found = check(
        [
            ("NCCL_IB_HCA", format!("^{long}")),
            ("NCCL_VERSION", "2.30.4".to_owned()),
        ],
        &node,
        None,
    );
    let overrun: Vec<&Warning> = found.iter().filter(|w| w.trap == Trap::Overrun).collect();
    assert!(overrun.len() == 1 && !overrun[0].fatal, "{found:?}");
    assert!(
        overrun[0]
            .text
            .ends_with("if that is what runs, use another: not so in NCCL 2.32.3"),
        "{overrun:?}"
    );
}

/// The warnings of that trap with these settings.
fn warned(snapshot: &Snapshot, env: &[(&str, &str)], trap: Trap) -> Vec<String> {
    warned_by(Version::NEWEST, snapshot, env, trap)
}

fn warned_by(
    release: Version,
    snapshot: &Snapshot,
    env: &[(&str, &str)],
    trap: Trap,
) -> Vec<String> {
    let settings = Settings::of(env.iter().copied(), "");
    let explained = explain(&settings, snapshot, release, &|_| None);
    let of_it = explained.warnings.into_iter().filter(|w| w.trap == trap);
    of_it.map(|w| w.text).collect()
}

#[test]
fn a_list_of_two_link_layers_is_told() {
    let mut node = hcas(&[
        ("mlx5_0", Some("0000:05:00.0"), "0001", 1),
        ("mlx5_1", Some("0000:06:00.0"), "0002", 1),
        ("mlx5_bond_0", Some("0000:07:00.0"), "0003", 1),
    ]);
    for hca in &mut node.hcas[..2] {
        hca.ports[0].link_layer = Some("InfiniBand".to_owned());
    }
    let warned = |list: &str| warned(&node, &[("NCCL_IB_HCA", list)], Trap::Layers);
    let both = "NCCL_IB_HCA=mlx5 takes mlx5_0:1, mlx5_1:1 of InfiniBand and mlx5_bond_0:1 of \
        Ethernet, and refuses a connection between the two: name those of one in NCCL_IB_HCA";
    assert_eq!(warned("mlx5"), [both]);
    assert_eq!(warned("^mlx5_0").len(), 1);
    for one in ["=mlx5_0,mlx5_1", "mlx5_0,mlx5_1", "mlx5_bond", "^mlx5_bond"] {
        assert_eq!(warned(one), [""; 0], "{one}");
    }
    let all = "without NCCL_IB_HCA NCCL takes mlx5_0:1, mlx5_1:1 of InfiniBand and mlx5_bond_0:1 \
        of Ethernet, and refuses a connection between the two: name those of one in NCCL_IB_HCA";
    assert_eq!(warned(""), [all]);
}

/// Of mlx5_0 an empty table, of mlx5_1 one that was not read.
#[test]
fn what_nccl_takes_of_a_table_without_a_good_gid_is_told() {
    let mut node = hcas(&[
        ("mlx5_0", Some("0000:05:00.0"), "0001", 1),
        ("mlx5_1", Some("0000:06:00.0"), "0002", 1),
    ]);
    node.hcas[0].ports[0].gid_table = Some(16);
    let unused = "no NCCL_IB_GID_INDEX: the GID that NCCL takes on mlx5_0:1 is an unused one; \
        no setting helps, as these ports have no better one";
    assert_eq!(warned(&node, &[], Trap::NoGid), [unused]);
    let local = json!([{"index": 0, "address": "fe80::a", "kind": "RoCE v2", "netdev": "eth0"}]);
    node.hcas[0].ports[0].gids = serde_json::from_value(local).unwrap();
    let poor = "no NCCL_IB_GID_INDEX: NCCL takes GID 0 (link-local, RoCE v2) on mlx5_0:1; no \
        setting helps, as these ports have no better one";
    assert_eq!(warned(&node, &[], Trap::PoorGid), [poor]);
    node.hcas[0].ports[0].gids[0].netdev = Some("away0".parse().unwrap());
    assert_eq!(warned(&node, &[], Trap::ForeignGid), [""; 0]);
}

#[test]
fn a_range_is_named_where_no_index_is_right_on_all_ports() {
    let mut node = hcas(&[
        ("mlx5_0", Some("0000:05:00.0"), "0001", 1),
        ("mlx5_1", Some("0000:06:00.0"), "0002", 1),
    ]);
    let mut set = |at: usize, gids: &[(&str, &str)]| {
        let mut table = Vec::new();
        for (index, (ip, netdev)) in gids.iter().enumerate() {
            table.push(json!({"index": index, "address": ip, "kind": "RoCE v2", "netdev": netdev}));
        }
        node.hcas[at].ports[0].gids = serde_json::from_value(table.into()).unwrap();
    };
    let (local, away) = (("fe80::a", "eth0"), ("::ffff:10.9.0.1", "away0"));
    set(0, &[local, away, ("::ffff:192.0.2.42", "eth0")]);
    set(1, &[local, ("::ffff:192.0.2.41", "eth0")]);
    let cured = |env: &[(&str, &str)]| {
        let [text] = &warned(&node, env, Trap::ForeignGid)[..] else {
            panic!("{env:?}");
        };
        text.split_once("; ").unwrap().1.to_owned()
    };
    let set = "set NCCL_IB_ADDR_RANGE=192.0.2.40/30";
    assert_eq!(cured(&[]), set);
    let all = [
        ("NCCL_IB_GID_INDEX", "1"),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6"),
    ];
    let unset = "unset NCCL_IB_GID_INDEX and NCCL_IB_ADDR_FAMILY and ";
    assert_eq!(cured(&all), format!("{unset}{set}"));
}

#[test]
fn a_forced_merge_has_to_fit_the_hcas_one_by_one() {
    // In 2.32 an HCA of two ports ends NCCL.
    let release = Version::new(2, 31, 2);
    let mut node = hcas(&[
        ("mlx5_0", Some("0000:05:00.0"), "0001", 1),
        ("mlx5_1", Some("0000:06:00.0"), "0002", 1),
        ("mlx4_0", Some("0000:07:00.0"), "0003", 2),
    ]);
    let name = "NCCL_NET_FORCE_MERGE";
    let ends = |value: &str, why: &str| {
        format!("{name}={value}: NCCL 2.31.2 ends with ncclInvalidUsage: {why}")
    };
    let said =
        |node: &Snapshot, value: &str| warned_by(release, node, &[(name, value)], Trap::Merge);
    for fits in [
        "mlx5_0,mlx5_1",
        "mlx5_0:1;mlx5_1,mlx4_0:3;",
        "mlx5_0_dma,mlx5_1_dma",
        "",
    ] {
        assert_eq!(said(&node, fits), [""; 0], "{fits}");
    }
    for (value, why) in [
        (
            "mlx5_0,mlx5_1;mlx5_7",
            "no HCA that it uses is called mlx5_7",
        ),
        ("mlx5_0,mlx5", "no HCA that it uses is called mlx5"),
        ("^mlx5_0", "no HCA that it uses is called ^mlx5_0"),
        (
            "mlx5_0,mlx5_0",
            "2 are named, and mlx5_0:1 fit: write NAME:PORT",
        ),
        (
            "mlx5_0,mlx4_0",
            "2 are named, and mlx5_0:1, mlx4_0:1, mlx4_0:3 fit: write NAME:PORT",
        ),
    ] {
        assert_eq!(said(&node, value), [ends(value, why)]);
    }
    let hangs = "NCCL_NET_FORCE_MERGE=,;mlx5_0: NCCL 2.31.2 reads \",\" again and again, and hangs";
    assert_eq!(said(&node, ",;mlx5_0"), [hangs]);
    let off = [(name, "mlx5_0,mlx5_1"), ("NCCL_IB_MERGE_NICS", "0")];
    let why = "NCCL_IB_MERGE_NICS=0 forbids it";
    assert_eq!(
        warned_by(release, &node, &off, Trap::Merge),
        [ends(off[0].1, why)]
    );
    let left = [(name, "mlx5_0,mlx5_1"), ("NCCL_IB_HCA", "=mlx5_0")];
    assert_eq!(
        warned_by(release, &node, &left, Trap::Merge),
        [ends(left[0].1, "no HCA that it uses is called mlx5_1")]
    );
    let socket = [(name, "mlx5_7"), ("NCCL_NET", "Socket")];
    assert_eq!(warned_by(release, &node, &socket, Trap::Merge), [""; 0]);
    node.hcas[1].ports[0].link_layer = Some("InfiniBand".to_owned());
    let why = "mlx5_0:1, mlx5_1:1 are of two link layers";
    assert_eq!(said(&node, "mlx5_0,mlx5_1"), [ends("mlx5_0,mlx5_1", why)]);
}

/// Before 2.31 such an index is not read at the start, and no connection comes up.
#[test]
fn an_index_beyond_the_table_is_fatal_in_both_releases() {
    let mut node = hcas(&[("mlx5_0", Some("0000:05:00.0"), "0001", 1)]);
    node.hcas[0].ports[0].gid_table = Some(16);
    let env = [("NCCL_IB_GID_INDEX", "99"), ("NCCL_VERSION", "2.27.7")];
    let found = check(env, &node, None);
    let gids = found
        .iter()
        .filter(|w| matches!(w.trap, Trap::GidTable | Trap::NoGid));
    let said: Vec<(Trap, bool)> = gids.map(|w| (w.trap, w.fatal)).collect();
    assert_eq!(said, [(Trap::GidTable, true), (Trap::NoGid, false)]);
    let older = &found.iter().find(|w| w.trap == Trap::NoGid).unwrap().text;
    assert!(
        older.ends_with("so in NCCL 2.27.7, which the image names (NCCL_VERSION)"),
        "{older}"
    );
}

#[test]
fn data_direct_may_take_two_places() {
    let names: Vec<String> = (0..17).map(|n| format!("mlx5_{n}")).collect();
    let all: Vec<_> = names
        .iter()
        .map(|n| (n.as_str(), None, "0001", 1))
        .collect();
    let mut node = hcas(&all);
    let warned = |node: &Snapshot, value: &str| {
        warned(node, &[("NCCL_IB_DATA_DIRECT", value)], Trap::NoRoom)
    };
    assert!(warned(&node, "2").is_empty(), "another driver");
    for hca in &mut node.hcas {
        hca.driver = Some("mlx5_core".to_owned());
    }
    assert_eq!(
        warned(&node, "2"),
        [
            "NCCL_IB_DATA_DIRECT=2: an HCA with a Data Direct function takes two places, so these \
            need up to 34, and NCCL has room for 32"
        ]
    );
    assert!(warned(&node, "1").is_empty());
    let why = |node: &Snapshot, value: &str| {
        let settings = Settings::of([("NCCL_IB_DATA_DIRECT", value)], "");
        let explained = explain(&settings, node, Version::NEWEST, &|_| None);
        explained.ports[0].why.clone()
    };
    let plain = "no NCCL_IB_HCA: every active port";
    assert_eq!(why(&node, "1"), plain);
    let function = json!({"address": "0001:04:00.0", "class": 0x020700, "vendor": 0x15b3,
        "device": 0x2100});
    node.pci = serde_json::from_value(json!([function])).unwrap();
    for (value, more) in [
        ("0", ""),
        ("1", "; with Data Direct NCCL calls it mlx5_0_dma"),
        ("2", "; with Data Direct NCCL has mlx5_0_dma as well"),
    ] {
        assert_eq!(why(&node, value), format!("{plain}{more}"));
    }
    node.hcas.truncate(16);
    assert!(warned(&node, "2").is_empty());
    let merged = |name: &str, direct: &str| {
        let env = [
            ("NCCL_NET_FORCE_MERGE", name),
            ("NCCL_IB_DATA_DIRECT", direct),
        ];
        self::warned(&node, &env, Trap::Merge)
    };
    let renamed = "NCCL_NET_FORCE_MERGE=mlx5_0: if mlx5_0 has Data Direct, NCCL 2.32.3 calls it \
        mlx5_0_dma, and ends with ncclInvalidUsage: name that, or set NCCL_IB_DATA_DIRECT=0";
    assert_eq!(merged("mlx5_0", "1"), [renamed]);
    for (name, direct) in [("mlx5_0_dma", "1"), ("mlx5_0", "0"), ("mlx5_0", "2")] {
        assert_eq!(merged(name, direct), [""; 0], "{name}, {direct}");
    }
}

/// It is what NCCL does where nothing is set.
#[test]
fn default_of_a_mismatch_is_no_trap() {
    for value in ["1", "0", ""] {
        let env = [("NCCL_IGNORE_NET_MISMATCH", value)];
        assert_eq!(warned(&node(), &env, Trap::Value), [""; 0], "{value}");
    }
}
