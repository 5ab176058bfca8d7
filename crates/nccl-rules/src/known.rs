//! Settings that choose NICs, since when each is read, and names that are nearly theirs.

use super::explanation::{Explanation, Trap, Warning};
use super::pitfalls::{short, warning};
use super::settings::Settings;
use super::variables::VARIABLES;
use super::version::Version;

/// The first release whose source has it, with the file.
const SINCE: [(&str, Version); 13] = [
    // src/bootstrap.cc
    ("NCCL_OOB_NET_ENABLE", Version::new(2, 23, 4)),
    ("NCCL_OOB_NET_IFNAME", Version::new(2, 23, 4)),
    // src/graph/topo.cc
    ("NCCL_NET_MERGE_LEVEL", Version::new(2, 24, 3)),
    ("NCCL_NET_FORCE_MERGE", Version::new(2, 24, 3)),
    ("NCCL_NET_MERGE_POLICY", Version::new(2, 30, 7)),
    ("NCCL_NETDEVS_POLICY", Version::new(2, 28, 3)),
    // src/transport/net_ib.cc
    ("NCCL_IB_DATA_DIRECT", Version::new(2, 27, 3)),
    // src/transport/net_ib/connect.cc
    ("NCCL_IB_SUBNET_AWARE_ROUTING", Version::new(2, 30, 7)),
    ("NCCL_IB_SUBNET_PREFIX_LEN", Version::new(2, 30, 7)),
    // src/misc/ibvsymbols.cc
    ("NCCL_IBVERBS_LIB", Version::new(2, 30, 3)),
    // By the names in the libraries.
    ("NCCL_IB_PKEY_VALUE", Version::new(2, 31, 2)),
    ("NCCL_IB_RAIL_POLICY", Version::new(2, 32, 3)),
    ("NCCL_IB_SORT_MERGE_NICS", Version::new(2, 32, 3)),
];

pub(crate) fn warnings(settings: &Settings, explained: &Explanation) -> Vec<Warning> {
    let version = explained.version;
    let mut out = Vec::new();
    if version < Version::OLDEST {
        let text = format!(
            "NCCL {version} was not compared with what is said here: the oldest release that was \
            is {}",
            Version::OLDEST
        );
        out.push(warning(Trap::NotJudged, text));
    }
    for (name, since) in SINCE.iter().filter(|(_, since)| version < *since) {
        if settings.get(name).is_some() {
            let text = format!("{name} is read from NCCL {since} on: {version} ignores it");
            out.push(warning(Trap::Value, text));
        }
    }
    for name in settings.names().filter(|name| name.starts_with("NCCL_")) {
        if let Some(meant) = meant(name) {
            let text = format!(
                "{} is no setting of NCCL's: did you mean {meant}?",
                short(name)
            );
            out.push(warning(Trap::Name, text));
        }
    }
    out
}

/// The setting that a name is one letter away from. Two names that are both known are further
/// apart, but for NCCL_NET.
fn meant(name: &str) -> Option<&'static str> {
    const SHORT: usize = 9;
    let known = || VARIABLES.into_iter().filter(|v| v.len() > SHORT);
    if VARIABLES.contains(&name) {
        return None;
    }
    known().find(|v| is_one_letter_off(v.as_bytes(), name.as_bytes()))
}

/// One byte more, one less, or another one.
fn is_one_letter_off(a: &[u8], b: &[u8]) -> bool {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (rest_a, rest_b) = (&a[same..], &b[same..]);
    match (rest_a, rest_b) {
        ([_, a @ ..], [_, b @ ..]) if a == b => true,
        ([_, a @ ..], b) if a == b => true,
        (a, [_, b @ ..]) => a == b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_a_setting_is_told() {
        for (name, expected) in [
            ("NCCL_SOCKET_IFNAME-", Some("NCCL_SOCKET_IFNAME")),
            ("NCCL_SOCKET_IFNAM", Some("NCCL_SOCKET_IFNAME")),
            ("NCCL_IB_HCE", Some("NCCL_IB_HCA")),
            ("NCCL_IB_GID_INDEX", None),
            ("NCCL_IB_TC", None),
            ("NCCL_DEBUG", None),
            ("NCCL_SOCKET", None),
        ] {
            assert_eq!(meant(name), expected, "{name}");
        }
    }
}
