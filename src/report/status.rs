//! What `rdmaprep status` shows: who holds NICs, and which hooks failed lately.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use rdma_model::escape::count;
use rdma_model::ids::IfName;
use serde::Serialize;

use super::tables::wrapped;
use super::unstored::{self, Unstored};
use super::{Report, claims, printable, printable_lines};
use crate::handle::Handle;
use crate::record;
use crate::store::claims::{BoundClaim, State};

/// How long a failure is shown, in seconds, and how many are.
const RECENT: u64 = 3600;
const MAX_FAILURES: usize = 3;
const MAX_RETURNED: usize = 3;

#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub holders: Vec<Holder>,
    /// Prepared claims of Kubernetes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<BoundClaim>,
    /// Plans of the config file that are not stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unstored: Vec<Unstored>,
    /// Those that are solved come last, and the newest first.
    pub failures: Vec<Failed>,
    /// What came back in the last hour, the newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub returned: Vec<Returned>,
    /// Records that cannot be read: a warning says of each what is known.
    #[serde(skip)]
    pub unread: usize,
}

/// A hook, or `rdmaprep spec`, that failed: many engines pass on no more than its exit status.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    pub command: String,
    /// Where it is known.
    pub container: Option<String>,
    /// As its engine calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Seconds since 1970.
    pub time: u64,
    /// Whether the same has succeeded since, for another container of the plan.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub solved: bool,
    pub exit_code: u8,
    pub message: String,
    /// The file of its report.
    pub report: String,
}

/// NICs that came back.
#[derive(Clone, Debug, Serialize)]
pub struct Returned {
    pub nics: Vec<IfName>,
    /// Who had them.
    pub container: String,
    /// Seconds since 1970.
    pub time: u64,
    pub seconds_ago: u64,
    /// A sentence without its full stop.
    pub why: String,
}

impl Failed {
    /// The failures of the last hour among these reports, each with its file.
    pub fn recent(reports: &[(String, Report)], now: u64) -> Vec<Failed> {
        let mut failures = Vec::new();
        for (file, report) in reports.iter().filter(|(_, r)| r.exit_code != 0) {
            let Some(time) = report.time.filter(|time| is_recent(*time, now)) else {
                continue;
            };
            failures.push(Failed {
                command: report.command.clone(),
                container: report.container.clone(),
                name: None,
                time,
                solved: reports.iter().any(|(_, later)| solves(later, report)),
                exit_code: report.exit_code,
                message: report.message.clone().unwrap_or_default(),
                report: file.clone(),
            });
        }
        failures.sort_by_key(|f| std::cmp::Reverse(f.time));
        let (solved, mut open): (Vec<Failed>, Vec<Failed>) =
            failures.into_iter().partition(|f| f.solved);
        open.truncate(MAX_FAILURES);
        open.extend(solved);
        open
    }
}

fn is_recent(time: u64, now: u64) -> bool {
    now.abs_diff(time) < RECENT
}

fn solves(later: &Report, failed: &Report) -> bool {
    later.exit_code == 0
        && !later.nics.is_empty()
        && later.time > failed.time
        && failed.plan.is_some()
        && (&later.command, &later.plan) == (&failed.command, &failed.plan)
}

impl Returned {
    /// What came back in the last hour, by these reports.
    pub fn recent(reports: &[(String, Report)], now: u64) -> Vec<Returned> {
        let mut all: Vec<Returned> = Vec::new();
        for (_, report) in reports.iter().filter(|(_, report)| has_returned(report)) {
            let Some(time) = report.time.filter(|time| is_recent(*time, now)) else {
                continue;
            };
            let container = report.container.clone().unwrap_or_default();
            all.push(Returned {
                nics: report.nics.clone(),
                why: why(report, record::short_id(&container)),
                container,
                time,
                seconds_ago: now.saturating_sub(time),
            });
        }
        all.sort_by_key(|returned| std::cmp::Reverse(returned.time));
        all.truncate(MAX_RETURNED);
        all
    }
}

fn has_returned(report: &Report) -> bool {
    let has_moved = report.exit_code == 0 && report.steps_done > 0;
    has_moved && !report.nics.is_empty() && report.is_of_stop()
}

fn why(report: &Report, id: &str) -> String {
    match report.command.as_str() {
        RESTORED_STALE => format!(
            "{id} had ended, and no stop hook ran: it, its runtime or what watches it was killed"
        ),
        RESTORED => format!("`rdmaprep restore` took them from {id}"),
        "hold end" => format!("`rdmaprep hold` of {id} ended"),
        "cni DEL" => format!("the pod of {id} ended"),
        _ => format!("{id} stopped"),
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Holder {
    pub netns: u64,
    pub pin: Option<String>,
    /// What `rdmaprep hold` keeps, where no container made the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldStatus>,
    /// What CNI calls the attachments of its containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cni: Vec<record::Attachment>,
    pub phase: record::Phase,
    pub plan: String,
    /// Ids of its containers, and whether each lives.
    pub members: Vec<(String, bool)>,
    /// What engines call them, by id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, String>,
    pub nics: Vec<String>,
    pub last: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_back: Vec<String>,
    /// What the last try found and did besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What is still awaited of NICs that are back on the host.
    #[serde(rename = "awaits", skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
    /// NICs of a record that no hook will end which are on the host, whole or not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub here: Vec<String>,
    /// NICs whose manager has other files for them by now: a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Whether its hook was killed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub killed: bool,
    pub advice: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct HoldStatus {
    pub path: String,
    /// Whether its holder lives.
    #[serde(skip)]
    pub is_kept: bool,
    /// What its holder keeps open; none when that has gone.
    pub handles: BTreeMap<String, Handle>,
}

pub fn status_table(status: &Status) -> String {
    let none = match status.unread {
        0 => "No container holds a NIC.",
        _ => "No record that can be read says that a container holds a NIC.",
    };
    let none = status.holders.is_empty().then(|| none.to_owned());
    // Those of the others are among the holders.
    let unused = status.claims.iter().filter(|c| c.state != State::InUse);
    let lines = none
        .into_iter()
        .chain(status.holders.iter().map(holder))
        .chain(unused.map(claims::claim))
        .chain(status.unstored.iter().map(unstored::unstored))
        .chain(status.failures.iter().filter(|f| !f.solved).map(failed))
        .chain(solved(&status.failures))
        .chain(status.returned.iter().map(came_back));
    lines.collect::<Vec<_>>().join("\n")
}

fn member((id, alive): &(String, bool), names: &BTreeMap<String, String>) -> String {
    let state = if *alive { "" } else { " (dead)" };
    format!("{}{state}", called(id, names.get(id)))
}

/// `trainer (0123456789ab)`.
fn called(id: &str, name: Option<&String>) -> String {
    let id = record::short_id(id);
    name.map_or(id.to_owned(), |name| format!("{name} ({id})"))
}

/// One line for all of them.
fn solved(failures: &[Failed]) -> Option<String> {
    let solved = failures.iter().filter(|f| f.solved).count();
    let failures = count(solved, "failure");
    (solved > 0).then(|| {
        format!(
            "solved since: {failures} of the last hour; `rdmaprep status --json` has the reasons"
        )
    })
}

fn came_back(returned: &Returned) -> String {
    let names: Vec<&str> = returned.nics.iter().map(IfName::as_str).collect();
    let ago = humantime::format_duration(Duration::from_secs(returned.seconds_ago));
    printable(&format!(
        "returned: {}, {ago} ago: {}",
        names.join(" "),
        returned.why
    ))
}

fn holder(h: &Holder) -> String {
    if !h.waits_for.is_empty() {
        return waiting(h);
    }
    let members = h.members.iter().map(|one| member(one, &h.names));
    let members: Vec<String> = members.collect();
    let members = members.join(", ");
    let pin = h
        .pin
        .as_deref()
        .unwrap_or("not pinned: the kernel has returned its physical NICs");
    let last = h
        .last
        .as_ref()
        .and_then(|l| l.get("outcome")?.as_str())
        .unwrap_or("no report");
    let phase = serde_json::to_value(h.phase).ok();
    let phase = match phase.as_ref().and_then(|phase| phase.as_str()) {
        _ if !h.held_back.is_empty() => "held back",
        phase => phase.unwrap_or_default(),
    };
    let killed = if h.killed {
        ", its hook was killed"
    } else {
        ""
    };
    let here = match h.here.join(" ") {
        here if here.is_empty() => here,
        here => wrapped("on the host", &format!("{here}, and may lack something")) + "\n",
    };
    let hold = h.hold.as_ref().filter(|hold| hold.is_kept);
    let kept = hold.map(kept).unwrap_or_default();
    let cni = h.cni.iter().map(attached).collect::<String>();
    let why = h
        .held_back
        .iter()
        .map(|why| wrapped("held back", why) + "\n")
        .collect::<String>();
    let notes = h
        .last
        .iter()
        .filter_map(|l| l.get("notes")?.as_array())
        .flatten()
        .filter_map(|n| n.as_str());
    let more = h.notes.iter().chain(&h.changed).map(String::as_str);
    let notes = notes
        .chain(more)
        .map(|note| wrapped("note", note) + "\n")
        .collect::<String>();
    let head = printable_lines(&format!(
        "{}\n  held by     {members}\n  plan        {} ({phase}{killed}; last hook: {last})\n  \
        namespace   {} ({pin})\n{here}{kept}{cni}",
        h.nics.join(" "),
        h.plan,
        h.netns,
    ));
    format!(
        "{head}{why}{notes}{}",
        printable_lines(&format!("  to get back {}", h.advice))
    )
}

/// NICs that wait for their manager.
fn waiting(h: &Holder) -> String {
    let members = h.members.iter();
    let members: Vec<String> = members
        .map(|(id, _)| {
            h.names
                .get(id)
                .map_or(id.clone(), |name| format!("{name} ({id})"))
        })
        .collect();
    let waits_for = h
        .waits_for
        .iter()
        .map(|why| wrapped("state", why) + "\n")
        .collect::<String>();
    printable_lines(&format!(
        "{}\n{}\n{waits_for}{}",
        h.nics.join(" "),
        wrapped("held before", &members.join(", ")),
        wrapped("to do", &h.advice)
    ))
}

/// The command of a report that gives up instead of restoring.
pub const FORGET: &str = "restore --forget";
/// Of one that returned NICs, and of one that did so for a container that had ended.
pub const RESTORED: &str = "restore";
pub const RESTORED_STALE: &str = "restore --stale";

/// What became of a restore, for people: its error is printed as any other.
pub fn restored(report: &Report, is_terminal: bool) -> String {
    let names: Vec<&str> = report.nics.iter().map(IfName::as_str).collect();
    let of = report.container.as_deref().map_or(String::new(), |id| {
        format!(" of container {}", printable(record::short_id(id)))
    });
    let done = match report.exit_code {
        0 if !report.waits_for.is_empty() => "back, and not done yet",
        0 if report.command == FORGET => "given up",
        0 => "restored",
        _ => "not restored",
    };
    // A program that searches the text for a sentence finds it in one line.
    let line = if is_terminal { wrapped } else { unwrapped };
    let mut notes = report.notes.clone();
    notes.retain(|note| !report.waits_for.contains(note));
    let notes = notes.iter().map(|note| line("note", note));
    let lines = notes.chain(report.waits_for.iter().map(|why| line("state", why)));
    let lines: String = lines.map(|line| format!("\n{line}")).collect();
    format!("{}{of}: {done}{lines}", names.join(" "))
}

fn failed(f: &Failed) -> String {
    let at = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(f.time));
    let container = f
        .container
        .as_deref()
        .map(|id| {
            format!(
                "  container   {}\n",
                printable(&called(id, f.name.as_ref()))
            )
        })
        .unwrap_or_default();
    let (command, report) = (printable(&f.command), printable(&f.report));
    let why = wrapped("reason", &f.message);
    format!(
        "failed: {command}, {at}\n{container}{why}\n  exit code   {}\n  report      {report}",
        f.exit_code
    )
}

/// `  LABEL   TEXT`, in as many lines as it takes.
fn unwrapped(label: &str, text: &str) -> String {
    format!("  {label:11} {}", printable(text))
}

fn kept(hold: &HoldStatus) -> String {
    let handles = hold
        .handles
        .iter()
        .map(|(name, handle)| format!("  handle      {name} {handle}\n"));
    format!(
        "  to join     {}\n{}",
        hold.path,
        handles.collect::<String>()
    )
}

fn attached(cni: &record::Attachment) -> String {
    let netns = printable(&cni.netns.to_string_lossy());
    format!(
        "  by CNI      network {}, interface {}, {netns}\n",
        cni.network, cni.ifname
    )
}
