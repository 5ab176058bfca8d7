//! How rank 0 makes of all offers what it proposes.

use super::refusing::no_rail;
use super::{Leader, State};
use crate::message::{Proposal, clipped};
use crate::node::{Act, Agreement, Slices};
use crate::rail::{Common, common};
use crate::{Digest, Nonce, Offer, Rail, RailKey, Value};

impl Leader {
    /// Reads all offers, and proposes what they have in common.
    pub(super) fn propose(&mut self, values: &[Value]) -> Act {
        self.offers = vec![self.setup.offer.clone()];
        for (rank, value) in self.others().zip(values) {
            match Offer::parse(value) {
                Ok(offer) => self.offers.push(offer),
                Err(e) => return self.refuse(values, format!("what rank {rank} published cannot be used: {e:#}")),
            }
        }
        let all: Vec<(u32, Offer)> = self.others().zip(self.offers.iter().skip(1).cloned()).collect();
        if let Some(why) = self.hopeless(&all).filter(|_| self.offers.iter().any(|o| o.refuses.is_some())) {
            return self.abort(why);
        }
        let (own, nodes) = (self.setup.offer.policy, self.setup.nodes());
        for (rank, offer) in self.offers.iter().enumerate() {
            if offer.nodes != nodes {
                return self
                    .abort(format!("{} (rank {rank}) counts {} nodes, rank 0 {nodes}", offer.host, offer.nodes));
            }
            if offer.policy != own {
                return self.abort(format!("{} (rank {rank}) has {}, rank 0 {own}", offer.host, offer.policy));
            }
        }
        let common = common(&self.offers);
        if common.rails.is_empty() {
            return self.abort(no_rail(&common.lost));
        }
        let agreement = self.draft(common);
        self.state = State::Judging(Box::new(agreement.clone()));
        Act::Judge(Box::new(agreement))
    }

    /// What is agreed on if all say yes.
    fn draft(&self, common: Common) -> Agreement {
        let (run, offer, nodes) = (&self.setup.run, &self.setup.offer, self.setup.nodes());
        let nonces = Digest::of_nonces(self.offers.iter().map(|o| &o.nonce));
        let rail = |key: &RailKey| Some(Rail(key.clone(), offer.device(key)?.clone()));
        Agreement {
            run: run.clone(),
            rank: 0,
            nodes,
            policy: offer.policy,
            digest: Digest::of_result(run, nodes, offer.policy, &nonces, &common.rails),
            nonces,
            rails: common.rails.iter().filter_map(rail).collect(),
            lost: common.lost,
            way: None,
        }
    }

    /// Asks all others.
    pub(super) fn ask(&mut self, agreement: Agreement) -> Act {
        self.slices = Slices::from(250);
        let proposal = Proposal::Rails {
            turn: self.turn,
            rails: agreement.rails.iter().map(|Rail(key, _)| key.clone()).collect(),
            nonces: agreement.nonces.clone(),
            digest: agreement.digest.clone(),
            lost: agreement.lost.iter().map(|line| clipped(line, 512)).collect(),
        };
        self.agreement = Some(agreement);
        match proposal.print() {
            Ok(value) => {
                let pairs = self.address(&value);
                self.put(State::Proposing, pairs)
            }
            Err(e) => self.abort(format!("proposing: {e:#}")),
        }
    }

    /// Rank 0 cannot do with what all have: it tells them, and ends with its own reason.
    pub(super) fn decline(&mut self, own: anyhow::Error) -> Act {
        let why = format!("{} refused: {}", self.called(0), clipped(&format!("{own:#}"), 512));
        self.own = Some(own);
        self.abort(why)
    }

    /// A message for every node whose offer was read.
    pub(super) fn address(&mut self, value: &Value) -> Vec<(String, Value)> {
        let nonces: Vec<(u32, Nonce)> =
            self.others().zip(self.offers.iter().skip(1).map(|o| o.nonce.clone())).collect();
        nonces.into_iter().map(|(rank, nonce)| (self.proposal_key(rank, nonce), value.clone())).collect()
    }

    /// Where that attempt of a rank looks next.
    pub(super) fn proposal_key(&mut self, rank: u32, nonce: Nonce) -> String {
        let Some(slot) = self.told.get_mut(rank as usize) else { return String::new() };
        let n = slot.as_ref().filter(|(before, _)| *before == nonce).map_or(0, |(_, n)| n + 1);
        let key = self.setup.run.proposal(&self.setup.offer.nonce, rank, &nonce, n);
        *slot = Some((nonce, n));
        key
    }
}
