//! systemd: the timer, what stores the plans of the config file after a boot, what keeps the
//! file of devices as the rails are, and what writes metrics; enabled as `systemctl enable` would.

use super::{Change, DEFAULT_PLACE, Ground, InstallRequest, Part, Piece};
use crate::cdi;
use crate::disk::host_tree::Content;

const FOLDER: &str = "/etc/systemd/system";
/// Where a package and the archive's `install.sh` have units.
const PACKAGED: [&str; 2] = ["/usr/lib/systemd/system", "/usr/local/lib/systemd/system"];

/// A unit: its name, its text, and who wants it.
type Unit = (&'static str, &'static str, Option<&'static str>);

const UNITS: [Unit; 4] = [
    (
        "rdmaprep-stale.service",
        include_str!("../../hooks/systemd/rdmaprep-stale.service"),
        None,
    ),
    (
        "rdmaprep-stale.timer",
        include_str!("../../hooks/systemd/rdmaprep-stale.timer"),
        Some("timers.target"),
    ),
    (
        "rdmaprep-plans.path",
        include_str!("../../hooks/systemd/rdmaprep-plans.path"),
        Some("multi-user.target"),
    ),
    (
        "rdmaprep-plans.service",
        include_str!("../../hooks/systemd/rdmaprep-plans.service"),
        Some("multi-user.target"),
    ),
];
/// Started at once.
const STARTED: &str = "rdmaprep-stale.timer rdmaprep-plans.path";
/// Stopped before their files go.
const STOPPED: &str = "rdmaprep-stale.timer rdmaprep-plans.path rdmaprep-plans.service";

const DEVICES: [Unit; 2] = [
    (
        "rdmaprep-cdi.path",
        include_str!("../../hooks/systemd/rdmaprep-cdi.path"),
        Some("multi-user.target"),
    ),
    (
        "rdmaprep-cdi.service",
        include_str!("../../hooks/systemd/rdmaprep-cdi.service"),
        Some("multi-user.target"),
    ),
];

const METRICS: [Unit; 2] = [
    (
        "rdmaprep-metrics.service",
        include_str!("../../hooks/systemd/rdmaprep-metrics.service"),
        None,
    ),
    (
        METRICS_TIMER,
        include_str!("../../hooks/systemd/rdmaprep-metrics.timer"),
        Some("timers.target"),
    ),
];
const METRICS_TIMER: &str = "rdmaprep-metrics.timer";
/// The file that the unit below hooks/ names: where Debian's node_exporter reads.
const TEXTFILE: &str = "/var/lib/prometheus/node-exporter/rdmaprep.prom";

pub(super) fn part(wanted: &InstallRequest, ground: &Ground) -> Part {
    // Who has such a file uses it.
    let devices = wanted.cdi || ground.tree.exists(cdi::FILE);
    let all = UNITS
        .iter()
        .chain(DEVICES.iter().filter(|_| devices))
        .chain(METRICS.iter().filter(|_| wanted.textfile.is_some()));
    let pieces = all.flat_map(|unit| pieces(unit, wanted, ground)).collect();
    Part {
        pieces,
        rooms: if devices { vec![cdi::FILE] } else { Vec::new() },
        ..Part::default()
    }
}

fn pieces((name, text, target): &Unit, wanted: &InstallRequest, ground: &Ground) -> Vec<Piece> {
    let file = wanted.textfile.as_deref().unwrap_or(TEXTFILE);
    // A package's unit writes to the one file that it names.
    let is_other = file != TEXTFILE && text.contains(TEXTFILE);
    let packaged = PACKAGED
        .map(|folder| format!("{folder}/{name}"))
        .into_iter()
        .find(|place| !is_other && ground.tree.exists(place));
    let text = text.replace(TEXTFILE, file);
    let (place, unit) = match packaged {
        Some(place) => (place, None),
        None => {
            let place = format!("{FOLDER}/{name}");
            (
                place.clone(),
                Some(Piece::whole_file(
                    place,
                    text.replace(DEFAULT_PLACE, &wanted.program),
                )),
            )
        }
    };
    let link = target.map(|target| Piece::link(format!("{FOLDER}/{target}.wants/{name}"), place));
    [unit, link].into_iter().flatten().collect()
}

/// The commands by which systemd applies changed units.
pub(super) fn starts(changes: &[Change]) -> Vec<String> {
    let mut commands = Vec::new();
    let stays = |c: &Change| c.after.is_some();
    if has_gone(changes, is_device) {
        commands.push(format!("systemctl stop {}", devices()));
    }
    if has_gone(changes, is_metrics) {
        commands.extend(without_metrics(changes));
    }
    if touched(changes, |_| true, stays) {
        commands.push(format!("systemctl start {STARTED}"));
    }
    if touched(changes, is_device, stays) {
        commands.push(format!("systemctl start {}", devices()));
    }
    if touched(changes, is_metrics, stays) {
        commands.push(format!("systemctl start {METRICS_TIMER}"));
    }
    commands
}

/// The commands that stop units whose files are removed.
pub(super) fn stops(changes: &[Change]) -> Vec<String> {
    let mut commands = Vec::new();
    if touched(
        changes,
        |path| !is_device(path) && !is_metrics(path),
        |_| true,
    ) {
        commands.push(format!("systemctl stop {STOPPED}"));
    }
    if touched(changes, is_device, |_| true) {
        commands.push(format!("systemctl stop {}", devices()));
    }
    if touched(changes, is_metrics, |_| true) {
        commands.extend(without_metrics(changes));
    }
    commands
}

/// Stops what writes metrics, and removes the file, which would be read for ever.
fn without_metrics(changes: &[Change]) -> [String; 2] {
    let units = METRICS.map(|(name, ..)| name).join(" ");
    let mut texts = changes.iter().filter_map(|c| match &c.before {
        Some(Content::Text(text)) if is_metrics(&c.path) => Some(text),
        _ => None,
    });
    let file = texts.find_map(|text| {
        let (_, after) = text.split_once("--textfile ")?;
        after.lines().next()
    });
    let file = file.unwrap_or(TEXTFILE);
    [format!("systemctl stop {units}"), format!("rm -f {file}")]
}

fn has_gone(changes: &[Change], of: fn(&str) -> bool) -> bool {
    touched(changes, of, |c| c.after.is_none()) && !touched(changes, of, |c| c.after.is_some())
}

fn is_metrics(path: &str) -> bool {
    METRICS.iter().any(|(name, ..)| path.ends_with(name))
}

/// Whether a unit was changed, or who wants one.
fn touched(changes: &[Change], of: impl Fn(&str) -> bool, how: impl Fn(&Change) -> bool) -> bool {
    changes
        .iter()
        .any(|c| c.path.starts_with(FOLDER) && of(&c.path) && how(c))
}

fn is_device(path: &str) -> bool {
    DEVICES.iter().any(|(name, ..)| path.ends_with(name))
}

fn devices() -> String {
    DEVICES.map(|(name, ..)| name).join(" ")
}
