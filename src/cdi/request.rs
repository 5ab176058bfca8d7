use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::nic::Nic;
use rdma_model::snapshot::{CharDevice, Snapshot};

use crate::config::device_request::DeviceRequest;
use crate::config::request::Request;
use crate::plan::Plan;

impl Request {
    /// This request of a container whose devices name its NICs, where no plan is stored: they are
    /// chosen among these.
    pub fn of_devices(&self) -> Request {
        let named = self
            .narrowing
            .devices
            .iter()
            .flat_map(DeviceRequest::netdevs)
            .cloned()
            .collect::<Vec<_>>();
        let mut request = self.clone();
        if !named.is_empty() {
            request.select.ifaces = named;
        }
        request
    }

    /// What of a plan that was carried out, or is about to be, is for one of its containers: where
    /// devices name its NICs, these alone. They keep the nodes that the plan gives them, which
    /// [`Request::narrowed_plan`] predicts again, since fewer NICs move then. `host` has the nodes
    /// of HCAs without a netdev: without such HCAs, it need not be observed. In exclusive mode the
    /// host has none of them any more, and could not say what to hide: then it is all of the plan,
    /// and `RunningSetup::conclude` refuses a container that lacks a node.
    pub fn part_of(&self, given: &Plan, host: Option<&Snapshot>) -> Plan {
        let left = self.narrowed_plan(given.clone(), None);
        if given.exclusive || self.narrowing.devices.is_none() || left.count() == given.count() {
            return given.clone();
        }
        let names: Vec<&IfName> = left.nics.iter().map(|n| n.name()).collect();
        let (nics, others): (Vec<&Nic>, Vec<&Nic>) =
            given.nics.iter().partition(|n| names.contains(&n.name()));
        let (ib, other_ib): (Vec<_>, Vec<_>) = given.ib.iter().partition(|h| left.ib.contains(h));
        let nodes = |nics: &[&Nic], ib: &[&HcaName]| -> Vec<CharDevice> {
            let without = ib.iter().filter_map(|name| host?.hca(name)?.uverbs.clone());
            nics.iter()
                .filter_map(|n| n.uverbs.clone())
                .chain(without)
                .collect()
        };
        let (own, foreign) = (nodes(&nics, &ib), nodes(&others, &other_ib));
        let devices = given
            .devices
            .iter()
            .filter(|d| own.contains(d) || !foreign.contains(d))
            .cloned()
            .collect();
        Plan {
            nics: nics.into_iter().cloned().collect(),
            devices,
            ..left
        }
    }

    /// What annotations, devices and policy leave of a plan, which has all that devices name, with
    /// a note on what annotations name besides. [`ErrorClass::Nothing`] where that is nothing.
    pub fn what_is_left(&self, plan: Plan, host: &Snapshot) -> Result<(Plan, Option<String>)> {
        let unplanned = self.note_of_unplanned(&plan);
        let plan = self.narrowed_plan(plan, Some(host));
        self.check_has_all_asked(&plan)?;
        if plan.count() == 0 {
            let why = unplanned.map_or(String::new(), |why| format!(": {why}"));
            return Err(ErrorClass::Nothing.error(format!(
                "annotations and policy leave no NIC of plan {}{why}",
                plan.name
            )));
        }
        Ok((plan, unplanned))
    }

    /// That a plan, which was narrowed already, gives a container all that its devices name: the
    /// engine has given it all of their nodes. So only the devices can leave one out, not an
    /// annotation; else [`ErrorClass::Refused`].
    pub fn check_has_all_asked(&self, plan: &Plan) -> Result<()> {
        let lacking = self
            .narrowing
            .devices
            .iter()
            .flat_map(|asked| asked.lacking(plan));
        let names: Vec<String> = lacking.map(|name| name.as_str().to_owned()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let (names, plan) = (names.join(", "), &plan.name);
        Err(ErrorClass::Refused.error(format!(
            "the container asks for {names} as devices, which plan {plan} cannot give it now: its \
            annotations, the host's policy or `rdmaprep prepare --dry-run` say why; `rdmaprep cdi \
            generate` writes the list of devices again"
        )))
    }
}
