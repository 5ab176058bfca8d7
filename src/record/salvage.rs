//! What can still be read of a record that is torn, or was written by a later version: enough to
//! say whose it was.

use std::path::PathBuf;

use serde::Deserialize;

use rdma_model::ids::IfName;

/// More of a kind than any host has.
const MOST: usize = 1024;
/// More characters than a value that is looked for has.
const LONGEST: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartialRecord {
    pub schema: Option<u32>,
    pub nics: Vec<IfName>,
    pub ids: Vec<String>,
    pub plans: Vec<String>,
    pub boot_id: Option<String>,
    /// Where the namespace has a name, if `rdmaprep hold` gave it one: bundles are among them,
    /// since that is the holder's, and stands before what is torn first.
    pub places: Vec<PathBuf>,
}

/// Looks for what the writer puts before names: the text need not be JSON as a whole.
pub fn salvage(text: &str) -> PartialRecord {
    PartialRecord {
        schema: found(text, "\"schema\":").into_iter().next(),
        nics: found(text, "\"identity\":{\"name\":"),
        ids: found(text, "{\"id\":"),
        plans: found(text, "\"plan\":"),
        boot_id: found(text, "\"boot_id\":").into_iter().next(),
        places: [
            found(text, "\"hold\":{\"path\":"),
            found(text, "\"bundle\":"),
        ]
        .concat(),
    }
}

/// Each value that follows `key`, once, as far as it is whole and of that type.
fn found<T: for<'a> Deserialize<'a> + PartialEq>(text: &str, key: &str) -> Vec<T> {
    let mut all = Vec::new();
    for (at, _) in text.match_indices(key).take(MOST) {
        let rest = text.get(at + key.len()..).unwrap_or_default();
        // One that does not end would be read to the end of the text each time.
        let rest = rest
            .char_indices()
            .nth(LONGEST)
            .and_then(|(end, _)| rest.get(..end))
            .unwrap_or(rest);
        let value = serde_json::Deserializer::from_str(rest)
            .into_iter::<T>()
            .next();
        all.extend(value.and_then(Result::ok).filter(|v| !all.contains(v)));
    }
    all
}

impl PartialRecord {
    /// Half a sentence for the administrator.
    pub fn describe(&self) -> String {
        let nics = self
            .nics
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ");
        match (self.nics.is_empty(), self.ids.is_empty()) {
            (true, true) => "which NICs it is about cannot be read".to_owned(),
            (true, false) => format!(
                "it is about {}, whose NICs cannot be read",
                self.ids.join(" ")
            ),
            (false, true) => format!("it names {nics}"),
            (false, false) => format!("it names {nics}, held by {}", self.ids.join(" ")),
        }
    }
}
