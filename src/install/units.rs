//! systemd: the timer and the boot unit, enabled as `systemctl enable` would.

use super::{DEFAULT_PLACE, Ground, Part, Piece, Wanted};

const FOLDER: &str = "/etc/systemd/system";
/// Where a package has put them.
const PACKAGED: &str = "/usr/lib/systemd/system";

/// Each with its text, and who wants it.
const UNITS: [(&str, &str, Option<&str>); 3] = [
    ("rdmaprep-boot.service", include_str!("../../hooks/systemd/rdmaprep-boot.service"), Some("multi-user.target")),
    ("rdmaprep-stale.service", include_str!("../../hooks/systemd/rdmaprep-stale.service"), None),
    ("rdmaprep-stale.timer", include_str!("../../hooks/systemd/rdmaprep-stale.timer"), Some("timers.target")),
];

pub(super) fn part(wanted: &Wanted, ground: &Ground) -> Part {
    let pieces = UNITS.iter().flat_map(|(name, text, target)| {
        let packaged = format!("{PACKAGED}/{name}");
        let (place, unit) = match ground.look.exists(&packaged) {
            true => (packaged, None),
            false => {
                let place = format!("{FOLDER}/{name}");
                (place.clone(), Some(Piece::own(place, text.replace(DEFAULT_PLACE, &wanted.program))))
            }
        };
        let link = target.map(|target| Piece::link(format!("{FOLDER}/{target}.wants/{name}"), place));
        [unit, link].into_iter().flatten()
    });
    Part { pieces: pieces.collect(), ..Part::default() }
}
