//! Where the host's config file is, and what is taken from one that cannot be used.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};

use super::{reading, warn};
use crate::cli::Global;
use crate::config::file::{ConfigFile, ShimConfig};
use crate::config::host::{CONFIG, Config, Host};
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
pub(super) fn host_or_default(global: &Global) -> Host {
    Host::new(global, &warned(usable(global).unwrap_or_else(defaults)))
}

fn defaults(e: anyhow::Error) -> (Config, Option<String>) {
    (
        Config::default(),
        Some(format!("{e:#}; the defaults are used")),
    )
}

/// For who only looks, with what is wrong in the file, if anything is; one that is named has to be
/// there.
pub(super) fn config_to_look(global: &Global) -> Result<(Config, Option<String>)> {
    let named = global.config.as_ref();
    usable(global).or_else(|e| match named.is_none_or(|path| path.exists()) {
        true => Ok(defaults(e)),
        false => Err(e),
    })
}

/// For commands that restore NICs: of a config file with errors, only the folders are used.
pub(super) fn host_for_return(global: &Global) -> Result<Host> {
    usable(global).map(|read| Host::new(global, &warned(read)))
}

pub(super) fn warned((config, wrong): (Config, Option<String>)) -> Config {
    warn(wrong.as_slice());
    config
}

fn usable(global: &Global) -> Result<(Config, Option<String>)> {
    let mut folders = None;
    let config = read(global.config.as_deref(), |file| {
        folders = Some((file.folders(), file.words()));
        file.config()
    });
    match (config, folders) {
        (Err(e), Some((folders, used))) => Ok((folders, Some(format!("{e:#}; {used}")))),
        (config, _) => Ok((config?, None)),
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
