//! Requests of PyTorch's TCPStore as bytes (torch/csrc/distributed/c10d/TCPStoreBackend.hpp).
//! Opcodes 1 to 12 are the same from torch 2.2 on. Numbers are in the host's byte order, in
//! practice little-endian; text is a u64 length and bytes. PING is not used: servers before 2.5
//! close the connection on it.

/// The first bytes of a connection: VALIDATE and its magic number. They go out in one write: if
/// they are split, servers with libuv take the second part for a request.
pub const VALIDATE: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];

pub const THERE: u8 = 0;
pub const CANCELLED: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Op {
    Set = 1,
    Check = 5,
    Wait = 6,
    NumKeys = 7,
    Delete = 8,
    MultiGet = 10,
    MultiSet = 11,
    CancelWait = 12,
}

fn text(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend((bytes.len() as u64).to_le_bytes());
    to.extend(bytes);
}

/// A user's key, which the client prefixes with a slash.
fn key(to: &mut Vec<u8>, key: &str) {
    to.extend((key.len() as u64 + 1).to_le_bytes());
    to.push(b'/');
    to.extend(key.as_bytes());
}

fn keys(op: Op, all: &[String]) -> Vec<u8> {
    let mut request = vec![op as u8];
    request.extend((all.len() as u64).to_le_bytes());
    for k in all {
        key(&mut request, k);
    }
    request
}

/// SET, or MULTI_SET for several keys: no answer.
pub fn set(pairs: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut request = match pairs {
        [_] => vec![Op::Set as u8],
        _ => [
            &[Op::MultiSet as u8][..],
            &(pairs.len() as u64).to_le_bytes(),
        ]
        .concat(),
    };
    for (k, value) in pairs {
        key(&mut request, k);
        text(&mut request, value);
    }
    request
}

/// CHECK: a byte, [`THERE`] or 1.
pub fn check(all: &[String]) -> Vec<u8> {
    keys(Op::Check, all)
}

/// WAIT: [`THERE`] when all keys exist; no other answer.
pub fn wait(all: &[String]) -> Vec<u8> {
    keys(Op::Wait, all)
}

/// MULTI_GET: a text each. For a key that does not exist, a server without libuv closes the
/// connection, one with libuv sends empty text.
pub fn get(all: &[String]) -> Vec<u8> {
    keys(Op::MultiGet, all)
}

pub fn delete(k: &str) -> Vec<u8> {
    let mut request = vec![Op::Delete as u8];
    key(&mut request, k);
    request
}

/// CANCEL_WAIT: [`CANCELLED`]; the answer to the wait may come first.
pub fn cancel() -> Vec<u8> {
    vec![Op::CancelWait as u8]
}

/// GETNUMKEYS: an i64, and the cheapest sign of life.
pub fn number() -> Vec<u8> {
    vec![Op::NumKeys as u8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_that_torch_sends() {
        let k = |s: &str| s.to_owned();
        assert_eq!(
            set(&[(k("a"), b"v".to_vec())]),
            b"\x01\x02\0\0\0\0\0\0\0/a\x01\0\0\0\0\0\0\0v"
        );
        let two = [(k("a"), Vec::new()), (k("b"), b"w".to_vec())];
        let expected: &[u8] = b"\x0b\x02\0\0\0\0\0\0\0\
            \x02\0\0\0\0\0\0\0/a\0\0\0\0\0\0\0\0\
            \x02\0\0\0\0\0\0\0/b\x01\0\0\0\0\0\0\0w";
        assert_eq!(set(&two), expected);
        assert_eq!(
            wait(&[k("a")]),
            b"\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/a"
        );
        assert_eq!((check(&[])[0], get(&[])[0], delete("x")[0]), (5, 10, 8));
        assert_eq!((cancel(), number()), (vec![12], vec![7]));
        assert_eq!(u32::from_le_bytes([0xce, 0xf7, 0x85, 0x3c]), 0x3c85_f7ce);
    }
}
