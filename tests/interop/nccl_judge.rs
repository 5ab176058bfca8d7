//! The judge: released NCCL libraries, run in network namespaces, say which interfaces they use and
//! which HCAs they take, and `explain` has to say the same, for each release and each environment.
//! Needs no GPU, and no HCA.
//!
//! RDMAPREP_NCCL_WHEELS names where the libraries are (`scripts/nccl-wheels DIR`);
//! RDMAPREP_NCCL_CASES how many environments each made-up world is judged with; RDMAPREP_NCCL_SEED
//! what they are drawn from, by default the time. It is printed. A disagreement is shrunk, and one
//! about interfaces is written down as a golden case.

mod envs;
mod gid;
mod hca;
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
use library::{Judges, RELEASES, Said, place, wheels};
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

/// Sets of HCAs that are made up.
const HCA_WORLDS: usize = 24;

/// GID tables with settings that are made up, and how many comparisons those have to be.
const GID_WORLDS: u32 = 300;
const LEAST_GIDS: usize = 5000;

/// Rules that some releases do not have: since which one there is each, and up to which.
const NOT_ALWAYS: [(&str, &str, &str); 3] = [
    ("automatic: virbr", "2.28.3", "2.99.0"),
    ("file: $NCCL_CONF_FILE", "2.23.4", "2.99.0"),
    (
        "id: an IPv4 address outside of its subnet",
        "2.29.0",
        "2.29.99",
    ),
];

/// Whether a release has a rule.
fn exists(rule: &str, release: Version) -> bool {
    let version = |text: &str| text.parse::<Version>().unwrap();
    let span = NOT_ALWAYS.iter().find(|(name, ..)| *name == rule);
    span.is_none_or(|(_, since, until)| (version(since)..=version(until)).contains(&release))
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
        let mut runner = runner(judge.seed);
        // What chance has not reached by then, it gets as much time again for, twice.
        for n in 0..3 * WORLDS {
            if n >= WORLDS && judge.few().is_empty() {
                break;
            }
            let world = worlds::any().new_tree(&mut runner).unwrap().current();
            judge.world(host, &mut runner, &world, false);
            if n < worlds::last_resorts().len() {
                judge.world(host, &mut runner, &worlds::last_resorts()[n], true);
            }
        }
        judge.verdict();
    });
    print(&summary("interfaces"));
}

#[test]
#[ignore = "needs RDMAPREP_NCCL_WHEELS: what scripts/nccl-wheels fetches"]
fn explain_names_the_hcas_that_every_release_takes() {
    testkit::require!(
        wheels().is_some(),
        "NCCL's libraries: RDMAPREP_NCCL_WHEELS names what scripts/nccl-wheels has fetched"
    );
    alone(|host| {
        let judge = Judge::new(host);
        host.ip(
            "link set lo up\nlink add eth0 type veth peer name p0\naddress add 192.0.2.1/24 \
            dev eth0\nlink set eth0 up\nlink set p0 up\n",
        );
        testkit::until("eth0 runs", || {
            worlds::observe()
                .netdevs
                .iter()
                .any(|n| n.name.as_str() == "eth0" && n.running)
        });
        let mut runner = runner(judge.seed);
        for world in hca::classics() {
            judge.hcas(&mut runner, &world);
        }
        for _ in 0..HCA_WORLDS {
            let world = hca::any().new_tree(&mut runner).unwrap().current();
            judge.hcas(&mut runner, &world);
        }
        judge.hca_verdict();
    });
    print(&summary("hcas"));
}

#[test]
#[ignore = "needs RDMAPREP_NCCL_WHEELS: what scripts/nccl-wheels fetches"]
fn explain_names_the_gid_that_every_release_takes() {
    testkit::require!(
        wheels().is_some(),
        "NCCL's libraries: RDMAPREP_NCCL_WHEELS names what scripts/nccl-wheels has fetched"
    );
    alone(|host| {
        let judge = Judge::new(host);
        host.ip("link set lo up\n");
        let config = Config {
            cases: GID_WORLDS,
            ..config()
        };
        let mut own = TestRunner::new_with_rng(config, runner(judge.seed).new_rng());
        for (world, env) in gid::classics() {
            judge
                .gids(&world, &env)
                .unwrap_or_else(|e| panic!("{e}\n{world:#?}\n{env:#?}"));
        }
        match own.run(&(gid::any(), gid::envs()), |(world, env)| {
            judge.gids(&world, &env)
        }) {
            Ok(()) => {}
            Err(e) => panic!("seed {}: {e}", judge.seed),
        }
        judge.gid_verdict();
    });
    print(&summary("gids"));
}

fn print(file: &Path) {
    std::io::stdout()
        .write_all(std::fs::read_to_string(file).unwrap().as_bytes())
        .unwrap();
}

fn config() -> Config {
    let cases = std::env::var("RDMAPREP_NCCL_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(60);
    Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    }
}

fn seed() -> u64 {
    let now = || {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    std::env::var("RDMAPREP_NCCL_SEED").map_or_else(
        |_| now(),
        |seed| seed.parse().expect("RDMAPREP_NCCL_SEED is a number"),
    )
}

fn runner(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn summary(what: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-judge-{what}.txt"))
}

/// The libraries, and what they have said so far.
struct Judge {
    judges: Judges,
    seed: u64,
    start: Instant,
    /// Where the list of HCAs is.
    devices: PathBuf,
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
        sh(
            "cp /etc/ld.so.cache /run/judge/ 2>/dev/null || true; mount -t tmpfs -o mode=755 \
            tmpfs /etc; \
            [ ! -e /run/judge/ld.so.cache ] || cp /run/judge/ld.so.cache /etc/",
        );
        std::fs::write("/etc/passwd", format!("root:x:0:0:root:{USER}:/bin/sh\n")).unwrap();
        std::fs::write("/etc/nsswitch.conf", "passwd: files\nhosts: files\n").unwrap();
        let hosts: String = HOSTS
            .iter()
            .map(|(ip, name)| format!("{ip} {name}\n"))
            .collect();
        std::fs::write("/etc/hosts", hosts).unwrap();
        let agreed = RefCell::new(vec![Default::default(); judges.releases.len()]);
        Judge {
            judges,
            seed: seed(),
            start: Instant::now(),
            devices: dir.join("devices"),
            agreed,
        }
    }

    fn world(&self, host: &Host, runner: &mut TestRunner, world: &worlds::World, automatic: bool) {
        let snapshot = world.build(host);
        // A runner counts its cases over all its runs.
        let mut own = TestRunner::new_with_rng(config(), runner.new_rng());
        match own.run(&envs::any(world, automatic), |env| {
            self.judge(&env, &snapshot)
        }) {
            Ok(()) => {}
            Err(TestError::Fail(why, env)) => {
                let case = self.case(&env, &snapshot);
                let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl-disagreement");
                case.write(&dir);
                let seed = self.seed;
                panic!(
                    "seed {seed}: {why}\n{env:#?}\n{world:#?}\n{} is to become \
                    tests/cases/nccl/NAME",
                    dir.display()
                );
            }
            Err(e) => panic!("{e}"),
        }
    }

    /// What the releases that are always there said, as a golden case.
    fn case(&self, env: &Env, snapshot: &Snapshot) -> Case {
        let says = self.says(env).into_iter().map(|said| said.bootstrap);
        let always = |v: &Version| RELEASES.contains(&v.to_string().as_str());
        let (releases, says): (Vec<_>, Vec<_>) = self
            .judges
            .releases
            .iter()
            .copied()
            .zip(says)
            .filter(|(v, _)| always(v))
            .unzip();
        Case::new(env, snapshot, &releases, &says)
    }

    fn says(&self, env: &Env) -> Vec<Said> {
        for path in FILES {
            place(path, env.files.get(path).map(String::as_bytes));
        }
        self.judges.ask(env)
    }

    fn judge(&self, env: &Env, snapshot: &Snapshot) -> Result<(), TestCaseError> {
        let says = self.says(env);
        let mut wrong = String::new();
        for ((version, says), agreed) in self
            .judges
            .releases
            .iter()
            .zip(&says)
            .zip(&mut *self.agreed.borrow_mut())
        {
            let explanation = env.explain(snapshot, *version);
            let sockets = explanation
                .sockets
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" ");
            let bootstrap = words(&explanation);
            // Without the check, what was not set decides.
            let chance = bootstrap == "error 4" && !version.ends_at_bad_id();
            let model = Said {
                bootstrap,
                sockets: if chance {
                    says.sockets.clone()
                } else {
                    sockets
                },
            };
            if model != *says {
                writeln!(
                    wrong,
                    "NCCL {version} says {says:?}, explain says {model:?}"
                )
                .unwrap();
                continue;
            }
            agreed.0 += 1;
            for rule in reached(env, &env.settings(*version), snapshot, &explanation) {
                *agreed.1.entry(rule).or_default() += 1;
            }
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(TestCaseError::fail(wrong))
        }
    }

    /// What the releases make of these HCAs in some environments.
    fn hcas(&self, runner: &mut TestRunner, world: &hca::World) {
        let snapshot = hca::build(world, &self.devices);
        let config = Config {
            cases: config().cases.div_ceil(4),
            ..config()
        };
        let mut own = TestRunner::new_with_rng(config, runner.new_rng());
        self.judge_hcas(&Env::default(), &snapshot)
            .unwrap_or_else(|e| panic!("seed {}: {e}\n{world:#?}", self.seed));
        match own.run(&hca::envs(world), |env| self.judge_hcas(&env, &snapshot)) {
            Ok(()) => {}
            Err(e) => panic!("seed {}: {e}\n{world:#?}", self.seed),
        }
    }

    fn judge_hcas(&self, env: &Env, snapshot: &Snapshot) -> Result<(), TestCaseError> {
        let says = self.judges.ask_hcas(env, &self.devices);
        let mut wrong = String::new();
        for ((version, says), agreed) in self
            .judges
            .releases
            .iter()
            .zip(&says)
            .zip(&mut *self.agreed.borrow_mut())
        {
            let explanation = env.explain(snapshot, *version);
            let model = hca::words(&explanation);
            if model != *says && !hca::is_chance(&explanation, says) {
                writeln!(wrong, "NCCL {version} says {says}, explain says {model}").unwrap();
                continue;
            }
            agreed.0 += 1;
            for what in hca::reached(&explanation, snapshot) {
                *agreed.1.entry(what).or_default() += 1;
            }
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(TestCaseError::fail(wrong))
        }
    }

    /// Which GIDs the releases take in these tables.
    fn gids(&self, world: &gid::World, env: &Env) -> Result<(), TestCaseError> {
        let tables = self.devices.with_file_name("gids");
        let snapshot = gid::build(world, &self.devices, &tables);
        let says = self.judges.ask_gids(env, &self.devices, &tables);
        let mut wrong = String::new();
        let releases = self.judges.releases.iter().zip(&says);
        for ((version, says), agreed) in releases.zip(&mut *self.agreed.borrow_mut()) {
            let settings = env.settings(*version);
            for (device, model) in gid::words(&snapshot, &settings, *version) {
                let said = says.as_ref().map_or("signal", |says| &says[&device]);
                if model == "lid" {
                    continue;
                }
                if model != said {
                    let table = snapshot.hcas.iter().find(|h| h.name.as_str() == device);
                    let table = &table.unwrap().ports[0];
                    writeln!(
                        wrong,
                        "NCCL {version} says {said} of {device}, we say {model}: {table:?}"
                    )
                    .unwrap();
                    continue;
                }
                agreed.0 += 1;
                *agreed.1.entry(gid::reached(&model)).or_default() += 1;
            }
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(TestCaseError::fail(wrong))
        }
    }

    /// The golden cases' own worlds and environments: with UPDATE_GOLDEN=1 the releases' words are
    /// written down.
    fn classics(&self, host: &Host) {
        for (name, world, env) in envs::classics() {
            let snapshot = world.build(host);
            let case = self.case(&env, &snapshot);
            let dir = Case::folder().join(name);
            if std::env::var_os("UPDATE_GOLDEN").is_some() {
                case.write(&dir);
            }
            assert_eq!(
                Case::read(&dir).says,
                case.says,
                "{name}: UPDATE_GOLDEN=1 writes what the libraries say"
            );
            self.judge(&env, &snapshot)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }

    /// Rules that were reached too seldom.
    fn few(&self) -> Vec<String> {
        let agreed = self.agreed.borrow();
        let all = RULES.iter().flat_map(|rule| {
            self.judges
                .releases
                .iter()
                .zip(&*agreed)
                .map(move |of| (*rule, of))
        });
        let seldom = all.filter_map(|(rule, (release, (_, rules)))| {
            let n = rules.get(rule).copied().unwrap_or(0);
            (exists(rule, *release) && n < LEAST_PER_RULE)
                .then(|| format!("{release}: {rule}: {n}"))
        });
        seldom.collect()
    }

    /// The counts, with a line for each of these.
    fn table(&self, what: &str, lines: &[&'static str]) -> String {
        let agreed = self.agreed.borrow();
        let (releases, seconds) = (&self.judges.releases, self.start.elapsed().as_secs());
        let total: usize = agreed.iter().map(|(count, _)| count).sum();
        let newest = wheels()
            .and_then(|dir| std::fs::read_to_string(dir.join("newest")).ok())
            .unwrap_or_default();
        let mut text = format!(
            "NCCL as the judge of {what}: seed {}, {} releases, {total} comparisons, all agree, \
            {seconds} s\n",
            self.seed,
            releases.len()
        );
        writeln!(
            text,
            "  the newest release on PyPI: {}",
            if newest.is_empty() {
                "unknown"
            } else {
                newest.trim()
            }
        )
        .unwrap();
        let cells = |each: Vec<String>| {
            each.iter()
                .map(|cell| format!("{cell:>8}"))
                .collect::<String>()
        };
        writeln!(
            text,
            "  {:50}{}",
            "",
            cells(releases.iter().map(Version::to_string).collect())
        )
        .unwrap();
        writeln!(
            text,
            "  {:50}{}",
            "environments",
            cells(agreed.iter().map(|(n, _)| n.to_string()).collect())
        )
        .unwrap();
        for line in lines {
            let count =
                |rules: &BTreeMap<&str, usize>| rules.get(line).copied().unwrap_or(0).to_string();
            writeln!(
                text,
                "  {line:50}{}",
                cells(agreed.iter().map(|(_, rules)| count(rules)).collect())
            )
            .unwrap();
        }
        text
    }

    /// Writes the counts down, and insists on enough of each.
    fn verdict(&self) {
        let (text, few) = (self.table("interfaces", &RULES), self.few());
        std::fs::write(summary("interfaces"), &text).unwrap();
        assert!(
            few.is_empty(),
            "{text}reached less than {LEAST_PER_RULE} times: {few:#?}"
        );
        assert!(
            self.agreed
                .borrow()
                .iter()
                .all(|(count, _)| *count >= LEAST),
            "{text}"
        );
    }

    fn hca_verdict(&self) {
        let text = self.table("HCAs", &hca::REACHED);
        std::fs::write(summary("hcas"), &text).unwrap();
        let agreed = self.agreed.borrow();
        let total = |what: &str| {
            agreed
                .iter()
                .filter_map(|(_, all)| all.get(what))
                .sum::<usize>()
        };
        assert!(
            hca::REACHED
                .iter()
                .all(|what| total(what) >= LEAST_PER_RULE),
            "{text}"
        );
        assert!(agreed.iter().all(|(count, _)| *count >= LEAST), "{text}");
    }
    fn gid_verdict(&self) {
        let text = self.table("GIDs", &gid::REACHED);
        std::fs::write(summary("gids"), &text).unwrap();
        let agreed = self.agreed.borrow();
        let total: usize = agreed.iter().map(|(count, _)| count).sum();
        assert!(total >= LEAST_GIDS, "{text}");
        assert!(agreed.iter().all(|(count, _)| *count >= LEAST), "{text}");
    }
}
