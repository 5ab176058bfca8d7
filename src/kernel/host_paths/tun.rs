//! Tun and tap devices that the host uses: programs send on what leaves by them, over sockets of their own. Those with another
//! end are asked about as all are; where a program sends over one without is not known.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use rdma_model::snapshot::{HostPaths, Netdev, Snapshot, TunnelPath};
use rustix::fs::{Mode, OFlags, open, readlinkat};

use crate::protected_ifaces::uplinks;

/// Sockets of the calling thread's namespace that may have no other end, in one format (udp4_format_sock() in net/ipv4/udp.c,
/// raw_sock_seq_show() in net/ipv4/raw.c). What is not compiled into the kernel is not there.
const WITHOUT_AN_END: [&str; 6] = ["udp", "udp6", "udplite", "udplite6", "raw", "raw6"];
/// TCP_CLOSE, the state of those that are not connected.
const UNCONNECTED: &str = "07";

/// Adds what is known of the tun and tap devices among the host's uplinks. A host without any is not looked through.
pub(super) fn observe(host: &Snapshot, paths: &mut HostPaths) {
    let is_tun = |netdev: &&Netdev| netdev.kind.as_deref() == Some("tun");
    if !host.netdevs.iter().any(|n| is_tun(&n)) {
        return;
    }
    let asked = Snapshot { paths: Some(paths.clone()), ..host.clone() };
    let Ok(guarded) = uplinks(true, &asked) else { return };
    let used: Vec<&Netdev> = host.netdevs.iter().filter(is_tun).filter(|n| guarded.contains_key(&n.name)).collect();
    // One that no program holds has no carrier (__tun_detach() in drivers/net/tun.c), and sends nothing.
    let holders = if used.iter().any(|n| n.running) { holders(Path::new("/proc")) } else { BTreeMap::new() };
    let endless = if holders.is_empty() { None } else { endless(Path::new("/proc/thread-self/net")) };
    paths.tunnels.extend(used.into_iter().map(|netdev| {
        let held = holders.get(netdev.name.as_str()).map_or(&[][..], Vec::as_slice);
        let unknown = if netdev.running { unknown(held, endless.as_ref()) } else { None };
        TunnelPath { link: netdev.name.clone(), below: None, remotes: Vec::new(), unknown }
    }));
}

/// A process that holds a device.
struct Holder {
    pid: String,
    /// The inodes of its sockets.
    sockets: Vec<String>,
}

/// Why it is not known where what leaves by a device is sent to.
fn unknown(holders: &[Holder], endless: Option<&BTreeSet<String>>) -> Option<String> {
    if holders.is_empty() {
        return Some("the process that holds it is not found".to_owned());
    }
    let Some(endless) = endless else {
        return Some("the sockets of the process that holds it are not known".to_owned());
    };
    let sends = |h: &&Holder| h.sockets.iter().any(|inode| endless.contains(inode));
    let Holder { pid, .. } = holders.iter().find(sends)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!(
        "process {pid} ({}) holds it, and a UDP or raw socket that is not connected",
        name.trim().escape_debug()
    ))
}

/// The processes that hold tun and tap devices, by the device's name. Devices of other namespaces may have the same: a process of
/// theirs has no socket here.
fn holders(proc: &Path) -> BTreeMap<String, Vec<Holder>> {
    let mut found: BTreeMap<String, Vec<Holder>> = BTreeMap::new();
    let is_number = |name: &str| name.bytes().all(|b| b.is_ascii_digit());
    for pid in names(proc).into_iter().filter(|name| is_number(name)) {
        let of = proc.join(&pid);
        let links = links(&of.join("fd"));
        for (_, fd) in links.iter().filter(|(link, _)| link.ends_with("/tun")) {
            let told = fs::read_to_string(of.join("fdinfo").join(fd)).unwrap_or_default();
            // tun_chr_show_fdinfo() in drivers/net/tun.c.
            let Some(device) = told.lines().find_map(|line| line.strip_prefix("iff:\t")) else { continue };
            let inode = |link: &str| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
            let sockets = links.iter().filter_map(|(link, _)| inode(link)).collect();
            found.entry(device.to_owned()).or_default().push(Holder { pid: pid.clone(), sockets });
        }
    }
    found
}

/// The inodes of the sockets by which packets can leave for any end; none without /proc.
fn endless(net: &Path) -> Option<BTreeSet<String>> {
    net.join("udp").exists().then_some(())?;
    let read = |name: &&str| Some((name.starts_with("raw"), fs::read_to_string(net.join(name)).ok()?));
    let inode = |by_raw: bool, line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Of raw sockets the connected ones are not asked about.
        (by_raw || *fields.get(3)? == UNCONNECTED).then_some(())?;
        Some((*fields.get(9)?).to_owned())
    };
    let all = WITHOUT_AN_END.iter().filter_map(read);
    Some(all.flat_map(|(raw, text)| text.lines().filter_map(|l| inode(raw, l)).collect::<Vec<_>>()).collect())
}

/// What the descriptors of a process are, and their numbers. The files themselves are not touched: their servers may be gone.
fn links(folder: &Path) -> Vec<(String, String)> {
    let Ok(dir) = open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else { return Vec::new() };
    let link = |fd: String| Some((readlinkat(&dir, &fd, Vec::new()).ok()?.into_string().ok()?, fd));
    names(folder).into_iter().filter_map(link).collect()
}

/// The names in a folder; none where it is gone, or another user's.
fn names(folder: &Path) -> Vec<String> {
    let all = fs::read_dir(folder).into_iter().flatten();
    all.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}
