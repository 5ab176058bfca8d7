//! Who tests with whom, in which round. Each node computes its own partner, so that no node needs a
//! list of all pairs, and all nodes come to the same pairs.

use std::fmt;
use std::str::FromStr;

use anyhow::{bail, ensure};

/// The most rounds of `random:K`.
const MOST_RANDOM: u32 = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pattern {
    /// Each node with the next one, and with the one half of all nodes on.
    #[default]
    Ring,
    /// Each node with each other.
    All,
    /// That many times, each node with one that chance has chosen.
    Random(u32),
}

impl FromStr for Pattern {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "ring" => Ok(Pattern::Ring),
            None if text == "all" => Ok(Pattern::All),
            Some(("random", count)) => {
                let count: u32 = count.parse()?;
                ensure!(
                    (1..=MOST_RANDOM).contains(&count),
                    "{text:?}: 1 to {MOST_RANDOM} rounds"
                );
                Ok(Pattern::Random(count))
            }
            _ => bail!("{text:?} is none of ring, all, random:K"),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Ring => f.write_str("ring"),
            Pattern::All => f.write_str("all"),
            Pattern::Random(count) => write!(f, "random:{count}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    pattern: Pattern,
    nodes: u32,
    /// Equal on all nodes, and different in each run.
    seed: u64,
}

impl Schedule {
    pub fn new(pattern: Pattern, nodes: u32, seed: u64) -> Schedule {
        Schedule {
            pattern,
            nodes,
            seed,
        }
    }

    pub fn pattern(&self) -> Pattern {
        self.pattern
    }

    pub fn rounds(&self) -> u32 {
        match self.pattern {
            _ if self.nodes < 2 => 0,
            Pattern::Ring => self.steps().map(|step| step.rounds()).sum(),
            Pattern::All => self.even() - 1,
            Pattern::Random(count) => count,
        }
    }

    /// With whom this node tests in a round; `None`: it pauses.
    pub fn partner(&self, round: u32, rank: u32) -> Option<u32> {
        if rank >= self.nodes || round >= self.rounds() {
            return None;
        }
        match self.pattern {
            Pattern::Ring => {
                let (step, round) = self.step(round)?;
                step.partner(round, rank)
            }
            Pattern::All => self.tournament(round, rank),
            Pattern::Random(_) => self.by_chance(round, rank),
        }
    }

    /// Whether a round is with a node's first partner: in a ring those rounds in which each node
    /// tests with its neighbours.
    pub fn is_first(&self, round: u32) -> bool {
        match self.pattern {
            Pattern::Ring => self.step(round).is_some_and(|(step, _)| step.step == 1),
            Pattern::All | Pattern::Random(_) => round == 0,
        }
    }

    fn steps(&self) -> impl Iterator<Item = Step> + use<> {
        let nodes = self.nodes;
        let half = nodes / 2;
        let far = (half > 1).then_some(half);
        std::iter::once(1)
            .chain(far)
            .map(move |step| Step { nodes, step })
    }

    fn step(&self, round: u32) -> Option<(Step, u32)> {
        let mut before = 0;
        for step in self.steps() {
            if round < before + step.rounds() {
                return Some((step, round - before));
            }
            before += step.rounds();
        }
        None
    }

    /// Where the number of nodes is odd, a place without a node is added.
    fn even(&self) -> u32 {
        self.nodes + self.nodes % 2
    }

    /// The round-robin tournament by the circle: the last one stays, all others turn.
    fn tournament(&self, round: u32, rank: u32) -> Option<u32> {
        let last = self.even() - 1;
        let opposite = |rank: u32| (round + last - rank) % last;
        let partner = if rank == last {
            // Who would meet himself: two times x is the round.
            u32::try_from(u64::from(round) * u64::from(last.div_ceil(2)) % u64::from(last)).ok()?
        } else if opposite(rank) == rank {
            last
        } else {
            opposite(rank)
        };
        (partner < self.nodes).then_some(partner)
    }

    fn by_chance(&self, round: u32, rank: u32) -> Option<u32> {
        let mut order: Vec<u32> = (0..self.nodes).collect();
        let mut chance = self.seed ^ (u64::from(round) << 32);
        for at in (1..order.len()).rev() {
            let other = usize::try_from(next(&mut chance) % (at as u64 + 1)).ok()?;
            order.swap(at, other);
        }
        let at = order.iter().position(|other| *other == rank)?;
        order.get(at ^ 1).copied()
    }
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Each node with the one `step` on. The nodes fall into circles; of a circle every other pair
/// takes part in one round, and an odd one needs a third round for its last pair.
#[derive(Clone, Copy, Debug)]
struct Step {
    nodes: u32,
    step: u32,
}

impl Step {
    fn circles(&self) -> u32 {
        let (mut a, mut b) = (self.nodes, self.step);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    }

    fn length(&self) -> u32 {
        self.nodes / self.circles()
    }

    fn rounds(&self) -> u32 {
        match self.length() {
            0 | 1 => 0,
            2 => 1,
            odd if odd % 2 == 1 => 3,
            _ => 2,
        }
    }

    /// In which round a node of a circle tests with the next one.
    fn round_of(&self, place: u32) -> u32 {
        match self.length() {
            odd if odd % 2 == 1 && place == odd - 1 => 2,
            _ => place % 2,
        }
    }

    /// A node's place in its circle, counted in steps: the first of a circle is below all others.
    fn place(&self, rank: u32) -> u32 {
        let circles = self.circles();
        let length = u64::from(self.length());
        let ahead = u64::from((rank - rank % circles) / circles);
        let one = inverse(u64::from(self.step / circles) % length, length);
        // Below the length, which has 32 bits.
        (ahead * one % length) as u32
    }

    fn partner(&self, round: u32, rank: u32) -> Option<u32> {
        let (length, place) = (self.length(), self.place(rank));
        let (nodes, step) = (self.nodes, self.step);
        let (on, back) = ((rank + step) % nodes, (rank + nodes - step) % nodes);
        if length == 2 {
            return (round == 0).then_some(on);
        }
        let before = (place + length - 1) % length;
        match round {
            round if round == self.round_of(place) => Some(on),
            round if round == self.round_of(before) => Some(back),
            _ => None,
        }
    }
}

/// The number that makes 1 with `value`, modulo `length`, where they have no divisor in common.
fn inverse(value: u64, length: u64) -> u64 {
    let (mut old, mut new) = ((length as i64, 0i64), (value as i64, 1i64));
    while new.0 > 0 {
        let times = old.0 / new.0;
        (old, new) = (new, (old.0 - times * new.0, old.1 - times * new.1));
    }
    old.1.rem_euclid(length.max(1) as i64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// All pairs of all rounds; fails where two nodes do not agree on a pair.
    fn pairs(schedule: &Schedule) -> Vec<BTreeSet<(u32, u32)>> {
        let mut rounds = Vec::new();
        for round in 0..schedule.rounds() {
            let mut pairs = BTreeSet::new();
            for rank in 0..schedule.nodes {
                let Some(partner) = schedule.partner(round, rank) else {
                    continue;
                };
                assert_ne!(partner, rank, "round {round}");
                assert_eq!(
                    schedule.partner(round, partner),
                    Some(rank),
                    "round {round}"
                );
                pairs.insert((rank.min(partner), rank.max(partner)));
            }
            rounds.push(pairs);
        }
        rounds
    }

    fn ring(nodes: u32) -> BTreeSet<(u32, u32)> {
        let mut all = BTreeSet::new();
        for rank in 0..nodes {
            for step in [1, nodes / 2] {
                let other = (rank + step) % nodes;
                if other != rank {
                    all.insert((rank.min(other), rank.max(other)));
                }
            }
        }
        all
    }

    proptest! {
        #[test]
        fn a_ring_has_each_pair_once_in_few_rounds(nodes in 1u32..400) {
            let schedule = Schedule::new(Pattern::Ring, nodes, 0);
            prop_assert!(schedule.rounds() <= 6);
            let rounds = pairs(&schedule);
            let all: BTreeSet<_> = rounds.iter().flatten().copied().collect();
            prop_assert_eq!(rounds.iter().map(BTreeSet::len).sum::<usize>(), all.len());
            prop_assert_eq!(all, ring(nodes));
        }

        #[test]
        fn a_tournament_has_each_pair_once(nodes in 2u32..80) {
            let schedule = Schedule::new(Pattern::All, nodes, 0);
            let rounds = pairs(&schedule);
            prop_assert_eq!(rounds.len() as u32, nodes + nodes % 2 - 1);
            let all: BTreeSet<_> = rounds.iter().flatten().copied().collect();
            let many = (nodes * (nodes - 1) / 2) as usize;
            prop_assert_eq!(all.len(), many);
            prop_assert_eq!(rounds.iter().map(BTreeSet::len).sum::<usize>(), many);
        }

        #[test]
        fn chance_gives_all_nodes_but_one_a_partner(
            nodes in 2u32..200,
            seed: u64,
            count in 1u32..5,
        ) {
            let schedule = Schedule::new(Pattern::Random(count), nodes, seed);
            for round in pairs(&schedule) {
                prop_assert_eq!(round.len() as u32, nodes / 2);
            }
        }
    }

    #[test]
    fn large_rings_need_no_more_rounds() {
        for nodes in [1024, 10_000, 16_384] {
            let schedule = Schedule::new(Pattern::Ring, nodes, 0);
            assert_eq!((nodes, schedule.rounds()), (nodes, 3));
            assert!((0..schedule.rounds()).all(|r| schedule.partner(r, 7).is_some()));
        }
        assert_eq!(Schedule::new(Pattern::Ring, 1023, 0).rounds(), 6);
    }

    #[test]
    fn the_first_partners_are_the_neighbours_of_a_ring() {
        let schedule = Schedule::new(Pattern::Ring, 8, 0);
        let first: Vec<bool> = (0..schedule.rounds())
            .map(|r| schedule.is_first(r))
            .collect();
        assert_eq!(first, [true, true, false]);
    }

    #[test]
    fn patterns_are_read_as_they_are_printed() {
        for text in ["ring", "all", "random:3"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for text in ["", "random", "random:0", "random:65", "ring:2", "star"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }
}
