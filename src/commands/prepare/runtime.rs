//! What `--runtime` says of the sandbox in which a container will run.

use std::path::Path;

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::config::sandbox::{RunscHandler, Sandbox};
use crate::disk::files;
use crate::disk::host_tree::HostTree;
use crate::install;

const DOCKER: &str = "/etc/docker/daemon.json";
const CONTAINERD: &str = "/etc/containerd/config.toml";

/// By a command line, or by the name of a runtime in the configuration of Docker or containerd.
/// Those may differ.
pub(super) fn sandbox(runtime: &str) -> Result<Option<Sandbox>> {
    let mut words = runtime.split_whitespace();
    let Some(program) = words.next() else {
        return Ok(None);
    };
    let command = Sandbox::of_command(Path::new(program), words);
    let daemon = read(Path::new(DOCKER))?.unwrap_or_default();
    let docker = match RunscHandler::of_docker(&daemon, runtime) {
        Some(handler) => Some(of_handler(handler)?),
        None => Sandbox::of_docker(&daemon, runtime),
    };
    // The name of a handler; a damaged configuration is no business of a command line, nor of a
    // runtime that Docker names.
    let is_name = !runtime.contains(|c: char| c == '/' || c.is_whitespace());
    let files = match is_name.then(containerd).unwrap_or_else(|| Ok(Vec::new())) {
        Err(_) if docker.is_some() => Vec::new(),
        files => files?,
    };
    let containerd = RunscHandler::find(&files, runtime)
        .map(of_handler)
        .transpose()?;
    ensure!(
        docker.is_none() || containerd.is_none() || docker == containerd,
        ErrorClass::Usage.error(format!(
            "--runtime: {runtime} of Docker and {runtime} of containerd differ in --rdmaproxy: \
            give the command line instead"
        ))
    );
    Ok(docker.or(containerd).or(command))
}

fn read(path: &Path) -> Result<Option<String>> {
    files::read(path).class(ErrorClass::Usage, "--runtime")
}

/// By the file of flags that containerd-shim-runsc-v1 is given.
fn of_handler(handler: RunscHandler) -> Result<Sandbox> {
    let Some(path) = handler.config else {
        return Ok(Sandbox::Plain);
    };
    let text = read(&path)?.ok_or_else(|| {
        ErrorClass::Usage.error(format!("--runtime: {} does not exist", path.display()))
    })?;
    Sandbox::of_runsc_toml(&text).class(
        ErrorClass::Usage,
        format!("--runtime: reading {}", path.display()),
    )
}

fn containerd() -> Result<Vec<String>> {
    let files =
        HostTree::new(Path::new("/")).and_then(|tree| install::with_imports(CONTAINERD, &tree));
    let hint = "mend it, or give the runtime's command line";
    files.map_err(|e| {
        ErrorClass::of(&e).error(format!(
            "--runtime: reading containerd's configuration: {e:#}: {hint}"
        ))
    })
}
