//! One link layer for a job: NCCL refuses a connection between a port of InfiniBand and one of
//! Ethernet ("Remote … device is incompatible", ncclIbConnect in NCCL's src/transport/net_ib.cc).
//! Where both are kept, the faster fabric stays, or that of the NICs that `--ifaces` names.

use std::collections::{BTreeMap, BTreeSet};

use rdma_model::ids::HcaName;
use rdma_model::snapshot::Port;

use super::candidates::{Context, INFINIBAND};
use super::fabrics::chosen_by_hand;
use super::{Drop, DropCode, Verdict};

/// A verdict that keeps a port.
struct Kept {
    at: usize,
    port: (HcaName, u32),
    rate: Option<f64>,
    is_infiniband: bool,
    is_named: bool,
}

pub(super) fn leave_one(context: &Context, verdicts: &mut [Verdict]) {
    if chosen_by_hand(context) {
        return;
    }
    let all = verdicts.iter().enumerate();
    let kept: Vec<Kept> = all
        .filter_map(|(at, v)| Kept::new(context, at, v))
        .collect();
    let (infiniband, ethernet): (Vec<&Kept>, Vec<&Kept>) =
        kept.iter().partition(|k| k.is_infiniband);
    if infiniband.is_empty() || ethernet.is_empty() {
        return;
    }
    let by_name = "--ifaces names NICs of it".to_owned();
    let (is_infiniband, reason) = match [&infiniband, &ethernet].map(|f| is_named(f)) {
        [true, true] => return,
        [true, false] => (true, by_name),
        [false, true] => (false, by_name),
        [false, false] => faster(&infiniband, &ethernet),
    };
    let (other, chosen) = match is_infiniband {
        true => ("Ethernet", "InfiniBand"),
        false => ("InfiniBand", "Ethernet"),
    };
    let drop = Drop {
        code: DropCode::OtherLinkLayer,
        also: Vec::new(),
        why: format!(
            "the link layer is {other}, which NCCL does not connect with {chosen}, and the job \
            gets {chosen}: {reason}"
        ),
        fix: "to choose otherwise: --hca with all that are meant (RDMA_HCA)".to_owned(),
    };
    for left in if is_infiniband { ethernet } else { infiniband } {
        let verdict = &mut verdicts[left.at];
        (verdict.dropped, verdict.note) = (Some(drop.clone()), None);
    }
}

/// What to say where both stay, as was asked for.
pub(super) fn hint(context: &Context, verdicts: &[Verdict]) -> Option<String> {
    let mut labels = [BTreeSet::new(), BTreeSet::new()];
    let all = verdicts.iter().enumerate();
    for kept in all.filter_map(|(at, v)| Kept::new(context, at, v)) {
        let (hca, number) = kept.port;
        labels[usize::from(kept.is_infiniband)].insert(format!("{hca}:{number}"));
    }
    let [ethernet, infiniband] = labels.map(|all| Vec::from_iter(all).join(", "));
    (!ethernet.is_empty() && !infiniband.is_empty()).then(|| {
        format!(
            "the job gets {infiniband} of InfiniBand and {ethernet} of Ethernet, and NCCL refuses \
            a connection between the two: name those of one in --hca (RDMA_HCA)"
        )
    })
}

/// Whether InfiniBand is the faster fabric, and why: a job has the sum of its ports, since NCCL
/// spreads over all of them. One fast port for storage is no fabric for eight GPUs. Where a rate is
/// not known, the number of ports decides.
fn faster(infiniband: &[&Kept], ethernet: &[&Kept]) -> (bool, String) {
    let (ib, eth) = (rate(infiniband), rate(ethernet));
    if let Some((ib, eth)) = ib.zip(eth).filter(|(ib, eth)| ib != eth) {
        let (most, less) = (ib.max(eth), ib.min(eth));
        let reason = format!("its ports have {most} Gb/s together, where the other's have {less}");
        return (ib > eth, reason);
    }
    let (ib, eth) = (ports(infiniband).len(), ports(ethernet).len());
    if ib == eth {
        return (true, "--ib asks for it".to_owned());
    }
    let (most, less) = (ib.max(eth), ib.min(eth));
    (
        ib > eth,
        format!("it has {most} ports, and the other {less}"),
    )
}

/// The sum of the rates, where all are known.
fn rate(fabric: &[&Kept]) -> Option<f64> {
    ports(fabric).values().copied().sum()
}

/// Each port with its rate. A VLAN on a NIC has the port of that NIC.
fn ports<'a>(fabric: &[&'a Kept]) -> BTreeMap<&'a (HcaName, u32), Option<f64>> {
    fabric.iter().map(|k| (&k.port, k.rate)).collect()
}

fn is_named(fabric: &[&Kept]) -> bool {
    fabric.iter().any(|k| k.is_named)
}

impl Kept {
    fn new(context: &Context, at: usize, verdict: &Verdict) -> Option<Kept> {
        let (hca, number) = (verdict.hca.as_ref()?, verdict.port?);
        let ports = &context.snapshot.hca(hca)?.ports;
        let port = ports.iter().find(|p| p.number == number)?;
        let netdev = verdict.netdev.as_ref();
        let link = netdev.and_then(|name| context.snapshot.netdev(name));
        verdict.dropped.is_none().then(|| Kept {
            at,
            port: (hca.clone(), number),
            rate: Port::gigabits(port),
            // What is kept without a netdev is InfiniBand.
            is_infiniband: link.is_none_or(|link| link.link_type == INFINIBAND),
            is_named: netdev.is_some_and(|name| context.request.names(name)),
        })
    }
}
