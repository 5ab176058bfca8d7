//! The identifiers of this field as types that cannot hold nonsense: each is validated when it is
//! parsed or deserialized.

use crate::escape::is_plain;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::{checked_text, natural, serde_as_text};

checked_text! {
    /// A network interface's name: 1 to 15 bytes, no `/`, no `:`, no white space, neither `.` nor
    /// `..` (`dev_valid_name()` in the kernel's net/core/dev.c).
    IfName(s) {
        ensure!(!s.is_empty(), "an interface name is empty");
        ensure!(s.len() < 16, "interface name {:?} has {} bytes, the kernel allows 15", s, s.len());
        ensure!(s != "." && s != "..", "{s:?} is no interface name");
        if let Some(bad) = s.chars()
            .find(|c| *c == '/' || *c == ':' || c.is_whitespace() || c.is_control()) {
            bail!("interface name {s:?} holds {bad:?}");
        }
    }
}

checked_text! {
    /// An RDMA device's name (`mlx5_0`, `rocep1s0f0`, `rxe0`): 1 to 63 bytes of letters, digits,
    /// `_`, `-`, `.` (IB_DEVICE_NAME_MAX in the kernel; the character set is what sysfs and NCCL's
    /// list syntax can carry).
    HcaName(s) {
                        ensure!(
            (1..64).contains(&s.len()) && is_plain(s, b"_-.") && s != "." && s != "..",
            "{s:?} is no RDMA device name"
        );
    }, ordered elsewhere
}

impl Ord for HcaName {
    fn cmp(&self, other: &HcaName) -> Ordering {
        natural::order(self.as_str(), other.as_str())
    }
}

impl PartialOrd for HcaName {
    fn partial_cmp(&self, other: &HcaName) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A PCI function's address `DDDD:BB:DD.F` in lower-case hex; domains may have 4 to 8 digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BusId {
    /// PCI domain (segment); more than 16 bits wide behind some bridges (VMD, Hyper-V).
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

impl FromStr for BusId {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        bus_id(s).with_context(|| format!("{s:?} is no PCI address (DDDD:BB:DD.F)"))
    }
}

fn bus_id(s: &str) -> Option<BusId> {
    let (domain, rest) = s.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    Some(BusId {
        domain: hex(domain, 4..=8)?,
        bus: hex(bus, 2..=2)? as u8,
        device: hex(device, 2..=2).filter(|d| *d < 32)? as u8,
        function: hex(function, 1..=1).filter(|f| *f < 8)? as u8,
    })
}

fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    let is_hex = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    u32::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

/// A link-layer address of any length up to 32 bytes (Ethernet 6, IPoIB 20), printed as
/// colon-separated hex.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub Vec<u8>);

impl Mac {
    /// The longest (MAX_ADDR_LEN in include/linux/netdevice.h).
    const LONGEST: usize = 32;

    /// The kernel reports an empty one of a neighbour on a link that has no such addresses, as tun
    /// (neigh_fill_info in net/core/neighbour.c): that is none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Mac> {
        (1..=Mac::LONGEST)
            .contains(&bytes.len())
            .then(|| Mac(bytes.to_vec()))
    }
}

impl FromStr for Mac {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let bytes: Option<Vec<u8>> = s
            .split(':')
            .map(|p| {
                if p.len() == 2 {
                    u8::from_str_radix(p, 16).ok()
                } else {
                    None
                }
            })
            .collect();
        match bytes {
            Some(b) if b.len() <= Mac::LONGEST => Ok(Mac(b)),
            _ => bail!("{s:?} is no link-layer address"),
        }
    }
}

/// A 64-bit GUID, printed as the kernel does: four groups of four hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Guid(pub u64);

impl FromStr for Guid {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let digits: String = s.split(':').collect();
        match (digits.len(), u64::from_str_radix(&digits, 16)) {
            (16, Ok(v)) => Ok(Guid(v)),
            _ => bail!("{s:?} is no GUID"),
        }
    }
}

/// Bytes that we carry without knowing them (netlink attributes), printed as hex.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hex(pub Vec<u8>);

impl FromStr for Hex {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        ensure!(s.is_ascii() && s.len() % 2 == 0, "{s:?} is no hex string");
        let bytes = (0..s.len()).step_by(2);
        let bytes = bytes.map(|i| u8::from_str_radix(&s[i..i + 2], 16));
        Ok(Hex(bytes.collect::<Result<_, _>>()?))
    }
}

serde_as_text!(BusId, Mac, Guid, Hex);

impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!(
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        ))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(
            &self
                .0
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect::<Vec<_>>()
                .join(":"),
        )
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (self.0 >> shift) & 0xffff);
        f.pad(&format!("{a:04x}:{b:04x}:{c:04x}:{d:04x}"))
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_follow_the_kernel() {
        for good in ["eth0", "eth18-0", "eth0.1015", "a", "ABCDEFGHIJKLMNO", "é"] {
            assert_eq!(
                good.parse::<IfName>().map(|n| n.to_string()).ok(),
                Some(good.to_owned())
            );
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "a\nb",
            "a:1",
            "ABCDEFGHIJKLMNOP",
            "a\u{7}",
        ] {
            assert!(bad.parse::<IfName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn bus_ids_round_trip_with_wide_domains() {
        for good in ["0000:00:00.0", "10000:e1:1f.7", "ffff:ff:01.0"] {
            assert_eq!(
                good.parse::<BusId>().map(|b| b.to_string()).ok(),
                Some(good.to_owned())
            );
        }
        for bad in [
            "",
            "00:00.0",
            "0000:00:20.0",
            "0000:00:00.8",
            "0000:0:00.0",
            "+000:00:00.0",
        ] {
            assert!(bad.parse::<BusId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn guids_macs_and_hex_round_trip() {
        assert_eq!(
            "0c42:a103:00fe:1234"
                .parse::<Guid>()
                .map(|g| g.to_string())
                .ok(),
            Some("0c42:a103:00fe:1234".into())
        );
        assert_eq!(
            "02:00:00:00:00:01"
                .parse::<Mac>()
                .map(|m| m.to_string())
                .ok(),
            Some("02:00:00:00:00:01".into())
        );
        assert_eq!(
            "00ff".parse::<Hex>().map(|h| h.to_string()).ok(),
            Some("00ff".into())
        );
        assert!(
            "0".parse::<Hex>().is_err()
                && "zz".parse::<Hex>().is_err()
                && "0c42:a103".parse::<Guid>().is_err()
        );
    }
}
