//! NCCL's settings for a shell to source, of containers that could be given them in no other way.

use std::path::PathBuf;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;

use super::Store;
use super::late_conf::{digest, is_widowed};
use crate::disk::files;
use crate::disk::replace::Replacement;
use crate::kernel::process::pidfd;

#[derive(Clone, Copy)]
pub enum ProfileOf<'a> {
    /// All containers of a namespace that has NICs.
    Namespace(u64),
    /// One on the host's network, by its init: others there may have other plans.
    Container {
        id: &'a str,
        bundle: &'a str,
        pid: i32,
    },
}

impl Store {
    pub(super) fn profiles(&self) -> PathBuf {
        self.run.join("profiles")
    }

    fn profile(&self, of: &ProfileOf) -> Result<PathBuf> {
        let name = match of {
            ProfileOf::Namespace(netns) => netns.to_string(),
            ProfileOf::Container { id, bundle, pid } => {
                let start = pidfd::start_time(*pid)
                    .ok_or_else(|| ErrorClass::State.error("the container's init has ended"))?;
                format!("{}-{pid}-{start}", digest(id, bundle))
            }
        };
        Ok(self.profiles().join(name + ".sh"))
    }

    /// Writes settings to be sourced, and returns where. What a namespace has stays: a container
    /// that joins it later may have asked for less.
    pub fn put_profile(&self, of: &ProfileOf, text: &str) -> Result<PathBuf> {
        let path = self.profile(of)?;
        if matches!(of, ProfileOf::Container { .. }) || !path.exists() {
            let replacement = Replacement::with_mode(0o644).in_shared_folder();
            replacement.write(&path, text.as_bytes())?;
        }
        Ok(path)
    }

    /// The namespaces that have one.
    pub fn all_profiles(&self) -> Result<Vec<u64>> {
        let names = self.profile_names()?;
        Ok(names.iter().filter_map(|n| n.parse().ok()).collect())
    }

    pub fn remove_profile(&self, netns: u64) -> Result<()> {
        files::remove(&self.profile(&ProfileOf::Namespace(netns))?)
    }

    /// Of a container on the host's network that has ended. It waits for no lock: its file is no
    /// other one's.
    pub fn remove_ended_profile(&self, id: &str, bundle: &str) -> Result<()> {
        self.remove_ended_profiles(&digest(id, bundle))
    }

    /// Those of all containers on the host's network that have ended, also without a stop hook.
    pub fn sweep_profiles(&self) -> Result<()> {
        self.remove_ended_profiles("")
    }

    fn remove_ended_profiles(&self, start: &str) -> Result<()> {
        self.profile_names()?
            .iter()
            .filter(|name| name.starts_with(start) && is_widowed(name) == Some(true))
            .try_for_each(|name| files::remove(&self.profiles().join(format!("{name}.sh"))))
    }

    fn profile_names(&self) -> Result<Vec<String>> {
        let names = files::list(&self.profiles())?;
        let names = names.iter().filter_map(|name| name.strip_suffix(".sh"));
        Ok(names.map(str::to_owned).collect())
    }
}
