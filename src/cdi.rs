//! A specification for the Container Device Interface (SPEC.md of
//! github.com/cncf-tags/container-device-interface): each rail as a device.
//!
//! Devices are edits of config.json that an engine adds up, in the order in which they are asked
//! for. The environment of a later one overwrites that of an earlier one and of the user, so NCCL's
//! settings, which depend on all that is asked for, are not in it: each device has a hook that
//! names its rails, and the first of these hooks to run takes the rails of all of them (see
//! [`device_request`]), moves just these, and puts NCCL's settings into `/etc/nccl.conf`. An image
//! can set any environment, but it has no hooks. The crate container-device-interface 1.1.1 would
//! need Rust 1.86, an HTTP client and a C library for TLS, for a schema of six structures.

pub mod device_request;
mod rail;
mod request;

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::escape::is_plain;
use serde::{Deserialize, Serialize};

use crate::oci::edit::{HookEdit, Stage};
pub use rail::{Rail, RailName};

/// The file that engines read, where nothing else is said.
pub const FILE: &str = "/etc/cdi/rdmaprep.json";
/// A file that is larger was not written by us.
const LIMIT: usize = 4 << 20;
pub const KIND: &str = "rdmaprep.io/rail";
pub const ALL: &str = "all";
/// The flag of a hook that names a rail.
pub const FLAG: &str = "--rail";
/// The flag of a hook that says by which claim of Kubernetes.
pub const CLAIM: &str = "--claim";
/// The prefix of the variable for a rail; the device's name follows, so that none overwrites
/// another.
pub const VARIABLE: &str = "RDMAPREP_RAIL_";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The oldest version that has all that is used: engines refuse newer ones than they know.
    pub cdi_version: String,
    pub kind: String,
    #[serde(default)]
    pub devices: Vec<CdiDevice>,
    /// What each container with a device gets once, however many devices it has.
    #[serde(default)]
    pub container_edits: Edits,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiDevice {
    pub name: String,
    #[serde(default)]
    pub container_edits: Edits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<CdiNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<CdiHook>,
}

/// A device node. Its numbers are written here, not looked up by the engine: soft-RoCE gets its
/// node inside when its link is made again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiNode {
    pub path: String,
    #[serde(rename = "type", default)]
    pub kind: String,
    #[serde(default)]
    pub major: u32,
    #[serde(default)]
    pub minor: u32,
    #[serde(default)]
    pub file_mode: u32,
    /// Of `rwm`, for the cgroup.
    #[serde(default)]
    pub permissions: String,
    #[serde(default)]
    pub uid: u32,
    #[serde(default)]
    pub gid: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiHook {
    pub hook_name: Stage,
    pub path: String,
    #[serde(default)]
    pub args: Vec<String>,
    /// Seconds until the runtime kills it.
    #[serde(default)]
    pub timeout: u32,
}

impl Spec {
    /// Devices for these rails; `hooks` are a container's that gets all of them, without a word on
    /// which rails. Rails whose name cannot be a device's are in [`ALL`] alone: the second value
    /// says so.
    pub fn from_rails(rails: &[Rail], hooks: &[HookEdit]) -> (Spec, Vec<String>) {
        let (mut devices, mut notes): (Vec<CdiDevice>, Vec<String>) = (Vec::new(), Vec::new());
        for rail in rails {
            let name = rail.name.as_str();
            match unfit(name, devices.iter().any(|d| d.name == name)) {
                Some(why) => notes.push(format!(
                    "{name} is no device of its own, only part of {KIND}={ALL}: {why}"
                )),
                None => devices.push(device(name, std::slice::from_ref(rail), hooks)),
            }
        }
        devices.push(device(ALL, rails, hooks));
        let mut container_edits = Edits::default();
        for edit in hooks {
            use Stage::{CreateContainer, Poststart, Poststop};
            if matches!(edit.stage, CreateContainer | Poststart | Poststop) {
                container_edits.hooks.push(hook(edit, &[]));
            }
        }
        (
            Spec {
                cdi_version: version(&devices).to_owned(),
                kind: KIND.to_owned(),
                devices,
                container_edits,
            },
            notes,
        )
    }

    /// [`ErrorClass::Refused`]: another program wrote the file.
    pub fn parse(text: &str) -> Result<Spec> {
        ensure!(
            text.len() <= LIMIT,
            ErrorClass::Refused.error(format!("has {} bytes: it is not ours", text.len()))
        );
        let spec: Spec = serde_json::from_str(text).class(ErrorClass::Refused, "is not ours")?;
        ensure!(
            spec.kind == KIND,
            ErrorClass::Refused.error(format!("is of kind {:?}, not {KIND}", spec.kind))
        );
        Ok(spec)
    }

    pub fn lost<'s>(&'s self, newer: &Spec) -> Vec<&'s str> {
        let names = self.devices.iter().map(|d| d.name.as_str());
        names
            .filter(|name| !newer.devices.iter().any(|d| d.name == *name))
            .collect()
    }
}

impl CdiDevice {
    /// The rails that its hook names.
    pub fn rails(&self) -> Vec<RailName> {
        self.container_edits
            .hooks
            .iter()
            .flat_map(|h| device_request::named(&h.args))
            .collect()
    }

    /// HCA and port of a rail, by its variable.
    pub fn hca(&self, rail: &RailName) -> Option<&str> {
        let all = self.container_edits.env.iter();
        let mut pairs = all.filter_map(|env| env.strip_prefix(VARIABLE)?.split_once('='));
        let (_, hca) = pairs.find(|(name, _)| *name == rail.as_str())?;
        Some(hca).filter(|hca| !hca.is_empty())
    }
}

/// createRuntime alone: what knows devices of this interface knows that stage.
fn device(name: &str, rails: &[Rail], hooks: &[HookEdit]) -> CdiDevice {
    let mut edits = Edits::default();
    for rail in rails {
        // A name with `=` could not be read again: it would end there.
        if !rail.name.as_str().contains('=') {
            let hca = rail.hca.as_deref().unwrap_or_default();
            edits
                .env
                .push(format!("{VARIABLE}{}={hca}", rail.name.as_str()));
        }
        for node in &rail.nodes {
            let path = format!("/dev/infiniband/{}", node.name);
            if !edits.device_nodes.iter().any(|n| n.path == path) {
                edits.device_nodes.push(CdiNode {
                    path,
                    kind: "c".to_owned(),
                    major: node.major,
                    minor: node.minor,
                    // Verbs are for every user inside: the kernel guards each object by the process
                    // that made it.
                    file_mode: 0o666,
                    permissions: "rw".to_owned(),
                    uid: 0,
                    gid: 0,
                });
            }
        }
    }
    let words: Vec<String> = rails
        .iter()
        .flat_map(|r| [FLAG.to_owned(), r.name.to_string()])
        .collect();
    edits.hooks = hooks
        .iter()
        .filter(|h| h.stage == Stage::CreateRuntime)
        .map(|h| hook(h, &words))
        .collect();
    CdiDevice {
        name: name.to_owned(),
        container_edits: edits,
    }
}

fn hook(edit: &HookEdit, more: &[String]) -> CdiHook {
    let args = edit.args.iter().chain(more).cloned().collect();
    CdiHook {
        hook_name: edit.stage,
        path: edit.path.clone(),
        args,
        timeout: edit.timeout,
    }
}

/// Why that is no name for a device (SPEC.md, "CDI Devices"), or none for one more.
fn unfit(name: &str, is_taken: bool) -> Option<&'static str> {
    match name {
        ALL => Some("that device is all rails"),
        _ if is_taken => Some("a netdev and an HCA have this name"),
        _ if !name.is_empty()
            && is_plain(name, b"-_.:")
            && name.trim_matches(|c: char| !c.is_ascii_alphanumeric()) == name =>
        {
            None
        }
        _ => Some(
            "CDI allows letters, digits, '-', '_', '.', ':' in a device's name, the first and \
            last none of these signs",
        ),
    }
}

/// Before 0.5.0, a device's name began with a letter.
fn version(devices: &[CdiDevice]) -> &'static str {
    let mut names = devices.iter().map(|d| &d.name);
    match names.any(|name| name.starts_with(|c: char| c.is_ascii_digit())) {
        true => "0.5.0",
        false => "0.3.0",
    }
}
