//! Calls over the system's D-Bus. Each has its time, and after one that took longer there is none:
//! a manager that hangs must not keep a hook.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustbus::MessageBuilder;
use rustbus::message_builder::{HeaderFlags, MarshalledMessage, MessageType};
use rustbus::wire::{marshal, unmarshal};

/// For each read and write; a manager that is well answers within some milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);
/// What every message begins with, up to the length of its header's fields (D-Bus Specification,
/// "Message Format").
const BEGINNING: usize = 16;
/// The longest message that D-Bus allows: 128 MiB.
const MOST: usize = 1 << 27;

pub struct Bus {
    stream: BufReader<UnixStream>,
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

const DAEMON: Callee<'static> = Callee {
    name: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};

impl Bus {
    pub fn connect(socket: &Path) -> Result<Bus> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut bus = Bus {
            stream: BufReader::new(stream),
            serial: 0,
            is_dead: false,
        };
        bus.authenticate()?;
        bus.call(DAEMON, "Hello", &[])?;
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
        self.stream.read_line(&mut answer)?;
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

    /// A method whose arguments are all strings. No program is started for it.
    pub fn call(
        &mut self,
        callee: Callee,
        method: &str,
        arguments: &[&str],
    ) -> Result<MarshalledMessage> {
        let mut message = request(callee, method);
        for argument in arguments {
            message.body.push_param(*argument)?;
        }
        self.answer(message)
            .with_context(|| format!("{} of {}", method, callee.name))
    }

    /// The same with a number as its only argument.
    pub fn call_with_number(
        &mut self,
        callee: Callee,
        method: &str,
        argument: u32,
    ) -> Result<MarshalledMessage> {
        let mut message = request(callee, method);
        message.body.push_param(argument)?;
        self.answer(message)
            .with_context(|| format!("{} of {}", method, callee.name))
    }

    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    fn answer(&mut self, message: MarshalledMessage) -> Result<MarshalledMessage> {
        ensure!(!self.is_dead, "the bus does not answer");
        self.is_dead = true;
        let answer = self.exchange(message)?;
        self.is_dead = false;
        match answer.typ {
            MessageType::Error => bail!("{}", answer.dynheader.error_name.unwrap_or_default()),
            _ => Ok(answer),
        }
    }

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

fn request(callee: Callee, method: &str) -> MarshalledMessage {
    let call = MessageBuilder::new()
        .call(method)
        .at(callee.name)
        .on(callee.path);
    let mut message = call.with_interface(callee.interface).build();
    HeaderFlags::NoAutoStart.set(&mut message.flags);
    message
}
