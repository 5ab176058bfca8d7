//! What the HCAs of a container lack in its image: which file, and which package has it.

use std::collections::BTreeMap;
use std::fmt;

use rdma_model::escape::shortened;
use rdma_model::ids::HcaName;

use super::{DEVICE_LIST, IBVERBS_LIB, Library, Named, RDMACM, Userspace, VERBS, provider};

impl Userspace {
    /// What HCAs with Data Direct functions lack of libmlx5.
    fn lacks_data_direct(&self) -> Option<Lack> {
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
    /// `data_direct`: whether NCCL asks for such functions, and some are here.
    pub fn lacks<'h>(
        &self,
        hcas: impl IntoIterator<Item = (&'h HcaName, &'h str)>,
        data_direct: bool,
    ) -> Vec<Lack> {
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
            Library::Found(_) => match self.unlinked(VERBS, &packages.both(), Need::Verbs) {
                Some(lack) => vec![lack],
                None => wanted
                    .iter()
                    .filter_map(|(provider, hcas)| self.lacks_provider(provider, hcas, &packages))
                    .collect(),
            },
            at => vec![Lack::library(VERBS, at, &packages.both(), Need::Verbs)],
        };
        if data_direct && lacks.is_empty() && wanted.contains_key("mlx5") {
            lacks.extend(self.lacks_data_direct());
        }
        lacks.extend(self.lacks_named());
        match self.rdmacm {
            Library::Found(_) => lacks.extend(self.unlinked(RDMACM, packages.rdmacm, Need::Rdmacm)),
            _ => {
                let name = packages.rdmacm;
                lacks.push(Lack::library(RDMACM, &self.rdmacm, name, Need::Rdmacm));
            }
        }
        lacks
    }

    /// Of a library that is there: one that it needs is not.
    fn unlinked(&self, name: &str, package: &str, need: Need) -> Option<Lack> {
        let lacking = self.lacking.get(name)?;
        Some(Lack {
            need,
            seen: format!(
                "{name} of the image needs {}, which its loader does not find",
                shortened(lacking, 80)
            ),
            fix: format!("install {package} in the image, with what it depends on"),
        })
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
                    "install {} of one release of rdma-core in the image, and mount none of the \
                    host's into it",
                    packages.both()
                ),
            );
        }
        if let Some(lack) = self.unlinked(&file, package, Need::Provider) {
            return Some(lack);
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

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.seen, self.fix)
    }
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
