//! Whether the image of a container has what its HCAs need of rdma-core.

use nccl_rules::explain::data_direct;
use rdma_model::snapshot::PciFunction;

use super::{Check, CheckContext, Finding, Severity};
use crate::container::userspace::{Lack, Need, Userspace};

pub(super) fn libraries(context: &CheckContext) -> Vec<Finding> {
    let found = context.of.machine.and_then(|m| m.userspace.as_ref());
    let hcas = context.of.snapshot.hcas.iter();
    let given = hcas.filter(|hca| context.has_node(hca));
    let drivers: Vec<_> = given
        .filter_map(|hca| Some((&hca.name, hca.driver.as_deref()?)))
        .collect();
    let is_mlx5 = drivers.iter().any(|(_, driver)| *driver == "mlx5_core");
    let lacks = found.map(|found| found.lacks(drivers));
    let mut lacks = lacks.unwrap_or_default();
    let has_provider = lacks
        .iter()
        .all(|lack| !matches!(lack.need, Need::Verbs | Need::Provider));
    if is_mlx5 && has_provider && uses_data_direct(context) {
        lacks.extend(found.and_then(Userspace::lacks_data_direct));
    }
    let release = context.release().unwrap_or_default();
    if !release.opens_named_verbs() {
        lacks.retain(|lack| !matches!(lack.need, Need::Named | Need::NamedVerbs));
    }
    lacks.into_iter().map(finding).collect()
}

/// Whether a function of Data Direct is here, and NCCL would ask for it.
fn uses_data_direct(context: &CheckContext) -> bool {
    let mut functions = context.of.snapshot.pci.iter();
    let release = context.release().unwrap_or_default();
    let settings = context.of.settings;
    functions.any(PciFunction::is_data_direct)
        && settings.is_ok_and(|settings| data_direct(settings, release) != 0)
}

fn finding(lack: Lack) -> Finding {
    let (severity, why) = match lack.need {
        Need::Verbs => (
            Severity::Breaks,
            "NCCL goes on by TCP without a word, unless its own RUNPATH leads to another one",
        ),
        Need::Provider => (
            Severity::Breaks,
            "libibverbs passes such an HCA over, and NCCL goes on without it, or by TCP",
        ),
        Need::Named => (
            Severity::Warning,
            "NCCL goes on with libibverbs.so.1, if that is there, or by TCP without a word",
        ),
        Need::NamedVerbs => (
            Severity::Breaks,
            "NCCL goes on by TCP: it opens no other library then",
        ),
        Need::DataDirect => (
            Severity::Warning,
            "NCCL reaches GPUs by the HCA's own function then, by way of the processor",
        ),
        Need::Rdmacm => (
            Severity::Warning,
            "NCCL does without it, UCX and MPI do not",
        ),
    };
    Finding::new(Check::Userspace, severity, lack.seen, why, lack.fix)
}
