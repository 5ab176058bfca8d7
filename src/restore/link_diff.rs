//! What makes links what they should be: their settings, devices, queueing disciplines and BPF
//! programs.

use crate::verify;
use rdma_model::snapshot::{Netdev, Program, ProgramHook, Qdisc};
use rdma_model::step::{Settings, Side, Step};

/// All of a device's settings if some differ: a driver may derive one from another. The link is up
/// by then, as some need that.
pub(super) fn device_differences(side: Side, was: &Netdev, is: &Netdev) -> Option<Step> {
    let differs = !verify::device_drift(was, is).is_empty();
    let values = was.device.clone().filter(|_| differs)?;
    Some(Step::Device {
        side,
        dev: was.name.clone(),
        values: values.into(),
    })
}

/// What is to be removed, and what is missing then; neither where the record does not know.
pub(super) fn qdisc_differences(
    side: Side,
    was: &Netdev,
    is: &Netdev,
) -> (Vec<Step>, Option<Vec<Qdisc>>) {
    let (Some(want), Some(have)) = (&was.qdiscs, &is.qdiscs) else {
        return (Vec::new(), None);
    };
    let mut steps = Vec::new();
    for qdisc in have.iter().filter(|q| !want.contains(q)).cloned() {
        let dev = was.name.clone();
        steps.push(Step::QdiscDelete { side, dev, qdisc });
    }
    let missing = want.iter().filter(|q| !have.contains(q));
    (steps, Some(missing.cloned().collect()))
}

pub(super) fn link_differences(side: Side, was: &Netdev, is: &Netdev) -> Vec<Step> {
    let dev = was.name.clone();
    let mut steps = Vec::new();
    steps.extend(foreign_programs(side, was, is));
    if is.master.is_some() && was.master.is_none() {
        steps.push(Step::Release { side, dev });
    }
    steps.extend(link_settings(side, was, is));
    steps.extend(lost_programs(side, was, is));
    steps
}

/// Takes off the BPF programs that a NIC did not have: a move keeps them, and they see all that it
/// sends and gets.
pub(super) fn foreign_programs(side: Side, was: &Netdev, is: &Netdev) -> Vec<Step> {
    let mut steps = Vec::new();
    // Of what is not known by its number, an older record or an older kernel shows that there is
    // one.
    if is.xdp && !was.xdp && !foreign_xdp(was, is) {
        let dev = is.name.clone();
        steps.push(Step::XdpDetach { side, dev });
    }
    for program in foreign(was, is).cloned() {
        let dev = is.name.clone();
        steps.push(Step::ProgramDetach { side, dev, program });
    }
    steps
}

/// BPF programs that a NIC did not have, where that is recorded.
pub(super) fn foreign<'a>(was: &'a Netdev, is: &'a Netdev) -> impl Iterator<Item = &'a Program> {
    let has = was.programs.iter().zip(&is.programs);
    has.flat_map(|(had, has)| has.iter().filter(|p| !had.contains(p)))
}

/// Whether one of them is at XDP.
pub(super) fn foreign_xdp(was: &Netdev, is: &Netdev) -> bool {
    foreign(was, is).any(|p| ![ProgramHook::TcxIngress, ProgramHook::TcxEgress].contains(&p.hook))
}

/// Puts back the BPF programs that a NIC lacks, each before the one that was behind it: last first.
pub(super) fn lost_programs(side: Side, was: &Netdev, is: &Netdev) -> Vec<Step> {
    let (Some(had), Some(has)) = (&was.programs, &is.programs) else {
        return Vec::new();
    };
    let mut steps = Vec::new();
    let mut behind: Vec<&Program> = Vec::new();
    for program in had.iter().rev() {
        if !has.contains(program) {
            let next = behind.iter().rev().find(|p| p.hook == program.hook);
            steps.push(Step::ProgramAttach {
                side,
                dev: was.name.clone(),
                program: program.clone(),
                before: next.map(|p| p.id),
            });
        }
        behind.push(program);
    }
    steps
}

/// What the kernel keeps over a move but a container may have changed.
pub(super) fn link_settings(side: Side, was: &Netdev, now: &Netdev) -> Vec<Step> {
    let mut steps = Vec::new();
    // A bond gives its members its own address, and keeps theirs for when it lets go of them.
    let is_its_own = was.master.is_none() || was.master == now.master;
    if let (Some(old), true) = (&was.mac, is_its_own && was.mac != now.mac) {
        steps.push(Step::Mac {
            side,
            dev: was.name.clone(),
            mac: old.clone(),
        });
    }
    let settings = Settings::back(was, now);
    steps.extend(settings.map(|settings| Step::Settings {
        side,
        dev: was.name.clone(),
        settings,
    }));
    steps
}
