//! What NCCL does with its settings in a network namespace. `tests/interop/nccl_judge.rs` compares
//! this model with its releases.

use std::collections::BTreeMap;

use rdma_model::snapshot::Snapshot;

use super::comm_id::{self, Remote, Resolve};
pub use super::explanation::{
    Bootstrap, Endpoint, Explanation, Failure, Judged, NcclError, Network, PortGid, Ring, Setting,
    Step, Trap, Warning,
};
pub use super::hca::{UNKNOWN, may_be_direct, may_crash, uses_data_direct};
pub use super::known::is_for_nccl;
pub use super::networks::{plugin_symbols, plugins};
use super::settings::Settings;
use super::socket::{self, Candidate, Family, Found};
pub use super::variables::{VARIABLES, Variable};
use super::version::Version;
use super::{
    doubt, force_merge, hca, interfaces, known, networks, pitfalls, port_gids, rails, ring,
    unjudged, values,
};

pub fn explain(
    settings: &Settings,
    snapshot: &Snapshot,
    version: Version,
    resolve: Resolve,
) -> Explanation {
    let set: Vec<Setting> = VARIABLES
        .iter()
        .filter_map(|v| setting(settings, v.name))
        .collect();
    if !version.is_judged() {
        let mut explanation = unjudged::explanation(set, snapshot, version);
        explanation.warnings = known::warnings(settings, &explanation);
        return explanation;
    }
    let candidates = socket::candidates(snapshot);
    let ifindex = |name: &str| comm_id::ifindex(snapshot, name);
    let peer = settings
        .get("NCCL_COMM_ID")
        .map(|value| Remote::parse(value, version, ifindex, resolve));
    let family = Family::read(settings.get("NCCL_SOCKET_FAMILY"));
    let usable = peer.as_ref().and_then(|r| r.as_ref().ok());
    let mut found = socket::find(
        settings.get("NCCL_SOCKET_IFNAME"),
        family,
        usable,
        version,
        &candidates,
    );
    let unread = matches!(peer, Some(Err(_)))
        && settings
            .get("NCCL_COMM_ID")
            .is_some_and(|value| value.len() > 1);
    if unread && version.ends_at_bad_id() && !matches!(found.step, Step::Asked | Step::Ib) {
        found = Found {
            search: None,
            step: Step::CommId,
            endpoints: Vec::new(),
        };
    }
    let is_unknown = snapshot.lacks_network();
    let bootstrap = match &peer {
        _ if is_unknown => Bootstrap::Unknown,
        Some(peer) => by_id(peer, &candidates),
        None => by_name(settings, &found, version),
    };
    let hcas = hca::judge(
        settings,
        snapshot,
        version,
        is_unknown || !found.endpoints.is_empty(),
    );
    let mut explanation = Explanation {
        version,
        assumed: false,
        settings: set,
        interfaces: interfaces::judge(
            snapshot,
            &candidates,
            usable,
            peer.is_some(),
            &found,
            &bootstrap,
        ),
        bootstrap,
        ring: None,
        sockets: found.endpoints.clone(),
        hcas: hcas.taken,
        merged: hcas.merged,
        ports: hcas.judged,
        network: Network::asked(settings),
        plugin: networks::named_first(settings),
        hint: None,
        gids: Vec::new(),
        warnings: Vec::new(),
    };
    explanation.gids = port_gids::of(settings, snapshot, &explanation);
    explanation.warnings =
        pitfalls::warnings(settings, snapshot, &candidates, &found, &explanation);
    let gids = port_gids::warnings(settings, snapshot, &explanation);
    explanation.warnings.extend(gids);
    port_gids::switch_off(&mut explanation);
    explanation.ring = ring::judge(settings, snapshot, &explanation);
    let ring = ring::warnings(settings, &explanation);
    explanation.warnings.extend(ring);
    let networks = networks::warnings(settings, &explanation);
    explanation.warnings.extend(networks);
    let names = known::warnings(settings, &explanation);
    explanation.warnings.extend(names);
    let values = values::warnings(settings, &explanation);
    explanation.warnings.extend(values);
    force_merge::judge(settings, snapshot, &mut explanation);
    explanation.warnings.extend(hcas.crash);
    explanation.hint = rails::hint(settings, snapshot, &rails::taken(snapshot, &explanation));
    explanation
}

/// Explains by the release that the host's administrator has `named`, else by the newest. What an
/// image says of its release (NCCL_VERSION) is a word of its author, and another library may run
/// all the same: where the two differ, nothing is [`Warning::fatal`].
pub fn explain_named(
    settings: &Settings,
    snapshot: &Snapshot,
    named: Option<Version>,
    resolve: Resolve,
) -> Explanation {
    let mut explanation = explain(settings, snapshot, named.unwrap_or_default(), resolve);
    explanation.assumed = named.is_none();
    let image = settings
        .get("NCCL_VERSION")
        .and_then(|text| text.parse().ok());
    if let Some(image) = image.filter(|image| named.is_none() && *image != explanation.version) {
        let by_image = explain(settings, snapshot, image, resolve).warnings;
        doubt::weigh(&mut explanation.warnings, by_image, image);
    }
    explanation
}

/// The pitfalls of an environment in a namespace, by [`explain_named`]: asked before a container
/// gets its NICs. Those that are [`Warning::fatal`] are worth a refusal. A NCCL_COMM_ID that names
/// a host is left out: only the container has its resolver.
pub fn check<N, V>(
    env: impl IntoIterator<Item = (N, V)>,
    snapshot: &Snapshot,
    named: Option<Version>,
) -> Vec<Warning>
where
    N: Into<String>,
    V: Into<String>,
{
    let mut env: BTreeMap<String, String> = env
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    env.retain(|name, value| name != "NCCL_COMM_ID" || !comm_id::names_host(value));
    explain_named(
        &Settings::of(env, "the environment"),
        snapshot,
        named,
        &|_| None,
    )
    .warnings
}

fn setting(settings: &Settings, name: &'static str) -> Option<Setting> {
    let (value, place) = (settings.get(name)?, settings.place(name)?);
    Some(Setting {
        name,
        value: value.to_owned(),
        place: place.to_owned(),
    })
}

/// With NCCL_COMM_ID nothing else counts (src/bootstrap.cc, `bootstrapNetInit`).
fn by_id(remote: &Result<Remote, Failure>, candidates: &[Candidate]) -> Bootstrap {
    let none = |remote: &Remote| Failure {
        error: Some(NcclError::SystemError),
        message: Some("No usable listening interface found"),
        why: format!(
            "no interface is in the subnet of {}, which NCCL_COMM_ID names",
            remote.address
        ),
    };
    match remote {
        Err(failure) => Bootstrap::Fails(failure.clone()),
        Ok(remote) => match socket::same_subnet(remote, candidates) {
            Some(endpoint) => Bootstrap::Uses(endpoint, remote.step()),
            None => Bootstrap::Fails(none(remote)),
        },
    }
}

fn by_name(settings: &Settings, found: &Found, version: Version) -> Bootstrap {
    if let Some(endpoint) = found.endpoints.first() {
        return Bootstrap::Uses(endpoint.clone(), found.step);
    }
    let error = if version.calls_it_usage() {
        NcclError::InvalidUsage
    } else {
        NcclError::InternalError
    };
    let why = match settings
        .get("NCCL_SOCKET_IFNAME")
        .filter(|_| found.step == Step::Asked)
    {
        Some(list) => format!(
            "NCCL_SOCKET_IFNAME={} fits no interface that can be used",
            pitfalls::short(list)
        ),
        None => "no interface has an address that can be used".to_owned(),
    };
    Bootstrap::Fails(Failure {
        error: Some(error),
        message: Some("no socket interface found"),
        why,
    })
}

#[cfg(test)]
mod tests;
