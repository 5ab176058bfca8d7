//! What the kernel's sockets say: RDMA netlink, and route netlink with names that are no text. Root
//! in a container chooses names, addresses, routes and queueing disciplines in there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netlink_packet_core::{NetlinkBuffer, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage as Message;
use rdma_model::snapshot::{Address, Netdev};
use rdma_netlink::ifname_utf8;
use rdma_netlink::nldev::{CharDev, Device, Port, Request, netns_mode};
use rdma_netlink::raw::{Packet, Raw, emitted};
use rdma_netlink::rtnl::{self, Names};
use rdma_netlink::{nexthop, qdisc, route};

fuzz_target!(|data: &[u8]| {
    match data.split_first() {
        Some((b'r', rest)) => rdma(rest),
        Some((_, rest)) => route(rest),
        None => {}
    }
    rdmaprep_fuzz::print_heap();
});

fn rdma(bytes: &[u8]) {
    let _ = (
        Device::parse(bytes),
        Port::parse(bytes),
        CharDev::parse(bytes),
        netns_mode(bytes),
    );
    for request in [Request::Devices, Request::System] {
        let sent = request.encode(1);
        assert_eq!(sent.len() % 4, 0);
        let mut replies = request.replies(1);
        if replies.feed(bytes).is_ok() {
            replies
                .payloads()
                .iter()
                .for_each(|p| drop((Device::parse(p), Port::parse(p), CharDev::parse(p))));
        }
    }
}

fn route(bytes: &[u8]) {
    let (mut rest, names) = (bytes, names());
    let name: Vec<u8> = bytes.iter().copied().take_while(|b| *b != 0).collect();
    assert_eq!(ifname_utf8::bytes(&ifname_utf8::text(&name)), name);
    // As many as a datagram holds; one that cannot be read is left out.
    while let Ok(framed) = NetlinkBuffer::new_checked(rest) {
        let length = framed.length() as usize;
        if let Ok(message) = NetlinkMessage::<Packet>::deserialize(&rest[..length]) {
            if let NetlinkPayload::InnerMessage(packet) = message.payload {
                match packet {
                    Packet::Known(message) => known(*message, &names),
                    Packet::Raw(message) => raw(&message, &names),
                }
            }
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

fn names() -> Names {
    (1..5)
        .filter_map(|i| Some((i, format!("rail{i}").parse().ok()?)))
        .collect()
}

fn known(message: Message, names: &Names) {
    match message {
        Message::NewLink(link) => {
            if let Some(dev) = rtnl::netdev(&link, names) {
                let text = serde_json::to_string(&dev).expect("a netdev as JSON");
                assert_eq!(
                    serde_json::from_str::<Netdev>(&text).expect("a record holds it"),
                    dev
                );
            }
        }
        Message::NewAddress(m) => {
            if let Some((index, address)) = rtnl::address(&m) {
                let again = through(Message::NewAddress(rtnl::address_message(index, &address)));
                let Some(Message::NewAddress(again)) = again else {
                    panic!("no address comes back")
                };
                // Flags that are the kernel's to set are not given back.
                let kept = Address {
                    flags: address.flags & Address::SETTINGS,
                    ..address
                };
                assert_eq!(rtnl::address(&again), Some((index, kept)));
            }
        }
        Message::NewRule(m) => {
            if let Some(rule) = rtnl::rule(&m) {
                through(Message::NewRule(rtnl::rule_message(&rule)));
            }
        }
        Message::NewNeighbour(m) => {
            if let Some((index, neighbour)) = rtnl::neighbour(&m) {
                through(Message::NewNeighbour(rtnl::neighbour_message(
                    index, &neighbour,
                )));
            }
        }
        _ => {}
    }
}

/// Through the kernel's form and back.
fn through(message: Message) -> Option<Message> {
    match packed(message.into()) {
        Some(Packet::Known(message)) => Some(*message),
        _ => None,
    }
}

fn packed(packet: Packet) -> Option<Packet> {
    let mut sent = NetlinkMessage::from(packet);
    sent.finalize();
    let mut bytes = vec![0; sent.buffer_len()];
    sent.serialize(&mut bytes);
    match NetlinkMessage::<Packet>::deserialize(&bytes).ok()?.payload {
        NetlinkPayload::InnerMessage(packet) => Some(packet),
        _ => None,
    }
}

fn payload(message: &Raw) -> Vec<u8> {
    [message.header.clone(), emitted(&message.attributes)].concat()
}

fn raw(message: &Raw, names: &Names) {
    let index = |dev: &rdma_model::ids::IfName| {
        names
            .iter()
            .find(|(_, n)| *n == dev)
            .map(|(i, _)| *i)
            .ok_or_else(|| anyhow::anyhow!("unknown"))
    };
    if let Some(route) = route::route(&payload(message), names) {
        let text = serde_json::to_string(&route).expect("a route as JSON");
        assert_eq!(
            serde_json::from_str::<rdma_model::snapshot::Route>(&text).expect("a record holds it"),
            route
        );
        // A route that is written to the kernel and read back is the same.
        let give = |r| packed(route::route_message(r, index).ok()?.into());
        if let Some(Packet::Raw(given)) = give(&route) {
            let once = route::route(&payload(&given), names).expect("our own route");
            if let Some(Packet::Raw(given)) = give(&once) {
                assert_eq!(route::route(&payload(&given), names), Some(once));
            }
        }
    }
    if let Some(object) = nexthop::nexthop(message, names) {
        if let Ok(given) = nexthop::nexthop_message(&object, index) {
            packed(given.into());
        }
    }
    if let Some(seen) = qdisc::parse(message) {
        qdisc::filters(&seen)
            .into_iter()
            .for_each(|m| drop(packed(m.into())));
        let mut dev: Netdev =
            serde_json::from_str(r#"{"name":"rail1","ifindex":1}"#).expect("a netdev");
        dev.ifindex = seen.ifindex;
        qdisc::attach(&mut dev, &[seen]);
        for discipline in dev.qdiscs.iter().flatten() {
            packed(qdisc::add_message(1, discipline).into());
        }
    }
}
