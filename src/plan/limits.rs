//! A stored plan, held against what one container may have now.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::Snapshot;

use super::Plan;
use crate::config::network_mode::NetworkMode;
use crate::config::policy::{Policy, PolicyDevice};
use crate::config::request::{ANNOTATION, Request};

impl Request {
    /// That the annotation's list has a NIC that is not in the plan as it is stored: the container
    /// starts without it.
    pub fn note_of_unplanned(&self, plan: &Plan) -> Option<String> {
        let mut wanted = self.narrowing.only.iter().flatten();
        let strange = wanted.find(|name| !plan.has(name))?;
        Some(format!(
            "annotation {ANNOTATION}ifaces names {strange}, which is not in plan {}",
            plan.name
        ))
    }

    /// Whose network a container has: by its annotation, or by its plan.
    pub fn network_mode(&self, stored: Option<&Plan>) -> NetworkMode {
        match stored {
            Some(plan) if self.select.network_mode.is_own() => plan.network_mode,
            _ => self.select.network_mode,
        }
    }

    /// A stored plan without what the container's annotations take away, and without what the
    /// host's policy forbids by now. Of what is not on the host, or where the host was not
    /// observed, the name alone is judged. Its NCCL_IB_HCA is made for the release of NCCL that
    /// [`Request::release`] names.
    pub fn narrowed_plan(&self, plan: Plan, host: Option<&Snapshot>) -> Plan {
        let plan = match self.select.network_mode {
            NetworkMode::Host => plan.on_host(host),
            NetworkMode::Own => plan,
        };
        let release = self.release(plan.nccl_version);
        plan.narrowed(
            |name| self.narrowing.leaves_out(name).is_some(),
            |name| self.forbids_nic(name, host),
            |name| self.leaves_out_hca(name, host),
            host,
        )
        .for_release(release)
    }

    fn forbids_nic(&self, name: &IfName, host: Option<&Snapshot>) -> bool {
        let device = host.and_then(|host| {
            let dev = host.netdev(name)?;
            Some(PolicyDevice::new(name.as_str(), Some(dev), None, host))
        });
        self.is_forbidden(name.as_str(), device)
    }

    /// Whether the container's devices do not name an HCA without a NIC, or it is forbidden.
    fn leaves_out_hca(&self, name: &HcaName, host: Option<&Snapshot>) -> bool {
        let device = host.and_then(|host| {
            let hca = host.hca(name)?;
            Some(PolicyDevice::new(name.as_str(), None, Some(hca), host))
        });
        self.narrowing.leaves_out_hca(name.as_str()).is_some()
            || self.is_forbidden(name.as_str(), device)
    }

    /// Whether annotations exclude that name, or the policy forbids it: what is not on the host is
    /// judged by its name alone.
    fn is_forbidden(&self, name: &str, device: Option<PolicyDevice>) -> bool {
        let policy = &self.host.policy;
        let denied = match device {
            Some(device) => policy.forbids(&device),
            None => policy.forbids_name(name),
        };
        denied.is_some() || self.narrowing.excludes(name).is_some()
    }
}

impl Plan {
    /// Of its NICs and InfiniBand HCAs.
    pub fn count(&self) -> usize {
        self.nics.len() + self.ib.len()
    }

    /// That a container wants less than its namespace has, of which this is the part that it asks
    /// for.
    pub fn fewer_note(&self, given: &Plan) -> Option<String> {
        let note = "it asks for fewer NICs, but a namespace has one set for all of its containers";
        (self.count() < given.count()).then(|| note.to_owned())
    }
}

impl Policy {
    /// Which NICs to leave out is not ours to choose: more than allowed are
    /// [`ErrorClass::Refused`], as is a network that the policy does not allow.
    pub fn check_limits(&self, plan: &Plan) -> Result<()> {
        self.allows_network(plan.network_mode)?;
        let count = plan.rails().count() + plan.ib.len();
        match self.max_nics {
            Some(most) if count > most => Err(ErrorClass::Refused.error(format!(
                "plan {} gives a container {count} NICs, `max_nics` of the host's config file \
                allows {most}: choose by --ifaces, or the container by its annotation \
                rdmaprep.io/ifaces",
                plan.name
            ))),
            _ => Ok(()),
        }
    }
}
