//! Which plan a recipient gets: the stored one, or one that is made now, less what it may not have.

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;
use rdma_model::values::PlanName;

use crate::config::sandbox::Sandbox;
use crate::kernel::{RoutesOf, Scope, World};
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
    pub(super) fn find_plan(
        &mut self,
        name: &PlanName,
        attempt: &mut Attempt,
    ) -> Result<PlanAndHost> {
        let (hook, request) = (self.hook, &*self.pod_request);
        let policy = &request.host.policy;
        let busy = planner::busy_nics(&attempt.records, hook.machine);
        let world = &mut *attempt.world;
        let whole = self.whole_plan(name, world, &busy)?;
        // Before the host is observed for a stored plan: an observation that only ends in a wait
        // would keep the lock from others. A policy that judges hardware needs it, and comes below.
        let by_hardware = policy.asks_for_hardware();
        if !by_hardware {
            planner::check_free(&request.narrowed_plan(whole.clone(), None), &busy)?;
        }
        let host = world.observe(Side::Host, &self.scope_of(&whole))?;
        let unplanned = request.unplanned_note(&whole);
        let plan = request.narrowed_plan(whole, Some(&host));
        request.check_has_all_asked(&plan)?;
        if plan.nics.is_empty() && plan.ib.is_empty() {
            return Err(request.nothing_left(&plan, unplanned));
        }
        planner::check_agreed(&plan, hook.agreed_digest())?;
        let has_own_network = attempt.recipient.netns() != attempt.host_netns;
        ensure!(
            plan.moves() == has_own_network,
            // ON_HOST only if the stored plan has changed after `is_for_host` read it, without the
            // lock.
            ErrorClass::Refused.error(if has_own_network { HAS_OWN } else { ON_HOST })
        );
        policy.check_limits(&plan)?;
        self.check_unbound(&plan)?;
        if by_hardware {
            planner::check_free(&plan, &busy)?;
        }
        // By which links the host, and the job's peers, bootstrap and rendezvous, are reached
        // now: `plan_attach` refuses to move those.
        let job = plan.job.clone().with(&request.job());
        let paths = plan.moves().then(|| world.host_paths(&host, &job));
        self.report.note_once(unplanned);
        // Last: a NIC that has gone may be another container's, which `check_free` names.
        planner::check_damaged_records(&attempt.records, attempt.recipient.netns(), &plan, &host)?;
        Ok(PlanAndHost {
            plan,
            host: Snapshot { paths, ..host },
        })
    }

    /// As it is stored, or made; not narrowed yet.
    fn whole_plan(&self, name: &PlanName, world: &mut dyn World, busy: &[BusyNic]) -> Result<Plan> {
        if let Some(keeper) = self.hook.target.keeper() {
            return Ok(keeper.plan.clone());
        }
        if let Some(plan) = planner::stored_plan(self.hook.store, &self.pod_request, name)? {
            return Ok(plan);
        }
        // None is stored: it is made, of the NICs that the container's devices name, if they do.
        let request = self.pod_request.of_devices();
        planner::check_named_free(&request, busy)?;
        fresh_plan(&request, name.as_str(), world, busy)
    }

    fn scope_of(&self, plan: &Plan) -> Scope {
        let nics: Vec<IfName> = plan.nics.iter().map(|n| n.name().clone()).collect();
        let job = plan.job.clone().with(&self.pod_request.job());
        let is_proxy = self.hook.target.sandbox() == Some(Sandbox::RdmaProxy);
        let by_hardware = self.pod_request.host.policy.asks_for_hardware();
        Scope {
            // Hardware is judged by it, for gVisor's RDMA proxy, too; and a view is a copy of it.
            sysfs: by_hardware || plan.sysfs.is_proxy() || is_proxy,
            // Links in other namespaces that sit on these NICs.
            elsewhere: true,
            routes: RoutesOf::leaving(nics.iter(), &job),
            ..Scope::for_nics(nics)
        }
    }
}
