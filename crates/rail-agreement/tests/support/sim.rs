//! Nodes of one job in one thread, with a clock that jumps to the next thing that happens. Any node
//! may die after any of its steps, and come back.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use rail_agreement::Value;
use rail_agreement::node::{Action, Agreement, Event, Node, Setup, Stage};

/// A node in the simulation.
struct Part {
    node: Node,
    begins: Duration,
    deadline: Duration,
    /// What it does next, and until when it waits for that.
    act: Option<Action>,
    until: Duration,
    steps: usize,
    dies_after: Option<usize>,
    ended: Ended,
    dead: bool,
}

/// How a node ended, and when; none: it died.
pub type Ended = Option<(Duration, Result<Agreement>)>;

/// A stranger that writes to the store.
pub type Stranger = Box<dyn FnMut(&mut BTreeMap<String, Value>)>;

/// What a node says to what is proposed.
pub type Judge = Box<dyn Fn(&Agreement) -> Result<()>>;

/// All nodes, their store and their clock.
pub struct Sim {
    pub store: BTreeMap<String, Value>,
    pub now: Duration,
    parts: Vec<Part>,
    /// What decides who goes first: a small generator.
    seed: u64,
    /// Called before each step with the store: a stranger.
    pub stranger: Option<Stranger>,
    /// Whether what is written outlives the job.
    pub persists: bool,
    /// What nodes say to what is proposed.
    pub judge: Judge,
    /// A rank that takes so long to say it.
    pub slow: Option<(u32, Duration)>,
}

impl Sim {
    pub fn new(seed: u64) -> Sim {
        let (store, judge) = (BTreeMap::new(), Box::new(|_: &Agreement| Ok(())));
        let (now, parts, stranger) = (Duration::ZERO, Vec::new(), None);
        Sim {
            store,
            now,
            parts,
            seed: seed | 1,
            stranger,
            judge,
            persists: false,
            slow: None,
        }
    }

    /// Adds a node; its number.
    pub fn add(
        &mut self,
        setup: Setup,
        begins: u64,
        patience: u64,
        dies_after: Option<usize>,
    ) -> usize {
        let (rank, begins) = (setup.rank, Duration::from_millis(begins));
        let early = if rank == 0 {
            (patience / 10).min(2000)
        } else {
            0
        };
        let deadline = begins + Duration::from_millis(patience - early);
        let node = Node::new(setup, self.persists).unwrap();
        let (act, until) = (None, begins);
        self.parts.push(Part {
            node,
            begins,
            deadline,
            act,
            until,
            steps: 0,
            dies_after,
            ended: None,
            dead: false,
        });
        self.parts.len() - 1
    }

    /// Runs until all have ended or died; how each ended, and when.
    pub fn run(mut self) -> (Vec<Ended>, BTreeMap<String, Value>) {
        for _ in 0..200_000 {
            let open = |p: &Part| p.ended.is_none() && !p.dead;
            let ready: Vec<usize> = (0..self.parts.len())
                .filter(|i| open(&self.parts[*i]) && self.ready(*i))
                .collect();
            if ready.is_empty() {
                let next = self
                    .parts
                    .iter()
                    .filter(|p| open(p))
                    .map(|p| p.until.max(p.begins))
                    .min();
                let Some(next) = next else {
                    return (
                        self.parts.into_iter().map(|p| p.ended).collect(),
                        self.store,
                    );
                };
                assert!(next >= self.now, "the clock runs backwards");
                self.now = next.max(self.now + Duration::from_micros(1));
                continue;
            }
            self.seed = self
                .seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let chosen = ready[(self.seed >> 33) as usize % ready.len()];
            if let Some(stranger) = &mut self.stranger {
                stranger(&mut self.store);
            }
            self.step(chosen);
        }
        panic!("the nodes never come to an end");
    }

    fn all_there(&self, keys: &[String]) -> bool {
        keys.iter().all(|key| self.store.contains_key(key))
    }

    fn ready(&self, i: usize) -> bool {
        let part = &self.parts[i];
        match &part.act {
            None => self.now >= part.begins,
            Some(Action::Await { keys, .. }) => self.all_there(keys) || self.now >= part.until,
            Some(Action::Judge(_)) => self.now >= part.until,
            Some(_) => true,
        }
    }

    fn step(&mut self, i: usize) {
        let event = match self.parts[i].act.take() {
            None => Event::Begin,
            Some(
                Action::Put(pairs)
                | Action::Commit(pairs)
                | Action::PutUnconfirmed(pairs)
                | Action::PutBestEffort(pairs),
            ) => {
                self.store.extend(pairs);
                Event::Done
            }
            Some(Action::Delete(keys)) => {
                keys.iter().for_each(|key| drop(self.store.remove(key)));
                Event::Done
            }
            Some(Action::Judge(agreement)) => Event::Judged((self.judge)(&agreement)),
            Some(Action::Read(keys) | Action::TryRead(keys)) => Event::Read(
                keys.iter()
                    .map(|key| self.store.get(key).cloned())
                    .collect(),
            ),
            Some(Action::Await { keys, stage, .. }) => {
                match keys.iter().map(|k| self.store.get(k).cloned()).collect() {
                    Some(values) => Event::Values(values),
                    None if self.now >= self.parts[i].deadline && stage != Stage::Farewell => {
                        Event::Late
                    }
                    None => Event::Missing,
                }
            }
            Some(Action::End(_)) => unreachable!(),
        };
        let (now, slow, part) = (self.now, self.slow, &mut self.parts[i]);
        part.steps += 1;
        if part.dies_after.is_some_and(|n| part.steps > n) {
            part.dead = true;
            return;
        }
        match part.node.next(event) {
            Action::End(result) => part.ended = Some((now, result)),
            act => {
                part.until = match &act {
                    Action::Await {
                        slice,
                        stage: Stage::Farewell,
                        ..
                    } => now + *slice,
                    Action::Await { slice, .. } => part.deadline.min(now + *slice),
                    Action::Judge(a) => slow
                        .filter(|(rank, _)| *rank == a.rank)
                        .map_or(now, |(_, time)| now + time),
                    _ => now,
                };
                part.act = Some(act);
            }
        }
    }
}
