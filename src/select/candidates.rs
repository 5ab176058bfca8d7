//! What the selection judges: every netdev with the HCA port behind it, or one of the two alone;
//! and the GID of the pair.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{Address, Gid, GidKind, Hca, Netdev, Port, Snapshot};
use rdma_model::values::Family;

use crate::config::request::Request;
use crate::select::BusyNic;
use crate::select::protected_ifaces::{self, Guarded};
use rdma_model::upper_lower;

/// ARPHRD_INFINIBAND: an IPoIB netdev.
pub const INFINIBAND: u16 = 32;
const LOOPBACK: u16 = 772;
/// RT_SCOPE_HOST: an address that no other machine can reach.
const SCOPE_HOST: u8 = 254;

pub struct Context<'a> {
    pub request: &'a Request,
    pub snapshot: &'a Snapshot,
    pub held: &'a [BusyNic],
    /// See [`protected_ifaces::uplinks`].
    pub uplinks: Guarded,
    /// Those of them that nothing but [`protected_ifaces::by_own_sessions`] guards.
    pub own_sessions: BTreeSet<IfName>,
    /// See [`protected_ifaces::bootstrap`].
    pub bootstrap: Guarded,
}

#[derive(Default)]
pub struct Candidate<'a> {
    /// The netdev's name; known for some netdevs that are not here.
    pub name: Option<IfName>,
    pub netdev: Option<&'a Netdev>,
    pub hca: Option<&'a Hca>,
    pub port: Option<&'a Port>,
    /// Further HCA ports on the same netdev.
    pub others: Vec<String>,
}

impl<'a> Context<'a> {
    /// Finds out what is guarded.
    pub fn new(
        request: &'a Request,
        snapshot: &'a Snapshot,
        held: &'a [BusyNic],
        warnings: &mut Vec<String>,
    ) -> Result<Context<'a>> {
        let moves = request.moves();
        let guards = moves && !request.select.allow_bootstrap_iface;
        let uplinks = protected_ifaces::uplinks(!guards, snapshot)?;
        if guards {
            let unclear = protected_ifaces::not_known(snapshot, &uplinks);
            warnings.extend(unclear.into_iter().map(|why| unknown(snapshot, &why)));
        }
        let bootstrap = match moves {
            true => protected_ifaces::bootstrap(request, snapshot, warnings)?,
            false => Guarded::new(),
        };
        Ok(Context {
            request,
            snapshot,
            held,
            own_sessions: protected_ifaces::by_own_sessions(&uplinks, snapshot),
            uplinks,
            bootstrap,
        })
    }

    /// Whether there is no RDMA data at all, so that the NICs named by `--ifaces` are placeholders.
    pub fn blind(&self) -> bool {
        self.snapshot.hcas.is_empty()
    }
}

impl Candidate<'_> {
    /// Whether it is InfiniBand: the port itself, or an IPoIB netdev.
    pub fn is_ib(&self) -> bool {
        let ipoib = self.netdev.is_some_and(|n| n.link_type == INFINIBAND);
        ipoib || self.port.is_some_and(Port::is_infiniband)
    }

    pub fn named(&self, context: &Context) -> bool {
        self.name.as_ref().is_some_and(|n| context.request.names(n))
    }

    /// What the policy's regexes are held against: the netdev's name, else the HCA's.
    pub fn key(&self) -> &str {
        self.name
            .as_ref()
            .map(IfName::as_str)
            .or(self.hca.map(|h| h.name.as_str()))
            .unwrap_or_default()
    }

    pub fn label(&self) -> String {
        match (&self.name, self.hca, self.port) {
            (None, Some(hca), Some(port)) => port_label(hca, port),
            _ => self.key().to_owned(),
        }
    }
}

fn unknown(snapshot: &Snapshot, why: &str) -> String {
    match &snapshot.paths {
        Some(_) => format!(
            "which links the host uses is not known in full, and the create hook refuses that: \
            {why}"
        ),
        None => format!("uplinks: {why}"),
    }
}

/// The netdevs that can be a NIC at all.
pub fn netdevs(snapshot: &Snapshot) -> impl Iterator<Item = &Netdev> {
    snapshot
        .netdevs
        .iter()
        .filter(|n| n.link_type != LOOPBACK && n.name.as_str() != "lo")
}

/// Every netdev but lo, every HCA port without one, every InfiniBand port (which needs none), and
/// what is held elsewhere.
pub fn candidates<'a>(context: &Context<'a>) -> Vec<Candidate<'a>> {
    let mut found: Vec<Candidate> = netdevs(context.snapshot)
        .map(|n| with_ports(context.snapshot, n))
        .collect();
    let mut with_netdev: Vec<(&HcaName, u32)> = Vec::new();
    for netdev in netdevs(context.snapshot) {
        with_netdev.extend(
            ports_of(context.snapshot, netdev)
                .into_iter()
                .map(|(h, p)| (&h.name, p.number)),
        );
    }
    for hca in &context.snapshot.hcas {
        if hca.ports.is_empty() && context.snapshot.netdev_beside(hca).is_none() {
            found.push(Candidate {
                hca: Some(hca),
                ..Candidate::default()
            });
        }
        for port in hca
            .ports
            .iter()
            .filter(|p| p.is_infiniband() || !with_netdev.contains(&(&hca.name, p.number)))
        {
            let name = if port.is_infiniband() {
                None
            } else {
                absent_name(context, hca, port)
            };
            found.push(Candidate {
                name,
                hca: Some(hca),
                port: Some(port),
                ..Candidate::default()
            });
        }
    }
    for held in context.held {
        if found.iter().all(|c| c.name.as_ref() != Some(&held.netdev)) {
            found.push(Candidate {
                name: Some(held.netdev.clone()),
                ..Candidate::default()
            });
        }
    }
    found
}

fn with_ports<'a>(snapshot: &'a Snapshot, netdev: &'a Netdev) -> Candidate<'a> {
    let mut ports = ports_of(snapshot, netdev).into_iter();
    let first = ports.next();
    let mut hcas = snapshot.hcas.iter();
    Candidate {
        name: Some(netdev.name.clone()),
        netdev: Some(netdev),
        hca: first.map(|(h, _)| h).or_else(|| {
            hcas.find(|h| {
                snapshot
                    .netdev_beside(h)
                    .is_some_and(|n| n.name == netdev.name)
            })
        }),
        port: first.map(|(_, p)| p),
        others: ports.map(|(h, p)| port_label(h, p)).collect(),
    }
}

/// The HCA ports behind a netdev, or else behind the device that it sits on (a VLAN without an
/// address has no GID yet).
fn ports_of<'a>(snapshot: &'a Snapshot, netdev: &Netdev) -> Vec<(&'a Hca, &'a Port)> {
    // Bounded, since indexes of other namespaces can make a snapshot's links go round.
    let mut ports = direct_ports(snapshot, netdev);
    let mut below = upper_lower::lower(snapshot, netdev);
    for _ in 0..8 {
        let Some(device) = below.filter(|_| ports.is_empty()) else {
            break;
        };
        ports = direct_ports(snapshot, device);
        below = upper_lower::lower(snapshot, device);
    }
    ports
}

/// By kernel facts only: the port names the netdev; else a GID made from one of the netdev's
/// addresses does (VLAN and macvlan children, bonds); else an IPoIB netdev sits on that port of the
/// same function.
fn direct_ports<'a>(snapshot: &'a Snapshot, netdev: &Netdev) -> Vec<(&'a Hca, &'a Port)> {
    let rules: [fn(&Hca, &Port, &Netdev) -> bool; 3] = [names_netdev, has_its_gid, is_below_ipoib];
    for belongs in rules {
        let pairs = snapshot
            .hcas
            .iter()
            .flat_map(|h| h.ports.iter().map(move |p| (h, p)));
        let found: Vec<_> = pairs.filter(|(h, p)| belongs(h, p, netdev)).collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

fn names_netdev(_: &Hca, port: &Port, netdev: &Netdev) -> bool {
    port.netdev.as_ref() == Some(&netdev.name)
}

fn has_its_gid(_: &Hca, port: &Port, netdev: &Netdev) -> bool {
    port.gids.iter().any(|g| {
        let mut addresses = netdev.addresses.iter();
        g.netdev.as_ref() == Some(&netdev.name) && addresses.any(|a| a.address == g.ip())
    })
}

fn is_below_ipoib(hca: &Hca, port: &Port, netdev: &Netdev) -> bool {
    let is_its_port = netdev.dev_port.map_or(hca.ports.len() == 1, |d| {
        d.checked_add(1) == Some(port.number)
    });
    netdev.link_type == INFINIBAND
        && port.is_infiniband()
        && hca.pci.is_some()
        && hca.pci == netdev.pci
        && is_its_port
}

/// The name of a port's netdev that is not here: a record knows it, or the port still tells it.
fn absent_name(context: &Context, hca: &Hca, port: &Port) -> Option<IfName> {
    let mut held = context
        .held
        .iter()
        .filter(|h| h.hca.as_ref() == Some(&hca.name));
    let held = held.find(|h| h.port.is_none_or(|p| p == port.number));
    let names = held.map(|h| &h.netdev).into_iter().chain(&port.netdev);
    // A name that another namespace uses may be in use here for something else, which has its own
    // candidate.
    let mut absent = names.filter(|n| context.snapshot.netdev(n).is_none());
    absent.next().cloned()
}

/// The RoCE v2 GID of lowest index that is made from one of the netdev's addresses and carries this
/// netdev; else why there is none. One HCA's table holds entries of several netdevs, and equal
/// addresses: only the netdev tells them apart.
pub fn choose_gid<'a>(context: &Context, candidate: &Candidate<'a>) -> Result<&'a Gid, String> {
    let (Some(netdev), Some(hca), Some(port)) = (candidate.netdev, candidate.hca, candidate.port)
    else {
        return Err(format!("{} has no port with GIDs", candidate.label()));
    };
    let (label, family) = (port_label(hca, port), context.request.select.family);
    let mut ours: Vec<&Gid> = port.gids.iter().collect();
    ours.retain(|g| g.kind == Some(GidKind::RoceV2));
    if ours.is_empty() {
        let count = match port.gids.len() {
            0 => "its GID table is empty".to_owned(),
            n => format!("GIDs of other types: {n}"),
        };
        return Err(format!("{label} has no RoCE v2 GID; {count}"));
    }
    ours.retain(|g| {
        let mut addresses = netdev.addresses.iter();
        addresses.any(|a| counts(a, family) && a.address == g.ip())
    });
    if ours.is_empty() {
        return Err(format!(
            "{label} has no RoCE v2 GID made from an {} of {}",
            family.noun(),
            netdev.name
        ));
    }
    let here = ours
        .iter()
        .filter(|g| g.netdev.as_ref() == Some(&netdev.name))
        .min_by_key(|g| g.index);
    here.copied().ok_or_else(|| {
        let foreign = ours
            .iter()
            .find_map(|g| g.netdev.as_ref())
            .map_or("no netdev", IfName::as_str);
        format!(
            "the RoCE v2 GIDs of {label} with an address of {} are of {foreign}",
            netdev.name
        )
    })
}

/// What gives a port a RoCE v2 GID of an address that its netdev has, by what its table shows. The
/// kernel adds a netdev's GIDs when that comes up (`netdevice_event` in
/// drivers/infiniband/core/roce_gid_mgmt.c).
pub fn gid_fix(netdev: &Netdev, port: &Port, family: Family) -> String {
    let own = |g: &&Gid| {
        let mut addresses = netdev.addresses.iter();
        addresses.any(|a| counts(a, family) && a.address == g.ip())
    };
    let v2: Vec<&Gid> = port
        .gids
        .iter()
        .filter(|g| g.kind == Some(GidKind::RoceV2))
        .collect();
    if v2.is_empty() && port.gids.iter().any(|g| g.kind.is_none()) {
        return "see gid_attrs/types below /sys/class/infiniband, which could not be read".into();
    }
    if v2.is_empty() && !port.gids.is_empty() {
        return "switch RoCE v2 on for this port, in its firmware or the settings of its driver"
            .into();
    }
    if let Some(other) = v2.into_iter().find(own).and_then(|g| g.netdev.as_ref()) {
        return format!("{other} has the same address: take it away from {other}");
    }
    let places = port
        .gid_table
        .and_then(|places| usize::try_from(places).ok());
    if let Some(places) = places.filter(|places| port.gids.len() >= *places) {
        return format!(
            "all {places} places of its GID table are in use: take addresses away that {} and what \
            sits on it do not need, then set it down and up",
            netdev.name
        );
    }
    format!(
        "set {} down and up: the kernel then adds a GID for each of its addresses. Its routes and \
        IPv6 addresses go with the link",
        netdev.name
    )
}

/// Whether an address counts as one that peers can be reached from. IPv4 link-local addresses do:
/// fabrics run on them. Temporary ones stay on the host.
pub fn counts(address: &Address, family: Family) -> bool {
    let link_local = matches!(address.address, IpAddr::V6(a) if a.is_unicast_link_local());
    let is_lasting = !link_local && !address.is_temporary();
    family.has(&address.address) && is_lasting && address.scope != SCOPE_HOST
}

/// `mlx5_0:1`.
pub fn port_label(hca: &Hca, port: &Port) -> String {
    format!("{}:{}", hca.name, port.number)
}
