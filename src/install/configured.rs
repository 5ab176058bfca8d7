//! What a daemon of containerd is configured by, and what is added to that.

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use toml_edit::DocumentMut;

use super::cri::{Known, Main, NVIDIA, add};
use super::daemon::Daemon;
use super::{
    Content, Ground, How, InstallRequest, Part, Paste, Piece, about, behind, beside, imports, shim,
    toml_text,
};

pub(super) const OURS: &str = "# By `rdmaprep install`.";

/// Our runtime: its path, and the link there.
pub(super) struct Ours {
    pub path: String,
    link: Piece,
}

impl Ours {
    pub fn new(wanted: &InstallRequest, ground: &Ground) -> Result<Ours> {
        let (path, link) = shim(wanted, ground.tree)?;
        Ok(Ours { path, link })
    }

    pub fn part(&self, pieces: impl IntoIterator<Item = Piece>, notes: Vec<String>) -> Part {
        Part {
            pieces: [self.link.clone()].into_iter().chain(pieces).collect(),
            notes,
            ..Part::default()
        }
    }
}

/// Adds to the file itself. `merges`: containerd takes what several files say.
pub(super) fn edited(mut config: Config, ours: &Ours, merges: bool) -> Result<Part> {
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

pub(super) fn drop_in(path: &str, main: &Main, ours: &Ours, known: &Known) -> Result<Piece> {
    let lines = sections(main, ours, known)?;
    let text = format!("{OURS}\nversion = {}\n\n{lines}", main.version);
    Ok(Piece::whole_file(path, text))
}

/// What a file needs to know our runtime.
pub(super) fn sections(main: &Main, ours: &Ours, known: &Known) -> Result<String> {
    let mut document = DocumentMut::new();
    add(&mut document, main.plugin, &ours.path, known)?;
    Ok(document.to_string().trim_start().to_owned())
}

/// What a daemon is configured by, less what an installation put there, and what that imports.
pub(super) struct Config {
    pub daemon: Daemon,
    pub path: String,
    pub text: String,
    pub main: Main,
    pub others: Vec<(String, DocumentMut)>,
}

impl Config {
    pub fn read(daemon: Daemon, ground: &Ground) -> Result<Config> {
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
    pub fn written(daemon: Daemon, ground: &Ground) -> Result<Config> {
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
    pub fn all(&self) -> impl Iterator<Item = (&str, &DocumentMut)> {
        let others = self.others.iter().map(|(path, d)| (path.as_str(), d));
        [(self.path.as_str(), &self.main.document)]
            .into_iter()
            .chain(others)
    }

    pub fn known(&self) -> Known {
        // What is imported counts more.
        let imported = self.others.iter().rev();
        let imported = imported.filter_map(|(_, d)| self.main.section_of(d));
        Known::from_sections(imported.chain(self.main.section()))
    }

    pub fn caller(&self, runtimes: &[&str]) -> Option<String> {
        let calls = |document| runtimes.iter().any(|one| self.main.names(document, one));
        let found = self.all().find(|(_, document)| calls(document));
        found.map(|(path, _)| path.to_owned())
    }

    pub fn has(&self, ours: &Ours) -> bool {
        self.caller(&[&ours.path]).is_some()
    }

    /// Refuses what we could not add to without losing something.
    pub fn is_free(&self) -> Result<()> {
        self.main.is_known(&self.path)?;
        for (path, document) in &self.others {
            self.main.takes(&self.path, path, document)?;
        }
        let mut all = self.all();
        all.try_for_each(|(path, document)| self.main.lacks_ours(path, document))
    }

    /// Whether another file's section is the one that counts, and has our runtime, which an
    /// administrator has added.
    pub fn is_in_another(&self, ours: &Ours, known: &Known) -> Result<bool> {
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
        let own = Known::from_sections(self.main.section_of(document).into_iter());
        let known = Known {
            any: own.any,
            ..known.clone()
        };
        Err(Paste(sections(&self.main, ours, &known)?)).class(ErrorClass::Refused, text)
    }

    pub fn notes(&self, known: &Known) -> Vec<String> {
        let default = known.other.as_ref();
        let by = self.daemon.name();
        let default = default.map(|(name, binary)| {
            let from = self.daemon.default_is_from();
            format!("{}{from}", behind(by, name, binary))
        });
        let gpus = known.gpus.as_ref().filter(|_| known.other.is_none());
        let gpus = gpus.map(|binary| beside(by, NVIDIA, binary));
        default.into_iter().chain(gpus).collect()
    }

    /// The file as it is now, where it was changed.
    pub fn piece(self) -> Option<Piece> {
        let written = toml_text(&self.text, &self.main.document);
        (written != self.text).then_some(Piece {
            path: self.path,
            how: How::Toml,
            content: Content::Text(written),
        })
    }
}
