//! Which HCA ports NCCL takes, and in which order (src/transport/net_ib/init.cc, `ncclIbInitDevices`). Unknown here is whether a
//! device node can be opened, and GIDs, which NCCL reads when it connects. Before 2.29.7 the order is libibverbs', taken to be
//! that of the kernel's device indexes.

use rdma_model::snapshot::{Hca, Port, Snapshot};

use super::explanation::Judged;
use super::ifname::Patterns;
use super::settings::Settings;
use super::version::Version;

pub(crate) const NO_ROOM: &str = "NCCL has room for";

pub(crate) struct Hcas {
    pub taken: Vec<String>,
    pub judged: Vec<Judged>,
}

/// Judges every port of every HCA. `sockets`: whether there is an interface for the connection set-up.
pub(crate) fn judge(settings: &Settings, snapshot: &Snapshot, version: Version, sockets: bool) -> Hcas {
    let patterns = Patterns::hcas(settings.get("NCCL_IB_HCA"), version);
    let whole = if !sockets {
        Some("NCCL finds no interface for the connection set-up, and without it uses no HCA")
    } else {
        disabled(settings).then_some("NCCL_IB_DISABLE is set")
    };
    let mut hcas: Vec<&Hca> = snapshot.hcas.iter().collect();
    hcas.sort_by_key(|h| h.index);
    let (mut taken, mut judged) = (Vec::new(), Vec::new());
    for hca in hcas {
        if hca.ports.is_empty() {
            judged.push(Judged { name: hca.name.to_string(), taken: false, why: "it shows no port".to_owned() });
        }
        for port in &hca.ports {
            let name = format!("{}:{}", hca.name, port.number);
            let room = taken.len() < version.max_hcas();
            let refused = whole
                .map(str::to_owned)
                .or_else(|| refusal(hca, port, &patterns))
                .or_else(|| (!room).then(|| format!("{NO_ROOM} {} and others come first", version.max_hcas())));
            if refused.is_none() {
                taken.push((hca, name.clone()));
            }
            let why = refused.clone().unwrap_or_else(|| accepted(&patterns));
            judged.push(Judged { name, taken: refused.is_none(), why });
        }
    }
    if version.sorts_hcas() && parameter(settings, "NCCL_IB_DEVICE_PCI_ORDER", 1) != 0 {
        // What is not on PCI comes last.
        taken.sort_by_key(|(hca, _)| (hca.pci.is_none(), hca.pci));
    }
    Hcas { taken: taken.into_iter().map(|(_, name)| name).collect(), judged }
}

pub(crate) fn disabled(settings: &Settings) -> bool {
    parameter(settings, "NCCL_IB_DISABLE", 0) != 0
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
    if port.state.as_deref() != Some("ACTIVE") {
        return Some(format!("its state is {}, not ACTIVE", port.state.as_deref().unwrap_or("unknown")));
    }
    if let Some(layer) = port.link_layer.as_deref().filter(|l| !matches!(*l, "InfiniBand" | "Ethernet")) {
        return Some(format!("its link layer is {layer}, neither InfiniBand nor Ethernet"));
    }
    if patterns.takes(name, Some(number)) {
        return None;
    }
    let by_name = patterns.entries.iter().any(|e| e.names(name, patterns.exact));
    Some(match (patterns.exclude, by_name) {
        (true, true) => "NCCL_IB_HCA excludes it".to_owned(),
        (true, false) => "NCCL_IB_HCA is ^ without a name, which excludes every HCA".to_owned(),
        (false, true) => format!("NCCL_IB_HCA names {name}, but another port of it"),
        (false, false) => "NCCL_IB_HCA does not name it".to_owned(),
    })
}

/// A numeric variable: C's strtoll with base 0; what is empty is the default (src/misc/param.cc, `ncclLoadParam`).
fn parameter(settings: &Settings, name: &str, default: i64) -> i64 {
    let Some(text) = settings.get(name).filter(|v| !v.is_empty()) else { return default };
    let text = text.trim_ascii_start();
    let plus = || text.strip_prefix('+').unwrap_or(text);
    let (minus, digits) = text.strip_prefix('-').map_or_else(|| (false, plus()), |d| (true, d));
    let (base, digits) = match (digits.get(..2), digits.strip_prefix('0')) {
        (Some("0x" | "0X"), _) => (16, &digits[2..]),
        (_, Some(octal)) if !octal.is_empty() => (8, octal),
        _ => (10, digits),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    match &digits[..end] {
        "" => 0,
        // What does not fit into 64 bits is the default, too.
        digits => i64::from_str_radix(digits, base).map_or(default, |n| if minus { -n } else { n }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_c_reads_them() {
        let read = |value: &str| parameter(&Settings::of([("X", value)], ""), "X", 7);
        let all = ["", "0", "1", "-1", "0x10", "010", "1x", "x", " 2", "99999999999999999999"].map(read);
        assert_eq!(all, [7, 0, 1, -1, 16, 8, 1, 0, 2, 7]);
    }
}
