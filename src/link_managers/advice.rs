//! Which network manager may have changed restored NICs, and how to keep it from them.

use rdma_model::drift::Drift;
use std::collections::BTreeSet;

use rdma_model::ids::IfName;

use super::Manager;

/// The name of what is no NIC's in a [`Drift`].
const HOST: &str = "host";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    pub manager: Manager,
    pub spares: Vec<IfName>,
    /// Those that have their addresses from it: they would lose these without it.
    pub configures: Vec<IfName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    PutBack,
    Lost,
}

/// What was changed after NICs were restored, and what is known of who did it; nothing where only
/// HCAs differ, which only the kernel moves, or settings of devices.
pub fn sentence(changed: &[Drift], outcome: Outcome, present: &[Present]) -> Option<String> {
    let changed: Vec<&Drift> = changed
        .iter()
        .filter(|d| d.field != "hca" && !d.is_of_device())
        .collect();
    let devs: BTreeSet<&str> = changed.iter().map(|d| d.dev.as_str()).collect();
    if devs.is_empty() {
        return None;
    }
    let names: Vec<&str> = devs.into_iter().collect();
    let mut nics = names.clone();
    nics.retain(|name| *name != HOST);
    let hints: Vec<String> = present
        .iter()
        .flat_map(|p| hints(p, &changed, &nics))
        .collect();
    let who = match hints.is_empty() {
        true => "no NetworkManager, systemd-networkd or udev is known to do that here".to_owned(),
        false => hints.join("; or "),
    };
    let end = match outcome {
        Outcome::PutBack => "and put back",
        Outcome::Lost => "and again after it was put back",
    };
    Some(format!(
        "{} changed after the restore ({}), {end}: {who}",
        names.join(", "),
        fields(&changed)
    ))
}

fn fields(changed: &[&Drift]) -> String {
    const MOST: usize = 3;
    let all: BTreeSet<&str> = changed
        .iter()
        .map(|d| match d.field.as_str() {
            "link" => "name",
            field => field,
        })
        .collect();
    let shown: Vec<&str> = all.iter().take(MOST).copied().collect();
    let shown = shown.join(", ");
    match all.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// None where it cannot be the one.
fn hints(present: &Present, changed: &[&Drift], names: &[&str]) -> Vec<String> {
    let mut fields = changed.iter().map(|d| d.field.as_str());
    let foreign = fields.clone().any(|field| {
        ["route ", "rule ", "nexthop ", "order of "]
            .iter()
            .any(|kind| field.starts_with(kind))
    });
    match present.manager {
        // It deletes routes, rules and nexthop objects that are not its own, wherever they lead
        // (ManageForeignRoutes= and the like in networkd.conf(5)).
        Manager::Networkd if foreign => vec![
            "systemd-networkd, unless ManageForeignRoutes=no, \
            ManageForeignRoutingPolicyRules=no (if each of its own rules has a Priority=) and \
            (since systemd 256) ManageForeignNextHops=no are below [Network] in \
            /etc/systemd/networkd.conf"
                .to_owned(),
        ],
        // What it does, it does to a link's name and hardware settings.
        Manager::Udev
            if fields.any(|f| {
                f.starts_with("link ")
                    || matches!(
                        f,
                        "link" | "name" | "altnames" | "mtu" | "mac" | "txqlen" | "alias"
                    )
            }) =>
        {
            vec![format!(
                "udev, unless a .link file in /etc/systemd/network has [Match] OriginalName={} \
                and [Link] NamePolicy=keep",
                names.join(" ")
            )]
        }
        manager => {
            let off = kept_off(present, names).map(|(who, _, how)| format!("{who}, unless {how}"));
            let mut its = names.to_vec();
            its.retain(|name| is_among(name, &present.configures));
            let its = (!its.is_empty()).then(|| its.join(", "));
            let who = manager.name();
            let own = its.map(|its| {
                format!(
                    "{who}, which configures {its}: what its configuration has as well, it leaves"
                )
            });
            off.into_iter().chain(own).collect()
        }
    }
}

fn is_among(name: &str, all: &[IfName]) -> bool {
    all.iter().any(|one| one.as_str() == name)
}

/// Who manages some of these NICs, of which it configures none, which, and what keeps it off them.
/// What udev does, it does when a link appears.
pub fn kept_off<'a>(
    present: &Present,
    names: &[&'a str],
) -> Option<(&'static str, Vec<&'a str>, String)> {
    let its: Vec<&str> = names
        .iter()
        .filter(|n| !is_among(n, &present.spares) && !is_among(n, &present.configures))
        .copied()
        .collect();
    if its.is_empty() {
        return None;
    }
    let (who, how) = match present.manager {
        Manager::NetworkManager => {
            let list: Vec<String> = its.iter().map(|n| format!("interface-name:{n}")).collect();
            let list = list.join(";");
            let how = format!(
                "unmanaged-devices+={list} is below [keyfile] in a file of \
                /etc/NetworkManager/conf.d"
            );
            ("NetworkManager", how)
        }
        Manager::Networkd => {
            let list = its.join(" ");
            // The first that fits a link, by the files' names, is the only one
            // (systemd.network(5)).
            let how = format!(
                "/etc/systemd/network/05-rdmaprep.network, before its own, has [Match] \
                Name={list} and [Link] Unmanaged=yes"
            );
            ("systemd-networkd", how)
        }
        Manager::Udev => return None,
    };
    Some((who, its, how))
}

/// Shell commands that keep it off these NICs: `rdmaprep install` writes what [`kept_off`] returns.
pub fn keep_off(manager: Manager, names: &[&str]) -> Vec<String> {
    let again = match manager {
        Manager::NetworkManager => "systemctl try-reload-or-restart NetworkManager",
        Manager::Networkd => "systemctl try-restart systemd-networkd",
        Manager::Udev => return Vec::new(),
    };
    let install = format!(
        "rdmaprep install --network-managers --ifaces \"{}\"",
        names.join(" ")
    );
    vec![install, format!("udevadm control --reload; {again}")]
}
