//! The status of claims at the API server: what is applied to it, and what is refused.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::server::{CLAIMS, failure, not_found};

type Answer = (u16, Value);

/// By server-side apply: what that manager has applied before and leaves out now goes, what others
/// have applied stays.
pub fn apply(claims: &mut BTreeMap<String, Value>, path: &str, body: &[u8]) -> Answer {
    let (path, query) = path.split_once('?').unwrap_or_default();
    let manager = query
        .strip_prefix("fieldManager=")
        .and_then(|rest| rest.strip_suffix("&force=true"));
    let manager = manager.expect("a manager that insists");
    let key = path
        .strip_prefix(CLAIMS)
        .and_then(|rest| rest.strip_suffix("/status"))
        .expect("a claim's status")
        .replace("/resourceclaims/", "/");
    let applied: Value = serde_json::from_slice(body).unwrap();
    let (namespace, name) = key.split_once('/').unwrap();
    let Some(claim) = claims.get_mut(&key) else {
        return (404, not_found(name));
    };
    let metadata = &applied["metadata"];
    assert_eq!(
        (&metadata["name"], &metadata["namespace"]),
        (&json!(name), &json!(namespace))
    );
    if metadata["uid"] != claim["metadata"]["uid"] {
        return (409, failure("Precondition failed: UID in precondition"));
    }
    let devices = applied["status"]["devices"].as_array().unwrap().clone();
    for device in &devices {
        if let Err(why) = check(device, claim) {
            return (422, failure(&why));
        }
    }
    let field = format!("applied-{manager}");
    let before = claim[&field].as_array().cloned().unwrap_or_default();
    let there = claim["status"]["devices"].as_array().cloned();
    let mut all = there.unwrap_or_default();
    all.retain(|d| {
        ![&before, &devices]
            .into_iter()
            .flatten()
            .any(|own| is_same(own, d))
    });
    all.extend(devices.clone());
    claim["status"]["devices"] = json!(all);
    claim[&field] = json!(devices);
    (200, claim.clone())
}

fn is_same(one: &Value, other: &Value) -> bool {
    ["driver", "pool", "device"]
        .iter()
        .all(|name| one[name] == other[name])
}

/// As it was tried with the server of Kubernetes 1.36.
pub fn check(device: &Value, claim: &Value) -> Result<(), String> {
    let results = claim["status"]["allocation"]["devices"]["results"].as_array();
    if !results
        .into_iter()
        .flatten()
        .any(|result| is_same(result, device))
    {
        return Err("must be an allocated device in the claim".to_owned());
    }
    let conditions = device["conditions"].as_array().ok_or("conditions")?;
    if conditions.len() > 8 {
        return Err("must have at most 8 conditions".to_owned());
    }
    conditions.iter().try_for_each(condition)?;
    device.get("networkData").map_or(Ok(()), network)
}

fn condition(condition: &Value) -> Result<(), String> {
    let text = |name: &str| condition[name].as_str().unwrap_or_default();
    let reason = text("reason");
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ',' | ':');
    let fits = reason.starts_with(|c: char| c.is_ascii_alphabetic())
        && reason.chars().all(inner)
        && !reason.ends_with([',', ':'])
        && reason.len() <= 1024;
    if !fits {
        return Err(format!("reason: {reason}"));
    }
    if text("message").len() > 32_768 {
        return Err("message: may not be more than 32768 bytes".to_owned());
    }
    if !["True", "False", "Unknown"].contains(&text("status")) || text("type").is_empty() {
        return Err(format!("{condition}"));
    }
    let time = text("lastTransitionTime");
    match time.len() == 20 && time.ends_with('Z') {
        true => Ok(()),
        false => Err(format!("lastTransitionTime: {time}")),
    }
}

fn network(data: &Value) -> Result<(), String> {
    let text = |name: &str| data[name].as_str().unwrap_or_default();
    if text("interfaceName").len() > 256 || text("hardwareAddress").len() > 128 {
        return Err("too long".to_owned());
    }
    let ips: Vec<&str> = data["ips"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(Value::as_str)
        .collect();
    if ips.len() > 16 {
        return Err("must have at most 16 items".to_owned());
    }
    for (at, ip) in ips.iter().enumerate() {
        let (address, prefix) = ip.split_once('/').ok_or(format!("{ip} has no prefix"))?;
        let parsed: IpAddr = address.parse().map_err(|_| format!("{ip} is no address"))?;
        let is_mapped = matches!(parsed, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
        if parsed.to_string() != address || is_mapped || prefix.parse::<u8>().is_err() {
            return Err(format!("{ip} is not canonical"));
        }
        if ips[..at].contains(ip) {
            return Err(format!("{ip} twice"));
        }
    }
    Ok(())
}
