//! The records of all containers, read once; every change goes to their folder and to what was read
//! alike. What decides on a change is read under the lock: only its holder writes records.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::journal::Record;
use crate::kernel::record_copy::RunningCopy;
use crate::kernel::store::Store;

pub struct Records<'a> {
    store: &'a Store,
    boot_id: String,
    all: Vec<Entry>,
}

struct Entry {
    path: PathBuf,
    record: Result<Record>,
    /// This program has written it: the file has nothing that only a later version knows, and need
    /// not be read again.
    ours: bool,
}

impl<'a> Records<'a> {
    /// `boot_id` is that of this boot. Fails where the folder cannot be read, or others could write
    /// to it; a damaged record is an entry of its own.
    pub fn read(store: &'a Store, boot_id: &str) -> Result<Records<'a>> {
        let read = store.all_records()?.into_iter();
        let all = read
            .map(|(path, record)| Entry {
                path,
                record,
                ours: false,
            })
            .collect();
        Ok(Records {
            store,
            boot_id: boot_id.to_owned(),
            all,
        })
    }

    pub fn store(&self) -> &'a Store {
        self.store
    }

    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Result<Record>)> {
        self.all.iter().map(|e| (e.path.as_path(), &e.record))
    }

    /// Those that can be read, of any boot.
    pub fn readable(&self) -> impl Iterator<Item = &Record> {
        self.all.iter().filter_map(|e| e.record.as_ref().ok())
    }

    /// Those of this boot: after a reboot no NIC is away.
    pub fn current(&self) -> impl Iterator<Item = &Record> {
        self.readable()
            .filter(|record| record.boot_id == self.boot_id)
    }

    pub fn of_netns(&self, netns: u64) -> Option<&Record> {
        self.current().find(|record| record.netns == netns)
    }

    pub fn damaged(&self) -> impl Iterator<Item = (&Path, &anyhow::Error)> {
        self.all
            .iter()
            .filter_map(|e| Some((e.path.as_path(), e.record.as_ref().err()?)))
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.all.iter().map(|e| e.path.clone()).collect()
    }

    /// What is in the record of that name, as it is by now: writing it may have moved it to another
    /// folder.
    pub fn at(&self, path: &Path) -> Option<&Result<Record>> {
        self.all
            .iter()
            .find(|e| e.path.file_name() == path.file_name())
            .map(|e| &e.record)
    }

    /// To all of its places, see [`Store::save`].
    pub fn save(&mut self, record: &Record) -> Result<()> {
        let (text, ours) = self.text(record)?;
        self.store.save(record, &text)?;
        self.note(record, ours);
        Ok(())
    }

    /// For a crash of rdmaprep alone, see [`Store::save_first`].
    pub fn save_first(&mut self, record: &Record) -> Result<()> {
        let (text, ours) = self.text(record)?;
        self.store.save_first(record, &text)?;
        self.note(record, ours);
        Ok(())
    }

    /// See [`Store::save_later`].
    pub fn save_later(&mut self, record: &Record) -> Result<Option<String>> {
        let (text, ours) = self.text(record)?;
        let kept = self.store.save_later(record, &text)?;
        self.note(record, ours);
        Ok(kept)
    }

    /// See [`Store::begin_copy`].
    pub fn begin_copy(&self, record: Record) -> Result<Option<RunningCopy>> {
        let carried = self.carried(&record)?;
        self.store.begin_copy(&record.file_name(), move || {
            carried.map_or_else(|| record.print(), Ok)
        })
    }

    /// What the file is to hold, and whether that is all of this version.
    fn text(&self, record: &Record) -> Result<(String, bool)> {
        match self.carried(record)? {
            Some(text) => Ok((text, false)),
            None => Ok((record.print()?, true)),
        }
    }

    /// See [`Store::carried`].
    fn carried(&self, record: &Record) -> Result<Option<String>> {
        let name = record.file_name();
        let ours = self.all.iter().any(|e| e.ours && e.path.ends_with(&name));
        if ours {
            Ok(None)
        } else {
            self.store.carried(record)
        }
    }

    fn note(&mut self, record: &Record, ours: bool) {
        let entry = Entry {
            path: self.store.record_path(record),
            record: Ok(record.clone()),
            ours,
        };
        match self
            .all
            .iter_mut()
            .find(|e| e.path.file_name() == entry.path.file_name())
        {
            Some(known) => *known = entry,
            None => self.all.push(entry),
        }
    }

    /// See [`Store::forget`].
    pub fn forget(&mut self, record: &Record) -> Result<Option<String>> {
        let kept = self.store.forget(record)?;
        self.take_out(&self.store.record_path(record));
        Ok(kept)
    }

    /// Puts a record aside that is not to be applied, and returns where it is kept.
    pub fn archive(&mut self, path: &Path, boot_id: Option<&str>) -> Result<PathBuf> {
        let kept = self.store.archive(path, boot_id)?;
        self.take_out(path);
        Ok(kept)
    }

    /// Of one name there is one record, wherever it was read.
    fn take_out(&mut self, path: &Path) {
        self.all.retain(|e| e.path.file_name() != path.file_name());
    }
}
