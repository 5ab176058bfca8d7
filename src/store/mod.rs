//! What rdmaprep keeps below its run folder: plans, pins, reports and records; of reports what does
//! not fit in there is below the state folder. A NIC is away only until the next boot, so a record
//! has to outlive rdmaprep, not the machine: none is synced to disk, and one of an earlier boot is
//! nothing.

pub mod claims;
mod cleanup;
mod damaged;
mod late_conf;
pub mod records;
pub mod settings_files;
mod unstored;

use rdma_model::escape::is_plain;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use hmac_sha256::Hash as Sha256;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::strict_json;
use rdma_model::tree::Tree;
use serde::Deserialize;

use crate::disk::doing;
use crate::disk::files::{self, Lock};
use crate::disk::replace::{self, Replacement};
use crate::faults;
use crate::handle::Handle;
use crate::kernel::process::pidfd_getfd;
use crate::nccl_env::topo_file;
use crate::plan::{self, Plan};
use crate::record::{PartialRecord, Record, salvage};

/// How many reports are kept on disk.
const REPORTS_ON_DISK: usize = 32;

/// The report of a container whose id is unknown: no id becomes this name.
const UNKNOWN: &str = "unknown@.json";

#[derive(Clone, Debug)]
pub struct Store {
    run: PathBuf,
    state: PathBuf,
    handles: BTreeMap<String, Handle>,
}

fn record_of(path: &Path, text: &str) -> Result<Record> {
    Record::parse(text).with_context(|| format!("reading {}", path.display()))
}

impl Store {
    pub fn new(run: &Path, state: &Path) -> Store {
        Store {
            run: run.to_owned(),
            state: state.to_owned(),
            handles: BTreeMap::new(),
        }
    }

    /// Reads from the memory of a process what that keeps there: a view as `sysfs`, a topology file
    /// as `topology`.
    pub fn with_handles(self, handles: BTreeMap<String, Handle>) -> Store {
        Store { handles, ..self }
    }

    /// Only commands that write call this.
    pub fn make_folders(&self) -> Result<()> {
        let all = self.folders();
        all.iter().try_for_each(|folder| files::private_dir(folder))
    }

    /// Whether [`Store::make_folders`] would succeed, and files could be put into the folders, as
    /// far as that can be known without doing it.
    pub fn writable(&self) -> Result<()> {
        self.folders().iter().try_for_each(|folder| {
            files::owned(folder)?;
            files::writable(folder)
        })
    }

    fn folders(&self) -> [PathBuf; 7] {
        [
            self.run.clone(),
            self.plans(),
            self.pins(),
            self.reports(),
            self.views(),
            self.settings_files(),
            self.records(),
        ]
    }

    fn plans(&self) -> PathBuf {
        self.run.join("plans")
    }

    fn pins(&self) -> PathBuf {
        self.run.join("netns")
    }

    fn reports(&self) -> PathBuf {
        self.run.join("reports")
    }

    /// Views of /sys for containers, each `NAME.json` and, where a config.json mounts it, the
    /// directory `NAME`.
    pub fn views(&self) -> PathBuf {
        self.run.join("views")
    }

    fn records(&self) -> PathBuf {
        self.run.join("records")
    }

    /// Whether the run folder is on a read-only file system: what is needed there can be read
    /// alone.
    pub fn is_read_only(&self) -> bool {
        files::is_read_only(&self.run)
    }

    /// The one lock: the kernel moves one NIC at a time anyway, and a second container must see the
    /// first one's record.
    pub fn lock(&self, deadline: Instant) -> Result<Lock> {
        if self.is_read_only() {
            let run = self.run.display();
            return Err(ErrorClass::Refused.error(format!(
                "{run} is read-only here: no record can change, so no NIC moves; make it \
                writable, in the mount namespace of the runtime as well, then run `rdmaprep \
                restore --all`"
            )));
        }
        files::lock(&self.run.join("lock"), deadline)
    }

    pub fn plan(&self, name: &str) -> Result<Option<Plan>> {
        let path = self.plan_path(name);
        let Some(text) = files::read(&path)? else {
            return Ok(None);
        };
        let doing = doing("reading plan", &path);
        let plan: Plan = strict_json::strict(&text).with_context(doing)?;
        ensure!(
            plan.schema == plan::SCHEMA,
            "plan {} has schema {}",
            path.display(),
            plan.schema
        );
        Ok(Some(plan))
    }

    /// How many NICs a plan has, each by its channels: less to read than the plan.
    pub fn planned_nics(&self, name: &str) -> Option<Vec<Option<u32>>> {
        #[derive(Deserialize)]
        struct Nic {
            #[serde(default)]
            channels: Option<u32>,
        }
        #[derive(Deserialize)]
        struct Nics {
            nics: Vec<Nic>,
        }
        let text = files::read(&self.plan_path(name)).ok()??;
        let Nics { nics } = serde_json::from_str(&text).ok()?;
        Some(nics.iter().map(|nic| nic.channels).collect())
    }

    fn plan_path(&self, name: &str) -> PathBuf {
        self.plans().join(format!("{name}.json"))
    }

    pub fn all_plans(&self) -> Result<Vec<String>> {
        Ok(files::list(&self.plans())?
            .iter()
            .filter_map(|n| Some(n.strip_suffix(".json")?.to_owned()))
            .collect())
    }

    pub fn save_plan(&self, plan: &Plan) -> Result<PathBuf> {
        let path = self.plan_path(&plan.name);
        let text = serde_json::to_string_pretty(plan).context("writing the plan as JSON")?;
        private().write(&path, text.as_bytes())?;
        Ok(path)
    }

    /// The name under which a view is stored: it follows from what is in it.
    pub fn view_name(view: &Tree) -> Result<String> {
        // Another text with such a beginning of its digest would have to be searched for too long.
        let digest = Sha256::hash(Store::view_text(view)?.as_bytes());
        Ok(digest
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect())
    }

    pub fn view_text(view: &Tree) -> Result<String> {
        serde_json::to_string(view).context("writing the view as JSON")
    }

    /// Stores what a container shall see of /sys. None is removed before the next boot: which
    /// bundles mount it is not known.
    pub fn save_view(&self, name: &str, view: &Tree) -> Result<()> {
        let path = self.views().join(format!("{name}.json"));
        private().write(&path, Store::view_text(view)?.as_bytes())
    }

    pub fn view(&self, name: &str) -> Result<Option<Tree>> {
        let path = self.views().join(format!("{name}.json"));
        let Some(text) = files::read(&path)? else {
            return Ok(None);
        };
        serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))
    }

    /// What is stored under that name, from the memory of the process that keeps it; nothing where
    /// none does. [`ErrorClass::Refused`]: what was handed on is another user's, has gone, or is
    /// another one. The name follows from the content, so nothing else passes for it.
    pub fn handed_view(&self, what: &str, name: &str) -> Option<Result<Tree>> {
        let handle = self.handles.get(what)?;
        Some(read_handed(handle, what, name))
    }

    /// Writes a stored view out for config.json files to mount, once, also while another process
    /// does the same.
    pub fn lay_out(&self, name: &str, view: &Tree) -> Result<()> {
        replace::lay_out(&self.views().join(name), view)
    }

    /// All records, each with its path; a damaged one is an error of its own, not of the others.
    pub fn all_records(&self) -> Result<Vec<(PathBuf, Result<Record>)>> {
        let texts = self.record_texts()?;
        let records = texts.map(|(path, text)| {
            let record = text.and_then(|text| record_of(&path, &text));
            (path, record)
        });
        Ok(records.collect())
    }

    fn record_texts(&self) -> Result<impl Iterator<Item = (PathBuf, Result<String>)>> {
        let paths = self.record_paths()?.into_iter();
        // One that went in between is none.
        Ok(paths.filter_map(|path| {
            let text = files::read(&path).transpose()?;
            Some((path, text))
        }))
    }

    pub fn record_paths(&self) -> Result<Vec<PathBuf>> {
        // Write access there decides what the host gets back.
        files::owned(&self.run)?;
        files::owned(&self.records())?;
        let names = files::list(&self.records())?;
        let records = names.iter().filter(|name| name.ends_with(".json"));
        Ok(records.map(|name| self.records().join(name)).collect())
    }

    pub fn record_path(&self, record: &Record) -> PathBuf {
        self.records().join(record.file_name())
    }

    pub fn netns_of(&self, path: &Path) -> Option<u64> {
        path.file_stem()?.to_str()?.parse().ok()
    }

    pub fn remains(&self, path: &Path) -> PartialRecord {
        salvage(&files::read(path).ok().flatten().unwrap_or_default())
    }

    /// Replaces a record; nothing that it speaks of may happen before this returns.
    pub fn save(&self, record: &Record) -> Result<()> {
        // An administrator may have removed it while containers run.
        files::private_dir(&self.records())?;
        let text = record.print()?;
        faults::around("writing the record", || {
            let replacement = Replacement::with_mode(0o600).unsynced();
            replacement.write(&self.record_path(record), text.as_bytes())
        })
    }

    pub fn pin(&self, netns: u64) -> PathBuf {
        self.pins().join(netns.to_string())
    }

    pub fn all_pins(&self) -> Result<Vec<u64>> {
        Ok(files::list(&self.pins())?
            .iter()
            .filter_map(|n| n.parse().ok())
            .collect())
    }

    pub fn report(&self, id: &str) -> Result<Option<String>> {
        files::read(&self.reports().join(report_name(id)))
    }

    /// All reports, each with its file.
    pub fn all_reports(&self) -> Result<Vec<(PathBuf, String)>> {
        let mut all = Vec::new();
        for folder in [self.reports(), self.reports_on_disk()] {
            for name in files::list(&folder)? {
                let path = folder.join(name);
                let is_report = path.extension().is_some_and(|e| e == "json");
                // One that went in between, or that is no plain file, is not shown.
                if let Some(text) = files::read(&path).ok().flatten().filter(|_| is_report) {
                    all.push((path, text));
                }
            }
        }
        Ok(all)
    }

    /// The `id` may be unknown. Where the run folder is full, the report goes to the disk, so that
    /// `status` says why the hook failed.
    pub fn save_report(&self, id: Option<&str>, json: &str) -> Result<()> {
        let name = id.map_or(UNKNOWN.to_owned(), report_name);
        // No fsync: a report is news, not truth. The name is the container's id: a link of that
        // name is replaced, not followed.
        let save = |folder: PathBuf| {
            let replacement = private().unsynced();
            replacement.write(&folder.join(&name), json.as_bytes())
        };
        let on_disk = self.reports_on_disk();
        let folders = [self.run.clone(), self.reports()];
        let are_ours = folders.iter().try_for_each(|f| files::private_dir(f));
        match are_ours.and_then(|()| save(self.reports())) {
            Ok(()) => {
                // What it said of that container before.
                let _ = std::fs::remove_file(on_disk.join(&name));
                Ok(())
            }
            Err(e) => files::private_dir(&self.state)
                .and_then(|()| files::private_dir(&on_disk))
                .and_then(|()| save(on_disk.clone()))
                .and_then(|()| files::keep_newest(&on_disk, REPORTS_ON_DISK))
                .map_err(|_| e),
        }
    }

    fn reports_on_disk(&self) -> PathBuf {
        self.state.join("reports")
    }

    /// The kernel names no folder that is full.
    pub fn with_space(&self, e: anyhow::Error) -> anyhow::Error {
        // Of an error before an undo there is the text alone.
        if !format!("{e:#}").contains("No space left on device") {
            return e;
        }
        e.context([&self.run, &self.state].map(|f| files::space(f)).join("; "))
    }
}

fn read_handed(handle: &Handle, what: &str, name: &str) -> Result<Tree> {
    let file = File::from(pidfd_getfd::fetch(handle, None)?);
    let text = files::read_whole(file, "what is in memory")?;
    let tree = match what {
        "topology" => topo_file::tree(&text),
        _ => serde_json::from_str(&text).class(ErrorClass::Refused, "reading a view in memory")?,
    };
    ensure!(
        Store::view_name(&tree)? == name,
        ErrorClass::Refused.error("what the handle names is another one than config.json mounts")
    );
    Ok(tree)
}

/// Of files that more than one process writes.
fn private() -> Replacement {
    Replacement::with_mode(0o600).in_shared_folder()
}

/// A container's id is its runtime's choice: what is no plain name is spelled in hex.
fn report_name(id: &str) -> String {
    if id.len() <= 128 && !id.starts_with('.') && is_plain(id, b"-_.") {
        return format!("{id}.json");
    }
    let hex: String = id.bytes().take(64).map(|b| format!("{b:02x}")).collect();
    format!("hex-{hex}.json")
}
