//! The judge: released NCCL libraries, run in network namespaces, say which interface they bootstrap on, and `explain` has to
//! say the same, for each release and each environment. Needs no GPU.
//!
//! RDMAPREP_NCCL_WHEELS names where the libraries are (`scripts/nccl-wheels DIR`); RDMAPREP_NCCL_CASES how many environments
//! each made-up world is judged with. A disagreement is shrunk and written down as a golden case.

mod envs;
mod library;
mod rules;
mod worlds;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::alone;
use library::{Judges, RELEASES, place, wheels};
use nccl_rules::version::Version;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use rdma_model::snapshot::Snapshot;
use rules::{RULES, reached};
use testkit::nccl_case::{Case, Env, FILES, HOME, HOSTS, USER, words};
use testkit::{Host, sh};

/// Environments per release, and per rule, that are the least to have judged.
const LEAST: usize = 200;
const LEAST_PER_RULE: usize = 10;

/// Worlds that are made up, beside the last resorts of the automatic choice.
const WORLDS: usize = 14;

/// Rules that some releases do not have: since which one there is each, and up to which.
const NOT_ALWAYS: [(&str, &str, &str); 3] = [
    ("automatic: virbr", "2.28.3", "2.99.0"),
    ("file: $NCCL_CONF_FILE", "2.23.4", "2.99.0"),
    ("id: an IPv4 address outside of its subnet", "2.29.0", "2.29.99"),
];

/// Whether a release has a rule.
fn exists(rule: &str, release: &str) -> bool {
    let version = |text: &str| text.parse::<Version>().unwrap();
    let span = NOT_ALWAYS.iter().find(|(name, ..)| *name == rule);
    span.is_none_or(|(_, since, until)| (version(since)..=version(until)).contains(&version(release)))
}

#[test]
#[ignore = "needs RDMAPREP_NCCL_WHEELS: what scripts/nccl-wheels fetches"]
fn explain_names_the_interface_that_every_release_takes() {
    testkit::require!(
        wheels().is_some(),
        "NCCL's libraries: RDMAPREP_NCCL_WHEELS names what scripts/nccl-wheels has fetched"
    );
    alone(|host| {
        let judge = Judge::new(host);
        judge.classics(host);
        let mut runner = TestRunner::new_with_rng(config(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        for _ in 0..WORLDS {
            let world = worlds::any().new_tree(&mut runner).unwrap().current();
            judge.world(host, &mut runner, &world, false);
        }
        for world in worlds::last_resorts() {
            judge.world(host, &mut runner, &world, true);
        }
        judge.verdict();
    });
    let summary = std::fs::read_to_string(summary()).unwrap();
    std::io::stdout().write_all(summary.as_bytes()).unwrap();
}

fn config() -> Config {
    let cases = std::env::var("RDMAPREP_NCCL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() }
}

fn summary() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl-judge.txt")
}

/// The libraries, and what they have said so far.
struct Judge {
    judges: Judges,
    start: Instant,
    /// Per release: environments, and how often each rule was reached.
    agreed: RefCell<Vec<(usize, BTreeMap<&'static str, usize>)>>,
}

impl Judge {
    fn new(host: &Host) -> Judge {
        let dir = host.run.parent().unwrap().join("judge");
        for home in [HOME, USER] {
            std::fs::create_dir_all(home).unwrap();
        }
        let judges = Judges::new(wheels().unwrap(), &dir);
        // A user database, hosts and no config file, whatever this machine has.
        sh("cp /etc/ld.so.cache /run/judge/ 2>/dev/null || true; mount -t tmpfs -o mode=755 tmpfs /etc; \
            [ ! -e /run/judge/ld.so.cache ] || cp /run/judge/ld.so.cache /etc/");
        std::fs::write("/etc/passwd", format!("root:x:0:0:root:{USER}:/bin/sh\n")).unwrap();
        std::fs::write("/etc/nsswitch.conf", "passwd: files\nhosts: files\n").unwrap();
        let hosts: String = HOSTS.iter().map(|(ip, name)| format!("{ip} {name}\n")).collect();
        std::fs::write("/etc/hosts", hosts).unwrap();
        let agreed = RefCell::new(vec![Default::default(); judges.releases.len()]);
        Judge { judges, start: Instant::now(), agreed }
    }

    fn world(&self, host: &Host, runner: &mut TestRunner, world: &worlds::World, automatic: bool) {
        let snapshot = world.build(host);
        // A runner counts its cases over all its runs.
        let mut own = TestRunner::new_with_rng(config(), runner.new_rng());
        match own.run(&envs::any(world, automatic), |env| self.judge(&env, &snapshot)) {
            Ok(()) => {}
            Err(TestError::Fail(why, env)) => {
                let case = Case::new(&env, &snapshot, &self.judges.releases, &self.says(&env));
                let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl-disagreement");
                case.write(&dir);
                panic!("{why}\n{env:#?}\n{world:#?}\n{} is to become tests/cases/nccl/NAME", dir.display());
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn says(&self, env: &Env) -> Vec<String> {
        for path in FILES {
            place(path, env.files.get(path).map(String::as_bytes));
        }
        self.judges.ask(env)
    }

    fn judge(&self, env: &Env, snapshot: &Snapshot) -> Result<(), TestCaseError> {
        let says = self.says(env);
        let mut wrong = String::new();
        for ((version, says), agreed) in self.judges.releases.iter().zip(&says).zip(&mut *self.agreed.borrow_mut()) {
            let explanation = env.explain(snapshot, *version);
            let model = words(&explanation);
            if model != *says {
                writeln!(wrong, "NCCL {version} says {says}, explain says {model}").unwrap();
                continue;
            }
            agreed.0 += 1;
            for rule in reached(env, &env.settings(*version), snapshot, &explanation) {
                *agreed.1.entry(rule).or_default() += 1;
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(TestCaseError::fail(wrong)) }
    }

    /// The golden cases' own worlds and environments: with UPDATE_GOLDEN=1 the releases' words are written down.
    fn classics(&self, host: &Host) {
        for (name, world, env) in envs::classics() {
            let snapshot = world.build(host);
            let case = Case::new(&env, &snapshot, &self.judges.releases, &self.says(&env));
            let dir = Case::folder().join(name);
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                case.write(&dir);
            }
            assert_eq!(Case::read(&dir).says, case.says, "{name}: UPDATE_GOLDEN=1 writes what the libraries say");
            self.judge(&env, &snapshot).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }

    /// Writes the counts down, and insists on enough of each.
    fn verdict(&self) {
        let agreed = self.agreed.borrow();
        let seconds = self.start.elapsed().as_secs();
        let mut text = format!("NCCL as the judge: {} releases, {seconds} s\n", RELEASES.len());
        for (release, (count, _)) in RELEASES.iter().zip(&*agreed) {
            writeln!(text, "  NCCL {release:7} agrees with explain in all {count} environments").unwrap();
        }
        writeln!(text, "  {:50}{}", "times that each rule was reached:", RELEASES.map(|r| format!("{r:>7}")).join(""))
            .unwrap();
        let mut few = Vec::new();
        for rule in RULES {
            let counts: Vec<usize> = agreed.iter().map(|(_, rules)| rules.get(rule).copied().unwrap_or(0)).collect();
            let cells: String = counts.iter().map(|n| format!("{n:7}")).collect();
            writeln!(text, "  {rule:50}{cells}").unwrap();
            for (release, n) in RELEASES.iter().zip(&counts) {
                if exists(rule, release) && *n < LEAST_PER_RULE {
                    few.push(format!("{release}: {rule}: {n}"));
                }
            }
        }
        std::fs::write(summary(), &text).unwrap();
        assert!(few.is_empty(), "{text}reached less than {LEAST_PER_RULE} times: {few:#?}");
        assert!(agreed.iter().all(|(count, _)| *count >= LEAST), "{text}");
    }
}
