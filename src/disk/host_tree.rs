//! The host's tree of files, or another one below a folder, for `install`: looking, and changing
//! one path at a time.

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory, NotFound};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use regex::bytes::Regex;
use serde::{Deserialize, Serialize};

use crate::disk::replace::{self, Replacement};
use crate::disk::{doing, files};
use crate::faults;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    Text(String),
    Link(String),
}

/// The host's tree, or one of files for a package or a test. Paths are absolute, within it.
pub trait ReadTree {
    /// Nothing where there is none; what is no plain text file is an error.
    fn content(&self, path: &str) -> Result<Option<Content>>;
    /// Sorted; none where there is no folder.
    fn list(&self, folder: &str) -> Result<Vec<String>>;
    fn exists(&self, path: &str) -> bool;
    /// Whether those bytes are anywhere in a file.
    fn holds(&self, path: &str, words: &str) -> Result<bool>;
    /// Where a link at the end of that path leads, for files that are the administrator's: the path
    /// itself where it is none. A link out of the tree, or to nothing, is an error.
    fn followed(&self, path: &str) -> Result<String>;
}

pub struct HostTree {
    root: PathBuf,
}

impl HostTree {
    /// The tree below `root`, `/` for the host's; [`ErrorClass::Usage`] where there is no such
    /// folder.
    pub fn new(root: &Path) -> Result<HostTree> {
        let doing = doing("looking at", root);
        let found = fs::canonicalize(root).class(ErrorClass::Usage, doing())?;
        ensure!(
            found.is_dir(),
            ErrorClass::Usage.error(format!("{} is no folder", root.display()))
        );
        Ok(HostTree { root: found })
    }

    /// Where a path of the tree is on the host. A link among its folders may lead anywhere within
    /// the tree; out of it is [`ErrorClass::Refused`].
    pub fn place(&self, path: &str) -> Result<PathBuf> {
        let place = self.root.join(path.trim_start_matches('/'));
        let (mut there, mut rest) = (place.as_path(), Vec::new());
        while let (Some(parent), Some(name)) = (there.parent(), there.file_name()) {
            rest.push(name);
            there = parent;
            if fs::symlink_metadata(there).is_ok() {
                break;
            }
        }
        let found = fs::canonicalize(there)
            .class(ErrorClass::Usage, format!("looking at {}", there.display()))?;
        ensure!(found.starts_with(&self.root), self.leads_out(path));
        Ok(rest.iter().rev().fold(found, |at, name| at.join(name)))
    }

    fn leads_out(&self, path: &str) -> anyhow::Error {
        ErrorClass::Refused.error(format!("{path} leads out of {}", self.root.display()))
    }

    /// Without a content, the file is removed. Its folder must exist. After an error the file is as
    /// it was.
    pub fn change(&self, path: &str, after: Option<&Content>) -> Result<()> {
        let place = self.place(path)?;
        faults::around(format!("changing {path}"), || match after {
            None => files::remove(&place),
            Some(Content::Link(target)) => replace::link(target, &place),
            Some(Content::Text(text)) if fs::symlink_metadata(&place).is_ok() => {
                let replacement = Replacement::keeping_attributes().under_lock();
                replacement.write(&place, text.as_bytes())
            }
            Some(Content::Text(text)) => Replacement::with_mode(0o644)
                .under_lock()
                .write(&place, text.as_bytes()),
        })
    }

    pub fn tidy(&self, path: &str) -> Result<()> {
        replace::tidy(&self.place(path)?)
    }

    /// Makes a folder that all may enter, whatever our umask.
    pub fn make_folder(&self, path: &str) -> Result<()> {
        let place = self.place(path)?;
        let doing = doing("creating", &place);
        match DirBuilder::new().mode(0o755).create(&place) {
            Err(e) if e.kind() == AlreadyExists => return Ok(()),
            other => other.with_context(doing)?,
        }
        fs::set_permissions(&place, Permissions::from_mode(0o755)).with_context(doing)
    }

    pub fn remove_folder(&self, path: &str) -> Result<()> {
        let place = self.place(path)?;
        match fs::remove_dir(&place) {
            Err(e) if matches!(e.kind(), NotFound | NotADirectory | DirectoryNotEmpty) => Ok(()),
            // What was never made: a file system that is read-only says that first.
            Err(_) if !self.exists(path) => Ok(()),
            other => other.with_context(|| format!("removing {}", place.display())),
        }
    }
}

impl ReadTree for HostTree {
    fn content(&self, path: &str) -> Result<Option<Content>> {
        let place = self.place(path)?;
        let doing = doing("reading", &place);
        let meta = match fs::symlink_metadata(&place) {
            Err(e) if matches!(e.kind(), NotFound | NotADirectory) => return Ok(None),
            other => other.class(ErrorClass::Usage, doing())?,
        };
        if meta.is_symlink() {
            let target = fs::read_link(&place).class(ErrorClass::Usage, doing())?;
            return Ok(Some(Content::Link(target.to_string_lossy().into_owned())));
        }
        ensure!(
            meta.is_file(),
            ErrorClass::Usage.error(format!("{path} is no plain file"))
        );
        let text = files::read(&place).map_err(|e| ErrorClass::Usage.error(format!("{e:#}")))?;
        Ok(text.map(Content::Text))
    }

    fn list(&self, folder: &str) -> Result<Vec<String>> {
        files::list(&self.place(folder)?).class(ErrorClass::Usage, format!("reading {folder}"))
    }

    fn exists(&self, path: &str) -> bool {
        self.place(path)
            .is_ok_and(|place| fs::symlink_metadata(place).is_ok())
    }

    fn holds(&self, path: &str, words: &str) -> Result<bool> {
        let place = self.place(&self.followed(path)?)?;
        let bytes = fs::read(&place).class(ErrorClass::Usage, format!("reading {path}"))?;
        let words = Regex::new(&regex::escape(words)).context("searching a file")?;
        Ok(words.is_match(&bytes))
    }

    fn followed(&self, path: &str) -> Result<String> {
        let place = self.place(path)?;
        if !fs::symlink_metadata(&place).is_ok_and(|meta| meta.is_symlink()) {
            return Ok(path.to_owned());
        }
        let end = fs::canonicalize(&place).class(ErrorClass::Usage, format!("following {path}"))?;
        let within = end
            .strip_prefix(&self.root)
            .ok()
            .and_then(Path::to_str)
            .ok_or_else(|| self.leads_out(path))?;
        Ok(format!("/{within}"))
    }
}
