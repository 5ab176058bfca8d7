//! Why a link is guarded, as clauses that follow its name.

use std::net::{IpAddr, SocketAddr};

use nix::libc::IPPROTO_UDP;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{
    Answer, Connection, HostPath, Leg, Matched, Purpose, RdmaUse, TABLE_MAIN,
};

/// Whether a destination is the job's, else the host's own; what a tunnel ends in is neither.
pub(super) fn is_about(purpose: Purpose, job: bool) -> bool {
    match purpose {
        Purpose::Peer | Purpose::Store => job,
        Purpose::Internet
        | Purpose::NameServer
        | Purpose::Connection(_)
        | Purpose::Ipsec
        | Purpose::Segment => !job,
        Purpose::Underlay => false,
    }
}

/// The name that people have for what listens at a port, where losing it loses more than a
/// connection.
pub(super) fn service(port: u16) -> Option<&'static str> {
    Some(match port {
        22 => "ssh",
        53 => "DNS",
        179 => "BGP",
        2049 | 20049 => "NFS",
        3260 => "iSCSI",
        3300 | 6789 => "Ceph",
        4420 => "NVMe",
        6443 => "Kubernetes",
        10809 => "NBD",
        _ => return None,
    })
}

pub(super) fn reason(path: &HostPath, matched: &Matched, leg: &Leg) -> String {
    let (to, route) = (path.question.to, route_text(matched, leg));
    match path.purpose {
        Purpose::Internet => format!(
            "leads out to the internet ({to}{}: {route})",
            selectors(path)
        ),
        Purpose::Peer => format!("leads to the peer address {to} ({route})"),
        Purpose::Store => format!("leads to the rendezvous store {to} ({route})"),
        Purpose::NameServer => format!("leads to the name server {to} ({route})"),
        Purpose::Connection(c) => format!(
            "{} ({}: {route})",
            sentence(c, path, &leg.dev),
            connection_text(c, path)
        ),
        Purpose::Underlay => format!("leads to {to}, the other end of a tunnel ({route})"),
        Purpose::Ipsec => format!("leads to {to}, the other end of an IPsec tunnel ({route})"),
        Purpose::Segment => {
            format!("leads to {to}, a segment that packets of this host go by ({route})")
        }
    }
}

/// Why the links of an RDMA device are guarded:
/// `is in use: nvme_rdma uses mlx5_3 to reach 10.0.0.9`.
pub(super) fn rdma_reason(one: &RdmaUse) -> String {
    let peer = one
        .peer
        .map(|peer| format!(" to reach {peer}"))
        .unwrap_or_default();
    format!(
        "is in use: {} of this host uses {}{peer}",
        one.user, one.hca
    )
}

pub(super) fn socket_reason(path: &HostPath, dev: &IfName) -> String {
    let Purpose::Connection(connection) = path.purpose else {
        let own = path
            .question
            .from
            .map(|from| from.to_string())
            .unwrap_or_default();
        return format!(
            "owns {own}, this end of an IPsec tunnel to {}",
            path.question.to
        );
    };
    let (sentence, tcp) = (
        sentence(connection, path, dev),
        connection_text(connection, path),
    );
    match &path.answer {
        Answer::Route(Matched { table, legs, .. }) if legs.iter().any(|leg| leg.dev == *dev) => {
            format!("{sentence} ({tcp}: {})", table_text(*table))
        }
        _ => format!("{sentence}, whose address it owns ({tcp})"),
    }
}

pub(super) fn source_reason(source: IpAddr, path: &HostPath) -> String {
    format!(
        "owns {source}, the source address of packets to {}{}",
        path.question.to,
        selectors(path)
    )
}

pub(super) fn bound_reason(path: &HostPath, dev: &IfName) -> String {
    let Purpose::Connection(connection) = path.purpose else {
        return format!("is bound to {:?}", path.question.oif);
    };
    let (sentence, ends) = (
        sentence(connection, path, dev),
        connection_text(connection, path),
    );
    format!("{sentence}, to which it is bound ({ends})")
}

/// `is in use: ssh from 10.0.0.9 comes in by rdma3`.
fn sentence(connection: Connection, path: &HostPath, dev: &IfName) -> String {
    let (to, local, remote) = (
        path.question.to,
        connection.local_port,
        connection.remote_port,
    );
    if let Some(service) = service(local) {
        return format!("is in use: {service} from {to} comes in by {dev}");
    }
    match service(remote) {
        Some(service) => format!("is in use: {service} to {to} goes out by {dev}"),
        None => format!("is in use: a connection to {to} goes by {dev}"),
    }
}

/// `TCP from 10.0.0.1:40000 to 10.0.0.9:443`.
fn connection_text(connection: Connection, path: &HostPath) -> String {
    let protocol = match i32::from(connection.protocol) {
        0 => "RDMA",
        IPPROTO_UDP => "UDP",
        _ => "TCP",
    };
    let own = path.question.from.map(|from| match connection.local_port {
        0 => format!(" from {from}"),
        port => format!(" from {}", SocketAddr::new(from, port)),
    });
    format!(
        "{protocol}{} to {}",
        own.unwrap_or_default(),
        SocketAddr::new(path.question.to, connection.remote_port)
    )
}

/// What besides the destination decided the route.
fn selectors(path: &HostPath) -> String {
    let question = &path.question;
    let from = question.from.map(|from| format!(" from {from}"));
    // Of those out on the internet, only questions about a VRF name a link.
    let vrf = question.oif.map(|_| " in a VRF".to_owned());
    let mark = (question.mark != 0).then(|| format!(" with mark {:#x}", question.mark));
    let tos = (question.tos != 0).then(|| format!(" with TOS {:#x}", question.tos));
    let uid = question.uid.map(|uid| format!(" of user {uid}"));
    let flow = question
        .flow
        .map(|f| format!(" of protocol {} to port {}", f.protocol, f.remote_port));
    from.into_iter()
        .chain(vrf)
        .chain(mark)
        .chain(tos)
        .chain(uid)
        .chain(flow)
        .collect()
}

/// `via 10.0.0.254 dev rdma3, table 100`.
fn route_text(matched: &Matched, leg: &Leg) -> String {
    let via = leg
        .gateway
        .map(|gateway| format!("via {gateway} "))
        .unwrap_or_default();
    format!("{via}dev {}, {}", leg.dev, table_text(matched.table))
}

fn table_text(table: u32) -> String {
    match table {
        TABLE_MAIN => "table main".to_owned(),
        number => format!("table {number}"),
    }
}
