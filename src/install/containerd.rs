//! containerd: a runtime of its CRI plugin, for a RuntimeClass. `ctr` and `nerdctl` need no file,
//! they name the runtime themselves. By `containerd config dump` of 1.6.20 and 1.7.24, a plugin's
//! section of an imported file takes the place of the whole section in config.toml, also of what is
//! written there later, and `runtimes` in a file takes the place of the runtimes that are built in.
//! So their config.toml is edited itself. 2.0 merges sections (containerd#9982), and takes no
//! imported file of a higher version than config.toml's.

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use toml_edit::DocumentMut;

use super::cri::{Known, Main, NVIDIA, add, default_runtime};
use super::daemon::{self, Daemon};
use super::{
    Content, Ground, How, InstallRequest, NAME, Part, Paste, Piece, about, behind, beside, imports,
    shim, toml_text,
};

pub(super) const DROP_IN: &str = "/etc/containerd/conf.d/rdmaprep.toml";
const OURS: &str = "# By `rdmaprep install`.";
/// A line of a file that k0s writes itself, so that drop-ins count: the first one, from 1.30 on.
const K0S_OWN: &str = "# k0s_managed=true";
/// What a template of k3s and rke2 begins with to add to theirs, from September 2023 on.
const BASE: &str = r#"{{ template "base" . }}"#;

pub(super) fn part(wanted: &InstallRequest, ground: &Ground) -> Result<Part> {
    let ours = Ours::new(wanted, ground)?;
    let mut all = Part::default();
    let (there, absent): (Vec<Daemon>, Vec<Daemon>) = Daemon::of(ground.tree)
        .into_iter()
        .partition(|daemon| *daemon == Daemon::Own || ground.tree.exists(&daemon.config()));
    for daemon in &absent {
        let text = format!(
            "{} is not there: {} writes it when it starts, unless it has another data folder or \
            engine; start it, then run this again",
            daemon.config(),
            daemon.name()
        );
        let is_only = there.is_empty() && !wanted.targets.iter().any(|t| t.is_other_engine());
        ensure!(!is_only, ErrorClass::Refused.error(text));
        all.notes.push(text);
    }
    for daemon in there {
        let part = match daemon {
            Daemon::Own => own(&ours, ground)?,
            Daemon::K3s | Daemon::Rke2 => rendered(daemon, &ours, ground)?,
            Daemon::K0s => k0s(&ours, ground)?,
            Daemon::Microk8s => edited(Config::written(daemon, ground)?, &ours, false)?,
        };
        all.pieces.extend(part.pieces);
        all.notes.extend(part.notes);
    }
    Ok(all)
}

/// Our runtime: its path, and the link there.
struct Ours {
    path: String,
    link: Piece,
}

impl Ours {
    fn new(wanted: &InstallRequest, ground: &Ground) -> Result<Ours> {
        let (path, link) = shim(wanted, ground.tree)?;
        Ok(Ours { path, link })
    }

    fn part(&self, pieces: impl IntoIterator<Item = Piece>, notes: Vec<String>) -> Part {
        Part {
            pieces: [self.link.clone()].into_iter().chain(pieces).collect(),
            notes,
            ..Part::default()
        }
    }
}

/// The one that is installed by itself.
fn own(ours: &Ours, ground: &Ground) -> Result<Part> {
    let mut config = Config::read(Daemon::Own, ground)?;
    config.others.retain(|(path, _)| path != DROP_IN);
    let without = config.all().find(|(_, d)| config.main.is_without_cri(d));
    if let Some((by, _)) = without {
        let note = format!(
            "{by} disables the CRI plugin: there is nothing to tell containerd; name the runtime \
            to ctr or nerdctl"
        );
        return Ok(Part {
            notes: vec![note],
            ..Part::default()
        });
    }
    config.main.is_known(&config.path)?;
    let known = config.known();
    let mut notes = config.notes(&known);
    let is_second = daemon::is_second(ground.tree);
    let lacks_cdi = known.cdi != Some(true) && config.main.replaces();
    if is_second == Some(false) && lacks_cdi {
        notes.push(format!(
            "containerd 1.7 gives containers CDI devices only with enable_cdi = true below \
            [plugins.{:?}] of {}, and 1.6 none",
            config.main.plugin, config.path
        ));
    }
    if config.main.replaces() {
        let part = edited(config, ours, is_second == Some(true))?;
        return Ok(Part { notes, ..part });
    }
    if config.has(ours) {
        return Ok(ours.part(None, notes));
    }
    config.is_free()?;
    let drop_in = drop_in(DROP_IN, &config.main, ours, &known)?;
    config.main.import(DROP_IN).map_err(about(&config.path))?;
    Ok(ours.part([Some(drop_in), config.piece()].into_iter().flatten(), notes))
}

/// Adds to the file itself. `merges`: containerd takes what several files say.
fn edited(mut config: Config, ours: &Ours, merges: bool) -> Result<Part> {
    let known = config.known();
    let notes = config.notes(&known);
    // An administrator has added it, or has had containerd write the file again.
    let has_it = match merges {
        true => config.has(ours),
        false => config.is_in_another(ours, &known)? || config.has(ours),
    };
    if has_it {
        return Ok(ours.part(None, notes));
    }
    config.is_free()?;
    let plugin = config.main.plugin;
    add(&mut config.main.document, plugin, &ours.path, &known).map_err(about(&config.path))?;
    Ok(ours.part(config.piece(), notes))
}

/// k3s and rke2 make the file at each start, from a template. Those of 2026 import a folder of
/// drop-ins (k3s#13680); in older ones a template of the administrator's takes the place of theirs.
fn rendered(daemon: Daemon, ours: &Ours, ground: &Ground) -> Result<Part> {
    let config = Config::written(daemon, ground)?;
    let known = config.known();
    let notes = config.notes(&known);
    // The file has a runtime already, that of the base.
    let known = Known { any: true, ..known };
    let name = match config.main.replaces() {
        true => "config.toml",
        false => "config-v3.toml",
    };
    let in_folder = daemon.within(&format!("{name}.d/rdmaprep.toml"));
    // With containerd 1, a section in another file takes the place of all of k3s' own.
    let imports = imports::surely(&daemon.config(), &config.main.document, &in_folder);
    if imports && !config.main.replaces() {
        let piece = drop_in(&in_folder, &config.main, ours, &known)?;
        return Ok(ours.part([piece], notes));
    }
    let template = daemon.within(&format!("{name}.tmpl"));
    let lines = sections(&config.main, ours, &known)?;
    let by = daemon.name();
    let there = match ground.base(&template)? {
        Some(Content::Text(text)) => Some(text),
        _ => None,
    };
    // A template of version 2 counts where there is none of version 3.
    let older = daemon.within("config.toml.tmpl");
    let is_unread = there.is_none() && template != older && ground.base(&older)?.is_some();
    ensure!(
        !is_unread,
        ErrorClass::Refused.error(format!(
            "{by} has not read {older} yet: restart it, then run this again"
        ))
    );
    if there.is_none() {
        let text = format!("{BASE}\n\n{OURS}\n{lines}");
        return Ok(ours.part([Piece::whole_file(template, text)], notes));
    }
    // The administrator may have added it.
    if config.main.names(&config.main.document, &ours.path) {
        return Ok(ours.part(None, notes));
    }
    ensure!(
        !there.is_some_and(|text| text.contains(&ours.path)),
        ErrorClass::Refused.error(format!(
            "{by} has not read yet what {template} says of {NAME}: restart it, then run this again"
        ))
    );
    let text = format!("{template} is not rdmaprep's: add this to it, and restart {by}");
    Err(Paste(lines)).class(ErrorClass::Refused, text)
}

/// k0s merges what is in its folder of drop-ins, and watches that, unless the administrator has
/// made the file his own.
fn k0s(ours: &Ours, ground: &Ground) -> Result<Part> {
    let config = Config::written(Daemon::K0s, ground)?;
    if !is_k0s_own(&config.text) {
        return edited(config, ours, false);
    }
    let known = config.known();
    let notes = config.notes(&known);
    let known = Known { any: true, ..known };
    let path = Daemon::K0s.within("containerd.d/rdmaprep.toml");
    Ok(ours.part([drop_in(&path, &config.main, ours, &known)?], notes))
}

fn is_k0s_own(text: &str) -> bool {
    text.lines().any(|line| line == K0S_OWN)
}

/// The file that still imports our drop-in by its name: containerd would not start without that.
pub(super) fn importer(ground: &Ground) -> Result<Option<String>> {
    let config = Config::read(Daemon::Own, ground)?;
    let mut all = config.all();
    let found = all.find(|(path, document)| imports::by_name(path, document, DROP_IN));
    Ok(found.map(|(path, _)| path.to_owned()))
}

/// The file that still has one of our runtimes, by other hands than `install`'s.
pub(super) fn caller(ground: &Ground, runtimes: &[&str]) -> Result<Option<String>> {
    for daemon in Daemon::of(ground.tree) {
        let config = Config::read(daemon, ground)?;
        let found = match daemon {
            Daemon::Own | Daemon::Microk8s => config.caller(runtimes),
            // The others' files are what they have made, and make again.
            Daemon::K0s if is_k0s_own(&config.text) => None,
            Daemon::K0s => config.caller(runtimes),
            Daemon::K3s | Daemon::Rke2 => template_that_calls(daemon, ground, runtimes)?,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn template_that_calls(
    daemon: Daemon,
    ground: &Ground,
    runtimes: &[&str],
) -> Result<Option<String>> {
    for name in ["config-v3.toml.tmpl", "config.toml.tmpl"] {
        let path = daemon.within(name);
        if let Some(Content::Text(text)) = ground.base(&path)? {
            if runtimes.iter().any(|runtime| text.contains(runtime)) {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

fn drop_in(path: &str, main: &Main, ours: &Ours, known: &Known) -> Result<Piece> {
    let lines = sections(main, ours, known)?;
    let text = format!("{OURS}\nversion = {}\n\n{lines}", main.version);
    Ok(Piece::whole_file(path, text))
}

/// What a file needs to know our runtime.
fn sections(main: &Main, ours: &Ours, known: &Known) -> Result<String> {
    let mut document = DocumentMut::new();
    add(&mut document, main.plugin, &ours.path, known)?;
    Ok(document.to_string().trim_start().to_owned())
}

/// The file that makes our runtime the default one, less what an installation put there.
pub(super) fn named(ground: &Ground) -> Result<Option<String>> {
    for daemon in Daemon::of(ground.tree) {
        let config = Config::read(daemon, ground)?;
        let default = |document| config.main.section_of(document).and_then(default_runtime);
        let found = config.all().find(|(_, d)| default(d) == Some(NAME));
        if let Some((path, _)) = found {
            return Ok(Some(path.to_owned()));
        }
    }
    Ok(None)
}

/// What a daemon is configured by, less what an installation put there, and what that imports.
struct Config {
    daemon: Daemon,
    path: String,
    text: String,
    main: Main,
    others: Vec<(String, DocumentMut)>,
}

impl Config {
    fn read(daemon: Daemon, ground: &Ground) -> Result<Config> {
        let at = daemon.config();
        let path = ground.tree.followed(&at)?;
        let text = ground.text(&path)?.unwrap_or_default();
        let main = Main::read(&text).map_err(about(&path))?;
        // Imports are relative to where the file is looked for, wherever a link there leads.
        let others = imports::imported(&at, &main.document, ground)?;
        Ok(Config {
            daemon,
            path,
            text,
            main,
            others,
        })
    }

    /// Of one that writes the file itself.
    fn written(daemon: Daemon, ground: &Ground) -> Result<Config> {
        let config = Config::read(daemon, ground)?;
        let (path, by) = (&config.path, daemon.name());
        ensure!(
            !config.text.is_empty(),
            ErrorClass::Refused.error(format!(
                "{path} is not there: {by} writes it when it starts; start {by}, then run this \
                again"
            ))
        );
        config.main.is_known(path)?;
        Ok(config)
    }

    /// The file, then what it imports.
    fn all(&self) -> impl Iterator<Item = (&str, &DocumentMut)> {
        let others = self.others.iter().map(|(path, d)| (path.as_str(), d));
        [(self.path.as_str(), &self.main.document)]
            .into_iter()
            .chain(others)
    }

    fn known(&self) -> Known {
        // What is imported counts more.
        let imported = self.others.iter().rev();
        let imported = imported.filter_map(|(_, d)| self.main.section_of(d));
        Known::from_sections(imported.chain(self.main.section()))
    }

    fn caller(&self, runtimes: &[&str]) -> Option<String> {
        let calls = |document| runtimes.iter().any(|one| self.main.names(document, one));
        let found = self.all().find(|(_, document)| calls(document));
        found.map(|(path, _)| path.to_owned())
    }

    fn has(&self, ours: &Ours) -> bool {
        self.caller(&[&ours.path]).is_some()
    }

    /// Refuses what we could not add to without losing something.
    fn is_free(&self) -> Result<()> {
        self.main.is_known(&self.path)?;
        let newer = self.others.iter().find(|(_, d)| self.main.is_older_than(d));
        if let Some((path, _)) = newer {
            let (main, version) = (&self.path, self.main.version);
            return Err(ErrorClass::Refused.error(format!(
                "{path} is of a higher version than {main}, which is of version {version}, and \
                containerd takes no such import: see `containerd config migrate`"
            )));
        }
        let theirs = self.all().find(|(_, d)| self.main.has_ours(d));
        let Some((path, _)) = theirs else {
            return Ok(());
        };
        Err(ErrorClass::Refused.error(format!(
            "{path}: has a runtime {NAME} that rdmaprep did not write: remove it first"
        )))
    }

    /// Whether another file's section is the one that counts, and has our runtime, which an
    /// administrator has added.
    fn is_in_another(&self, ours: &Ours, known: &Known) -> Result<bool> {
        // The last one's counts.
        let mut others = self.others.iter().rev();
        let section = others.find(|(_, document)| self.main.section_of(document).is_some());
        let Some((other, document)) = section.filter(|_| self.main.replaces()) else {
            return Ok(false);
        };
        if self.main.names(document, &ours.path) {
            return Ok(true);
        }
        let by = self.daemon.name();
        let text = format!(
            "{other} has a section of the CRI plugin, and containerd 1 takes just one file's: add \
            this to it, and restart {by}"
        );
        Err(Paste(sections(&self.main, ours, known)?)).class(ErrorClass::Refused, text)
    }

    fn notes(&self, known: &Known) -> Vec<String> {
        let default = known.other.as_ref();
        let by = self.daemon.name();
        let default = default.map(|(name, binary)| behind(by, name, binary));
        let gpus = known.gpus.as_ref().filter(|_| known.other.is_none());
        let gpus = gpus.map(|binary| beside(by, NVIDIA, binary));
        default.into_iter().chain(gpus).collect()
    }

    /// The file as it is now, where it was changed.
    fn piece(self) -> Option<Piece> {
        let written = toml_text(&self.text, &self.main.document);
        (written != self.text).then_some(Piece {
            path: self.path,
            how: How::Toml,
            content: Content::Text(written),
        })
    }
}
