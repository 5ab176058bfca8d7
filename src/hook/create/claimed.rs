//! A container with claims of Kubernetes: what its node has prepared, and no more.

use std::borrow::Cow;

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;

use crate::config::device_request::DeviceRequest;
use crate::config::request::Request;
use crate::kernel::process::pidfd;
use crate::plan::Plan;
use crate::record::{Record, short_id};
use crate::restore::run;
use crate::restore::stays_for::{AskedBy, StaysFor, stays_for};
use crate::store::claims::Binding;

use super::{Attempt, Create};

impl<'a> Create<'a> {
    /// What moves: the rails of all claims of the container's pod, whose containers share a
    /// namespace. Without a claim, what the container asks for. The caller has the lock.
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
                binding.add_to(&mut given);
            }
        }
        let mut request = request.clone();
        request.narrowing.devices = Some(given);
        Ok(Cow::Owned(request))
    }

    /// The claims' NICs may be in another namespace: of a sandbox that the pod had before, or of
    /// the pod that had the claims before. `reclaim` leaves them there, as a claim keeps them.
    /// [`ErrorClass::Locked`] if one lives there still: the kubelet does not ask before it starts
    /// the next one.
    pub(super) fn restore_claimed_elsewhere(&self, attempt: &mut Attempt) -> Result<()> {
        let (hook, netns) = (self.hook, attempt.recipient.netns());
        let away = attempt.records.readable().filter(|r| {
            r.netns != netns && !r.is_back() && attempt.claims().any(|uid| r.claims.contains(uid))
        });
        let elsewhere: Vec<Record> = away.cloned().collect();
        for record in elsewhere {
            if let Some(for_whom) = stays_for(hook.machine, &record, AskedBy::NextUser) {
                let is_own = record.pod.is_some() && record.pod == hook.target.pod()?;
                let why = match is_own {
                    true => "an earlier sandbox of this pod lives, and has the NICs of its claim",
                    false => "another pod runs with this claim: one at a time",
                };
                let lives = in_words(&for_whom);
                return Err(ErrorClass::Locked.error(format!("{why}: {lives}")));
            }
            // What that notes is of the earlier pod, and no matter of this one's report.
            run::restore(hook.machine, &mut attempt.records, record)?;
        }
        Ok(())
    }

    /// That no rail of the plan is of a claim that is not the pod's own: its pod is about to get
    /// it, or has ended and not returned it yet. [`ErrorClass::Locked`] names the claim.
    pub(super) fn check_unbound(&self, attempt: &Attempt, plan: &Plan) -> Result<()> {
        for binding in self.hook.store.bindings(self.hook.machine.boot_id())? {
            if attempt.claims().any(|own| *own == binding.claim.uid) {
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

    /// Whether claims of the pod's other containers have more than this one asks for.
    pub(super) fn pod_has_more(&self, attempt: &Attempt) -> bool {
        self.container_request.narrowing.devices != attempt.pod_request.narrowing.devices
    }

    /// What of its pod's plan the container gets.
    pub(super) fn own_part(&self, attempt: &Attempt, plan: &Plan, host: &Snapshot) -> Plan {
        match self.pod_has_more(attempt) {
            true => self.container_request.part_of(plan, Some(host)),
            false => plan.clone(),
        }
    }
}

impl Attempt<'_> {
    /// UIDs of the pod's claims.
    pub(super) fn claims(&self) -> impl Iterator<Item = &String> {
        let devices = self.pod_request.narrowing.devices.as_ref();
        devices.into_iter().flat_map(|devices| &devices.claims)
    }
}

/// The container or process that has to end before the NICs are free.
fn in_words(for_whom: &StaysFor) -> String {
    match for_whom {
        StaysFor::Container(id) => format!("container {} runs", short_id(id)),
        StaysFor::Process(pid) => format!("{} is still in its namespace", pidfd::in_words(*pid)),
        StaysFor::Claim => "its claim has not ended".to_owned(),
    }
}

/// The bindings of the claims that a container names, which have all rails that it asks for.
/// [`ErrorClass::Locked`] names the pod that has one of them: the kubelet asks no one before it
/// starts a second pod with a claim. When the first has ended, `rdmaprep-dra` hands the claim on.
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
        given.has_all_rails_of(asked),
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
