//! The links that packets leave by, from what is known of a host; looked through once, as there may
//! be thousands of routes and as many connections.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Answer, Hop, HostPath, Leg, Netdev, Purpose, Snapshot, UNICAST};

/// A host with its routes by what makes them equal, and its links by what paths name them by.
pub(super) struct Ways<'a> {
    pub(super) snapshot: &'a Snapshot,
    /// The legs of routes that have just one, by table, destination and metric.
    equals: HashMap<(u32, IpNet, u32), Vec<&'a Hop>>,
    owners: HashMap<IpAddr, Vec<&'a IfName>>,
    links: HashMap<u32, &'a Netdev>,
}

impl<'a> Ways<'a> {
    pub(super) fn of(snapshot: &'a Snapshot) -> Ways<'a> {
        let mut equals: HashMap<_, Vec<&Hop>> = HashMap::new();
        for route in snapshot.routes.iter().filter(|r| r.kind <= UNICAST) {
            if let [only] = route.hops.as_slice() {
                equals
                    .entry((route.table, route.destination, route.metric.unwrap_or(0)))
                    .or_default()
                    .push(only);
            }
        }
        let mut owners: HashMap<_, Vec<&IfName>> = HashMap::new();
        for netdev in &snapshot.netdevs {
            for address in &netdev.addresses {
                let all = owners.entry(address.address).or_default();
                if all.last() != Some(&&netdev.name) {
                    all.push(&netdev.name);
                }
            }
        }
        let links = snapshot.netdevs.iter().map(|n| (n.ifindex, n)).collect();
        Ways {
            snapshot,
            equals,
            owners,
            links,
        }
    }

    pub(super) fn asked(&self) -> impl Iterator<Item = &'a HostPath> + use<'a> {
        self.snapshot.paths.iter().flat_map(|paths| &paths.paths)
    }

    pub(super) fn owners(&self, address: IpAddr) -> &[&'a IfName] {
        self.owners.get(&address).map_or(&[], Vec::as_slice)
    }

    /// The link that alone owns the address that a connection or an end of a tunnel is bound to:
    /// packets for it come in nowhere else, and none leave without it.
    pub(super) fn owner(&self, path: &HostPath) -> Option<&'a IfName> {
        matches!(
            path.purpose,
            Purpose::Connection(_) | Purpose::Underlay | Purpose::Ipsec
        )
        .then_some(())?;
        let from = path
            .question
            .from
            .filter(|_| !matches!(path.answer, Answer::Local))?;
        self.sole_owner(from)
    }

    fn sole_owner(&self, address: IpAddr) -> Option<&'a IfName> {
        let [alone] = self.owners(address) else {
            return None;
        };
        Some(alone)
    }

    /// The link that alone owns the source of packets that are bound to no address, where they
    /// leave by another one: a route with a preferred source goes with that address
    /// (fib_sync_down_addr() in net/ipv4/fib_semantics.c), and no answer comes to one that is gone.
    /// What the kernel chooses by itself for IPv6 counts where IPv4 has no way out: a host that has
    /// one lives on that.
    pub(super) fn source_owner(&self, path: &HostPath) -> Option<(IpAddr, &'a IfName)> {
        let Answer::Route(matched) = &path.answer else {
            return None;
        };
        let chosen = matched
            .chosen
            .filter(|source| source.is_ipv4() || !self.leaves_by_ipv4());
        let source = matched
            .preferred
            .or(chosen)
            .filter(|_| path.question.from.is_none())?;
        let owner = self
            .sole_owner(source)
            .filter(|owner| owner.as_str() != "lo")?;
        (!matched.legs.iter().any(|leg| leg.dev == *owner)).then_some((source, owner))
    }

    fn leaves_by_ipv4(&self) -> bool {
        self.asked().any(|p| {
            p.purpose == Purpose::Internet
                && p.question.to.is_ipv4()
                && matches!(p.answer, Answer::Route(_))
        })
    }

    /// The link that a connection or a tunnel's end is bound to, where its packets have no route:
    /// they leave by it all the same (RT_SCOPE_LINK in ip_route_output_key_hash_rcu() in
    /// net/ipv4/route.c).
    pub(super) fn bound_without_route(&self, path: &HostPath) -> Option<&'a IfName> {
        let is_sent = matches!(path.purpose, Purpose::Connection(_) | Purpose::Underlay);
        let has_none = is_sent && matches!(path.answer, Answer::Unreachable(_));
        let link = self.links.get(&path.question.oif.filter(|_| has_none)?)?;
        (!link.is_vrf()).then_some(&link.name)
    }

    /// The links that packets to a destination leave by: the legs of the FIB entry, those of its
    /// equals where the kernel changes between routers (any of IPv6: find_rr_leaf() in
    /// net/ipv6/route.c; of IPv4 those of a default route: fib_select_path() in
    /// net/ipv4/fib_semantics.c), and the link that a socket is bound to. Rails in one subnet are
    /// no such equals: the first serves. Of a VRF that a socket is bound to, the member that the
    /// kernel named is the way, and not the others.
    pub(super) fn leaving(&self, path: &HostPath) -> Vec<Leg> {
        let Answer::Route(matched) = &path.answer else {
            return Vec::new();
        };
        let is_ipv6 = matched.prefix.addr().is_ipv6();
        let changes = matched.prefix.prefix_len() == 0
            || is_ipv6 && matched.legs.iter().any(|leg| leg.gateway.is_some());
        let mut legs = matched.legs.clone();
        let key = (matched.table, matched.prefix, matched.metric.unwrap_or(0));
        for hop in self.equals.get(&key).into_iter().flatten() {
            let gateway = hop.gateway;
            if changes || is_ipv6 && gateway.is_some() {
                legs.extend(hop.dev.clone().map(|dev| Leg { dev, gateway }));
            }
        }
        let bound = path.question.oif.and_then(|index| self.links.get(&index));
        legs.extend(bound.filter(|n| !n.is_vrf()).map(|n| Leg {
            dev: n.name.clone(),
            gateway: None,
        }));
        legs
    }
}

/// Whether packets to an address have a way out of a container's namespace: over a subnet of its
/// own, or by a route.
pub fn leads(inside: &Snapshot, to: IpAddr) -> bool {
    let addresses = inside.netdevs.iter().flat_map(|n| &n.addresses);
    let mut subnets =
        addresses.filter_map(|a| IpNet::new(a.peer.unwrap_or(a.address), a.prefix).ok());
    subnets.any(|subnet| subnet.contains(&to)) || !inside.links_towards(to).is_empty()
}
