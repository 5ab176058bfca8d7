//! systemd-networkd: what it says of a link by its state file, and which addresses, routes and
//! rules it says are its own. The methods are in org.freedesktop.network1(5); the file is what
//! sd_network_link_get_setup_state(3) reads.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use ipnet::IpNet;
use rdma_model::manager::Foreign;
use rdma_model::snapshot::{Address, Neighbour, Nexthop, Route, Rule};
use rdma_model::step::NicState;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Word;
use super::bus::{Bus, Callee};
use super::networkd_config::FOLDERS;
use super::rule_key::{Mark, RuleKey};
use crate::disk::files;

pub const NAME: &str = "org.freedesktop.network1";
const ROOT: &str = "/org/freedesktop/network1";

fn state_file(root: &Path, ifindex: u32) -> PathBuf {
    root.join("run/systemd/netif/links")
        .join(ifindex.to_string())
}

/// The setup state as networkctl(1) shows it; absent where networkd has not seen the link.
pub fn state(root: &Path, ifindex: u32) -> Option<String> {
    value(root, ifindex, "ADMIN_STATE=")
}

fn value(root: &Path, ifindex: u32, key: &str) -> Option<String> {
    let text = files::read_through(&state_file(root, ifindex)).ok()??;
    text.lines()
        .find_map(|line| line.strip_prefix(key))
        .map(str::to_owned)
}

/// The main file by which it configures a link.
pub fn file(root: &Path, ifindex: u32) -> Option<PathBuf> {
    value(root, ifindex, "NETWORK_FILE=").map(PathBuf::from)
}

/// The files that add to a main one.
pub fn drop_ins(root: &Path, main: &Path) -> Option<Vec<PathBuf>> {
    let folder = format!("network/{}.d", main.file_name()?.to_str()?);
    // In the order of their names. Of one name the last folder's counts, which may be a link to
    // /dev/null (systemd.network(5)).
    let mut drop_ins = BTreeMap::new();
    for at in FOLDERS {
        let entries = fs::read_dir(root.join(at).join(&folder)).into_iter();
        for path in entries.flatten().flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|ends| ends == "conf") {
                drop_ins.insert(path.file_name()?.to_owned(), path);
            }
        }
    }
    Some(drop_ins.into_values().collect())
}

/// What takes longer waits for a carrier, a lease or a router that may never come.
const STALLED: Duration = Duration::from_secs(120);

/// Whether it has said nothing of a link for long.
pub fn is_stalled(root: &Path, ifindex: u32) -> bool {
    let written = fs::metadata(state_file(root, ifindex)).and_then(|file| file.modified());
    let since = written.ok().and_then(|at| at.elapsed().ok());
    since.is_some_and(|since| since > STALLED)
}

/// What it says of a link that came at `since`: it deletes the file when a link leaves, so an older
/// one is of a networkd that does not run any more.
pub fn word(root: &Path, ifindex: u32, since: SystemTime) -> Word {
    let written = state_file(root, ifindex)
        .metadata()
        .and_then(|file| file.modified());
    match state(root, ifindex)
        .filter(|_| written.is_ok_and(|at| at >= since))
        .as_deref()
    {
        None => Word::NotBegun,
        Some("configured") => Word::Done,
        Some("failed" | "unmanaged" | "linger") => Word::Unmanaged,
        Some("configuring") => Word::Configuring,
        Some(_) => Word::NotBegun,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Link {
    #[serde(default)]
    addresses: Vec<DescribedAddress>,
    #[serde(default)]
    neighbors: Vec<DescribedNeighbour>,
    #[serde(default)]
    routes: Vec<DescribedRoute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Manager {
    #[serde(default)]
    next_hops: Vec<DescribedNexthop>,
    #[serde(default)]
    routes: Vec<DescribedRoute>,
    #[serde(default)]
    routing_policy_rules: Vec<DescribedRule>,
}

/// `ConfigSource` of what others have made.
const FOREIGN: &str = "foreign";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DescribedAddress {
    config_source: String,
    address: Option<Vec<u8>>,
    prefix_length: Option<u8>,
}

impl DescribedAddress {
    fn owns(&self, address: &Address) -> bool {
        self.config_source != FOREIGN
            && ip(&self.address) == Some(address.address)
            && self.prefix_length == Some(address.prefix)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DescribedNeighbour {
    config_source: String,
    destination: Option<Vec<u8>>,
    link_layer_address: Option<Vec<u8>>,
}

impl DescribedNeighbour {
    fn owns(&self, neighbour: &Neighbour) -> bool {
        self.config_source != FOREIGN
            && !neighbour.proxy
            && ip(&self.destination) == Some(neighbour.address)
            && self.link_layer_address.as_deref()
                == neighbour.mac.as_ref().map(|mac| mac.0.as_slice())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DescribedRoute {
    config_source: String,
    destination: Option<Vec<u8>>,
    destination_prefix_length: Option<u8>,
    gateway: Option<Vec<u8>>,
    table: Option<u32>,
    priority: Option<u32>,
}

impl DescribedRoute {
    fn owns(&self, route: &Route) -> bool {
        let gateway = match route.hops.as_slice() {
            [only] => only.gateway == ip(&self.gateway),
            _ => true,
        };
        let destination = net(&self.destination, self.destination_prefix_length);
        self.config_source != FOREIGN
            && gateway
            && destination == Some(route.destination)
            && self.table == Some(route.table)
            && self.priority.is_none_or(|own| is_metric(own, route))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DescribedNexthop {
    #[serde(rename = "ID")]
    id: u32,
    config_source: String,
}

/// The kernel gives an IPv6 route of no metric that of IP6_RT_PRIO_USER
/// (include/uapi/linux/ipv6_route.h).
fn is_metric(metric: u32, route: &Route) -> bool {
    let chosen = match route.destination {
        IpNet::V4(_) => 0,
        IpNet::V6(_) => 1024,
    };
    let [one, other] = [metric, route.metric.unwrap_or(0)].map(|m| if m == 0 { chosen } else { m });
    one == other
}

/// The fields as routing_policy_rule_build_json() in systemd's networkd-json.c writes them: those
/// that can be absent there are what the rule does not go by.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DescribedRule {
    config_source: String,
    family: Option<u8>,
    from_prefix: Option<Vec<u8>>,
    from_prefix_length: Option<u8>,
    to_prefix: Option<Vec<u8>>,
    to_prefix_length: Option<u8>,
    priority: Option<u32>,
    table: Option<u32>,
    incoming_interface: Option<String>,
    outgoing_interface: Option<String>,
    #[serde(flatten)]
    more: Option<More>,
}

/// Written of every rule, or of none by an old networkd: routing_policy_rule_build_json() has only
/// the fields above in its first form.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct More {
    #[serde(rename = "TOS")]
    tos: u8,
    r#type: Option<u8>,
    #[serde(rename = "IPProtocol", default)]
    ip_protocol: u8,
    #[serde(default)]
    firewall_mark: u32,
    #[serde(default)]
    firewall_mask: u32,
    #[serde(default)]
    invert: bool,
    source_port: Option<[u16; 2]>,
    destination_port: Option<[u16; 2]>,
    user: Option<[u32; 2]>,
    suppress_prefix_length: Option<u32>,
}

/// AF_INET6.
const V6: u8 = 10;

impl DescribedRule {
    fn owns(&self, rule: &Rule) -> bool {
        self.config_source != FOREIGN && self.key(rule) == RuleKey::of(rule)
    }

    /// What it does not say is as in that rule.
    fn key(&self, rule: &Rule) -> RuleKey {
        let family = self.family.map(|family| if family == V6 { 6 } else { 4 });
        let key = RuleKey {
            family: family.unwrap_or(rule.family),
            priority: self.priority.unwrap_or(rule.priority),
            source: net(&self.from_prefix, self.from_prefix_length),
            destination: net(&self.to_prefix, self.to_prefix_length),
            iif: self.incoming_interface.clone(),
            oif: self.outgoing_interface.clone(),
            // One that leads to no table has none.
            table: self.table.unwrap_or(0),
            ..RuleKey::of(rule)
        };
        let Some(more) = &self.more else {
            return key;
        };
        RuleKey {
            tos: more.tos,
            action: more.r#type.unwrap_or(rule.action),
            inverted: more.invert,
            mark: Mark::new(more.firewall_mark, more.firewall_mask),
            ip_protocol: more.ip_protocol,
            source_ports: more.source_port,
            destination_ports: more.destination_port,
            users: more.user,
            suppressed: more.suppress_prefix_length,
            ..key
        }
    }
}

fn ip(bytes: &Option<Vec<u8>>) -> Option<IpAddr> {
    let bytes = bytes.as_deref()?;
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

fn net(bytes: &Option<Vec<u8>>, length: Option<u8>) -> Option<IpNet> {
    IpNet::new(ip(bytes)?, length?).ok()
}

/// What is of no link, and networkd has made.
pub struct Own {
    rules: Vec<DescribedRule>,
    routes: Vec<DescribedRoute>,
    nexthops: Vec<u32>,
}

impl Own {
    pub fn has_rule(&self, rule: &Rule) -> bool {
        self.rules.iter().any(|own| own.owns(rule))
    }

    /// A route's legs by an object are the object's.
    pub fn has_route(&self, route: &Route) -> bool {
        let plain = route.with(Vec::new());
        self.routes.iter().any(|own| own.owns(&plain))
    }

    pub fn has_nexthop(&self, nexthop: &Nexthop) -> bool {
        self.nexthops.contains(&nexthop.id)
    }
}

pub fn own(bus: &mut Bus) -> Result<Own> {
    let interface = "org.freedesktop.network1.Manager";
    let manager: Manager = describe(
        bus,
        Callee {
            name: NAME,
            path: ROOT,
            interface,
        },
    )?;
    let mut routes = manager.routes;
    // The kernel has IPv6 routes without a device over lo.
    routes.extend(described_link(bus, LOOPBACK).map_or(Vec::new(), |lo| lo.routes));
    routes.retain(|route| route.config_source != FOREIGN);
    let mut nexthops = manager.next_hops;
    nexthops.retain(|n| n.config_source != FOREIGN);
    Ok(Own {
        rules: manager.routing_policy_rules,
        routes,
        nexthops: nexthops.into_iter().map(|n| n.id).collect(),
    })
}

/// LOOPBACK_IFINDEX (include/net/flow.h).
const LOOPBACK: u32 = 1;

fn described_link(bus: &mut Bus, ifindex: u32) -> Result<Link> {
    let path = object(ifindex);
    let interface = "org.freedesktop.network1.Link";
    describe(
        bus,
        Callee {
            name: NAME,
            path: &path,
            interface,
        },
    )
}

/// What of a link's state is not networkd's.
pub fn foreign(bus: &mut Bus, state: &NicState, all: &Own) -> Result<Foreign> {
    let link = described_link(bus, state.netdev.ifindex)?;
    let addresses = state
        .netdev
        .addresses
        .iter()
        .filter(|a| !link.addresses.iter().any(|own| own.owns(a)));
    let neighbours = state
        .netdev
        .neighbours
        .iter()
        .filter(|n| !link.neighbors.iter().any(|own| own.owns(n)));
    let routes = state
        .routes
        .iter()
        .filter(|r| !link.routes.iter().any(|own| own.owns(r)));
    let rules = state.rules.iter().filter(|r| !all.has_rule(r));
    Ok(Foreign {
        addresses: addresses.cloned().collect(),
        neighbours: neighbours.cloned().collect(),
        routes: routes.cloned().collect(),
        rules: rules.cloned().collect(),
    })
}

/// The path of a link's object: a digit at its beginning is escaped (bus_label_escape() in
/// systemd's bus-label.c).
fn object(ifindex: u32) -> String {
    let digits = ifindex.to_string();
    let (first, rest) = digits.split_at(1);
    format!("{ROOT}/link/_3{first}{rest}")
}

fn describe<T: DeserializeOwned>(bus: &mut Bus, callee: Callee) -> Result<T> {
    let answer = bus.call::<u32>(callee, "Describe", &[])?;
    let text: &str = answer.body.parser().get()?;
    serde_json::from_str(text).context("what networkd describes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_links_are_escaped() {
        assert_eq!(object(2), "/org/freedesktop/network1/link/_32");
        assert_eq!(object(123), "/org/freedesktop/network1/link/_3123");
    }

    fn route(text: &str, metric: Option<u32>) -> Route {
        Route {
            destination: text.parse().unwrap(),
            source: None,
            table: 254,
            protocol: 4,
            scope: 0,
            kind: 1,
            tos: 0,
            metric,
            prefsrc: None,
            hops: vec![rdma_model::snapshot::Hop::default()],
            other: Default::default(),
        }
    }

    fn described(destination: &[u8], length: u8, priority: u32) -> DescribedRoute {
        let text = serde_json::json!({
            "ConfigSource": "static", "Destination": destination, "Table": 254,
            "DestinationPrefixLength": length, "Priority": priority,
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_route_of_another_metric_is_foreign() {
        let own = described(&[10, 20, 0, 0], 16, 1024);
        assert!(own.owns(&route("10.20.0.0/16", Some(1024))));
        assert!(!own.owns(&route("10.20.0.0/16", Some(50))));
        assert!(!own.owns(&route("10.20.0.0/16", None)));
        assert!(described(&[10, 20, 0, 0], 16, 0).owns(&route("10.20.0.0/16", None)));
        let mut v6 = [0; 16];
        v6[0] = 0xfd;
        assert!(described(&v6, 8, 0).owns(&route("fd00::/8", Some(1024))));
        assert!(!described(&v6, 8, 0).owns(&route("fd00::/8", Some(100))));
    }

    /// `from 10.0.0.1 to 10.9.0.0/16 fwmark 7 lookup 100 pref 50`, as networkd 252 has it.
    const RULE: &str = r#"{"Family":2,"FromPrefix":[10,0,0,1],"FromPrefixLength":32,
        "ToPrefix":[10,9,0,0],"ToPrefixLength":16,"Protocol":4,"ProtocolString":"static","TOS":0,
        "Type":1,"TypeString":"table","IPProtocol":6,"IPProtocolString":"tcp","Priority":50,
        "FirewallMark":7,"FirewallMask":4294967295,"Table":100,"TableString":"100","Invert":false,
        "SourcePort":[1000,2000],"IncomingInterface":"lo","OutgoingInterface":"r0",
        "ConfigSource":"static","ConfigState":"configured"}"#;

    fn rule() -> Rule {
        let hex = rdma_model::ids::Hex;
        let other = [
            (10, hex(7u32.to_ne_bytes().to_vec())),
            (14, hex(vec![0xff; 4])),
            (16, hex(vec![0xff; 4])),
            (21, hex(vec![4])),
            (22, hex(vec![6])),
            (
                23,
                hex([1000u16.to_ne_bytes(), 2000u16.to_ne_bytes()].concat()),
            ),
        ];
        Rule {
            family: 4,
            priority: 50,
            source: Some("10.0.0.1/32".parse().unwrap()),
            destination: Some("10.9.0.0/16".parse().unwrap()),
            iif: Some("lo".to_owned()),
            oif: Some("r0".to_owned()),
            table: 100,
            action: 1,
            tos: 0,
            flags: 0,
            other: other.into(),
        }
    }

    #[test]
    fn a_rule_that_goes_by_something_else_is_foreign() {
        let own: DescribedRule = serde_json::from_str(RULE).unwrap();
        assert!(own.owns(&rule()));
        let changes: [fn(&mut Rule); 12] = [
            |rule| rule.destination = None,
            |rule| rule.source = None,
            |rule| rule.iif = None,
            |rule| rule.oif = Some("r1".to_owned()),
            |rule| rule.table = 101,
            |rule| rule.tos = 0x10,
            |rule| rule.flags = 2,
            |rule| rule.other.remove(&10).map(drop).unwrap(),
            |rule| rule.other.remove(&22).map(drop).unwrap(),
            |rule| rule.other.remove(&23).map(drop).unwrap(),
            |rule| drop(rule.other.insert(20, rdma_model::ids::Hex(vec![0; 8]))),
            |rule| drop(rule.other.insert(14, rdma_model::ids::Hex(vec![0; 4]))),
        ];
        for (place, change) in changes.into_iter().enumerate() {
            let mut other = rule();
            change(&mut other);
            assert!(!own.owns(&other), "change {place}");
        }
    }

    #[test]
    fn what_an_old_networkd_does_not_say_is_not_compared() {
        let text = RULE.replace(r#""TOS":0,"#, "");
        let own: DescribedRule = serde_json::from_str(&text).unwrap();
        let mut marked = rule();
        marked.other.clear();
        assert!(own.owns(&marked));
        marked.destination = None;
        assert!(!own.owns(&marked));
    }
}
