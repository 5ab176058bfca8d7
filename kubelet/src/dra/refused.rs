//! What the create hook said when it refused a container that has a claim. The hook's report has
//! its words and the container's id. Which claims the container asked for, its config.json says: an
//! engine that has given up removes it soon, so it is read at once. A refusal that is missed is
//! seen with the next try of the kubelet's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use rdmaprep::cdi;
use rdmaprep::disk::files;
use rdmaprep::oci::config::Config;
use rdmaprep::oci::pod::{bundles, pod_uid};
use rdmaprep::record::is_of_engine;
use rdmaprep::report::Report;
use rdmaprep::store::claims::Binding;

use crate::dra::driver::blocking;
use crate::watch::Wakes;

/// The host's root: engines' folders are not among those that a pod of ours has.
pub const HOST: &str = "/proc/1/root";
const CREATES: [&str; 2] = ["hook createRuntime", "hook prestart"];
/// A folder may have been removed, and made again.
const AGAIN: Duration = Duration::from_secs(60);

pub struct Refusals {
    reports: PathBuf,
    records: PathBuf,
    host: PathBuf,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The newest report that was read.
    newest: Option<SystemTime>,
    last: BTreeMap<Asker, Refusal>,
}

/// A claim, and the pod where the container is one's: their UIDs.
type Asker = (String, Option<String>);

#[derive(Clone)]
struct Refusal {
    /// Seconds since 1970.
    time: u64,
    words: String,
}

/// The last refusal of a pod's container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// UIDs of the pod, and of a claim that the container has.
    pub pod: String,
    pub claim: String,
    /// Seconds since 1970.
    pub time: u64,
    pub words: String,
}

impl Refusals {
    /// `run_dir` is that of rdmaprep.
    pub fn new(run_dir: &Path, host: &Path) -> Refusals {
        Refusals {
            reports: run_dir.join("reports"),
            records: run_dir.join("records"),
            host: host.to_owned(),
            known: Mutex::default(),
        }
    }

    /// Reads what is new.
    pub fn look(&self) -> Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut newest = known.newest;
        for name in files::list(&self.reports)? {
            let path = self.reports.join(&name);
            let modified = fs::symlink_metadata(&path).and_then(|m| m.modified());
            let Some(modified) = modified.ok().filter(|_| name.ends_with(".json")) else {
                continue;
            };
            // Two may have the same time.
            if known.newest.is_some_and(|newest| modified < newest) {
                continue;
            }
            newest = newest.max(Some(modified));
            for (asker, refusal) in self.refusal(&path).into_iter().flatten() {
                let last = known.last.get(&asker);
                if last.is_none_or(|last| last.time <= refusal.time) {
                    known.last.insert(asker, refusal);
                }
            }
        }
        known.newest = newest;
        Ok(())
    }

    /// By claim and pod, if that is the report of such a refusal.
    fn refusal(&self, report: &Path) -> Option<Vec<(Asker, Refusal)>> {
        let report: Report = serde_json::from_str(&files::read(report).ok()??).ok()?;
        if report.exit_code == 0 || !CREATES.contains(&report.command.as_str()) {
            return None;
        }
        let config = self.config(report.container.as_deref()?)?;
        let pod = pod_uid(&config).ok().flatten();
        let refusal = Refusal {
            time: report.time.unwrap_or_default(),
            words: report.message?,
        };
        let claims = config.hook_args().filter_map(|args| claim(&args));
        let by_claim = claims.map(|uid| ((uid, pod.clone()), refusal.clone()));
        Some(by_claim.collect())
    }

    fn config(&self, id: &str) -> Option<Config> {
        if !is_of_engine(id) {
            return None;
        }
        let paths = bundles(&self.host, id).map(|bundle| bundle.join("config.json"));
        let mut texts = paths.filter_map(|path| files::read_through(&path).ok()?);
        Config::parse(&texts.next()?).ok()
    }

    /// The words with which the last container of the claim's pod was refused. A second pod, of
    /// which the kubelet asks no one, is refused for what it is.
    pub fn words(&self, binding: &Binding) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let own = binding.pod.as_ref().map(|pod| &pod.uid);
        let its = known.last.iter().filter(|((uid, pod), _)| {
            let pods = pod.as_ref().zip(own);
            *uid == binding.claim.uid && pods.is_none_or(|(pod, own)| pod == own)
        });
        let (_, last) = its.max_by_key(|(_, refusal)| refusal.time)?;
        Some(last.words.clone())
    }

    /// One for each pod.
    pub fn of_pods(&self) -> Vec<Refused> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last: BTreeMap<&String, Refused> = BTreeMap::new();
        for ((claim, pod), refusal) in &known.last {
            let Some(pod) = pod else { continue };
            if last.get(pod).is_none_or(|last| last.time < refusal.time) {
                let refused = Refused {
                    pod: pod.clone(),
                    claim: claim.clone(),
                    time: refusal.time,
                    words: refusal.words.clone(),
                };
                last.insert(pod, refused);
            }
        }
        last.into_values().collect()
    }

    /// Forgets those of other claims.
    pub fn keep(&self, claims: &[String]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.last.retain(|(uid, _), _| claims.contains(uid));
    }
}

fn claim(args: &[String]) -> Option<String> {
    let at = args.iter().position(|arg| arg == cdi::CLAIM)?;
    args.get(at + 1).cloned()
}

/// Reads each report as it is written. It wakes who writes the claims' status, as each record does:
/// while NICs move into their pod, nothing else of them changes. Returns only with an error.
pub async fn follow(refusals: &Arc<Refusals>, tells: &SyncSender<()>) -> Result<()> {
    let changes = Wakes::of_folders()?;
    loop {
        for folder in [&refusals.reports, &refusals.records] {
            let _ = changes.watch(folder);
        }
        let at = refusals.clone();
        let _ = blocking(move || at.look()).await;
        // One that waits to be taken is enough.
        let _ = tells.try_send(());
        if let Ok(woken) = tokio::time::timeout(AGAIN, changes.next()).await {
            woken?;
        }
    }
}
