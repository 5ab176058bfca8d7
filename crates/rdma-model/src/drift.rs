//! A difference between what a NIC shall have and what it has.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    pub dev: String,
    pub field: String,
    pub expected: Option<String>,
    pub observed: Option<String>,
}

impl Drift {
    /// A setting of the device: no manager of links is known to change one.
    pub fn is_of_device(&self) -> bool {
        ["ethtool ", "sysfs ", "napi ", "dcb ", "vf "]
            .iter()
            .any(|source| self.field.starts_with(source))
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_nothing = |v: &Option<String>| v.clone().unwrap_or_else(|| "nothing".into());
        write!(
            f,
            "{} {}: {} instead of {}",
            self.dev,
            self.field,
            or_nothing(&self.observed),
            or_nothing(&self.expected)
        )
    }
}
