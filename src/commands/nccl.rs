use std::path::{Path, PathBuf};

use anyhow::Result;
use nccl_rules::explain;
use nccl_rules::settings::Settings;
use rdma_model::error_class::{ErrorClass, WithClass};

use super::prepare::read_config;
use super::{load_snapshot, say};
use crate::cli::{ExplainArgs, NcclSettingsArgs};
use crate::kernel::host::{files, home_and_hosts};
use crate::oci::edit;
use crate::report;

pub(super) fn explain(args: &ExplainArgs) -> Result<()> {
    let settings = settings(&args.settings, args.snapshot.is_none())?;
    let snapshot = load_snapshot(None, args.snapshot.as_deref())?;
    let named = args.settings.nccl_version;
    let explanation = explain::explain_named(&settings, &snapshot, named, &home_and_hosts::address_of);
    if args.json { say(&report::json(&explanation)?) } else { say(&report::explanation_table(&explanation)) }
}

/// The environment in question, and the config files that NCCL adds to it: by default, if `is_live`, those of this host.
pub(super) fn settings(args: &NcclSettingsArgs, is_live: bool) -> Result<Settings> {
    let version = args.nccl_version.unwrap_or_default();
    // An empty variable counts as unset.
    let pairs: Vec<&str> = args.env.iter().map(String::as_str).filter(|pair| !pair.is_empty()).collect();
    let mut settings = match (pairs.as_slice(), &args.env_file, &args.bundle) {
        ([], None, None) => Settings::of(own_environment(), "the environment"),
        (pairs, None, Some(bundle)) => {
            let text = read_config(bundle)?;
            let all = edit::environment(&text).into_iter().map(|(name, value)| format!("{name}={value}"));
            let all: Vec<String> = all.chain(pairs.iter().map(|pair| (*pair).to_owned())).collect();
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
            Ok(None) => return Err(ErrorClass::Usage.error(format!("--conf: {} does not exist", path.display()))),
            Err(e) => return Err(e).class(ErrorClass::Usage, format!("--conf: reading {}", path.display())),
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
    all.filter(|(name, _)| name.starts_with("NCCL_") || name == "HOME").collect()
}

fn given(pairs: &[&str], file: Option<&Path>) -> Result<Settings> {
    let text = match file {
        Some(file) => {
            let text = files::read(file).class(ErrorClass::Usage, format!("--env-file: reading {}", file.display()))?;
            text.ok_or_else(|| ErrorClass::Usage.error(format!("--env-file: {} does not exist", file.display())))?
        }
        None => String::new(),
    };
    let lines = text.lines().filter(|line| !line.trim_start().is_empty() && !line.starts_with('#'));
    // What comes later wins.
    let all = lines.chain(pairs.iter().copied()).map(|line| match line.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name, value)),
        _ => Err(ErrorClass::Usage.error(format!("{line:?} is no NAME=VALUE"))),
    });
    Ok(Settings::of(all.collect::<Result<Vec<_>>>()?, "as asked"))
}
