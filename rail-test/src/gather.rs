//! The end of a test: rank 0 reads what all have told, finds causes, and writes the verdict, which
//! all others wait for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use rail_agreement::message::ranks;
use rail_agreement::{Store, Value};
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::asked::{self, LOST};
use crate::card;
use crate::node::Node;
use crate::outcome::{Told, most_parts};
use crate::report::Findings;
use crate::verdict::Verdict;

/// Missing ranks that are named while they are waited for.
const NAMED: usize = 8;
/// Between two words to who waits.
const SLICE: Duration = Duration::from_secs(5);

pub(crate) fn end(
    node: &mut Node,
    watch: &mut dyn FnMut(&str),
) -> Result<(Verdict, Option<Findings>)> {
    // As long as the slowest node may take.
    let until = node.begun + node.asked.round * (node.asked.schedule.rounds() + 1);
    match node.asked.rank {
        0 => lead(node, until, watch).map(|(verdict, found)| (verdict, Some(found))),
        _ => follow(node, until + asked::farewell(node.asked.nodes)).map(|verdict| (verdict, None)),
    }
}

fn follow(node: &mut Node, until: Instant) -> Result<Verdict> {
    let keys = [node.keys.verdict()];
    let found = node
        .store
        .get(&keys, until)
        .class(ErrorClass::Disagreed, LOST)?;
    let value = found.and_then(|values| values.into_iter().next());
    let value = value.ok_or_else(|| {
        ErrorClass::Disagreed.error("missing rank 0: it has not said in time what all found")
    })?;
    // Also of a verdict that is of no use here: rank 0 waits for who has not read it.
    let done = (node.keys.done(node.asked.rank), b"1".to_vec());
    node.store.put_best_effort(&[done]);
    Verdict::parse(&value, node.asked)
        .class(ErrorClass::Disagreed, "what rank 0 said cannot be used")
}

fn lead(
    node: &mut Node,
    until: Instant,
    watch: &mut dyn FnMut(&str),
) -> Result<(Verdict, Findings)> {
    let asked = node.asked;
    let firsts: Vec<String> = (0..asked.nodes)
        .map(|rank| node.keys.told(rank, 0))
        .collect();
    await_all(node.store, &firsts, until, watch)?;
    let firsts = node
        .store
        .read(&firsts)
        .class(ErrorClass::Disagreed, LOST)?;
    let (mut told, mut missing, mut refused) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
    for (rank, first) in (0..asked.nodes).zip(firsts) {
        let Some(first) = first else {
            missing.push(rank);
            continue;
        };
        match told_by(node, rank, first) {
            Ok(all) => drop(told.insert(rank, all)),
            Err(e) => drop(refused.insert(rank, format!("{e:#}"))),
        }
    }
    let found = Findings::new(asked, told, &missing, &refused);
    let verdict = found.verdict();
    let key = node.keys.verdict();
    node.put(vec![(key, verdict.encode()?)])?;
    let until = Instant::now() + asked::farewell(asked.nodes);
    let flushed = node.store.flush(until);
    let others: Vec<u32> = (1..asked.nodes)
        .filter(|rank| !missing.contains(rank))
        .collect();
    let done: Vec<String> = others.iter().map(|rank| node.keys.done(*rank)).collect();
    let mut gone = missing;
    if flushed.class(ErrorClass::Disagreed, LOST)? {
        // Who has not read it by then says so itself, or has ended.
        let _ = node.store.await_readers(&done, until);
        let read = node.store.read(&done).unwrap_or_default();
        let silent = others.iter().zip(read).filter(|(_, word)| word.is_none());
        gone.extend(silent.map(|(rank, _)| *rank));
    }
    node.written.extend(done);
    node.written.push(node.keys.wish());
    for rank in gone {
        let left = left_by(node, rank);
        node.written.extend(left);
    }
    Ok((verdict, found))
}

/// The keys that a node may have left which has ended.
fn left_by(node: &Node, rank: u32) -> Vec<String> {
    let (asked, keys) = (node.asked, &node.keys);
    let mut left = Vec::new();
    for round in 0..asked.schedule.rounds() {
        let parts = card::parts(asked.rails.len(), asked.lanes(round).len());
        left.extend((0..parts).map(|part| keys.card(round, rank, part)));
        left.push(keys.ready(round, rank));
    }
    let parts = most_parts(asked.schedule.rounds(), asked.rails.len());
    left.extend((0..parts).map(|part| keys.told(rank, part)));
    left
}

fn await_all(
    store: &mut dyn Store,
    keys: &[String],
    until: Instant,
    watch: &mut dyn FnMut(&str),
) -> Result<()> {
    loop {
        let slice = until.min(Instant::now() + SLICE);
        if store
            .get(keys, slice)
            .class(ErrorClass::Disagreed, LOST)?
            .is_some()
        {
            return Ok(());
        }
        if Instant::now() >= until {
            return Ok(());
        }
        let missing = store
            .missing(keys, NAMED)
            .class(ErrorClass::Disagreed, LOST)?;
        let missing: Vec<u32> = missing
            .iter()
            .filter_map(|at| u32::try_from(*at).ok())
            .collect();
        watch(&format!(
            "waiting for {} to tell what they found",
            ranks(&missing)
        ));
    }
}

/// All that a node has told; the error ends a sentence about it.
fn told_by(node: &mut Node, rank: u32, first: Value) -> Result<Told> {
    let asked = node.asked;
    let most = most_parts(asked.schedule.rounds(), asked.rails.len());
    let parts = Told::parts(&first, most)?;
    let mut values = vec![first];
    if parts > 1 {
        let keys: Vec<String> = (1..parts).map(|part| node.keys.told(rank, part)).collect();
        let rest = node.store.read(&keys).class(ErrorClass::Disagreed, LOST)?;
        for value in rest {
            values.push(value.ok_or_else(|| anyhow::anyhow!("a part is missing"))?);
        }
    }
    Told::parse(&values, rank, &asked.schedule, asked.rails.len())
}
