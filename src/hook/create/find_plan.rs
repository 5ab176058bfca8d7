//! Which plan a recipient gets: the stored one, its keeper's, or one that is made now, less what it
//! may not have.

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;
use rdma_model::values::PlanName;

use crate::config::request::Request;
use crate::config::sandbox::Sandbox;
use crate::kernel::{RoutesOf, Scope};
use crate::plan::Plan;
use crate::planner::{self, fresh_plan};
use crate::select::BusyNic;

use super::{Attempt, Create};

const HAS_OWN: &str = "its plan, or its annotation rdmaprep.io/host-network, is for containers on \
    the host's network, and this one has a network of its own";

pub(super) const ON_HOST: &str = "the container shares the host's network namespace: it has all \
    NICs already; start it with `--network none`, or on a bridge; or let it have its plan there, \
    without a move: annotation rdmaprep.io/host-network=true, where the host's config file has \
    `host_network = true`";

/// What is left of the plan for this recipient, and the host at that moment.
pub(super) struct PlanAndHost {
    pub(super) plan: Plan,
    pub(super) host: Snapshot,
}

impl Create<'_> {
    /// Refuses a plan for what the request, the policy, an agreement or other holders say. Claims
    /// and a namespace that has NICs already come before, what has changed on the host after
    /// (`plan_attach`).
    pub(super) fn find_plan(
        &mut self,
        name: &PlanName,
        attempt: &mut Attempt,
    ) -> Result<PlanAndHost> {
        let hook = self.hook;
        let busy = planner::busy_nics(&attempt.records, hook.machine);
        let whole = self.whole_plan(name, attempt, &busy)?;
        let request = &attempt.pod_request;
        let policy = &request.host.policy;
        // Asked again below. This one saves the look at the host, which would keep the lock from
        // others at each try of a container that waits. A policy that judges hardware needs it.
        if !policy.asks_for_hardware() {
            planner::check_free(&request.narrowed_plan(whole.clone(), None), &busy)?;
        }
        let scope = self.scope_of(&whole, request);
        let host = attempt.world.observe(Side::Host, &scope)?;
        let (plan, unplanned) = request.what_is_left(whole, &host)?;
        planner::check_agreed(&plan, hook.agreed_digest())?;
        check_network(&plan, attempt)?;
        policy.check_limits(&plan)?;
        self.check_unbound(attempt, &plan)?;
        planner::check_free(&plan, &busy)?;
        // The links by which the host, and the job's peers, bootstrap and rendezvous, are reached
        // now: `plan_attach` refuses to move them.
        let job = plan.job.clone().with(&request.job());
        let paths = plan.moves().then(|| attempt.world.host_paths(&host, &job));
        self.report.note_once(unplanned);
        // Last: a NIC that has gone may be another container's, which `check_free` names.
        planner::check_damaged_records(&attempt.records, attempt.recipient.netns(), &plan, &host)?;
        Ok(PlanAndHost {
            plan,
            host: Snapshot { paths, ..host },
        })
    }

    /// As it is stored, made now, or the keeper's; the request has not narrowed it yet.
    fn whole_plan(&self, name: &PlanName, attempt: &mut Attempt, busy: &[BusyNic]) -> Result<Plan> {
        let Attempt {
            world, pod_request, ..
        } = attempt;
        if let Some(keeper) = self.hook.target.keeper() {
            return Ok(keeper.plan.clone());
        }
        if let Some(plan) = planner::stored_plan(self.hook.store, pod_request, name)? {
            return Ok(plan);
        }
        // None is stored: it is made, of the NICs that the container's devices name, if they do.
        let request = pod_request.of_devices();
        planner::check_named_free(&request, busy)?;
        fresh_plan(&request, name.as_str(), &mut **world, busy)
    }

    fn scope_of(&self, plan: &Plan, request: &Request) -> Scope {
        let nics: Vec<IfName> = plan.nics.iter().map(|n| n.name().clone()).collect();
        let job = plan.job.clone().with(&request.job());
        let is_for_rdma_proxy =
            plan.sysfs.is_proxy() || self.hook.target.sandbox() == Some(Sandbox::RdmaProxy);
        Scope {
            // Hardware is judged by it: whether the policy allows it, and gVisor's proxy takes it.
            sysfs: request.host.policy.asks_for_hardware() || is_for_rdma_proxy,
            // Links in other namespaces that sit on these NICs.
            elsewhere: true,
            routes: RoutesOf::leaving(nics.iter(), &job),
            ..Scope::for_nics(nics)
        }
    }
}

/// That a plan which moves NICs is for a container with a network of its own, and no other plan is.
fn check_network(plan: &Plan, attempt: &Attempt) -> Result<()> {
    let has_own = attempt.recipient.netns() != attempt.host_netns;
    let why = match has_own {
        true => HAS_OWN,
        // Only if the stored plan has changed after `is_for_host` read it, without the lock.
        false => ON_HOST,
    };
    ensure!(plan.moves() == has_own, ErrorClass::Refused.error(why));
    Ok(())
}
