//! RDMA devices that belong to one network namespace each (`rdma system set netns exclusive`):
//! which of them move with a container's NICs. In the shared mode every namespace sees every
//! device, and none moves. A device goes into the container after the netdevs of all its ports, and
//! returns before them. The kernel gives those of a namespace that ends back to the initial one by
//! itself (rdma_dev_exit_net in drivers/infiniband/core/device.c).

use anyhow::Result;
use rdma_model::drift::Drift;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{Guid, HcaName};
use rdma_model::moved_nic::MovedNic;
use rdma_model::nic::Nic;
use rdma_model::snapshot::{CharDevice, Hca, RdmaMode, Snapshot};
use rdma_model::step::{Side, Step};

use super::uverbs_minors::{NodesInside, predict_uverbs, uverbs_number};
use crate::plan::Plan;
use crate::select::candidates::INFINIBAND;

/// The way out of every refusal here. The kernel changes the mode only as long as the initial
/// namespace is the only one (rdma_compatdev_set in device.c), which is the administrator's
/// decision, never ours.
const WAY_OUT: &str = "or use the shared mode: `rdma system set netns shared`, before any other \
    network namespace exists";

pub fn is_exclusive(host: &Snapshot) -> bool {
    host.rdma_mode == Some(RdmaMode::Exclusive)
}

fn hcas<'a>(nics: &[Nic], ib: &[HcaName], host: &'a Snapshot) -> Vec<&'a Hca> {
    let names = nics.iter().filter_map(|n| n.hca.as_ref()).chain(ib);
    let mut found: Vec<&Hca> = Vec::new();
    for hca in names.filter_map(|name| host.hca(name)) {
        if !found.iter().any(|f| f.name == hca.name) {
            found.push(hca);
        }
    }
    found
}

/// The device nodes that HCAs will have inside, as far as the kernel hands them out again:
/// soft-RoCE's, which is made again, and in the exclusive mode everybody's, since a move takes all
/// clients of a device away and adds them again (rdma_dev_change_netns in device.c).
pub fn nodes_inside(nics: &[Nic], ib: &[HcaName], host: &Snapshot) -> NodesInside {
    let mut nodes = made_again(nics, host);
    if is_exclusive(host) {
        let host = with_nodes(host, &nodes);
        nodes.extend(predict_uverbs(&host, hcas(nics, ib, &host).into_iter()));
    }
    nodes
}

/// Those of soft-RoCE that is made again. One whose port is that of the netdev below stays what it
/// is.
fn made_again(nics: &[Nic], host: &Snapshot) -> NodesInside {
    predict_uverbs(
        host,
        nics.iter()
            .filter(|n| n.rxe)
            .filter_map(|n| host.hca(n.hca.as_ref()?)),
    )
}

fn with_nodes(host: &Snapshot, nodes: &NodesInside) -> Snapshot {
    let mut hcas = host.hcas.clone();
    for h in &mut hcas {
        h.uverbs = nodes.get(h.name.as_str()).cloned().or(h.uverbs.take());
    }
    Snapshot {
        hcas,
        verbs_elsewhere: host.verbs_elsewhere.clone(),
        ..Snapshot::default()
    }
}

/// What the exclusive mode demands of a choice of NICs: a device moves with all its ports, and with
/// nothing on it that would not survive that; else [`ErrorClass::Refused`].
pub fn check(nics: &[Nic], ib: &[HcaName], host: &Snapshot) -> Result<()> {
    if !is_exclusive(host) {
        return Ok(());
    }
    // Without a netdev there is nothing that the guard of links could keep.
    let mut uses = host.paths.iter().flat_map(|paths| &paths.rdma);
    if let Some(one) = uses.find(|one| ib.contains(&one.hca)) {
        return Err(ErrorClass::Refused.error(format!(
            "{} would have to move, since RDMA devices belong to one namespace each here, and {} \
            of this host uses it: leave it out, {WAY_OUT}",
            one.hca, one.user
        )));
    }
    for hca in hcas(nics, ib, host) {
        let left = hca
            .ports
            .iter()
            .filter_map(|p| Some((p.number, p.netdev.as_ref()?)))
            .find(|(_, dev)| !nics.iter().any(|n| n.name() == *dev));
        if let Some((port, dev)) = left {
            return Err(ErrorClass::Refused.error(format!(
                "{} moves with all its ports, since RDMA devices belong to one namespace each \
                here, but {dev} of its port {port} is not taken: take the netdevs of all its \
                ports, {WAY_OUT}",
                hca.name
            )));
        }
        // ipoib_remove_one and ipoib_add_one in drivers/infiniband/ulp/ipoib/ipoib_main.c.
        let on_it = host
            .netdevs
            .iter()
            .find(|d| d.link_type == INFINIBAND && d.pci.is_some() && d.pci == hca.pci);
        if let Some(dev) = on_it {
            return Err(ErrorClass::Refused.error(format!(
                "{} would have to move, since RDMA devices belong to one namespace each here, and \
                the kernel would delete {}, which sits on it: leave {} out, {WAY_OUT}",
                hca.name, dev.name, hca.name
            )));
        }
    }
    Ok(())
}

/// A line of `prepare`'s report; none in the shared mode.
pub fn describe(plan: &Plan) -> Option<String> {
    let mut names: Vec<&str> = plan
        .nics
        .iter()
        .filter_map(|n| n.hca.as_ref())
        .chain(&plan.ib)
        .map(HcaName::as_str)
        .collect();
    names.dedup();
    let (moves, them) = if names.len() == 1 {
        ("moves", "it")
    } else {
        ("move", "them")
    };
    (plan.exclusive && !names.is_empty()).then(|| {
        format!(
            "RDMA namespace mode exclusive: {} {moves}, too; the host lacks {them} as long as a \
            container has {them}",
            names.join(", ")
        )
    })
}

/// The moves into the container, in the order for which [`nodes_inside`] predicts; none in the
/// shared mode.
pub fn move_inside(plan: &Plan, host: &Snapshot) -> Vec<Step> {
    if !plan.exclusive {
        return Vec::new();
    }
    let between = with_nodes(host, &made_again(&plan.nics, host));
    let mut all = hcas(&plan.nics, &plan.ib, &between);
    all.sort_by_key(|h| number(h));
    let nodes = nodes_inside(&plan.nics, &plan.ib, host);
    all.iter()
        .map(|h| Step::RdmaMove {
            from: Side::Host,
            hca: h.name.clone(),
            uverbs: nodes.get(h.name.as_str()).cloned(),
        })
        .collect()
}

/// The moves home of those HCAs that only the container's namespace has. Soft-RoCE is deleted there
/// instead.
pub fn restore_hcas<'a>(
    names: impl Iterator<Item = &'a HcaName>,
    host: &Snapshot,
    inside: Option<&Snapshot>,
) -> Vec<Step> {
    let there = names.filter_map(|name| inside?.hca(name));
    let mut away: Vec<&Hca> = there
        .filter(|h| !h.is_rxe() && host.hca(&h.name).is_none())
        .collect();
    away.sort_by_key(|h| (number(h), &h.name));
    away.dedup_by_key(|h| &h.name);
    away.iter()
        .map(|h| Step::RdmaMove {
            from: Side::Inside,
            hca: h.name.clone(),
            uverbs: None,
        })
        .collect()
}

/// Devices of hardware that a container gave other names, by their GUIDs: home, and called what
/// they were.
pub fn restore_renamed(held: &[MovedNic], host: &Snapshot, inside: Option<&Snapshot>) -> Vec<Step> {
    let mut steps = Vec::new();
    for h in held.iter().filter(|h| !h.nic.rxe && !h.nic.borrowed) {
        let Some((name, guid)) = h.nic.hca.as_ref().zip(h.nic.identity.node_guid) else {
            continue;
        };
        let is_known = [Some(host), inside]
            .into_iter()
            .flatten()
            .any(|side| side.hca(name).is_some());
        if guid.0 == 0 || is_known {
            continue;
        }
        let there = inside.map(|inside| namesakes(guid, held, inside));
        let there = there.unwrap_or_default();
        let found = match (namesakes(guid, held, host).as_slice(), there.as_slice()) {
            ([only], _) => (*only).clone(),
            ([], [only]) => {
                steps.push(Step::RdmaMove {
                    from: Side::Inside,
                    hca: (*only).clone(),
                    uverbs: None,
                });
                (*only).clone()
            }
            _ => continue,
        };
        let rename = Step::RdmaRename {
            hca: found,
            name: name.clone(),
        };
        if !steps.contains(&rename) {
            steps.push(rename);
        }
    }
    steps
}

/// Those that are on neither side: the kernel may still be about to give them back.
pub fn missing_everywhere<'a>(
    names: &'a [HcaName],
    host: &Snapshot,
    inside: Option<&Snapshot>,
) -> Vec<&'a HcaName> {
    let mut missing: Vec<&HcaName> = names.iter().filter(|_| is_exclusive(host)).collect();
    for side in inside.into_iter().chain([host]) {
        missing.retain(|name| side.hca(name).is_none());
    }
    missing
}

pub fn missing_on_host(names: &[HcaName], host: &Snapshot) -> Vec<Drift> {
    let missing = names.iter().filter(|name| host.hca(name).is_none());
    missing
        .map(|name| Drift {
            dev: name.to_string(),
            field: "hca".into(),
            expected: Some("present".into()),
            observed: None,
        })
        .collect()
}

/// HCAs with that GUID that no NIC is known by.
fn namesakes<'s>(guid: Guid, held: &[MovedNic], side: &'s Snapshot) -> Vec<&'s HcaName> {
    let known: Vec<&HcaName> = held.iter().filter_map(|h| h.nic.hca.as_ref()).collect();
    side.hcas
        .iter()
        .filter(|d| d.node_guid == Some(guid))
        .map(|d| &d.name)
        .filter(|name| !known.contains(name))
        .collect()
}

/// HCAs that are not where they belong: inside, and not on the host any more.
pub fn drift(plan: &Plan, host: &Snapshot, inside: &Snapshot) -> Vec<Drift> {
    let names = plan
        .nics
        .iter()
        .filter_map(|n| n.hca.as_ref())
        .chain(&plan.ib);
    let mut drift = Vec::new();
    for name in names {
        let observed = match (inside.hca(name), host.hca(name)) {
            (Some(_), None) => continue,
            (Some(_), Some(_)) => Some("in both namespaces".to_owned()),
            (None, Some(_)) => Some("on the host".to_owned()),
            (None, None) => None,
        };
        drift.push(Drift {
            dev: name.to_string(),
            field: "namespace".into(),
            expected: Some("the container's alone".into()),
            observed,
        });
    }
    drift
}

fn number(hca: &Hca) -> u32 {
    hca.uverbs
        .as_ref()
        .and_then(uverbs_number)
        .unwrap_or(u32::MAX)
}

pub fn node<'a>(
    nodes: &'a NodesInside,
    host: &'a Snapshot,
    name: &HcaName,
) -> Option<&'a CharDevice> {
    nodes
        .get(name.as_str())
        .or_else(|| host.hca(name)?.uverbs.as_ref())
}
