//! What is left of containers and of others that configure the same network.

use rdma_model::escape::shell_word;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Rule, Snapshot};

use super::facts::{Stale, Unread};
use super::{Check, CheckContext, Finding, Severity, join};
use crate::link_managers::advice::{self, Present};

pub(super) fn records(context: &CheckContext) -> Vec<Finding> {
    let one = |t: &super::facts::Trace| {
        let nics = t.nics.join(" ");
        let (severity, seen, why) = match t.stale? {
            Stale::Damaged => (
                Severity::Breaks,
                format!("the record {} cannot be used", t.id),
                "NICs that it speaks of are away, and what they were like is not known",
            ),
            // The next create hook that wants them restores them first.
            Stale::Abandoned => (
                Severity::Warning,
                format!("container {} has died, and {nics} are still away", t.id),
                match context.of.machine.is_some_and(|machine| machine.timer) {
                    true => {
                        "the host lacks them until rdmaprep-stale.timer runs, or the next \
                        container asks for them"
                    }
                    false => "the host lacks them until the next container asks for them",
                },
            ),
            Stale::Lingering => (
                Severity::Warning,
                format!(
                    "container {} has died, and {nics} are away with a process that it has left",
                    t.id
                ),
                "no other container gets these NICs, and they are not restored as long as that \
                process lives",
            ),
            Stale::Unfinished => (
                Severity::Warning,
                format!(
                    "{nics} are on their way to container {} or back, and no hook is at work: it \
                    was killed",
                    t.id
                ),
                "where they are is not sure, and the container may do without some",
            ),
            Stale::AtWork => (
                Severity::Unknown,
                format!(
                    "{nics} are on their way to container {} or back: rdmaprep is at work",
                    t.id
                ),
                "where they are is known when it is done",
            ),
        };
        let (seen, why) = held_back(t).unwrap_or((seen, why));
        let command = match t.stale {
            Some(Stale::Abandoned) => Some("rdmaprep restore --all --stale".to_owned()),
            Some(Stale::Lingering | Stale::Unfinished) => {
                Some(format!("rdmaprep restore {}", shell_word(&t.id)))
            }
            _ => None,
        };
        let fix = match t.stale {
            Some(Stale::AtWork) => "ask again in a moment",
            Some(Stale::Abandoned) => {
                "return the NICs of all containers that have died to the host"
            }
            Some(Stale::Unfinished) => "stop the container, or restore them while it runs",
            _ => &t.advice,
        };
        let found = Finding::new(Check::StaleRecords, severity, seen, why, fix);
        Some(Finding {
            run: command.into_iter().collect(),
            ..found
        })
    };
    context.of.traces.iter().filter_map(one).collect()
}

/// What is known of NICs that did not return whole: no other container gets them like that.
fn held_back(t: &super::facts::Trace) -> Option<(String, &'static str)> {
    let tried = matches!(
        t.stale,
        Some(Stale::Abandoned | Stale::Lingering | Stale::Unfinished)
    );
    let seen = format!(
        "{} of container {} are held back: {}",
        t.nics.join(" "),
        t.id,
        t.held_back.join("; ")
    );
    let why = "no container gets them before they are what they were";
    (tried && !t.held_back.is_empty()).then_some((seen, why))
}

/// What makes a rule one of a tunnel, a VRF or a policy of the administrator's: FRA_IIFNAME,
/// FRA_FWMARK, FRA_TUN_ID, FRA_OIFNAME, FRA_L3MDEV, FRA_UID_RANGE, FRA_IP_PROTO, FRA_SPORT_RANGE
/// and FRA_DPORT_RANGE of include/uapi/linux/fib_rules.h.
const OTHERS: [u16; 9] = [3, 10, 12, 17, 19, 20, 22, 23, 24];

pub(super) fn rules(context: &CheckContext) -> Vec<Finding> {
    let snapshot = context.of.snapshot;
    if context
        .of
        .traces
        .iter()
        .any(|t| t.stale == Some(Stale::Damaged))
    {
        // Whose tables are empty by right is not known; that record is reported.
        return Vec::new();
    }
    // Routes of a table go with their NIC, and a rule for all of a subnet stays: it is the
    // administrator's.
    let lent = |table| context.of.traces.iter().any(|t| t.tables.contains(&table));
    let one = |r: &Rule| {
        let what = orphaned(r, snapshot).filter(|_| !lent(r.table))?;
        let family = if r.family == 6 {
            "ip -6 rule"
        } else {
            "ip rule"
        };
        let why = "it takes a number that rails need, and the next who gets that address or table \
            gets its effect";
        let found = Finding::new(
            Check::OrphanedRules,
            Severity::Warning,
            format!("the rule {r} leads nowhere: {what}"),
            why,
            "delete it, unless a program is about to fill the table",
        );
        Some(found.run(format!("{family} delete {r}")))
    };
    snapshot.rules.iter().filter_map(one).collect()
}

fn orphaned(rule: &Rule, snapshot: &Snapshot) -> Option<String> {
    // A captured tree tells no routes.
    // One of an address has one: of whose it is nothing is known, such as a pod's, but rails have
    // such rules.
    if !rule.leads_to_own_table()
        || rule.source.is_none()
        || OTHERS.iter().any(|kind| rule.other.contains_key(kind))
    {
        return None;
    }
    let v6 = rule.family == 6;
    let filled = |r: &rdma_model::snapshot::Route| {
        r.table == rule.table && r.destination.addr().is_ipv6() == v6
    };
    (!snapshot.routes.iter().any(filled)).then(|| format!("table {} is empty", rule.table))
}

/// What could not be read: of that nothing is known to be well.
pub(super) fn unread(context: &CheckContext) -> Vec<Finding> {
    let one = |unread: &Unread| {
        Some(match unread {
            // Where containers have their NICs, nothing is in doubt: see [`super::plans::engines`].
            Unread::Engines(_) => return None,
            Unread::Plan(why) => {
                let fix = "remove the file, and prepare the plan again";
                Finding::new(Check::Plans, Severity::Breaks, why, super::plans::WHY, fix)
            }
            Unread::PastPlan(name) => {
                let fix = "prepare it again as it was, and the bundles that have it; where \
                    nothing uses it: remove its file";
                let seen = format!("plan {name} was made before the last boot");
                Finding::new(Check::Plans, Severity::Breaks, seen, super::plans::WHY, fix)
            }
            Unread::Nccl(why) => {
                let fix = "look into that file";
                let what = "what NCCL makes of the HCAs follows from what it says";
                Finding::new(Check::Nccl, Severity::Unknown, why, what, fix)
            }
            Unread::Userspace(why) => {
                let fix = "run ibv_devinfo in the container";
                let what = "whether NCCL finds libibverbs there, and that its HCAs, is not known";
                let seen = format!("the libraries of the image are unknown: {why}");
                Finding::new(Check::Userspace, Severity::Unknown, seen, what, fix)
            }
        })
    };
    context
        .of
        .machine
        .iter()
        .flat_map(|m| &m.unread)
        .filter_map(one)
        .collect()
}

/// Programs that configure links, and do not leave restored ones alone; not those that configure
/// NICs which no plan and no flag names.
pub(super) fn managers(context: &CheckContext) -> Vec<Finding> {
    let Some(machine) = context.of.machine else {
        return Vec::new();
    };
    let rails = context.rails();
    let ours = rails.iter().filter(|r| context.asks_for(r.name()));
    let names: Vec<&str> = ours.map(|r| r.name().as_str()).collect();
    // An installation is the whole of what is kept off: those that are with containers now, too.
    let planned = context
        .of
        .plans
        .iter()
        .flat_map(|p| p.rails())
        .map(|n| &n.identity.name);
    let held = context.of.held.iter().map(|h| &h.netdev);
    let mut all: Vec<&str> = Vec::new();
    for name in context
        .of
        .request
        .select
        .ifaces
        .iter()
        .chain(planned)
        .chain(held)
        .map(IfName::as_str)
    {
        all.extend((!all.contains(&name)).then_some(name));
    }
    let one = |m: &super::facts::Managing| {
        let spares = m.spares.iter().chain(&m.configures).cloned().collect();
        let present = Present {
            manager: m.manager,
            spares,
        };
        let (who, its, _) = advice::kept_off(&present, &names)?;
        let seen = format!("{who} manages {}", join(&its));
        let why = "it configures and renames a NIC the moment that it is restored, or brings an \
            address of its own into the way";
        let fix = "have `rdmaprep install` keep it off these, and off all others that it shall \
            leave alone; the addresses that it gave go with it, and are not there after a boot: \
            see to these";
        let found = Finding::new(Check::RenameFights, Severity::Warning, seen, why, fix);
        Some(Finding {
            run: advice::keep_off(m.manager, &all),
            ..found
        })
    };
    let deletes_rules = !names.is_empty() && machine.managers.iter().any(|m| m.deletes_rules);
    machine
        .managers
        .iter()
        .filter_map(one)
        .chain(deletes_rules.then(lost_rules))
        .collect()
}

/// ManageForeignRoutingPolicyRules= in networkd.conf(5).
fn lost_rules() -> Finding {
    let seen = "systemd-networkd deletes routing rules that it has not made, of any NIC, whenever \
        a link appears";
    let why = "each end of a container returns NICs: until the stop hook has put the rules back, \
        traffic goes by other tables";
    let fix = "have it leave them alone: `rdmaprep install` writes a file of two lines";
    let found = Finding::new(
        Check::RenameFights,
        Severity::Warning,
        seen.to_owned(),
        why,
        fix,
    );
    let install = "rdmaprep install --network-managers".to_owned();
    Finding {
        run: vec![install, "systemctl try-restart systemd-networkd".to_owned()],
        ..found
    }
}
