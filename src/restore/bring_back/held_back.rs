//! What stays of a record of which not all is back.

use std::collections::BTreeSet;

use anyhow::Result;

use rdma_model::drift::Drift;
use rdma_model::error_class::ErrorClass;
use rdma_model::host_objects::HostObjects;
use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;
use rdma_model::nic::Nic;
use rdma_model::upper_lower;

use super::{BringBack, Ran, delete_stand_ins};
use crate::record::Record;
use crate::restore::forget::not_begun_by_networkd;
use crate::restore::legs::hand_over;
use crate::restore::plan::{RestorePlan, StuckNic};
use crate::restore::settle::Settled;
use crate::verify;

impl BringBack<'_, '_> {
    /// Keeps the record with what is missing: `status` and `doctor` say why. Without a place to
    /// write it they say only that the NICs are away.
    pub(super) fn keep(
        mut self,
        plan: RestorePlan,
        ran: Ran,
        remaining: Vec<String>,
        mut notes: Vec<String>,
        settled: Settled,
    ) -> anyhow::Error {
        let names = plan.stuck_nics();
        let RestorePlan { stuck, missing, .. } = plan;
        let not_begun = not_begun_by_networkd(&self.record, &settled.waiting);
        let let_go = match remaining.is_empty() {
            true => self.let_go_of_whole(&names, &settled),
            // It is not known on which NICs links are left.
            false => Ok(()),
        };
        let mut why: Vec<String> = stuck.iter().map(StuckNic::to_string).collect();
        let errors = self.unsaved.iter().chain(&ran.errors);
        why.extend(errors.chain(&let_go.err()).map(|e| format!("{e:#}")));
        why.extend(remaining);
        why.extend(settled.drift.iter().map(Drift::to_string));
        // Where nothing is lacking, what a manager took has been put back: that is a note.
        let is_lost = !settled.drift.is_empty();
        let why_or_note = if is_lost { &mut why } else { &mut notes };
        why_or_note.extend(settled.fought);
        if stuck.is_empty() {
            why.extend(advice(&settled.drift, &self.record));
        }
        let restore = self.record.restore_command();
        if missing > 0 {
            why.push(format!("`{restore} --forget` gives up what has gone"));
        }
        let text = format!(
            "{}; run `{}` when that is settled",
            [&why[..], &notes[..]].concat().join("; "),
            restore
        );
        let record = &mut self.record;
        record.keep_objects_until_back = [names, not_begun].concat();
        record.held_back = why;
        record.notes = notes;
        // Objects of the host that no NIC awaits have been put back.
        if record.keep_objects_until_back.is_empty() {
            record.host_objects = HostObjects::default();
        }
        let _ = self.records.save(&self.record);
        ErrorClass::Incomplete.error(text)
    }

    /// What happens from now on to NICs that are back whole is the host's own matter: a further try
    /// would undo it.
    fn let_go_of_whole(&mut self, stuck: &[IfName], settled: &Settled) -> Result<()> {
        let left = not_whole(&self.record, stuck, settled);
        let mut whole = self.record.clone();
        whole.held.retain(|h| !left.contains(h.name()));
        if left.is_empty() || whole.held.is_empty() {
            return Ok(());
        }
        // Of routes over a NIC that is away the parts that are there stay.
        let possible = self.absent.possible(&whole).held;
        if !delete_stand_ins(self.world, &possible, &settled.drift)?.is_empty() {
            return Ok(());
        }
        hand_over(self.world, self.records, &self.absent, &whole, &self.others)?;
        self.record = self.record.reduced_to(&left);
        Ok(())
    }
}

/// NICs that lack something or wait, and those that come along with them; all of them where it is
/// no NIC that lacks something.
fn not_whole(record: &Record, stuck: &[IfName], settled: &Settled) -> Vec<IfName> {
    let stuck = stuck.iter().map(IfName::as_str);
    let waiting = settled.waiting.iter().map(|w| w.nic.as_str());
    let lacking = settled.drift.iter().map(|drift| drift.dev.as_str());
    let named: BTreeSet<&str> = stuck.chain(waiting).chain(lacking).collect();
    let nics: Vec<Nic> = record.held.iter().map(|h| h.nic.clone()).collect();
    let of_nics = record
        .held
        .iter()
        .filter(|h| named.contains(h.name().as_str()));
    let roots: Vec<&IfName> = of_nics.map(|h| root_of(h, &nics)).collect();
    let mut left: Vec<IfName> = record.names().cloned().collect();
    if roots.len() == named.len() {
        let by_root = record
            .held
            .iter()
            .filter(|h| roots.contains(&root_of(h, &nics)));
        left = by_root.map(|h| h.name().clone()).collect();
    }
    left
}

fn root_of<'a>(held: &'a MovedNic, nics: &'a [Nic]) -> &'a IfName {
    upper_lower::moved_root(&held.nic, nics).name()
}

/// How to give up what cannot be restored.
fn advice(drift: &[Drift], record: &Record) -> Option<String> {
    let restore = record.restore_command();
    if verify::lacks_program(drift) {
        return Some(format!(
            "a BPF program that has ended cannot be put back: `{restore} --forget` gives up, \
            then attach it again"
        ));
    }
    let is_of_device = !drift.is_empty() && drift.iter().all(Drift::is_of_device);
    is_of_device.then(|| {
        format!(
            "what the driver or the kernel refuses can be set by hand; `{restore} --forget` \
            gives it up"
        )
    })
}
