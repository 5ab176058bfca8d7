//! A container whose namespace has NICs already: the other stage of its own create, or a second
//! container.

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::step::Side;

use crate::config::request::Request;
use crate::container::running_setup::RunningSetup;
use crate::container::setup::Observations;
use crate::kernel::Scope;
use crate::plan::Plan;
use crate::planner;
use crate::record::Record;
use crate::restore::nic_names;
use crate::restore::stays_for::StaysFor;
use crate::store::settings_files::SettingsFile;

use super::recipient::member;
use super::{Attempt, Create};

impl Create<'_> {
    /// A second container joins the first; the other create stage of one that is a member already
    /// has nothing to do.
    pub(super) fn join(
        &mut self,
        attempt: Attempt,
        mut record: Record,
        nics_stay_for: StaysFor,
    ) -> Result<()> {
        self.check_asks_for_same(&attempt.pod_request, &record)?;
        self.report.nics = nic_names(&record.held);
        let newcomer = member(self.hook, attempt.recipient)?;
        if record.members.contains(&newcomer) {
            return Ok(());
        }
        self.report.notes.push(format!(
            "joined {}, which has the namespace's NICs",
            first_member(&record)
        ));
        // By the stop hook of the last member the NICs go home: those that have ended stay members
        // until theirs, unless a claim keeps the NICs. This container may be a member already, as
        // another process: it was restarted without its stop hook.
        let awaits_stops = nics_stay_for != StaysFor::Claim;
        let mut members = record.members.clone();
        members.retain(|member| {
            let stays = awaits_stops || self.hook.machine.is_alive(&record, member);
            stays && !self.hook.is_for(member)
        });
        members.push(newcomer);
        record.members = members;
        self.set_up_member(attempt, &record)
    }

    /// A namespace has one set of NICs for all of its containers.
    fn check_asks_for_same(&mut self, request: &Request, record: &Record) -> Result<()> {
        let named = request.named_plan.as_ref();
        if let Some(plan) = named.filter(|plan| plan.as_str() != record.plan) {
            return Err(ErrorClass::Refused.error(format!(
                "{} has plan {} in this namespace, not {plan}",
                first_member(record),
                record.plan
            )));
        }
        let Some(given) = &record.given else {
            return Ok(());
        };
        planner::check_agreed(given, self.hook.agreed_digest())?;
        let narrowed = request.narrowed_plan(Plan::clone(given), None);
        self.report.notes.extend(narrowed.fewer_note(given));
        // Its pod may have got another claim since the first container was created.
        let own = self.container_request;
        own.check_has_all_asked(&own.narrowed_plan(Plan::clone(given), None))
    }

    /// A second container has a /sys, an environment and device nodes of its own: for the NICs that
    /// its devices name, else for all that the first one got. It is a member when that is set up.
    fn set_up_member(&mut self, mut attempt: Attempt, record: &Record) -> Result<()> {
        let mut setup = None;
        if let Some(given) = record.given.as_deref() {
            // Only the nodes of HCAs without a netdev are not in the plan.
            let host = match given.ib.is_empty() {
                true => None,
                false => Some(attempt.world.observe(Side::Host, &Scope::network())?),
            };
            let plan = self.container_request.part_of(given, host.as_ref());
            // The namespace was not observed. For /sys the plan's NICs are all that there are; what
            // else depends on it is left out.
            setup = self.fit(plan, Observations::default(), &mut attempt)?.setup;
        }
        let file = SettingsFile::OfNamespace(record.netns);
        self.finish_setup(setup.map(RunningSetup::begin), &file, attempt.recipient)?;
        attempt.records.save(record)
    }
}

fn first_member(record: &Record) -> &str {
    let first = record.members.first();
    first.map_or("another container", |m| m.id.as_str())
}
