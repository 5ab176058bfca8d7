//! Which addresses a node may contact, whatever the store says: those that another node's rail can
//! have. A queue pair sends over its own rail alone, so what is left to refuse is what is no other
//! host's rail.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

/// What this node knows of its own addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    pub addresses: Vec<IpAddr>,
    /// Subnets of the rails.
    pub rails: Vec<IpNet>,
    /// Subnets of all other interfaces.
    pub others: Vec<IpNet>,
}

pub fn ip(gid: Ipv6Addr) -> IpAddr {
    match gid.to_ipv4_mapped() {
        Some(v4) => IpAddr::V4(v4),
        None => IpAddr::V6(gid),
    }
}

impl Own {
    /// Why a GID that a node names is not contacted from a rail with this one.
    pub fn refuse(&self, own: Ipv6Addr, named: Ipv6Addr) -> Option<&'static str> {
        let (from, to) = (ip(own), ip(named));
        if from.is_ipv4() != to.is_ipv4() {
            return Some("it has an address of another family");
        }
        let is_local = |ip: &IpAddr| match ip {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let is_broadcast = matches!(to, IpAddr::V4(v4) if v4.is_broadcast());
        if to.is_unspecified() || to.is_multicast() || to.is_loopback() || is_broadcast {
            return Some("its address is no host's");
        }
        if is_local(&from) != is_local(&to) {
            return Some("only one of both addresses is link-local");
        }
        if self.addresses.contains(&to) {
            return Some("its address is this node's own");
        }
        let holds = |subnets: &[IpNet]| subnets.iter().any(|subnet| subnet.contains(&to));
        if holds(&self.others) && !holds(&self.rails) {
            return Some("its address is in a subnet of this node that is no rail's");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Ipv6Addr {
        match text.parse().unwrap() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        }
    }

    #[test]
    fn only_what_another_rail_can_have_is_contacted() {
        let own = Own {
            addresses: vec!["10.1.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap()],
            rails: vec!["10.1.0.0/24".parse().unwrap()],
            others: vec!["192.0.2.0/24".parse().unwrap()],
        };
        let refuse = |to: &str| own.refuse(gid("10.1.0.1"), gid(to));
        for good in ["10.1.0.2", "10.1.1.2", "203.0.113.9"] {
            assert_eq!(refuse(good), None, "{good}");
        }
        let refused = [
            ("10.1.0.1", "own"),
            ("192.0.2.77", "no rail's"),
            ("127.0.0.1", "no host's"),
            ("224.0.0.1", "no host's"),
            ("255.255.255.255", "no host's"),
            ("0.0.0.0", "no host's"),
            ("169.254.1.1", "link-local"),
            ("2001:db8::2", "family"),
        ];
        for (bad, why) in refused {
            assert!(refuse(bad).is_some_and(|text| text.contains(why)), "{bad}");
        }
        let v6 = |to: &str| own.refuse(gid("fe80::1"), gid(to));
        assert_eq!(v6("fe80::2"), None);
        assert!(v6("2001:db8::2").is_some() && v6("ff02::1").is_some());
    }
}
