//! Two releases of which either may run: the newest, and the one that an image names.

use super::explanation::{Trap, Warning};
use super::version::Version;

/// Adds the warnings that only the release of the image gives. A warning is fatal only where both
/// releases have its trap: with one of them alone, the job may run.
pub(crate) fn weigh(found: &mut Vec<Warning>, by_image: Vec<Warning>, image: Version) {
    let newest = Version::NEWEST;
    if !image.is_judged() {
        for w in found.iter_mut().filter(|w| w.fatal) {
            w.fatal = false;
            w.text +=
                &format!("; NCCL {image}, which the image names (NCCL_VERSION), was not judged");
        }
        return;
    }
    // Of one trap, two releases may have different reasons. Their own number is none.
    let reason = |w: &Warning, release| w.text.replace(&format!("NCCL {release}"), "NCCL");
    let is_said = |w: &Warning| {
        found
            .iter()
            .any(|other| other.trap == w.trap && reason(other, newest) == reason(w, image))
    };
    let more: Vec<Warning> = by_image.iter().filter(|w| !is_said(w)).cloned().collect();
    let more: Vec<Warning> = more.into_iter().map(|w| beside(w, found, image)).collect();
    let same: Vec<Trap> = by_image.iter().map(|w| outcome(w.trap)).collect();
    for w in found
        .iter_mut()
        .filter(|w| w.fatal && !same.contains(&outcome(w.trap)))
    {
        w.fatal = false;
        w.text += &format!("; not so in NCCL {image}, which the image names (NCCL_VERSION)");
    }
    found.extend(more);
}

/// What two releases make of one fault: over a GID that is not there no connection comes up, and
/// where the table is read at the start, no HCA is used.
fn outcome(trap: Trap) -> Trap {
    match trap {
        Trap::GidTable => Trap::NoGid,
        other => other,
    }
}

/// A warning of the image's release, beside those of the newest.
fn beside(w: Warning, found: &[Warning], image: Version) -> Warning {
    let newest = Version::NEWEST;
    let named = format!("the image names {image} (NCCL_VERSION): if that is what runs");
    let text = match w.trap {
        // The newest has a reason of its own for the same: it is no way out.
        trap if found.iter().any(|w| outcome(w.trap) == outcome(trap)) => {
            format!(
                "{}; so in NCCL {image}, which the image names (NCCL_VERSION)",
                w.text
            )
        }
        Trap::Crash => {
            let fix = format!("prepare --nccl-version {image} leaves such HCAs out of the list");
            format!("{}; {named}, {fix}, NCCL {newest} takes them", w.text)
        }
        _ => format!("{}; {named}, use another: not so in NCCL {newest}", w.text),
    };
    Warning {
        fatal: false,
        text,
        ..w
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_that_was_not_judged_leaves_doubt() {
        let text = "nothing is left".to_owned();
        let mut found = vec![Warning {
            trap: Trap::NoHca,
            fatal: true,
            text,
        }];
        weigh(&mut found, Vec::new(), Version::new(2, 12, 12));
        let doubt = "nothing is left; NCCL 2.12.12, which the image names (NCCL_VERSION), was not \
            judged";
        assert_eq!((found[0].fatal, found[0].text.as_str()), (false, doubt));
    }

    #[test]
    fn another_reason_for_the_same_trap_is_said_too() {
        let warning = |trap, fatal, text: &str| Warning {
            trap,
            fatal,
            text: text.to_owned(),
        };
        let image = Version::new(2, 22, 3);
        let mut found = vec![
            warning(Trap::Overrun, true, "NCCL 2.32.3 has 32 places"),
            warning(Trap::Missing, false, "NCCL_IB_HCA: there is no a"),
            warning(Trap::NoHca, true, "nothing is left"),
        ];
        let by_image = vec![
            warning(Trap::Overrun, true, "NCCL 2.22.3 has 32 places"),
            warning(Trap::Overrun, true, "NCCL 2.22.3 writes past a line"),
            warning(Trap::Missing, false, "NCCL_IB_HCA: there is no a:1"),
            warning(Trap::Value, false, "0 means 1"),
        ];
        weigh(&mut found, by_image, image);
        let so = "so in NCCL 2.22.3, which the image names (NCCL_VERSION)";
        let other = "the image names 2.22.3 (NCCL_VERSION): if that is what runs, use another: \
            not so in NCCL 2.32.3";
        let expected = [
            warning(Trap::Overrun, true, "NCCL 2.32.3 has 32 places"),
            warning(Trap::Missing, false, "NCCL_IB_HCA: there is no a"),
            warning(Trap::NoHca, false, &format!("nothing is left; not {so}")),
            warning(
                Trap::Overrun,
                false,
                &format!("NCCL 2.22.3 writes past a line; {so}"),
            ),
            warning(
                Trap::Missing,
                false,
                &format!("NCCL_IB_HCA: there is no a:1; {so}"),
            ),
            warning(Trap::Value, false, &format!("0 means 1; {other}")),
        ];
        assert_eq!(found, expected);
    }
}
