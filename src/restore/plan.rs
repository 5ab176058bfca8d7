//! A restore is a plan, too: made from the record and fresh snapshots, whatever happened since.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Hca, Netdev, Route, Rule, Snapshot};
use rdma_model::step::{
    Leaving, NicState, Side, Step, VirtualLink, configure, is_temporary, leave_groups, move_all,
};
use rdma_model::upper_lower;

use crate::plan::{rails, rdma_mode};
pub use crate::restore::diff::Goal;
use crate::restore::diff::{connect_all, difference, differences};
pub use crate::restore::legs::AbsentParts;
use crate::restore::link_diff::{
    device_differences, foreign_programs, link_settings, lost_programs,
};
pub use crate::restore::locate::is_surely_in;
use crate::restore::locate::{
    Place, double, fixed_names, foreign_altnames, in_place, lost_altnames, name_in_use, place,
    restore_names,
};
use crate::restore::remarks::notes;
use crate::restore::to_put_back::{has_new_master, new_master};

/// What a plan is for.
#[derive(Clone, Copy, PartialEq)]
pub enum Purpose {
    Restore,
    /// To tell what a restore would do now.
    Preview,
    /// To tell what is lost without one: what managers make by themselves is not.
    Forget,
}

#[derive(Debug, Default)]
pub struct RestorePlan {
    /// In the order in which they are done.
    pub steps: Vec<Step>,
    /// NICs that are neither inside nor on the host, or cannot be moved to the host.
    pub stuck: Vec<StuckNic>,
    /// How many of these, and of HCAs without a NIC, are in neither place: a namespace that ends
    /// returns them some time later.
    pub missing: usize,
    /// Remarks for the report: what a container had done to a NIC.
    pub notes: Vec<String>,
    /// NICs that are no hardware and are in neither namespace.
    pub deleted: Vec<IfName>,
    /// Stand-ins that go once the steps are done.
    pub superseded: Vec<Route>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StuckNic {
    pub name: IfName,
    pub why: String,
}

impl Display for StuckNic {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.why)
    }
}

impl RestorePlan {
    /// A sentence for each NIC that was deleted, but for those that were `moved_on`.
    pub(super) fn deleted_but(&self, moved_on: &BTreeSet<IfName>) -> Vec<String> {
        let deleted = self.deleted.iter().filter(|name| !moved_on.contains(name));
        deleted
            .map(|name| format!("{name} had been deleted"))
            .collect()
    }

    /// With what goes once the others are done.
    pub fn all_steps(&self) -> Vec<Step> {
        let superseded = self.superseded.iter().map(delete_on_host);
        self.steps.iter().cloned().chain(superseded).collect()
    }

    pub fn is_stuck(&self, held: &MovedNic) -> bool {
        is_stuck(&self.stuck, held)
    }

    fn stick(&mut self, held: &MovedNic, why: String) {
        let name = held.name().clone();
        self.stuck.push(StuckNic { name, why });
    }

    pub(super) fn stuck_nics(&self) -> Vec<IfName> {
        self.stuck.iter().map(|nic| nic.name.clone()).collect()
    }
}

fn is_stuck(stuck: &[StuckNic], held: &MovedNic) -> bool {
    stuck.iter().any(|nic| nic.name == *held.name())
}

/// The host, and the container's namespace if it is still there.
type Seen<'a> = (&'a Snapshot, Option<&'a Snapshot>);

/// Plans a restore of NICs, which are in the order of their moves (`sort_for_moves` in attach.rs).
/// `inside` is absent when the NICs' namespace has ended: then the kernel has returned the physical
/// ones to the initial namespace, down and naked, and destroyed the virtual ones. The goal is for
/// NICs that are on the host already and that have no manager.
pub fn plan_restore(
    held: &[MovedNic],
    host: &Snapshot,
    inside: Option<&Snapshot>,
    goal: Goal,
) -> RestorePlan {
    let mut restore = RestorePlan::default();
    let mut placed: Vec<(&MovedNic, Option<Place>)> = Vec::new();
    for h in held {
        let found = place(h, held, host, inside)
            .or_else(|| upper_lower::virtual_link(h, held, host).map(Place::Recreated));
        placed.push((h, found));
    }
    let mut named = host.clone();
    let left = host.routes.iter().filter(|r| is_temporary(r));
    restore.steps.extend(left.map(delete_on_host));
    restore.steps.extend(rdma_mode::restore_hcas(
        held.iter().filter_map(|h| h.nic.hca.as_ref()),
        host,
        inside,
    ));
    restore
        .steps
        .extend(rdma_mode::restore_renamed(held, host, inside));
    let fixed = fixed_names(&placed, host);
    restore
        .steps
        .extend(restore_names(&placed, &fixed, &mut named));
    let mut connections: Vec<NicState> = Vec::new();
    // Links down, moves, the rest, as at attach: docs/internals.md has the reason.
    let (mut moved, mut settings) = (Vec::new(), Vec::new());
    for (h, found) in &placed {
        let in_use = found.as_ref().and_then(|_| name_in_use(h, &fixed, host));
        match (found, in_use) {
            (None, _) => {
                restore.missing += 1;
                let why = "is neither in the container's namespace nor on the host: look for it \
                    in others"
                    .to_owned();
                restore.stick(h, why);
            }
            (_, Some(why)) => restore.stick(h, why),
            (Some(Place::Inside(dev)), None) => {
                restore.notes.extend(notes(&h.before.netdev, dev));
                let out = from_container(
                    h,
                    dev,
                    upper_lower::virtual_link(h, held, host),
                    (host, inside),
                );
                restore.steps.extend(out.first);
                moved.extend(out.leaving);
                settings.extend(out.then);
                connections.push(h.before.clone());
            }
            (Some(Place::Recreated(made)), None) => {
                restore
                    .deleted
                    .extend(inside.map(|_| h.before.netdev.name.clone()));
                settings.extend(recreate(h, made));
                settings.extend(add_lost_rxe_link(h, host));
                connections.push(h.before.clone());
            }
            // Another device has taken it as its member since: it stays as that one needs it.
            (Some(Place::Host(dev)), None) if new_master(h, dev).is_some() => {}
            (Some(Place::Host(dev)), None) => {
                let there = inside
                    .and_then(|i| double(h, held, i))
                    .map(|d| d.name.clone());
                restore.steps.extend(there.map(|dev| Step::Delete {
                    side: Side::Inside,
                    dev,
                }));
                restore.notes.extend(notes(&h.before.netdev, dev));
                settings.extend(upper_lower::enslave_members(Side::Host, h, host));
                let goal = h.managed.as_ref().map_or(goal, Goal::Managed);
                if let Some((steps, missing)) = difference(Side::Host, &h.before, &named, goal) {
                    settings.extend(steps);
                    connections.push(missing);
                }
                settings.extend(add_lost_rxe_link(h, host));
            }
        }
    }
    restore.steps.extend(move_all(&moved));
    restore.steps.append(&mut settings);
    let connections = connect_all(Side::Host, &connections, host);
    restore.steps.extend(connections);
    restore
        .steps
        .extend(last_steps(held, &restore.stuck, inside));
    if restore.stuck.is_empty() {
        restore.superseded = superseded(held, host, &[]);
    }
    restore
}

/// What goes when all else is there.
fn last_steps(held: &[MovedNic], stuck: &[StuckNic], inside: Option<&Snapshot>) -> Vec<Step> {
    let orphans = orphans(held, stuck, inside);
    // Without a NIC that is stuck the whole routes are not there, and what stays inside still needs
    // the settings.
    if !stuck.is_empty() {
        return orphans;
    }
    let given_back = inside
        .into_iter()
        .flat_map(|i| rails::give_back(held.iter().map(|h| &h.overruled), i));
    orphans.into_iter().chain(given_back).collect()
}

/// What was put in place of routes while a leg of theirs was away, but for what stands in for
/// routes that are `missing` yet.
pub(super) fn superseded(held: &[MovedNic], host: &Snapshot, missing: &[Route]) -> Vec<Route> {
    // The leg on a NIC that belongs to another device by now does not come back.
    let back = held.iter().filter(|h| !has_new_master(h, host));
    let stand_ins: Vec<&Route> = back.flat_map(|h| &h.stand_ins).collect();
    let wanted = || held.iter().flat_map(|h| &h.before.routes);
    let mut superseded = host.routes.clone();
    superseded.retain(|r| {
        stand_ins.contains(&r)
            && !wanted().any(|own| own == r)
            && !missing.iter().any(|whole| r.is_part_of(whole))
            // A manager may have the whole, and not bring it.
            && wanted().chain(&host.routes).any(|whole| r.is_part_of(whole))
    });
    superseded
}

pub(super) fn delete_on_host(route: &Route) -> Step {
    Step::RouteDelete {
        side: Side::Host,
        route: route.clone(),
    }
}

/// Rules stay when their NIC leaves: those that we brought into a container whose namespace lives
/// on go, too.
fn orphans(held: &[MovedNic], stuck: &[StuckNic], inside: Option<&Snapshot>) -> Vec<Step> {
    let left = held.iter().filter(|h| !is_stuck(stuck, h));
    let ours: Vec<&Rule> = left.flat_map(|h| &h.inside.rules).collect();
    let remaining = inside
        .into_iter()
        .flat_map(|i| &i.rules)
        .filter(|r| ours.contains(r));
    remaining
        .map(|r| Step::RuleDelete {
            side: Side::Inside,
            rule: r.clone(),
        })
        .collect()
}

/// The steps that make NICs in the container what they were at the end of the attach: a runtime may
/// have removed their addresses since (runsc with its own network stack does).
pub fn reassert(held: &[MovedNic], inside: &Snapshot) -> Vec<Step> {
    let here = held.iter().filter(|h| in_place(h, held, inside));
    differences(Side::Inside, here.map(|h| &h.inside), inside)
}

/// The steps that give NICs on the host the device settings that they had: what a container sets
/// there stays over a move.
pub fn devices(held: &[MovedNic], host: &Snapshot) -> Vec<Step> {
    let mut steps = Vec::new();
    for was in held.iter().map(|h| &h.before.netdev) {
        let is = host.netdev(&was.name);
        steps.extend(is.and_then(|is| device_differences(Side::Host, was, is)));
    }
    steps
}

/// A NIC's way out of the container.
struct Out<'a> {
    /// What would keep it there, or travel along with it.
    first: Vec<Step>,
    /// Nothing for a virtual one. Root in the container could have put another link in its place:
    /// it is made again on the host.
    leaving: Option<Leaving<'a>>,
    then: Vec<Step>,
}

fn from_container<'a>(
    held: &MovedNic,
    dev: &'a Netdev,
    made: Option<VirtualLink>,
    seen: Seen,
) -> Out<'a> {
    let was = &held.before.netdev;
    let leaving = Leaving {
        from: Side::Inside,
        netdev: dev,
        name: was.name.clone(),
        ifindex: Some(was.ifindex),
    };
    let mut first: Vec<Step> = delete_rxe_link(held, seen).into_iter().collect();
    first.extend(leave_groups(Side::Inside, dev));
    match &made {
        Some(_) => first.push(Step::Delete {
            side: Side::Inside,
            dev: dev.name.clone(),
        }),
        None => first.extend(release(was, dev)),
    }
    let mut then = made
        .as_ref()
        .map_or_else(|| set_up(held, dev), |made| recreate(held, made));
    then.extend(add_rxe_link(held));
    Out {
        first,
        leaving: made.is_none().then_some(leaving),
        then,
    }
}

fn release(was: &Netdev, dev: &Netdev) -> Vec<Step> {
    let mut steps: Vec<Step> = foreign_programs(Side::Inside, was, dev)
        .into_iter()
        .collect();
    if dev.master.is_some() {
        steps.push(Step::Release {
            side: Side::Inside,
            dev: dev.name.clone(),
        });
    }
    // An alternative name might be the name that the NIC needs.
    steps.extend(foreign_altnames(Side::Inside, was, dev));
    steps
}

/// On the host: everything that a move destroys.
fn set_up(held: &MovedNic, dev: &Netdev) -> Vec<Step> {
    let was = &held.before.netdev;
    let mut steps: Vec<Step> = lost_altnames(was, dev).collect();
    steps.extend(link_settings(Side::Host, was, dev));
    steps.extend(lost_programs(Side::Host, was, dev));
    steps.extend(configure(
        Side::Host,
        &upper_lower::without_master_up(&held.before),
        was.sysctls.clone(),
    ));
    steps
}

/// Deletes the soft-RoCE link of a NIC that is inside. Where devices belong to one namespace each,
/// one that was just made is still in the initial one.
fn delete_rxe_link(held: &MovedNic, (host, inside): Seen) -> Option<Step> {
    let hca = held.nic.hca.as_ref().filter(|_| held.nic.rxe)?;
    let mut sides = [(Side::Inside, inside), (Side::Host, Some(host))].into_iter();
    let (side, _) = sides.find(|(_, s)| s.and_then(|s| s.hca(hca)).is_some_and(Hca::is_rxe))?;
    Some(Step::RdmaLinkDelete {
        side,
        hca: hca.clone(),
    })
}

/// Creates the soft-RoCE link of a NIC again on the host.
fn add_rxe_link(held: &MovedNic) -> Option<Step> {
    let hca = held.nic.hca.clone().filter(|_| held.nic.rxe)?;
    Some(Step::RdmaLinkAdd {
        side: Side::Host,
        hca,
        dev: held.before.netdev.name.clone(),
        uverbs: None,
    })
}

/// Makes a virtual NIC again: its container's namespace took it along, or the container deleted it.
fn recreate(held: &MovedNic, made: &VirtualLink) -> Vec<Step> {
    let side = Side::Host;
    let mut steps = upper_lower::create_steps(side, held, made.clone());
    steps.extend(configure(
        side,
        &held.before,
        held.before.netdev.sysctls.clone(),
    ));
    steps
}

/// The same, where it has gone.
fn add_lost_rxe_link(held: &MovedNic, host: &Snapshot) -> Option<Step> {
    add_rxe_link(held).filter(|_| held.nic.hca.as_ref().is_some_and(|h| host.hca(h).is_none()))
}
