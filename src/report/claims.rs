//! Claims of Kubernetes that are prepared here.

use serde::Serialize;

use super::tables::{spaced, table};
use super::{printable, printable_lines};
use crate::store::claims::{BoundClaim, State};

#[derive(Clone, Debug, Serialize)]
pub struct ReleasedClaim {
    #[serde(flatten)]
    pub claim: BoundClaim,
    /// False for one that would be.
    pub released: bool,
}

pub fn claim_table(all: &[BoundClaim]) -> String {
    let row = |claim: &BoundClaim| {
        vec![
            printable(claim.claim.as_deref().unwrap_or("?")),
            printable(claim.pod.as_deref().unwrap_or("?")),
            spaced(&claim.rails),
            state(claim).to_owned(),
            claim.uid.clone(),
        ]
    };
    let heads = ["claim", "pod", "rails", "state", "UID"];
    table(
        &heads,
        all.iter().map(row).collect(),
        "no claim is prepared here",
    )
}

fn state(claim: &BoundClaim) -> &'static str {
    match claim.state {
        State::Prepared => "prepared",
        State::InUse => "in use",
        State::Ended => "ended",
        State::Damaged => "damaged",
    }
}

pub fn released_claim(done: &ReleasedClaim) -> String {
    let claim = done.claim.claim.as_deref().unwrap_or(&done.claim.uid);
    let word = match done.released {
        true => "released",
        false => "would be released",
    };
    let rails = done.claim.rails.join(" ");
    printable(format!("claim {claim}: {word} {rails}").trim_end())
}

/// Of a claim whose NICs no container has, for `status`.
pub fn claim(claim: &BoundClaim) -> String {
    let release = format!("rdmaprep claims release {}", claim.uid);
    if let Some(why) = &claim.why {
        return printable_lines(&format!(
            "claim {}\n  damaged     {why}\n  to do       once no pod of it runs: {release}",
            claim.uid
        ));
    }
    let of = claim
        .pod
        .as_deref()
        .map_or(String::new(), |pod| format!(" of pod {pod}"));
    let name = claim.claim.as_deref().unwrap_or_default();
    printable_lines(&format!(
        "{}\n  claim       {name}{of} ({})\n  to release  delete the pod; where rdmaprep-dra does \
        not run: {release}",
        claim.rails.join(" "),
        state(claim)
    ))
}
