//! Claims of Kubernetes that are prepared on this node: which pod has which rails. `rdmaprep-dra`
//! writes them; where one names no rail, no container gets it by a claim.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rdma_model::ids::BusId;
use rdma_model::strict_json;
use serde::{Deserialize, Serialize};

use crate::cdi::RailName;
use crate::disk::files;
use crate::oci::pod::is_uid;
use crate::record::{Phase, Record};

use super::Store;

pub const SCHEMA: u32 = 1;

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
            format!("reading {path}; remove it once no pod of the claim runs")
        })?;
        Ok(Some(binding).filter(|b| b.boot_id == boot_id))
    }

    /// Fails where one cannot be read: then it is not known which rails are taken.
    pub fn bindings(&self, boot_id: &str) -> Result<Vec<Binding>> {
        files::owned(&self.claims())?;
        let names = files::list(&self.claims())?;
        let uids = names.iter().filter_map(|name| name.strip_suffix(".json"));
        let all = uids
            .filter(|uid| is_uid(uid))
            .map(|uid| self.binding(uid, boot_id));
        all.filter_map(Result::transpose).collect()
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
