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
    if version > Version::NEWEST {
        let newest = Version::NEWEST;
        let text = format!("NCCL {version} was not judged yet: all this is what {newest} does");
        out.push(warning(Trap::NotJudged, text));
    }
    let unread = |v: &Variable| v.since.filter(|since| version < *since);
    for (variable, since) in VARIABLES.iter().filter_map(|v| Some((v.name, unread(v)?))) {
        if settings.get(variable).is_some() {
            let text = format!("{variable} is read from NCCL {since} on: {version} ignores it");
            out.push(warning(Trap::Value, text));
        }
    }
    for name in settings.names() {
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

/// Whether a variable is NCCL's, or nearly one of those that are known here.
pub fn is_for_nccl(name: &str) -> bool {
    name.starts_with("NCCL_") || meant(name).is_some()
}

/// Other settings of NCCL (`NCCL_PARAM`, `ncclGetEnv` of 2.16.2 to 2.30.7) that are that near.
const OTHERS: [&str; 3] = ["NCCL_ENV_PLUGIN", "NCCL_IB_PKEY", "NCCL_NVB_DISABLE"];

/// The setting that a name is nearest to: one letter more, less, another or two swapped; of a long
/// one two such; or without its last word. MCCL_ and the like are the prefixes of other libraries.
/// What stands before a name as in a shell, `export`, is a part of it.
fn meant(name: &str) -> Option<&str> {
    const SHORT: usize = "NCCL_IB_HCA".len();
    let last = name.split_ascii_whitespace().next_back()?;
    if last != name {
        return meant(last).or_else(|| last.starts_with("NCCL_").then_some(last));
    }
    let upper = name.to_ascii_uppercase();
    let is_known = VARIABLES.iter().any(|v| v.name == name) || OTHERS.contains(&name);
    if is_known || !upper.starts_with('N') {
        return None;
    }
    let near = VARIABLES.iter().filter_map(|v| {
        let most = if v.name.len() > SHORT { 2 } else { 1 };
        // Comparing takes time, and a name may be of any length.
        let is_like = v.name.len().abs_diff(upper.len()) <= most;
        let distance = is_like.then(|| strsim::osa_distance(v.name, &upper))?;
        (distance <= most).then_some((distance, v.name))
    });
    let names = VARIABLES.iter().map(|v| v.name);
    let mut longer = names.filter(|known| known.rsplit_once('_').is_some_and(|k| k.0 == upper));
    let only = longer.next().filter(|_| longer.next().is_none());
    near.min().map(|(_, known)| known).or(only)
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
            ("NCCL_IB_HAC", Some("NCCL_IB_HCA")),
            ("NCCL_SOCKET_IFANME", Some("NCCL_SOCKET_IFNAME")),
            ("NCLL_IB_HCA", Some("NCCL_IB_HCA")),
            ("NCC_NET", Some("NCCL_NET")),
            ("NCCL_NE", Some("NCCL_NET")),
            ("NCCL_NTE", Some("NCCL_NET")),
            ("nccl_ib_hca", Some("NCCL_IB_HCA")),
            ("NCCL_IB_GID_IDX", Some("NCCL_IB_GID_INDEX")),
            ("NCCL_IB_ROCE_VERSION", Some("NCCL_IB_ROCE_VERSION_NUM")),
            ("NCCL_OOB_NET", None),
            ("NCCL_IB_PKEY", None),
            ("export NCCL_IB_HCA", Some("NCCL_IB_HCA")),
            ("set NCCL_IB_HCE", Some("NCCL_IB_HCA")),
            (" NCCL_DEBUG", Some("NCCL_DEBUG")),
            ("NCCL_DEBUG\t", Some("NCCL_DEBUG")),
            ("export PATH", None),
            ("NCCL_IB_SOCKET", None),
            ("MCCL_IB_HCA", None),
            ("NCCL_NVB_DISABLE", None),
            ("NCCL_ENV_PLUGIN", None),
            ("NCCL_IB_TC", None),
            ("NCCL_DEBUG", None),
            ("NCCL_SOCKET", None),
        ] {
            assert_eq!(meant(name), expected, "{name}");
        }
    }
}
