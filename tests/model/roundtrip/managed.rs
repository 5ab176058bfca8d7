//! NICs that a manager configures: it begins at a random look, deletes what it finds, and makes its
//! own with other metrics and priorities than before.

use std::collections::BTreeSet;
use std::fs;
use std::time::SystemTime;

use rdma_model::effect::{covers_route, same_address, same_rule};
use rdma_model::host_objects::HostObjects;
use rdma_model::ids::Hex;
use rdma_model::manager::{Foreign, Managed, Manager};
use rdma_model::snapshot::{FRA_PROTOCOL, HostPaths, JobAddresses};
use rdma_model::step::{configure, connect, derived, kernel_address, kernel_made};
use rdmaprep::kernel::netns::search::Search;
use rdmaprep::kernel::{Observed, Pin};
use rdmaprep::restore::to_put_back::{not_begun, to_put_back};

use super::*;

/// A kernel beside a stand-in for networkd, which says that it is done by its state files.
struct Beside<'a> {
    kernel: Kernel,
    held: &'a [MovedNic],
    root: &'a Path,
    looks: usize,
    /// The look before which it begins.
    begins: usize,
}

impl Beside<'_> {
    fn begin(&mut self) {
        let now = self.kernel.see(Side::Host);
        for held in self.held {
            let Some(link) = now.netdev(held.name()) else {
                continue;
            };
            let own = own_again(held);
            // It is another process: what the kernel refuses it is its own affair.
            let mut steps = configure(Side::Host, &own, SysctlValues::default());
            steps.extend(connect(Side::Host, &[&own]));
            apply_all(&steps, &mut self.kernel, soon());
            let file = self
                .root
                .join(format!("run/systemd/netif/links/{}", link.ifindex));
            fs::write(file, "ADMIN_STATE=configured\n").unwrap();
        }
    }
}

/// What the manager makes again of its own: each with another metric or priority.
fn own_again(held: &MovedNic) -> NicState {
    let managed = held.managed.as_ref().unwrap();
    let mut own = held.before.clone();
    let dev = own.netdev.clone();
    own.netdev
        .addresses
        .retain(|a| managed.owns_address(a) && !kernel_address(a, &dev));
    own.netdev.neighbours.retain(|n| managed.owns_neighbour(n));
    own.nexthops.clear();
    own.routes
        .retain(|r| managed.owns_route(r) && !kernel_made(r, &dev));
    own.routes
        .iter_mut()
        .for_each(|r| r.metric = Some(r.metric.unwrap_or(0) + 50_000));
    own.rules.retain(|r| managed.owns_rule(r));
    own.rules.iter_mut().for_each(|r| {
        r.priority = if r.priority < 32_000 {
            r.priority + 7
        } else {
            r.priority
        }
    });
    own
}

impl World for Beside<'_> {
    fn has_inside(&self) -> bool {
        self.kernel.has_inside()
    }

    fn look(&mut self, side: Side, scope: &Scope) -> anyhow::Result<Observed> {
        self.looks += 1;
        if self.looks == self.begins {
            self.begin();
        }
        self.kernel.look(side, scope)
    }

    fn host_paths(&mut self, host: &Snapshot, job: &JobAddresses) -> HostPaths {
        self.kernel.host_paths(host, job)
    }

    fn perform(&mut self, step: &Step, deadline: Instant) -> anyhow::Result<()> {
        self.kernel.perform(step, deadline)
    }

    fn pin(&mut self, pin: Pin) -> anyhow::Result<()> {
        self.kernel.pin(pin)
    }

    fn search(&self, side: Side, on: &BTreeSet<u32>) -> anyhow::Result<Search> {
        self.kernel.search(side, on)
    }
}

/// The manager owns all addresses, and of routes, rules and neighbours of IPv4 those that `mine`
/// chooses (it may begin before IPv6 is on, where it is refused one of IPv6). It knows no nexthop
/// objects and no routes that lead over several NICs. Beside each of its own an
/// administrator may have a twin, with another metric or priority.
fn managed(held: &MovedNic, mine: u64) -> MovedNic {
    let is_chosen = |at: u32| mine >> (at % 64) & 1 == 0;
    let mut held = held.clone();
    let dev = held.before.netdev.clone();
    let plain = |r: &Route| r.hops.len() == 1 && r.nexthop().is_none() && !derived(r);
    let is_mine = |r: &Route| plain(r) && is_chosen(r.metric.unwrap_or(0) + r.table);
    let is_foreign = |r: &&Route| !kernel_made(r, &dev) && !is_mine(r);
    let neighbours = dev.neighbours.iter().zip(0..);
    let mut foreign = Foreign {
        addresses: Vec::new(),
        neighbours: neighbours
            .filter(|(n, at)| n.address.is_ipv6() || !is_chosen(*at))
            .map(|(n, _)| n.clone())
            .collect(),
        routes: held
            .before
            .routes
            .iter()
            .filter(is_foreign)
            .cloned()
            .collect(),
        rules: Vec::new(),
    };
    let own = held.before.routes.iter().filter(|r| is_mine(r));
    let has_twin = |r: &&Route| !kernel_made(r, &dev) && is_chosen(r.table + 1);
    let twins = own.filter(has_twin).map(|r| Route {
        metric: Some(r.metric.unwrap_or(0) + TWIN),
        ..r.clone()
    });
    foreign.routes.extend(twins.collect::<Vec<_>>());
    for rule in &mut held.before.rules {
        if !is_chosen(rule.priority + rule.table) {
            foreign.rules.push(rule.clone());
            continue;
        }
        if rule.priority + TWIN < MAIN && is_chosen(rule.table + 1) {
            let priority = rule.priority + TWIN;
            let twin = Rule {
                priority,
                ..rule.clone()
            };
            foreign.rules.push(twin);
        }
        // RTPROT_STATIC, by which a manager marks its own.
        rule.other.insert(FRA_PROTOCOL, Hex(vec![4]));
    }
    let is_new = |all: &[Route], r: &Route| !all.contains(r);
    for route in &foreign.routes {
        if is_new(&held.before.routes, route) {
            held.before.routes.push(route.clone());
        }
    }
    for rule in &foreign.rules {
        if !held.before.rules.contains(rule) {
            held.before.rules.push(rule.clone());
        }
    }
    held.managed = Some(Managed {
        by: Manager::Networkd,
        foreign: Some(foreign),
        config_files: None,
        uuid: None,
        activation: None,
    });
    held
}

/// How far a twin's metric or priority is from that of the manager's own.
const TWIN: u32 = 3;
/// The priority of the rule that leads to `main`.
const MAIN: u32 = 32_766;

fn nothing_is_lost_or_double(held: &[MovedNic], now: &Snapshot) {
    assert_eq!(verify::lacking(held, now), []);
    for h in held {
        let (was, is) = (&h.before, NicState::of(now, h.name()).unwrap());
        let counts = |a: &&Address| !kernel_address(a, &was.netdev);
        for address in was.netdev.addresses.iter().filter(counts) {
            let same = is
                .netdev
                .addresses
                .iter()
                .filter(|a| same_address(a, address))
                .count();
            assert_eq!(same, 1, "{address:?}");
        }
        let foreign = h.managed.as_ref().unwrap().foreign.as_ref().unwrap();
        let managed = h.managed.as_ref().unwrap();
        let restored =
            |r: &&Route| !managed.owns_route(r) && verify::normal(was).routes.contains(r);
        for route in foreign.routes.iter().filter(restored) {
            let there = verify::normal(&is).routes;
            let is_it = |r: &Route| covers_route(r, route) && r.with(route.hops.clone()) == *route;
            assert!(
                there.iter().any(|r| r == route || is_it(r)),
                "{route:?} in {there:#?}"
            );
        }
        for rule in &was.rules {
            let count = |rules: &[Rule]| rules.iter().filter(|r| same_rule(r, rule)).count();
            assert_eq!(
                count(&now.rules),
                count(&was.rules),
                "{rule:?} in {:#?}",
                now.rules
            );
        }
        assert!(foreign.rules.iter().all(|r| now.rules.contains(r)));
    }
}

#[test]
fn a_manager_that_makes_its_own_again() {
    for_all(
        24,
        (host(4), any::<u64>(), 1..5usize),
        |(h, mine, begins)| {
            let case = Case::new(&h);
            let Some(mut kernel) = case.attached() else {
                return;
            };
            point();
            let held: Vec<MovedNic> = case.attach.held.iter().map(|h| managed(h, mine)).collect();
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("run/systemd/netif/links")).unwrap();
            fs::write(
                root.path().join("run/systemd/netif/links/1"),
                "ADMIN_STATE=unmanaged\n",
            )
            .unwrap();
            let begun = SystemTime::now() - Duration::from_secs(1);
            let inside = kernel.has_inside().then(|| kernel.see(Side::Inside));
            let first = plan_restore(
                &to_put_back(&held, &not_begun(&held), &kernel.see(Side::Host)),
                &kernel.see(Side::Host),
                inside.as_ref(),
                Goal::Exact,
            );
            assert!(
                !first.steps.iter().any(|s| matches!(
                    s,
                    Step::AddressAdd {
                        side: Side::Host,
                        ..
                    }
                )),
                "{first:#?}"
            );
            apply_all(&first.steps, &mut kernel, soon());
            // A manager's own come as it chooses.
            let is_of =
                |all: &[MovedNic], rule: &Rule| all.iter().any(|h| h.before.rules.contains(rule));
            let mut order = case.precedence.clone();
            order
                .rules
                .retain(|r| is_of(&held, r) || !is_of(&case.attach.held, r));
            let (mut managers, moved) = (Managers::of(root.path()), names(&held));
            let mut world = Beside {
                kernel,
                held: &held,
                root: root.path(),
                looks: 0,
                begins,
            };
            let back = Returned {
                held: &held,
                order: &order,
                host_objects: HostObjects::NONE,
                arriving: &moved,
                begun,
                rules: None,
            };
            let settled = settle(&mut world, &mut managers, back, Duration::from_secs(5)).unwrap();
            assert_eq!((settled.drift, settled.waiting), (vec![], vec![]));
            let now = world.kernel.see(Side::Host);
            nothing_is_lost_or_double(&held, &now);
            let again = settle(&mut world, &mut managers, back, Duration::ZERO).unwrap();
            assert_eq!((again.drift, again.waiting), (vec![], vec![]));
            assert_eq!(diff(&form(&now), &form(&world.kernel.see(Side::Host))), "");
        },
    );
    print_points("hosts with a manager");
}
