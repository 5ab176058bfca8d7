//! systemd: the timer, what stores the plans of the config file after a boot, and what keeps the
//! file of devices as the rails are; enabled as `systemctl enable` would.

use super::{Change, DEFAULT_PLACE, Ground, InstallRequest, Part, Piece};
use crate::cdi;

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

pub(super) fn part(wanted: &InstallRequest, ground: &Ground) -> Part {
    // Who has such a file uses it.
    let devices = wanted.cdi || ground.tree.exists(cdi::FILE);
    let all = UNITS.iter().chain(DEVICES.iter().filter(|_| devices));
    let pieces = all.flat_map(|unit| pieces(unit, wanted, ground)).collect();
    Part {
        pieces,
        rooms: if devices { vec![cdi::FILE] } else { Vec::new() },
        ..Part::default()
    }
}

fn pieces((name, text, target): &Unit, wanted: &InstallRequest, ground: &Ground) -> Vec<Piece> {
    let packaged = PACKAGED
        .map(|folder| format!("{folder}/{name}"))
        .into_iter()
        .find(|place| ground.tree.exists(place));
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
    if touched(changes, is_device, |c| c.after.is_none()) && !touched(changes, is_device, stays) {
        commands.push(format!("systemctl stop {}", devices()));
    }
    if touched(changes, |_| true, stays) {
        commands.push(format!("systemctl start {STARTED}"));
    }
    if touched(changes, is_device, stays) {
        commands.push(format!("systemctl start {}", devices()));
    }
    commands
}

/// The commands that stop units whose files are removed.
pub(super) fn stops(changes: &[Change]) -> Vec<String> {
    let ours = touched(changes, |path| !is_device(path), |_| true).then(|| STOPPED.to_owned());
    let devices = touched(changes, is_device, |_| true).then(devices);
    [ours, devices]
        .into_iter()
        .flatten()
        .map(|units| format!("systemctl stop {units}"))
        .collect()
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
