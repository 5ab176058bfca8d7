//! Where the NICs go: a container by its init, or a namespace that is kept for one.

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};

use crate::hook::{Hook, Target};
use crate::kernel::Container;
use crate::oci::state::State;
use crate::record::Member;

pub(super) enum Entered<'a> {
    Init(Box<dyn Container>),
    Kept(&'a dyn Container),
}

impl<'a> Entered<'a> {
    pub(super) fn of(hook: &Hook<'a>) -> Result<Entered<'a>> {
        Ok(match hook.target {
            Target::Hold(keeper) => Entered::Kept(keeper.container),
            Target::Attachment(_, Some(netns)) => Entered::Kept(netns),
            Target::Container(_) | Target::Attachment(_, None) => Entered::Init(enter(hook)?),
        })
    }

    pub(super) fn container(&self) -> &dyn Container {
        match self {
            Entered::Init(init) => &**init,
            Entered::Kept(netns) => *netns,
        }
    }
}

/// The container by its init; proves that the pid was not reused meanwhile.
fn enter(hook: &Hook) -> Result<Box<dyn Container>> {
    let pid = hook.state.init()?;
    let container = hook.machine.container(pid).class(
        ErrorClass::State,
        format!("looking at the container's init, pid {pid}"),
    )?;
    if !container.is_running() {
        return Err(ErrorClass::State.error(format!("the container's init, pid {pid}, has ended")));
    }
    Ok(container)
}

pub(super) fn member(hook: &Hook, container: &dyn Container) -> Result<Member> {
    let (pid, State { id, bundle, .. }) = (container.pid(), hook.state);
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

pub(super) fn whose(hook: &Hook) -> &'static str {
    if hook.target.attachment().is_some() {
        "the namespace of CNI_NETNS"
    } else {
        "the container's init"
    }
}
