//! Who has NICs, as people call it: the names that an engine keeps, and those of its pod.

use std::path::{Path, PathBuf};

use crate::commands::container_id;
use crate::disk::files;
use crate::metrics::Owner;
use crate::oci::config::Config;
use crate::oci::pod::{bundles, pod_uid};
use crate::record::{Member, Record, short_id};
use crate::store::Store;

/// What containerd and CRI-O write into each config.json of a pod.
const CONTAINER: [&str; 2] = [
    "io.kubernetes.cri.container-name",
    "io.kubernetes.container.name",
];
const POD: [&str; 2] = ["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"];
const NAMESPACE: [&str; 2] = [
    "io.kubernetes.cri.sandbox-namespace",
    "io.kubernetes.pod.namespace",
];

/// `living` is the first of its members that lives.
pub(super) fn of(store: &Store, record: &Record, living: Option<&Member>) -> Owner {
    let Some(member) = living.or(record.members.first()) else {
        return Owner::default();
    };
    let config = config(member);
    // Outside of pods, these annotations are anybody's.
    let config = config.filter(|config| pod_uid(config).is_ok_and(|uid| uid.is_some()));
    let said = |names: [&str; 2]| annotation(config.as_ref()?, names);
    let names = container_id::names(&member.id, Path::new(&member.bundle));
    let mut owner = Owner {
        container: said(CONTAINER)
            .or_else(|| names.into_iter().next())
            .unwrap_or_else(|| short_id(&member.id).to_owned()),
        pod: said(POD),
        namespace: said(NAMESPACE),
    };
    let claims = record.claims.iter();
    let bound = claims.filter_map(|uid| store.binding(uid, &record.boot_id).ok()?);
    for binding in bound {
        owner.pod = binding.pod.map(|pod| pod.name).or(owner.pod);
        owner.namespace = Some(binding.namespace);
    }
    owner
}

fn config(member: &Member) -> Option<Config> {
    let own = Some(PathBuf::from(&member.bundle)).filter(|bundle| bundle.is_absolute());
    // A record that the CNI plugin made has none.
    let all = own.into_iter().chain(bundles(Path::new("/"), &member.id));
    let texts = all.filter_map(|bundle| files::read(&bundle.join("config.json")).ok()?);
    texts.map(|text| Config::lenient(&text)).next()
}

fn annotation(config: &Config, names: [&str; 2]) -> Option<String> {
    let mut all = config.annotations();
    let (_, value) = all.find(|(key, _)| names.contains(&key.as_str()))?;
    Some(value.as_str()?.to_owned())
}
