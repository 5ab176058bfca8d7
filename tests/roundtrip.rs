//! There and back on a small kernel that behaves as Linux does: whatever a host looks like, wherever the way in or the way home
//! is cut off, and whatever a container does to its NICs meanwhile, the host gets back what it had.
//!
//! `ROUNDTRIP_CASES=N` runs N hosts per property, from a random seed; without it the hosts are always the same ones.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod support_kernel;

use rdma_model::arp::{ArpChoice, ArpProfile};
use rdma_model::drift::Drift;
use rdma_model::moved_nic::MovedNic;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rdma_model::ids::{IfName, Mac};
use rdma_model::snapshot::{Address, LinkOptions, Program, ProgramHook, Qdisc, Route, Rule, Snapshot, SysctlValues};
use rdma_model::step::{NicState, Settings, Side, Step};
use rdmaprep::apply::{apply, apply_all};
use rdmaprep::attach::{Attach, attach};
use rdmaprep::kernel::{Scope, World};
use rdmaprep::plan::{Plan, rails};
use rdmaprep::precedence::Precedence;
use rdmaprep::restore::arrange::arrange;
use rdmaprep::restore::plan::{RestorePlan, plan_restore};
use rdmaprep::restore::settle::settle;
use rdmaprep::verify;
use support_kernel::hosts::{Host, host, name};
use support_kernel::{Kernel, plain, v4, v6};

thread_local! {
    /// Points of this test at which something was done, cut off or broken, and then compared.
    static POINTS: Cell<usize> = const { Cell::new(0) };
}

fn point() {
    POINTS.with(|p| p.set(p.get() + 1));
}

fn told(what: &str) {
    println!("{what}: {}", POINTS.with(Cell::get));
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Runs a property over random values; by default the same ones each time, since a suite must not fail by luck.
fn for_all<T: Debug>(cases: u32, values: impl Strategy<Value = T>, property: impl Fn(T)) {
    let random = std::env::var("ROUNDTRIP_CASES").ok().and_then(|n| n.parse().ok());
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
    held.iter().map(|h| h.nic.identity.name.clone()).collect()
}

/// What `restore::run::bring_with` does: one restore, the order of equals, and one more of what differs then.
fn home(kernel: &mut Kernel, held: &[MovedNic], order: &Precedence) -> (RestorePlan, Vec<Drift>) {
    let inside = kernel.has_inside().then(|| kernel.observe(Side::Inside, &Scope::links()).unwrap());
    let home = plan_restore(held, &kernel.observe(Side::Host, &Scope::links()).unwrap(), inside.as_ref());
    apply_all(&home.steps, kernel, soon());
    let now = kernel.observe(Side::Host, &Scope::links()).unwrap();
    let order = order.met(&now);
    arrange(kernel, Side::Host, &order, &now).unwrap();
    // Nobody else configures links there.
    let nobody = Path::new("/proc/self/fd/none");
    (home, settle(kernel, nobody, held, &order, Duration::ZERO).unwrap().drift)
}

fn form(snapshot: &Snapshot) -> String {
    let all: String = snapshot.sysctls.iter().map(|(key, value)| format!("sysctl {key} {value}\n")).collect();
    verify::normal_text(snapshot) + &all
}

/// What the normal form leaves out, but a restore keeps unless the kernel refused a step of it: the order of addresses, and
/// link-local ones, whoever makes them.
fn order(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for dev in &snapshot.netdevs {
        let settled = dev.addresses.iter().filter(|a| a.protocol != Some(3) && a.scope == 0);
        let order: Vec<String> = settled.map(|a| format!("{}:{}", a.address, a.flags & 1)).collect();
        text.push_str(&format!("order {} {}\n", dev.name, order.join(" ")));
        let local = dev.addresses.iter().filter(|a| a.scope == 253);
        local.for_each(|a| text.push_str(&format!("link-local {} {}/{}\n", dev.name, a.address, a.prefix)));
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
    attach: Attach,
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
        let attach = attach(plan, &kernel.see(Side::Host), &kernel.see(Side::Inside)).unwrap();
        let (host, inside) = (form(&kernel.see(Side::Host)), form(&kernel.see(Side::Inside)));
        let order = order(&kernel.see(Side::Host));
        let precedence = Precedence::from_host(&kernel.see(Side::Host), attach.held.iter().map(|h| &h.before), &[]);
        Case { kernel, attach, precedence, host, inside, order }
    }

    /// The container has its NICs; `None` where the attach was refused for the one reason that is known (see
    /// [`Case::gateway_by_default`]), and undone.
    fn attached(&self) -> Option<Kernel> {
        let mut kernel = self.kernel.clone();
        match apply(&self.attach.steps, &mut kernel, soon(), |_| ()) {
            Ok(()) => Some(kernel),
            Err(e) if self.gateway_by_default() && format!("{e:#}").contains("unreachable") => {
                self.assert_home(kernel, "after a refused attach");
                None
            }
            Err(e) => panic!("{e:#}"),
        }
    }

    /// Whether a default route without a gateway, which stays behind, is what a route's gateway was reached by.
    fn gateway_by_default(&self) -> bool {
        let direct = |r: &Route| r.destination.prefix_len() == 0 && r.hops.iter().any(|h| h.gateway.is_none());
        self.attach.held.iter().any(|h| h.before.routes.iter().any(direct))
    }

    fn assert_home(&self, kernel: Kernel, when: &str) {
        let kernel = self.assert_equal(kernel, when, |_| true);
        assert_eq!(diff(&self.order, &order(&kernel.see(Side::Host))), "", "{when}; failed: {:#?}", kernel.log);
    }

    /// Brings the NICs home; `ours` tells lines inside that the container made itself.
    fn assert_equal(&self, mut kernel: Kernel, when: &str, ours: impl Fn(&str) -> bool) -> Kernel {
        point();
        kernel.log.clear();
        let (home, drift) = home(&mut kernel, &self.attach.held, &self.precedence);
        assert_eq!(home.stuck, [], "{when}");
        let told: Vec<String> = drift.iter().map(Drift::to_string).collect();
        assert!(told.is_empty(), "{when}: {told:#?}\nfailed: {:#?}\nsteps: {:#?}", kernel.log, texts(&home.steps));
        let now = form(&kernel.see(Side::Host));
        assert_eq!(diff(&self.host, &now), "", "{when}; failed: {:#?}", kernel.log);
        let within: String =
            form(&kernel.see(Side::Inside)).lines().filter(|l| ours(l)).map(|l| format!("{l}\n")).collect();
        assert_eq!(diff(&self.inside, &within), "", "inside, {when}; failed: {:#?}", kernel.log);
        kernel
    }
}

fn texts(steps: &[Step]) -> Vec<String> {
    steps.iter().map(Step::to_string).collect()
}

/// One side only: all steps up to the end, or up to the first that fails.
fn walk(kernel: &mut Kernel, steps: &[Step]) -> bool {
    apply(steps, kernel, soon(), |_| ()).is_ok()
}

#[test]
fn there_and_back() {
    for_all(120, host(6), |h| {
        let case = Case::new(&h);
        let Some(kernel) = case.attached() else { return };
        case.assert_home(kernel, "after a whole attach");
    });
    told("whole round trips");
}

#[test]
fn the_way_in_cut_off_anywhere() {
    for_all(40, host(4), |h| {
        let case = Case::new(&h);
        let mut kernel = case.kernel.clone();
        for k in 0..case.attach.steps.len() {
            // A kill before step k, and a kernel that refuses step k.
            case.assert_home(kernel.clone(), &format!("cut off before step {k}"));
            let mut refused = case.kernel.clone();
            refused.fail_at = Some(k);
            assert!(!walk(&mut refused, &case.attach.steps));
            refused.fail_at = None;
            case.assert_home(refused, &format!("step {k} refused"));
            if kernel.perform(&case.attach.steps[k], soon()).is_err() {
                break;
            }
        }
    });
    told("points of the way in");
}

#[test]
fn the_way_home_cut_off_anywhere() {
    for_all(40, host(4), |h| {
        let case = Case::new(&h);
        let Some(attached) = case.attached() else { return };
        let steps = way_home(&attached, &case.attach.held).steps;
        let mut kernel = attached.clone();
        for (k, step) in steps.iter().enumerate() {
            case.assert_home(kernel.clone(), &format!("home, cut off before step {k}"));
            // Of several addresses of a subnet the first one added is its primary: one that the kernel refuses loses that place.
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
            case.assert_equal(refused, &format!("home, step {k} refused: {step}"), |_| true);
            let _ = kernel.perform(step, soon());
        }
        // And in the middle of giving equals their order.
        let now = kernel.see(Side::Host);
        for step in case.precedence.met(&now).steps(Side::Host, &now).concat() {
            case.assert_home(kernel.clone(), &format!("order, cut off before {step}"));
            kernel.perform(&step, soon()).unwrap();
        }
        case.assert_home(kernel, "in order");
    });
    told("points of the way home");
}

fn way_home(kernel: &Kernel, held: &[MovedNic]) -> RestorePlan {
    plan_restore(held, &kernel.see(Side::Host), kernel.has_inside().then(|| kernel.see(Side::Inside)).as_ref())
}

#[test]
fn what_the_container_has_is_what_was_planned() {
    for_all(120, host(6), |h| {
        let case = Case::new(&h);
        let Some(kernel) = case.attached() else { return };
        point();
        let mut kernel = kernel;
        let order = case.precedence.inside(&case.attach.held);
        let now = kernel.see(Side::Inside);
        let arranged = arrange(&mut kernel, Side::Inside, &order, &now).unwrap();
        assert!(arranged.errors.is_empty(), "{:?}", arranged.errors);
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
            let best = rails.filter(|r| (r.table, r.destination) == (254, everywhere)).map(|r| r.metric).min();
            let theirs = metrics(&before);
            let want = if theirs.is_empty() && h.default_route { best.into_iter().collect() } else { theirs };
            assert_eq!(metrics(&inside), want, "default routes inside");
        }
        for held in &case.attach.held {
            let name = &held.nic.identity.name;
            let want = match h.arp {
                ArpChoice::Auto | ArpChoice::Strict => Some(ArpProfile::STRICT),
                ArpChoice::Loose => Some(ArpProfile::LOOSE),
                ArpChoice::Exact(arp) => Some(arp),
                ArpChoice::Off => None,
            };
            assert!(want.is_none() || rails::effective(&inside, name) == want, "{name}");
            assert!(want.is_some() || held.overruled.is_empty() && held.inside.rules == held.before.rules, "{name}");
            let Some(hca) = &held.nic.hca else { continue };
            assert_eq!(inside.hca(hca).unwrap().uverbs, held.nic.uverbs, "{hca}");
        }
        let stays = |s: &Snapshot| s.netdevs.iter().filter(|d| !names(&case.attach.held).contains(&d.name)).count();
        assert_eq!((stays(&inside), inside.netdevs.len()), (2, 2 + case.attach.held.len()));
    });
    told("containers");
}

#[test]
fn an_equal_host_needs_nothing() {
    for_all(120, host(6), |h| {
        let case = Case::new(&h);
        point();
        let held = &case.attach.held;
        assert_eq!(texts(&way_home(&case.kernel, held).steps), [""; 0]);
        // Without a look at the sysctls they are written again, which changes nothing.
        let mut kernel = case.kernel.clone();
        let look = kernel.observe(Side::Host, &Scope::links()).unwrap();
        let steps = plan_restore(held, &look, None).steps;
        let same = |s: &Step| match s {
            // Who makes link-local addresses is one of these values.
            Step::AddressAdd { address, .. } => address.scope == 253,
            other => matches!(other, Step::Sysctls { .. }),
        };
        assert!(steps.iter().all(same), "{:?}", texts(&steps));
        assert_eq!(apply_all(&steps, &mut kernel, soon()).len(), 0);
        assert_eq!(diff(&case.host, &form(&kernel.see(Side::Host))), "");
    });
    told("equal hosts");
}

/// What a container may do to a NIC, by number.
#[derive(Clone, Debug)]
struct Mischief {
    nic: usize,
    what: usize,
    value: usize,
}

fn mischief() -> impl Strategy<Value = Vec<Mischief>> {
    let one = (0..6usize, 0..20usize, 0..4usize).prop_map(|(nic, what, value)| Mischief { nic, what, value });
    prop::collection::vec(one, 1..6)
}

/// Rules that a container made itself, and keeps.
fn own_rule(line: &str) -> bool {
    line.contains("\"priority\":333") || line.contains("rules of priority 333")
}

fn no_ipv6() -> SysctlValues {
    BTreeMap::from([("ipv6/conf/disable_ipv6".to_owned(), "1".to_owned())]).into()
}

impl Mischief {
    /// Does it; what Linux refuses, does not happen. `now` holds the NICs' names inside.
    fn done(&self, kernel: &mut Kernel, held: &[MovedNic], now: &mut [IfName]) {
        let n = self.nic % held.len();
        let (was, dev) = (&held[n], now[n].clone());
        let hardware = |h: &MovedNic| h.before.netdev.pci.is_some();
        match self.what {
            14 => self.rdma(kernel, was, dev),
            15 if held.iter().all(hardware) => swap(kernel, now, n, (n + 1) % held.len()),
            16 | 17 => {
                let space = kernel.space(Side::Inside).unwrap();
                let id = space.id(&dev).unwrap();
                let dev = &mut space.link(id).dev;
                let foreign = |id| Program { hook: ProgramHook::TcxEgress, id };
                match (self.what, self.value) {
                    (16, 0) => dev.xdp = true,
                    // Its own, and none of the host's.
                    (16, 1) => dev.programs = Some(vec![foreign(99)]),
                    (16, _) => dev.programs.get_or_insert_default().insert(0, foreign(98)),
                    _ => dev.master = Some("eth0".parse().unwrap()),
                }
            }
            _ => {
                let Some(step) = self.step(&kernel.see(Side::Inside), was, dev) else { return };
                if kernel.does(step.clone()).is_ok() {
                    if let Step::Rename { name, .. } = step {
                        now[n] = name;
                    }
                }
            }
        }
    }

    fn rdma(&self, kernel: &mut Kernel, was: &MovedNic, dev: IfName) {
        let side = Side::Inside;
        let Some(hca) = was.nic.hca.clone() else { return };
        let _ = kernel.does(Step::RdmaLinkDelete { side, hca: hca.clone() });
        let (hca, dev) = if self.value == 0 { (hca, "eth0".parse().unwrap()) } else { ("mine".parse().unwrap(), dev) };
        let _ = kernel.does(Step::RdmaLinkAdd { side, hca, dev, uverbs: None });
    }

    #[allow(clippy::too_many_lines, reason = "a table of tricks")]
    fn step(&self, inside: &Snapshot, was: &MovedNic, dev: IfName) -> Option<Step> {
        let side = Side::Inside;
        let is = inside.netdev(&dev).unwrap();
        let hardware = was.before.netdev.pci.is_some();
        let renamed = dev != was.nic.identity.name;
        let settings = Settings::of(is);
        let text = |s: &str| s.to_owned();
        let to = match self.value {
            0 => format!("x{}", self.nic),
            1 => text("eth9"),
            2 => name(self.nic).to_string(),
            _ => text("rail7"),
        };
        let step = match self.what {
            // Without hardware to know it by, a NIC with another name and another address is a stranger.
            0..=2 if hardware || is.mac == was.before.netdev.mac => {
                Step::Rename { side, dev, name: to.parse().unwrap() }
            }
            3 => Step::Settings {
                side,
                dev,
                settings: Settings { mtu: [1000, 1300, 1500, 9000][self.value], ..settings },
            },
            4 if hardware || !renamed => Step::Mac { side, dev, mac: Mac(vec![2, 2, 2, 2, 2, self.value as u8]) },
            5 => Step::Settings { side, dev, settings: spoilt(settings) },
            6 => match is.addresses.get(self.value) {
                Some(a) => Step::AddressDelete { side, dev, address: a.clone() },
                None => Step::AddressAdd { side, dev, address: plain(v4(77, 0, 1), 24) },
            },
            7 => Step::AddressAdd { side, dev, address: plain(v6(77, self.value as u16), 64) },
            8 => Step::Link { side, dev, up: self.value == 0 },
            9 => Step::AltnameAdd { side, dev, altname: to },
            10 => Step::AltnameAdd { side, dev, altname: was.nic.identity.name.to_string() },
            11 => match is.altnames.first() {
                Some(a) => Step::AltnamesDelete { side, dev, altnames: vec![a.clone()] },
                None => Step::AltnameAdd { side, dev, altname: text("eth8") },
            },
            12 => Step::RuleAdd { side, rule: rule_333(&dev) },
            18 => Step::QdiscAdd {
                side,
                dev,
                qdisc: Qdisc { kind: "htb".into(), handle: 0x20000, parent: u32::MAX, options: None },
            },
            19 => Step::Device {
                side,
                dev,
                values: BTreeMap::from([(text("ethtool rings rx"), format!("{}", 64 << self.value))]),
            },
            13 => Step::Sysctls { side, dev, values: no_ipv6() },
            _ => return None,
        };
        Some(step)
    }
}

fn spoilt(settings: Settings) -> Settings {
    let options = LinkOptions {
        flags: LinkOptions::NOARP,
        mode: Some(1),
        broadcast: Some(Mac(vec![2; 6])),
        gso_max_size: Some(9000),
        ..LinkOptions::default()
    };
    Settings { promisc: true, alias: Some("mine".to_owned()), options: Some(options), ..settings }
}

fn rule_333(dev: &IfName) -> Rule {
    let iif = Some(dev.to_string());
    let other = BTreeMap::new();
    Rule {
        family: 4,
        priority: 333,
        source: None,
        destination: None,
        iif,
        oif: None,
        table: 254,
        action: 1,
        tos: 0,
        flags: 0,
        other,
    }
}

/// Two NICs exchange their names.
fn swap(kernel: &mut Kernel, now: &mut [IfName], a: usize, b: usize) {
    let side = Side::Inside;
    let mut rename =
        |dev: &IfName, name: &IfName| kernel.does(Step::Rename { side, dev: dev.clone(), name: name.clone() });
    let spare: IfName = "spare".parse().unwrap();
    if a != b {
        rename(&now[a], &spare).unwrap();
        rename(&now[b], &now[a]).unwrap();
        rename(&spare, &now[b]).unwrap();
        now.swap(a, b);
    }
}

fn mischievous(case: &Case, tricks: &[Mischief]) -> Option<Kernel> {
    let mut kernel = case.attached()?;
    let mut now = names(&case.attach.held);
    tricks.iter().for_each(|t| t.done(&mut kernel, &case.attach.held, &mut now));
    Some(kernel)
}

#[test]
fn whatever_the_container_did() {
    for_all(250, (host(4), mischief(), any::<prop::sample::Index>()), |(h, tricks, cut)| {
        let case = Case::new(&h);
        let Some(mut kernel) = mischievous(&case, &tricks) else { return };
        case.assert_equal(kernel.clone(), "after mischief", |l| !own_rule(l));
        let steps = way_home(&kernel, &case.attach.held).steps;
        let until = cut.index(steps.len() + 1);
        apply_all(&steps[..until], &mut kernel, soon());
        case.assert_equal(kernel, &format!("after mischief, home cut off before step {until}"), |l| !own_rule(l));
    });
    told("mischievous containers");
}

#[test]
fn a_dead_namespace_returns_hardware() {
    for_all(250, (host(4), mischief(), any::<prop::sample::Index>()), |(h, tricks, cut)| {
        let case = Case::new(&h);
        let whole = mischievous(&case, &tricks).unwrap_or_else(|| case.kernel.clone());
        let mut half = case.kernel.clone();
        walk(&mut half, &case.attach.steps[..cut.index(case.attach.steps.len() + 1)]);
        for mut kernel in [whole, half] {
            point();
            let on_host = kernel.see(Side::Host);
            let lost = |h: &&MovedNic| h.before.netdev.pci.is_none() && on_host.netdev(&h.nic.identity.name).is_none();
            let (lost, kept): (Vec<_>, Vec<_>) = case.attach.held.iter().partition(lost);
            kernel.die();
            kernel.log.clear();
            let (home, _) = home(&mut kernel, &case.attach.held, &case.precedence);
            let mut stuck: Vec<&IfName> = home.stuck.iter().map(|(n, _)| n).collect();
            stuck.sort();
            let mut expected: Vec<&IfName> = lost.iter().map(|h| &h.nic.identity.name).collect();
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
            states.iter_mut().for_each(|s| without(&mut s.routes, &lost));
            states.iter_mut().filter(|_| !lost.is_empty()).for_each(|s| s.nexthops.clear());
            let mut drift = verify::drift(&states, &now);
            drift.extend(verify::rdma_drift(&ours, &now));
            let told: Vec<String> = drift.iter().map(Drift::to_string).collect();
            assert_eq!(told, [""; 0], "failed: {:#?}\nsteps: {:#?}", kernel.log, texts(&home.steps));
        }
    });
    told("dead namespaces");
}

/// Without the routes that need a NIC, or prefer an address of it, which is no more; nor, then, what may be reached by these.
fn without(routes: &mut Vec<Route>, lost: &[&MovedNic]) {
    let gone = |dev: &IfName| lost.iter().any(|h| h.nic.identity.name == *dev);
    let source =
        |r: &Route| lost.iter().any(|h| h.before.netdev.addresses.iter().any(|a| Some(a.address) == r.prefsrc));
    let via = |r: &Route| !lost.is_empty() && (r.nexthop().is_some() || r.hops.iter().any(|h| h.gateway.is_some()));
    routes.retain(|r| !r.hops.iter().any(|h| h.dev.as_ref().is_some_and(gone)) && !source(r) && !via(r));
}

/// The smallest hosts on which a property once failed.
mod found {
    use super::*;
    use rdma_model::snapshot::Hop;
    use support_kernel::hosts::{plan_for, three};

    const SIDE: Side = Side::Host;

    fn route(destination: &str, hops: Vec<Hop>) -> Route {
        Route {
            destination: destination.parse().unwrap(),
            source: None,
            table: 254,
            protocol: 4,
            scope: 0,
            kind: 1,
            tos: 0,
            metric: Some(1024),
            prefsrc: None,
            hops,
            other: BTreeMap::new(),
        }
    }

    fn hop(i: usize, gateway: Option<std::net::IpAddr>) -> Hop {
        Hop { dev: Some(name(i)), gateway, ..Hop::default() }
    }

    /// The chosen ones of three NICs go and come back; what they look like inside is what was planned.
    fn round(steps: Vec<Step>, chosen: &[usize]) {
        let mut kernel = three();
        steps.into_iter().for_each(|s| kernel.does(s).unwrap());
        let plan = plan_for(&kernel, chosen);
        let case = Case::of(kernel, &plan);
        let attached = case.attached().unwrap();
        let states: Vec<NicState> = case.attach.held.iter().map(|h| h.inside.clone()).collect();
        assert_eq!(verify::drift(&states, &attached.see(Side::Inside)), []);
        case.assert_home(attached, "after a whole attach");
    }

    /// A rule stays in a namespace when its NIC leaves: the container's kept ours.
    #[test]
    fn rules_leave_the_container() {
        round(vec![Step::RuleAdd { side: SIDE, rule: rule_333(&name(0)) }], &[0]);
    }

    /// NetworkManager marks addresses NOPREFIXROUTE and adds the subnet's route itself, under the kernel's name.
    #[test]
    fn routes_that_only_look_made_by_the_kernel() {
        let (side, dev) = (SIDE, name(0));
        let address = Address { flags: 0x200, ..plain(v4(50, 0, 1), 24) };
        let route = Route { protocol: 2, scope: 253, metric: Some(101), ..route("10.50.0.0/24", vec![hop(0, None)]) };
        let route = Route { prefsrc: Some(address.address), ..route };
        round(vec![Step::AddressAdd { side, dev, address }, Step::RouteAdd { side, route }], &[0]);
    }

    /// IPv4 drops a route over another NIC together with the address that it prefers as its source.
    #[test]
    fn the_source_of_another_nics_route() {
        let route = Route { prefsrc: Some(v4(0, 0, 1)), ..route("10.60.0.0/24", vec![hop(1, None)]) };
        round(vec![Step::RouteAdd { side: SIDE, route }], &[0]);
    }

    /// Inside, an address that did not come along cannot be preferred.
    #[test]
    fn a_source_that_stays() {
        let route = Route { prefsrc: Some(v4(0, 0, 1)), ..route("10.60.0.0/24", vec![hop(1, None)]) };
        round(vec![Step::RouteAdd { side: SIDE, route }], &[1]);
    }

    /// The leg that stays keeps an IPv6 multipath route from being added again.
    #[test]
    fn one_leg_of_an_ipv6_multipath_route() {
        let hops = vec![hop(0, Some(v6(0, 99))), hop(1, Some(v6(1, 99)))];
        let add = Step::RouteAdd { side: SIDE, route: route("2001:db8::/64", hops) };
        round(vec![add.clone()], &[0]);
        round(vec![add], &[1]);
    }

    /// Where addr_gen_mode is none, somebody else made the address that the kernel would have made; on a NIC that is down, too.
    #[test]
    fn link_local_addresses_that_only_look_made_by_the_kernel() {
        let (side, dev) = (SIDE, name(0));
        let values = BTreeMap::from([("ipv6/conf/addr_gen_mode".to_owned(), "1".to_owned())]).into();
        let eui64 = std::net::IpAddr::from([0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 1]);
        let address = Address { scope: 253, ..plain(eui64, 64) };
        let add = Step::AddressAdd { side, dev: dev.clone(), address };
        let down = Step::Link { side, dev: dev.clone(), up: false };
        let none = Step::Sysctls { side, dev: dev.clone(), values };
        round(vec![down.clone(), none, Step::Link { side, dev, up: true }, add.clone()], &[0]);
        round(vec![down, add], &[0]);
    }

    /// What differs from the host's defaults comes along, but for what says how the host stands in its network.
    #[test]
    fn sysctls_that_differ_from_the_default_come_along() {
        let all = |values: &[(&str, &str)]| -> SysctlValues {
            values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let own = [("ipv6/conf/disable_ipv6", "0")];
        let kept = [
            ("ipv4/conf/promote_secondaries", "1"),
            ("ipv6/conf/keep_addr_on_down", "1"),
            ("ipv4/neigh/gc_stale_time", "30"),
        ];
        let stay = [("ipv6/conf/accept_ra", "2"), ("ipv4/conf/rp_filter", "2"), ("ipv6/conf/mtu", "1300")];
        let mut kernel = three();
        let values = all(&[&kept[..], &stay].concat());
        kernel.does(Step::Sysctls { side: SIDE, dev: name(0), values }).unwrap();
        let plan = Plan { arp: None, ..plan_for(&kernel, &[0, 1]) };
        let case = Case::of(kernel, &plan);
        let inside = |i: usize| case.attach.held[i].inside.netdev.sysctls.clone();
        assert_eq!((inside(0), inside(1)), (all(&[&kept[..], &own].concat()), all(&own)));
        case.assert_home(case.attached().unwrap(), "after a whole attach");
    }

    /// A namespace dies in which two NICs had exchanged names, and one had the third's as an altname.
    #[test]
    fn names_exchanged() {
        let kernel = three();
        let case = Case::of(kernel.clone(), &plan_for(&kernel, &[0, 1, 2]));
        let mut attached = case.attached().unwrap();
        swap(&mut attached, &mut names(&case.attach.held), 0, 1);
        let (side, altname) = (Side::Inside, name(2).to_string());
        attached.does(Step::Rename { side, dev: name(2), name: "x".parse().unwrap() }).unwrap();
        attached.does(Step::AltnameAdd { side, dev: name(0), altname }).unwrap();
        attached.die();
        let (home, drift) = home(&mut attached, &case.attach.held, &case.precedence);
        assert_eq!((home.stuck, drift), (Vec::new(), Vec::new()));
        assert_eq!(diff(&case.host, &form(&attached.see(SIDE))), "");
    }

    /// While it was away, somebody gave its name to another interface: that one is not touched.
    #[test]
    fn a_stranger_with_its_name() {
        let kernel = three();
        let case = Case::of(kernel.clone(), &plan_for(&kernel, &[0]));
        let mut attached = case.attached().unwrap();
        attached.does(Step::Rename { side: SIDE, dev: name(1), name: name(0) }).unwrap();
        let mut dead = attached.clone();
        dead.die();
        for mut kernel in [attached, dead] {
            let before = form(&kernel.see(SIDE));
            let (home, _) = home(&mut kernel, &case.attach.held, &case.precedence);
            assert_eq!(home.stuck.len(), 1);
            assert_eq!(texts(&home.steps), [""; 0]);
            assert_eq!(diff(&before, &form(&kernel.see(SIDE))), "");
        }
    }
}

/// VLANs on a NIC, and a bond of two others: whatever is cut off or refused, and whenever the namespace dies.
mod stacked {
    use super::*;
    use rdma_model::ids::Hex;
    use rdma_model::snapshot::Hop;
    use rdma_model::step::VirtualLink;
    use support_kernel::hosts::{plan_of, three};

    const SIDE: Side = Side::Host;

    fn made(kind: &str, over: Option<&str>, number: u8) -> VirtualLink {
        let (data, over) = (Hex(vec![number]), over.map(|o| o.parse().unwrap()));
        VirtualLink { kind: kind.to_owned(), data, over, mac: None, ifindex: Some(200 + u32::from(number)) }
    }

    /// NICs 0, with two VLANs, one on the other, of which the upper sorts first and is down; 1 and 2 in a bond.
    fn host() -> Case {
        let mut kernel = three();
        let mut does = |step| kernel.does(step).unwrap();
        let [vlan, upper, bond] = ["r.5", "a.9", "bond0"].map(|n| n.parse::<IfName>().unwrap());
        let (side, nic) = (SIDE, name(0).to_string());
        does(Step::Make { side, dev: vlan.clone(), made: made("vlan", Some(&nic), 5) });
        does(Step::Make { side, dev: upper.clone(), made: made("vlan", Some("r.5"), 9) });
        does(Step::Make { side, dev: bond.clone(), made: made("bond", None, 1) });
        for member in [1, 2] {
            does(Step::Enslave { side, dev: name(member), master: bond.clone() });
        }
        for (dev, n) in [(&vlan, 70), (&bond, 80)] {
            does(Step::Link { side, dev: dev.clone(), up: true });
            for address in [plain(v4(n, 0, 1), 24), plain(v6(n, 1), 64)] {
                does(Step::AddressAdd { side, dev: dev.clone(), address });
            }
            let hops = vec![Hop { dev: Some(dev.clone()), gateway: Some(v4(n, 0, 9)), ..Hop::default() }];
            let to = format!("10.{}.0.0/16", n + 1).parse().unwrap();
            let plain = rule_333(dev);
            does(Step::RouteAdd { side, route: Route { destination: to, ..route(hops) } });
            does(Step::RuleAdd { side, rule: Rule { priority: n.into(), ..plain } });
        }
        does(Step::AddressAdd { side, dev: upper.clone(), address: plain(v4(90, 0, 1), 24) });
        does(Step::AltnameAdd { side, dev: bond.clone(), altname: "both".to_owned() });
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
    fn home_again(case: &Case, mut kernel: Kernel, when: &str) {
        case.assert_home(kernel.clone(), when);
        if kernel.has_inside() {
            kernel.die();
            kernel.log.clear();
            let (found, drift) = home(&mut kernel, &case.attach.held, &case.precedence);
            let told: Vec<String> = drift.iter().map(Drift::to_string).collect();
            assert_eq!((found.stuck, told), (Vec::new(), Vec::new()), "dead, {when}: {:#?}", kernel.log);
            assert_eq!(diff(&case.host, &form(&kernel.see(SIDE))), "", "dead, {when}: {:#?}", kernel.log);
        }
    }

    #[test]
    fn there_and_back() {
        let case = host();
        let attached = case.attached().unwrap();
        let states: Vec<NicState> = case.attach.held.iter().map(|h| h.inside.clone()).collect();
        assert_eq!(verify::drift(&states, &attached.see(Side::Inside)), []);
        home_again(&case, attached, "after a whole attach");
    }

    /// All ipvlans of a NIC have one address, permanent and current: the one that stays is not taken for the other.
    #[test]
    fn a_sibling_of_the_same_address() {
        let mut kernel = three();
        let [stays, goes] = ["i0", "i1"].map(|n| n.parse::<IfName>().unwrap());
        let nic = name(0).to_string();
        for (dev, n) in [(&stays, 1), (&goes, 2)] {
            kernel.does(Step::Make { side: SIDE, dev: dev.clone(), made: made("ipvlan", Some(&nic), n) }).unwrap();
            kernel.does(Step::Link { side: SIDE, dev: dev.clone(), up: true }).unwrap();
            let address = plain(v4(60, n, 1), 24);
            kernel.does(Step::AddressAdd { side: SIDE, dev: dev.clone(), address }).unwrap();
        }
        let plan = plan_of(&kernel, &[goes]);
        let case = Case::of(kernel, &plan);
        home_again(&case, case.attached().unwrap(), "after a whole attach");
    }

    #[test]
    fn cut_off_anywhere() {
        let case = host();
        let mut kernel = case.kernel.clone();
        for (k, step) in case.attach.steps.iter().enumerate() {
            home_again(&case, kernel.clone(), &format!("cut off before {step}"));
            let mut refused = case.kernel.clone();
            refused.fail_at = Some(k);
            assert!(!walk(&mut refused, &case.attach.steps));
            refused.fail_at = None;
            home_again(&case, refused, &format!("refused: {step}"));
            kernel.perform(step, soon()).unwrap();
        }
        let steps = way_home(&kernel, &case.attach.held).steps;
        for (k, step) in steps.iter().enumerate() {
            home_again(&case, kernel.clone(), &format!("home, cut off before step {k}, {step}"));
            kernel.perform(step, soon()).unwrap();
        }
        told("points with VLANs and a bond");
    }
}

/// The normal form of a NIC does not see an order, and sees every single field.
mod normal_form {
    use super::*;
    use rdma_model::ids::Hex;
    use rdma_model::snapshot::{Hop, Member, Neighbour, Netdev, Nexthop};

    type Change = (&'static str, fn(&mut NicState));

    /// A state with something in every field.
    fn full() -> NicState {
        let mut dev = support_kernel::naked("rail0", 7, [2, 0, 0, 0, 0, 1]);
        dev.kind = Some("veth".into());
        dev.permanent_mac = Some(Mac(vec![2, 0, 0, 0, 0, 9]));
        dev.alias = Some("a".into());
        dev.altnames = vec!["b".into(), "c".into()];
        let qdisc =
            |kind: &str, parent| Qdisc { kind: kind.into(), handle: 0x10000, parent, options: Some(Hex(vec![1])) };
        dev.qdiscs = Some(vec![qdisc("tbf", u32::MAX), qdisc("clsact", 0xfffffff1)]);
        let four = Address { label: Some("rail0:1".into()), broadcast: Some(v4(0, 0, 255)), ..plain(v4(0, 0, 1), 24) };
        dev.addresses = vec![four, plain(v4(0, 0, 2), 24), plain(v6(0, 1), 64)];
        let neighbour = |n| Neighbour {
            address: v4(0, 0, n),
            mac: dev.mac.clone(),
            proxy: false,
            protocol: Some(4),
            router: false,
            noarp: false,
            managed: false,
            extern_learn: false,
            stale: false,
        };
        dev.neighbours = vec![neighbour(50), neighbour(51)];
        dev.sysctls = BTreeMap::from([("ipv4/conf/rp_filter".into(), "1".into())]).into();
        let hop = |n| Hop { dev: Some(dev.name.clone()), gateway: Some(v4(0, 0, n)), ..Hop::default() };
        let route = |net: &str, n| Route {
            destination: net.parse().unwrap(),
            source: None,
            table: 254,
            protocol: 4,
            scope: 0,
            kind: 1,
            tos: 0,
            metric: Some(5),
            prefsrc: Some(v4(0, 0, 1)),
            hops: vec![hop(n), hop(n + 1)],
            other: BTreeMap::from([(8, Hex(vec![1]))]),
        };
        let routes = vec![route("10.5.0.0/16", 60), route("10.5.0.0/16", 70), route("10.6.0.0/16", 60)];
        let rules = vec![
            rule_333(&dev.name),
            Rule { priority: 5, source: Some("10.0.0.1/32".parse().unwrap()), ..rule_333(&dev.name) },
        ];
        let object = |id, group: &[u32]| Nexthop {
            id,
            family: 4,
            protocol: 4,
            flags: 0,
            dev: Some(dev.name.clone()).filter(|_| group.is_empty()),
            gateway: Some(v4(0, 0, 60)).filter(|_| group.is_empty()),
            blackhole: false,
            group: group.iter().map(|id| Member { id: *id, weight: 1 }).collect(),
            other: BTreeMap::new(),
        };
        let nexthops = vec![object(1, &[]), object(9, &[1, 2])];
        NicState { netdev: dev, routes, nexthops, rules }
    }

    /// Every field that counts.
    const CHANGES: &[Change] = &[
        ("name", |s| s.netdev.name = "rail1".parse().unwrap()),
        ("kind", |s| s.netdev.kind = None),
        ("link_type", |s| s.netdev.link_type = 32),
        ("mac", |s| s.netdev.mac = None),
        ("permanent_mac", |s| s.netdev.permanent_mac = None),
        ("mtu", |s| s.netdev.mtu += 1),
        ("txqlen", |s| s.netdev.txqlen += 1),
        ("group", |s| s.netdev.group += 1),
        ("alias", |s| s.netdev.alias = None),
        ("altname gone", |s| drop(s.netdev.altnames.pop())),
        ("altname", |s| s.netdev.altnames[0] = "d".into()),
        ("up", |s| s.netdev.up ^= true),
        ("promisc", |s| s.netdev.promisc ^= true),
        ("allmulti", |s| s.netdev.allmulti ^= true),
        ("master", |s| s.netdev.master = Some("br0".parse().unwrap())),
        ("xdp", |s| s.netdev.xdp ^= true),
        ("programs", |s| s.netdev.programs = Some(vec![Program { hook: ProgramHook::XdpDriver, id: 7 }])),
        ("arp", |s| s.netdev.options.as_mut().unwrap().flags ^= LinkOptions::NOARP),
        ("link mode", |s| s.netdev.options.as_mut().unwrap().mode = Some(2)),
        ("broadcast address", |s| s.netdev.options.as_mut().unwrap().broadcast = None),
        ("GRO size", |s| s.netdev.options.as_mut().unwrap().gro_max_size = Some(1)),
        ("qdisc gone", |s| s.netdev.qdiscs = Some(Vec::new())),
        ("qdisc kind", |s| s.netdev.qdiscs.as_mut().unwrap()[0].kind = "fq".into()),
        ("qdisc handle", |s| s.netdev.qdiscs.as_mut().unwrap()[0].handle = 1),
        ("qdisc options", |s| s.netdev.qdiscs.as_mut().unwrap()[0].options = None),
        ("qdisc lost", |s| s.netdev.qdisc_lost = Some("filters".into())),
        ("address gone", |s| drop(s.netdev.addresses.remove(0))),
        ("address", |s| s.netdev.addresses[0].address = v4(0, 0, 9)),
        ("address prefix", |s| s.netdev.addresses[0].prefix = 16),
        ("address peer", |s| s.netdev.addresses[0].peer = Some(v4(9, 9, 9))),
        ("address broadcast", |s| s.netdev.addresses[0].broadcast = None),
        ("address label", |s| s.netdev.addresses[0].label = None),
        ("address scope", |s| s.netdev.addresses[0].scope = 253),
        ("address flags", |s| s.netdev.addresses[0].flags ^= 0x200),
        ("address metric", |s| s.netdev.addresses[0].metric = Some(9)),
        ("neighbour gone", |s| drop(s.netdev.neighbours.pop())),
        ("neighbour address", |s| s.netdev.neighbours[0].address = v4(0, 0, 99)),
        ("neighbour mac", |s| s.netdev.neighbours[0].mac = None),
        ("neighbour proxy", |s| s.netdev.neighbours[0].proxy ^= true),
        ("address protocol", |s| s.netdev.addresses[0].protocol = Some(1)),
        ("device", |s| drop(s.netdev.device.as_mut().unwrap().insert("ethtool rings rx".into(), "9".into()))),
        ("device gone", |s| s.netdev.device.as_mut().unwrap().clear()),
        ("token", |s| s.netdev.token = Some(5.into())),
        ("neighbour router", |s| s.netdev.neighbours[0].router = true),
        ("neighbour noarp", |s| s.netdev.neighbours[0].noarp = true),
        ("neighbour managed", |s| s.netdev.neighbours[0].managed = true),
        ("neighbour extern_learn", |s| s.netdev.neighbours[0].extern_learn = true),
        ("neighbour stale", |s| s.netdev.neighbours[0].stale = true),
        ("neighbour protocol", |s| s.netdev.neighbours[0].protocol = None),
        ("sysctl", |s| drop(s.netdev.sysctls.insert("ipv4/conf/rp_filter".into(), "2".into()))),
        ("sysctl gone", |s| s.netdev.sysctls.clear()),
        ("route gone", |s| drop(s.routes.remove(0))),
        ("route twice gone", |s| drop(s.routes.remove(1))),
        ("route table", |s| s.routes[0].table = 7),
        ("route protocol", |s| s.routes[0].protocol = 2),
        ("route scope", |s| s.routes[0].scope = 253),
        ("route metric", |s| s.routes[0].metric = None),
        ("route prefsrc", |s| s.routes[0].prefsrc = None),
        ("route leg gone", |s| drop(s.routes[0].hops.pop())),
        ("route legs in another order", |s| s.routes[0].hops.reverse()),
        ("route gateway", |s| s.routes[0].hops[0].gateway = None),
        ("route weight", |s| s.routes[0].hops[0].weight = 1),
        ("route onlink", |s| s.routes[0].hops[0].flags = 4),
        ("route other", |s| s.routes[0].other.clear()),
        ("route leg other", |s| drop(s.routes[0].hops[0].other.insert(11, Hex(vec![1])))),
        ("route through an object", |s| drop(s.routes[0].other.insert(30, Hex(vec![9, 0, 0, 0])))),
        ("nexthop gone", |s| drop(s.nexthops.remove(0))),
        ("nexthop id", |s| s.nexthops[0].id = 3),
        ("nexthop protocol", |s| s.nexthops[0].protocol = 3),
        ("nexthop onlink", |s| s.nexthops[0].flags = 4),
        ("nexthop gateway", |s| s.nexthops[0].gateway = None),
        ("nexthop other", |s| drop(s.nexthops[1].other.insert(3, Hex(vec![1, 0])))),
        ("nexthop member gone", |s| s.nexthops[1].group.truncate(1)),
        ("nexthop weight", |s| s.nexthops[1].group[0].weight = 7),
        ("rule gone", |s| drop(s.rules.pop())),
        ("rule table", |s| s.rules[0].table = 9),
    ];

    #[test]
    fn every_single_change_shows() {
        let before = verify::lines(&full());
        for (what, change) in CHANGES {
            let mut state = full();
            change(&mut state);
            assert_ne!(verify::lines(&state), before, "{what}");
        }
        println!("single changes that the normal form shows: {}", CHANGES.len());
    }

    #[test]
    fn what_is_left_out_does_not_show() {
        let mut state = full();
        let dev = &mut state.netdev;
        (dev.ifindex, dev.link, dev.running) = (99, Some(3), true);
        (dev.operstate, dev.qdisc, dev.driver) = (Some("up".into()), Some("mq".into()), Some("mlx5_core".into()));
        dev.addresses[0].flags |= 0x01 | 0x20 | 0x40 | 0x80;
        (dev.addresses[0].valid_lft, dev.addresses[0].preferred_lft) = (Some(9), Some(8));
        state.routes[0].other.insert(23, Hex(vec![9, 0, 0, 0]));
        assert_eq!(verify::lines(&state), verify::lines(&full()));
    }

    fn shuffled(dev: Netdev, by: Vec<usize>) -> Netdev {
        fn shuffle<T: Clone>(all: &[T], by: &[usize]) -> Vec<T> {
            let mut keyed: Vec<(usize, T)> = all.iter().cloned().enumerate().map(|(i, x)| (by[i], x)).collect();
            keyed.sort_by_key(|(k, _)| *k);
            keyed.into_iter().map(|(_, x)| x).collect()
        }
        let altnames = shuffle(&dev.altnames, &by);
        let addresses = shuffle(&dev.addresses, &by);
        Netdev { altnames, addresses, neighbours: shuffle(&dev.neighbours, &by), ..dev }
    }

    #[test]
    fn order_does_not_show() {
        let orders = (Just(vec![0, 1, 2]).prop_shuffle(), Just(vec![0, 1, 2]).prop_shuffle());
        for_all(40, orders, |(a, b)| {
            let mut state = full();
            state.netdev = shuffled(state.netdev, a.clone());
            state.routes = b.iter().map(|i| full().routes[*i].clone()).collect();
            state.rules.rotate_left(b[0] % 2);
            state.nexthops.rotate_left(b[0] % 2);
            state.netdev.qdiscs.as_mut().unwrap().rotate_left(a[0] % 2);
            assert_eq!(verify::lines(&state), verify::lines(&full()));
            assert_eq!(verify::normal(&state), verify::normal(&full()));
        });
    }
}
