//! The host's policy: what it forbids no container gets, whatever plans, annotations and flags say;
//! and its keys are documented.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;
use rdmaprep::cli::{Global, SelectArgs};
use rdmaprep::config::file::ConfigFile;
use rdmaprep::config::host::{Config, Host};
use rdmaprep::config::policy::PolicyDevice;
use rdmaprep::config::request::Request;
use rdmaprep::nccl_env::Options;
use rdmaprep::plan::Plan;
use rdmaprep::select::judge;

const SELECT: &str = "[select]\nexclude = ''\nfamily = 'any'\nib = true\n";

fn request(policy: &str) -> Request {
    let config = ConfigFile::new(&format!("{policy}\n{SELECT}"))
        .config()
        .unwrap();
    let host = Host::new(&Global::default(), &config);
    Request::new(None, &SelectArgs::default(), host, config.select, |_| None).unwrap()
}

/// Three mlx5 NICs, NICs with VLANs, InfiniBand, a bond with its HCA.
fn hosts() -> Vec<Snapshot> {
    let names = [
        "plain-rail-order-is-pci",
        "vlan-comes-along",
        "infiniband-asked",
        "bond-with-its-own-hca-named",
    ];
    let cases = testkit::repository("tests/cases/select");
    names
        .map(|name| testkit::golden::host(&cases.join(name)))
        .to_vec()
}

fn plan(request: &Request, seen: &Snapshot) -> Plan {
    let selection = judge(request, seen, &[]).unwrap_or_default();
    Plan::new("p", request, seen, &selection, &Options::default())
}

fn names(plan: &Plan) -> BTreeSet<String> {
    plan.nics
        .iter()
        .map(|n| n.name().to_string())
        .chain(plan.ib.iter().map(ToString::to_string))
        .collect()
}

/// A regex that matches some of what the hosts above have.
fn regex(words: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(prop::sample::select(words).prop_map(str::to_owned), 0..3)
}

const NAMES: &[&str] = &["^rdma[01]$", "0", "^mlx5_", "[.]", "^bond", "ib", "."];
const PCI: &[&str] = &["^0000:[12]7:", "^0000:17:00[.]0$", "37", ":00[.]1$", "."];
const DRIVERS: &[&str] = &["^mlx5_core$", "^mlx", "rxe", "."];

fn policy() -> impl Strategy<Value = String> {
    let six = (
        regex(NAMES),
        regex(NAMES),
        regex(PCI),
        regex(PCI),
        regex(DRIVERS),
        regex(DRIVERS),
    );
    six.prop_map(
        |(allow, deny, allow_pci, deny_pci, allow_drivers, deny_drivers)| {
            format!(
                "allow = {allow:?}\ndeny = {deny:?}\nallow_pci = {allow_pci:?}\ndeny_pci = \
            {deny_pci:?}\n\
             allow_drivers = {allow_drivers:?}\ndeny_drivers = {deny_drivers:?}"
            )
        },
    )
}

fn annotations() -> impl Strategy<Value = BTreeMap<String, String>> {
    let ifaces = prop::option::of(prop::sample::subsequence(
        vec!["rdma0", "rdma1", "rdma2", "rdma0.5", "bond0"],
        0..5,
    ));
    let exclude = prop::option::of(prop::sample::select(vec![
        "", "1$", "^rdma", "mlx5_1", "[.]", "no such",
    ]));
    (ifaces, exclude).prop_map(|(ifaces, exclude)| {
        let ifaces = ifaces.map(|names| ("rdmaprep.io/ifaces".to_owned(), names.join(" ")));
        ifaces
            .into_iter()
            .chain(exclude.map(|e| ("rdmaprep.io/exclude".to_owned(), e.to_owned())))
            .collect()
    })
}

fn all_allowed(request: &Request, plan: &Plan, seen: &Snapshot) -> Result<(), TestCaseError> {
    for nic in &plan.nics {
        let dev = seen.netdev(nic.name()).unwrap();
        prop_assert_eq!(
            request.host.policy.forbids(&PolicyDevice::new(
                dev.name.as_str(),
                Some(dev),
                None,
                seen
            )),
            None
        );
    }
    for name in &plan.ib {
        let device = PolicyDevice::new(name.as_str(), None, seen.hca(name), seen);
        prop_assert_eq!(request.host.policy.forbids(&device), None);
    }
    Ok(())
}

proptest! {
    #[test]
    fn nothing_widens_it(policy in policy(), asked in annotations()) {
        let wide = request(&policy);
        let narrow = wide.narrow(&asked).unwrap();
        for seen in hosts() {
            let (more, less) = (plan(&wide, &seen), plan(&narrow, &seen));
            prop_assert!(names(&less).is_subset(&names(&more)));
            // One that was made before there was a policy.
            let old = narrow.narrowed_plan(plan(&request(""), &seen), Some(&seen));
            for plan in [&more, &less, &old] {
                all_allowed(&narrow, plan, &seen)?;
            }
        }
    }
}

#[test]
fn policy_leaves_the_same_of_a_new_plan_and_of_an_old_one() {
    let mut forbidden = 0;
    for policy in [
        "deny_pci = ['^0000:17:']",
        "allow_pci = ['^0000:27:']",
        "deny_drivers = ['^mlx5']",
        "allow_drivers = ['^bnxt']",
        "deny = ['^mlx5_0$', '^rdma1$']",
    ] {
        let request = request(policy);
        for seen in hosts() {
            let (fresh, old) = (
                plan(&request, &seen),
                request.narrowed_plan(plan(&self::request(""), &seen), Some(&seen)),
            );
            assert_eq!(names(&fresh), names(&old), "{policy}");
            forbidden += names(&plan(&self::request(""), &seen)).len() - names(&old).len();
        }
    }
    assert!(
        forbidden > 10,
        "the policies forbid hardly anything: {forbidden}"
    );
}

#[test]
fn a_container_gets_no_more_than_its_share() {
    let seen = hosts().remove(0);
    let request = request("max_nics = 2");
    let all = plan(&request, &seen);
    assert_eq!(all.nics.len(), 3);
    let e = request.host.policy.check_limits(&all).unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Refused);
    assert!(
        format!("{e:#}").contains("3 NICs, `max_nics` of the host's config file allows 2"),
        "{e:#}"
    );
    let asked = BTreeMap::from([("rdmaprep.io/ifaces".to_owned(), "rdma0 rdma2".to_owned())]);
    let some = request
        .narrow(&asked)
        .unwrap()
        .narrowed_plan(all, Some(&seen));
    request.host.policy.check_limits(&some).unwrap();
}

#[test]
fn an_annotation_that_does_not_count_is_refused() {
    let request = request("annotations = ['plan', 'ifaces']");
    let narrow = |leaf: &str, value: &str| {
        let asked = BTreeMap::from([(format!("rdmaprep.io/{leaf}"), value.to_owned())]);
        request
            .narrow(&asked)
            .map_err(|e| (ErrorClass::of(&e), format!("{e:#}")))
    };
    assert!(narrow("plan", "x").is_ok() && narrow("ifaces", "rdma0").is_ok());
    for value in ["", "^x$"] {
        let (fault, text) = narrow("exclude", value).unwrap_err();
        assert_eq!(fault, ErrorClass::Refused);
        assert!(
            text.contains("\"rdmaprep.io/exclude\" is not among `annotations`"),
            "{text}"
        );
    }
    assert_eq!(narrow("other", "").unwrap_err().0, ErrorClass::State);
}

/// The keys that a table has, by what the reader says of one that it has not.
fn keys(table: &str) -> BTreeSet<String> {
    let e = format!(
        "{:#}",
        ConfigFile::new(&format!("{table}\nno_such_key = 1"))
            .config()
            .unwrap_err()
    );
    let (_, known) = e.split_once("expected one of ").unwrap();
    known
        .split(", ")
        .map(|key| key.trim_matches('`').to_owned())
        .collect()
}

#[test]
fn the_example_has_every_key() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/config.toml");
    let text = std::fs::read_to_string(path).unwrap();
    // As it is, it settles nothing; prose has a blank behind its mark.
    assert_eq!(
        format!("{:?}", ConfigFile::new(&text).config().unwrap()),
        format!("{:?}", Config::default())
    );
    let live: Vec<&str> = text
        .lines()
        .filter_map(|l| l.strip_prefix('#'))
        .filter(|l| !l.is_empty() && !l.starts_with(' '))
        .collect();
    ConfigFile::new(&live.join("\n")).config().unwrap();
    let at = |table: &str| live.iter().position(|l| *l == table).unwrap();
    let (top, select) = (
        &live[..at("[select]")],
        &live[at("[select]")..at("[[plans]]")],
    );
    let keys_of = |lines: &[&str]| -> BTreeSet<String> {
        lines
            .iter()
            .filter_map(|l| Some(l.split_once(" = ")?.0.to_owned()))
            .collect()
    };
    let mut top = keys_of(top);
    top.insert("select".to_owned());
    assert_eq!((top, keys_of(select)), (keys(""), keys("[select]")));
}
