//! `c10d://HOST:PORT`: a client of PyTorch's TCPStore, from torch 2.2 on. PyTorch has two servers,
//! with and without libuv, which differ in details; the client sends only what both take. The
//! protocol has neither encryption nor authentication, and the server listens on all addresses, so
//! any host may have written what is read.

mod connection;
mod wire;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::endpoint::Endpoint;
use super::{Store, Value};
use connection::{Connection, closed};

/// The most bytes of a MULTI_SET: torch 2.2's server with libuv crashes at 50 KB.
const PIECE: usize = 32 << 10;

#[derive(Debug)]
pub struct C10d {
    to: Endpoint,
    connection: Connection,
    limit: Instant,
    jitter: Duration,
}

impl C10d {
    /// No wait, here or later, goes beyond `limit`; `jitter` spreads nodes that start at once. The
    /// error names each address that was tried, with the reason.
    pub fn connect(to: Endpoint, limit: Instant, jitter: Duration) -> Result<C10d> {
        let connection = Connection::open(&to, limit, jitter)?;
        Ok(C10d {
            to,
            connection,
            limit,
            jitter,
        })
    }

    pub fn with_limit(mut self, limit: Instant) -> C10d {
        self.limit = limit;
        self.connection.limit = limit;
        self
    }

    pub fn address(&self) -> IpAddr {
        self.connection.address
    }

    pub fn local(&self) -> IpAddr {
        self.connection.local
    }

    pub fn warning(&self) -> Option<&str> {
        self.connection.warning.as_deref()
    }

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
        // A server with libuv answers with an empty value for a key that does not exist; no value
        // of ours is empty.
        Ok(Some(values).filter(|all| all.iter().all(|v| !v.is_empty())))
    }

    /// A key may be deleted between the wait and the read; a server without libuv closes the
    /// connection then.
    fn values_now(&mut self, keys: &[String]) -> Result<Option<Vec<Value>>> {
        match self.values(keys) {
            Err(e) if closed(&e) => {
                self.connection = Connection::open(&self.to, self.limit, self.jitter)?;
                if self.check(keys)? {
                    self.values(keys)
                } else {
                    Ok(None)
                }
            }
            other => other,
        }
    }

    /// Whether all keys exist by `until`. The server's wait has no timeout, so it is cancelled.
    fn wait(&mut self, keys: &[String], until: Instant) -> Result<bool> {
        self.connection.send(&wire::wait(keys))?;
        if let Some(said) = self.connection.byte_until(until)? {
            ensure!(said == wire::THERE, "the store answers {said} to a wait");
            return Ok(true);
        }
        self.connection.send(&wire::cancel())?;
        match self.connection.byte()? {
            wire::CANCELLED => Ok(false),
            // The keys came while the wait was being cancelled; the cancellation is answered as
            // well.
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
        // SET has no answer, so that a dead server would go unnoticed: the request after it has
        // one.
        self.connection.send(&wire::number())?;
        self.connection.number().map(|_| ())
    }

    /// Sent together with the wait that follows, whose answer confirms both.
    fn put_unconfirmed(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        self.connection.unsent.extend(wire::set(pairs));
        Ok(())
    }

    fn put_best_effort(&mut self, pairs: &[(String, Value)]) {
        let _ = self.set(pairs);
    }

    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        if keys.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let mut pause = Duration::from_millis(10);
        loop {
            let there = if until > Instant::now() {
                self.wait(keys, until)?
            } else {
                self.check(keys)?
            };
            let values = if there {
                self.values_now(keys)?
            } else {
                return Ok(None);
            };
            let left = until.saturating_duration_since(Instant::now());
            if values.is_some() || left.is_zero() {
                return Ok(values);
            }
            // A key exists with an empty value, for which the server does not wait.
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
