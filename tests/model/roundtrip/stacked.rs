//! VLANs on a NIC, and a bond of two others: whatever is cut off or refused, and whenever the
//! namespace dies.

use super::*;
use rdma_model::ids::Hex;
use rdma_model::snapshot::{Hop, Netdev};
use rdma_model::step::VirtualLink;
use testkit::fake_kernel::hosts::{plan_of, three};

const SIDE: Side = Side::Host;

fn made(kind: &str, over: Option<&str>, number: u8) -> VirtualLink {
    let (data, over) = (Hex(vec![number]), over.map(|o| o.parse().unwrap()));
    VirtualLink {
        kind: kind.to_owned(),
        data,
        over,
        mac: None,
        ifindex: Some(200 + u32::from(number)),
    }
}

/// NICs 0, with two VLANs, one on the other, of which the upper sorts first and is down; 1 and 2 in
/// a bond.
fn host() -> Case {
    let mut kernel = three();
    let mut does = |step| kernel.does(step).unwrap();
    let [vlan, upper, bond] = ["r.5", "a.9", "bond0"].map(|n| n.parse::<IfName>().unwrap());
    let (side, nic) = (SIDE, name(0).to_string());
    does(Step::Make {
        side,
        dev: vlan.clone(),
        made: made("vlan", Some(&nic), 5),
    });
    does(Step::Make {
        side,
        dev: upper.clone(),
        made: made("vlan", Some("r.5"), 9),
    });
    does(Step::Make {
        side,
        dev: bond.clone(),
        made: made("bond", None, 1),
    });
    for member in [1, 2] {
        does(Step::Enslave {
            side,
            dev: name(member),
            master: bond.clone(),
        });
    }
    for (dev, n) in [(&vlan, 70), (&bond, 80)] {
        does(Step::Link {
            side,
            dev: dev.clone(),
            up: true,
        });
        for address in [plain(v4(n, 0, 1), 24), plain(v6(n, 1), 64)] {
            does(Step::AddressAdd {
                side,
                dev: dev.clone(),
                address,
            });
        }
        let hops = vec![Hop {
            dev: Some(dev.clone()),
            gateway: Some(v4(n, 0, 9)),
            ..Hop::default()
        }];
        let to = format!("10.{}.0.0/16", n + 1).parse().unwrap();
        let plain = rule_333(dev);
        does(Step::RouteAdd {
            side,
            route: Route {
                destination: to,
                ..route(hops)
            },
        });
        does(Step::RuleAdd {
            side,
            rule: Rule {
                priority: n.into(),
                ..plain
            },
        });
    }
    // It went up with the one below.
    does(Step::Link {
        side,
        dev: upper.clone(),
        up: false,
    });
    does(Step::AddressAdd {
        side,
        dev: upper.clone(),
        address: plain(v4(90, 0, 1), 24),
    });
    does(Step::AltnameAdd {
        side,
        dev: bond.clone(),
        altname: "both".to_owned(),
    });
    let names = [upper, bond, vlan, name(2), name(0), name(1)];
    let plan = plan_of(&kernel, &names);
    Case::of(kernel, &plan)
}

fn route(hops: Vec<Hop>) -> Route {
    Route {
        destination: "0.0.0.0/0".parse().unwrap(),
        source: None,
        table: 254,
        protocol: 4,
        scope: 0,
        kind: 1,
        tos: 0,
        metric: None,
        prefsrc: None,
        hops,
        other: BTreeMap::new(),
    }
}

/// The host gets back all, NICs that are no hardware, too.
fn assert_equal_after_restore(case: &Case, mut kernel: Kernel, when: &str) {
    case.assert_restored(kernel.clone(), when);
    if kernel.has_inside() {
        kernel.die();
        kernel.log.clear();
        let (found, drift) = home(&mut kernel, &case.attach.held, &case.precedence);
        let changes: Vec<String> = drift.iter().map(Drift::to_string).collect();
        assert_eq!(
            (found.stuck, changes),
            (Vec::new(), Vec::new()),
            "dead, {when}: {:#?}",
            kernel.log
        );
        assert_eq!(
            diff(&case.host, &form(&kernel.see(SIDE))),
            "",
            "dead, {when}: {:#?}",
            kernel.log
        );
    }
}

#[test]
fn there_and_back() {
    let case = host();
    let attached = case.attached().unwrap();
    let states: Vec<NicState> = case.attach.held.iter().map(|h| h.inside.clone()).collect();
    assert_eq!(verify::drift(&states, &attached.see(Side::Inside)), []);
    assert_equal_after_restore(&case, attached, "after a whole attach");
}

/// All ipvlans of a NIC have one address, permanent and current: the one that stays is not taken
/// for the other.
#[test]
fn a_sibling_of_the_same_address() {
    let mut kernel = three();
    let [stays, goes] = ["i0", "i1"].map(|n| n.parse::<IfName>().unwrap());
    let nic = name(0).to_string();
    for (dev, n) in [(&stays, 1), (&goes, 2)] {
        kernel
            .does(Step::Make {
                side: SIDE,
                dev: dev.clone(),
                made: made("ipvlan", Some(&nic), n),
            })
            .unwrap();
        kernel
            .does(Step::Link {
                side: SIDE,
                dev: dev.clone(),
                up: true,
            })
            .unwrap();
        let address = plain(v4(60, n, 1), 24);
        kernel
            .does(Step::AddressAdd {
                side: SIDE,
                dev: dev.clone(),
                address,
            })
            .unwrap();
    }
    let plan = plan_of(&kernel, &[goes]);
    let case = Case::of(kernel, &plan);
    assert_equal_after_restore(&case, case.attached().unwrap(), "after a whole attach");
}

/// The device below stays on the host. What has its name in the container is the container's own.
#[test]
fn a_namesake_of_the_device_below() {
    for kind in ["vlan", "ipvlan"] {
        let mut kernel = three();
        let (dev, nic) = ("i1".parse::<IfName>().unwrap(), name(0).to_string());
        kernel
            .does(Step::Make {
                side: SIDE,
                dev: dev.clone(),
                made: made(kind, Some(&nic), 2),
            })
            .unwrap();
        kernel
            .does(Step::Link {
                side: SIDE,
                dev: dev.clone(),
                up: true,
            })
            .unwrap();
        let address = plain(v4(60, 2, 1), 24);
        kernel
            .does(Step::AddressAdd {
                side: SIDE,
                dev: dev.clone(),
                address,
            })
            .unwrap();
        let below = kernel.see(SIDE).netdev(&name(0)).unwrap().clone();
        let own = Netdev {
            kind: Some("veth".to_owned()),
            pci: None,
            permanent_mac: None,
            addresses: vec![],
            ..below
        };
        kernel.plug(Side::Inside, own);
        let plan = plan_of(&kernel, &[dev]);
        let case = Case::of(kernel, &plan);
        let mut kernel = case.kernel.clone();
        for step in &case.attach.steps {
            assert_equal_after_restore(
                &case,
                kernel.clone(),
                &format!("{kind}, cut off before {step}"),
            );
            kernel.perform(step, soon()).unwrap();
        }
        assert_equal_after_restore(&case, kernel, kind);
    }
}

#[test]
fn cut_off_anywhere() {
    let case = host();
    let mut kernel = case.kernel.clone();
    for (k, step) in case.attach.steps.iter().enumerate() {
        assert_equal_after_restore(&case, kernel.clone(), &format!("cut off before {step}"));
        let mut refused = case.kernel.clone();
        refused.fail_at = Some(k);
        assert!(!walk(&mut refused, &case.attach.steps));
        refused.fail_at = None;
        assert_equal_after_restore(&case, refused, &format!("refused: {step}"));
        kernel.perform(step, soon()).unwrap();
    }
    let steps = restore_plan(&kernel, &case.attach.held).all_steps();
    for (k, step) in steps.iter().enumerate() {
        assert_equal_after_restore(
            &case,
            kernel.clone(),
            &format!("home, cut off before step {k}, {step}"),
        );
        kernel.perform(step, soon()).unwrap();
    }
    print_points("points with VLANs and a bond");
}
