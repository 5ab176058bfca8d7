//! Per-device sysctls of the calling thread's network namespace: what netlink reports of them, and
//! files for the others. Paths, and not the `sysctl` crate, since it turns every dot of a name into
//! a slash, which a VLAN's name does not survive.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Netdev, SysctlValues};
use rdma_netlink::devconf::DevConf;
use rdma_netlink::neigh_parms::{AF_INET, AF_INET6, Tables};
use rdma_netlink::rtnl;

use crate::kernel::{Defaults, Sysctls};
use crate::plan::sysctl_carry;

const FOLDERS: [&str; 4] = ["ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"];

fn path(dev: &str, key: &str) -> Option<PathBuf> {
    let (folder, leaf) = key.rsplit_once('/')?;
    Some(PathBuf::from(format!(
        "/proc/sys/net/{folder}/{dev}/{leaf}"
    )))
}

/// No setting: says whether the multicast router of this namespace forwards by the device, and
/// cannot be written (devinet_sysctl in net/ipv4/devinet.c, addrconf_sysctl in
/// net/ipv6/addrconf.c).
const STATUS: &str = "mc_forwarding";

/// The values of `all` that combine with those of a device (max or OR: `IN_DEV_MAXCONF`,
/// `IN_DEV_ORCONF` in include/linux/inetdevice.h).
const COMBINED: [&str; 4] = ["arp_announce", "arp_ignore", "arp_filter", "rp_filter"];

/// What netlink reports of the sysctls of a namespace.
pub struct Reported {
    pub confs: HashMap<u32, DevConf>,
    pub neigh: Tables,
}

impl Reported {
    fn has(&self, index: u32, folder: &str) -> bool {
        let conf = self.confs.get(&index);
        conf.is_some_and(|conf| match folder.starts_with("ipv4/") {
            true => conf.has_ipv4(),
            false => conf.has_ipv6(),
        })
    }

    fn value(&self, index: u32, folder: &str, leaf: &str) -> Option<String> {
        match folder {
            "ipv4/conf" => self.confs.get(&index)?.ipv4(leaf),
            "ipv6/conf" => self.confs.get(&index)?.ipv6(leaf),
            _ => self.neigh(Some(index), folder, leaf),
        }
    }

    /// Those values that the device does not have by now, as far as that is reported.
    pub fn differing(
        &self,
        index: u32,
        values: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let mut differing = values.clone();
        differing.retain(|key, value| {
            let leaf = key.rsplit_once('/');
            let now = leaf.and_then(|(folder, leaf)| self.value(index, folder, leaf));
            // A secret that is written sets the mode.
            now.as_ref() != Some(value)
                || key == "ipv6/conf/addr_gen_mode"
                    && values.contains_key("ipv6/conf/stable_secret")
        });
        differing
    }

    fn neigh(&self, index: Option<u32>, folder: &str, leaf: &str) -> Option<String> {
        let family = match folder {
            "ipv4/neigh" => AF_INET,
            "ipv6/neigh" => AF_INET6,
            _ => return None,
        };
        self.neigh.get(&(family, index))?.value(leaf)
    }
}

/// Reads sysctls in one namespace: the thread that calls is in there. What netlink does not report
/// is read from its file.
#[derive(Default)]
pub struct Reader {
    /// By folder: they are the same for all devices.
    leaves: BTreeMap<&'static str, Vec<String>>,
    shared: BTreeMap<String, Option<String>>,
}

impl Reader {
    /// A step writes some: they are to be read again.
    pub fn forget(&mut self) {
        self.shared.clear();
    }

    pub fn read_netdevs(&mut self, netdevs: &mut [Netdev], wanted: &Sysctls, reported: &Reported) {
        // A link that goes by no name has no folder.
        for dev in netdevs
            .iter_mut()
            .filter(|d| wanted.concern(&d.name) && rtnl::nameless(&d.name).is_none())
        {
            dev.sysctls = match wanted {
                Sysctls::All | Sysctls::Of(_) => self.all_of(dev, reported).into(),
                Sysctls::Named(keys) => {
                    named(dev, keys.get(&dev.name).into_iter().flatten(), reported)
                }
            };
        }
    }

    /// All values of a device, by `ipv4/conf/<leaf>` and so on; what cannot be read (an unset
    /// stable_secret) is left out.
    fn all_of(&mut self, dev: &Netdev, reported: &Reported) -> BTreeMap<String, String> {
        let mut values = BTreeMap::new();
        for folder in FOLDERS
            .into_iter()
            .filter(|folder| reported.has(dev.ifindex, folder))
        {
            for leaf in self.leaves(folder, &dev.name) {
                let key = format!("{folder}/{leaf}");
                let value = reported.value(dev.ifindex, folder, leaf);
                values.extend(
                    value
                        .or_else(|| read(dev.name.as_str(), &key))
                        .map(|value| (key, value)),
                );
            }
        }
        values
    }

    /// `neigh/default` is in the first namespace only; a device has all that a new one would get.
    fn leaves(&mut self, folder: &'static str, dev: &IfName) -> &[String] {
        let leaves = self.leaves.entry(folder).or_default();
        if leaves.is_empty() {
            *leaves = listed(&format!("/proc/sys/net/{folder}/{dev}"));
        }
        leaves
    }

    /// The values of `all` that combine with those of a device, by `ipv4/conf/all/<leaf>`, and
    /// those of `default`, by `ipv4/conf/default/<leaf>`.
    pub fn shared(&mut self, defaults: Defaults, reported: &Reported) -> BTreeMap<String, String> {
        let combined = COMBINED.map(|leaf| ("all", format!("ipv4/conf/{leaf}")));
        let mut values: BTreeMap<String, String> = combined
            .into_iter()
            .filter_map(|(dev, key)| self.of_shared(dev, &key))
            .collect();
        for folder in FOLDERS {
            let leaves = match defaults {
                Defaults::Unread => continue,
                Defaults::All => listed(&format!("/proc/sys/net/{folder}/default")),
                Defaults::Carried => self.carried(folder),
            };
            for leaf in leaves {
                let key = format!("{folder}/{leaf}");
                let neigh = reported
                    .neigh(None, folder, &leaf)
                    .map(|value| (format!("{folder}/default/{leaf}"), value));
                values.extend(neigh.or_else(|| self.of_shared("default", &key)));
            }
        }
        values
    }

    /// The leaves whose default says whether a device's value is taken along.
    fn carried(&self, folder: &str) -> Vec<String> {
        let there = Path::new("/proc/sys/net")
            .join(folder)
            .join("default")
            .exists();
        let leaves = self
            .leaves
            .get(folder)
            .into_iter()
            .flatten()
            .filter(|leaf| there && !sysctl_carry::stays(leaf));
        leaves.cloned().collect()
    }

    fn of_shared(&mut self, dev: &str, key: &str) -> Option<(String, String)> {
        let (folder, leaf) = key.rsplit_once('/')?;
        let place = format!("{folder}/{dev}/{leaf}");
        let value = self
            .shared
            .entry(place.clone())
            .or_insert_with(|| read(dev, key))
            .clone();
        Some((place, value?))
    }
}

fn listed(folder: &str) -> Vec<String> {
    let names = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok());
    names.filter(|leaf| leaf != STATUS).collect()
}

fn named<'a>(
    dev: &Netdev,
    keys: impl Iterator<Item = &'a String>,
    reported: &Reported,
) -> SysctlValues {
    let values = keys.filter_map(|key| {
        let (folder, leaf) = key.rsplit_once('/')?;
        let value = reported.value(dev.ifindex, folder, leaf);
        Some((key.clone(), value.or_else(|| read(dev.name.as_str(), key))?))
    });
    values.collect()
}

/// The kernel gives a sysctl whole at the first read; it has nothing to say from any other position
/// (kernel/sysctl.c).
fn whole(file: &File) -> Option<String> {
    let mut buffer = [0; 4096];
    let read = file.read_at(&mut buffer, 0).ok()?;
    Some(
        std::str::from_utf8(&buffer[..read])
            .ok()?
            .trim_end()
            .to_owned(),
    )
}

fn read(dev: &str, key: &str) -> Option<String> {
    whole(&File::open(path(dev, key)?).ok()?)
}

/// In the order in which values are to be written: a secret sets addr_gen_mode, which may be
/// another one (addrconf_sysctl_stable_secret in net/ipv6/addrconf.c), and a link that is up gets
/// an address by each mode that it is given.
pub fn ordered(values: &BTreeMap<String, String>) -> impl Iterator<Item = (&String, &String)> {
    let (secrets, others): (Vec<_>, Vec<_>) = values
        .iter()
        .partition(|(key, _)| key.ends_with("/stable_secret"));
    secrets.into_iter().chain(others)
}

/// Writes a value unless it is there already, and reads it back.
pub fn write(dev: &IfName, key: &str, value: &str) -> Result<()> {
    let path = path(dev.as_str(), key).with_context(|| format!("{key} names no sysctl"))?;
    let opened = File::options().read(true).write(true).open(&path);
    if opened.is_err() && read(dev.as_str(), key).as_deref() == Some(value) {
        return Ok(());
    }
    let writing = || format!("writing {value} to {}", path.display());
    let file = opened.with_context(writing)?;
    if whole(&file).as_deref() == Some(value) {
        return Ok(());
    }
    file.write_all_at(value.as_bytes(), 0)
        .with_context(writing)?;
    let now = whole(&file);
    ensure!(
        now.as_deref() == Some(value),
        "{} holds {now:?} after {value} was written",
        path.display()
    );
    Ok(())
}
