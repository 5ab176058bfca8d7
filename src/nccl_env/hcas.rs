//! NCCL_IB_HCA: exactly the HCAs of a container.

use std::collections::BTreeMap;

use nccl_rules::version::Version;
use rdma_model::ids::HcaName;
use rdma_model::nic::{EnvVar, Nic};

use super::var;

/// NCCL_IB_HCA. Placeholders have no HCA and thus no part in it: a name that does not exist selects
/// nothing, and NCCL would fall back to TCP without a word. An empty list would select everything,
/// so there is none. A name alone is every port of its HCA, chosen or not.
pub(super) fn hca_list<'a>(nics: impl IntoIterator<Item = &'a Nic>, hcas: Hcas) -> Option<EnvVar> {
    let own = nics
        .into_iter()
        .filter_map(|nic| match (&nic.hca, nic.port) {
            (Some(hca), Some(port)) if nic.ports > 1 => Some(format!("{hca}:{port}")),
            (hca, _) => hca.as_ref().map(HcaName::to_string),
        });
    let ib = hcas.ib.iter().flat_map(|hca| match hcas.ib_ports.get(hca) {
        Some(ports) => ports.iter().map(|port| format!("{hca}:{port}")).collect(),
        None => vec![hca.to_string()],
    });
    let mut names: Vec<String> = Vec::new();
    for name in own.chain(ib) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let most = Version::NEWEST.max_hcas();
    let why = match names.len() {
        0 => return None,
        1 => "exactly the HCA that the container gets".to_owned(),
        n if n > most => {
            format!("exactly the {n} HCAs that the container gets; NCCL uses the first {most}")
        }
        n => format!(
            "exactly the {n} HCAs that the container gets, {}",
            hcas.order()
        ),
    };
    Some(var("NCCL_IB_HCA", &format!("={}", names.join(",")), &why))
}

/// What a list of HCAs is made of: the NICs in rail order, the InfiniBand HCAs, and the release of
/// NCCL that the host's administrator names.
#[derive(Clone, Copy)]
pub struct Hcas<'a> {
    pub nics: &'a [Nic],
    pub ib: &'a [HcaName],
    /// Of an InfiniBand HCA with several ports, those that are chosen.
    pub ib_ports: &'a BTreeMap<HcaName, Vec<u32>>,
    pub named: Option<Version>,
}

impl Hcas<'_> {
    pub(super) fn order(self) -> &'static str {
        let has_rail = self.nics.iter().any(|n| n.hca.is_some());
        match (has_rail, self.ib.is_empty()) {
            (true, false) => "in rail order, and InfiniBand behind",
            _ => "in rail order",
        }
    }
}
