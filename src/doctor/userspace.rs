//! Whether the image of a container has what its HCAs need of rdma-core.

use nccl_rules::explain::uses_data_direct as uses;

use super::{Check, CheckContext, Finding, Severity};
use crate::container::userspace::{Lack, Need};

pub(super) fn libraries(context: &CheckContext) -> Vec<Finding> {
    let found = context.of.machine.and_then(|m| m.userspace.as_ref());
    let hcas = context.of.snapshot.hcas.iter();
    let given = hcas.filter(|hca| context.has_node(hca));
    let drivers: Vec<_> = given
        .filter_map(|hca| Some((&hca.name, hca.driver.as_deref()?)))
        .collect();
    let lacks = found.map(|found| found.lacks(drivers, uses_data_direct(context)));
    let mut lacks = lacks.unwrap_or_default();
    let release = context.release().unwrap_or_default();
    if !release.opens_named_verbs() {
        lacks.retain(|lack| !matches!(lack.need, Need::Named | Need::NamedVerbs));
    }
    lacks.into_iter().map(finding).collect()
}

fn uses_data_direct(context: &CheckContext) -> bool {
    let release = context.release().unwrap_or_default();
    let settings = context.of.settings;
    settings.is_ok_and(|settings| uses(settings, context.of.snapshot, release))
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
