//! Route lookups: rules by priority, then the longest prefix and the lowest metric of a table
//! (fib_rules_lookup in net/core/fib_rules.c, fib_table_lookup in net/ipv4/fib_trie.c). It has no
//! sockets.

use std::cmp::Reverse;
use std::net::IpAddr;

use rdma_model::snapshot::{
    Address, Answer, HostPaths, JobAddresses, Leg, Matched, Netdev, Question, Route, Rule, Snapshot,
};
use rdmaprep::select::protected_ifaces::{Facts, Inquiry};

/// RTN_UNICAST, RTN_LOCAL, RTN_THROW.
const UNICAST: u8 = 1;
const LOCAL: u8 = 2;
const THROW: u8 = 9;
const MAIN: u32 = 254;

pub fn host_paths(host: &Snapshot, job: &JobAddresses) -> HostPaths {
    let mut inquiry = Inquiry::new(host, job, Facts::default());
    loop {
        let questions = inquiry.questions();
        if questions.is_empty() {
            return inquiry.paths();
        }
        for question in questions {
            let answer = answer(host, &question);
            inquiry.answer(question, answer);
        }
    }
}

fn answer(host: &Snapshot, question: &Question) -> Answer {
    let own = |a: &Address| a.address == question.to;
    if host.netdevs.iter().flat_map(|n| &n.addresses).any(own) {
        return Answer::Local;
    }
    let mut rules: Vec<&Rule> = host.rules.iter().filter(|r| fits(r, question)).collect();
    rules.sort_by_key(|r| r.priority);
    let main = rules
        .iter()
        .map(|r| r.priority)
        .filter(|p| *p < 32766)
        .count();
    let tables = rules[..main]
        .iter()
        .map(|r| r.table)
        .chain([MAIN])
        .chain(rules[main..].iter().map(|r| r.table));
    for table in tables {
        let Some(best) = lookup(host, table, question.to) else {
            continue;
        };
        match best.kind {
            THROW => continue,
            LOCAL => return Answer::Local,
            kind if kind > UNICAST => return Answer::Unreachable("a route to nowhere".to_owned()),
            _ => {}
        }
        let legs = best
            .hops
            .iter()
            .filter_map(|h| {
                Some(Leg {
                    dev: h.dev.clone()?,
                    gateway: h.gateway,
                })
            })
            .collect();
        return Answer::Route(Matched {
            table,
            prefix: best.destination,
            metric: best.metric,
            legs,
            segments: Vec::new(),
            preferred: None,
            chosen: None,
        });
    }
    Answer::Unreachable("no route".to_owned())
}

fn fits(rule: &Rule, question: &Question) -> bool {
    let family = if question.to.is_ipv4() { 4 } else { 6 };
    let within = |net: Option<ipnet::IpNet>, ip: Option<IpAddr>| {
        net.is_none_or(|net| ip.is_some_and(|ip| net.contains(&ip)))
    };
    let plain =
        rule.iif.is_none() && rule.oif.is_none() && rule.other.is_empty() && rule.action == 1;
    rule.family == family
        && plain
        && within(rule.source, question.from)
        && within(rule.destination, Some(question.to))
}

fn lookup(host: &Snapshot, table: u32, to: IpAddr) -> Option<&Route> {
    let up = |dev: &Netdev| dev.up;
    let alive = |r: &&Route| {
        r.hops
            .iter()
            .all(|h| h.dev.as_ref().and_then(|d| host.netdev(d)).is_none_or(up))
    };
    let fitting = host
        .routes
        .iter()
        .filter(|r| r.table == table && r.destination.contains(&to))
        .filter(alive);
    fitting.min_by_key(|r| (Reverse(r.destination.prefix_len()), r.metric.unwrap_or(0)))
}
