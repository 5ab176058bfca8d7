//! Data Direct: a second function of an HCA, by which NCCL reaches GPUs.

use rdma_model::snapshot::{Hca, PciFunction, Snapshot};

use super::parameter;
use crate::settings::Settings;
use crate::version::Version;

/// What NCCL appends to the name of an HCA whose Data Direct function it uses; NCCL_IB_HCA is
/// compared without it (src/transport/net_ib.cc since 2.27.3).
pub(crate) const DIRECT: &str = "_dma";

/// NCCL_IB_DATA_DIRECT: 0 where no Data Direct function is asked for
/// (src/transport/net_ib.cc since 2.27.3).
pub(crate) fn data_direct(settings: &Settings, version: Version) -> i64 {
    match version >= Version::new(2, 27, 3) {
        true => parameter(settings, version, "NCCL_IB_DATA_DIRECT", 1),
        false => 0,
    }
}

/// Whether a function of Data Direct is here, and NCCL asks for it.
pub fn uses_data_direct(settings: &Settings, snapshot: &Snapshot, version: Version) -> bool {
    let mut functions = snapshot.pci.iter();
    functions.any(PciFunction::is_data_direct) && data_direct(settings, version) != 0
}

/// Whether it may have a Data Direct function; which one is its own, firmware says.
pub fn may_be_direct(hca: &Hca) -> bool {
    hca.driver.as_deref() == Some("mlx5_core")
}

pub(crate) fn has_direct(snapshot: &Snapshot, hca: &Hca) -> bool {
    may_be_direct(hca) && snapshot.pci.iter().any(PciFunction::is_data_direct)
}

/// What NCCL's log and topology call an HCA with such a function.
pub(super) fn direct_name(
    settings: &Settings,
    snapshot: &Snapshot,
    version: Version,
    hca: &Hca,
) -> String {
    let name = format!("{}{DIRECT}", hca.name);
    match data_direct(settings, version) {
        1.. if !has_direct(snapshot, hca) => String::new(),
        2 => format!("; with Data Direct NCCL has {name} as well"),
        1.. => format!("; with Data Direct NCCL calls it {name}"),
        _ => String::new(),
    }
}
