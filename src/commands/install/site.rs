//! Where an installation goes: this host, or a tree.

use crate::cli::TreeArgs;
use crate::config::host::RUN;
use crate::disk::files;
use crate::disk::host_tree::{HostTree, ReadTree};
use crate::disk::replace::{self, Replacement};
use crate::install::{Change, Installation, MANIFEST, Manifest};
use anyhow::{Context, Result};
use rdma_model::error_class::{ErrorClass, WithClass};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) struct Site {
    pub(super) etc: HostTree,
    pub(super) is_host: bool,
    /// The folder of the records, within the tree.
    pub(super) state: String,
    pub(super) manifest: Manifest,
    /// Keeps other runs of `install` and `uninstall` out.
    _lock: Option<files::Lock>,
}

/// Below the default run folder: of the host, until it boots again, and root's alone.
const LOCK: &str = "install.lock";

const PATIENCE: Duration = Duration::from_secs(10);

impl Site {
    pub(super) fn new(args: &TreeArgs, state: &Path) -> Result<Site> {
        let root = args.root.as_deref().unwrap_or(Path::new("/"));
        let etc = HostTree::new(root)?;
        let state = state
            .to_str()
            .context("the state folder's path is no text")?
            .to_owned();
        let place = etc.place(&state)?;
        let is_host = root == Path::new("/");
        // In another tree nothing is to be left; on the host any user could hold a folder that he
        // may read.
        let lock = || match is_host {
            true => {
                files::private_dir(Path::new(RUN))?;
                files::lock(&Path::new(RUN).join(LOCK), Instant::now() + PATIENCE)
            }
            false => files::lock_folder(root, Instant::now() + PATIENCE),
        };
        let lock = (!args.dry_run).then(lock).transpose()?;
        files::owned(&place)?;
        let text = files::read(&place.join(MANIFEST))?;
        let manifest = text
            .map(|t| Manifest::parse(&t))
            .transpose()
            .class(
                ErrorClass::Usage,
                format!("reading {}", place.join(MANIFEST).display()),
            )?
            .unwrap_or_default();
        Ok(Site {
            etc,
            is_host,
            state,
            manifest,
            _lock: lock,
        })
    }

    pub(super) fn manifest_place(&self) -> Result<PathBuf> {
        Ok(self.etc.place(&self.state)?.join(MANIFEST))
    }

    pub(super) fn tidy(&self) -> Result<()> {
        replace::tidy(&self.manifest_place()?)?;
        self.manifest
            .paths()
            .try_for_each(|path| self.etc.tidy(path))
    }

    /// Writes what is to be undone, or removes it where there is nothing any more.
    pub(super) fn save(&self, manifest: &Manifest) -> Result<()> {
        match manifest.is_empty() {
            true => files::remove(&self.manifest_place()?),
            false => Replacement::with_mode(0o600)
                .under_lock()
                .write(&self.manifest_place()?, manifest.print()?.as_bytes()),
        }
    }

    pub(super) fn change(&self, changes: &[Change]) -> Result<()> {
        for (i, change) in changes.iter().enumerate() {
            let Err(e) = self.etc.change(&change.path, change.after.as_ref()) else {
                continue;
            };
            return Err(self.back(changes.get(..=i).unwrap_or(changes), e));
        }
        Ok(())
    }

    /// Undoes changes because of an error, which it returns. The last change may not have been
    /// made.
    pub(super) fn back(&self, changes: &[Change], e: anyhow::Error) -> anyhow::Error {
        let back = changes
            .iter()
            .rev()
            .filter(|c| !self.etc.content(&c.path).is_ok_and(|now| now == c.before))
            .map(|c| self.etc.change(&c.path, c.before.as_ref()));
        match back
            .filter_map(Result::err)
            .map(|e| format!("{e:#}"))
            .reduce(|a, b| format!("{a}; {b}"))
        {
            None => e,
            Some(undo) => {
                ErrorClass::Incomplete.error(format!("{e:#}; and the undo is incomplete: {undo}"))
            }
        }
    }

    /// Carries out an installation. What is to be undone is written down first.
    pub(super) fn install(&self, installation: &Installation) -> Result<()> {
        let mut manifest = installation.manifest.clone();
        manifest.make_room(&format!("{}/{MANIFEST}", self.state), &self.etc);
        // After a kill in the middle `uninstall` knows of all that is there, but for the folders
        // above the manifest itself.
        let folders = manifest.folders().iter().filter(|f| **f != self.state);
        let (first, others): (Vec<_>, Vec<_>) =
            folders.partition(|f| Path::new(&self.state).starts_with(f));
        // What an engine has taken with it when it went is not made again.
        let needed: Vec<_> = others
            .into_iter()
            .filter(|f| installation.fills(f))
            .collect();
        let make = |folders: &[&String]| {
            folders
                .iter()
                .try_for_each(|folder| self.etc.make_folder(folder))
        };
        let done = make(&first)
            .and_then(|()| files::private_dir(&self.etc.place(&self.state)?))
            .and_then(|()| self.save(&manifest.with(&installation.gone)))
            .and_then(|()| make(&needed))
            .and_then(|()| self.change(&installation.changes))
            .and_then(|()| match installation.gone.is_empty() {
                true => Ok(()),
                false => self
                    .settle(&manifest)
                    .map_err(|e| self.back(&installation.changes, e)),
            });
        // What could not be undone is still written down: `uninstall` tries again.
        let Err(e) = done.as_ref() else { return done };
        if ErrorClass::of(e) == ErrorClass::Incomplete {
            return done;
        }
        let made = manifest
            .folders()
            .iter()
            .rev()
            .filter(|f| !self.manifest.folders().contains(f));
        match self
            .save(&self.manifest)
            .and_then(|()| self.remove_folders(made))
        {
            Ok(()) => done,
            Err(undo) => Err(ErrorClass::Incomplete
                .error(format!("{e:#}; and the undo is incomplete: {undo:#}"))),
        }
    }

    /// Writes down what is still to be undone. Where that is nothing the folders go, and the
    /// folders above the manifest after it.
    pub(super) fn settle(&self, manifest: &Manifest) -> Result<()> {
        let all = if manifest.is_empty() {
            manifest.folders()
        } else {
            &[]
        };
        let (last, first): (Vec<_>, Vec<_>) = all
            .iter()
            .rev()
            .partition(|f| Path::new(&self.state).starts_with(f));
        self.remove_folders(first)?;
        self.save(manifest)?;
        self.remove_folders(last)
    }

    pub(super) fn remove_folders<'a>(
        &self,
        folders: impl IntoIterator<Item = &'a String>,
    ) -> Result<()> {
        folders
            .into_iter()
            .try_for_each(|folder| self.etc.remove_folder(folder))
    }
}
