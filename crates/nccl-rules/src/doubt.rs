//! Two releases of which either may run: the newest, and the one that an image names.

use super::explanation::{Trap, Warning};
use super::version::Version;

/// Adds what the release of the image has besides. Fatal stays what both call so.
pub(crate) fn weigh(found: &mut Vec<Warning>, by_image: Vec<Warning>, image: Version) {
    let newest = Version::NEWEST;
    let is_in = |all: &[Warning], w: &Warning| all.iter().any(|other| other.trap == w.trap);
    for w in found.iter_mut().filter(|w| w.fatal && !is_in(&by_image, w)) {
        w.fatal = false;
        w.text += &format!("; not so in NCCL {image}, which the image names (NCCL_VERSION)");
    }
    let more: Vec<Warning> = by_image.into_iter().filter(|w| !is_in(found, w)).collect();
    found.extend(more.into_iter().map(|w| {
        let fix = match w.trap {
            Trap::Crash => {
                format!("prepare --nccl-version {image} leaves such HCAs out of the list, NCCL {newest} takes them")
            }
            _ => format!("use another: not so in NCCL {newest}"),
        };
        let text = format!("{}; the image names {image} (NCCL_VERSION): if that is what runs, {fix}", w.text);
        Warning { fatal: false, text, ..w }
    }));
}
