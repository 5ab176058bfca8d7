//! What monitoring reads, as OpenMetrics: rails wherever they are, who holds them, and how hooks
//! ended. All that is printed follows from what is there now, so nothing grows with containers that
//! have ended.

mod families;
mod lines;
mod means;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use crate::kernel::counters::Counted;
use crate::kernel::sysfs::PortCounters;
use crate::report::Report;

pub use families::{FAMILIES, Family, Kind};
pub use means::{MEANS, Means};
pub use text::{openmetrics, prometheus};

/// What one look has found.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub rails: Vec<Rail>,
    pub holders: Vec<Holder>,
    /// How many records are in each state.
    pub records: BTreeMap<RecordState, u64>,
    pub hooks: BTreeMap<Hook, Runs>,
    /// How long the look took.
    pub seconds: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Rail {
    /// As plans and devices call it: its netdev on the host, or an HCA without one.
    pub name: String,
    /// As it is called where it is.
    pub netdev: Option<String>,
    pub hca: Option<String>,
    pub port: Option<u32>,
    pub place: Place,
    pub holder: Option<Owner>,
    pub link: Option<LinkState>,
    pub counted: Option<Counted>,
    pub counters: Option<PortCounters>,
    pub faults: BTreeSet<Fault>,
}

impl Rail {
    /// What was read of it; nothing where it could not be read.
    pub fn take(&mut self, counted: Option<Counted>, port: Option<Option<PortCounters>>) {
        let is_down = self.link.is_some_and(|link| !link.up);
        let is_dark = self.link.is_some_and(|link| link.up && !link.carrier);
        self.counted = counted;
        let state = port
            .as_ref()
            .and_then(|port| port.as_ref()?.state.as_deref());
        let is_port_down = state.is_some_and(|state| state != "ACTIVE");
        let faults = [
            (is_down, Fault::Down),
            (is_dark, Fault::NoCarrier),
            (is_port_down, Fault::PortDown),
            (port.is_none(), Fault::Unread),
        ];
        self.faults
            .extend(faults.iter().filter(|(is_so, _)| *is_so).map(|(_, f)| *f));
        self.counters = port.flatten();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    pub up: bool,
    pub carrier: bool,
    pub mtu: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    #[default]
    Host,
    Container,
    /// In the namespace of `rdmaprep hold`.
    Hold,
}

impl Place {
    pub fn name(self) -> &'static str {
        match self {
            Place::Host => "host",
            Place::Container => "container",
            Place::Hold => "hold",
        }
    }
}

/// Who has a rail, as people call it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its name, else its id.
    pub container: String,
    pub pod: Option<String>,
    pub namespace: Option<String>,
}

/// What is wrong with a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Absent,
    Unread,
    Down,
    NoCarrier,
    PortDown,
    HeldBack,
}

impl Fault {
    pub const ALL: [Fault; 6] = [
        Fault::Absent,
        Fault::Unread,
        Fault::Down,
        Fault::NoCarrier,
        Fault::PortDown,
        Fault::HeldBack,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fault::Absent => "absent",
            Fault::Unread => "unread",
            Fault::Down => "down",
            Fault::NoCarrier => "no_carrier",
            Fault::PortDown => "port_down",
            Fault::HeldBack => "held_back",
        }
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Fault::Absent => "it is neither on the host nor where its record says",
            Fault::Unread => "where it is could not be looked at, or not in time",
            Fault::Down => "its link was set down",
            Fault::NoCarrier => "its link has no carrier",
            Fault::PortDown => "the port of its HCA is not ACTIVE",
            Fault::HeldBack => "it did not return whole: `rdmaprep status` says why",
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Holder {
    /// Of its record: a namespace's, but for NICs that wait for their manager.
    pub netns: u64,
    pub plan: String,
    pub owner: Owner,
    pub nics: usize,
    /// Since the first of its containers began; absent where that has ended.
    pub seconds: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordState {
    Attaching,
    Attached,
    Restoring,
    Abandoned,
    HeldBack,
    Waiting,
    Damaged,
}

impl RecordState {
    pub const ALL: [RecordState; 7] = [
        RecordState::Attaching,
        RecordState::Attached,
        RecordState::Restoring,
        RecordState::Abandoned,
        RecordState::HeldBack,
        RecordState::Waiting,
        RecordState::Damaged,
    ];

    pub fn name(self) -> &'static str {
        match self {
            RecordState::Attaching => "attaching",
            RecordState::Attached => "attached",
            RecordState::Restoring => "restoring",
            RecordState::Abandoned => "abandoned",
            RecordState::HeldBack => "held_back",
            RecordState::Waiting => "waiting",
            RecordState::Damaged => "damaged",
        }
    }

    pub fn meaning(self) -> &'static str {
        match self {
            RecordState::Attaching => "NICs are on their way into a container",
            RecordState::Attached => "a container has its NICs",
            RecordState::Restoring => "NICs are on their way back",
            RecordState::Abandoned => "its containers have ended, and its NICs are not back",
            RecordState::HeldBack => "some NICs did not return whole",
            RecordState::Waiting => "NICs are back, and their manager has not configured them yet",
            RecordState::Damaged => "it cannot be read",
        }
    }
}

/// Runs of one stage that ended alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hook {
    /// `hook createRuntime`, `cni ADD`, …
    pub command: String,
    /// `ok`, or the name of the error's class.
    pub outcome: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    pub count: u64,
    pub micros: u64,
    pub longest: u64,
    /// When the last one ended, in seconds since 1970.
    pub last: u64,
}

impl Runs {
    /// Of the reports that are kept: one for each container, of its last hook.
    pub fn of<'r>(reports: impl IntoIterator<Item = &'r Report>) -> BTreeMap<Hook, Runs> {
        let mut all: BTreeMap<Hook, Runs> = BTreeMap::new();
        for report in reports {
            let hook = Hook {
                command: report.command.clone(),
                outcome: report.outcome.clone(),
            };
            let runs = all.entry(hook).or_default();
            runs.count += 1;
            runs.micros += report.micros;
            runs.longest = runs.longest.max(report.micros);
            runs.last = runs.last.max(report.time.unwrap_or_default());
        }
        all
    }
}
