//! What nodes write for one another: JSON on one line, at most [`MAX_VALUE`] bytes. A message with
//! an unknown field is refused.

use std::collections::HashSet;

use anyhow::{Context, Result, anyhow, ensure};
use rdma_model::escape::printable;
use rdma_model::{checked_text, strict_json};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{
    Device, Digest, DroppedRail, MAX_NODES, MAX_RAILS, MAX_VALUE, Nonce, Policy, Rail, RailKey,
    Value,
};

/// Version of all messages. Nodes with different versions do not agree.
pub const VERSION: u32 = 1;

pub const REASON: usize = 512;

checked_text! {
    /// A node's host name, for messages to people: 1 to 64 ASCII letters, digits, `.`, `-`, `_`.
    HostName(s) {
        ensure!(!s.is_empty() && HostName::sanitized(s).0 == s, "{s:?} is no host's name");
    }
}

impl HostName {
    /// From the kernel's host name: other characters become `_`.
    pub fn sanitized(name: &str) -> HostName {
        let mut good = String::new();
        for c in name.chars().take(64) {
            let is_good = c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
            good.push(if is_good { c } else { '_' });
        }
        if good.is_empty() {
            good.push('_');
        }
        HostName(good)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    pub v: u32,
    pub nonce: Nonce,
    pub host: HostName,
    pub nodes: u32,
    pub policy: Policy,
    /// What it has, in its own order.
    pub rails: Vec<Rail>,
    /// Rails that it has and cannot offer; as many as fit.
    #[serde(rename = "lacks")]
    pub dropped: Vec<DroppedRail>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refuses: Option<String>,
}

impl Offer {
    pub fn new(nonce: Nonce, host: HostName, nodes: u32, policy: Policy) -> Offer {
        let (rails, dropped) = (Vec::new(), Vec::new());
        Offer {
            v: VERSION,
            nonce,
            host,
            nodes,
            policy,
            rails,
            dropped,
            refuses: None,
        }
    }

    /// Makes it a refusal: `why` is cut to one line of [`REASON`] bytes.
    pub fn refusing(self, why: &str) -> Offer {
        Offer {
            refuses: Some(clip_line(why, REASON)),
            ..self
        }
    }

    pub fn device(&self, key: &RailKey) -> Option<&Device> {
        self.rails
            .iter()
            .find(|Rail(k, _)| k == key)
            .map(|Rail(_, device)| device)
    }

    pub fn cannot_agree(&self) -> bool {
        self.refuses.is_some() || self.rails.is_empty()
    }

    pub fn lack(&self, key: &RailKey) -> String {
        let found = self.dropped.iter().find(|DroppedRail(k, _)| k == key);
        found.map_or_else(
            || "no such NIC".to_owned(),
            |DroppedRail(_, code)| code.brief(self.policy.family),
        )
    }

    /// The error is what is wrong with the offer, as the end of a sentence.
    pub fn parse(value: &[u8]) -> Result<Offer> {
        let offer: Offer = parse(value)?;
        ensure!(
            offer.v == VERSION,
            "it speaks version {}, this is {VERSION}",
            offer.v
        );
        ensure!(
            (1..=MAX_NODES).contains(&offer.nodes),
            "it counts {} nodes",
            offer.nodes
        );
        offer.check()?;
        Ok(offer)
    }

    /// Checks that it has at most [`MAX_RAILS`] rails, and none of them, nor a device, twice.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.rails.len() <= MAX_RAILS,
            "it has {} rails, {MAX_RAILS} are the most",
            self.rails.len()
        );
        let (mut keys, mut names) = (HashSet::new(), HashSet::new());
        for Rail(key, device) in &self.rails {
            ensure!(keys.insert(key), "two of its NICs are rail {key}");
            ensure!(names.insert(device), "it offers {device} twice");
        }
        Ok(())
    }

    pub fn check_encodable(&self) -> Result<()> {
        self.check()?;
        self.encode().map(drop)
    }

    /// As it is published: dropped rails that do not fit are left out.
    pub fn encode(&self) -> Result<Value> {
        let mut offer = self.clone();
        loop {
            let printed = encode(&offer);
            if printed.is_ok() || offer.dropped.pop().is_none() {
                return printed;
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Proposal {
    Rails {
        turn: u32,
        /// The rails, in the order that all nodes will use.
        rails: Vec<RailKey>,
        nonces: Digest,
        digest: Digest,
        /// Rails that some nodes lack, one line each; as many as fit.
        lost: Vec<String>,
    },
    Abort {
        turn: u32,
        why: String,
    },
}

impl Proposal {
    /// As it is written: lines about lost rails that do not fit are left out.
    pub fn encode(&self) -> Result<Value> {
        let mut proposal = self.clone();
        loop {
            let printed = encode(&proposal);
            let Proposal::Rails { lost, .. } = &mut proposal else {
                return printed;
            };
            if printed.is_ok() || lost.pop().is_none() {
                return printed;
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Ack {
    /// Yes, to the proposal with this digest.
    Yes(Digest),
    No(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Verdict {
    /// All nodes said yes to the proposal with this digest: it is agreed.
    Commit(Digest),
    Abort(String),
    /// A node has restarted: another proposal follows.
    Again,
}

impl Verdict {
    /// How the run ended, for a node that did not take part: one line. `None` if it has not ended.
    pub fn ended(self) -> Option<String> {
        match self {
            Verdict::Commit(_) => Some("all nodes agreed, each as it was then".to_owned()),
            Verdict::Abort(why) => Some(clip_line(&why, REASON)),
            Verdict::Again => None,
        }
    }
}

/// Refuses more than [`MAX_VALUE`] bytes, and fields that this version does not have. The error
/// names such a field, which a stranger may have chosen: it is printable.
pub fn parse<T: DeserializeOwned + Serialize>(value: &[u8]) -> Result<T> {
    ensure!(
        value.len() <= MAX_VALUE,
        "it has {} bytes, {MAX_VALUE} are the most",
        value.len()
    );
    let text = std::str::from_utf8(value).context("it is no text")?;
    strict_json::strict(text)
        .map_err(|e| anyhow!("{}", printable(&e.to_string())))
        .context("it is no message of this version")
}

pub fn encode<T: Serialize>(message: &T) -> Result<Value> {
    let value = serde_json::to_vec(message).context("writing a message")?;
    ensure!(
        value.len() <= MAX_VALUE,
        "a message has {} bytes, {MAX_VALUE} are the most",
        value.len()
    );
    Ok(value)
}

/// Text as one line of at most `most` bytes: control characters become spaces.
pub fn clip_line(text: &str, most: usize) -> String {
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    while line.len() > most {
        line.pop();
    }
    line
}

/// `ranks 4, 7, 9-12`; at most 16 ranks or spans, then `…`.
pub fn ranks(all: &[u32]) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for rank in all {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => spans.push((*rank, *rank)),
        }
    }
    let mut named = Vec::new();
    for (first, last) in spans.iter().take(16) {
        named.push(match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
    }
    let more = if spans.len() > 16 { ", …" } else { "" };
    format!(
        "{} {}{more}",
        if all.len() == 1 { "rank" } else { "ranks" },
        named.join(", ")
    )
}
