//! The GID that NCCL takes on a port (src/transport/net_ib/connect.cc, `ncclIbGetGidIndex`, in
//! 2.30.7; src/transport/net_ib.cc before 2.29). `tests/interop/nccl_judge` compares it with the
//! function of each release.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rdma_model::snapshot::{GidKind, Port};

use super::hca::parameter;
use super::settings::Settings;
use super::version::Version;

/// Places of a GID table of which the snapshot does not say how many it has: those of mlx5.
const PLACES: u32 = 256;

/// Which GID a connection over a port has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// None: InfiniBand with LIDs alone.
    Lid,
    /// That of this index, whether or not one is there.
    Index(i32),
    /// None: NCCL cannot read this index of the table, or its type, and ends with ncclSystemError.
    Unreadable(i32),
    /// None: NCCL ends by a signal, on a NCCL_IB_ADDR_RANGE without a slash.
    Crash,
    /// The snapshot does not have the type of a GID on which the choice depends.
    Unknown,
}

/// What the settings ask of a GID.
#[derive(Clone, Copy, Debug)]
struct Wish {
    ipv6: bool,
    range: Range,
    roce: i32,
}

/// NCCL_IB_ADDR_RANGE: an address and how many of its bits count. Not one GID is in a range of a
/// negative number of bits.
#[derive(Clone, Copy, Debug)]
enum Range {
    V4(Ipv4Addr, i32),
    V6(Ipv6Addr, i32),
    All,
}

/// The GID of a port by these settings. The answer depends on the port's table as it is now.
pub fn choose(port: &Port, settings: &Settings, version: Version) -> Choice {
    match port.is_infiniband() {
        true => by_flid(port, settings, version),
        false => match set_index(settings, version) {
            Some(index) => Choice::Index(index),
            None if crashes(settings, version) => Choice::Crash,
            None => search(port, &Wish::new(settings, version), version),
        },
    }
}

/// The index that holds for all RoCE ports: NCCL_IB_GID_INDEX, or what its default means.
pub fn set_index(settings: &Settings, version: Version) -> Option<i32> {
    let default = if version.finds_gid() { -1 } else { 0 };
    let index = number(settings, version, "NCCL_IB_GID_INDEX", default);
    (index >= 0 || !version.finds_gid()).then_some(index)
}

/// The NCCL_IB_ADDR_RANGE that has all these GIDs' addresses and is the smallest, where they are of
/// one family.
pub fn range(addresses: &[Ipv6Addr]) -> Option<String> {
    let first = addresses.first()?;
    let differ = addresses
        .iter()
        .fold(0, |bits, a| bits | (a.to_bits() ^ first.to_bits()));
    let length = differ.leading_zeros();
    let base = Ipv6Addr::from(first.to_bits() & !u128::MAX.checked_shr(length).unwrap_or(0));
    match base.to_canonical() {
        IpAddr::V4(base) => Some(format!("{base}/{}", length.checked_sub(96)?)),
        IpAddr::V6(base) if first.to_ipv4_mapped().is_none() => Some(format!("{base}/{length}")),
        IpAddr::V6(_) => None,
    }
}

/// Places of a port's table. A snapshot can name any number; no table is longer than the 16 bits
/// that the management datagrams have for it (GIDCap of PortInfo in the InfiniBand specification).
pub fn places(port: &Port) -> u32 {
    let used = port.gids.iter().map(|g| g.index.saturating_add(1)).max();
    let places = port.gid_table.unwrap_or(PLACES).max(used.unwrap_or(0));
    places.min(u32::from(u16::MAX))
}

/// Whether the table has such an index.
pub fn has_place(port: &Port, index: i32) -> bool {
    u32::try_from(index).is_ok_and(|index| index < places(port))
}

/// NCCL keeps a number of 64 bits in one of 32.
fn number(settings: &Settings, version: Version, name: &str, default: i64) -> i32 {
    parameter(settings, version, name, default) as i32
}

/// The index of a GID that a router between subnets knows, where there is one (`ncclIbExtractFlid`:
/// the third 16 bits).
fn by_flid(port: &Port, settings: &Settings, version: Version) -> Choice {
    if !version.knows_flid() {
        return Choice::Lid;
    }
    let index = number(settings, version, "NCCL_IB_ROUTABLE_FLID_GID_INDEX", 1);
    if index < 0 {
        return Choice::Unreadable(index);
    }
    let is_routable = has_place(port, index) && address(port, index).segments()[2] != 0;
    Choice::Index(if is_routable { index } else { 0 })
}

/// Whether a NCCL_IB_ADDR_RANGE has no digit behind its slash.
pub(crate) fn lacks_bits(range: &str) -> bool {
    let bits = range
        .split_once('/')
        .map(|(_, bits)| bits.trim_ascii_start());
    let digits = bits.map(|bits| bits.strip_prefix(['-', '+']).unwrap_or(bits));
    digits.is_some_and(|digits| !digits.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether a NCCL_IB_ADDR_RANGE is one that counts for nothing.
pub(crate) fn ignores_range(settings: &Settings, version: Version) -> bool {
    let range = settings.get("NCCL_IB_ADDR_RANGE").unwrap_or_default();
    let is_read = !matches!(Wish::new(settings, version).range, Range::All);
    !range.is_empty() && !is_read && !crashes(settings, version)
}

fn crashes(settings: &Settings, version: Version) -> bool {
    let range = settings.get("NCCL_IB_ADDR_RANGE").unwrap_or_default();
    version.needs_slash() && !range.is_empty() && !range.contains('/')
}

/// Goes through the table, and keeps the better one of two. The type is looked at late: a GID of
/// the family that is wanted replaces one of the other family whatever its type.
fn search(port: &Port, wish: &Wish, version: Version) -> Choice {
    let mut best = 0;
    for next in 1..i32::try_from(places(port)).unwrap_or(i32::MAX) {
        let (held, gid) = (address(port, best), address(port, next));
        if is_ipv6(gid) != wish.ipv6 || !wish.range.has(gid) {
            continue;
        }
        if is_ipv6(held) != wish.ipv6 {
            best = next;
            continue;
        }
        if !is_valid(gid) {
            continue;
        }
        let types = (roce(port, best, version), roce(port, next, version));
        let (had, has) = match types {
            (Err(choice), _) | (_, Err(choice)) => return choice,
            (Ok(had), Ok(has)) => (had, has),
        };
        if has == Some(wish.roce) && (had != has || !is_valid(held)) {
            best = next;
        }
    }
    Choice::Index(best)
}

/// The RoCE version of an index, none where it is unused: the kernel's file then gives EINVAL
/// (`_show_port_gid_attr` in drivers/infiniband/core/sysfs.c).
fn roce(port: &Port, index: i32, version: Version) -> Result<Option<i32>, Choice> {
    match port
        .gids
        .iter()
        .find(|g| i32::try_from(g.index) == Ok(index))
    {
        None if version.skips_untyped() => Ok(None),
        None => Err(Choice::Unreadable(index)),
        Some(gid) => match gid.kind {
            Some(GidKind::IbRoceV1) => Ok(Some(1)),
            Some(GidKind::RoceV2) => Ok(Some(2)),
            None => Err(Choice::Unknown),
        },
    }
}

/// The GID of an index; zeros where it is unused.
fn address(port: &Port, index: i32) -> Ipv6Addr {
    let gid = port
        .gids
        .iter()
        .find(|g| i32::try_from(g.index) == Ok(index));
    gid.map_or(Ipv6Addr::UNSPECIFIED, |g| g.address)
}

/// Whether NCCL takes it for IPv6 (`getGidAddrFamily`): also what is unused, and not the mapped
/// multicast addresses ff0e::ffff:a.b.c.d.
fn is_ipv6(gid: Ipv6Addr) -> bool {
    let [first, rest @ ..] = gid.segments();
    let is_mapped = matches!(first, 0 | 0xff0e) && rest[..5] == [0, 0, 0, 0, 0xffff];
    !is_mapped
}

/// Whether it is an address, and none of fe80::/64 (`validGid`).
fn is_valid(gid: Ipv6Addr) -> bool {
    !gid.is_unspecified() && gid.segments()[..4] != [0xfe80, 0, 0, 0]
}

impl Wish {
    fn new(settings: &Settings, version: Version) -> Wish {
        let ipv6 = settings.get("NCCL_IB_ADDR_FAMILY") == Some("AF_INET6");
        let range = settings.get("NCCL_IB_ADDR_RANGE").unwrap_or_default();
        Wish {
            ipv6,
            range: Range::read(range, ipv6),
            roce: number(settings, version, "NCCL_IB_ROCE_VERSION_NUM", 2),
        }
    }
}

impl Range {
    /// `envIbAddrRange`: what it cannot read is no range, and neither are more bits than there are.
    fn read(text: &str, ipv6: bool) -> Range {
        let Some((address, bits)) = text.split_once('/') else {
            return Range::All;
        };
        let bits = strtol(bits);
        match ipv6 {
            true => match address.parse() {
                Ok(address) if bits <= 128 => Range::V6(address, bits),
                _ => Range::All,
            },
            false => match address.parse() {
                Ok(address) if bits <= 32 => Range::V4(address, bits),
                _ => Range::All,
            },
        }
    }

    fn has(self, gid: Ipv6Addr) -> bool {
        match self {
            Range::All => true,
            Range::V4(base, bits) => {
                let low = Ipv4Addr::from(gid.to_bits() as u32);
                same(base.to_bits().into(), low.to_bits().into(), bits, 32)
            }
            Range::V6(base, bits) => same(base.to_bits(), gid.to_bits(), bits, 128),
        }
    }
}

/// Whether the first `bits` of two numbers of `all` bits are the same.
fn same(a: u128, b: u128, bits: i32, all: u32) -> bool {
    match u32::try_from(bits) {
        Ok(0) => true,
        Ok(bits) => (a ^ b) >> all.saturating_sub(bits) == 0,
        Err(_) => false,
    }
}

/// C's strtol with base 10, kept in 32 bits.
fn strtol(text: &str) -> i32 {
    let text = text.trim_ascii_start();
    let minus = text.starts_with('-');
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let digits = digits.chars().map_while(|c| c.to_digit(10));
    let add = |n: i64, digit: u32| n.saturating_mul(10).saturating_add(digit.into());
    let number = digits.fold(0, add);
    (if minus { -number } else { number }) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const LOCAL: &str = "fe80::ff:fe00:a";
    const FOUR: &str = "::ffff:192.0.2.10";
    const SIX: &str = "2001:db8:1::10";

    /// Each address as v1 and v2; of an empty one, two unused places.
    fn port(addresses: &[&str]) -> Port {
        let gid = |(index, address, kind): (usize, &str, &str)| {
            json!({
                "index": index, "address": address, "kind": kind,
            })
        };
        let both = |(at, address): (usize, &&str)| {
            let address = (*address).to_owned();
            [(2 * at, "IB/RoCE v1"), (2 * at + 1, "RoCE v2")]
                .map(|(index, kind)| (index, address.clone(), kind))
        };
        let all = addresses.iter().enumerate().flat_map(both);
        let gids: Vec<Value> = all
            .filter(|(_, address, _)| !address.is_empty())
            .map(|(index, address, kind)| gid((index, &address, kind)))
            .collect();
        let port = json!({"number": 1, "link_layer": "Ethernet", "gids": gids, "gid_table": 16});
        serde_json::from_value(port).unwrap()
    }

    fn by(addresses: &[&str], env: &[(&str, &str)], version: &str) -> Choice {
        let settings = Settings::of(env.iter().copied(), "the environment");
        choose(&port(addresses), &settings, version.parse().unwrap())
    }

    #[test]
    fn a_table_of_any_length_has_the_places_of_16_bits() {
        let mut port = port(&["::ffff:192.0.2.1"]);
        port.gid_table = Some(u32::MAX);
        port.gids[0].index = u32::MAX;
        assert_eq!(places(&port), 65_535);
    }

    #[test]
    fn an_unset_index_is_searched_from_2_21_5_on() {
        assert_eq!(by(&[LOCAL, FOUR], &[], "2.20.5"), Choice::Index(0));
        assert_eq!(by(&[LOCAL, FOUR], &[], "2.21.5"), Choice::Index(3));
        assert_eq!(by(&[LOCAL, SIX, FOUR], &[], "2.32.3"), Choice::Index(5));
        let asked = [("NCCL_IB_GID_INDEX", "1")];
        assert_eq!(by(&[LOCAL, FOUR], &asked, "2.32.3"), Choice::Index(1));
    }

    #[test]
    fn ipv6_alone_is_taken_only_if_asked_for() {
        let six = [("NCCL_IB_ADDR_FAMILY", "AF_INET6")];
        assert_eq!(by(&[LOCAL, SIX], &[], "2.32.3"), Choice::Index(0));
        assert_eq!(by(&[LOCAL, SIX], &six, "2.32.3"), Choice::Index(3));
        assert_eq!(by(&["", SIX], &six, "2.21.5"), Choice::Unreadable(0));
        assert_eq!(by(&["", SIX], &six, "2.26.2"), Choice::Index(3));
    }

    #[test]
    fn a_range_and_a_version_narrow_the_search() {
        let two = [LOCAL, FOUR, "::ffff:198.51.100.7"];
        let range = |text| by(&two, &[("NCCL_IB_ADDR_RANGE", text)], "2.32.3");
        assert_eq!(range("198.51.100.0/24"), Choice::Index(5));
        assert_eq!(range("198.51.100.0/33"), Choice::Index(3));
        assert_eq!(range("198.51.100.0/-1"), Choice::Index(0));
        let no_slash = [("NCCL_IB_ADDR_RANGE", "198.51.100.0")];
        assert_eq!(by(&two, &no_slash, "2.22.3"), Choice::Crash);
        assert_eq!(by(&two, &no_slash, "2.23.4"), Choice::Index(3));
        let v1 = [("NCCL_IB_ROCE_VERSION_NUM", "1")];
        assert_eq!(by(&two, &v1, "2.32.3"), Choice::Index(2));
    }
}
