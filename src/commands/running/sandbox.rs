//! A container of gVisor as this host sees it. Its process here is the sandbox, whose root,
//! environment and limits are not the container's: what that has is in its config.json.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nccl_rules::explain::is_for_nccl;
use nccl_rules::settings::{FoundSettings, Plugin, Settings};
use rdma_model::snapshot::{CharDevice, Snapshot};

use crate::config::sandbox::Sandbox;
use crate::disk::files;
use crate::doctor::facts::{Machine, SandboxFacts};
use crate::kernel::probe::access::NodeAccess;
use crate::kernel::process::{pidfd, program};
use crate::nccl_env::libraries::is_of_table;
use crate::oci::config::{Config, OciDevice};
use crate::record::Record;

pub(in crate::commands) struct SandboxedContainer {
    kind: Sandbox,
    config: Result<Config, String>,
}

impl SandboxedContainer {
    /// Nothing for a process that is not runsc's: by the record where there is one, else by the
    /// program of that name, which has to be the host's and not the container's own. The bundle is
    /// that of the record, else of the sandbox's command line.
    pub(in crate::commands) fn find(
        pid: i32,
        record: Option<&Record>,
    ) -> Option<SandboxedContainer> {
        let member = record.and_then(|r| r.members.iter().find(|m| m.pid == pid));
        let command = pidfd::command(pid);
        let by_command = command
            .as_ref()
            .and_then(|(program, args)| Sandbox::of_command(program, args));
        let by_command = match member {
            Some(member) => by_command
                .or(Some(Sandbox::Plain))
                .filter(|_| member.sandboxed)?,
            None => by_command.filter(|_| program::is_of_host(pid))?,
        };
        let args = command.map(|(_, args)| args).unwrap_or_default();
        let bundle = member
            .map(|m| PathBuf::from(&m.bundle))
            .filter(|path| path.is_absolute());
        let config = match bundle.or_else(|| pidfd::bundle(&args)) {
            Some(bundle) => read(&bundle.join("config.json")),
            None => Err("where its bundle is, is unknown".to_owned()),
        };
        let annotations = config
            .as_ref()
            .ok()
            .and_then(|config| config.part(&["annotations"]).ok().flatten());
        let by_plan = record.and_then(|r| r.given.as_ref()).map(|plan| plan.sysfs);
        let kind = Sandbox::of_both(Some(by_command), &annotations.unwrap_or_default());
        let kind = if by_plan.is_some() {
            Sandbox::RdmaProxy
        } else {
            kind.unwrap_or(by_command)
        };
        Some(SandboxedContainer { kind, config })
    }

    /// The device nodes by what config.json lists; without the proxy, nothing is at them in any
    /// case. RDMA CM works in no sandbox.
    pub(in crate::commands) fn nodes(&self, wanted: &[CharDevice]) -> BTreeMap<String, NodeAccess> {
        if self.kind != Sandbox::RdmaProxy || self.config.is_err() {
            return BTreeMap::new();
        }
        let listed = self.listed().unwrap_or_default();
        let access = |node: &CharDevice| {
            let path = format!("/dev/infiniband/{}", node.name);
            match listed.iter().find(|device| device.path == path) {
                None => NodeAccess::Missing,
                Some(d) if (d.major, d.minor) == (node.major.into(), node.minor.into()) => {
                    NodeAccess::Opened
                }
                Some(d) => {
                    NodeAccess::Wrong(format!("the device {}:{} in config.json", d.major, d.minor))
                }
            }
        };
        wanted
            .iter()
            .filter(|d| d.name.starts_with("uverbs"))
            .map(|d| (d.name.clone(), access(d)))
            .collect()
    }

    pub(in crate::commands) fn settings(&self) -> Result<FoundSettings, String> {
        let config = self
            .config
            .as_ref()
            .map_err(|why| format!("a sandbox, and {why}"))?;
        if self.listed().is_none() {
            return Err("a sandbox, and its config.json lists no verbs node".to_owned());
        }
        let env = config
            .environment()
            .into_iter()
            .filter(|(name, _)| is_for_nccl(name) || is_of_table(name));
        Ok(FoundSettings {
            settings: Settings::of(env, "the environment in config.json"),
            notes: Vec::new(),
            plugin: Plugin::Unknown,
        })
    }

    /// Leaves out the HCAs that the sandbox does not show: those whose node config.json does not
    /// list.
    pub(in crate::commands) fn narrow(&self, snapshot: &mut Snapshot) {
        let Some(listed) = self.listed() else { return };
        snapshot.hcas.retain(|hca| {
            hca.uverbs.as_ref().is_some_and(|node| {
                listed
                    .iter()
                    .any(|d| d.path == format!("/dev/infiniband/{}", node.name))
            })
        });
    }

    /// What of the host's look at its process is about the container. The proxy pins memory as that
    /// process.
    pub(in crate::commands) fn correct(&self, machine: Machine) -> Machine {
        let proxy = self.kind == Sandbox::RdmaProxy;
        let sandbox = Some(SandboxFacts {
            proxy,
            unread: self.config.as_ref().err().cloned(),
        });
        Machine {
            sandbox,
            memlock: machine.memlock.filter(|_| proxy),
            ..machine
        }
    }

    /// The verbs nodes of config.json, where it has any.
    fn listed(&self) -> Option<Vec<OciDevice>> {
        let mut devices: Vec<OciDevice> = self
            .config
            .as_ref()
            .ok()?
            .list(&["linux", "devices"])
            .ok()?;
        devices.retain(|device| device.path.starts_with("/dev/infiniband/uverbs"));
        (!devices.is_empty()).then_some(devices)
    }
}

fn read(path: &Path) -> Result<Config, String> {
    match files::read(path) {
        Ok(Some(text)) => Config::parse(&text).map_err(|e| format!("{}: {e:#}", path.display())),
        Ok(None) => Err(format!("{} does not exist", path.display())),
        Err(e) => Err(format!("{e:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(kind: Sandbox, config: &str) -> SandboxedContainer {
        SandboxedContainer {
            kind,
            config: Config::parse(config).map_err(|e| format!("{e:#}")),
        }
    }

    const CONFIG: &str = r#"{"process":{"env":["NCCL_DEBUG=INFO","PATH=/bin"]},"linux":{"devices":[
        {"path":"/dev/null","type":"c","major":1,"minor":3},
        {"path":"/dev/infiniband/uverbs0","type":"c","major":231,"minor":192},
        {"path":"/dev/infiniband/uverbs1","type":"c","major":231,"minor":200}]}}"#;

    #[test]
    fn nodes_of_a_sandbox_are_those_of_config_json() {
        let node = |name: &str, minor| CharDevice {
            name: name.to_owned(),
            major: 231,
            minor,
        };
        let wanted = [
            node("uverbs0", 192),
            node("uverbs1", 193),
            node("uverbs2", 194),
            node("rdma_cm", 58),
        ];
        let nodes = container(Sandbox::RdmaProxy, CONFIG).nodes(&wanted);
        let expected = [
            ("uverbs0".to_owned(), NodeAccess::Opened),
            (
                "uverbs1".to_owned(),
                NodeAccess::Wrong("the device 231:200 in config.json".to_owned()),
            ),
            ("uverbs2".to_owned(), NodeAccess::Missing),
        ];
        assert_eq!(nodes, expected.into());
        assert_eq!(
            container(Sandbox::RdmaProxy, "{}")
                .nodes(&wanted[..1])
                .values()
                .next(),
            Some(&NodeAccess::Missing)
        );
        for unknown in [
            container(Sandbox::Plain, CONFIG),
            container(Sandbox::RdmaProxy, "nonsense"),
        ] {
            assert_eq!(unknown.nodes(&wanted), BTreeMap::new());
        }
    }

    #[test]
    fn hcas_and_settings_are_those_of_config_json() {
        let mut node: Snapshot =
            serde_json::from_str(include_str!("../../../examples/snapshot.json")).unwrap();
        assert_eq!(node.hcas.len(), 2);
        let one = CONFIG.replace("uverbs1", "other");
        for (config, left) in [(CONFIG, 2), ("nonsense", 2), ("{}", 2), (&one, 1)] {
            container(Sandbox::RdmaProxy, config).narrow(&mut node);
            assert_eq!(node.hcas.len(), left, "{config}");
        }
        let found = container(Sandbox::RdmaProxy, CONFIG).settings().unwrap();
        assert_eq!(found.settings.get("NCCL_DEBUG"), Some("INFO"));
        assert_eq!(found.settings.get("PATH"), None);
        for unknown in ["nonsense", "{}"] {
            assert!(container(Sandbox::RdmaProxy, unknown).settings().is_err());
        }
    }
}
