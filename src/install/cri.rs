//! A file of containerd's configuration, and what its section of the CRI plugin says.

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, value};

use super::daemon::Daemon;
use super::{NAME, imports, toml_document};

const RUNC: &str = "runc";
/// The plugin of the whole CRI in a file of version 2, and from 3 on that of its service.
const SERVICE: &str = "io.containerd.grpc.v1.cri";
const RUNTIME: &str = "io.containerd.cri.v1.runtime";
/// The handler of NVIDIA's toolkit, and of k3s where it finds that.
pub(super) const NVIDIA: &str = "nvidia";
/// What the pod's annotations are passed on by.
const ANNOTATIONS: &str = "rdmaprep.io/*";

/// What the sections of all files say together.
#[derive(Clone, Default)]
pub(super) struct Known {
    /// Whether any names runtimes.
    pub any: bool,
    /// `SystemdCgroup` of the default runtime, or of runc.
    pub cgroup: Option<bool>,
    /// The default runtime, and its program, where that is one besides runc's.
    pub other: Option<(String, String)>,
    /// The program of the runtime for GPUs.
    pub gpus: Option<String>,
    /// `enable_cdi`.
    pub cdi: Option<bool>,
}

impl Known {
    /// The first one that says something counts.
    pub fn from_sections<'a>(sections: impl Iterator<Item = &'a Item>) -> Known {
        let sections: Vec<&Item> = sections.collect();
        let default = sections
            .iter()
            .find_map(|s| default_runtime(s))
            .filter(|name| *name != NAME)
            .unwrap_or(RUNC);
        let options = |name: &str| {
            sections
                .iter()
                .find_map(|s| runtimes(s)?.get(name)?.get("options"))
        };
        let cgroup = |name: &str| options(name)?.get("SystemdCgroup")?.as_bool();
        let binary = |name: &str| options(name)?.get("BinaryName")?.as_str();
        let other = binary(default).filter(|_| default != RUNC);
        Known {
            any: sections.iter().any(|s| runtimes(s).is_some()),
            cgroup: cgroup(default).or_else(|| cgroup(RUNC)),
            other: other.map(|binary| (default.to_owned(), binary.to_owned())),
            gpus: binary(NVIDIA).map(str::to_owned),
            cdi: sections.iter().find_map(|s| s.get("enable_cdi")?.as_bool()),
        }
    }
}

pub(super) fn default_runtime(section: &Item) -> Option<&str> {
    section
        .get("containerd")?
        .get("default_runtime_name")?
        .as_str()
}

pub(super) struct Main {
    pub document: DocumentMut,
    pub version: i64,
    pub plugin: &'static str,
}

impl Main {
    pub fn read(text: &str) -> Result<Main> {
        let mut document: DocumentMut = toml_document(text)?;
        if document.is_empty() {
            // 2 is what 1.x has and 2.x reads.
            document["version"] = value(2);
        }
        let version = document.get("version").map_or(Some(1), Item::as_integer);
        let plugin = match version {
            Some(1) => "cri",
            Some(2) => SERVICE,
            Some(3 | 4) => RUNTIME,
            _ => return Err(ErrorClass::Usage.error("has a version that is not known: 2 to 4 are")),
        };
        Ok(Main {
            document,
            version: version.unwrap_or_default(),
            plugin,
        })
    }

    /// Whether a document switches the plugin off; Docker's package of containerd does that.
    pub fn is_without_cri(&self, document: &DocumentMut) -> bool {
        let disabled = document.get("disabled_plugins").and_then(Item::as_array);
        disabled
            .into_iter()
            .flatten()
            .filter_map(|v| v.as_str())
            .any(|name| name == "cri" || name == SERVICE || name == self.plugin)
    }

    /// Whether a section of an imported file takes the place of the same section elsewhere.
    pub fn replaces(&self) -> bool {
        self.version < 3
    }

    pub fn section(&self) -> Option<&Item> {
        self.section_of(&self.document)
    }

    /// By the document's own version, where it has one.
    pub fn section_of<'d>(&self, document: &'d DocumentMut) -> Option<&'d Item> {
        let plugin = match document.get("version").and_then(Item::as_integer) {
            Some(2) => SERVICE,
            Some(3 | 4) => RUNTIME,
            _ => self.plugin,
        };
        document.get("plugins")?.get(plugin)
    }

    /// Refuses a file of a higher version than this one at `own`, which imports it.
    pub fn takes(&self, own: &str, path: &str, document: &DocumentMut) -> Result<()> {
        let theirs = document.get("version").and_then(Item::as_integer);
        let version = self.version;
        ensure!(
            theirs.is_none_or(|theirs| theirs <= version),
            ErrorClass::Refused.error(format!(
                "{path} is of a higher version than {own}, which is of version {version}, and \
                containerd takes no such import: see `containerd config migrate`"
            ))
        );
        Ok(())
    }

    /// Refuses a file with a runtime of our name.
    pub fn lacks_ours(&self, path: &str, document: &DocumentMut) -> Result<()> {
        let runtimes = self.section_of(document).and_then(runtimes);
        ensure!(
            !runtimes.is_some_and(|runtimes| runtimes.contains_key(NAME)),
            ErrorClass::Refused.error(format!(
                "{path}: has a runtime {NAME} that rdmaprep did not write: remove it first"
            ))
        );
        Ok(())
    }

    /// Whether it has a runtime of our name that calls this program, written by `install` or by an
    /// administrator.
    pub fn names(&self, document: &DocumentMut, runtime: &str) -> bool {
        let own = self.section_of(document).and_then(runtimes);
        let own = own.and_then(|runtimes| runtimes.get(NAME)?.get("options")?.get("BinaryName"));
        own.and_then(Item::as_str) == Some(runtime)
    }

    pub fn is_known(&self, path: &str) -> Result<()> {
        ensure!(
            self.version > 1,
            ErrorClass::Refused.error(format!(
                "{path} is of version 1: see `containerd config migrate`"
            ))
        );
        Ok(())
    }

    pub fn import(&mut self, drop_in: &str) -> Result<()> {
        if imports::surely(&Daemon::Own.config(), &self.document, drop_in) {
            return Ok(());
        }
        let list = self
            .document
            .entry("imports")
            .or_insert_with(|| value(Array::new()));
        let list = list
            .as_array_mut()
            .ok_or_else(|| ErrorClass::Usage.error("imports is no list"))?;
        list.push(drop_in);
        Ok(())
    }
}

fn runtimes(section: &Item) -> Option<&dyn TableLike> {
    section.get("containerd")?.get("runtimes")?.as_table_like()
}

pub(super) fn add(
    document: &mut DocumentMut,
    plugin: &str,
    runtime: &str,
    known: &Known,
) -> Result<()> {
    let mut at = document.as_table_mut();
    for key in ["plugins", plugin, "containerd", "runtimes"] {
        let item = at.entry(key).or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        at = item.as_table_mut().ok_or_else(|| {
            ErrorClass::Usage.error(format!("{key} is no table of its own: write it as one"))
        })?;
    }
    if !known.any {
        // The one that is built in, which goes as soon as a file names any.
        let mut runc = Table::new();
        runc["runtime_type"] = value("io.containerd.runc.v2");
        at.insert(RUNC, Item::Table(runc));
    }
    let mut ours = Table::new();
    ours["runtime_type"] = value("io.containerd.runc.v2");
    for key in ["pod_annotations", "container_annotations"] {
        ours[key] = value(Array::from_iter([ANNOTATIONS]));
    }
    let mut options = Table::new();
    options["BinaryName"] = value(runtime);
    if let Some(cgroup) = known.cgroup {
        options["SystemdCgroup"] = value(cgroup);
    }
    ours["options"] = Item::Table(options);
    at.insert(NAME, Item::Table(ours));
    Ok(())
}
