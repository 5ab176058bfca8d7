//! After a restore: a link manager of this host sees NICs appear, and may configure them its own way.

use rdma_model::drift::Drift;
use rdma_model::moved_nic::MovedNic;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::{NicState, Side};

use super::arrange::arrange;
use super::{SETTLE, nic_names};
use crate::apply::apply_all;
use crate::kernel::link_managers::advice::{Outcome, Present, sentence};
use crate::kernel::{Defaults, Scope, World, link_managers};
use crate::precedence::Precedence;
use crate::restore::plan::{devices, plan_restore};
use crate::verify;

/// Between two observations that must be equal, where a link manager may be about to change what was restored. A restore that
/// none disturbs takes this much longer there.
const MOMENT: Duration = Duration::from_millis(50);
/// Between observations where only the kernel may still be busy.
const PAUSE: Duration = Duration::from_millis(20);
/// udev's events may be of anything: what it does to our NICs comes first.
const UDEV: Duration = Duration::from_millis(500);
/// networkd waits for a carrier with some of what it does.
const NETWORKD: Duration = Duration::from_secs(1);

/// NICs that do not change any more.
#[derive(Debug, Default)]
pub struct Settled {
    /// Where they are not what they were.
    pub drift: Vec<Drift>,
    /// What a link manager changed meanwhile, and which one.
    pub fought: Option<String>,
    /// Which device settings had been changed, a sentence for each NIC.
    pub notes: Vec<String>,
}

/// Waits until NICs do not change any more. `root` has the files of link managers.
pub fn settle(
    world: &mut dyn World,
    root: &Path,
    held: &[MovedNic],
    order: &Precedence,
    patience: Duration,
) -> Result<Settled> {
    let mut restored = None;
    let settled = wait_until_stable(world, root, held, order, patience, &mut restored)?;
    Ok(Settled { notes: restored.unwrap_or_default(), ..settled })
}

/// At the first observation of devices, sets back what was set on them: that takes no waiting.
fn restore_devices(
    world: &mut dyn World,
    held: &[MovedNic],
    host: &Snapshot,
    restored: &mut Option<Vec<String>>,
) -> bool {
    if restored.is_some() {
        return false;
    }
    let steps = devices(held, host);
    let changed = |h: &MovedNic| {
        let drift = verify::device_drift(&h.before.netdev, host.netdev(&h.nic.identity.name)?);
        let fields = drift.iter().map(|d| d.field.as_str()).collect::<Vec<_>>().join(", ");
        (!drift.is_empty()).then(|| format!("{} had other device settings: {fields}", h.nic.identity.name))
    };
    *restored = Some(held.iter().filter_map(changed).collect());
    // What is refused stays drift.
    apply_all(&steps, world, Instant::now() + SETTLE);
    !steps.is_empty()
}

/// Observes until two observations in a row are equal (one will do without a link manager), restores once more what differs, and
/// waits for what the kernel does by itself.
fn wait_until_stable(
    world: &mut dyn World,
    root: &Path,
    held: &[MovedNic],
    order: &Precedence,
    patience: Duration,
    restored: &mut Option<Vec<String>>,
) -> Result<Settled> {
    let whole = Scope { defaults: Defaults::Unread, ..Scope::for_nics(nic_names(held)) };
    // A device has five files for each queue to be read: no other part of an observation takes as long.
    let brief = Scope { devices: Vec::new(), ..whole.clone() };
    let states: Vec<NicState> = held.iter().map(|h| h.before.clone()).collect();
    let begun = Instant::now();
    let watched = !link_managers::present(root).is_empty();
    let mut last: Option<Vec<Drift>> = None;
    let (mut put_back, mut failed): (Option<Vec<Drift>>, bool) = (None, false);
    // What there was nothing to do about.
    let mut idle: Option<Vec<Drift>> = None;
    loop {
        // Where there are two observations at least, the second one finds what a manager has set on devices, too.
        let is_brief = watched && restored.is_none() && last.is_none() && begun.elapsed() < patience;
        let host = world.observe(Side::Host, if is_brief { &brief } else { &whole })?;
        if !is_brief && restore_devices(world, held, &host, restored) {
            continue;
        }
        let mut drift = verify::drift(&states, &host);
        drift.extend(verify::rdma_drift(held, &host));
        drift.extend(order.drift(&host));
        let over = begun.elapsed() >= patience;
        let waited = begun.elapsed();
        let busy = watched
            && (waited < UDEV && link_managers::busy(root)
                || waited < NETWORKD && link_managers::configures(root, &indices(held, &host)));
        let still = !is_brief && (over || !watched || (last.as_ref() == Some(&drift) && !busy));
        match &put_back {
            // A namespace that has yet to end may keep what a step needs: what fails is tried again.
            None if over && idle.as_ref() == Some(&drift) => return Ok(Settled { drift, ..Settled::default() }),
            first
                if still
                    && idle.as_ref() != Some(&drift)
                    && !drift.is_empty()
                    && (first.is_none() || failed && !over) =>
            {
                std::thread::sleep(if failed { PAUSE } else { Duration::ZERO });
                let had_steps;
                (had_steps, failed) = restore_once_more(world, held, order, &host);
                // Without steps, what lacks is still to come from the kernel; a manager may change something yet.
                if had_steps {
                    put_back.get_or_insert(drift);
                    last = None;
                    continue;
                }
                if over {
                    return Ok(Settled { drift, ..Settled::default() });
                }
                idle = (!failed).then(|| drift.clone());
            }
            Some(first) if over && !drift.is_empty() => {
                let fought =
                    if first.is_empty() { None } else { describe_changes(&drift, Outcome::Lost, root, held, &host) };
                return Ok(Settled { drift, fought, ..Settled::default() });
            }
            _ if still && drift.is_empty() => {
                let first = put_back.unwrap_or_default();
                let fought = describe_changes(&first, Outcome::PutBack, root, held, &host);
                return Ok(Settled { drift, fought, ..Settled::default() });
            }
            _ => {}
        }
        last = Some(drift);
        std::thread::sleep(if watched { MOMENT } else { PAUSE });
    }
}

/// Plans the restore again from what is there, and does it. Returns whether there was something to do (what is still to come from
/// the kernel has no steps), and whether any step failed, as where a manager removes what the next one needs.
fn restore_once_more(world: &mut dyn World, held: &[MovedNic], order: &Precedence, host: &Snapshot) -> (bool, bool) {
    // What a failed step left there is not created again here.
    let inside = match world.has_inside().then(|| world.observe(Side::Inside, &Scope::links())) {
        Some(Ok(inside)) => Some(inside),
        // Root there can make it hard to observe: nothing is taken for gone that may still be there.
        Some(Err(_)) => return (false, true),
        None => None,
    };
    let steps = plan_restore(held, host, inside.as_ref()).steps;
    let failed = apply_all(&steps, world, Instant::now() + SETTLE);
    if order.is_empty() {
        return (!steps.is_empty(), !failed.is_empty());
    }
    let arranged = world.observe(Side::Host, &Scope::links()).and_then(|now| arrange(world, Side::Host, order, &now));
    let Ok(arranged) = arranged else { return (!steps.is_empty(), true) };
    (steps.len() + arranged.steps > 0, !failed.is_empty() || !arranged.errors.is_empty())
}

/// The indices of our links by now.
fn indices(held: &[MovedNic], host: &Snapshot) -> Vec<u32> {
    let index = |h: &MovedNic| host.netdev(&h.nic.identity.name).map_or(h.before.netdev.ifindex, |dev| dev.ifindex);
    held.iter().map(index).collect()
}

fn describe_changes(
    changed: &[Drift],
    outcome: Outcome,
    root: &Path,
    held: &[MovedNic],
    host: &Snapshot,
) -> Option<String> {
    let names = held.iter().map(|h| h.nic.identity.name.clone());
    let links: Vec<(IfName, u32)> = names.zip(indices(held, host)).collect();
    let present = |manager| Present {
        manager,
        spares: links
            .iter()
            .filter(|(_, i)| link_managers::spares(root, manager, *i))
            .map(|(n, _)| n.clone())
            .collect(),
    };
    let all: Vec<Present> = link_managers::present(root).into_iter().map(present).collect();
    sentence(changed, outcome, &all)
}
