//! A container with claims of Kubernetes: what its node has prepared, and no more.

use std::borrow::Cow;

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;

use crate::config::device_request::DeviceRequest;
use crate::config::request::Request;
use crate::plan::Plan;
use crate::record::Record;
use crate::restore::run;
use crate::store::claims::Binding;

use super::{Attempt, Create};

/// What of its pod's plan a container gets; and the whole of it, where other containers get more.
pub(super) struct Share {
    pub(super) of_container: Plan,
    pub(super) whole_pod: Option<Plan>,
}

/// Its bindings, which have all that it asks for. [`ErrorClass::Locked`] names the pod that has one
/// of them: the kubelet asks no one before it starts a second pod with a claim, and `rdmaprep-dra`
/// hands it on when that has ended.
fn own_bindings<'b>(
    all: &'b [Binding],
    asked: &DeviceRequest,
    pod: Option<&str>,
) -> Result<Vec<&'b Binding>> {
    let (mut own, mut given) = (Vec::new(), DeviceRequest::default());
    for uid in &asked.claims {
        let Some(binding) = all.iter().find(|b| b.claim.uid == *uid) else {
            let text = format!("claim {uid} is not prepared on this node");
            return Err(ErrorClass::Refused.error(text));
        };
        check_pod(binding, pod)?;
        given.extend(binding.rails());
        own.push(binding);
    }
    ensure!(
        asked.is_within(&given),
        ErrorClass::Refused.error("the container names rails that its claims do not have")
    );
    Ok(own)
}

/// That the claim is of the pod with the UID `pod`, or of none, and that its pod has not ended.
fn check_pod(binding: &Binding, pod: Option<&str>) -> Result<()> {
    let (namespace, claim) = (&binding.namespace, &binding.claim.name);
    let owner = binding.pod.as_ref();
    let name = owner.map_or("", |owner| &owner.name);
    if let (Some(_), None) = (owner, pod) {
        return Err(ErrorClass::Refused.error(format!(
            "the claim {namespace}/{claim} is pod {name}'s, and linux.cgroupsPath of config.json \
            names no pod"
        )));
    }
    let is_its = owner.is_none_or(|owner| Some(owner.uid.as_str()) == pod);
    let text = match binding.ended {
        true => {
            format!("pod {name} has ended, and has yet to return the claim {namespace}/{claim}")
        }
        false => format!("the claim {namespace}/{claim} is pod {name}'s: one pod at a time"),
    };
    ensure!(is_its && !binding.ended, ErrorClass::Locked.error(text));
    Ok(())
}

impl<'a> Create<'a> {
    /// What moves for it: the rails of all claims of its pod, whose containers share a namespace.
    /// Its own request where it has no claim. The caller has the lock.
    pub(super) fn request_of_pod(&self) -> Result<Cow<'a, Request>> {
        let (hook, request) = (self.hook, self.container_request);
        let devices = request.narrowing.devices.as_ref();
        let Some(asked) = devices.filter(|devices| !devices.claims.is_empty()) else {
            return Ok(Cow::Borrowed(request));
        };
        let pod = hook.target.pod()?;
        let all = hook.store.bindings(hook.machine.boot_id())?;
        let own = own_bindings(&all, asked, pod.as_deref())?;
        let mut given = DeviceRequest::default();
        for binding in all.iter().filter(|binding| !binding.ended) {
            let owner = binding.pod.as_ref().map(|owner| owner.uid.as_str());
            let is_of_pod = owner.is_some() && owner == pod.as_deref();
            if is_of_pod || own.contains(&binding) {
                given.extend(binding.rails());
                given.claims.insert(binding.claim.uid.clone());
            }
        }
        let mut request = request.clone();
        request.narrowing.devices = Some(given);
        Ok(Cow::Owned(request))
    }
}

impl Create<'_> {
    pub(super) fn claims(&self) -> impl Iterator<Item = &String> {
        let devices = self.pod_request.narrowing.devices.as_ref();
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
                if rail.is_in(plan) {
                    return Err(ErrorClass::Locked.error(format!(
                        "the claim {}/{} has {rail}",
                        binding.namespace, binding.claim.name
                    )));
                }
            }
        }
        Ok(())
    }

    pub(super) fn share(&self, plan: Plan, host: &Snapshot) -> Share {
        let has_all =
            self.container_request.narrowing.devices == self.pod_request.narrowing.devices;
        match has_all {
            true => Share {
                of_container: plan,
                whole_pod: None,
            },
            false => Share {
                of_container: self.container_request.part_of(&plan, Some(host)),
                whole_pod: Some(plan),
            },
        }
    }

    /// The pod's NICs may be in a namespace that its sandbox had before: `reclaim` leaves them
    /// there, as their claim keeps them. [`ErrorClass::Locked`]: another pod uses the claim; the
    /// kubelet asks no one before it starts a second one.
    pub(super) fn restore_claimed_elsewhere(&self, attempt: &mut Attempt) -> Result<()> {
        let netns = attempt.recipient.netns();
        let away = attempt.records.readable().filter(|r| {
            r.netns != netns && !r.is_back() && self.claims().any(|uid| r.claims.contains(uid))
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
