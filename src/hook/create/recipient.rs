//! Who gets the NICs, and how a record names it.

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::hook::Hook;
use crate::kernel::Recipient;
use crate::oci::state::State;
use crate::record::Member;

/// The container's init, opened. That it runs still, after that, proves that its pid was not reused
/// meanwhile.
pub(super) fn running_init(hook: &Hook) -> Result<Box<dyn Recipient>> {
    let pid = hook.state.init()?;
    let init = hook.machine.recipient(pid).class(
        ErrorClass::State,
        format!("looking at the container's init, pid {pid}"),
    )?;
    if !init.is_running() {
        return Err(ErrorClass::State.error(format!("the container's init, pid {pid}, has ended")));
    }
    Ok(init)
}

pub(super) fn member(hook: &Hook, recipient: &dyn Recipient) -> Result<Member> {
    let (pid, State { id, bundle, .. }) = (recipient.pid(), hook.state);
    let start_time = hook.machine.start_time(pid);
    let start_time =
        start_time.ok_or_else(|| ErrorClass::State.error(format!("pid {pid} has ended")))?;
    Ok(Member {
        id: id.clone(),
        bundle: bundle.clone(),
        pid,
        start_time,
        sandboxed: hook.target.sandbox().is_some(),
        cni: hook.target.attachment().cloned(),
    })
}
