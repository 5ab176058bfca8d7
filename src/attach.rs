//! The plan met by the world: checks that nothing of it is out of date, and lowers it to steps.

mod inside;
mod stand_ins;

use rdma_model::moved_nic::MovedNic;
use rdma_model::nic::Nic;
use rdma_model::nic::{identity, same_nic};
use std::collections::BTreeMap;

use anyhow::Result;

use crate::plan::uverbs_minors::{Minors, uverbs_number};
use crate::plan::{Plan, rails, rdma_mode, rule_carry};
use crate::select::protected_ifaces::{self, Guarded};
use inside::inside_state;
use rdma_model::effect::missing_addresses;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::manager::is_daemon;
use rdma_model::snapshot::{Address, Gid, Netdev, Route, Snapshot};
use rdma_model::step::{
    Leaving, NicState, Side, Step, VirtualLink, chosen_by_manager, configure, connect, generated,
    hears_routers, kernel_address, leave_groups, move_all,
};
use rdma_model::upper_lower;

pub struct Attach {
    /// In the order in which they are done.
    pub steps: Vec<Step>,
    /// What goes into the record before the first step.
    pub held: Vec<MovedNic>,
    /// Remarks for the report: what was asked for and is not done.
    pub notes: Vec<String>,
}

/// Lowers a plan. `host` and `inside` are fresh. Every check is done here, before anything is
/// changed.
///
/// # Errors
/// [`ErrorClass::Refused`] when the plan is out of date or a name is taken inside.
pub fn attach(plan: &Plan, host: &Snapshot, inside: &Snapshot) -> Result<Attach> {
    if plan.boot_id != host.boot_id {
        return refuse(plan, "it was made before the last boot");
    }
    let minors = rdma_mode::minors(&plan.nics, &plan.ib, host);
    rdma_is_as_planned(plan, host, &minors)?;
    // What the host lives on may have changed since the plan was made.
    let guarded = guarded(plan, host)?;
    let mut held = plan
        .nics
        .iter()
        .map(|nic| check(plan, nic, host, inside, (&minors, &guarded)))
        .collect::<Result<Vec<_>>>()?;
    knows_all_routes(&held, host)?;
    held.iter()
        .try_for_each(|h| has_live_legs(&h.before, host))?;
    let along: Vec<Netdev> = held.iter().map(|h| h.before.netdev.clone()).collect();
    let mut states: Vec<NicState> = held
        .iter()
        .map(|h| inside_state(&h.before, &along, host))
        .collect();
    let mut notes = rule_carry::carry(&mut states, host, Some(inside));
    // In rail order still: it decides who gets which table.
    rails::configure(plan.arp, &plan.rails, &mut states, inside)?;
    notes.extend(rails::carry_default(
        plan.default_route,
        &mut states,
        inside,
    ));
    notes.extend(host.strangers_gap.clone());
    stand_ins::choose(&mut held, host);
    for (h, state) in held.iter_mut().zip(states) {
        h.overruled = rails::overruled(&state, inside);
        h.inside = state;
    }
    let order: BTreeMap<IfName, _> = held
        .iter()
        .map(|h| (h.nic.identity.name.clone(), move_order(h)))
        .collect();
    held.sort_by_key(|h| {
        (
            order
                .get(&upper_lower::moved_root(&h.nic, &plan.nics).identity.name)
                .copied(),
            upper_lower::move_rank(&h.nic, &plan.nics),
        )
    });
    Ok(Attach {
        steps: steps(&held, plan, host),
        held,
        notes,
    })
}

/// The links that the host uses now; of no interest to a plan that moves none.
fn guarded(plan: &Plan, host: &Snapshot) -> Result<Guarded> {
    match plan.nics.is_empty() {
        true => Ok(Guarded::new()),
        false => protected_ifaces::in_use(plan.allow_bootstrap, &plan.job, host),
    }
}

/// What would defeat their values, all links down, all moves, then each NIC's settings, then what
/// needs all of them: routes, rules, and the wait for GIDs. docs/internals.md has the reason.
fn steps(held: &[MovedNic], plan: &Plan, host: &Snapshot) -> Vec<Step> {
    let mut steps: Vec<Step> = rails::overrule(held.iter().map(|h| &h.overruled))
        .into_iter()
        .collect();
    steps.extend(stand_ins::steps(held));
    // The kernel drops IPv6 addresses with the link, and stays in their groups.
    steps.extend(
        held.iter()
            .flat_map(|h| leave_groups(Side::Host, &h.before.netdev)),
    );
    let mut dissolved: Vec<&IfName> = Vec::new();
    let (mut moved, mut settings) = (Vec::new(), Vec::new());
    for h in held {
        let name = &h.nic.identity.name;
        let bond = held.iter().find(|b| {
            b.nic.members.contains(name)
                || upper_lower::is_bond(&b.before.netdev) && b.nic.identity.name == *name
        });
        if let Some(Nic {
            identity, hca, rxe, ..
        }) = bond.map(|bond| &bond.nic)
            && !dissolved.contains(&&identity.name)
        {
            dissolved.push(&identity.name);
            let link = hca.as_ref().filter(|_| *rxe);
            steps.extend(upper_lower::delete_steps(Side::Host, &identity.name, link));
        }
        let made = upper_lower::virtual_link(h, held, host)
            .filter(|_| upper_lower::is_bond(&h.before.netdev));
        if made.is_none() {
            steps.extend(rxe_link(h).map(|hca| Step::RdmaLinkDelete {
                side: Side::Host,
                hca: hca.clone(),
            }));
            moved.push(Leaving {
                from: Side::Host,
                netdev: &h.before.netdev,
                name: name.clone(),
                ifindex: None,
            });
        }
        // It went up with the link below, whose settings come first (vlan_device_event in
        // net/8021q/vlan.c, ipoib_open).
        let stays_down = h.nic.over.is_some() && !h.inside.netdev.up;
        settings.extend(stays_down.then(|| Step::Link {
            side: Side::Inside,
            dev: name.clone(),
            up: false,
        }));
        settings.extend(set_up(h, made, plan.exclusive));
    }
    steps.extend(move_all(&moved));
    steps.extend(settings);
    steps.extend(rdma_mode::move_inside(plan, host));
    let mut orphans = Vec::new();
    for rule in held.iter().flat_map(|h| &h.before.rules) {
        if !orphans.contains(&rule) {
            orphans.push(rule);
        }
    }
    steps.extend(orphans.into_iter().map(|r| Step::RuleDelete {
        side: Side::Host,
        rule: r.clone(),
    }));
    steps.extend(connect(
        Side::Inside,
        &held.iter().map(|h| &h.inside).collect::<Vec<_>>(),
    ));
    steps.extend(held.iter().filter_map(|h| await_port(h, plan)));
    steps
}

/// Device nodes went into config.json by number: a driver that was reloaded since has handed out
/// others.
fn rdma_is_as_planned(plan: &Plan, host: &Snapshot, minors: &Minors) -> Result<()> {
    if plan.exclusive != rdma_mode::is_exclusive(host)
        && (plan.nics.iter().any(|n| n.hca.is_some()) || !plan.ib.is_empty())
    {
        return refuse(plan, "the RDMA namespace mode is another one now");
    }
    rdma_mode::check(&plan.nics, &plan.ib, host)?;
    let node = |hca: &HcaName| rdma_mode::node(minors, host, hca);
    let hardware = plan
        .nics
        .iter()
        .filter(|n| !(n.rxe || n.borrowed && n.uverbs.is_none()))
        .filter_map(|n| Some((n.hca.as_ref()?, n.uverbs.as_ref())))
        .filter(|(hca, planned)| node(hca) != *planned)
        .map(|(hca, _)| hca);
    let ib = plan
        .ib
        .iter()
        .filter(|hca| node(hca).is_none_or(|n| !plan.devices.contains(n)));
    match hardware.chain(ib).next() {
        Some(hca) => refuse(plan, format!("{hca} has another device node now")),
        None => Ok(()),
    }
}

fn refuse<T>(plan: &Plan, why: impl std::fmt::Display) -> Result<T> {
    Err(ErrorClass::Refused.error(format!(
        "plan {:?} is out of date: {why}; run `rdmaprep prepare --plan {}` again",
        plan.name, plan.name
    )))
}

/// Soft-RoCE first, in ascending order of device nodes: each re-created link gets the lowest free
/// minor, so any other order would swap device nodes.
fn move_order(held: &MovedNic) -> (bool, u32) {
    let minor = held
        .uverbs_before
        .as_ref()
        .filter(|_| held.nic.rxe)
        .and_then(uverbs_number);
    (minor.is_none(), minor.unwrap_or(0))
}

fn check(
    plan: &Plan,
    nic: &Nic,
    host: &Snapshot,
    inside: &Snapshot,
    (minors, guarded): (&Minors, &Guarded),
) -> Result<MovedNic> {
    let name = &nic.identity.name;
    let Some(before) = NicState::of(host, name) else {
        return refuse(plan, format!("{name} is not on the host"));
    };
    let hca = nic.hca.as_ref().and_then(|h| host.hca(h));
    if nic.hca.is_some() && hca.is_none() {
        return refuse(plan, format!("the HCA of {name} has gone"));
    }
    let now = identity(&before, hca);
    if !same_nic(&now, &nic.identity) {
        return refuse(plan, format!("{name} is another NIC now"));
    }
    let now = lasting_addresses(&before.netdev.addresses, &before.netdev, nic);
    let planned = lasting_addresses(&nic.addresses, &before.netdev, nic);
    // A manager may set the metric, the lifetime or a flag of an address at any time.
    let gone = missing_addresses(&planned, &now)
        .first()
        .map(|a| format!("has no {}/{}", a.address, a.prefix));
    let new = missing_addresses(&now, &planned)
        .first()
        .map(|a| format!("has {}/{}", a.address, a.prefix));
    if let Some(why) = gone.or(new) {
        return refuse(plan, format!("{name} {why} now"));
    }
    if !plan.freeze_lifetimes
        && before
            .netdev
            .addresses
            .iter()
            .any(|a| a.valid_lft.is_some())
    {
        return Err(ErrorClass::Refused.error(format!(
            "an address of {name} would expire inside the container; make it permanent, or use \
            --freeze-lifetimes"
        )));
    }
    if let Some(why) = guarded.get(name).filter(|_| !plan.allow_bootstrap) {
        return Err(ErrorClass::Refused.error(format!(
            "the host would lose its network: {name} {why}; to insist: prepare with --ifaces and \
            --allow-bootstrap-iface"
        )));
    }
    stands_alone(plan, nic, host, &before.netdev, guarded)?;
    // A move takes the altnames along, and the kernel wants each name once.
    let names = [name.to_string()];
    for wanted in names.iter().chain(&before.netdev.altnames) {
        if inside.netdevs.iter().any(|n| n.is_called(wanted)) {
            let text = format!("the container has an interface {wanted} already");
            return Err(ErrorClass::Refused.error(text));
        }
    }
    if let (true, Some(hca), Some(planned)) = (nic.rxe || plan.exclusive, hca, &nic.uverbs) {
        let predicted = minors.get(hca.name.as_str());
        if predicted != Some(planned) {
            let now = predicted.map_or("none".to_owned(), |p| p.name.clone());
            return refuse(
                plan,
                format!(
                    "{} would get {now} inside instead of {}",
                    hca.name, planned.name
                ),
            );
        }
    }
    let uverbs_before = hca.and_then(|h| h.uverbs.clone());
    let (inside, overruled, stand_ins) = (before.clone(), BTreeMap::new(), Vec::new());
    let below = upper_lower::lower(host, &before.netdev).into_iter();
    let beside = below
        .flat_map(|below| upper_lower::strangers(host, below))
        .cloned()
        .collect();
    Ok(MovedNic {
        nic: nic.clone(),
        inside,
        before,
        uverbs_before,
        overruled,
        stand_ins,
        managed: None,
        beside,
    })
}

/// Kernel-made addresses come and go with the carrier: a NIC that is just back from a container may
/// lack them. A manager's link-local address counts only where it is the planned GID.
fn lasting_addresses(addresses: &[Address], dev: &Netdev, nic: &Nic) -> Vec<Address> {
    let gid = nic.gid.as_ref().map(Gid::ip);
    let mut lasting = addresses.to_vec();
    lasting.retain(|a| {
        let is_choice = chosen_by_manager(a, dev) && Some(a.address) != gid;
        !kernel_address(a, dev) && !generated(a) && !is_choice
    });
    lasting
}

/// Whether the kernel would refuse the IPv6 token that it let stand (inet6_set_iftoken() in
/// net/ipv6/addrconf.c).
fn has_stale_token(dev: &Netdev) -> bool {
    let solicitations = dev.sysctls.get("ipv6/conf/router_solicitations");
    dev.token.is_some() && (!hears_routers(dev) || solicitations.is_some_and(|value| value == "0"))
}

/// What the kernel does not list would be lost with the NIC.
fn knows_all_routes(held: &[MovedNic], host: &Snapshot) -> Result<()> {
    match host.unlisted_routes().filter(|_| !held.is_empty()) {
        Some(why) => Err(ErrorClass::Refused.error(why)),
        None => Ok(()),
    }
}

/// A route keeps a leg whose link goes down, but the kernel takes none over a link that is down
/// (fib_check_nh() in net/ipv4/fib_semantics.c, fib6_nh_init() in net/ipv6/route.c): it would be
/// lost. To raise the link for a moment would put it on the wire against its owner's will, with its
/// addresses: that is not ours to do.
fn has_live_legs(before: &NicState, host: &Snapshot) -> Result<()> {
    for route in before.routes.iter().filter(|r| is_restored(r)) {
        let mut devs = route
            .hops
            .iter()
            .filter_map(|h| host.netdev(h.dev.as_ref()?));
        if let Some((dead, (state, fix))) = devs.find_map(|d| Some((d, dead_end(route, d)?))) {
            let name = &dead.name;
            return Err(ErrorClass::Refused.error(format!(
                "a leg of the route {route} is over {name}, which is {state}, and could not be \
                brought back: `{fix}`, or take that leg out"
            )));
        }
    }
    Ok(())
}

/// Whether a restore adds its legs, and no routing daemon or nexthop object does.
fn is_restored(route: &Route) -> bool {
    !is_daemon(route.protocol) && route.hops.len() > 1 && route.nexthop().is_none()
}

/// Why the kernel would not take a leg of that route over this netdev, and what cures it.
fn dead_end(route: &Route, dev: &Netdev) -> Option<(&'static str, String)> {
    let off = dev.sysctls.get("ipv6/conf/disable_ipv6");
    if !dev.up {
        return Some(("down", format!("ip link set {} up", dev.name)));
    }
    let is_off = route.destination.addr().is_ipv6() && off.is_some_and(|v| v == "1");
    is_off.then(|| {
        let fix = format!("sysctl net/ipv6/conf/{}/disable_ipv6=0", dev.name);
        ("without IPv6", fix)
    })
}

/// What a NIC sits on, what sits on it, whose member it is and who hangs on it: as planned, or it
/// cannot leave.
fn stands_alone(
    plan: &Plan,
    nic: &Nic,
    host: &Snapshot,
    now: &Netdev,
    guarded: &Guarded,
) -> Result<()> {
    let name = &nic.identity.name;
    // Its VFs' links hang on it, and one of them may have become an uplink.
    let mut guarded = host
        .netdevs
        .iter()
        .filter(|d| guarded.contains_key(&d.name));
    let vf = guarded.find(|d| d.pci.is_some_and(|vf| nic.vfs.contains(&vf)));
    if let Some(vf) = vf.filter(|_| !plan.allow_bootstrap) {
        return Err(ErrorClass::Refused.error(format!(
            "{} is a VF of {name}: the host would lose its network",
            vf.name
        )));
    }
    let below = upper_lower::lower(host, now).map(|d| &d.name);
    if now.made.is_some() && below != nic.over.as_ref() {
        return refuse(plan, format!("{name} sits on another device now"));
    }
    // What the plan has besides, but not on this NIC, would be left or deleted as well.
    let mut uppers = upper_lower::upper(host, now).filter(|d| {
        let mut on_it = plan.nics.iter().filter(|n| n.over.as_ref() == Some(name));
        !upper_lower::follows(d) || !on_it.any(|n| n.identity.name == d.name)
    });
    if let Some(upper) = uppers.next() {
        let (upper, fate) = (upper_lower::described(upper), upper_lower::fate(upper));
        return Err(ErrorClass::Refused.error(format!(
            "{upper} sits on {name} now, and would be {fate}; delete it first"
        )));
    }
    if let Some(stranger) = upper_lower::strangers(host, now).next() {
        let text = format!(
            "{stranger} sits on {name} now: two would share the card; delete it there first"
        );
        return Err(ErrorClass::Refused.error(text));
    }
    if has_stale_token(now) {
        return Err(ErrorClass::Refused.error(format!(
            "the kernel would not take the IPv6 token of {name} again, since accept_ra or \
            router_solicitations is off: `ip token del dev {name}`, or turn them on"
        )));
    }
    // What is no hardware is made again, without them.
    if let Some(program) = now
        .programs
        .iter()
        .flatten()
        .next()
        .filter(|_| now.made.is_some())
    {
        return Err(ErrorClass::Refused.error(format!(
            "a move would take the {program} from {name}; take it off first"
        )));
    }
    if let Some(lost) = &now.qdisc_lost {
        return Err(ErrorClass::Refused.error(format!(
            "a move would take {lost} from {name}; delete it first"
        )));
    }
    let bonds = plan.nics.iter().filter(|n| n.members.contains(name));
    let mut bonds = bonds.map(|n| &n.identity.name);
    if let Some(master) = now.master.as_ref().filter(|m| bonds.all(|bond| bond != *m)) {
        return Err(ErrorClass::Refused.error(format!("{name} belongs to {master} now")));
    }
    let members = upper_lower::members(host, now).map(|m| &m.name);
    if upper_lower::is_bond(now) && !members.eq(&nic.members) {
        return refuse(plan, format!("{name} has other members now"));
    }
    Ok(())
}

fn rxe_link(held: &MovedNic) -> Option<&HcaName> {
    held.nic.hca.as_ref().filter(|_| held.nic.rxe)
}

/// In the container: a bond is made there, the settings, and the soft-RoCE link.
fn set_up(held: &MovedNic, bond: Option<VirtualLink>, exclusive: bool) -> Vec<Step> {
    let (side, state) = (Side::Inside, &held.inside);
    let bond = bond.map(|made| {
        upper_lower::create_steps(
            side,
            held,
            VirtualLink {
                ifindex: None,
                ..made
            },
        )
    });
    let mut steps = bond.unwrap_or_default();
    steps.extend(configure(
        side,
        &upper_lower::without_master_up(state),
        state.netdev.sysctls.clone(),
    ));
    steps.extend(rxe_link(held).map(|hca| {
        // A new device belongs to the initial namespace (ib_device_init in device.c): it moves
        // later.
        let uverbs = held.nic.uverbs.clone().filter(|_| !exclusive);
        Step::RdmaLinkAdd {
            side,
            hca: hca.clone(),
            dev: held.nic.identity.name.clone(),
            uverbs,
        }
    }));
    steps
}

fn await_port(held: &MovedNic, plan: &Plan) -> Option<Step> {
    let (hca, port, gid) = (
        held.nic.hca.clone()?,
        held.nic.port?,
        held.nic.gid.as_ref()?,
    );
    let (dev, addresses) = (held.nic.identity.name.clone(), vec![gid.ip()]);
    Some(Step::AwaitPort {
        hca,
        port,
        dev,
        addresses,
        index: plan.gid_index,
        gid_timeout: plan.gid_timeout.get(),
    })
}
