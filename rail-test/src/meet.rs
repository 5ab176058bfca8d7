//! The rounds of a test over the store, as one node goes through them.
//!
//! All nodes put, then get, the same number of times in each round, also those that pause: over PMI
//! each get is a barrier of all.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use rail_agreement::{Store, Value, message};
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::addresses::{Own, Refusal};
use crate::asked::LOST;
pub use crate::asked::{Asked, Cross, Keys, Wish, farewell};
use crate::card::{self, Card};
use crate::gather;
use crate::node::Node;
use crate::outcome::Told;
use crate::report::Findings;
use crate::transport::{Far, Fault, LaneId, Outcome, Transport, Why};
use crate::verdict::Verdict;

/// Rank 0's own wish; on other nodes that of rank 0, and not their own.
pub fn wish(
    store: &mut dyn Store,
    keys: &Keys,
    rank: u32,
    own: Wish,
    until: Instant,
) -> Result<Wish> {
    let key = keys.wish();
    if rank == 0 {
        let value = message::encode(&own)?;
        store
            .put(&[(key.clone(), value)])
            .class(ErrorClass::Disagreed, LOST)?;
    }
    let found = store
        .get(&[key], until)
        .class(ErrorClass::Disagreed, LOST)?;
    let value = found.and_then(|values| values.into_iter().next());
    let value = value.ok_or_else(|| {
        ErrorClass::Disagreed.error("missing rank 0: it has not said in time what to test")
    })?;
    message::parse(&value).class(ErrorClass::Disagreed, "what rank 0 asks for cannot be used")
}

/// How it ended, and on rank 0 all that was found.
#[derive(Debug)]
pub struct Ended {
    pub verdict: Verdict,
    pub findings: Option<Findings>,
    /// What this node itself saw.
    pub told: Told,
}

/// Tests all pairs of this node and reads the results of all nodes. `watch` gets each event.
pub fn test(
    store: &mut dyn Store,
    asked: &Asked,
    transport: &mut dyn Transport,
    watch: &mut dyn FnMut(&str),
) -> Result<Ended> {
    let mut node = Node {
        asked,
        store,
        keys: Keys::new(&asked.run, &asked.digest),
        written: Vec::new(),
        begun: Instant::now(),
        known: BTreeMap::new(),
        absent: Vec::new(),
    };
    let result = all_rounds(&mut node, transport, watch);
    transport.close();
    // Keys that stay behind are in no one's way, and the other error says more.
    let written = std::mem::take(&mut node.written);
    let deleted = node.store.delete(&written);
    let ended = result?;
    deleted.class(ErrorClass::Disagreed, LOST)?;
    Ok(ended)
}

fn all_rounds(
    node: &mut Node,
    transport: &mut dyn Transport,
    watch: &mut dyn FnMut(&str),
) -> Result<Ended> {
    let asked = node.asked;
    let mtus = transport.rails().iter().map(|rail| rail.2).collect();
    let mut told = Told::new(asked.host.clone(), mtus);
    for round in 0..asked.schedule.rounds() {
        let partner = asked.schedule.partner(round, asked.rank);
        let with = partner.map_or("a pause".to_owned(), |rank| format!("with rank {rank}"));
        watch(&format!(
            "round {} of {}: {with}",
            round + 1,
            asked.schedule.rounds()
        ));
        let outcomes = one_round(node, transport, round, partner)?;
        if let Some(partner) = partner {
            for (lane, outcome) in asked.lanes(round).into_iter().zip(outcomes) {
                told.add(partner, lane, outcome);
            }
        }
    }
    told.moved = transport.moved();
    let pairs = told.encode()?.into_iter().enumerate();
    let pairs = pairs.map(|(part, value)| (node.keys.told(asked.rank, part), value));
    let pairs = pairs.collect();
    node.put(pairs)?;
    let (verdict, findings) = gather::end(node, watch)?;
    Ok(Ended {
        verdict,
        findings,
        told,
    })
}

fn one_round(
    node: &mut Node,
    transport: &mut dyn Transport,
    round: u32,
    partner: Option<u32>,
) -> Result<Vec<Outcome>> {
    let asked = node.asked;
    let lanes = asked.lanes(round);
    let opened = match partner {
        Some(_) => transport.open(&lanes),
        None => Vec::new(),
    };
    let mut card = Card {
        rails: transport.rails(),
        lanes: BTreeMap::new(),
    };
    for (lane, end) in lanes.iter().zip(&opened) {
        if let Ok(end) = end {
            card.lanes.insert(*lane, *end);
        }
    }
    let parts = card.encode(lanes.len())?.into_iter().enumerate();
    let parts = parts.map(|(part, value)| (node.keys.card(round, asked.rank, part), value));
    let parts = parts.collect();
    node.put(parts)?;
    // A partner that was not there once is waited for no more.
    let other = partner.filter(|rank| !node.absent.contains(rank));
    let from = other.unwrap_or(asked.rank);
    let count = card::parts(asked.rails.len(), lanes.len());
    let keys: Vec<String> = (0..count)
        .map(|part| node.keys.card(round, from, part))
        .collect();
    let values = node.get(&keys, node.until(round))?;
    let far = match (partner, other, values) {
        (Some(_), Some(other), Some(values)) => far_ends(node, &lanes, &card, other, &values),
        (partner, other, _) => {
            node.absent.extend(partner.and(other));
            lanes.iter().map(|_| Err(Fault::of(Why::Absent))).collect()
        }
    };
    let mut faults: Vec<Option<Fault>> = Vec::new();
    let mut ends = Vec::new();
    for (n, far) in far.into_iter().enumerate() {
        let own = opened.get(n).and_then(|end| end.as_ref().err()).copied();
        faults.push(own.or(far.as_ref().err().copied()));
        ends.push(far.ok().filter(|_| own.is_none()));
    }
    if partner.is_some() {
        for (fault, found) in faults.iter_mut().zip(transport.connect(&ends)) {
            *fault = fault.or(found);
        }
    }
    // Nothing is sent before the other end can take it: an HCA repeats a packet after seconds.
    node.put(vec![(node.keys.ready(round, asked.rank), b"1".to_vec())])?;
    let other = partner.filter(|rank| !node.absent.contains(rank));
    let key = node.keys.ready(round, other.unwrap_or(asked.rank));
    let is_ready = node.get(&[key], node.until(round))?.is_some();
    let ran = match other {
        Some(_) if is_ready => transport.run(),
        other => {
            node.absent.extend(other);
            Vec::new()
        }
    };
    let mut outcomes = Vec::new();
    for (n, fault) in faults.into_iter().enumerate() {
        let ran = ran.get(n).copied().flatten();
        outcomes.push(match (fault, ran) {
            (Some(fault), _) => Outcome { sent: Err(fault) },
            (None, Some(outcome)) => outcome,
            (None, None) => Outcome {
                sent: Err(Fault::of(Why::Absent)),
            },
        });
    }
    Ok(outcomes)
}

/// The other end of each lane, or why it is not contacted.
fn far_ends(
    node: &mut Node,
    lanes: &[LaneId],
    own: &Card,
    partner: u32,
    values: &[Value],
) -> Vec<Result<Far, Fault>> {
    let all = |why: Why| lanes.iter().map(|_| Err(Fault::of(why))).collect();
    let is_right = match lanes.len() > own.rails.len() {
        true => |_: LaneId| true,
        false => LaneId::is_straight,
    };
    let Ok(card) = Card::parse(values, own.rails.len(), is_right) else {
        return all(Why::Refused);
    };
    let earlier = node.known.get(&partner).map(Vec::as_slice);
    if card.contradicts(earlier).is_some() {
        return all(Why::Refused);
    }
    let mut ends = Vec::new();
    for lane in lanes {
        ends.push(far_end(&node.asked.own, *lane, own, &card));
    }
    let gids = card.rails.iter().map(|rail| rail.gid()).collect();
    node.known.insert(partner, gids);
    ends
}

fn far_end(own: &Own, lane: LaneId, mine: &Card, card: &Card) -> Result<Far, Fault> {
    let refused = Fault::of(Why::Refused);
    let rail = mine.rails.get(usize::from(lane.0)).ok_or(refused)?;
    let theirs = card.rails.get(usize::from(lane.1)).ok_or(refused)?;
    let end = card.lanes.get(&lane.turned());
    let end = end.ok_or(Fault::of(Why::NoFarEnd))?;
    // InfiniBand without global addresses has LIDs alone, which are of its own fabric.
    let is_by_lid = rail.1 != 0 && theirs.1 != 0;
    let refusal = own.refuse(rail.gid(), theirs.gid());
    if let Some(refusal) = refusal.filter(|_| !is_by_lid) {
        return Err(Fault::of(match refusal {
            Refusal::OtherFamily => Why::OtherFamily,
            Refusal::OwnAddress => Why::OwnAddress,
            Refusal::NoRail => Why::NoRail,
        }));
    }
    Ok(Far {
        rail: theirs.clone(),
        lane: *end,
    })
}
