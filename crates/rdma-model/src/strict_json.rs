//! JSON with fields that are unknown here. A record of a later version is read all the same, since
//! its NICs have to be restored; a file that a person wrote, or another node's message, is refused,
//! since an unknown field may be a mistake.
//!
//! Types do not refuse fields themselves, as records have the same types. Unknown is what a value
//! does not print again: a second reader for each type (as a crate for this has) would make the
//! program larger by a fortieth.

use std::io::Write;

use serde::Serialize;
use serde::de::{DeserializeOwned, Error};
use serde_json::{Result, Value};

/// Refuses JSON that has more than the value.
pub fn strict<T: DeserializeOwned + Serialize>(json: &str) -> Result<T> {
    let value: T = serde_json::from_str(json)?;
    match unknown_keys(json, &value)? {
        places if places.is_empty() => Ok(value),
        places => Err(Error::custom(format!(
            "unknown field `{}`",
            places.join("`, `")
        ))),
    }
}

/// The places in a JSON text of what the value that was read from it lacks: `held.0.lease`. What
/// says nothing (`null`, `false`, an empty list) is not counted.
fn unknown_keys<T: Serialize>(json: &str, value: &T) -> Result<Vec<String>> {
    let mut places = Vec::new();
    if is_print(json, value) || is_pretty_print(json, value) {
        return Ok(places);
    }
    let printed = serde_json::to_string(value)?;
    compare(
        &serde_json::from_str(json)?,
        &serde_json::from_str(&printed)?,
        &mut Vec::new(),
        &mut places,
    );
    Ok(places)
}

/// Whether a text is what a value prints, as all is that this version has written. Nothing is
/// printed for it: a record of 512 NICs has 5 MB, and ten times that as [`Value`].
fn is_print<T: Serialize>(text: &str, value: &T) -> bool {
    let mut rest = Rest(text.as_bytes());
    serde_json::to_writer(&mut rest, value).is_ok() && rest.0.is_empty()
}

/// Whether a text is what a value prints for people.
fn is_pretty_print<T: Serialize>(text: &str, value: &T) -> bool {
    let mut rest = Rest(text.as_bytes());
    serde_json::to_writer_pretty(&mut rest, value).is_ok() && rest.0.is_empty()
}

/// What is left of a text behind what was written, as long as that is what the text says.
struct Rest<'a>(&'a [u8]);

impl Write for Rest<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self
            .0
            .strip_prefix(bytes)
            .ok_or(std::io::ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn compare(json: &Value, known: &Value, at: &mut Vec<String>, places: &mut Vec<String>) {
    let pairs: Vec<(String, &Value, Option<&Value>)> = match (json, known) {
        (Value::Object(json), Value::Object(known)) => json
            .iter()
            .map(|(k, v)| (k.clone(), v, known.get(k)))
            .collect(),
        (Value::Array(json), Value::Array(known)) => json
            .iter()
            .zip(known)
            .enumerate()
            .map(|(i, (json, known))| (i.to_string(), json, Some(known)))
            .collect(),
        _ => return,
    };
    for (key, json, known) in pairs {
        at.push(key);
        match (known, json) {
            (Some(known), _) => compare(json, known, at, places),
            // These say nothing.
            (None, Value::Null | Value::Bool(false)) => {}
            (None, Value::Array(list)) if list.is_empty() => {}
            (None, Value::Object(map)) if map.is_empty() => {}
            (None, _) => places.push(at.join(".")),
        }
        at.pop();
    }
}
