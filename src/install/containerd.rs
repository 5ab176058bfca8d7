//! containerd: a runtime of its CRI plugin, for a RuntimeClass. `ctr` and `nerdctl` need no file, they name the runtime themselves.
//!
//! What was seen of 1.6.20 and 1.7.24 by `containerd config dump`: a plugin's section of an imported file takes the place of the
//! whole section in config.toml, and `runtimes` in a file takes the place of the runtimes that are built in. 2.0 merges sections
//! (containerd#9982), and takes no imported file of a higher version than config.toml's.

use anyhow::{Result, ensure};
use toml_edit::{Array, DocumentMut, Item, Table, value};

use super::{Content, Ground, How, Part, Piece, Wanted, about, shim, toml_document};
use crate::fault::Fault;

const CONFIG: &str = "/etc/containerd/config.toml";
const DROP_INS: &str = "/etc/containerd/conf.d";
const DROP_IN: &str = "/etc/containerd/conf.d/rdmaprep.toml";
/// The runtime's name, and a RuntimeClass's handler.
const NAME: &str = "rdmaprep";
/// What the pod's annotations are passed on by.
const ANNOTATIONS: &str = "rdmaprep.io/*";

pub(super) fn part(wanted: &Wanted, ground: &Ground) -> Result<Part> {
    let path = ground.look.followed(CONFIG)?;
    let text = ground.text(&path)?.unwrap_or_default();
    let mut main = Main::read(&text).map_err(about(&path))?;
    if main.is_without_cri() {
        let note = format!(
            "{path} disables the CRI plugin: there is nothing to tell containerd; name the runtime to ctr or nerdctl"
        );
        return Ok(Part { notes: vec![note], ..Part::default() });
    }
    let (runtime, link) = shim(wanted, ground.look)?;
    let mut pieces: Vec<Piece> = link.into_iter().collect();
    if main.replaces() {
        main.is_alone(ground, &path)?;
    }
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
        main.import()?;
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

    /// Whether the plugin is switched off; Docker's package of containerd does that.
    fn is_without_cri(&self) -> bool {
        let disabled = self.document.get("disabled_plugins").and_then(Item::as_array);
        disabled.into_iter().flatten().filter_map(|v| v.as_str()).any(|name| name == "cri" || name == self.plugin)
    }

    /// Whether a section of an imported file takes the place of the same section elsewhere.
    fn replaces(&self) -> bool {
        self.version < 3
    }

    fn section(&self) -> Option<&Item> {
        self.document.get("plugins")?.get(self.plugin)
    }

    fn runtimes(&self) -> Option<&dyn toml_edit::TableLike> {
        self.section()?.get("containerd")?.get("runtimes")?.as_table_like()
    }

    /// Refuses what we could not add to without losing something.
    fn is_alone(&self, ground: &Ground, path: &str) -> Result<()> {
        let old = || Fault::Refused.error(format!("{path} is of version 1: see `containerd config migrate`"));
        ensure!(self.version > 1, old());
        for name in ground.look.list(DROP_INS)?.iter().filter(|n| n.ends_with(".toml")) {
            let other = format!("{DROP_INS}/{name}");
            if other == DROP_IN || !self.imports(&other) {
                continue;
            }
            let Some(text) = ground.text(&ground.look.followed(&other)?)? else { continue };
            let document: DocumentMut = toml_document(&text).map_err(about(&other))?;
            let takes = document.get("plugins").and_then(|p| p.get(self.plugin)).is_some();
            let why = || {
                Fault::Refused.error(format!(
                    "{other} has a section of the CRI plugin, and containerd 1 takes just one file's: add the runtime {NAME} there"
                ))
            };
            ensure!(!takes, why());
        }
        Ok(())
    }

    /// Whether a file is imported; patterns are relative to config.toml's folder.
    fn imports(&self, path: &str) -> bool {
        let patterns = self.document.get("imports").and_then(Item::as_array);
        patterns.into_iter().flatten().filter_map(|v| v.as_str()).any(|pattern| {
            let pattern =
                if pattern.starts_with('/') { pattern.to_owned() } else { format!("/etc/containerd/{pattern}") };
            let regex = regex::escape(&pattern).replace(r"\*", "[^/]*").replace(r"\?", "[^/]");
            regex::Regex::new(&format!("^{regex}$")).is_ok_and(|regex| regex.is_match(path))
        })
    }

    /// Has the drop-in imported.
    fn import(&mut self) -> Result<()> {
        if self.imports(DROP_IN) {
            return Ok(());
        }
        let list = self.document.entry("imports").or_insert_with(|| value(Array::new()));
        let list = list.as_array_mut().ok_or_else(|| Fault::Usage.error(format!("{CONFIG}: imports is no list")))?;
        list.push(DROP_IN);
        Ok(())
    }
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
