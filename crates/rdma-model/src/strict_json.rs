//! JSON with fields that are not known here. A record of a later version is read all the same, since NICs have to come home; a
//! file that somebody wrote, or another node's message, is refused, since a field that is not heard may be a slip of the pen.
//!
//! Types do not refuse fields themselves, as the same ones are in records. What was not heard is what a value does not print again:
//! a second reader for each type (as a crate for this has) would make the program larger by a fortieth.

use std::io::Write;

use serde::Serialize;
use serde::de::{DeserializeOwned, Error};
use serde_json::{Result, Value};

/// A value of which everything is heard.
///
/// # Errors
/// Its JSON has more.
pub fn strict<T: DeserializeOwned + Serialize>(json: &str) -> Result<T> {
    let value: T = serde_json::from_str(json)?;
    match unheard(json, &value)? {
        places if places.is_empty() => Ok(value),
        places => Err(Error::custom(format!("unknown field `{}`", places.join("`, `")))),
    }
}

/// The places in a JSON text of what the value that was read from it does not have: `held.0.lease`. What is there and says nothing
/// (`null`, `false`, an empty list) is none.
pub fn unheard<T: Serialize>(json: &str, value: &T) -> Result<Vec<String>> {
    let mut places = Vec::new();
    if is_print(json, value) {
        return Ok(places);
    }
    let printed = serde_json::to_string(value)?;
    compare(&serde_json::from_str(json)?, &serde_json::from_str(&printed)?, &mut Vec::new(), &mut places);
    Ok(places)
}

/// The new text of something that was read from `old` as `heard`, with what nobody heard where that still has its place: lists that
/// have become longer or shorter have lost it.
pub fn carried<T: Serialize>(old: &str, heard: &T, new: &T) -> Result<String> {
    let read = serde_json::to_string(heard)?;
    let text = serde_json::to_string(new)?;
    let mut value = serde_json::from_str(&text)?;
    carry(&serde_json::from_str(old)?, &serde_json::from_str(&read)?, &mut value);
    serde_json::to_string(&value)
}

/// Whether a text is what a value prints, as all is that this version has written. Nothing is printed for it: a record of 512 NICs
/// has 5 MB, and ten times that as [`Value`].
pub fn is_print<T: Serialize>(text: &str, value: &T) -> bool {
    let mut rest = Rest(text.as_bytes());
    serde_json::to_writer(&mut rest, value).is_ok() && rest.0.is_empty()
}

/// What is left of a text behind what was written, as long as that is what the text says.
struct Rest<'a>(&'a [u8]);

impl Write for Rest<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.strip_prefix(bytes).ok_or(std::io::ErrorKind::InvalidData)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn carry(told: &Value, heard: &Value, new: &mut Value) {
    match (told, heard, new) {
        (Value::Object(told), Value::Object(heard), Value::Object(new)) => {
            for (key, told) in told {
                match (heard.get(key), new.get_mut(key)) {
                    (Some(heard), Some(new)) => carry(told, heard, new),
                    (None, None) => drop(new.insert(key.clone(), told.clone())),
                    _ => {}
                }
            }
        }
        (Value::Array(told), Value::Array(heard), Value::Array(new))
            if told.len() == heard.len() && told.len() == new.len() =>
        {
            told.iter().zip(heard).zip(new).for_each(|((told, heard), new)| carry(told, heard, new));
        }
        _ => {}
    }
}

fn compare(told: &Value, heard: &Value, at: &mut Vec<String>, places: &mut Vec<String>) {
    let says_nothing = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let pairs: Vec<(String, &Value, Option<&Value>)> = match (told, heard) {
        (Value::Object(told), Value::Object(heard)) => told.iter().map(|(k, v)| (k.clone(), v, heard.get(k))).collect(),
        (Value::Array(told), Value::Array(heard)) => {
            told.iter().zip(heard).enumerate().map(|(i, (told, heard))| (i.to_string(), told, Some(heard))).collect()
        }
        _ => return,
    };
    for (key, told, heard) in pairs {
        at.push(key);
        match heard {
            Some(heard) => compare(told, heard, at, places),
            None if says_nothing(told) => {}
            None => places.push(at.join(".")),
        }
        at.pop();
    }
}
