//! The plan that `prepare` stores: decisions (which NICs, which environment, which device nodes)
//! and the identities they were made for. At create time [`crate::attach`] lowers it, with a fresh
//! snapshot, to [`rdma_model::step::Step`]s: the state that the host gets back is the state at the
//! move, not at `prepare`.

mod fitted;
mod limits;
mod narrowed;
mod nic;
pub mod rails;
pub mod rdma_mode;
pub mod rdma_proxy;
pub mod rule_carry;
pub mod sysctl_carry;
pub mod uverbs_minors;

use std::collections::BTreeMap;

use crate::config::libraries::Libraries;
use crate::config::network_mode::NetworkMode;
use crate::config::recipe::Recipe;
use crate::config::sysfs_mode::SysfsMode;
use nccl_rules::rails::CROSS_NIC;
use nccl_rules::version::Version;
use rail_agreement::Agreement;
use rdma_model::arp::ArpProfile;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{CharDevice, JobAddresses, Snapshot};
use rdma_model::step::NicState;
use rdma_model::values::GidTimeout;
use serde::{Deserialize, Serialize};

use crate::config::request::Request;
use crate::nccl_env::{self, Hcas, NcclEnv, Options};
use crate::select::{Selection, Verdict};
use rails::Separation;
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
    #[serde(default, rename = "rails")]
    pub separation: Separation,
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
    /// How it was made; a plan of an earlier version has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<Recipe>,
}

impl Plan {
    /// What makes it again, as words of a sentence.
    pub fn again(&self) -> String {
        let recipe = self.recipe.clone().unwrap_or_default();
        let command = recipe.command(&self.name, None);
        match (&self.agreement, &self.recipe) {
            (Some(_), _) => format!("`{command}` again, with its --rendezvous and on all nodes"),
            (None, Some(_)) => format!("`{command}` again"),
            (None, None) => format!("`{command}` again, with the flags that it was made with"),
        }
    }

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
        let mut nics: Vec<Nic> = kept.iter().filter_map(|v| nic::nic(v, snapshot)).collect();
        // A NIC that comes along with another has no node of its own: it uses that of the one
        // below, whatever number that gets inside.
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
        let ib_nodes = narrowed::set_nodes_inside(&mut nics, &ib, Some(snapshot));
        let mut devices: Vec<CharDevice> = Vec::new();
        for node in nics.iter().filter_map(|n| n.uverbs.clone()).chain(ib_nodes) {
            if !devices.contains(&node) {
                devices.push(node);
            }
        }
        if !devices.is_empty() {
            devices.extend(snapshot.rdma_cm.clone());
        }
        let mut states: Vec<NicState> = nics
            .iter()
            .filter_map(|n| NicState::of(snapshot, n.name()))
            .collect();
        rule_carry::carry(&mut states, snapshot, None);
        let (arp, mut separation) = rails::decide(
            request.select.arp_profile,
            request.host.rail_tables,
            &states,
        );
        separation
            .notes
            .extend(rails::default_notes(request.select.default_route, &states));
        let ib_ports = nic::ib_ports(&kept, snapshot);
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
            separation,
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
            recipe: request.recipe.clone(),
        }
        .with_sysfs(request.select.sysfs, None)
        .with_network(request.select.network_mode, snapshot)
        .for_release(request.select.nccl_version)
        .for_libraries(&request.select.libraries)
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

    /// Whether its NICs move into the containers.
    pub fn moves(&self) -> bool {
        self.network_mode.is_own()
    }

    /// With NCCL_CROSS_NIC=0 for its containers, and for who makes it again; `None` if it has that.
    pub fn kept_to_rails(mut self, why: &str) -> Option<Plan> {
        let recipe = self.recipe.map(|recipe| recipe.with(CROSS_NIC, "0"));
        let changes = nccl_env::keep_to_rails(&mut self.env, &mut self.unset, why);
        changes.then_some(Plan { recipe, ..self })
    }

    pub fn agreed(self, agreement: Option<Agreement>) -> Plan {
        Plan { agreement, ..self }
    }

    /// Whether it is one of the NICs, also one that comes along with another.
    pub fn has(&self, name: &IfName) -> bool {
        self.nics.iter().any(|n| n.name() == name)
    }

    pub fn has_rail(&self, name: &IfName) -> bool {
        self.rails().any(|n| n.name() == name)
    }

    /// The NICs that other nodes have to have as well: not what comes along with one.
    pub fn rails(&self) -> impl Iterator<Item = &Nic> {
        self.nics
            .iter()
            .filter(|n| !upper_lower::is_along(n, &self.nics))
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
