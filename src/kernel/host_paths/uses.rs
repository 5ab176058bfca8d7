//! Links that the kernel sends packets of others by, whatever the routes are: where tc redirects
//! and mirrors them to, and the interfaces of the multicast router. Neither comes back with the
//! link: the action then points at none (tcf_mirred_init() and mirred_device_event() in
//! net/sched/act_mirred.c), and the router forgets the interface (mroute_device_event() in
//! net/ipv4/ipmr.c).

use std::io;

use rdma_model::ids::Hex;
use rdma_model::snapshot::{LinkUse, Netdev, Snapshot};
use rdma_netlink::raw::{Attributes, attributes, emitted, word};
use rdma_netlink::socket::KernelSocket;

/// RTM_GETACTION (include/uapi/linux/rtnetlink.h).
const RTM_GETACTION: u16 = 50;
/// The length of tcamsg; TCA_ACT_TAB.
const TCAMSG: usize = 4;
const TCA_ACT_TAB: u16 = 1;
/// TCA_ACT_KIND, TCA_ACT_OPTIONS (include/uapi/linux/pkt_cls.h).
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
/// TCA_MIRRED_PARMS, and where struct tc_mirred has the index of the link
/// (include/uapi/linux/tc_act/tc_mirred.h).
const TCA_MIRRED_PARMS: u16 = 2;
const TARGET: usize = 24;
/// Virtual interfaces of the multicast routers: a line for each, with its name as the second word.
const ROUTERS: [&str; 2] = [
    "/proc/thread-self/net/ip_mr_vif",
    "/proc/thread-self/net/ip6_mr_vif",
];

pub(super) fn links(socket: &mut KernelSocket, host: &Snapshot) -> io::Result<Vec<LinkUse>> {
    let targets = targets(socket)?;
    let mut found = uses(
        host,
        "tc redirects or mirrors packets to it (`tc actions list action mirred`)",
        |n| targets.contains(&n.ifindex),
    );
    for path in ROUTERS {
        let Ok(text) = std::fs::read_to_string(path) else {
            continue;
        };
        let lines = text.lines().skip(1);
        let names: Vec<&str> = lines
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        found.append(&mut uses(
            host,
            "the multicast router of this host forwards by it (`ip mroute`)",
            |n| names.contains(&n.name.as_str()),
        ));
    }
    Ok(found)
}

fn uses(host: &Snapshot, why: &str, is_used: impl Fn(&Netdev) -> bool) -> Vec<LinkUse> {
    let used = host.netdevs.iter().filter(|n| is_used(n));
    used.map(|netdev| LinkUse {
        link: netdev.name.clone(),
        why: why.to_owned(),
    })
    .collect()
}

/// The links that actions of the kind mirred of this namespace point at. The kernel lists none
/// while it has no such kind, and loads nothing to list it (tc_dump_action() in
/// net/sched/act_api.c).
fn targets(socket: &mut KernelSocket) -> io::Result<Vec<u32>> {
    let mut body = vec![0; TCAMSG];
    body.extend(nested(
        TCA_ACT_TAB,
        nested(1, nested(TCA_ACT_KIND, b"mirred\0".to_vec())),
    ));
    let messages = socket.dump(RTM_GETACTION, &body)?;
    Ok(messages
        .iter()
        .flat_map(|payload| of_message(payload))
        .collect())
}

fn nested(kind: u16, value: Vec<u8>) -> Vec<u8> {
    emitted(&Attributes::from([(kind, Hex(value))]))
}

fn of_message(payload: &[u8]) -> Vec<u32> {
    let table = within(payload.get(TCAMSG..).unwrap_or_default(), TCA_ACT_TAB);
    let actions = table.and_then(|Hex(table)| attributes(&table).ok());
    let actions = actions.unwrap_or_default();
    actions.values().filter_map(target).collect()
}

fn target(Hex(action): &Hex) -> Option<u32> {
    let Hex(options) = within(action, TCA_ACT_OPTIONS)?;
    let Hex(parameters) = within(&options, TCA_MIRRED_PARMS)?;
    word(parameters.get(TARGET..TARGET + 4)?)
}

fn within(bytes: &[u8], kind: u16) -> Option<Hex> {
    attributes(bytes).ok()?.remove(&kind)
}
