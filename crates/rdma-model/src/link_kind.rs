//! What depends on a link's kind (IFLA_INFO_KIND), in one table; of a kind that is not in it
//! nothing is known.

/// A line of the table.
#[derive(Debug)]
pub struct LinkKind {
    name: &'static str,
    carrier: Carrier,
    lower: Lower,
}

/// What its packets go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    /// They end in this host.
    HostItself,
    /// The other end of a pair, which may be in another namespace under an index that means
    /// something else here.
    Peer,
    /// They end here, or go through its members; the kernel ties it to its namespace.
    Members,
    /// The link below, which is here or in another namespace, where this host's packets do not see
    /// it.
    LinkBelow,
    /// What the routes say.
    Network,
}

/// What a move of the link below means to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lower {
    /// It is left behind; it may be meant for another container.
    Left,
    /// It is a part of the NIC, and follows it.
    Followed,
    /// For it that is a NETDEV_UNREGISTER: vxlan_netdevice_event(), macsec_notify() and
    /// amt_device_event() (drivers/net).
    Deletes,
}

const fn kind(name: &'static str, carrier: Carrier, lower: Lower) -> LinkKind {
    LinkKind {
        name,
        carrier,
        lower,
    }
}

static KINDS: [LinkKind; 22] = {
    use Carrier::{HostItself, LinkBelow, Members, Network, Peer};
    use Lower::{Deletes, Followed, Left};
    [
        kind("vlan", LinkBelow, Followed),
        kind("ipoib", LinkBelow, Followed),
        kind("macvlan", LinkBelow, Left),
        kind("macvtap", LinkBelow, Left),
        kind("ipvlan", LinkBelow, Left),
        kind("ipvtap", LinkBelow, Left),
        kind("macsec", LinkBelow, Deletes),
        kind("rmnet", LinkBelow, Left),
        kind("bond", Members, Left),
        kind("bridge", Members, Left),
        kind("team", Members, Left),
        kind("vrf", Members, Left),
        kind("openvswitch", Members, Left),
        kind("veth", Peer, Left),
        kind("netkit", Peer, Left),
        kind("vxcan", Peer, Left),
        kind("dummy", HostItself, Left),
        kind("tun", HostItself, Left),
        kind("ifb", HostItself, Left),
        kind("nlmon", HostItself, Left),
        kind("vxlan", Network, Deletes),
        kind("amt", Network, Deletes),
    ]
};

impl LinkKind {
    pub fn of(name: &str) -> Option<&'static LinkKind> {
        KINDS.iter().find(|kind| kind.name == name)
    }

    /// Whether other links are members of it.
    pub fn has_members(&self) -> bool {
        self.carrier == Carrier::Members
    }

    /// Whether it is made on one other link, by which its packets go.
    pub fn is_above_a_link(&self) -> bool {
        self.carrier == Carrier::LinkBelow
    }

    /// Whether its IFLA_LINK is its peer.
    pub fn is_paired(&self) -> bool {
        self.carrier == Carrier::Peer
    }

    /// Whether it is known, but for the links below it, where its packets go.
    pub fn has_known_carrier(&self) -> bool {
        self.carrier != Carrier::Network
    }

    /// Whether it is a part of the NIC below.
    pub fn follows(&self) -> bool {
        self.lower == Lower::Followed
    }

    /// Whether it ends when the link below leaves.
    pub fn ends_with_lower(&self) -> bool {
        self.lower == Lower::Deletes
    }
}
