//! The result of ADD: what earlier plugins made, and the NICs behind it.

use std::path::Path;

use rdma_model::error_class::ErrorClass;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::Netdev;
use rdma_model::step::kernel_address;
use serde_json::{Map, Value, json};

use super::{Code, NEWEST, Problem};

/// With the NICs that are inside now, under the names that they keep; `netns` is the path that the
/// runtime gave.
pub fn result(
    version: &str,
    before: Option<&Value>,
    held: &[MovedNic],
    netns: &Path,
) -> Result<Value, Problem> {
    let mut result = match before {
        None => Map::new(),
        Some(Value::Object(before)) => before.clone(),
        Some(_) => return Err(unusable("is no object")),
    };
    result.insert("cniVersion".to_owned(), version.into());
    let mut interfaces = list(&result, "interfaces")?;
    let mut all_ips = list(&result, "ips")?;
    let first = interfaces.len();
    interfaces.extend(held.iter().map(|h| interface(version, h, netns)));
    all_ips.extend(
        held.iter()
            .enumerate()
            .flat_map(|(at, h)| ips(version, &h.inside.netdev, first + at)),
    );
    // A pod that asks for nothing: as if this plugin were not there.
    if !held.is_empty() {
        result.insert("interfaces".to_owned(), interfaces.into());
        result.insert("ips".to_owned(), all_ips.into());
    }
    Ok(result.into())
}

fn unusable(why: &str) -> Problem {
    Problem::new(
        Code::Content,
        ErrorClass::Usage,
        format!("prevResult of the network configuration {why}"),
    )
}

fn list(result: &Map<String, Value>, key: &str) -> Result<Vec<Value>, Problem> {
    match result.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => Ok(list.clone()),
        Some(_) => Err(unusable(&format!("has `{key}` that is no list"))),
    }
}

fn interface(version: &str, held: &MovedNic, netns: &Path) -> Value {
    let dev = &held.inside.netdev;
    let mac = dev
        .mac
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut interface = json!({"name": dev.name, "mac": mac, "sandbox": netns});
    if version == NEWEST {
        interface["mtu"] = dev.mtu.into();
        if let Some(pci) = held.nic.identity.pci {
            interface["pciID"] = pci.to_string().into();
        }
    }
    interface
}

/// Without the link-local addresses that the kernel makes.
fn ips(version: &str, dev: &Netdev, interface: usize) -> Vec<Value> {
    let mut ips = Vec::new();
    for a in dev.addresses.iter().filter(|a| !kernel_address(a, dev)) {
        let mut ip =
            json!({"address": format!("{}/{}", a.address, a.prefix), "interface": interface});
        if version.starts_with("0.") {
            ip["version"] = if a.address.is_ipv6() { "6" } else { "4" }.into();
        }
        ips.push(ip);
    }
    ips
}
