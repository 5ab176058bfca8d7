//! Releases that are older than those that were compared: of these nothing definite is said.

use rdma_model::snapshot::Snapshot;

use super::explanation::{Bootstrap, Explanation, Judged, Setting};
use super::hca::UNKNOWN;
use super::version::Version;

pub(crate) fn explanation(
    settings: Vec<Setting>,
    snapshot: &Snapshot,
    version: Version,
) -> Explanation {
    let unknown = |name: String| Judged {
        name,
        taken: false,
        why: format!("{UNKNOWN}NCCL {version} was not judged"),
    };
    let netdevs = snapshot.netdevs.iter().map(|n| n.name.to_string());
    let ports = snapshot.hcas.iter().flat_map(|hca| {
        let numbers = hca.ports.iter().map(|port| port.number);
        numbers.map(|number| format!("{}:{number}", hca.name))
    });
    Explanation {
        version,
        assumed: false,
        settings,
        bootstrap: Bootstrap::NotJudged,
        ring: None,
        interfaces: netdevs.map(unknown).collect(),
        sockets: Vec::new(),
        hcas: Vec::new(),
        merged: Vec::new(),
        ports: ports.map(unknown).collect(),
        network: None,
        plugin: None,
        hint: None,
        gids: Vec::new(),
        warnings: Vec::new(),
    }
}
