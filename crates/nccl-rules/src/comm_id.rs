//! NCCL_COMM_ID, the address that the ranks meet at: `ip:port`, `host:port` or
//! `[v6%interface]:port` (src/misc/socket.cc, `ncclSocketGetAddrFromString`). Only the address
//! matters here: NCCL bootstraps on the first interface that shares its subnet.

use std::net::{IpAddr, Ipv6Addr};

use rdma_model::snapshot::{Netdev, Snapshot};

use super::explanation::{Failure, NcclError, Step};
use super::ifname;
use super::version::Version;

/// Resolves a host name: the first address that getaddrinfo returns.
pub type Resolve<'a> = &'a dyn Fn(&str) -> Option<IpAddr>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub address: IpAddr,
    /// Ifindex of the interface that `%` names; 0: global.
    pub scope: u32,
    /// [`Version::inverts_subnets`], and this is an IPv4 address.
    pub inverted: bool,
}

impl Remote {
    pub fn parse(
        value: &str,
        version: Version,
        ifindex: impl Fn(&str) -> Option<u32>,
        resolve: Resolve,
    ) -> Result<Remote, Failure> {
        if value.len() < 2 {
            return Err(invalid("it is shorter than two bytes".to_owned()));
        }
        match value.strip_prefix('[') {
            Some(rest) => bracketed(rest, ifindex),
            None => host(value, version, resolve),
        }
    }

    pub fn step(&self) -> Step {
        if self.inverted {
            Step::NotCommId
        } else {
            Step::CommId
        }
    }

    /// Whether NCCL finds an address of that prefix length, on that interface, to be in the same
    /// subnet (src/os/linux.cc, `matchSubnet`). Link-local ones are compared with their scope.
    pub fn shares(&self, address: IpAddr, prefix: u8, ifindex: u32) -> bool {
        match (self.address, address) {
            (IpAddr::V4(remote), IpAddr::V4(local)) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(prefix.min(32)))
                    .unwrap_or(0);
                ((remote.to_bits() ^ local.to_bits()) & mask == 0) != self.inverted
            }
            (IpAddr::V6(remote), IpAddr::V6(local)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(prefix.min(128)))
                    .unwrap_or(0);
                (remote.to_bits() ^ local.to_bits()) & mask == 0
                    && self.scope == scope(local, ifindex)
            }
            _ => false,
        }
    }
}

pub(crate) fn scope(address: Ipv6Addr, ifindex: u32) -> u32 {
    if address.is_unicast_link_local() {
        ifindex
    } else {
        0
    }
}

/// if_nametoindex: the kernel (net/core/dev_ioctl.c) cuts a name at its colon, where labels begin,
/// and knows alternative names; the C library passes no more than 15 bytes on.
pub(crate) fn ifindex(snapshot: &Snapshot, name: &str) -> Option<u32> {
    let cut = name.split(':').next().filter(|_| name.len() < 16)?;
    let is = |n: &&Netdev| n.name.as_str() == cut || n.altnames.iter().any(|a| a == cut);
    snapshot.netdevs.iter().find(is).map(|n| n.ifindex)
}

fn host(value: &str, version: Version, resolve: Resolve) -> Result<Remote, Failure> {
    let Some(entry) = ifname::entries(value, version).into_iter().next() else {
        return Err(invalid("it names no address".to_owned()));
    };
    let known = entry.name.parse().ok().or_else(|| resolve(&entry.name));
    let address = known.ok_or_else(|| {
        invalid(format!(
            "{} is no address and no host that is known here",
            entry.name
        ))
    })?;
    Ok(Remote {
        address,
        scope: 0,
        inverted: version.inverts_subnets() && address.is_ipv4(),
    })
}

pub(crate) fn names_host(value: &str) -> bool {
    let entry = ifname::entries(value, Version::NEWEST).into_iter().next();
    value.len() > 1
        && !value.starts_with('[')
        && entry.is_some_and(|e| e.name.parse::<IpAddr>().is_err())
}

fn bracketed(rest: &str, ifindex: impl Fn(&str) -> Option<u32>) -> Result<Remote, Failure> {
    let inside = rest.split_once(']').map(|(inside, _)| inside);
    let inside = inside.ok_or_else(|| invalid("its [ has no ]".to_owned()))?;
    let (text, interface) = inside
        .rsplit_once('%')
        .map_or((inside, None), |(text, name)| (text, Some(name)));
    let address: Ipv6Addr = text.parse().map_err(|_| Failure {
        error: None,
        message: None,
        why: format!(
            "NCCL_COMM_ID: {text:?} is no IPv6 address, which NCCL does not check: it uses \
            whatever was in memory"
        ),
    })?;
    // if_nametoindex says 0 where there is no such interface, and NCCL does not check.
    let scope = interface.map_or(0, |name| ifindex(name).unwrap_or(0));
    Ok(Remote {
        address: address.into(),
        scope,
        inverted: false,
    })
}

fn invalid(why: String) -> Failure {
    Failure {
        error: Some(NcclError::InvalidArgument),
        message: Some("Invalid NCCL_COMM_ID"),
        why: format!("NCCL_COMM_ID: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<Remote, Failure> {
        let resolve = |name: &str| (name == "head").then(|| "10.0.0.9".parse().unwrap());
        Remote::parse(
            value,
            Version::NEWEST,
            |name| (name == "eth0").then_some(7),
            &resolve,
        )
    }

    #[test]
    fn three_forms() {
        for (value, address, scope) in [
            ("10.0.0.1:29500", "10.0.0.1", 0),
            ("10.0.0.1", "10.0.0.1", 0),
            ("10.0.0.1,10.0.0.2:1", "10.0.0.1", 0),
            ("head:29500", "10.0.0.9", 0),
            ("[2001:db8::1]:29500", "2001:db8::1", 0),
            ("[fe80::1%eth0]:29500", "fe80::1", 7),
            ("[fe80::1%gone]:29500", "fe80::1", 0),
            ("[fe80::1]", "fe80::1", 0),
        ] {
            assert_eq!(
                parse(value),
                Ok(Remote {
                    address: address.parse().unwrap(),
                    scope,
                    inverted: false
                }),
                "{value}"
            );
        }
        for value in ["", "x", ":1", ",", "no-such-host:1", "[::1", "fe80::1"] {
            let failure = parse(value).unwrap_err();
            assert_eq!(failure.error, Some(NcclError::InvalidArgument), "{value}");
        }
        assert_eq!(parse("[10.0.0.1]:1").unwrap_err().error, None);
    }

    #[test]
    fn an_interface_has_several_names() {
        let netdev = serde_json::json!({"name": "eth0", "ifindex": 7, "altnames": ["enp1s0"]});
        let node = serde_json::from_value(
            serde_json::json!({"schema": 1, "hcas": [], "netdevs": [netdev]}),
        )
        .unwrap();
        let names = ["eth0", "eth0:1", "enp1s0", "eth1", "", "eth0:and-some-more"];
        assert_eq!(
            names.map(|n| ifindex(&node, n)),
            [Some(7), Some(7), Some(7), None, None, None]
        );
    }

    #[test]
    fn a_subnet_is_that_of_the_local_address() {
        let shares = |remote: &str, local: &str, prefix| {
            parse(remote)
                .unwrap()
                .shares(local.parse().unwrap(), prefix, 7)
        };
        assert!(shares("10.0.0.9:1", "10.0.0.1", 24) && !shares("10.0.0.9:1", "10.0.0.1", 32));
        assert!(shares("10.0.0.9:1", "10.0.0.9", 32) && shares("10.0.0.9:1", "192.0.2.1", 0));
        assert!(!shares("10.0.0.9:1", "::1", 0) && shares("[2001:db8::9]:1", "2001:db8::1", 64));
        assert!(shares("[fe80::9%eth0]:1", "fe80::1", 64) && !shares("[fe80::9]:1", "fe80::1", 64));
        assert!(!shares("[2001:db8::9%eth0]:1", "2001:db8::1", 64));
        let young =
            Remote::parse("10.0.0.9:1", Version::new(2, 29, 7), |_| None, &|_| None).unwrap();
        assert!(
            young.shares("10.0.1.1".parse().unwrap(), 24, 7)
                && !young.shares("10.0.0.1".parse().unwrap(), 24, 7)
        );
        assert!(!young.shares("::1".parse().unwrap(), 0, 7));
    }
}
