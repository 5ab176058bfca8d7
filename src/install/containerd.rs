//! containerd: a runtime of its CRI plugin, for a RuntimeClass. `ctr` and `nerdctl` need no file, they name the runtime themselves.
//!
//! What was seen of 1.6.20 and 1.7.24 by `containerd config dump`: a plugin's section of an imported file takes the place of the
//! whole section in config.toml, and `runtimes` in a file takes the place of the runtimes that are built in. 2.0 merges sections
//! (containerd#9982), and takes no imported file of a higher version than config.toml's.

use anyhow::{Result, ensure};
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, value};

use super::{Content, Ground, How, Part, Piece, Wanted, about, imports, shim, toml_document};
use crate::fault::Fault;

const CONFIG: &str = "/etc/containerd/config.toml";
const DROP_IN: &str = "/etc/containerd/conf.d/rdmaprep.toml";
/// The runtime's name, and a RuntimeClass's handler.
const NAME: &str = "rdmaprep";
/// What the pod's annotations are passed on by.
const ANNOTATIONS: &str = "rdmaprep.io/*";

pub(super) fn part(wanted: &Wanted, ground: &Ground) -> Result<Part> {
    let path = ground.look.followed(CONFIG)?;
    let text = ground.text(&path)?.unwrap_or_default();
    let mut main = Main::read(&text).map_err(about(&path))?;
    // Imports are relative to where config.toml is looked for, wherever a link there leads.
    let mut others = imports::imported(CONFIG, &main.document, ground)?;
    others.retain(|(path, _)| path != DROP_IN);
    let all = [(path.as_str(), &main.document)].into_iter().chain(others.iter().map(|(p, d)| (p.as_str(), d)));
    if let Some((by, _)) = all.into_iter().find(|(_, document)| main.is_without_cri(document)) {
        let note = format!(
            "{by} disables the CRI plugin: there is nothing to tell containerd; name the runtime to ctr or nerdctl"
        );
        return Ok(Part { notes: vec![note], ..Part::default() });
    }
    let (runtime, link) = shim(wanted, ground.look)?;
    let mut pieces = vec![link];
    main.is_alone(&path, &others)?;
    // Beside a section of a file that replaces, ours would be all that is left of it.
    if main.replaces() && main.section().is_some() {
        let plugin = main.plugin;
        add(&mut main.document, plugin, &runtime).map_err(about(&path))?;
    } else {
        let mut document = DocumentMut::new();
        document["version"] = value(main.version);
        // What config.toml says of runc holds for ours, too.
        let own = main.runtimes().is_some_and(|r| r.contains_key(NAME));
        ensure!(!own, Fault::Refused.error(format!("{path}: has a runtime {NAME} that is not ours: take it out")));
        let known = main.section().cloned().unwrap_or_default();
        add_beside(&mut document, main.plugin, &runtime, &known)?;
        pieces.push(Piece::own(DROP_IN, format!("# By `rdmaprep install`.\n{document}")));
        main.import().map_err(about(&path))?;
    }
    let written = main.document.to_string();
    if written != text {
        pieces.push(Piece { path, how: How::Toml, content: Content::Text(written) });
    }
    Ok(Part { pieces, ..Part::default() })
}

/// config.toml, and what follows from its version.
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
            _ => return Err(Fault::Usage.error("has a version that is not known: 2 to 4 are")),
        };
        Ok(Main { document, version: version.unwrap_or_default(), plugin })
    }

    /// Whether a document switches the plugin off; Docker's package of containerd does that.
    fn is_without_cri(&self, document: &DocumentMut) -> bool {
        let disabled = document.get("disabled_plugins").and_then(Item::as_array);
        disabled.into_iter().flatten().filter_map(|v| v.as_str()).any(|name| name == "cri" || name == self.plugin)
    }

    /// Whether a section of an imported file takes the place of the same section elsewhere.
    fn replaces(&self) -> bool {
        self.version < 3
    }

    fn section(&self) -> Option<&Item> {
        self.document.get("plugins")?.get(self.plugin)
    }

    fn runtimes(&self) -> Option<&dyn TableLike> {
        runtimes(self.section()?)
    }

    /// Refuses what we could not add to without losing something.
    fn is_alone(&self, path: &str, others: &[(String, DocumentMut)]) -> Result<()> {
        let old = || Fault::Refused.error(format!("{path} is of version 1: see `containerd config migrate`"));
        ensure!(self.version > 1, old());
        for (other, document) in others {
            let Some(section) = document.get("plugins").and_then(|p| p.get(self.plugin)) else { continue };
            let own = runtimes(section).is_some_and(|r| r.contains_key(NAME));
            ensure!(!own, Fault::Refused.error(format!("{other}: has a runtime {NAME} that is not ours: take it out")));
            let why = || {
                Fault::Refused.error(format!(
                    "{other} has a section of the CRI plugin, and containerd 1 takes just one file's: add the runtime {NAME} there"
                ))
            };
            ensure!(!self.replaces(), why());
        }
        Ok(())
    }

    /// Has the drop-in imported.
    fn import(&mut self) -> Result<()> {
        if imports::surely(CONFIG, &self.document, DROP_IN) {
            return Ok(());
        }
        let list = self.document.entry("imports").or_insert_with(|| value(Array::new()));
        let list = list.as_array_mut().ok_or_else(|| Fault::Usage.error("imports is no list"))?;
        list.push(DROP_IN);
        Ok(())
    }
}

fn runtimes(section: &Item) -> Option<&dyn TableLike> {
    section.get("containerd")?.get("runtimes")?.as_table_like()
}

/// Adds the runtime to a document that has the plugin's section.
fn add(document: &mut DocumentMut, plugin: &str, runtime: &str) -> Result<()> {
    let section = document.get("plugins").and_then(|p| p.get(plugin)).cloned().unwrap_or_default();
    add_beside(document, plugin, runtime, &section)
}

/// Adds the runtime; `known` is the plugin's section as it is there, or elsewhere.
fn add_beside(document: &mut DocumentMut, plugin: &str, runtime: &str, known: &Item) -> Result<()> {
    let runtimes = known.get("containerd").and_then(|c| c.get("runtimes"));
    let cgroup = runtimes.and_then(|r| r.get("runc")?.get("options")?.get("SystemdCgroup")?.as_bool());
    let mut at = document.as_table_mut();
    for key in ["plugins", plugin, "containerd", "runtimes"] {
        let item = at.entry(key).or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        let inline = || Fault::Usage.error(format!("{key} is no table of its own: write it as one"));
        at = item.as_table_mut().ok_or_else(inline)?;
    }
    let own = || Fault::Refused.error(format!("has a runtime {NAME} that is not ours: take it out"));
    ensure!(!at.contains_key(NAME), own());
    if runtimes.is_none() {
        // The one that is built in, which goes as soon as a file names any.
        let mut runc = Table::new();
        runc["runtime_type"] = value("io.containerd.runc.v2");
        at.insert("runc", Item::Table(runc));
    }
    let mut ours = Table::new();
    ours["runtime_type"] = value("io.containerd.runc.v2");
    for key in ["pod_annotations", "container_annotations"] {
        ours[key] = value(Array::from_iter([ANNOTATIONS]));
    }
    let mut options = Table::new();
    options["BinaryName"] = value(runtime);
    if let Some(cgroup) = cgroup {
        options["SystemdCgroup"] = value(cgroup);
    }
    ours["options"] = Item::Table(options);
    at.insert(NAME, Item::Table(ours));
    Ok(())
}
