//! What a node publishes for a round: its rails, and its end of each lane. In parts, each below the
//! limit of a value in the store.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use anyhow::{Result, ensure};
use rail_agreement::{Value, message};
use serde::{Deserialize, Serialize};

use crate::transport::{LaneEnd, LaneId, RailEnd};

/// Rails and lanes in one part: at most 75 and 70 bytes each.
const EACH: usize = 24;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    rails: Vec<RailEnd>,
    lanes: Vec<(u8, u8, u32, u32, u32, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    pub rails: Vec<RailEnd>,
    pub lanes: BTreeMap<LaneId, LaneEnd>,
}

/// How many parts a card of so many rails and lanes has: both ends know it before they read.
pub fn parts(rails: usize, lanes: usize) -> usize {
    rails.max(lanes).div_ceil(EACH).max(1)
}

impl Card {
    /// In as many parts as a card of all `lanes` has, whether or not all have an end.
    pub fn encode(&self, lanes: usize) -> Result<Vec<Value>> {
        let ends: Vec<_> = self.lanes.iter().collect();
        let mut values = Vec::new();
        for n in 0..parts(self.rails.len(), lanes) {
            let mut part = Part {
                rails: slice(&self.rails, n).to_vec(),
                lanes: Vec::new(),
            };
            for (id, end) in slice(&ends, n) {
                let end = (id.0, id.1, end.queue_pair, end.packet, end.key, end.address);
                part.lanes.push(end);
            }
            values.push(message::encode(&part)?);
        }
        Ok(values)
    }

    /// A card of a node with so many rails. The error ends a sentence about the node.
    pub fn parse(values: &[Value], rails: usize, is_right: fn(LaneId) -> bool) -> Result<Card> {
        let mut card = Card::default();
        for value in values {
            let part: Part = message::parse(value)?;
            let most = part.rails.len().max(part.lanes.len());
            ensure!(most <= EACH, "a part has {most} entries");
            card.rails.extend(part.rails);
            for (own, theirs, queue_pair, packet, key, address) in part.lanes {
                let id = LaneId(own, theirs);
                let is_known = usize::from(own.max(theirs)) < rails && is_right(id);
                ensure!(is_known, "it has a lane that is no part of the test");
                ensure!(
                    queue_pair > 1 && queue_pair < 1 << 24 && packet < 1 << 24,
                    "a number of a queue pair or packet is out of range"
                );
                let end = LaneEnd {
                    queue_pair,
                    packet,
                    key,
                    address,
                };
                ensure!(card.lanes.insert(id, end).is_none(), "it has a lane twice");
            }
        }
        ensure!(
            card.rails.len() == rails,
            "it has {} rails, not {rails}",
            card.rails.len()
        );
        for RailEnd(_, _, mtu, _) in &card.rails {
            ensure!(*mtu <= 5, "there is no MTU of number {mtu}");
        }
        Ok(card)
    }

    /// Whether two rails have one address, or a rail has another than in an earlier card.
    pub fn contradicts(&self, earlier: Option<&[Ipv6Addr]>) -> Option<&'static str> {
        let gids: Vec<Ipv6Addr> = self.rails.iter().map(RailEnd::gid).collect();
        let mut seen = Vec::new();
        for gid in gids.iter().filter(|gid| !gid.is_unspecified()) {
            if seen.contains(gid) {
                return Some("two of its rails have one address");
            }
            seen.push(*gid);
        }
        match earlier.is_some_and(|earlier| earlier != gids) {
            true => Some("its rails have other addresses than in an earlier round"),
            false => None,
        }
    }
}

fn slice<T>(all: &[T], n: usize) -> &[T] {
    let end = all.len().min((n + 1) * EACH);
    all.get(n * EACH..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rail_agreement::MAX_VALUE;

    use super::*;

    fn card(rails: u8, cross: bool) -> Card {
        let mut card = Card::default();
        for own in 0..rails {
            let mac = "aa:bb:cc:dd:ee:ff".parse().unwrap();
            let gid = Ipv6Addr::from(u128::MAX - u128::from(own));
            card.rails.push(RailEnd(gid, u16::MAX, 5, Some(mac)));
            for theirs in 0..rails {
                if own == theirs || cross {
                    let end = LaneEnd {
                        queue_pair: 0xff_ffff,
                        packet: 0xff_ffff,
                        key: u32::MAX,
                        address: u64::MAX,
                    };
                    card.lanes.insert(LaneId(own, theirs), end);
                }
            }
        }
        card
    }

    fn any(_: LaneId) -> bool {
        true
    }

    #[test]
    fn the_largest_cards_fit_and_are_read_again() {
        for (rails, cross) in [(1, false), (8, true), (16, true), (64, false)] {
            let card = card(rails, cross);
            let values = card.encode(card.lanes.len()).unwrap();
            assert_eq!(values.len(), parts(card.rails.len(), card.lanes.len()));
            let longest = values.iter().map(Vec::len).max().unwrap();
            assert!(longest <= MAX_VALUE, "{longest}");
            assert_eq!(Card::parse(&values, rails.into(), any).unwrap(), card);
        }
    }

    #[test]
    fn wrong_cards_are_refused() {
        let good = r#"{"rails":[["2001:db8::1",0,3,null]],"lanes":[[0,0,17,1,2,3]]}"#;
        let parse = |text: &str| Card::parse(&[text.as_bytes().to_vec()], 1, LaneId::is_straight);
        assert_eq!(parse(good).unwrap().lanes.len(), 1);
        let wrong = [
            ("[0,0,17,", "[0,1,17,"),
            ("[0,0,17,", "[1,1,17,"),
            ("[0,0,17,", "[0,0,1,"),
            ("[0,0,17,", "[0,0,16777216,"),
            ("17,1,", "17,16777216,"),
            ("[[0,0,17,1,2,3]]", "[[0,0,17,1,2,3],[0,0,18,1,2,3]]"),
            (",3,null", ",6,null"),
            (",3,null]]", ",3,null],[\"::1\",0,3,null]]"),
            ("\"lanes\"", "\"more\":1,\"lanes\""),
            ("2001:db8::1", "example.org"),
        ];
        for (from, to) in wrong {
            let text = good.replace(from, to);
            assert_ne!(text, good);
            assert!(parse(&text).is_err(), "{text}");
        }
        assert!(Card::parse(&[], 1, any).is_err());
    }

    #[test]
    fn a_card_that_contradicts_itself_or_an_earlier_one_shows() {
        let mut card = card(2, false);
        assert_eq!(card.contradicts(None), None);
        let gids: Vec<Ipv6Addr> = card.rails.iter().map(RailEnd::gid).collect();
        assert_eq!(card.contradicts(Some(&gids)), None);
        assert!(card.contradicts(Some(&gids[..1])).is_some());
        card.rails[1].0 = card.rails[0].0;
        assert!(card.contradicts(None).is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(values: Vec<Vec<u8>>) {
            let _ = Card::parse(&values, 3, any);
        }
    }
}
