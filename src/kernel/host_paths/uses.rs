//! Links that the kernel sends packets of others by, whatever the routes are: where tc redirects
//! and mirrors them to, and the interfaces of the multicast router. Neither comes back with the
//! link: the action then points at none (tcf_mirred_init() and mirred_device_event() in
//! net/sched/act_mirred.c), and the router forgets the interface (mroute_device_event() in
//! net/ipv4/ipmr.c).

use std::io;

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
    let of = |netdev: &Netdev, why: &str| LinkUse {
        link: netdev.name.clone(),
        why: why.to_owned(),
    };
    let targets = targets(socket)?;
    let redirected = host.netdevs.iter().filter(|n| targets.contains(&n.ifindex));
    let mut found: Vec<LinkUse> = redirected
        .map(|n| {
            of(
                n,
                "tc redirects or mirrors packets to it (`tc actions list action mirred`)",
            )
        })
        .collect();
    for text in ROUTERS
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
    {
        let names: Vec<&str> = text
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        let routed = host
            .netdevs
            .iter()
            .filter(|n| names.contains(&n.name.as_str()));
        found.extend(routed.map(|n| {
            of(
                n,
                "the multicast router of this host forwards by it (`ip mroute`)",
            )
        }));
    }
    Ok(found)
}

/// The links that actions of the kind mirred of this namespace point at. The kernel lists none
/// while it has no such kind, and loads nothing to list it (tc_dump_action() in
/// net/sched/act_api.c).
fn targets(socket: &mut KernelSocket) -> io::Result<Vec<u32>> {
    let nested = |kind: u16, value: Vec<u8>| {
        emitted(&Attributes::from([(kind, rdma_model::ids::Hex(value))]))
    };
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

fn of_message(payload: &[u8]) -> Vec<u32> {
    let read = |bytes: &[u8]| attributes(bytes).unwrap_or_default();
    let table = read(payload.get(TCAMSG..).unwrap_or_default()).remove(&TCA_ACT_TAB);
    let actions = table.map(|table| read(&table.0)).unwrap_or_default();
    let target = |action: &[u8]| {
        let options = read(action).remove(&TCA_ACT_OPTIONS)?;
        let parameters = read(&options.0).remove(&TCA_MIRRED_PARMS)?;
        word(parameters.0.get(TARGET..TARGET + 4)?)
    };
    actions
        .values()
        .filter_map(|action| target(&action.0))
        .collect()
}
