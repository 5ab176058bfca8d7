//! What a bound claim's status says of our devices: whether its pod has them, why not, and by which
//! names and addresses the network knows them. The API server refuses the whole status for one
//! value that does not fit (pkg/apis/resource/validation of Kubernetes 1.36), so each is made to.

use std::net::IpAddr;

use ipnet::IpNet;
use rdma_model::escape::printable;
use rdma_model::ids::Mac;
use rdma_model::moved_nic::MovedNic;
use rdmaprep::cdi::RailName;
use rdmaprep::record::{Phase, Record};
use rdmaprep::store::claims::{Binding, Bound};
use rdmaprep::store::records::Records;
use serde_json::{Map, Value, json};

use crate::dra::away::record_has;
use crate::dra::{DRIVER, slice};
use crate::rail::{Rail, Shown};

/// Of a condition, in bytes.
const LONGEST_MESSAGE: usize = 32_768;
const MOST_ADDRESSES: usize = 16;
const READY: &str = "Ready";

/// What is known of the node when a status is written.
pub struct Look<'a> {
    pub pool: &'a str,
    pub shown: &'a Shown,
    pub records: &'a Records<'a>,
}

struct State {
    is_ready: bool,
    reason: &'static str,
    message: String,
}

impl State {
    fn not_ready(reason: &'static str, message: impl Into<String>) -> State {
        State {
            is_ready: false,
            reason,
            message: message.into(),
        }
    }
}

impl Look<'_> {
    /// An entry of `status.devices` for each rail of the claim, without times. `refused` are the
    /// words with which the create hook refused its pod's last container.
    pub fn devices(&self, binding: &Binding, refused: Option<String>) -> Vec<Value> {
        let rails = binding.rails.iter();
        rails
            .map(|bound| self.device(binding, bound, refused.as_deref()))
            .collect()
    }

    fn device(&self, binding: &Binding, bound: &Bound, refused: Option<&str>) -> Value {
        let record = self.record(binding, bound);
        let state = match record {
            Some(record) => away(binding, record),
            None => self.on_host(binding, bound, refused),
        };
        let mut device = json!({
            "driver": DRIVER,
            "pool": self.pool,
            "device": bound.device,
            "conditions": [{
                "type": READY,
                "status": if state.is_ready { "True" } else { "False" },
                "reason": state.reason,
                "message": bounded(&printable(&state.message), LONGEST_MESSAGE),
            }],
        });
        let network = match record {
            Some(record) if !binding.is_of_pod_in(record) => None,
            Some(record) => nic(record, bound).map(inside),
            None if binding.ended => None,
            None => self.here(bound),
        };
        if let Some(network) = network {
            device["networkData"] = network;
        }
        device
    }

    /// That of its pod's namespace, while it is there.
    fn record(&self, binding: &Binding, bound: &Bound) -> Option<&Record> {
        self.records.readable().find(|record| {
            !record.is_back()
                && record.claims.contains(&binding.claim.uid)
                && record_has(record, &bound.rail)
        })
    }

    fn on_host(&self, binding: &Binding, bound: &Bound, refused: Option<&str>) -> State {
        if binding.ended {
            return State::not_ready("Returned", "back on the host");
        }
        if let Some(words) = refused {
            return State::not_ready("Refused", words);
        }
        // Also where a record that cannot be read has it: the rail is not here then.
        match self.rail(bound).and_then(|rail| rail.unhealthy) {
            Some(why) => State::not_ready("Unhealthy", why),
            None => State::not_ready("Prepared", "no container of its pod has it yet"),
        }
    }

    fn here(&self, bound: &Bound) -> Option<Value> {
        let rail = self.rail(bound)?;
        let name = rail.facts.netdev.as_deref()?;
        let addresses = rail.addresses.iter().copied();
        Some(network_data(name, rail.facts.mac.as_ref(), addresses))
    }

    fn rail(&self, bound: &Bound) -> Option<Rail> {
        let (devices, _) = slice::devices(self.shown);
        let device = devices.iter().find(|d| d.name == bound.device)?;
        Some(device.rail.clone())
    }
}

fn away(binding: &Binding, record: &Record) -> State {
    let pod = binding.pod.as_ref().map_or("", |pod| &pod.name);
    if !record.held_back.is_empty() {
        return State::not_ready("NotWhole", record.held_back.join("; "));
    }
    if !binding.is_of_pod_in(record) {
        return State::not_ready(
            "Returning",
            "the pod that had it before has yet to return it",
        );
    }
    match record.phase {
        Phase::Attached if !binding.ended => State {
            is_ready: true,
            reason: "Attached",
            message: format!("in the network namespace of pod {pod}"),
        },
        Phase::Attaching if !binding.ended => {
            State::not_ready("Attaching", format!("on its way to pod {pod}"))
        }
        _ if binding.ended => {
            State::not_ready("Returning", format!("pod {pod} has ended: on its way back"))
        }
        // From a pod that had the claim before.
        _ => State::not_ready("Returning", "on its way back"),
    }
}

fn nic<'r>(record: &'r Record, bound: &Bound) -> Option<&'r MovedNic> {
    let RailName::Netdev(name) = &bound.rail else {
        return None;
    };
    record.held.iter().find(|nic| nic.name() == name)
}

fn inside(nic: &MovedNic) -> Value {
    let link = &nic.inside.netdev;
    let addresses = link.addresses.iter();
    let addresses = addresses.filter_map(|a| IpNet::new(a.address, a.prefix).ok());
    network_data(link.name.as_str(), link.mac.as_ref(), addresses)
}

fn network_data(name: &str, mac: Option<&Mac>, addresses: impl Iterator<Item = IpNet>) -> Value {
    let mut data = Map::new();
    data.insert("interfaceName".to_owned(), json!(name));
    let mut ips: Vec<IpNet> = Vec::new();
    for address in addresses.filter(is_plain) {
        if !ips.contains(&address) {
            ips.push(address);
        }
    }
    // Where there are too many, these tell the least.
    ips.sort_by_key(is_link_local);
    ips.truncate(MOST_ADDRESSES);
    if !ips.is_empty() {
        let ips: Vec<String> = ips.iter().map(IpNet::to_string).collect();
        data.insert("ips".to_owned(), json!(ips));
    }
    if let Some(mac) = mac {
        data.insert("hardwareAddress".to_owned(), json!(mac.to_string()));
    }
    Value::Object(data)
}

/// IPv4 in the form of IPv6 is refused.
fn is_plain(address: &IpNet) -> bool {
    !matches!(address.addr(), IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

fn is_link_local(address: &IpNet) -> bool {
    match address.addr() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Its beginning, of so many bytes at most.
pub fn bounded(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Those of the devices that are allocated in the claim, and nothing is refused for.
pub fn allocated(wanted: &[Value], object: &Value) -> Vec<Value> {
    let results = object["status"]["allocation"]["devices"]["results"].as_array();
    let is_in = |device: &&Value| {
        let mut results = results.into_iter().flatten();
        results.any(|result| is_same(result, device))
    };
    wanted.iter().filter(is_in).cloned().collect()
}

fn is_same(one: &Value, other: &Value) -> bool {
    let names = ["driver", "pool", "device"];
    names.iter().all(|name| one[name] == other[name])
}

fn ours<'v>(object: &'v Value, pool: &str) -> Vec<&'v Value> {
    let all = object["status"]["devices"].as_array().into_iter().flatten();
    all.filter(|d| d["driver"] == DRIVER && d["pool"] == pool)
        .collect()
}

/// With the time since when each is as it is: what the claim says already, or `now`.
pub fn with_times(wanted: &mut [Value], object: &Value, now: &str) {
    let there = object["status"]["devices"].as_array();
    for device in wanted {
        let known = there.into_iter().flatten().find(|d| is_same(d, device));
        let conditions = known.and_then(|d| d["conditions"].as_array());
        let known = conditions
            .into_iter()
            .flatten()
            .find(|c| c["type"] == READY);
        let condition = &mut device["conditions"][0];
        let same = known.filter(|c| c["status"] == condition["status"]);
        let time = same.and_then(|c| c["lastTransitionTime"].as_str());
        condition["lastTransitionTime"] = json!(time.unwrap_or(now));
    }
}

/// Whether the claim says that, and no more of ours.
pub fn is_told(wanted: &[Value], object: &Value, pool: &str) -> bool {
    let there = ours(object, pool);
    there.len() == wanted.len() && wanted.iter().all(|device| there.contains(&device))
}
