//! What the kernel is asked to learn which links the host uses. No I/O: who can ask answers each question.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use nix::libc::IPPROTO_TCP;
use rdma_model::ids::{Hex, IfName};
use rdma_model::snapshot::{
    Answer, Connection, HostPath, HostPaths, JobAddresses, Leg, Purpose, Question, RdmaUse, Rule, Snapshot, TunnelPath,
};

use super::defaults::INVERT;
use super::internet;

/// FRA_FWMARK, FRA_FWMASK, FRA_UID_RANGE, FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_DPORT_RANGE (include/uapi/linux/fib_rules.h).
const FRA_FWMARK: u16 = 10;
/// A rule that looks at marks has a mask, and no mark where that is 0 (fib_nl_fill_rule() in net/core/fib_rules.c).
pub(super) const FRA_FWMASK: u16 = 16;
pub(super) const FRA_UID_RANGE: u16 = 20;
pub(super) const FRA_FLOW: [u16; 3] = [22, 23, 24];

/// A socket with another end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// How it is asked for.
    pub question: Question,
    /// What it is.
    pub connection: Connection,
}

/// What the host's own tables tell of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelFacts {
    /// Its name.
    pub link: IfName,
    /// The link that it is tied to.
    pub below: Option<IfName>,
    /// Its other ends.
    pub ends: Vec<Question>,
    /// Whether it sends to the gateway of the route that leads into it.
    pub by_gateway: bool,
    /// Why its other ends are not known.
    pub unknown: Option<String>,
}

impl TunnelFacts {
    /// One of which nothing is known yet.
    pub fn of(link: &IfName) -> TunnelFacts {
        TunnelFacts { link: link.clone(), below: None, ends: Vec::new(), by_gateway: false, unknown: None }
    }
}

/// What is seen of the host before the kernel is asked for routes.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Name servers.
    pub name_servers: Vec<Question>,
    /// Sockets with another end.
    pub sockets: Vec<Socket>,
    /// Tunnels.
    pub tunnels: Vec<TunnelFacts>,
    /// The other ends of IPsec.
    pub ipsec: Vec<Question>,
    /// Connections of the kernel over RDMA devices.
    pub rdma: Vec<RdmaUse>,
    /// What could not be seen, and why.
    pub not_asked: Vec<String>,
}

/// The selectors of FIB rules that a packet of the host's may or may not fit.
pub struct Selectors {
    /// Packets that rules of a family are about.
    pub(super) variants: Vec<(u8, Question)>,
    /// Whether rules look at marks.
    pub by_mark: bool,
    by_uid: bool,
    by_flow: bool,
}

impl Selectors {
    /// Those of these rules.
    pub fn of(rules: &[Rule]) -> Selectors {
        let has = |kinds: &[u16]| rules.iter().any(|r| kinds.iter().any(|k| r.other.contains_key(k)));
        let mut seen = HashSet::new();
        let variants = rules.iter().filter_map(|r| Some((r.family, variant(r)?)));
        let variants = variants.filter(|v| seen.insert(v.clone())).collect();
        Selectors { variants, by_mark: has(&[FRA_FWMASK]), by_uid: has(&[FRA_UID_RANGE]), by_flow: has(&FRA_FLOW) }
    }

    /// A socket's question with no more in it than rules look at: many sockets then have one question.
    pub fn plain(&self, question: Question, connection: Connection) -> Question {
        Question {
            mark: if self.by_mark { question.mark } else { 0 },
            uid: question.uid.filter(|_| self.by_uid),
            // RDMA has no number among the protocols over IP.
            flow: Some(connection).filter(|c| self.by_flow && c.protocol != 0),
            ..question
        }
    }
}

/// A packet that a rule is about, where it looks at marks, types of service, owners, protocols or ports. A negated rule is about all
/// packets but those: of them only the ones are asked about that differ from any other question.
fn variant(rule: &Rule) -> Option<Question> {
    let word = |kind: u16| Some(u32::from_ne_bytes(rule.other.get(&kind)?.0.get(..4)?.try_into().ok()?));
    let port = |kind: u16| Some(u16::from_ne_bytes(rule.other.get(&kind)?.0.get(..2)?.try_into().ok()?));
    let [proto, sport, dport] = FRA_FLOW;
    let protocol = rule.other.get(&proto).and_then(|Hex(bytes)| bytes.first().copied());
    let any = Question::to(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let is_flow = FRA_FLOW.iter().any(|kind| rule.other.contains_key(kind));
    let flow = is_flow.then(|| Connection {
        protocol: protocol.unwrap_or(IPPROTO_TCP as u8),
        local_port: port(sport).unwrap_or(0),
        remote_port: port(dport).unwrap_or(0),
    });
    let mark = word(FRA_FWMARK).unwrap_or(0);
    let question = match rule.flags & INVERT {
        0 => Question { mark, tos: rule.tos, uid: word(FRA_UID_RANGE), flow, ..any.clone() },
        _ => Question { mark: other_mark(rule, mark), uid: other_user(rule), ..any.clone() },
    };
    (question != any).then_some(question)
}

/// A mark that a negated rule is about: packets have none unless one is set.
fn other_mark(rule: &Rule, mark: u32) -> u32 {
    let mask = rule.other.get(&FRA_FWMASK).and_then(|Hex(bytes)| bytes.as_slice().try_into().ok());
    let mask = mask.map_or(u32::MAX, u32::from_ne_bytes);
    let is_about_marks = rule.other.contains_key(&FRA_FWMASK) && mark == 0;
    if is_about_marks { mask & mask.wrapping_neg() } else { 0 }
}

/// A user whom a negated rule is about, where it leaves out root, who asks (struct fib_rule_uid_range).
fn other_user(rule: &Rule) -> Option<u32> {
    let Hex(bytes) = rule.other.get(&FRA_UID_RANGE)?;
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    word(4).filter(|_| word(0) == Some(0))?.checked_add(1).filter(|uid| *uid != u32::MAX)
}

/// The kernel, or what stands for it, with the answers that it has given already.
pub(super) struct Asking<'a> {
    ask: &'a mut dyn FnMut(&Question) -> Answer,
    answered: HashMap<Question, Answer>,
}

impl Asking<'_> {
    fn ask(&mut self, question: &Question) -> Answer {
        if let Some(answer) = self.answered.get(question) {
            return answer.clone();
        }
        let answer = (self.ask)(question);
        self.answered.insert(question.clone(), answer.clone());
        answer
    }

    /// The kernel takes no source that is not this host's; what a socket is bound to may have gone from it.
    fn with_any_source(&mut self, question: &Question) -> Answer {
        match self.ask(question) {
            Answer::Unreachable(_) if question.from.is_some() => self.ask(&Question { from: None, ..question.clone() }),
            answer => answer,
        }
    }

    pub(super) fn path(&mut self, purpose: Purpose, question: Question) -> HostPath {
        let answer = match purpose {
            Purpose::Internet => self.ask(&question),
            _ => self.with_any_source(&question),
        };
        HostPath { purpose, question, answer }
    }
}

/// Asks for everything that the host talks to.
pub fn ask_all(
    host: &Snapshot,
    job: &JobAddresses,
    facts: Facts,
    ask: &mut dyn FnMut(&Question) -> Answer,
) -> HostPaths {
    let mut asking = Asking { ask, answered: HashMap::new() };
    let selectors = Selectors::of(&host.rules);
    let mut paths: Vec<HostPath> = of_job(job).into_iter().map(|(purpose, q)| asking.path(purpose, q)).collect();
    paths.extend(internet::ways_out(host, &selectors, &mut asking));
    let own = Own::of(host);
    let is_far = |q: &Question| own.is_far(q);
    let servers = facts.name_servers.into_iter().filter(is_far);
    paths.extend(servers.map(|q| asking.path(Purpose::NameServer, q)));
    let ends = facts.ipsec.into_iter().filter(is_far);
    paths.extend(ends.map(|q| asking.path(Purpose::Ipsec, q)));
    for socket in distinct(facts.sockets, &selectors) {
        if is_far(&socket.question) {
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
    let tunnels = facts.tunnels.into_iter().map(|tunnel| through(tunnel, &legs, &mut asking)).collect();
    HostPaths { job: job.clone(), paths, tunnels, rdma: facts.rdma, not_asked: facts.not_asked }
}

fn of_job(job: &JobAddresses) -> Vec<(Purpose, Question)> {
    let mut all = Vec::new();
    for peer in &job.peers {
        let own = job.bootstrap.iter().filter(|from| from.is_ipv4() == peer.is_ipv4()).copied().map(Some);
        let sources = [None].into_iter().chain(own);
        all.extend(sources.map(|from| (Purpose::Peer, Question { from, ..Question::to(*peer) })));
    }
    all.extend(job.store.map(|(to, from)| {
        let from = Some(from).filter(|from| from.is_ipv4() == to.is_ipv4());
        (Purpose::Store, Question { from, ..Question::to(to) })
    }));
    all
}

/// The ways to the segments of SRv6 that packets leave for, which may be reached by further segments.
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

/// This host's addresses, with the links that have each.
struct Own(HashMap<IpAddr, Vec<u32>>);

impl Own {
    fn of(host: &Snapshot) -> Own {
        let mut all: HashMap<IpAddr, Vec<u32>> = HashMap::new();
        for netdev in &host.netdevs {
            netdev.addresses.iter().for_each(|a| all.entry(a.address).or_default().push(netdev.ifindex));
        }
        Own(all)
    }

    /// Whether it is another machine's address. A link-local one is this host's on the link alone that has it: another link's
    /// `fe80::1` may be a router's.
    fn is_far(&self, question: &Question) -> bool {
        let to = question.to;
        let special = to.is_loopback() || to.is_unspecified() || to.is_multicast();
        let is_local = matches!(to, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let on = question.oif.filter(|_| is_local);
        let links = self.0.get(&to).map_or(&[][..], Vec::as_slice);
        !special && !links.iter().any(|index| on.is_none_or(|on| *index == on))
    }
}

/// Sockets with one question each; of those that have the same, the one that says most.
fn distinct(sockets: Vec<Socket>, selectors: &Selectors) -> Vec<Socket> {
    let mut best: HashMap<Question, Connection> = HashMap::new();
    for Socket { question, connection } in sockets {
        let plain = selectors.plain(question, connection);
        let known = best.entry(plain).or_insert(connection);
        if rank(connection) < rank(*known) {
            *known = connection;
        }
    }
    let mut all: Vec<Socket> = best.into_iter().map(|(question, connection)| Socket { question, connection }).collect();
    all.sort_by(|a, b| (rank(a.connection), &a.question).cmp(&(rank(b.connection), &b.question)));
    all
}

/// Those that people know by name come first.
fn rank(connection: Connection) -> (u8, Connection) {
    let place = match (super::service(connection.local_port), super::service(connection.remote_port)) {
        (Some(_), _) => 0,
        (None, Some(_)) => 1,
        (None, None) => 2,
    };
    (place, connection)
}

/// The ways to a tunnel's other ends.
fn through(facts: TunnelFacts, legs: &[Leg], asking: &mut Asking) -> TunnelPath {
    let gateways = legs.iter().filter(|leg| facts.by_gateway && leg.dev == facts.link).filter_map(|leg| leg.gateway);
    let mut ends = facts.ends;
    ends.extend(gateways.map(Question::to));
    let mut seen = HashSet::new();
    ends.retain(|end| seen.insert(end.clone()));
    let remotes = ends.into_iter().map(|q| asking.path(Purpose::Underlay, q)).collect();
    TunnelPath { link: facts.link, below: facts.below, remotes, unknown: facts.unknown }
}
