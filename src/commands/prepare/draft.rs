//! What `prepare` is about to store, decided and edited to the end while nothing is written: alone,
//! or for a part that all nodes have, and then before this node says yes to it.

use std::path::Path;

use anyhow::{Context, Result};
use nccl_rules::explain::uses_data_direct;
use nccl_rules::settings::Settings;
use rail_agreement::Agreement;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::Netdev;

use crate::cli::PrepareArgs;
use crate::commands::decision::{Decision, DraftInputs};
use crate::commands::peers::Meeting;
use crate::commands::spec::{Edited, edit};
use crate::commands::warn;
use crate::container::userspace;
use crate::disk::files;
use crate::disk::replace::Replacement;
use crate::link_managers::{Managers, Unordered};
use crate::oci::edit;
use crate::plan::rule_carry;
use crate::select::{Awaits, Configuring};
use crate::store::Store;

pub(super) struct Draft {
    pub(super) decision: Decision,
    pub(super) edited: Option<Edited>,
    /// What the user should hear although it works.
    pub(super) notes: Vec<String>,
}

impl DraftInputs<'_> {
    pub(super) fn draft(
        &mut self,
        args: &PrepareArgs,
        agreement: Option<&Agreement>,
    ) -> Result<Draft> {
        let decision = self.decide(agreement)?;
        self.request.host.policy.check_limits(&decision.plan)?;
        let edit = |text| edit(text, &decision, self.store, self.request, args.hook_timeout);
        let edited = self.config.map(edit).transpose()?;
        let env = |edited: &Edited| edit::environment(&edited.injected.json);
        let traps = edited
            .as_ref()
            .map(|edited| decision.traps(&env(edited), self.request))
            .transpose()?;
        if !args.dry_run {
            self.store.writable()?;
            args.bundle.as_deref().map_or(Ok(()), files::writable)?;
        }
        let plan = &decision.plan;
        let mut notes = match plan.moves() {
            true => rule_carry::left_behind(&plan.nics, &decision.host, decision.pod.as_ref()),
            false => Vec::new(),
        };
        if plan.moves() && !decision.recorded {
            let moved = plan.nics.iter();
            let moved = moved.filter_map(|nic| decision.host.netdev(&nic.identity.name));
            let moved: Vec<&Netdev> = moved.collect();
            let mut managers = Managers::of(Path::new("/"));
            for link in &moved {
                notes.extend(managers.made_again(link));
                notes.extend(managers.modified(link));
                notes.extend(managers.at_work(link).and_then(|w| yet_to_come(link, &w)));
            }
            notes.extend(managers.watched_too(&moved));
            let unordered = managers.unordered(&moved, &decision.host);
            notes.extend(unordered.iter().map(Unordered::note));
        }
        notes.extend(traps.unwrap_or_default());
        let bundle = args.bundle.as_deref().zip(self.config);
        let lacks = bundle.map(|(dir, text)| {
            let env = edited.as_ref().map(env).unwrap_or_default();
            let release = plan.nccl_version.unwrap_or_default();
            let settings = Settings::of(env, "the bundle");
            let is_direct = uses_data_direct(&settings, &decision.host, release);
            userspace::bundle_lacks(dir, text, decision.drivers(), is_direct)
        });
        match lacks.transpose() {
            Ok(lacks) => notes.extend(lacks.iter().flatten().map(ToString::to_string)),
            Err(hidden) => notes.push(hidden),
        }
        Ok(Draft {
            decision,
            edited,
            notes,
        })
    }

    /// A draft of what all nodes have: judged before this node says yes, so that only the machine
    /// can fail it then.
    pub(super) fn together(&mut self, args: &PrepareArgs, meeting: Meeting) -> Result<Draft> {
        let (plan, selection) = match self.selected(self.request) {
            Ok(decided) => decided,
            Err(e) => return Err(meeting.refuse(e)),
        };
        let setup = meeting.setup(self.request.select.family, &plan, &selection, &self.seen);
        // An offer that no node could accept is published as a refusal with its reason.
        if let Err(e) = setup
            .offer
            .check_encodable()
            .class(ErrorClass::Refused, "this node cannot take part")
        {
            return Err(meeting.refuse(e));
        }
        if let Err(e) = selection.some() {
            // The others hear of it by rail.
            meeting.announce(&e);
            let _ = meeting.agree(setup, &mut |_| Ok(()));
            return Err(e);
        }
        warn(&self.seen.warnings);
        let way = meeting.over(&self.seen);
        let mut draft = None;
        let agreement = meeting.agree(setup, &mut |agreement| {
            let agreement = Agreement {
                store_ifaces: way.clone(),
                ..agreement.clone()
            };
            draft = Some(self.draft(args, Some(&agreement))?);
            Ok(())
        })?;
        let same = |draft: &Draft| {
            draft
                .decision
                .plan
                .agreement
                .as_ref()
                .is_some_and(|a| a.digest == agreement.digest)
        };
        draft
            .filter(same)
            .context("what was committed is not what was judged")
    }
}

impl Draft {
    /// Stores the view, the bundle's files, and last the plan: a hook that finds a plan uses it at
    /// once.
    pub(super) fn write(&self, args: &PrepareArgs, store: &Store) -> Result<()> {
        self.decision.keep_view(store)?;
        if let (Some(bundle), Some(edited)) = (&args.bundle, &self.edited) {
            edited.lay_out(&self.decision, store)?;
            Replacement::keeping_attributes()
                .write(&bundle.join("config.json"), edited.injected.json.as_bytes())?;
        }
        self.decision.keep(store)
    }
}

/// Of a NIC whose manager an administrator keeps from it, the addresses are meant.
fn yet_to_come(link: &Netdev, at_work: &Configuring) -> Option<String> {
    let is_kept = matches!(at_work.awaits, Awaits::Networking | Awaits::Connection);
    let name = &link.name;
    (!is_kept).then(|| {
        format!(
            "{name} may have other addresses soon than those of the plan: {}; {}",
            at_work.state(),
            at_work.until(name)
        )
    })
}
