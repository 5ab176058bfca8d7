//! A claim's word on this node: a file that says which rails it has, and the CDI file that names
//! them to the engine. Both go with Unprepare; the first is what says that a rail is taken.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rdma_model::ids::BusId;
use rdmaprep::cdi::{self, CdiDevice};
use rdmaprep::disk::files;
use rdmaprep::disk::replace::{self, Replacement};
use serde::{Deserialize, Serialize};

use crate::dra::claim::{Named, is_uid};

/// Where engines look for what is of this boot alone.
pub const CDI_FOLDER: &str = "/var/run/cdi";
const KIND: &str = "rdmaprep.io/claim";
const SCHEMA: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    schema: u32,
    /// Since another boot no pod has it.
    boot_id: String,
    pub namespace: String,
    pub claim: Named,
    pub pod: Option<Named>,
    pub rails: Vec<Bound>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    pub request: String,
    /// As the slice names it.
    pub device: String,
    /// As the CDI file does.
    pub rail: String,
    pub pci: Option<BusId>,
}

impl Bound {
    pub fn cdi_id(&self, uid: &str) -> String {
        format!("{KIND}={}", device_name(uid, &self.device))
    }
}

fn device_name(uid: &str, device: &str) -> String {
    format!("{uid}-{device}")
}

#[derive(Clone, Debug)]
pub struct Bindings {
    folder: PathBuf,
    cdi: PathBuf,
    boot_id: String,
}

impl Bindings {
    pub fn new(run: &Path, cdi: &Path, boot_id: &str) -> Bindings {
        Bindings {
            folder: run.join("claims"),
            cdi: cdi.to_owned(),
            boot_id: boot_id.to_owned(),
        }
    }

    pub fn prepare(&self) -> Result<()> {
        files::private_dir(&self.folder)?;
        files::shared_dir(&self.cdi)
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.folder.join(format!("{uid}.json"))
    }

    /// The name has the UID: engines read a new file, and may not look again at one that they know.
    fn cdi_path(&self, uid: &str) -> PathBuf {
        self.cdi.join(format!("rdmaprep.io-claim-{uid}.json"))
    }

    pub fn bind(
        &self,
        namespace: &str,
        claim: Named,
        pod: Option<Named>,
        rails: Vec<Bound>,
    ) -> Binding {
        Binding {
            schema: SCHEMA,
            boot_id: self.boot_id.clone(),
            namespace: namespace.to_owned(),
            claim,
            pod,
            rails,
        }
    }

    /// Of this boot. Fails where one cannot be read: then it is not known which rails are taken.
    pub fn all(&self) -> Result<Vec<Binding>> {
        files::owned(&self.folder)?;
        let names = files::list(&self.folder)?;
        let uids = names.iter().filter_map(|name| name.strip_suffix(".json"));
        let all = uids.filter(|uid| is_uid(uid)).map(|uid| self.of(uid));
        all.filter_map(Result::transpose).collect()
    }

    pub fn of(&self, uid: &str) -> Result<Option<Binding>> {
        let path = self.path(uid);
        let doing = || {
            let path = path.display();
            format!("reading {path}; remove it once no pod of the claim runs")
        };
        let Some(text) = files::read(&path)? else {
            return Ok(None);
        };
        let binding: Binding = serde_json::from_str(&text).with_context(doing)?;
        let fits = binding.schema == SCHEMA && binding.claim.uid == uid;
        ensure!(
            fits,
            "{}: it is not of this version, or was edited",
            doing()
        );
        Ok(Some(binding).filter(|b| b.boot_id == self.boot_id))
    }

    /// The binding before the file by which a container could ask for it. `devices` are those of
    /// rdmaprep's CDI file, by rail.
    pub fn write(&self, binding: &Binding, spec: &cdi::Spec) -> Result<()> {
        let uid = &binding.claim.uid;
        let text = serde_json::to_string_pretty(binding)?;
        let file = Replacement::with_mode(0o600).under_lock().unsynced();
        file.write(&self.path(uid), format!("{text}\n").as_bytes())?;
        let devices = binding.rails.iter().map(|bound| {
            let device = spec.devices.iter().find(|d| d.name == bound.rail);
            let device = device.with_context(|| format!("the CDI file lacks {}", bound.rail))?;
            Ok(CdiDevice {
                name: device_name(uid, &bound.device),
                container_edits: device.container_edits.clone(),
            })
        });
        let spec = cdi::Spec {
            // The first in which a device's name may begin with a digit.
            cdi_version: "0.5.0".to_owned(),
            kind: KIND.to_owned(),
            devices: devices.collect::<Result<_>>()?,
            container_edits: spec.container_edits.clone(),
        };
        let text = serde_json::to_string_pretty(&spec)?;
        let file = Replacement::with_mode(0o644).under_lock().unsynced();
        file.write(&self.cdi_path(uid), format!("{text}\n").as_bytes())
    }

    /// The file by which a container could ask for it before the binding.
    pub fn remove(&self, uid: &str) -> Result<()> {
        for path in [self.cdi_path(uid), self.path(uid)] {
            replace::tidy(&path)?;
            files::remove(&path)?;
        }
        Ok(())
    }
}
