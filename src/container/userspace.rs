//! rdma-core in a container's image: whether libibverbs is there, and loads a provider for each HCA
//! (libibverbs/dynamic_driver.c of rdma-core). What it loads is named by a file of
//! /etc/libibverbs.d, and lies under a name with libibverbs' own number for the interface between
//! the two, IBVERBS_PABI_VERSION: `libmlx5-rdmav34.so`.

use std::collections::{BTreeMap, BTreeSet};

use rdma_model::ids::HcaName;
use serde::{Deserialize, Serialize};

use super::budget::Budget;
use super::loader::{self, Loader};
use crate::kernel::mount::mntns::Mntns;
use crate::kernel::mount::program;
use crate::kernel::mount::rootfs::Root;
use crate::oci::bundle::ContainerRoot;

mod bundle;
mod lack;

pub use bundle::{Mounts, bundle_lacks};
pub use lack::{Lack, Need};

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
    /// Of libraries that are there: one that it needs, and that the loader does not find.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lacking: BTreeMap<String, String>,
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
        found.look_for_needs(&loader, wanted);
    }
    found.data_direct = wanted.contains(&"mlx5").then(|| knows_data_direct(&loader));
    budget.lasts().then_some(found)
}

/// What HCAs of these drivers lack there.
fn lacks<'h>(
    root: &Root,
    env: &BTreeMap<String, String>,
    program: Option<&str>,
    hcas: impl Iterator<Item = (&'h HcaName, &'h str)> + Clone,
    data_direct: bool,
    budget: &Budget,
) -> Vec<Lack> {
    let wanted: BTreeSet<&str> = hcas.clone().filter_map(|(_, d)| provider(d)).collect();
    let found = look(root, env, program, &Vec::from_iter(wanted), budget);
    let lacks = found.map(|found| found.lacks(hcas, data_direct));
    lacks.unwrap_or_default()
}

/// What NCCL lacks, in a sentence each: it does without librdmacm.
pub fn for_nccl(mut lacks: Vec<Lack>) -> Vec<String> {
    lacks.retain(|lack| lack.need != Need::Rdmacm);
    lacks.iter().map(ToString::to_string).collect()
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
        Ok(root) => for_nccl(lacks(&root, env, program, hcas, false, budget)),
        Err(e) => vec![format!("the libraries of the image are unknown: {e:#}")],
    }
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

    /// What libraries need that are there.
    fn look_for_needs(&mut self, loader: &Loader, wanted: &[&str]) {
        let library = |library: &Library| match library {
            Library::Found(path) => Some(path.clone()),
            _ => None,
        };
        let both = [(VERBS, &self.verbs), (RDMACM, &self.rdmacm)];
        let both = both.map(|(name, at)| Some((name.to_owned(), library(at)?)));
        let mut files: Vec<(String, String)> = both.into_iter().flatten().collect();
        let folder = self.folder.as_deref().unwrap_or_default();
        for provider in wanted {
            let file = format!("lib{provider}-rdmav{}.so", self.abi.unwrap_or_default());
            files.push((file.clone(), format!("{folder}/{file}")));
        }
        for (name, path) in files {
            let found = loader.library(&path).map(|file| (path, file));
            let found = found.or_else(|| loader.find(&name));
            let lacking = found.and_then(|(path, file)| loader.lacking(&path, file));
            self.lacking.extend(lacking.map(|lacking| (name, lacking)));
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
}
