//! rdma-core in a container's image: whether libibverbs is there, and loads a provider for each HCA
//! (libibverbs/dynamic_driver.c of rdma-core). What it loads is named by a file of
//! /etc/libibverbs.d, and lies under a name with libibverbs' own number for the interface between
//! the two, IBVERBS_PABI_VERSION: `libmlx5-rdmav34.so`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rdma_model::escape::shortened;
use rdma_model::ids::HcaName;
use serde::{Deserialize, Serialize};

use super::budget::Budget;
use super::loader::{self, Loader};
use crate::kernel::mount::mntns::Mntns;
use crate::kernel::mount::program;
use crate::kernel::mount::rootfs::Root;
use crate::oci::bundle::{Bundle, ContainerRoot};
use crate::oci::config::Config;

const VERBS: &str = "libibverbs.so.1";
const DEVICE_LIST: &str = "ibv_get_device_list";
const RDMACM: &str = "librdmacm.so.1";

/// Where NCCL looks for mlx5's own functions, and the one by which it asks for the Data Direct
/// function of an HCA (src/misc/mlx5dvsymbols.cc in 2.30.7); rdma-core has it since release 54
/// (MLX5_1.25 in debian/ibverbs-providers.symbols).
const MLX5: [&str; 2] = ["libmlx5.so", "libmlx5.so.1"];
const DATA_DIRECT: &[u8] = b"mlx5dv_get_data_direct_sysfs_path\0";

/// Where files name the providers, unless libibverbs says otherwise.
const CONFIG: &str = "/etc/libibverbs.d";

/// Providers by the driver of the PCI function that an HCA sits on, or of the software device.
const PROVIDERS: [(&str, &str); 19] = [
    ("mlx5_core", "mlx5"),
    ("mlx5_core.sf", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("idpf", "irdma"),
    ("ionic", "ionic"),
    ("mana", "mana"),
    ("efa", "efa"),
    ("erdma", "erdma"),
    ("hns3", "hns"),
    ("cxgb4", "cxgb4"),
    ("qede", "qedr"),
    ("hfi1", "hfi1verbs"),
    ("vmw_pvrdma", "vmw_pvrdma"),
    ("be2net", "ocrdma"),
    ("rxe", "rxe"),
    ("siw", "siw"),
];

/// The variables by which the loader and libibverbs look elsewhere.
pub const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
pub const VARIABLES: [&str; 4] = [LIBRARY_PATH, "RDMAV_DRIVERS", "IBV_DRIVERS", IBVERBS_LIB];

/// What NCCL opens before libibverbs' own names, from 2.30.3 on (src/misc/ibvsymbols.cc).
pub const IBVERBS_LIB: &str = "NCCL_IBVERBS_LIB";

pub fn provider(driver: &str) -> Option<&'static str> {
    PROVIDERS
        .iter()
        .find(|(of, _)| *of == driver)
        .map(|(_, provider)| *provider)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Library {
    #[default]
    Missing,
    /// In a folder of ld.so.conf, and not in the loader's cache.
    Uncached(String),
    Found(String),
}

/// The library that NCCL_IBVERBS_LIB names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Named {
    /// NCCL goes on with libibverbs' own names.
    Missing(String),
    /// It has no verbs, and NCCL uses no HCA.
    Other(String),
    Verbs(String),
}

/// What the loader of a container finds of rdma-core, and of NCCL's plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Userspace {
    /// ID and ID_LIKE of its os-release.
    pub os: Vec<String>,
    pub verbs: Library,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub named_verbs: Option<Named>,
    pub rdmacm: Library,
    /// Whether libmlx5 knows Data Direct; absent where no HCA is of mlx5.
    pub data_direct: Option<bool>,
    /// Whether it has the node of GDRCopy.
    pub gdrdrv: bool,
    /// The number of the providers that libibverbs loads; absent where its file does not say.
    pub abi: Option<u32>,
    /// Where it looks for them first.
    pub folder: Option<String>,
    /// The folder of files that name them.
    pub config: Option<String>,
    pub named: BTreeSet<String>,
    /// Providers that are there, each with its numbers.
    pub providers: BTreeMap<String, BTreeSet<u32>>,
}

/// Looks below a container's root for what HCAs of these providers need. `env`: its environment;
/// `program`: what it runs, where that is known.
/// Nothing where glibc's loader is not there: then nothing that loads libibverbs can run. Nothing
/// either where the budget is spent.
pub fn look(
    root: &Root,
    env: &BTreeMap<String, String>,
    program: Option<&str>,
    wanted: &[&str],
    budget: &Budget,
) -> Option<Userspace> {
    let rpath = program.map(|program| program::folders(root, env, program));
    let named = env.get(LIBRARY_PATH).map(String::as_str);
    let loader = Loader::new(root, rpath.unwrap_or_default(), named, budget);
    loader.library(loader::PROGRAM)?;
    let mut found = Userspace {
        os: os(&loader),
        verbs: library(&loader, VERBS),
        rdmacm: library(&loader, RDMACM),
        gdrdrv: root.find("dev/gdrdrv").is_ok(),
        ..Userspace::default()
    };
    found.named_verbs = env
        .get(IBVERBS_LIB)
        .and_then(|name| named_verbs(&loader, name));
    let named = match &found.named_verbs {
        Some(Named::Verbs(path)) => loader.library(path).map(|file| (path.clone(), file)),
        _ => None,
    };
    if let Some((path, verbs)) = named.or_else(|| loader.find(VERBS)) {
        found.verbs = Library::Found(path);
        let file = loader.contents(&verbs).unwrap_or_default();
        found.read_verbs(loader::strings(&file).take_while(|_| budget.lasts()));
        found.look_for_names(&loader, env, wanted);
        found.look_for_providers(&loader, wanted);
    }
    found.data_direct = wanted.contains(&"mlx5").then(|| knows_data_direct(&loader));
    budget.lasts().then_some(found)
}

/// What NCCL lacks there for HCAs of these drivers, in a sentence each.
pub fn notes<'h>(
    root: &Root,
    env: &BTreeMap<String, String>,
    program: Option<&str>,
    hcas: impl Iterator<Item = (&'h HcaName, &'h str)> + Clone,
    budget: &Budget,
) -> Vec<String> {
    let wanted: BTreeSet<&str> = hcas.clone().filter_map(|(_, d)| provider(d)).collect();
    let found = look(root, env, program, &Vec::from_iter(wanted), budget);
    let lacks = found.map(|found| found.lacks(hcas)).unwrap_or_default();
    lacks
        .iter()
        .filter(|lack| lack.need != Need::Rdmacm)
        .map(|lack| format!("{}: {}", lack.seen, lack.fix))
        .collect()
}

/// What a container's image lacks, once its runtime has mounted everything. For a thread that ends
/// in its mount namespace.
pub fn container_notes(
    container: &ContainerRoot,
    env: &BTreeMap<String, String>,
    program: Option<&str>,
    drivers: &[(HcaName, String)],
    budget: &Budget,
) -> Vec<String> {
    let entered = Mntns::of_process(container.pid).and_then(|inside| inside.enter());
    let hcas = drivers.iter().map(|(hca, driver)| (hca, driver.as_str()));
    match entered.and_then(|()| Root::open(&container.rootfs)) {
        Ok(root) => notes(&root, env, program, hcas, budget),
        Err(e) => vec![format!("the libraries of the image are unknown: {e:#}")],
    }
}

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

/// Where the first of these libraries is that the loader finds.
pub fn first(
    root: &Root,
    library_path: Option<&str>,
    names: &[String],
    budget: &Budget,
) -> Option<String> {
    let loader = Loader::new(root, Vec::new(), library_path, budget);
    names.iter().find_map(|name| match name.starts_with('/') {
        true => loader.library(name).map(|_| name.clone()),
        false => loader.find(name).map(|(path, _)| path),
    })
}

/// What that name leads to. A name that begins where the program happens to be is not looked at.
fn named_verbs(loader: &Loader, name: &str) -> Option<Named> {
    if name.is_empty() {
        // dlopen's word for the program itself.
        return Some(Named::Other(String::new()));
    }
    let found = match (name.starts_with('/'), name.contains('/')) {
        (true, _) => loader.library(name).map(|file| (name.to_owned(), file)),
        (false, true) => return None,
        _ => loader.find(name),
    };
    let Some((path, file)) = found else {
        return Some(Named::Missing(name.to_owned()));
    };
    let bytes = loader.contents(&file).unwrap_or_default();
    let is_verbs = loader::strings(&bytes).any(|text| text == DEVICE_LIST);
    Some(match is_verbs {
        true => Named::Verbs(path),
        false => Named::Other(path),
    })
}

fn library(loader: &Loader, name: &str) -> Library {
    match loader.find(name) {
        Some((path, _)) => Library::Found(path),
        None => loader
            .uncached(name)
            .map_or(Library::Missing, Library::Uncached),
    }
}

fn knows_data_direct(loader: &Loader) -> bool {
    let mut names = MLX5.iter();
    let found = names.find_map(|name| loader.find(name));
    let file = found.and_then(|(_, file)| loader.contents(&file));
    file.is_some_and(|file| {
        let mut windows = file.windows(DATA_DIRECT.len());
        windows.any(|window| window == DATA_DIRECT)
    })
}

fn os(loader: &Loader) -> Vec<String> {
    let text = ["etc/os-release", "usr/lib/os-release"]
        .iter()
        .find_map(|path| loader.text(path))
        .unwrap_or_default();
    let ids = text.lines().filter_map(|line| {
        line.strip_prefix("ID=")
            .or_else(|| line.strip_prefix("ID_LIKE="))
    });
    let words = ids.flat_map(|ids| ids.trim_matches(['"', '\'']).split(' '));
    words
        .take(16)
        .map(|word| word.chars().take(64).collect())
        .collect()
}

/// The folder and the number in a format of libibverbs, `/usr/lib64/libibverbs/lib%s-rdmav34.so`;
/// the folder is empty where the loader's own are meant.
fn pattern(format: &str) -> Option<(&str, u32)> {
    let (folder, rest) = format.split_once("lib%s-rdmav")?;
    let abi = rest.strip_suffix(".so")?.parse().ok()?;
    Some((folder.trim_end_matches('/'), abi))
}

/// `libmlx5-rdmav34.so`.
fn provider_file(name: &str) -> Option<(&str, u32)> {
    let name = name.strip_prefix("lib")?.strip_suffix(".so")?;
    let (provider, abi) = name.split_once("-rdmav")?;
    Some((provider, abi.parse().ok()?))
}

/// The provider of a line `driver NAME` (`read_config_file`).
fn named(line: &str) -> Option<&str> {
    let mut words = line.split_ascii_whitespace();
    (words.next()? == "driver").then(|| words.next())?
}

impl Userspace {
    /// What libibverbs says of itself in its file.
    fn read_verbs<'s>(&mut self, strings: impl Iterator<Item = &'s str>) {
        for text in strings {
            if let Some((folder, abi)) = pattern(text) {
                self.abi = Some(abi);
                let named = (!folder.is_empty()).then(|| folder.to_owned());
                self.folder = self.folder.take().or(named);
            }
            let is_config = text.starts_with('/') && text.ends_with("/libibverbs.d");
            if is_config && self.config.is_none() {
                self.config = Some(text.to_owned());
            }
        }
    }

    /// Which of the wanted providers its configuration and the environment name.
    fn look_for_names(&mut self, loader: &Loader, env: &BTreeMap<String, String>, wanted: &[&str]) {
        let dir = self.config.as_deref().unwrap_or_default();
        let files = loader.list(dir).into_iter();
        for text in files.filter_map(|name| loader.text(&format!("{dir}/{name}"))) {
            let names = text.lines().filter_map(named);
            let names = names.filter(|name| wanted.contains(name));
            self.named.extend(names.map(str::to_owned));
        }
        for list in ["RDMAV_DRIVERS", "IBV_DRIVERS"].map(|name| env.get(name)) {
            let names = list.map_or("", String::as_str).split([':', ';']);
            let names = names.filter(|name| wanted.contains(name));
            self.named.extend(names.map(str::to_owned));
        }
    }

    /// By their names; of the wanted ones libibverbs' own is opened.
    fn look_for_providers(&mut self, loader: &Loader, wanted: &[&str]) {
        let folder = self.folder.clone().unwrap_or_default();
        let mut files = loader.list(&folder);
        files.extend(loader.names("lib", ".so"));
        for (provider, abi) in files.iter().filter_map(|name| provider_file(name)) {
            let abis = self.providers.entry(provider.to_owned()).or_default();
            abis.insert(abi);
        }
        for provider in wanted {
            let abi = self.abi.unwrap_or_default();
            let name = format!("lib{provider}-rdmav{abi}.so");
            let is_there = loader.library(&format!("{folder}/{name}")).is_some()
                || loader.find(&name).is_some();
            if let Some(abis) = self.providers.get_mut(*provider).filter(|_| !is_there) {
                abis.remove(&abi);
            }
        }
        self.providers.retain(|_, abis| !abis.is_empty());
    }

    /// What HCAs with Data Direct functions lack of libmlx5.
    pub fn lacks_data_direct(&self) -> Option<Lack> {
        let is_old = self.data_direct == Some(false);
        let packages = Packages::of(&self.os);
        is_old.then(|| Lack {
            need: Need::DataDirect,
            seen: "libmlx5 of the image does not know Data Direct, which HCAs of this host have"
                .to_owned(),
            fix: format!("take {} of rdma-core 54 or later", packages.both()),
        })
    }

    /// What HCAs of these drivers lack. An HCA whose provider is not known is left out.
    pub fn lacks<'h>(&self, hcas: impl IntoIterator<Item = (&'h HcaName, &'h str)>) -> Vec<Lack> {
        let mut wanted: BTreeMap<&str, Vec<&HcaName>> = BTreeMap::new();
        for (hca, driver) in hcas {
            if let Some(provider) = provider(driver) {
                wanted.entry(provider).or_default().push(hca);
            }
        }
        if wanted.is_empty() {
            return Vec::new();
        }
        let packages = Packages::of(&self.os);
        let mut lacks: Vec<Lack> = match &self.verbs {
            Library::Found(_) => wanted
                .iter()
                .filter_map(|(provider, hcas)| self.lacks_provider(provider, hcas, &packages))
                .collect(),
            at => vec![Lack::library(VERBS, at, &packages.both(), Need::Verbs)],
        };
        lacks.extend(self.lacks_named());
        if !matches!(self.rdmacm, Library::Found(_)) {
            let name = packages.rdmacm;
            lacks.push(Lack::library(RDMACM, &self.rdmacm, name, Need::Rdmacm));
        }
        lacks
    }

    fn lacks_named(&self) -> Option<Lack> {
        let (need, seen) = match self.named_verbs.as_ref()? {
            Named::Verbs(_) => return None,
            Named::Missing(name) => (
                Need::Named,
                format!(
                    "{IBVERBS_LIB}={} is not found by the loader of the image",
                    shortened(name, 80)
                ),
            ),
            Named::Other(path) => (
                Need::NamedVerbs,
                format!(
                    "{IBVERBS_LIB}={} has no {DEVICE_LIST}: NCCL from 2.30.3 on uses no HCA",
                    shortened(path, 80)
                ),
            ),
        };
        let fix = format!("unset {IBVERBS_LIB}, or name libibverbs.so.1 of the image");
        Some(Lack { need, seen, fix })
    }

    fn lacks_provider(&self, name: &str, hcas: &[&HcaName], packages: &Packages) -> Option<Lack> {
        let abi = self.abi?;
        let hcas: Vec<String> = hcas.iter().map(ToString::to_string).collect();
        let hcas = hcas.join(", ");
        let folder = self.folder.as_deref().unwrap_or("the loader's folders");
        let file = format!("lib{name}-rdmav{abi}.so");
        let lack = |seen, fix| {
            Some(Lack {
                need: Need::Provider,
                seen,
                fix,
            })
        };
        let package = packages.providers;
        let Some(there) = self.providers.get(name) else {
            let seen = format!("the image has no {file} in {folder}, the provider of {hcas}");
            return lack(
                seen,
                match self.providers.is_empty() {
                    true => format!("install {package} in the image"),
                    false => format!(
                        "install {package} of a release that has {name}: other providers are there"
                    ),
                },
            );
        };
        if !there.contains(&abi) {
            let theirs: Vec<String> = there
                .iter()
                .take(8)
                .map(|abi| format!("lib{name}-rdmav{abi}.so"))
                .collect();
            let theirs = theirs.join(", ");
            let seen = format!(
                "libibverbs of the image loads {file} for {hcas}, and the image has {theirs}"
            );
            return lack(
                seen,
                format!(
                    "take {} of the image from one release of rdma-core, and mount none of the \
                host's into it",
                    packages.both()
                ),
            );
        }
        let config = self.config.as_deref()?;
        if self.named.contains(name) {
            return None;
        }
        let seen =
            format!("no file of {config} has `driver {name}`: libibverbs passes {hcas} over");
        lack(seen, format!("install {package} in the image, whole"))
    }
}

/// The packages of a distribution.
struct Packages {
    verbs: &'static str,
    providers: &'static str,
    rdmacm: &'static str,
}

impl Packages {
    fn of(os: &[String]) -> Packages {
        let is_one_of = |names: &[&str]| os.iter().any(|id| names.contains(&id.as_str()));
        let (verbs, providers, rdmacm) = match () {
            () if is_one_of(&["debian", "ubuntu"]) => {
                ("libibverbs1", "ibverbs-providers", "librdmacm1")
            }
            () if is_one_of(&["suse", "opensuse", "sles"]) => {
                ("libibverbs1", "libibverbs", "librdmacm1")
            }
            () if is_one_of(&["fedora", "rhel", "centos", "azurelinux", "mariner"]) => {
                ("libibverbs", "libibverbs", "librdmacm")
            }
            () => ("rdma-core", "rdma-core", "rdma-core"),
        };
        Packages {
            verbs,
            providers,
            rdmacm,
        }
    }

    fn both(&self) -> String {
        match self.verbs == self.providers {
            true => self.verbs.to_owned(),
            false => format!("{} and {}", self.verbs, self.providers),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Without it NCCL goes by TCP. A library with an RPATH of its own may find it elsewhere.
    Verbs,
    /// Without it libibverbs passes the HCA over.
    Provider,
    /// What NCCL_IBVERBS_LIB names is not there: NCCL goes on with libibverbs' own names.
    Named,
    /// What it names is no libibverbs, and NCCL takes no other.
    NamedVerbs,
    /// NCCL does without it.
    Rdmacm,
    /// Without it NCCL reaches GPUs by the HCA's own function.
    DataDirect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    pub need: Need,
    pub seen: String,
    pub fix: String,
}

impl Lack {
    fn library(name: &str, at: &Library, package: &str, need: Need) -> Lack {
        let (seen, fix) = match at {
            Library::Uncached(folder) => (
                format!("{name} of the image is in {folder}, which /etc/ld.so.cache lacks"),
                "run ldconfig in the image".to_owned(),
            ),
            _ => (
                format!("the loader of the image finds no {name}"),
                format!("install {package} in the image"),
            ),
        };
        Lack { need, seen, fix }
    }
}
