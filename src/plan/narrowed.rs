//! A plan with fewer NICs, or for containers on the host's network: its device nodes follow.

use std::collections::BTreeMap;

use rdma_model::ids::{HcaName, IfName};
use rdma_model::nic::Nic;
use rdma_model::snapshot::{CharDevice, Snapshot};
use rdma_model::upper_lower;

use crate::config::network_mode::NetworkMode;
use crate::nccl_env::{self, NcclEnv};
use crate::plan::rails::Separation;
use crate::plan::{Plan, hcas, rdma_mode};

impl Plan {
    pub(super) fn with_network(self, mode: NetworkMode, host: &Snapshot) -> Plan {
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
            let rest = self
                .devices
                .iter()
                .filter(|d| !is_verbs(d))
                .cloned()
                .collect();
            self.set_nodes(nodes_of(&self.ib, Some(host)), rest);
        }
        Plan {
            network_mode: NetworkMode::Host,
            exclusive: false,
            arp: None,
            separation: Separation::default(),
            default_route: false,
            view: None,
            ..self
        }
        .fit_libraries(&BTreeMap::new())
    }

    /// Leaves out NICs and InfiniBand HCAs that a container's annotations, or the host's policy,
    /// forbid; and with them their device nodes, their part of the environment, and the stored
    /// view, which shows them. Fewer links are re-created then, so nodes are predicted again; where
    /// the host was not observed, those of soft-RoCE are unknown.
    ///
    /// `unwanted` judges rails alone: a container that names a bond says nothing of its members,
    /// which come along. `forbidden` judges those, too: with one of them all of its rail goes.
    /// `excluded` judges HCAs without a NIC.
    pub fn narrowed(
        mut self,
        unwanted: impl Fn(&IfName) -> bool,
        forbidden: impl Fn(&IfName) -> bool,
        excluded: impl Fn(&HcaName) -> bool,
        host: Option<&Snapshot>,
    ) -> Plan {
        let own = self.nics.iter().filter_map(|n| n.uverbs.clone());
        let own: Vec<CharDevice> = own.collect();
        let count = self.count();
        self.drop_nics(unwanted, forbidden);
        self.ib.retain(|h| !excluded(h));
        self.ib_ports.retain(|h, _| !excluded(h));
        if self.count() == count {
            return self;
        }
        let mut nics = std::mem::take(&mut self.nics);
        let ib = self.set_and_list_nodes(&mut nics, host);
        self.nics = nics;
        // On a host that was observed every node is known: what the plan has besides is of before
        // a driver was loaded again, and may be another HCA's by now. Else those of HCAs without a
        // NIC are not known, and stay.
        let mut rest = self.devices.clone();
        rest.retain(|d| match host {
            Some(_) => !is_verbs(d),
            None => !own.contains(d),
        });
        self.set_nodes(ib, rest);
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

    fn drop_nics(
        &mut self,
        unwanted: impl Fn(&IfName) -> bool,
        forbidden: impl Fn(&IfName) -> bool,
    ) {
        let (mut roots, mut out) = (Vec::new(), Vec::new());
        for nic in &self.nics {
            let root = &upper_lower::moved_root(nic, &self.nics).identity.name;
            if forbidden(nic.name()) || unwanted(root) {
                out.push(root.clone());
            }
            roots.push(root.clone());
        }
        let mut roots = roots.iter();
        self.nics
            .retain(|_| roots.next().is_some_and(|root| !out.contains(root)));
    }

    /// The device nodes of HCAs without a NIC; NICs get theirs where they move.
    fn set_and_list_nodes(&self, nics: &mut [Nic], host: Option<&Snapshot>) -> Vec<CharDevice> {
        match self.moves() {
            true => set_nodes_inside(nics, &self.ib, host),
            false => nodes_of(&self.ib, host),
        }
    }

    fn set_nodes(&mut self, ib: Vec<CharDevice>, rest: Vec<CharDevice>) {
        let own = self.nics.iter().filter_map(|n| n.uverbs.clone());
        self.devices = own.chain(ib).chain(rest).collect();
        self.devices.sort_by_key(|d| (!is_verbs(d), d.minor));
        self.devices.dedup();
    }
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
pub(super) fn set_nodes_inside(
    nics: &mut [Nic],
    ib: &[HcaName],
    host: Option<&Snapshot>,
) -> Vec<CharDevice> {
    let nodes = host
        .map(|host| rdma_mode::nodes_inside(nics, ib, host))
        .unwrap_or_default();
    let is_exclusive = host.is_some_and(rdma_mode::is_exclusive);
    for nic in nics {
        let has_its_own = !nic.borrowed || nic.uverbs.is_some();
        if has_its_own && (nic.rxe || is_exclusive) {
            let hca = nic.hca.as_ref();
            nic.uverbs = hca.and_then(|h| nodes.get(h.as_str()).cloned());
        }
    }
    ib.iter()
        .filter_map(|name| rdma_mode::node(&nodes, host?, name).cloned())
        .collect()
}
