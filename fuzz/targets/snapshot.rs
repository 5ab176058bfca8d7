//! A file for `--snapshot`, with a config file and annotations: the selection, the plan, and all
//! that is made of them.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use rdma_model::snapshot::Snapshot;
use rdmaprep::attach::plan_attach;
use rdmaprep::drawing::{self, picture};
use rdmaprep::nccl_env::Options;
use rdmaprep::plan::{Plan, rdma_mode};
use rdmaprep::restore::plan::{Goal, plan_restore};
use rdmaprep::select::{BusyNic, Selection, judge};
use rdmaprep::{report, verify};
use serde::Deserialize;

/// The form of the selection's golden cases, as one document.
#[derive(Deserialize)]
struct Case {
    snapshot: Snapshot,
    #[serde(default)]
    config: String,
    #[serde(default)]
    held: Vec<BusyNic>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    rdmaprep_fuzz::json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let Ok(case) = serde_json::from_slice::<Case>(data) else {
        return;
    };
    let seen = &case.snapshot;
    let text = serde_json::to_string(seen).expect("a snapshot as JSON");
    assert_eq!(
        serde_json::from_str::<Snapshot>(&text).expect("ours"),
        *seen
    );
    printable(&report::snapshot_table(seen));
    verify::normal_text(seen);
    let Some(request) = rdmaprep_fuzz::request(&case.config) else {
        return;
    };
    let Ok(wide) = judge(&request, seen, &case.held) else {
        return;
    };
    make(&request, &wide, seen);
    if let Ok(narrow) = request.narrow(&case.annotations) {
        let Ok(chosen) = judge(&narrow, seen, &case.held) else {
            return;
        };
        let (more, less) = (names(&wide), names(&chosen));
        assert!(
            less.is_subset(&more),
            "annotations never widen: {less:?} of {more:?}"
        );
    }
    rdmaprep_fuzz::print_heap();
});

fn names(selection: &Selection) -> BTreeSet<String> {
    selection.kept().map(|v| v.label()).collect()
}

fn printable(text: &str) {
    assert!(
        !text.contains(|c: char| c.is_control() && c != '\n'),
        "a table steers no terminal"
    );
}

/// The plan, the way in, and the way home from where the NICs are.
fn make(request: &rdmaprep::config::request::Request, selection: &Selection, seen: &Snapshot) {
    let plan = Plan::new("p", request, seen, selection, &Options::default());
    let text = serde_json::to_string(&plan).expect("a plan as JSON");
    assert_eq!(serde_json::from_str::<Plan>(&text).expect("ours"), plan);
    printable(&report::summary(&plan, selection, true));
    let picture = picture(seen, &drawing::fates(selection, seen));
    printable(&drawing::text(&picture));
    let _ = rdma_mode::check(&plan.nics, &plan.ib, seen);
    // Without route lookups nothing would be moved.
    let paths = Some(seen.paths.clone().unwrap_or_default());
    let seen = &Snapshot {
        paths,
        ..seen.clone()
    };
    let Ok(attach) = plan_attach(&plan, seen, &Snapshot::default()) else {
        return;
    };
    plan_restore(&attach.held, seen, Some(&Snapshot::default()), Goal::Exact);
    plan_restore(&attach.held, &Snapshot::default(), Some(seen), Goal::Exact);
    plan_restore(&attach.held, seen, None, Goal::Exact);
}
