//! One connection. Every read and write has a deadline for the whole of it, however slowly the
//! server sends.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::wire;
use crate::MAX_VALUE;
use crate::endpoint::Endpoint;
use crate::resolve::resolve;

/// Why a TCPStore may be silent: it looks up the name of each peer, 10 s for each connection before
/// ours.
const SLOW_NAMES: &str = "(one whose host looks up the names of its peers in vain is slow: \
    RES_OPTIONS=\"timeout:1 attempts:1\" there)";
/// The longest wait for an answer of a server that has answered before: it may be looking up
/// another peer's name.
const ANSWER: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(1);
/// How long a server that accepts connections and closes them is tried again: a tunnel whose other
/// end is not up, or a server with too many connections, does that, too.
const CLOSING: Duration = Duration::from_secs(10);
/// More keys than any store has: another answer than GETNUMKEYS'.
const KEYS: u64 = 1 << 40;
/// An answer that takes longer is worth a warning.
const SLOW: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    pub address: IpAddr,
    pub local: IpAddr,
    pub limit: Instant,
    /// Requests that go out in one write with the next one.
    pub unsent: Vec<u8>,
    answer: Duration,
    pub warning: Option<String>,
}

impl Connection {
    /// Connects: tries each address of the host again and again, as the store may start later and
    /// its name may become known later. `jitter` spreads nodes that start at once: it is the first
    /// pause, and lengthens those after it.
    pub fn open(to: &Endpoint, limit: Instant, jitter: Duration) -> Result<Connection> {
        let (start, mut pause) = (Instant::now(), Duration::from_millis(20) + jitter);
        std::thread::sleep(jitter.min(limit.saturating_duration_since(start)));
        let mut closing = None;
        loop {
            let (why, until) = match attempt(to, limit) {
                Ok(connection) => return Ok(connection),
                Err(Failed::Hopeless(why)) => return Err(why),
                Err(Failed::Closed(why)) => (
                    why,
                    limit.min(*closing.get_or_insert_with(Instant::now) + CLOSING),
                ),
                Err(Failed::Unreached(why)) => {
                    closing = None;
                    (why, limit)
                }
            };
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(pause.min(left));
            if Instant::now() >= until {
                bail!(
                    "no connection to the store {to} in {:.1} s: {why}",
                    start.elapsed().as_secs_f64()
                );
            }
            pause = (pause * 2).min(PAUSE + 10 * jitter);
        }
    }

    fn validated(stream: TcpStream, to: &Endpoint, limit: Instant) -> Result<Connection> {
        let address = stream
            .peer_addr()
            .context("asking where the connection leads")?
            .ip()
            .to_canonical();
        let local = stream
            .local_addr()
            .context("asking where the connection comes from")?
            .ip()
            .to_canonical();
        let mut connection = Connection {
            stream,
            address,
            local,
            limit,
            unsent: Vec::new(),
            answer: Duration::MAX,
            warning: None,
        };
        let start = Instant::now();
        let doing = || format!("talking to {to}");
        connection.stream.set_nodelay(true).with_context(doing)?;
        connection.send(&wire::VALIDATE).with_context(doing)?;
        let alive = connection
            .send(&wire::number())
            .and_then(|()| connection.number());
        match alive {
            Ok(keys) if keys > KEYS => {
                bail!("{to} answers, but not as a TCPStore: it has {keys} keys")
            }
            Ok(_) => {}
            Err(e) if late(&e) => {
                let seconds = start.elapsed().as_secs_f64();
                bail!(
                    "{to} takes connections, but does not answer within {seconds:.1} s: is it a \
                    TCPStore? {SLOW_NAMES}"
                )
            }
            Err(e) => return Err(e).with_context(doing),
        }
        // The server looks up a peer's name once, before its first answer.
        connection.answer = ANSWER;
        if start.elapsed() > SLOW {
            let seconds = start.elapsed().as_secs();
            connection.warning = Some(format!(
                "the store {to} took {seconds} s to answer: its host looks up the names of its \
                peers, and its DNS does not know them (RES_OPTIONS=\"timeout:1 attempts:1\" \
                there, or an entry ::ffff:ADDRESS in its /etc/hosts)"
            ));
        }
        Ok(connection)
    }

    fn left(&self, most: Duration) -> Result<Duration> {
        let left = self
            .limit
            .saturating_duration_since(Instant::now())
            .min(most);
        if left.is_zero() {
            return Err(std::io::Error::from(ErrorKind::TimedOut))
                .context("there is no time left for the store");
        }
        Ok(left)
    }

    pub fn send(&mut self, request: &[u8]) -> Result<()> {
        self.stream.set_write_timeout(Some(self.left(ANSWER)?))?;
        let doing = "sending to the store";
        if self.unsent.is_empty() {
            return self.stream.write_all(request).context(doing);
        }
        let mut whole = std::mem::take(&mut self.unsent);
        whole.extend(request);
        self.stream.write_all(&whole).context(doing)
    }

    pub fn byte_until(&mut self, until: Instant) -> Result<Option<u8>> {
        let mut byte = [0];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if self.read_some(&mut byte, left)? > 0 {
                return Ok(byte.first().copied());
            }
        }
    }

    /// How many bytes came within that time.
    fn read_some(&mut self, into: &mut [u8], patience: Duration) -> Result<usize> {
        const GONE: &str = "the store went away";
        self.stream.set_read_timeout(Some(patience))?;
        match self.stream.read(into) {
            Ok(0) => Err(std::io::Error::from(ErrorKind::UnexpectedEof)).context(GONE),
            Ok(count) => Ok(count),
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                Ok(0)
            }
            Err(e) => Err(e).context(GONE),
        }
    }

    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?.first().copied().unwrap_or_default())
    }

    pub fn bytes(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        let start = Instant::now();
        let (mut done, until) = (0, start + self.left(self.answer)?);
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let said = format!(
                    "the store has not answered in {:.1} s",
                    start.elapsed().as_secs_f64()
                );
                return Err(std::io::Error::from(ErrorKind::TimedOut)).context(said);
            }
            done += self.read_some(rest, left)?;
        }
        Ok(bytes)
    }

    pub fn number(&mut self) -> Result<u64> {
        let bytes: [u8; 8] = self
            .bytes(8)?
            .try_into()
            .map_err(|_| anyhow!("a number has 8 bytes"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub fn text(&mut self) -> Result<Vec<u8>> {
        let length = self.number()?;
        ensure!(
            length <= MAX_VALUE as u64,
            "the store holds a value of {length} bytes, {MAX_VALUE} are the most"
        );
        self.bytes(length as usize)
    }
}

pub fn closed(e: &anyhow::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    kind(e).is_some_and(|k| {
        matches!(
            k,
            UnexpectedEof | ConnectionReset | BrokenPipe | ConnectionAborted | NotConnected
        )
    })
}

fn late(e: &anyhow::Error) -> bool {
    kind(e).is_some_and(|k| matches!(k, ErrorKind::TimedOut | ErrorKind::WouldBlock))
}

fn kind(e: &anyhow::Error) -> Option<ErrorKind> {
    e.root_cause()
        .downcast_ref::<std::io::Error>()
        .map(std::io::Error::kind)
}

enum Failed {
    Unreached(String),
    /// A connection was accepted and closed without an answer.
    Closed(String),
    /// The server is no TCPStore, or there is no time left.
    Hopeless(anyhow::Error),
}

fn attempt(to: &Endpoint, limit: Instant) -> Result<Connection, Failed> {
    let found = match resolve(to, limit) {
        Ok(found) => found,
        Err(e) => return Err(Failed::Unreached(format!("resolving {}: {e}", to.host))),
    };
    let (mut tried, mut closing) = (Vec::new(), false);
    for address in &found {
        let left = limit.saturating_duration_since(Instant::now());
        if left.is_zero() {
            tried.push(format!("{address}: no time left"));
            continue;
        }
        match TcpStream::connect_timeout(address, left.min(CONNECT)) {
            Ok(stream) => match Connection::validated(stream, to, limit) {
                Ok(connection) => return Ok(connection),
                Err(e) if closed(&e) => {
                    closing = true;
                    tried.push(format!(
                        "{address} closes the connection: it is no TCPStore, or one of PyTorch \
                        before 2.2"
                    ));
                }
                Err(e) => return Err(Failed::Hopeless(e)),
            },
            Err(e) => tried.push(format!("{address}: {e}")),
        }
    }
    let why = if tried.is_empty() {
        format!("{} has no address", to.host)
    } else {
        tried.join("; ")
    };
    Err(if closing {
        Failed::Closed(why)
    } else {
        Failed::Unreached(why)
    })
}
