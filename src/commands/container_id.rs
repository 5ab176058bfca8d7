//! Which container a person means: by its id, by the beginning of that, or by the name that podman,
//! CRI-O or Docker gave it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, ensure};
use rdma_model::error_class::ErrorClass;
use serde::Deserialize;

use crate::config::request::ANNOTATION;
use crate::disk::files;
use crate::kernel::process::runtime_users::{self, Running};
use crate::oci::config::Config;
use crate::oci::pod::{CONTAINERDS, TASKS, bundles};
use crate::record::is_of_engine;
use crate::store::records::Records;

/// Fewer digits may mean another container.
const LEAST: usize = 6;
/// Where podman and CRI-O keep theirs, unless they are configured otherwise: for a container whose
/// bundle is not known.
const PODMAN: &str = "/var/lib/containers/storage/overlay-containers";
/// Where dockerd keeps its containers, unless it is configured to keep them elsewhere.
const DOCKER: &str = "/var/lib/docker/containers";

/// The whole id of a container that has a record; `asked` itself where none fits.
/// [`ErrorClass::Usage`] where several do. A beginning counts of the ids that engines make alone:
/// after `train` has ended, `restore train` must not mean `train2`.
pub(super) fn whole_id(records: &Records, asked: &str) -> Result<String> {
    let ids = ids(records);
    if ids.contains_key(asked) {
        return Ok(asked.to_owned());
    }
    let fit = ids.iter().filter(|(id, bundle)| {
        begins(id, asked) || names(id, bundle).iter().any(|name| name == asked)
    });
    let fit: Vec<&str> = fit.map(|(id, _)| id.as_str()).collect();
    ensure!(fit.len() < 2, several(asked, &fit));
    Ok(fit.first().map_or(asked, |id| *id).to_owned())
}

/// The id and the pid of a container that an engine runs, whether it holds NICs or not.
/// [`ErrorClass::Usage`] where several fit.
pub(super) fn running(asked: &str) -> Result<Option<(String, i32)>> {
    let fit: Vec<Running> = runtime_users::running(Path::new("/"))
        .into_iter()
        .filter(|c| {
            c.id == asked
                || begins(&c.id, asked)
                || c.name.as_deref() == Some(asked)
                || docker_name(&c.id).as_deref() == Some(asked)
        })
        .collect();
    let ids: Vec<&str> = fit.iter().map(|c| c.id.as_str()).collect();
    ensure!(fit.len() < 2, several(asked, &ids));
    Ok(fit.into_iter().next().map(|c| (c.id, c.pid)))
}

/// Whether an engine made that id, and `asked` is enough of it.
fn begins(id: &str, asked: &str) -> bool {
    asked.len() >= LEAST && is_of_engine(id) && id.starts_with(asked)
}

fn several(asked: &str, ids: &[&str]) -> Error {
    ErrorClass::Usage.error(format!(
        "{asked:?} may be any of these containers: {}: give more of the id",
        ids.join(", ")
    ))
}

/// Each container with its bundle, as far as records say it.
fn ids(records: &Records) -> BTreeMap<String, PathBuf> {
    let members = records
        .readable()
        .flat_map(|r| &r.members)
        .map(|m| (m.id.clone(), PathBuf::from(&m.bundle)));
    let torn = records
        .damaged()
        .flat_map(|(path, _)| records.store().remains(path).ids);
    torn.map(|id| (id, PathBuf::new())).chain(members).collect()
}

/// The names that engines keep beside a container: podman and CRI-O in a list for all containers,
/// above the bundle's folder, Docker in a file for each. What a container's author writes into
/// config.json is no name.
pub(super) fn names(id: &str, bundle: &Path) -> Vec<String> {
    #[derive(Deserialize)]
    struct Stored {
        id: String,
        #[serde(default)]
        names: Vec<String>,
    }
    let list = match bundle.as_os_str().is_empty() {
        true => Some(Path::new(PODMAN)),
        false => bundle.ancestors().nth(2),
    };
    let list = list.filter(|folder| folder.ends_with("overlay-containers"));
    let list = list.and_then(|folder| read(&folder.join("containers.json")));
    let stored: Vec<Stored> = list
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    stored
        .into_iter()
        .filter(|s| s.id == id)
        .flat_map(|s| s.names)
        .chain(docker_name(id))
        .collect()
}

/// Whether the config.json that its engine made has an annotation of rdmaprep's.
pub(super) fn has_annotation(id: &str) -> bool {
    if !is_of_engine(id) {
        return false;
    }
    let root = Path::new("/");
    let of_docker = CONTAINERDS.map(|state| root.join(state).join(TASKS).join("moby").join(id));
    let mut texts = bundles(root, id)
        .chain(of_docker)
        .filter_map(|bundle| read(&bundle.join("config.json")));
    texts.any(|text| {
        let config = Config::lenient(&text);
        let mut annotations = config.annotations();
        annotations.any(|(key, _)| key.starts_with(ANNOTATION))
    })
}

fn docker_name(id: &str) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct OfDocker {
        name: String,
    }
    let text =
        is_of_engine(id).then(|| read(&Path::new(DOCKER).join(id).join("config.v2.json")))??;
    let docker: OfDocker = serde_json::from_str(&text).ok()?;
    Some(docker.name.trim_start_matches('/').to_owned())
}

fn read(path: &Path) -> Option<String> {
    files::read(path).ok().flatten()
}
