use rdma_model::snapshot::{Hca, Netdev};
use serde_json::{Value, json};

mod hcas;
mod merges;

use super::*;

/// A node: lo, docker0, eth0, rdma0 (no carrier), rdma1 (two addresses), and four HCAs.
fn node() -> Snapshot {
    let netdev = |name: &str, ifindex: u32, running: bool, addresses: &[&str]| {
        let address = |a: &&str| {
            let (ip, prefix) = a.split_once('/').unwrap();
            let label = ip.parse::<std::net::Ipv4Addr>().is_ok().then_some(name);
            json!({"address": ip, "prefix": prefix.parse::<u8>().unwrap(), "label": label})
        };
        let addresses: Vec<Value> = addresses.iter().map(address).collect();
        json!({"name": name, "ifindex": ifindex, "up": true, "running": running,
            "addresses": addresses})
    };
    let hca = |name: &str, index: u32, pci: &str, states: &[&str]| {
        let port = |(i, state): (usize, &&str)| {
            json!({"number": i + 1, "state": state,
                "link_layer": "Ethernet"})
        };
        let ports: Vec<Value> = states.iter().enumerate().map(port).collect();
        json!({"name": name, "index": index, "pci": pci, "ports": ports})
    };
    serde_json::from_value(json!({
        "schema": 1,
        "hcas": [
            hca("mlx5_0", 0, "0000:c1:00.0", &["ACTIVE"]),
            hca("mlx5_1", 1, "0000:41:00.0", &["ACTIVE", "DOWN"]),
            hca("mlx5_10", 3, "0000:21:00.0", &["ACTIVE"]),
            hca("mlx5_2", 2, "0000:a1:00.0", &["DOWN"]),
        ],
        "netdevs": [
            netdev("lo", 1, true, &["127.0.0.1/8", "::1/128"]),
            netdev("docker0", 2, true, &["172.17.0.1/16"]),
            netdev("eth0", 3, true, &["192.0.2.1/24", "2001:db8::1/64", "fe80::1/64"]),
            netdev("rdma0", 4, false, &["10.0.0.1/24"]),
            netdev("rdma1", 5, true, &["fe80::2/64", "10.0.1.1/24", "10.0.2.1/24"]),
        ],
    }))
    .unwrap()
}

fn explained(env: &[(&str, &str)], version: &str) -> Explanation {
    let settings = Settings::of(env.iter().copied(), "the environment");
    explain(&settings, &node(), version.parse().unwrap(), &|_| None)
}

fn traps(env: &[(&str, &str)], version: &str) -> Vec<String> {
    explained(env, version)
        .warnings
        .into_iter()
        .map(|w| w.text)
        .collect()
}

/// What the bootstrap uses, or the error.
fn bootstrap(env: &[(&str, &str)], version: &str) -> String {
    match explained(env, version).bootstrap {
        Bootstrap::Uses(endpoint, _) => endpoint.to_string(),
        Bootstrap::Unknown | Bootstrap::NotJudged => "unknown".to_owned(),
        Bootstrap::Fails(failure) => failure.error.map_or("chance".to_owned(), |e| e.to_string()),
    }
}

#[test]
fn nothing_set_is_chosen_automatically_and_without_a_warning() {
    let e = explained(&[], "2.32.3");
    assert_eq!(
        e.bootstrap,
        Bootstrap::Uses(e.sockets[0].clone(), Step::Other)
    );
    assert_eq!(
        e.sockets.iter().map(|s| s.to_string()).collect::<Vec<_>>(),
        ["eth0:192.0.2.1", "rdma1:10.0.1.1"]
    );
    assert_eq!(e.hcas, ["mlx5_10:1", "mlx5_1:1", "mlx5_0:1"]);
    assert_eq!((e.warnings, e.settings), (vec![], vec![]));
    // Before, the kernel's order.
    assert_eq!(
        explained(&[], "2.29.2").hcas,
        ["mlx5_0:1", "mlx5_1:1", "mlx5_10:1"]
    );
    assert_eq!(
        explained(&[("NCCL_IB_DEVICE_PCI_ORDER", "0")], "2.32.3").hcas,
        ["mlx5_0:1", "mlx5_1:1", "mlx5_10:1"]
    );
}

#[test]
fn every_interface_and_port_has_its_reason() {
    let e = explained(
        &[
            ("NCCL_SOCKET_IFNAME", "=rdma1,rdma0"),
            ("NCCL_IB_HCA", "mlx5_1:2,mlx5_10"),
        ],
        "2.32.3",
    );
    let lines = |judged: &[Judged]| {
        judged
            .iter()
            .map(|j| format!("{}: {}", j.name, j.why))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        lines(&e.interfaces),
        [
            "lo: NCCL_SOCKET_IFNAME does not name it",
            "docker0: NCCL_SOCKET_IFNAME does not name it",
            "eth0: NCCL_SOCKET_IFNAME does not name it",
            "rdma0: it has no carrier: NCCL wants a running interface since 2.28.3",
            "rdma1: the first that NCCL_SOCKET_IFNAME allows",
        ]
    );
    assert_eq!(
        lines(&e.ports),
        [
            "mlx5_0:1: NCCL_IB_HCA does not name it",
            "mlx5_1:1: NCCL_IB_HCA names mlx5_1, but another port of it",
            "mlx5_1:2: its state is DOWN, not ACTIVE",
            "mlx5_2:1: its state is DOWN, not ACTIVE",
            "mlx5_10:1: NCCL_IB_HCA names it",
        ]
    );
}

#[test]
fn the_prefix_that_takes_more_than_meant() {
    let text = "NCCL_IB_HCA: mlx5_1 also takes mlx5_10; =mlx5_1 is exact";
    assert_eq!(traps(&[("NCCL_IB_HCA", "mlx5_1")], "2.32.3"), [text]);
    assert_eq!(
        explained(&[("NCCL_IB_HCA", "mlx5_1")], "2.32.3").hcas,
        ["mlx5_10:1", "mlx5_1:1"]
    );
    // mlx5_10 has one port.
    assert_eq!(traps(&[("NCCL_IB_HCA", "mlx5_1:1")], "2.32.3").len(), 1);
    let other_port = traps(&[("NCCL_IB_HCA", "mlx5_1:2")], "2.32.3");
    assert!(
        other_port.iter().all(|t| !t.contains("also takes")),
        "{other_port:?}"
    );
    let text = "NCCL_IB_HCA: mlx5_1 also excludes mlx5_10; ^=mlx5_1 is exact";
    assert_eq!(traps(&[("NCCL_IB_HCA", "^mlx5_1")], "2.32.3"), [text]);
    // A family of names is meant as one, and who names both means both.
    for fine in ["mlx5", "=mlx5_1", "mlx5_1,mlx5_10"] {
        assert_eq!(traps(&[("NCCL_IB_HCA", fine)], "2.32.3"), [""; 0], "{fine}");
    }
}

#[test]
fn excluding_docker_alone_chooses_lo() {
    let env = [("NCCL_SOCKET_IFNAME", "^docker")];
    for version in ["2.18.3", "2.32.3"] {
        assert_eq!(bootstrap(&env, version), "lo:127.0.0.1");
        let text =
            "NCCL_SOCKET_IFNAME=^docker takes lo for the bootstrap, which no other host reaches";
        assert_eq!(traps(&env, version), [text]);
    }
}

#[test]
fn an_hca_that_is_not_there() {
    let env = [("NCCL_IB_HCA", "=mlx5_9")];
    let texts = [
        "NCCL_IB_HCA: there is no mlx5_9",
        "NCCL_IB_HCA==mlx5_9 leaves no HCA: NCCL goes on over TCP without a word",
    ];
    assert_eq!(traps(&env, "2.32.3"), texts);
    assert_eq!(
        traps(&[("NCCL_IB_HCA", "mlx5_0:2")], "2.32.3")[0],
        "NCCL_IB_HCA: there is no mlx5_0:2"
    );
    assert_eq!(
        traps(&[("NCCL_IB_HCA", "=mlx5_0,mlx5_9")], "2.32.3"),
        ["NCCL_IB_HCA: there is no mlx5_9"]
    );
    assert!(explained(&env, "2.32.3").warnings.iter().any(|w| w.fatal));
}

#[test]
fn an_interface_without_carrier_counts_until_2_28() {
    let env = [("NCCL_SOCKET_IFNAME", "=rdma0")];
    assert_eq!(
        (bootstrap(&env, "2.27.7").as_str(), traps(&env, "2.27.7")),
        ("rdma0:10.0.0.1", vec![])
    );
    assert_eq!(bootstrap(&env, "2.28.3"), "ncclInvalidUsage");
    let texts = [
        "NCCL does not start: NCCL_SOCKET_IFNAME==rdma0 fits no interface that can be used",
        "rdma0 has no carrier: NCCL uses running interfaces only since 2.28.3",
    ];
    assert_eq!(traps(&env, "2.28.3"), texts);
    assert_eq!(
        bootstrap(&[("NCCL_COMM_ID", "10.0.0.9:1")], "2.32.3"),
        "rdma0:10.0.0.1"
    );
}

#[test]
fn seventeen_interfaces_are_one_too_many() {
    let list = (0..16)
        .map(|i| format!("x{i}"))
        .collect::<Vec<_>>()
        .join(",");
    let env = format!("{list},eth0");
    let text =
        "NCCL_SOCKET_IFNAME has 17 entries and NCCL reads 16: it drops eth0 and what follows";
    assert_eq!(traps(&[("NCCL_SOCKET_IFNAME", &env)], "2.32.3")[1], text);
    assert_eq!(
        bootstrap(&[("NCCL_SOCKET_IFNAME", &env)], "2.23.4"),
        "ncclInternalError"
    );
    let env = format!("^{list},lo,docker");
    assert_eq!(
        bootstrap(&[("NCCL_SOCKET_IFNAME", &env)], "2.32.3"),
        "lo:127.0.0.1"
    );
    assert!(
        traps(&[("NCCL_SOCKET_IFNAME", &env)], "2.32.3")[1]
            .ends_with("so what they name is not excluded")
    );
}

#[test]
fn values_that_mean_something_else() {
    for (name, value, word) in [
        ("NCCL_SOCKET_IFNAME", "=^eth0", "is taken for a name"),
        ("NCCL_SOCKET_IFNAME", "eth0, rdma1", "NCCL trims nothing"),
        (
            "NCCL_SOCKET_IFNAME",
            "\"eth0\"",
            "quotes belong to the names",
        ),
        ("NCCL_SOCKET_IFNAME", "^=", "excludes everything"),
        ("NCCL_SOCKET_IFNAME", ":1", "it allows everything"),
        ("NCCL_SOCKET_FAMILY", "inet", "neither AF_INET nor AF_INET6"),
        ("NCCL_IB_HCA", "^", "excludes everything"),
        ("NCCL_IB_HCA", "^mlx5", "NCCL goes on over TCP"),
        ("NCCL_COMM_ID", "", "shorter than two bytes"),
        (
            "NCCL_COMM_ID",
            "198.51.100.1:1",
            "no interface is in the subnet",
        ),
    ] {
        let all = traps(&[(name, value)], "2.32.3");
        assert!(
            all.iter().any(|t| t.contains(word)),
            "{name}={value}: {all:?}"
        );
    }
    let id = [("NCCL_COMM_ID", "192.0.2.9:1")];
    assert_eq!(
        (bootstrap(&id, "2.29.7"), bootstrap(&id, "2.30.3")),
        ("lo:127.0.0.1".into(), "eth0:192.0.2.1".into())
    );
    assert_eq!(
        traps(&id, "2.29.7"),
        ["NCCL 2.29 takes an interface outside of NCCL_COMM_ID's subnet: lo"]
    );
    let both = [
        ("NCCL_COMM_ID", "10.0.1.9:1"),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
    ];
    assert_eq!(bootstrap(&both, "2.32.3"), "rdma1:10.0.1.1");
    assert!(traps(&both, "2.32.3")[0].ends_with("does not choose the bootstrap interface"));
}

#[test]
fn an_id_that_cannot_be_read_ends_the_automatic_choice() {
    let sockets = |env: &[(&str, &str)], version: &str| {
        explain(
            &Settings::of(env.iter().copied(), ""),
            &node(),
            version.parse().unwrap(),
            &|_| None,
        )
        .sockets
        .len()
    };
    let id = ("NCCL_COMM_ID", ":1");
    assert_eq!(
        (
            sockets(&[id], "2.26.5"),
            sockets(&[id], "2.27.3"),
            sockets(&[id], "2.32.3")
        ),
        (3, 0, 0)
    );
    assert_eq!(sockets(&[id, ("NCCL_SOCKET_IFNAME", "=eth0")], "2.32.3"), 1);
    assert_eq!(sockets(&[("NCCL_COMM_ID", "x")], "2.32.3"), 2);
}

#[test]
fn an_address_goes_by_its_label() {
    let mut node = node();
    node.netdevs[2].addresses[0].label = Some("eth0:1".into());
    let e = explain(
        &Settings::of([("NCCL_SOCKET_IFNAME", "=eth0")], ""),
        &node,
        Version::NEWEST,
        &|_| None,
    );
    // The IPv6 addresses have no label.
    assert!(matches!(&e.bootstrap,
            Bootstrap::Uses(endpoint, _) if endpoint.to_string() == "eth0:2001:db8::1"));
    let text = "192.0.2.1 goes by its label eth0:1: NCCL_SOCKET_IFNAME does not find it under the \
        name eth0";
    assert_eq!(
        e.warnings
            .iter()
            .map(|w| (w.trap, w.text.as_str()))
            .collect::<Vec<_>>(),
        [(Trap::Label, text)]
    );
}

#[test]
fn families_and_link_local_addresses() {
    let v6 = ("NCCL_SOCKET_FAMILY", "AF_INET6");
    assert_eq!(bootstrap(&[v6], "2.32.3"), "eth0:2001:db8::1");
    assert_eq!(
        bootstrap(&[v6, ("NCCL_SOCKET_IFNAME", "rdma")], "2.32.3"),
        "rdma1:fe80::2%rdma1"
    );
    assert_eq!(
        bootstrap(&[("NCCL_COMM_ID", "[fe80::9%rdma1]:1")], "2.32.3"),
        "rdma1:fe80::2%rdma1"
    );
    assert_eq!(
        bootstrap(&[v6, ("NCCL_SOCKET_IFNAME", "lo")], "2.32.3"),
        "ncclInvalidUsage"
    );
}

#[test]
fn no_more_is_taken_than_there_is_room_for() {
    let mut node = node();
    let (hca, netdev) = (node.hcas[0].clone(), node.netdevs[2].clone());
    node.hcas = (0..40)
        .map(|i| Hca {
            name: format!("m{i}").parse().unwrap(),
            index: Some(i),
            ..hca.clone()
        })
        .collect();
    let named = |i| Netdev {
        name: format!("e{i}").parse().unwrap(),
        ifindex: i,
        ..netdev.clone()
    };
    node.netdevs = (1..=20).map(named).collect();
    for n in &mut node.netdevs {
        n.addresses.iter_mut().for_each(|a| a.label = None);
    }
    let e = explain(&Settings::default(), &node, Version::NEWEST, &|_| None);
    assert_eq!(
        (
            e.sockets.len(),
            e.hcas.len(),
            e.sockets[15].interface.as_str()
        ),
        (16, 32, "e16")
    );
    let texts: Vec<&str> = e.warnings.iter().map(|w| w.text.as_str()).collect();
    let room = [
        "20 interfaces fit and NCCL's sockets have room for 16",
        "40 HCA ports fit and NCCL has room for 32",
    ];
    assert_eq!(texts, room);
    let old = explain(&Settings::default(), &node, Version::new(2, 18, 3), &|_| {
        None
    });
    assert_eq!(old.hcas.len(), 16);
}

/// What is checked comes from containers: however long it is, what is said of it is not.
#[test]
fn a_value_of_megabytes_gets_a_few_lines() {
    for text in ["^a,", "a b,", "m\u{1F980},"] {
        let long = format!("^{}{}", text.repeat(200_000), "n".repeat(200_000));
        let warnings = check(
            [
                ("NCCL_IB_HCA", long.as_str()),
                ("NCCL_SOCKET_IFNAME", &long),
            ],
            &node(),
            None,
        );
        assert!(
            warnings.len() < 80 && warnings.iter().all(|w| w.text.len() < 1000),
            "{} warnings",
            warnings.len()
        );
    }
}

#[test]
fn hcas_that_were_switched_off_are_no_trap() {
    let off = check(
        [("NCCL_IB_HCA", "=nothing"), ("NCCL_IB_DISABLE", "1")],
        &node(),
        None,
    );
    assert!(off.iter().all(|w| !w.fatal), "{off:?}");
}

#[test]
fn a_planned_environment_is_checked_by_one_call() {
    let warnings = check(
        [("NCCL_SOCKET_IFNAME", "=gone"), ("NCCL_IB_HCA", "=mlx5_0")],
        &node(),
        None,
    );
    assert_eq!(
        warnings
            .iter()
            .map(|w| (w.trap, w.fatal))
            .collect::<Vec<_>>(),
        [(Trap::NoInterface, true)]
    );
    assert_eq!(check([("NCCL_SOCKET_IFNAME", "=eth0")], &node(), None), []);
    // Whether a host is known is not ours to say, whether a value can be read is.
    let fatal = |id: &str| {
        check([("NCCL_COMM_ID", id)], &node(), None)
            .iter()
            .any(|w| w.fatal)
    };
    let all = [
        "head:29500",
        "10.0.1.9:1",
        "[fe80::9%rdma1]:1",
        "198.51.100.1:1",
        "",
        ":1",
        "[::1",
    ]
    .map(fatal);
    assert_eq!(all, [false, false, false, true, true, true, true]);
}

/// Who serves the network says what comes of HCAs and TCP, and no other line contradicts it.
#[test]
fn nccl_net_decides_and_nothing_contradicts_it() {
    let over_tcp =
        |env: &[(&str, &str)]| traps(env, "2.32.3").join("; ").contains("goes on over TCP");
    let no_network = |env: &[(&str, &str)]| {
        let mut found = explained(env, "2.32.3").warnings;
        found.retain(|w| w.trap == Trap::NoNetwork && w.fatal);
        found.len()
    };
    let (ib, nope) = (("NCCL_NET", "ib"), ("NCCL_IB_HCA", "=mlx5_9"));
    assert!(over_tcp(&[nope]) && !over_tcp(&[ib, nope]));
    assert_eq!((no_network(&[nope]), no_network(&[ib, nope])), (0, 1));
    let disabled = ("NCCL_IB_DISABLE", "1");
    assert_eq!((no_network(&[ib]), no_network(&[ib, disabled])), (0, 1));
    assert_eq!(no_network(&[("NCCL_NET", "")]), 1);
    let gib = ("NCCL_NET", "gIB");
    assert_eq!(no_network(&[gib, ("NCCL_NET_PLUGIN", "none")]), 1);
    assert_eq!(no_network(&[gib, disabled]), 0);
    assert!(traps(&[gib, disabled], "2.32.3")[0].contains("that of NCCL_NET=gIB may use HCAs"));
    let unknown = |port: &Judged| port.why.starts_with(UNKNOWN);
    assert!(
        explained(&[gib, disabled], "2.32.3")
            .ports
            .iter()
            .all(unknown)
    );
    let socket = ("NCCL_NET", "Socket");
    assert_eq!(traps(&[socket, nope], "2.32.3"), [""; 0]);
    assert_eq!(
        traps(&[socket, nope], "2.27.7"),
        ["NCCL_IB_HCA: there is no mlx5_9"]
    );
    let ofi = ("NCCL_NET_PLUGIN", "ofi");
    let plugin = |env: &[(&str, &str)]| explained(env, "2.32.3").plugin;
    assert_eq!(plugin(&[ofi]).as_deref(), Some("ofi"));
    assert_eq!((plugin(&[ofi, ib]), plugin(&[ofi, socket])), (None, None));
    assert_eq!(plugin(&[("NCCL_NET_PLUGIN", "None")]), None);
}

#[test]
fn a_name_of_data_direct_is_no_name_for_the_list() {
    let text = "NCCL_IB_HCA is compared with an HCA's own name: mlx5_0 in place of mlx5_0_dma, \
        which NCCL makes of it since 2.27.3 (NCCL_IB_DATA_DIRECT)";
    for list in ["=mlx5_0_dma,mlx5_1", "^mlx5_0_dma"] {
        assert!(
            traps(&[("NCCL_IB_HCA", list)], "2.32.3").contains(&text.to_owned()),
            "{list}"
        );
    }
    let other = traps(&[("NCCL_IB_HCA", "=mlx5_9_dma,mlx5_1")], "2.32.3");
    assert_eq!(other, ["NCCL_IB_HCA: there is no mlx5_9_dma"]);
}

/// dlopen("") is the program (seen with the libraries: ncclIbInit returns 3).
#[test]
fn an_empty_name_of_libibverbs_leaves_no_hca() {
    let env = [("NCCL_IBVERBS_LIB", "")];
    let text = "NCCL_IBVERBS_LIB is empty, which is the program itself: it has no verbs; NCCL goes \
        on over TCP: unset it";
    assert_eq!(traps(&env, "2.32.3"), [text]);
    assert!(explained(&env, "2.32.3").hcas.is_empty());
    assert!(!explained(&env, "2.29.7").hcas.is_empty());
}

#[test]
fn of_a_release_that_was_not_judged_nothing_is_definite() {
    let env = [
        ("NCCL_IB_HCA", "=mlx5_9"),
        ("NCCL_SOCKET_IFNAME", "=nope"),
        ("NCCL_NET", "IB"),
    ];
    let old = explained(&env, "2.12.12");
    assert_eq!(old.bootstrap, Bootstrap::NotJudged);
    let mut judged = old.interfaces.iter().chain(&old.ports);
    assert!(judged.all(|j| !j.taken && j.why.starts_with(UNKNOWN)));
    assert_eq!((old.interfaces.len(), old.ports.len()), (5, 5));
    let texts = ["NCCL 2.12.12 was not judged: the oldest release that was is 2.16.2"];
    assert_eq!(traps(&env, "2.12.12"), texts);
    assert!(old.warnings.iter().all(|w| !w.fatal) && old.settings.len() == 3);
}
