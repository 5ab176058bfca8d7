//! What people and programs read. Names, aliases and file contents come from the host or from a
//! container; nothing of them reaches a terminal that could steer it.

mod cdi;
mod claims;
mod doctor;
mod foretold;
mod install;
mod lap;
mod nccl;
mod plans;
mod safe_json;
mod status;
mod tables;
mod unstored;
mod width;

use rdma_model::escape::count;
use std::time::Instant;

use clap::ValueEnum;
use rail_agreement::{Agreement, Rail};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::nic::EnvVar;
use serde::{Deserialize, Serialize};

use crate::nccl_env::libraries::at_start;
use crate::oci::edit::Injected;
use crate::plan::{Plan, rdma_mode};
use crate::restore::Restored;
use crate::select::{LeftOut, Selection, Verdict};
pub use cdi::{DeviceLine, device_table};
pub use claims::{ReleasedClaim, claim_table, released_claim};
pub use doctor::diagnosis_table;
pub use foretold::Foretold;
pub use install::Installed;
pub use lap::{Lap, LapTime};
pub use nccl::{call, explanation_table, tried, wait};
pub use plans::{DeletedPlan, PlanLine, deleted_plans, plan_table};
pub use rdma_model::escape::{WIDTH, printable, printable_lines, shortened};
pub use safe_json::{json, write_json};
pub use status::{
    FORGET, Failed, HoldStatus, Holder, RESTORED, RESTORED_STALE, Returned, Status, restored,
    status_table,
};
pub use tables::{error_text, selection_table, snapshot_table};
pub use unstored::Unstored;
pub use width::fit;
use width::width;

pub const SCHEMA: u32 = 1;

/// The commands of reports of what brings NICs back.
const STOPS: [&str; 6] = [
    "hook poststop",
    "cni DEL",
    "cni GC",
    "hold end",
    RESTORED,
    RESTORED_STALE,
];

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub schema: u32,
    /// `prepare`, `hook createRuntime`, `restore`, ….
    pub command: String,
    /// Seconds since 1970 at its end, where the caller knows.
    #[serde(default)]
    pub time: Option<u64>,
    #[serde(default)]
    pub container: Option<String>,
    #[serde(default)]
    pub plan: Option<String>,
    /// `ok`, or the name of the [`ErrorClass`].
    pub outcome: String,
    #[serde(default)]
    pub message: Option<String>,
    pub exit_code: u8,
    /// The whole time, also what no lap accounts for.
    pub micros: u64,
    /// Where it went, in order of first occurrence.
    #[serde(rename = "phases")]
    pub laps: Vec<LapTime>,
    #[serde(default)]
    pub nics: Vec<IfName>,
    #[serde(default)]
    pub rails: Vec<String>,
    #[serde(default)]
    pub steps_done: usize,
    #[serde(default)]
    pub sysfs: Option<String>,
    /// What was read out of the memory of the runtime's process, by handle: the view of `sysfs`,
    /// the `topology` file.
    #[serde(default, rename = "taken", skip_serializing_if = "Vec::is_empty")]
    pub from_memory: Vec<String>,
    #[serde(default)]
    pub settings: Option<String>,
    /// RLIMIT_MEMLOCK of the container's init: `unlimited`, or why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memlock: Option<String>,
    #[serde(default)]
    pub notes: Vec<String>,
    /// What NICs that are back still wait for: of the notes.
    #[serde(rename = "awaits", default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
    #[serde(default)]
    pub drift: Vec<String>,
}

impl Report {
    pub fn new(command: impl Into<String>) -> Report {
        Report {
            schema: SCHEMA,
            command: command.into(),
            outcome: "ok".to_owned(),
            ..Report::default()
        }
    }

    /// With the notes of the container's create, and what that gave, where a later stage had
    /// nothing to move: each stage replaces the report of the one before. `earlier` reads that.
    pub fn with_notes_of(&self, earlier: impl FnOnce() -> Option<String>) -> Report {
        let is_later = self.exit_code == 0 && self.steps_done == 0;
        let earlier = is_later
            .then(earlier)
            .flatten()
            .and_then(|text| serde_json::from_str::<Report>(&text).ok());
        let mut all = self.clone();
        let earlier = earlier.filter(|r| r.exit_code == 0 && !r.is_of_stop());
        let Some(earlier) = earlier else { return all };
        all.notes = earlier.notes;
        all.note_once(self.notes.clone());
        if all.plan.is_none() {
            (all.plan, all.nics) = (earlier.plan, earlier.nics);
        }
        all
    }

    pub fn is_of_stop(&self) -> bool {
        STOPS.contains(&self.command.as_str())
    }

    /// Whether its container's NICs may be away still: it has got them, or not all came back.
    pub fn leaves_nics_away(&self) -> bool {
        match self.exit_code {
            0 => !self.nics.is_empty() && !self.is_of_stop(),
            code => code == ErrorClass::Incomplete.code(),
        }
    }

    /// What a restore has come to.
    pub fn take(&mut self, done: Restored) {
        self.steps_done = done.steps;
        self.notes.extend(done.notes);
        self.waits_for = done.waits_for;
    }

    /// Books the time since the last lap, or since the work began, to `lap`.
    pub fn end_lap(&mut self, begun: Instant, lap: Lap) {
        let booked: u64 = self.laps.iter().map(|lap| lap.micros).sum();
        self.book(lap, micros_since(begun).saturating_sub(booked));
    }

    pub fn book(&mut self, name: Lap, micros: u64) {
        match self.laps.iter_mut().find(|lap| lap.name == name) {
            Some(lap) => lap.micros += micros,
            None => self.laps.push(LapTime { name, micros }),
        }
    }

    /// Adds notes, but for those that it has already.
    pub fn note_once(&mut self, notes: impl IntoIterator<Item = String>) {
        for note in notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    /// The end of work that `begun` then.
    pub fn finish<T>(&mut self, result: &anyhow::Result<T>, begun: Instant) {
        let fault = result
            .as_ref()
            .err()
            .map(|e| (ErrorClass::of(e), format!("{e:#}")));
        self.outcome = fault
            .as_ref()
            .map_or("ok".to_owned(), |(fault, _)| fault.name().to_owned());
        self.exit_code = fault.as_ref().map_or(0, |(fault, _)| fault.code());
        self.message = fault.map(|(_, text)| text);
        self.micros = micros_since(begun);
    }

    /// One line for a log: `key=value` with the times in milliseconds.
    pub fn line(&self) -> String {
        let nics: Vec<&str> = self.nics.iter().map(IfName::as_str).collect();
        let mut pairs = vec![("command".to_owned(), self.command.clone())];
        let mut add =
            |key: &str, value: Option<String>| pairs.extend(value.map(|v| (key.to_owned(), v)));
        add("container", self.container.clone());
        add("plan", self.plan.clone());
        add("outcome", Some(self.outcome.clone()));
        add("exit", Some(self.exit_code.to_string()));
        add("nics", (!nics.is_empty()).then(|| nics.join(",")));
        add("steps", Some(self.steps_done.to_string()));
        add("sysfs", self.sysfs.clone());
        add(
            "taken",
            (!self.from_memory.is_empty()).then(|| self.from_memory.join(",")),
        );
        add("settings", self.settings.clone());
        add("memlock", self.memlock.clone());
        add(
            "drift",
            (!self.drift.is_empty()).then(|| self.drift.join("; ")),
        );
        add("total_ms", Some(millis(self.micros)));
        for lap in &self.laps {
            add(
                &format!("{}_ms", name_of(&lap.name)),
                Some(millis(lap.micros)),
            );
        }
        add(
            "notes",
            (!self.notes.is_empty()).then(|| self.notes.join("; ")),
        );
        add("message", self.message.clone());
        pairs
            .into_iter()
            .map(|(key, value)| format!("{key}={}", quoted(&value)))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn name_of(value: &impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map(|v| v.get_name().to_owned())
        .unwrap_or_default()
}

fn micros_since(begun: Instant) -> u64 {
    begun.elapsed().as_micros() as u64
}

fn millis(micros: u64) -> String {
    format!("{}.{:03}", micros / 1000, micros % 1000)
}

/// Characters of a value in a log's line, and of a message: it may quote what a container's author
/// wrote, of any length.
pub const LONGEST: usize = 4096;

/// A value for [`Report::line`]: bare where that is unambiguous.
fn quoted(value: &str) -> String {
    let value = printable(&shortened(value, LONGEST));
    let bare = !value.is_empty() && !value.contains([' ', '"', '=']);
    if bare {
        value
    } else {
        format!("\"{}\"", value.replace('"', "'"))
    }
}

/// Chosen when a container starts, as its namespace decides.
const SOCKETS: &str = "the default route's interface, else a rail";

#[derive(Serialize)]
struct JsonError<'a> {
    schema: u32,
    outcome: &'static str,
    exit_code: u8,
    message: String,
    /// Why each NIC is left out, where that is the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdicts: Option<&'a [Verdict]>,
}

/// An error for programs.
pub fn json_error(error: &anyhow::Error) -> anyhow::Result<String> {
    let class = ErrorClass::of(error);
    let left_out = error.downcast_ref::<LeftOut>();
    json(&JsonError {
        schema: SCHEMA,
        outcome: class.name(),
        exit_code: class.code(),
        message: format!("{error:#}"),
        verdicts: left_out.map(|LeftOut(verdicts)| verdicts.as_slice()),
    })
}

/// What `prepare` prints: the verdicts, the settings, and as its last line what to paste on the
/// other node. `is_stored`: for any container, and not in the config.json of one.
pub fn summary(plan: &Plan, selection: &Selection, is_stored: bool) -> String {
    let mut parts = vec![count(plan.nics.len(), "NIC")];
    if !plan.ib.is_empty() {
        parts.push(count(plan.ib.len(), "InfiniBand HCA"));
    }
    parts.push(count(plan.devices.len(), "device node"));
    let mut text = format!("plan {}: {}\n\n", printable(&plan.name), parts.join(", "));
    text.push_str(&selection_table(selection));
    text.push_str("\n\n");
    text.push_str(&plan.agreement.as_ref().map_or(String::new(), agreed));
    text.push_str(
        &rdma_mode::describe(plan)
            .map_or(String::new(), |line| format!("{}\n\n", printable(&line))),
    );
    for line in &plan.separation.notes {
        text.push_str(&format!("{}\n", printable(line)));
    }
    text.push_str(if plan.separation.notes.is_empty() {
        ""
    } else {
        "\n"
    });
    text.push_str(if plan.env.is_empty() {
        "NCCL settings: none\n"
    } else {
        "NCCL settings:\n"
    });
    for v in &plan.env {
        text.push_str(&setting(v));
    }
    let sockets = at_start(&plan.libraries);
    if is_stored && !plan.nics.is_empty() && !sockets.is_empty() {
        text.push_str(&format!("# at start {}: {SOCKETS}\n", sockets.join(", ")));
    }
    for line in &plan.unset {
        text.push_str(&format!("# not set: {}\n", printable(line)));
    }
    text.push('\n');
    text.push_str(&peer_line(plan));
    text
}

fn agreed(a: &Agreement) -> String {
    let mut rails = Vec::new();
    for Rail(key, iface) in &a.rails {
        rails.push(match key.as_str() == iface.as_str() {
            true => printable(key.as_str()),
            false => printable(&format!("{key} ({iface})")),
        });
    }
    let rails = rails.join(", ");
    let (run, digest) = (printable(&a.run.to_string()), a.digest.short());
    let mut text = format!(
        "{} nodes agreed on {rails} (run {run}, {}, digest {digest})\n",
        a.nodes, a.policy
    );
    for line in &a.lost {
        text.push_str(&format!("{}\n", printable(line)));
    }
    text.push_str(&match &a.store_ifaces {
        Some(way) => format!("the store was reached over {}\n", printable(way)),
        None => "over which interface the store was reached is not known: see that it is none of \
            these\n"
            .to_owned(),
    });
    text.push('\n');
    text
}

/// `NAME=VALUE  # why`; a value that leaves no room for the reason has it in the line above.
fn setting(var: &EnvVar) -> String {
    let (value, why) = (
        format!("{}={}", printable(&var.name), printable(&var.value)),
        printable(&var.why),
    );
    let fits = value.chars().count() + why.chars().count() + 4 <= usize::from(width());
    if fits {
        format!("{value}  # {why}\n")
    } else {
        format!("# {why}\n{value}\n")
    }
}

/// `RDMA_PEER_IFACES="rdma0 rdma1"`. A name may hold what a shell would expand; then it is quoted
/// so that it does not.
fn peer_line(plan: &Plan) -> String {
    let names = plan
        .rails()
        .map(|n| n.name().as_str())
        .collect::<Vec<_>>()
        .join(" ");
    match names.contains(['"', '$', '`', '\\', '!']) {
        false => format!("RDMA_PEER_IFACES=\"{names}\""),
        true => format!("RDMA_PEER_IFACES='{}'", names.replace('\'', "'\\''")),
    }
}

/// What `prepare --bundle` did to a config.json, or would do.
pub fn injected(injected: &Injected) -> String {
    let changes = injected
        .changes
        .iter()
        .map(|c| format!("+ {}\n", printable(c)));
    changes
        .chain(
            injected
                .kept
                .iter()
                .map(|k| format!("= {}\n", printable(k))),
        )
        .collect()
}
