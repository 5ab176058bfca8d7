//! Which HCA ports NCCL takes, and in which order (src/transport/net_ib/init.cc,
//! `ncclIbInitDevices`). Unknown here is whether a device node can be opened, and GIDs, which NCCL
//! reads when it connects. Before 2.29.7 the order is libibverbs', taken to be that of the kernel's
//! device indexes.

mod data_direct;
mod planes;

use data_direct::direct_name;
pub(crate) use data_direct::{DIRECT, data_direct, has_direct};
pub use data_direct::{may_be_direct, uses_data_direct};
use planes::refused_plane;
use rdma_model::escape::shortened;
use rdma_model::ids::{BusId, Guid};
use rdma_model::snapshot::{Hca, Port, Snapshot};

use super::explanation::{Judged, Network, Trap, Warning};
use super::ifname::Patterns;
use super::settings::Settings;
use super::version::Version;

/// How the reason of a port begins of which the snapshot does not say enough.
pub const UNKNOWN: &str = "unknown: ";
/// The reason of a port whose list NCCL refuses.
pub(crate) const REFUSED: &str = "NCCL refuses the planes of NCCL_IB_HCA";
pub(crate) const NO_ROOM: &str = "NCCL has room for";

pub(crate) struct Hcas {
    pub taken: Vec<String>,
    pub judged: Vec<Judged>,
    /// Ports that are one device to NCCL.
    pub merged: Vec<Vec<String>>,
    pub crash: Option<Warning>,
}

/// A port that NCCL takes.
#[derive(Clone, Copy)]
struct Taken<'a> {
    hca: &'a Hca,
    port: &'a Port,
}

/// Judges every port of every HCA. `sockets`: whether there is an interface for the connection
/// set-up.
pub(crate) fn judge(
    settings: &Settings,
    snapshot: &Snapshot,
    version: Version,
    sockets: bool,
) -> Hcas {
    let patterns = Patterns::hcas(settings.get("NCCL_IB_HCA"), version);
    let whole = if !sockets {
        let why = "NCCL finds no interface for the connection set-up, and without it uses no HCA";
        Some(why.to_owned())
    } else {
        let disabled = || disabled(settings, version).then(|| "NCCL_IB_DISABLE is set".to_owned());
        let unnamed = || no_verbs(settings, version).then(|| NO_VERBS.to_owned());
        excludes_verbs(settings).or_else(disabled).or_else(unnamed)
    };
    let mut hcas: Vec<&Hca> = snapshot.hcas.iter().collect();
    hcas.sort_by_key(|h| h.index);
    let (mut taken, mut judged) = (Vec::new(), Vec::new());
    for hca in hcas {
        if hca.ports.is_empty() {
            judged.push(Judged {
                name: hca.name.to_string(),
                taken: false,
                why: no_port(snapshot),
            });
        }
        let room = taken.len() < version.max_hcas();
        for port in &hca.ports {
            let refused = whole
                .clone()
                .or_else(|| refusal(hca, port, &patterns))
                .or_else(|| {
                    (!room)
                        .then(|| format!("{NO_ROOM} {} and others come first", version.max_hcas()))
                });
            if refused.is_none() {
                taken.push(Taken { hca, port });
            }
            let own = || accepted(&patterns) + &direct_name(settings, snapshot, version, hca);
            let why = refused.clone().unwrap_or_else(own);
            judged.push(Judged {
                name: format!("{}:{}", hca.name, port.number),
                taken: refused.is_none(),
                why,
            });
        }
    }
    if sorts(settings, version) {
        // What is not on PCI comes last.
        taken.sort_by_key(|t| (t.hca.pci.is_none(), t.hca.pci));
    }
    let merged = merged(settings, version, &taken);
    let plane = refused_plane(version, &patterns, &taken);
    let crash = match no_path(settings, version, &taken) {
        // Port by port, NCCL looks at the plane before it compares paths.
        Some((at, path)) => plane.filter(|p| p.0 <= at).map_or(path, |p| p.1).into(),
        None => beyond(version, &taken).or(plane.map(|p| p.1)),
    };
    let mut all: Vec<String> = taken.iter().map(Taken::name).collect();
    if crash.as_ref().is_some_and(|w| w.trap == Trap::Planes) {
        all.clear();
        for port in judged.iter_mut().filter(|port: &&mut Judged| port.taken) {
            port.taken = false;
            port.why = REFUSED.to_owned();
        }
    }
    Hcas {
        taken: all,
        judged,
        merged,
        crash,
    }
}

fn no_port(snapshot: &Snapshot) -> String {
    if snapshot.lacks_network() {
        format!("{UNKNOWN}no port of it is in this snapshot")
    } else {
        "it shows no port".to_owned()
    }
}

/// What NCCL takes for the card of a PCI function.
pub(crate) fn place(id: BusId, vfs: bool) -> BusId {
    BusId {
        function: 0,
        device: if vfs { 0 } else { id.device },
        ..id
    }
}

impl Taken<'_> {
    fn name(&self) -> String {
        format!("{}:{}", self.hca.name, self.port.number)
    }

    /// What has to be the same of ports that become one device.
    fn card(&self, vfs: bool) -> (Option<BusId>, Option<Guid>, Option<&str>) {
        (
            self.hca.pci.map(|id| place(id, vfs)),
            self.hca.sys_image_guid,
            self.port.link_layer.as_deref(),
        )
    }
}

/// Whether NCCL may crash on that many HCAs with a PCI path and without one, in whichever order
/// libibverbs lists them.
pub fn may_crash(settings: &Settings, version: Version, with: usize, without: usize) -> bool {
    let compares = merges(settings, version) || with > 0 && !sorts(settings, version);
    compares && without > 0 && with + without > 1
}

fn sorts(settings: &Settings, version: Version) -> bool {
    version.sorts_hcas() && parameter(settings, version, "NCCL_IB_DEVICE_PCI_ORDER", 1) != 0
}

fn merges(settings: &Settings, version: Version) -> bool {
    version.merges_ports() && parameter(settings, version, "NCCL_IB_MERGE_NICS", 1) != 0
}

/// The devices that are made of several ports, at most two (NCCL_IB_MAX_DEVS_PER_NIC).
fn merged(settings: &Settings, version: Version, taken: &[Taken]) -> Vec<Vec<String>> {
    let vfs = parameter(settings, version, "NCCL_IB_MERGE_VFS", 1) != 0;
    let mut devices: Vec<Vec<&Taken>> = Vec::new();
    for port in taken.iter().filter(|_| merges(settings, version)) {
        match devices
            .iter_mut()
            .find(|d| d.len() < 2 && d[0].card(vfs) == port.card(vfs))
        {
            Some(device) => device.push(port),
            None => devices.push(vec![port]),
        }
    }
    if version.merges_all_or_none() && devices.iter().any(|d| d.len() != devices[0].len()) {
        return Vec::new();
    }
    devices
        .iter()
        .filter(|d| d.len() > 1)
        .map(|d| d.iter().map(|port| port.name()).collect())
        .collect()
}

/// NCCL compares the PCI path of each port with those of the ports before it, unless it has none
/// itself (`ncclIbGetPciPath`; from 2.29.7 on `ncclIbGetRealPort`), and a path that is not there is
/// NULL. The path is where /sys/class/infiniband/NAME/device leads. With the port at which it ends.
fn no_path(settings: &Settings, version: Version, taken: &[Taken]) -> Option<(usize, Warning)> {
    let first = taken.iter().position(|t| t.hca.pci.is_none())?;
    let with = taken[first..].iter().position(|t| t.hca.pci.is_some());
    let at = with.map(|n| first + n);
    let at = at.or_else(|| merging_ends(settings, version, taken))?;
    let (name, other) = (&taken[first].hca.name, &taken[at].hca.name);
    let which = if name == other {
        "its ports".to_owned()
    } else {
        other.to_string()
    };
    let text = format!(
        "NCCL {version} crashes: {name} has no PCI path, and it is compared with that of {which}"
    );
    let crash = Warning {
        trap: Trap::Crash,
        fatal: true,
        text,
    };
    Some((at, crash))
}

/// The port at which merging compares a path that is not there; what is merged already is not
/// compared any more.
fn merging_ends(settings: &Settings, version: Version, taken: &[Taken]) -> Option<usize> {
    let vfs = parameter(settings, version, "NCCL_IB_MERGE_VFS", 1) != 0;
    let mut alone: Vec<&Taken> = Vec::new();
    for (at, port) in taken.iter().enumerate() {
        if !merges(settings, version) {
            break;
        }
        let same = alone.iter().position(|a| a.card(vfs) == port.card(vfs));
        let compared = &alone[..same.map_or(alone.len(), |at| at + 1)];
        if compared
            .iter()
            .any(|a| a.hca.pci.is_none() || port.hca.pci.is_none())
        {
            return Some(at);
        }
        match same {
            Some(at) => drop(alone.remove(at)),
            None => alone.push(port),
        }
    }
    None
}

fn beyond(version: Version, taken: &[Taken]) -> Option<Warning> {
    let (count, most) = (taken.len(), version.max_hcas());
    let does = if version.lists_beyond() {
        "takes them as well"
    } else {
        "takes wrong ones, or crashes"
    };
    let text = format!(
        "NCCL {version} has {most} places and takes {count} HCA ports: it writes past them, and \
        {does}"
    );
    (count > most).then_some(Warning {
        trap: Trap::Overrun,
        fatal: true,
        text,
    })
}

/// An empty NCCL_IBVERBS_LIB is dlopen's word for the program itself, which has no verbs.
pub(crate) fn no_verbs(settings: &Settings, version: Version) -> bool {
    settings.get("NCCL_IBVERBS_LIB") == Some("") && version.opens_named_verbs()
}

pub(crate) const NO_VERBS: &str =
    "NCCL_IBVERBS_LIB is empty, which is the program itself: it has no verbs";

pub(crate) fn disabled(settings: &Settings, version: Version) -> bool {
    parameter(settings, version, "NCCL_IB_DISABLE", 0) != 0
}

/// Why no HCA is NCCL's own: NCCL_NET names another network.
pub(crate) fn excludes_verbs(settings: &Settings) -> Option<String> {
    match Network::asked(settings)? {
        Network::Ib => None,
        Network::Socket => Some("NCCL_NET=Socket uses no HCA".to_owned()),
        Network::Nothing => Some("NCCL_NET is empty, which no network is called".to_owned()),
        Network::Other(name) if name.eq_ignore_ascii_case(Network::ROCM_IB) => Some(format!(
            "{UNKNOWN}NCCL_NET=ROCM-IB is RCCL's network for RCCL_AINIC_ROCE=1, not NCCL's"
        )),
        Network::Other(name) => Some(format!(
            "{}NCCL_NET={} is a plugin's network, which chooses by rules of its own",
            UNKNOWN,
            shortened(&name, 80)
        )),
    }
}

fn accepted(patterns: &Patterns) -> String {
    match (patterns.entries.is_empty(), patterns.exclude) {
        (true, _) => "no NCCL_IB_HCA: every active port",
        (false, true) => "NCCL_IB_HCA does not exclude it",
        (false, false) => "NCCL_IB_HCA names it",
    }
    .to_owned()
}

fn refusal(hca: &Hca, port: &Port, patterns: &Patterns) -> Option<String> {
    let (name, number) = (hca.name.as_str(), port.number);
    if let Some(state) = port.state.as_deref().filter(|state| *state != "ACTIVE") {
        return Some(format!("its state is {state}, not ACTIVE"));
    }
    if let Some(layer) = port
        .link_layer
        .as_deref()
        .filter(|l| !matches!(*l, "InfiniBand" | "Ethernet"))
    {
        return Some(format!(
            "its link layer is {layer}, neither InfiniBand nor Ethernet"
        ));
    }
    if patterns.takes(name, Some(number)) {
        let unknown =
            || format!("{UNKNOWN}NCCL takes it if it is ACTIVE, and its state is not known");
        return port.state.is_none().then(unknown);
    }
    let by_name = patterns
        .entries
        .iter()
        .any(|e| e.names(name, patterns.exact));
    Some(match (patterns.exclude, by_name) {
        (true, true) => "NCCL_IB_HCA excludes it".to_owned(),
        (true, false) => "NCCL_IB_HCA is ^ without a name, which excludes every HCA".to_owned(),
        (false, true) => format!("NCCL_IB_HCA names {name}, but another port of it"),
        (false, false) => "NCCL_IB_HCA does not name it".to_owned(),
    })
}

/// A numeric variable: C's strtoll with base 0; what is empty is the default (src/misc/param.cc,
/// `ncclLoadParam`).
pub(crate) fn parameter(settings: &Settings, version: Version, name: &str, default: i64) -> i64 {
    let Some(text) = settings.get(name).filter(|v| !v.is_empty()) else {
        return default;
    };
    let Scanned {
        minus,
        base,
        digits,
        ..
    } = Scanned::new(text);
    match digits {
        "" if base == 10 && version.wants_digits() => default,
        "" => 0,
        // What does not fit into 64 bits is the default, too.
        digits => i64::from_str_radix(digits, base).map_or(default, |n| if minus { -n } else { n }),
    }
}

/// What strtoll sees of a text.
pub(crate) struct Scanned<'a> {
    minus: bool,
    base: u32,
    digits: &'a str,
    rest: &'a str,
}

impl<'a> Scanned<'a> {
    pub(crate) fn new(text: &'a str) -> Scanned<'a> {
        let text = text.trim_ascii_start();
        let plus = || text.strip_prefix('+').unwrap_or(text);
        let (minus, digits) = text
            .strip_prefix('-')
            .map_or_else(|| (false, plus()), |d| (true, d));
        let (base, digits) = match (digits.get(..2), digits.strip_prefix('0')) {
            (Some("0x" | "0X"), _) => (16, &digits[2..]),
            (_, Some(octal)) if !octal.is_empty() => (8, octal),
            _ => (10, digits),
        };
        let end = digits
            .find(|c: char| !c.is_digit(base))
            .unwrap_or(digits.len());
        let (digits, rest) = digits.split_at(end);
        Scanned {
            minus,
            base,
            digits,
            rest,
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        !self.digits.is_empty() && self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// rxe0 has no PCI path, and NCCL crashes as it compares mlx5_0's with it.
    #[test]
    fn a_plane_is_refused_before_a_later_port_crashes() {
        let port = json!({"number": 1, "state": "ACTIVE", "link_layer": "Ethernet"});
        let hcas = json!([
            {"name": "rxe0", "index": 1, "ports": [port]},
            {"name": "mlx5_0", "index": 2, "pci": "0000:05:00.0", "ports": [port]},
        ]);
        let snapshot = Snapshot {
            hcas: serde_json::from_value(hcas).unwrap(),
            ..Snapshot::default()
        };
        let trap = |list: &str| {
            let set = [("NCCL_IB_HCA", list), ("NCCL_IB_DEVICE_PCI_ORDER", "0")];
            let judged = judge(
                &Settings::of(set, ""),
                &snapshot,
                Version::new(2, 30, 7),
                true,
            );
            judged.crash.map(|w| w.trap)
        };
        assert_eq!(trap("=mlx5_0,rxe0:::16384"), Some(Trap::Planes));
        assert_eq!(trap("=mlx5_0:::16384,rxe0"), Some(Trap::Planes));
        assert_eq!(trap("=mlx5_0,rxe0"), Some(Trap::Crash));
    }

    #[test]
    fn numbers_as_c_reads_them() {
        let read =
            |version, value: &str| parameter(&Settings::of([("X", value)], ""), version, "X", 7);
        let all = |version| {
            [
                "",
                "0",
                "1",
                "-1",
                "0x10",
                "010",
                "1x",
                " 2",
                "0x",
                "99999999999999999999",
                "x",
            ]
            .map(|v| read(version, v))
        };
        assert_eq!(all(Version::NEWEST), [7, 0, 1, -1, 16, 8, 1, 2, 0, 7, 7]);
        assert_eq!(
            all(Version::new(2, 31, 2)),
            [7, 0, 1, -1, 16, 8, 1, 2, 0, 7, 0]
        );
    }
}
