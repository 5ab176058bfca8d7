//! Files of a NIC below /sys/class/net that set how its packets are spread over processors and how
//! long they wait: of the NIC itself, and of each of its queues. The same leaf of all queues is one
//! value, as a host may have 512 NICs of 128 queues.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use rdma_model::ids::IfName;
use rdma_model::snapshot::UNTOLD;
use rdma_netlink::ethtool::Values;
use rdma_netlink::unless_refused;
use rustix::fs::{Dir, Mode, OFlags, openat};

use crate::kernel::mount::fsmount;
use crate::kernel::netns::Netns;

const PREFIX: &str = "sysfs ";
/// Leaves of the NIC itself that net/core/net-sysfs.c lets be written and that no link message
/// sets.
const OWN: [&str; 3] = ["napi_defer_hard_irqs", "gro_flush_timeout", "threaded"];
/// Leaves of a queue; those of a row are there together. `limit` of byte_queue_limits and
/// `inflight` are states.
const RX: [&[&str]; 2] = [&["rps_cpus"], &["rps_flow_cnt"]];
const TX: [&[&str]; 4] = [
    &["xps_cpus"],
    &["xps_rxqs"],
    &["tx_maxrate"],
    &[
        "byte_queue_limits/limit_max",
        "byte_queue_limits/limit_min",
        "byte_queue_limits/hold_time",
    ],
];
/// No driver has more queues.
const MOST: usize = 1 << 16;

/// A sysfs that shows the NICs of one network namespace, whatever is mounted at /sys; it is mounted
/// nowhere.
pub struct Files(OwnedFd);

impl Files {
    pub fn of_netns(netns: &Netns) -> Result<Files> {
        let made = netns.visit(|| Ok(fsmount::create("sysfs", &[], fsmount::PLAIN)?));
        made.map(Files)
            .context("mounting a sysfs of the NICs' namespace")
    }

    fn nic(&self, dev: &IfName) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(
            &self.0,
            format!("class/net/{dev}"),
            flags,
            Mode::empty(),
        )?)
    }

    pub fn read(&self, dev: &IfName) -> Values {
        let mut all = Values::new();
        let Ok(nic) = self.nic(dev) else { return all };
        let own = OWN
            .iter()
            .filter_map(|leaf| Some((format!("{PREFIX}{leaf}"), value(&nic, leaf)?)));
        all.extend(own);
        let (rx, tx) = queues(&nic);
        for (side, count, leaves) in [("rx", rx, &RX[..]), ("tx", tx, &TX[..])] {
            for row in leaves {
                for leaf in *row {
                    let Some(values) = each(&nic, side, count, leaf) else {
                        break;
                    };
                    all.insert(format!("{PREFIX}queues/{side}-*/{leaf}"), values);
                }
            }
        }
        all
    }

    /// Writes only what differs. The error names the files that could not be written, and why; the
    /// others are written.
    pub fn write(&self, dev: &IfName, values: &Values) -> Result<(), String> {
        let wanted = values
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value.as_str())));
        let wanted: Vec<(&str, &str)> = wanted.collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let nic = self.nic(dev).map_err(|e| e.to_string())?;
        let mut refused = Vec::new();
        for (name, value) in wanted {
            let wrong = match name.split_once('*') {
                None => set(&nic, name, value).err(),
                Some((before, after)) => {
                    let numbered = expanded(value).enumerate();
                    let mut tried =
                        numbered.map(|(n, value)| set(&nic, &format!("{before}{n}{after}"), value));
                    tried.find_map(Result::err)
                }
            };
            refused.extend(wrong.map(|e| format!("{PREFIX}{name}: {e}")));
        }
        unless_refused(refused)
    }
}

pub fn is_ours(key: &str) -> bool {
    key.starts_with(PREFIX)
}

fn queues(nic: &OwnedFd) -> (usize, usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = openat(nic, "queues", flags, Mode::empty()) else {
        return (0, 0);
    };
    let names = Dir::new(folder).into_iter().flatten().flatten();
    let (mut rx, mut tx) = (0, 0);
    for name in names {
        match name.file_name().to_bytes() {
            [b'r', b'x', b'-', ..] => rx += 1,
            [b't', b'x', b'-', ..] => tx += 1,
            _ => {}
        }
    }
    (rx, tx)
}

/// One leaf of all queues; nothing where the first has none, as with a driver without byte queue
/// limits.
fn each(nic: &OwnedFd, side: &str, count: usize, leaf: &str) -> Option<String> {
    let mut all = Vec::new();
    for n in 0..count {
        match value(nic, &format!("queues/{side}-{n}/{leaf}")) {
            None if n == 0 => return None,
            value => all.push(value.unwrap_or_else(|| UNTOLD.to_owned())),
        }
    }
    (count > 0).then(|| counted(all.into_iter()))
}

/// Values one after another, those that repeat with their number: `f 0*7`.
pub(super) fn counted(values: impl Iterator<Item = String>) -> String {
    let mut runs: Vec<(String, usize)> = Vec::new();
    for value in values {
        match runs.last_mut() {
            Some((last, count)) if *last == value => *count += 1,
            _ => runs.push((value, 1)),
        }
    }
    for (value, count) in &mut runs {
        if *count > 1 {
            value.push_str(&format!("*{count}"));
        }
    }
    let all: Vec<String> = runs.into_iter().map(|(value, _)| value).collect();
    all.join(" ")
}

/// The values of such text, one after another.
pub(super) fn expanded(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ')
        .flat_map(|part| {
            let value = part.split('*').next().unwrap_or_default();
            let count = part.rsplit_once('*').map(|(_, count)| count.parse());
            let count: usize = count.and_then(Result::ok).unwrap_or(1);
            std::iter::repeat_n(value, count)
        })
        .take(MOST)
}

fn open(nic: impl AsFd, path: &str, flags: OFlags) -> io::Result<std::fs::File> {
    Ok(openat(nic, path, flags | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// A file of sysfs gives its value at the first read.
fn value(nic: &OwnedFd, path: &str) -> Option<String> {
    let mut buffer = [0; 4096];
    let read = open(nic, path, OFlags::RDONLY)
        .ok()?
        .read(&mut buffer)
        .ok()?;
    let text = std::str::from_utf8(&buffer[..read]).ok()?.trim();
    // A space parts the values of queues.
    Some(text.replace(' ', "_"))
}

fn set(nic: &OwnedFd, path: &str, wanted: &str) -> io::Result<()> {
    if wanted == UNTOLD || value(nic, path).as_deref() == Some(wanted) {
        return Ok(());
    }
    open(nic, path, OFlags::WRONLY)?.write_all(wanted.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_queues_are_counted_and_expanded() {
        for (text, values) in [
            ("0", &["0"][..]),
            ("0*3", &["0", "0", "0"]),
            ("f 0*2 ff,00 ?", &["f", "0", "0", "ff,00", "?"]),
        ] {
            assert_eq!(counted(values.iter().map(|v| (*v).to_owned())), text);
            assert_eq!(expanded(text).collect::<Vec<_>>(), values);
        }
    }
}
