//! Many hooks at once over the same NICs: each NIC has one holder at any time, and no hook waits
//! for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::{abreast, alone};
use serde_json::{Value, json};
use testkit::{Container, Host, Said, same, until};

/// Hooks that start together.
const HOOKS: usize = 64;
/// NICs of the node.
const NICS: usize = 16;
/// How often, without RDMAPREP_RACE_ROUNDS.
const ROUNDS: usize = 1;
/// What the dice begin with, without RDMAPREP_RACE_SEED: copies that run beside one another are to
/// differ.
const SEED: u64 = 1;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

/// A container that asks for its own plan.
fn asking(id: &str) -> Container {
    Container::new(id).annotated(json!({"rdmaprep.io/plan": id}))
}

/// Starts a container's createRuntime hook.
fn begin(host: &Host, container: &Container, wait: Option<&str>) -> Child {
    let mut args = vec!["hook", "createRuntime", "--deadline", "60"];
    args.extend(wait.iter().flat_map(|seconds| ["--wait", seconds]));
    start(host, &args, &container.state())
}

fn start(host: &Host, args: &[&str], state: &str) -> Child {
    let mut command = host.command(args);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(state.as_bytes());
    child
}

fn end(child: Child) -> Said {
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_wait_that_the_deadline_ends_says_so() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let mut holder = Container::new("holder");
        holder.create(host).ok();
        let line = ["hook", "createRuntime", "--deadline", "1", "--wait"];
        for (seconds, said) in [("60", true), ("0", false)] {
            let args = [&line[..], &[seconds]].concat();
            let failed = end(start(host, &args, &Container::new("next").state()));
            assert_eq!(failed.err.contains("see --deadline"), said, "{failed:?}");
            failed.fails(9, &["r0 is held by container holder"]);
        }
        holder.stop(host).ok();
        host.is_clean();
    });
}

/// The NICs of each record, as far as it can be read just now.
fn records(run: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let Ok(entries) = fs::read_dir(run.join("records")) else {
        return BTreeMap::new();
    };
    let read = |path: &Path| -> Option<BTreeSet<String>> {
        let record: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
        let name = |h: &Value| Some(h["nic"]["identity"]["name"].as_str()?.to_owned());
        record["held"].as_array()?.iter().map(name).collect()
    };
    let paths = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"));
    paths
        .filter_map(|p| Some((p.file_name()?.to_str()?.to_owned(), read(&p)?)))
        .collect()
}

/// NICs that two records held at once. Each container holds only once in a round: one that is seen
/// before and after the other has been seen twice held all the while.
fn doubles(run: &Path) -> BTreeSet<String> {
    let (first, second) = (records(run), records(run));
    let both = first
        .iter()
        .filter_map(|(name, nics)| Some((name, nics & second.get(name)?)));
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut twice = BTreeSet::new();
    for nic in both.flat_map(|(_, nics)| nics) {
        if !seen.insert(nic.clone()) {
            twice.insert(nic);
        }
    }
    twice
}

/// NICs in a container's network namespace.
fn inside(container: &Container) -> BTreeSet<String> {
    let links = container.sh("ls /proc/sys/net/ipv4/conf");
    links
        .split_whitespace()
        .filter(|l| !matches!(*l, "all" | "default" | "lo"))
        .map(str::to_owned)
        .collect()
}

/// Reads the records until `stop`. Counts the reads in `looks`, and returns the NICs that were in
/// two records.
fn watch(run: &Path, stop: &AtomicBool, looks: &AtomicUsize) -> BTreeSet<String> {
    let mut twice = BTreeSet::new();
    while !stop.load(Ordering::Relaxed) {
        twice.extend(doubles(run));
        looks.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
    }
    twice
}

/// What became of the hooks of one round.
#[derive(Default, Debug)]
struct Count {
    won: usize,
    lost: usize,
    waited: usize,
    killed: usize,
}

struct Round<'a> {
    host: &'a Host,
    plans: &'a [BTreeSet<String>],
    dice: Dice,
    count: Count,
}

impl Round<'_> {
    /// What a hook that has ended must have left: all NICs of its plan, or none.
    fn judge(&mut self, i: usize, container: &Container, said: &Said) -> bool {
        let got = inside(container);
        match said.code {
            Some(0) => assert_eq!(got, self.plans[i], "plan {i}"),
            Some(9) => {
                assert!(got.is_empty(), "plan {i} lost and has {got:?}");
                assert!(said.err.contains(" is held by container "), "{said:#?}");
                self.count.lost += 1;
            }
            None => {
                self.count.killed += 1;
                self.clear(container);
            }
            Some(_) => panic!("plan {i}: {said:#?}"),
        }
        said.code == Some(0)
    }

    /// All start together; some are killed, and some wait until others give up what they hold.
    fn run(&mut self, containers: &mut [Container]) {
        let host = self.host;
        let mut patient = Vec::new();
        let mut hasty = Vec::new();
        for (i, container) in containers.iter().enumerate() {
            let waits = i % 4 == 3;
            let list = if waits { &mut patient } else { &mut hasty };
            list.push((i, begin(host, container, waits.then_some("50"))));
        }
        for _ in 0..4 {
            let victims = if self.dice.below(2) == 0 {
                &mut patient
            } else {
                &mut hasty
            };
            let victim = self.dice.below(victims.len());
            std::thread::sleep(Duration::from_millis(self.dice.below(150) as u64));
            let _ = victims[victim].1.kill();
        }
        let mut winners = Vec::new();
        for (i, child) in hasty {
            if self.judge(i, &containers[i], &end(child)) {
                winners.push(i);
            }
        }
        let stops: Vec<Child> = winners
            .iter()
            .map(|&i| stop(host, &mut containers[i]))
            .collect();
        self.count.won += stops.len();
        stops.into_iter().for_each(|c| drop(end(c).ok()));
        while !patient.is_empty() {
            let mut rest = Vec::new();
            for (i, mut child) in patient {
                if child.try_wait().unwrap().is_none() {
                    rest.push((i, child));
                } else if self.judge(i, &containers[i], &end(child)) {
                    self.count.waited += 1;
                    end(stop(host, &mut containers[i])).ok();
                }
            }
            patient = rest;
            std::thread::sleep(Duration::from_millis(20));
        }
        host.rdmaprep(&["restore", "--all"]).ok();
        let again = host.rdmaprep(&["restore", "--all"]).ok();
        assert_eq!(again.out, "No container holds a NIC.\n");
    }

    /// What a killed hook left would keep the patient ones waiting.
    fn clear(&self, container: &Container) {
        let member = |path: &Path| {
            let record: Option<Value> = fs::read_to_string(path)
                .ok()
                .and_then(|t| serde_json::from_str(&t).ok());
            record.is_some_and(|r| r["members"][0]["id"] == container.id)
        };
        if self.host.records().iter().any(|path| member(path)) {
            self.host.rdmaprep(&["restore", &container.id]).ok();
        }
    }
}

/// Ends a container as a runtime does; another of the same name takes its place.
fn stop(host: &Host, container: &mut Container) -> Child {
    container.kill();
    let child = start(
        host,
        &["hook", "poststop", "--deadline", "60"],
        &container.stopped(),
    );
    *container = asking(&container.id.clone());
    child
}

#[test]
fn sixty_four_hooks_over_sixteen_nics_never_share_one() {
    let said = abreast(1, |host, _| {
        fs::write(
            &host.config,
            format!("hook_log = {:?}\nlock_timeout_ms = 60000\n", host.log),
        )
        .unwrap();
        host.rails(NICS);
        let rounds = std::env::var("RDMAPREP_RACE_ROUNDS").map_or(ROUNDS, |n| n.parse().unwrap());
        let mut dice =
            Dice(std::env::var("RDMAPREP_RACE_SEED").map_or(SEED, |n| n.parse().unwrap()));
        let mut plans = Vec::new();
        let mut containers = Vec::new();
        for i in 0..HOOKS {
            let nics: BTreeSet<String> = (0..=dice.below(4))
                .map(|_| format!("r{}", dice.below(NICS)))
                .collect();
            let list = nics.iter().cloned().collect::<Vec<_>>().join(",");
            host.rdmaprep(&["prepare", "--plan", &format!("c{i}"), "--ifaces", &list])
                .ok();
            plans.push(nics);
            containers.push(asking(&format!("c{i}")));
        }
        let before = host.look();
        let (done, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
        let twice = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(&host.run, &done, &looks));
            let mut round = Round {
                host,
                plans: &plans,
                dice,
                count: Count::default(),
            };
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..rounds {
                    round.run(&mut containers);
                    same("the host's normal form", &before.normal, &host.normal());
                }
            }));
            done.store(true, Ordering::Relaxed);
            let twice = watcher.join().unwrap();
            ran.unwrap_or_else(|e| std::panic::resume_unwind(e));
            let Count {
                won,
                lost,
                waited,
                killed,
            } = round.count;
            println!(
                "{rounds} rounds of {HOOKS} hooks over {NICS} NICs: {won} won at once, {waited} \
                after a wait, {lost} lost, \
                 {killed} killed; {} looks, {} double holders",
                looks.load(Ordering::Relaxed),
                twice.len()
            );
            assert!(
                won >= rounds && waited >= rounds && lost >= rounds,
                "no race"
            );
            twice
        });
        assert!(twice.is_empty(), "held twice: {twice:?}");
        host.is_as(&before);
        host.is_clean();
    });
    print!(
        "{}",
        said.iter()
            .flat_map(|s| s.lines())
            .filter(|l| l.contains("double holders"))
            .map(|l| format!("{l}\n"))
            .collect::<String>()
    );
}

#[test]
fn a_hook_waits_for_a_held_nic_until_its_timeout() {
    alone(|host| {
        host.rails(1);
        let before = host.look();
        host.prepare("r0");
        let mut first = Container::new("first");
        first.create(host).ok();
        let mut second = Container::new("second");
        second.create(host).fails(
            9,
            &[
                "r0 is held by container first",
                "--wait, or hook_wait_s in /etc/rdmaprep/config.toml",
            ],
        );
        // Too short a wait ends as none does.
        let said = end(begin(host, &second, Some("1")));
        said.fails(9, &["r0 is held by container first"]);

        let waiting = begin(host, &second, Some("50"));
        std::thread::sleep(Duration::from_millis(300));
        first.stop(host).ok();
        end(waiting).ok();
        assert_eq!(inside(&second), BTreeSet::from(["r0".to_owned()]));

        // Killed while it waits: nothing is left of it, and no other hook waits for it.
        let mut third = Container::new("third");
        let mut waiting = begin(host, &third, Some("50"));
        std::thread::sleep(Duration::from_millis(300));
        waiting.kill().unwrap();
        assert_eq!(waiting.wait_with_output().unwrap().status.code(), None);
        assert_eq!(host.records().len(), 1);

        // Its container ends while it waits.
        let waiting = begin(host, &third, Some("50"));
        std::thread::sleep(Duration::from_millis(300));
        third.kill();
        end(waiting).fails(5, &[]);

        // The config file is the default, of which a flag takes nothing away but the value.
        host.configure("hook_wait_s = 50");
        let fourth = Container::new("fourth");
        let waiting = begin(host, &fourth, None);
        std::thread::sleep(Duration::from_millis(300));
        second.stop(host).ok();
        end(waiting).ok();
        host.rdmaprep(&["restore", "fourth"]).ok();
        until("the host is whole", || host.normal() == before.normal);
        host.is_clean();
    });
}
