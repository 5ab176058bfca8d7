use std::borrow::Cow;
use std::str::FromStr;
use std::sync::OnceLock;

use anyhow::{Result, bail, ensure};
use regex::{Regex, RegexBuilder};
use serde::Deserialize;

/// A regex on interface names. Matching takes linear time and the compiled size is bounded, so that
/// a container's annotation cannot keep a hook busy.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern {
    text: Cow<'static, str>,
    /// Compiled when it is parsed; of [`EXCLUDE`] when a name is first matched, which most hooks
    /// never do.
    regex: OnceLock<Option<Regex>>,
}

impl Pattern {
    const fn known(text: &'static str) -> Pattern {
        Pattern {
            text: Cow::Borrowed(text),
            regex: OnceLock::new(),
        }
    }

    /// Whether it matches anywhere in the name; anchors are the author's business.
    pub fn matches(&self, name: &str) -> bool {
        let regex = self.regex.get_or_init(|| compile(&self.text).ok());
        regex.as_ref().is_some_and(|regex| regex.is_match(name))
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Pattern {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        Ok(Pattern {
            text: Cow::Owned(s.to_owned()),
            regex: OnceLock::from(Some(compile(s)?)),
        })
    }
}

fn compile(text: &str) -> Result<Regex> {
    const SIZE: usize = 1 << 20;
    ensure!(
        text.len() <= 4096,
        "a regex of {} bytes is too long (4096)",
        text.len()
    );
    match RegexBuilder::new(text)
        .size_limit(SIZE)
        .dfa_size_limit(SIZE)
        .build()
    {
        Ok(regex) => Ok(regex),
        Err(e) => {
            // The crate draws the place over several lines; the last one says what is wrong.
            let said = e.to_string();
            let reason = said.lines().last().unwrap_or_default();
            bail!(
                "{text:?} does not compile: {}",
                reason.strip_prefix("error: ").unwrap_or(reason)
            )
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = anyhow::Error;
    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

/// Netdevs that are left out unless asked for otherwise. Some machines call their fabric ethN,
/// hence the warnings.
const EXCLUDE: &str = "^eth[0-9]+$";

/// What a regex leaves out, or nothing: here, and only here, an empty text is a value.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Exclusion(Option<Pattern>);

impl Exclusion {
    pub const NONE: Exclusion = Exclusion(None);

    pub fn any(&self) -> Option<&Pattern> {
        self.0.as_ref()
    }

    pub fn pattern(&self, name: &str) -> Option<&Pattern> {
        self.0.as_ref().filter(|pattern| pattern.matches(name))
    }
}

impl Default for Exclusion {
    fn default() -> Exclusion {
        Exclusion(Some(Pattern::known(EXCLUDE)))
    }
}

impl FromStr for Exclusion {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> Result<Exclusion> {
        Ok(Exclusion(if text.is_empty() {
            None
        } else {
            Some(text.parse()?)
        }))
    }
}

impl TryFrom<String> for Exclusion {
    type Error = anyhow::Error;
    fn try_from(text: String) -> Result<Exclusion> {
        text.parse()
    }
}
