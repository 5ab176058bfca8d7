use proptest::prelude::*;
use rdma_model::nic::Identity;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use rdma_model::ids::HcaName;

pub(super) fn nic(name: &str, hca: Option<&str>, port: u32, ports: usize) -> Nic {
    Nic {
        identity: Identity {
            name: name.parse().unwrap(),
            ifindex: 1,
            pci: None,
            permanent_mac: None,
            node_guid: None,
        },
        hca: hca.map(|h| h.parse().unwrap()),
        port: hca.map(|_| port),
        ports,
        over: None,
        members: Vec::new(),
        vfs: Vec::new(),
        borrowed: false,
        channels: None,
        rxe: false,
        gid: None,
        numa: None,
        uverbs: None,
        addresses: Vec::new(),
        learned: Default::default(),
    }
}

fn options(env: &[(&str, &str)]) -> Options {
    let host_env = env
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    Options {
        host_env,
        topo_wanted: true,
        ..Options::default()
    }
}

fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A namespace whose default route leaves by that interface.
fn namespace(iface: &str) -> Snapshot {
    let address = json!({"address": "198.51.100.9", "prefix": 24});
    let netdev =
        json!({"name": iface, "ifindex": 2, "up": true, "running": true, "addresses": [address]});
    let route =
        json!({"destination": "0.0.0.0/0", "table": 254, "kind": 1, "hops": [{"dev": iface}]});
    Snapshot {
        netdevs: from(json!([netdev])),
        routes: from(json!([route])),
        ..Snapshot::default()
    }
}

/// A one-port HCA: name, bus id, PF of a VF, and the table's GIDs by index, of RoCE v2 if they have
/// no `v1`.
type Card<'a> = (&'a str, &'a str, Option<&'a str>, &'a [(u32, &'a str)]);

fn host(hcas: &[Card]) -> (Vec<Nic>, Snapshot) {
    let mut seen = Snapshot::default();
    let mut nics = Vec::new();
    for (name, bus, physfn, gids) in hcas {
        let gid = |(index, entry): &(u32, &str)| {
            let old = entry.strip_prefix("v1 ");
            let kind = old.map_or("RoCE v2", |_| "IB/RoCE v1");
            json!({"index": index, "address": old.unwrap_or(entry), "kind": kind})
        };
        let gids: Vec<Value> = gids.iter().map(gid).collect();
        let port = json!({"number": 1, "gids": gids});
        seen.hcas
            .push(from(json!({"name": name, "pci": bus, "ports": [port]})));
        seen.pci.push(from(
            json!({"address": bus, "class": 0x020000, "physfn": physfn}),
        ));
        let mut one = nic(name, Some(name), 1, 1);
        one.identity.pci = Some(bus.parse().unwrap());
        one.gid = gids.last().map(|gid| from(gid.clone()));
        nics.push(one);
    }
    (nics, seen)
}

fn made(hcas: &[Card]) -> (Vec<String>, Vec<String>) {
    let (nics, seen) = host(hcas);
    let NcclEnv { env, unset, .. } = build_env(single(&nics, &[]), &seen, &options(&[]));
    (pairs(env).split_off(1), unset)
}

const V4: &[(u32, &str)] = &[
    (0, "v1 fe80::1"),
    (1, "fe80::1"),
    (2, "v1 ::ffff:192.0.2.1"),
    (3, "::ffff:192.0.2.1"),
];
const V6: &[(u32, &str)] = &[
    (0, "v1 fe80::1"),
    (1, "fe80::1"),
    (2, "v1 2001:db8::1"),
    (3, "2001:db8::1"),
];

#[test]
fn a_gid_index_is_told_where_one_is_certain_on_all() {
    let (a, b) = ("0000:01:00.0", "0000:02:00.0");
    assert_eq!(
        made(&[("a", a, None, V4), ("b", b, None, V4)]),
        (vec!["NCCL_IB_GID_INDEX=3".to_owned()], vec![])
    );
    let why = |made: (Vec<String>, Vec<String>)| {
        made.1
            .join("")
            .split(';')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let soft = &[(0, "fe80::1"), (1, "::ffff:192.0.2.1")];
    assert_eq!(
        why(made(&[("a", a, None, V4), ("b", b, None, soft)])),
        "NCCL_IB_GID_INDEX: it is 3 on a and 1 on b"
    );
    let uncertain = "NCCL_IB_GID_INDEX: the GID table of b may have another order inside";
    for gids in [
        &[(0, "fe80::1"), (1, "2001:db8::1"), (2, "::ffff:192.0.2.1")][..],
        // A link-local address of its own, besides the one of the MAC.
        &[(0, "fe80::1"), (1, "fe80::2"), (2, "::ffff:192.0.2.1")],
        // As seen of Linux 7.3 under load: inside it is in one place, and the address before.
        &[(0, "fe80::1"), (1, "fe80::1"), (2, "::ffff:192.0.2.1")],
        // An address has gone, and what was behind it stays where it is.
        &[(0, "fe80::1"), (2, "::ffff:192.0.2.1")],
        &[(0, "::ffff:192.0.2.1"), (1, "fe80::1")],
    ] {
        assert_eq!(
            why(made(&[("a", a, None, V4), ("b", b, None, gids)])),
            uncertain
        );
    }
    let (nics, seen) = host(&[("a", a, None, V4)]);
    let mut own = build_env(
        single(&nics, &[]),
        &seen,
        &options(&[("NCCL_IB_GID_INDEX", "-1")]),
    );
    own.choose_hosts_index(&nics, &seen);
    assert_eq!(
        (own.gid_index, own.unset.len(), pairs(own.env).split_off(1)),
        (None, 0, vec!["NCCL_IB_GID_INDEX=-1".into()])
    );
    let why = "NCCL_IB_GID_INDEX is set in the host's environment, which is NCCL's alone";
    assert_eq!(own.no_gid_index.as_deref(), Some(why));
}

#[test]
fn on_the_hosts_network_gid_tables_are_as_they_are() {
    let gap: &[(u32, &str)] = &[(0, "fe80::1"), (5, "::ffff:192.0.2.1")];
    let (a, b) = (
        ("a", "0000:01:00.0", None, gap),
        ("b", "0000:02:00.0", None, gap),
    );
    let chosen = |cards: &[Card], now: &[Card]| {
        let (nics, seen) = host(cards);
        let mut made = build_env(single(&nics, &[]), &seen, &options(&[]));
        assert!(made.gid_index.is_none() && made.unset.len() == 1);
        made.choose_hosts_index(&nics, &host(now).1);
        let of_one = made.env.iter().find(|v| v.why.contains("only"));
        assert_eq!(of_one, None, "there may be others");
        (
            made.gid_index,
            made.no_gid_index,
            pairs(made.env).split_off(1),
            made.unset.len(),
        )
    };
    let five = vec!["NCCL_IB_GID_INDEX=5".to_owned()];
    assert_eq!(chosen(&[a, b], &[a, b]), (Some(5), None, five, 0));
    let moved = (
        "b",
        "0000:02:00.0",
        None,
        &[(0, "fe80::1"), (7, "::ffff:192.0.2.1")][..],
    );
    let why = "it is 5 on a and 7 on b".to_owned();
    assert_eq!(chosen(&[a, b], &[a, moved]), (None, Some(why), vec![], 1));
    let gone = ("b", "0000:02:00.0", None, &gap[..1]);
    let why = "b does not have its GID 192.0.2.1 any more".to_owned();
    assert_eq!(chosen(&[a, b], &[a, gone]), (None, Some(why), vec![], 1));
}

#[test]
fn rails_of_ipv6_are_told() {
    let (a, b) = ("0000:01:00.0", "0000:02:00.0");
    let six = "NCCL_IB_ADDR_FAMILY=AF_INET6".to_owned();
    assert!(
        made(&[("a", a, None, V6), ("b", b, None, V6)])
            .0
            .contains(&six)
    );
    assert!(
        !made(&[("a", a, None, V6), ("b", b, None, V4)])
            .0
            .contains(&six)
    );
}

#[test]
fn cards_that_share_a_bus_are_kept_apart() {
    let off = "NCCL_IB_MERGE_VFS=0".to_owned();
    let merged = |hcas: &[(&str, &str, Option<&str>)]| {
        let hcas: Vec<_> = hcas
            .iter()
            .map(|(name, bus, pf)| (*name, *bus, *pf, V4))
            .collect();
        !made(&hcas).0.contains(&off)
    };
    // A virtual machine's root bus.
    assert!(!merged(&[
        ("a", "0000:00:05.0", None),
        ("b", "0000:00:06.0", None)
    ]));
    assert!(!merged(&[("a", "0000:00:05.0", None)]));
    let why = |cards: &[Card]| {
        let (nics, seen) = host(cards);
        build_env(single(&nics, &[]), &seen, &options(&[]))
            .env
            .into_iter()
            .find(|v| v.name == "NCCL_IB_MERGE_VFS")
            .unwrap()
            .why
    };
    let alone = "NCCL would look for a at 0000:00:00.0, where no card is";
    assert_eq!(why(&[("a", "0000:00:05.0", None, V4)]), alone);
    let beside = "b would be taken for the card at 0000:05:00.0, on whose bus it is";
    assert_eq!(
        why(&[
            ("a", "0000:05:00.0", None, V4),
            ("b", "0000:05:02.0", None, V4)
        ]),
        beside
    );
    // Two functions of a card; VFs beside their PF; VFs on a bus of their own, of which the first
    // stands for the card.
    assert!(merged(&[
        ("a", "0000:05:00.0", None),
        ("b", "0000:05:00.1", None)
    ]));
    assert!(merged(&[
        ("a", "0000:05:00.0", None),
        ("b", "0000:05:01.3", Some("0000:05:00.0"))
    ]));
    assert!(merged(&[
        ("a", "0000:06:00.0", Some("0000:05:00.1")),
        ("b", "0000:06:01.3", Some("0000:05:00.1"))
    ]));
    assert!(!merged(&[
        ("a", "0000:05:00.0", None),
        ("b", "0000:06:01.3", Some("0000:05:00.1"))
    ]));
}

#[test]
fn an_agreed_set_makes_another_number_an_error() {
    let agreed = Options {
        agreed: true,
        ..options(&[])
    };
    assert_eq!(
        pairs(set(&[], &[], &agreed)),
        ["NCCL_IGNORE_NET_MISMATCH=0"]
    );
    let own = Options {
        agreed: true,
        ..options(&[("NCCL_IGNORE_NET_MISMATCH", "1")])
    };
    assert_eq!(pairs(set(&[], &[], &own)), ["NCCL_IGNORE_NET_MISMATCH=1"]);
}

fn set(nics: &[Nic], ib: &[HcaName], options: &Options) -> Vec<EnvVar> {
    build_env(single(nics, ib), &Snapshot::default(), options).env
}

/// The HCAs have one port each.
fn single<'a>(nics: &'a [Nic], ib: &'a [HcaName]) -> Hcas<'a> {
    Hcas {
        nics,
        ib,
        ib_ports: const { &BTreeMap::new() },
        named: None,
    }
}

fn pairs(env: Vec<EnvVar>) -> Vec<String> {
    env.into_iter()
        .map(|v| format!("{}={}", v.name, v.value))
        .collect()
}

#[test]
fn hcas_are_listed_exactly_in_rail_order() {
    let o = options(&[]);
    let one_port = [
        nic("rdma0", Some("mlx5_0"), 1, 1),
        nic("rdma1", Some("mlx5_3"), 1, 1),
    ];
    assert_eq!(
        pairs(set(&one_port, &[], &o)),
        ["NCCL_IB_HCA==mlx5_0,mlx5_3"]
    );
    let two_ports = [nic("a", Some("mlx4_0"), 2, 2), nic("b", Some("rxe0"), 1, 1)];
    assert_eq!(
        pairs(set(&two_ports, &["mlx5_9".parse().unwrap()], &o)),
        ["NCCL_IB_HCA==mlx4_0:2,rxe0,mlx5_9"]
    );
    let shared = [
        nic("a", Some("mlx5_0"), 1, 1),
        nic("b", Some("mlx5_0"), 1, 1),
    ];
    assert_eq!(
        pairs(set(&shared, &["mlx5_0".parse().unwrap()], &o)),
        ["NCCL_IB_HCA==mlx5_0"]
    );
}

/// Port 1 of mlx5_0 is InfiniBand and chosen, port 2 is Ethernet and not.
#[test]
fn an_infiniband_hca_with_another_port_is_listed_by_port() {
    let ib: [HcaName; 2] = ["mlx5_0", "mlx5_1"].map(|name| name.parse().unwrap());
    let ib_ports = BTreeMap::from([(ib[0].clone(), vec![1])]);
    let hcas = Hcas {
        ib_ports: &ib_ports,
        ..single(&[], &ib)
    };
    let mut env = build_env(hcas, &Snapshot::default(), &options(&[])).env;
    assert_eq!(pairs(env.clone()), ["NCCL_IB_HCA==mlx5_0:1,mlx5_1"]);
    renew(&mut env, hcas);
    fit_release(&mut env, &BTreeMap::new(), hcas);
    assert_eq!(pairs(env), ["NCCL_IB_HCA==mlx5_0:1,mlx5_1"]);
}

#[test]
fn soft_roce_is_left_out_where_the_release_crashes() {
    let soft = |name: &str, hca: &str| Nic {
        rxe: true,
        ..nic(name, Some(hca), 1, 1)
    };
    let (hard, ib) = (
        nic("rdma9", Some("mlx5_9"), 1, 1),
        ["mlx5_7".parse().unwrap()],
    );
    let list = |nics: &[Nic], ib: &[HcaName], own: &[(&str, &str)], named: &str| {
        let own = own
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect();
        let mut env = set(nics, ib, &options(&[]));
        let named = (!named.is_empty()).then(|| named.parse().unwrap());
        // A plan's list is made for what its own settings allow.
        let hcas = Hcas {
            named,
            ..single(nics, ib)
        };
        fit_release(&mut env, &BTreeMap::new(), hcas);
        fit_release(&mut env, &own, hcas);
        let EnvVar { value, why, .. } = env.swap_remove(0);
        (
            value,
            why.split_once("; not ")
                .map_or(String::new(), |(_, why)| why.to_owned()),
        )
    };
    let said = |value: &str, why: &str| (value.to_owned(), why.to_owned());
    let both = [soft("a", "rxe0"), hard.clone(), soft("b", "rxe1")];
    let crashes = "rxe0, rxe1: NCCL 2.27.7 crashes on HCAs without a PCI path";
    assert_eq!(list(&both, &[], &[], "2.27.7"), said("=mlx5_9", crashes));
    assert_eq!(list(&both[..1], &ib, &[], "2.27.7").0, "=mlx5_7");
    // What an image says of its release may not be what runs.
    for (own, named) in [
        (&[][..], ""),
        (&[], "2.30.7"),
        (&[("NCCL_VERSION", "2.27.7-1")], ""),
        (&[("NCCL_VERSION", "2.27.7")], "2.30.7"),
    ] {
        assert_eq!(
            list(&both, &[], own, named),
            said("=rxe0,mlx5_9,rxe1", ""),
            "{own:?} {named}"
        );
    }
    let unsorted = ("NCCL_IB_DEVICE_PCI_ORDER", "0");
    assert_eq!(list(&both, &[], &[unsorted], "").0, "=mlx5_9");
    let soft = [both[0].clone(), both[2].clone()];
    assert_eq!(list(&soft, &[], &[], "2.27.7").0, "=rxe0,rxe1");
    assert_eq!(
        list(&soft, &[], &[], "2.21.5"),
        said(
            "=rxe0",
            "rxe1: NCCL 2.21.5 crashes on HCAs without a PCI path"
        )
    );
    assert_eq!(
        list(&soft, &[], &[("NCCL_IB_MERGE_NICS", "0")], "2.21.5").0,
        "=rxe0,rxe1"
    );
}

#[test]
fn nothing_certain_means_nothing_set() {
    assert!(set(&[], &[], &options(&[])).is_empty());
    assert!(
        set(
            &[nic("veth0", None, 0, 0)],
            &[],
            &options(&[("NCCL_IB_GID_INDEX", "")])
        )
        .is_empty()
    );
}

#[test]
fn they_meet_over_the_default_route_else_over_the_first_rail() {
    let mut rail = nic("rdma1", Some("mlx5_1"), 1, 1);
    rail.addresses = from(json!([{"address": "192.0.2.1", "prefix": 24}]));
    let nics = [
        nic("veth0", None, 0, 0),
        nic("bare", Some("mlx5_0"), 1, 1),
        rail,
    ];
    let own = BTreeMap::new();
    let met = |inside: Option<&Snapshot>, mut env: Vec<EnvVar>| {
        choose_socket_interface(&mut env, &own, &nics, inside);
        pairs(env)
    };
    let hca = || {
        vec![
            var("NCCL_IB_HCA", "=mlx5_1", ""),
            var("NCCL_DEBUG", "INFO", ""),
        ]
    };
    let by_rail = [
        "NCCL_IB_HCA==mlx5_1",
        "NCCL_SOCKET_IFNAME==rdma1",
        "GLOO_SOCKET_IFNAME=rdma1",
        "NCCL_DEBUG=INFO",
    ];
    assert_eq!(met(None, hca()), by_rail);
    let mut pod = namespace("eth0");
    assert_eq!(
        met(Some(&pod), Vec::new()),
        ["NCCL_SOCKET_IFNAME==eth0", "GLOO_SOCKET_IFNAME=eth0"]
    );
    assert_eq!(
        met(Some(&pod), vec![var("NCCL_SOCKET_IFNAME", "x", "")]),
        ["NCCL_SOCKET_IFNAME=x"]
    );
    // NCCL would not take it.
    pod.netdevs[0].running = false;
    assert_eq!(met(Some(&pod), hca()), by_rail);
    assert!(met(Some(&namespace("a,b")), Vec::new()).is_empty());
}

#[test]
fn a_container_is_known_by_the_address_that_its_nccl_announces() {
    let mut inside = namespace("eth0");
    inside.netdevs[0].addresses = from(json!([
        {"address": "10.9.0.2", "prefix": 24}, {"address": "fd00:9::2", "prefix": 64},
    ]));
    for (at, (name, address)) in [("eth1", "10.8.0.2"), ("rdma0", "192.0.2.10")]
        .iter()
        .enumerate()
    {
        inside
            .netdevs
            .push(from(json!({"name": name, "ifindex": at + 3, "up": true,
            "running": true, "addresses": [{"address": address, "prefix": 24}]})));
    }
    inside
        .netdevs
        .push(from(json!({"name": "local0", "ifindex": 9, "up": true,
        "running": true, "addresses": [{"address": "fe80::1", "prefix": 64}]})));
    for (name, value, address) in [
        ("NCCL_SOCKET_IFNAME", "=eth0", Some("10.9.0.2")),
        ("NCCL_SOCKET_IFNAME", "eth1", Some("10.8.0.2")),
        ("NCCL_SOCKET_IFNAME", "=rdma0", Some("192.0.2.10")),
        ("NCCL_SOCKET_FAMILY", "AF_INET6", Some("fd00:9::2")),
        ("NCCL_COMM_ID", "192.0.2.1:4000", Some("192.0.2.10")),
        ("NCCL_COMM_ID", "head.example:4000", None),
        ("NCCL_SOCKET_IFNAME", "=local0", None),
    ] {
        let found = bootstrap_address(&Settings::of([(name, value)], ""), &inside, None);
        let address = address.map(|a| a.parse().unwrap());
        assert_eq!(found, address, "{name}={value}");
    }
}

#[test]
fn nothing_of_ours_stands_against_the_containers_own_choice() {
    let mut rail = nic("rdma1", Some("mlx5_1"), 1, 1);
    rail.addresses = from(json!([{"address": "2001:db8::1", "prefix": 64}]));
    let pod = namespace("eth0");
    let met = |name: &str, value: &str| {
        let (mut env, own) = (
            Vec::new(),
            BTreeMap::from([(name.to_owned(), value.to_owned())]),
        );
        choose_socket_interface(&mut env, &own, std::slice::from_ref(&rail), Some(&pod));
        pairs(env).into_iter().next()
    };
    assert_eq!(met("NCCL_COMM_ID", "192.0.2.1:1"), None);
    assert_eq!(
        met("NCCL_SOCKET_FAMILY", "AF_INET6").as_deref(),
        Some("NCCL_SOCKET_IFNAME==rdma1")
    );
    assert_eq!(
        met("NCCL_SOCKET_FAMILY", "AF_INET").as_deref(),
        Some("NCCL_SOCKET_IFNAME==eth0")
    );
    rail.addresses.clear();
    let (mut env, own) = (
        Vec::new(),
        BTreeMap::from([("NCCL_SOCKET_FAMILY".to_owned(), "AF_INET6".to_owned())]),
    );
    choose_socket_interface(&mut env, &own, &[rail], Some(&pod));
    assert!(env.is_empty());
}

proptest! {
    /// What `spec` writes, what the create hook gives and records, and what `env --container` reads
    /// of the record are one environment, whether config.json was edited or not.
    #[test]
    fn spec_create_and_env_give_a_container_the_same(
        soft in any::<bool>(),
        way_out in prop::option::of("eth[01]|rdma1"),
        is_known in any::<bool>(),
        release in prop::option::of("2\\.(22\\.3|27\\.7|32\\.3)"),
        own in prop::collection::btree_map(
            prop::sample::select(vec![
                "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_COMM_ID",
                "NCCL_SOCKET_FAMILY", "NCCL_IB_DEVICE_PCI_ORDER", "NCCL_IB_GID_INDEX",
            ]),
            prop::sample::select(vec!["0", "=eth0", "eth0", "AF_INET6", "=rdma1", ""]),
            0..4,
        ),
    ) {
        let mut nics = [nic("rdma1", Some("mlx5_1"), 1, 1), nic("rdma2", Some("rxe0"), 1, 1)];
        nics[0].addresses = from(json!([{"address": "192.0.2.1", "prefix": 24}]));
        nics[1].rxe = soft;
        let named = release.map(|text| text.parse().unwrap());
        let hcas = Hcas {
            named,
            ..single(&nics, &[])
        };
        let own: BTreeMap<String, String> =
            own.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let inside = way_out.map_or(Snapshot::default(), |iface| namespace(&iface));
        let is_new = inside.netdevs.is_empty() && !is_known;
        let plan = set(&nics, &[], &options(&[]));
        let fit = |env: &[EnvVar], own: &BTreeMap<String, String>, namespace| {
            let mut env = env.to_vec();
            fit_container(&mut env, own, hcas, namespace);
            env
        };
        let seen = if is_new { Namespace::New } else { Namespace::Seen(&inside) };
        let written = lacking(&fit(&plan, &own, seen), &own);
        let mut edited = own.clone();
        edited.extend(written.iter().map(|v| (v.name.clone(), v.value.clone())));
        for config in [&own, &edited] {
            let recorded = fit(&plan, config, Namespace::Seen(&inside));
            let beside: Vec<EnvVar> = given(&recorded, config)
                .into_iter()
                .filter(|v| !own.contains_key(&v.name))
                .collect();
            prop_assert_eq!(pairs(beside), pairs(written.clone()));
            let printed = given(&fit(&recorded, config, Namespace::Unknown), config);
            prop_assert_eq!(pairs(printed), pairs(given(&recorded, config)));
        }
        // Nothing is left to add where all was written.
        prop_assert_eq!(lacking(&fit(&plan, &edited, Namespace::Seen(&inside)), &edited), []);
    }
}

#[test]
fn fabric_settings_of_the_host_pass() {
    let o = options(&[
        ("NCCL_IB_TC", "106"),
        ("NCCL_IB_GID_INDEX", "3"),
        ("NCCL_DEBUG", "WARN"),
        ("PATH", "/bin"),
    ]);
    assert_eq!(
        pairs(set(&[], &[], &o)),
        ["NCCL_IB_GID_INDEX=3", "NCCL_IB_TC=106"]
    );
}

#[test]
fn debug_set_yields_to_the_host() {
    let o = Options {
        debug_all: true,
        ..options(&[("NCCL_DEBUG", "TRACE")])
    };
    assert_eq!(
        pairs(set(&[], &[], &o)),
        [
            "NCCL_DEBUG=TRACE",
            "NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,NET,GRAPH,ENV",
            "NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log",
            "NCCL_TOPO_DUMP_FILE=/tmp/nccl_topo.xml"
        ]
    );
}

#[test]
fn topology_file_asked_for_else_the_hosts_own() {
    let own = options(&[("NCCL_TOPO_FILE", "/own.xml")]);
    let asked = Options {
        topo_file: Some("/t.xml".into()),
        ..own.clone()
    };
    let unwanted = Options {
        topo_wanted: false,
        ..asked.clone()
    };
    assert_eq!(pairs(set(&[], &[], &asked)), ["NCCL_TOPO_FILE=/t.xml"]);
    assert_eq!(pairs(set(&[], &[], &own)), ["NCCL_TOPO_FILE=/own.xml"]);
    assert_eq!(pairs(set(&[], &[], &unwanted)), ["NCCL_TOPO_FILE=/own.xml"]);
    assert!(
        set(
            &[],
            &[],
            &Options {
                host_env: BTreeMap::new(),
                ..unwanted
            }
        )
        .is_empty()
    );
}

#[test]
fn runsc_gets_flags_that_annotations_may_set() {
    assert!(runsc_annotations(&options(&[("RUNSC_DEBUG", "1")])).is_empty());
    let o = Options {
        debug_all: true,
        ..options(&[])
    };
    let flags = runsc_annotations(&o);
    let names: Vec<&str> = flags.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(
        names,
        [
            "dev.gvisor.flag.debug",
            "dev.gvisor.flag.strace",
            "dev.gvisor.flag.strace-syscalls"
        ]
    );
    let o = Options {
        debug_all: true,
        ..options(&[("RUNSC_STRACE", "0"), ("RUNSC_DEBUG_COMMAND", "boot")])
    };
    let flags: Vec<String> = runsc_annotations(&o)
        .iter()
        .map(|(n, v)| format!("{n}={v}"))
        .collect();
    assert_eq!(
        flags,
        [
            "dev.gvisor.flag.debug=true",
            "dev.gvisor.flag.debug-command=boot",
            "dev.gvisor.flag.strace=false"
        ]
    );
}

#[test]
fn rails_that_are_found_apart_are_kept_apart_once() {
    let mut env = vec![
        var("NCCL_IB_HCA", "=a,b", "x"),
        var(CROSS_NIC, "1", OF_HOST),
    ];
    let mut unset = vec![
        format!("{CROSS_NIC}: a hint"),
        "NCCL_NET: another".to_owned(),
    ];
    assert!(keep_to_rails(&mut env, &mut unset, "y"));
    assert_eq!(env[1..], [var(CROSS_NIC, "0", "y")]);
    assert_eq!(unset, ["NCCL_NET: another"]);
    assert!(!keep_to_rails(&mut env, &mut unset, "y"));
}
