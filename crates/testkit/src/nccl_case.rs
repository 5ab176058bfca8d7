//! An environment in a world, and what is to be said of it: also the form of the golden cases below
//! tests/cases/nccl.

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use nccl_rules::explain::{Bootstrap, Explanation, explain};
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use rdma_model::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Home by $HOME, and by the user database; what NCCL_CONF_FILE names.
pub const HOME: &str = "/run/judge/home";
pub const USER: &str = "/run/judge/user";
pub const CONF: &str = "/run/judge/conf";

/// The files that config may be in.
pub const FILES: [&str; 4] = [
    CONF,
    "/run/judge/home/.nccl.conf",
    "/run/judge/user/.nccl.conf",
    "/etc/nccl.conf",
];

/// Hosts that are known.
pub const HOSTS: [(&str, &str); 3] = [
    ("127.0.0.1", "localhost"),
    ("10.3.0.9", "head"),
    ("2001:db8:3::9", "head6"),
];

/// Variables, and the config files that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Env {
    pub vars: BTreeMap<String, String>,
    pub files: BTreeMap<String, String>,
}

impl Env {
    /// As this release reads it.
    pub fn settings(&self, version: Version) -> Settings {
        let mut settings = Settings::of(self.vars.clone(), "the environment");
        for path in settings.files(Some(Path::new(USER)), version) {
            if let Some(text) = self.files.get(path.to_str().unwrap()) {
                settings.add(&path, text.as_bytes(), version);
            }
        }
        settings
    }

    pub fn explain(&self, snapshot: &Snapshot, version: Version) -> Explanation {
        explain(&self.settings(version), snapshot, version, &resolve)
    }
}

/// The hosts of this test alone: no name server may be asked.
fn resolve(name: &str) -> Option<IpAddr> {
    let known = HOSTS
        .iter()
        .find(|(_, host)| *host == name)
        .and_then(|(ip, _)| ip.parse().ok());
    // Numbers in C's other spellings, which need no name server either.
    let number = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    known.or_else(|| {
        number
            .then(|| (name, 0).to_socket_addrs().ok()?.next().map(|a| a.ip()))
            .flatten()
    })
}

/// The explanation in the words of `Judges::ask`.
pub fn words(explanation: &Explanation) -> String {
    match &explanation.bootstrap {
        Bootstrap::Uses(endpoint, _) => endpoint.to_string(),
        Bootstrap::Unknown | Bootstrap::NotJudged => "unknown".to_owned(),
        Bootstrap::Fails(failure) => failure
            .error
            .map_or("chance".to_owned(), |e| format!("error {}", e as u8)),
    }
}

/// A golden case: what the releases said.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub env: Env,
    pub says: BTreeMap<Version, String>,
    pub snapshot: Value,
}

impl Case {
    pub fn new(env: &Env, snapshot: &Snapshot, releases: &[Version], says: &[String]) -> Case {
        let netdevs: Vec<Value> = snapshot
            .netdevs
            .iter()
            .map(|n| {
                let address = |a: &rdma_model::snapshot::Address| {
                    serde_json::json!({"address": a.address, "prefix": a.prefix, "label": a.label})
                };
                let addresses: Vec<Value> = n.addresses.iter().map(address).collect();
                serde_json::json!({
                    "name": n.name, "altnames": n.altnames, "ifindex": n.ifindex, "up": n.up,
                    "running": n.running,
                    "addresses": addresses,
                })
            })
            .collect();
        Case {
            env: env.clone(),
            says: releases.iter().copied().zip(says.iter().cloned()).collect(),
            snapshot: serde_json::json!({"schema": snapshot.schema, "hcas": [],
                "netdevs": netdevs}),
        }
    }

    /// Where golden cases are.
    pub fn folder() -> PathBuf {
        crate::repository("tests/cases/nccl")
    }

    pub fn write(&self, dir: &Path) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(
            dir.join("case.json"),
            serde_json::to_string_pretty(self).unwrap() + "\n",
        )
        .unwrap();
    }

    pub fn read(dir: &Path) -> Case {
        let path = dir.join("case.json");
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Where the model says something else.
    pub fn differences(&self) -> Vec<String> {
        let snapshot: Snapshot = serde_json::from_value(self.snapshot.clone()).unwrap();
        let differ = |(version, says): (&Version, &String)| {
            let model = words(&self.env.explain(&snapshot, *version));
            (model != *says).then(|| format!("{version} says {says}, explain says {model}"))
        };
        self.says.iter().filter_map(differ).collect()
    }
}
