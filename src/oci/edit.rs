//! OCI config in, OCI config out: what a hook can no longer do once the runtime has read
//! config.json. The edit is text to text, and editing twice equals editing once. What the user set
//! is never overridden, but reported.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use serde::Serialize;
use serde_json::Value;

use super::config::Config;
pub use super::config::{MAX_BYTES, NoMounts};
use super::edits::Work;
pub use super::edits::view_name;
use super::json_rewrite;
pub use super::wanted::{Edit, HookEdit, MountEdit, Stage};
use crate::config::network_mode::NetworkMode;
use crate::config::request::ANNOTATION;
use crate::deadline;
use crate::plan::Plan;

/// The annotation by which a container opts in to a plan.
pub const PLAN_ANNOTATION: &str = "rdmaprep.io/plan";

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Injected {
    /// Its text; byte for byte the given one where there is nothing to change.
    pub json: String,
    pub changes: Vec<String>,
    /// What we would have set but found set: one clause each.
    pub kept: Vec<String>,
    pub mounts_view: bool,
}

impl Edit {
    /// What a container needs for this plan; `program` is our own absolute path, `timeout` the
    /// hooks' in seconds, else one that goes by the number of NICs.
    pub fn for_plan(plan: &Plan, program: &str, timeout: Option<u32>) -> Edit {
        Edit {
            env: plan.env.clone(),
            stale: Vec::new(),
            devices: plan.devices.clone(),
            hooks: hooks(plan, program, timeout),
            annotations: vec![(PLAN_ANNOTATION.to_owned(), plan.name.clone())],
            memlock_unlimited: true,
            memlock_ceiling: None,
            mounts: Some(Vec::new()),
            views: String::new(),
            netdevs: plan.nics.iter().map(|n| n.name().clone()).collect(),
            network_mode: plan.network_mode,
        }
    }
}

/// Our hooks for a plan. Runtimes agree on prestart only, which is deprecated, so both it and
/// createRuntime are configured; the second to run finds the work done. The deadline that a hook
/// keeps leaves it the time to undo before the runtime kills it.
pub fn hooks(plan: &Plan, program: &str, timeout: Option<u32>) -> Vec<HookEdit> {
    hooks_for(
        &Stage::ALL,
        plan,
        deadline::weight_of(&plan.nics),
        program,
        timeout,
    )
}

pub fn hooks_for(
    stages: &[Stage],
    plan: &Plan,
    weight: usize,
    program: &str,
    timeout: Option<u32>,
) -> Vec<HookEdit> {
    let timeout = timeout.unwrap_or_else(|| deadline::timeout(weight));
    let deadline = deadline::before(timeout, weight).to_string();
    let mut hooks = Vec::new();
    for stage in stages.iter().copied() {
        let mut args = vec![
            "rdmaprep",
            "hook",
            stage.name(),
            "--plan",
            &plan.name,
            "--deadline",
            &deadline,
        ];
        if let Some(agreement) = &plan.agreement {
            args.extend(["--agreed", agreement.digest.as_str()]);
        }
        hooks.push(HookEdit {
            stage,
            path: program.to_owned(),
            args: args.into_iter().map(str::to_owned).collect(),
            timeout,
        });
    }
    hooks
}

/// The annotations of a config.json: what a container's author asks for. Of one that cannot be
/// edited they are read, too: it may be none of our business. One that is no string hides no other,
/// and of ours it asks all the same: the edit says what is wrong.
pub fn annotations(config_json: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (key, value) in Config::lenient(config_json).annotations() {
        let text = match value {
            Value::String(text) => text.clone(),
            _ if key.starts_with(ANNOTATION) => value.to_string(),
            _ => continue,
        };
        found.insert(key.clone(), text);
    }
    found
}

pub fn environment(config_json: &str) -> BTreeMap<String, String> {
    Config::lenient(config_json).environment()
}

pub fn has_own_dev(config_json: &str) -> bool {
    Config::lenient(config_json).has_own_dev()
}

/// The mount points that a config.json has below /sys, from there: `fs/cgroup`.
pub fn below_sys(config_json: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for mount in Config::for_edit(config_json)?.mounts()? {
        let mut parts: Vec<&str> = mount.destination.split('/').collect();
        parts.retain(|part| !matches!(*part, "" | "."));
        if let ["sys", rest @ ..] = &parts[..]
            && !rest.is_empty()
            && !rest.contains(&"..")
        {
            found.push(rest.join("/"));
        }
    }
    Ok(found)
}

pub fn no_mounts(config_json: &str) -> Result<Option<NoMounts>> {
    Config::for_edit(config_json)?.no_mounts()
}

pub fn netns_path(config_json: &str) -> Option<PathBuf> {
    Config::lenient(config_json).netns_path()
}

/// Whether a container with this config.json can have a plan for that network at all.
pub fn check(config_json: &str, mode: NetworkMode) -> Result<()> {
    Config::for_edit(config_json)?.check_network(mode, &[])
}

/// The container's id: the last word of the cgroup's path, where it looks as the ids that engines
/// make. A config.json does not have it.
pub fn container_id(config_json: &str) -> Option<String> {
    let path: String = Config::lenient(config_json)
        .part(&["linux", "cgroupsPath"])
        .ok()??;
    let word = path.rsplit(|c: char| !c.is_ascii_alphanumeric()).next()?;
    (word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit())).then(|| word.to_owned())
}

pub fn apply(config_json: &str, edit: &Edit) -> Result<Injected> {
    edit.check()?;
    let config = Config::for_edit(config_json)?;
    config.check_network(edit.network_mode, &edit.netdevs)?;
    let mut work = Work::new(&config)?;
    edit.stale.iter().try_for_each(|entry| work.forget(entry))?;
    edit.env.iter().try_for_each(|v| work.env(v))?;
    if edit.memlock_unlimited {
        work.memlock(edit.memlock_ceiling)?;
    }
    edit.hooks.iter().try_for_each(|h| work.hook(h))?;
    edit.annotations
        .iter()
        .try_for_each(|(k, v)| work.annotation(k, v))?;
    edit.devices.iter().try_for_each(|d| work.device(d))?;
    edit.mounts
        .iter()
        .try_for_each(|mounts| work.mounts(mounts, &edit.views))?;
    // What we hand back is read again: a runtime would refuse, or misread, a text that says
    // anything else.
    let json = json_rewrite::rewrite(config_json, config.value(), &work.new)
        .filter(|json| serde_json::from_str::<Value>(json).is_ok_and(|v| v == work.new))
        .ok_or_else(|| {
            ErrorClass::Other.error("the edited config.json could not be written out")
        })?;
    Ok(Injected {
        json,
        changes: work.changes,
        kept: work.kept,
        mounts_view: edit
            .mounts
            .iter()
            .flatten()
            .any(|m| m.destination.starts_with("/sys")),
    })
}

/// The change as a unified diff; empty where there is none.
pub fn diff(before: &str, after: &str) -> String {
    file_diff(["config.json", "config.json (prepared)"], before, after)
}

/// The change of a file of these names before and after.
pub fn file_diff(names: [&str; 2], before: &str, after: &str) -> String {
    if before == after {
        return String::new();
    }
    let mut options = diffy::DiffOptions::new();
    options
        .set_original_filename(names[0].to_owned())
        .set_modified_filename(names[1].to_owned());
    options.create_patch(before, after).to_string()
}
