//! Containers take rails of shared routes and give them back in any order, and stops are killed in
//! the middle: what is at home has its legs, once each, and at the end the host is as it was.
//!
//! `RDMAPREP_RANDOM_HOSTS=N` lives instead of 4, `RDMAPREP_RANDOM_SEED=N` others.

use crate::alone;
use crate::owners::Rng;
use testkit::{Container, Host, Look, sh};

const RAILS: usize = 4;
const ROUNDS: usize = 14;

/// A route of each family over all rails, IPv4 over the uplink as well; one over two; a group; an
/// IPv6 route whose legs several programs gave.
fn routes(host: &Host) {
    host.rails(RAILS);
    host.ip(
        "link add up0 type veth peer name q0\nlink set q0 up\nlink set up0 up
address add 192.168.9.1/24 dev up0",
    );
    for i in 0..RAILS {
        host.ip(&format!("address add fd0{i}::1/64 dev r{i} nodad"));
    }
    let legs = |prefix: &str, middle: &str| -> String {
        let all = (0..RAILS).map(|i| format!("nexthop via {prefix}{i}{middle}9 dev r{i}"));
        all.collect::<Vec<_>>().join(" ")
    };
    let (v4, v6) = (legs("10.", ".0."), legs("fd0", "::"));
    host.ip(&format!(
        "route add 10.50.0.0/16 {v4} nexthop via 192.168.9.9 dev up0
route add 10.51.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.2.0.9 dev r2
route add fd50::/48 {v6}
nexthop add id 1 via 10.1.0.9 dev r1
nexthop add id 3 via 10.3.0.9 dev r3
nexthop add id 10 group 1/3
route add 10.52.0.0/16 nhid 10
route append fd53::/48 via fd00::9 dev r0 proto static
route append fd53::/48 via fd01::9 dev r1 proto boot
route append fd53::/48 via fd02::9 dev r2 proto static"
    ));
}

struct Life<'h> {
    host: &'h Host,
    before: Look,
    rng: Rng,
    /// By its rail.
    away: Vec<(usize, Container)>,
    /// Rails of stops that were killed.
    killed: Vec<usize>,
    story: Vec<String>,
}

impl Life<'_> {
    fn tell(&mut self, what: String) {
        println!("{what}");
        self.story.push(what);
    }

    fn take(&mut self) {
        let rail = self.rng.below(RAILS as u64) as usize;
        if self.away.iter().any(|(away, _)| *away == rail) {
            return;
        }
        if self.killed.contains(&rail) {
            self.restore_ended();
        }
        self.tell(format!("take r{rail}"));
        self.host.prepare(&format!("r{rail}"));
        let c = Container::new(&format!("c{rail}"));
        c.create(self.host).ok();
        self.away.push((rail, c));
    }

    fn give_back(&mut self) {
        if self.away.is_empty() {
            return;
        }
        let at = self.rng.below(self.away.len() as u64) as usize;
        let (rail, mut c) = self.away.remove(at);
        if self.rng.below(4) > 0 {
            self.tell(format!("stop r{rail}"));
            c.stop(self.host).ok();
            return;
        }
        let point = 1 + self.rng.below(60);
        self.tell(format!("kill r{rail} at {point}"));
        c.kill();
        let mut stop = self.host.command(&["hook", "poststop"]);
        stop.env("RDMAPREP_FAULT", format!("{point}:kill"));
        testkit::run(&mut stop, &c.stopped());
        self.killed.push(rail);
    }

    fn restore_ended(&mut self) {
        self.tell("restore".to_owned());
        self.host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        self.killed.clear();
    }

    /// Where no stop was killed, each rail that is at home has its leg.
    fn check(&self) {
        if !self.killed.is_empty() {
            return;
        }
        let is_home = |rail: &usize| self.away.iter().all(|(away, _)| away != rail);
        let mut home: Vec<String> = (0..RAILS)
            .filter(is_home)
            .map(|i| format!("r{i}"))
            .collect();
        assert_eq!(legs("-6", "fd50::/48"), home, "{:?}", self.story);
        home.push("up0".to_owned());
        assert_eq!(legs("-4", "10.50.0.0/16"), home, "{:?}", self.story);
    }

    fn run(mut self) {
        for _ in 0..ROUNDS {
            match self.rng.chance() {
                true => self.take(),
                false => self.give_back(),
            }
            if self.rng.below(3) == 0 {
                self.restore_ended();
            }
            self.check();
        }
        while !self.away.is_empty() {
            self.give_back();
        }
        self.restore_ended();
        self.host.is_clean();
        self.host.is_as(&self.before);
    }
}

/// The links of all routes to that destination, sorted.
fn legs(family: &str, subnet: &str) -> Vec<String> {
    let text = sh(&format!("ip {family} route show {subnet}"));
    let words: Vec<&str> = text.split_whitespace().collect();
    let devs = words.windows(2).filter(|pair| pair[0] == "dev");
    let mut devs: Vec<String> = devs.map(|pair| pair[1].to_owned()).collect();
    devs.sort();
    devs
}

#[test]
fn rails_at_random_leave_the_host_as_it_was() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let first = number("RDMAPREP_RANDOM_SEED").unwrap_or(1);
    let count = number("RDMAPREP_RANDOM_HOSTS").unwrap_or(4);
    alone(move |host| {
        routes(host);
        for seed in first..first + count {
            println!("RDMAPREP_RANDOM_SEED={seed} RDMAPREP_RANDOM_HOSTS=1");
            let life = Life {
                host,
                before: host.look(),
                rng: Rng(seed),
                away: Vec::new(),
                killed: Vec::new(),
                story: Vec::new(),
            };
            life.run();
        }
    });
}
