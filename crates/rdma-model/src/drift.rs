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
        let [is, was] = [&self.observed, &self.expected].map(|v| v.as_deref().unwrap_or("nothing"));
        write!(f, "{} {}: {is} instead of {was}", self.dev, self.field)
    }
}
