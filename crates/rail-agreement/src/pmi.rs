//! `pmi`: the key-value space of a job's step, over PMI-1's text on the socket that PMI_FD names (Hydra, Slurm's pmi2 plugin, Flux).
//!
//! What one process puts is seen by the others after a barrier of all, and a barrier has no end of its own. So a wait is: barrier,
//! look, until it is there; all processes go through the same number of barriers, since each of them waits for what another
//! puts before its next one. Each value tells how many barriers its writer has left, and is read after one more.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::digest::{Digest, spell};
use super::{MAX_VALUE, Store, Value};

/// The longest line that every implementation takes.
const LINE: usize = 1000;
/// The longest for one answer other than that to a barrier.
const ANSWER: Duration = Duration::from_secs(30);

/// The step's key-value space.
#[derive(Debug)]
pub struct Pmi {
    socket: File,
    unread: Vec<u8>,
    name: String,
    /// Characters that a value may have.
    room: usize,
    /// A barrier that was entered, and not left yet.
    pending: bool,
    /// How many barriers all have left since this process came.
    barriers: u32,
    /// What was read or written: values never change.
    known: BTreeMap<String, Value>,
}

impl Pmi {
    /// Takes the socket by the number that the environment tells.
    ///
    /// # Errors
    /// A number that is no open socket, or one behind which nobody speaks PMI-1.
    pub fn open(fd: &str, deadline: Instant) -> Result<Pmi> {
        let number: i32 = fd.parse().with_context(|| format!("PMI_FD={fd:?} is no number"))?;
        ensure!(number >= 0, "PMI_FD={fd} is no descriptor");
        // A number alone is nobody's: our own process is asked for what is behind it.
        let own = pidfd_open(getpid(), PidfdFlags::empty()).context("opening this process")?;
        let socket =
            pidfd_getfd(own, number, PidfdGetfdFlags::empty()).with_context(|| format!("taking PMI_FD={fd}"))?;
        Pmi::over(socket.into(), deadline)
    }

    /// The same over any socket.
    pub fn over(socket: File, deadline: Instant) -> Result<Pmi> {
        let (unread, known) = (Vec::new(), BTreeMap::new());
        let mut pmi = Pmi { socket, unread, name: String::new(), room: 0, pending: false, barriers: 0, known };
        let until = deadline.min(Instant::now() + ANSWER);
        pmi.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", until)?;
        let most = pmi.ask("cmd=get_maxes", "maxes", until)?;
        let most: usize = field(&most, "vallen_max").and_then(|n| n.parse().ok()).unwrap_or(256);
        let name = pmi.ask("cmd=get_my_kvsname", "my_kvsname", until)?;
        let name = field(&name, "kvsname").context("PMI tells no kvsname")?;
        ensure!(name.len() <= 256 && name.bytes().all(|b| b.is_ascii_graphic()), "PMI's kvsname is {name:?}");
        pmi.name = name.to_owned();
        pmi.room = most.min(LINE).saturating_sub(pmi.name.len() + 100);
        ensure!(pmi.room >= 64, "PMI takes values of {most} characters, which is too few");
        Ok(pmi)
    }

    fn say(&mut self, line: &str) -> Result<()> {
        self.socket.write_all(format!("{line}\n").as_bytes()).context("writing to PMI_FD")
    }

    /// Asks, and returns the line that answers. That a barrier has been left may be said before it.
    fn ask(&mut self, line: &str, answer: &str, until: Instant) -> Result<String> {
        self.say(line)?;
        loop {
            let Some(said) = self.line(until)? else { bail!("PMI does not answer {line:?}") };
            match field(&said, "cmd") {
                Some(cmd) if cmd == answer => return Ok(said),
                Some("barrier_out") if self.pending => self.leave(),
                _ => bail!("PMI answers {said:?} to {line:?}"),
            }
        }
    }

    /// A whole line, or nothing until then.
    fn line(&mut self, until: Instant) -> Result<Option<String>> {
        loop {
            if let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line).trim().to_owned()));
            }
            ensure!(self.unread.len() <= 2 * MAX_VALUE, "PMI says a line without an end");
            let left = until.saturating_duration_since(Instant::now());
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
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

    /// Enters a barrier, unless we are in one, and waits for all others: whether they came.
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

    /// A value that is there now; within a barrier only what is known already.
    fn look(&mut self, key: &str) -> Result<Option<Value>> {
        if let Some(value) = self.known.get(key) {
            return Ok(Some(value.clone()));
        }
        if self.pending {
            return Ok(None);
        }
        let Some(first) = self.piece(key, 0)? else { return Ok(None) };
        let (length, rest) = first.split_once(':').context("a value in PMI is not of ours")?;
        let (barriers, rest) = rest.split_once(':').context("a value in PMI is not of ours")?;
        // Some launchers show it at once: who acts on it before the others can would be a barrier ahead of them.
        if barriers.parse::<u32>().context("a value in PMI is not of ours")? >= self.barriers {
            return Ok(None);
        }
        let length: usize = length.parse().context("a value in PMI is not of ours")?;
        ensure!(length <= MAX_VALUE, "PMI holds a value of {length} bytes, {MAX_VALUE} are the most");
        let mut text = rest.to_owned();
        for n in 1.. {
            if text.len() >= 2 * length {
                break;
            }
            let piece = self.piece(key, n)?.filter(|p| !p.is_empty()).context("a value in PMI lacks a piece")?;
            text.push_str(&piece);
        }
        let value = bytes(&text).filter(|v| v.len() == length).context("a value in PMI is not of ours")?;
        self.known.insert(key.to_owned(), value.clone());
        Ok(Some(value))
    }

    fn piece(&mut self, key: &str, n: usize) -> Result<Option<String>> {
        let line = format!("cmd=get kvsname={} key={}", self.name, name(key, n));
        let said = self.ask(&line, "get_result", Instant::now() + ANSWER)?;
        Ok(field(&said, "value").filter(|_| field(&said, "rc") == Some("0")).map(str::to_owned))
    }

    fn all(&mut self, keys: &[String]) -> Result<Option<Vec<Value>>> {
        let mut values = Vec::new();
        for key in keys {
            let Some(value) = self.look(key)? else { return Ok(None) };
            values.push(value);
        }
        Ok(Some(values))
    }
}

impl Store for Pmi {
    fn put(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        for (key, value) in pairs {
            let text = format!("{}:{}:{}", value.len(), self.barriers, spell(value));
            for (n, piece) in text.as_bytes().chunks(self.room).enumerate() {
                let piece = std::str::from_utf8(piece)?;
                let line = format!("cmd=put kvsname={} key={} value={piece}", self.name, name(key, n));
                let said = self.ask(&line, "put_result", Instant::now() + ANSWER)?;
                ensure!(field(&said, "rc") == Some("0"), "PMI refuses a value: {said:?}");
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

    /// Nothing outlives the step.
    fn delete(&mut self, _: &[String]) -> Result<()> {
        Ok(())
    }

    /// What was put travels with a barrier: until all have come to it, nobody else can know what was decided.
    fn settle(&mut self, until: Instant) -> Result<bool> {
        self.barrier(until)
    }

    /// The launcher keeps what was put: nobody has to stay for the others.
    fn farewell(&mut self, _: &[String], _: Instant) -> Result<Option<Vec<Value>>> {
        Ok(None)
    }

    fn missing(&mut self, keys: &[String], most: usize) -> Result<Vec<usize>> {
        // Within a barrier nobody knows who is late.
        Ok(if self.pending { Vec::new() } else { (0..keys.len().min(most)).collect() })
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        ensure!(!self.pending, "not all processes of the step have come to the barrier in time");
        keys.iter().map(|key| self.look(key)).collect()
    }
}

impl Drop for Pmi {
    fn drop(&mut self) {
        // The launcher takes a process that ends without it for one that has died.
        if !self.pending {
            let _ = self.ask("cmd=finalize", "finalize_ack", Instant::now() + Duration::from_secs(1));
        }
    }
}

/// Our keys are longer than PMI's may be.
fn name(key: &str, n: usize) -> String {
    let digest = Digest::of_text(key);
    format!("rdmaprep.{}.{n}", digest.as_str().get(..32).unwrap_or_default())
}

/// `value` of `cmd=get_result rc=0 value=…`.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digit = |b: &u8| char::from(*b).to_digit(16).map(|d| d as u8);
    hex.as_bytes().chunks(2).map(|p| Some(digit(p.first()?)? << 4 | digit(p.get(1)?)?)).collect()
}
