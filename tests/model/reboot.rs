//! After a reboot: what is not configured yet is added to the very same cards, and nothing else is
//! changed.

use rdma_model::moved_nic::MovedNic;
use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use rdma_model::ids::IfName;
use rdma_model::snapshot::{Hop, Netdev, Route, Rule};
use rdma_model::step::{NicState, Settings, Side, Step};
use rdmaprep::apply::apply_all;
use rdmaprep::attach::attach;
use rdmaprep::kernel::link_managers;
use rdmaprep::restore::after_reboot::{RebootPlan, plan_after_reboot};
use rdmaprep::verify;
use testkit::fake_kernel::hosts::{name, plan_for, three};
use testkit::fake_kernel::{Kernel, naked, plain, v4, v6};

const HOST: Side = Side::Host;

fn route(i: usize, third: u8) -> Route {
    Route {
        destination: format!("10.2{third}.0.0/16").parse().unwrap(),
        source: None,
        table: 254,
        protocol: 4,
        scope: 0,
        kind: 1,
        tos: 0,
        metric: None,
        prefsrc: None,
        hops: vec![Hop {
            dev: Some(name(i)),
            gateway: Some(v4(i as u8, 0, 9)),
            flags: 0,
            weight: 0,
            other: BTreeMap::new(),
        }],
        other: BTreeMap::new(),
    }
}

fn rule(i: usize) -> Rule {
    Rule {
        family: 2,
        priority: 1000 + i as u32,
        source: Some(format!("10.{i}.0.1/32").parse().unwrap()),
        destination: None,
        iif: Some(name(i).to_string()),
        oif: None,
        table: 100,
        action: 1,
        tos: 0,
        flags: 0,
        other: BTreeMap::new(),
    }
}

fn announce(i: usize) -> Step {
    let values = BTreeMap::from([("ipv4/conf/arp_announce".to_owned(), "2".to_owned())]).into();
    Step::Sysctls {
        side: HOST,
        dev: name(i),
        values,
    }
}

/// What rail0 and rail1 were before the boot.
fn record() -> Vec<MovedNic> {
    let mut kernel = three();
    for i in [0, 1] {
        kernel.does(announce(i)).unwrap();
        kernel
            .does(Step::RouteAdd {
                side: HOST,
                route: route(i, i as u8),
            })
            .unwrap();
        kernel
            .does(Step::RuleAdd {
                side: HOST,
                rule: rule(i),
            })
            .unwrap();
    }
    attach(
        &plan_for(&kernel, &[0, 1]),
        &kernel.see(HOST),
        &kernel.see(Side::Inside),
    )
    .unwrap()
    .held
}

/// The same cards in the same slots after the boot, down and naked.
fn cards() -> Vec<Netdev> {
    let card = |i: usize| {
        let was = three().see(HOST).netdev(&name(i)).unwrap().clone();
        let mac: [u8; 6] = was.mac.as_ref().unwrap().0.clone().try_into().unwrap();
        Netdev {
            pci: was.pci,
            permanent_mac: was.permanent_mac,
            ..naked(name(i).as_str(), 7 + i as u32, mac)
        }
    };
    (0..3).map(card).collect()
}

fn booted(cards: Vec<Netdev>) -> Kernel {
    let mut kernel = Kernel::new();
    for card in cards {
        kernel.plug(HOST, card);
    }
    kernel
}

fn planned(held: &[MovedNic], kernel: &Kernel) -> RebootPlan {
    plan_after_reboot(held, &kernel.see(HOST), |_| None)
}

fn done(held: &[MovedNic], kernel: &mut Kernel) -> RebootPlan {
    let plan = planned(held, kernel);
    let errors = apply_all(&plan.steps, kernel, Instant::now());
    assert!(errors.is_empty(), "{errors:?}");
    plan
}

fn drift(held: &[MovedNic], kernel: &Kernel) -> Vec<String> {
    let states: Vec<NicState> = held.iter().map(|h| h.before.clone()).collect();
    verify::drift(&states, &kernel.see(HOST))
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn touches(plan: &RebootPlan, dev: &IfName) -> bool {
    let dev = format!("{dev} ");
    plan.steps
        .iter()
        .any(|s| format!("{s} {s:?}").contains(dev.trim()))
}

#[test]
fn unconfigured_state_is_added_once_and_nothing_the_second_time() {
    let held = record();
    let mut kernel = booted(cards());
    assert!(drift(&held, &kernel).len() > 10);
    let plan = done(&held, &mut kernel);
    assert_eq!(plan.notes, [""; 0]);
    assert_eq!(drift(&held, &kernel), [""; 0]);
    assert!(!touches(&plan, &name(2)), "it was not away");
    assert!(done(&held, &mut kernel).steps.is_empty());
}

#[test]
fn what_the_system_has_configured_stays_as_it_is() {
    let held = record();
    let mut kernel = booted(cards());
    let configure = |kernel: &mut Kernel, step: Step| kernel.does(step).unwrap();
    let settings = Settings {
        mtu: 9000,
        ..Settings::of(&cards()[0])
    };
    configure(
        &mut kernel,
        Step::Settings {
            side: HOST,
            dev: name(0),
            settings,
        },
    );
    let values = BTreeMap::from([("ipv4/conf/arp_announce".to_owned(), "1".to_owned())]).into();
    configure(
        &mut kernel,
        Step::Sysctls {
            side: HOST,
            dev: name(0),
            values,
        },
    );
    configure(
        &mut kernel,
        Step::AddressAdd {
            side: HOST,
            dev: name(0),
            address: plain(v4(0, 0, 1), 24),
        },
    );
    configure(
        &mut kernel,
        Step::Link {
            side: HOST,
            dev: name(0),
            up: true,
        },
    );
    // Another route to the same destination was configured on purpose.
    let mut other = route(0, 0);
    other.hops[0].gateway = Some(v4(0, 0, 77));
    configure(
        &mut kernel,
        Step::RouteAdd {
            side: HOST,
            route: other,
        },
    );
    let plan = done(&held, &mut kernel);
    assert_eq!(plan.notes, ["rail0 has MTU 9000, had 1500: left as it is"]);
    let left = drift(&held, &kernel);
    assert!(
        left.iter()
            .any(|d| d.starts_with("rail0 sysctl ipv4/conf/arp_announce: 1 instead of 2")),
        "{left:?}"
    );
    assert!(
        left.iter()
            .any(|d| d.starts_with("rail0 route 10.20.0.0/16")),
        "{left:?}"
    );
    assert!(
        !left
            .iter()
            .any(|d| d.contains("address ") || d.contains("rule ") || d.starts_with("rail1")),
        "{left:?}"
    );
    let forbidden = |s: &Step| {
        !matches!(
            s,
            Step::AddressAdd { .. }
                | Step::Link { up: true, .. }
                | Step::Sysctls { .. }
                | Step::RouteAdd { .. }
                | Step::RuleAdd { .. }
        )
    };
    assert!(!plan.steps.iter().any(forbidden), "{:?}", plan.steps);
}

#[test]
fn a_card_by_another_name_is_the_same_card() {
    let mut held = record();
    let mut all = cards();
    // The boot has swapped them.
    (all[0].name, all[1].name) = (name(1), name(0));
    let mut kernel = booted(all);
    assert_eq!(done(&held, &mut kernel).notes, [""; 0]);
    let now = kernel.see(HOST);
    assert!(
        now.netdev(&name(1))
            .unwrap()
            .addresses
            .iter()
            .any(|a| a.address == v4(0, 0, 1))
    );
    assert!(
        now.rules
            .iter()
            .any(|r| r.priority == 1000 && r.iif.as_deref() == Some("rail1")),
        "{:?}",
        now.rules
    );
    assert!(
        now.routes
            .iter()
            .any(|r| r.destination == route(0, 0).destination && r.hops[0].dev == Some(name(1)))
    );
    held.remove(0);
    assert!(planned(&held, &kernel).steps.is_empty());
}

#[test]
fn another_card_and_a_nic_that_is_in_use_are_left_alone() {
    let held = record();
    let first = |change: &dyn Fn(&mut Netdev), word: &str| {
        let mut all = cards();
        change(&mut all[0]);
        let mut kernel = booted(all);
        let plan = done(&held, &mut kernel);
        let note = plan
            .notes
            .first()
            .unwrap_or_else(|| panic!("{word}: there is no note"));
        assert!(
            note.starts_with("rail0 ") && note.contains(word) && plan.notes.len() == 1,
            "{:?}",
            plan.notes
        );
        assert!(!touches(&plan, &name(0)), "{word}: {:?}", plan.steps);
        assert!(touches(&plan, &name(1)), "{word}: the other one is fine");
    };
    first(
        &|d| d.pci = Some("0000:77:00.0".parse().unwrap()),
        "another card is in its place",
    );
    first(
        &|d| {
            d.permanent_mac = d.mac.clone().map(|mut m| {
                m.0[5] ^= 1;
                m
            })
        },
        "another card is in its place",
    );
    first(
        &|d| (d.pci, d.permanent_mac) = (None, None),
        "another card is in its place",
    );
    first(
        &|d| d.addresses = vec![plain(v4(0, 0, 8), 24)],
        "has 10.0.0.8/24 now",
    );
    first(
        &|d| d.master = Some("bond0".parse().unwrap()),
        "belongs to bond0",
    );
}

#[test]
fn an_address_that_the_host_has_elsewhere_is_not_added() {
    let held = record();
    for (address, alone) in [
        (plain(v4(0, 0, 1), 16), true),
        (plain(v6(0, 1), 128), true),
        (plain(v4(0, 0, 2), 24), false),
    ] {
        let mut kernel = booted(cards());
        kernel
            .does(Step::AddressAdd {
                side: HOST,
                dev: name(2),
                address: address.clone(),
            })
            .unwrap();
        kernel
            .does(Step::Link {
                side: HOST,
                dev: name(2),
                up: true,
            })
            .unwrap();
        let plan = planned(&held, &kernel);
        assert_eq!(
            plan.notes
                .iter()
                .any(|t| t.contains("another interface of this host has now")),
            alone
        );
        assert_eq!(touches(&plan, &name(0)), !alone, "{address:?}");
        assert!(touches(&plan, &name(1)));
    }
}

#[test]
fn what_is_no_hardware_or_on_loan_is_not_added() {
    let mut held = record();
    held[0].before.netdev.permanent_mac = None;
    held[1]
        .before
        .netdev
        .addresses
        .iter_mut()
        .filter(|a| a.address.is_ipv4())
        .for_each(|a| a.valid_lft = Some(600));
    let kernel = booted(cards());
    let plan = planned(&held, &kernel);
    assert!(
        plan.notes[0].contains("no PCI and permanent address"),
        "{:?}",
        plan.notes
    );
    let addresses: Vec<&Step> = plan
        .steps
        .iter()
        .filter(|s| matches!(s, Step::AddressAdd { .. }))
        .collect();
    assert_eq!(addresses.len(), 1, "{addresses:?}");
    assert!(
        addresses[0]
            .to_string()
            .starts_with("adding fd00:1::1/64 to rail1"),
        "{addresses:?}"
    );
}

#[test]
fn a_nic_that_the_host_configures_is_not_changed() {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let of =
        |dev: &str, index| link_managers::manager_of(root.path(), &dev.parse().unwrap(), index);
    // udev runs everywhere and gives no addresses.
    put("run/udev/control", "");
    assert_eq!(of("rail0", 7), None);
    put("run/network/ifstate", "lo=lo\nrail0=rail0\n");
    assert_eq!((of("rail0", 7), of("rail", 8)), (Some("ifupdown"), None));
    put("run/systemd/netif/state", "");
    put("run/systemd/netif/links/8", "ADMIN_STATE=unmanaged\n");
    put("run/systemd/netif/links/9", "ADMIN_STATE=configured\n");
    // One that it has yet to see may be its own in a moment.
    assert_eq!(
        (of("rail1", 8), of("rail2", 9), of("rail3", 10)),
        (None, Some("systemd-networkd"), Some("systemd-networkd"))
    );
    put("run/NetworkManager/devices/8", "[device]\nmanaged=true\n");
    assert_eq!(of("rail1", 8), Some("NetworkManager"));

    let held = record();
    let kernel = booted(cards());
    let plan = plan_after_reboot(&held, &kernel.see(HOST), |dev| {
        (dev.ifindex == 7).then_some("NetworkManager")
    });
    assert_eq!(
        plan.notes,
        ["rail0 is configured by NetworkManager: left alone"]
    );
    assert!(!touches(&plan, &name(0)) && touches(&plan, &name(1)));
}
