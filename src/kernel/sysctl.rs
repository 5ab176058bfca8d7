//! Per-device sysctls of the calling thread's network namespace.
//!
//! Files below /proc/sys are used directly: the `sysctl` crate turns every dot of a name into a slash, which a VLAN's
//! name does not survive.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, Dir, Mode, OFlags, openat};

use rdma_model::ids::IfName;

/// The folders of `/proc/sys/net` that hold per-device values.
const FOLDERS: [&str; 4] = ["ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"];

fn path(dev: &str, key: &str) -> Option<PathBuf> {
    let (folder, leaf) = key.rsplit_once('/')?;
    Some(PathBuf::from(format!("/proc/sys/net/{folder}/{dev}/{leaf}")))
}

/// No setting: says whether the multicast router of this namespace forwards by the device, and cannot be written
/// (devinet_sysctl in net/ipv4/devinet.c, addrconf_sysctl in net/ipv6/addrconf.c).
const STATUS: &CStr = c"mc_forwarding";

/// All values of a device, by `ipv4/conf/<leaf>` and so on; what cannot be read (an unset stable_secret) is left out.
pub fn read_all(dev: &IfName) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for folder in FOLDERS {
        let path = format!("/proc/sys/net/{folder}/{dev}");
        // Each file by its name in its folder: walking the whole path takes as long as reading it.
        let Ok(open) = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
            continue;
        };
        let Ok(leaves) = Dir::read_from(&open) else { continue };
        let leaf =
            |name: &CStr| whole(openat(&open, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?.into());
        for entry in leaves.flatten().filter(|entry| entry.file_name() != STATUS) {
            if let Some(value) = leaf(entry.file_name()) {
                values.insert(format!("{folder}/{}", entry.file_name().to_string_lossy()), value);
            }
        }
    }
    values
}

/// The kernel gives a sysctl whole at the first read; it has nothing to say from any other position (kernel/sysctl.c).
fn whole(mut file: File) -> Option<String> {
    let mut buffer = [0; 4096];
    let read = file.read(&mut buffer).ok()?;
    Some(std::str::from_utf8(&buffer[..read]).ok()?.trim_end().to_owned())
}

/// The values of `all` and `default` that combine with those of a device (max or OR: `IN_DEV_MAXCONF`, `IN_DEV_ORCONF` in
/// include/linux/inetdevice.h), by `ipv4/conf/all/<leaf>`.
pub fn shared() -> BTreeMap<String, String> {
    let leaves = ["arp_announce", "arp_ignore", "arp_filter", "rp_filter"];
    let keys = ["all", "default"].into_iter().flat_map(|d| leaves.map(|l| (d, format!("ipv4/conf/{l}"))));
    keys.filter_map(|(d, key)| Some((key.replace("conf/", &format!("conf/{d}/")), read(d, &key)?))).collect()
}

/// What a new device of the namespace gets, by `ipv4/conf/default/<leaf>`.
pub fn defaults() -> BTreeMap<String, String> {
    let Ok(default) = "default".parse() else { return BTreeMap::new() };
    let place = |key: String| key.rsplit_once('/').map(|(folder, leaf)| format!("{folder}/default/{leaf}"));
    read_all(&default).into_iter().filter_map(|(key, value)| Some((place(key)?, value))).collect()
}

/// One value of a device, or of `all` and `default`.
pub fn read(dev: &str, key: &str) -> Option<String> {
    whole(File::open(path(dev, key)?).ok()?)
}

/// In the order in which values are to be written: a secret sets addr_gen_mode, which may be another one
/// (addrconf_sysctl_stable_secret in net/ipv6/addrconf.c), and a link that is up gets an address by each mode that it is given.
pub fn ordered(values: &BTreeMap<String, String>) -> impl Iterator<Item = (&String, &String)> {
    let is_secret = |key: &str| key.ends_with("/stable_secret");
    let secrets = values.iter().filter(move |(key, _)| is_secret(key));
    secrets.chain(values.iter().filter(move |(key, _)| !is_secret(key)))
}

/// Writes a value unless it is there already, and reads it back.
pub fn write(dev: &IfName, key: &str, value: &str) -> Result<()> {
    if read(dev.as_str(), key).as_deref() == Some(value) {
        return Ok(());
    }
    let path = path(dev.as_str(), key).with_context(|| format!("{key} names no sysctl"))?;
    fs::write(&path, value).with_context(|| format!("writing {value} to {}", path.display()))?;
    let now = read(dev.as_str(), key);
    ensure!(now.as_deref() == Some(value), "{} holds {now:?} after {value} was written", path.display());
    Ok(())
}
