//! What of a ResourceClaim is ours: checked, since the kubelet passes on its name alone.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use rdmaprep::store::claims::Named;
use serde_json::Value;

use crate::dra::{DRIVER, api};

/// A device that was allocated for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allotted {
    pub request: String,
    pub device: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// More than one where pods share the claim.
    pub pods: Vec<Named>,
    /// None where other drivers have the whole claim.
    pub devices: Vec<Allotted>,
}

/// Below the API server's root. A name that is none would be another path.
pub fn path(claim: &api::Claim) -> Result<String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    for name in [&claim.namespace, &claim.name] {
        ensure!(
            !name.is_empty() && name.chars().all(fits) && !name.starts_with('.'),
            "{name:?} is no name of Kubernetes"
        );
    }
    let (namespace, name) = (&claim.namespace, &claim.name);
    Ok(format!(
        "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
    ))
}

/// Whether the object is this claim, and has rails of that node.
pub fn is_allocated(claim: &api::Claim, object: &Value, node: &str) -> bool {
    let results = list(&object["status"]["allocation"]["devices"]["results"]);
    let is_ours = |result: &Value| result["driver"] == DRIVER && result["pool"] == node;
    object["metadata"]["uid"] == claim.uid.as_str() && results.iter().any(is_ours)
}

impl Allocation {
    pub fn of(claim: &api::Claim, object: &Value, node: &str) -> Result<Allocation> {
        ensure!(
            object["metadata"]["uid"] == claim.uid.as_str(),
            "the claim was deleted, and another one has its name"
        );
        let allocation = &object["status"]["allocation"];
        ensure!(allocation.is_object(), "the claim is not allocated");
        let results = list(&allocation["devices"]["results"]);
        let (mut devices, mut seen) = (Vec::new(), BTreeSet::new());
        for result in results.iter().filter(|r| r["driver"] == DRIVER) {
            let text = |name: &str| result[name].as_str().unwrap_or_default().to_owned();
            let device = text("device");
            ensure!(
                text("pool") == node,
                "{device} is of the pool {}, not of this node, {node}",
                text("pool")
            );
            ensure!(
                result["adminAccess"] != true,
                "{device} is asked for with adminAccess: a rail is given to one pod alone"
            );
            ensure!(
                seen.insert(device.clone()),
                "{device} is allocated more than once"
            );
            let request = text("request");
            // A sub-request, as of `firstAvailable`, is behind it.
            let request = request.split('/').next().unwrap_or_default().to_owned();
            devices.push(Allotted { request, device });
        }
        if !devices.is_empty() {
            check_config(list(&allocation["devices"]["config"]))?;
        }
        Ok(Allocation {
            pods: pods(object),
            devices,
        })
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// There is nothing to say yet. A wrong word must not mean the default.
fn check_config(configs: &[Value]) -> Result<()> {
    for config in configs.iter().filter(|c| c["opaque"]["driver"] == DRIVER) {
        let parameters = config["opaque"]["parameters"].as_object();
        let parameters = parameters.context("the parameters of its config are no object")?;
        if let Some(name) = parameters.keys().next() {
            bail!("its config has {name:?}, which {DRIVER} does not know");
        }
    }
    Ok(())
}

/// For which a claim is reserved; an entry may also be a group of pods.
pub fn pods(object: &Value) -> Vec<Named> {
    let reserved = list(&object["status"]["reservedFor"]);
    let is_core = |r: &Value| r["apiGroup"].as_str().is_none_or(str::is_empty);
    let pods = reserved
        .iter()
        .filter(|r| r["resource"] == "pods" && is_core(r));
    pods.map(|r| Named {
        name: r["name"].as_str().unwrap_or_default().to_owned(),
        uid: r["uid"].as_str().unwrap_or_default().to_owned(),
    })
    .collect()
}
