//! One connection, on which every read and write has an end, however slowly a server trickles.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::wire;
use crate::MAX_VALUE;
use crate::endpoint::Endpoint;
use crate::resolve::resolve;

/// What may keep one silent that is a store: 10 s for each of all the connections before ours.
const SLOW_NAMES: &str =
    "(one whose host looks up the names of its peers in vain is slow: RES_OPTIONS=\"timeout:1 attempts:1\" there)";
/// The longest that a server is waited for which has answered once: it may be looking up another's name.
const ANSWER: Duration = Duration::from_secs(60);
/// The longest for one of several addresses.
const CONNECT: Duration = Duration::from_secs(10);
/// The longest between two attempts, but for the jitter.
const PAUSE: Duration = Duration::from_secs(1);
/// How long one is tried again that takes connections and closes them: a tunnel whose other end is not up yet, or a server
/// with more connections than it takes at once, does that, too.
const CLOSING: Duration = Duration::from_secs(10);
/// More keys than that nobody has.
const KEYS: u64 = 1 << 40;
/// An answer later than this is worth a word.
const SLOW: Duration = Duration::from_secs(3);

/// A connection to a store that answers.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Where it leads.
    pub address: IpAddr,
    /// Where it comes from.
    pub local: IpAddr,
    /// Nothing is waited for beyond this.
    pub limit: Instant,
    /// What goes out in one write with the next request.
    pub unsent: Vec<u8>,
    /// The longest that an answer may take.
    answer: Duration,
    /// What the user should hear although it worked.
    pub remark: Option<String>,
}

impl Connection {
    /// Connects, trying every address of the host again and again: the store may be started after us, and a name may be known
    /// later. `jitter` spreads those who start at once: it comes before the first attempt, and grows with the pauses after it.
    pub fn open(to: &Endpoint, limit: Instant, jitter: Duration) -> Result<Connection> {
        let (start, mut pause) = (Instant::now(), Duration::from_millis(20) + jitter);
        std::thread::sleep(jitter.min(limit.saturating_duration_since(start)));
        let mut closing = None;
        loop {
            let (why, until) = match attempt(to, limit) {
                Ok(connection) => return Ok(connection),
                Err(Failed::Hopeless(why)) => return Err(why),
                Err(Failed::Closed(why)) => (why, limit.min(*closing.get_or_insert_with(Instant::now) + CLOSING)),
                Err(Failed::Unreached(why)) => {
                    closing = None;
                    (why, limit)
                }
            };
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(pause.min(left));
            if Instant::now() >= until {
                bail!("no connection to the store {to} in {:.1} s: {why}", start.elapsed().as_secs_f64());
            }
            pause = (pause * 2).min(PAUSE + 10 * jitter);
        }
    }

    /// Says the first word, and waits for a sign of life.
    fn validated(stream: TcpStream, to: &Endpoint, limit: Instant) -> Result<Connection> {
        let address = stream.peer_addr().context("asking where the connection leads")?.ip().to_canonical();
        let local = stream.local_addr().context("asking where the connection comes from")?.ip().to_canonical();
        let mut connection =
            Connection { stream, address, local, limit, unsent: Vec::new(), answer: Duration::MAX, remark: None };
        let start = Instant::now();
        let doing = || format!("talking to {to}");
        connection.stream.set_nodelay(true).with_context(doing)?;
        connection.send(&wire::VALIDATE).with_context(doing)?;
        let alive = connection.send(&wire::number()).and_then(|()| connection.number());
        match alive {
            Ok(keys) if keys > KEYS => bail!("{to} answers, but not as a TCPStore: it has {keys} keys"),
            Ok(_) => {}
            Err(e) if late(&e) => {
                let seconds = start.elapsed().as_secs_f64();
                bail!(
                    "{to} takes connections, but does not answer within {seconds:.1} s: is it a TCPStore? {SLOW_NAMES}"
                )
            }
            Err(e) => return Err(e).with_context(doing),
        }
        // Who has answered once answers the next time without looking anything up.
        connection.answer = ANSWER;
        if start.elapsed() > SLOW {
            let seconds = start.elapsed().as_secs();
            connection.remark = Some(format!(
                "the store {to} took {seconds} s to answer: its host looks up the names of its peers, and its DNS does not know \
                 them (RES_OPTIONS=\"timeout:1 attempts:1\" there, or an entry ::ffff:ADDRESS in its /etc/hosts)"
            ));
        }
        Ok(connection)
    }

    fn left(&self, most: Duration) -> Result<Duration> {
        let left = self.limit.saturating_duration_since(Instant::now()).min(most);
        if left.is_zero() {
            return Err(std::io::Error::from(ErrorKind::TimedOut)).context("there is no time left for the store");
        }
        Ok(left)
    }

    /// Sends a whole request, behind what is unsent yet.
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

    /// Reads one byte, until then; nothing if none has come.
    pub fn byte_until(&mut self, until: Instant) -> Result<Option<u8>> {
        let mut byte = [0];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut byte) {
                Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof)).context("the store went away"),
                Ok(_) => return Ok(byte.first().copied()),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                Err(e) => return Err(e).context("the store went away"),
            }
        }
    }

    /// Reads one byte of an answer that comes at once.
    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?.first().copied().unwrap_or_default())
    }

    /// Reads so many bytes of an answer; all of them have to come within one time.
    pub fn bytes(&mut self, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        let start = Instant::now();
        let (mut done, until) = (0, start + self.left(self.answer)?);
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let said = format!("the store has not answered in {:.1} s", start.elapsed().as_secs_f64());
                return Err(std::io::Error::from(ErrorKind::TimedOut)).context(said);
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(rest) {
                Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof)).context("the store went away"),
                Ok(n) => done += n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                Err(e) => return Err(e).context("the store went away"),
            }
        }
        Ok(bytes)
    }

    /// Reads a number.
    pub fn number(&mut self) -> Result<u64> {
        let bytes: [u8; 8] = self.bytes(8)?.try_into().map_err(|_| anyhow!("a number has 8 bytes"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads a text, which a stranger may have written.
    pub fn text(&mut self) -> Result<Vec<u8>> {
        let length = self.number()?;
        ensure!(length <= MAX_VALUE as u64, "the store holds a value of {length} bytes, {MAX_VALUE} are the most");
        self.bytes(length as usize)
    }
}

/// Whether the other side has closed the connection.
pub fn closed(e: &anyhow::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    kind(e)
        .is_some_and(|k| matches!(k, UnexpectedEof | ConnectionReset | BrokenPipe | ConnectionAborted | NotConnected))
}

fn late(e: &anyhow::Error) -> bool {
    kind(e).is_some_and(|k| matches!(k, ErrorKind::TimedOut | ErrorKind::WouldBlock))
}

fn kind(e: &anyhow::Error) -> Option<ErrorKind> {
    e.root_cause().downcast_ref::<std::io::Error>().map(std::io::Error::kind)
}

/// Why an attempt came to nothing.
enum Failed {
    /// Nobody takes a connection.
    Unreached(String),
    /// One was taken, and closed without a word.
    Closed(String),
    /// Who took it is no TCPStore, or there is no time left.
    Hopeless(anyhow::Error),
}

/// Tries each address once, or says why that came to nothing.
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
                        "{address} closes the connection: it is no TCPStore, or one of PyTorch before 2.2"
                    ));
                }
                Err(e) => return Err(Failed::Hopeless(e)),
            },
            Err(e) => tried.push(format!("{address}: {e}")),
        }
    }
    let why = if tried.is_empty() { format!("{} has no address", to.host) } else { tried.join("; ") };
    Err(if closing { Failed::Closed(why) } else { Failed::Unreached(why) })
}
