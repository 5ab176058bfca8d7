//! What NCCL finds below a container's root: its config files, and the library of a network.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nccl_rules::explain::{plugin_symbols, plugins};
use nccl_rules::settings::{FoundSettings, Plugin, Settings};
use nccl_rules::version::Version;
use rdma_model::escape::shortened;

use super::budget::Budget;
use super::loader::{self, Loader};
use super::userspace::{LIBRARY_PATH, Mounts};
use crate::kernel::mount::rootfs::{self, Root};
use crate::oci::bundle::Bundle;
use crate::oci::config::Config;

const LIMIT: u64 = 1 << 20;
/// Characters of a path that are shown.
const PATH: usize = 80;

/// Adds what config files have, by the home that the user database names for that user. Of what
/// `mounts` are over, nothing is known.
pub fn add_files(
    found: &mut FoundSettings,
    root: &Root,
    home: Option<&Path>,
    version: Version,
    mounts: Option<&Mounts>,
) {
    for path in found.settings.files(home, version) {
        let shown = shortened(&path.display().to_string(), PATH).into_owned();
        let at = path.to_str().and_then(|text| root.find(text).ok());
        let over = mounts.and_then(|mounts| mounts.over(root, &path));
        let read = match (over, at) {
            (Some(mount), _) => Err(format!("config.json mounts {mount} over it")),
            (None, None) => continue,
            (None, Some(at)) => contents(root, &at),
        };
        match read {
            Ok(bytes) => found.add(&path, &bytes, version),
            Err(why) => found
                .notes
                .push(format!("{shown} in the container is not looked at: {why}")),
        }
    }
}

fn contents(root: &Root, at: &std::os::fd::OwnedFd) -> Result<Vec<u8>, String> {
    rootfs::read(&root.open_file(at)?, LIMIT)
}

/// The home of a user by the container's /etc/passwd (getpwuid(3)).
pub fn home(root: &Root, user: u32) -> Option<PathBuf> {
    let bytes = contents(root, &root.find("etc/passwd").ok()?).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines().map(|line| line.split(':'));
    let mut own = lines.find(|fields| fields.clone().nth(2) == Some(&user.to_string()))?;
    own.nth(5).map(PathBuf::from)
}

/// The library of a network that the container's loader finds.
fn find_plugin(loader: &Loader, asked: &Settings, by: Version, budget: &Budget) -> Plugin {
    let symbols = plugin_symbols(by);
    let mut unfit = None;
    for names in plugins(asked, by) {
        let found = names.iter().find_map(|name| match name.starts_with('/') {
            true => loader.library(name).map(|file| (name.clone(), file)),
            false => loader.find(name),
        });
        let Some((path, file)) = found else { continue };
        // One that is too large to read may have anything.
        let Some(bytes) = loader.contents(&file) else {
            return Plugin::Found(path);
        };
        let mut strings = loader::strings(&bytes);
        if strings.any(|text| symbols.iter().any(|symbol| symbol == text)) {
            return Plugin::Found(path);
        }
        unfit.get_or_insert(path);
    }
    match unfit {
        _ if !budget.lasts() => Plugin::Unknown,
        Some(path) => Plugin::Unfit(path),
        None => Plugin::Missing,
    }
}

pub fn plugin(root: &Root, library_path: Option<&str>, asked: &Settings, by: Version) -> Plugin {
    let budget = Budget::new(None);
    let loader = Loader::new(root, Vec::new(), library_path, &budget);
    find_plugin(&loader, asked, by, &budget)
}

/// What NCCL finds in the container of a bundle, before it starts: `env` is its environment.
pub fn of_bundle(
    dir: &Path,
    text: &str,
    mut env: BTreeMap<String, String>,
    version: Version,
) -> FoundSettings {
    let config = Config::lenient(text);
    let root = Bundle::new(&config, dir, 0, "").and_then(|b| Root::open(&b.container.rootfs));
    let mut found = FoundSettings::default();
    let home = root
        .as_ref()
        .ok()
        .and_then(|root| home(root, config.user()));
    // A runtime sets it where it is not set (setupUser() in runc's init_linux.go).
    let by_runtime = home.as_deref().and_then(Path::to_str).unwrap_or("/");
    env.entry("HOME".to_owned())
        .or_insert(by_runtime.to_owned());
    let library_path = env.get(LIBRARY_PATH).cloned();
    found.settings = Settings::of(env, "as asked");
    let root = match root {
        Ok(root) => root,
        Err(e) => {
            let note = format!("config files of the bundle's root are not looked at: {e:#}");
            found.notes.push(note);
            return found;
        }
    };
    let budget = Budget::new(None);
    let mounts = Mounts::new(&root, &config, &budget);
    add_files(&mut found, &root, home.as_deref(), version, Some(&mounts));
    let loader = Loader::new(&root, Vec::new(), library_path.as_deref(), &budget);
    let named = plugins(&found.settings, version).concat();
    let is_plugin = |name: &str| name.contains("ccl-net");
    if mounts
        .over_libraries(&root, &loader, named, is_plugin)
        .is_none()
    {
        found.plugin = find_plugin(&loader, &found.settings, version, &budget);
    }
    found
}
