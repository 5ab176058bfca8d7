//! What the kernel is asked to learn which links the host uses.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use nix::libc::{IPPROTO_TCP, IPPROTO_UDP};
use rdma_model::ids::IfName;
use rdma_model::snapshot::{
    Answer, Connection, HostPath, HostPaths, JobAddresses, Leg, LinkUse, Purpose, Question,
    RdmaUse, Snapshot, TunnelPath,
};

use super::asking::Asking;
use super::internet;
use super::selectors::Selectors;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    pub question: Question,
    pub connection: Connection,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelFacts {
    pub link: IfName,
    pub below: Option<IfName>,
    /// How its packets are looked up, whatever end they go to.
    pub packets: Question,
    pub ends: Vec<Question>,
    pub by_gateway: bool,
    pub unknown: Option<String>,
}

impl TunnelFacts {
    pub fn towards(&self, to: IpAddr) -> Question {
        Question {
            to,
            from: self
                .packets
                .from
                .filter(|from| from.is_ipv4() == to.is_ipv4()),
            ..self.packets.clone()
        }
    }

    pub fn of(link: &IfName) -> TunnelFacts {
        let packets = Question::to(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        TunnelFacts {
            link: link.clone(),
            below: None,
            packets,
            ends: Vec::new(),
            by_gateway: false,
            unknown: None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub name_servers: Vec<Question>,
    pub sockets: Vec<Socket>,
    pub tunnels: Vec<TunnelFacts>,
    pub ipsec: Vec<Question>,
    pub rdma: Vec<RdmaUse>,
    pub uses: Vec<LinkUse>,
    pub not_asked: Vec<String>,
}

pub fn ask_all(
    host: &Snapshot,
    job: &JobAddresses,
    facts: Facts,
    ask: &mut dyn FnMut(&Question) -> Answer,
) -> HostPaths {
    let mut asking = Asking::new(ask);
    let selectors = Selectors::of(host);
    let mut paths: Vec<HostPath> = of_job(job)
        .into_iter()
        .map(|(purpose, q)| asking.path(purpose, q))
        .collect();
    paths.extend(internet::ways_out(host, &selectors, &mut asking));
    let servers = facts
        .name_servers
        .into_iter()
        .filter(|q| is_far(q.to))
        .flat_map(|q| queries(q, &selectors));
    paths.extend(servers.map(|q| asking.path(Purpose::NameServer, q)));
    let ends = facts.ipsec.into_iter().filter(|q| is_far(q.to));
    paths.extend(ends.map(|q| asking.path(Purpose::Ipsec, q)));
    for socket in distinct(facts.sockets, &selectors) {
        if is_far(socket.question.to) {
            paths.push(asking.path(Purpose::Connection(socket.connection), socket.question));
        }
    }
    let segments = follow(&paths, &mut asking);
    paths.extend(segments);
    let legs = |path: &HostPath| match &path.answer {
        Answer::Route(matched) => matched.legs.clone(),
        _ => Vec::new(),
    };
    let legs: Vec<Leg> = paths.iter().flat_map(legs).collect();
    let tunnels = facts
        .tunnels
        .into_iter()
        .map(|tunnel| through(tunnel, &legs, &selectors, &mut asking))
        .collect();
    HostPaths {
        job: job.clone(),
        paths,
        tunnels,
        rdma: facts.rdma,
        uses: facts.uses,
        not_asked: facts.not_asked,
    }
}

fn of_job(job: &JobAddresses) -> Vec<(Purpose, Question)> {
    let mut all = Vec::new();
    for peer in &job.peers {
        let own = job
            .bootstrap
            .iter()
            .filter(|from| from.is_ipv4() == peer.is_ipv4())
            .copied()
            .map(Some);
        let sources = [None].into_iter().chain(own);
        all.extend(sources.map(|from| {
            (
                Purpose::Peer,
                Question {
                    from,
                    ..Question::to(*peer)
                },
            )
        }));
    }
    all.extend(job.store.map(|(to, from)| {
        let from = Some(from).filter(|from| from.is_ipv4() == to.is_ipv4());
        (
            Purpose::Store,
            Question {
                from,
                ..Question::to(to)
            },
        )
    }));
    all
}

/// The ways to the segments of SRv6 that packets leave for, which may be reached by further
/// segments.
fn follow(paths: &[HostPath], asking: &mut Asking) -> Vec<HostPath> {
    let of = |path: &HostPath| match &path.answer {
        Answer::Route(matched) => matched.segments.clone(),
        _ => Vec::new(),
    };
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    let mut todo: Vec<IpAddr> = paths.iter().flat_map(of).collect();
    while let Some(to) = todo.pop() {
        if seen.insert(to) {
            let path = asking.path(Purpose::Segment, Question::to(to));
            todo.extend(of(&path));
            found.push(path);
        }
    }
    found
}

/// Whether packets for it may leave this host. Of its own addresses the kernel says so itself: one
/// may be another machine's on another link, or be sent over the wire.
fn is_far(to: IpAddr) -> bool {
    !to.is_loopback() && !to.is_unspecified()
}

fn queries(server: Question, selectors: &Selectors) -> Vec<Question> {
    let to_port = |protocol: i32| {
        let flow = Some(Connection {
            protocol: protocol as u8,
            local_port: 0,
            remote_port: 53,
        });
        selectors.plain(Question {
            flow,
            ..server.clone()
        })
    };
    let mut all = vec![server.clone(), to_port(IPPROTO_UDP), to_port(IPPROTO_TCP)];
    all.dedup();
    all
}

/// Sockets with one question each; of those that have the same, the one that says most.
fn distinct(sockets: Vec<Socket>, selectors: &Selectors) -> Vec<Socket> {
    let mut best: HashMap<Question, Connection> = HashMap::new();
    for Socket {
        question,
        connection,
    } in sockets
    {
        let plain = selectors.plain(Question {
            flow: Some(connection),
            ..question
        });
        let known = best.entry(plain).or_insert(connection);
        if rank(connection) < rank(*known) {
            *known = connection;
        }
    }
    let mut all: Vec<Socket> = best
        .into_iter()
        .map(|(question, connection)| Socket {
            question,
            connection,
        })
        .collect();
    all.sort_by(|a, b| (rank(a.connection), &a.question).cmp(&(rank(b.connection), &b.question)));
    all
}

/// Those that people know by name come first.
fn rank(connection: Connection) -> (u8, Connection) {
    let place = match (
        super::service(connection.local_port),
        super::service(connection.remote_port),
    ) {
        (Some(_), _) => 0,
        (None, Some(_)) => 1,
        (None, None) => 2,
    };
    (place, connection)
}

fn through(
    facts: TunnelFacts,
    legs: &[Leg],
    selectors: &Selectors,
    asking: &mut Asking,
) -> TunnelPath {
    let gateways = legs
        .iter()
        .filter(|leg| facts.by_gateway && leg.dev == facts.link)
        .filter_map(|leg| leg.gateway);
    let by_gateway: Vec<Question> = gateways.map(|to| facts.towards(to)).collect();
    let mut seen = HashSet::new();
    let ends = facts
        .ends
        .into_iter()
        .chain(by_gateway)
        .map(|q| selectors.plain(q))
        .filter(|q| seen.insert(q.clone()));
    let remotes = ends.map(|q| asking.path(Purpose::Underlay, q)).collect();
    TunnelPath {
        link: facts.link,
        below: facts.below,
        remotes,
        unknown: facts.unknown,
    }
}
