//! The runtime behind the wrapper: finding its program, and executing it.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::kernel::process::program;
use crate::shim::{self, RuntimeChoice};

/// The variable for the hooks that the runtime starts: files that stay open for them,
/// `NAME=HANDLE`, separated by commas.
pub const HANDLES: &str = "RDMAPREP_HANDLES";

/// The variable with the wrapper's pid, which `execve` keeps: a wrapper that finds its own pid
/// there has executed itself.
const BEHIND: &str = "RDMAPREP_RUNTIME_PID";

/// The variable with the number of wrappers so far, each executed by the runtime of the one before.
const DEPTH: &str = "RDMAPREP_RUNTIME_DEPTH";
/// An engine needs one wrapper, and an engine within a container one more each: a larger number is
/// a circle.
const DEEPEST: u32 = 8;

/// Links to rdmaprep in PATH are passed over. [`ErrorClass::Usage`] if there is no runtime, if the
/// named one cannot be run, or if it is this very program.
pub fn find(wanted: &RuntimeChoice) -> Result<PathBuf> {
    let names = match wanted {
        RuntimeChoice::Path(path) => {
            let found = program::at(path)
                .class(ErrorClass::Usage, format!("the runtime {}", path.display()))?;
            let refuse = |why: &str| {
                ErrorClass::Usage.error(format!("the runtime {} {why}", path.display()))
            };
            ensure!(found.runs, refuse("is no program"));
            ensure!(
                !found.is_own,
                refuse("is rdmaprep itself: `runtime` of the config file names the one behind it")
            );
            return Ok(path.clone());
        }
        RuntimeChoice::Names(names) => names,
    };
    let path = std::env::var_os("PATH").filter(|path| !path.is_empty());
    let places = shim::places(names, path.as_deref().unwrap_or(OsStr::new(shim::PATH)));
    let found = places
        .into_iter()
        .find(|place| program::at(place).is_ok_and(|found| found.runs && !found.is_own));
    let names = names.join(" or ");
    found.ok_or_else(|| {
        ErrorClass::Usage.error(format!(
            "there is no {names} in PATH; `runtime` of the config file names one"
        ))
    })
}

/// How many wrappers have executed each other up to this one, by the environment: a runtime that is
/// a script may start the wrapper again, also through further processes. [`ErrorClass::Usage`] for
/// a circle, which would never end.
pub fn depth() -> Result<u32> {
    // A script may also wait for a child that starts the wrapper.
    let own = [std::process::id(), std::os::unix::process::parent_id()];
    let again = std::env::var(BEHIND).is_ok_and(|pid| own.iter().any(|id| pid == id.to_string()));
    ensure!(
        !again,
        ErrorClass::Usage.error("the runtime behind rdmaprep-runtime has led back to it")
    );
    let depth = std::env::var(DEPTH)
        .ok()
        .and_then(|depth| depth.parse().ok())
        .unwrap_or(0);
    let text = format!(
        "the runtime behind rdmaprep-runtime has led back to it {DEEPEST} times ({DEPTH}={depth})"
    );
    ensure!(depth < DEEPEST, ErrorClass::Usage.error(text));
    Ok(depth)
}

/// Executes the runtime, with all arguments unchanged and `handles` for its hooks. Returns only
/// with an error.
pub fn become_it(program: &Path, args: &[OsString], handles: &str, depth: u32) -> Result<()> {
    let mut command = Command::new(program);
    command
        .args(args)
        .env(BEHIND, std::process::id().to_string())
        .env(DEPTH, (depth + 1).to_string());
    match handles {
        // The value of an outer wrapper is about another container.
        "" => command.env_remove(HANDLES),
        handles => command.env(HANDLES, handles),
    };
    Err(command.exec()).class(ErrorClass::Usage, format!("running {}", program.display()))
}
