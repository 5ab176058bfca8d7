//! Every metric: its name, what it says, and where it comes from. The table of docs/metrics.md is
//! made of this.

use super::lines::{
    Sample, Value, ages, bytes, faults, hooks, hw_counters, incomplete, nics, of_megabits, pauses,
    port_counters, priority_pauses, rail_labels, records, sample, seconds,
};
use super::{LinkState, Rail, Seen};
use crate::kernel::counters::Counted;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its lines end with `_total`.
    Counter,
    Gauge,
}

pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
    /// Beside those of a rail, where it is of rails.
    pub labels: &'static [&'static str],
    source: Source,
}

enum Source {
    /// One line for each rail of which it is known.
    Rail(fn(&Rail) -> Option<Value>),
    Link(fn(LinkState) -> u64),
    Counted(fn(&Counted) -> u64),
    /// Several lines for each rail.
    Rails(fn(&Rail) -> Vec<Sample>),
    Other(fn(&Seen) -> Vec<Sample>),
}

impl Family {
    pub fn is_of_rails(&self) -> bool {
        !matches!(self.source, Source::Other(_))
    }

    pub fn samples(&self, seen: &Seen) -> Vec<Sample> {
        if let Source::Other(all) = self.source {
            return all(seen);
        }
        let mut samples = Vec::new();
        for rail in &seen.rails {
            let of_rail = rail_labels(rail);
            for sample in self.of(rail) {
                let labels = of_rail.iter().cloned().chain(sample.labels).collect();
                samples.push(Sample { labels, ..sample });
            }
        }
        samples
    }

    fn of(&self, rail: &Rail) -> Vec<Sample> {
        let value = match self.source {
            Source::Rail(of) => of(rail),
            Source::Link(of) => rail.link.map(|link| Value::Whole(of(link))),
            Source::Counted(of) => rail.counted.as_ref().map(|all| Value::Whole(of(all))),
            Source::Rails(of) => return of(rail),
            Source::Other(_) => None,
        };
        let samples = value.into_iter().map(|value| sample([], value));
        samples.collect()
    }
}

const fn of_rail(name: &'static str, help: &'static str, of: fn(&Rail) -> Option<Value>) -> Family {
    family(name, Kind::Gauge, help, &[], Source::Rail(of))
}

const fn of_link(name: &'static str, help: &'static str, of: fn(LinkState) -> u64) -> Family {
    family(name, Kind::Gauge, help, &[], Source::Link(of))
}

const fn counted(name: &'static str, help: &'static str, of: fn(&Counted) -> u64) -> Family {
    family(name, Kind::Counter, help, &[], Source::Counted(of))
}

const fn family(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    labels: &'static [&'static str],
    source: Source,
) -> Family {
    Family {
        name,
        kind,
        help,
        labels,
        source,
    }
}

pub const FAMILIES: [Family; 31] = [
    of_rail(
        "rdmaprep_rail_healthy",
        "Whether nothing is known to be wrong with the rail: 1, else 0.",
        |rail| Some(Value::Whole(rail.faults.is_empty().into())),
    ),
    family(
        "rdmaprep_rail_fault",
        Kind::Gauge,
        "Whether this is wrong with the rail: 1, else 0.",
        &["reason"],
        Source::Rails(faults),
    ),
    of_link(
        "rdmaprep_rail_up",
        "Whether the link was set up: 1, else 0.",
        |link| link.up.into(),
    ),
    of_link(
        "rdmaprep_rail_carrier",
        "Whether the link has a carrier: 1, else 0.",
        |link| link.carrier.into(),
    ),
    of_link("rdmaprep_rail_mtu_bytes", "MTU of the link.", |link| {
        link.mtu.into()
    }),
    of_rail(
        "rdmaprep_rail_speed_bytes_per_second",
        "Speed of the link, as its driver reports it.",
        |rail| rail.counted.as_ref()?.speed.map(of_megabits),
    ),
    counted(
        "rdmaprep_rail_receive_bytes",
        "Bytes that the netdev received; many NICs count RDMA at the port alone.",
        |all| all.link.received.bytes,
    ),
    counted(
        "rdmaprep_rail_transmit_bytes",
        "Bytes that the netdev sent.",
        |all| all.link.sent.bytes,
    ),
    counted(
        "rdmaprep_rail_receive_packets",
        "Packets that the netdev received.",
        |all| all.link.received.packets,
    ),
    counted(
        "rdmaprep_rail_transmit_packets",
        "Packets that the netdev sent.",
        |all| all.link.sent.packets,
    ),
    counted(
        "rdmaprep_rail_receive_errors",
        "Packets that arrived broken.",
        |all| all.link.received.errors,
    ),
    counted(
        "rdmaprep_rail_transmit_errors",
        "Packets that could not be sent.",
        |all| all.link.sent.errors,
    ),
    counted(
        "rdmaprep_rail_receive_drops",
        "Packets that arrived and found no room.",
        |all| all.link.received.drops,
    ),
    counted(
        "rdmaprep_rail_transmit_drops",
        "Packets that were dropped before they were sent.",
        |all| all.link.sent.drops,
    ),
    family(
        "rdmaprep_rail_pause_frames",
        Kind::Counter,
        "Frames that asked for a pause of the whole link (802.3x).",
        &["direction"],
        Source::Rails(pauses),
    ),
    family(
        "rdmaprep_rail_priority_pause_frames",
        Kind::Counter,
        "Frames that asked for a pause of one priority (802.1Qbb, PFC).",
        &["direction", "priority"],
        Source::Rails(priority_pauses),
    ),
    of_rail(
        "rdmaprep_port_active",
        "Whether the port is ACTIVE: 1, else 0.",
        |rail| {
            let state = rail.counters.as_ref()?.state.as_deref()?;
            Some(Value::Whole((state == "ACTIVE").into()))
        },
    ),
    of_rail(
        "rdmaprep_port_rate_bytes_per_second",
        "Rate of the port.",
        |rail| {
            let gigabits = rail.counters.as_ref()?.gigabits?;
            Some(Value::Real(gigabits * 1e9 / 8.0))
        },
    ),
    family(
        "rdmaprep_port_receive_bytes",
        Kind::Counter,
        "Bytes that the port received, RDMA too.",
        &[],
        Source::Rails(|rail| bytes(rail, &["port_rcv_data"], &["rx_bytes"])),
    ),
    family(
        "rdmaprep_port_transmit_bytes",
        Kind::Counter,
        "Bytes that the port sent, RDMA too.",
        &[],
        Source::Rails(|rail| bytes(rail, &["port_xmit_data"], &["tx_bytes"])),
    ),
    family(
        "rdmaprep_port_counter",
        Kind::Counter,
        "What a counter of the InfiniBand specification has.",
        &["counter"],
        Source::Rails(port_counters),
    ),
    family(
        "rdmaprep_port_hw_counter",
        Kind::Counter,
        "What a counter of the driver has.",
        &["counter", "means"],
        Source::Rails(hw_counters),
    ),
    family(
        "rdmaprep_holder_age_seconds",
        Kind::Gauge,
        "How long ago the first container of a holder began; no line when that has ended.",
        &["netns", "plan", "container", "pod", "namespace"],
        Source::Other(ages),
    ),
    family(
        "rdmaprep_holder_nics",
        Kind::Gauge,
        "How many NICs a holder has.",
        &["netns", "plan", "container", "pod", "namespace"],
        Source::Other(nics),
    ),
    family(
        "rdmaprep_records",
        Kind::Gauge,
        "How many records of NICs that left the host are in this state.",
        &["state"],
        Source::Other(records),
    ),
    family(
        "rdmaprep_restores_incomplete",
        Kind::Gauge,
        "How many records are abandoned, held_back or damaged.",
        &[],
        Source::Other(incomplete),
    ),
    family(
        "rdmaprep_hook_reports",
        Kind::Gauge,
        "Of how many containers the last hook ended so; one report is kept for each.",
        &["command", "outcome"],
        Source::Other(|seen| hooks(seen, |runs| Value::Whole(runs.count))),
    ),
    family(
        "rdmaprep_hook_mean_seconds",
        Kind::Gauge,
        "How long these took, on average.",
        &["command", "outcome"],
        Source::Other(|seen| hooks(seen, |runs| seconds(runs.micros / runs.count.max(1)))),
    ),
    family(
        "rdmaprep_hook_longest_seconds",
        Kind::Gauge,
        "How long the longest of these took.",
        &["command", "outcome"],
        Source::Other(|seen| hooks(seen, |runs| seconds(runs.longest))),
    ),
    family(
        "rdmaprep_hook_last_timestamp_seconds",
        Kind::Gauge,
        "When the last of these ended, in seconds since 1970.",
        &["command", "outcome"],
        Source::Other(|seen| hooks(seen, |runs| Value::Whole(runs.last))),
    ),
    family(
        "rdmaprep_look_seconds",
        Kind::Gauge,
        "How long it took to find all this.",
        &[],
        Source::Other(|seen| vec![sample([], Value::Real(seen.seconds))]),
    ),
];
