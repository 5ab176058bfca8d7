//! How rank 0 turns all offers into a proposal.

use super::abort::no_common_rail;
use super::{Leader, State};
use crate::events::{Action, Agreement, Backoff};
use crate::message::{Proposal, REASON, clip_line};
use crate::rail::{CommonRails, common_rails};
use crate::{Digest, Nonce, Offer, Rail, Value};

impl Leader {
    pub(super) fn propose(&mut self, values: &[Value]) -> Action {
        self.offers = vec![self.setup.offer.clone()];
        for (rank, value) in self.others().zip(values) {
            match Offer::parse(value) {
                Ok(offer) => self.offers.push(offer),
                Err(e) => {
                    return self.abort_unreadable(
                        values,
                        format!("what rank {rank} published cannot be used: {e:#}"),
                    );
                }
            }
        }
        let all: Vec<(u32, Offer)> = self
            .others()
            .zip(self.offers.iter().skip(1).cloned())
            .collect();
        if let Some(why) = self
            .why_impossible(&all)
            .filter(|_| self.offers.iter().any(|o| o.refuses.is_some()))
        {
            return self.abort(why);
        }
        let (own, nodes) = (self.setup.offer.policy, self.setup.nodes());
        for (rank, offer) in self.offers.iter().enumerate() {
            if offer.nodes != nodes {
                return self.abort(format!(
                    "{} (rank {rank}) counts {} nodes, rank 0 {nodes}",
                    offer.host, offer.nodes
                ));
            }
            if offer.policy != own {
                return self.abort(format!(
                    "{} (rank {rank}) has {}, rank 0 {own}",
                    offer.host, offer.policy
                ));
            }
        }
        let common = common_rails(&self.offers);
        if common.rails.is_empty() {
            return self.abort(no_common_rail(&common.lost));
        }
        let agreement = self.draft(common);
        self.state = State::Judging(Box::new(agreement.clone()));
        Action::Judge(Box::new(agreement))
    }

    fn draft(&self, common: CommonRails) -> Agreement {
        let (run, offer, nodes) = (&self.setup.run, &self.setup.offer, self.setup.nodes());
        let nonces = Digest::of_nonces(self.offers.iter().map(|o| &o.nonce));
        Agreement {
            run: run.clone(),
            rank: 0,
            nodes,
            policy: offer.policy,
            digest: Digest::of_result(run, nodes, offer.policy, &nonces, &common.rails),
            nonces,
            rails: common
                .rails
                .iter()
                .filter_map(|key| Some(Rail(key.clone(), offer.device(key)?.clone())))
                .collect(),
            lost: common.lost,
            store_ifaces: None,
        }
    }

    pub(super) fn send_proposal(&mut self, agreement: Agreement) -> Action {
        self.backoff = Backoff::from_millis(250);
        let proposal = Proposal::Rails {
            turn: self.turn,
            rails: agreement
                .rails
                .iter()
                .map(|Rail(key, _)| key.clone())
                .collect(),
            nonces: agreement.nonces.clone(),
            digest: agreement.digest.clone(),
            lost: agreement
                .lost
                .iter()
                .map(|line| clip_line(line, REASON))
                .collect(),
        };
        self.agreement = Some(agreement);
        match proposal.encode() {
            Ok(value) => {
                let pairs = self.proposal_pairs(&value);
                self.put(State::Proposing, pairs)
            }
            Err(e) => self.abort(format!("proposing: {e:#}")),
        }
    }

    /// The caller refuses the rails: aborts, and ends with the caller's own error.
    pub(super) fn abort_own_refusal(&mut self, own: anyhow::Error) -> Action {
        let why = format!(
            "{} refused: {}",
            self.node_name(0),
            clip_line(&format!("{own:#}"), REASON)
        );
        self.own_refusal = Some(own);
        self.abort(why)
    }

    pub(super) fn proposal_pairs(&mut self, value: &Value) -> Vec<(String, Value)> {
        let nonces: Vec<(u32, Nonce)> = self
            .others()
            .zip(self.offers.iter().skip(1).map(|o| o.nonce.clone()))
            .collect();
        nonces
            .into_iter()
            .map(|(rank, nonce)| (self.proposal_key(rank, nonce), value.clone()))
            .collect()
    }

    pub(super) fn proposal_key(&mut self, rank: u32, nonce: Nonce) -> String {
        let Some(slot) = self.proposed.get_mut(rank as usize) else {
            return String::new();
        };
        let n = slot
            .as_ref()
            .filter(|(before, _)| *before == nonce)
            .map_or(0, |(_, n)| n + 1);
        let key = self
            .setup
            .run
            .proposal(&self.setup.offer.nonce, rank, &nonce, n);
        *slot = Some((nonce, n));
        key
    }
}
