//! What ethtool sets, by generic netlink: values as text by name <-> messages
//! (include/uapi/linux/ethtool_netlink.h, Documentation/networking/ethtool-netlink.rst). What the
//! kernel or the peer changes by itself is left out: counters, maxima, what is active, what was
//! negotiated. Time stamping (TSCONFIG) is not asked for: on a VLAN the question alone stops a
//! kernel between 6.14 and 6.18 (an oops in generic_hwtstamp_ioctl_lower). Private contexts of RSS,
//! flow rules and tunables have an ioctl alone.

mod kinds;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use netlink_packet_core::NLA_F_NESTED;

use crate::generic::{Genl, attribute};
use crate::reply::{attributes, string};
use crate::unless_refused;
use kinds::Form::{self, Bits, Byte, Bytes, Word};
use kinds::{DECIDED, KINDS, Kind};
use rdma_model::snapshot::UNTOLD;

/// Values by name, see [`rdma_model::snapshot::Netdev::device`].
pub type Values = BTreeMap<String, String>;

const PREFIX: &str = "ethtool ";

/// The request header, number 1 of every message: its index and its flags.
const HEADER: u16 = 1;
const HEADER_INDEX: u16 = 1;
const HEADER_FLAGS: u16 = 3;
/// ETHTOOL_FLAG_OMIT_REPLY.
const OMIT_REPLY: u32 = 2;
/// ETHTOOL_A_BITSET_*, and those of a bit.
const BITSET_NOMASK: u16 = 1;
const BITSET_BITS: u16 = 3;
const BITS_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;
/// ETHTOOL_A_FEATURES_*.
const FEATURES_HW: u16 = 2;
const FEATURES_WANTED: u16 = 3;
const FEATURES_NOCHANGE: u16 = 5;
/// SPEED_UNKNOWN and DUPLEX_UNKNOWN (include/uapi/linux/ethtool.h).
const UNKNOWN: [&str; 2] = ["4294967295", "255"];

impl Kind {
    fn key(&self, setting: &str) -> String {
        format!("{PREFIX}{} {setting}", self.name)
    }

    fn own<'v>(&self, values: &'v Values) -> BTreeMap<&'v str, &'v str> {
        let prefix = self.key("");
        let own = values
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?, value.as_str())));
        own.collect()
    }

    fn parse(&self, answer: &[u8]) -> Values {
        let mut observed: BTreeMap<String, String> = BTreeMap::new();
        let all: BTreeMap<u16, &[u8]> = attributes(answer).flatten().collect();
        if self.settings.is_empty() {
            observed.extend(features(&all));
        }
        for (number, name, form) in self.settings {
            observed.extend(
                all.get(number)
                    .and_then(|value| Some(((*name).to_owned(), text(*form, value)?))),
            );
        }
        for (_, by, decided) in DECIDED.iter().filter(|(kind, ..)| *kind == self.name) {
            if observed.get(*by).is_some_and(|on| on == "1") {
                for name in *decided {
                    observed.remove(*name);
                }
            }
        }
        if self.name == "link-modes" {
            for v in observed
                .values_mut()
                .filter(|v| UNKNOWN.contains(&v.as_str()))
            {
                *v = UNTOLD.to_owned();
            }
        }
        observed
            .into_iter()
            .map(|(name, value)| (self.key(&name), value))
            .collect()
    }

    fn change(&self, wanted: &BTreeMap<&str, &str>, now: &BTreeMap<&str, &str>) -> Vec<u8> {
        if self.settings.is_empty() {
            let bits: Vec<(&str, bool)> = wanted
                .iter()
                .map(|(name, value)| (*name, *value == "on"))
                .collect();
            return bitset(FEATURES_WANTED, &bits);
        }
        let all = self.settings.iter().filter_map(|(number, name, form)| {
            let value = wanted.get(name)?;
            Some(match form {
                Byte => attribute(*number, &[value.parse().ok()?]),
                Word => attribute(*number, &value.parse::<u32>().ok()?.to_ne_bytes()),
                Bytes => attribute(*number, &unhex(value)?),
                Bits => bitset(
                    *number,
                    &changed(value, now.get(name).copied().unwrap_or_default()),
                ),
            })
        });
        all.flatten().collect()
    }
}

fn text(form: Form, value: &[u8]) -> Option<String> {
    Some(match form {
        Byte => value.first()?.to_string(),
        Word => u32::from_ne_bytes(value.try_into().ok()?).to_string(),
        Bytes => hex(value),
        Bits => set_bits(value).collect::<Vec<_>>().join(","),
    })
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Option<Vec<u8>> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

fn set_bits(bitset: &[u8]) -> impl Iterator<Item = String> + '_ {
    let list = attributes(bitset)
        .flatten()
        .any(|(kind, _)| kind == BITSET_NOMASK);
    let bits = attributes(bitset)
        .flatten()
        .filter(|(kind, _)| *kind == BITSET_BITS);
    let each = bits.flat_map(|(_, bits)| attributes(bits).flatten());
    each.filter_map(move |(_, bit)| {
        let (mut name, mut is_set) = (None, list);
        for (kind, value) in attributes(bit).flatten() {
            match kind {
                BIT_NAME => name = Some(value),
                BIT_VALUE => is_set = true,
                _ => {}
            }
        }
        name.filter(|_| is_set).map(string)
    })
}

/// What is wanted of features that can be changed at all: what is active follows from that, from
/// the MTU and from others.
fn features(all: &BTreeMap<u16, &[u8]>) -> Vec<(String, String)> {
    let [mut free, fixed, wanted] =
        [FEATURES_HW, FEATURES_NOCHANGE, FEATURES_WANTED].map(|number| {
            let bits = all.get(&number).into_iter();
            bits.flat_map(|bits| set_bits(bits))
                .collect::<BTreeSet<_>>()
        });
    free.retain(|name| !fixed.contains(name));
    free.into_iter()
        .map(|name| {
            let value = if wanted.contains(&name) { "on" } else { "off" };
            (name, value.to_owned())
        })
        .collect()
}

/// Bits that differ between two lists of names, with what they are to be. Only these are sent: of a
/// list without a mask, the kernel overlooks that a bit is missing (ethnl_update_bitset32_verbose
/// in net/ethtool/bitset.c).
fn changed<'a>(wanted: &'a str, now: &'a str) -> Vec<(&'a str, bool)> {
    let [wanted, now] = [wanted, now].map(|list| {
        let names = list.split(',').filter(|name| !name.is_empty());
        names.collect::<BTreeSet<_>>()
    });
    wanted
        .symmetric_difference(&now)
        .map(|name| (*name, wanted.contains(name)))
        .collect()
}

fn bitset(number: u16, bits: &[(&str, bool)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (name, on) in bits {
        let mut bit = attribute(BIT_NAME, &[name.as_bytes(), &[0]].concat());
        if *on {
            bit.extend(attribute(BIT_VALUE, &[]));
        }
        all.extend(attribute(BITS_BIT | NLA_F_NESTED, &bit));
    }
    let all = attribute(BITSET_BITS | NLA_F_NESTED, &all);
    attribute(number | NLA_F_NESTED, &all)
}

fn header(ifindex: u32, flags: u32) -> Vec<u8> {
    let parts = [
        attribute(HEADER_INDEX, &ifindex.to_ne_bytes()),
        attribute(HEADER_FLAGS, &flags.to_ne_bytes()),
    ];
    attribute(HEADER | NLA_F_NESTED, &parts.concat())
}

/// What asks for something of a link, with ETHTOOL_FLAG_*.
pub(crate) fn asking(ifindex: u32, flags: u32) -> Vec<u8> {
    header(ifindex, flags)
}

pub fn is_ours(key: &str) -> bool {
    key.starts_with(PREFIX)
}

/// The last answer of each kind, and its values: those of a host's NICs are alike but for the
/// header.
#[derive(Default)]
pub struct Known(BTreeMap<&'static str, (Vec<u8>, Values)>);

impl Known {
    fn values(&mut self, kind: &Kind, answer: &[u8]) -> Values {
        let own = without_header(answer);
        match self.0.get(kind.name) {
            Some((same, values)) if same == own => values.clone(),
            _ => {
                let values = kind.parse(own);
                self.0.insert(kind.name, (own.to_vec(), values.clone()));
                values
            }
        }
    }
}

/// The header comes first.
fn without_header(answer: &[u8]) -> &[u8] {
    let [a, b, c, d, ..] = *answer else {
        return answer;
    };
    if u16::from_ne_bytes([c, d]) & !NLA_F_NESTED != HEADER {
        return answer;
    }
    let length = usize::from(u16::from_ne_bytes([a, b])).next_multiple_of(4);
    answer.get(length..).unwrap_or_default()
}

/// What a netdev has. A kind that its driver or the kernel does not know is left out.
pub fn read(genl: &mut Genl, known: &mut Known, ifindex: u32, hardware: bool) -> Values {
    let mut all = Values::new();
    for kind in KINDS.iter().filter(|k| hardware || !k.hardware) {
        if let Ok(answer) = genl.ask(kind.get, &header(ifindex, 0)) {
            all.append(&mut known.values(kind, &answer));
        }
    }
    all
}

/// Sends only what differs. The error names the values that were refused, and why; the others are
/// set.
pub fn give(genl: &mut Genl, ifindex: u32, values: &Values) -> Result<(), String> {
    let mut refused = Vec::new();
    for kind in &KINDS {
        let mut wanted = kind.own(values);
        if wanted.is_empty() {
            continue;
        }
        let observed = genl
            .ask(kind.get, &header(ifindex, 0))
            .map(|answer| kind.parse(&answer))
            .unwrap_or_default();
        let now = kind.own(&observed);
        wanted.retain(|name, value| now.get(name) != Some(value) && *value != UNTOLD);
        if wanted.is_empty() || set(genl, kind, ifindex, &wanted, &now).is_ok() {
            continue;
        }
        // One that is refused must not keep the others from being set.
        for (name, value) in wanted {
            let alone = BTreeMap::from([(name, value)]);
            if let Err(e) = set(genl, kind, ifindex, &alone, &now) {
                refused.push(format!("{}: {e}", kind.key(name)));
            }
        }
    }
    unless_refused(refused)
}

fn set(
    genl: &mut Genl,
    kind: &Kind,
    ifindex: u32,
    wanted: &BTreeMap<&str, &str>,
    now: &BTreeMap<&str, &str>,
) -> io::Result<()> {
    genl.set(
        kind.set,
        &[header(ifindex, OMIT_REPLY), kind.change(wanted, now)].concat(),
    )
}

#[cfg(test)]
mod tests;
