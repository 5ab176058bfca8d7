//! Which programs configure links on this host, by what they keep under /run: a hook has no time to ask them.

pub mod advice;

use std::fs;
use std::path::Path;

use rdma_model::ids::IfName;
use serde::{Deserialize, Serialize};

use crate::kernel::host::files;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manager {
    NetworkManager,
    Networkd,
    Udev,
}

/// What udev records of a link (udev_device_db in systemd: `n` and the link's number).
const UDEV: &str = "run/udev/data/n";

/// Those that have run since boot: what they leave there survives their stop, not a reboot. networkd, when it stops, takes away
/// what it says of links, lo's with it; the folders themselves are made at boot (tmpfiles.d/systemd-network.conf).
pub fn present(root: &Path) -> Vec<Manager> {
    let is = |trace: &str| root.join(trace).exists();
    let has = |folder: &str| fs::read_dir(root.join(folder)).is_ok_and(|mut all| all.next().is_some());
    let traces = [
        (Manager::NetworkManager, is("run/NetworkManager")),
        (Manager::Networkd, has("run/systemd/netif/links")),
        (Manager::Udev, is("run/udev/control")),
    ];
    traces.into_iter().filter(|(_, here)| *here).map(|(manager, _)| manager).collect()
}

/// Whether it says that it manages the link of that index; nothing where it says nothing. NetworkManager writes `managed=true`
/// for what it manages, and `managed=false` for what `nmcli device set` took from it. What its configuration or udev's keeps it
/// off has a file without that key, which may be empty, and none if it was never managed (nm_config_device_state_write() in
/// NetworkManager's nm-config.c; seen so of 1.52, also with a link that is away and back). networkd has one of each link
/// (link_save() in systemd's networkd-state-file.c).
fn says(root: &Path, manager: Manager, ifindex: u32) -> Option<bool> {
    let read = |at: &str| files::read_through(&root.join(at)).ok()?;
    let has = |text: &str, line: &str| text.lines().any(|l| l == line);
    match manager {
        Manager::NetworkManager => match read(&format!("run/NetworkManager/devices/{ifindex}")) {
            Some(text) => Some(has(&text, "managed=true")),
            // By its own rules for veth and the like, or by ours.
            None => read(&format!("{UDEV}{ifindex}")).filter(|text| has(text, "E:NM_UNMANAGED=1")).map(|_| false),
        },
        Manager::Networkd => {
            let text = read(&format!("run/systemd/netif/links/{ifindex}"))?;
            let state = text.lines().find_map(|line| line.strip_prefix("ADMIN_STATE="))?;
            (!NOT_BEGUN.contains(&state)).then_some(state != "unmanaged")
        }
        Manager::Udev => None,
    }
}

/// How networkd calls a link that it knows and has not begun with (`link_state_table` in networkd-link.c).
const NOT_BEGUN: [&str; 2] = ["pending", "initialized"];

pub fn manages(root: &Path, manager: Manager, ifindex: u32) -> bool {
    says(root, manager, ifindex) == Some(true)
}

/// A link of which the manager says nothing yet may be its own in a moment.
pub fn spares(root: &Path, manager: Manager, ifindex: u32) -> bool {
    says(root, manager, ifindex) == Some(false)
}

/// The manager that gives that link its addresses, as far as it can be known. Never udev: it names links, and sets hardware.
pub fn manager_of(root: &Path, dev: &IfName, ifindex: u32) -> Option<&'static str> {
    let by = |m: &Manager| *m != Manager::Udev && !spares(root, *m, ifindex);
    let word = |m| match m {
        Manager::NetworkManager => "NetworkManager",
        Manager::Networkd => "systemd-networkd",
        Manager::Udev => "udev",
    };
    // What ifup(8) of ifupdown has raised: `eth0=eth0`.
    let raised = files::read_through(&root.join("run/network/ifstate")).ok().flatten().unwrap_or_default();
    let ifupdown = raised.lines().any(|l| l.split('=').next() == Some(dev.as_str())).then_some("ifupdown");
    present(root).into_iter().find(by).map(word).or(ifupdown)
}

/// Whether udev is at work on events: `udevadm settle` waits for this file to go (event_queue_insert() in systemd's
/// udev-manager.c).
pub fn busy(root: &Path) -> bool {
    root.join("run/udev/queue").exists()
}

/// Whether networkd has still to configure links of these numbers. It notes each link first as one that it has not begun with
/// (link_save() in networkd-state-file.c, `link_state_table` in networkd-link.c): what it takes for foreign goes at some time
/// before it is done.
pub fn configures(root: &Path, links: &[u32]) -> bool {
    let done = |index: &u32| {
        let file = root.join("run/systemd/netif/links").join(index.to_string());
        let text = files::read_through(&file).ok().flatten().unwrap_or_default();
        let state = text.lines().find_map(|line| line.strip_prefix("ADMIN_STATE="));
        state.is_some_and(|state| !["pending", "initialized", "configuring"].contains(&state))
    };
    present(root).contains(&Manager::Networkd) && !links.iter().all(done)
}

pub fn index(root: &Path, dev: &IfName) -> Option<u32> {
    fs::read_to_string(root.join("sys/class/net").join(dev.as_str()).join("ifindex")).ok()?.trim().parse().ok()
}

/// The address of a link's PCI function, unless that has other links, too.
pub fn own_function(root: &Path, dev: &IfName) -> Option<String> {
    let device = fs::canonicalize(root.join("sys/class/net").join(dev.as_str()).join("device")).ok()?;
    let links = fs::read_dir(device.join("net")).ok()?.count();
    // `0000:3b:00.0`; virtio's links are one folder below theirs.
    let is_address = |name: &&str| {
        name.len() >= 12 && name.ends_with(|c: char| c.is_ascii_digit()) && {
            let marks: Vec<char> = name.chars().filter(|c| !c.is_ascii_hexdigit()).collect();
            marks == [':', ':', '.']
        }
    };
    let names = device.ancestors().filter_map(|at| at.file_name()?.to_str());
    let address = names.take(2).find(is_address)?;
    (links == 1).then(|| address.to_owned())
}
