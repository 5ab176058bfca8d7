//! The way home is a plan, too: made from the record and a fresh look, whatever happened since.

use std::collections::{BTreeMap, BTreeSet};

use crate::attach::{self, same_nic, uverbs_number};
use crate::exclusive;
use crate::ident::{HcaName, IfName};
use crate::journal::Held;
use crate::plan::{Identity, Nic};
use crate::rails;
use crate::snapshot::{Netdev, Qdisc, Route, Rule, Snapshot};
use crate::stack;
use crate::step::{Made, NicState, Settings, Side, Step, configure, connect, kernel_address, kernel_made};
use crate::verify;

/// What the kernel gives a NIC by itself: net.core.default_qdisc may be any of these, and a link that is down has none.
const QDISCS: [&str; 7] = ["noop", "noqueue", "mq", "pfifo_fast", "fq_codel", "fq", "sfq"];

/// What bringing NICs home takes.
#[derive(Debug, Default)]
pub struct Homecoming {
    /// In the order in which they are done.
    pub steps: Vec<Step>,
    /// NICs that are neither inside nor on the host, or cannot come home, each with the reason.
    pub stuck: Vec<(IfName, String)>,
    /// How many of these are nowhere: they may still be on their way.
    pub missing: usize,
    /// Remarks for the report: what a container had done to a NIC.
    pub notes: Vec<String>,
}

/// Where a NIC is now.
enum Place<'a> {
    Inside(&'a Netdev),
    Host(&'a Netdev),
    /// Nowhere, and this makes it anew.
    Gone(Made),
}

/// Plans the way home of NICs. `inside` is absent when their namespace has gone: then the kernel has returned the physical
/// ones to the initial namespace, down and naked, and destroyed the virtual ones.
pub fn restore(held: &[Held], host: &Snapshot, inside: Option<&Snapshot>) -> Homecoming {
    let mut home = Homecoming::default();
    let nics: Vec<Nic> = held.iter().map(|h| h.nic.clone()).collect();
    let mut order: Vec<&Held> = held.iter().collect();
    // As on the way in: re-created soft-RoCE links take the lowest free device node.
    let minor = |h: &Held| h.uverbs_before.as_ref().filter(|_| h.nic.rxe).and_then(uverbs_number).unwrap_or(u32::MAX);
    let minors: BTreeMap<&IfName, u32> = held.iter().map(|h| (&h.nic.identity.name, minor(h))).collect();
    order.sort_by_key(|h| (minors.get(&stack::root(&h.nic, &nics).identity.name).copied(), stack::turn(&h.nic, &nics)));
    let gone = |h: &Held| stack::made(h, held, host).map(Place::Gone);
    let placed: Vec<(&Held, Option<Place>)> =
        order.into_iter().map(|h| (h, place(h, host, inside).or_else(|| gone(h)))).collect();
    let mut named = host.clone();
    home.steps.extend(exclusive::home(held.iter().filter_map(|h| h.nic.hca.as_ref()), host, inside));
    home.steps.extend(names_home(&placed, &mut named));
    let mut connections: Vec<NicState> = Vec::new();
    for (h, found) in &placed {
        let taken = found.as_ref().and_then(|_| name_taken(h, &placed, host));
        match (found, taken) {
            (None, _) => {
                home.missing += 1;
                let why = "is neither in the container's namespace nor on the host".to_owned();
                home.stuck.push((h.nic.identity.name.clone(), why));
            }
            (_, Some(why)) => home.stuck.push((h.nic.identity.name.clone(), why)),
            (Some(Place::Inside(dev)), None) if stack::is_bond(&h.before.netdev) => {
                let linked =
                    h.nic.rxe && inside.is_some_and(|i| h.nic.hca.as_ref().is_some_and(|hca| i.hca(hca).is_some()));
                home.steps.extend(attach::dissolve(Side::Inside, &renamed(h, dev), linked));
                home.steps.extend(stack::made(h, held, host).iter().flat_map(|made| anew(h, made, host)));
                connections.push(h.before.clone());
            }
            (Some(Place::Inside(dev)), None) => {
                home.notes.extend(notes(&h.before.netdev, dev));
                home.steps.extend(bring(h, dev, (host, inside), properties(h, dev, held, host)));
                connections.push(h.before.clone());
            }
            (Some(Place::Gone(made)), None) => {
                home.notes.extend(inside.map(|_| format!("{} had been deleted", h.before.netdev.name)));
                home.steps.extend(anew(h, made, host));
                connections.push(h.before.clone());
            }
            (Some(Place::Host(dev)), None) => {
                home.notes.extend(notes(&h.before.netdev, dev));
                home.steps.extend(properties(h, dev, held, host));
                home.steps.extend(attach::gather(Side::Host, h, host));
                if let Some((steps, missing)) = difference(Side::Host, &h.before, &named) {
                    home.steps.extend(steps);
                    connections.push(missing);
                }
                home.steps.extend(relink(h, host));
            }
        }
    }
    home.steps.extend(remnants(Side::Host, connections.iter().flat_map(|s| &s.routes), host));
    home.steps.extend(connect(Side::Host, &connections.iter().collect::<Vec<_>>()));
    home.steps.extend(orphans(held, &home.stuck, inside));
    // What stays inside still needs them.
    if let Some(inside) = inside.filter(|_| home.stuck.is_empty()) {
        home.steps.extend(rails::give_back(held.iter().map(|h| &h.overruled), inside));
    }
    home
}

/// When one leg of an IPv6 multipath route goes, the others stay, and keep the whole route from being added again
/// (fib6_ifdown and ip6_route_multipath_add in net/ipv6). IPv4 drops the whole route.
fn remnants<'a>(side: Side, wanted: impl Iterator<Item = &'a Route>, observed: &Snapshot) -> Vec<Step> {
    let key = |r: &Route| (r.destination, r.source, r.table, r.metric, r.protocol);
    let legs = |r: &Route| r.hops.iter().map(|h| (h.dev.clone(), h.gateway)).collect::<BTreeSet<_>>();
    let of = |w: &Route, r: &Route| r.hops.len() < w.hops.len() && key(r) == key(w) && legs(r).is_subset(&legs(w));
    let own_legs = |w: &&Route| w.destination.addr().is_ipv6() && w.hops.len() > 1 && w.nexthop().is_none();
    let wanted: Vec<&Route> = wanted.filter(own_legs).collect();
    let left = observed.routes.iter().filter(|r| wanted.iter().any(|w| of(w, r)));
    left.map(|r| Step::RouteDelete { side, route: r.clone() }).collect()
}

/// Rules stay when their NIC leaves: those that we brought into a container whose namespace lives on go, too.
fn orphans(held: &[Held], stuck: &[(IfName, String)], inside: Option<&Snapshot>) -> Vec<Step> {
    let gone = held.iter().filter(|h| !stuck.iter().any(|(name, _)| *name == h.nic.identity.name));
    let ours: Vec<&Rule> = gone.flat_map(|h| &h.inside.rules).collect();
    let left = inside.into_iter().flat_map(|i| &i.rules).filter(|r| ours.contains(r));
    left.map(|r| Step::RuleDelete { side: Side::Inside, rule: r.clone() }).collect()
}

/// Whether this very NIC is there under its name.
fn in_place(held: &Held, snapshot: &Snapshot) -> bool {
    find(held, snapshot).is_some_and(|dev| dev.name == held.nic.identity.name)
}

/// The steps that make NICs in the container what they were at the end of the attach: a runtime may have removed their
/// addresses since (runsc with its own network stack does).
pub fn reassert(held: &[Held], inside: &Snapshot) -> Vec<Step> {
    let here = held.iter().filter(|h| in_place(h, inside));
    differences(Side::Inside, here.map(|h| &h.inside), inside)
}

fn place<'a>(held: &Held, host: &'a Snapshot, inside: Option<&'a Snapshot>) -> Option<Place<'a>> {
    // On the host itself a NIC with our name and index may be another one, put there meanwhile: hardware decides first.
    let index = held.inside.netdev.ifindex;
    if let Some(dev) = inside.and_then(|i| known(held, index, i).or_else(|| find(held, i))) {
        return Some(Place::Inside(dev));
    }
    find(held, host).map(Place::Host)
}

/// A virtual NIC that arrived: the journal knows its index inside (0: not yet), and nobody there can change that. Whoever is
/// root there can change all else that tells it from others.
fn known<'a>(held: &Held, index: u32, inside: &'a Snapshot) -> Option<&'a Netdev> {
    let was = &held.before.netdev;
    let physical = was.pci.is_some() || was.permanent_mac.is_some();
    let it = |d: &&Netdev| d.ifindex == index && d.link_type == was.link_type && d.kind == was.kind;
    inside.netdevs.iter().find(it).filter(|_| !physical)
}

fn find<'a>(held: &Held, snapshot: &'a Snapshot) -> Option<&'a Netdev> {
    let was = &held.before.netdev;
    let seen = |dev: &Netdev| Identity {
        name: dev.name.clone(),
        ifindex: dev.ifindex,
        pci: dev.pci,
        permanent_mac: dev.permanent_mac.clone(),
        node_guid: held.nic.identity.node_guid,
    };
    let mut alike = snapshot.netdevs.iter().filter(|d| d.link_type == was.link_type && d.kind == was.kind);
    if was.pci.is_some() || was.permanent_mac.is_some() {
        return alike.find(|d| same_nic(&seen(d), &held.nic.identity));
    }
    let mut best = None;
    for dev in alike {
        let score =
            [dev.ifindex == was.ifindex, dev.name == was.name, dev.mac == was.mac].iter().filter(|s| **s).count();
        // One of the three may have been changed inside; two still tell it from any other.
        if score >= 2 && best.is_none_or(|(s, _)| score > s) {
            best = Some((score, dev));
        }
    }
    best.map(|(_, dev)| dev)
}

/// Whether something on the host that is none of the NICs which are coming home has a name that this one needs.
fn name_taken(held: &Held, placed: &[(&Held, Option<Place>)], host: &Snapshot) -> Option<String> {
    let stranger = |d: &&Netdev| !on_host(placed).any(|(_, ours)| ours.ifindex == d.ifindex);
    let names = [held.nic.identity.name.to_string()];
    let mut names = names.iter().chain(&held.before.netdev.altnames);
    let other = |n: &String| host.netdevs.iter().filter(stranger).find(|d| d.is_called(n));
    let (name, other) = names.find_map(|n| Some((n, other(n)?)))?;
    Some(format!(
        "cannot come home: the host has another interface {} that uses its name {name}; rename that one",
        other.name
    ))
}

fn on_host<'a>(placed: &'a [(&'a Held, Option<Place<'a>>)]) -> impl Iterator<Item = (&'a Held, &'a Netdev)> {
    placed.iter().filter_map(|(h, p)| match p {
        Some(Place::Host(dev)) => Some((*h, *dev)),
        _ => None,
    })
}

fn notes(was: &Netdev, now: &Netdev) -> Vec<String> {
    let mut notes = Vec::new();
    if now.name != was.name {
        notes.push(format!("{} had been renamed to {}", was.name, now.name));
    }
    if let (Some(old), Some(new), true) = (&was.mac, &now.mac, was.mac != now.mac) {
        notes.push(format!("{} had been given the address {new} instead of {old}", was.name));
    }
    if now.mtu != was.mtu {
        notes.push(format!("{} had been given MTU {} instead of {}", was.name, now.mtu, was.mtu));
    }
    if now.promisc && !was.promisc {
        notes.push(format!("{} had been made promiscuous", was.name));
    }
    if let Some(qdisc) = now.qdisc.as_ref().filter(|q| now.qdisc != was.qdisc && !QDISCS.contains(&q.as_str())) {
        notes.push(format!("a queueing discipline {qdisc} was left on {} and is removed", was.name));
    }
    if now.xdp && !was.xdp {
        notes.push(format!("an XDP program was left on {} and is removed", was.name));
    }
    if let Some(master) = now.master.as_ref().filter(|_| now.master != was.master) {
        notes.push(format!("{} had been put into {master}", was.name));
    }
    notes
}

/// From the container: its soft-RoCE link goes first, then one move, then everything that a move destroys.
fn bring(
    held: &Held,
    dev: &Netdev,
    (host, inside): (&Snapshot, Option<&Snapshot>),
    properties: Option<Step>,
) -> Vec<Step> {
    let was = &held.before.netdev;
    let here = &dev.name;
    let mut steps = Vec::new();
    let link = held.nic.hca.as_ref().filter(|_| held.nic.rxe);
    // Where devices belong to one namespace each, one that was just made is still in the initial one.
    let sides = [(Side::Inside, inside), (Side::Host, Some(host))];
    let seen = |hca: &HcaName, s: Option<&Snapshot>| s.and_then(|s| s.hca(hca)).is_some_and(|h| h.is_rxe());
    if let Some((hca, side)) = link.and_then(|h| Some((h, sides.into_iter().find(|(_, s)| seen(h, *s))?.0))) {
        steps.push(Step::RdmaLinkDelete { side, hca: hca.clone() });
    }
    if dev.xdp && !was.xdp {
        steps.push(Step::XdpDetach { side: Side::Inside, dev: here.clone() });
    }
    if dev.master.is_some() {
        steps.push(Step::Release { side: Side::Inside, dev: here.clone() });
    }
    // Alternative names of the container would travel along, and might be the name that the NIC needs.
    for altname in dev.altnames.iter().filter(|a| !was.altnames.contains(a)) {
        steps.push(Step::AltnameDelete { side: Side::Inside, dev: here.clone(), altname: altname.clone() });
    }
    steps.push(Step::Move {
        from: Side::Inside,
        dev: here.clone(),
        name: was.name.clone(),
        ifindex: Some(was.ifindex),
    });
    for altname in was.altnames.iter().filter(|a| !dev.altnames.contains(a)) {
        steps.push(Step::AltnameAdd { side: Side::Host, dev: was.name.clone(), altname: altname.clone() });
    }
    steps.extend(properties);
    steps.extend(link_settings(Side::Host, was, dev));
    steps.extend(configure(Side::Host, &attach::free(&held.before), was.sysctls.clone()));
    if let Some(hca) = link {
        steps.push(Step::RdmaLinkAdd { side: Side::Host, hca: hca.clone(), dev: was.name.clone(), uverbs: None });
    }
    steps
}

/// One that its container's namespace took with it, or that the container deleted.
fn anew(held: &Held, made: &Made, host: &Snapshot) -> Vec<Step> {
    let (side, was) = (Side::Host, &held.before.netdev);
    let mut steps = attach::make(side, held, made.clone());
    steps.extend(configure(side, &held.before, was.sysctls.clone()));
    steps.extend(relink(held, host));
    steps
}

/// The same by the name that it has inside.
fn renamed(held: &Held, dev: &Netdev) -> Held {
    let mut held = held.clone();
    held.nic.identity.name = dev.name.clone();
    held
}

/// What makes a VLAN or the like again what it was, where a container has changed that.
fn properties(held: &Held, now: &Netdev, all: &[Held], host: &Snapshot) -> Option<Step> {
    let made = stack::made(held, all, host).filter(|_| now.made != held.before.netdev.made)?;
    Some(Step::Make { side: Side::Host, dev: held.before.netdev.name.clone(), made })
}

/// What the kernel keeps over a move but a container may have changed.
fn link_settings(side: Side, was: &Netdev, now: &Netdev) -> Vec<Step> {
    let mut steps = Vec::new();
    if let (Some(old), true) = (&was.mac, was.mac != now.mac) {
        steps.push(Step::Mac { side, dev: was.name.clone(), mac: old.clone() });
    }
    let settings = Settings::of(was);
    if settings != Settings::of(now) {
        steps.push(Step::Settings { side, dev: was.name.clone(), settings });
    }
    steps
}

/// The kernel brought NICs back under whatever names they had inside, which may be each other's; udev may have made an old
/// name an altname meanwhile. So the way is cleared first: no altname that a NIC did not have, no name that another one needs.
fn names_home(placed: &[(&Held, Option<Place>)], named: &mut Snapshot) -> Vec<Step> {
    let side = Side::Host;
    let free = |(h, _): &(&Held, &Netdev)| name_taken(h, placed, named).is_none();
    let ours: Vec<(&Held, &Netdev)> = on_host(placed).filter(free).collect();
    let mut steps = Vec::new();
    for (h, dev) in &ours {
        let foreign = dev.altnames.iter().filter(|a| !h.before.netdev.altnames.contains(a));
        steps.extend(foreign.map(|a| Step::AltnameDelete { side, dev: dev.name.clone(), altname: a.clone() }));
    }
    let mut renames = Vec::new();
    for (h, dev) in ours.iter().filter(|(h, dev)| dev.name != h.before.netdev.name) {
        let needed = ours.iter().any(|(other, _)| other.before.netdev.name == dev.name);
        let spare = format!("rdmaprep{}", dev.ifindex).parse().ok().filter(|_| needed);
        renames.extend(spare.clone().map(|spare| (dev.name.clone(), spare)));
        renames.push((spare.unwrap_or(dev.name.clone()), h.before.netdev.name.clone()));
    }
    // Out of each other's way first: a stable sort keeps each NIC's own order.
    renames.sort_by_key(|(_, to)| ours.iter().any(|(h, _)| h.before.netdev.name == *to));
    for (old, new) in renames {
        rename(named, &old, &new);
        steps.push(Step::Rename { side, dev: old, name: new });
    }
    for (h, dev) in &ours {
        let was = &h.before.netdev;
        let missing = was.altnames.iter().filter(|a| !dev.altnames.contains(a));
        steps.extend(missing.map(|a| Step::AltnameAdd { side, dev: was.name.clone(), altname: a.clone() }));
    }
    steps
}

/// The snapshot as it will be after a rename: the kernel keeps routes, and rules follow names.
fn rename(snapshot: &mut Snapshot, old: &IfName, new: &IfName) {
    snapshot.netdevs.iter_mut().filter(|d| d.name == *old).for_each(|d| d.name = new.clone());
    let hops = snapshot.routes.iter_mut().flat_map(|r| &mut r.hops);
    hops.filter(|h| h.dev.as_ref() == Some(old)).for_each(|h| h.dev = Some(new.clone()));
}

/// A soft-RoCE link that has gone.
fn relink(held: &Held, host: &Snapshot) -> Option<Step> {
    let hca = held.nic.hca.as_ref().filter(|h| held.nic.rxe && host.hca(h).is_none())?;
    let dev = held.before.netdev.name.clone();
    Some(Step::RdmaLinkAdd { side: Side::Host, hca: hca.clone(), dev, uverbs: None })
}

/// The differences between what NICs are and what they should be, as steps: routes come when all NICs have their addresses,
/// since a route may have legs over several.
fn differences<'a>(side: Side, wanted: impl Iterator<Item = &'a NicState>, observed: &Snapshot) -> Vec<Step> {
    let (steps, missing): (Vec<_>, Vec<_>) = wanted.filter_map(|state| difference(side, state, observed)).unzip();
    let mut steps: Vec<Step> = steps.into_iter().flatten().collect();
    steps.extend(connect(side, &missing.iter().collect::<Vec<_>>()));
    steps
}

/// The difference between what a NIC is and what it should be: steps of its own, then what [`connect`] has to add; a NIC
/// that is not there has none.
fn difference(side: Side, wanted: &NicState, observed: &Snapshot) -> Option<(Vec<Step>, NicState)> {
    let now = NicState::of(observed, &wanted.netdev.name)?;
    let (want, have) = (verify::normal(wanted), verify::normal(&now));
    let (was, is) = (&wanted.netdev, &now.netdev);
    let dev = was.name.clone();
    let mut steps = link_differences(side, was, is);
    let (qdiscs, missing) = qdisc_differences(side, was, is);
    steps.extend(qdiscs);
    if is.token.is_some() && was.token.is_none() {
        steps.push(Step::Token { side, dev: dev.clone(), token: None });
    }
    let extra = have.netdev.addresses.iter().filter(|a| !want.netdev.addresses.contains(a));
    steps.extend(extra.map(|a| Step::AddressDelete { side, dev: dev.clone(), address: a.clone() }));
    let mut add = wanted.clone();
    add.netdev.addresses.retain(|a| !kernel_address(a, was) && !have.netdev.addresses.contains(&verify::address(a)));
    add.netdev.up = was.up && !is.up && (was.master.is_none() || was.master == is.master);
    add.netdev.qdiscs = missing;
    add.netdev.token = was.token.filter(|_| is.token != was.token);
    let changed = was.sysctls.iter().filter(|(k, v)| is.sysctls.get(*k) != Some(*v));
    steps.extend(configure(side, &add, changed.map(|(k, v)| (k.clone(), v.clone())).collect()));
    if is.up && !was.up {
        steps.push(Step::Link { side, dev: dev.clone(), up: false });
    }
    let foreign = have.routes.iter().filter(|r| !want.routes.contains(r) && !kernel_made(r, is));
    steps.extend(foreign.map(|r| Step::RouteDelete { side, route: r.clone() }));
    // Behind the routes: an object takes those along that lead through it.
    let extra = have.nexthops.iter().filter(|n| !want.nexthops.iter().any(|w| w.id == n.id));
    steps.extend(extra.map(|n| Step::NexthopDelete { side, id: n.id }));
    let gone = have.netdev.neighbours.iter().filter(|n| !want.netdev.neighbours.contains(n));
    steps.extend(gone.map(|n| Step::NeighbourDelete { side, dev: dev.clone(), neighbour: n.clone() }));
    add.routes = want.routes.iter().filter(|r| !have.routes.contains(r)).cloned().collect();
    let elsewhere = |s: &Step| !matches!(s, Step::RouteDelete { route, .. } if have.routes.contains(route));
    steps.extend(remnants(side, add.routes.iter(), observed).into_iter().filter(elsewhere));
    add.nexthops = want.nexthops.iter().filter(|n| !have.nexthops.contains(n)).cloned().collect();
    add.rules = want.rules.iter().filter(|r| !observed.rules.contains(r)).cloned().collect();
    add.netdev.neighbours.retain(|n| !have.netdev.neighbours.contains(n));
    Some((steps, add))
}

/// What is to be removed, and what is missing then; neither where nobody wants to know.
fn qdisc_differences(side: Side, was: &Netdev, is: &Netdev) -> (Vec<Step>, Option<Vec<Qdisc>>) {
    let (Some(want), Some(have)) = (&was.qdiscs, &is.qdiscs) else { return (Vec::new(), None) };
    let foreign = have.iter().filter(|q| !want.contains(q));
    let delete = |q: &Qdisc| Step::QdiscDelete { side, dev: was.name.clone(), qdisc: q.clone() };
    (foreign.map(delete).collect(), Some(want.iter().filter(|q| !have.contains(q)).cloned().collect()))
}

fn link_differences(side: Side, was: &Netdev, is: &Netdev) -> Vec<Step> {
    let dev = was.name.clone();
    let mut steps = Vec::new();
    if is.xdp && !was.xdp {
        steps.push(Step::XdpDetach { side, dev: dev.clone() });
    }
    if is.master.is_some() && was.master.is_none() {
        steps.push(Step::Release { side, dev });
    }
    steps.extend(link_settings(side, was, is));
    steps
}
