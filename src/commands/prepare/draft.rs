//! What `prepare` is about to store, decided and edited to the end while nothing is written: alone, or for a part that all nodes
//! have, and then before this node says yes to it.

use std::path::Path;

use anyhow::{Context, Result};
use rail_agreement::Agreement;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::IfName;
use rdma_model::snapshot::Snapshot;

use super::Decision;
use crate::cli::PrepareArgs;
use crate::commands::peers::Meeting;
use crate::commands::spec::{Edited, edit};
use crate::commands::{recorded, warn};
use crate::config::request::Request;
use crate::kernel::Kernel;
use crate::kernel::host::files;
use crate::kernel::netns::Netns;
use crate::kernel::store::Store;
use crate::oci::edit;
use crate::planner::{check_agreed, moved_away, observe_host, options, plan_of_any, plan_with};

/// What a node decides from: one look at the machine, for as many decisions as it takes.
pub(super) struct DraftInputs<'a> {
    request: &'a Request,
    name: &'a str,
    config: Option<&'a str>,
    store: &'a Store,
    pod: Option<Snapshot>,
    /// Absent for a recorded machine.
    live: Option<Kernel>,
    seen: Snapshot,
}

/// A decision, and what becomes of the bundle: nothing of it is written.
pub(super) struct Draft {
    pub(super) decision: Decision,
    pub(super) edited: Option<Edited>,
    /// What the user should hear although it works.
    pub(super) notes: Vec<String>,
}

impl<'a> DraftInputs<'a> {
    /// Looks at this machine, or at a recorded one.
    pub(super) fn new(
        request: &'a Request,
        name: &'a str,
        file: Option<&Path>,
        config: Option<&'a str>,
        store: &'a Store,
    ) -> Result<DraftInputs<'a>> {
        let pod = config.map(super::pod).transpose()?.flatten();
        let (live, seen) = match file {
            Some(file) => (None, recorded(file)?),
            None => {
                let mut live = Kernel::open(Netns::current()?, None)?;
                let seen = observe_host(&mut live, &request.job())?;
                (Some(live), seen)
            }
        };
        Ok(DraftInputs { request, name, config, store, pod, live, seen })
    }

    /// Decides; with an agreement, for just its rails.
    pub(super) fn decide(&mut self, agreement: Option<&Agreement>) -> Result<Decision> {
        let ifaces: Vec<IfName> = agreement.iter().flat_map(|a| a.ifaces()).cloned().collect();
        let mut request = self.request.clone();
        if let Some(agreement) = agreement {
            (request.peer_ifaces, request.agreed) = (ifaces.clone(), ifaces);
            request.agreed_ib = Some(agreement.hcas().cloned().collect());
        }
        let (plan, selection) = plan_with(&request, self.name, &self.seen, self.store, options(&request))?;
        let plan = plan.agreed(agreement.cloned());
        check_agreed(&plan, None)?;
        if agreement.is_none() {
            warn(&self.seen.warnings);
        }
        warn(&selection.warnings);
        warn(&missing_topology(self.request));
        warn(&moved_away(&plan, &request, &self.seen).into_iter().collect::<Vec<_>>());
        let (host, pod) = (self.seen.clone(), self.pod.clone());
        let decision = Decision { plan, selection, view: None, pod, host, recorded: self.live.is_none() };
        match &mut self.live {
            Some(live) => decision.shown(self.config, live),
            // Of a recorded machine there is no /sys to filter: the hook makes the view.
            None => Ok(decision),
        }
    }

    /// All that there is to decide, and whatever could stand against it.
    pub(super) fn draft(&mut self, args: &PrepareArgs, agreement: Option<&Agreement>) -> Result<Draft> {
        let decision = self.decide(agreement)?;
        self.request.host.policy.limits(&decision.plan)?;
        let edit = |text| edit(text, &decision, self.store, self.request, args.hook_timeout);
        let edited = self.config.map(edit).transpose()?;
        let env = |edited: &Edited| edit::environment(&edited.injected.json);
        let told = edited.as_ref().map(|edited| decision.traps(&env(edited), self.request)).transpose()?;
        if !args.dry_run {
            self.store.writable()?;
            args.bundle.as_deref().map_or(Ok(()), files::writable)?;
        }
        Ok(Draft { decision, edited, notes: told.unwrap_or_default() })
    }

    /// The same for what all nodes have: judged before this node says yes, so that it is only the machine that can fail it then.
    pub(super) fn together(&mut self, args: &PrepareArgs, meeting: Meeting) -> Result<Draft> {
        let decided = plan_of_any(self.request, self.name, &self.seen, self.store, options(self.request));
        let (plan, selection) = match decided {
            Ok(decided) => decided,
            Err(e) => return Err(meeting.refuse(e)),
        };
        let setup = meeting.setup(self.request.family, &plan, &selection, &self.seen);
        // One that all would have to refuse is told as a reason, not published.
        if let Err(e) = setup.offer.check_encodable().class(ErrorClass::Refused, "this node cannot take part") {
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
            let agreement = Agreement { store_ifaces: way.clone(), ..agreement.clone() };
            draft = Some(self.draft(args, Some(&agreement))?);
            Ok(())
        })?;
        let same = |draft: &Draft| draft.decision.plan.agreement.as_ref().is_some_and(|a| a.digest == agreement.digest);
        draft.filter(same).context("what was committed is not what was judged")
    }
}

impl Draft {
    /// Stores it, the plan last: a plan speaks of the view, and is used by whoever finds it.
    pub(super) fn write(&self, args: &PrepareArgs, store: &Store) -> Result<()> {
        self.decision.keep_view(store)?;
        if let (Some(bundle), Some(edited)) = (&args.bundle, &self.edited) {
            edited.lay_out(&self.decision, store)?;
            files::replace_keeping_attributes(&bundle.join("config.json"), edited.injected.json.as_bytes())?;
        }
        self.decision.keep(store)
    }
}

fn missing_topology(request: &Request) -> Vec<String> {
    let users = request.passed_on.contains_key("NCCL_TOPO_FILE");
    let asked = request.nccl_topo.as_ref().filter(|f| request.include_nccl_topo && !users && !f.exists());
    asked
        .map(|f| format!("the topology file {} does not exist: NCCL_TOPO_FILE is not set", f.display()))
        .into_iter()
        .collect()
}
