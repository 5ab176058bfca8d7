//! The records of all containers, read once; every change goes to their folder and to what was read alike. What decides on a
//! change is read under the lock: only its holder writes records.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::journal::Record;
use crate::kernel::store::Store;

pub struct Records<'a> {
    store: &'a Store,
    boot_id: String,
    all: Vec<(PathBuf, Result<Record>)>,
}

impl<'a> Records<'a> {
    /// `boot_id` is that of this boot. Fails where the folder cannot be read, or others could write to it; a damaged record is an
    /// entry of its own.
    pub fn read(store: &'a Store, boot_id: &str) -> Result<Records<'a>> {
        Ok(Records { store, boot_id: boot_id.to_owned(), all: store.all_records()? })
    }

    pub fn store(&self) -> &'a Store {
        self.store
    }

    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Result<Record>)> {
        self.all.iter().map(|(path, record)| (path.as_path(), record))
    }

    /// Those that can be read, of any boot.
    pub fn readable(&self) -> impl Iterator<Item = &Record> {
        self.all.iter().filter_map(|(_, record)| record.as_ref().ok())
    }

    /// Those of this boot: after a reboot no NIC is away.
    pub fn current(&self) -> impl Iterator<Item = &Record> {
        self.readable().filter(|record| record.boot_id == self.boot_id)
    }

    pub fn of_netns(&self, netns: u64) -> Option<&Record> {
        self.current().find(|record| record.netns == netns)
    }

    pub fn damaged(&self) -> impl Iterator<Item = (&Path, &anyhow::Error)> {
        self.all.iter().filter_map(|(path, record)| Some((path.as_path(), record.as_ref().err()?)))
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.all.iter().map(|(path, _)| path.clone()).collect()
    }

    /// What is in the record of that name, as it is by now: writing it may have moved it to another folder.
    pub fn at(&self, path: &Path) -> Option<&Result<Record>> {
        self.all.iter().find(|(p, _)| p.file_name() == path.file_name()).map(|(_, record)| record)
    }

    pub fn save(&mut self, record: &Record) -> Result<()> {
        self.store.save(record)?;
        self.note(record);
        Ok(())
    }

    /// See [`Store::save_first`].
    pub fn save_first(&mut self, record: &Record) -> Result<()> {
        self.store.save_first(record)?;
        self.note(record);
        Ok(())
    }

    fn note(&mut self, record: &Record) {
        let path = self.store.record_path(record);
        match self.all.iter_mut().find(|(p, _)| p.file_name() == path.file_name()) {
            Some(known) => *known = (path, Ok(record.clone())),
            None => self.all.push((path, Ok(record.clone()))),
        }
    }

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

    /// Of one name there is one record, wherever it was read.
    fn take_out(&mut self, path: &Path) {
        self.all.retain(|(p, _)| p.file_name() != path.file_name());
    }
}
