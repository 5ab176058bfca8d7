//! What a node says of its pairs when it has tested all: in parts, each below the limit of a value
//! in the store.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use rail_agreement::message::HostName;
use rail_agreement::{Value, message};
use serde::{Deserialize, Serialize};

use crate::pairs::Schedule;
use crate::transport::{Fault, LaneId, Measured, Moved, Outcome, Why};

/// Entries in one part, of at most 95 bytes each.
const EACH: usize = 36;
/// The most counters that a node reports.
const COUNTERS: usize = 128;
/// The longest name of a counter.
const NAME: usize = 40;

/// One direction of a pair on one rail: partner, rail, median, 99th percentile, rate, why, number.
type Straight = (u32, u8, u32, u32, u32, Option<Why>, u32);
/// Partner, rail, and bits of the partner's rails: those that were tried, and those reached.
type Cross = (u32, u8, u64, u64);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum Entry {
    #[serde(rename = "s")]
    Straight(Straight),
    #[serde(rename = "c")]
    Cross(Cross),
    #[serde(rename = "m")]
    Moved(Moved),
    /// Of each rail in order, its active MTU.
    #[serde(rename = "u")]
    Mtu(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    host: HostName,
    parts: usize,
    entries: Vec<Entry>,
}

/// All that one node found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub host: HostName,
    /// By partner and rail.
    pub straight: BTreeMap<(u32, u8), Outcome>,
    pub cross: BTreeMap<(u32, u8), Reached>,
    pub moved: Vec<Moved>,
    pub mtus: Vec<u8>,
}

/// Bits of a partner's rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    pub tried: u64,
    pub reached: u64,
}

/// The most parts that a node has.
pub fn most_parts(rounds: u32, rails: usize) -> usize {
    (rounds as usize * rails * 2 + rails + COUNTERS)
        .div_ceil(EACH)
        .max(1)
}

impl Told {
    pub fn new(host: HostName, mtus: Vec<u8>) -> Told {
        Told {
            host,
            straight: BTreeMap::new(),
            cross: BTreeMap::new(),
            moved: Vec::new(),
            mtus,
        }
    }

    pub fn add(&mut self, partner: u32, lane: LaneId, outcome: Outcome) {
        if lane.is_straight() {
            self.straight.insert((partner, lane.0), outcome);
            return;
        }
        let reached = self.cross.entry((partner, lane.0)).or_default();
        reached.tried |= 1 << lane.1;
        if outcome.sent.is_ok() {
            reached.reached |= 1 << lane.1;
        }
    }

    pub fn encode(&self) -> Result<Vec<Value>> {
        let mut entries: Vec<Entry> = self.mtus.iter().map(|mtu| Entry::Mtu(*mtu)).collect();
        for ((partner, rail), outcome) in &self.straight {
            let (good, fault) = match outcome.sent {
                Ok(good) => (good, None),
                Err(fault) => (Measured::default(), Some(fault)),
            };
            let number = fault.map_or(0, |fault| fault.number);
            entries.push(Entry::Straight((
                *partner,
                *rail,
                good.median_ns,
                good.p99_ns,
                good.rate,
                fault.map(|fault| fault.why),
                number,
            )));
        }
        for ((partner, rail), bits) in &self.cross {
            entries.push(Entry::Cross((*partner, *rail, bits.tried, bits.reached)));
        }
        let moved = self.moved.iter().filter(|moved| moved.1.len() <= NAME);
        entries.extend(moved.take(COUNTERS).cloned().map(Entry::Moved));
        let parts = entries.len().div_ceil(EACH).max(1);
        let mut values = Vec::new();
        for n in 0..parts {
            let end = entries.len().min((n + 1) * EACH);
            let part = Part {
                host: self.host.clone(),
                parts,
                entries: entries.get(n * EACH..end).unwrap_or_default().to_vec(),
            };
            values.push(message::encode(&part)?);
        }
        Ok(values)
    }

    /// How many parts there are, by the first one.
    pub fn parts(first: &Value, most: usize) -> Result<usize> {
        let part: Part = message::parse(first)?;
        ensure!(
            (1..=most).contains(&part.parts),
            "it counts {} parts, {most} are the most",
            part.parts
        );
        Ok(part.parts)
    }

    /// Of a node by its rank: it speaks of partners that it had, and of rails that there are. The
    /// error ends a sentence about the node.
    pub fn parse(values: &[Value], rank: u32, schedule: &Schedule, rails: usize) -> Result<Told> {
        let mut partners = BTreeSet::new();
        partners.extend((0..schedule.rounds()).filter_map(|r| schedule.partner(r, rank)));
        let is_known =
            |partner: u32, rail: u8| partners.contains(&partner) && usize::from(rail) < rails;
        let mut told: Option<Told> = None;
        for value in values {
            let part: Part = message::parse(value)?;
            ensure!(part.parts == values.len(), "its parts count differently");
            let told = told.get_or_insert_with(|| Told::new(part.host.clone(), Vec::new()));
            ensure!(part.host == told.host, "its parts name two hosts");
            for entry in part.entries {
                told.take(entry, rails, &is_known)?;
            }
        }
        let told = told.ok_or_else(|| anyhow::anyhow!("it has no parts"))?;
        ensure!(told.mtus.len() == rails, "it names other rails");
        Ok(told)
    }

    fn take(
        &mut self,
        entry: Entry,
        rails: usize,
        is_known: &dyn Fn(u32, u8) -> bool,
    ) -> Result<()> {
        const STRANGE: &str = "it speaks of a pair that it has not tested";
        match entry {
            Entry::Straight((partner, rail, median_ns, p99_ns, rate, why, number)) => {
                ensure!(is_known(partner, rail), STRANGE);
                let good = Measured {
                    median_ns,
                    p99_ns,
                    rate,
                };
                let sent = why.map_or(Ok(good), |why| Err(Fault { why, number }));
                let before = self.straight.insert((partner, rail), Outcome { sent });
                ensure!(before.is_none(), "it speaks of a pair twice");
            }
            Entry::Cross((partner, rail, tried, reached)) => {
                ensure!(is_known(partner, rail), STRANGE);
                let all = u64::MAX.checked_shr(64 - rails as u32).unwrap_or(0);
                ensure!(tried & !all == 0 && reached & !tried == 0, STRANGE);
                let bits = Reached { tried, reached };
                let before = self.cross.insert((partner, rail), bits);
                ensure!(before.is_none(), "it speaks of a pair twice");
            }
            Entry::Moved(moved) => {
                let is_name = moved.1.len() <= NAME
                    && moved
                        .1
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b == b'_');
                ensure!(
                    usize::from(moved.0) < rails && is_name && self.moved.len() < COUNTERS,
                    "it names a counter that there is not"
                );
                self.moved.push(moved);
            }
            Entry::Mtu(mtu) => {
                ensure!(mtu <= 5 && self.mtus.len() < rails, "it names other rails");
                self.mtus.push(mtu);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rail_agreement::MAX_VALUE;

    use super::*;
    use crate::pairs::Pattern;

    /// Of rank 1, with the longest numbers that there are.
    fn told(schedule: &Schedule, rails: u8) -> Told {
        let host = HostName::sanitized(&"n".repeat(64));
        let mut told = Told::new(host, vec![5; rails.into()]);
        let fault = Fault {
            why: Why::WrongNeighbour,
            number: u32::MAX,
        };
        let good = Measured {
            median_ns: u32::MAX,
            p99_ns: u32::MAX,
            rate: u32::MAX,
        };
        for round in 0..schedule.rounds() {
            let Some(partner) = schedule.partner(round, 1) else {
                continue;
            };
            for rail in 0..rails {
                let sent = if rail % 2 == 0 { Ok(good) } else { Err(fault) };
                told.add(partner, LaneId(rail, rail), Outcome { sent });
                let other = (rail + 1) % rails;
                if other != rail {
                    told.add(partner, LaneId(rail, other), Outcome { sent });
                }
            }
        }
        for n in 0..COUNTERS {
            let name = "n".repeat(NAME);
            told.moved
                .push(Moved((n % usize::from(rails)) as u8, name, u64::MAX));
        }
        told
    }

    #[test]
    fn the_longest_words_fit_and_are_read_again() {
        for (nodes, rails, pattern) in [
            (2, 1, Pattern::Ring),
            (64, 8, Pattern::All),
            (5, 64, Pattern::Ring),
        ] {
            let schedule = Schedule::new(pattern, nodes, 7);
            let told = told(&schedule, rails);
            let values = told.encode().unwrap();
            let longest = values.iter().map(Vec::len).max().unwrap();
            assert!(longest <= MAX_VALUE, "{longest}");
            let most = most_parts(schedule.rounds(), rails.into());
            assert_eq!(Told::parts(&values[0], most).unwrap(), values.len());
            assert_eq!(
                Told::parse(&values, 1, &schedule, rails.into()).unwrap(),
                told
            );
        }
    }

    #[test]
    fn a_node_cannot_speak_of_others() {
        let schedule = Schedule::new(Pattern::Ring, 8, 0);
        let good = concat!(
            r#"{"host":"a","parts":1,"entries":[{"u":3},{"s":[2,0,1,1,1,null,0]},"#,
            r#"{"c":[2,0,1,1]},{"m":[0,"n",1]}]}"#
        );
        let parse = |text: &str| Told::parse(&[text.as_bytes().to_vec()], 1, &schedule, 1);
        parse(good).unwrap();
        let wrong = [
            (r#""s":[2,"#, r#""s":[4,"#),
            (r#""s":[2,"#, r#""s":[1,"#),
            (r#""s":[2,0,"#, r#""s":[2,1,"#),
            (r#""c":[2,0,1,1]"#, r#""c":[2,0,3,1]"#),
            (r#""c":[2,0,1,1]"#, r#""c":[2,0,0,1]"#),
            (r#"{"u":3}"#, r#"{"u":6}"#),
            (r#"{"u":3},"#, ""),
            (r#"{"u":3},"#, r#"{"u":3},{"u":3},"#),
            (r#"[0,"n",1]"#, r#"[1,"n",1]"#),
            (r#"[0,"n",1]"#, r#"[0,"n n",1]"#),
            (r#""parts":1"#, r#""parts":2"#),
            (
                r#"{"s":[2,0,1,1,1,null,0]}"#,
                r#"{"s":[2,0,1,1,1,null,0]},{"s":[2,0,1,1,1,null,0]}"#,
            ),
        ];
        for (from, to) in wrong {
            let text = good.replace(from, to);
            assert_ne!(text, good);
            assert!(parse(&text).is_err(), "{text}");
        }
        let many = good.replace(r#""parts":1"#, r#""parts":9000"#).into_bytes();
        assert!(Told::parts(&many, most_parts(3, 1)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(values: Vec<Vec<u8>>) {
            let schedule = Schedule::new(Pattern::Ring, 4, 0);
            let _ = Told::parse(&values, 1, &schedule, 2);
            for value in &values {
                let _ = Told::parts(value, 9);
            }
        }
    }
}
