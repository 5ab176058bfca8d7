//! Links: moving, making, setting, naming them.

use std::io;

use netlink_packet_core::{DefaultNla, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, LinkXdp, Prop};

use super::RouteSocket;
use crate::ident::{IfName, Mac};
use crate::step::{Made, Settings};
use crate::world::netns::Netns;
use crate::world::wire::Packet;
use crate::world::{made, rtnl};

/// include/uapi/linux/if_link.h.
const IFLA_IFALIAS: u16 = 20;

/// XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE, XDP_FLAGS_HW_MODE (include/uapi/linux/if_link.h).
const XDP_MODES: [u32; 3] = [1 << 1, 1 << 2, 1 << 3];

impl RouteSocket {
    fn link_by_name(&mut self, name: &IfName) -> io::Result<LinkMessage> {
        let mut ask = LinkMessage::default();
        call(&mut ask, name);
        let (messages, _) = self.exchange(Message::GetLink(ask), 0)?;
        let link = |p| match p {
            Packet::Known(m) => {
                if let Message::NewLink(l) = *m {
                    Some(l)
                } else {
                    None
                }
            }
            Packet::Raw(_) => None,
        };
        let found = messages.into_iter().find_map(link);
        found.ok_or_else(|| io::Error::from_raw_os_error(nix::libc::ENODEV))
    }

    /// The link's index.
    pub fn index(&mut self, name: &IfName) -> io::Result<u32> {
        match rtnl::nameless(name) {
            Some(index) => Ok(index),
            None => self.link_by_name(name).map(|l| l.header.index),
        }
    }

    /// One link message that moves the link: to `target`, there as `new_name`, and with `new_index` if that is free.
    pub fn move_link(
        &mut self,
        name: &IfName,
        target: &Netns,
        new_name: &IfName,
        new_index: Option<u32>,
    ) -> io::Result<()> {
        let mut m = LinkMessage::default();
        if name != new_name {
            m.header.index = self.index(name)?;
        }
        m.attributes.push(LinkAttribute::NetNsFd(target.raw_fd()));
        m.attributes.push(LinkAttribute::IfName(new_name.to_string()));
        if let Some(wanted) = new_index {
            let mut exact = m.clone();
            exact.attributes.push(LinkAttribute::NewIfIndex(wanted as i32));
            match self.change(Message::SetLink(exact), 0) {
                // Somebody has that index by now: any other will do.
                Err(e) if e.raw_os_error() == Some(nix::libc::EBUSY) => {}
                other => return other,
            }
        }
        self.change(Message::SetLink(m), 0)
    }

    /// The kernel finds the link by name when there is no index (rtnl_setlink() in net/core/rtnetlink.c): one message, and
    /// no moment in which the index could become another link's.
    pub(super) fn set_link(&mut self, name: &IfName, edit: impl FnOnce(&mut LinkMessage)) -> io::Result<()> {
        let mut m = LinkMessage::default();
        call(&mut m, name);
        edit(&mut m);
        self.change(Message::SetLink(m), 0)
    }

    /// Sets the link administratively up or down.
    pub fn set_up(&mut self, name: &IfName, up: bool) -> io::Result<()> {
        self.set_link(name, |m| {
            m.header.change_mask = LinkFlags::Up;
            m.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        })
    }

    /// Sets what the kernel keeps over a namespace change.
    pub fn set(&mut self, name: &IfName, settings: &Settings) -> io::Result<()> {
        self.set_link(name, |m| {
            let flag = |on: bool, flag: LinkFlags| if on { flag } else { LinkFlags::empty() };
            m.header.change_mask = LinkFlags::Promisc | LinkFlags::Allmulti;
            m.header.flags = flag(settings.promisc, LinkFlags::Promisc) | flag(settings.allmulti, LinkFlags::Allmulti);
            m.attributes.extend([
                LinkAttribute::Mtu(settings.mtu),
                LinkAttribute::TxQueueLen(settings.txqlen),
                LinkAttribute::Group(settings.group),
                // An alias of no bytes deletes it (dev_set_alias() in net/core/dev.c); no NUL belongs to it.
                LinkAttribute::Other(DefaultNla::new(
                    IFLA_IFALIAS,
                    settings.alias.clone().unwrap_or_default().into_bytes(),
                )),
            ]);
        })
    }

    /// Detaches XDP programs that were attached by netlink; one held by a BPF link stays until its holder ends. Without a
    /// mode the kernel would look at the one that the driver prefers, and leave those of the others.
    pub fn xdp_detach(&mut self, name: &IfName) -> io::Result<()> {
        let detach = |mode| LinkAttribute::Xdp(vec![LinkXdp::Fd(-1), LinkXdp::Flags(mode)]);
        XDP_MODES.into_iter().try_for_each(|mode| self.set_link(name, |m| m.attributes.push(detach(mode))))
    }

    /// Sets the current link-layer address.
    pub fn set_mac(&mut self, name: &IfName, mac: &Mac) -> io::Result<()> {
        self.set_link(name, |m| m.attributes.push(LinkAttribute::Address(mac.0.clone())))
    }

    /// Makes a netdev on top of another, or gives one that is there these properties; with the index, if that is free.
    pub fn make(&mut self, name: &IfName, made: &Made) -> io::Result<()> {
        let over = made.over.as_ref().map(|over| self.index(over)).transpose()?;
        let m = made::message(name, made, over);
        let is_there = self.index(name).is_ok();
        if let Some(wanted) = made.ifindex.filter(|_| !is_there) {
            let mut exact = m.clone();
            exact.header.index = wanted;
            match self.change(Message::NewLink(exact), NLM_F_CREATE | NLM_F_EXCL) {
                // Somebody has that index by now: any other will do. A VLAN's number may be taken as well.
                Err(e) if e.raw_os_error() == Some(nix::libc::EEXIST) => {}
                other => return other,
            }
        }
        self.change(Message::NewLink(m), NLM_F_CREATE)
    }

    /// Deletes a link.
    pub fn delete(&mut self, name: &IfName) -> io::Result<()> {
        let mut m = LinkMessage::default();
        call(&mut m, name);
        self.change(Message::DelLink(m), 0)
    }

    /// Puts a link into a bond, which takes none that is up, and raises it (bond_enslave() in drivers/net/bonding/bond_main.c).
    pub fn enslave(&mut self, name: &IfName, master: &IfName) -> io::Result<()> {
        let master = self.index(master)?;
        self.set_up(name, false)?;
        self.set_link(name, |m| m.attributes.push(LinkAttribute::Controller(master)))
    }

    /// Frees the link from its bond or bridge.
    pub fn release(&mut self, name: &IfName) -> io::Result<()> {
        self.set_link(name, |m| m.attributes.push(LinkAttribute::Controller(0)))
    }

    /// Renames a link.
    pub fn rename(&mut self, old: &IfName, new: &IfName) -> io::Result<()> {
        let mut m = LinkMessage::default();
        // With an index, a name is a wish.
        m.header.index = self.index(old)?;
        m.attributes.push(LinkAttribute::IfName(new.to_string()));
        self.change(Message::SetLink(m), 0)
    }

    /// Adds or deletes an alternative name.
    pub fn altname(&mut self, name: &IfName, altname: &str, add: bool) -> io::Result<()> {
        let mut m = LinkMessage::default();
        m.header.index = self.index(name)?;
        m.attributes.push(LinkAttribute::PropList(vec![Prop::AltIfName(altname.to_owned())]));
        if add {
            self.change(Message::NewLinkProp(m), NLM_F_EXCL | NLM_F_CREATE | NLM_F_APPEND)
        } else {
            self.change(Message::DelLinkProp(m), 0)
        }
    }
}

/// Says which link a message is about.
pub(super) fn call(message: &mut LinkMessage, name: &IfName) {
    match rtnl::nameless(name) {
        Some(index) => message.header.index = index,
        None => message.attributes.push(LinkAttribute::IfName(name.to_string())),
    }
}
