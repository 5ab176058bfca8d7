//! A plan as this container gets it, and what the container lacks for it besides NICs.

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;

use crate::container::running_setup::RunningSetup;
use crate::container::sandbox;
use crate::container::setup::{Observations, SetupContext, SetupNotes, SetupPlan, plan_setup};
use crate::kernel::Recipient;
use crate::nccl_env::Namespace;
use crate::plan::Plan;
use crate::report::Lap;
use crate::store::settings_files::SettingsFile;

use super::{Attempt, Create};

pub(super) struct Fitted {
    pub(super) plan: Plan,
    pub(super) setup: Option<SetupPlan>,
}

impl<'a> Create<'a> {
    /// Fits a plan to the container's sandbox, environment and config.json. Without a container
    /// there is nothing to fit: each is fitted, and set up, as it joins the namespace.
    pub(super) fn fit(
        &mut self,
        plan: Plan,
        observed: Observations,
        attempt: &mut Attempt,
    ) -> Result<Fitted> {
        let Some(context) = self.setup_context() else {
            return Ok(Fitted { plan, setup: None });
        };
        let SetupContext { state, facts, .. } = context;
        let (plan, notes) = sandbox::plan_for_sandbox(plan, state, facts.sandbox, observed.host)?;
        self.report.note_once(notes);
        let (pid, views) = (attempt.recipient.pid(), context.store.views());
        let bundle = match &facts.bundle {
            Some(bundle) => Some(bundle.for_init(pid, &views)?),
            None => None,
        };
        // A container on the host's network is inside the host's namespace.
        let inside = match plan.moves() {
            true => observed.inside,
            false => observed.host,
        };
        let namespace = inside.map_or(Namespace::Unknown, Namespace::Seen);
        let plan = match &bundle {
            Some(bundle) => plan.for_container(&bundle.env, namespace),
            None => plan,
        };
        let (notes, setup) = plan_setup(&context, bundle, &plan, observed, &mut *attempt.world);
        self.note_setup(notes);
        let setup = setup?;
        if let (Some(setup), Some(host), Some(inside)) = (&setup, observed.host, inside) {
            let pitfalls = setup.nccl_pitfalls(&plan, host, inside);
            self.report.note_once(pitfalls);
        }
        Ok(Fitted { plan, setup })
    }

    /// Ends a container's setup, which was begun; lifts its memlock limit; and sees that it runs
    /// still, [`ErrorClass::State`] if not. Where there is a record, it is saved after this.
    pub(super) fn finish_setup(
        &mut self,
        setup: Option<RunningSetup>,
        file: &SettingsFile,
        recipient: &dyn Recipient,
    ) -> Result<()> {
        if let Some(setup) = setup
            && let Some(context) = self.setup_context()
        {
            let (notes, result) = setup.end(&context, file);
            self.end_lap(Lap::Setup);
            self.note_setup(notes);
            result?;
        }
        self.try_to_lift_memlock(recipient);
        let text = format!("{} has ended", self.hook.target.recipient_in_words());
        ensure!(recipient.is_running(), ErrorClass::State.error(text));
        Ok(())
    }

    fn note_setup(&mut self, notes: SetupNotes) {
        let report = &mut *self.report;
        report.sysfs = notes.sysfs.or(report.sysfs.take());
        report.settings = notes.settings.or(report.settings.take());
        for what in notes.from_memory {
            if !report.from_memory.contains(&what) {
                report.from_memory.push(what);
            }
        }
        report.note_once(notes.notes);
    }

    fn setup_context(&self) -> Option<SetupContext<'a>> {
        Some(SetupContext {
            state: self.hook.state,
            facts: self.hook.target.facts()?,
            store: self.hook.store,
            deadline: self.hook.deadline,
        })
    }

    /// Sets the limit of the container's init to unlimited, unless the host's config file forbids
    /// that; a failure is only reported. Of use where no config.json was edited, which would say
    /// it: if another one has a limit, runc sets that after its hooks.
    fn try_to_lift_memlock(&mut self, recipient: &dyn Recipient) {
        if self.hook.target.is_container() && self.container_request.host.lift_memlock {
            self.report.memlock = Some(match recipient.lift_memlock() {
                Ok(()) => "unlimited".to_owned(),
                Err(e) => format!("as it was: {e:#}"),
            });
        }
    }
}
