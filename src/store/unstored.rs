//! Why plans of the config file are not stored, as `prepare --configured` found it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Store, private};
use crate::disk::files;

impl Store {
    fn unstored_path(&self) -> PathBuf {
        self.run.join("unstored.json")
    }

    /// Replaces what was known of it.
    pub fn save_unstored(&self, why: &BTreeMap<String, String>) -> Result<()> {
        let path = self.unstored_path();
        if why.is_empty() {
            return files::remove(&path);
        }
        self.make_folders()?;
        let text = serde_json::to_string(why).context("writing why plans are not stored")?;
        private().unsynced().write(&path, text.as_bytes())
    }

    /// By the names of the plans; what cannot be read is not known.
    pub fn unstored(&self) -> BTreeMap<String, String> {
        let text = files::read(&self.unstored_path()).ok().flatten();
        text.and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default()
    }
}
