//! Links of route netlink as netdevs, and as links of other namespaces.

use std::ffi::CStr;
use std::net::Ipv6Addr;

use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp, Prop,
    XdpAttached,
};
use rdma_model::ids::{IfName, Mac};
use rdma_model::link_kind::LinkKind;
use rdma_model::snapshot::{LinkOptions, Netdev, Program, ProgramHook, Stranger};

use super::{Names, bytes};
use crate::af_spec::{IFINFOMSG, find};
use crate::{link_info, lower_link};

/// include/uapi/linux/if_link.h.
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_LINK_NETNSID: u16 = 37;

/// The index in a link message, and its name. One that is no text, or none that we take, or looks
/// like this, is called `?INDEX` instead, and is addressed by that index: whatever a container
/// calls a NIC, it must not lose it for us.
pub fn link_name(message: &LinkMessage) -> Option<(u32, IfName)> {
    let index = message.header.index;
    let text = message.attributes.iter().find_map(|a| match a {
        LinkAttribute::IfName(n) => Some(n),
        _ => None,
    })?;
    let usable = text.parse().ok().filter(|name| nameless(name).is_none());
    Some((index, usable.or_else(|| format!("?{index}").parse().ok())?))
}

/// The index of a link that goes by none of its names, see [`link_name`].
pub fn nameless(name: &IfName) -> Option<u32> {
    name.as_str().strip_prefix('?')?.parse().ok()
}

fn bare(message: &LinkMessage, names: &Names) -> Option<Netdev> {
    let (ifindex, name) = link_name(message)?;
    let flags = message.header.flags;
    let mut dev = Netdev {
        link_type: message.header.link_layer_type.into(),
        up: flags.contains(LinkFlags::Up),
        running: flags.contains(LinkFlags::Running),
        promisc: flags.contains(LinkFlags::Promisc),
        allmulti: flags.contains(LinkFlags::Allmulti),
        options: Some(LinkOptions {
            flags: flags.bits() & LinkOptions::FLAGS,
            ..LinkOptions::default()
        }),
        programs: Some(Vec::new()),
        ..Netdev::new(name, ifindex)
    };
    for a in &message.attributes {
        link_attribute(&mut dev, a, names);
    }
    if dev.made.is_some() {
        dev.options = dev.options.map(LinkOptions::without_sizes);
    }
    Some(dev)
}

/// A link message as a netdev; `names` resolves its master.
pub fn netdev(message: &LinkMessage, names: &Names) -> Option<Netdev> {
    let mut dev = bare(message, names)?;
    match nsid(message) {
        // Those indexes count in the other namespace.
        Some(_) => (dev.link, dev.lowers) = (None, Vec::new()),
        None => {
            dev.lowers = below(&dev);
            dev.lowers.retain(|index| *index != dev.ifindex);
        }
    }
    Some(dev)
}

fn below(dev: &Netdev) -> Vec<u32> {
    let linked = dev
        .link
        .filter(|link| *link != 0 && !dev.is_paired() && !dev.lowers.contains(link));
    dev.lowers.iter().copied().chain(linked).collect()
}

/// IFLA_LINK_NETNSID: the number of the namespace of the link below, where that is another one.
fn nsid(message: &LinkMessage) -> Option<i32> {
    message.attributes.iter().find_map(|a| {
        if let LinkAttribute::LinkNetNsId(id) = a {
            Some(*id)
        } else {
            None
        }
    })
}

/// Whether a link message, as its bytes, can be one of a [`stranger`]: the link below is in another
/// namespace, and is not its peer, as that of each container's veth is.
pub fn may_be_stranger(message: &[u8]) -> bool {
    let Some(attributes) = message.get(IFINFOMSG..) else {
        return false;
    };
    let info = find(attributes, IFLA_LINKINFO);
    let kind = info.and_then(|info| find(info, IFLA_INFO_KIND));
    let kind = kind.and_then(|kind| CStr::from_bytes_until_nul(kind).ok()?.to_str().ok());
    let is_paired = kind.and_then(LinkKind::of).is_some_and(LinkKind::is_paired);
    find(attributes, IFLA_LINK_NETNSID).is_some() && !is_paired
}

/// A link message of another namespace as a link that sits on something of a third one, with the
/// number that its own namespace has for that. Its inode is unknown to the message.
pub fn stranger(message: &LinkMessage) -> Option<(i32, Stranger)> {
    let nsid = nsid(message)?;
    let dev = bare(message, &Names::new())?;
    let lowers = below(&dev);
    let Netdev {
        name,
        ifindex,
        kind,
        mac,
        ..
    } = dev;
    Some((
        nsid,
        Stranger {
            name,
            ifindex,
            kind,
            mac,
            lowers,
            netns: 0,
            keeper: String::new(),
        },
    ))
}

fn link_attribute(dev: &mut Netdev, attribute: &LinkAttribute, names: &Names) {
    match attribute {
        LinkAttribute::Address(a) => dev.mac = Mac::from_bytes(a),
        LinkAttribute::PermAddress(a) => dev.permanent_mac = Mac::from_bytes(a),
        LinkAttribute::Mtu(v) => dev.mtu = *v,
        LinkAttribute::Mode(v) => option(dev).mode = Some(u8::from(*v)),
        LinkAttribute::Broadcast(v) => option(dev).broadcast = Mac::from_bytes(v),
        LinkAttribute::GsoMaxSize(v) => option(dev).gso_max_size = Some(*v),
        LinkAttribute::GsoMaxSegs(v) => option(dev).gso_max_segs = Some(*v),
        LinkAttribute::GroMaxSize(v) => option(dev).gro_max_size = Some(*v),
        LinkAttribute::GsoIpv4MaxSize(v) => option(dev).gso_ipv4_max_size = Some(*v),
        LinkAttribute::GroIpv4MaxSize(v) => option(dev).gro_ipv4_max_size = Some(*v),
        LinkAttribute::TxQueueLen(v) => dev.txqlen = *v,
        LinkAttribute::Group(v) => dev.group = *v,
        LinkAttribute::IfAlias(v) => dev.alias = Some(v.clone()),
        LinkAttribute::OperState(s) => dev.operstate = Some(format!("{s:?}").to_lowercase()),
        LinkAttribute::Controller(v) => dev.master = names.get(v).cloned(),
        LinkAttribute::Link(v) => dev.link = Some(*v),
        LinkAttribute::Qdisc(v) => dev.qdisc = Some(v.clone()),
        LinkAttribute::PropList(props) => {
            dev.altnames = props
                .iter()
                .filter_map(|p| match p {
                    Prop::AltIfName(n) => Some(n.clone()),
                    _ => None,
                })
                .collect();
        }
        LinkAttribute::LinkInfo(infos) => {
            dev.kind = infos.iter().find_map(|i| match i {
                LinkInfo::Kind(k) => Some(k.to_string()),
                _ => None,
            });
            let data = infos
                .iter()
                .find(|i| matches!(i, LinkInfo::Data(_)))
                .map(bytes);
            let Some((kind, data)) = dev.kind.as_deref().zip(data) else {
                return;
            };
            dev.made = link_info::creation_data(kind, &data.0);
            let below = lower_link::parse(kind, &data.0);
            (dev.lowers, dev.tunnel) = (below.devices, below.tunnel);
        }
        // Unlike sysfs this tells the parent in whatever namespace the link is (Linux 5.14).
        LinkAttribute::ParentDevName(parent) => dev.pci = parent.parse().ok(),
        LinkAttribute::AfSpecUnspec(families) => dev.token = families.iter().find_map(token),
        LinkAttribute::Xdp(xdp) => {
            dev.xdp = xdp
                .iter()
                .any(|x| matches!(x, LinkXdp::Attached(a) if *a != XdpAttached::None));
            dev.programs = Some(xdp.iter().filter_map(xdp_program).collect());
        }
        _ => {}
    }
}

/// Besides the one that runs, the kernel reports each by its mode (rtnl_xdp_fill() in
/// net/core/rtnetlink.c).
fn xdp_program(attribute: &LinkXdp) -> Option<Program> {
    let (hook, id) = match attribute {
        LinkXdp::DrvProgId(id) => (ProgramHook::XdpDriver, *id),
        LinkXdp::SkbProgId(id) => (ProgramHook::XdpGeneric, *id),
        LinkXdp::HwProgId(id) => (ProgramHook::XdpHardware, *id),
        _ => return None,
    };
    (id != 0).then_some(Program { hook, id })
}

fn option(dev: &mut Netdev) -> &mut LinkOptions {
    dev.options.get_or_insert_default()
}

fn token(family: &AfSpecUnspec) -> Option<Ipv6Addr> {
    let AfSpecUnspec::Inet6(all) = family else {
        return None;
    };
    let token = all.iter().find_map(|a| {
        if let AfSpecInet6::Token(t) = a {
            Some(*t)
        } else {
            None
        }
    });
    token.filter(|t| !t.is_unspecified())
}
