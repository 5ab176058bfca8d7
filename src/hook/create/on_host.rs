//! A container on the host's network: it gets all of its plan but a move.

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use rdma_model::values::PlanName;

use super::Create;
use super::find_plan::{ON_HOST, PlanAndHost};
use super::fit::Fitted;
use crate::attach::check_on_host;
use crate::container::running_setup::RunningSetup;
use crate::container::setup::Observations;
use crate::kernel::Recipient;
use crate::oci::state::State;
use crate::planner::stored_plan;
use crate::report::Lap;
use crate::store::settings_files::SettingsFile;

impl Create<'_> {
    /// Makes no record, as no NIC has to return. If neither the container nor its plan is for the
    /// host's network, a plan that it names is refused, and the host's default one passes over it.
    pub(super) fn set_up_on_host(
        &mut self,
        name: &PlanName,
        recipient: &dyn Recipient,
    ) -> Result<()> {
        if !self.is_for_host(name) {
            ensure!(
                self.container_request.named_plan.is_none(),
                ErrorClass::Refused.error(ON_HOST)
            );
            // It got nothing that a report could tell of.
            self.report.plan = None;
            return Ok(());
        }
        let mut attempt = self.lock_and_reclaim(recipient, recipient.netns())?;
        let PlanAndHost { plan, host } = self.find_plan(name, &mut attempt)?;
        self.end_lap(Lap::Observe);
        check_on_host(&plan, &host)?;
        let observed = Observations {
            host: Some(&host),
            inside: None,
        };
        let own_part = self.own_part(&attempt, &plan, &host);
        let Fitted { plan, setup } = self.fit(own_part, observed, &mut attempt)?;
        let nics = plan.nics.iter().map(|n| n.name().clone());
        self.report.nics = nics.collect();
        let State { id, bundle, .. } = self.hook.state;
        let pid = recipient.pid();
        let file = SettingsFile::OfContainer { id, bundle, pid };
        self.finish_setup(setup.map(RunningSetup::begin), &file, recipient)?;
        self.report
            .notes
            .push("on the host's network: no NIC has moved".to_owned());
        Ok(())
    }

    /// Whether the container asks for its plan without a move, or its plan is of that kind. What is
    /// wrong with a stored plan, `find_plan` says.
    fn is_for_host(&self, name: &PlanName) -> bool {
        let request = self.container_request;
        let stored = stored_plan(self.hook.store, request, name).unwrap_or_default();
        let mode = request.network_mode(stored.as_ref());
        self.hook.target.is_container() && !mode.is_own()
    }
}
