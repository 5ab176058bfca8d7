//! What the kernel is asked to learn which links the host uses.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};

use nix::libc::{IPPROTO_TCP, IPPROTO_UDP};
use rdma_model::ids::IfName;
use rdma_model::snapshot::{
    Answer, Connection, HostPath, HostPaths, JobAddresses, Leg, LinkUse, Purpose, Question,
    RdmaUse, Snapshot, TunnelPath,
};

use super::asking::Asking;
use super::selectors::Selectors;
use super::ways::Ways;
use super::{internet, tun};

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

impl Facts {
    /// What was asked for; without an answer nothing, and the reason is kept.
    pub fn known<T: Default>(&mut self, what: &str, asked: Result<T, impl Display>) -> T {
        asked.unwrap_or_else(|e| {
            self.not_asked.push(format!("{what}: {e:#}"));
            T::default()
        })
    }
}

/// What has to be asked of the kernel about a host, a list at a time: what it answers raises
/// further questions.
pub struct Inquiry<'a> {
    job: &'a JobAddresses,
    facts: Facts,
    ways: Ways<'a>,
    selectors: Selectors,
    asking: Asking,
    paths: HostPaths,
}

impl<'a> Inquiry<'a> {
    pub fn new(host: &'a Snapshot, job: &'a JobAddresses, mut facts: Facts) -> Inquiry<'a> {
        let selectors = Selectors::of(host);
        facts.sockets = distinct(facts.sockets, &selectors);
        facts.sockets.retain(|socket| is_far(socket.question.to));
        Inquiry {
            job,
            facts,
            ways: Ways::of(host),
            selectors,
            asking: Asking::default(),
            paths: HostPaths::default(),
        }
    }

    /// Those that are to be answered next; without any, [`Inquiry::paths`] has all.
    pub fn questions(&mut self) -> Vec<Question> {
        if let Some(paths) = self.known() {
            self.paths = paths;
        }
        self.asking.take_open()
    }

    pub fn answer(&mut self, question: Question, answer: Answer) {
        self.asking.answer(question, answer);
    }

    pub fn paths(self) -> HostPaths {
        self.paths
    }

    /// What follows from the answers so far; nothing where that raises questions.
    fn known(&mut self) -> Option<HostPaths> {
        let mut paths = self.of_host();
        self.is_answered()?;
        paths.extend(follow(&paths, &mut self.asking));
        self.is_answered()?;
        let legs: Vec<Leg> = paths.iter().flat_map(legs).cloned().collect();
        let mut tunnels = Vec::new();
        for tunnel in &self.facts.tunnels {
            tunnels.push(through(tunnel, &legs, &self.selectors, &mut self.asking));
        }
        self.is_answered()?;
        let mut known = HostPaths {
            job: self.job.clone(),
            paths,
            tunnels,
            rdma: self.facts.rdma.clone(),
            uses: self.facts.uses.clone(),
            not_asked: self.facts.not_asked.clone(),
        };
        let tuns = tun::tunnels(self.ways.snapshot, &known, &mut self.asking);
        self.is_answered()?;
        known.tunnels.extend(tuns);
        Some(known)
    }

    fn is_answered(&self) -> Option<()> {
        (!self.asking.waits()).then_some(())
    }

    /// To all that is known before the kernel is asked.
    fn of_host(&mut self) -> Vec<HostPath> {
        let asking = &mut self.asking;
        let job = of_job(self.job).into_iter();
        let mut paths: Vec<HostPath> = job.map(|(purpose, q)| asking.path(purpose, q)).collect();
        paths.extend(internet::ways_out(&self.ways, &self.selectors, asking));
        for server in self.facts.name_servers.iter().filter(|q| is_far(q.to)) {
            for question in queries(server, &self.selectors) {
                paths.push(asking.path(Purpose::NameServer, question));
            }
        }
        for end in self.facts.ipsec.iter().filter(|q| is_far(q.to)) {
            paths.push(asking.path(Purpose::Ipsec, end.clone()));
        }
        for socket in &self.facts.sockets {
            let purpose = Purpose::Connection(socket.connection);
            paths.push(asking.path(purpose, socket.question.clone()));
        }
        paths
    }
}

fn legs(path: &HostPath) -> &[Leg] {
    match &path.answer {
        Answer::Route(matched) => &matched.legs,
        _ => &[],
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
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    let mut todo: Vec<IpAddr> = paths.iter().flat_map(segments).copied().collect();
    while let Some(to) = todo.pop() {
        if seen.insert(to) {
            let path = asking.path(Purpose::Segment, Question::to(to));
            todo.extend(segments(&path));
            found.push(path);
        }
    }
    found
}

fn segments(path: &HostPath) -> &[IpAddr] {
    match &path.answer {
        Answer::Route(matched) => &matched.segments,
        _ => &[],
    }
}

/// Whether packets for it may leave this host. Of its own addresses the kernel says so itself: one
/// may be another machine's on another link, or be sent over the wire.
fn is_far(to: IpAddr) -> bool {
    !to.is_loopback() && !to.is_unspecified()
}

fn queries(server: &Question, selectors: &Selectors) -> Vec<Question> {
    let mut all = vec![server.clone()];
    for protocol in [IPPROTO_UDP, IPPROTO_TCP] {
        let flow = Some(Connection {
            protocol: protocol as u8,
            local_port: 0,
            remote_port: 53,
        });
        all.push(selectors.plain(Question {
            flow,
            ..server.clone()
        }));
    }
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
    facts: &TunnelFacts,
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
        .iter()
        .cloned()
        .chain(by_gateway)
        .map(|q| selectors.plain(q))
        .filter(|q| seen.insert(q.clone()));
    let remotes = ends.map(|q| asking.path(Purpose::Underlay, q)).collect();
    TunnelPath {
        link: facts.link.clone(),
        below: facts.below.clone(),
        remotes,
        unknown: facts.unknown.clone(),
    }
}
