//! `c10d://HOST:PORT`: a client of PyTorch's TCPStore, from torch 2.2 to the newest.
//!
//! There are two servers with manners of their own; what is sent here is what both take. Nothing is encrypted, nobody is asked
//! who he is, and the server listens on all addresses: what comes from it may be anybody's.

mod connection;
mod wire;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::endpoint::Endpoint;
use super::{Store, Value};
use connection::{Connection, closed};

/// How many bytes of a MULTI_SET go into one request: torch 2.2's server with libuv dies of 50 KB.
const PIECE: usize = 32 << 10;

/// A TCPStore.
#[derive(Debug)]
pub struct C10d {
    to: Endpoint,
    connection: Connection,
    limit: Instant,
    jitter: Duration,
}

impl C10d {
    /// Connects within `limit`, beyond which nothing is waited for later, either; `jitter` spreads nodes that start at once.
    ///
    /// # Errors
    /// Every address that was tried, with its reason, and how long that took.
    pub fn connect(to: Endpoint, limit: Instant, jitter: Duration) -> Result<C10d> {
        let connection = Connection::open(&to, limit, jitter)?;
        Ok(C10d { to, connection, limit, jitter })
    }

    /// The same with another limit: what comes after the meeting was to begin.
    pub fn until(mut self, limit: Instant) -> C10d {
        self.limit = limit;
        self.connection.limit = limit;
        self
    }

    /// The address of the server.
    pub fn address(&self) -> IpAddr {
        self.connection.address
    }

    /// The address of this end.
    pub fn local(&self) -> IpAddr {
        self.connection.local
    }

    /// What the user should hear although it worked.
    pub fn remark(&self) -> Option<&str> {
        self.connection.remark.as_deref()
    }

    /// Sets them without a question whether the server has got them.
    fn set(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        let (mut from, mut size) = (0, 0);
        for (at, (key, value)) in pairs.iter().enumerate() {
            let cost = key.len() + value.len() + 17;
            if size + cost > PIECE && at > from {
                self.connection.send(&wire::set(&pairs[from..at]))?;
                (from, size) = (at, 0);
            }
            size += cost;
        }
        if from < pairs.len() {
            self.connection.send(&wire::set(&pairs[from..]))?;
        }
        Ok(())
    }

    fn values(&mut self, keys: &[String]) -> Result<Option<Vec<Value>>> {
        self.connection.send(&wire::get(keys))?;
        let mut values = Vec::new();
        for _ in keys {
            values.push(self.connection.text()?);
        }
        // No value of ours is empty: this is how a server with libuv says that there is none.
        Ok(Some(values).filter(|all| all.iter().all(|v| !v.is_empty())))
    }

    /// A key may be deleted between the wait and the question, and a server without libuv closes the connection then.
    fn values_now(&mut self, keys: &[String]) -> Result<Option<Vec<Value>>> {
        match self.values(keys) {
            Err(e) if closed(&e) => {
                self.connection = Connection::open(&self.to, self.limit, self.jitter)?;
                if self.check(keys)? { self.values(keys) } else { Ok(None) }
            }
            other => other,
        }
    }

    /// Whether all of them are there by then. The wait has no end on the server's side: it is called off.
    fn wait(&mut self, keys: &[String], until: Instant) -> Result<bool> {
        self.connection.send(&wire::wait(keys))?;
        if let Some(said) = self.connection.byte_until(until)? {
            ensure!(said == wire::THERE, "the store answers {said} to a wait");
            return Ok(true);
        }
        self.connection.send(&wire::cancel())?;
        match self.connection.byte()? {
            wire::CANCELLED => Ok(false),
            // It came while we called it off, and that is answered as well.
            wire::THERE => match self.connection.byte()? {
                wire::CANCELLED => Ok(true),
                other => bail!("the store answers {other} to a call-off"),
            },
            other => bail!("the store answers {other} to a call-off"),
        }
    }
}

impl Store for C10d {
    fn put(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        self.set(pairs)?;
        // A SET has no answer, and what is sent to a server that has died is lost without a word: what comes after it has one.
        self.connection.send(&wire::number())?;
        self.connection.number().map(|_| ())
    }

    /// In one write with the wait that follows, whose answer stands for both.
    fn tell(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        self.connection.unsent.extend(wire::set(pairs));
        Ok(())
    }

    fn hint(&mut self, pairs: &[(String, Value)]) {
        let _ = self.set(pairs);
    }

    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        if keys.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let mut pause = Duration::from_millis(10);
        loop {
            let there = if until > Instant::now() { self.wait(keys, until)? } else { self.check(keys)? };
            let values = if there { self.values_now(keys)? } else { return Ok(None) };
            let left = until.saturating_duration_since(Instant::now());
            if values.is_some() || left.is_zero() {
                return Ok(values);
            }
            // A key that is there without a value of ours, which a wait does not wait for.
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    fn check(&mut self, keys: &[String]) -> Result<bool> {
        if keys.is_empty() {
            return Ok(true);
        }
        self.connection.send(&wire::check(keys))?;
        Ok(self.connection.byte()? == wire::THERE)
    }

    fn delete(&mut self, keys: &[String]) -> Result<()> {
        for key in keys {
            self.connection.send(&wire::delete(key))?;
            self.connection.number()?;
        }
        Ok(())
    }
}
