//! Whether a NIC is still as planned, and can leave.

use super::refuse;
use crate::plan::Plan;
use crate::plan::uverbs_minors::NodesInside;
use crate::select::protected_ifaces::Guarded;
use anyhow::Result;
use rdma_model::effect::missing_addresses;
use rdma_model::error_class::ErrorClass;
use rdma_model::ipv6_legs::joins_others;
use rdma_model::manager::is_daemon;
use rdma_model::moved_nic::MovedNic;
use rdma_model::nic::{Nic, identity, same_nic};
use rdma_model::snapshot::{Address, Gid, Hca, Netdev, Route, Snapshot};
use rdma_model::step::{
    NicState, chosen_by_manager, generated, hears_routers, kernel_address, lacks_ipv6,
};
use rdma_model::upper_lower;
use std::collections::BTreeMap;

/// Refuses a NIC that is not as planned or cannot leave; else what its record begins with.
pub(super) fn leaving_nic(
    plan: &Plan,
    nic: &Nic,
    host: &Snapshot,
    container: &Snapshot,
    (nodes, guarded): (&NodesInside, &Guarded),
) -> Result<MovedNic> {
    let name = nic.name();
    let (before, hca) = as_planned(plan, nic, host)?;
    if !plan.freeze_lifetimes && before.netdev.expiring().is_some() {
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
    check_stands_alone(plan, nic, host, &before.netdev, guarded)?;
    check_move_loses_nothing(&before.netdev)?;
    // A move takes the altnames along, and the kernel wants each name once.
    let names = [name.to_string()];
    for wanted in names.iter().chain(&before.netdev.altnames) {
        if container.netdevs.iter().any(|n| n.is_called(wanted)) {
            let text = format!("the container has an interface {wanted} already");
            return Err(ErrorClass::Refused.error(text));
        }
    }
    if let (true, Some(hca), Some(planned)) = (nic.rxe || plan.exclusive, hca, &nic.uverbs) {
        let predicted = nodes.get(hca.name.as_str());
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
    let below = upper_lower::lower(host, &before.netdev).into_iter();
    let beside = below
        .flat_map(|below| upper_lower::strangers(host, below))
        .cloned()
        .collect();
    Ok(MovedNic {
        nic: nic.clone(),
        // `plan_attach` fills these three, when all NICs are known:
        inside: before.clone(),
        overruled: BTreeMap::new(),
        stand_ins: Vec::new(),
        before,
        uverbs_before,
        // `record_manager_and_its_rules` of the create hook fills these two:
        managed: None,
        ended_profiles: Vec::new(),
        beside,
    })
}

/// A NIC of the plan as it is on the host, with its HCA. Refuses one that is another NIC, or has
/// other addresses.
pub(super) fn as_planned<'h>(
    plan: &Plan,
    nic: &Nic,
    host: &'h Snapshot,
) -> Result<(NicState, Option<&'h Hca>)> {
    let name = nic.name();
    let Some(state) = NicState::of(host, name) else {
        let look = "see to its card, driver and name (lspci, dmesg, ip link), or leave it out";
        return refuse(plan, format!("{name} is not on the host: {look}"));
    };
    let hca = nic.hca.as_ref().and_then(|h| host.hca(h));
    if nic.hca.is_some() && hca.is_none() {
        let look = "see to its RDMA driver (rdma link, dmesg), or leave it out";
        return refuse(plan, format!("the HCA of {name} has gone: {look}"));
    }
    let now = identity(&state, hca);
    if !same_nic(&now, &nic.identity) {
        return refuse(plan, format!("{name} is another NIC now"));
    }
    let now = lasting_addresses(&state.netdev.addresses, &state.netdev, nic);
    let planned = lasting_addresses(&nic.addresses, &state.netdev, nic);
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
    Ok((state, hca))
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
pub(super) fn check_routes_are_known(held: &[MovedNic], host: &Snapshot) -> Result<()> {
    match host.unlisted_routes().filter(|_| !held.is_empty()) {
        Some(why) => Err(ErrorClass::Refused.error(why)),
        None => Ok(()),
    }
}

/// A route keeps a leg whose link goes down, but the kernel takes none over a link that is down
/// (fib_check_nh() in net/ipv4/fib_semantics.c, fib6_nh_init() in net/ipv6/route.c): it would be
/// lost. To raise the link for a moment would put it on the wire against its owner's will, with its
/// addresses: that is not ours to do.
pub(super) fn check_legs(before: &NicState, host: &Snapshot) -> Result<()> {
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

/// Whether it is a route of several legs, or one of its legs, which a restore adds, and no routing
/// daemon or nexthop object.
fn is_restored(route: &Route) -> bool {
    let has_legs = route.hops.len() > 1 || joins_others(route);
    !is_daemon(route.protocol) && has_legs && route.nexthop().is_none()
}

/// Why the kernel would not take a leg of that route over this netdev, and what cures it.
fn dead_end(route: &Route, dev: &Netdev) -> Option<(&'static str, String)> {
    if !dev.up {
        return Some(("down", format!("ip link set {} up", dev.name)));
    }
    (route.destination.addr().is_ipv6() && lacks_ipv6(dev)).then(|| {
        let fix = format!("sysctl net/ipv6/conf/{}/disable_ipv6=0", dev.name);
        ("without IPv6", fix)
    })
}

/// What a NIC sits on, what sits on it, whose member it is and who hangs on it: as planned, or it
/// cannot leave.
fn check_stands_alone(
    plan: &Plan,
    nic: &Nic,
    host: &Snapshot,
    now: &Netdev,
    guarded: &Guarded,
) -> Result<()> {
    let name = nic.name();
    // Its VFs' links hang on it, and one of them may have become an uplink.
    let links = host.netdevs.iter();
    let mut uplinks = links.filter(|d| guarded.contains_key(&d.name));
    let vf = uplinks.find(|d| d.pci.is_some_and(|vf| nic.vfs.contains(&vf)));
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
    // A VLAN or the like comes along where the plan has it as sitting on this NIC. Any other one
    // would be left behind, or deleted with the NIC.
    let mut uppers = upper_lower::upper(host, now).filter(|d| {
        let mut on_it = plan.nics.iter().filter(|n| n.over.as_ref() == Some(name));
        !upper_lower::follows(d) || !on_it.any(|n| *n.name() == d.name)
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
    let bonds = plan.nics.iter().filter(|n| n.members.contains(name));
    let mut bonds = bonds.map(|n| n.name());
    if let Some(master) = now.master.as_ref().filter(|m| bonds.all(|bond| bond != *m)) {
        return Err(ErrorClass::Refused.error(format!("{name} belongs to {master} now")));
    }
    let members = upper_lower::members(host, now).map(|m| &m.name);
    if upper_lower::is_bond(now) && !members.eq(&nic.members) {
        return refuse(plan, format!("{name} has other members now"));
    }
    Ok(())
}

/// What the kernel would not give a NIC again: an IPv6 token, a program, a queueing discipline.
fn check_move_loses_nothing(now: &Netdev) -> Result<()> {
    let name = &now.name;
    if has_stale_token(now) {
        return Err(ErrorClass::Refused.error(format!(
            "the kernel would not take the IPv6 token of {name} again, since accept_ra or \
            router_solicitations is off: `ip token del dev {name}`, or turn them on"
        )));
    }
    // What is no hardware is made again, without them.
    let mut programs = now.programs.iter().flatten();
    if let Some(program) = programs.next().filter(|_| now.made.is_some()) {
        return Err(ErrorClass::Refused.error(format!(
            "a move would take the {program} from {name}; take it off first"
        )));
    }
    match &now.qdisc_lost {
        Some(lost) => Err(ErrorClass::Refused.error(format!(
            "a move would take {lost} from {name}; delete it first"
        ))),
        None => Ok(()),
    }
}
