//! What comes and goes with an address.

use super::*;

impl Space {
    /// IPv4 routes go with their preferred source (fib_sync_down_addr).
    pub(super) fn address_gone(&mut self, ip: IpAddr) {
        let still = self
            .links
            .iter()
            .any(|l| l.dev.addresses.iter().any(|a| a.address == ip));
        if ip.is_ipv4() && !still {
            self.routes.retain(|r| r.prefsrc != Some(ip));
        }
    }

    /// addrconf_addr_gen: by EUI-64, none, or by a secret.
    pub(super) fn link_local(&mut self, id: u64) {
        let dev = self.dev(id);
        let sysctl = |k: &str| dev.sysctls.get(k).cloned();
        // addrconf_notify: members of a bond have no IPv6.
        if !dev.up
            || dev.master.is_some()
            || sysctl("ipv6/conf/disable_ipv6").as_deref() != Some("0")
        {
            return;
        }
        let Some(Mac(mac)) = dev.mac.clone() else {
            return;
        };
        let mut octets = [
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            mac[0] ^ 2,
            mac[1],
            mac[2],
            0xff,
            0xfe,
            mac[3],
            mac[4],
            mac[5],
        ];
        match sysctl("ipv6/conf/addr_gen_mode").as_deref() {
            Some("0") => {}
            Some("1") | None => return,
            _ => octets[8..].copy_from_slice(&[7, 7, 7, 7, 7, 7, 7, mac[5]]),
        }
        let by_secret = octets[8] == 7;
        let address = IpAddr::V6(Ipv6Addr::from(octets));
        if dev.addresses.iter().any(|a| a.address == address) {
            return;
        }
        let a = Address {
            address,
            prefix: 64,
            peer: None,
            broadcast: None,
            label: None,
            scope: 253,
            flags: PERMANENT | if by_secret { STABLE_PRIVACY } else { 0 },
            valid_lft: None,
            preferred_lft: None,
            metric: None,
            protocol: Some(LINK_LOCAL_BY_KERNEL),
        };
        self.insert_v6(id, a.clone());
        self.routes_of_address(id, &a);
    }

    pub(super) fn insert_v6(&mut self, id: u64, a: Address) {
        // ipv6_link_dev_addr: global before link-local, a new one before its equals.
        let all = &mut self.dev(id).addresses;
        let rank = |x: &Address| (x.address.is_ipv6(), is_ll(x.address));
        let at = all
            .iter()
            .position(|x| rank(x) >= rank(&a))
            .unwrap_or(all.len());
        all.insert(at, a);
    }

    /// fib_add_ifaddr and addrconf_prefix_route.
    pub(super) fn routes_of_address(&mut self, id: u64, a: &Address) {
        let dev = self.dev(id).clone();
        let v4 = a.address.is_ipv4();
        let local = by_kernel(
            host_net(a.address),
            LOCAL,
            2,
            if v4 { 254 } else { 0 },
            None,
            &dev.name,
        );
        self.put(Route {
            prefsrc: v4.then_some(a.address),
            ..local
        });
        let silent = a.flags & (SECONDARY | NOPREFIXROUTE) != 0;
        if !dev.up || silent || (v4 && a.prefix == 32 && a.peer.is_none()) {
            return;
        }
        if v4 {
            let prefix = by_kernel(subnet(a), MAIN, 1, 253, a.metric, &dev.name);
            self.put(Route {
                prefsrc: Some(a.address),
                ..prefix
            });
        } else {
            let metric = Some(a.metric.unwrap_or(256));
            self.put(by_kernel(subnet(a), MAIN, 1, 0, metric, &dev.name));
            // __ipv6_ifa_notify.
            let peer = a
                .peer
                .map(|p| by_kernel(host_net(p), MAIN, 1, 0, metric, &dev.name));
            peer.into_iter().for_each(|r| self.put(r));
        }
    }

    pub(super) fn routes_without_address(&mut self, id: u64, a: &Address) {
        let name = self.dev(id).name.clone();
        let net = subnet(a);
        let own = |r: &Route| {
            r.hops.len() == 1 && r.hops[0].dev.as_ref() == Some(&name) && r.protocol == 2
        };
        let shared = self
            .dev(id)
            .addresses
            .iter()
            .any(|x| subnet(x) == net && x.address.is_ipv6());
        self.routes.retain(|r| {
            let of_this =
                r.destination == net && r.prefsrc.is_none_or(|p| p == a.address) && !shared;
            let of_peer = r.table == MAIN
                && a.address.is_ipv6()
                && a.peer.is_some_and(|p| r.destination == host_net(p));
            !(own(r)
                && (of_peer
                    || of_this && r.table == MAIN
                    || r.destination == host_net(a.address) && r.table == LOCAL))
        });
        self.address_gone(a.address);
    }

    pub(super) fn address_add(&mut self, id: u64, a: &Address) -> Result<()> {
        let mut a = a.clone();
        a.flags &= 0x02 | 0x04 | 0x10 | 0x100 | 0x200 | 0x400;
        a.flags |= if a.valid_lft.is_none() { PERMANENT } else { 0 };
        let dev = self.dev(id);
        if a.address.is_ipv6() {
            match dev
                .sysctls
                .get("ipv6/conf/disable_ipv6")
                .map(String::as_str)
            {
                Some("0") => {}
                Some(_) => return Err(errno(EACCES)),
                None => return Err(errno(EINVAL)),
            }
            // inet6_addr_modify: the prefix stays, the route to it follows flags and metric.
            if let Some(at) = dev.addresses.iter().position(|x| x.address == a.address) {
                let old = dev.addresses.remove(at);
                (a.prefix, a.scope) = (old.prefix, old.scope);
                a.flags |= old.flags & STABLE_PRIVACY;
                self.routes_without_address(id, &old);
                self.dev(id).addresses.insert(at, a.clone());
            } else {
                self.insert_v6(id, a.clone());
            }
            self.routes_of_address(id, &a);
            return Ok(());
        }
        if a.label.is_none() {
            a.label = Some(dev.name.to_string());
        }
        let alike =
            |x: &Address| x.address.is_ipv4() && x.prefix == a.prefix && subnet(x) == subnet(&a);
        if let Some(old) = dev
            .addresses
            .iter_mut()
            .find(|x| alike(x) && x.address == a.address)
        {
            // NLM_F_REPLACE changes these alone (inet_rtm_newaddr).
            (old.metric, old.protocol, old.valid_lft, old.preferred_lft) =
                (a.metric, a.protocol, a.valid_lft, a.preferred_lft);
            return Ok(());
        }
        if dev.addresses.iter().any(alike) {
            a.flags |= SECONDARY;
        }
        // inet_insert_ifa: a primary behind the primaries, a secondary at the end.
        let rank = |x: &Address| (x.address.is_ipv6(), x.flags & SECONDARY);
        let at = dev
            .addresses
            .iter()
            .position(|x| rank(x) > rank(&a))
            .unwrap_or(dev.addresses.len());
        dev.addresses.insert(at, a.clone());
        self.routes_of_address(id, &a);
        Ok(())
    }

    /// The kernel module takes the lack of an address as done.
    pub(super) fn address_delete(&mut self, id: u64, a: &Address) {
        let dev = self.dev(id);
        let same = |x: &Address| {
            x.address == a.address
                && x.prefix == a.prefix
                && (a.label.is_none() || x.label == a.label)
        };
        let Some(at) = dev.addresses.iter().position(same) else {
            return;
        };
        let old = dev.addresses.remove(at);
        let promote = dev
            .sysctls
            .get("ipv4/conf/promote_secondaries")
            .is_some_and(|v| v == "1");
        let follows = |x: &Address| {
            x.address.is_ipv4() && x.flags & SECONDARY != 0 && subnet(x) == subnet(&old)
        };
        let mut gone = vec![old.clone()];
        let mut promoted = None;
        if old.address.is_ipv4() && old.flags & SECONDARY == 0 {
            if promote {
                promoted = dev.addresses.iter_mut().find(|x| follows(x)).map(|x| {
                    x.flags &= !SECONDARY;
                    x.clone()
                });
            } else {
                gone.extend(dev.addresses.iter().filter(|x| follows(x)).cloned());
                dev.addresses.retain(|x| !follows(x));
            }
        }
        gone.iter().for_each(|a| self.routes_without_address(id, a));
        if let Some(a) = promoted {
            self.routes_of_address(id, &a);
        }
    }

    /// addrconf_ifdown.
    pub(super) fn flush_v6(&mut self, id: u64) {
        let name = self.dev(id).name.clone();
        if !self.dev(id).sysctls.contains_key("ipv6/conf/disable_ipv6") {
            self.dev(id).token = None;
        }
        self.dev(id).addresses.retain(|a| a.address.is_ipv4());
        self.dev(id).neighbours.retain(|n| n.address.is_ipv4());
        self.drop_legs(&name);
    }
}
