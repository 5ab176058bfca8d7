//! The records of all containers, read once; every change goes to their folder and to what was read
//! alike. What decides on a change is read under the lock: only its holder writes records.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::disk::files;
use crate::record::Record;
use crate::store::{Store, record_of};

pub struct Records<'a> {
    store: &'a Store,
    all: Vec<Entry>,
    /// Of an earlier boot: since then no NIC is away.
    past: Vec<PathBuf>,
}

/// Records as they were.
pub struct Seen(Vec<Entry>);

impl From<Records<'_>> for Seen {
    fn from(records: Records) -> Seen {
        Seen(records.all)
    }
}

struct Entry {
    path: PathBuf,
    /// As it was read, where it is to be read again.
    text: String,
    record: Result<Record>,
}

impl<'a> Records<'a> {
    /// `boot_id` is that of this boot. Fails where the folder cannot be read, or others could write
    /// to it; a damaged record is an entry of its own.
    pub fn read(store: &'a Store, boot_id: &str) -> Result<Records<'a>> {
        Records::read_again(store, boot_id, None)
    }

    pub fn of(store: &'a Store, seen: Seen) -> Records<'a> {
        Records {
            store,
            all: seen.0,
            past: Vec::new(),
        }
    }

    /// As it is by now: what has the same text as `before` is not parsed again.
    pub fn read_again(
        store: &'a Store,
        boot_id: &str,
        before: Option<Seen>,
    ) -> Result<Records<'a>> {
        let before = before.map_or_else(Vec::new, |before| before.0);
        let mut records = Records::gather(store, boot_id, before)?;
        for entry in &mut records.all {
            entry.text = String::new();
        }
        Ok(records)
    }

    /// For a look before the lock is there, which [`Records::read_again`] follows.
    pub fn peek(store: &'a Store, boot_id: &str) -> Result<Records<'a>> {
        Records::gather(store, boot_id, Vec::new())
    }

    fn gather(store: &'a Store, boot_id: &str, mut before: Vec<Entry>) -> Result<Records<'a>> {
        let mut records = Records::of(store, Seen(Vec::new()));
        for (path, text) in store.record_texts()? {
            let is_same = |entry: &Entry| {
                entry.path == path && text.as_ref().is_ok_and(|text| *text == entry.text)
            };
            if let Some(at) = before.iter().position(is_same) {
                records.all.push(before.swap_remove(at));
                continue;
            }
            let (text, record) = match text {
                Ok(text) => {
                    let record = record_of(&path, &text);
                    (text, record)
                }
                Err(e) => (String::new(), Err(e)),
            };
            let written = match &record {
                Ok(record) => Some(record.boot_id.clone()),
                Err(_) => store.remains(&path).boot_id,
            };
            if written.is_some_and(|written| written != boot_id) {
                records.past.push(path);
            } else {
                records.all.push(Entry { path, text, record });
            }
        }
        Ok(records)
    }

    pub fn store(&self) -> &'a Store {
        self.store
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Result<Record>)> {
        self.all.iter().map(|e| (e.path.as_path(), &e.record))
    }

    pub fn readable(&self) -> impl Iterator<Item = &Record> {
        self.all.iter().filter_map(|e| e.record.as_ref().ok())
    }

    pub fn of_netns(&self, netns: u64) -> Option<&Record> {
        self.readable().find(|record| record.netns == netns)
    }

    pub fn damaged(&self) -> impl Iterator<Item = (&Path, &anyhow::Error)> {
        self.all
            .iter()
            .filter_map(|e| Some((e.path.as_path(), e.record.as_ref().err()?)))
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.all.iter().map(|e| e.path.clone()).collect()
    }

    /// What is in that record by now.
    pub fn at(&self, path: &Path) -> Option<&Result<Record>> {
        self.all.iter().find(|e| e.path == path).map(|e| &e.record)
    }

    /// See [`Store::save`].
    pub fn save(&mut self, record: &Record) -> Result<()> {
        self.store.save(record)?;
        let entry = Entry {
            path: self.store.record_path(record),
            text: String::new(),
            record: Ok(record.clone()),
        };
        self.take_out(&entry.path);
        self.all.push(entry);
        Ok(())
    }

    /// How long it has been as it is.
    pub fn age(&self, record: &Record) -> Duration {
        files::age(&self.store.record_path(record))
    }

    /// See [`Store::forget`].
    pub fn forget(&mut self, record: &Record) -> Result<()> {
        self.store.forget(record)?;
        self.take_out(&self.store.record_path(record));
        Ok(())
    }

    /// Puts a record aside that is not to be applied, and returns where it is kept.
    pub fn archive(&mut self, path: &Path, boot_id: Option<&str>) -> Result<PathBuf> {
        let kept = self.store.archive(path, boot_id)?;
        self.take_out(path);
        Ok(kept)
    }

    fn take_out(&mut self, path: &Path) {
        self.all.retain(|e| e.path != path);
    }

    /// Removes records of an earlier boot, and what killed writers left. Returns why something
    /// stays.
    pub fn sweep(&mut self) -> Vec<String> {
        let past = std::mem::take(&mut self.past);
        let past = past.iter().filter_map(|path| files::remove(path).err());
        let kept = past.map(|e| format!("{e:#}")).collect::<Vec<_>>();
        kept.into_iter().chain(self.store.sweep()).collect()
    }
}
