//! A container with claims of Kubernetes: what its node has prepared, and no more.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;

use crate::config::device_request::DeviceRequest;
use crate::config::request::Request;
use crate::plan::Plan;
use crate::record::Record;
use crate::restore::run;
use crate::store::claims::Binding;

use super::{Attempt, Create, Hook};

/// What moves for it: the rails of all claims of its pod, whose containers share a namespace.
/// Nothing where it has no claim.
pub(super) fn request_of_pod(hook: &Hook, request: &Request) -> Result<Option<Request>> {
    let devices = request.narrowing.devices.as_ref();
    let Some(asked) = devices.filter(|devices| !devices.claims.is_empty()) else {
        return Ok(None);
    };
    let mut all = hook.store.bindings(hook.machine.boot_id())?;
    all.retain(|binding| !binding.ended);
    let own = own(&all, asked)?;
    let mut pods: BTreeSet<&str> = BTreeSet::new();
    pods.extend(own.iter().flat_map(|b| &b.pod).map(|pod| pod.uid.as_str()));
    ensure!(
        pods.len() < 2,
        ErrorClass::Refused.error("the container has claims of two pods")
    );
    let mut given = DeviceRequest::default();
    for binding in &all {
        let pod = binding.pod.as_ref();
        if own.contains(&binding) || pod.is_some_and(|pod| pods.contains(pod.uid.as_str())) {
            given.extend(binding.rails());
            given.claims.insert(binding.claim.uid.clone());
        }
    }
    let mut request = request.clone();
    request.narrowing.devices = Some(given);
    Ok(Some(request))
}

/// The bindings of its own claims, which have all that it asks for.
fn own<'b>(all: &'b [Binding], asked: &DeviceRequest) -> Result<Vec<&'b Binding>> {
    let (mut own, mut given) = (Vec::new(), DeviceRequest::default());
    for uid in &asked.claims {
        let Some(binding) = all.iter().find(|b| b.claim.uid == *uid) else {
            let text = format!("claim {uid} is not prepared on this node");
            return Err(ErrorClass::Refused.error(text));
        };
        given.extend(binding.rails());
        own.push(binding);
    }
    ensure!(
        asked.is_within(&given),
        ErrorClass::Refused.error("the container names rails that its claims do not have")
    );
    Ok(own)
}

impl Create<'_> {
    pub(super) fn claims(&self) -> impl Iterator<Item = &String> {
        let devices = self.request.narrowing.devices.as_ref();
        devices.into_iter().flat_map(|devices| &devices.claims)
    }

    /// A rail that a pod is about to get is no one else's, nor one that is on its way back from it.
    /// [`ErrorClass::Locked`] names its claim.
    pub(super) fn check_unbound(&self, plan: &Plan) -> Result<()> {
        for binding in self.hook.store.bindings(self.hook.machine.boot_id())? {
            if self.claims().any(|own| *own == binding.claim.uid) {
                continue;
            }
            for rail in binding.rails() {
                let name = rail.to_string();
                let alone: DeviceRequest = std::iter::once(rail).collect();
                let is_planned = alone.lacking(plan).next().is_none();
                if is_planned {
                    return Err(ErrorClass::Locked.error(format!(
                        "the claim {}/{} has {name}",
                        binding.namespace, binding.claim.name
                    )));
                }
            }
        }
        Ok(())
    }

    /// This container's part of the plan; and the whole of it, where other containers have more.
    pub(super) fn part_of_pod(&self, plan: Plan, host: &Snapshot) -> (Plan, Option<Plan>) {
        match self.own.narrowing.devices == self.request.narrowing.devices {
            true => (plan, None),
            false => (self.own.part_of(&plan, Some(host)), Some(plan)),
        }
    }

    /// The pod's NICs may be in a namespace that its sandbox had before: `reclaim` leaves them
    /// there, as their claim keeps them. [`ErrorClass::Locked`]: another pod uses the claim; the
    /// kubelet asks no one before it starts a second one.
    pub(super) fn take_back_claimed(&self, attempt: &mut Attempt) -> Result<()> {
        let own = attempt.recipient.netns();
        let away = attempt.records.readable().filter(|r| {
            r.netns != own && !r.is_back() && self.claims().any(|uid| r.claims.contains(uid))
        });
        let elsewhere: Vec<Record> = away.cloned().collect();
        for record in elsewhere {
            ensure!(
                self.hook.machine.is_abandoned(&record),
                ErrorClass::Locked.error("another pod runs with this claim: one at a time")
            );
            run::restore(self.hook.machine, &mut attempt.records, record)?;
        }
        Ok(())
    }
}
