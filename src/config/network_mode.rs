//! Whose network the containers of a plan have.

use std::str::FromStr;

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// A namespace, into which the NICs move.
    #[default]
    Own,
    /// The host's: nothing moves.
    Host,
}

impl NetworkMode {
    pub fn is_own(&self) -> bool {
        *self == NetworkMode::Own
    }
}

impl FromStr for NetworkMode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<NetworkMode> {
        match text {
            "own" => Ok(NetworkMode::Own),
            "host" => Ok(NetworkMode::Host),
            _ => Err(anyhow!("{text:?} is neither own nor host")),
        }
    }
}
