//! The plan met by the world: checks that nothing of it is out of date, and lowers it to steps.

mod gateways;
mod inside;
mod leaving;
mod stand_ins;

use rdma_model::manager::is_daemon;
use rdma_model::moved_nic::MovedNic;
use rdma_model::nic::{Nic, learned};
use std::collections::BTreeMap;

use anyhow::Result;

use crate::plan::uverbs_minors::{NodesInside, uverbs_number};
use crate::plan::{Plan, rails, rdma_mode, rule_carry};
use crate::select::protected_ifaces::{self, Guarded};
use inside::inside_state;
use leaving::{as_planned, check_legs, check_routes_are_known, leaving_nic};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{Hca, Netdev, Rule, Snapshot, protocol_name};
use rdma_model::step::{
    Leaving, NicState, Side, Step, VirtualLink, configure, connect, leave_groups, move_all,
};
use rdma_model::upper_lower;

pub struct AttachPlan {
    /// In the order in which they are done.
    pub steps: Vec<Step>,
    /// What the record's NICs begin as.
    pub held: Vec<MovedNic>,
    /// Remarks for the report: what was asked for and is not done.
    pub notes: Vec<String>,
}

/// Lowers a plan. `host` and `inside` are fresh. Every check is done here, before anything is
/// changed.
///
/// # Errors
/// [`ErrorClass::Refused`] when the plan is out of date, or the container has a NIC's name already.
pub fn plan_attach(plan: &Plan, host: &Snapshot, inside: &Snapshot) -> Result<AttachPlan> {
    check_boot(plan, host)?;
    let nodes = rdma_mode::nodes_inside(&plan.nics, &plan.ib, host);
    check_rdma(plan, host, &nodes)?;
    // What the host lives on may have changed since the plan was made.
    let guarded = guarded(plan, host)?;
    let mut held = plan
        .nics
        .iter()
        .map(|nic| leaving_nic(plan, nic, host, inside, (&nodes, &guarded)))
        .collect::<Result<Vec<_>>>()?;
    check_routes_are_known(&held, host)?;
    held.iter().try_for_each(|h| check_legs(&h.before, host))?;
    held.iter()
        .try_for_each(|h| gateways::check_gateways(&h.before, host))?;
    let leaving: Vec<Netdev> = held.iter().map(|h| h.before.netdev.clone()).collect();
    let mut states: Vec<NicState> = held
        .iter()
        .map(|h| inside_state(&h.before, &leaving, host))
        .collect();
    let mut notes = rule_carry::carry(&mut states, host, Some(inside));
    // In rail order still: it decides who gets which table.
    rails::configure(plan.arp, &plan.separation, &mut states, inside)?;
    notes.extend(rails::carry_default(
        plan.default_route,
        &mut states,
        inside,
    ));
    // Why the search for links that sit on these NICs in other namespaces may have missed some.
    notes.extend(host.strangers_gap.clone());
    notes.extend(held.iter().filter_map(not_learned));
    stand_ins::choose(&mut held, host);
    for (h, state) in held.iter_mut().zip(states) {
        h.overruled = rails::overruled(&state, inside);
        h.inside = state;
    }
    sort_for_moves(&mut held, &plan.nics);
    Ok(AttachPlan {
        steps: steps(&held, plan, host),
        held,
        notes,
    })
}

/// Whether the NICs of a plan for the host's network, where nothing moves, are still as planned:
/// its device nodes and settings name them.
///
/// # Errors
/// [`ErrorClass::Refused`] when the plan is out of date.
pub fn check_on_host(plan: &Plan, host: &Snapshot) -> Result<()> {
    check_boot(plan, host)?;
    for nic in &plan.nics {
        let (_, hca) = as_planned(plan, nic, host)?;
        if let Some(hca) = hca.filter(|hca| is_another(hca, nic)) {
            return refuse(plan, format!("{} is another HCA now", hca.name));
        }
    }
    check_nodes(plan, host, &NodesInside::default())
}

/// Whether an HCA of that name has taken the place of a NIC's. Where NICs move, the end of the move
/// shows it. Soft-RoCE makes its GUID of the address that the NIC has at the time.
fn is_another(hca: &Hca, nic: &Nic) -> bool {
    let guids = hca.node_guid.zip(nic.identity.node_guid);
    !hca.is_rxe() && guids.is_some_and(|(now, planned)| now != planned)
}

fn check_boot(plan: &Plan, host: &Snapshot) -> Result<()> {
    if plan.boot_id != host.boot_id {
        return refuse(plan, "it was made before the last boot");
    }
    Ok(())
}

/// The links that the host uses now; of no interest to a plan that moves none.
fn guarded(plan: &Plan, host: &Snapshot) -> Result<Guarded> {
    match plan.nics.is_empty() {
        true => Ok(Guarded::new()),
        false => protected_ifaces::in_use(plan.allow_bootstrap, &plan.job, host),
    }
}

/// A routing daemon learns its routes some seconds after a NIC is back.
fn not_learned(held: &MovedNic) -> Option<String> {
    let has = learned(&held.before);
    let missing = held.nic.learned.difference(&has);
    let names: Vec<String> = missing.map(|protocol| protocol_name(*protocol)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{} has no route by {} now, as it had when it was prepared: the container goes without",
            held.name(),
            names.join(", ")
        )
    })
}

/// Lowers, in conf/all inside, what would defeat the NICs' own values; puts stand-ins on the host,
/// for routes that lose a leg; leaves multicast groups; deletes bonds and soft-RoCE links, which
/// are made again inside. Then it sets all links down, moves them, gives each its settings, moves
/// HCAs (exclusive mode), deletes the NICs' rules on the host, adds routes and rules inside, and
/// waits for GIDs. docs/internals.md says why in this order.
fn steps(held: &[MovedNic], plan: &Plan, host: &Snapshot) -> Vec<Step> {
    let overruled = held.iter().map(|h| &h.overruled);
    let mut steps: Vec<Step> = rails::overruling_step(overruled).into_iter().collect();
    steps.extend(stand_ins::steps(held));
    // The kernel drops IPv6 addresses with the link, and stays in their groups.
    for h in held {
        steps.extend(leave_groups(Side::Host, &h.before.netdev));
    }
    steps.extend(delete_what_is_made_again(held));
    steps.extend(move_all(&movable(held)));
    for h in held {
        steps.extend(set_up(h, held, plan, host));
    }
    steps.extend(rdma_mode::move_inside(plan, host));
    steps.extend(delete_rules(held));
    let inside: Vec<&NicState> = held.iter().map(|h| &h.inside).collect();
    steps.extend(connect(Side::Inside, &inside));
    steps.extend(held.iter().filter_map(|h| await_port(h, plan)));
    steps
}

/// Bonds, each before its first member and with its soft-RoCE link, and the soft-RoCE links of the
/// others.
fn delete_what_is_made_again(held: &[MovedNic]) -> Vec<Step> {
    let mut deleted_bonds: Vec<&IfName> = Vec::new();
    let mut steps = Vec::new();
    for h in held {
        if let Some(bond) = bond_of(h, held)
            && !deleted_bonds.contains(&bond.name())
        {
            deleted_bonds.push(bond.name());
            let link = rxe_link(bond);
            steps.extend(upper_lower::delete_steps(Side::Host, bond.name(), link));
        }
        if !is_bond(h) {
            steps.extend(rxe_link(h).map(|hca| Step::RdmaLinkDelete {
                side: Side::Host,
                hca: hca.clone(),
            }));
        }
    }
    steps
}

fn is_bond(h: &MovedNic) -> bool {
    upper_lower::is_bond(&h.before.netdev)
}

/// The bond that this NIC is, or is a member of.
fn bond_of<'a>(h: &MovedNic, held: &'a [MovedNic]) -> Option<&'a MovedNic> {
    let name = h.name();
    let mut bonds = held.iter();
    bonds.find(|b| b.nic.members.contains(name) || is_bond(b) && b.name() == name)
}

/// All but bonds.
fn movable(held: &[MovedNic]) -> Vec<Leaving<'_>> {
    let movable = held.iter().filter(|h| !is_bond(h));
    let leaving = movable.map(|h| Leaving {
        from: Side::Host,
        netdev: &h.before.netdev,
        name: h.name().clone(),
        ifindex: None,
    });
    leaving.collect()
}

/// The NICs' rules on the host, each once. A routing daemon deletes its own, and does not see who
/// else does.
fn delete_rules(held: &[MovedNic]) -> impl Iterator<Item = Step> {
    let mut rules: Vec<&Rule> = Vec::new();
    for rule in held.iter().flat_map(|h| &h.before.rules) {
        if !rules.contains(&rule) && !is_daemon(rule.protocol()) {
            rules.push(rule);
        }
    }
    rules.into_iter().map(|rule| Step::RuleDelete {
        side: Side::Host,
        rule: rule.clone(),
    })
}

fn check_rdma(plan: &Plan, host: &Snapshot, nodes: &NodesInside) -> Result<()> {
    if plan.exclusive != rdma_mode::is_exclusive(host)
        && (plan.nics.iter().any(|n| n.hca.is_some()) || !plan.ib.is_empty())
    {
        return refuse(plan, "the RDMA namespace mode is another one now");
    }
    rdma_mode::check(&plan.nics, &plan.ib, host)?;
    check_nodes(plan, host, nodes)
}

/// Device nodes went into config.json by number: a driver that was reloaded since has handed out
/// others.
fn check_nodes(plan: &Plan, host: &Snapshot, nodes: &NodesInside) -> Result<()> {
    let node = |hca: &HcaName| rdma_mode::node(nodes, host, hca);
    // Of soft-RoCE that moves `leaving_nic` checks the node that it will have. A NIC that borrows
    // the HCA of the netdev below has no node of its own where that one is in the plan, too.
    let hardware = plan
        .nics
        .iter()
        .filter(|n| !(n.rxe && plan.moves() || n.borrowed && n.uverbs.is_none()))
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
        "plan {:?} is out of date: {why}; run {}",
        plan.name,
        plan.again()
    )))
}

/// Soft-RoCE first, in ascending order of device nodes: each re-created link gets the lowest free
/// minor, so any other order would swap device nodes. What comes along with a NIC follows it,
/// members before their bond.
fn sort_for_moves(held: &mut [MovedNic], nics: &[Nic]) {
    let minors: BTreeMap<IfName, Option<u32>> = held
        .iter()
        .map(|h| (h.name().clone(), rxe_minor(h)))
        .collect();
    held.sort_by_key(|h| {
        let root = upper_lower::moved_root(&h.nic, nics);
        let minor = minors.get(root.name()).copied().flatten();
        (minor.is_none(), minor, upper_lower::move_rank(&h.nic, nics))
    });
}

fn rxe_minor(held: &MovedNic) -> Option<u32> {
    let node = held.uverbs_before.as_ref().filter(|_| held.nic.rxe);
    node.and_then(uverbs_number)
}

fn rxe_link(held: &MovedNic) -> Option<&HcaName> {
    held.nic.hca.as_ref().filter(|_| held.nic.rxe)
}

/// In the container: a bond is made there, the settings, and the soft-RoCE link.
fn set_up(h: &MovedNic, held: &[MovedNic], plan: &Plan, host: &Snapshot) -> Vec<Step> {
    let (side, state) = (Side::Inside, &h.inside);
    let mut steps = Vec::new();
    // What sits on another link went up with it, as that one's settings come first
    // (vlan_device_event in net/8021q/vlan.c, ipoib_open).
    if h.nic.over.is_some() && !state.netdev.up {
        steps.push(Step::Link {
            side,
            dev: h.name().clone(),
            up: false,
        });
    }
    if is_bond(h)
        && let Some(link) = upper_lower::virtual_link(h, held, host)
    {
        let link = VirtualLink {
            ifindex: None,
            ..link
        };
        steps.extend(upper_lower::create_steps(side, h, link));
    }
    steps.extend(configure(
        side,
        &upper_lower::without_master_up(state),
        state.netdev.sysctls.clone(),
    ));
    steps.extend(rxe_link(h).map(|hca| {
        // A new device belongs to the initial namespace (ib_device_init in device.c): it moves
        // later.
        let uverbs = h.nic.uverbs.clone().filter(|_| !plan.exclusive);
        Step::RdmaLinkAdd {
            side,
            hca: hca.clone(),
            dev: h.name().clone(),
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
    let (dev, addresses) = (held.name().clone(), vec![gid.ip()]);
    Some(Step::AwaitPort {
        hca,
        port,
        dev,
        addresses,
        index: plan.gid_index,
        gid_timeout: plan.gid_timeout.get(),
    })
}
