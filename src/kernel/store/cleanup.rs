//! Records that go, and what killed writers left.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{RETURNED, Store};
use crate::journal::Record;
use crate::kernel::host::{files, shared_folder};

/// Records that are kept for people to look at.
const ARCHIVED: usize = 32;

/// /run is memory, and containers that fail have a new id each time.
const REPORTS: usize = 1000;

impl Store {
    /// Forgets a record whose NICs are all on the host. The one that counts goes last: a crash
    /// leaves it, or none. Returns why the copy stays, which then does not count: restored again,
    /// it would undo what was set since.
    pub fn forget(&self, record: &Record) -> Result<Option<String>> {
        let [copy, live] =
            [self.records(), self.live_records()].map(|folder| folder.join(record.file_name()));
        let kept = files::remove(&copy)
            .err()
            .filter(|_| copy.try_exists().unwrap_or(true));
        if kept.is_some() {
            files::private_dir(&self.live_records())?;
            files::replace_unsynced(&live.with_extension(RETURNED), b"", 0o600)?;
        }
        files::remove(&live)?;
        Ok(kept.map(|e| format!("{e:#}; it does not count")))
    }

    /// Takes a record out of the way that is not to be applied, and returns where it is kept. Only
    /// the last few are.
    pub fn archive(&self, path: &Path, boot_id: Option<&str>) -> Result<PathBuf> {
        let folder = self.state.join("archive");
        files::private_dir(&folder)?;
        // It becomes part of a file's name, and comes from a file that may be torn.
        let plain = |id: &&str| {
            (1..=36).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
        };
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .context("a record has a name")?;
        let kept = folder.join(format!(
            "{}-{name}",
            boot_id.filter(plain).unwrap_or("unknown")
        ));
        let copy = self.records().join(name);
        if path != copy {
            // Of two file systems.
            let content =
                std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            let is_whole = |text: &str| Record::parse(text).is_ok();
            let damaged = !std::str::from_utf8(&content).is_ok_and(is_whole);
            // A damaged record is no reason to lose its copy.
            if !(damaged
                && files::read(&copy)
                    .ok()
                    .flatten()
                    .is_some_and(|text| is_whole(&text)))
            {
                let replaced = files::replace(&copy, &content, 0o600);
                // A full disk still has the copy that was written before.
                replaced.or_else(|e| if copy.exists() { Ok(()) } else { Err(e) })?;
            }
        }
        files::put_aside(&copy, &kept)?;
        files::remove(path)?;
        files::keep_newest(&folder, ARCHIVED)?;
        Ok(kept)
    }

    /// Deletes a stored plan.
    pub fn delete_plan(&self, name: &str) -> Result<()> {
        files::remove(&self.plan_path(name))
    }

    /// Removes what killed writers left; of records under the lock, whose holder alone writes
    /// records. Returns why something stays.
    pub fn sweep(&self) -> Vec<String> {
        let records = [self.records(), self.live_records()]
            .into_iter()
            .map(|folder| {
                let names = files::list(&folder)?;
                let mut unfinished = names.iter().filter(|n| n.starts_with(files::UNFINISHED));
                unfinished.try_for_each(|name| files::remove(&folder.join(name)))
            });
        let shared = [self.plans(), self.reports(), self.views(), self.profiles()];
        let shared = shared.iter().map(|folder| shared_folder::sweep(folder));
        let reports = files::keep_newest(&self.reports(), REPORTS);
        let all =
            records
                .chain(shared)
                .chain([self.sweep_copies(), self.sweep_late_confs(), reports]);
        all.filter_map(|done| done.err().map(|e| format!("{e:#}")))
            .collect()
    }

    /// Removes copies that [`Store::forget`] could not.
    fn sweep_copies(&self) -> Result<()> {
        let names = files::list(&self.live_records())?;
        let returned = names.iter().map(|name| self.live_records().join(name));
        returned
            .filter(|path| path.extension().is_some_and(|e| e == RETURNED))
            .try_for_each(|path| {
                let copy = path
                    .with_extension("json")
                    .file_name()
                    .map(|name| self.records().join(name));
                copy.map_or(Ok(()), |copy| files::remove(&copy))?;
                files::remove(&path)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_keeps_the_newest_reports() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path(), folder.path());
        store.prepare().unwrap();
        (0..REPORTS + 2).for_each(|n| store.save_report(Some(&format!("c{n}")), "{}").unwrap());
        assert_eq!(store.sweep(), [""; 0]);
        assert_eq!(files::list(&store.reports()).unwrap().len(), REPORTS);
        assert_eq!(
            store
                .report(&format!("c{}", REPORTS + 1))
                .unwrap()
                .as_deref(),
            Some("{}")
        );
    }
}
