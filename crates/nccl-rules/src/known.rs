//! Settings that choose NICs, since when each is read, and names that are nearly theirs.

use super::explanation::{Explanation, Trap, Warning};
use super::pitfalls::{short, warning};
use super::settings::Settings;
use super::variables::{VARIABLES, Variable};
use super::version::Version;

pub(crate) fn warnings(settings: &Settings, explained: &Explanation) -> Vec<Warning> {
    let version = explained.version;
    let mut out = Vec::new();
    if !version.is_judged() {
        let text = format!(
            "NCCL {version} was not judged: the oldest release that was is {}",
            Version::OLDEST
        );
        out.push(warning(Trap::NotJudged, text));
    }
    let unread = |v: &Variable| v.since.filter(|since| version < *since);
    for (variable, since) in VARIABLES.iter().filter_map(|v| Some((v.name, unread(v)?))) {
        if settings.get(variable).is_some() {
            let text = format!("{variable} is read from NCCL {since} on: {version} ignores it");
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
    let names = VARIABLES.iter().map(|v| v.name);
    if names.clone().any(|known| known == name) {
        return None;
    }
    let mut long = names.filter(|known| known.len() > SHORT);
    long.find(|known| is_one_letter_off(known.as_bytes(), name.as_bytes()))
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
