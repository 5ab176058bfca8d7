//! What nodes tell one another: JSON on one line, of at most [`MAX_VALUE`] bytes, with nothing in it that is not expected.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use rdma_model::strict_json;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Device, Digest, Lack, MAX_NODES, MAX_RAILS, MAX_VALUE, Nonce, Policy, Rail, RailKey, Value};

/// Version of all messages. Nodes of different versions do not agree.
pub const VERSION: u32 = 1;

/// A node's name for people: 1 to 64 letters, digits, `.`, `-`, `_`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(String);

impl HostName {
    /// This host's, whatever the kernel says that is.
    pub fn made_from(name: &str) -> HostName {
        let good = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
        let name: String = name.chars().take(64).map(good).collect();
        HostName(if name.is_empty() { "_".to_owned() } else { name })
    }
}

impl FromStr for HostName {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        ensure!(!s.is_empty() && HostName::made_from(s).0 == s, "{s:?} is no host's name");
        Ok(HostName(s.to_owned()))
    }
}

impl TryFrom<String> for HostName {
    type Error = anyhow::Error;
    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> String {
        name.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// What a node publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// [`VERSION`].
    pub v: u32,
    /// This attempt's.
    pub nonce: Nonce,
    /// Who it is, for people.
    pub host: HostName,
    /// How many nodes it was told there are.
    pub nodes: u32,
    /// How it compares.
    pub policy: Policy,
    /// What it has, in its own rail order.
    pub rails: Vec<Rail>,
    /// What it has and cannot use; as much as fits.
    pub lacks: Vec<Lack>,
    /// Why it takes no part at all, where it does not: one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refuses: Option<String>,
}

impl Offer {
    /// What it has on that rail.
    pub fn device(&self, key: &RailKey) -> Option<&Device> {
        self.rails.iter().find(|Rail(k, _)| k == key).map(|Rail(_, device)| device)
    }

    /// Whether nothing can come of it, whatever others have.
    pub fn hopeless(&self) -> bool {
        self.refuses.is_some() || self.rails.is_empty()
    }

    /// Why a rail is not offered.
    pub fn lack(&self, key: &RailKey) -> String {
        let found = self.lacks.iter().find(|Lack(k, _)| k == key);
        found.map_or_else(|| "no such NIC".to_owned(), |Lack(_, code)| code.brief(self.policy.family))
    }

    /// Reads one of a stranger.
    pub fn parse(value: &[u8]) -> Result<Offer> {
        let offer: Offer = parse(value)?;
        ensure!(offer.v == VERSION, "it speaks version {}, this is {VERSION}", offer.v);
        ensure!((1..=MAX_NODES).contains(&offer.nodes), "it counts {} nodes", offer.nodes);
        offer.check()?;
        Ok(offer)
    }

    /// That no rail is there twice.
    pub fn check(&self) -> Result<()> {
        ensure!(self.rails.len() <= MAX_RAILS, "it has {} rails, {MAX_RAILS} are the most", self.rails.len());
        let (mut keys, mut names) = (HashSet::new(), HashSet::new());
        for Rail(key, device) in &self.rails {
            ensure!(keys.insert(key), "two of its NICs are rail {key}");
            ensure!(names.insert(device), "it offers {device} twice");
        }
        Ok(())
    }

    /// That it can be published, as far as this node can tell.
    pub fn fit(&self) -> Result<()> {
        self.check()?;
        self.print().map(drop)
    }

    /// As it is published: reasons that do not fit stay here.
    pub fn print(&self) -> Result<Value> {
        let mut offer = self.clone();
        loop {
            let printed = print(&offer);
            if printed.is_ok() || offer.lacks.pop().is_none() {
                return printed;
            }
        }
    }
}

/// What rank 0 says to a node that has published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Proposal {
    /// These rails.
    Rails {
        /// Which try this is, from 0.
        turn: u32,
        /// In the common order.
        rails: Vec<RailKey>,
        /// [`Digest::of_nonces`].
        nonces: Digest,
        /// [`Digest::of_result`].
        digest: Digest,
        /// What some lack; as much as fits.
        lost: Vec<String>,
    },
    /// Nothing, and why.
    Abort {
        /// Which try this was.
        turn: u32,
        /// One line.
        why: String,
    },
}

impl Proposal {
    /// As it is written: what does not fit of the remarks is left out.
    pub fn print(&self) -> Result<Value> {
        let mut proposal = self.clone();
        loop {
            let printed = print(&proposal);
            let Proposal::Rails { lost, .. } = &mut proposal else { return printed };
            if printed.is_ok() || lost.pop().is_none() {
                return printed;
            }
        }
    }
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Ack {
    /// Yes, to this.
    Yes(Digest),
    /// No, and why: one line.
    No(String),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum Verdict {
    /// All have said yes: this holds.
    Commit(Digest),
    /// Nothing holds, and why: one line.
    Abort(String),
    /// A node has begun anew: another proposal follows.
    Again,
}

impl Verdict {
    /// For who did not take part, in one line.
    pub fn ended(self) -> Option<String> {
        match self {
            Verdict::Commit(_) => Some("all nodes agreed, each as it was then".to_owned()),
            Verdict::Abort(why) => Some(clipped(&why, 512)),
            Verdict::Again => None,
        }
    }
}

/// Reads a message of a stranger.
pub fn parse<T: DeserializeOwned + Serialize>(value: &[u8]) -> Result<T> {
    ensure!(value.len() <= MAX_VALUE, "it has {} bytes, {MAX_VALUE} are the most", value.len());
    let text = std::str::from_utf8(value).context("it is no text")?;
    strict_json::strict(text).context("it is no message of this version")
}

/// Writes one.
pub fn print<T: Serialize>(message: &T) -> Result<Value> {
    let value = serde_json::to_vec(message).context("writing a message")?;
    ensure!(value.len() <= MAX_VALUE, "a message has {} bytes, {MAX_VALUE} are the most", value.len());
    Ok(value)
}

/// A reason as it is sent: one line of at most so many bytes.
pub fn clipped(text: &str, most: usize) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while line.len() > most {
        line.pop();
    }
    line
}

/// `ranks 4, 7, 9-12`, the first of them.
pub fn ranks(all: &[u32]) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for rank in all {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => spans.push((*rank, *rank)),
        }
    }
    let span = |(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    let named: Vec<String> = spans.iter().take(16).map(span).collect();
    let more = if spans.len() > 16 { ", …" } else { "" };
    format!("{} {}{more}", if all.len() == 1 { "rank" } else { "ranks" }, named.join(", "))
}
