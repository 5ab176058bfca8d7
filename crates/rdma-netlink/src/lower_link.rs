//! IFLA_INFO_DATA -> what a netdev sits on or sends through, besides IFLA_LINK. Tunnels report the
//! device below by IFLA_LINK as well; vxlan, AMT and HSR have no ndo_get_iflink, and report it here
//! alone. Geneve, bareudp and WireGuard have none: their packets go by the routes.

use std::net::IpAddr;

use rdma_model::snapshot::Tunnel;

use crate::raw::{self, Attributes};

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// Indexes, in the namespace of IFLA_LINK_NETNSID.
    pub devices: Vec<u32>,
    pub tunnel: Option<Tunnel>,
}

/// Numbers of attributes by kind (include/uapi/linux/if_link.h, if_tunnel.h, amt.h).
#[derive(Default)]
pub struct Numbers {
    /// IFLA_*_LINK; of HSR SLAVE1, SLAVE2 and INTERLINK.
    pub devices: &'static [u16],
    pub local: &'static [u16],
    /// The other end; none where it is no tunnel.
    pub remote: &'static [u16],
    /// The port of UDP that packets go to.
    pub port: Option<u16>,
    /// Packets name their other ends themselves.
    pub external: Option<u16>,
    pub mark: Option<u16>,
}

fn ends(devices: &'static [u16], local: &'static [u16], remote: &'static [u16]) -> Numbers {
    Numbers {
        devices,
        local,
        remote,
        ..Numbers::default()
    }
}

pub fn numbers(kind: &str) -> Option<Numbers> {
    Some(match kind {
        "vxlan" => Numbers {
            port: Some(15),
            external: Some(25),
            ..ends(&[3], &[4, 17], &[2, 16])
        },
        "geneve" => Numbers {
            port: Some(5),
            external: Some(6),
            ..ends(&[], &[], &[2, 7])
        },
        "gre" | "gretap" | "erspan" | "ip6gre" | "ip6gretap" | "ip6erspan" => Numbers {
            external: Some(18),
            mark: Some(20),
            ..ends(&[1], &[6], &[7])
        },
        "ipip" | "sit" | "ip6tnl" => Numbers {
            external: Some(19),
            mark: Some(20),
            ..ends(&[1], &[2], &[3])
        },
        "vti" | "vti6" => Numbers {
            mark: Some(6),
            ..ends(&[1], &[4], &[5])
        },
        "amt" => ends(&[4], &[5], &[6]),
        "xfrm" => ends(&[1], &[], &[]),
        "hsr" => ends(&[1, 2, 8], &[], &[]),
        _ => return None,
    })
}

pub fn parse(kind: &str, data: &[u8]) -> Below {
    let Some((numbers, attributes)) = numbers(kind).zip(raw::attributes(data).ok()) else {
        return Below::default();
    };
    let devices = numbers
        .devices
        .iter()
        .filter_map(|n| raw::word(&attributes.get(n)?.0))
        .filter(|index| *index != 0);
    let (local, remote) = (
        address(&attributes, numbers.local),
        address(&attributes, numbers.remote),
    );
    let tunnel = (local.is_some() || remote.is_some()).then_some(Tunnel { local, remote });
    Below {
        devices: devices.collect(),
        tunnel,
    }
}

/// The kernel reports the unspecified address where none is set.
fn address(attributes: &Attributes, numbers: &[u16]) -> Option<IpAddr> {
    let mut set = numbers
        .iter()
        .filter_map(|n| raw::ip(&attributes.get(n)?.0));
    set.find(|ip| !ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_model::ids::Hex;

    fn data(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let all: Attributes = attributes
            .iter()
            .map(|(number, value)| (*number, Hex(value.to_vec())))
            .collect();
        raw::emitted(&all)
    }

    #[test]
    fn vxlan_names_its_device_and_its_ends() {
        let seven = 7u32.to_ne_bytes();
        let below = parse(
            "vxlan",
            &data(&[
                (1, &[5, 0, 0, 0]),
                (3, &seven),
                (2, &[10, 0, 0, 9]),
                (17, &[0; 16]),
            ]),
        );
        let remote = Some([10, 0, 0, 9].into());
        assert_eq!(
            below,
            Below {
                devices: vec![7],
                tunnel: Some(Tunnel {
                    local: None,
                    remote
                })
            }
        );
    }

    #[test]
    fn what_is_not_set_is_no_device_and_no_end() {
        for kind in [
            "vxlan", "gre", "ipip", "vti", "geneve", "hsr", "amt", "xfrm", "dummy",
        ] {
            let zeros: Vec<(u16, &[u8])> = (1..9).map(|number| (number, &[0; 4][..])).collect();
            assert_eq!(parse(kind, &data(&zeros)), Below::default(), "{kind}");
            assert_eq!(
                parse(kind, &[1, 2, 3]),
                Below::default(),
                "{kind}: malformed"
            );
        }
    }

    #[test]
    fn hsr_sits_on_both_of_its_ports() {
        let (a, b) = (3u32.to_ne_bytes(), 4u32.to_ne_bytes());
        assert_eq!(
            parse("hsr", &data(&[(1, &a), (2, &b), (7, &[0])])).devices,
            [3, 4]
        );
    }
}
