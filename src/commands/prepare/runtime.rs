//! What `--runtime` says of the sandbox in which a container will run.

use std::path::Path;

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::config::sandbox::{RunscHandler, Sandbox};
use crate::kernel::host::files;

const DOCKER: &str = "/etc/docker/daemon.json";
const CONTAINERD: &str = "/etc/containerd/config.toml";

/// By a command line, or by the name of a runtime in the configuration of Docker or containerd. Those may differ.
pub(super) fn sandbox(runtime: &str) -> Result<Option<Sandbox>> {
    let mut words = runtime.split_whitespace();
    let Some(program) = words.next() else { return Ok(None) };
    let command = Sandbox::of_command(Path::new(program), words);
    let read = |path: &Path| files::read(path).class(ErrorClass::Usage, "--runtime");
    let docker = read(Path::new(DOCKER))?.and_then(|text| Sandbox::of_docker(&text, runtime));
    let handler = read(Path::new(CONTAINERD))?.and_then(|text| RunscHandler::find(&text, runtime));
    let containerd = match handler.map(|handler| handler.config) {
        None => None,
        Some(None) => Some(Sandbox::Plain),
        Some(Some(path)) => {
            let missing = || ErrorClass::Usage.error(format!("--runtime: {} does not exist", path.display()));
            let doing = || format!("--runtime: reading {}", path.display());
            let text = read(&path)?.ok_or_else(missing)?;
            Some(Sandbox::of_runsc_toml(&text).class(ErrorClass::Usage, doing())?)
        }
    };
    let differ = || {
        ErrorClass::Usage.error(format!(
            "--runtime: {runtime} of Docker and {runtime} of containerd differ in --rdmaproxy: give the command line instead"
        ))
    };
    ensure!(docker.is_none() || containerd.is_none() || docker == containerd, differ());
    Ok(docker.or(containerd).or(command))
}
