//! Where the host's config file is, and what is taken from one that cannot be used.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};

use super::{reading, warn};
use crate::cli::Global;
use crate::config::file::{ConfigFile, ShimConfig};
use crate::config::host::{CONFIG, Config};
use crate::disk::files;

/// Reads the config file, the one that is `named` or the default one, which alone may be absent.
/// The administrator may have put a link there. Errors of `read` are of that file.
fn read<T: Default>(
    named: Option<&Path>,
    read: impl FnOnce(&ConfigFile) -> Result<T>,
) -> Result<T> {
    let followed = files::followed(named.map(Path::to_owned), Path::new(CONFIG));
    let path = followed.as_deref().unwrap_or(Path::new(CONFIG));
    match files::read(path).class(ErrorClass::Usage, reading(path))? {
        Some(text) => read(&ConfigFile::new(&text)).class(ErrorClass::Usage, reading(path)),
        None if named.is_none() => Ok(T::default()),
        None => {
            Err(ErrorClass::Usage
                .error(format!("the config file {} does not exist", path.display())))
        }
    }
}

pub(super) fn config(global: &Global) -> Result<Config> {
    read(global.config.as_deref(), |file| file.config())
}

/// For stop hooks: a config file that was broken since the NICs left must not keep them from
/// returning.
pub(super) fn config_or_default(global: &Global) -> Config {
    config_for_return(global).unwrap_or_else(|e| {
        warn(&[format!("{e:#}; the defaults are used")]);
        Config::default()
    })
}

/// For commands that restore NICs: of a config file with errors, only the folders are used.
pub(super) fn config_for_return(global: &Global) -> Result<Config> {
    let mut folders = None;
    let config = read(global.config.as_deref(), |file| {
        folders = Some(file.folders());
        file.config()
    });
    match (config, folders) {
        (Err(e), Some(folders)) => {
            warn(&[format!("{e:#}; of this file only the folders are used")]);
            Ok(folders)
        }
        (config, _) => config,
    }
}

/// Whether it has a plan for containers that do not ask, also where something else in it is wrong.
pub(super) fn has_plan(global: &Global) -> bool {
    read(global.config.as_deref(), |file| Ok(file.has_plan())).unwrap_or_default()
}

/// The file that a shim reads, which has no command line of its own; nothing for the default one.
fn shim_file(global: &Global) -> Option<PathBuf> {
    global.config.clone().or_else(|| {
        std::env::var_os("RDMAPREP_CONFIG")
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    })
}

pub(super) fn shim_config(global: &Global) -> Result<(ShimConfig, Option<PathBuf>)> {
    let named = shim_file(global);
    let config = read(named.as_deref(), |file| file.shim())?;
    Ok((config, files::followed(named, Path::new(CONFIG))))
}
