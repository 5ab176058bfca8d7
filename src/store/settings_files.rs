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
pub enum SettingsFile<'a> {
    /// All containers of a namespace that has NICs.
    OfNamespace(u64),
    /// One on the host's network, by its init: others there may have other plans.
    OfContainer {
        id: &'a str,
        bundle: &'a str,
        pid: i32,
    },
}

impl Store {
    pub(super) fn settings_files(&self) -> PathBuf {
        self.run.join("profiles")
    }

    fn settings_file(&self, of: &SettingsFile) -> Result<PathBuf> {
        let name = match of {
            SettingsFile::OfNamespace(netns) => netns.to_string(),
            SettingsFile::OfContainer { id, bundle, pid } => {
                let start = pidfd::start_time(*pid)
                    .ok_or_else(|| ErrorClass::State.error("the container's init has ended"))?;
                format!("{}-{pid}-{start}", digest(id, bundle))
            }
        };
        Ok(self.settings_files().join(name + ".sh"))
    }

    /// Writes settings to be sourced, and returns where. What a namespace has stays: a container
    /// that joins it later may have asked for less.
    pub fn put_settings_file(&self, of: &SettingsFile, text: &str) -> Result<PathBuf> {
        let path = self.settings_file(of)?;
        if matches!(of, SettingsFile::OfContainer { .. }) || !path.exists() {
            let replacement = Replacement::with_mode(0o644).in_shared_folder();
            replacement.write(&path, text.as_bytes())?;
        }
        Ok(path)
    }

    /// The namespaces that have one.
    pub fn all_settings_files(&self) -> Result<Vec<u64>> {
        let names = self.settings_file_names()?;
        Ok(names.iter().filter_map(|n| n.parse().ok()).collect())
    }

    pub fn remove_settings_file(&self, netns: u64) -> Result<()> {
        files::remove(&self.settings_file(&SettingsFile::OfNamespace(netns))?)
    }

    /// Of a container on the host's network that has ended. It waits for no lock: its file is no
    /// other one's.
    pub fn remove_ended_settings_file(&self, id: &str, bundle: &str) -> Result<()> {
        self.remove_ended_settings_files(&digest(id, bundle))
    }

    /// Those of all containers on the host's network that have ended, also without a stop hook.
    pub fn sweep_settings_files(&self) -> Result<()> {
        self.remove_ended_settings_files("")
    }

    fn remove_ended_settings_files(&self, start: &str) -> Result<()> {
        self.settings_file_names()?
            .iter()
            .filter(|name| name.starts_with(start) && is_widowed(name) == Some(true))
            .try_for_each(|name| files::remove(&self.settings_files().join(format!("{name}.sh"))))
    }

    fn settings_file_names(&self) -> Result<Vec<String>> {
        let names = files::list(&self.settings_files())?;
        let names = names.iter().filter_map(|name| name.strip_suffix(".sh"));
        Ok(names.map(str::to_owned).collect())
    }
}
