//! What a container's author asks for, against a host's policy: `CONFIG` and, behind an empty line,
//! `KEY=VALUE` annotations. Whatever they say, the container gets no NIC that it would not get
//! without them, and none that the policy forbids; and a plan that was made before the policy gives
//! no more.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rdma_model::snapshot::Snapshot;
use rdmaprep::config::policy::PolicyDevice;
use rdmaprep::config::request::{ANNOTATION, Request};
use rdmaprep::nccl_env::Options;
use rdmaprep::plan::Plan;
use rdmaprep::select::{Selection, judge};

/// Hosts of golden cases, with VLANs, bonds, InfiniBand and soft-RoCE.
static HOSTS: LazyLock<Vec<(Snapshot, Plan)>> = LazyLock::new(|| {
    let texts = [
        include_str!("../../examples/snapshot.json"),
        include_str!("../../tests/cases/hosts/vlan.json"),
        include_str!("../../tests/cases/hosts/infiniband-and-ethernet.json"),
        include_str!("../../tests/cases/hosts/bond.json"),
    ];
    let hosts = texts
        .iter()
        .map(|text| serde_json::from_str(text).expect("a snapshot"));
    hosts
        .map(|seen: Snapshot| (plan(&rdmaprep_fuzz::anything(), &seen).1, seen))
        .map(|(p, s)| (s, p))
        .collect()
});

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (config, annotations) = text.split_once("\n\n").unwrap_or(("", text));
    let config = format!("{config}\n[select]\nexclude = ''\nfamily = 'any'\nib = true");
    let Some(wide) = rdmaprep_fuzz::request(&config) else {
        return;
    };
    let pairs = annotations.lines().filter_map(|line| line.split_once('='));
    let asked: BTreeMap<String, String> = pairs
        .map(|(k, v)| (format!("{ANNOTATION}{k}"), v.to_owned()))
        .collect();
    let Ok(narrow) = wide.narrow(&asked) else {
        return;
    };
    let twice = narrow
        .narrow(&asked)
        .expect("what was taken is taken again");
    for (seen, stored) in &*HOSTS {
        let (more, _) = plan(&wide, seen);
        let (less, fresh) = plan(&narrow, seen);
        assert!(less.is_subset(&more), "{less:?} of {more:?}");
        assert_eq!(plan(&twice, seen).0, less);
        let old = narrow.narrowed_plan(stored.clone(), Some(seen));
        assert_eq!(
            narrow.narrowed_plan(old.clone(), Some(seen)),
            old,
            "narrowing is idempotent"
        );
        assert!(names(&old).is_subset(&names(stored)));
        for made in [&fresh, &old] {
            allowed(&narrow, made, seen);
        }
    }
    rdmaprep_fuzz::print_heap();
});

/// The names that are kept, and the plan.
fn plan(request: &Request, seen: &Snapshot) -> (BTreeSet<String>, Plan) {
    let selection = judge(request, seen, &[]).unwrap_or(Selection {
        verdicts: Vec::new(),
        warnings: Vec::new(),
        gid_range: None,
    });
    let plan = Plan::new("p", request, seen, &selection, &Options::default());
    (selection.kept().map(|v| v.label()).collect(), plan)
}

fn names(plan: &Plan) -> BTreeSet<String> {
    plan.nics
        .iter()
        .map(|n| n.identity.name.to_string())
        .chain(plan.ib.iter().map(ToString::to_string))
        .collect()
}

/// Everything in a plan is what policy and annotations leave, and its device nodes are those of its
/// HCAs.
fn allowed(request: &Request, plan: &Plan, seen: &Snapshot) {
    for nic in &plan.nics {
        let dev = seen
            .netdev(&nic.identity.name)
            .expect("planned from this host");
        let why = request.host.policy.forbids(&PolicyDevice::new(
            dev.name.as_str(),
            Some(dev),
            None,
            seen,
        ));
        assert_eq!(why, None, "moved all the same");
    }
    for name in &plan.ib {
        let why = request.host.policy.forbids(&PolicyDevice::new(
            name.as_str(),
            None,
            seen.hca(name),
            seen,
        ));
        assert_eq!(
            why.or(request.narrowing.excludes(name.as_str())),
            None,
            "given all the same"
        );
    }
    let hcas = plan
        .nics
        .iter()
        .filter_map(|n| n.hca.as_ref())
        .chain(&plan.ib)
        .collect::<BTreeSet<_>>();
    let nodes = plan
        .devices
        .iter()
        .filter(|d| d.name.starts_with("uverbs"))
        .count();
    assert!(nodes <= hcas.len(), "{nodes} nodes for {hcas:?}");
}
