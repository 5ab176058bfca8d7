use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nccl_rules::explain::{self, Explanation};
use nccl_rules::settings::{FoundSettings, Settings};
use nccl_rules::version::Version;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::HcaName;
use rdma_model::snapshot::{CharDevice, Snapshot};

use super::prepare::read_config;
use super::running::Running;
use super::{config, load_snapshot, say, warn};
use crate::cli::{ExplainArgs, Global, NcclSettingsArgs};
use crate::config::host::Host;
use crate::container::nccl_files;
use crate::container::userspace::{self, Userspace};
use crate::disk::{files, home_and_hosts};
use crate::doctor::collect;
use crate::oci::edit;
use crate::report;

pub(super) fn explain(global: &Global, args: &ExplainArgs) -> Result<()> {
    let asked = args.settings.nccl_version;
    let inside = match &args.container {
        Some(id) => inside(global, id, asked)?,
        None => Inside {
            found: settings(&args.settings, args.snapshot.is_none())?,
            snapshot: load_snapshot(None, args.snapshot.as_deref())?,
            planned: None,
            userspace: None,
        },
    };
    let Inside {
        found,
        snapshot,
        planned,
        userspace,
    } = inside;
    warn(&found.notes);
    // Only the container has its resolver, and its names are its author's choice.
    let resolve: &dyn Fn(&str) -> Option<IpAddr> = if args.container.is_some() {
        &|_| None
    } else {
        &home_and_hosts::address_of
    };
    let settings = &found.settings;
    let explanation = explain::explain_named(settings, &snapshot, asked.or(planned), resolve)
        .with_plugin(settings, &found.plugin);
    let drivers = taken(&explanation, &snapshot);
    let is_direct = explain::uses_data_direct(settings, &snapshot, explanation.version);
    let lacks = match (&userspace, &args.settings.bundle) {
        (Some(there), _) => Ok(there.lacks(drivers, is_direct)),
        (None, Some(bundle)) => {
            let text = read_config(bundle)?;
            userspace::bundle_lacks(bundle, &text, drivers.into_iter(), is_direct)
        }
        (None, None) => Ok(Vec::new()),
    };
    let lacks = lacks.map_or_else(|hidden| vec![hidden], userspace::for_nccl);
    let explanation = explanation.with_lacks(lacks);
    if args.json {
        say(&report::json(&explanation)?)
    } else {
        say(&report::explanation_table(&explanation))
    }
}

/// The HCAs that NCCL takes, with their drivers.
fn taken<'s>(explained: &Explanation, snapshot: &'s Snapshot) -> Vec<(&'s HcaName, &'s str)> {
    let ports = explained.hcas.iter();
    let names: BTreeSet<&str> = ports.filter_map(|port| port.split(':').next()).collect();
    let hcas = snapshot.hcas.iter();
    hcas.filter(|hca| names.contains(hca.name.as_str()))
        .filter_map(|hca| Some((&hca.name, hca.driver.as_deref()?)))
        .collect()
}

struct Inside {
    found: FoundSettings,
    /// Of its loader, where that was looked at.
    userspace: Option<Userspace>,
    snapshot: Snapshot,
    /// The release that its plan names.
    planned: Option<Version>,
}

/// What NCCL finds in a running container, where it passes over an HCA whose verbs node does not
/// open.
fn inside(global: &Global, id: &str, asked: Option<Version>) -> Result<Inside> {
    let running = Running::find(&Host::new(global, &config(global)?), id)?;
    let found = settings_of(&running, asked)?;
    let snapshot = opened(&running)?;
    let userspace = running.userspace(&snapshot).unwrap_or_else(|e| {
        let unknown = "the libraries of the container are unknown";
        warn(&[format!("{unknown}: {e:#}")]);
        None
    });
    running.still_runs()?;
    Ok(Inside {
        found,
        userspace,
        planned: running.planned(),
        snapshot,
    })
}

pub(super) fn settings_of(running: &Running, asked: Option<Version>) -> Result<FoundSettings> {
    running.settings(asked).map_err(|why| {
        ErrorClass::State.error(format!(
            "NCCL's settings in container {:?} are unknown: {why}",
            running.id
        ))
    })
}

/// A container's snapshot without the HCAs whose verbs nodes do not open in it, and a word about
/// these.
pub(super) fn opened(running: &Running) -> Result<Snapshot> {
    let hcas = running.snapshot.hcas.iter();
    let nodes: Vec<CharDevice> = hcas.filter_map(|hca| hca.uverbs.clone()).collect();
    let (snapshot, shut) = running.opened(&nodes, &collect::limits(running.pid)?.user);
    if !shut.is_empty() {
        let names: Vec<&str> = shut.iter().map(HcaName::as_str).collect();
        warn(&[format!(
            "left out, as NCCL does: {}, whose verbs node does not open in the container",
            names.join(", ")
        )]);
    }
    Ok(snapshot)
}

/// The environment in question, and the config files that NCCL adds to it: by default those of the
/// bundle's root, else, if `is_live`, those of this host.
pub(super) fn settings(args: &NcclSettingsArgs, is_live: bool) -> Result<FoundSettings> {
    let version = args.nccl_version.unwrap_or_default();
    // An empty variable counts as unset.
    let pairs: Vec<&str> = args
        .env
        .iter()
        .map(String::as_str)
        .filter(|pair| !pair.is_empty())
        .collect();
    let mut found = FoundSettings::default();
    found.settings = match (pairs.as_slice(), &args.env_file, &args.bundle) {
        ([], None, None) => Settings::of(own_environment(), "the environment"),
        (pairs, None, Some(bundle)) => {
            let text = read_config(bundle)?;
            let mut env = edit::environment(&text);
            env.extend(assigned(pairs.iter().copied())?);
            let whole = nccl_files::of_bundle(bundle, &text, env.clone(), version);
            match args.conf.is_empty() {
                true => return Ok(whole),
                false => found.plugin = whole.plugin,
            }
            Settings::of(env, "as asked")
        }
        (pairs, file, _) => given(pairs, file.as_deref())?,
    };
    let files: Vec<PathBuf> = match (args.conf.as_slice(), is_live) {
        ([], false) => Vec::new(),
        ([], true) => found
            .settings
            .files(home_and_hosts::home_dir().as_deref(), version),
        (asked, _) => asked.to_vec(),
    };
    for path in files {
        match home_and_hosts::config(&path) {
            Ok(Some(text)) => found.add(&path, &text, version),
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
    Ok(found)
}

/// What NCCL would find here, by this process's environment and the config files of this host.
pub(super) fn own_settings() -> Result<FoundSettings> {
    settings(&NcclSettingsArgs::default(), true)
}

/// By this process's environment alone.
pub(super) fn recorded_settings() -> Result<Settings> {
    settings(&NcclSettingsArgs::default(), false).map(|found| found.settings)
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
    let all = assigned(lines.chain(pairs.iter().copied()))?;
    Ok(Settings::of(all, "as asked"))
}

fn assigned<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Vec<(String, String)>> {
    let all = lines.map(|line| match line.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(ErrorClass::Usage.error(format!("{line:?} is no NAME=VALUE"))),
    });
    all.collect()
}
