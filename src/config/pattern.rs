//! A regex on names of interfaces and HCAs, PCI addresses or drivers.

use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use regex::RegexBuilder;
use serde::Deserialize;

/// A regex on interface names. Matching takes linear time and the compiled size is bounded, so that a container's
/// annotation cannot keep a hook busy.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern(regex::Regex);

impl Pattern {
    /// Whether it matches anywhere in the name; anchors are the author's business.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for Pattern {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        const SIZE: usize = 1 << 20;
        ensure!(s.len() <= 4096, "a regex of {} bytes is too long (4096)", s.len());
        match RegexBuilder::new(s).size_limit(SIZE).dfa_size_limit(SIZE).build() {
            Ok(regex) => Ok(Pattern(regex)),
            Err(e) => {
                // The crate draws the place over several lines; the last one says what is wrong.
                let text = e.to_string();
                let reason = text.lines().last().unwrap_or_default();
                bail!("{s:?} does not compile: {}", reason.strip_prefix("error: ").unwrap_or(reason))
            }
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = anyhow::Error;
    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

/// Netdevs that are left out unless asked for otherwise. Some machines call their fabric ethN, hence the warnings.
const EXCLUDE: &str = "^eth[0-9]+$";

/// What a regex leaves out, or nothing: here, and only here, an empty text is a value.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Exclusion(Option<Pattern>);

impl Exclusion {
    /// Leaves nothing out.
    pub const NONE: Exclusion = Exclusion(None);

    /// The regex by which it leaves that name out.
    pub fn pattern(&self, name: &str) -> Option<&Pattern> {
        self.0.as_ref().filter(|pattern| pattern.matches(name))
    }
}

impl Default for Exclusion {
    fn default() -> Exclusion {
        Exclusion(EXCLUDE.parse().ok())
    }
}

impl FromStr for Exclusion {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Exclusion> {
        Ok(Exclusion(if text.is_empty() { None } else { Some(text.parse()?) }))
    }
}

impl TryFrom<String> for Exclusion {
    type Error = anyhow::Error;
    fn try_from(text: String) -> Result<Exclusion> {
        text.parse()
    }
}
