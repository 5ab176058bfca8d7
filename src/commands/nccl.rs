use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nccl_rules::explain;
use nccl_rules::settings::{Plugin, Settings};
use nccl_rules::version::Version;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::HcaName;
use rdma_model::snapshot::{CharDevice, Snapshot};

use super::prepare::read_config;
use super::running::Running;
use super::{config, load_snapshot, say, warn};
use crate::cli::{ExplainArgs, Global, NcclSettingsArgs};
use crate::config::host::Host;
use crate::disk::{files, home_and_hosts};
use crate::doctor::collect;
use crate::oci::edit;
use crate::report;

pub(super) fn explain(global: &Global, args: &ExplainArgs) -> Result<()> {
    let asked = args.settings.nccl_version;
    let mut plugin = Plugin::Unknown;
    let (settings, snapshot, named) = match &args.container {
        Some(id) => {
            let Inside {
                settings,
                snapshot,
                planned,
                plugin: found,
            } = inside(global, id)?;
            plugin = found;
            (settings, snapshot, asked.or(planned))
        }
        None => {
            let settings = settings(&args.settings, args.snapshot.is_none())?;
            (
                settings,
                load_snapshot(None, args.snapshot.as_deref())?,
                asked,
            )
        }
    };
    // Only the container has its resolver, and its names are its author's choice.
    let resolve: &dyn Fn(&str) -> Option<IpAddr> = if args.container.is_some() {
        &|_| None
    } else {
        &home_and_hosts::address_of
    };
    let explanation = explain::explain_named(&settings, &snapshot, named, resolve)
        .with_plugin(&settings, &plugin);
    if args.json {
        say(&report::json(&explanation)?)
    } else {
        say(&report::explanation_table(&explanation))
    }
}

struct Inside {
    settings: Settings,
    snapshot: Snapshot,
    /// The release that its plan names.
    planned: Option<Version>,
    plugin: Plugin,
}

/// What NCCL finds in a running container, where it passes over an HCA whose verbs node does not
/// open.
fn inside(global: &Global, id: &str) -> Result<Inside> {
    let running = Running::find(&Host::new(global, &config(global)?), id)?;
    let found = running.settings().map_err(|why| {
        ErrorClass::State.error(format!(
            "NCCL's settings in container {:?} are unknown: {why}",
            running.id
        ))
    })?;
    warn(&found.notes);
    let nodes: Vec<CharDevice> = running
        .snapshot
        .hcas
        .iter()
        .filter_map(|hca| hca.uverbs.clone())
        .collect();
    let (snapshot, shut) = running.opened(&nodes, &collect::limits(running.pid)?.user);
    running.still_runs()?;
    if !shut.is_empty() {
        let names = shut
            .iter()
            .map(HcaName::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        warn(&[format!(
            "left out, as NCCL does: {names}, whose verbs node does not open in the container"
        )]);
    }
    let planned = running
        .record
        .as_ref()
        .and_then(|r| r.given.as_ref()?.nccl_version);
    Ok(Inside {
        settings: found.settings,
        snapshot,
        planned,
        plugin: found.plugin,
    })
}

/// The environment in question, and the config files that NCCL adds to it: by default, if
/// `is_live`, those of this host.
pub(super) fn settings(args: &NcclSettingsArgs, is_live: bool) -> Result<Settings> {
    let version = args.nccl_version.unwrap_or_default();
    // An empty variable counts as unset.
    let pairs: Vec<&str> = args
        .env
        .iter()
        .map(String::as_str)
        .filter(|pair| !pair.is_empty())
        .collect();
    let mut settings = match (pairs.as_slice(), &args.env_file, &args.bundle) {
        ([], None, None) => Settings::of(own_environment(), "the environment"),
        (pairs, None, Some(bundle)) => {
            let text = read_config(bundle)?;
            let all = edit::environment(&text)
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"));
            let all: Vec<String> = all
                .chain(pairs.iter().map(|pair| (*pair).to_owned()))
                .collect();
            given(&all.iter().map(String::as_str).collect::<Vec<_>>(), None)?
        }
        (pairs, file, _) => given(pairs, file.as_deref())?,
    };
    let files: Vec<PathBuf> = match (args.conf.as_slice(), is_live) {
        ([], false) => Vec::new(),
        ([], true) => settings.files(home_and_hosts::home_dir().as_deref(), version),
        (asked, _) => asked.to_vec(),
    };
    for path in files {
        match home_and_hosts::config(&path) {
            Ok(Some(text)) => settings.add(&path, &text, version),
            // NCCL ignores a file that it cannot open; one that --conf names must exist.
            Ok(None) | Err(_) if args.conf.is_empty() => {}
            Ok(None) => {
                return Err(
                    ErrorClass::Usage.error(format!("--conf: {} does not exist", path.display()))
                );
            }
            Err(e) => {
                return Err(e).class(
                    ErrorClass::Usage,
                    format!("--conf: reading {}", path.display()),
                );
            }
        }
    }
    Ok(settings)
}

/// What NCCL would find here, by this process's environment and the config files of this host.
pub(super) fn own_settings() -> Result<Settings> {
    settings(&NcclSettingsArgs::default(), true)
}

fn own_environment() -> Vec<(String, String)> {
    let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    all.filter(|(name, _)| explain::is_for_nccl(name) || name == "HOME")
        .collect()
}

fn given(pairs: &[&str], file: Option<&Path>) -> Result<Settings> {
    let text = match file {
        Some(file) => {
            let text = files::read(file).class(
                ErrorClass::Usage,
                format!("--env-file: reading {}", file.display()),
            )?;
            text.ok_or_else(|| {
                ErrorClass::Usage.error(format!("--env-file: {} does not exist", file.display()))
            })?
        }
        None => String::new(),
    };
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().is_empty() && !line.starts_with('#'));
    // What comes later wins.
    let all = lines
        .chain(pairs.iter().copied())
        .map(|line| match line.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name, value)),
            _ => Err(ErrorClass::Usage.error(format!("{line:?} is no NAME=VALUE"))),
        });
    Ok(Settings::of(all.collect::<Result<Vec<_>>>()?, "as asked"))
}
