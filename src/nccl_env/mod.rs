//! The environment that makes NCCL use exactly the NICs that the container got. Names are always
//! given in the exact form, whose value begins with `=`: NCCL compares prefixes otherwise, and
//! `mlx5_1` would also take `mlx5_10` to `mlx5_19`. Nothing is guessed: a variable without a
//! certain value is left out.

pub mod format;
mod hcas;
pub mod libraries;
mod ports;
mod socket;
pub mod topo_file;

use rdma_model::nic::{EnvVar, Nic};
use std::collections::BTreeMap;

use nccl_rules::explain::may_crash;
use nccl_rules::rails::{CROSS_NIC, hint};
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use rdma_model::snapshot::Snapshot;

pub use hcas::Hcas;
use hcas::hca_list;
use socket::choose_socket_interface;
pub use socket::{Namespace, bootstrap_address};

use crate::config::network_mode::NetworkMode;
use crate::config::options::HOST_ENV;

/// How many of [`HOST_ENV`] are settings of the host's fabric, passed on as they are.
const FABRIC: usize = 12;

const OF_HOST: &str = "set in the host's environment";

pub(crate) const GID_INDEX: &str = "NCCL_IB_GID_INDEX";

/// Of an index that is set.
const OF_GID: &str = "the place of the planned GID, on every port";

/// Of an index that is not set.
const FINDS: &str = "NCCL 2.21.5 and later find it themselves";

const ALL_IPV6: &str = "the rails have IPv6 addresses";

/// The debug set and what each one is when the host's environment does not say.
const DEBUG: [(&str, &str, &str); 4] = [
    ("NCCL_DEBUG", "INFO", "--debug-all"),
    (
        "NCCL_DEBUG_SUBSYS",
        "INIT,BOOTSTRAP,NET,GRAPH,ENV",
        "--debug-all: what concerns NICs and topology",
    ),
    (
        "NCCL_DEBUG_FILE",
        "/tmp/nccl.%h.%p.log",
        "--debug-all: one file per host and process, in the container",
    ),
    (
        "NCCL_TOPO_DUMP_FILE",
        "/tmp/nccl_topo.xml",
        "--debug-all: written by rank 0, in the container",
    ),
];

/// Syscalls that show how verbs and sysfs are used; every one exists on x86-64 and arm64. All of
/// them would bury the rest.
const STRACE_SYSCALLS: &str = "openat,readlinkat,ioctl,mmap,socket,bind,connect,sendmsg,recvmsg";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub debug_all: bool,
    /// Topology file as the container sees it: `--nccl-topo`, or a default that exists. A default
    /// belongs here only where the host's environment names none.
    pub topo_file: Option<String>,
    pub topo_wanted: bool,
    /// The host's own environment, filtered to [`HOST_ENV`].
    pub host_env: BTreeMap<String, String>,
    /// Whether the NICs are those that the peers have, too.
    pub agreed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclEnv {
    pub env: Vec<EnvVar>,
    /// The GID index among it that is ours: right on every port now, and to be proven inside.
    pub gid_index: Option<u32>,
    /// Why none is, where ports have GIDs.
    pub no_gid_index: Option<String>,
    /// Variables that are left out because nothing is certain: `NAME: reason`.
    pub unset: Vec<String>,
}

impl NcclEnv {
    /// Sets the GID index that was found right, or says why none was, in place of what was set
    /// before.
    fn choose_index(&mut self, found: Result<Option<u32>, String>) {
        self.env.retain(|v| v.name != GID_INDEX);
        self.unset.retain(|line| !line.starts_with(GID_INDEX));
        self.no_gid_index = found.as_ref().err().cloned();
        self.gid_index = found.unwrap_or_default();
        if let Some(why) = &self.no_gid_index {
            self.unset.insert(0, format!("{GID_INDEX}: {why}; {FINDS}"));
        }
        if let Some(index) = self.gid_index {
            let at = self
                .env
                .iter()
                .take_while(|v| v.name == "NCCL_IB_HCA")
                .count();
            self.env
                .insert(at, var(GID_INDEX, &index.to_string(), OF_GID));
        }
    }

    /// For containers on the host's network, whose GID tables are the host's and change with it
    /// alone. What the host's environment sets stays.
    pub fn choose_hosts_index(&mut self, nics: &[Nic], host: &Snapshot) {
        let is_hosts = |v: &EnvVar| v.name == GID_INDEX && v.why == OF_HOST;
        if !self.env.iter().any(is_hosts) {
            self.choose_index(ports::gid_index(nics, host, NetworkMode::Host));
        }
    }
}

impl Options {
    fn host(&self, name: &str) -> Option<&str> {
        self.host_env
            .get(name)
            .map(String::as_str)
            .filter(|v| !v.is_empty())
    }
}

/// The container's settings for these HCAs of that host.
pub fn build_env(hcas: Hcas, seen: &Snapshot, options: &Options) -> NcclEnv {
    let Hcas { nics, ib, .. } = hcas;
    let mut made = NcclEnv::default();
    made.env.extend(hca_list(nics, hcas));
    if options.host(GID_INDEX).is_none() {
        made.choose_index(ports::gid_index(nics, seen, NetworkMode::Own));
    } else if nics.iter().any(|nic| nic.gid.is_some()) {
        let why = format!("{GID_INDEX} is {OF_HOST}, which is NCCL's alone");
        made.no_gid_index = Some(why);
    }
    let env = &mut made.env;
    let mut ours = |name: &str, value: &str, why: &str| {
        if options.host(name).is_none() {
            env.push(var(name, value, why));
        }
    };
    if ports::are_ipv6(nics) {
        ours("NCCL_IB_ADDR_FAMILY", "AF_INET6", ALL_IPV6);
    }
    if let Some(why) = ports::misplaced(nics, ib, seen) {
        ours("NCCL_IB_MERGE_VFS", "0", &why);
    }
    if options.agreed {
        ours(
            "NCCL_IGNORE_NET_MISMATCH",
            "0",
            "every node has these NICs: another number is an error, not a slower job",
        );
    }
    made.unset.extend(cross_nic(nics, seen, options));
    for name in &HOST_ENV[..FABRIC] {
        env.extend(options.host(name).map(|v| var(name, v, OF_HOST)));
    }
    if options.debug_all {
        env.extend(
            DEBUG
                .iter()
                .map(|(name, value, why)| match options.host(name) {
                    Some(own) => var(name, own, OF_HOST),
                    None => var(name, value, why),
                }),
        );
    }
    env.extend(topology(options));
    made
}

/// What makes NCCL take the planned GIDs, where its search alone does not.
pub fn gid_range(range: &str) -> EnvVar {
    let why = "the network of the planned GIDs: NCCL would take others that these ports have";
    var("NCCL_IB_ADDR_RANGE", range, why)
}

/// What to know of rails that do not reach each other: whether to set it is the job's to say.
fn cross_nic(nics: &[Nic], seen: &Snapshot, options: &Options) -> Option<String> {
    let set = options.host_env.iter();
    let settings = Settings::of(set.map(|(n, value)| (n.clone(), value.clone())), OF_HOST);
    let rails = nics.iter().filter(|n| n.hca.is_some());
    let rails: Vec<_> = rails.filter_map(|n| seen.netdev(n.name())).collect();
    let hint = hint(&settings, seen, &rails)?;
    Some(format!("{CROSS_NIC}: {hint}"))
}

/// Names fewer HCAs in an environment that was made for more; and they are not those any more that
/// the peers have.
pub fn renew(env: &mut Vec<EnvVar>, hcas: Hcas) {
    let at = env.iter().position(|v| v.name == "NCCL_IB_HCA");
    env.retain(|v| {
        v.name != "NCCL_IB_HCA" && (v.name != "NCCL_IGNORE_NET_MISMATCH" || v.why == OF_HOST)
    });
    if ports::are_ipv6(hcas.nics) && !env.iter().any(|v| v.name == "NCCL_IB_ADDR_FAMILY") {
        env.push(var("NCCL_IB_ADDR_FAMILY", "AF_INET6", ALL_IPV6));
    }
    if let (Some(at), Some(list)) = (at, hca_list(hcas.nics, hcas)) {
        env.insert(at, list);
    }
}

/// Keeps NCCL to equal rails, as one knows by now that others do not reach each other. `false`: it
/// is set so already.
pub fn keep_to_rails(env: &mut Vec<EnvVar>, unset: &mut Vec<String>, why: &str) -> bool {
    if env.iter().any(|v| v.name == CROSS_NIC && v.value == "0") {
        return false;
    }
    env.retain(|v| v.name != CROSS_NIC);
    env.push(var(CROSS_NIC, "0", why));
    unset.retain(|line| !line.starts_with(CROSS_NIC));
    true
}

/// Without a word on several rails where one is left.
pub fn renew_unset(unset: &mut Vec<String>, nics: &[Nic]) {
    let rails = nics.iter().filter(|n| n.hca.is_some());
    if rails.count() < 2 {
        unset.retain(|line| !line.starts_with(CROSS_NIC));
    }
}

/// runsc's debug settings as annotations. These flags are open to annotations without
/// `--allow-flag-override`; `--debug-log` is not and has to be a flag of the runtime, so the place
/// of the logs is the administrator's.
pub fn runsc_annotations(options: &Options) -> Vec<(String, String)> {
    if !options.debug_all {
        return Vec::new();
    }
    let switch = |name| match options.host(name) {
        Some(v)
            if matches!(
                v.to_ascii_lowercase().as_str(),
                "0" | "false" | "no" | "off"
            ) =>
        {
            "false"
        }
        _ => "true",
    };
    let mut flags = vec![("debug", switch("RUNSC_DEBUG").to_owned())];
    flags.extend(
        options
            .host("RUNSC_DEBUG_COMMAND")
            .map(|v| ("debug-command", v.to_owned())),
    );
    flags.push(("strace", switch("RUNSC_STRACE").to_owned()));
    if switch("RUNSC_STRACE") == "true" {
        let syscalls = options
            .host("RUNSC_STRACE_SYSCALLS")
            .unwrap_or(STRACE_SYSCALLS);
        flags.push(("strace-syscalls", syscalls.to_owned()));
        flags.extend(
            options
                .host("RUNSC_STRACE_LOG_SIZE")
                .map(|v| ("strace-log-size", v.to_owned())),
        );
    }
    flags
        .into_iter()
        .map(|(name, value)| (format!("dev.gvisor.flag.{name}"), value))
        .collect()
}

fn var(name: &str, value: &str, why: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: value.to_owned(),
        why: why.to_owned(),
    }
}

/// A plan's settings as a container gets them, `own` being its environment.
pub fn fit_container(
    env: &mut Vec<EnvVar>,
    own: &BTreeMap<String, String>,
    hcas: Hcas,
    namespace: Namespace,
) {
    fit_release(env, own, hcas);
    match namespace {
        Namespace::Unknown => {}
        Namespace::New => choose_socket_interface(env, own, hcas.nics, None),
        Namespace::Seen(inside) => choose_socket_interface(env, own, hcas.nics, Some(inside)),
    }
}

/// These settings without a word for Gloo where the container has chosen an interface for NCCL:
/// that is for both.
pub fn yielding(env: &[EnvVar], own: &BTreeMap<String, String>) -> Vec<EnvVar> {
    let mut kept = env.to_vec();
    if own.contains_key("NCCL_SOCKET_IFNAME") {
        kept.retain(|v| v.name != "GLOO_SOCKET_IFNAME" || own.get(&v.name) == Some(&v.value));
    }
    kept
}

/// What of these settings its environment lacks.
pub fn lacking(env: &[EnvVar], own: &BTreeMap<String, String>) -> Vec<EnvVar> {
    let mut env = yielding(env, own);
    env.retain(|v| !own.contains_key(&v.name));
    env
}

/// What of these settings it has, or is to be given: all but those that it has otherwise.
pub fn given(env: &[EnvVar], own: &BTreeMap<String, String>) -> Vec<EnvVar> {
    let mut env = yielding(env, own);
    env.retain(|v| own.get(&v.name).is_none_or(|own| *own == v.value));
    env
}

/// Leaves soft-RoCE, which has no PCI path, out of our list where NCCL crashes on it: the release
/// that the host's administrator has `named`, else the newest. An image that names another one gets
/// a warning (`explain_named` of nccl-rules), and all HCAs.
pub fn fit_release(env: &mut [EnvVar], own: &BTreeMap<String, String>, hcas: Hcas) {
    let Hcas {
        nics, ib, named, ..
    } = hcas;
    let release = named.unwrap_or_default();
    let pairs = env.iter().map(|v| (&v.name, &v.value)).chain(own);
    let settings = Settings::of(pairs.map(|(name, value)| (name.clone(), value.clone())), "");
    let (soft, hard): (Vec<&Nic>, Vec<&Nic>) =
        nics.iter().filter(|n| n.hca.is_some()).partition(|n| n.rxe);
    let with = hard.len() + ib.len();
    let Some(list) = env.iter_mut().find(|v| v.name == "NCCL_IB_HCA") else {
        return;
    };
    if !may_crash(&settings, release, with, soft.len()) {
        // Settings of the container may allow what those of the plan do not.
        *list = hca_list(nics, hcas).unwrap_or_else(|| list.clone());
        return;
    }
    let kept = if with > 0 { hard } else { soft[..1].to_vec() };
    let left: Vec<&str> = soft[if with > 0 { 0 } else { 1 }..]
        .iter()
        .filter_map(|n| Some(n.hca.as_ref()?.as_str()))
        .collect();
    if let Some(fits) = hca_list(kept, hcas) {
        let release = if named.is_some() {
            release.label()
        } else {
            format!("{release} (assumed)")
        };
        let why = format!(
            "{}; not {}: NCCL {release} crashes on HCAs without a PCI path",
            fits.why,
            left.join(", ")
        );
        *list = EnvVar { why, ..fits };
    }
}

/// What an index that is not set means to an older release: 0, which is the link-local GID of RoCE
/// v1 (NCCL_IB_GID_INDEX in src/transport/net_ib.cc of 2.20.5).
pub fn fit_unset(unset: &mut [String], release: Version) {
    if release.finds_gid() {
        return;
    }
    let release = release.label();
    let means = format!("to NCCL {release} that is GID 0, link-local and of RoCE v1");
    for text in unset {
        *text = text.replace(FINDS, &means);
    }
}

/// NCCL_TOPO_FILE: the file asked for, else the one that the host's environment names.
fn topology(options: &Options) -> Option<EnvVar> {
    let asked = options
        .topo_file
        .as_deref()
        .filter(|f| options.topo_wanted && !f.is_empty());
    match (asked, options.host("NCCL_TOPO_FILE")) {
        (Some(file), _) => Some(var("NCCL_TOPO_FILE", file, "topology file of this host")),
        (None, Some(own)) => Some(var("NCCL_TOPO_FILE", own, OF_HOST)),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests;
