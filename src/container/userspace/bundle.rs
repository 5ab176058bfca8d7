//! What an image lacks, before its container starts: as far as no mount of config.json hides it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rdma_model::escape::shortened;
use rdma_model::ids::HcaName;

use super::{CONFIG, IBVERBS_LIB, LIBRARY_PATH, notes};
use crate::container::budget::Budget;
use crate::container::loader::Loader;
use crate::kernel::mount::program;
use crate::kernel::mount::rootfs::Root;
use crate::oci::bundle::Bundle;
use crate::oci::config::Config;

/// What a bundle's image lacks, if its root is there already. Where it mounts something over what
/// the loader looks at, only the create hook sees what is there then.
pub fn bundle_notes<'h>(
    bundle: &Path,
    text: &str,
    hcas: impl Iterator<Item = (&'h HcaName, &'h str)> + Clone,
) -> Vec<String> {
    let config = Config::lenient(text);
    let own = Bundle::new(&config, bundle, 0, "");
    let Ok((root, own)) = own.and_then(|own| Ok((Root::open(&own.container.rootfs)?, own))) else {
        return Vec::new();
    };
    let (env, program) = (own.env, own.program);
    let budget = Budget::new(None);
    let places = places(&root, &env, program.as_deref(), &budget);
    for mount in config.mounts().unwrap_or_default() {
        // A destination may be relative, and have more slashes than it needs.
        let at = Path::new("/").join(&mount.destination);
        if !budget.lasts() {
            return Vec::new();
        }
        if hides(&real(&root, &at), &places) {
            return vec![format!(
                "whether the image has the libraries for RDMA is not known: config.json mounts {} \
                over them; the create hook looks there",
                shortened(&mount.destination, PATH)
            )];
        }
    }
    notes(&root, &env, program.as_deref(), hcas, &budget)
}

/// Characters of a path that are shown.
const PATH: usize = 80;

/// Where [`look`] may find something: folders and files.
fn places(
    root: &Root,
    env: &BTreeMap<String, String>,
    program: Option<&str>,
    budget: &Budget,
) -> Vec<PathBuf> {
    let rpath = program.map(|program| program::folders(root, env, program));
    let named = env.get(LIBRARY_PATH).map(String::as_str);
    let mut all = Loader::new(root, rpath.unwrap_or_default(), named, budget).places(is_rdma);
    all.extend(program.map(str::to_owned));
    all.extend(env.get(IBVERBS_LIB).cloned());
    all.push(CONFIG.to_owned());
    all.retain(|place| place.starts_with('/'));
    let mut all: Vec<PathBuf> = all.iter().map(|at| real(root, Path::new(at))).collect();
    all.sort();
    all.dedup();
    all
}

/// Whether that is a library, or a folder, of rdma-core.
fn is_rdma(name: &str) -> bool {
    ["libibverbs", "librdmacm", "libmlx5."]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || name.contains("-rdmav")
}

/// Whether a mount is over one of these places, or is in it something of rdma-core.
fn hides(at: &Path, places: &[PathBuf]) -> bool {
    places.iter().any(|place| {
        let inside = at.strip_prefix(place).ok();
        let mut names = inside
            .into_iter()
            .flatten()
            .filter_map(|name| name.to_str());
        let is_config = place.ends_with("libibverbs.d") && inside.is_some();
        place.starts_with(at) || is_config || names.any(is_rdma)
    })
}

/// A path without the links that the root has on its way.
fn real(root: &Root, path: &Path) -> PathBuf {
    let found = path.to_str().and_then(|path| root.find(path).ok());
    let found = found.and_then(|found| root.path_of(found.as_fd()).ok());
    match (found, path.parent(), path.file_name()) {
        (Some(real), ..) => real,
        (None, Some(parent), Some(name)) => real(root, parent).join(name),
        _ => path.to_owned(),
    }
}
