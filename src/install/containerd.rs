//! containerd: a runtime of its CRI plugin, for a RuntimeClass. `ctr` and `nerdctl` need no file,
//! they name the runtime themselves. By `containerd config dump` of 1.6.20 and 1.7.24, a plugin's
//! section of an imported file takes the place of the whole section in config.toml, also of what is
//! written there later, and `runtimes` in a file takes the place of the runtimes that are built in.
//! So their config.toml is edited itself. 2.0 merges sections (containerd#9982), and takes no
//! imported file of a higher version than config.toml's.

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, value};

use super::{
    Content, Ground, How, InstallRequest, NAME, Part, Piece, about, behind, imports, shim,
    toml_document, toml_text,
};

pub(super) const CONFIG: &str = "/etc/containerd/config.toml";
const DROP_IN: &str = "/etc/containerd/conf.d/rdmaprep.toml";
const RUNC: &str = "runc";
/// What the pod's annotations are passed on by.
const ANNOTATIONS: &str = "rdmaprep.io/*";

pub(super) fn part(wanted: &InstallRequest, ground: &Ground) -> Result<Part> {
    let path = ground.tree.followed(CONFIG)?;
    let text = ground.text(&path)?.unwrap_or_default();
    let mut main = Main::read(&text).map_err(about(&path))?;
    // Imports are relative to where config.toml is looked for, wherever a link there leads.
    let mut others = imports::imported(CONFIG, &main.document, ground)?;
    others.retain(|(path, _)| path != DROP_IN);
    let all = [(path.as_str(), &main.document)]
        .into_iter()
        .chain(others.iter().map(|(p, d)| (p.as_str(), d)));
    if let Some((by, _)) = all
        .into_iter()
        .find(|(_, document)| main.is_without_cri(document))
    {
        let note = format!(
            "{by} disables the CRI plugin: there is nothing to tell containerd; name the runtime \
            to ctr or nerdctl"
        );
        return Ok(Part {
            notes: vec![note],
            ..Part::default()
        });
    }
    let (runtime, link) = shim(wanted, ground.tree)?;
    let mut pieces = vec![link];
    main.is_alone(&path, &others)?;
    let own = main
        .section()
        .and_then(runtimes)
        .is_some_and(|r| r.contains_key(NAME));
    ensure!(
        !own,
        ErrorClass::Refused.error(format!(
            "{path}: has a runtime {NAME} that rdmaprep did not write: remove it first"
        ))
    );
    // What is imported counts more.
    let imported = others.iter().rev().filter_map(|(_, d)| main.section_of(d));
    let known = Known::from_sections(imported.chain(main.section()));
    if main.replaces() {
        let plugin = main.plugin;
        add(&mut main.document, plugin, &runtime, &known).map_err(about(&path))?;
    } else {
        let mut document = DocumentMut::new();
        document["version"] = value(main.version);
        add(&mut document, main.plugin, &runtime, &known)?;
        pieces.push(Piece::whole_file(
            DROP_IN,
            format!("# By `rdmaprep install`.\n{document}"),
        ));
        main.import().map_err(about(&path))?;
    }
    let written = toml_text(&text, &main.document);
    if written != text {
        pieces.push(Piece {
            path,
            how: How::Toml,
            content: Content::Text(written),
        });
    }
    let notes = known
        .other
        .map(|(name, binary)| behind("containerd", &name, &binary))
        .into_iter()
        .collect();
    Ok(Part {
        pieces,
        notes,
        ..Part::default()
    })
}

/// The file that makes our runtime the default one, less what an installation put there.
pub(super) fn named(ground: &Ground) -> Result<Option<String>> {
    let path = ground.tree.followed(CONFIG)?;
    let main = Main::read(&ground.text(&path)?.unwrap_or_default())?;
    let others = imports::imported(CONFIG, &main.document, ground)?;
    let mut all = [(path.as_str(), &main.document)]
        .into_iter()
        .chain(others.iter().map(|(p, d)| (p.as_str(), d)));
    Ok(all
        .find(|(_, d)| main.section_of(d).and_then(default_runtime) == Some(NAME))
        .map(|(path, _)| path.to_owned()))
}

#[derive(Default)]
struct Known {
    any: bool,
    cgroup: Option<bool>,
    /// The default runtime, and its program, where that is one besides runc's.
    other: Option<(String, String)>,
}

impl Known {
    /// The first one that says something counts.
    fn from_sections<'a>(sections: impl Iterator<Item = &'a Item>) -> Known {
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
        let binary = options(default)
            .and_then(|o| o.get("BinaryName")?.as_str())
            .filter(|_| default != RUNC);
        Known {
            any: sections.iter().any(|s| runtimes(s).is_some()),
            cgroup: cgroup(default).or_else(|| cgroup(RUNC)),
            other: binary.map(|binary| (default.to_owned(), binary.to_owned())),
        }
    }
}

fn default_runtime(section: &Item) -> Option<&str> {
    section
        .get("containerd")?
        .get("default_runtime_name")?
        .as_str()
}

struct Main {
    document: DocumentMut,
    version: i64,
    plugin: &'static str,
}

impl Main {
    fn read(text: &str) -> Result<Main> {
        let mut document: DocumentMut = toml_document(text)?;
        if document.is_empty() {
            // 2 is what 1.x has and 2.x reads.
            document["version"] = value(2);
        }
        let version = document.get("version").map_or(Some(1), Item::as_integer);
        let plugin = match version {
            Some(1) => "cri",
            Some(2) => "io.containerd.grpc.v1.cri",
            Some(3 | 4) => "io.containerd.cri.v1.runtime",
            _ => return Err(ErrorClass::Usage.error("has a version that is not known: 2 to 4 are")),
        };
        Ok(Main {
            document,
            version: version.unwrap_or_default(),
            plugin,
        })
    }

    /// Whether a document switches the plugin off; Docker's package of containerd does that.
    fn is_without_cri(&self, document: &DocumentMut) -> bool {
        let disabled = document.get("disabled_plugins").and_then(Item::as_array);
        disabled
            .into_iter()
            .flatten()
            .filter_map(|v| v.as_str())
            .any(|name| name == "cri" || name == self.plugin)
    }

    /// Whether a section of an imported file takes the place of the same section elsewhere.
    fn replaces(&self) -> bool {
        self.version < 3
    }

    fn section(&self) -> Option<&Item> {
        self.section_of(&self.document)
    }

    fn section_of<'d>(&self, document: &'d DocumentMut) -> Option<&'d Item> {
        document.get("plugins")?.get(self.plugin)
    }

    /// Refuses what we could not add to without losing something.
    fn is_alone(&self, path: &str, others: &[(String, DocumentMut)]) -> Result<()> {
        ensure!(
            self.version > 1,
            ErrorClass::Refused.error(format!(
                "{path} is of version 1: see `containerd config migrate`"
            ))
        );
        for (other, document) in others {
            let Some(section) = self.section_of(document) else {
                continue;
            };
            let own = runtimes(section).is_some_and(|r| r.contains_key(NAME));
            ensure!(
                !own,
                ErrorClass::Refused.error(format!(
                    "{other}: has a runtime {NAME} that rdmaprep did not write: remove it first"
                ))
            );
            ensure!(
                !self.replaces(),
                ErrorClass::Refused.error(format!(
                    "{other} has a section of the CRI plugin, and containerd 1 takes just one \
                    file's: add the runtime {NAME} there"
                ))
            );
        }
        Ok(())
    }

    fn import(&mut self) -> Result<()> {
        if imports::surely(CONFIG, &self.document, DROP_IN) {
            return Ok(());
        }
        let list = self
            .document
            .entry("imports")
            .or_insert_with(|| value(Array::new()));
        let list = list
            .as_array_mut()
            .ok_or_else(|| ErrorClass::Usage.error("imports is no list"))?;
        list.push(DROP_IN);
        Ok(())
    }
}

fn runtimes(section: &Item) -> Option<&dyn TableLike> {
    section.get("containerd")?.get("runtimes")?.as_table_like()
}

fn add(document: &mut DocumentMut, plugin: &str, runtime: &str, known: &Known) -> Result<()> {
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
