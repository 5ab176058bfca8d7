//! Keys in the store, all below `rdmaprep/v1/RUN/`: see [`crate::protocol`].

use anyhow::ensure;
use rdma_model::checked_text;

use super::Nonce;

checked_text! {
    /// What all nodes of a job call this run: 1 to 128 printable ASCII characters without `/`.
    /// `none` is refused: it is torchrun's value where it was given no id, and so not unique.
    RunId(s) {
        let good = (1..=128).contains(&s.len())
            && s.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        ensure!(good, "{s:?} is no run id (1 to 128 printable ASCII characters without '/')");
        ensure!(s != "none", "the run id \"none\" is no identity: other jobs have it as well");
    }
}

pub fn rank_of(key: &str) -> Option<u32> {
    key.rsplit('/').next()?.parse().ok()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn<'a> {
    pub leader: &'a Nonce,
    pub count: u32,
}

impl RunId {
    /// A rank's announcement, for people: nothing depends on it.
    pub fn here(&self, rank: u32) -> String {
        format!("rdmaprep/v1/{self}/here/{rank}")
    }

    pub fn leader(&self) -> String {
        format!("rdmaprep/v1/{self}/in/0")
    }

    pub fn offer(&self, leader: &Nonce, rank: u32) -> String {
        format!("rdmaprep/v1/{self}/in/{leader}/{rank}")
    }

    /// Exists if any node refuses.
    pub fn refusal(&self, leader: &Nonce) -> String {
        format!("rdmaprep/v1/{self}/no/{leader}")
    }

    pub fn proposal(&self, leader: &Nonce, rank: u32, nonce: &Nonce, n: u32) -> String {
        format!("rdmaprep/v1/{self}/out/{leader}/{rank}/{nonce}/{n}")
    }

    pub fn ack(&self, turn: &Turn, rank: u32) -> String {
        format!(
            "rdmaprep/v1/{self}/ack/{}.{}/{rank}",
            turn.leader, turn.count
        )
    }

    pub fn verdict(&self, turn: &Turn) -> String {
        format!("rdmaprep/v1/{self}/end/{}.{}", turn.leader, turn.count)
    }

    /// Rank 0's last verdict, for nodes that come after it has left.
    pub fn over(&self, leader: &Nonce) -> String {
        format!("rdmaprep/v1/{self}/over/{leader}")
    }

    pub fn done(&self, turn: &Turn, rank: u32) -> String {
        format!(
            "rdmaprep/v1/{self}/done/{}.{}/{rank}",
            turn.leader, turn.count
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_names_of_the_protocol() {
        let run: RunId = "job.1".parse().unwrap();
        let (leader, nonce) = (Nonce::from_bits([0; 16]), Nonce::from_bits([17; 16]));
        let turn = Turn {
            leader: &leader,
            count: 2,
        };
        let (l, n) = ("0".repeat(32), "1".repeat(32));
        let expected = [
            (run.here(3), "here/3".to_owned()),
            (run.leader(), "in/0".to_owned()),
            (run.offer(&leader, 3), format!("in/{l}/3")),
            (run.refusal(&leader), format!("no/{l}")),
            (
                run.proposal(&leader, 3, &nonce, 1),
                format!("out/{l}/3/{n}/1"),
            ),
            (run.ack(&turn, 3), format!("ack/{l}.2/3")),
            (run.verdict(&turn), format!("end/{l}.2")),
            (run.over(&leader), format!("over/{l}")),
            (run.done(&turn, 3), format!("done/{l}.2/3")),
        ];
        for (key, name) in expected {
            assert_eq!(key, format!("rdmaprep/v1/job.1/{name}"));
        }
        assert_eq!((rank_of("in/x/12"), rank_of("over/x")), (Some(12), None));
        let longest = "x".repeat(128).parse::<RunId>().unwrap().proposal(
            &leader,
            crate::MAX_NODES,
            &nonce,
            u32::MAX,
        );
        assert!(longest.len() <= crate::MAX_KEY, "{}", longest.len());
    }
}
