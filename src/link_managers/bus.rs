//! Calls over the system's D-Bus. Each has its time, and after one that took longer there is none:
//! a manager that hangs must not keep a hook, which holds the lock of the host.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustbus::message_builder::{HeaderFlags, MarshalledMessage, MessageType};
use rustbus::wire::{marshal, unmarshal};
use rustbus::{Marshal, MessageBuilder};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// For a call with its answer, and for all that makes a connection; a manager that is well answers
/// within some milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two tries to connect.
const PAUSE: Duration = Duration::from_millis(5);
/// The longest line of an authentication that the bus itself takes (MAX_BUFFER of dbus-auth.c).
const LONGEST_LINE: u64 = 16 * 1024;
/// What every message begins with, up to the length of its header's fields (D-Bus Specification,
/// "Message Format").
const BEGINNING: usize = 16;
/// The longest message that is read. D-Bus allows 128 MiB; networkd describes a route in some 600
/// bytes, so this holds more than 20 000.
const MOST: usize = 16 << 20;

/// A socket of which no read and no write lasts longer than until then, however many there are.
struct Timed {
    socket: UnixStream,
    until: Instant,
}

impl Timed {
    /// A bus whose backlog is full is tried again until then: connect(2) says EAGAIN of it where
    /// the socket is non-blocking, and waits without a limit where it is not.
    fn connect(path: &Path, until: Instant) -> Result<Timed> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new(path)?;
        while let Err(e) = rustix::net::connect(&socket, &address) {
            ensure!(matches!(e, Errno::AGAIN | Errno::INTR), e);
            thread::sleep(PAUSE.min(left(until)?));
        }
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(false)?;
        Ok(Timed { socket, until })
    }
}

/// How much time is left until then; never none, which a socket takes for no limit.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

impl Read for Timed {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(left(self.until)?))?;
        self.socket.read(bytes)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(left(self.until)?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

pub struct Bus {
    stream: BufReader<Timed>,
    serial: u32,
    /// Whether an answer did not come in its time: it may still come, and the next one is not
    /// waited for.
    is_dead: bool,
}

/// Whom a call is for.
#[derive(Clone, Copy)]
pub struct Callee<'a> {
    pub name: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
}

pub const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

const DAEMON: Callee<'static> = Callee {
    name: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};

impl Bus {
    pub fn connect(socket: &Path) -> Result<Bus> {
        let timed = Timed::connect(socket, Instant::now() + PATIENCE)?;
        let mut bus = Bus {
            stream: BufReader::new(timed),
            serial: 0,
            is_dead: false,
        };
        bus.authenticate()?;
        bus.exchange(request(DAEMON, "Hello"))?;
        Ok(bus)
    }

    /// By the credentials of the socket: the user's number, its digits as hexadecimal bytes.
    fn authenticate(&mut self) -> Result<()> {
        let uid = nix::unistd::geteuid().to_string();
        let digits: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
        self.stream
            .get_mut()
            .write_all(format!("\0AUTH EXTERNAL {digits}\r\n").as_bytes())?;
        let mut answer = String::new();
        let mut line = self.stream.by_ref().take(LONGEST_LINE);
        line.read_line(&mut answer)?;
        ensure!(
            answer.starts_with("OK "),
            "the bus refuses this user: {}",
            answer.trim()
        );
        Ok(self.stream.get_mut().write_all(b"BEGIN\r\n")?)
    }

    /// Whether a program has that name on the bus.
    pub fn has(&mut self, name: &str) -> Result<bool> {
        let answer = self.call(DAEMON, "NameHasOwner", &[name])?;
        Ok(answer.body.parser().get()?)
    }

    /// How long the process runs that has a name.
    pub fn age(&mut self, name: &str) -> Option<Duration> {
        let answer = self.call(DAEMON, "GetConnectionUnixProcessID", &[name]);
        age_of(answer.ok()?.body.parser().get().ok()?)
    }

    /// The number that the bus gave to who has a name: another one after a restart.
    pub fn owner(&mut self, name: &str) -> Result<String> {
        let answer = self.call(DAEMON, "GetNameOwner", &[name])?;
        Ok(answer.body.parser().get::<&str>()?.to_owned())
    }

    /// A method whose arguments are all of one type. No program is started for it.
    pub fn call<P: Marshal>(
        &mut self,
        callee: Callee,
        method: &str,
        arguments: &[P],
    ) -> Result<MarshalledMessage> {
        let mut message = request(callee, method);
        message.body.push_params(arguments)?;
        self.answer(message)
            .with_context(|| format!("{} of {}", method, callee.name))
    }

    /// Sets a property that is true or false.
    pub fn set_flag(&mut self, callee: Callee, name: &str, value: bool) -> Result<()> {
        let properties = Callee {
            interface: PROPERTIES,
            ..callee
        };
        let mut message = request(properties, "Set");
        message.body.push_param2(callee.interface, name)?;
        message.body.push_variant(value)?;
        self.answer(message).map(drop)
    }

    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    fn answer(&mut self, message: MarshalledMessage) -> Result<MarshalledMessage> {
        ensure!(!self.is_dead, "the bus does not answer");
        self.is_dead = true;
        self.stream.get_mut().until = Instant::now() + PATIENCE;
        let answer = self.exchange(message)?;
        self.is_dead = false;
        match answer.typ {
            MessageType::Error => bail!("{}", answer.dynheader.error_name.unwrap_or_default()),
            _ => Ok(answer),
        }
    }

    /// Within the time that is left; messages for others, as signals, are passed over.
    fn exchange(&mut self, message: MarshalledMessage) -> Result<MarshalledMessage> {
        self.serial += 1;
        let mut bytes = Vec::new();
        marshal::marshal(&message, self.serial, &mut bytes)?;
        bytes.extend_from_slice(message.get_buf());
        self.stream.get_mut().write_all(&bytes)?;
        loop {
            let answer = self.read()?;
            if answer.dynheader.response_serial == Some(self.serial) {
                return Ok(answer);
            }
        }
    }

    fn read(&mut self) -> Result<MarshalledMessage> {
        let mut bytes = vec![0; BEGINNING];
        self.stream.read_exact(&mut bytes)?;
        let (at, header) = unmarshal::unmarshal_header(&bytes, 0)?;
        let fields: [u8; 4] = bytes[at..].try_into()?;
        let fields = match header.byteorder {
            rustbus::ByteOrder::LittleEndian => u32::from_le_bytes(fields),
            rustbus::ByteOrder::BigEndian => u32::from_be_bytes(fields),
        };
        let length = (BEGINNING + fields as usize).next_multiple_of(8) + header.body_len as usize;
        ensure!(length <= MOST, "a message of {length} bytes");
        bytes.resize(length, 0);
        self.stream.read_exact(&mut bytes[BEGINNING..])?;
        let (used, fields) = unmarshal::unmarshal_dynamic_header(&header, &bytes, at)?;
        Ok(unmarshal::unmarshal_next_message(&header, fields, &bytes, at + used)?.1)
    }
}

/// How long ago a process began: field 22 of /proc/PID/stat, in ticks of USER_HZ, 100 a second, as
/// proc_pid_stat(5) counts it.
fn age_of(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let begun: u64 = fields.split(' ').nth(19)?.parse().ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    let age = uptime - begun as f64 / 100.0;
    Some(Duration::from_secs_f64(age.max(0.0)))
}

fn request(callee: Callee, method: &str) -> MarshalledMessage {
    let call = MessageBuilder::new()
        .call(method)
        .at(callee.name)
        .on(callee.path);
    let mut message = call.with_interface(callee.interface).build();
    HeaderFlags::NoAutoStart.set(&mut message.flags);
    message
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A bus that accepts one connection, and does this with it.
    fn bus(serve: fn(UnixStream) -> io::Result<()>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("bus")).unwrap();
        thread::spawn(move || serve(listener.accept().unwrap().0));
        folder
    }

    /// Why it fails to connect and to ask.
    fn failure(folder: &tempfile::TempDir) -> String {
        let asked = Bus::connect(&folder.path().join("bus")).and_then(|mut bus| {
            let asked = bus.has("org.example");
            assert!(bus.is_dead());
            asked
        });
        format!("{:#}", asked.unwrap_err())
    }

    /// How long that takes. A bus here goes on for as long as it is listened to, or ten times as
    /// long as it may.
    fn lasts(folder: &tempfile::TempDir) -> Duration {
        let begin = Instant::now();
        failure(folder);
        begin.elapsed()
    }

    fn is_in_time(lasted: Duration) -> bool {
        lasted < 10 * PATIENCE
    }

    fn signal() -> Vec<u8> {
        let signal = MessageBuilder::new().signal("org.example", "Changed", "/org/example");
        let (signal, mut bytes) = (signal.build(), Vec::new());
        marshal::marshal(&signal, 1, &mut bytes).unwrap();
        bytes
    }

    /// A reply to that call, as far as its body.
    fn reply(serial: u8, body: u32) -> Vec<u8> {
        let mut bytes = vec![b'l', 2, 0, 1];
        bytes.extend(body.to_le_bytes());
        bytes.extend([9, 0, 0, 0]);
        // REPLY_SERIAL (5) of type UINT32.
        let fields = [5, 1, b'u', 0, serial, 0, 0, 0];
        bytes.extend([fields.len() as u8, 0, 0, 0]);
        bytes.extend(fields);
        bytes
    }

    fn welcome(socket: &mut UnixStream) -> io::Result<()> {
        socket.write_all(b"OK 0123456789abcdef\r\n")?;
        socket.write_all(&reply(1, 0))
    }

    fn sends_signals(mut socket: UnixStream) -> io::Result<()> {
        welcome(&mut socket)?;
        loop {
            socket.write_all(&signal())?;
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn sends_many_signals(mut socket: UnixStream) -> io::Result<()> {
        welcome(&mut socket)?;
        loop {
            socket.write_all(&signal())?;
        }
    }

    fn sends_bytes(mut socket: UnixStream) -> io::Result<()> {
        for byte in b"OK ".iter().chain(std::iter::repeat(&b'a')) {
            socket.write_all(&[*byte])?;
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn sends_an_endless_line(mut socket: UnixStream) -> io::Result<()> {
        loop {
            socket.write_all(&[b'a'; 4096])?;
        }
    }

    fn announces_much(mut socket: UnixStream) -> io::Result<()> {
        welcome(&mut socket)?;
        socket.write_all(&reply(2, 100_000_000))?;
        thread::sleep(10 * PATIENCE);
        Ok(())
    }

    /// A bus whose only place is taken.
    fn full(path: &Path) -> (OwnedFd, UnixStream) {
        let none = None;
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, none).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let first = UnixStream::connect(path).unwrap();
        (socket, first)
    }

    #[test]
    fn a_bus_that_accepts_nobody_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus");
        let _full = full(&path);
        assert!(is_in_time(lasts(&folder)));
    }

    #[test]
    fn a_bus_that_is_busy_for_a_moment_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus");
        let (socket, _first) = full(&path);
        let until = Instant::now() + 30 * PATIENCE;
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            let _first = rustix::net::accept(&socket).unwrap();
            thread::sleep(30 * PATIENCE);
        });
        assert!(Timed::connect(&path, until).is_ok());
    }

    #[test]
    fn a_bus_that_sends_signals_for_ever_is_left() {
        for serve in [sends_signals, sends_many_signals] {
            let lasted = lasts(&bus(serve));
            assert!(is_in_time(lasted) && lasted >= PATIENCE, "{lasted:?}");
        }
    }

    #[test]
    fn a_bus_that_sends_byte_after_byte_is_left() {
        assert!(is_in_time(lasts(&bus(sends_bytes))));
    }

    #[test]
    fn a_line_without_an_end_is_not_read_to_it() {
        let folder = bus(sends_an_endless_line);
        let refused = Bus::connect(&folder.path().join("bus")).err().unwrap();
        assert!(refused.to_string().starts_with("the bus refuses this user"));
    }

    #[test]
    fn a_message_that_is_too_long_is_not_waited_for() {
        let refused = failure(&bus(announces_much));
        assert!(refused.contains("a message of 100000"), "{refused}");
    }
}
