//! Who has published, and what all of them have so far: for people who wait, or wonder.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use serde::Serialize;

use super::message::{self, Verdict, ranks};
use super::rail::{Common, common};
use super::{MAX_NODES, Offer, RailKey, RunId, Store};

/// What is in the store of a run at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gathering {
    /// The run.
    pub run: RunId,
    /// How many nodes there are to be.
    pub nodes: u32,
    /// Those that have published, by rank. Without rank 0 nobody has.
    pub published: Vec<Published>,
    /// Ranks that have come, and wait for rank 0.
    pub waiting: Vec<u32>,
    /// Ranks of which there is nothing.
    pub missing: Vec<u32>,
    /// Ranks whose word cannot be used, each with the reason.
    pub unusable: Vec<(u32, String)>,
    /// The rails that all of the published ones have, in rank 0's order.
    pub rails: Vec<RailKey>,
    /// What some of them lack: a line each.
    pub lost: Vec<String>,
    /// How rank 0 has ended it, where it has: rank 0 may begin again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

/// A node's own word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Published {
    /// Its rank.
    pub rank: u32,
    /// What it has, and what it lacks.
    pub offer: Offer,
}

impl Gathering {
    /// Looks, and changes nothing.
    pub fn look(store: &mut dyn Store, run: &RunId, nodes: u32) -> Result<Gathering> {
        if !(1..=MAX_NODES).contains(&nodes) {
            return Err(ErrorClass::Usage.error(format!("{nodes} nodes: there are 1 to {MAX_NODES}")));
        }
        let mut seen = Gathering {
            run: run.clone(),
            nodes,
            published: Vec::new(),
            waiting: Vec::new(),
            missing: Vec::new(),
            unusable: Vec::new(),
            rails: Vec::new(),
            lost: Vec::new(),
            ended: None,
        };
        let zero = store.read(&[run.leader()])?.pop().flatten();
        seen.hear(0, zero.as_deref(), false);
        let others: Vec<u32> = (1..nodes).collect();
        let here = store.read(&others.iter().map(|rank| run.here(*rank)).collect::<Vec<_>>())?;
        let leader = seen.published.first().map(|p| p.offer.nonce.clone());
        if let Some(leader) = &leader {
            let over = store.read(&[run.over(leader)])?.pop().flatten();
            seen.ended = over.and_then(|value| message::parse::<Verdict>(&value).ok()?.ended());
        }
        let values = match leader {
            Some(leader) => store.read(&others.iter().map(|rank| run.offer(&leader, *rank)).collect::<Vec<_>>())?,
            None => vec![None; others.len()],
        };
        for ((rank, here), value) in others.into_iter().zip(here).zip(values) {
            seen.hear(rank, value.as_deref(), here.is_some());
        }
        let offers: Vec<Offer> = seen.published.iter().map(|p| p.offer.clone()).collect();
        let Common { rails, lost } = common(&offers);
        Ok(Gathering { rails, lost, ..seen })
    }

    fn hear(&mut self, rank: u32, value: Option<&[u8]>, here: bool) {
        match value.map(Offer::parse) {
            Some(Ok(offer)) => self.published.push(Published { rank, offer }),
            Some(Err(e)) => self.unusable.push((rank, format!("{e:#}"))),
            None if here => self.waiting.push(rank),
            None => self.missing.push(rank),
        }
    }

    /// Whether nobody is waited for any more.
    pub fn complete(&self) -> bool {
        self.published.len() == self.nodes as usize
    }

    /// The table rail by node, where the nodes that lack a rail stand for the whole row, and who is not there.
    pub fn lines(&self) -> Vec<String> {
        let mut lines =
            vec![format!("run {}: {} of {} nodes have published", self.run, self.published.len(), self.nodes)];
        if !self.missing.is_empty() {
            lines.push(format!("missing: {}", ranks(&self.missing)));
        }
        if !self.waiting.is_empty() {
            lines.push(format!("waiting for rank 0: {}", ranks(&self.waiting)));
        }
        let refusals = self.published.iter().filter_map(|p| Some((p.rank, &p.offer.host, p.offer.refuses.as_ref()?)));
        lines.extend(refusals.map(|(rank, host, why)| format!("{host} (rank {rank}) refuses: {why}")));
        lines.extend(self.ended.iter().map(|how| format!("rank 0 has ended this: {how}")));
        lines.extend(self.unusable.iter().map(|(rank, why)| format!("rank {rank} cannot be used: {why}")));
        lines.extend(self.rails.iter().map(|rail| format!("{rail}: on all of them")));
        lines.extend(self.lost.iter().cloned());
        lines
    }
}
