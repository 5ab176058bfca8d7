//! Which addresses a node may contact, whatever the store says: those that another node's rail can
//! have. A queue pair sends over its own rail alone, so what is left to refuse is what is no other
//! host's rail.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

/// What this node knows of its own addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    pub addresses: Vec<IpAddr>,
    /// Subnets of the rails, and where their routes lead.
    pub rails: Vec<IpNet>,
    /// Where routes lead that are in a table of a rail's own, which its address chooses.
    pub by_source: Vec<IpNet>,
    /// Subnets of all other interfaces.
    pub others: Vec<IpNet>,
}

/// Why a GID that a node names is not contacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    OtherFamily,
    OwnAddress,
    NoRail,
}

/// The longest prefix that holds an address.
fn longest(subnets: &[IpNet], address: IpAddr) -> Option<u8> {
    let holding = subnets.iter().filter(|subnet| subnet.contains(&address));
    holding.map(IpNet::prefix_len).max()
}

pub fn ip(gid: Ipv6Addr) -> IpAddr {
    match gid.to_ipv4_mapped() {
        Some(v4) => IpAddr::V4(v4),
        None => IpAddr::V6(gid),
    }
}

impl Own {
    /// Why a GID that a node names is not contacted from a rail with this one.
    pub fn refuse(&self, own: Ipv6Addr, named: Ipv6Addr) -> Option<Refusal> {
        let (from, to) = (ip(own), ip(named));
        if from.is_ipv4() != to.is_ipv4() {
            return Some(Refusal::OtherFamily);
        }
        let is_local = |ip: &IpAddr| match ip {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let is_broadcast = matches!(to, IpAddr::V4(v4) if v4.is_broadcast());
        if to.is_unspecified() || to.is_multicast() || to.is_loopback() || is_broadcast {
            return Some(Refusal::NoRail);
        }
        if is_local(&from) != is_local(&to) {
            return Some(Refusal::OtherFamily);
        }
        if self.addresses.contains(&to) {
            return Some(Refusal::OwnAddress);
        }
        let is_by_source = longest(&self.by_source, to).is_some();
        let is_others = longest(&self.others, to) > longest(&self.rails, to);
        (is_others && !is_by_source).then_some(Refusal::NoRail)
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
            by_source: Vec::new(),
            others: vec!["192.0.2.0/24".parse().unwrap()],
        };
        let refuse = |to: &str| own.refuse(gid("10.1.0.1"), gid(to));
        for good in ["10.1.0.2", "10.1.1.2", "203.0.113.9"] {
            assert_eq!(refuse(good), None, "{good}");
        }
        // A fabric of point-to-point links within a management network's range.
        let routed = Own {
            others: vec!["10.0.0.0/8".parse().unwrap()],
            ..own.clone()
        };
        let from = gid("10.1.0.1");
        assert_eq!(routed.refuse(from, gid("10.1.0.2")), None);
        assert_eq!(routed.refuse(from, gid("10.1.1.2")), Some(Refusal::NoRail));
        let by_table = Own {
            by_source: vec!["0.0.0.0/0".parse().unwrap()],
            ..routed
        };
        assert_eq!(by_table.refuse(from, gid("10.1.1.2")), None);
        let refused = [
            ("10.1.0.1", Refusal::OwnAddress),
            ("192.0.2.77", Refusal::NoRail),
            ("127.0.0.1", Refusal::NoRail),
            ("224.0.0.1", Refusal::NoRail),
            ("255.255.255.255", Refusal::NoRail),
            ("0.0.0.0", Refusal::NoRail),
            ("169.254.1.1", Refusal::OtherFamily),
            ("2001:db8::2", Refusal::OtherFamily),
        ];
        for (bad, why) in refused {
            assert_eq!(refuse(bad), Some(why), "{bad}");
        }
        let v6 = |to: &str| own.refuse(gid("fe80::1"), gid(to));
        assert_eq!(v6("fe80::2"), None);
        assert!(v6("2001:db8::2").is_some() && v6("ff02::1").is_some());
    }
}
