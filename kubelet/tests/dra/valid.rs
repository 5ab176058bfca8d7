//! What the API server refuses: of a slice, as it was tried with that of Kubernetes 1.36; of an
//! event of events.k8s.io/v1, as its validation says (pkg/apis/core/validation/events.go).

use std::collections::BTreeSet;

use serde_json::Value;

pub fn slice(slice: &Value) -> Result<(), String> {
    let name = slice["metadata"]["name"].as_str().unwrap_or_default();
    subdomain(name, 253)?;
    let spec = &slice["spec"];
    subdomain(spec["driver"].as_str().unwrap_or_default(), 63)?;
    let pool = spec["pool"]["name"].as_str().unwrap_or_default();
    pool.split('/').try_for_each(|part| subdomain(part, 253))?;
    if spec["pool"]["resourceSliceCount"]
        .as_u64()
        .is_none_or(|n| n == 0)
    {
        return Err("resourceSliceCount".to_owned());
    }
    let devices = spec["devices"].as_array().ok_or("devices")?;
    let tainted = devices.iter().any(|d| d.get("taints").is_some());
    if devices.len() > if tainted { 64 } else { 128 } {
        return Err(format!("{} devices", devices.len()));
    }
    let mut names = BTreeSet::new();
    for device in devices {
        let name = device["name"].as_str().unwrap_or_default();
        label(name)?;
        if !names.insert(name) {
            return Err(format!("{name} is listed more than once"));
        }
        one(device).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

fn one(device: &Value) -> Result<(), String> {
    let attributes = device["attributes"].as_object().ok_or("attributes")?;
    let capacity = device["capacity"].as_object().ok_or("capacity")?;
    if attributes.len() + capacity.len() > 32 {
        return Err("more than 32 attributes and capacities".to_owned());
    }
    for name in attributes.keys().chain(capacity.keys()) {
        let own = name.rsplit('/').next().unwrap_or_default();
        let is_identifier = own.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && own.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if own.len() > 32 || !is_identifier {
            return Err(format!("attribute {name}"));
        }
        if let Some((domain, _)) = name.split_once('/') {
            subdomain(domain, 63)?;
        }
    }
    for (name, value) in attributes {
        let value = value.as_object().ok_or("a value")?;
        let (kind, value) = value.iter().next().ok_or("no value")?;
        let fits = match kind.as_str() {
            "int" => value.is_i64(),
            "bool" => value.is_boolean(),
            "string" => value.as_str().is_some_and(|s| s.len() <= 64),
            "version" => value.as_str().is_some_and(is_semver),
            _ => false,
        };
        if !fits {
            return Err(format!("{name}: {kind} {value}"));
        }
    }
    for value in capacity.values() {
        let text = value["value"].as_str().unwrap_or_default();
        let number = text.trim_end_matches(['G', 'T']);
        if number.len() + 1 < text.len() || number.parse::<u64>().is_err() {
            return Err(format!("quantity {text}"));
        }
    }
    for taint in device["taints"].as_array().into_iter().flatten() {
        let value = taint["value"].as_str().unwrap_or_default();
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
        let fits = value.len() <= 63
            && value.chars().all(inner)
            && ends(value.chars().next())
            && ends(value.chars().last());
        if !fits
            || !["None", "NoSchedule", "NoExecute"].contains(&taint["effect"].as_str().unwrap())
        {
            return Err(format!("taint {taint}"));
        }
    }
    Ok(())
}

pub fn event(namespace: &str, event: &Value) -> Result<(), String> {
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    subdomain(event["metadata"]["name"].as_str().unwrap_or_default(), 253)?;
    let places = [&event["metadata"], &event["regarding"]];
    if places.iter().any(|at| at["namespace"] != namespace) {
        return Err("regarding.namespace: does not match event.namespace".to_owned());
    }
    // A time of other digits does not decode.
    let time = text("eventTime");
    let digits = time.split_once('.').map(|(_, rest)| rest.len());
    if time.len() != 27 || digits != Some(7) || !time.ends_with('Z') {
        return Err(format!("eventTime: {time}"));
    }
    if !["Normal", "Warning"].contains(&text("type")) {
        return Err(format!("type: {}", text("type")));
    }
    for (name, most) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        if !(1..=most).contains(&text(name).len()) {
            return Err(format!("{name}: {}", text(name)));
        }
    }
    if text("note").len() > 1024 {
        return Err("note: can have at most 1024 characters".to_owned());
    }
    let (domain, name) = text("reportingController")
        .split_once('/')
        .unwrap_or_default();
    subdomain(domain, 253).and(label(name))?;
    let old = ["deprecatedSource", "deprecatedCount", "series"];
    match old.iter().find(|name| event.get(**name).is_some()) {
        Some(name) => Err(format!("{name}: needs to be unset")),
        None => Ok(()),
    }
}

pub fn is_semver(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let is_number = |p: &&str| {
        !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()) && (*p == "0" || !p.starts_with('0'))
    };
    text.len() <= 64 && parts.len() == 3 && parts.iter().all(is_number)
}

fn label(name: &str) -> Result<(), String> {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = (1..=63).contains(&name.len())
        && name.chars().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    fits.then_some(()).ok_or(format!("{name:?} is no label"))
}

fn subdomain(name: &str, most: usize) -> Result<(), String> {
    if name.len() > most {
        return Err(format!("{name} is too long"));
    }
    name.split('.').try_for_each(label)
}
