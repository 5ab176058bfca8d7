//! Records that go, and what killed writers left.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Store;
use crate::disk::{files, replace};
use crate::record::Record;

/// Records that are kept for people to look at.
const ARCHIVED: usize = 32;

/// /run is memory, and containers that fail have a new id each time.
const REPORTS: usize = 1000;

impl Store {
    /// Forgets a record whose NICs are all on the host.
    pub fn forget(&self, record: &Record) -> Result<()> {
        files::remove(&self.record_path(record))
    }

    /// Takes a record out of the way that is not to be applied, and returns where it is kept. Only
    /// the last few are.
    pub fn archive(&self, path: &Path, boot_id: Option<&str>) -> Result<PathBuf> {
        let folder = self.run.join("archive");
        files::private_dir(&folder)?;
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .context("a record has a name")?;
        let boot = boot_id.filter(|id| is_plain(id)).unwrap_or("unknown");
        let kept = folder.join(format!("{boot}-{name}"));
        files::put_aside(path, &kept)?;
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
        let records = replace::sweep_all(&self.records());
        let shared = [
            self.plans(),
            self.reports(),
            self.views(),
            self.settings_files(),
        ];
        let shared = shared.iter().map(|folder| replace::sweep(folder));
        let reports = files::keep_newest(&self.reports(), REPORTS);
        let all = shared.chain([records, self.sweep_ended(), reports]);
        all.filter_map(|done| done.err().map(|e| format!("{e:#}")))
            .collect()
    }

    /// Removes the settings of containers that have ended without a stop hook. It waits for no
    /// lock: a file belongs to one container.
    pub fn sweep_ended(&self) -> Result<()> {
        self.sweep_late_confs().and(self.sweep_settings_files())
    }
}

/// It becomes part of a file's name, and comes from a file that may be torn.
fn is_plain(boot_id: &str) -> bool {
    (1..=36).contains(&boot_id.len()) && boot_id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_keeps_the_newest_reports() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(&folder.path().join("run"), &folder.path().join("state"));
        store.make_folders().unwrap();
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
