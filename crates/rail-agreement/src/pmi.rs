//! `pmi`: the key-value space of a job step, over PMI-1's text protocol on the socket that PMI_FD
//! names (Hydra, Slurm's pmi2 plugin, Flux). What one process puts becomes visible to the others
//! after a barrier of all, and a barrier has no timeout. So a wait repeats barrier and look-up
//! until the key is there. All processes pass the same number of barriers, as each of them waits
//! for a key that another one puts before its next barrier. Each value carries the number of
//! barriers that its writer had passed, and is read after one more.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::digest::{Digest, to_hex};
use super::{MAX_VALUE, Store, Value};

/// The longest line that every implementation accepts, in bytes.
const LINE: usize = 1000;
const ANSWER: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Pmi {
    socket: File,
    unread: Vec<u8>,
    name: String,
    /// The most characters of a value.
    room: usize,
    /// This process has entered a barrier that not all have reached.
    pending: bool,
    barriers: u32,
    /// Values read or written so far; they never change.
    known: BTreeMap<String, Value>,
}

impl Pmi {
    /// `fd` is the value of PMI_FD.
    pub fn open(fd: &str, deadline: Instant) -> Result<Pmi> {
        let number: i32 = fd
            .parse()
            .with_context(|| format!("PMI_FD={fd:?} is no number"))?;
        ensure!(number >= 0, "PMI_FD={fd} is no descriptor");
        // pidfd_getfd(2) on our own process duplicates a descriptor by its number without `unsafe`.
        let own = pidfd_open(getpid(), PidfdFlags::empty()).context("opening this process")?;
        let socket = pidfd_getfd(own, number, PidfdGetfdFlags::empty())
            .with_context(|| format!("taking PMI_FD={fd}"))?;
        Pmi::from_socket(socket.into(), deadline)
    }

    pub fn from_socket(socket: File, deadline: Instant) -> Result<Pmi> {
        let (unread, known) = (Vec::new(), BTreeMap::new());
        let mut pmi = Pmi {
            socket,
            unread,
            name: String::new(),
            room: 0,
            pending: false,
            barriers: 0,
            known,
        };
        let until = deadline.min(Instant::now() + ANSWER);
        pmi.ask(
            "cmd=init pmi_version=1 pmi_subversion=1",
            "response_to_init",
            until,
        )?;
        let most = pmi.ask("cmd=get_maxes", "maxes", until)?;
        let most: usize = field(&most, "vallen_max")
            .and_then(|n| n.parse().ok())
            .unwrap_or(256);
        let name = pmi.ask("cmd=get_my_kvsname", "my_kvsname", until)?;
        let name = field(&name, "kvsname").context("PMI tells no kvsname")?;
        ensure!(
            name.len() <= 256 && name.bytes().all(|b| b.is_ascii_graphic()),
            "PMI's kvsname is {name:?}"
        );
        pmi.name = name.to_owned();
        pmi.room = most.min(LINE).saturating_sub(pmi.name.len() + 100);
        ensure!(
            pmi.room >= 64,
            "PMI takes values of {most} characters, which is too few"
        );
        Ok(pmi)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        self.socket
            .write_all(format!("{line}\n").as_bytes())
            .context("writing to PMI_FD")
    }

    /// Sends a request and returns the line that answers it. The end of a barrier may come before.
    fn ask(&mut self, line: &str, answer: &str, until: Instant) -> Result<String> {
        self.say(line)?;
        loop {
            let Some(said) = self.line(until)? else {
                bail!("PMI does not answer {line:?}")
            };
            match field(&said, "cmd") {
                Some(cmd) if cmd == answer => return Ok(said),
                Some("barrier_out") if self.pending => self.leave(),
                _ => bail!("PMI answers {said:?} to {line:?}"),
            }
        }
    }

    fn line(&mut self, until: Instant) -> Result<Option<String>> {
        loop {
            if let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line).trim().to_owned()));
            }
            ensure!(
                self.unread.len() <= 2 * MAX_VALUE,
                "PMI says a line without an end"
            );
            let left = until.saturating_duration_since(Instant::now());
            let time = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&time)) {
                Ok(0) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                other => other.context("waiting for PMI_FD")?,
            };
            let mut buffer = [0; 4096];
            match self.socket.read(&mut buffer) {
                Ok(0) => bail!("the launcher closed PMI_FD"),
                Ok(n) => self.unread.extend(buffer.iter().take(n)),
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e).context("reading from PMI_FD"),
            }
        }
    }

    /// Enters a barrier, unless this process is in one, and waits for all others; `false` if not
    /// all have come at `until`.
    fn barrier(&mut self, until: Instant) -> Result<bool> {
        if !self.pending {
            self.say("cmd=barrier_in")?;
            self.pending = true;
        }
        match self.line(until)? {
            None => Ok(false),
            Some(line) if field(&line, "cmd") == Some("barrier_out") => {
                self.leave();
                Ok(true)
            }
            Some(line) => bail!("PMI answers {line:?} to a barrier"),
        }
    }

    fn leave(&mut self) {
        self.pending = false;
        self.barriers += 1;
    }

    /// The value of a key, if it is visible; within a barrier only if it was read before.
    fn look(&mut self, key: &str) -> Result<Option<Value>> {
        if let Some(value) = self.known.get(key) {
            return Ok(Some(value.clone()));
        }
        if self.pending {
            return Ok(None);
        }
        let Some(first) = self.piece(key, 0)? else {
            return Ok(None);
        };
        let (length, rest) = first
            .split_once(':')
            .context("a value in PMI is not of ours")?;
        let (barriers, rest) = rest
            .split_once(':')
            .context("a value in PMI is not of ours")?;
        // Some launchers show a value at once. A process that acted on it would be a barrier ahead
        // of the others.
        if barriers
            .parse::<u32>()
            .context("a value in PMI is not of ours")?
            >= self.barriers
        {
            return Ok(None);
        }
        let length: usize = length.parse().context("a value in PMI is not of ours")?;
        ensure!(
            length <= MAX_VALUE,
            "PMI holds a value of {length} bytes, {MAX_VALUE} are the most"
        );
        let mut text = rest.to_owned();
        for n in 1.. {
            if text.len() >= 2 * length {
                break;
            }
            let piece = self
                .piece(key, n)?
                .filter(|p| !p.is_empty())
                .context("a value in PMI lacks a piece")?;
            text.push_str(&piece);
        }
        let value = from_hex(&text)
            .filter(|v| v.len() == length)
            .context("a value in PMI is not of ours")?;
        self.known.insert(key.to_owned(), value.clone());
        Ok(Some(value))
    }

    fn piece(&mut self, key: &str, n: usize) -> Result<Option<String>> {
        let line = format!("cmd=get kvsname={} key={}", self.name, name(key, n));
        let said = self.ask(&line, "get_result", Instant::now() + ANSWER)?;
        Ok(field(&said, "value")
            .filter(|_| field(&said, "rc") == Some("0"))
            .map(str::to_owned))
    }

    fn all(&mut self, keys: &[String]) -> Result<Option<Vec<Value>>> {
        let mut values = Vec::new();
        for key in keys {
            let Some(value) = self.look(key)? else {
                return Ok(None);
            };
            values.push(value);
        }
        Ok(Some(values))
    }
}

impl Store for Pmi {
    fn put(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        for (key, value) in pairs {
            let text = format!("{}:{}:{}", value.len(), self.barriers, to_hex(value));
            for (n, piece) in text.as_bytes().chunks(self.room).enumerate() {
                let piece = std::str::from_utf8(piece)?;
                let line = format!(
                    "cmd=put kvsname={} key={} value={piece}",
                    self.name,
                    name(key, n)
                );
                let said = self.ask(&line, "put_result", Instant::now() + ANSWER)?;
                ensure!(
                    field(&said, "rc") == Some("0"),
                    "PMI refuses a value: {said:?}"
                );
            }
            self.known.insert(key.clone(), value.clone());
        }
        Ok(())
    }

    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        while until > Instant::now() {
            if !self.barrier(until)? {
                return Ok(None);
            }
            if let Some(values) = self.all(keys)? {
                return Ok(Some(values));
            }
        }
        self.all(keys)
    }

    fn check(&mut self, keys: &[String]) -> Result<bool> {
        Ok(self.all(keys)?.is_some())
    }

    /// Does nothing: no key outlives the step.
    fn delete(&mut self, _: &[String]) -> Result<()> {
        Ok(())
    }

    /// A barrier makes the decision visible.
    fn flush(&mut self, until: Instant) -> Result<bool> {
        self.barrier(until)
    }

    /// Does not wait: the launcher keeps the keys.
    fn await_readers(&mut self, _: &[String], _: Instant) -> Result<Option<Vec<Value>>> {
        Ok(None)
    }

    fn missing(&mut self, keys: &[String], most: usize) -> Result<Vec<usize>> {
        // Within a barrier it is not known which process is late.
        Ok(if self.pending {
            Vec::new()
        } else {
            (0..keys.len().min(most)).collect()
        })
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        ensure!(
            !self.pending,
            "not all processes of the step have come to the barrier in time"
        );
        keys.iter().map(|key| self.look(key)).collect()
    }
}

impl Drop for Pmi {
    fn drop(&mut self) {
        // Without it the launcher takes the process for one that died.
        if !self.pending {
            let _ = self.ask(
                "cmd=finalize",
                "finalize_ack",
                Instant::now() + Duration::from_secs(1),
            );
        }
    }
}

/// The key in PMI of the n-th piece of a value: keys there are shorter than ours.
fn name(key: &str, n: usize) -> String {
    let digest = Digest::of_text(key);
    format!(
        "rdmaprep.{}.{n}",
        digest.as_str().get(..32).unwrap_or_default()
    )
}

/// A field of a line: `value` of `cmd=get_result rc=0 value=…`.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ')
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |b: &u8| char::from(*b).to_digit(16).map(|d| d as u8);
    hex.as_bytes()
        .chunks(2)
        .map(|p| Some(digit(p.first()?)? << 4 | digit(p.get(1)?)?))
        .collect()
}
