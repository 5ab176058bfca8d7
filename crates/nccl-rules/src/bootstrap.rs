//! What NCCL's bootstrap does to reach another node. A rank tells the others the address of its
//! bootstrap interface, and connects without choosing a source address: its packets leave as the
//! routes say. The two need not be of one interface; then each direction takes a way of its own.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use anyhow::{Result, bail, ensure};
use rdma_model::snapshot::Snapshot;
use serde::Serialize;

use super::comm_id::{self, Remote, Resolve};
use super::connect_retry::{Rules, Trouble};
use super::explain::{Bootstrap, Explanation};
use super::ifname;
use super::settings::Settings;
use super::version::Version;

/// The port of torchrun's MASTER_PORT, where none is given: NCCL has none of its own.
pub const PORT: u16 = 29500;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    pub version: Version,
    pub to: SocketAddr,
    pub bootstrap: Bootstrap,
    /// From which address the kernel sends there; none where it knows no way.
    pub from: Option<IpAddr>,
    /// The interfaces that own it.
    pub over: Vec<String>,
    pub rules: Rules,
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Reached {
        /// From where the other side was called, if it is a `nccl test-bootstrap --listen`, which
        /// reports it.
        seen_as: Option<SocketAddr>,
    },
    Failed {
        trouble: Trouble,
        error: String,
        /// Whether NCCL would go on trying: it was --timeout that ended it.
        unfinished: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tried {
    pub call: Call,
    pub tries: u32,
    pub millis: u64,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    pub version: Version,
    pub at: SocketAddr,
    pub bootstrap: Bootstrap,
    pub by_id: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Came {
    pub wait: Wait,
    pub from: SocketAddr,
}

/// `HOST[:PORT]`, or `[ADDRESS%INTERFACE]:PORT`.
pub fn target(text: &str, snapshot: &Snapshot, resolve: Resolve) -> Result<SocketAddr> {
    let (host, port) = split(text)?;
    let (host, scope) = host
        .split_once('%')
        .map_or((host, None), |(host, name)| (host, Some(name)));
    let Some(ip) = host.parse().ok().or_else(|| resolve(host)) else {
        bail!("{host:?} is no address, and no host that is known here")
    };
    Ok(match (ip, scope) {
        (IpAddr::V6(ip), Some(name)) => {
            let Some(index) = comm_id::ifindex(snapshot, name) else {
                bail!("{text:?}: there is no interface {name:?}")
            };
            SocketAddrV6::new(ip, port, 0, index).into()
        }
        (IpAddr::V4(_), Some(_)) => bail!("{text:?}: an IPv4 address has no interface"),
        (ip, None) => (ip, port).into(),
    })
}

pub fn split(text: &str) -> Result<(&str, u16)> {
    let form = || format!("{text:?} is none of HOST, HOST:PORT, [ADDRESS]:PORT");
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, rest)) if rest.starts_with(':') => (host, rest.strip_prefix(':')),
            _ => bail!(form()),
        },
        None => match text.split_once(':') {
            None => (text, None),
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            Some(_) => bail!("{}: an IPv6 address is in brackets", form()),
        },
    };
    ensure!(
        !host.is_empty() && !host.contains(char::is_whitespace),
        form()
    );
    let port = match port {
        None => PORT,
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => port.parse().unwrap_or(0),
        Some(_) => 0,
    };
    ensure!(port > 0, "{}: ports are 1 to 65535", form());
    Ok((host, port))
}

pub fn comm_id(
    settings: &Settings,
    version: Version,
    snapshot: &Snapshot,
    resolve: Resolve,
) -> Option<SocketAddr> {
    let value = settings.get("NCCL_COMM_ID")?;
    let ifindex = |name: &str| comm_id::ifindex(snapshot, name);
    let remote = Remote::parse(value, version, ifindex, resolve).ok()?;
    let port = match value.strip_prefix('[') {
        Some(rest) => rest
            .split_once(']')
            .and_then(|(_, rest)| rest.strip_prefix(':')?.parse().ok()),
        None => ifname::entries(value, version)
            .first()
            .and_then(|e| e.port)
            .and_then(|port| u16::try_from(port).ok()),
    };
    Some(match remote.address {
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port.unwrap_or(0), 0, remote.scope).into(),
        ip => (ip, port.unwrap_or(0)).into(),
    })
}

/// What NCCL will do to reach an address. `from` is where the kernel would send from; `id` is
/// [`comm_id()`].
pub fn call(
    explanation: &Explanation,
    settings: &Settings,
    snapshot: &Snapshot,
    to: SocketAddr,
    from: Option<IpAddr>,
    id: Option<SocketAddr>,
) -> Call {
    let owners = |ip: IpAddr| {
        snapshot
            .netdevs
            .iter()
            .filter(move |n| n.addresses.iter().any(|a| a.address == ip))
    };
    let over: Vec<String> = from
        .into_iter()
        .flat_map(owners)
        .map(|n| n.name.to_string())
        .collect();
    let mut warnings = Vec::new();
    if let (Bootstrap::Uses(own, _), Some(from)) = (&explanation.bootstrap, from) {
        if own.address != from && !to.ip().is_loopback() {
            let ways: Vec<String> = snapshot
                .links_towards(to.ip())
                .iter()
                .map(ToString::to_string)
                .collect();
            let ways = if ways.is_empty() {
                over.join(", ")
            } else {
                ways.join(", ")
            };
            warnings.push(format!(
                "NCCL tells the others to call {} on {}, but what it sends to {} leaves from \
                {from} over {ways}",
                own.address,
                own.interface,
                to.ip()
            ));
        }
    }
    if let Some(id) = id.filter(|id| *id != to) {
        warnings.push(format!(
            "NCCL_COMM_ID is {id}: NCCL calls there, and not {to}"
        ));
    }
    if owners(to.ip()).next().is_some() {
        warnings.push(format!(
            "{} is an address of this network namespace: no packet leaves it",
            to.ip()
        ));
    }
    let (version, bootstrap) = (explanation.version, explanation.bootstrap.clone());
    Call {
        version,
        to,
        bootstrap,
        from,
        over,
        rules: Rules::new(settings, version),
        warnings,
    }
}

/// Where rank 0 listens: at NCCL_COMM_ID, or on its bootstrap interface. `port` 0 is what
/// NCCL_COMM_ID says, or [`PORT`].
pub fn wait(
    explanation: &Explanation,
    snapshot: &Snapshot,
    id: Option<SocketAddr>,
    port: u16,
) -> Option<Wait> {
    let Bootstrap::Uses(own, _) = &explanation.bootstrap else {
        return None;
    };
    let mut at = id.unwrap_or_else(|| match own.address {
        IpAddr::V6(ip) => {
            let index = own
                .scope
                .as_ref()
                .and_then(|name| comm_id::ifindex(snapshot, name.as_str()));
            SocketAddrV6::new(ip, 0, 0, index.unwrap_or(0)).into()
        }
        ip => (ip, 0).into(),
    });
    match (port, at.port()) {
        (0, 0) => at.set_port(PORT),
        (0, _) => {}
        (port, _) => at.set_port(port),
    }
    Some(Wait {
        version: explanation.version,
        at,
        bootstrap: explanation.bootstrap.clone(),
        by_id: id.is_some(),
    })
}

impl Wait {
    pub fn doing(&self) -> String {
        let why = if self.by_id {
            ", NCCL_COMM_ID's address: it has to be one of rank 0's node"
        } else {
            ""
        };
        format!("listening on {}{why}", self.at)
    }
}

impl Tried {
    pub fn complaint(&self) -> Option<String> {
        let Outcome::Failed {
            trouble,
            error,
            unfinished,
        } = &self.outcome
        else {
            return None;
        };
        let seconds = self.millis as f64 / 1000.0;
        let why = if *trouble == Trouble::Other {
            error.as_str()
        } else {
            trouble.meaning()
        };
        let times = if self.tries == 1 {
            "1 try".to_owned()
        } else {
            format!("{} tries", self.tries)
        };
        let more = if *unfinished {
            format!("; NCCL would go on: {}", self.call.rules)
        } else {
            String::new()
        };
        let from = self
            .call
            .from
            .map_or(String::new(), |from| format!(" from {from}"));
        Some(format!(
            "no way to {}{from}: {why} ({times} in {seconds:.1} s{more})",
            self.call.to
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::explain;

    fn node() -> Snapshot {
        let netdev = |name: &str, index: u32, address: &str| {
            serde_json::json!({"name": name, "ifindex": index, "up": true, "running": true,
                "addresses": [{"address": address, "prefix": 24}]})
        };
        let netdevs = [netdev("eth0", 2, "10.0.0.1"), netdev("eth1", 3, "10.0.1.1")];
        serde_json::from_value(serde_json::json!({"schema": 1, "hcas": [], "netdevs": netdevs}))
            .unwrap()
    }

    fn planned(env: &[(&str, &str)], to: &str, from: Option<&str>) -> Call {
        let (settings, seen) = (Settings::of(env.iter().copied(), "a test"), node());
        let explained = explain(&settings, &seen, Version::NEWEST, &|_| None);
        let id = comm_id(&settings, Version::NEWEST, &seen, &|_| None);
        let to = target(to, &seen, &|_| None).unwrap();
        call(
            &explained,
            &settings,
            &seen,
            to,
            from.map(|f| f.parse().unwrap()),
            id,
        )
    }

    #[test]
    fn targets_are_hosts_with_or_without_a_port() {
        let resolve = |name: &str| (name == "head").then(|| "10.0.0.9".parse().unwrap());
        let read = |text: &str| target(text, &node(), &resolve).map(|t| t.to_string());
        for (text, expected) in [
            ("10.0.0.2", "10.0.0.2:29500"),
            ("head:1", "10.0.0.9:1"),
            ("[2001:db8::1]", "[2001:db8::1]:29500"),
            ("[fe80::1%eth1]:5", "[fe80::1%3]:5"),
        ] {
            assert_eq!(read(text).unwrap(), expected);
        }
        for wrong in [
            "",
            ":1",
            "head:",
            "head:0",
            "head:65536",
            "head:+1",
            "2001:db8::1",
            "[::1",
            "no-such-host",
            "[fe80::1%x]:1",
            "a b",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn another_interface_is_told() {
        let same = planned(&[], "10.0.0.2", Some("10.0.0.1"));
        assert_eq!(
            (same.warnings.len(), same.over.as_slice()),
            (0, &["eth0".to_owned()][..])
        );
        let other = planned(
            &[("NCCL_SOCKET_IFNAME", "=eth0")],
            "10.0.1.2",
            Some("10.0.1.1"),
        );
        assert!(
            other.warnings[0].contains("10.0.0.1 on eth0") && other.warnings[0].contains("eth1"),
            "{other:?}"
        );
        let own = planned(&[], "10.0.0.1", Some("10.0.0.1"));
        assert!(own.warnings[0].contains("an address of this network namespace"));
        assert!(planned(&[], "192.0.2.1", None).over.is_empty());
    }

    #[test]
    fn the_comm_id_is_where_nccl_calls() {
        let id = |value: &str| {
            let settings = Settings::of([("NCCL_COMM_ID", value)], "a test");
            comm_id(&settings, Version::NEWEST, &node(), &|_| None).map(|id| id.to_string())
        };
        assert_eq!(id("10.0.0.2:29501").as_deref(), Some("10.0.0.2:29501"));
        assert_eq!(id("[fe80::1%eth0]:7").as_deref(), Some("[fe80::1%2]:7"));
        assert_eq!(
            (id("10.0.0.2").as_deref(), id("no-such-host:1")),
            (Some("10.0.0.2:0"), None)
        );
        let wrong = planned(
            &[("NCCL_COMM_ID", "192.0.2.1:5")],
            "10.0.0.2",
            Some("10.0.0.1"),
        );
        assert!(
            matches!(wrong.bootstrap, Bootstrap::Fails(_)),
            "no interface is in that subnet"
        );
        assert!(
            wrong.warnings[0].contains("NCCL_COMM_ID is 192.0.2.1:5"),
            "{wrong:?}"
        );
    }

    #[test]
    fn a_failure_says_all_that_is_known() {
        let call = planned(&[], "10.0.0.2:1", Some("10.0.0.1"));
        let outcome = Outcome::Failed {
            trouble: Trouble::Refused,
            error: "x".into(),
            unfinished: true,
        };
        let said = Tried {
            call,
            tries: 3,
            millis: 1500,
            outcome,
        }
        .complaint()
        .unwrap();
        for word in [
            "no way to 10.0.0.2:1 from 10.0.0.1",
            "refused",
            "3 tries in 1.5 s",
            "would go on: 35 tries",
        ] {
            assert!(said.contains(word), "{said}");
        }
    }
}
