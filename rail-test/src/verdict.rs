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
    pub lines: Vec<Line>,
    /// Bits of the rails, in the agreement's order, that fail somewhere.
    pub failed: u64,
    /// Whether a rail does not reach another one, although both work.
    pub apart: bool,
}

/// A cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    pub breaks: bool,
    pub text: String,
    /// Bits of the rails that fail by it.
    pub failed: u64,
}

/// What stands before a cause.
pub fn mark(breaks: bool) -> &'static str {
    match breaks {
        true => "FAIL",
        false => "warning",
    }
}

impl Verdict {
    pub fn encode(&self) -> Result<Value> {
        let mut verdict = self.clone();
        for line in &mut verdict.lines {
            line.text = clip_line(&line.text, LINE);
        }
        verdict.lines.truncate(LINES);
        verdict.missing.truncate(128);
        loop {
            let encoded = message::encode(&verdict);
            // What is left out, rank 0 has.
            if encoded.is_ok() || verdict.lines.pop().is_none() {
                return encoded;
            }
        }
    }

    pub fn parse(value: &[u8], asked: &Asked) -> Result<Verdict> {
        let verdict: Verdict = message::parse(value)?;
        let rails = asked.rails.len() as u32;
        let mut failed = vec![verdict.failed];
        failed.extend(verdict.lines.iter().map(|line| line.failed));
        let is_known = verdict.missing.iter().all(|rank| *rank < asked.nodes)
            && failed
                .iter()
                .all(|bits| bits.checked_shr(rails).unwrap_or(0) == 0);
        ensure!(is_known, "it speaks of nodes or rails that there are not");
        let mut lines = verdict.lines.clone();
        for line in &mut lines {
            line.text = clip_line(&line.text, LINE);
        }
        Ok(Verdict { lines, ..verdict })
    }

    /// The rails that fail somewhere, by their places, each with its cause.
    pub fn failed_rails(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for rail in (0..64).filter(|rail| self.failed >> rail & 1 == 1) {
            let mut lines = self.lines.iter();
            let line = lines.find(|line| line.failed >> rail & 1 == 1);
            let text = line.map_or("it fails: rank 0 has the causes", |line| &line.text);
            found.push((rail, text.to_owned()));
        }
        found
    }

    /// A failure that is not one of rails.
    pub fn unexplained(&self) -> Option<&str> {
        let mut lines = self.lines.iter();
        let line = lines.find(|line| line.breaks && line.failed == 0)?;
        Some(&line.text)
    }

    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        let lines = self.lines.iter().filter(|line| !line.breaks);
        lines.map(|line| &line.text)
    }

    /// What a node says that has no table.
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        for line in &self.lines {
            lines.push(format!("{}: {}", mark(line.breaks), line.text));
        }
        if !self.broken && self.missing.is_empty() {
            lines.push("all rails work: rank 0 has the table".to_owned());
        }
        lines.join("\n")
    }

    /// The error with which a command ends, if it ends with one.
    pub fn error(&self) -> Option<anyhow::Error> {
        if !self.missing.is_empty() {
            let text = format!("{} did not tell what they found", ranks(&self.missing));
            return Some(ErrorClass::Disagreed.error(text));
        }
        let first = self.lines.first().map_or("", |line| &line.text);
        self.broken.then(|| ErrorClass::Sick.error(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(breaks: bool) -> Verdict {
        Verdict {
            missing: Vec::new(),
            broken: breaks,
            lines: vec![Line {
                breaks,
                text: "rail0 is x".to_owned(),
                failed: breaks.into(),
            }],
            failed: breaks.into(),
            apart: false,
        }
    }

    #[test]
    fn where_only_warnings_are_all_rails_work() {
        let works = "all rails work: rank 0 has the table";
        let text = verdict(false).text();
        assert_eq!(text, format!("warning: rail0 is x\n{works}"));
        assert_eq!(verdict(true).text(), "FAIL: rail0 is x");
    }
}
