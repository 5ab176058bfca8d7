//! Claims of Kubernetes that are prepared on this node: which pod has which rails. `rdmaprep-dra`
//! writes them; where one names no rail, no container gets it by a claim.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rdma_model::ids::BusId;
use rdma_model::strict_json;
use serde::{Deserialize, Serialize};

use crate::cdi::RailName;
use crate::config::device_request::DeviceRequest;
use crate::disk::{files, replace};
use crate::oci::pod::is_uid;
use crate::record::{Phase, Record};

use super::Store;
use super::records::Records;

pub const SCHEMA: u32 = 1;

/// Where engines look for what is of this boot alone.
pub const CDI_FOLDER: &str = "/var/run/cdi";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    pub schema: u32,
    /// Since another boot no pod has it.
    pub boot_id: String,
    pub namespace: String,
    pub claim: Named,
    pub pod: Option<Named>,
    pub rails: Vec<Bound>,
    /// Its pod has ended: what its containers have left returns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// UIDs of pods that had it before and have ended: it is theirs no more, though the API server
    /// may name them for a while.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub name: String,
    pub uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub request: String,
    /// As Kubernetes names it.
    pub device: String,
    pub rail: RailName,
    pub pci: Option<BusId>,
}

/// The CDI file of a claim. The name has the UID: engines read a new file, and may not look again
/// at one that they know.
pub fn cdi_path(folder: &Path, uid: &str) -> PathBuf {
    folder.join(format!("rdmaprep.io-claim-{uid}.json"))
}

/// A binding as commands show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundClaim {
    pub uid: String,
    pub state: State,
    /// `NAMESPACE/NAME`; absent where the file cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(default)]
    pub rails: Vec<String>,
    /// How long it has been as it is.
    #[serde(default)]
    pub minutes: u64,
    /// Why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No container has its rails now.
    Prepared,
    /// Its pod has them.
    InUse,
    /// Its pod has ended, and the claim is not released yet.
    Ended,
    Damaged,
}

impl BoundClaim {
    fn new(uid: &str, read: Result<Binding>, records: &Records) -> BoundClaim {
        let (binding, why) = match read {
            Ok(binding) => (Some(binding), None),
            Err(e) => (None, Some(format!("{e:#}"))),
        };
        let mut records = records.readable().filter(|r| !r.is_back());
        let is_used = records.any(|r| {
            let is_its = binding.as_ref().is_none_or(|b| b.is_of_pod_in(r));
            is_its && r.claims.iter().any(|claim| claim == uid)
        });
        let state = match &binding {
            None => State::Damaged,
            Some(binding) if binding.ended => State::Ended,
            Some(_) if is_used => State::InUse,
            Some(_) => State::Prepared,
        };
        let rails = binding.iter().flat_map(Binding::rails);
        BoundClaim {
            uid: uid.to_owned(),
            state,
            rails: rails.map(|rail| rail.to_string()).collect(),
            claim: binding
                .as_ref()
                .map(|b| format!("{}/{}", b.namespace, b.claim.name)),
            pod: binding.and_then(|b| Some(b.pod?.name)),
            minutes: 0,
            why,
        }
    }
}

impl Binding {
    fn parse(text: &str, uid: &str) -> Result<Binding> {
        let binding: Binding = strict_json::strict(text)?;
        let fits = binding.schema == SCHEMA && binding.claim.uid == uid;
        ensure!(fits, "it is not of this version, or was edited");
        Ok(binding)
    }

    pub fn rails(&self) -> impl Iterator<Item = RailName> {
        self.rails.iter().map(|bound| bound.rail.clone())
    }

    /// Adds its rails to what is asked for by claims.
    pub fn add_to(&self, asked: &mut DeviceRequest) {
        asked.extend(self.rails());
        asked.claims.insert(self.claim.uid.clone());
    }

    /// Whether that pod has ended with it.
    pub fn has_ended_for(&self, pod: &Named) -> bool {
        self.past.contains(&pod.uid) || self.ended && self.pod.as_ref() == Some(pod)
    }

    /// As it is when the next pod has it.
    pub fn of_next(&self, pod: Option<Named>) -> Binding {
        let mut past = self.past.clone();
        if self.ended && self.pod != pod {
            past.extend(self.pod.iter().map(|pod| pod.uid.clone()));
        }
        Binding {
            pod,
            ended: false,
            past,
            ..self.clone()
        }
    }

    /// Whether the NICs of a record are in its pod: those of the pod before may be on their way.
    pub fn is_of_pod_in(&self, record: &Record) -> bool {
        let own = self.pod.as_ref().map(|pod| &pod.uid);
        own.is_none() || record.pod.is_none() || record.pod.as_ref() == own
    }

    pub fn has(&self, rail: &str) -> bool {
        self.rails.iter().any(|bound| bound.rail.as_str() == rail)
    }
}

impl Store {
    pub fn claims(&self) -> PathBuf {
        self.run.join("claims")
    }

    pub fn binding(&self, uid: &str, boot_id: &str) -> Result<Option<Binding>> {
        ensure!(is_uid(uid), "{uid:?} is no UID");
        let path = self.claims().join(format!("{uid}.json"));
        let Some(text) = files::read(&path)? else {
            return Ok(None);
        };
        let binding = Binding::parse(&text, uid).with_context(|| {
            let path = path.display();
            format!("reading {path}; `rdmaprep claims release {uid}` once no pod of the claim runs")
        })?;
        Ok(Some(binding).filter(|b| b.boot_id == boot_id))
    }

    /// Fails where one cannot be read: then it is not known which rails are taken.
    pub fn bindings(&self, boot_id: &str) -> Result<Vec<Binding>> {
        let all = self.bound_uids()?;
        let all = all.iter().map(|uid| self.binding(uid, boot_id));
        all.filter_map(Result::transpose).collect()
    }

    fn bound_uids(&self) -> Result<Vec<String>> {
        files::owned(&self.claims())?;
        let names = files::list(&self.claims())?;
        let uids = names.iter().filter_map(|name| name.strip_suffix(".json"));
        Ok(uids.filter(|uid| is_uid(uid)).map(str::to_owned).collect())
    }

    /// Damaged ones, too.
    pub fn prepared(&self, records: &Records, boot_id: &str) -> Result<Vec<BoundClaim>> {
        let mut all = Vec::new();
        for uid in self.bound_uids()? {
            if let Some(read) = self.binding(&uid, boot_id).transpose() {
                let age = files::age(&self.claims().join(format!("{uid}.json")));
                all.push(BoundClaim {
                    minutes: age.as_secs() / 60,
                    ..BoundClaim::new(&uid, read, records)
                });
            }
        }
        Ok(all)
    }

    /// First the file by which a container could ask for it. The caller has the lock.
    pub fn remove_binding(&self, uid: &str, cdi: &Path) -> Result<()> {
        for path in [
            cdi_path(cdi, uid),
            self.claims().join(format!("{uid}.json")),
        ] {
            replace::tidy(&path)?;
            files::remove(&path)?;
        }
        Ok(())
    }

    /// Whether a pod's claim keeps the NICs, whether or not a container of it runs. One that cannot
    /// be read does. All claims of a record are of one pod: where one has ended, that has.
    pub fn claim_keeps_nics(&self, record: &Record) -> bool {
        let bindings: Vec<_> = record
            .claims
            .iter()
            .filter_map(|uid| self.binding(uid, &record.boot_id).transpose())
            .collect();
        record.phase == Phase::Attached
            && !bindings.is_empty()
            && !bindings.iter().flatten().any(|binding| binding.ended)
    }
}
