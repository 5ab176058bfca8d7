//! Queueing disciplines <-> bytes. A move gives a NIC the kernel's default discipline (dev_shutdown
//! in net/sched/sch_generic.c). Those that the kernel attaches by itself have handle 0; every other
//! was configured, and is carried if it can be made again from what the kernel reports of it.

use rdma_model::ids::Hex;
use rdma_model::snapshot::{Netdev, Qdisc};

use crate::raw::{
    RTM_DELQDISC, RTM_GETTFILTER, RTM_NEWQDISC, Raw, attributes, emitted, of_word, word,
};

/// include/uapi/linux/rtnetlink.h.
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STAB: u16 = 8;
const TCA_INGRESS_BLOCK: u16 = 13;
const TCA_EGRESS_BLOCK: u16 = 14;
/// include/uapi/linux/pkt_sched.h; TC_H_INGRESS is where clsact is as well.
const TC_H_ROOT: u32 = 0xffff_ffff;
const TC_H_INGRESS: u32 = 0xffff_fff1;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;

/// What the kernel reports of these in TCA_OPTIONS is all that it takes to make them, in the form
/// in which it takes it. Not so red, gred, choke and sfb, which want tables or children that it
/// does not report; nor what consists of classes (htb, hfsc, prio, drr, qfq, ets) or of a program
/// (bpf), nor taprio and etf, whose offload has a time of its own; nor mqprio and fq_pie, which
/// refuse what they report (seen with Linux 7.3).
const TOLD_WHOLE: [&str; 16] = [
    "noqueue",
    "pfifo",
    "bfifo",
    "pfifo_head_drop",
    "pfifo_fast",
    "tbf",
    "mq",
    "sfq",
    "fq",
    "fq_codel",
    "codel",
    "pie",
    "hhf",
    "cake",
    "clsact",
    "ingress",
];
/// Times that the kernel rounds down when it takes them, to 1024 ns (include/net/codel.h) or 64 ns
/// (include/net/pkt_sched.h), and again to microseconds when it reports them: given back as
/// reported they would lose one at each move.
const ROUNDED: [(&str, &[u16]); 3] = [
    ("codel", &[1, 3, 5]),
    ("fq_codel", &[1, 3, 7]),
    ("pie", &[1]),
];
/// These find the flow of a packet by filters, if they have any, even where the kernel attached
/// them.
const CLASSIFYING: [&str; 2] = ["fq_codel", "sfq"];
/// `jitter` in tc_netem_qopt, and TCA_NETEM_SLOT behind that struct: both may follow a distribution
/// that the kernel does not report.
const NETEM_JITTER: std::ops::Range<usize> = 20..24;
const NETEM_QOPT: usize = 24;
const TCA_NETEM_SLOT: u16 = 12;

pub struct ObservedQdisc {
    pub ifindex: u32,
    qdisc: Qdisc,
    /// What it has besides, that the kernel does not report whole.
    besides: Option<&'static str>,
    pub filtered: bool,
}

pub fn parse(message: &Raw) -> Option<ObservedQdisc> {
    let kind = String::from_utf8_lossy(&message.attributes.get(&TCA_KIND)?.0);
    let kind = kind.trim_end_matches('\0').to_owned();
    let (handle, parent) = (message.word(8), message.word(12));
    let has = |kind: &u16| message.attributes.contains_key(kind);
    let besides = match () {
        () if has(&TCA_STAB) => Some("the size table of "),
        () if [TCA_INGRESS_BLOCK, TCA_EGRESS_BLOCK].iter().any(has) => Some("the shared block of "),
        () => None,
    };
    let options = message.attributes.get(&TCA_OPTIONS).cloned();
    Some(ObservedQdisc {
        ifindex: message.word(4),
        qdisc: Qdisc {
            kind,
            handle,
            parent,
            options,
        },
        besides,
        filtered: false,
    })
}

pub fn filters(observed: &ObservedQdisc) -> Vec<Raw> {
    let q = &observed.qdisc;
    let parents = match q.kind.as_str() {
        "clsact" => vec![CLSACT_INGRESS, CLSACT_EGRESS],
        "ingress" => vec![CLSACT_INGRESS],
        // Without a handle a question is about the root.
        kind if q.handle != 0 || q.parent == TC_H_ROOT && CLASSIFYING.contains(&kind) => {
            vec![q.handle]
        }
        _ => Vec::new(),
    };
    let mut all = Vec::new();
    for parent in parents {
        let mut m = Raw::dump(RTM_GETTFILTER, 0);
        m.header[4..8].copy_from_slice(&observed.ifindex.to_ne_bytes());
        m.header[12..16].copy_from_slice(&parent.to_ne_bytes());
        all.push(m);
    }
    all
}

pub fn attach(dev: &mut Netdev, all: &[ObservedQdisc]) {
    let own: Vec<&ObservedQdisc> = all.iter().filter(|t| t.ifindex == dev.ifindex).collect();
    let made = own.iter().filter(|t| t.qdisc.handle != 0 && top(&t.qdisc));
    dev.qdiscs = Some(made.map(|t| t.qdisc.clone()).collect());
    dev.qdisc_lost = own.iter().find_map(|t| lost(t));
}

fn top(qdisc: &Qdisc) -> bool {
    [TC_H_ROOT, TC_H_INGRESS].contains(&qdisc.parent)
}

fn lost(observed: &ObservedQdisc) -> Option<String> {
    let q = &observed.qdisc;
    let name = format!("{} {:x}:", q.kind, q.handle >> 16);
    if observed.filtered {
        return Some(format!("the filters of its queueing discipline {name}"));
    }
    if q.handle == 0 {
        return None;
    }
    if !top(q) {
        return Some(format!(
            "its queueing discipline {name} below {:x}:{:x}",
            q.parent >> 16,
            q.parent & 0xffff
        ));
    }
    if let Some(besides) = observed.besides {
        return Some(format!("{besides}its queueing discipline {name}"));
    }
    (!whole(q)).then(|| format!("its queueing discipline {name}"))
}

fn whole(q: &Qdisc) -> bool {
    if q.kind != "netem" {
        return TOLD_WHOLE.contains(&q.kind.as_str());
    }
    let options = q.options.as_ref().map_or(&[][..], |o| &o.0);
    let steady = options
        .get(NETEM_JITTER)
        .is_some_and(|jitter| jitter == [0; 4]);
    let rest = options
        .get(NETEM_QOPT..)
        .and_then(|rest| attributes(rest).ok());
    steady && rest.is_some_and(|rest| !rest.contains_key(&TCA_NETEM_SLOT))
}

pub fn add_message(ifindex: u32, q: &Qdisc) -> Raw {
    let mut m = Raw {
        kind: RTM_NEWQDISC,
        ..delete_message(ifindex, q)
    };
    m.header[8..12].copy_from_slice(&q.handle.to_ne_bytes());
    m.attributes
        .insert(TCA_KIND, Hex([q.kind.as_bytes(), &[0]].concat()));
    m.attributes
        .extend(q.options.as_ref().map(|o| (TCA_OPTIONS, given(&q.kind, o))));
    m
}

/// Options in the form in which the kernel, having taken them, reports what it reported before.
fn given(kind: &str, observed: &Hex) -> Hex {
    let rounded = ROUNDED
        .iter()
        .find(|(k, _)| *k == kind)
        .map(|(_, numbers)| numbers);
    let (Some(numbers), Ok(mut all)) = (rounded, attributes(&observed.0)) else {
        return observed.clone();
    };
    for time in all
        .iter_mut()
        .filter(|(number, _)| numbers.contains(number))
        .map(|(_, value)| value)
    {
        *time = word(&time.0).map_or(time.clone(), |us| of_word(us.saturating_add(1)));
    }
    Hex(emitted(&all))
}

pub fn delete_message(ifindex: u32, q: &Qdisc) -> Raw {
    let mut m = Raw::dump(RTM_DELQDISC, 0);
    m.header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    m.header[12..16].copy_from_slice(&q.parent.to_ne_bytes());
    m
}
