//! Which links the host uses, as the kernel answers.

mod sock_diag;
mod storage;
mod tunnels;
mod uses;
mod wireguard;
mod xfrm;

use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use nix::errno::Errno;
use nix::libc::{EPERM, IPPROTO_UDP};
use rdma_model::ids::HcaName;
use rdma_model::snapshot::{
    Answer, Connection, HostPaths, JobAddresses, Netdev, Question, RdmaUse, Snapshot,
};
use rdma_netlink::raw::RTM_GETROUTE;
use rdma_netlink::route_lookup::{self, Known};
use rdma_netlink::socket::KernelSocket;

use crate::disk::open::{self, Links};
use crate::kernel::rdma::{Rdma, errno};
use crate::select::protected_ifaces::{Facts, Inquiry, Selectors, Socket};
use sock_diag::Sock;
pub(super) use sock_diag::{Sockets, connected};

const NETLINK_ROUTE: isize = 0;

/// Where name servers are written: systemd-resolved writes itself into the first, and those that it
/// asks into the second. NetworkManager with a resolver of its own has those that it was given in
/// the third.
const RESOLV_CONF: [&str; 3] = [
    "/etc/resolv.conf",
    "/run/systemd/resolve/resolv.conf",
    "/run/NetworkManager/no-stub-resolv.conf",
];

/// More than any resolver reads.
const LARGEST: u64 = 1 << 20;

/// Asks the kernel of the calling thread's namespace, which is the host's.
pub(super) fn observe(
    host: &Snapshot,
    job: &JobAddresses,
    connected: io::Result<Sockets>,
) -> HostPaths {
    let mut socket = match KernelSocket::open(NETLINK_ROUTE) {
        Ok(socket) => socket,
        Err(e) => {
            return HostPaths {
                not_asked: vec![format!("route netlink: {e}")],
                ..HostPaths::default()
            };
        }
    };
    let known = Known::new(host);
    let mut inquiry = Inquiry::new(host, job, facts(&mut socket, host, connected));
    loop {
        let questions = inquiry.questions();
        if questions.is_empty() {
            return inquiry.paths();
        }
        for question in questions {
            let answer = lookup(&mut socket, &question, &known);
            inquiry.answer(question, answer);
        }
    }
}

/// What is known of the host's uses before a route is asked for.
fn facts(socket: &mut KernelSocket, host: &Snapshot, connected: io::Result<Sockets>) -> Facts {
    let mut facts = Facts::default();
    name_servers(host, &mut facts);
    storage::servers(Path::new("/sys"), host, &mut facts);
    facts.rdma = facts.known("what of this host uses RDMA devices", rdma_uses());
    sockets(host, connected, &mut facts);
    facts.ipsec = match xfrm::ends() {
        // Who may not ask may not move a NIC.
        Err(e) if e.raw_os_error() == Some(EPERM) => {
            facts.known("the other ends of IPsec", Err("that takes CAP_NET_ADMIN"))
        }
        ends => facts.known("the other ends of IPsec", ends),
    };
    facts.uses = facts.known("where tc redirects packets to", uses::links(socket, host));
    facts.tunnels = facts.known("the other ends of tunnels", tunnels::tunnels(socket, host));
    facts
}

/// The FIB entry; and of packets that are bound to no address, the one that the kernel chooses.
fn lookup(socket: &mut KernelSocket, question: &Question, known: &Known) -> Answer {
    let answer = route_lookup::answer(
        question,
        socket.ask(RTM_GETROUTE, &route_lookup::message(question)),
        known,
    );
    let Answer::Route(mut matched) = answer else {
        return answer;
    };
    if question.from.is_none() {
        let packet = socket
            .ask(RTM_GETROUTE, &route_lookup::packet_message(question))
            .ok();
        matched.chosen = packet.and_then(|payload| route_lookup::chosen_source(&payload));
    }
    Answer::Route(matched)
}

fn name_servers(host: &Snapshot, facts: &mut Facts) {
    for path in RESOLV_CONF.map(Path::new) {
        match read(path) {
            Ok(text) => facts
                .name_servers
                .extend(text.lines().filter_map(|line| name_server(line, host))),
            Err(e) => facts
                .not_asked
                .push(format!("the name servers of {}: {e:#}", path.display())),
        }
    }
}

/// A file that a container runtime or a user may have put there: nothing else is read, and no end
/// of it is waited for. Comments may be in any encoding: the resolver reads bytes (res_init.c of
/// glibc).
fn read(path: &Path) -> Result<String> {
    let mut text = Vec::new();
    if let Some(file) = open::plain(path, Links::Followed)? {
        file.take(LARGEST).read_to_end(&mut text)?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// `nameserver ADDRESS[%LINK]` (resolv.conf(5)).
fn name_server(line: &str, host: &Snapshot) -> Option<Question> {
    let mut words = line.split_whitespace();
    (words.next()? == "nameserver").then_some(())?;
    address(words.next()?, host)
}

fn link_of<'a>(word: &str, host: &'a Snapshot) -> Option<&'a Netdev> {
    host.netdevs
        .iter()
        .find(|n| n.is_called(word) || word.parse() == Ok(n.ifindex))
}

/// `ADDRESS[%LINK]`, the link by name or number. A link-local address without a link that is here
/// is reached by none.
fn address(word: &str, host: &Snapshot) -> Option<Question> {
    let (address, link) = word
        .split_once('%')
        .map_or((word, None), |(address, link)| (address, Some(link)));
    let to: IpAddr = address.parse().ok()?;
    let oif = link.and_then(|link| Some(link_of(link, host)?.ifindex));
    let is_local = matches!(to, IpAddr::V6(v6) if v6.is_unicast_link_local());
    (oif.is_some() || !is_local).then(|| Question {
        oif,
        ..Question::to(to.to_canonical())
    })
}

/// Connections of the kernel over RDMA devices. No module is loaded to ask: what is not loaded has
/// none.
fn rdma_uses() -> Result<Vec<RdmaUse>> {
    let Some(mut rdma) = Rdma::open_quiet()? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for device in rdma.devices()? {
        let uses = match rdma.kernel_uses(device.index) {
            // It went while we asked; EINVAL is how nldev.c says so.
            Err(e) if errno(&e) == Some(Errno::EINVAL) => continue,
            uses => uses?,
        };
        let hca: HcaName = device.name.parse()?;
        found.extend(uses.into_iter().map(|u| RdmaUse {
            hca: hca.clone(),
            port: u.port,
            user: u.user,
            peer: u.peer,
        }));
    }
    Ok(found)
}

fn sockets(host: &Snapshot, connected: io::Result<Sockets>, facts: &mut Facts) {
    let all = match connected {
        Ok(all) => all,
        Err(e) => {
            let why = format!("the sockets of this host: {e}");
            return facts.not_asked.push(why);
        }
    };
    // The kernel shows marks with CAP_NET_ADMIN alone; they matter where rules look at them.
    if Selectors::of(host).by_mark && all.list.iter().any(|s| s.mark.is_none()) {
        facts.not_asked.push(
            "the marks of sockets, which rules of routing look at: that takes CAP_NET_ADMIN"
                .to_owned(),
        );
    }
    for sock in all.list.iter().filter(|sock| !is_of_lease(sock)) {
        let oif = match sock.oif {
            None if !all.has_links => implied_link(sock, host),
            oif => oif,
        };
        facts.sockets.push(socket(sock, oif));
    }
}

/// Ports of DHCP's clients and servers, and of DHCPv6's (RFC 2131, 4.1; RFC 8415, 7.2).
const LEASES: [(u16, u16); 2] = [(68, 67), (546, 547)];

/// Whether it is a DHCP client's, by which a link's lease is renewed: that is no use of the link.
/// NetworkManager's is connected for as long as the lease lasts.
fn is_of_lease(sock: &Sock) -> bool {
    sock.protocol == IPPROTO_UDP as u8 && LEASES.contains(&(sock.local.1, sock.remote.1))
}

/// The link that a socket must be bound to: the one of a link-local address, and the VRF of its own
/// address.
fn implied_link(sock: &Sock, host: &Snapshot) -> Option<u32> {
    let mut owners = host
        .netdevs
        .iter()
        .filter(|n| n.addresses.iter().any(|a| a.address == sock.local.0));
    let owner = owners.next().filter(|_| owners.next().is_none())?;
    if matches!(sock.remote.0, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        return Some(owner.ifindex);
    }
    let vrf = host.netdev(owner.master.as_ref()?)?;
    vrf.is_vrf().then_some(vrf.ifindex)
}

fn socket(sock: &Sock, oif: Option<u32>) -> Socket {
    let (from, local_port) = sock.local;
    let (to, remote_port) = sock.remote;
    let question = Question {
        to,
        from: Some(from).filter(|from| !from.is_unspecified()),
        oif,
        mark: sock.mark.unwrap_or(0),
        tos: sock.tos,
        uid: Some(sock.uid),
        ..Question::to(to)
    };
    Socket {
        question,
        connection: Connection {
            protocol: sock.protocol,
            local_port,
            remote_port,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn link(
        ifindex: u32,
        name: &str,
        address: &str,
        more: &serde_json::Value,
    ) -> serde_json::Value {
        let mut all = json!({ "name": name, "ifindex": ifindex,
            "addresses": [{ "address": address, "prefix": 64 }] });
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        all
    }

    #[test]
    fn sockets_without_their_links_are_bound_by_their_addresses() {
        let netdevs = json!([
            { "name": "blue", "ifindex": 5, "kind": "vrf" },
            link(6, "r0", "10.0.0.1", &json!({ "master": "blue" })),
            link(7, "r1", "10.1.0.1", &json!({ "master": "br0" })),
            link(8, "r2", "fe80::1", &json!({})),
            link(9, "r3", "fe80::2", &json!({})),
            link(10, "r4", "fe80::2", &json!({})),
        ]);
        let host = Snapshot {
            netdevs: serde_json::from_value(netdevs).unwrap(),
            ..Snapshot::default()
        };
        let bound = |local: &str, remote: &str| {
            let (local, remote) = ((local.parse().unwrap(), 1), (remote.parse().unwrap(), 2));
            implied_link(
                &Sock {
                    protocol: 6,
                    local,
                    remote,
                    oif: None,
                    mark: None,
                    tos: 0,
                    uid: 0,
                },
                &host,
            )
        };
        assert_eq!(bound("10.0.0.1", "10.0.0.9"), Some(5));
        assert_eq!(bound("10.1.0.1", "10.1.0.9"), None);
        assert_eq!(bound("fe80::1", "fe80::9"), Some(8));
        assert_eq!(bound("fe80::2", "fe80::9"), None, "two links have it");
        assert_eq!(bound("10.9.0.1", "10.9.0.9"), None);
    }

    #[test]
    fn name_servers_by_a_link_have_its_number() {
        let netdevs = json!([link(8, "r2", "fe80::1", &json!({ "altnames": ["rail2"] }))]);
        let host = Snapshot {
            netdevs: serde_json::from_value(netdevs).unwrap(),
            ..Snapshot::default()
        };
        let seen = |line: &str| name_server(line, &host).map(|q| (q.to.to_string(), q.oif));
        assert_eq!(
            seen("nameserver fe80::9%r2"),
            Some(("fe80::9".to_owned(), Some(8)))
        );
        assert_eq!(
            seen("nameserver\tfe80::9%rail2 # ours"),
            Some(("fe80::9".to_owned(), Some(8)))
        );
        assert_eq!(
            seen("nameserver fe80::9%8"),
            Some(("fe80::9".to_owned(), Some(8)))
        );
        assert_eq!(
            seen("nameserver ::ffff:10.0.0.53"),
            Some(("10.0.0.53".to_owned(), None))
        );
        assert_eq!(seen("nameserver fe80::9%gone"), None);
        assert_eq!(seen("nameserver fe80::9"), None);
        assert_eq!(seen("search nameserver"), None);
    }
}
