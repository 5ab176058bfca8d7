//! A claim's word on this node: a file that says which rails it has, and the CDI file that names
//! them to the engine. Both go with Unprepare; the first is what says that a rail is taken.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rdmaprep::cdi::{self, CdiDevice};
use rdmaprep::disk::files;
use rdmaprep::disk::replace::Replacement;
use rdmaprep::store::Store;
use rdmaprep::store::claims::{Binding, Bound, Named, SCHEMA, cdi_path};

const KIND: &str = "rdmaprep.io/claim";
/// As the engine is asked for it.
pub fn cdi_id(uid: &str, device: &str) -> String {
    format!("{KIND}={}", device_name(uid, device))
}

fn device_name(uid: &str, device: &str) -> String {
    format!("{uid}-{device}")
}

#[derive(Clone, Debug)]
pub struct Bindings {
    store: Store,
    cdi: PathBuf,
    boot_id: String,
}

impl Bindings {
    pub fn new(store: &Store, cdi: &Path, boot_id: &str) -> Bindings {
        Bindings {
            store: store.clone(),
            cdi: cdi.to_owned(),
            boot_id: boot_id.to_owned(),
        }
    }

    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    pub fn prepare(&self) -> Result<()> {
        files::private_dir(&self.store.claims())?;
        files::shared_dir(&self.cdi)
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.store.claims().join(format!("{uid}.json"))
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
            ended: false,
            past: Vec::new(),
        }
    }

    pub fn all(&self) -> Result<Vec<Binding>> {
        self.store.bindings(&self.boot_id)
    }

    pub fn of(&self, uid: &str) -> Result<Option<Binding>> {
        self.store.binding(uid, &self.boot_id)
    }

    fn save(&self, binding: &Binding) -> Result<()> {
        let text = serde_json::to_string_pretty(binding)?;
        let file = Replacement::with_mode(0o600).under_lock().unsynced();
        let path = self.path(&binding.claim.uid);
        file.write(&path, format!("{text}\n").as_bytes())
    }

    /// What its pod has left in a namespace returns from now on. The caller has the lock.
    pub fn end(&self, binding: &Binding) -> Result<()> {
        self.save(&Binding {
            ended: true,
            ..binding.clone()
        })
    }

    /// It is the next pod's that shares the claim. The caller has the lock.
    pub fn hand_over(&self, binding: &Binding, pod: &Named) -> Result<()> {
        self.save(&binding.of_next(Some(pod.clone())))
    }

    /// The binding before the file by which a container could ask for it. `devices` are those of
    /// rdmaprep's CDI file, by rail.
    pub fn write(&self, binding: &Binding, spec: &cdi::Spec) -> Result<()> {
        let uid = &binding.claim.uid;
        self.save(binding)?;
        let devices = binding.rails.iter().map(|bound| {
            let mut devices = spec.devices.iter();
            let device = devices.find(|d| d.name == bound.rail.as_str());
            let device = device.with_context(|| format!("the CDI file lacks {}", bound.rail))?;
            let mut edits = device.container_edits.clone();
            for hook in &mut edits.hooks {
                hook.args.extend([cdi::CLAIM.to_owned(), uid.clone()]);
            }
            Ok(CdiDevice {
                name: device_name(uid, &bound.device),
                container_edits: edits,
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
        file.write(&cdi_path(&self.cdi, uid), format!("{text}\n").as_bytes())
    }

    pub fn remove(&self, uid: &str) -> Result<()> {
        self.store.remove_binding(uid, &self.cdi)
    }
}
