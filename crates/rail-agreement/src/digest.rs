//! What tells one attempt from another, and one result from another.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Policy, RailKey, RunId};

/// 128 random bits in hex: run ids repeat, attempts do not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Nonce(String);

/// SHA-256 in hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// Lower-case hex of just that many digits.
fn hex(text: &str, digits: usize) -> Result<String> {
    let good = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    ensure!(good, "no {digits} hex digits");
    Ok(text.to_owned())
}

/// In hex.
pub(super) fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Nonce {
    /// Of these bits, which the caller has drawn.
    pub fn of(bits: [u8; 16]) -> Nonce {
        Nonce(spell(&bits))
    }

    /// As it is part of keys.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Digest {
    /// The nonces of all nodes, by rank.
    pub fn of_nonces<'a>(nonces: impl Iterator<Item = &'a Nonce>) -> Digest {
        let mut hasher = Sha256::new();
        nonces.for_each(|nonce| hasher.update(format!("{}\n", nonce.0)));
        Digest(spell(&hasher.finalize()))
    }

    /// All that is agreed on: every node computes it for itself. No part can hold a line's end, so none runs into the next.
    pub fn of_result(run: &RunId, nodes: u32, policy: Policy, nonces: &Digest, rails: &[RailKey]) -> Digest {
        let mut hasher = Sha256::new();
        hasher.update(format!("rdmaprep agreement 1\nrun {run}\nnodes {nodes}\npolicy {policy}\nnonces {nonces}\n"));
        rails.iter().for_each(|rail| hasher.update(format!("rail {rail}\n")));
        Digest(spell(&hasher.finalize()))
    }

    /// Of any text.
    pub fn of_text(text: &str) -> Digest {
        Digest(spell(&Sha256::digest(text)))
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The beginning, for people to compare.
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or_default()
    }
}

impl FromStr for Nonce {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        hex(s, 32).map(Nonce)
    }
}

impl FromStr for Digest {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        hex(s, 64).map(Digest)
    }
}

/// As [`rdma_model::ids`] has it: what is read passes the same checks as what is typed.
macro_rules! text {
    ($($t:ty),*) => {$(
        impl TryFrom<String> for $t {
            type Error = anyhow::Error;
            fn try_from(s: String) -> Result<Self> { s.parse() }
        }
        impl From<$t> for String {
            fn from(v: $t) -> String { v.0 }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.pad(&self.0) }
        }
    )*};
}
text!(Nonce, Digest);
