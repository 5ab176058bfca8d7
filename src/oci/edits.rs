use super::config::{
    Config, DeviceRule, NOT_OCI, OciDevice, OciHook, OciMount, Rlimit, is_mounted_at, pairs,
};
use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::nic::EnvVar;
use rdma_model::snapshot::CharDevice;
use serde::Serialize;
use serde_json::{Map, Value};

use super::wanted::{HookEdit, MountEdit};

const MEMLOCK: &str = "RLIMIT_MEMLOCK";

pub struct Work {
    env: Vec<String>,
    rlimits: Vec<Rlimit>,
    devices: Vec<OciDevice>,
    rules: Vec<DeviceRule>,
    annotations: HashMap<String, String>,
    pub new: Value,
    pub changes: Vec<String>,
    pub kept: Vec<String>,
}

impl Work {
    pub fn new(config: &Config) -> Result<Work> {
        Ok(Work {
            env: config.list(&["process", "env"])?,
            rlimits: config.list(&["process", "rlimits"])?,
            devices: config.list(&["linux", "devices"])?,
            rules: config.list(&["linux", "resources", "devices"])?,
            annotations: config.part(&["annotations"])?.unwrap_or_default(),
            new: config.value().clone(),
            changes: Vec::new(),
            kept: Vec::new(),
        })
    }

    pub fn env(&mut self, var: &EnvVar) -> Result<()> {
        let EnvVar { name, value, why } = var;
        let own = pairs(self.env.iter().map(String::as_str)).remove(name);
        match own {
            Some(own) if own == *value => {}
            Some(own) => self.kept.push(format!(
                "{name}={own} of the container stays (not {value}: {why})"
            )),
            None => {
                let entry = format!("{name}={value}");
                self.env.push(entry.clone());
                list(&mut self.new, &["process", "env"])?.push(entry.clone().into());
                self.changes.push(format!("environment {entry} ({why})"));
            }
        }
        Ok(())
    }

    pub fn forget(&mut self, entry: &str) -> Result<()> {
        let before = self.env.len();
        self.env.retain(|e| e != entry);
        if self.env.len() < before {
            list(&mut self.new, &["process", "env"])?.retain(|e| e != entry);
            self.changes
                .push(format!("environment: no {entry} any more"));
        }
        Ok(())
    }

    /// As far as the `ceiling`: the runtime does not start a container whose limit it may not set.
    pub fn memlock(&mut self, ceiling: Option<u64>) -> Result<()> {
        let limits = &self.rlimits;
        let most = ceiling.unwrap_or(u64::MAX);
        let ours: Vec<usize> = (0..limits.len())
            .filter(|i| limits[*i].kind == MEMLOCK)
            .collect();
        let limit = Rlimit {
            kind: MEMLOCK.to_owned(),
            hard: most,
            soft: most,
        };
        let mut low = ours.clone();
        low.retain(|i| limits[*i].soft < most || limits[*i].hard < most);
        self.kept.extend(ceiling.map(|bytes| {
            format!(
                "RLIMIT_MEMLOCK is {bytes} bytes at most, the hard limit here: more takes \
                CAP_SYS_RESOURCE, which this process lacks. RDMA pins memory; `lift_memlock = \
                false` leaves the container's own limit"
            )
        }));
        if low.is_empty() && !ours.is_empty() {
            return Ok(());
        }
        let was = low
            .first()
            .map_or("unset".to_owned(), |i| limits[*i].soft.to_string());
        let list = list(&mut self.new, &["process", "rlimits"])?;
        for slot in list
            .iter_mut()
            .enumerate()
            .filter_map(|(i, v)| low.contains(&i).then_some(v))
        {
            merge(slot, &limit)?;
        }
        if ours.is_empty() {
            list.push(serde_json::to_value(limit)?);
        }
        let now = ceiling.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
        self.changes
            .push(format!("RLIMIT_MEMLOCK {now} (was {was})"));
        Ok(())
    }

    /// Takes the place of an earlier hook of ours for the same stage, wherever it was installed
    /// then; others stay.
    pub fn hook(&mut self, edit: &HookEdit) -> Result<()> {
        let hook = OciHook {
            path: edit.path.clone(),
            args: Some(edit.args.clone()),
            timeout: Some(i64::from(edit.timeout)),
        };
        let list = list(&mut self.new, &["hooks", edit.stage.name()])?;
        let before = list.clone();
        match list.iter_mut().find(|h| is_ours(h, edit)) {
            Some(slot) => merge(slot, &hook)?,
            None => list.push(serde_json::to_value(&hook)?),
        }
        let mut first = true;
        list.retain(|h| !is_ours(h, edit) || std::mem::take(&mut first));
        if *list != before {
            self.changes.push(format!(
                "hook {}: {} {}",
                edit.stage.name(),
                edit.path,
                edit.args[1..].join(" ")
            ));
        }
        Ok(())
    }

    pub fn annotation(&mut self, key: &str, value: &str) -> Result<()> {
        match self.annotations.get(key) {
            Some(own) if own == value => {}
            Some(own) => self.kept.push(format!(
                "annotation {key}={own} of the container stays (not {value})"
            )),
            None => {
                self.annotations.insert(key.to_owned(), value.to_owned());
                object(&mut self.new, &["annotations"])?.insert(key.to_owned(), value.into());
                self.changes.push(format!("annotation {key}={value}"));
            }
        }
        Ok(())
    }

    /// Ours take the place of those of an earlier edit. A tree for all of /sys comes right after
    /// what is mounted there, so that what the container has below /sys stays on top; all else
    /// comes last.
    pub fn mounts(&mut self, mounts: &[MountEdit], views: &str) -> Result<()> {
        let list = match self.new.get("mounts") {
            None | Some(Value::Null) if mounts.is_empty() => return Ok(()),
            _ => list(&mut self.new, &["mounts"])?,
        };
        let before = list.clone();
        list.retain(|m| {
            let source = m["source"].as_str();
            source.is_none_or(|source| view_name(source, views).is_none())
        });
        for edit in mounts {
            let sys = list.iter().rposition(|m| is_mounted_at(m, "/sys"));
            let at = match sys.filter(|_| edit.destination == "/sys") {
                Some(sys) => sys + 1,
                None => list.len(),
            };
            list.insert(at, serde_json::to_value(bind(edit))?);
        }
        if *list != before {
            let below = mounts
                .iter()
                .filter(|m| m.destination.starts_with("/sys"))
                .collect::<Vec<_>>();
            let what = match below.as_slice() {
                [] if !mounts.is_empty() => "a mount of the topology file".to_owned(),
                [] => "no mounts of ours any more".to_owned(),
                [one] if one.destination == "/sys" => {
                    "mount /sys: a tree of files with the container's NICs alone".to_owned()
                }
                [_] => "mount below /sys, so that other NICs are not seen".to_owned(),
                many => format!(
                    "{} mounts below /sys, so that other NICs are not seen",
                    many.len()
                ),
            };
            self.changes.push(what);
        }
        Ok(())
    }

    pub fn device(&mut self, device: &CharDevice) -> Result<()> {
        let path = format!("/dev/infiniband/{}", device.name);
        let (major, minor) = (i64::from(device.major), i64::from(device.minor));
        match self.devices.iter().find(|d| d.path == path) {
            Some(d) if d.is_char() && (d.major, d.minor) == (major, minor) => {}
            Some(d) => {
                let theirs = format!("{} {}:{}", d.kind, d.major, d.minor);
                let clash = format!(
                    "config.json has {path} as {theirs}, on this host it is c {major}:{minor}"
                );
                return Err(ErrorClass::State.error(clash));
            }
            None => {
                let node = char_node(&path, major, minor);
                list(&mut self.new, &["linux", "devices"])?.push(serde_json::to_value(&node)?);
                self.devices.push(node);
                self.changes
                    .push(format!("device {path} (c {major}:{minor})"));
            }
        }
        if !allowed(&self.rules, major, minor) {
            let rule = allow(major, minor);
            // At the end: a list usually begins with the rule that denies everything, and the last
            // match counts.
            list(&mut self.new, &["linux", "resources", "devices"])?
                .push(serde_json::to_value(&rule)?);
            self.rules.push(rule);
            self.changes
                .push(format!("cgroup rule: allow c {major}:{minor} rwm"));
        }
        Ok(())
    }
}

fn char_node(path: &str, major: i64, minor: i64) -> OciDevice {
    let (path, kind) = (path.to_owned(), "c".to_owned());
    // Verbs are for every user inside: the kernel guards each object by the process that made it.
    OciDevice {
        path,
        kind,
        major,
        minor,
        file_mode: Some(0o666),
        uid: Some(0),
        gid: Some(0),
    }
}

fn allow(major: i64, minor: i64) -> DeviceRule {
    let (kind, access) = (Some("c".to_owned()), Some("rwm".to_owned()));
    DeviceRule {
        allow: true,
        kind,
        major: Some(major),
        minor: Some(minor),
        access,
    }
}

/// The view of ours that is a mount's source: `VIEWS/0123456789abcdef/…`, below the host's folder
/// of them.
pub fn view_name<'s>(source: &'s str, views: &str) -> Option<&'s str> {
    let name = source
        .strip_prefix(views)
        .filter(|_| !views.is_empty())?
        .strip_prefix('/')?
        .split('/')
        .next()?;
    (name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit())).then_some(name)
}

fn bind(edit: &MountEdit) -> OciMount {
    OciMount {
        destination: edit.destination.clone(),
        kind: Some("bind".to_owned()),
        source: Some(edit.source.clone()),
        options: Some(
            ["bind", "ro", "nosuid", "nodev", "noexec"]
                .map(str::to_owned)
                .to_vec(),
        ),
    }
}

/// Whether these rules, of which the last match counts, already allow everything on that character
/// device.
fn allowed(rules: &[DeviceRule], major: i64, minor: i64) -> bool {
    let mut of_it: Vec<&DeviceRule> = rules.iter().rev().collect();
    of_it.retain(|r| {
        matches!(r.kind.as_deref(), None | Some("a" | "c" | "u"))
            && r.major.is_none_or(|v| v < 0 || v == major)
            && r.minor.is_none_or(|v| v < 0 || v == minor)
    });
    "rwm".chars().all(|access| {
        let last = of_it.iter().find(|r| {
            let accesses = r.access.as_deref();
            accesses.is_none_or(|a| a.is_empty() || a.contains(access))
        });
        last.is_some_and(|r| r.allow)
    })
}

/// A hook of ours: our program's file name and the same subcommand.
fn is_ours(hook: &Value, edit: &HookEdit) -> bool {
    let path = hook["path"].as_str().map(Path::new);
    path.is_some_and(|path| path.file_name() == Path::new(&edit.path).file_name())
        && (1..=2).all(|i| hook["args"][i].as_str() == edit.args.get(i).map(String::as_str))
}

fn merge(slot: &mut Value, from: &impl Serialize) -> Result<()> {
    if let (Value::Object(to), Value::Object(from)) = (slot, serde_json::to_value(from)?) {
        to.extend(from);
    }
    Ok(())
}

/// The object at that path, made where there is none; null counts as none, as it does in Go.
fn object<'a>(value: &'a mut Value, path: &[&str]) -> Result<&'a mut Map<String, Value>> {
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    let map = value
        .as_object_mut()
        .ok_or_else(|| anyhow::anyhow!("no object above {path:?}"));
    let map = map.class(ErrorClass::State, NOT_OCI)?;
    match path {
        [] => Ok(map),
        [first, rest @ ..] => object(map.entry(*first).or_insert(Value::Null), rest),
    }
}

fn list<'a>(value: &'a mut Value, path: &[&str]) -> Result<&'a mut Vec<Value>> {
    let (last, above) = path
        .split_last()
        .ok_or_else(|| anyhow::anyhow!("no path"))?;
    let slot = object(value, above)?.entry(*last).or_insert(Value::Null);
    if slot.is_null() {
        *slot = Value::Array(Vec::new());
    }
    let list = slot
        .as_array_mut()
        .ok_or_else(|| anyhow::anyhow!("no list at {path:?}"));
    list.class(ErrorClass::State, NOT_OCI)
}
