//! Attach and restore on a fake kernel that behaves as Linux does: whatever a host looks like,
//! wherever the attach or the restore is cut off, and whatever a container does to its NICs
//! meanwhile, the host gets back its state.
//!
//! `ROUNDTRIP_CASES=N` runs N hosts per property, from a random seed; without it the hosts are
//! always the same ones.

mod container;
mod found;
mod managed;
mod normal_form;
mod stacked;

use rdma_model::arp::{ArpChoice, ArpProfile};
use rdma_model::drift::Drift;
use rdma_model::moved_nic::MovedNic;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::time::{Duration, Instant};

use container::{mischief, mischievous, rule_333, swap};
use ipnet::IpNet;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rdma_model::ids::{IfName, Mac};
use rdma_model::snapshot::{
    Address, LinkOptions, Program, ProgramHook, Qdisc, Route, Rule, Snapshot, SysctlValues,
};
use rdma_model::step::{NicState, Settings, Side, Step};
use rdmaprep::apply::{apply, apply_all};
use rdmaprep::attach::{AttachPlan, plan_attach};
use rdmaprep::kernel::{Scope, World};
use rdmaprep::link_managers::Managers;
use rdmaprep::plan::{Plan, rails};
use rdmaprep::precedence::Precedence;
use rdmaprep::restore::order::put_in_order;
use rdmaprep::restore::plan::{Goal, RestorePlan, plan_restore};
use rdmaprep::restore::settle::{Returned, settle};
use rdmaprep::verify;
use testkit::fake_kernel::hosts::{Host, host, name};
use testkit::fake_kernel::{Kernel, plain, v4, v6};

thread_local! {
    /// Points of this test at which something was done, cut off or broken, and then compared.
    static POINTS: Cell<usize> = const { Cell::new(0) };
}

fn point() {
    POINTS.with(|p| p.set(p.get() + 1));
}

fn print_points(what: &str) {
    println!("{what}: {}", POINTS.with(Cell::get));
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Runs a property over random values; by default the same ones each time, since a suite must not
/// fail by luck.
fn for_all<T: Debug>(cases: u32, values: impl Strategy<Value = T>, property: impl Fn(T)) {
    let random = std::env::var("ROUNDTRIP_CASES")
        .ok()
        .and_then(|n| n.parse().ok());
    let config = Config {
        cases: random.unwrap_or(cases),
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..Config::default()
    };
    let mut runner = match random {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let result = runner.run(&values, |value| {
        property(value);
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}

fn names(held: &[MovedNic]) -> Vec<IfName> {
    held.iter().map(|h| h.name().clone()).collect()
}

/// What `restore::run::bring_with` does: one restore, the order of equals, and one more of what
/// differs then.
fn home(kernel: &mut Kernel, held: &[MovedNic], order: &Precedence) -> (RestorePlan, Vec<Drift>) {
    let inside = kernel
        .has_inside()
        .then(|| kernel.observe(Side::Inside, &Scope::network()).unwrap());
    let home = plan_restore(
        held,
        &kernel.observe(Side::Host, &Scope::network()).unwrap(),
        inside.as_ref(),
        Goal::Exact,
    );
    inside
        .iter()
        .for_each(|inside| assert_sweeps(&home.steps, inside));
    apply_all(&home.all_steps(), kernel, soon());
    let now = kernel.observe(Side::Host, &Scope::network()).unwrap();
    let order = order.with_newcomers(&now);
    put_in_order(kernel, Side::Host, &order, &now).unwrap();
    // This path has no files of a network manager.
    let mut no_managers = Managers::of(Path::new("/proc/self/fd/none"));
    let back = Returned::earlier(held, &order);
    (
        home,
        settle(kernel, &mut no_managers, back, Duration::ZERO)
            .unwrap()
            .drift,
    )
}

fn form(snapshot: &Snapshot) -> String {
    let all: String = snapshot
        .sysctls
        .iter()
        .map(|(key, value)| format!("sysctl {key} {value}\n"))
        .collect();
    verify::normal_text(snapshot) + &all
}

/// What the normal form leaves out, but a restore keeps unless the kernel refused a step of it: the
/// order of addresses, and link-local ones, made by the kernel or by hand.
fn order(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for dev in &snapshot.netdevs {
        let settled = dev
            .addresses
            .iter()
            .filter(|a| a.protocol != Some(3) && a.scope == 0);
        let order: Vec<String> = settled
            .map(|a| format!("{}:{}", a.address, a.flags & 1))
            .collect();
        text.push_str(&format!("order {} {}\n", dev.name, order.join(" ")));
        let local = dev.addresses.iter().filter(|a| a.scope == 253);
        local.for_each(|a| {
            text.push_str(&format!(
                "link-local {} {}/{}\n",
                dev.name, a.address, a.prefix
            ))
        });
    }
    text
}

fn diff(before: &str, after: &str) -> String {
    let mut text = String::new();
    for line in before.lines().filter(|l| !after.lines().any(|a| a == *l)) {
        text.push_str(&format!("- {line}\n"));
    }
    for line in after.lines().filter(|l| !before.lines().any(|b| b == *l)) {
        text.push_str(&format!("+ {line}\n"));
    }
    text
}

/// A host, its plan lowered, and what it looked like before.
struct Case {
    kernel: Kernel,
    attach: AttachPlan,
    precedence: Precedence,
    host: String,
    inside: String,
    order: String,
}

impl Case {
    fn new(host: &Host) -> Case {
        let kernel = host.kernel();
        let plan = host.plan(&kernel);
        Case::of(kernel, &plan)
    }

    fn of(kernel: Kernel, plan: &Plan) -> Case {
        let attach = plan_attach(plan, &kernel.see(Side::Host), &kernel.see(Side::Inside)).unwrap();
        assert_sweeps(&attach.steps, &kernel.see(Side::Host));
        let (host, inside) = (
            form(&kernel.see(Side::Host)),
            form(&kernel.see(Side::Inside)),
        );
        let order = order(&kernel.see(Side::Host));
        let precedence = Precedence::from_host(
            &kernel.see(Side::Host),
            attach.held.iter().map(|h| &h.before),
            &[],
        );
        Case {
            kernel,
            attach,
            precedence,
            host,
            inside,
            order,
        }
    }

    /// The container has its NICs; `None` where the attach was refused for the one reason that is
    /// known (see [`Case::gateway_by_default`]), and undone.
    fn attached(&self) -> Option<Kernel> {
        let mut kernel = self.kernel.clone();
        match apply(&self.attach.steps, &mut kernel, soon(), |_| ()) {
            Ok(()) => Some(kernel),
            Err(e) if self.gateway_by_default() && format!("{e:#}").contains("unreachable") => {
                self.assert_restored(kernel, "after a refused attach");
                None
            }
            Err(e) => panic!("{e:#}"),
        }
    }

    /// Whether a default route without a gateway, which stays behind, is what a route's gateway was
    /// reached by.
    fn gateway_by_default(&self) -> bool {
        let direct = |r: &Route| {
            r.destination.prefix_len() == 0 && r.hops.iter().any(|h| h.gateway.is_none())
        };
        self.attach
            .held
            .iter()
            .any(|h| h.before.routes.iter().any(direct))
    }

    fn assert_restored(&self, kernel: Kernel, when: &str) {
        let kernel = self.assert_equal(kernel, when, |_| true);
        assert_eq!(
            diff(&self.order, &order(&kernel.see(Side::Host))),
            "",
            "{when}; failed: {:#?}",
            kernel.log
        );
    }

    /// Restores the NICs; `ours` is true for lines inside that the container made itself.
    fn assert_equal(&self, mut kernel: Kernel, when: &str, ours: impl Fn(&str) -> bool) -> Kernel {
        point();
        kernel.log.clear();
        let (home, drift) = home(&mut kernel, &self.attach.held, &self.precedence);
        assert_eq!(home.stuck, [], "{when}");
        let changes: Vec<String> = drift.iter().map(Drift::to_string).collect();
        assert!(
            changes.is_empty(),
            "{when}: {changes:#?}\nfailed: {:#?}\nsteps: {:#?}",
            kernel.log,
            texts(&home.steps)
        );
        let now = form(&kernel.see(Side::Host));
        assert_eq!(
            diff(&self.host, &now),
            "",
            "{when}; failed: {:#?}",
            kernel.log
        );
        let within: String = form(&kernel.see(Side::Inside))
            .lines()
            .filter(|l| ours(l))
            .map(|l| format!("{l}\n"))
            .collect();
        assert_eq!(
            diff(&self.inside, &within),
            "",
            "inside, {when}; failed: {:#?}",
            kernel.log
        );
        kernel
    }
}

fn texts(steps: &[Step]) -> Vec<String> {
    steps.iter().map(Step::to_string).collect()
}

/// The moves follow each other, and each link is down before the first one: the kernel is faster
/// so.
fn assert_sweeps(steps: &[Step], from: &Snapshot) {
    let is_move = |s: &Step| matches!(s, Step::Move { .. });
    let first = steps.iter().position(is_move).unwrap_or(steps.len());
    let moves = steps[first..].iter().take_while(|s| is_move(s)).count();
    assert!(
        !steps[first + moves..].iter().any(is_move),
        "a step between moves: {:#?}",
        texts(steps)
    );
    let was_up = |dev: &IfName| from.netdev(dev).is_some_and(|d| d.up);
    let set_down = |dev: &IfName| {
        steps[..first]
            .iter()
            .any(|s| matches!(s, Step::Link { dev: down, up: false, .. } if down == dev))
    };
    for step in &steps[first..first + moves] {
        let Step::Move { dev, .. } = step else {
            unreachable!()
        };
        assert!(
            !was_up(dev) || set_down(dev),
            "{step} while its link is up: {:#?}",
            texts(steps)
        );
    }
}

/// One side only: all steps up to the end, or up to the first that fails.
fn walk(kernel: &mut Kernel, steps: &[Step]) -> bool {
    apply(steps, kernel, soon(), |_| ()).is_ok()
}

#[test]
fn there_and_back() {
    for_all(120, host(6), |h| {
        let case = Case::new(&h);
        let Some(kernel) = case.attached() else {
            return;
        };
        case.assert_restored(kernel, "after a whole attach");
    });
    print_points("whole round trips");
}

#[test]
fn the_way_in_cut_off_anywhere() {
    for_all(40, host(4), |h| {
        let case = Case::new(&h);
        let mut kernel = case.kernel.clone();
        for k in 0..case.attach.steps.len() {
            // A kill before step k, and a kernel that refuses step k.
            case.assert_restored(kernel.clone(), &format!("cut off before step {k}"));
            let mut refused = case.kernel.clone();
            refused.fail_at = Some(k);
            assert!(!walk(&mut refused, &case.attach.steps));
            refused.fail_at = None;
            case.assert_restored(refused, &format!("step {k} refused"));
            if kernel.perform(&case.attach.steps[k], soon()).is_err() {
                break;
            }
        }
    });
    print_points("points of an attach");
}

#[test]
fn a_restore_cut_off_anywhere() {
    for_all(40, host(4), |h| {
        let case = Case::new(&h);
        let Some(attached) = case.attached() else {
            return;
        };
        let steps = restore_plan(&attached, &case.attach.held).all_steps();
        let mut kernel = attached.clone();
        for (k, step) in steps.iter().enumerate() {
            case.assert_restored(kernel.clone(), &format!("home, cut off before step {k}"));
            // Of several addresses of a subnet the first one added is its primary: one that the
            // kernel refuses loses that place.
            if matches!(step, Step::AddressAdd { address, .. } if address.address.is_ipv4()) {
                let _ = kernel.perform(step, soon());
                continue;
            }
            // apply_all goes on behind a step that the kernel refused.
            let mut refused = attached.clone();
            refused.fail_at = Some(k);
            refused.performed = 0;
            apply_all(&steps, &mut refused, soon());
            refused.fail_at = None;
            case.assert_equal(refused, &format!("home, step {k} refused: {step}"), |_| {
                true
            });
            let _ = kernel.perform(step, soon());
        }
        // And in the middle of giving equals their order.
        let now = kernel.see(Side::Host);
        for step in case
            .precedence
            .with_newcomers(&now)
            .steps(Side::Host, &now)
            .concat()
        {
            case.assert_restored(kernel.clone(), &format!("order, cut off before {step}"));
            kernel.perform(&step, soon()).unwrap();
        }
        case.assert_restored(kernel, "in order");
    });
    print_points("points of a restore");
}

fn restore_plan(kernel: &Kernel, held: &[MovedNic]) -> RestorePlan {
    plan_restore(
        held,
        &kernel.see(Side::Host),
        kernel
            .has_inside()
            .then(|| kernel.see(Side::Inside))
            .as_ref(),
        Goal::Exact,
    )
}

/// Where legs of a route stay, the host has a way by its key meanwhile.
fn assert_served(held: &[MovedNic], away: &Snapshot) {
    let gone = names(held);
    let key = |r: &Route| (r.destination, r.table, r.tos, r.metric.unwrap_or(0));
    for whole in held.iter().flat_map(|h| &h.before.routes) {
        let stays = whole
            .hops
            .iter()
            .any(|hop| hop.dev.as_ref().is_some_and(|dev| !gone.contains(dev)));
        let drops = whole.destination.addr().is_ipv4()
            && whole.nexthop().is_none()
            && whole.prefsrc.is_none();
        let serves = away.routes.iter().any(|r| key(r) == key(whole));
        assert!(
            !stays || !drops || whole.protocol > 4 || serves,
            "{whole} while its NIC is away"
        );
    }
}

#[test]
fn what_the_container_has_is_what_was_planned() {
    for_all(120, host(6), |h| {
        let case = Case::new(&h);
        let Some(kernel) = case.attached() else {
            return;
        };
        point();
        let mut kernel = kernel;
        let order = case.precedence.inside(&case.attach.held);
        let now = kernel.see(Side::Inside);
        let ordered = put_in_order(&mut kernel, Side::Inside, &order, &now).unwrap();
        assert!(ordered.errors.is_empty(), "{:?}", ordered.errors);
        let inside = kernel.see(Side::Inside);
        assert_eq!(order.drift(&inside), []);
        let states: Vec<NicState> = case.attach.held.iter().map(|h| h.inside.clone()).collect();
        let mut drift = verify::drift(&states, &inside);
        drift.extend(verify::rdma_drift(&case.attach.held, &inside));
        drift.extend(rails::drift(&states, &inside));
        assert_eq!(drift, []);
        let before = case.kernel.see(Side::Inside);
        for everywhere in ["0.0.0.0/0", "::/0"].map(|net| net.parse::<IpNet>().unwrap()) {
            let metrics = |s: &Snapshot| {
                let mut all: Vec<_> = s
                    .routes
                    .iter()
                    .filter(|r| (r.table, r.destination) == (254, everywhere))
                    .map(|r| r.metric)
                    .collect();
                all.sort();
                all
            };
            let rails = case.attach.held.iter().flat_map(|h| &h.before.routes);
            let best = rails
                .filter(|r| (r.table, r.destination) == (254, everywhere))
                .map(|r| r.metric)
                .min();
            let theirs = metrics(&before);
            let want = if theirs.is_empty() && h.default_route {
                best.into_iter().collect()
            } else {
                theirs
            };
            assert_eq!(metrics(&inside), want, "default routes inside");
        }
        let of_host = case.kernel.see(Side::Host).rules;
        for held in &case.attach.held {
            let name = held.name();
            let want = match h.arp {
                ArpChoice::Auto | ArpChoice::Strict => Some(ArpProfile::STRICT),
                ArpChoice::Loose => Some(ArpProfile::LOOSE),
                ArpChoice::Exact(arp) => Some(arp),
                ArpChoice::Off => None,
            };
            assert!(
                want.is_none() || rails::effective(&inside, name) == want,
                "{name}"
            );
            let own = held.inside.rules.iter().all(|r| of_host.contains(r));
            assert!(
                held.before
                    .rules
                    .iter()
                    .all(|r| held.inside.rules.contains(r)),
                "{name}"
            );
            assert!(want.is_some() || own, "{name}");
            if want.is_none() {
                let is = |s: &Snapshot| rails::effective(s, name).map(|arp| arp.rp_filter);
                assert_eq!(is(&inside), is(&case.kernel.see(Side::Host)), "{name}");
            }
            let Some(hca) = &held.nic.hca else { continue };
            assert_eq!(inside.hca(hca).unwrap().uverbs, held.nic.uverbs, "{hca}");
        }
        assert_served(&case.attach.held, &kernel.see(Side::Host));
        let stays = |s: &Snapshot| {
            s.netdevs
                .iter()
                .filter(|d| !names(&case.attach.held).contains(&d.name))
                .count()
        };
        assert_eq!(
            (stays(&inside), inside.netdevs.len()),
            (2, 2 + case.attach.held.len())
        );
    });
    print_points("containers");
}

#[test]
fn an_equal_host_needs_nothing() {
    for_all(120, host(6), |h| {
        let case = Case::new(&h);
        point();
        let held = &case.attach.held;
        assert_eq!(
            texts(&restore_plan(&case.kernel, held).all_steps()),
            [""; 0]
        );
        // Without a look at the sysctls they are written again, which changes nothing.
        let mut kernel = case.kernel.clone();
        let look = kernel.observe(Side::Host, &Scope::network()).unwrap();
        let steps = plan_restore(held, &look, None, Goal::Exact).all_steps();
        let same = |s: &Step| match s {
            // One of these values decides whether the kernel makes link-local addresses, with their
            // route.
            Step::AddressAdd { address, .. } => address.scope == 253,
            Step::RouteAdd { route, .. } => route.destination == "fe80::/64".parse().unwrap(),
            other => matches!(other, Step::Sysctls { .. }),
        };
        assert!(steps.iter().all(same), "{:?}", texts(&steps));
        assert_eq!(apply_all(&steps, &mut kernel, soon()).len(), 0);
        assert_eq!(diff(&case.host, &form(&kernel.see(Side::Host))), "");
    });
    print_points("equal hosts");
}

#[test]
fn a_dead_namespace_returns_hardware() {
    for_all(
        250,
        (host(4), mischief(), any::<prop::sample::Index>()),
        |(h, tricks, cut)| {
            let case = Case::new(&h);
            let whole = mischievous(&case, &tricks).unwrap_or_else(|| case.kernel.clone());
            let mut half = case.kernel.clone();
            walk(
                &mut half,
                &case.attach.steps[..cut.index(case.attach.steps.len() + 1)],
            );
            for mut kernel in [whole, half] {
                point();
                let on_host = kernel.see(Side::Host);
                let lost = |h: &&MovedNic| {
                    h.before.netdev.pci.is_none() && on_host.netdev(h.name()).is_none()
                };
                let (lost, kept): (Vec<_>, Vec<_>) = case.attach.held.iter().partition(lost);
                kernel.die();
                kernel.log.clear();
                let (home, _) = home(&mut kernel, &case.attach.held, &case.precedence);
                let mut stuck: Vec<&IfName> = home.stuck.iter().map(|n| &n.name).collect();
                stuck.sort();
                let mut expected: Vec<&IfName> = lost.iter().map(|h| h.name()).collect();
                expected.sort();
                assert_eq!(stuck, expected);
                let mut now = kernel.see(Side::Host);
                without(&mut now.routes, &lost);
                if !lost.is_empty() {
                    // A group wants all of its members.
                    now.nexthops.clear();
                }
                let ours: Vec<MovedNic> = kept.into_iter().cloned().collect();
                let mut states: Vec<NicState> = ours.iter().map(|h| h.before.clone()).collect();
                states
                    .iter_mut()
                    .for_each(|s| without(&mut s.routes, &lost));
                states
                    .iter_mut()
                    .filter(|_| !lost.is_empty())
                    .for_each(|s| s.nexthops.clear());
                let mut drift = verify::drift(&states, &now);
                drift.extend(verify::rdma_drift(&ours, &now));
                let changes: Vec<String> = drift.iter().map(Drift::to_string).collect();
                assert_eq!(
                    changes,
                    [""; 0],
                    "failed: {:#?}\nsteps: {:#?}",
                    kernel.log,
                    texts(&home.steps)
                );
            }
        },
    );
    print_points("dead namespaces");
}

/// Without the routes that need a NIC, or prefer an address of it, which is no more; nor, then,
/// what may be reached by these.
fn without(routes: &mut Vec<Route>, lost: &[&MovedNic]) {
    let gone = |dev: &IfName| lost.iter().any(|h| h.name() == dev);
    let source = |r: &Route| {
        lost.iter().any(|h| {
            h.before
                .netdev
                .addresses
                .iter()
                .any(|a| Some(a.address) == r.prefsrc)
        })
    };
    let via = |r: &Route| {
        !lost.is_empty() && (r.nexthop().is_some() || r.hops.iter().any(|h| h.gateway.is_some()))
    };
    routes.retain(|r| {
        !r.hops.iter().any(|h| h.dev.as_ref().is_some_and(gone)) && !source(r) && !via(r)
    });
}
