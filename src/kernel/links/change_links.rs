use std::io;
use std::os::fd::{AsRawFd, RawFd};

use netlink_packet_core::{
    DefaultNla, Emitable, NLA_F_NESTED, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL,
};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkFlags, LinkMessage, LinkMode, LinkXdp, State,
};
use rdma_model::ids::{IfName, Mac};
use rdma_model::snapshot::{LinkOptions, ProgramHook};
use rdma_model::step::{Settings, VirtualLink};
use rdma_netlink::devconf::{self, DevConf};
use rdma_netlink::ifname_utf8::{self, IFLA_ALT_IFNAME, IFLA_IFALIAS, IFLA_PROP_LIST};
use rdma_netlink::raw::Packet;
use rdma_netlink::socket::parsed;
use rdma_netlink::{link_info, rtnl};

use super::{ANSWER, RouteSocket, link};
use crate::kernel::netns::Netns;

/// XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE, XDP_FLAGS_HW_MODE (include/uapi/linux/if_link.h).
const XDP_MODES: [u32; 3] = [1 << 1, 1 << 2, 1 << 3];

impl RouteSocket {
    fn link_by_name(&mut self, name: &IfName) -> io::Result<LinkMessage> {
        let mut ask = ask();
        call(&mut ask, name);
        let (messages, _) = self.exchange(Message::GetLink(ask), 0)?;
        let found = messages.into_iter().find_map(link);
        found.ok_or_else(|| io::Error::from_raw_os_error(nix::libc::ENODEV))
    }

    pub fn conf(&mut self, name: &IfName) -> io::Result<(u32, DevConf)> {
        let mut ask = ask();
        call(&mut ask, name);
        let (link, conf) = self.link_and_conf(ask)?;
        Ok((link.header.index, conf))
    }

    pub(super) fn link_and_conf(&mut self, ask: LinkMessage) -> io::Result<(LinkMessage, DevConf)> {
        let mut found = None;
        self.socket.exchange_each(
            &Packet::from(Message::GetLink(ask)),
            0,
            ANSWER,
            |kind, payload| {
                let link = parsed(kind, payload).and_then(link);
                found = link
                    .map(|link| (link, DevConf::of_link(payload)))
                    .or(found.take());
            },
        )?;
        found.ok_or_else(|| io::Error::from_raw_os_error(nix::libc::ENODEV))
    }

    pub fn index(&mut self, name: &IfName) -> io::Result<u32> {
        match rtnl::nameless(name) {
            Some(index) => Ok(index),
            None => self.link_by_name(name).map(|l| l.header.index),
        }
    }

    /// One link message; `new_index` counts if it is free.
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
        m.attributes
            .push(LinkAttribute::IfName(new_name.to_string()));
        if let Some(wanted) = new_index {
            let mut exact = m.clone();
            exact
                .attributes
                .push(LinkAttribute::NewIfIndex(wanted as i32));
            match self.change(Message::SetLink(exact), 0) {
                // Another link has that index by now: any other will do.
                Err(e) if e.raw_os_error() == Some(nix::libc::EBUSY) => {}
                other => return other,
            }
        }
        self.change(Message::SetLink(m), 0)
    }

    /// The kernel finds the link by name when there is no index (rtnl_setlink() in
    /// net/core/rtnetlink.c): one message, and no moment in which the index could become another
    /// link's.
    pub(super) fn set_link(
        &mut self,
        name: &IfName,
        edit: impl FnOnce(&mut LinkMessage),
    ) -> io::Result<()> {
        let mut m = LinkMessage::default();
        call(&mut m, name);
        edit(&mut m);
        self.change(Message::SetLink(m), 0)
    }

    pub fn set_up(&mut self, name: &IfName, up: bool) -> io::Result<()> {
        self.set_link(name, |m| {
            m.header.change_mask = LinkFlags::Up;
            m.header.flags = if up {
                LinkFlags::Up
            } else {
                LinkFlags::empty()
            };
        })
    }

    pub fn set_conf(&mut self, name: &IfName, values: &[(u16, i32)]) -> io::Result<()> {
        self.set_link(name, |m| {
            m.attributes
                .push(LinkAttribute::Other(devconf::setting(values)))
        })
    }

    pub fn set(&mut self, name: &IfName, settings: &Settings) -> io::Result<()> {
        self.set_link(name, |m| {
            m.header.change_mask = LinkFlags::Promisc | LinkFlags::Allmulti;
            m.header.flags.set(LinkFlags::Promisc, settings.promisc);
            m.header.flags.set(LinkFlags::Allmulti, settings.allmulti);
            if let Some(options) = &settings.options {
                m.header.change_mask |= LinkFlags::from_bits_retain(LinkOptions::FLAGS);
                m.header.flags |= LinkFlags::from_bits_retain(options.flags & LinkOptions::FLAGS);
                m.attributes
                    .extend(options.mode.map(|mode| LinkAttribute::Mode(mode.into())));
                m.attributes.extend(
                    options
                        .broadcast
                        .clone()
                        .map(|mac| LinkAttribute::Broadcast(mac.0)),
                );
            }
            m.attributes.extend([
                LinkAttribute::Mtu(settings.mtu),
                LinkAttribute::TxQueueLen(settings.txqlen),
                LinkAttribute::Group(settings.group),
                // An alias of no bytes deletes it (dev_set_alias() in net/core/dev.c); no NUL
                // belongs to it.
                LinkAttribute::Other(DefaultNla::new(
                    IFLA_IFALIAS,
                    ifname_utf8::bytes(settings.alias.as_deref().unwrap_or_default()),
                )),
            ]);
        })?;
        let Some(options) = &settings.options else {
            return Ok(());
        };
        if options.mode == Some(u8::from(LinkMode::Default)) {
            self.wake(name)?;
        }
        self.set_sizes(name, options)
    }

    /// A link that is up when its mode lets it run again stays dormant until its carrier changes
    /// (rfc2863_policy() in net/core/link_watch.c), unless user space sets it (set_operstate() in
    /// net/core/rtnetlink.c).
    fn wake(&mut self, name: &IfName) -> io::Result<()> {
        let link = self.link_by_name(name)?;
        let is_asleep = link
            .attributes
            .iter()
            .any(|a| matches!(a, LinkAttribute::OperState(State::Dormant | State::Testing)));
        if !is_asleep {
            return Ok(());
        }
        self.set_link(name, |m| {
            m.attributes.push(LinkAttribute::OperState(State::Up))
        })
    }

    /// In a message of their own: a size that the device does not take any more must not keep the
    /// rest from being set.
    fn set_sizes(&mut self, name: &IfName, options: &LinkOptions) -> io::Result<()> {
        // In this order: the first of them sets the one for IPv4 along (netif_set_gso_max_size() in
        // net/core/dev.h).
        let sizes = [
            options.gso_max_size.map(LinkAttribute::GsoMaxSize),
            options.gso_max_segs.map(LinkAttribute::GsoMaxSegs),
            options.gro_max_size.map(LinkAttribute::GroMaxSize),
            options.gso_ipv4_max_size.map(LinkAttribute::GsoIpv4MaxSize),
            options.gro_ipv4_max_size.map(LinkAttribute::GroIpv4MaxSize),
        ];
        let sizes: Vec<LinkAttribute> = sizes.into_iter().flatten().collect();
        if sizes.is_empty() {
            Ok(())
        } else {
            self.set_link(name, |m| m.attributes.extend(sizes))
        }
    }

    /// Detaches XDP programs that were attached by netlink; one held by a BPF link stays until its
    /// holder ends. Without a mode the kernel would look at the one that the driver prefers, and
    /// leave those of the others.
    pub fn xdp_detach(&mut self, name: &IfName) -> io::Result<()> {
        for mode in XDP_MODES {
            let off = vec![LinkXdp::Fd(-1), LinkXdp::Flags(mode)];
            self.set_link(name, |m| m.attributes.push(LinkAttribute::Xdp(off)))?;
        }
        Ok(())
    }

    pub fn xdp_detach_mode(&mut self, name: &IfName, hook: ProgramHook) -> io::Result<()> {
        self.xdp(name, hook, -1)
    }

    pub fn xdp_attach(
        &mut self,
        name: &IfName,
        hook: ProgramHook,
        program: &impl AsRawFd,
    ) -> io::Result<()> {
        self.xdp(name, hook, program.as_raw_fd())
    }

    fn xdp(&mut self, name: &IfName, hook: ProgramHook, program: RawFd) -> io::Result<()> {
        let [generic, driver, hardware] = XDP_MODES;
        let mode = match hook {
            ProgramHook::XdpDriver => driver,
            ProgramHook::XdpHardware => hardware,
            _ => generic,
        };
        self.set_link(name, |m| {
            m.attributes.push(LinkAttribute::Xdp(vec![
                LinkXdp::Fd(program),
                LinkXdp::Flags(mode),
            ]));
        })
    }

    pub fn set_mac(&mut self, name: &IfName, mac: &Mac) -> io::Result<()> {
        self.set_link(name, |m| {
            m.attributes.push(LinkAttribute::Address(mac.0.clone()))
        })
    }

    /// Makes a netdev on top of another, or gives one that is there these properties; with the
    /// index, if that is free.
    pub fn make(&mut self, name: &IfName, made: &VirtualLink) -> io::Result<()> {
        let over = made
            .over
            .as_ref()
            .map(|over| self.index(over))
            .transpose()?;
        let m = link_info::message(name, made, over);
        let is_there = self.index(name).is_ok();
        if let Some(wanted) = made.ifindex.filter(|_| !is_there) {
            let mut exact = m.clone();
            exact.header.index = wanted;
            match self.change(Message::NewLink(exact), NLM_F_CREATE | NLM_F_EXCL) {
                // Another link has that index by now: any other will do. A VLAN's number may be
                // taken as well.
                Err(e) if e.raw_os_error() == Some(nix::libc::EEXIST) => {}
                other => return other,
            }
        }
        self.change(Message::NewLink(m), NLM_F_CREATE)
    }

    pub fn delete(&mut self, name: &IfName) -> io::Result<()> {
        let mut m = LinkMessage::default();
        call(&mut m, name);
        self.change(Message::DelLink(m), 0)
    }

    /// Puts a link into a bond, which takes none that is up, and raises it (bond_enslave() in
    /// drivers/net/bonding/bond_main.c).
    pub fn enslave(&mut self, name: &IfName, master: &IfName) -> io::Result<()> {
        let master = self.index(master)?;
        self.set_up(name, false)?;
        self.set_link(name, |m| {
            m.attributes.push(LinkAttribute::Controller(master))
        })
    }

    pub fn release(&mut self, name: &IfName) -> io::Result<()> {
        self.set_link(name, |m| m.attributes.push(LinkAttribute::Controller(0)))
    }

    pub fn rename(&mut self, old: &IfName, new: &IfName) -> io::Result<()> {
        let mut m = LinkMessage::default();
        // With an index, a name is a wish.
        m.header.index = self.index(old)?;
        m.attributes.push(LinkAttribute::IfName(new.to_string()));
        match self.change(Message::SetLink(m.clone()), 0) {
            // Linux before 6.2 renames no link that is up (dev_change_name in net/core/dev.c).
            Err(e) if e.raw_os_error() == Some(nix::libc::EBUSY) => {
                self.set_up(old, false)?;
                self.change(Message::SetLink(m), 0)?;
                self.set_up(new, true)
            }
            done => done,
        }
    }

    pub fn altname_add(&mut self, name: &IfName, altname: &str) -> io::Result<()> {
        let m = property(name, &[altname]);
        self.change(
            Message::NewLinkProp(m),
            NLM_F_EXCL | NLM_F_CREATE | NLM_F_APPEND,
        )
    }

    /// Deletes alternative names; one that is not there is fine.
    pub fn altnames_delete(&mut self, name: &IfName, altnames: &[String]) -> io::Result<()> {
        for some in altnames.chunks(AT_ONCE) {
            let some: Vec<&str> = some.iter().map(String::as_str).collect();
            match self.change(Message::DelLinkProp(property(name, &some)), 0) {
                // The kernel stops at the first that is not there.
                Err(e) if absent(&e) => some.iter().try_for_each(|one| {
                    let deleted = self.change(Message::DelLinkProp(property(name, &[one])), 0);
                    deleted.or_else(|e| if absent(&e) { Ok(()) } else { Err(e) })
                })?,
                other => other?,
            }
        }
        Ok(())
    }
}

/// As many alternative names of 127 bytes as fit a list, whose length has 16 bits.
const AT_ONCE: usize = 256;

/// A request for links without their counters. Unless one says what it wants of them, the kernel
/// does not ask how large links are before it lists them, and ends the list at the first that has
/// many alternative names, without an error (rtnl_calcit() in net/core/rtnetlink.c).
pub(super) fn ask() -> LinkMessage {
    let mut m = LinkMessage::default();
    m.attributes
        .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    m
}

fn property(name: &IfName, altnames: &[&str]) -> LinkMessage {
    let mut m = LinkMessage::default();
    call(&mut m, name);
    let names = altnames
        .iter()
        .map(|a| DefaultNla::new(IFLA_ALT_IFNAME, [ifname_utf8::bytes(a), vec![0]].concat()));
    let names: Vec<DefaultNla> = names.collect();
    let mut list = vec![0; names.as_slice().buffer_len()];
    names.as_slice().emit(&mut list);
    m.attributes.push(LinkAttribute::Other(DefaultNla::new(
        IFLA_PROP_LIST | NLA_F_NESTED,
        list,
    )));
    m
}

fn absent(e: &io::Error) -> bool {
    [nix::libc::ENOENT, nix::libc::EINVAL]
        .map(Some)
        .contains(&e.raw_os_error())
}

pub(super) fn call(message: &mut LinkMessage, name: &IfName) {
    match rtnl::nameless(name) {
        Some(index) => message.header.index = index,
        None => message
            .attributes
            .push(LinkAttribute::IfName(name.to_string())),
    }
}
