//! What the create hook knows of its container before it looks inside.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::config::sandbox::Sandbox;
use crate::disk::files;
use crate::kernel::process::pidfd;
use crate::oci::bundle::Bundle;
use crate::oci::config::Config;
use crate::oci::state::State;

/// The default is what is known where nothing was read: hooks after the create read nothing.
#[derive(Debug, Default)]
pub struct ContainerFacts {
    /// Absent for a hook that is called by hand.
    pub bundle: Option<FoundBundle>,
    /// By the command line of the hook's parent, which is the runtime, and by the container's
    /// annotations; nothing where the parent is not runsc.
    pub sandbox: Option<Sandbox>,
    /// The digest that config.json was edited for: all nodes agreed on it.
    pub agreed_digest: Option<String>,
}

#[derive(Debug)]
pub struct FoundBundle {
    pub dir: PathBuf,
    pub config: Config,
}

impl ContainerFacts {
    pub fn read(state: &State) -> Result<ContainerFacts> {
        let runtime = pidfd::parent().and_then(pidfd::command);
        let by_command = runtime
            .as_ref()
            .and_then(|(program, args)| Sandbox::of_command(program, args));
        let named = runtime.and_then(|(_, args)| pidfd::bundle(&args));
        Ok(ContainerFacts {
            bundle: found_bundle([Some(PathBuf::from(&state.bundle)), named])?,
            sandbox: by_command.and(Sandbox::of_both(by_command, &state.annotations)),
            agreed_digest: None,
        })
    }
}

impl FoundBundle {
    /// What it says of the container of that init; views of ours lie in `views`.
    pub fn for_init(&self, pid: i32, views: &Path) -> Result<Bundle> {
        let views = views.to_str().unwrap_or_default();
        let path = self.dir.join("config.json");
        Bundle::new(&self.config, &self.dir, pid, views)
            .class(ErrorClass::State, format!("reading {}", path.display()))
    }
}

/// The first one that has a config.json.
fn found_bundle(dirs: [Option<PathBuf>; 2]) -> Result<Option<FoundBundle>> {
    for dir in dirs.into_iter().flatten().filter(|dir| dir.is_absolute()) {
        let path = dir.join("config.json");
        if let Some(text) = files::read(&path).class(ErrorClass::State, "reading the bundle")? {
            let doing = format!("reading {}", path.display());
            let config = Config::parse(&text).class(ErrorClass::State, doing)?;
            return Ok(Some(FoundBundle { dir, config }));
        }
    }
    Ok(None)
}
