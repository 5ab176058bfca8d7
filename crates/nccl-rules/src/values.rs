//! Values that NCCL cannot read, and says nothing of unless its log is asked for.

use super::explanation::{Explanation, Trap, Warning};
use super::gid;
use super::hca::{Scanned, parameter};
use super::pitfalls::{short, warning};
use super::settings::Settings;
use super::variables::VARIABLES;
use super::version::Version;

const INDEX: &str = "NCCL_IB_GID_INDEX";
const ROUTING: &str = "NCCL_IB_SUBNET_AWARE_ROUTING";
const ROCE: &str = "NCCL_IB_ROCE_VERSION_NUM";

/// Those that are read as numbers (`NCCL_PARAM`).
const NUMBERS: [&str; 12] = [
    "NCCL_IB_DISABLE",
    "NCCL_IB_DEVICE_PCI_ORDER",
    "NCCL_IB_MERGE_NICS",
    "NCCL_IB_MERGE_VFS",
    INDEX,
    ROCE,
    "NCCL_IB_ROUTABLE_FLID_GID_INDEX",
    "NCCL_OOB_NET_ENABLE",
    "NCCL_IB_DATA_DIRECT",
    ROUTING,
    "NCCL_IB_SUBNET_PREFIX_LEN",
    "NCCL_IGNORE_NET_MISMATCH",
];

pub(crate) fn warnings(settings: &Settings, explained: &Explanation) -> Vec<Warning> {
    let version = explained.version;
    let read = VARIABLES
        .iter()
        .filter(|v| v.since.is_none_or(|since| version >= since));
    let mut out: Vec<Warning> = read
        .filter_map(|v| {
            let value = settings.get(v.name)?;
            let does = match NUMBERS.contains(&v.name) {
                true => by_number(settings, v.name, value, version),
                false => by_word(settings, v.name, value, version),
            }?;
            let text = format!("{}={} is {does}", v.name, short(value));
            Some(warning(Trap::Value, text))
        })
        .collect();
    out.extend(no_subnet(settings, version));
    out
}

/// A length with which NCCL looks for no device of a subnet (net_ib/connect.cc,
/// `ncclIbFindDevBySubnet`).
fn no_subnet(settings: &Settings, version: Version) -> Option<Warning> {
    const LENGTH: &str = "NCCL_IB_SUBNET_PREFIX_LEN";
    let routes = parameter(settings, version, "NCCL_IB_SUBNET_AWARE_ROUTING", 0) != 0;
    let value = settings.get(LENGTH)?;
    let length = parameter(settings, version, LENGTH, 24) as i32;
    let is_refused = routes && version.routes_by_subnet() && !(1..=32).contains(&length);
    let text = format!(
        "{LENGTH}={} is out of NCCL's range, 1 to 32: with NCCL_IB_SUBNET_AWARE_ROUTING every \
        connection over an HCA ends with ncclInvalidArgument",
        short(value)
    );
    is_refused.then(|| warning(Trap::NoConnection, text))
}

fn by_number(settings: &Settings, name: &str, value: &str, version: Version) -> Option<String> {
    let is_whole = value.is_empty() || Scanned::new(value).is_whole();
    let taken = parameter(settings, version, name, i64::MIN);
    let taken = match taken {
        i64::MIN => "its default".to_owned(),
        number => number.to_string(),
    };
    if !is_whole {
        return Some(format!("no number: NCCL takes {taken}"));
    }
    let number = parameter(settings, version, name, 0);
    let short = number as i32;
    match name {
        INDEX if i64::from(short) != number => Some(format!("beyond 32 bits: NCCL takes {short}")),
        "NCCL_IB_SUBNET_PREFIX_LEN" if parameter(settings, version, ROUTING, 0) == 0 => {
            Some(format!("without effect, as {ROUTING} is not set"))
        }
        ROCE if !matches!(number, 1 | 2) => Some("no RoCE version: NCCL prefers none".to_owned()),
        _ => None,
    }
}

/// What a word is not, and what NCCL does then (src/graph/topo.cc; net_ib/connect.cc).
fn by_word(settings: &Settings, name: &str, value: &str, version: Version) -> Option<String> {
    let is_one = |words: &[&str]| words.iter().any(|w| value.eq_ignore_ascii_case(w));
    let (is_read, does) = match name {
        "NCCL_IB_ADDR_RANGE" if gid::lacks_bits(value) => (
            false,
            "no ADDRESS/BITS: NCCL takes 0 bits, and looks at all GIDs",
        ),
        "NCCL_IB_ADDR_FAMILY" => (
            matches!(value, "" | "AF_INET" | "AF_INET6"),
            "neither AF_INET nor AF_INET6: NCCL looks for AF_INET",
        ),
        "NCCL_IB_ADDR_RANGE" => (
            !gid::ignores_range(settings, version),
            "no ADDRESS/BITS of NCCL_IB_ADDR_FAMILY: NCCL looks at all GIDs",
        ),
        "NCCL_NETDEVS_POLICY" => (
            is_one(&["AUTO", "ALL"]) || has_most(value),
            "none of AUTO, ALL and MAX:NUMBER: NCCL takes AUTO",
        ),
        // The first name of the list that a value begins with counts, and LOC where there is none.
        "NCCL_NET_MERGE_LEVEL" => (
            is_level(value, version),
            "none of LOC, PORT, PIX, PXB, P2C, PXN, PHB and SYS: NCCL takes LOC, and no NICs \
            become one",
        ),
        "NCCL_NET_MERGE_POLICY" => (
            is_one(&["ALL", "RAIL"]),
            "neither ALL nor RAIL: NCCL takes ALL",
        ),
        _ => return None,
    };
    (!is_read).then(|| does.to_owned())
}

fn has_most(value: &str) -> bool {
    let (word, number) = value.split_at_checked(4).unwrap_or_default();
    word.eq_ignore_ascii_case("MAX:") && super::ifname::atoi(number) > 0
}

fn is_level(value: &str, version: Version) -> bool {
    let mut levels = ["LOC", "PORT", "PIX", "PXB", "PXN", "PHB", "SYS"].iter();
    let is_newer = version.knows_p2c() && value.starts_with("P2C");
    is_newer || levels.any(|level| value.starts_with(level))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_model::snapshot::Snapshot;

    fn said(name: &str, value: &str, release: &str) -> Option<String> {
        let settings = Settings::of([(name, value)], "");
        let release = release.parse().unwrap();
        let explained =
            crate::explain::explain(&settings, &Snapshot::default(), release, &|_| None);
        let text = warnings(&settings, &explained).pop()?.text;
        text.split_once(" is ").map(|(_, does)| does.to_owned())
    }

    #[test]
    fn what_nccl_cannot_read_is_told() {
        for (name, value, does) in [
            ("NCCL_IB_GID_INDEX", "abc", Some("no number: NCCL takes 0")),
            ("NCCL_IB_GID_INDEX", "3,", Some("no number: NCCL takes 3")),
            ("NCCL_IB_DISABLE", "true", Some("no number: NCCL takes 0")),
            ("NCCL_IB_GID_INDEX", " -1", None),
            ("NCCL_IB_GID_INDEX", "0x3", None),
            ("NCCL_IB_GID_INDEX", "", None),
            (
                "NCCL_IB_ADDR_FAMILY",
                "6",
                Some("neither AF_INET nor AF_INET6: NCCL looks for AF_INET"),
            ),
            ("NCCL_IB_ADDR_FAMILY", "AF_INET6", None),
            (
                "NCCL_IB_ADDR_RANGE",
                "2001:db8::/64",
                Some("no ADDRESS/BITS of NCCL_IB_ADDR_FAMILY: NCCL looks at all GIDs"),
            ),
            ("NCCL_IB_ADDR_RANGE", "192.0.2.0/24", None),
            (
                "NCCL_IB_ADDR_RANGE",
                "192.0.2.0/x",
                Some("no ADDRESS/BITS: NCCL takes 0 bits, and looks at all GIDs"),
            ),
            (
                "NCCL_IB_GID_INDEX",
                "4294967299",
                Some("beyond 32 bits: NCCL takes 3"),
            ),
            (
                "NCCL_IB_ROCE_VERSION_NUM",
                "3",
                Some("no RoCE version: NCCL prefers none"),
            ),
            ("NCCL_IB_ROCE_VERSION_NUM", "1", None),
            (
                "NCCL_IB_SUBNET_PREFIX_LEN",
                "24",
                Some("without effect, as NCCL_IB_SUBNET_AWARE_ROUTING is not set"),
            ),
            (
                "NCCL_NETDEVS_POLICY",
                "MAX:0",
                Some("none of AUTO, ALL and MAX:NUMBER: NCCL takes AUTO"),
            ),
            ("NCCL_NETDEVS_POLICY", "max:2", None),
            ("NCCL_NETDEVS_POLICY", "all", None),
            (
                "NCCL_NET_MERGE_LEVEL",
                "port",
                Some(
                    "none of LOC, PORT, PIX, PXB, P2C, PXN, PHB and SYS: NCCL takes LOC, and no \
                    NICs become one",
                ),
            ),
            ("NCCL_NET_MERGE_LEVEL", "P2C", None),
            (
                "NCCL_NET_MERGE_POLICY",
                "rails",
                Some("neither ALL nor RAIL: NCCL takes ALL"),
            ),
            ("NCCL_NET_MERGE_POLICY", "rail", None),
            ("NCCL_IB_HCA", "any", None),
        ] {
            assert_eq!(
                said(name, value, "2.30.7").as_deref(),
                does,
                "{name}={value}"
            );
        }
        let routed = |length: &str, release: &str| {
            let on = ("NCCL_IB_SUBNET_AWARE_ROUTING", "1");
            let settings = Settings::of([on, ("NCCL_IB_SUBNET_PREFIX_LEN", length)], "");
            no_subnet(&settings, release.parse().unwrap()).map(|w| w.trap)
        };
        for (length, is_refused) in [("0", true), ("33", true), ("32", false), ("abc", true)] {
            assert_eq!(routed(length, "2.30.7").is_some(), is_refused, "{length}");
        }
        assert_eq!(
            (routed("abc", "2.32.3"), routed("0", "2.30.4")),
            (None, None)
        );
        let newest = said("NCCL_IB_GID_INDEX", "abc", "2.32.3");
        assert_eq!(newest.unwrap(), "no number: NCCL takes its default");
        assert!(said("NCCL_NET_MERGE_LEVEL", "P2C", "2.26.2").is_some());
        // Such a release reads no such variable, and that is what is said.
        assert_eq!(said("NCCL_NETDEVS_POLICY", "one", "2.27.7"), None);
    }
}
