//! OCI config in, OCI config out: what a hook can no longer do once the runtime has read config.json.
//!
//! The edit is text to text, and editing twice equals editing once. What the user set stays: it is reported, never overridden.

use rdma_model::nic::EnvVar;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use super::config::MAX_BYTES;
use super::config::{Config, Mount};
use super::edits::Work;
pub use super::edits::view_name;
use super::json_rewrite;
use crate::config::request::ANNOTATION;
use crate::deadline;
use crate::plan::Plan;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::snapshot::CharDevice;

/// The annotation by which a container opts in to a plan.
pub const PLAN_ANNOTATION: &str = "rdmaprep.io/plan";

/// What shall be in a config.json.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Edit {
    /// Environment of the process.
    pub env: Vec<EnvVar>,
    /// What an earlier edit put into the environment, `NAME=VALUE`, and goes.
    pub stale: Vec<String>,
    /// Device nodes below `/dev/infiniband`, each with its cgroup rule.
    pub devices: Vec<CharDevice>,
    /// Our hooks.
    pub hooks: Vec<HookEdit>,
    /// Annotations, key and value.
    pub annotations: Vec<(String, String)>,
    /// RDMA pins memory: lift RLIMIT_MEMLOCK.
    pub memlock_unlimited: bool,
    /// Directories of ours, mounted read-only below the container's /sys, instead of those of an earlier edit.
    pub mounts: Option<Vec<MountEdit>>,
    /// The host's folder of views: by this, mounts of an earlier edit are told from others.
    pub views: String,
    /// NICs that our hooks will move; `linux.netDevices` must not name them as well.
    pub netdevs: Vec<IfName>,
}

/// One of our directories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountEdit {
    /// Where the container sees it: `/sys`, or a directory below; or a file of its own.
    pub destination: String,
    /// Where it is on the host.
    pub source: String,
}

/// One of our hooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HookEdit {
    /// When it runs.
    pub stage: Stage,
    /// Absolute path of the program.
    pub path: String,
    /// Arguments from `argv[0]` on: `rdmaprep hook STAGE …`.
    pub args: Vec<String>,
    /// Seconds until the runtime kills it.
    pub timeout: u32,
}

/// The hook lists that we use, by their names in config.json.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
#[value(rename_all = "camelCase")]
pub enum Stage {
    /// Namespaces exist, nothing of the user's runs: attach. Deprecated, yet the only one that every runtime knows
    Prestart,
    /// The same moment under its newer name; the second of the two finds the work done
    CreateRuntime,
    /// The payload has begun: repeat what the runtime's own network set-up tore down
    Poststart,
    /// The container has ended: bring everything back
    Poststop,
}

impl Stage {
    /// All stages, in the order in which they run.
    pub const ALL: [Stage; 4] = [Stage::Prestart, Stage::CreateRuntime, Stage::Poststart, Stage::Poststop];

    /// The key below `hooks`, and the argument of `rdmaprep hook`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Prestart => "prestart",
            Stage::CreateRuntime => "createRuntime",
            Stage::Poststart => "poststart",
            Stage::Poststop => "poststop",
        }
    }
}

/// The edited config.json.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Injected {
    /// Its text; byte for byte the given one where there is nothing to change.
    pub json: String,
    /// What was changed: one clause each.
    pub changes: Vec<String>,
    /// What we would have set but found set: one clause each.
    pub kept: Vec<String>,
    /// Whether it mounts a view of /sys.
    pub mounts_view: bool,
}

impl Edit {
    /// What a container needs for this plan; `program` is our own absolute path, `timeout` the hooks' in seconds,
    /// else one that goes by the number of NICs.
    pub fn for_plan(plan: &Plan, program: &str, timeout: Option<u32>) -> Edit {
        Edit {
            env: plan.env.clone(),
            stale: Vec::new(),
            devices: plan.devices.clone(),
            hooks: hooks(plan, program, timeout),
            annotations: vec![(PLAN_ANNOTATION.to_owned(), plan.name.clone())],
            memlock_unlimited: true,
            mounts: Some(Vec::new()),
            views: String::new(),
            netdevs: plan.nics.iter().map(|n| n.identity.name.clone()).collect(),
        }
    }

    fn check(&self) -> Result<()> {
        for d in &self.devices {
            // umad and issm would let a container talk to the fabric's management.
            let numbered = d.name.strip_prefix("uverbs").is_some_and(|n| n.parse::<u32>().is_ok());
            ensure!(
                numbered || d.name == "rdma_cm",
                ErrorClass::Refused.error(format!("device node {:?} is not for containers", d.name))
            );
        }
        for h in &self.hooks {
            let usable = h.path.starts_with('/') && !h.args.is_empty() && h.timeout > 0;
            ensure!(
                usable,
                ErrorClass::Usage.error(format!("hook {:?} needs an absolute path, arguments and a timeout", h.path))
            );
        }
        Ok(())
    }
}

/// Our hooks for a plan. Runtimes agree on prestart only, which is deprecated, so both it and createRuntime are configured;
/// the second to run finds the work done. The deadline that a hook keeps leaves it the time to undo before the runtime kills it.
pub fn hooks(plan: &Plan, program: &str, timeout: Option<u32>) -> Vec<HookEdit> {
    hooks_for(plan, plan.nics.len(), program, timeout)
}

/// The same for that many NICs.
pub fn hooks_for(plan: &Plan, nics: usize, program: &str, timeout: Option<u32>) -> Vec<HookEdit> {
    let timeout = timeout.unwrap_or_else(|| deadline::timeout(nics));
    let deadline = deadline::before(timeout, nics).to_string();
    let hook = |stage: Stage| {
        let args = ["rdmaprep", "hook", stage.name(), "--plan", &plan.name, "--deadline", &deadline];
        let agreed = plan.agreement.iter().flat_map(|a| ["--agreed", a.digest.as_str()]);
        let args = args.into_iter().chain(agreed).map(str::to_owned).collect();
        HookEdit { stage, path: program.to_owned(), args, timeout }
    };
    Stage::ALL.map(hook).to_vec()
}

/// The annotations of a config.json: what a container's author asks for. Of one that cannot be edited they are read, too: it may
/// be none of our business. One that is no string hides no other, and of ours it asks all the same: the edit says what is wrong.
pub fn annotations(config_json: &str) -> BTreeMap<String, String> {
    let config: Option<serde_json::Value> = serde_json::from_str(config_json).ok();
    let all = config.as_ref().and_then(|c| c.get("annotations")?.as_object());
    let pair = |(key, value): (&String, &serde_json::Value)| match value.as_str() {
        Some(text) => Some((key.clone(), text.to_owned())),
        None => key.starts_with(ANNOTATION).then(|| (key.clone(), value.to_string())),
    };
    all.into_iter().flatten().filter_map(pair).collect()
}

/// The environment of a config.json's process.
pub fn environment(config_json: &str) -> BTreeMap<String, String> {
    let config: Option<serde_json::Value> = serde_json::from_str(config_json).ok();
    let env = config.as_ref().and_then(|c| c.get("process")?.get("env")?.as_array());
    pairs(env.into_iter().flatten().filter_map(|e| e.as_str()))
}

/// An environment by name. Of what is there twice the last counts, as runc has it (libcontainer/env.go); one without `=` is empty.
pub fn pairs<'e>(env: impl Iterator<Item = &'e str>) -> BTreeMap<String, String> {
    let pair = |text: &str| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        (name.to_owned(), value.to_owned())
    };
    env.map(pair).collect()
}

/// Whether a config.json gives its container a /dev of its own, where a mount point can be made without touching an image or the
/// host.
pub fn has_own_dev(config_json: &str) -> bool {
    let config: Option<serde_json::Value> = serde_json::from_str(config_json).ok();
    let mounts = config.as_ref().and_then(|c| c.get("mounts")?.as_array());
    let text = |m: &serde_json::Value, key: &str| m.get(key).and_then(|v| v.as_str()).unwrap_or_default().to_owned();
    let is_dev = |m: &&serde_json::Value| text(m, "destination").trim_end_matches('/') == "/dev";
    mounts.into_iter().flatten().rfind(is_dev).is_some_and(|m| text(m, "type") == "tmpfs")
}

/// The mount points that a config.json has below /sys, from there: `fs/cgroup`.
pub fn below_sys(config_json: &str) -> Result<Vec<String>> {
    let mounts = Config::read(config_json, &[])?.mounts;
    let parts = |m: &Mount| -> Option<String> {
        let mut parts = m.destination.split('/').filter(|part| !matches!(*part, "" | "."));
        let rest: Vec<&str> = (parts.next() == Some("sys")).then(|| parts.collect())?;
        (!rest.is_empty() && !rest.contains(&"..")).then(|| rest.join("/"))
    };
    Ok(mounts.iter().filter_map(parts).collect())
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
                "what is mounted in this container would be mounted on the host, too (shared propagation)"
            }
            NoMounts::Labelled => "linux.mountLabel is set: the create hook mounts with that label",
        })
    }
}

/// Whether nothing can be mounted below a config.json's /sys, and why.
pub fn no_mounts(config_json: &str) -> Result<Option<NoMounts>> {
    Ok(Config::read(config_json, &[])?.no_mounts())
}

/// The network namespace that a config.json names by path: one that exists before the container.
pub fn netns_path(config_json: &str) -> Option<PathBuf> {
    let config: serde_json::Value = serde_json::from_str(config_json).ok()?;
    let namespaces = config.get("linux")?.get("namespaces")?.as_array()?;
    let network = namespaces.iter().find(|n| n.get("type").and_then(|t| t.as_str()) == Some("network"))?;
    network.get("path")?.as_str().filter(|p| !p.is_empty()).map(PathBuf::from)
}

/// Edits a config.json.
pub fn apply(config_json: &str, edit: &Edit) -> Result<Injected> {
    edit.check()?;
    let config = Config::read(config_json, &edit.netdevs)?;
    let mut work = Work::new(config);
    edit.stale.iter().try_for_each(|entry| work.forget(entry))?;
    edit.env.iter().try_for_each(|v| work.env(v))?;
    if edit.memlock_unlimited {
        work.memlock()?;
    }
    edit.hooks.iter().try_for_each(|h| work.hook(h))?;
    edit.annotations.iter().try_for_each(|(k, v)| work.annotation(k, v))?;
    edit.devices.iter().try_for_each(|d| work.device(d))?;
    edit.mounts.iter().try_for_each(|mounts| work.mounts(mounts, &edit.views))?;
    // What we hand back is read again: a runtime would refuse, or misread, a text that says anything else.
    let json = json_rewrite::rewrite(config_json, &work.config.value, &work.new)
        .filter(|json| serde_json::from_str::<serde_json::Value>(json).is_ok_and(|v| v == work.new))
        .ok_or_else(|| ErrorClass::Other.error("the edited config.json could not be written out"))?;
    Ok(Injected {
        json,
        changes: work.changes,
        kept: work.kept,
        mounts_view: edit.mounts.iter().flatten().any(|m| m.destination.starts_with("/sys")),
    })
}

/// The change as a unified diff; empty where there is none.
pub fn diff(before: &str, after: &str) -> String {
    file_diff(["config.json", "config.json (prepared)"], before, after)
}

/// The same for a file of these names before and after.
pub fn file_diff(names: [&str; 2], before: &str, after: &str) -> String {
    let diff = similar::TextDiff::from_lines(before, after);
    diff.unified_diff().context_radius(3).header(names[0], names[1]).to_string()
}
