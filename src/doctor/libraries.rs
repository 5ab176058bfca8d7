//! Settings of libraries beside NCCL that name HCAs which a container does not have.

use super::{Check, CheckContext, Finding, Severity, join};
use crate::nccl_env::libraries::{NVSHMEM_MAPPING, NVSHMEM_PES, SETTINGS, means, named_hcas};
use rdma_model::escape::shell_word;

const WHY: &str = "the library passes over a name that is not there, or ends; it never takes \
    another HCA instead";

pub(super) fn named(context: &CheckContext) -> Vec<Finding> {
    let (Ok(settings), Some(id)) = (context.of.settings, context.of.container) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let snapshot = context.of.snapshot;
    let hcas: Vec<&str> = snapshot.hcas.iter().map(|h| h.name.as_str()).collect();
    let interfaces: Vec<&str> = snapshot.netdevs.iter().map(|n| n.name.as_str()).collect();
    let is_mapped = settings
        .get(NVSHMEM_MAPPING)
        .is_some_and(|value| value.starts_with(['1', 'y', 'Y', 't', 'T']));
    let variables = SETTINGS.iter().map(|setting| setting.variable);
    for variable in variables.chain([NVSHMEM_PES]) {
        let value = settings.get(variable).unwrap_or_default();
        let named = named_hcas(variable, value, is_mapped);
        let mut away = named.clone();
        away.retain(|word| !means(variable, word, &hcas, &interfaces));
        if away.is_empty() {
            continue;
        }
        let severity = match away.len() == named.len() {
            true => Severity::Breaks,
            false => Severity::Warning,
        };
        let seen = format!(
            "{variable}={value} names {}, not in this container",
            join(away)
        );
        let fix = format!(
            "unset it, or set what `rdmaprep env --container {} --libraries all` prints",
            shell_word(id)
        );
        found.push(Finding::new(Check::Libraries, severity, seen, WHY, fix));
    }
    found
}
