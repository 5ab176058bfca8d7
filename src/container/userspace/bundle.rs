//! What an image lacks, before its container starts: as far as no mount of config.json hides it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rdma_model::escape::shortened;
use rdma_model::ids::HcaName;

use super::{CONFIG, IBVERBS_LIB, LIBRARY_PATH, Lack, lacks};
use crate::container::budget::Budget;
use crate::container::loader::Loader;
use crate::kernel::mount::program;
use crate::kernel::mount::rootfs::Root;
use crate::oci::bundle::Bundle;
use crate::oci::config::Config;

/// What a bundle's image lacks, if its root is there already. Where it mounts something over what
/// the loader looks at, only the create hook sees what is there then: the error.
pub fn bundle_lacks<'h>(
    bundle: &Path,
    text: &str,
    hcas: impl Iterator<Item = (&'h HcaName, &'h str)> + Clone,
    data_direct: bool,
) -> Result<Vec<Lack>, String> {
    let config = Config::lenient(text);
    let own = Bundle::new(&config, bundle, 0, "");
    let Ok((root, own)) = own.and_then(|own| Ok((Root::open(&own.container.rootfs)?, own))) else {
        return Ok(Vec::new());
    };
    let (env, program) = (own.env, own.program);
    let budget = Budget::new(None);
    let mounts = Mounts::new(&root, &config, &budget);
    let named = env.get(LIBRARY_PATH).map(String::as_str);
    let rpath = program.as_deref().map(|p| program::folders(&root, &env, p));
    let loader = Loader::new(&root, rpath.unwrap_or_default(), named, &budget);
    let mut more = vec![CONFIG.to_owned()];
    more.extend(program.clone());
    more.extend(env.get(IBVERBS_LIB).cloned());
    if let Some(mount) = mounts.over_libraries(&root, &loader, more, is_rdma) {
        return Err(format!(
            "whether the image has the libraries for RDMA is not known: config.json mounts {mount} \
            over them; the create hook looks there"
        ));
    }
    if !budget.lasts() {
        return Ok(Vec::new());
    }
    let program = program.as_deref();
    Ok(lacks(&root, &env, program, hcas, data_direct, &budget))
}

/// Characters of a path that are shown.
const PATH: usize = 80;

/// What config.json mounts: each place without the links on its way, and as it is written there.
pub struct Mounts(Vec<(PathBuf, String)>);

impl Mounts {
    pub fn new(root: &Root, config: &Config, budget: &Budget) -> Mounts {
        let all = config.mounts().unwrap_or_default().into_iter();
        // A destination may be relative, and have more slashes than it needs.
        let places = all.take_while(|_| budget.lasts()).map(|mount| {
            let at = real(root, &Path::new("/").join(&mount.destination));
            (at, shortened(&mount.destination, PATH).into_owned())
        });
        Mounts(places.collect())
    }

    /// The mount that a path is in.
    pub fn over(&self, root: &Root, path: &Path) -> Option<&str> {
        let path = real(root, path);
        let mut over = self.0.iter().filter(|(at, _)| path.starts_with(at));
        over.next().map(|(_, shown)| shown.as_str())
    }

    /// The mount that hides where a loader may find such libraries, or one of `more` places.
    pub(in crate::container) fn over_libraries(
        &self,
        root: &Root,
        loader: &Loader,
        more: Vec<String>,
        is_meant: fn(&str) -> bool,
    ) -> Option<&str> {
        let mut all = loader.places(is_meant);
        all.extend(more);
        all.retain(|place| place.starts_with('/'));
        let mut all: Vec<PathBuf> = all.iter().map(|at| real(root, Path::new(at))).collect();
        all.sort();
        all.dedup();
        let mut over = self.0.iter().filter(|(at, _)| hides(at, &all, is_meant));
        over.next().map(|(_, shown)| shown.as_str())
    }
}

/// Whether that is a library, or a folder, of rdma-core.
fn is_rdma(name: &str) -> bool {
    ["libibverbs", "librdmacm", "libmlx5."]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || name.contains("-rdmav")
}

/// Whether a mount is over one of these places, or is in it such a library.
fn hides(at: &Path, places: &[PathBuf], is_meant: fn(&str) -> bool) -> bool {
    places.iter().any(|place| {
        let inside = at.strip_prefix(place).ok();
        let mut names = inside
            .into_iter()
            .flatten()
            .filter_map(|name| name.to_str());
        let is_config = place.ends_with("libibverbs.d") && inside.is_some();
        place.starts_with(at) || is_config || names.any(is_meant)
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
