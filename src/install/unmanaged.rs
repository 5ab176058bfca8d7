//! NetworkManager, systemd-networkd and udev: what keeps them off NICs that are rdmaprep's to
//! configure and to give back.

use anyhow::Result;

use super::{Change, Content, InstallRequest, Part, Piece, ReadTree};

/// networkd removes routes, rules and nexthop objects that it has not made, on every link, wherever
/// they lead (networkd.conf(5)). It knows ManageForeignNextHops= since systemd 256, and only warns
/// of a setting that it does not know.
const FOREIGN: &str = "/etc/systemd/networkd.conf.d/rdmaprep.conf";
const ITS_TEXT: &str = "# By `rdmaprep install`: routes and rules of a restored NIC stay.\n\
     [Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n\
     ManageForeignNextHops=no\n";
const RULES_STAY: &str = "ManageForeignRoutingPolicyRules=no\n";
const RULES: &str = "/etc/udev/rules.d/72-rdmaprep.rules";
const KEYFILE: &str = "/etc/NetworkManager/conf.d/rdmaprep.conf";
const NETWORK: &str = "/etc/systemd/network/05-rdmaprep.network";
const LINK: &str = "/etc/systemd/network/05-rdmaprep.link";
const BY: &str = "# By `rdmaprep install --ifaces`.\n";

/// The NICs that an earlier installation keeps managers off.
pub fn kept_off(tree: &dyn ReadTree) -> Result<Vec<String>> {
    let Some(Content::Text(text)) = tree.content(NETWORK)? else {
        return Ok(Vec::new());
    };
    let ours = text.strip_prefix(BY).unwrap_or_default();
    let names = ours.lines().filter_map(|line| line.strip_prefix("Name="));
    let names = names.flat_map(str::split_whitespace);
    Ok(names.map(str::to_owned).collect())
}

pub(super) fn part(wanted: &InstallRequest) -> Part {
    let mut part = Part::default();
    let mut text = ITS_TEXT.to_owned();
    if let Some(file) = &wanted.rule_without_priority {
        text = text.replace(RULES_STAY, "");
        part.notes.push(format!(
            "{} has a rule without Priority=, which some releases of systemd-networkd, as 257, \
            would make once more at each start if they left rules alone: so it deletes those of \
            others, and a restore puts them back",
            file.display()
        ));
    }
    part.pieces.push(Piece::whole_file(FOREIGN, text));
    let names: Vec<&str> = wanted.nics.iter().map(|n| n.name.as_str()).collect();
    if names.is_empty() {
        part.notes.push(
            "no NIC is named by --ifaces: what NetworkManager, systemd-networkd and udev do to \
            links stays"
                .to_owned(),
        );
        return part;
    }
    let spaced = names.join(" ");
    let devices: Vec<String> = names
        .iter()
        .map(|n| format!("interface-name:{n}"))
        .collect();
    let keyfile = format!("{BY}[keyfile]\nunmanaged-devices+={}\n", devices.join(";"));
    let network = format!("{BY}[Match]\nName={spaced}\n\n[Link]\nUnmanaged=yes\n");
    // By the name that it has when the event comes, so not before something else has named it at
    // boot (systemd.link(5)).
    let link = format!("{BY}[Match]\nOriginalName={spaced}\n\n[Link]\nNamePolicy=keep\n");
    part.pieces.extend([
        Piece::whole_file(RULES, rules(wanted, &names.join("|"))),
        Piece::whole_file(KEYFILE, keyfile),
        Piece::whole_file(NETWORK, network),
        Piece::whole_file(LINK, link),
    ]);
    part
}

/// A link that comes back from a namespace has the event `move`, or `add`. Both managers honour
/// ID_NET_MANAGED_BY, networkd since systemd 255; older NetworkManagers NM_UNMANAGED alone.
fn rules(wanted: &InstallRequest, names: &str) -> String {
    let keep = "ENV{NM_UNMANAGED}=\"1\", ENV{ID_NET_MANAGED_BY}=\"rdmaprep\"";
    let mut places = vec![format!("KERNEL==\"{names}\"")];
    for nic in &wanted.nics {
        places.extend(nic.pci.as_ref().map(|pci| format!("KERNELS==\"{pci}\"")));
    }
    let mut text = BY.to_owned();
    for place in places {
        text += &format!("SUBSYSTEM==\"net\", ACTION==\"add|change|move\", {place}, {keep}\n");
    }
    text
}

fn touches(changes: &[Change], files: &[&str]) -> bool {
    changes.iter().any(|c| files.contains(&c.path.as_str()))
}

/// What makes those whose files changed read them again.
pub(super) fn next(changes: &[Change]) -> Option<String> {
    let commands = [
        ("udevadm control --reload", &[RULES, LINK]),
        ("systemctl try-restart NetworkManager", &[KEYFILE, KEYFILE]),
        (
            "systemctl try-restart systemd-networkd",
            &[FOREIGN, NETWORK],
        ),
    ];
    let commands = commands
        .iter()
        .filter(|(_, files)| touches(changes, *files));
    let commands: Vec<&str> = commands.map(|(command, _)| *command).collect();
    (!commands.is_empty()).then(|| commands.join("; "))
}

/// What is to be known of [`next`] before.
pub(super) fn restarts(changes: &[Change]) -> Vec<String> {
    let notes = [
        (
            "`systemctl try-restart NetworkManager` has it go through the configuration of all \
            its links, the uplink's as well",
            [KEYFILE, KEYFILE],
        ),
        // link_configure() in networkd-link.c drops what is foreign.
        (
            "`systemctl try-restart systemd-networkd` has it go through the configuration of all \
            its links, the uplink's as well; addresses that were added to them by hand go",
            [FOREIGN, NETWORK],
        ),
    ];
    let notes = notes.iter().filter(|(_, files)| touches(changes, files));
    notes.map(|(note, _)| (*note).to_owned()).collect()
}
