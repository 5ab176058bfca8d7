//! JSON with fields that are not known here. A record of a later version is read all the same, since NICs have to come home; a
//! file that somebody wrote, or another node's message, is refused, since a field that is not heard may be a slip of the pen.
//!
//! Types do not refuse fields themselves, as the same ones are in records. What was not heard is what a value does not print again:
//! a second reader for each type (as a crate for this has) would make the program larger by a fortieth.

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
/// (`null`, an empty list) is none.
pub fn unheard<T: Serialize>(json: &str, value: &T) -> Result<Vec<String>> {
    let mut places = Vec::new();
    let printed = serde_json::to_string(value)?;
    compare(&serde_json::from_str(json)?, &serde_json::from_str(&printed)?, &mut Vec::new(), &mut places);
    Ok(places)
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
