//! JSON with fields that are not known here. A record of a later version is read all the same, since NICs have to come home; a
//! file that somebody wrote, or another node's message, is refused, since a field that is not heard may be a slip of the pen.

use serde::de::{DeserializeOwned, Error};

/// A value, and the places of what was not heard: `held.0.lease`, each once.
pub fn lenient<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<(T, Vec<String>)> {
    let mut unheard = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(json);
    let value = serde_ignored::deserialize(&mut reader, |path| unheard.push(path.to_string()))?;
    reader.end()?;
    Ok((value, unheard))
}

/// A value of which everything is heard.
///
/// # Errors
/// Its JSON has more.
pub fn strict<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    match lenient(json)? {
        (value, unheard) if unheard.is_empty() => Ok(value),
        (_, unheard) => Err(Error::custom(format!("unknown field `{}`", unheard.join("`, `")))),
    }
}
