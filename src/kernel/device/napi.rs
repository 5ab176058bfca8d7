//! What each of a NIC's NAPIs has of its own, beside what sysfs tells of the NIC
//! (Documentation/netlink/specs/netdev.yaml, Linux 6.13). The kernel lists those of a link that is
//! up.

use std::collections::BTreeMap;

use rdma_model::snapshot::UNTOLD;
use rdma_netlink::ethtool::Values;
use rdma_netlink::generic::{Genl, attribute};
use rdma_netlink::reply::attributes;
use rdma_netlink::unless_refused;

use super::queues::{counted, expanded};

const PREFIX: &str = "napi ";

/// NETDEV_CMD_NAPI_GET and NETDEV_CMD_NAPI_SET.
const GET: u8 = 11;
const SET: u8 = 14;
/// NETDEV_A_NAPI_*.
const IFINDEX: u16 = 1;
const ID: u16 = 2;
const SETTINGS: [(u16, &str); 4] = [
    (5, "defer-hard-irqs"),
    (6, "gro-flush-timeout"),
    (7, "irq-suspend-timeout"),
    (8, "threaded"),
];

/// By number, the attributes that are numbers.
type Napis = BTreeMap<u32, BTreeMap<u16, u64>>;

pub fn is_ours(key: &str) -> bool {
    key.starts_with(PREFIX)
}

/// The NAPIs of a netdev, by number: they are numbered in the order in which they came.
fn napis(genl: &mut Genl, ifindex: u32) -> Napis {
    parse_napis(
        &genl
            .list(GET, &attribute(IFINDEX, &ifindex.to_ne_bytes()))
            .unwrap_or_default(),
    )
}

fn parse_napis(answers: &[Vec<u8>]) -> Napis {
    answers.iter().filter_map(|answer| napi(answer)).collect()
}

fn napi(answer: &[u8]) -> Option<(u32, BTreeMap<u16, u64>)> {
    let all: BTreeMap<u16, u64> = attributes(answer)
        .flatten()
        .filter_map(|(kind, value)| Some((kind, number(value)?)))
        .collect();
    Some((u32::try_from(*all.get(&ID)?).ok()?, all))
}

/// NLA_UINT: four bytes, or eight.
fn number(value: &[u8]) -> Option<u64> {
    let short = <[u8; 4]>::try_from(value)
        .map(|v| u32::from_ne_bytes(v).into())
        .ok();
    short.or_else(|| <[u8; 8]>::try_from(value).map(u64::from_ne_bytes).ok())
}

pub fn read(genl: &mut Genl, ifindex: u32) -> Values {
    values(&napis(genl, ifindex))
}

fn values(napis: &Napis) -> Values {
    let mut values = Values::new();
    for (kind, name) in &SETTINGS {
        let of_each: Option<Vec<String>> = napis
            .values()
            .map(|all| Some(all.get(kind)?.to_string()))
            .collect();
        if let Some(all) = of_each.filter(|all| !all.is_empty()) {
            values.insert(format!("{PREFIX}{name}"), counted(all.into_iter()));
        }
    }
    values
}

/// Sends only what differs. The error names the values that were refused, and why; the others are
/// set.
pub fn write(genl: &mut Genl, ifindex: u32, values: &Values) -> Result<(), String> {
    if !values.keys().any(|key| is_ours(key)) {
        return Ok(());
    }
    let napis = napis(genl, ifindex);
    let mut refused = Vec::new();
    for (kind, name) in &SETTINGS {
        let key = format!("{PREFIX}{name}");
        let Some(wanted) = values.get(&key) else {
            continue;
        };
        for ((id, all), value) in napis.iter().zip(expanded(wanted)) {
            if all.get(kind).map(u64::to_string).as_deref() == Some(value) || value == UNTOLD {
                continue;
            }
            let Ok(value) = value.parse::<u64>() else {
                continue;
            };
            // As short as it can be: defer-hard-irqs is a plain number of four bytes.
            let bytes = u32::try_from(value)
                .map_or(value.to_ne_bytes().to_vec(), |v| v.to_ne_bytes().to_vec());
            let set = genl.set(
                SET,
                &[attribute(ID, &id.to_ne_bytes()), attribute(*kind, &bytes)].concat(),
            );
            if let Err(e) = set {
                refused.push(format!("{key}: {e}"));
                break;
            }
        }
    }
    unless_refused(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn napis_are_told_in_the_order_of_their_numbers() {
        let napi = |id: u32, timeout: &[u8]| {
            [attribute(ID, &id.to_ne_bytes()), attribute(6, timeout)].concat()
        };
        let answers = [
            napi(9, &7u64.to_ne_bytes()),
            napi(8, &0u32.to_ne_bytes()),
            napi(10, &7u32.to_ne_bytes()),
        ];
        let values = values(&parse_napis(&answers));
        // A kernel that does not tell the others does not have them.
        assert_eq!(
            values,
            Values::from([("napi gro-flush-timeout".to_owned(), "0 7*2".to_owned())])
        );
        assert!(super::values(&parse_napis(&[])).is_empty());
    }
}
