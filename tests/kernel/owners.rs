//! Random hosts with a manager, which begins some time after a NIC is back, deletes what it finds
//! there and every rule that is not its own, and up to five seconds later has made its own again
//! with other metrics and priorities. Nothing is lost then, and nothing is there twice.
//!
//! `RDMAPREP_RANDOM_HOSTS=N` hosts instead of 3, `RDMAPREP_RANDOM_SEED=N` others.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::alone;
use crate::managed::{index_of, says, state_file, tell_owner};
use testkit::{Container, Host, sh, until};

pub struct Rng(pub u64);

impl Rng {
    /// Below `end` (SplitMix64).
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % end
    }

    pub fn chance(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// A route or a rule: `number` is its metric or priority, which ends in 0 where it is the
/// manager's own.
#[derive(Clone, Debug)]
struct Item {
    rail: u64,
    what: String,
    number: u64,
    protocol: &'static str,
}

impl Item {
    fn is_route(&self) -> bool {
        self.what.starts_with("route")
    }

    fn is_own(&self) -> bool {
        self.number % 10 == 0
    }

    fn add(&self) -> String {
        let number = if self.is_route() {
            "metric"
        } else {
            "priority"
        };
        let what = self.what.replacen(' ', " add ", 1);
        let protocol = if self.is_route() { "proto" } else { "protocol" };
        format!(
            "{what} {number} {} {protocol} {}",
            self.number, self.protocol
        )
    }
}

/// What managers and administrators have made of the rails.
fn items(rng: &mut Rng) -> Vec<Item> {
    let mut items = Vec::new();
    for rail in 0..2 {
        for number in 0..=rng.below(3) {
            let table = if rng.chance() { 254 } else { 100 + rail };
            let (to, via) = (20 + 3 * rail + number, format!("10.{rail}.0.9 dev r{rail}"));
            let what = format!("route 10.{to}.0.0/16 via {via} table {table}");
            draw(rng, rail, what, 10 + 100 * number, &mut items);
        }
        for number in 0..=rng.below(2) {
            let to = if number == 0 {
                ""
            } else {
                " to 203.0.113.0/24"
            };
            let what = format!("rule from 10.{rail}.0.1{to} table {}", 100 + rail);
            draw(
                rng,
                rail,
                what,
                1000 + 100 * (2 * rail + number),
                &mut items,
            );
        }
    }
    items
}

/// The manager's own, an administrator's, or one of each.
fn draw(rng: &mut Rng, rail: u64, what: String, number: u64, items: &mut Vec<Item>) {
    let own = Item {
        rail,
        what,
        number,
        protocol: "static",
    };
    let protocol = if rng.chance() { "static" } else { "boot" };
    let foreign = Item {
        number: number + 1 + rng.below(9),
        protocol,
        ..own.clone()
    };
    match rng.below(4) {
        0 => items.push(own),
        1 => items.push(foreign),
        _ => items.extend([own, foreign]),
    }
}

/// The manager takes a rail that is back.
fn configure(rail: u64, items: &[Item], host: &Host, waits: (Duration, Duration), shift: u64) {
    let name = format!("r{rail}");
    until("the NIC is back", || {
        let links = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        links.contains(&format!("{name}:"))
    });
    sleep(waits.0);
    let own_rules = || items.iter().filter(|i| i.is_own() && !i.is_route());
    for line in sh("ip rule").lines() {
        let (priority, what) = line.split_once(':').unwrap();
        let priority: u64 = priority.parse().unwrap();
        let is_own = priority % 10 == 0 && own_rules().any(|r| r.what.contains(source(what)));
        if (100..30_000).contains(&priority) && !is_own {
            // The other rail's may have been the first.
            sh(&format!("ip rule delete priority {priority} || true"));
        }
    }
    sh(&format!(
        "ip address flush dev {name}; ip link set {name} up"
    ));
    says(&index_of(&name), "configuring");
    sleep(waits.1);
    host.ip(&format!("address add 10.{rail}.0.1/24 dev {name}"));
    for item in items.iter().filter(|i| i.rail == rail && i.is_own()) {
        let number = item.number + 10 * shift;
        host.ip(&Item {
            number,
            ..item.clone()
        }
        .add());
    }
    says(&index_of(&name), "configured");
}

/// `10.0.0.1` of `from 10.0.0.1 lookup 100`.
fn source(rule: &str) -> &str {
    rule.split_whitespace().nth(1).unwrap_or_default()
}

/// The numbers that what does the same has, sorted.
fn numbers(item: &Item) -> Vec<u64> {
    let text = if item.is_route() {
        let (_, rest) = item.what.split_once(' ').unwrap();
        sh(&format!(
            "ip route show {rest} | grep -o 'metric [0-9]*' | cut -d' ' -f2"
        ))
    } else {
        let (what, table) = item.what.split_once(" table ").unwrap();
        let what = what.replacen(' ', " show ", 1);
        let other = if what.contains(" to ") {
            ""
        } else {
            "| grep -v ' to '"
        };
        sh(&format!(
            "ip {what} | grep 'lookup {table}' {other} | cut -d: -f1"
        ))
    };
    let mut all: Vec<u64> = text.lines().map(|n| n.parse().unwrap()).collect();
    all.sort_unstable();
    all
}

fn nothing_is_lost_or_double(items: &[Item], shift: u64) {
    for item in items {
        let same = items.iter().filter(|i| i.what == item.what);
        let expected = same.map(|i| i.number + if i.is_own() { 10 * shift } else { 0 });
        let mut expected: Vec<u64> = expected.collect();
        expected.sort_unstable();
        let has = numbers(item);
        assert_eq!(has, expected, "{item:?} of {items:#?}: {}", sh("ip rule"));
    }
    let rules = sh("ip rule | grep -c 198.51.100.0/24");
    assert_eq!(rules.trim(), "1");
    for rail in 0..2 {
        let addresses = sh(&format!("ip -4 -o address show dev r{rail} | wc -l"));
        assert_eq!(addresses.trim(), "2", "r{rail}");
    }
}

/// How long a manager takes to begin, and to end. One that has said nothing for three seconds and
/// cannot be asked is taken for gone: here is no bus.
fn waits(rng: &mut Rng) -> (Duration, Duration) {
    let mut one_of = |all: [u64; 5]| all[usize::try_from(rng.below(5)).unwrap()];
    let (begins, ends) = (
        one_of([0, 20, 100, 300, 800]),
        one_of([0, 50, 400, 1500, 5000]),
    );
    (Duration::from_millis(begins), Duration::from_millis(ends))
}

fn round(host: &Host, rng: &mut Rng) {
    let rails = host.rails(2);
    let items = items(rng);
    host.ip("rule add from 198.51.100.0/24 table 500 priority 901");
    for rail in 0..2 {
        host.ip(&format!("address add 198.18.{rail}.1/32 dev r{rail}"));
        says(&index_of(&format!("r{rail}")), "configured");
    }
    items.iter().for_each(|item| host.ip(&item.add()));
    host.prepare(&rails);
    let indexes = ["r0", "r1"].map(index_of);
    let mut c = Container::new("c");
    c.create(host).ok();
    tell_owner(host, |one| {
        let number = |key: &str| one[key].as_u64().is_some_and(|n| n % 10 != 0);
        number("metric") || number("priority") || one["prefix"] == 32
    });
    indexes
        .iter()
        .for_each(|i| fs::remove_file(state_file(i)).unwrap());
    // Another metric or priority, which no other has.
    let shift = if rng.chance() { 0 } else { 4 };
    let both = [waits(rng), waits(rng)];
    let items = &items;
    std::thread::scope(|threads| {
        for (rail, waits) in (0..).zip(both) {
            threads.spawn(move || configure(rail, items, host, waits, shift));
        }
        c.stop(host).ok();
    });
    let end = Instant::now() + Duration::from_secs(30);
    while !host.records().is_empty() {
        assert!(Instant::now() < end, "{}", host.rdmaprep(&["status"]).out);
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
    }
    nothing_is_lost_or_double(items, shift);
    host.rdmaprep(&["restore", "--all"]).ok();
    nothing_is_lost_or_double(items, shift);
    host.is_clean();
    sh("ip link delete r0; ip link delete r1; ip rule delete priority 901");
    for item in items.iter().filter(|item| !item.is_route()) {
        let shift = if item.is_own() { 10 * shift } else { 0 };
        sh(&format!("ip rule delete priority {}", item.number + shift));
    }
}

#[test]
fn random_hosts_of_a_manager_lose_nothing() {
    alone(|host| {
        let number = |name: &str| std::env::var(name).ok().map(|n| n.parse().unwrap());
        let (first, count) = (
            number("RDMAPREP_RANDOM_SEED"),
            number("RDMAPREP_RANDOM_HOSTS"),
        );
        says("1", "unmanaged");
        for seed in (first.unwrap_or(1)..).take(count.unwrap_or(3)) {
            println!("RDMAPREP_RANDOM_SEED={seed} RDMAPREP_RANDOM_HOSTS=1");
            round(host, &mut Rng(seed as u64));
        }
    });
}
