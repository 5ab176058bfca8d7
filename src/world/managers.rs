//! Who configures links on this host besides us, by what they keep under /run: none of them is asked, a hook has no time.

use std::fs;
use std::path::Path;

use crate::fought::Manager;
use crate::ident::IfName;

/// Those that have run since boot: what they leave there survives their stop, not a reboot.
pub fn present(root: &Path) -> Vec<Manager> {
    let traces = [
        (Manager::NetworkManager, "run/NetworkManager"),
        // The folder itself is made at boot, for one that never starts (tmpfiles.d/systemd-network.conf).
        (Manager::Networkd, "run/systemd/netif/state"),
        (Manager::Udev, "run/udev/control"),
    ];
    traces.into_iter().filter(|(_, trace)| root.join(trace).exists()).map(|(manager, _)| manager).collect()
}

/// Whether it says that it leaves the link of that index alone.
pub fn spares(root: &Path, manager: Manager, ifindex: u32) -> bool {
    let (folder, word) = match manager {
        // DEVICE_RUN_STATE_KEYFILE_KEY_DEVICE_MANAGED in NetworkManager's nm-config.c.
        Manager::NetworkManager => ("run/NetworkManager/devices", "managed=false"),
        // link_save() in systemd's networkd-state-file.c.
        Manager::Networkd => ("run/systemd/netif/links", "ADMIN_STATE=unmanaged"),
        Manager::Udev => return false,
    };
    let text = fs::read_to_string(root.join(folder).join(ifindex.to_string()));
    text.is_ok_and(|text| text.lines().any(|line| line == word))
}

/// Who gives that link its addresses, as far as it can be known. udev does not: it names links, and sets hardware.
pub fn of(root: &Path, dev: &IfName, ifindex: u32) -> Option<&'static str> {
    let by = |m: &Manager| *m != Manager::Udev && !spares(root, *m, ifindex);
    let word = |m| match m {
        Manager::NetworkManager => "NetworkManager",
        Manager::Networkd => "systemd-networkd",
        Manager::Udev => "udev",
    };
    // What ifup(8) of ifupdown has raised: `eth0=eth0`.
    let raised = fs::read_to_string(root.join("run/network/ifstate")).unwrap_or_default();
    let ifupdown = raised.lines().any(|l| l.split('=').next() == Some(dev.as_str())).then_some("ifupdown");
    present(root).into_iter().find(by).map(word).or(ifupdown)
}

/// Whether somebody has yet to deal with links of these numbers. udev is at work on events as long as there is the file that
/// `udevadm settle` waits for (event_queue_insert() in systemd's udev-manager.c). networkd notes each link, and first as one that
/// it has not begun with (link_save() in networkd-state-file.c, `link_state_table` in networkd-link.c): what it takes for foreign
/// goes when it begins.
pub fn busy(root: &Path, links: &[u32]) -> bool {
    let begun = |index: &u32| {
        let text = fs::read_to_string(root.join("run/systemd/netif/links").join(index.to_string())).unwrap_or_default();
        let state = text.lines().find_map(|line| line.strip_prefix("ADMIN_STATE="));
        state.is_some_and(|state| !["pending", "initialized"].contains(&state))
    };
    root.join("run/udev/queue").exists() || present(root).contains(&Manager::Networkd) && !links.iter().all(begun)
}

/// The number of a link on this host.
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
