//! What of a packet besides its ends decides its route: the selectors of FIB rules, and the types
//! of service of routes.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use nix::libc::IPPROTO_TCP;
use rdma_model::ids::Hex;
use rdma_model::snapshot::{
    Connection, FRA_DPORT_RANGE, FRA_DSCP, FRA_FWMARK, FRA_FWMASK, FRA_IP_PROTO, FRA_SPORT_RANGE,
    FRA_UID_RANGE, INVERT, Question, Route, Rule, Snapshot,
};

const BY_FLOW: [u16; 3] = [FRA_IP_PROTO, FRA_SPORT_RANGE, FRA_DPORT_RANGE];
/// Attributes that select no packet: FRA_GOTO, FRA_FLOW (a realm), FRA_SUPPRESS_IFGROUP,
/// FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_PAD, FRA_PROTOCOL.
const NO_SELECTORS: [u16; 7] = [4, 11, 13, 14, 15, 18, 21];

/// The selectors of FIB rules that a packet of the host's may or may not fit.
pub struct Selectors {
    pub(super) variants: Vec<(u8, Question)>,
    pub by_mark: bool,
    by_tos: bool,
    by_uid: bool,
    by_flow: bool,
}

impl Selectors {
    pub fn of(host: &Snapshot) -> Selectors {
        let kinds: HashSet<&u16> = host.rules.iter().flat_map(|r| r.other.keys()).collect();
        let of_rules = host
            .rules
            .iter()
            .flat_map(|r| variants(r).into_iter().map(|v| (r.family, v)));
        let of_routes = host.routes.iter().filter(|r| r.tos != 0).map(|r| {
            (
                family(r),
                Question {
                    tos: r.tos,
                    ..any()
                },
            )
        });
        let mut seen = HashSet::new();
        let variants = of_rules
            .chain(of_routes)
            .filter(|v| seen.insert(v.clone()))
            .collect();
        let by_tos = kinds.contains(&FRA_DSCP)
            || host.rules.iter().any(|r| r.tos != 0)
            || host.routes.iter().any(|r| r.tos != 0);
        Selectors {
            variants,
            // A rule that looks at marks has a mask, and no mark where that is 0
            // (fib_nl_fill_rule() in net/core/fib_rules.c).
            by_mark: kinds.contains(&FRA_FWMASK),
            by_tos,
            by_uid: kinds.contains(&FRA_UID_RANGE),
            by_flow: BY_FLOW.iter().any(|kind| kinds.contains(kind)),
        }
    }

    /// A question with no more in it than rules look at: many sockets then have one question.
    pub(super) fn plain(&self, question: Question) -> Question {
        Question {
            mark: if self.by_mark { question.mark } else { 0 },
            tos: if self.by_tos { question.tos } else { 0 },
            uid: question.uid.filter(|_| self.by_uid),
            // RDMA has no number among the protocols over IP.
            flow: question
                .flow
                .filter(|flow| self.by_flow && flow.protocol != 0),
            ..question
        }
    }
}

/// Whether a rule looks at what only its attributes have.
pub(super) fn selects_by_attributes(rule: &Rule) -> bool {
    rule.other.keys().any(|kind| !NO_SELECTORS.contains(kind))
}

pub(super) fn family(route: &Route) -> u8 {
    if route.destination.addr().is_ipv4() {
        4
    } else {
        6
    }
}

fn any() -> Question {
    Question::to(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// The first and the last number of a range, each of that many bytes.
fn ends(rule: &Rule, kind: u16, size: usize) -> [Option<u32>; 2] {
    let Some(Hex(bytes)) = rule.other.get(&kind) else {
        return [None, None];
    };
    [bytes.get(..size), bytes.get(size..2 * size)].map(|part| {
        Some(match *part? {
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]),
            _ => return None,
        })
    })
}

fn port(number: Option<u32>) -> u16 {
    number
        .and_then(|port| u16::try_from(port).ok())
        .unwrap_or(0)
}

/// Packets that a rule is about, where it looks at marks, types of service, owners, protocols or
/// ports: of a range its first and its last. A negated rule is about all packets but those, which
/// another rule decides about: both are asked for.
fn variants(rule: &Rule) -> Vec<Question> {
    let [proto, sport, dport] = BY_FLOW;
    let protocol = rule
        .other
        .get(&proto)
        .and_then(|Hex(bytes)| bytes.first().copied());
    let is_flow = BY_FLOW.iter().any(|kind| rule.other.contains_key(kind));
    let (sources, destinations) = (ends(rule, sport, 2), ends(rule, dport, 2));
    let users = ends(rule, FRA_UID_RANGE, 4);
    let mark = ends(rule, FRA_FWMARK, 4)[0].unwrap_or(0);
    let dscp = rule
        .other
        .get(&FRA_DSCP)
        .and_then(|Hex(bytes)| bytes.first())
        .map_or(0, |dscp| dscp << 2);
    let ends = [0, 1].map(|end| Question {
        mark,
        tos: rule.tos | dscp,
        // The range's last may be what stands for no user.
        uid: users[end].filter(|uid| *uid != u32::MAX),
        flow: is_flow.then(|| Connection {
            protocol: protocol.unwrap_or(IPPROTO_TCP as u8),
            local_port: port(sources[end]),
            remote_port: port(destinations[end]),
        }),
        ..any()
    });
    let mut all = ends.to_vec();
    if rule.flags & INVERT != 0 {
        all.push(Question {
            mark: other_mark(rule, mark),
            uid: other_user(users),
            ..any()
        });
    }
    all.retain(|question| *question != any());
    all
}

/// A mark that a negated rule is about: packets have none unless one is set.
fn other_mark(rule: &Rule, mark: u32) -> u32 {
    let mask = rule
        .other
        .get(&FRA_FWMASK)
        .and_then(|Hex(bytes)| bytes.as_slice().try_into().ok());
    let mask = mask.map_or(u32::MAX, u32::from_ne_bytes);
    let is_about_marks = rule.other.contains_key(&FRA_FWMASK) && mark == 0;
    if is_about_marks {
        mask & mask.wrapping_neg()
    } else {
        0
    }
}

/// A user whom a negated rule is about, where it leaves out root, who asks (struct
/// fib_rule_uid_range).
fn other_user([first, last]: [Option<u32>; 2]) -> Option<u32> {
    last.filter(|_| first == Some(0))?
        .checked_add(1)
        .filter(|uid| *uid != u32::MAX)
}
