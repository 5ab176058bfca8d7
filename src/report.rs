//! What people and programs are told: tables of at most [`WIDTH`] columns, JSON, and one line per command for logs.
//!
//! Names, aliases and file contents come from the host or from a container; nothing of them reaches a terminal that could
//! steer it.

mod cdi;
mod doctor;
mod install;
mod nccl;
mod tables;

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter};

use crate::exclusive;
use crate::fault::Fault;
use crate::handle::Handle;
use crate::ident::IfName;
use crate::inject::Injected;
use crate::journal;
use crate::peers::{Agreement, Rail};
use crate::plan::{EnvVar, Plan};
use crate::select::Selection;
pub use cdi::{DeviceLine, device_table};
pub use doctor::diagnosis_table;
pub use install::Installed;
pub use nccl::{call, explanation_table, tried, wait};
pub use tables::{selection_table, snapshot_table};

/// Columns that a table may take. Settings that are made to be copied stay on one line, however long.
pub const WIDTH: u16 = 100;

/// Version of [`Report`]'s JSON form.
pub const SCHEMA: u32 = 1;

/// What a command or hook decided and did, and how long each part took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `prepare`, `hook createRuntime`, `restore`, ….
    pub command: String,
    /// Seconds since 1970 at its end, where the caller knows.
    #[serde(default)]
    pub time: Option<u64>,
    /// Container id.
    #[serde(default)]
    pub container: Option<String>,
    /// Name of the plan.
    #[serde(default)]
    pub plan: Option<String>,
    /// `ok`, or the name of the [`Fault`].
    pub outcome: String,
    /// What the error said.
    #[serde(default)]
    pub message: Option<String>,
    /// The process's exit code.
    pub exit_code: u8,
    /// The whole time, also what no phase accounts for.
    pub micros: u64,
    /// Where it went, in order of first occurrence.
    pub phases: Vec<Phase>,
    /// NICs that were moved, or would be.
    #[serde(default)]
    pub nics: Vec<IfName>,
    /// The effective ARP profile of each, and its routing table: a line each.
    #[serde(default)]
    pub rails: Vec<String>,
    /// Steps performed and not undone.
    #[serde(default)]
    pub steps_done: usize,
    /// How the container's /sys shows its NICs alone, or why it does not.
    #[serde(default)]
    pub sysfs: Option<String>,
    /// What was read out of the memory of the runtime's process, by handle: the view of `sysfs`, the `topology` file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken: Vec<String>,
    /// Where NCCL's settings are, if not in the environment.
    #[serde(default)]
    pub settings: Option<String>,
    /// Remarks: NICs of dead containers that were brought home, what a container had done to its NICs.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Where the outcome differs from the plan; empty is the aim.
    #[serde(default)]
    pub drift: Vec<String>,
}

/// The time that one part of the work took, all its occurrences together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Which part.
    pub name: PhaseName,
    /// Microseconds.
    pub micros: u64,
}

/// The parts of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum PhaseName {
    /// Taking snapshots.
    Observe,
    /// Selection and planning.
    Plan,
    /// Writing the journal.
    Journal,
    /// Waiting for locks.
    Lock,
    /// Link messages that change a NIC's namespace, and what makes RDMA links.
    Move,
    /// Addresses, routes, rules, neighbours, sysctls, links up.
    Configure,
    /// Waiting for GIDs.
    GidWait,
    /// Observing again and comparing.
    Verify,
    /// Waiting for what else the container gets: its /sys, settings, device nodes. Most of it is done beside the moves.
    Dress,
    /// Taking back after a failure.
    Undo,
}

/// Measures phases: each lap books the time since the one before.
#[derive(Clone, Debug)]
pub struct Stopwatch {
    start: Instant,
    last: Instant,
    spent: Vec<(PhaseName, Duration)>,
}

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Stopwatch {
        let now = Instant::now();
        Stopwatch { start: now, last: now, spent: Vec::new() }
    }

    /// Books the time since the last lap, or since the start, to a phase.
    pub fn lap(&mut self, phase: PhaseName) {
        let now = Instant::now();
        self.add(phase, now - self.last);
        self.last = now;
    }

    /// Books time that was measured elsewhere.
    pub fn add(&mut self, phase: PhaseName, time: Duration) {
        match self.spent.iter_mut().find(|(name, _)| *name == phase) {
            Some((_, spent)) => *spent += time,
            None => self.spent.push((phase, time)),
        }
    }

    /// What was booked so far.
    pub fn phases(&self) -> Vec<Phase> {
        self.spent.iter().map(|(name, time)| Phase { name: *name, micros: time.as_micros() as u64 }).collect()
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Report {
    /// An empty report of a command that so far went well.
    pub fn new(command: impl Into<String>) -> Report {
        Report {
            schema: SCHEMA,
            command: command.into(),
            time: None,
            container: None,
            plan: None,
            outcome: "ok".to_owned(),
            message: None,
            exit_code: 0,
            micros: 0,
            phases: Vec::new(),
            nics: Vec::new(),
            rails: Vec::new(),
            steps_done: 0,
            sysfs: None,
            taken: Vec::new(),
            settings: None,
            notes: Vec::new(),
            drift: Vec::new(),
        }
    }

    /// Takes over the end of a command: its outcome and its times.
    pub fn finish<T>(&mut self, result: &anyhow::Result<T>, watch: &Stopwatch) {
        let fault = result.as_ref().err().map(|e| (Fault::of(e), format!("{e:#}")));
        self.outcome = fault.as_ref().map_or("ok".to_owned(), |(fault, _)| name_of(fault));
        self.exit_code = fault.as_ref().map_or(0, |(fault, _)| fault.code());
        self.message = fault.map(|(_, text)| text);
        self.micros = watch.elapsed().as_micros() as u64;
        self.phases = watch.phases();
    }

    /// One line for a log: `key=value` with the times in milliseconds.
    pub fn line(&self) -> String {
        let nics: Vec<&str> = self.nics.iter().map(IfName::as_str).collect();
        let mut pairs = vec![("command".to_owned(), self.command.clone())];
        let mut add = |key: &str, value: Option<String>| pairs.extend(value.map(|v| (key.to_owned(), v)));
        add("container", self.container.clone());
        add("plan", self.plan.clone());
        add("outcome", Some(self.outcome.clone()));
        add("exit", Some(self.exit_code.to_string()));
        add("nics", (!nics.is_empty()).then(|| nics.join(",")));
        add("steps", Some(self.steps_done.to_string()));
        add("sysfs", self.sysfs.clone());
        add("taken", (!self.taken.is_empty()).then(|| self.taken.join(",")));
        add("settings", self.settings.clone());
        add("drift", (!self.drift.is_empty()).then(|| self.drift.join("; ")));
        add("total_ms", Some(millis(self.micros)));
        self.phases.iter().for_each(|p| add(&format!("{}_ms", name_of(&p.name)), Some(millis(p.micros))));
        add("notes", (!self.notes.is_empty()).then(|| self.notes.join("; ")));
        add("message", self.message.clone());
        pairs.into_iter().map(|(key, value)| format!("{key}={}", quoted(&value))).collect::<Vec<_>>().join(" ")
    }
}

/// One container namespace that holds NICs, for `status`.
#[derive(Clone, Debug, Serialize)]
pub struct Holder {
    /// Inode of the namespace.
    pub netns: u64,
    /// Its pin, if it is pinned.
    pub pin: Option<String>,
    /// What `rdmaprep hold` keeps, where no container made the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Keeping>,
    /// Where the record stands.
    pub phase: journal::Phase,
    /// The plan's name.
    pub plan: String,
    /// Ids of its containers, and whether each lives.
    pub members: Vec<(String, bool)>,
    /// Names of the NICs on the host.
    pub nics: Vec<String>,
    /// The last hook's report.
    pub last: Option<serde_json::Value>,
    /// What to do about it.
    pub advice: String,
}

/// A namespace that is kept for containers to join.
#[derive(Clone, Debug, Serialize)]
pub struct Keeping {
    /// Where runtimes find it.
    pub path: String,
    /// What its holder keeps open; none when that has gone.
    pub handles: BTreeMap<String, Handle>,
}

/// `rdmaprep status` for people.
pub fn status_table(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return "No container holds a NIC.".to_owned();
    }
    let block = |h: &Holder| {
        let member = |(id, alive): &(String, bool)| format!("{id}{}", if *alive { "" } else { " (dead)" });
        let members = h.members.iter().map(member).collect::<Vec<_>>().join(", ");
        let pin = h.pin.as_deref().unwrap_or("not pinned: the kernel has returned its physical NICs");
        let last = h.last.as_ref().and_then(|l| l.get("outcome")?.as_str()).unwrap_or("no report");
        let phase = serde_json::to_value(h.phase).ok().and_then(|p| p.as_str().map(str::to_owned)).unwrap_or_default();
        let kept = h.hold.as_ref().map(kept).unwrap_or_default();
        printable_lines(&format!(
            "{}\n  held by     {members}\n  plan        {} ({phase}; last hook: {last})\n  namespace   {} ({pin})\n{kept}  to get back {}",
            h.nics.join(" "),
            h.plan,
            h.netns,
            h.advice
        ))
    };
    holders.iter().map(block).collect::<Vec<_>>().join("\n")
}

/// Lines about a namespace that is kept.
fn kept(hold: &Keeping) -> String {
    let handles = hold.handles.iter().map(|(name, handle)| format!("  handle      {name} {handle}\n"));
    format!("  to join     {}\n{}", hold.path, handles.collect::<String>())
}

fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}

fn millis(micros: u64) -> String {
    format!("{}.{:03}", micros / 1000, micros % 1000)
}

/// A value for [`Report::line`]: bare where that is unambiguous.
fn quoted(value: &str) -> String {
    let value = printable(value);
    let bare = !value.is_empty() && !value.contains([' ', '"', '=']);
    if bare { value } else { format!("\"{}\"", value.replace('"', "'")) }
}

/// What `prepare` prints: the verdicts, the settings, and as its last line what to paste on the other node.
pub fn summary(plan: &Plan, selection: &Selection) -> String {
    let count = |n: usize, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    let mut parts = vec![count(plan.nics.len(), "NIC")];
    if !plan.ib.is_empty() {
        parts.push(count(plan.ib.len(), "InfiniBand HCA"));
    }
    parts.push(count(plan.devices.len(), "device node"));
    let mut text = format!("plan {}: {}\n\n", printable(&plan.name), parts.join(", "));
    text.push_str(&selection_table(selection));
    text.push_str("\n\n");
    text.push_str(&plan.agreement.as_ref().map_or(String::new(), agreed));
    text.push_str(&exclusive::told(plan).map_or(String::new(), |line| format!("{}\n\n", printable(&line))));
    plan.rails.told.iter().for_each(|line| text.push_str(&format!("{}\n", printable(line))));
    text.push_str(if plan.rails.told.is_empty() { "" } else { "\n" });
    text.push_str(if plan.env.is_empty() { "NCCL settings: none\n" } else { "NCCL settings:\n" });
    plan.env.iter().for_each(|v| text.push_str(&setting(v)));
    plan.unset.iter().for_each(|line| text.push_str(&format!("# not set: {}\n", printable(line))));
    text.push('\n');
    text.push_str(&peer_line(plan));
    text
}

/// What all nodes came to; other nodes have written a part of it.
fn agreed(a: &Agreement) -> String {
    let rail = |Rail(key, iface): &Rail| match key.as_str() == iface.as_str() {
        true => printable(key.as_str()),
        false => printable(&format!("{key} ({iface})")),
    };
    let rails = a.rails.iter().map(rail).collect::<Vec<_>>().join(", ");
    let (run, digest) = (printable(&a.run.to_string()), a.digest.short());
    let mut text = format!("{} nodes agreed on {rails} (run {run}, {}, digest {digest})\n", a.nodes, a.policy);
    a.lost.iter().for_each(|line| text.push_str(&format!("{}\n", printable(line))));
    text.push_str(&match &a.way {
        Some(way) => format!("the store was reached over {}\n", printable(way)),
        None => "over which interface the store was reached is not known: see that it is none of these\n".to_owned(),
    });
    text.push('\n');
    text
}

/// `NAME=VALUE  # why`; a value that leaves no room for the reason has it in the line above.
fn setting(var: &EnvVar) -> String {
    let (value, why) = (format!("{}={}", printable(&var.name), printable(&var.value)), printable(&var.why));
    let fits = value.chars().count() + why.chars().count() + 4 <= usize::from(WIDTH);
    if fits { format!("{value}  # {why}\n") } else { format!("# {why}\n{value}\n") }
}

/// `RDMA_PEER_IFACES="rdma0 rdma1"`. A name may hold what a shell would expand; then it is quoted so that it does not.
fn peer_line(plan: &Plan) -> String {
    let names = plan.rails().map(|n| n.identity.name.as_str()).collect::<Vec<_>>().join(" ");
    match names.contains(['"', '$', '`', '\\', '!']) {
        false => format!("RDMA_PEER_IFACES=\"{names}\""),
        true => format!("RDMA_PEER_IFACES='{}'", names.replace('\'', "'\\''")),
    }
}

/// What `prepare --bundle` did to a config.json, or would do.
pub fn injected(injected: &Injected) -> String {
    let changes = injected.changes.iter().map(|c| format!("+ {}\n", printable(c)));
    changes.chain(injected.kept.iter().map(|k| format!("= {}\n", printable(k)))).collect()
}

/// Pretty JSON that is safe on a terminal too: JSON itself would let DEL and C1 controls through.
pub fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let mut text = Vec::new();
    write_json(&mut text, value)?;
    Ok(String::from_utf8(text)?)
}

/// The same, written as it is made: for what is large.
pub fn write_json(out: impl io::Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(out, Safe(PrettyFormatter::new())))
}

/// [`PrettyFormatter`] with everything escaped that could steer a terminal.
struct Safe(PrettyFormatter<'static>);

impl Formatter for Safe {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| steers(*c)) {
            let (plain, after) = rest.split_at(at);
            write!(out, "{plain}\\u{:04x}", u32::from(c))?;
            rest = after.get(c.len_utf8()..).unwrap_or_default();
        }
        out.write_all(rest.as_bytes())
    }
}

/// One line of text from elsewhere with everything escaped that could steer a terminal or forge a line.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if steers(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// The same for text of several lines, whose line ends and tabs stay.
pub fn printable_lines(text: &str) -> String {
    let line = |line: &str| line.split('\t').map(printable).collect::<Vec<_>>().join("\t") + "\n";
    text.lines().map(line).collect()
}

/// Controls, and the marks that reverse or hide what stands beside them.
fn steers(c: char) -> bool {
    let marks = ['\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{206f}', '\u{feff}'..='\u{feff}'];
    c.is_control() || marks.iter().any(|m| m.contains(&c))
}
