//! The plan that `prepare` stores: decisions (which NICs, which environment, which device nodes)
//! and the identities they were made for. At create time [`crate::attach`] lowers it, with a fresh
//! snapshot, to [`rdma_model::step::Step`]s: the state that the host gets back is the state at the
//! move, not at `prepare`.

mod limits;
pub mod rails;
pub mod rdma_mode;
pub mod rdma_proxy;
pub mod rule_carry;
pub mod sysctl_carry;
pub mod uverbs_minors;

use std::collections::BTreeMap;

use crate::config::libraries::Libraries;
use crate::config::network_mode::NetworkMode;
use crate::config::sysfs_mode::SysfsMode;
use nccl_rules::version::Version;
use rail_agreement::Agreement;
use rdma_model::arp::ArpProfile;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::nic::identity;
use rdma_model::snapshot::{CharDevice, JobAddresses, Snapshot};
use rdma_model::step::NicState;
use rdma_model::values::GidTimeout;
use serde::{Deserialize, Serialize};

use crate::config::request::Request;
use crate::nccl_env::{self, Hcas, Namespace, NcclEnv, Options, libraries};
use crate::select::{Selection, Verdict};
use rails::Rails;
use rdma_model::upper_lower;

pub const SCHEMA: u32 = 1;

use rdma_model::nic::{EnvVar, Nic};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub schema: u32,
    pub name: String,
    pub boot_id: String,
    /// NICs in rail order: PCI address, then name.
    pub nics: Vec<Nic>,
    /// InfiniBand HCAs without a netdev to move (`--ib`).
    pub ib: Vec<HcaName>,
    /// Whether RDMA devices belong to one namespace each, so that the HCAs move as well.
    #[serde(default)]
    pub exclusive: bool,
    /// Device nodes for the container: the kept HCAs' uverbs and rdma_cm; never issm or umad.
    pub devices: Vec<CharDevice>,
    pub env: Vec<EnvVar>,
    /// The GID index among it that is ours: to be proven inside.
    #[serde(default)]
    pub gid_index: Option<u32>,
    /// Why there is none, where ports have GIDs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_gid_index: Option<String>,
    /// Variables that are left out because nothing is certain: `NAME: reason`.
    #[serde(default)]
    pub unset: Vec<String>,
    /// Written for every moved NIC; absent: nothing is.
    #[serde(default)]
    pub arp: Option<ArpProfile>,
    /// How rails that share a subnet are kept apart.
    #[serde(default)]
    pub rails: Rails,
    /// Whether a default route of the main table comes along, where the container has none
    /// (`--default-route`).
    #[serde(default)]
    pub default_route: bool,
    /// What all nodes of the job agreed on (`--rendezvous`): just these NICs.
    #[serde(default)]
    pub agreement: Option<Agreement>,
    /// Whose network its containers have. On the host's, nothing moves.
    #[serde(default, skip_serializing_if = "NetworkMode::is_own")]
    pub network_mode: NetworkMode,
    #[serde(default)]
    pub sysfs: SysfsMode,
    /// The stored view that it shows ([`crate::store::Store::view`]); absent: the hook
    /// makes one.
    #[serde(default)]
    pub view: Option<String>,
    /// How long a port that is ACTIVE inside may take to show its GIDs (`--gid-timeout`).
    #[serde(default)]
    pub gid_timeout: GidTimeout,
    /// The addresses whose links the create hook keeps for the job; a plan of an earlier version
    /// has none.
    #[serde(default, skip_serializing_if = "JobAddresses::is_empty")]
    pub job: JobAddresses,
    /// Whether an uplink or the bootstrap interface may be among them (`--allow-bootstrap-iface`).
    pub allow_bootstrap: bool,
    /// Whether addresses with a finite lifetime may be frozen inside.
    pub freeze_lifetimes: bool,
    /// The release of NCCL in its containers, where the host names one (`--nccl-version`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl_version: Option<Version>,
    /// Whose settings its containers get (`--libraries`).
    #[serde(default, skip_serializing_if = "Libraries::is_default")]
    pub libraries: Libraries,
    /// Whether a container is named in its /etc/hosts (`--hosts-entry`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hosts_entry: bool,
    /// The chosen ports of InfiniBand HCAs that have several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ib_ports: BTreeMap<HcaName, Vec<u32>>,
}

impl Plan {
    /// The plan for what was selected, with the device nodes that re-created soft-RoCE links will
    /// get.
    pub fn new(
        name: &str,
        request: &Request,
        snapshot: &Snapshot,
        selection: &Selection,
        options: &Options,
    ) -> Plan {
        let kept: Vec<&Verdict> = selection.kept().collect();
        let mut nics: Vec<Nic> = kept.iter().filter_map(|v| nic(v, snapshot)).collect();
        // Theirs is the node of what they sit on, by whatever number that has inside.
        let along: Vec<bool> = nics
            .iter()
            .map(|n| upper_lower::is_along(n, &nics))
            .collect();
        nics.iter_mut()
            .zip(along)
            .filter(|(n, along)| *along && n.borrowed)
            .for_each(|(n, _)| n.uverbs = None);
        let ib: Vec<HcaName> = kept
            .iter()
            .filter(|v| v.netdev.is_none())
            .filter_map(|v| v.hca.clone())
            .collect();
        let ib_nodes = predict(&mut nics, &ib, Some(snapshot));
        let mut devices: Vec<CharDevice> = Vec::new();
        for node in nics.iter().filter_map(|n| n.uverbs.clone()).chain(ib_nodes) {
            if !devices.contains(&node) {
                devices.push(node);
            }
        }
        if !devices.is_empty() {
            devices.extend(snapshot.rdma_cm.clone());
        }
        let states: Vec<NicState> = nics
            .iter()
            .filter_map(|n| NicState::of(snapshot, &n.identity.name))
            .collect();
        let (arp, mut rails) = rails::decide(
            request.select.arp_profile,
            request.host.rail_tables,
            &states,
        );
        rails
            .notes
            .extend(rails::default_notes(request.select.default_route, &states));
        let ib_ports = ib_ports(&kept, snapshot);
        let NcclEnv {
            mut env,
            gid_index,
            no_gid_index,
            unset,
        } = nccl_env::build_env(hcas(&nics, &ib, &ib_ports, None), snapshot, options);
        env.extend(selection.gid_range.as_deref().map(nccl_env::gid_range));
        Plan {
            schema: SCHEMA,
            name: name.to_owned(),
            boot_id: snapshot.boot_id.clone(),
            env,
            gid_index,
            no_gid_index,
            unset,
            nics,
            ib,
            exclusive: rdma_mode::is_exclusive(snapshot),
            devices,
            arp,
            rails,
            default_route: request.select.default_route,
            agreement: None,
            network_mode: NetworkMode::Own,
            sysfs: SysfsMode::default(),
            view: None,
            gid_timeout: request.select.gid_timeout,
            job: request.job(),
            allow_bootstrap: request.select.allow_bootstrap_iface,
            freeze_lifetimes: request.select.freeze_lifetimes,
            nccl_version: None,
            libraries: Libraries::default(),
            hosts_entry: request.select.hosts_entry,
            ib_ports,
        }
        .with_sysfs(request.select.sysfs, None)
        .with_network(request.select.network_mode, snapshot)
        .for_release(request.select.nccl_version)
        .for_libraries(&request.select.libraries)
    }

    /// With the settings of these libraries, and without a GID index that none of them reads.
    pub fn for_libraries(mut self, libraries: &Libraries) -> Plan {
        self.libraries = libraries.clone();
        if !libraries::read_gids(libraries) {
            self.leave_index("the plan is for libraries that read none");
        }
        self.fit_libraries(&BTreeMap::new())
    }

    fn leave_index(&mut self, why: &str) {
        let ours = self.gid_index.take();
        self.no_gid_index = ours.map(|_| why.to_owned()).or(self.no_gid_index.take());
    }

    fn fit_libraries(mut self, own: &BTreeMap<String, String>) -> Plan {
        let hcas = hcas(&self.nics, &self.ib, &self.ib_ports, self.nccl_version);
        let index = match (&self.no_gid_index, self.gid_index) {
            (Some(why), None) => Err(why.as_str()),
            (_, index) => Ok(index),
        };
        let unset = libraries::fit(&mut self.env, &self.libraries, own, hcas, index);
        self.unset
            .retain(|line| libraries::keeps(line, &self.libraries));
        self.unset.extend(unset);
        self
    }

    /// With a list of HCAs on which that release of NCCL does not crash, where one is named, now or
    /// before.
    pub fn for_release(mut self, named: Option<Version>) -> Plan {
        self.nccl_version = named.or(self.nccl_version);
        if let Some(release) = self.nccl_version {
            nccl_env::fit_unset(&mut self.unset, release);
            let hcas = hcas(&self.nics, &self.ib, &self.ib_ports, self.nccl_version);
            nccl_env::fit_release(&mut self.env, &BTreeMap::new(), hcas);
        }
        self
    }

    /// The plan as one container gets it, `own` being its environment: with the interface for
    /// NCCL's bootstrap, and without a GID index that it overrides, which then need not be proven.
    pub fn for_container(mut self, own: &BTreeMap<String, String>, namespace: Namespace) -> Plan {
        let hcas = hcas(&self.nics, &self.ib, &self.ib_ports, self.nccl_version);
        nccl_env::fit_container(&mut self.env, own, hcas, namespace);
        let index = own.get(nccl_env::GID_INDEX);
        let ours = self.gid_index.map(|ours| ours.to_string());
        if index.is_some() && index != ours.as_ref() {
            self.leave_index("the container has an NCCL_IB_GID_INDEX of its own");
        }
        self.fit_libraries(own)
    }

    /// With that /sys, and the stored view that shows it, if there is one.
    pub fn with_sysfs(mut self, sysfs: SysfsMode, view: Option<String>) -> Plan {
        if sysfs.is_proxy() {
            self.devices.retain(|node| node.name != rdma_proxy::RDMA_CM);
        }
        Plan {
            sysfs,
            view,
            ..self
        }
    }

    fn with_network(self, mode: NetworkMode, host: &Snapshot) -> Plan {
        match mode {
            NetworkMode::Host => self.on_host(Some(host)),
            NetworkMode::Own => self,
        }
    }

    /// For containers on the host's network: what only a move needs is left out, and soft-RoCE
    /// keeps its device nodes, as far as the host was observed.
    pub fn on_host(mut self, host: Option<&Snapshot>) -> Plan {
        if !self.moves() {
            return self;
        }
        for nic in self.nics.iter_mut().filter(|n| n.uverbs.is_some()) {
            let node = nodes_of(nic.hca.as_slice(), host).pop();
            nic.uverbs = node.or(nic.uverbs.take());
        }
        if let Some(host) = host {
            let mut made = NcclEnv {
                env: std::mem::take(&mut self.env),
                gid_index: self.gid_index,
                no_gid_index: self.no_gid_index.take(),
                unset: std::mem::take(&mut self.unset),
            };
            made.choose_hosts_index(&self.nics, host);
            (self.env, self.unset) = (made.env, made.unset);
            (self.gid_index, self.no_gid_index) = (made.gid_index, made.no_gid_index);
            let own = self.nics.iter().filter_map(|n| n.uverbs.clone());
            let ib = nodes_of(&self.ib, Some(host));
            let rest = self.devices.iter().filter(|d| !is_verbs(d)).cloned();
            let mut devices: Vec<CharDevice> = own.chain(ib).chain(rest).collect();
            devices.sort_by_key(|d| (!is_verbs(d), d.minor));
            devices.dedup();
            self.devices = devices;
        }
        Plan {
            network_mode: NetworkMode::Host,
            exclusive: false,
            arp: None,
            rails: Rails::default(),
            default_route: false,
            view: None,
            ..self
        }
        .fit_libraries(&BTreeMap::new())
    }

    /// Whether its NICs move into the containers.
    pub fn moves(&self) -> bool {
        self.network_mode.is_own()
    }

    pub fn agreed(self, agreement: Option<Agreement>) -> Plan {
        Plan { agreement, ..self }
    }

    /// The NICs that other nodes have to have as well: not what comes along with one.
    pub fn has(&self, name: &IfName) -> bool {
        self.nics.iter().any(|n| n.identity.name == *name)
    }

    pub fn has_rail(&self, name: &IfName) -> bool {
        self.rails().any(|n| n.identity.name == *name)
    }

    pub fn rails(&self) -> impl Iterator<Item = &Nic> {
        self.nics
            .iter()
            .filter(|n| !upper_lower::is_along(n, &self.nics))
    }

    /// Leaves out NICs and InfiniBand HCAs that a container's annotations, or the host's policy,
    /// forbid; and with them their device nodes, their part of the environment, and the stored
    /// view, which shows them. Fewer links are re-created then, so nodes are predicted again; where
    /// the host was not observed, those of soft-RoCE are unknown. A list of names that a container
    /// wants says nothing of what sits on these; what is excluded or forbidden takes along all that
    /// it is a part of.
    pub fn narrowed(
        mut self,
        unwanted: impl Fn(&IfName) -> bool,
        forbidden: impl Fn(&IfName) -> bool,
        excluded: impl Fn(&HcaName) -> bool,
        host: Option<&Snapshot>,
    ) -> Plan {
        let ib = match self.moves() {
            true => predict(&mut self.nics.clone(), &self.ib, host),
            false => nodes_of(&self.ib, host),
        };
        let before: Vec<CharDevice> = self
            .nics
            .iter()
            .filter_map(|n| n.uverbs.clone())
            .chain(ib)
            .collect();
        let count = self.nics.len() + self.ib.len();
        let (mut roots, mut out) = (Vec::new(), Vec::new());
        for nic in &self.nics {
            let root = &upper_lower::moved_root(nic, &self.nics).identity.name;
            if forbidden(&nic.identity.name) || unwanted(root) {
                out.push(root.clone());
            }
            roots.push(root.clone());
        }
        let mut roots = roots.iter();
        self.nics
            .retain(|_| roots.next().is_some_and(|root| !out.contains(root)));
        self.ib.retain(|h| !excluded(h));
        self.ib_ports.retain(|h, _| !excluded(h));
        if self.nics.len() + self.ib.len() == count {
            return self;
        }
        let ib = match self.moves() {
            true => predict(&mut self.nics, &self.ib, host),
            false => nodes_of(&self.ib, host),
        };
        let rest = self
            .devices
            .iter()
            .filter(|d| !before.contains(d))
            .cloned()
            .collect::<Vec<_>>();
        self.devices = self
            .nics
            .iter()
            .filter_map(|n| n.uverbs.clone())
            .chain(ib)
            .chain(rest)
            .collect();
        self.devices.sort_by_key(|d| (!is_verbs(d), d.minor));
        self.devices.dedup();
        if !self.devices.iter().any(is_verbs) {
            self.devices.clear();
        }
        let hcas = hcas(&self.nics, &self.ib, &self.ib_ports, self.nccl_version);
        nccl_env::renew(&mut self.env, hcas);
        nccl_env::renew_unset(&mut self.unset, &self.nics);
        if self.nics.is_empty() && self.gid_index.take().is_some() {
            self.env.retain(|v| v.name != "NCCL_IB_GID_INDEX");
        }
        self.view = None;
        self.fit_libraries(&BTreeMap::new())
    }
}

fn hcas<'a>(
    nics: &'a [Nic],
    ib: &'a [HcaName],
    ib_ports: &'a BTreeMap<HcaName, Vec<u32>>,
    named: Option<Version>,
) -> Hcas<'a> {
    Hcas {
        nics,
        ib,
        ib_ports,
        named,
    }
}

fn ib_ports(kept: &[&Verdict], snapshot: &Snapshot) -> BTreeMap<HcaName, Vec<u32>> {
    let mut chosen: BTreeMap<HcaName, Vec<u32>> = BTreeMap::new();
    for verdict in kept.iter().filter(|v| v.netdev.is_none()) {
        let (Some(name), Some(port)) = (&verdict.hca, verdict.port) else {
            continue;
        };
        if snapshot.hca(name).is_some_and(|hca| hca.ports.len() > 1) {
            chosen.entry(name.clone()).or_default().push(port);
        }
    }
    chosen
}

fn is_verbs(node: &CharDevice) -> bool {
    node.name.starts_with("uverbs")
}

/// The device nodes of HCAs where they are.
fn nodes_of(hcas: &[HcaName], host: Option<&Snapshot>) -> Vec<CharDevice> {
    hcas.iter()
        .filter_map(|name| host?.hca(name)?.uverbs.clone())
        .collect()
}

/// Gives NICs the device nodes that their HCAs will have inside, and returns those of the HCAs
/// without a NIC.
fn predict(nics: &mut [Nic], ib: &[HcaName], host: Option<&Snapshot>) -> Vec<CharDevice> {
    let minors = host
        .map(|host| rdma_mode::minors(nics, ib, host))
        .unwrap_or_default();
    let is_exclusive = host.is_some_and(rdma_mode::is_exclusive);
    for nic in nics {
        let has_its_own = !nic.borrowed || nic.uverbs.is_some();
        if has_its_own && (nic.rxe || is_exclusive) {
            let hca = nic.hca.as_ref();
            nic.uverbs = hca.and_then(|h| minors.get(h.as_str()).cloned());
        }
    }
    ib.iter()
        .filter_map(|name| rdma_mode::node(&minors, host?, name).cloned())
        .collect()
}

fn nic(verdict: &Verdict, snapshot: &Snapshot) -> Option<Nic> {
    let state = NicState::of(snapshot, verdict.netdev.as_ref()?)?;
    let hca = verdict.hca.as_ref().and_then(|h| snapshot.hca(h));
    // Its driver may name a member of a bond: the HCA is the bond's.
    let hca = hca.filter(|_| state.netdev.master.is_none());
    let port = hca.and_then(|h| h.ports.iter().find(|p| Some(p.number) == verdict.port));
    let borrowed = port.is_some_and(|p| p.netdev.as_ref() != Some(&state.netdev.name));
    let below = state
        .netdev
        .made
        .as_ref()
        .and(upper_lower::lower(snapshot, &state.netdev));
    Some(Nic {
        identity: identity(&state, hca),
        hca: hca.map(|h| h.name.clone()),
        port: port.map(|p| p.number),
        ports: hca.map_or(0, |h| h.ports.len()),
        rxe: hca.is_some_and(|h| h.is_rxe()) && !borrowed,
        over: below.map(|d| d.name.clone()),
        vfs: match state.netdev.pci {
            Some(pf) => snapshot
                .pci
                .iter()
                .filter(|f| f.physfn == Some(pf))
                .map(|f| f.address)
                .collect(),
            None => Vec::new(),
        },
        members: match upper_lower::is_bond(&state.netdev) {
            true => upper_lower::members(snapshot, &state.netdev)
                .map(|m| m.name.clone())
                .collect(),
            false => Vec::new(),
        },
        borrowed,
        channels: state.netdev.channels,
        gid: verdict.gid.clone().filter(|_| hca.is_some()),
        numa: verdict.numa,
        uverbs: hca.and_then(|h| h.uverbs.clone()),
        addresses: state.netdev.addresses,
    })
}
