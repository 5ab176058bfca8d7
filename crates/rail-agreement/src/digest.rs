//! What distinguishes attempts (nonces) and results (digests).

use anyhow::{Result, ensure};

use hmac_sha256::Hash as Sha256;
use rdma_model::checked_text;

use super::{Policy, RailKey, RunId};

checked_text! {
    /// 128 random bits as 32 hex digits, drawn for each attempt: run ids may repeat.
    Nonce(s) { hex(s, 32)? }
}

checked_text! {
    /// SHA-256 as 64 hex digits.
    Digest(s) { hex(s, 64)? }
}

fn hex(text: &str, digits: usize) -> Result<()> {
    let good = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    ensure!(good, "no {digits} hex digits");
    Ok(())
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Nonce {
    pub fn from_bits(bits: [u8; 16]) -> Nonce {
        Nonce(to_hex(&bits))
    }
}

impl Digest {
    /// Of the nonces of all nodes, in the order of their ranks.
    pub fn of_nonces<'a>(nonces: impl Iterator<Item = &'a Nonce>) -> Digest {
        let mut hasher = Sha256::new();
        for nonce in nonces {
            hasher.update(format!("{}\n", nonce.0));
        }
        Digest(to_hex(&hasher.finalize()))
    }

    /// Of everything that is agreed on; each node computes it for itself. No part can contain a
    /// line feed, so the input is unambiguous.
    pub fn of_result(
        run: &RunId,
        nodes: u32,
        policy: Policy,
        nonces: &Digest,
        rails: &[RailKey],
    ) -> Digest {
        let mut hasher = Sha256::new();
        hasher.update(format!(
            "rdmaprep agreement 1\nrun {run}\nnodes {nodes}\npolicy {policy}\nnonces {nonces}\n"
        ));
        for rail in rails {
            hasher.update(format!("rail {rail}\n"));
        }
        Digest(to_hex(&hasher.finalize()))
    }

    pub fn of_text(text: &str) -> Digest {
        Digest(to_hex(&Sha256::hash(text.as_bytes())))
    }

    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes with different releases of the tool compare digests: these values do not change.
    #[test]
    fn digests_do_not_change_between_releases() {
        let nonces = [Nonce::from_bits([0; 16]), Nonce::from_bits([255; 16])];
        let nonces = Digest::of_nonces(nonces.iter());
        let rails: Vec<RailKey> = ["rdma0", "rdma1"]
            .iter()
            .map(|r| r.parse().unwrap())
            .collect();
        let result = Digest::of_result(
            &"job.1".parse().unwrap(),
            2,
            Policy::default(),
            &nonces,
            &rails,
        );
        assert_eq!(
            (nonces.short(), result.short()),
            ("b968dff7f5aa", "4e6e06339501")
        );
        assert!(
            "0".repeat(63).parse::<Digest>().is_err() && "A".repeat(64).parse::<Digest>().is_err()
        );
    }
}
