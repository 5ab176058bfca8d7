//! What is left of containers and of others that configure the same network.

use rdma_model::escape::shell_word;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Route, Rule, Snapshot};

use super::facts::{Machine, Stale, Unread};
use super::{Check, CheckContext, Finding, Severity, join};
use crate::link_managers::Unordered;
use crate::link_managers::advice::{self, Present};
use crate::select::Configuring;
use crate::store::claims::{BoundClaim, State};

pub(super) fn records(context: &CheckContext, machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for t in context.of.traces {
        let nics = t.nics.join(" ");
        let Some(stale) = t.stale else {
            continue;
        };
        let (severity, seen, why) = match stale {
            Stale::Damaged => (
                Severity::Breaks,
                format!("the record {} cannot be used", t.id),
                "NICs that it speaks of are away, and what they were like is not known",
            ),
            Stale::Unrecorded => (
                Severity::Breaks,
                format!(
                    "the namespace {} has links, and no record says of which container",
                    t.id
                ),
                "no restore brings NICs back from there",
            ),
            // The next create hook that wants them restores them first.
            Stale::Abandoned if t.here == t.nics => (
                Severity::Warning,
                format!(
                    "container {} has died, and a restore of {nics} was killed: back on the host, \
                    maybe not whole",
                    t.id
                ),
                "no container gets them before they are whole",
            ),
            Stale::Abandoned => (
                Severity::Warning,
                format!("container {} has died, and {nics} are still away", t.id),
                match machine.timer {
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
            Stale::Waiting => (
                Severity::Warning,
                t.held_back.join("; "),
                "until then a NIC may lack what it had before a container",
            ),
        };
        let held_back = held_back(t);
        let is_held_back = held_back.is_some();
        let (severity, seen, why) = held_back.unwrap_or((severity, seen, why));
        let run = match stale {
            Stale::Abandoned => vec!["rdmaprep restore --all --stale".to_owned()],
            Stale::Lingering | Stale::Unfinished => {
                vec![format!("rdmaprep restore {}", shell_word(&t.id))]
            }
            _ => Vec::new(),
        };
        let fix = match stale {
            Stale::AtWork => "ask again in a moment",
            Stale::Abandoned if is_held_back => "settle that, then restore them",
            Stale::Abandoned if t.here == t.nics => "have put back what they lack",
            Stale::Abandoned => "return the NICs of all containers that have died to the host",
            Stale::Unfinished => "stop the container, or restore them while it runs",
            _ => &t.advice,
        };
        found.push(Finding {
            run,
            ..Finding::new(Check::StaleRecords, severity, seen, why, fix)
        });
    }
    let claims = context.of.machine.iter().flat_map(|m| &m.claims);
    found.extend(claims.filter_map(claim));
    found
}

/// From the preparation of a claim to its pod's first container: images may be large.
const STARTS: u64 = 30;

/// A claim that keeps NICs from others, and that no container uses.
fn claim(claim: &BoundClaim) -> Option<Finding> {
    let rails = claim.rails.join(" ");
    let of = claim.pod.as_deref().unwrap_or("an unknown pod");
    let name = claim.claim.as_deref().unwrap_or(&claim.uid);
    let release = "delete its pod; where rdmaprep-dra does not run, release the claim";
    let alone = "no other container gets these NICs";
    let (severity, seen, why, fix) = match (&claim.why, claim.state) {
        (Some(why), _) => (
            Severity::Breaks,
            why.clone(),
            "no container gets a NIC: which ones claims have is not known",
            "release the claim once no pod of it runs",
        ),
        _ if claim.minutes < STARTS => return None,
        (None, State::Ended) => {
            let seen = format!("pod {of} has ended, and its claim {name} still keeps {rails}");
            (Severity::Warning, seen, alone, release)
        }
        (None, State::Prepared) => {
            let minutes = claim.minutes;
            let seen = format!(
                "the claim {name} of pod {of} keeps {rails} for {minutes} minutes, and no \
                container of it has them"
            );
            (Severity::Warning, seen, alone, release)
        }
        _ => return None,
    };
    let run = format!("rdmaprep claims release {}", claim.uid);
    Some(Finding::new(Check::StaleRecords, severity, seen, why, fix).run(run))
}

/// What is known of NICs that did not return whole: no other container gets them like that.
fn held_back(t: &super::facts::Trace) -> Option<(Severity, String, &'static str)> {
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
    (tried && !t.held_back.is_empty()).then_some((Severity::Breaks, seen, why))
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
        .any(|t| matches!(t.stale, Some(Stale::Damaged | Stale::Unrecorded)))
    {
        // Whose tables are empty by right is not known; that record is reported.
        return Vec::new();
    }
    // Routes of a table go with their NIC, and a rule for all of a subnet stays: it is the
    // administrator's.
    let lent: Vec<u32> = context
        .of
        .traces
        .iter()
        .flat_map(|t| t.tables.clone())
        .collect();
    let mut managers = context.of.machine.iter().flat_map(|m| &m.managers);
    let has_manager = managers.next().is_some();
    let mut found = Vec::new();
    for r in &snapshot.rules {
        // It is in a profile, and goes with that.
        let is_managers = has_manager && r.is_static();
        let Some(what) = orphaned(r, snapshot).filter(|_| !is_managers && !lent.contains(&r.table))
        else {
            continue;
        };
        let family = if r.family == 6 {
            "ip -6 rule"
        } else {
            "ip rule"
        };
        let why = "it does nothing now; when the table has routes again, it decides the way of who \
            has that address by then";
        let seen = format!("{what}, and a rule leads there: {r}");
        if let Some((name, at_work)) = unfinished(context, r) {
            let (state, until) = (at_work.state(), at_work.until(name));
            let seen = format!("{seen}; it may be for {name}: {state}");
            let fix = format!("{until}; delete the rule only if the table is empty then");
            let check = Check::OrphanedRules;
            found.push(Finding::new(check, Severity::Unknown, seen, why, fix));
            continue;
        }
        let fix = "delete the rule, unless a program has yet to fill the table";
        let one = Finding::new(Check::OrphanedRules, Severity::Warning, seen, why, fix);
        found.push(one.run(format!("{family} delete {r}")));
    }
    found
}

/// A NIC that its manager has still to configure: the routes of a table come after an address. The
/// one with the rule's source comes first.
fn unfinished<'a>(context: &'a CheckContext, rule: &Rule) -> Option<(&'a IfName, &'a Configuring)> {
    let source = rule.source?.addr();
    let planned = context.of.plans.iter().flat_map(|plan| &plan.nics);
    let mut owners = planned.filter(|n| n.addresses.iter().any(|a| a.address == source));
    let owner = owners.next().map(|nic| nic.name());
    let managers = context.of.machine?.managers.iter();
    let all = managers.flat_map(|m| &m.at_work);
    all.min_by_key(|(name, _)| Some(*name) != owner)
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
    let routes = snapshot.routes.iter().filter(|r| r.table == rule.table);
    let (own, others): (Vec<&Route>, Vec<&Route>) =
        routes.partition(|r| r.destination.addr().is_ipv6() == v6);
    let what = match others.is_empty() {
        true => "is empty".to_owned(),
        false => format!("has no routes of IPv{}", if v6 { 6 } else { 4 }),
    };
    own.is_empty()
        .then(|| format!("table {} {what}", rule.table))
}

/// What could not be read: of that nothing is known to be well.
pub(super) fn unread(context: &CheckContext) -> Vec<Finding> {
    let mut found = Vec::new();
    for unread in context.of.machine.iter().flat_map(|m| &m.unread) {
        found.push(match unread {
            // Where containers have their NICs, nothing is in doubt: see [`super::plans::engines`].
            Unread::Engines(_) => continue,
            Unread::Config(why) => {
                let what = "no container gets a NIC: hooks refuse such a file";
                let fix = "correct that line, or comment it out";
                Finding::new(Check::Plans, Severity::Breaks, why, what, fix)
            }
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
        });
    }
    found
}

/// Programs that configure links, and do not leave restored ones alone; not those that configure
/// NICs which no plan and no flag names.
pub(super) fn managers(context: &CheckContext, machine: &Machine) -> Vec<Finding> {
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
    let mut found = Vec::new();
    for m in &machine.managers {
        let present = Present {
            manager: m.manager,
            spares: m.spares.clone(),
            configures: m
                .configures
                .iter()
                .chain(m.at_work.keys())
                .cloned()
                .collect(),
        };
        let Some((who, its, _)) = advice::kept_off(&present, &names) else {
            continue;
        };
        let seen = format!("{who} manages {}", join(&its));
        let why = "it configures and renames a NIC the moment that it is restored, or brings an \
            address of its own into the way";
        let fix = "have `rdmaprep install` keep it off these, and off all others that it shall \
            leave alone; the addresses that it gave go with it, and are not there after a boot: \
            see to these";
        found.push(Finding {
            run: advice::keep_off(m.manager, &all),
            ..Finding::new(Check::RenameFights, Severity::Warning, seen, why, fix)
        });
    }
    if !names.is_empty() && machine.managers.iter().any(|m| m.deletes_rules) {
        found.push(lost_rules());
    }
    let all = machine.managers.iter().flat_map(|m| &m.unordered);
    let unordered = all.filter(|u| u.nics.iter().filter(|n| context.asks_for(n)).count() > 1);
    found.extend(unordered.map(other_preference));
    found
}

fn other_preference(unordered: &Unordered) -> Finding {
    let why = "it numbers the metrics of its routes in the order in which links come up: which NIC \
        is preferred may be another one when they are back from a container";
    let fix = "have the profiles keep the metrics that they have now";
    Finding {
        run: unordered.commands.clone(),
        ..Finding::new(
            Check::RenameFights,
            Severity::Warning,
            unordered.seen(),
            why,
            fix,
        )
    }
}

/// ManageForeignRoutingPolicyRules= in networkd.conf(5).
fn lost_rules() -> Finding {
    let seen = "systemd-networkd deletes routing rules that it has not made, of any NIC, whenever \
        a link appears";
    let why = "each end of a container returns NICs: until the stop hook has put the rules back, \
        traffic goes by other tables";
    let fix = "have it leave them alone: `rdmaprep install` writes the file, if each rule in \
        .network files has a Priority=";
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
