//! `rdmaprep-runtime`: what `spec` does, for engines whose only hook is the path of a runtime.

use crate::config::sandbox::Sandbox;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::{Result, anyhow};
use rdma_model::error_class::{ErrorClass, WithClass};

use super::config_file::shim_config;
use super::spec::{self, Ready};
use super::{aside, take_aside, warn};
use crate::cli::{self, Cli, Command, Global, SpecArgs};
use crate::config::file::ShimConfig;
use crate::config::request::asks_itself;
use crate::disk::files;
use crate::disk::replace::Replacement;
use crate::kernel::process::memfd::KeptFile;
use crate::kernel::process::pidfd::Process;
use crate::kernel::process::pidfd_getfd;
use crate::oci::edit;
use crate::planner::NotStored;
use crate::report::{self, Report};
use crate::shim::{self, Call, RuntimeCommand, exec};

/// The runtime whose command line is assumed if the runtime is unknown: to find the log for the
/// error.
const LIKELIEST: &str = "runc";

/// Edits config.json and executes the runtime. Returns only with an error, after writing it to the
/// engine's log and undoing the edit.
pub(super) fn runtime(global: &Global, call: &Call) -> Result<()> {
    let begun = Instant::now();
    let named = Path::new(call.named.as_deref().unwrap_or(LIKELIEST));
    // A command that creates no container needs no config file if the link's name names the
    // runtime: containers can be stopped whatever is wrong with the file.
    let own = match shim_config(global) {
        Err(_) if call.named.is_some() && shim::read(named, &call.args).config.is_none() => {
            Ok((ShimConfig::default(), None))
        }
        own => own,
    };
    let known = own.and_then(|(own, config)| {
        let depth = exec::depth()?;
        let program = exec::find(&shim::choose_runtime(
            call.named.as_deref(),
            own.runtime.as_deref(),
        )?)?;
        Ok((own, config, program, depth))
    });
    let program = known
        .as_ref()
        .map_or(named, |(_, _, program, _)| program.as_path());
    let asked = shim::read(program, &call.args);
    aside();
    let done = known.and_then(|(own, config, program, depth)| {
        let global = Global {
            config,
            ..global.clone()
        };
        let edited = edited(
            &global,
            &own,
            &asked,
            Sandbox::of_command(&program, &call.args),
        )?;
        let started = run(&program, call, depth, edited.as_ref(), || {
            mention(&own, &asked)
        });
        let Err(e) = started else { return Ok(()) };
        match edited.map(|edited| edited.undo()) {
            Some(Err(undo)) => Err(incomplete(&e, &undo)),
            _ => Err(e),
        }
    });
    if let Err(e) = &done {
        report_error(&asked, e);
        if asked.config.is_some() {
            let own = spec()
                .map(|(own, _)| with_folders(global, own))
                .unwrap_or_else(|_| global.clone());
            spec::report(
                &own,
                Report {
                    container: asked.id.clone(),
                    ..Report::new("runtime")
                },
                begun,
                &done,
            );
        }
        warn(&take_aside());
    }
    done
}

struct Edited {
    ready: Ready,
    path: PathBuf,
    before: String,
}

/// Edits the config.json of a container that gets NICs. One that asks for nothing itself starts
/// whatever is wrong, but for a plan of the host that is not stored.
fn edited(
    global: &Global,
    own: &ShimConfig,
    asked: &RuntimeCommand,
    sandbox: Option<Sandbox>,
) -> Result<Option<Edited>> {
    let Some(path) = &asked.config else {
        return Ok(None);
    };
    // A container that asks must not start without its NICs, so an unreadable config.json is an
    // error. A missing one is for the runtime to report.
    let Some(before) = files::read(path).class(ErrorClass::State, "reading the bundle")? else {
        return Ok(None);
    };
    let asks = asks_itself(None, &edit::annotations(&before));
    let given =
        own.has_plan || std::env::var_os("RDMAPREP_PLAN").is_some_and(|plan| !plan.is_empty());
    if !asks && !given {
        return Ok(None);
    }
    match edit(global, path, before, sandbox) {
        Err(e) if !asks && !e.is::<NotStored>() => {
            warn(&[format!(
                "{e:#}; a container that does not ask for NICs is left as it is"
            )]);
            Ok(None)
        }
        result => result,
    }
}

fn edit(
    global: &Global,
    path: &Path,
    before: String,
    sandbox: Option<Sandbox>,
) -> Result<Option<Edited>> {
    let (spec_global, args) = spec()?;
    let global = with_folders(global, spec_global);
    let Some(ready) = spec::ready_before(sandbox, &global, &args, &before)? else {
        return Ok(None);
    };
    let edited = Edited {
        ready: ready.keep()?,
        path: path.to_owned(),
        before,
    };
    if edited.ready.json() != edited.before {
        Replacement::keeping_attributes().write(path, edited.ready.json().as_bytes())?;
    }
    Ok(Some(edited))
}

/// What `global` does not say, the environment does.
fn with_folders(global: &Global, of_environment: Global) -> Global {
    Global {
        config: global.config.clone().or(of_environment.config),
        state_dir: global.state_dir.clone().or(of_environment.state_dir),
        run_dir: global.run_dir.clone().or(of_environment.run_dir),
    }
}

/// The arguments of `rdmaprep spec` by the environment alone: a runtime's command line has no room
/// for rdmaprep's flags.
fn spec() -> Result<(Global, SpecArgs)> {
    let cli = Cli::read(["rdmaprep", "spec"]);
    let cli = cli.map_err(|e| {
        ErrorClass::Usage.error(cli::complaint(&e).unwrap_or_else(|| e.to_string()))
    })?;
    match cli.command {
        Command::Spec(args) => Ok((cli.global, *args)),
        _ => Err(anyhow!("`spec` is a command")),
    }
}

impl Edited {
    fn undo(&self) -> Result<()> {
        match self.ready.json() == self.before {
            true => Ok(()),
            false => Replacement::keeping_attributes().write(&self.path, self.before.as_bytes()),
        }
    }
}

fn incomplete(e: &anyhow::Error, undo: &anyhow::Error) -> anyhow::Error {
    ErrorClass::Incomplete.error(format!("{e:#}; and the undo is incomplete: {undo:#}"))
}

/// Executes the runtime. Files that it mounts for rdmaprep stay open in its process, so that a
/// process with access to it finds them there even if the files change.
fn run(
    program: &Path,
    call: &Call,
    depth: u32,
    edited: Option<&Edited>,
    mention: impl FnOnce(),
) -> Result<()> {
    let kept = edited.filter(|_| shim::is_discreet(program)).map(|edited| {
        edited
            .ready
            .memory()
            .and_then(|kept| Ok((handles(&kept)?, kept)))
    });
    let (handles, _kept) = kept
        .transpose()
        .unwrap_or_else(|e| {
            warn(&[format!("{e:#}; the hook reads files")]);
            None
        })
        .unwrap_or_default();
    mention();
    exec::become_it(program, &call.args, &handles, depth)
}

/// The value of `hook --handles`: `sysfs=h1.…,topology=h1.…`.
fn handles(kept: &[KeptFile]) -> Result<String> {
    let own = Process::current()?;
    let named = |kept: &KeptFile| {
        Ok(format!(
            "{}={}",
            kept.name(),
            pidfd_getfd::handle_for(&own, kept)?
        ))
    };
    Ok(kept
        .iter()
        .map(named)
        .collect::<Result<Vec<_>>>()?
        .join(","))
}

/// An engine reads the reason from the runtime's log. A log that cannot be written changes nothing.
fn report_error(asked: &RuntimeCommand, e: &anyhow::Error) {
    let Some(log) = &asked.log else { return };
    let _ = files::append(log, &line(asked, "error", &format!("{e:#}")));
}

/// Writes warnings to the engine's log, else to that of the hooks. Never to stderr: the container
/// owns that, and a warning may quote its environment.
fn mention(own: &ShimConfig, asked: &RuntimeCommand) {
    let warnings = take_aside();
    let lines: Vec<String> = warnings
        .iter()
        .map(|text| line(asked, "warning", text))
        .collect();
    if warnings.is_empty()
        || asked
            .log
            .as_ref()
            .is_some_and(|log| files::append(log, &lines.join("\n")).is_ok())
    {
        return;
    }
    let mut report = Report::new("runtime");
    report.notes = warnings;
    let _ = own
        .log
        .as_ref()
        .map(|log| files::append(log, &report.line()));
}

fn line(asked: &RuntimeCommand, level: &str, text: &str) -> String {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let text = report::shortened(text, report::LONGEST);
    shim::log_line(
        asked.json,
        level,
        &report::printable(&format!("rdmaprep: {text}")),
        &time,
    )
}
