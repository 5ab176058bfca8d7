//! What may surprise of the HCAs that NCCL takes.

use rdma_model::snapshot::Snapshot;

use super::{HCA, few, short, warning};
use crate::explanation::{Explanation, Trap, Warning};
use crate::hca;
use crate::settings::Settings;

/// Ports of both link layers, by a list or without one: a connection between two of them is refused
/// (`ncclIbConnect` in src/transport/net_ib/connect.cc, "incompatible").
pub(super) fn layers(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
) -> Option<Warning> {
    let takes = match settings.get(HCA).filter(|list| !list.is_empty()) {
        Some(list) => format!("{HCA}={} takes", short(list)),
        None => format!("without {HCA} NCCL takes"),
    };
    let (mut fabric, mut ethernet) = (Vec::new(), Vec::new());
    for (hca, port) in snapshot
        .hcas
        .iter()
        .flat_map(|h| h.ports.iter().map(move |p| (h, p)))
    {
        let name = format!("{}:{}", hca.name, port.number);
        if !explained.hcas.contains(&name) {
            continue;
        }
        match port.is_infiniband() {
            true => fabric.push(name),
            false => ethernet.push(name),
        }
    }
    if fabric.is_empty() || ethernet.is_empty() {
        return None;
    }
    let [fabric, ethernet] =
        [fabric, ethernet].map(|names| few(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    let text = format!(
        "{takes} {fabric} of InfiniBand and {ethernet} of Ethernet, and refuses a connection \
        between the two: name those of one in {HCA}"
    );
    Some(warning(Trap::Layers, text))
}

/// With NCCL_IB_DATA_DIRECT=2 an HCA that has a Data Direct function is two devices, NAME and
/// NAME_dma (src/transport/net_ib/init.cc). Which ones have it is firmware's to say.
pub(super) fn data_direct(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
) -> Option<Warning> {
    const VARIABLE: &str = "NCCL_IB_DATA_DIRECT";
    let (version, limit) = (explained.version, explained.version.max_hcas());
    let is_both = hca::data_direct(settings, version) == 2;
    let of_mlx5 = |name: &&String| {
        let mut all = snapshot.hcas.iter();
        let hca = name.split(':').next();
        all.any(|h| Some(h.name.as_str()) == hca && hca::may_be_direct(h))
    };
    let count = explained.hcas.len() + explained.hcas.iter().filter(of_mlx5).count();
    let text = format!(
        "{VARIABLE}=2: an HCA with a Data Direct function takes two places, so these need up to \
        {count}, and NCCL has room for {limit}"
    );
    (is_both && count > limit).then(|| warning(Trap::NoRoom, text))
}

pub(super) fn hcas(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
    out: &mut Vec<Warning>,
) {
    let limit = explained.version.max_hcas();
    let none = explained.hcas.is_empty() && snapshot.hcas.iter().any(|h| !h.ports.is_empty());
    // Who switches them off means it, and NCCL_NET allows no other network.
    let meant = hca::disabled(settings, explained.version) || explained.network.is_some();
    let meant = meant || explained.ports.iter().any(|p| p.why == hca::REFUSED);
    let unnamed = hca::no_verbs(settings, explained.version);
    if none && !meant && unnamed && !explained.sockets.is_empty() {
        let text = format!("{}; NCCL goes on over TCP: unset it", hca::NO_VERBS);
        out.push(warning(Trap::NoHca, text));
    } else if let Some(value) = settings
        .get(HCA)
        .filter(|_| none && !meant && !explained.sockets.is_empty())
    {
        let value = short(value);
        let text = format!("{HCA}={value} leaves no HCA: NCCL goes on over TCP without a word");
        out.push(warning(Trap::NoHca, text));
    }
    out.extend(layers(settings, snapshot, explained));
    out.extend(data_direct(settings, snapshot, explained));
    let beyond = explained
        .ports
        .iter()
        .filter(|p| !p.taken && p.why.starts_with(hca::NO_ROOM))
        .count();
    if beyond > 0 {
        out.push(warning(
            Trap::NoRoom,
            format!(
                "{} HCA ports fit and NCCL has room for {limit}",
                explained.hcas.len() + beyond
            ),
        ));
    }
}
