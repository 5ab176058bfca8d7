//! Planes: HCAs of NCCL_IB_HCA that share a number.

use super::Taken;
use crate::explanation::{Trap, Warning};
use crate::ifname::Patterns;
use crate::version::Version;

/// Planes of NCCL_IB_HCA's fourth field that its devices cannot have: a thirteenth one, or one with
/// the bit of merged devices, as each negative number of 16 bits has below -1
/// (src/transport/net_ib/init.cc, `ncclIbGetPlaneIndex`, in 2.30.7). With the first port that has
/// such a plane.
pub(super) fn refused_plane(
    version: Version,
    patterns: &Patterns,
    taken: &[Taken],
) -> Option<(usize, Warning)> {
    const MOST: usize = 12;
    const MERGED: i16 = 1 << 14;
    if !version.splits_fields() || patterns.exclude {
        return None;
    }
    let mut planes: Vec<i16> = Vec::new();
    let mut why = None;
    for (at, port) in taken.iter().enumerate() {
        let (name, number) = (port.hca.name.as_str(), Some(port.port.number));
        let mut entries = patterns.entries.iter();
        let entry = entries.find(|e| e.matches(name, number, patterns.exact));
        let plane = entry.and_then(|e| e.plane).unwrap_or(-1) as i16;
        if plane == -1 || planes.contains(&plane) {
            continue;
        }
        if planes.len() == MOST {
            why = Some((at, format!("more than {MOST} planes")));
            break;
        }
        if plane & MERGED != 0 {
            why = Some((at, format!("plane {plane}")));
            break;
        }
        planes.push(plane);
    }
    let (at, why) = why?;
    let text = format!(
        "NCCL_IB_HCA has {why}: NCCL {version} refuses the list with ncclInvalidUsage, and uses no \
        HCA"
    );
    let refused = Warning {
        trap: Trap::Planes,
        fatal: true,
        text,
    };
    Some((at, refused))
}
