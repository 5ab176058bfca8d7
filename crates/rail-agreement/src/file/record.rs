use std::io::{ErrorKind, Read};

use anyhow::Result;

use crate::MAX_KEY;

/// The prefix of our keys. Other programs may keep theirs in the same file.
const OURS: &[u8] = b"/rdmaprep/";

pub enum Next {
    Record {
        key: Vec<u8>,
        /// Bytes of the value, which end the record.
        value: u32,
        is_ours: bool,
        length: u64,
    },
    End,
    /// Part of a record: its writer has died.
    Torn,
}

pub fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    [
        &length(key.as_bytes())[..],
        key.as_bytes(),
        &length(value),
        value,
    ]
    .concat()
}

/// Decodes the record that begins here, but for its value, which is passed over; `left` is the rest
/// of the file in bytes. Where that is cut off meanwhile, it was torn.
pub fn next(from: &mut (impl Read + ?Sized), left: u64) -> Result<Next> {
    if left == 0 {
        return Ok(Next::End);
    }
    match decoded(from, left) {
        Err(e) if is_cut(&e) => Ok(Next::Torn),
        found => found,
    }
}

fn is_cut(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|e| e.kind() == ErrorKind::UnexpectedEof)
}

fn decoded(from: &mut (impl Read + ?Sized), left: u64) -> Result<Next> {
    let Some(key_length) = length(from, left)? else {
        return Ok(Next::Torn);
    };
    if key_length + 8 > left {
        return Ok(Next::Torn);
    }
    let key = take(from, key_length, MAX_KEY + 64)?;
    let Some(value_length) = length(from, left - 4 - key_length)? else {
        return Ok(Next::Torn);
    };
    let whole = 8 + key_length + value_length;
    if whole > left {
        return Ok(Next::Torn);
    }
    skip(from, value_length)?;
    let plain = key.strip_prefix(b"-").unwrap_or(&key);
    let ours = plain.starts_with(OURS) && key_length as usize == key.len();
    Ok(Next::Record {
        key,
        // It was read as one.
        value: value_length as u32,
        is_ours: ours,
        length: whole,
    })
}

fn length(from: &mut (impl Read + ?Sized), left: u64) -> Result<Option<u64>> {
    if left < 4 {
        return Ok(None);
    }
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(Some(u32::from_le_bytes(bytes).into()))
}

fn take(from: &mut (impl Read + ?Sized), length: u64, most: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length.min(most as u64) as usize];
    from.read_exact(&mut bytes)?;
    skip(from, length - bytes.len() as u64)?;
    Ok(bytes)
}

fn skip(from: &mut (impl Read + ?Sized), length: u64) -> Result<()> {
    std::io::copy(&mut from.take(length), &mut std::io::sink())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a writer waits between the cut and its own record.
    #[test]
    fn two_halves_of_two_records_are_read_as_one() {
        let torn = record("/rdmaprep/v1/x/1", &[b'1'; 100]);
        let next_one = record("/rdmaprep/v1/x/2", b"two");
        let (torn, key) = (&torn[..50], 4 + 16);
        let mixed = [&torn[..key], &next_one[key..]].concat();
        let mut from = mixed.as_slice();
        let Next::Record { key, value, .. } = next(&mut from, 50).unwrap() else {
            panic!("no record");
        };
        // The key of the one, and the other's value.
        assert_eq!((key.as_slice(), value), (&b"/rdmaprep/v1/x/1"[..], 3));
        assert!(matches!(next(&mut &torn[..], 50).unwrap(), Next::Torn));
    }
}
