//! Requests and answers of etcd's JSON gateway: keys and values are base64, 64-bit numbers are
//! text.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::{MAX_VALUE, Value};

/// The most requests of one transaction; etcd accepts 128.
pub(super) const MOST: usize = 100;
/// The most bytes of an answer to so many requests: keys and values in base64, and the other fields
/// of each record.
pub(super) const ANSWER: u64 = (MOST * (2 * MAX_VALUE + 512)) as u64;

#[derive(Deserialize)]
pub(super) struct Lease {
    #[serde(rename = "ID")]
    pub id: String,
}

/// The answer to an authentication: a token that the server accepts for some minutes.
#[derive(Deserialize)]
pub(super) struct Token {
    pub token: String,
}

/// The answer to a transaction; etcd leaves out empty fields.
#[derive(Deserialize)]
pub(super) struct Done {
    #[serde(default)]
    responses: Vec<Response>,
}

#[derive(Deserialize)]
struct Response {
    response_range: Option<Range>,
}

#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub code: u32,
    #[serde(default)]
    pub message: String,
}

fn text(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// A transaction without conditions: all requests or none take effect.
fn all(requests: impl Iterator<Item = Json>) -> Json {
    json!({"success": requests.collect::<Vec<_>>()})
}

pub(super) fn put<'a>(pairs: impl Iterator<Item = (String, &'a Value)>, lease: &str) -> Json {
    all(pairs.map(|(key, value)| {
        json!({"request_put": {"key": text(key.as_bytes()), "value": text(value),
            "lease": lease}})
    }))
}

pub(super) fn delete(keys: impl Iterator<Item = String>) -> Json {
    all(keys.map(|key| json!({"request_delete_range": {"key": text(key.as_bytes())}})))
}

pub(super) fn look(keys: impl Iterator<Item = String>, values: bool) -> Json {
    all(keys
        .map(|key| json!({"request_range": {"key": text(key.as_bytes()), "keys_only": !values}})))
}

impl Done {
    fn answers(self, count: usize) -> Result<impl Iterator<Item = Option<Entry>>> {
        ensure!(
            self.responses.len() == count,
            "{} answers came to {count} questions",
            self.responses.len()
        );
        Ok(self.responses.into_iter().map(|r| {
            r.response_range
                .and_then(|range| range.kvs.into_iter().next())
        }))
    }

    pub fn there(self, count: usize) -> Result<Vec<bool>> {
        Ok(self.answers(count)?.map(|entry| entry.is_some()).collect())
    }

    pub fn values(self, count: usize) -> Result<Vec<Option<Value>>> {
        self.answers(count)?
            .map(|entry| entry.map(Entry::bytes).transpose())
            .collect()
    }
}

impl Entry {
    fn bytes(self) -> Result<Value> {
        let value = BASE64_STANDARD
            .decode(self.value)
            .context("a value is no base64")?;
        ensure!(
            value.len() <= MAX_VALUE,
            "it holds a value of {} bytes, {MAX_VALUE} are the most",
            value.len()
        );
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(text: &str) -> Done {
        serde_json::from_str(text).unwrap()
    }

    /// What etcd 3.4.23 answers.
    #[test]
    fn answers_are_read_in_the_order_of_the_questions() {
        let said = r#"{"header":{"revision":"2"},"succeeded":true,"responses":[
            {"response_range":{"header":{},"kvs":
            [{"key":"YQ==","create_revision":"2","version":"1","value":"djE="}],"count":"1"}},
            {"response_range":{}}]}"#;
        assert_eq!(done(said).values(2).unwrap(), [Some(b"v1".to_vec()), None]);
        assert_eq!(done(said).there(2).unwrap(), [true, false]);
        assert!(done(said).values(3).is_err() && done("{}").there(1).is_err());
        assert!(done(&said.replace("djE=", "no base64")).values(2).is_err());
        let long = text(&[0; MAX_VALUE + 1]);
        assert!(done(&said.replace("djE=", &long)).values(2).is_err());
    }
}
