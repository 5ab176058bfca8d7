//! Where a store listens: `HOST`, `HOST:PORT` or `[ADDRESS]:PORT`, as in torchrun's
//! `--rdzv-endpoint`. Read as `parse_rendezvous_endpoint`
//! (torch/distributed/elastic/rendezvous/utils.py) reads it, but stricter: an IPv6 address without
//! brackets, whose last group would become the port, and port 0 are errors.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};

/// The port where none is given, which is torchrun's.
pub const DEFAULT_PORT: u16 = 29400;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Without brackets.
    pub host: String,
    /// From 1.
    pub port: u16,
}

impl FromStr for Endpoint {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let text = s.trim();
        if text.is_empty() {
            return Ok(Endpoint {
                host: "localhost".to_owned(),
                port: DEFAULT_PORT,
            });
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, "")) => (host, None),
                Some((host, rest)) if rest.starts_with(':') => (host, rest.strip_prefix(':')),
                _ => bail!("{s:?} is no endpoint (HOST, HOST:PORT or [ADDRESS]:PORT)"),
            },
            None => match text.split_once(':') {
                None => (text, None),
                Some((_, port)) if port.contains(':') => {
                    bail!("{s:?} is ambiguous: write an IPv6 address in brackets, [ADDRESS]:PORT")
                }
                Some((host, port)) => (host, Some(port)),
            },
        };
        let bracketed = text.starts_with('[');
        ensure!(
            !host.is_empty()
                && host.chars().all(|c| {
                    c.is_alphanumeric() || matches!(c, '_' | '.' | '-') || (bracketed && c == ':')
                }),
            "{s:?} is no endpoint (HOST, HOST:PORT or [ADDRESS]:PORT)"
        );
        Ok(Endpoint {
            host: host.to_owned(),
            port: port.map_or(Ok(DEFAULT_PORT), number)?,
        })
    }
}

/// Parses a port. [`u16`]'s parser alone would accept a sign.
fn number(text: &str) -> Result<u16> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u16>() {
        Ok(port) if digits && port > 0 => Ok(port),
        _ => bail!("{text:?} is no port (1 to 65535)"),
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// torch 2.15's answers, but for the marked ones.
    #[test]
    fn endpoints_are_read_as_torch_reads_them() {
        for (text, expected) in [
            ("", Some(("localhost", 29400))),
            (" \t", Some(("localhost", 29400))),
            ("host", Some(("host", 29400))),
            ("host:", None),
            ("host:0", None), // torch: port 0, where no process listens
            ("host:65535", Some(("host", 65535))),
            ("host:65536", None),
            ("host:-1", None),
            ("host: 80", None),
            ("host:+80", None),
            (" host:80 ", Some(("host", 80))),
            ("münchen:1", Some(("münchen", 1))),
            ("host:٣", None),
            ("[host]:5", Some(("host", 5))),
            ("[1.2.3.4]:5", Some(("1.2.3.4", 5))),
            ("[::1]", Some(("::1", 29400))),
            ("[::1]:29400", Some(("::1", 29400))),
            ("::1", None),         // torch: host ":", port 1
            ("::1:29400", None),   // torch: the last colon
            ("2001:db8::5", None), // torch: host "2001:db8:", port 5
            ("1.2.3.4:5:6", None), // torch: host "1.2.3.4:5"
            ("[fe80::1%eth0]:1", None),
            ("tcp://h:1", None),
            ("a,b:1", None),
            (":29400", None),
            ("[]", None),
            ("[::1", None),
            ("::1]:5", None),
            ("[::1]x:5", None),
        ] {
            let read = text.parse::<Endpoint>().ok();
            let read = read.as_ref().map(|e| (e.host.as_str(), e.port));
            assert_eq!(read, expected, "{text:?}");
        }
        assert_eq!(
            "[::1]:5".parse::<Endpoint>().map(|e| e.to_string()).ok(),
            Some("[::1]:5".to_owned())
        );
    }
}
