//! A record of the file <-> bytes.

use std::io::Read;

use anyhow::Result;

use crate::{MAX_KEY, MAX_VALUE, Value};

/// Keys of ours; what others keep in the same file is passed over.
const OURS: &[u8] = b"/rdmaprep/";

/// A record's head, as far as the file has it.
pub enum Next {
    /// A whole one.
    Record {
        /// Its key.
        key: Vec<u8>,
        /// Its value, if it is one of ours.
        value: Option<Value>,
        /// How many bytes of the file it takes.
        length: u64,
    },
    /// The file ends here.
    End,
    /// The file ends within a record: who wrote it has died.
    Torn,
}

/// A record as bytes.
pub fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    [&length(key.as_bytes())[..], key.as_bytes(), &length(value), value].concat()
}

/// The record that begins here; `left` is what the file has. Of a stranger's record the value is not kept, nor is one of ours
/// that is longer than it may be: it is as if it were empty, which no reader accepts.
pub fn next(from: &mut (impl Read + ?Sized), left: u64) -> Result<Next> {
    if left == 0 {
        return Ok(Next::End);
    }
    let Some(key_length) = length(from, left)? else { return Ok(Next::Torn) };
    if key_length + 8 > left {
        return Ok(Next::Torn);
    }
    let key = take(from, key_length, MAX_KEY + 64)?;
    let Some(value_length) = length(from, left - 4 - key_length)? else { return Ok(Next::Torn) };
    let whole = 8 + key_length + value_length;
    if whole > left {
        return Ok(Next::Torn);
    }
    let value = take(from, value_length, MAX_VALUE)?;
    let plain = key.strip_prefix(b"-").unwrap_or(&key);
    let ours = plain.starts_with(OURS) && key_length as usize == key.len();
    let value = if value.len() as u64 == value_length { value } else { Vec::new() };
    Ok(Next::Record { value: ours.then_some(value), key, length: whole })
}

fn length(from: &mut (impl Read + ?Sized), left: u64) -> Result<Option<u64>> {
    if left < 4 {
        return Ok(None);
    }
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(Some(u32::from_le_bytes(bytes).into()))
}

/// Reads so many bytes, and keeps the first `most` of them.
fn take(from: &mut (impl Read + ?Sized), length: u64, most: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length.min(most as u64) as usize];
    from.read_exact(&mut bytes)?;
    std::io::copy(&mut from.take(length - bytes.len() as u64), &mut std::io::sink())?;
    Ok(bytes)
}
