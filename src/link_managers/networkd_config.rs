//! What networkd's files say of rules, its own and those of others.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use rdma_model::ids::IfName;

use crate::disk::files;

/// Where networkd looks for files (systemd.network(5)), in the order in which they count.
pub const FOLDERS: [&str; 4] = [
    "usr/lib/systemd",
    "usr/local/lib/systemd",
    "run/systemd",
    "etc/systemd",
];

/// A file with a rule whose priority the kernel chooses (systemd.network(5)).
pub fn rule_without_priority(root: &Path) -> Option<PathBuf> {
    let mut networks = network_files(root).filter(|file| {
        let is = |ends: &str| file.extension().is_some_and(|e| e == ends);
        is("network") || is("conf")
    });
    networks.find(|file| read(file).is_some_and(|text| lacks_priority(&text)))
}

/// Whether a file has it make a link of that name (systemd.netdev(5)).
pub fn makes(root: &Path, name: &IfName) -> bool {
    let mut files = network_files(root);
    files.any(|file| {
        let is_netdev = file.extension().is_some_and(|e| e == "netdev");
        let text = is_netdev.then(|| read(&file)).flatten();
        text.is_some_and(|text| text.lines().any(|line| names(line, name)))
    })
}

fn names(line: &str, name: &IfName) -> bool {
    let pair = line.split_once('=');
    pair.is_some_and(|(key, value)| key.trim() == "Name" && value.trim() == name.as_str())
}

fn network_files(root: &Path) -> impl Iterator<Item = PathBuf> {
    let folders = FOLDERS.map(|at| root.join(at).join("network"));
    folders.into_iter().flat_map(|folder| files_below(&folder))
}

/// Those of a folder and of the folders in it.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.path()) {
        match fs::read_dir(&path) {
            Ok(drop_ins) => files.extend(drop_ins.flatten().map(|entry| entry.path())),
            Err(_) => files.push(path),
        }
    }
    files.sort();
    files
}

fn lacks_priority(text: &str) -> bool {
    let mut sections = text.split("\n[").filter_map(|section| {
        let (name, lines) = section.trim_start_matches('[').split_once(']')?;
        (name == "RoutingPolicyRule").then_some(lines)
    });
    sections.any(|lines| !lines.lines().any(is_priority))
}

fn is_priority(line: &str) -> bool {
    line.split_once('=')
        .is_some_and(|(key, _)| key.trim() == "Priority")
}

/// Whether a link's files have networkd switch IPv6 on there: link_ipv6_enabled() in systemd's
/// networkd-link.c and network_has_static_ipv6_configurations() in networkd-network.c. It never
/// switches it off.
pub fn has_ipv6(texts: &[String]) -> bool {
    let (mut link_local, mut is_given, mut section) = (true, false, "");
    for line in texts.iter().flat_map(|text| text.lines()) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end().trim_end_matches(']');
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        match (section, key.trim(), value.trim()) {
            ("Network", "LinkLocalAddressing", value) => {
                link_local = link_local_ipv6(value).unwrap_or(link_local);
            }
            // It takes all back that came before it.
            ("Network", "Address", "") => is_given = false,
            ("Network", "Address" | "Gateway", value)
            | ("Address" | "Neighbor", "Address", value)
            | ("Route", "Destination" | "Gateway", value)
            | ("IPv6Prefix", "Prefix", value) => is_given |= is_ipv6(value),
            _ => {}
        }
    }
    link_local || is_given
}

/// What a value of `LinkLocalAddressing=` says of IPv6 (systemd.network(5)).
fn link_local_ipv6(value: &str) -> Option<bool> {
    match value.to_lowercase().as_str() {
        "yes" | "true" | "1" | "on" | "ipv6" | "fallback" => Some(true),
        "no" | "false" | "0" | "off" | "ipv4" | "ipv4-fallback" => Some(false),
        _ => None,
    }
}

fn is_ipv6(value: &str) -> bool {
    let address = value.split('/').next().unwrap_or_default();
    address.parse::<Ipv6Addr>().is_ok()
}

fn read(file: &Path) -> Option<String> {
    files::read_through(file).ok().flatten()
}

/// Whether networkd is configured to leave rules of others alone. Of several files the last one by
/// name counts, and networkd.conf is the first (networkd.conf(5)).
pub fn spares_rules(root: &Path) -> bool {
    let mut files: BTreeMap<std::ffi::OsString, PathBuf> = BTreeMap::new();
    for folder in FOLDERS {
        let drop_ins = fs::read_dir(root.join(folder).join("networkd.conf.d"))
            .into_iter()
            .flatten()
            .flatten();
        files.extend(drop_ins.map(|entry| (entry.file_name(), entry.path())));
    }
    let main = FOLDERS
        .iter()
        .rev()
        .map(|folder| root.join(folder).join("networkd.conf"))
        .find(|path| path.exists());
    let texts = main
        .into_iter()
        .chain(files.into_values())
        .filter_map(|path| read(&path));
    let lines: Vec<String> = texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let mut values = lines
        .iter()
        .filter_map(|line| line.trim().strip_prefix("ManageForeignRoutingPolicyRules="));
    let value = values.next_back().map(|value| value.trim().to_lowercase());
    value.is_some_and(|value| ["no", "false", "0", "off"].contains(&value.as_str()))
}

#[cfg(test)]
mod tests {
    use super::{has_ipv6, lacks_priority};

    #[test]
    fn ipv6_is_on_but_without_any_address_of_it() {
        let [no, yes] = ["no", "ipv6"].map(|v| format!("[Network]\nLinkLocalAddressing={v}\n"));
        let address = "[Network]\nAddress = 2001:db8::1/64\n".to_owned();
        let others = "[Match]\nMACAddress=00:00:00:00:00:01\n[Network]\nDNS=2001:db8::2\n\
            LinkLocalAddressing=foo\nAddress=10.0.0.1/24\n[RoutingPolicyRule]\n\
            From=2001:db8::/32\n[NextHop]\nGateway=2001:db8::1\n";
        let taken_back = format!("{address}Address=\n");
        assert!(has_ipv6(&["[Match]\nName=r0\n".to_owned()]));
        assert!(has_ipv6(&[no.clone(), yes.clone()]) && has_ipv6(&[no.clone(), address]));
        assert!(!has_ipv6(&[no.clone(), taken_back]));
        assert!(!has_ipv6(&[yes, no.clone()]) && !has_ipv6(&[no, others.to_owned()]));
    }

    #[test]
    fn each_rule_needs_a_priority_of_its_own() {
        let rule = "[RoutingPolicyRule]\nFrom=10.0.0.1\n";
        let with = format!("{rule}Priority = 7\n");
        let other = "[Match]\nName=r0\n[Route]\nPriority=1\n";
        assert!(!lacks_priority(other) && !lacks_priority(&with));
        assert!(!lacks_priority(&format!("{other}{with}{with}")));
        assert!(lacks_priority(&format!("{with}{rule}")));
        assert!(lacks_priority(&format!("{rule}[Route]\nPriority=1\n")));
    }
}
