//! The runtime behind us: finding its program, and becoming it.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::kernel::process::program;
use crate::shim::{self, RuntimeChoice};

/// Tells the hooks that the runtime starts what it keeps open for them: `NAME=HANDLE`, separated by commas.
pub const HANDLES: &str = "RDMAPREP_HANDLES";

/// Has our pid. A program keeps its own across `execve`: who finds it there was behind itself.
const BEHIND: &str = "RDMAPREP_RUNTIME_PID";

/// Has the number of us that were run, each by the runtime of the one before.
const DEPTH: &str = "RDMAPREP_RUNTIME_DEPTH";
/// An engine's wrapper calls us once, or one for each engine in another's container: more is a circle.
const DEEPEST: u32 = 8;

/// Finds it, and never ourselves: another name of ours in PATH is passed over.
///
/// # Errors
/// [`ErrorClass::Usage`] where there is none, what is named cannot be run, or it is this very program.
pub fn find(wanted: &RuntimeChoice) -> Result<PathBuf> {
    let names = match wanted {
        RuntimeChoice::Path(path) => {
            let found = program::at(path).class(ErrorClass::Usage, format!("the runtime {}", path.display()))?;
            let refuse = |why: &str| ErrorClass::Usage.error(format!("the runtime {} {why}", path.display()));
            ensure!(found.runs, refuse("is no program"));
            ensure!(!found.is_own, refuse("is rdmaprep itself: `runtime` of the config file names the one behind it"));
            return Ok(path.clone());
        }
        RuntimeChoice::Names(names) => names,
    };
    let path = std::env::var_os("PATH").filter(|path| !path.is_empty());
    let places = shim::places(names, path.as_deref().unwrap_or(OsStr::new(shim::PATH)));
    let good = |place: &PathBuf| program::at(place).is_ok_and(|found| found.runs && !found.is_own);
    let found = places.into_iter().find(good);
    let names = names.join(" or ");
    found.ok_or_else(|| {
        ErrorClass::Usage.error(format!("there is no {names} in PATH; `runtime` of the config file names one"))
    })
}

/// How many of us lie one behind the other in this one, counted by what each has written into the environment: a runtime that is a
/// script may lead back to us, through processes of its own, too.
///
/// # Errors
/// [`ErrorClass::Usage`]: it would go on for ever.
pub fn depth() -> Result<u32> {
    // It may also wait for what it has started.
    let us = [std::process::id(), std::os::unix::process::parent_id()];
    let again = std::env::var(BEHIND).is_ok_and(|pid| us.iter().any(|id| pid == id.to_string()));
    ensure!(!again, ErrorClass::Usage.error("the runtime behind rdmaprep-runtime has led back to it"));
    let depth = std::env::var(DEPTH).ok().and_then(|depth| depth.parse().ok()).unwrap_or(0);
    let text = format!("the runtime behind rdmaprep-runtime has led back to it {DEEPEST} times ({DEPTH}={depth})");
    ensure!(depth < DEEPEST, ErrorClass::Usage.error(text));
    Ok(depth)
}

/// Becomes it, with every argument and all else as it was; `handles` is for its hooks. Returns only where it cannot be run.
pub fn become_it(program: &Path, args: &[OsString], handles: &str, depth: u32) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args).env(BEHIND, std::process::id().to_string()).env(DEPTH, (depth + 1).to_string());
    match handles {
        // What an outer one has left there speaks of another container.
        "" => command.env_remove(HANDLES),
        handles => command.env(HANDLES, handles),
    };
    Err(command.exec()).class(ErrorClass::Usage, format!("running {}", program.display()))
}
