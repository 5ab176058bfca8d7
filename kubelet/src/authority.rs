//! Calls of the kubelet's Go: on a unix socket it names the socket's path as the authority
//! (`%2Fvar%2Flib%2Fkubelet%2F…`), which is none, and which h2 refuses (hyperium/h2#487). So it
//! finds no driver. What a client sends passes through here, with another authority.
//!
//! Fields that a client has sent are numbered from the newest on. Ours is the smaller one, so the
//! reader forgets none that the client still counts on (RFC 7541, 4.4).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

/// Of RFC 9113: what a client begins with, and each frame.
const PREFACE: usize = 24;
const HEAD: usize = 9;
/// As h2 allows it by default: a longer one is an error, which it says.
const LONGEST: usize = 16_384;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// `:authority` in the static table of RFC 7541.
const AUTHORITY: usize = 1;
const OURS: &[u8] = b"localhost";
const READ: usize = 4096;

/// A connection whose other side may name any authority.
pub struct AnyAuthority {
    stream: UnixStream,
    frames: Frames,
}

impl AnyAuthority {
    pub fn new(stream: UnixStream) -> AnyAuthority {
        AnyAuthority {
            stream,
            frames: Frames::default(),
        }
    }
}

impl Connected for AnyAuthority {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for AnyAuthority {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.frames.done.is_empty() {
            let mut bytes = [0; READ];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
            match read.filled() {
                [] => {
                    self.frames.end();
                    break;
                }
                bytes => self.frames.take(bytes),
            }
        }
        let done = &mut self.frames.done;
        let count = done.len().min(to.remaining());
        to.put_slice(&done[..count]);
        done.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AnyAuthority {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// What a client sends, taken apart so far.
#[derive(Default)]
struct Frames {
    has_begun: bool,
    /// Of a frame that is not whole yet, and whose fields are looked at.
    begun: Vec<u8>,
    /// How much of a frame of another kind is still to come.
    passing: usize,
    /// What can be read.
    done: Vec<u8>,
}

impl Frames {
    fn take(&mut self, mut bytes: &[u8]) {
        if self.passing > 0 {
            let (passed, rest) = bytes.split_at(self.passing.min(bytes.len()));
            self.done.extend(passed);
            self.passing -= passed.len();
            bytes = rest;
        }
        self.begun.extend(bytes);
        let mut at = 0;
        while let Some(next) = self.next(at) {
            at = next;
        }
        self.begun.drain(..at.min(self.begun.len()));
    }

    /// The end of what begins there, if it can be told.
    fn next(&mut self, at: usize) -> Option<usize> {
        let left = self.begun.get(at..).filter(|left| !left.is_empty())?;
        if !self.has_begun {
            self.done.extend(left.get(..PREFACE)?);
            self.has_begun = true;
            return Some(at + PREFACE);
        }
        let head = left.get(..HEAD)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let end = HEAD + length;
        if head[3] == HEADERS && length <= LONGEST {
            let frame = left.get(..end)?;
            let other = with_our_authority(frame);
            self.done.extend(other.as_deref().unwrap_or(frame));
        } else {
            let here = &left[..end.min(left.len())];
            self.passing = end - here.len();
            self.done.extend(here);
        }
        Some(at + end)
    }

    /// Nothing more will come.
    fn end(&mut self) {
        self.done.append(&mut self.begun);
    }
}

/// A frame of header fields; `None` where it names no authority, or is none that can be read.
fn with_our_authority(frame: &[u8]) -> Option<Vec<u8>> {
    let flags = frame[4];
    let mut from = HEAD;
    let mut padding = 0;
    if flags & PADDED != 0 {
        padding = usize::from(*frame.get(from)?);
        from += 1;
    }
    if flags & PRIORITY != 0 {
        from += 5;
    }
    let to = frame.len().checked_sub(padding)?;
    let (start, end) = authority(frame.get(from..to)?)?;
    let mut other = frame[..from + start].to_vec();
    other.push(OURS.len() as u8);
    other.extend(OURS);
    other.extend(&frame[from + end..]);
    let length = u32::try_from(other.len() - HEAD).ok()?;
    other[..3].copy_from_slice(&length.to_be_bytes()[1..]);
    Some(other)
}

/// Where the value of `:authority` begins and ends.
fn authority(fields: &[u8]) -> Option<(usize, usize)> {
    let mut at = 0;
    loop {
        let first = *fields.get(at)?;
        let (bits, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let (index, mut next) = number(fields, at, bits)?;
        if is_literal {
            if index == 0 {
                next = string(fields, next)?;
            }
            let end = string(fields, next)?;
            if index == AUTHORITY {
                return Some((next, end));
            }
            next = end;
        }
        at = next;
    }
}

/// Where it ends.
fn string(fields: &[u8], at: usize) -> Option<usize> {
    let (length, start) = number(fields, at, 7)?;
    let end = start.checked_add(length)?;
    (end <= fields.len()).then_some(end)
}

/// RFC 7541, 5.1: in the last bits of a byte, or in those after it; and where it ends.
fn number(fields: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let most = (1 << bits) - 1;
    let mut value = usize::from(*fields.get(at)?) & most;
    let mut next = at + 1;
    if value < most {
        return Some((value, next));
    }
    let mut shift = 0;
    loop {
        let byte = *fields.get(next)?;
        next += 1;
        value = value.checked_add(usize::from(byte & 0x7f).checked_shl(shift)?)?;
        if byte & 0x80 == 0 {
            return Some((value, next));
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::{Frames, OURS, PREFACE};

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap_or_default();
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.extend(payload);
        frame
    }

    /// A literal field of that index, plain.
    fn field(first: u8, value: &[u8]) -> Vec<u8> {
        let length = u8::try_from(value.len()).unwrap_or_default();
        [&[first, length], value].concat()
    }

    fn seen(parts: &[&[u8]]) -> Vec<u8> {
        let mut frames = Frames::default();
        parts.iter().for_each(|part| frames.take(part));
        frames.end();
        frames.done
    }

    fn fields(authority: &[u8]) -> Vec<u8> {
        // A size of the table, GET by index, a new name, and what follows.
        let before = [
            &[0x3f, 0xe1, 0x1f, 0x82][..],
            &field(0x40, b"x-"),
            &[1, b'v'],
        ]
        .concat();
        let after = field(0x44, b"/path");
        [before, field(0x41, authority), after].concat()
    }

    /// A client, with fields in each of their forms.
    fn client(authority: &[u8]) -> Vec<u8> {
        let fields = fields(authority);
        let padded = [&[3, 0, 0, 0, 0, 9][..], &fields, &[0; 3]].concat();
        [
            vec![b'p'; PREFACE],
            frame(4, 0, &[]),
            frame(1, 0x4, &fields),
            frame(0, 0x1, &[0; 9000]),
            frame(1, 0x2c, &padded),
            // It goes on in another frame.
            frame(1, 0, &fields[..fields.len() - 3]),
            frame(9, 0x4, &fields[fields.len() - 3..]),
        ]
        .concat()
    }

    #[test]
    fn authorities_are_ours_however_the_bytes_come() {
        let path = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Frdmaprep.io-reg.sock";
        let (sent, expected) = (client(path), client(OURS));
        assert_eq!(seen(&[&sent]), expected);
        for at in 0..sent.len() {
            assert!(seen(&[&sent[..at], &sent[at..]]) == expected, "{at}");
        }
        let single: Vec<&[u8]> = sent.chunks(1).collect();
        assert!(seen(&single) == expected);
    }

    #[test]
    fn what_cannot_be_read_passes_as_it_is() {
        let begun = vec![b'p'; PREFACE];
        let long = frame(1, 0x4, &[0x41; 20_000]);
        let others = [
            frame(1, 0x4, &[]),
            frame(1, 0x8, &[]),
            frame(1, 0x8, &[9, 0x41]),
            frame(1, 0x24, &[0, 0]),
            frame(1, 0x4, &[0x41]),
            frame(1, 0x4, &[0x41, 0x7f]),
            frame(1, 0x4, &[0x41, 9, b'x']),
            frame(1, 0x4, &[&[0x41, 0x7f][..], &[0xff; 30]].concat()),
            frame(1, 0x4, &[0xff; 30]),
            frame(1, 0x4, &field(0x44, b"/path")),
            long[..15_000].to_vec(),
            long,
            frame(1, 0x4, &[0x41])[..9].to_vec(),
        ];
        for other in others {
            let sent = [begun.clone(), other].concat();
            assert!(seen(&[&sent]) == sent, "{:?}", &sent[PREFACE..]);
        }
        assert_eq!(seen(&[b"GET"]), b"GET");
    }
}
