//! The one model of a config.json: its JSON, and a type for each part of it that we read or write.
//! Each part is read by itself, by its path. The rest is between its author and the runtime, and
//! survives an edit: runtimes have extensions, and a capability or a seccomp architecture that this
//! build does not know is no reason to refuse.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;

use crate::config::network_mode::NetworkMode;
use anyhow::{Result, anyhow, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::IfName;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json_rewrite;

pub const MAX_BYTES: usize = 16 << 20;

pub const NOT_OCI: &str = "config.json is no OCI runtime configuration";

/// Paths that lead to a namespace which is the runtime's or the host's own.
const HOST_NETNS: [&str; 3] = [
    "/proc/1/ns/net",
    "/proc/self/ns/net",
    "/proc/thread-self/ns/net",
];

const HOOK_LISTS: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

#[derive(Clone, Debug, PartialEq)]
pub struct Config(Value);

#[derive(Clone, Debug, Deserialize)]
pub struct OciRoot {
    /// Relative to the bundle.
    pub path: PathBuf,
    #[serde(default)]
    pub readonly: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct OciMount {
    #[serde(default)]
    pub destination: String,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub source: Option<String>,
    pub options: Option<Vec<String>>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Rlimit {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub hard: u64,
    #[serde(default)]
    pub soft: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct OciNamespace {
    #[serde(rename = "type")]
    pub kind: String,
    pub path: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OciDevice {
    #[serde(default)]
    pub path: String,
    /// `c` and `u` are character devices.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub major: i64,
    #[serde(default)]
    pub minor: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct DeviceRule {
    #[serde(default)]
    pub allow: bool,
    /// `a`, or absent: every kind.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Absent or negative: every number.
    pub major: Option<i64>,
    pub minor: Option<i64>,
    /// Some of `rwm`; absent or empty: all.
    pub access: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct OciHook {
    pub path: String,
    pub args: Option<Vec<String>>,
    /// Seconds.
    pub timeout: Option<i64>,
}

impl OciDevice {
    pub fn is_char(&self) -> bool {
        matches!(self.kind.as_str(), "c" | "u")
    }
}

impl Config {
    /// [`ErrorClass::State`] if it is too large, no JSON, or no object.
    pub fn parse(text: &str) -> Result<Config> {
        let bytes = text.len();
        ensure!(
            bytes <= MAX_BYTES,
            ErrorClass::State.error(format!(
                "config.json has {bytes} bytes; no more than {MAX_BYTES} are read"
            ))
        );
        let value: Value =
            serde_json::from_str(text).class(ErrorClass::State, "config.json is not JSON")?;
        ensure!(
            value.is_object(),
            ErrorClass::State.error("config.json is JSON, but not an object")
        );
        Ok(Config(value))
    }

    /// For a text of which others report what is wrong: what is no JSON has no parts.
    pub fn lenient(text: &str) -> Config {
        Config(serde_json::from_str(text).unwrap_or_default())
    }

    /// Reads a text, and refuses one that we cannot prepare for these netdevs.
    pub fn for_edit(text: &str) -> Result<Config> {
        let config = Config::parse(text)?;
        if let Some(key) = json_rewrite::duplicate_key(text) {
            let clash = format!(
                "config.json has the key {key:?} twice in one object; runtimes disagree on which \
                counts"
            );
            return Err(ErrorClass::State.error(clash));
        }
        config.check()?;
        Ok(config)
    }

    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The part at a path, of that type; null counts as none, as it does in Go.
    /// [`ErrorClass::State`] names the path of a part of another type.
    pub fn part<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Option<T>> {
        let mut part = &self.0;
        for (depth, key) in path.iter().enumerate() {
            let object = part
                .as_object()
                .ok_or_else(|| anyhow!("{}: not an object", path[..depth].join(".")));
            match object.class(ErrorClass::State, NOT_OCI)?.get(*key) {
                None | Some(Value::Null) => return Ok(None),
                Some(inner) => part = inner,
            }
        }
        T::deserialize(part)
            .map(Some)
            .map_err(|e| anyhow!("{}: {e}", path.join(".")))
            .class(ErrorClass::State, NOT_OCI)
    }

    pub fn list<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Vec<T>> {
        self.part(path).map(Option::unwrap_or_default)
    }

    pub fn mounts(&self) -> Result<Vec<OciMount>> {
        self.list(&["mounts"])
    }

    pub fn hooks(&self, stage: &str) -> Result<Vec<OciHook>> {
        self.list(&["hooks", stage])
    }

    pub fn hook_args(&self) -> impl Iterator<Item = Vec<String>> {
        let lists = self
            .0
            .get("hooks")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|lists| lists.values());
        let hooks = lists.filter_map(Value::as_array).flatten();
        hooks.filter_map(|hook| Vec::deserialize(hook.get("args")?).ok())
    }

    /// The environment of its process; what is no text is left out.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let env = self.0.pointer("/process/env").and_then(Value::as_array);
        pairs(env.into_iter().flatten().filter_map(Value::as_str))
    }

    /// The user that it runs as.
    pub fn user(&self) -> u32 {
        let uid = self.0.pointer("/process/user/uid").and_then(Value::as_u64);
        uid.and_then(|uid| u32::try_from(uid).ok())
            .unwrap_or_default()
    }

    /// What it runs, as exec has it.
    pub fn program(&self) -> Option<String> {
        let first = self.0.pointer("/process/args/0").and_then(Value::as_str);
        first.map(str::to_owned)
    }

    /// Its annotations, of which those that are no text are JSON.
    pub fn annotations(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0
            .get("annotations")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
    }

    /// Whether a create hook of ours without `--plan` runs in a container of containerd's CRI
    /// plugin that was given none of its pod's annotations: containerd passes on those that the
    /// handler's `pod_annotations` lists (internal/cri/server in containerd 2.1), and adds some of
    /// its own.
    pub fn lacks_pod_annotations(&self) -> bool {
        const CRI: &str = "io.kubernetes.cri.";
        let mut annotations = self.annotations().peekable();
        annotations.peek().is_some()
            && annotations.all(|(key, _)| key.starts_with(CRI))
            && self.hook_args().any(|args| {
                args.get(1..3)
                    .is_some_and(|two| two == ["hook", "createRuntime"])
                    && !args
                        .iter()
                        .any(|arg| arg == "--plan" || arg.starts_with("--plan="))
            })
    }

    /// The network namespace that it names by path: one that exists before the container.
    pub fn netns_path(&self) -> Option<PathBuf> {
        let namespaces = self.0.pointer("/linux/namespaces")?.as_array()?;
        let network = namespaces
            .iter()
            .find(|n| n.get("type").and_then(Value::as_str) == Some("network"))?;
        network
            .get("path")?
            .as_str()
            .filter(|p| !p.is_empty())
            .map(PathBuf::from)
    }

    /// Whether its container gets a /dev of its own, where a mount point can be made without
    /// touching an image or the host.
    pub fn has_own_dev(&self) -> bool {
        let mut mounts = self.0["mounts"].as_array().into_iter().flatten();
        let dev = mounts.rfind(|m| is_mounted_at(m, "/dev"));
        dev.is_some_and(|m| m["type"] == "tmpfs")
    }

    pub fn no_mounts(&self) -> Result<Option<NoMounts>> {
        let mounts = self.mounts()?;
        let mut at = mounts
            .iter()
            .filter(|m| m.destination.trim_end_matches('/') == "/sys")
            .peekable();
        // Ours, from an earlier edit, lies over the first one.
        if !at.peek().is_some_and(|first| {
            first.kind.as_deref() == Some("sysfs") || first.source.as_deref() == Some("/sys")
        }) {
            return Ok(Some(NoMounts::NoSysfs));
        }
        let propagation: Option<String> = self.part(&["linux", "rootfsPropagation"])?;
        let mut options = at
            .flat_map(|m| m.options.iter().flatten())
            .chain(&propagation);
        if options.any(|option| matches!(option.as_str(), "shared" | "rshared")) {
            return Ok(Some(NoMounts::Shared));
        }
        Ok(self.mount_label()?.map(|_| NoMounts::Labelled))
    }

    /// `linux.mountLabel`: the SELinux context of what is mounted for it.
    pub fn mount_label(&self) -> Result<Option<String>> {
        Ok(self
            .part(&["linux", "mountLabel"])?
            .filter(|label: &String| !label.is_empty()))
    }

    /// The parts that we touch are what the specification says.
    fn check(&self) -> Result<()> {
        let version: Option<String> = self.part(&["ociVersion"])?;
        version
            .ok_or_else(|| anyhow!("missing field `ociVersion`"))
            .class(ErrorClass::State, NOT_OCI)?;
        self.list::<String>(&["process", "env"])?;
        self.list::<Rlimit>(&["process", "rlimits"])?;
        self.list::<OciDevice>(&["linux", "devices"])?;
        self.list::<DeviceRule>(&["linux", "resources", "devices"])?;
        self.part::<HashMap<String, IgnoredAny>>(&["hooks"])?;
        HOOK_LISTS
            .iter()
            .try_for_each(|list| self.hooks(list).map(drop))?;
        self.part::<HashMap<String, String>>(&["annotations"])?;
        self.no_mounts()?;
        self.mount_label()?;
        for name in ["linux", "process"] {
            if self.part::<HashMap<String, IgnoredAny>>(&[name])?.is_none() {
                let text = format!("config.json has no {name} section");
                return Err(ErrorClass::State.error(text));
            }
        }
        Ok(())
    }

    /// The container has a network namespace of its own, or joins one, and no other program may
    /// move our NICs into it; or it is on the host's network, where nothing moves.
    pub fn check_network(&self, mode: NetworkMode, netdevs: &[IfName]) -> Result<()> {
        let namespaces: Option<Vec<OciNamespace>> = self.part(&["linux", "namespaces"])?;
        let namespaces = namespaces
            .ok_or_else(|| ErrorClass::State.error("config.json has no linux.namespaces"))?;
        let network = namespaces.iter().find(|n| n.kind == "network");
        let path = network.map(|n| n.path.as_deref().unwrap_or_default());
        let text = match (mode, path) {
            (NetworkMode::Own, None) => {
                "the container shares the host's network (linux.namespaces has no entry of type \
                network): a NIC cannot be moved into it; start it with `--network none`, or on a \
                bridge, or see `--network-mode host`"
                    .to_owned()
            }
            (NetworkMode::Own, Some(path)) if HOST_NETNS.contains(&path) => {
                format!("the container's network namespace {path} is the host's own")
            }
            (NetworkMode::Host, Some(path)) if !HOST_NETNS.contains(&path) => {
                "its plan, or its annotation, is for containers on the host's network, and \
                linux.namespaces gives this one a network of its own"
                    .to_owned()
            }
            _ => return self.check_net_devices(netdevs),
        };
        Err(ErrorClass::Refused.error(text))
    }

    fn check_net_devices(&self, netdevs: &[IfName]) -> Result<()> {
        let moved: Option<HashMap<String, IgnoredAny>> = self.part(&["linux", "netDevices"])?;
        match moved
            .iter()
            .flatten()
            .find(|(name, _)| netdevs.iter().any(|n| n.as_str() == *name))
        {
            Some((name, _)) => Err(ErrorClass::Refused.error(format!(
                "linux.netDevices names {name}: the runtime would move it without its routes, \
                rules and sysctls and never return it; remove that entry"
            ))),
            None => Ok(()),
        }
    }
}

/// Whether that mount of a config.json is at this folder.
pub(super) fn is_mounted_at(mount: &Value, folder: &str) -> bool {
    let at = mount["destination"].as_str();
    at.is_some_and(|at| at.trim_end_matches('/') == folder)
}

/// An environment by name. Of what is there twice the last counts, as runc has it
/// (libcontainer/env.go); one without `=` is empty.
pub fn pairs<'e>(env: impl Iterator<Item = &'e str>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for text in env {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        found.insert(name.to_owned(), value.to_owned());
    }
    found
}

/// Why nothing can be mounted below a config.json's /sys before the container is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMounts {
    /// There is no /sys, or none of the kernel's.
    NoSysfs,
    /// What is mounted there would be mounted on the host, too.
    Shared,
    /// `linux.mountLabel` is set: the create hook mounts with that label.
    Labelled,
}

impl fmt::Display for NoMounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoMounts::NoSysfs => "config.json mounts no sysfs at /sys",
            NoMounts::Shared => {
                "what is mounted in this container would be mounted on the host, too (shared \
                propagation)"
            }
            NoMounts::Labelled => "linux.mountLabel is set: the create hook mounts with that label",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_whose_annotations_are_kept_back() {
        let lacks = |annotations: &str, args: &str| {
            let hooks =
                format!(r#"{{"createRuntime":[{{"path":"/usr/bin/rdmaprep","args":[{args}]}}]}}"#);
            Config::lenient(&format!(
                r#"{{"annotations":{{{annotations}}},"hooks":{hooks}}}"#
            ))
            .lacks_pod_annotations()
        };
        let (cri, hook) = (
            r#""io.kubernetes.cri.sandbox-id":"a""#,
            r#""rdmaprep","hook","createRuntime""#,
        );
        assert!(lacks(cri, hook));
        for (annotations, args) in [
            ("", hook),
            (&format!(r#"{cri},"rdmaprep.io/plan":"p""#), hook),
            (&format!(r#"{cri},"example.org/other":"x""#), hook),
            (cri, r#""rdmaprep","hook","createRuntime","--plan","p""#),
            (cri, r#""other","hook","prestart""#),
        ] {
            assert!(!lacks(annotations, args), "{annotations} {args}");
        }
        assert!(!Config::lenient("").lacks_pod_annotations());
    }
}
