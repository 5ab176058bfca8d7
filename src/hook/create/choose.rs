//! Which plan a container gets: the stored one, or one that is made now.

use anyhow::Result;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;
use rdma_model::values::PlanName;

use crate::config::request::Request;
use crate::config::sandbox::Sandbox;
use crate::hook::Hook;
use crate::kernel::Scope;
use crate::plan::Plan;
use crate::planner::{self, fresh_plan};

use super::Attempt;

/// What is left of the plan for this container, the host at that moment, and what the container
/// asks for that the plan lacks.
pub(super) fn choose(
    hook: &Hook,
    request: &Request,
    name: &PlanName,
    attempt: &mut Attempt,
) -> Result<(Plan, Snapshot, Option<String>)> {
    let busy = planner::busy_nics(&attempt.records, hook.machine);
    let world = &mut *attempt.world;
    let plan = match hook.target.keeper() {
        Some(keeper) => keeper.plan.clone(),
        None => match planner::stored_plan(hook.store, request, name)? {
            Some(plan) => plan,
            None => {
                let request = request.of_devices();
                planner::check_named_free(&request, &busy)?;
                fresh_plan(&request, name.as_str(), world, &busy)?
            }
        },
    };
    // Before the machine is observed, where the policy asks for nothing of it: a hook that only
    // waits does not keep the lock.
    if !request.host.policy.asks_for_hardware() {
        planner::check_free(&request.narrowed_plan(plan.clone(), None), &busy)?;
    }
    let nics = plan.nics.iter().map(|n| n.identity.name.clone()).collect();
    let is_proxy = plan.sysfs.is_proxy() || hook.target.sandbox() == Some(Sandbox::RdmaProxy);
    let sysfs = request.host.policy.asks_for_hardware() || is_proxy;
    let scope = Scope {
        sysfs,
        elsewhere: true,
        ..Scope::for_nics(nics)
    };
    let host = world.observe(Side::Host, &scope)?;
    let unplanned = request.unplanned(&plan);
    let plan = request.narrowed_plan(plan, Some(&host));
    if plan.nics.is_empty() && plan.ib.is_empty() {
        request.gives_devices(&plan)?;
        return Err(request.nothing_left(&plan, unplanned));
    }
    request.gives_devices(&plan)?;
    planner::check_agreed(&plan, hook.agreed())?;
    request.host.policy.limits(&plan)?;
    planner::check_free(&plan, &busy)?;
    let paths = world.host_paths(&host, &plan.job.clone().with(&request.job()));
    Ok((
        plan,
        Snapshot {
            paths: Some(paths),
            ..host
        },
        unplanned,
    ))
}
