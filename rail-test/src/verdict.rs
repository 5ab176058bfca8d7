//! What rank 0 says in the end, and all nodes hear.

use anyhow::{Result, ensure};
use rail_agreement::Value;
use rail_agreement::message::{self, clip_line, ranks};
use rdma_model::error_class::ErrorClass;
use serde::{Deserialize, Serialize};

use crate::asked::Asked;

/// Bytes of one line of a verdict, and the most lines.
const LINE: usize = 256;
const LINES: usize = 8;

/// What all nodes hear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// Nodes that did not tell what they found.
    pub missing: Vec<u32>,
    /// Whether a failure breaks jobs.
    pub broken: bool,
    /// Causes, the one that breaks most first.
    pub lines: Vec<String>,
    /// Bits of the rails, in the agreement's order, that fail somewhere.
    pub failed: u64,
}

impl Verdict {
    pub fn encode(&self) -> Result<Value> {
        let mut verdict = self.clone();
        for line in &mut verdict.lines {
            *line = clip_line(line, LINE);
        }
        verdict.lines.truncate(LINES);
        verdict.missing.truncate(128);
        message::encode(&verdict)
    }

    pub fn parse(value: &[u8], asked: &Asked) -> Result<Verdict> {
        let verdict: Verdict = message::parse(value)?;
        let is_known = verdict.missing.iter().all(|rank| *rank < asked.nodes)
            && verdict
                .failed
                .checked_shr(asked.rails.len() as u32)
                .unwrap_or(0)
                == 0;
        ensure!(is_known, "it speaks of nodes or rails that there are not");
        let lines = verdict.lines.iter().map(|line| clip_line(line, LINE));
        Ok(Verdict {
            lines: lines.collect(),
            ..verdict
        })
    }

    /// Names of the rails that fail somewhere.
    pub fn failed_rails<'a>(&self, rails: &'a [String]) -> Vec<&'a String> {
        let numbered = rails.iter().enumerate();
        let failed = numbered.filter(|(at, _)| self.failed >> at & 1 == 1);
        failed.map(|(_, name)| name).collect()
    }

    /// The error with which a command ends, if it ends with one.
    pub fn error(&self) -> Option<anyhow::Error> {
        if !self.missing.is_empty() {
            let text = format!("{} did not tell what they found", ranks(&self.missing));
            return Some(ErrorClass::Disagreed.error(text));
        }
        let first = self.lines.first().cloned().unwrap_or_default();
        self.broken.then(|| ErrorClass::Sick.error(first))
    }
}
