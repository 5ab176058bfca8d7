//! Whether the image of a container has what its HCAs need of rdma-core.

use super::{Check, CheckContext, Finding, Severity};
use crate::container::userspace::{Lack, Need};

pub(super) fn libraries(context: &CheckContext) -> Vec<Finding> {
    let found = context.of.machine.and_then(|m| m.userspace.as_ref());
    let hcas = context.of.snapshot.hcas.iter();
    let given = hcas.filter(|hca| context.has_node(hca));
    let drivers: Vec<_> = given
        .filter_map(|hca| Some((&hca.name, hca.driver.as_deref()?)))
        .collect();
    let lacks = found.map(|found| found.lacks(drivers));
    lacks.into_iter().flatten().map(finding).collect()
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
        Need::Rdmacm => (
            Severity::Warning,
            "NCCL does without it, UCX and MPI do not",
        ),
    };
    Finding::new(Check::Userspace, severity, lack.seen, why, lack.fix)
}
