//! Which nodes have published, and which rails these have in common: read from the store without
//! taking part.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use serde::Serialize;

use super::message::{self, Verdict, ranks};
use super::rail::{CommonRails, common_rails};
use super::{MAX_NODES, Offer, RailKey, RunId, Store};

/// A run as the store shows it at one moment. Programs read it as JSON; field names do not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    pub run: RunId,
    pub nodes: u32,
    /// Nodes whose offer is there, by rank. Without an offer of rank 0 there is none, as the others
    /// publish below its nonce.
    pub published: Vec<Published>,
    /// Ranks that have announced themselves and wait for rank 0.
    pub waiting: Vec<u32>,
    pub missing: Vec<u32>,
    /// Ranks whose offer is invalid, with the reason.
    pub unusable: Vec<(u32, String)>,
    /// The rails that all published offers have, in rank 0's order.
    pub rails: Vec<RailKey>,
    pub lost: Vec<String>,
    /// Rank 0's last verdict, if there is one; rank 0 may have begun again since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Published {
    pub rank: u32,
    pub offer: Offer,
}

impl Status {
    pub fn read(store: &mut dyn Store, run: &RunId, nodes: u32) -> Result<Status> {
        if !(1..=MAX_NODES).contains(&nodes) {
            return Err(
                ErrorClass::Usage.error(format!("{nodes} nodes: there are 1 to {MAX_NODES}"))
            );
        }
        let mut seen = Status {
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
        seen.add(0, zero.as_deref(), false);
        let others: Vec<u32> = (1..nodes).collect();
        let here = store.read(
            &others
                .iter()
                .map(|rank| run.here(*rank))
                .collect::<Vec<_>>(),
        )?;
        let leader = seen.published.first().map(|p| p.offer.nonce.clone());
        if let Some(leader) = &leader {
            let over = store.read(&[run.over(leader)])?.pop().flatten();
            seen.ended = over.and_then(|value| message::parse::<Verdict>(&value).ok()?.ended());
        }
        let values = match leader {
            Some(leader) => store.read(
                &others
                    .iter()
                    .map(|rank| run.offer(&leader, *rank))
                    .collect::<Vec<_>>(),
            )?,
            None => vec![None; others.len()],
        };
        for ((rank, here), value) in others.into_iter().zip(here).zip(values) {
            seen.add(rank, value.as_deref(), here.is_some());
        }
        let offers: Vec<Offer> = seen.published.iter().map(|p| p.offer.clone()).collect();
        let CommonRails { rails, lost } = common_rails(&offers);
        Ok(Status {
            rails,
            lost,
            ..seen
        })
    }

    fn add(&mut self, rank: u32, value: Option<&[u8]>, here: bool) {
        match value.map(Offer::parse) {
            Some(Ok(offer)) => self.published.push(Published { rank, offer }),
            Some(Err(e)) => self.unusable.push((rank, format!("{e:#}"))),
            None if here => self.waiting.push(rank),
            None => self.missing.push(rank),
        }
    }

    pub fn complete(&self) -> bool {
        self.published.len() == self.nodes as usize
    }

    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "run {}: {} of {} nodes have published",
            self.run,
            self.published.len(),
            self.nodes
        )];
        if !self.missing.is_empty() {
            lines.push(format!("missing: {}", ranks(&self.missing)));
        }
        if !self.waiting.is_empty() {
            lines.push(format!("waiting for rank 0: {}", ranks(&self.waiting)));
        }
        let refusals = self
            .published
            .iter()
            .filter_map(|p| Some((p.rank, &p.offer.host, p.offer.refuses.as_ref()?)));
        lines.extend(
            refusals.map(|(rank, host, why)| format!("{host} (rank {rank}) refuses: {why}")),
        );
        lines.extend(
            self.ended
                .iter()
                .map(|how| format!("rank 0 has ended this: {how}")),
        );
        lines.extend(
            self.unusable
                .iter()
                .map(|(rank, why)| format!("rank {rank} cannot be used: {why}")),
        );
        lines.extend(
            self.rails
                .iter()
                .map(|rail| format!("{rail}: on all of them")),
        );
        lines.extend(self.lost.iter().cloned());
        lines
    }
}
