//! VLANs, macvlans and bonds: what their lower devices and members do to them, and they to these.

use anyhow::Result;
use nix::libc::{EEXIST, EINVAL, ENETDOWN};
use rdma_model::ids::IfName;
use rdma_model::step::{Side, VirtualLink};

use super::{Kernel, Link, errno, naked};

impl Kernel {
    fn links(&self) -> impl Iterator<Item = (Side, &Link)> {
        let sides = [Side::Host, Side::Inside].into_iter().zip(&self.spaces);
        sides.flat_map(|(side, space)| {
            space
                .iter()
                .flat_map(move |s| s.links.iter().map(move |l| (side, l)))
        })
    }

    fn above(&self, id: u64) -> Vec<(Side, u64)> {
        self.links()
            .filter(|(_, l)| l.over == Some(id))
            .map(|(side, l)| (side, l.id))
            .collect()
    }

    /// vlan_device_event: VLANs go down with the device below, and up with it.
    pub(super) fn follow(&mut self, id: u64, up: bool) {
        for (side, above) in self.above(id) {
            let space = self.space(side).unwrap();
            if up {
                space.up(above)
            } else {
                space.down(above)
            }
            self.follow(above, up);
        }
    }

    /// Whether it sits on something, or something on it.
    pub(super) fn is_stacked(&mut self, side: Side, dev: &IfName) -> bool {
        let Ok(id) = self.space(side).and_then(|s| s.id(dev)) else {
            return false;
        };
        let over = self.space(side).unwrap().link(id).over;
        over.is_some() || !self.above(id).is_empty()
    }

    pub(super) fn raise(&mut self, side: Side, dev: &IfName, up: bool) -> Result<()> {
        let id = self.space(side)?.id(dev)?;
        let over = self.space(side)?.link(id).over;
        let is_down = |over: u64| !self.links().any(|(_, l)| l.id == over && l.dev.up);
        if up && over.is_some_and(is_down) {
            return Err(errno(ENETDOWN));
        }
        let space = self.space(side)?;
        if up {
            space.up(id)
        } else {
            space.down(id)
        }
        self.follow(id, up);
        Ok(())
    }

    /// rtnl_newlink: a name that is there is changed. vlan_check_real_dev: one VLAN of a number on
    /// a device.
    pub(super) fn make(&mut self, side: Side, name: &IfName, made: &VirtualLink) -> Result<()> {
        let over = made
            .over
            .as_ref()
            .map(|o| self.space(side).and_then(|s| s.id(o)))
            .transpose()?;
        if let Ok(id) = self.space(side)?.id(name) {
            let dev = &mut self.space(side)?.link(id).dev;
            if dev.kind.as_deref() != Some(made.kind.as_str()) {
                return Err(errno(EEXIST));
            }
            dev.made = Some(made.data.clone());
            return Ok(());
        }
        let alike =
            |l: &Link| over.is_some() && l.over == over && l.dev.made.as_ref() == Some(&made.data);
        if made.kind == "vlan" && self.links().any(|(_, l)| alike(l)) {
            return Err(errno(EEXIST));
        }
        let below = over.and_then(|id| {
            self.links()
                .find(|(_, l)| l.id == id)
                .map(|(_, l)| l.dev.clone())
        });
        let wanted = made.ifindex.unwrap_or(1000 + self.next_id as u32);
        let mut dev = naked(name.as_str(), wanted, [2, 9, 9, 9, 9, self.next_id as u8]);
        (dev.kind, dev.made) = (Some(made.kind.clone()), Some(made.data.clone()));
        dev.mac = made
            .mac
            .clone()
            .or(below.as_ref().and_then(|d| d.mac.clone()))
            .or(dev.mac);
        if made.kind == "ipvlan" {
            // ipvlan_link_new: the address below counts as its permanent one.
            dev.permanent_mac = dev.mac.clone();
        }
        dev.mtu = below.map_or(1500, |d| d.mtu);
        let id = self.plug(side, dev);
        self.space(side)?.link(id).over = over;
        Ok(())
    }

    pub(super) fn delete(&mut self, side: Side, name: &IfName) -> Result<()> {
        let Ok(id) = self.space(side)?.id(name) else {
            return Ok(());
        };
        self.delete_id(side, id);
        Ok(())
    }

    pub(super) fn delete_above(&mut self, id: u64) {
        self.above(id)
            .into_iter()
            .for_each(|(side, above)| self.delete_id(side, above));
    }

    fn delete_id(&mut self, side: Side, id: u64) {
        self.delete_above(id);
        self.rdma.retain(|r| r.on != id);
        let space = self.space(side).unwrap();
        space.unregister(id);
        let gone = space.take(id).dev.name;
        let members = space
            .links
            .iter()
            .filter(|l| l.dev.master.as_ref() == Some(&gone))
            .map(|l| l.id);
        members
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|member| space.let_go(member));
    }

    /// bond_enslave: none that is up; a member has the bond's MTU and address, and is raised.
    pub(super) fn enslave(&mut self, side: Side, name: &IfName, master: &IfName) -> Result<()> {
        let space = self.space(side)?;
        let (id, bond) = (space.id(name)?, space.id(master)?);
        let bond = space.link(bond).dev.clone();
        if bond.kind.as_deref() != Some("bond") {
            return Err(errno(EINVAL));
        }
        // As the kernel does.
        space.down(id);
        let dev = &mut space.link(id).dev;
        let own = std::mem::replace(&mut dev.mac, bond.mac);
        (dev.master, dev.mtu) = (Some(master.clone()), bond.mtu);
        dev.sysctls
            .insert("ipv6/conf/mtu".into(), bond.mtu.to_string());
        dev.addresses.retain(|a| a.address.is_ipv4());
        space.link(id).own_mac = own;
        space.up(id);
        Ok(())
    }
}
