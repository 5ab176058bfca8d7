//! Sysctls of NICs as the program reads them, most by netlink, and as their files say.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::alone;
use rdma_model::ids::IfName;
use rdma_model::step::{Side, Step};
use rdmaprep::kernel::netns::Netns;
use rdmaprep::kernel::{Kernel, Scope, Sysctls, World};
use testkit::{Container, Host, sh};

const FOLDERS: [&str; 4] = ["ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"];
/// A veth, a VLAN with a dot in its name, and one whose MTU is too small for IPv6.
const NICS: [&str; 3] = ["s0", "s0.100", "s1"];

/// What is written: of each row the first value that the kernel takes and that changes something.
const ROWS: [&[&str]; 4] = [
    &["7", "2", "1", "0", "3", "1300", "2001:db8::5"],
    &["1234", "1", "0", "-3", "1400"],
    &["-1", "77", "255", "65535", "0", "1281"],
    &[
        "4294967295",
        "2147483647",
        "4000000",
        "3",
        "1282",
        "2001:db8::6",
    ],
];

type Values = BTreeMap<String, String>;

/// The paths of all files of a device, by key.
fn paths(dev: &str) -> Vec<(String, String)> {
    let of_folder = |folder: &str| {
        let at = format!("/proc/sys/net/{folder}/{dev}");
        let leaves = fs::read_dir(&at)
            .into_iter()
            .flatten()
            .map(|e| e.unwrap().file_name().into_string().unwrap());
        let leaves: Vec<String> = leaves.filter(|leaf| leaf != "mc_forwarding").collect();
        leaves
            .into_iter()
            .map(|leaf| (format!("{folder}/{leaf}"), format!("{at}/{leaf}")))
            .collect::<Vec<_>>()
    };
    let mut all: Vec<(String, String)> = FOLDERS.into_iter().flat_map(of_folder).collect();
    all.sort();
    all
}

fn text(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim_end().to_owned())
}

fn files(dev: &str) -> Values {
    paths(dev)
        .into_iter()
        .filter_map(|(key, path)| Some((key, text(&path)?)))
        .collect()
}

fn change(dev: &str, row: &[&str]) {
    for (_, path) in paths(dev) {
        let before = text(&path);
        row.iter()
            .find(|value| fs::write(&path, value).is_ok() && text(&path) != before);
    }
}

/// Makes the NICs. A kernel without VLANs or dummies has a veth of that name.
fn make(host: &Host) {
    host.ip("link add s0 type veth peer name p0\nlink set p0 up\nlink set s0 up");
    sh(
        "ip link add link s0 name s0.100 type vlan id 100 || ip link add s0.100 type veth peer \
        name p1",
    );
    sh("ip link add s1 mtu 1200 type dummy || ip link add s1 mtu 1200 type veth peer name p2");
    sh("ip link set s0.100 up; ip link set s1 up");
}

/// What a namespace shows by either reader is the same for all NICs.
fn compare(world: &mut Kernel, side: Side, netns: &Netns, when: &str) {
    let names: Vec<IfName> = NICS.iter().map(|n| n.parse().unwrap()).collect();
    let keys = |(name, dev): (&IfName, &str)| {
        (
            name.clone(),
            paths(dev).into_iter().map(|(key, _)| key).collect(),
        )
    };
    let keys = netns
        .visit(|| Ok(names.iter().zip(NICS).map(keys).collect()))
        .unwrap();
    for scope in [
        Scope::for_nics(names.clone()),
        Scope {
            sysctls: Sysctls::Named(keys),
            ..Scope::network()
        },
    ] {
        let seen = world.observe(side, &scope).unwrap();
        for (name, dev) in names.iter().zip(NICS) {
            let want = netns.visit(|| Ok(files(dev))).unwrap();
            let found = Values::clone(&seen.netdev(name).unwrap().sysctls);
            let differ: Vec<&String> = want
                .keys()
                .chain(found.keys())
                .filter(|key| want.get(*key) != found.get(*key))
                .collect();
            let pairs: Vec<_> = differ
                .iter()
                .map(|key| (key, want.get(*key), found.get(*key)))
                .collect();
            assert!(
                pairs.is_empty(),
                "{when}, {side}, {dev}: by file and by netlink: {pairs:?}"
            );
            assert!(found.len() > 40, "{when}, {side}, {dev}: {found:?}");
        }
        for (key, value) in &seen.sysctls {
            let file = Path::new("/proc/sys/net").join(key);
            let is = netns.visit(|| Ok(text(file.to_str().unwrap()))).unwrap();
            assert_eq!(is.as_deref(), Some(value.as_str()), "{when}, {side}: {key}");
        }
    }
}

fn change_and_compare(world: &mut Kernel, side: Side, netns: &Netns) {
    compare(world, side, netns, "at first");
    let first = netns.visit(|| Ok(NICS.map(files))).unwrap();
    for (number, row) in ROWS.iter().enumerate() {
        netns
            .visit(|| {
                NICS.iter().for_each(|dev| change(dev, row));
                Ok(())
            })
            .unwrap();
        compare(world, side, netns, &format!("after row {number}"));
        if number == 0 {
            for (dev, before) in NICS.iter().zip(&first) {
                let now = netns.visit(|| Ok(files(dev))).unwrap();
                let same: Vec<&String> = before
                    .iter()
                    .filter(|(k, v)| now.get(*k) == Some(*v))
                    .map(|(k, _)| k)
                    .collect();
                assert!(
                    same.is_empty(),
                    "{side}, {dev}: nothing was written to {same:?}"
                );
            }
        }
    }
    // The secret stays, whatever the mode.
    let mode = |mode: &str| fs::write("/proc/sys/net/ipv6/conf/s0/addr_gen_mode", mode);
    netns.visit(|| Ok(mode("0")?)).unwrap();
    compare(world, side, netns, "with a secret that is not used");
    let seen = world
        .observe(side, &Scope::for_nics(vec!["s0".parse().unwrap()]))
        .unwrap();
    let values = &seen.netdev(&"s0".parse().unwrap()).unwrap().sysctls;
    assert!(
        values.contains_key("ipv6/conf/stable_secret") && values["ipv6/conf/addr_gen_mode"] == "0",
        "{values:?}"
    );
}

#[test]
fn values_by_netlink_are_those_of_the_files() {
    alone(|host| {
        make(host);
        sh("echo 1 > /proc/sys/net/ipv4/conf/default/arp_notify");
        let c = Container::new("other");
        let (here, there) = (
            Netns::current().unwrap(),
            Netns::of_process(c.pid().try_into().unwrap()).unwrap(),
        );
        let mut world =
            Kernel::open(Netns::current().unwrap(), Some(there.again().unwrap())).unwrap();
        change_and_compare(&mut world, Side::Host, &here);
        let seen = world
            .observe(Side::Host, &Scope::for_nics(vec!["s0".parse().unwrap()]))
            .unwrap();
        assert_eq!(
            seen.sysctls
                .get("ipv4/conf/default/arp_notify")
                .map(String::as_str),
            Some("1")
        );
        assert!(
            !seen.sysctls.contains_key("ipv4/conf/default/rp_filter"),
            "{:?}",
            seen.sysctls
        );
        assert!(
            NICS.map(|dev| files(dev).keys().any(|k| k.starts_with("ipv6/")))
                == [true, true, false]
        );
        // The VLAN first: it stays where the link below is.
        sh(&format!(
            "for dev in s0.100 s0 s1; do ip link set $dev netns {}; done",
            c.pid()
        ));
        c.sh("for dev in s0 s0.100 s1; do ip link set $dev up; done");
        let full = world.observe(Side::Host, &Scope::full()).unwrap();
        assert_eq!(
            full.sysctls
                .get("ipv4/conf/default/rp_filter")
                .map(String::as_str),
            Some("0")
        );
        change_and_compare(&mut world, Side::Inside, &there);
    });
}

/// As a write to the file does, a value by netlink outlasts a new default.
#[test]
fn values_set_by_netlink_stay_when_the_default_changes() {
    alone(|host| {
        make(host);
        let c = Container::new("other");
        let there = Netns::of_process(c.pid().try_into().unwrap()).unwrap();
        let mut world =
            Kernel::open(Netns::current().unwrap(), Some(there.again().unwrap())).unwrap();
        let wanted = [
            ("arp_announce", "2"),
            ("arp_filter", "1"),
            ("arp_ignore", "-3"),
            ("rp_filter", "1"),
            ("tag", "7"),
        ];
        let values: Values = wanted
            .iter()
            .map(|(leaf, value)| (format!("ipv4/conf/{leaf}"), (*value).into()))
            .collect();
        sh(&format!("ip link set s0 netns {}", c.pid()));
        let step = Step::Sysctls {
            side: Side::Inside,
            dev: "s0".parse().unwrap(),
            values: values.clone().into(),
        };
        world
            .perform(&step, Instant::now() + Duration::from_secs(9))
            .unwrap();
        let kept = || -> Values {
            let all = there.visit(|| Ok(files("s0"))).unwrap();
            all.into_iter()
                .filter(|(key, _)| values.contains_key(key))
                .collect()
        };
        assert_eq!(kept(), values);
        c.sh(
            "for leaf in arp_announce arp_filter arp_ignore rp_filter tag; do \
              echo 0 >/proc/sys/net/ipv4/conf/default/$leaf; done",
        );
        assert_eq!(kept(), values, "after new defaults");
        let refused = Step::Sysctls {
            side: Side::Inside,
            dev: "s0".parse().unwrap(),
            values: Values::from([("ipv4/conf/arp_ignore".to_owned(), "x".to_owned())]).into(),
        };
        assert!(world.perform(&refused, Instant::now()).is_err());
        assert_eq!(kept(), values, "after a value that is no number");
    });
}
