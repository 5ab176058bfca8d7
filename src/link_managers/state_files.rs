//! What the files of udev, systemd-networkd and NetworkManager below /run say of a link.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdma_model::ids::IfName;
use rdma_model::manager::Manager;

use super::{Word, networkd};
use crate::disk::files;

/// What udev records of a link (udev_device_db in systemd: `n` and the link's number).
const UDEV: &str = "run/udev/data/n";

/// Those that have run since boot: what they leave there survives their stop, not a reboot.
/// networkd, when it stops, takes away what it says of links, lo's with it; the folders themselves
/// are made at boot (tmpfiles.d/systemd-network.conf).
pub fn present(root: &Path) -> Vec<Manager> {
    let mut found = Vec::new();
    if root.join("run/NetworkManager").exists() {
        found.push(Manager::NetworkManager);
    }
    if fs::read_dir(root.join("run/systemd/netif/links")).is_ok_and(|mut all| all.next().is_some())
    {
        found.push(Manager::Networkd);
    }
    if root.join("run/udev/control").exists() {
        found.push(Manager::Udev);
    }
    found
}

/// Whether it says that it manages the link of that index; nothing where it says nothing.
/// NetworkManager writes `managed=true` for what it manages, and `managed=false` for what
/// `nmcli device set` took from it. What its configuration or udev's keeps it off has a file
/// without that key, which may be empty, and none if it was never managed
/// (nm_config_device_state_write() in NetworkManager's nm-config.c; seen so of 1.52, also with a
/// link that is away and back). networkd has one of each link (link_save() in systemd's
/// networkd-state-file.c).
pub(super) fn says(root: &Path, manager: Manager, ifindex: u32) -> Option<bool> {
    match manager {
        Manager::NetworkManager => {
            if let Ok(Some(text)) = files::read_through(&networkmanagers(root, ifindex)) {
                return Some(text.lines().any(|line| line == "managed=true"));
            }
            // By its own rules for veth and the like, or by ours.
            let text = files::read_through(&root.join(format!("{UDEV}{ifindex}"))).ok()??;
            let is_kept_off = text.lines().any(|line| line == "E:NM_UNMANAGED=1");
            is_kept_off.then_some(false)
        }
        Manager::Networkd => {
            let state = networkd::state(root, ifindex)?;
            (!NOT_BEGUN.contains(&state.as_str())).then_some(state != "unmanaged")
        }
        Manager::Udev => None,
    }
}

fn networkmanagers(root: &Path, ifindex: u32) -> PathBuf {
    root.join(format!("run/NetworkManager/devices/{ifindex}"))
}

/// How long ago NetworkManager wrote its file of a link: it does so when it stops, too
/// (nm_manager_write_device_state_all() in its nm-manager.c; seen so of 1.42 and 1.52).
pub(super) fn age_of_state(root: &Path, ifindex: u32) -> Option<Duration> {
    let written = fs::metadata(networkmanagers(root, ifindex))
        .ok()?
        .modified();
    written.ok()?.elapsed().ok()
}

/// How networkd calls a link that it knows and has not begun with (`link_state_table` in
/// networkd-link.c).
const NOT_BEGUN: [&str; 2] = ["pending", "initialized"];

pub fn manages(root: &Path, manager: Manager, ifindex: u32) -> bool {
    says(root, manager, ifindex) == Some(true)
}

/// A link of which the manager says nothing yet may be its own in a moment.
pub fn spares(root: &Path, manager: Manager, ifindex: u32) -> bool {
    says(root, manager, ifindex) == Some(false)
}

/// The manager that gives that link its addresses, as far as it can be known. Never udev: it names
/// links, and sets hardware.
pub fn manager_of(root: &Path, dev: &IfName, ifindex: u32) -> Option<&'static str> {
    // What ifup(8) of ifupdown has raised: `eth0=eth0`.
    let raised = files::read_through(&root.join("run/network/ifstate"))
        .ok()
        .flatten()
        .unwrap_or_default();
    let ifupdown = raised
        .lines()
        .any(|l| l.split('=').next() == Some(dev.as_str()))
        .then_some("ifupdown");
    present(root)
        .into_iter()
        .find(|m| *m != Manager::Udev && !spares(root, *m, ifindex))
        .map(Manager::name)
        .or(ifupdown)
}

/// What NetworkManager means: it takes no link before udev has set it up.
pub(super) fn once_udev_is_done(word: Word, root: &Path, ifindex: u32) -> Word {
    match word {
        Word::Unmanaged if awaits_udev(root, ifindex) => Word::NotBegun,
        word => word,
    }
}

/// Whether udev has yet to set a link up.
fn awaits_udev(root: &Path, ifindex: u32) -> bool {
    root.join("run/udev/control").exists() && !root.join(format!("{UDEV}{ifindex}")).exists()
}

/// Whether udev is at work on events: `udevadm settle` waits for this file to go
/// (event_queue_insert() in systemd's udev-manager.c).
pub fn busy(root: &Path) -> bool {
    root.join("run/udev/queue").exists()
}

/// A file of the host by its path there.
pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Whether networkd is to be waited for: of a link that it does not know yet, it has not said that
/// it leaves it alone.
pub fn may_configure(root: &Path, links: &[u32]) -> bool {
    let mut states = links.iter().map(|index| networkd::state(root, *index));
    present(root).contains(&Manager::Networkd)
        && states.any(|state| state.is_none_or(|state| BUSY.contains(&state.as_str())))
}

/// How networkd calls a link that it is not done with.
const BUSY: [&str; 3] = ["pending", "initialized", "configuring"];

pub fn index(root: &Path, dev: &IfName) -> Option<u32> {
    fs::read_to_string(
        root.join("sys/class/net")
            .join(dev.as_str())
            .join("ifindex"),
    )
    .ok()?
    .trim()
    .parse()
    .ok()
}

/// The address of a link's PCI function, unless that has other links, too.
pub fn own_function(root: &Path, dev: &IfName) -> Option<String> {
    let device =
        fs::canonicalize(root.join("sys/class/net").join(dev.as_str()).join("device")).ok()?;
    let links = fs::read_dir(device.join("net")).ok()?.count();
    let names = device.ancestors().filter_map(|at| at.file_name()?.to_str());
    // `0000:3b:00.0`; virtio's links are one folder below theirs.
    let address = names.take(2).find(|name| {
        let marks: String = name.chars().filter(|c| !c.is_ascii_hexdigit()).collect();
        name.len() >= 12 && name.ends_with(|c: char| c.is_ascii_digit()) && marks == "::."
    })?;
    (links == 1).then(|| address.to_owned())
}
