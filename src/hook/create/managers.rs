//! Who configures the NICs of a plan: what is yet to be done, and what a restore has to know.

use anyhow::Result;
use rdma_model::effect::missing_addresses;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::manager::{Managed, Manager};
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Rule, Snapshot};
use rdma_model::step::NicState;

use crate::link_managers::Managers;
use crate::plan::Plan;
use crate::select::Awaits;

/// That every planned address is there, where a manager has yet to configure its NIC;
/// [`ErrorClass::Locked`] says which one, [`ErrorClass::Refused`] that an administrator keeps
/// it from that.
pub(super) fn check_managers_are_done(
    plan: &Plan,
    host: &Snapshot,
    managers: &mut Managers,
) -> Result<()> {
    for nic in &plan.nics {
        let Some(now) = NicState::of(host, nic.name()) else {
            continue;
        };
        let missing = missing_addresses(&nic.addresses, &now.netdev.addresses);
        let Some(missing) = missing.first() else {
            continue;
        };
        if let Some(at_work) = managers.at_work(&now.netdev) {
            let (name, address, prefix) = (nic.name(), missing.address, missing.prefix);
            let (state, until) = (at_work.state(), at_work.until(name));
            let class = match at_work.awaits {
                Awaits::Connection => ErrorClass::Refused,
                _ => ErrorClass::Locked,
            };
            let text = format!("{name} has no {address}/{prefix} yet: {state}; {until}");
            return Err(class.error(text));
        }
    }
    Ok(())
}

/// That it is known who configures the NICs. Else a restore would put the addresses back itself,
/// and NetworkManager takes such a NIC for one that others configure. [`ErrorClass::Locked`] says
/// which.
pub(super) fn check_managers_are_known(held: &[MovedNic], managers: &mut Managers) -> Result<()> {
    for MovedNic {
        before, managed, ..
    } in held
    {
        if managed.as_ref().is_some_and(is_known) {
            continue;
        }
        if let Some(why) = managers.why_unknown(&before.netdev, managed.is_some()) {
            let text = format!(
                "NetworkManager has {}, and {why}: how that is to come back is not known",
                before.netdev.name
            );
            return Err(ErrorClass::Locked.error(text));
        }
    }
    Ok(())
}

/// Whether the manager could be asked, NetworkManager also which profile the NIC has.
fn is_known(managed: &Managed) -> bool {
    let has_profile = managed.uuid.is_some() || managed.by == Manager::Networkd;
    managed.was_asked() && has_profile
}

/// Records who configures the NIC, or which profiles NetworkManager does not activate on it. A
/// manager deletes the rules that it made for the NIC's tables when the NIC leaves, NetworkManager
/// all that it made: such rules are recorded as the NIC's, whatever network they are for.
pub(super) fn record_manager_and_its_rules(
    held: &mut MovedNic,
    leaving: &[IfName],
    host: &Snapshot,
    managers: &mut Managers,
) {
    // Rules beside the NIC's own that the manager may have made: it is asked of all at once.
    let to_tables = held.before.rules_to_tables(host, leaving);
    let mut applied = managers.applied_rules(&held.before.netdev, &host.rules);
    applied.retain(|r| !held.before.rules.contains(r));
    let mut asked = held.before.clone();
    asked
        .rules
        .extend(to_tables.iter().chain(&applied).cloned());
    held.managed = managers.managed(&asked);
    let Some(managed) = &held.managed else {
        held.ended_profiles = managers.ended_profiles(&held.before.netdev);
        return;
    };
    let of_manager = to_tables.iter().filter(|r| makes_again(managed, r));
    // What NetworkManager applies and no profile has: it was given that by `nmcli device modify`.
    // The profile's own to other tables are left out: they come with it, and may be another NIC's
    // as well.
    let given_at_run_time = applied.iter().filter(|r| !makes_again(managed, r));
    let added: Vec<Rule> = of_manager.chain(given_at_run_time).cloned().collect();
    held.before.rules.extend(added);
}

/// Whether a manager makes a rule again with the NIC; where it was not asked, a static one.
fn makes_again(managed: &Managed, rule: &Rule) -> bool {
    match managed.was_asked() {
        true => managed.owns_rule(rule),
        false => rule.is_static(),
    }
}
