//! Random routes and policy rules: what the host reaches by a rail, or may not reach, is so in the
//! container, unless `prepare` names a rule that stays behind. (Strict ARP sends by another rail on
//! purpose.)
//!
//! `RDMAPREP_RANDOM_HOSTS=N` hosts instead of 10, `RDMAPREP_RANDOM_SEED=N` others.

use std::collections::BTreeMap;

use crate::alone;
use crate::owners::Rng;
use testkit::{Container, Host, sh};

const ANYWHERE: &str = "198.51.100.1";

fn routes(rng: &mut Rng) -> Vec<String> {
    let mut routes = Vec::new();
    for rail in 0..2 {
        let via = format!("via 10.{rail}.0.9 dev r{rail}");
        routes.push(format!("default {via} table {}", 100 + rail));
        for net in 50..54 {
            match rng.below(5) {
                0 => routes.push(format!("10.{net}.0.0/16 {via} metric {}", 10 + rail)),
                1 => routes.push(format!("10.{net}.0.0/16 {via} table 100 metric {rail}")),
                _ => {}
            }
        }
    }
    routes
}

fn rules(rng: &mut Rng) -> Vec<String> {
    let rule = |rng: &mut Rng, place: u64| {
        let rail = rng.below(2);
        let from = match rng.below(4) {
            0 => "all".to_owned(),
            1 => format!("10.{rail}.0.0/24"),
            2 => "10.0.0.0/15".to_owned(),
            _ => format!("10.{rail}.0.1"),
        };
        let to = match rng.below(3) {
            0 => format!("to 10.{}.0.0/16", 50 + rng.below(4)),
            _ => String::new(),
        };
        let action = match rng.below(6) {
            0 => "lookup main".to_owned(),
            1 | 2 => "lookup main suppress_prefixlength 0".to_owned(),
            3 => "prohibit".to_owned(),
            _ => format!("lookup {}", 100 + rng.below(2)),
        };
        format!("from {from} {to} {action} priority {}", 50 + place)
    };
    let count = 2 + rng.below(5);
    (0..count).map(|place| rule(rng, place)).collect()
}

/// How each destination is reached from each rail's address: by which gateway and NIC, or why not.
fn ways(ask: impl Fn(&str) -> String) -> BTreeMap<String, String> {
    let nets = (50..54).map(|net| format!("10.{net}.0.1"));
    let destinations: Vec<String> = nets
        .chain([ANYWHERE, "10.0.0.7", "10.1.0.7"].map(str::to_owned))
        .collect();
    let mut ways = BTreeMap::new();
    for rail in 0..2 {
        for to in &destinations {
            let question = format!("{to} from 10.{rail}.0.1");
            let answer = ask(&format!("ip route get {question} 2>&1 || true"));
            let words: Vec<&str> = answer.split_whitespace().collect();
            let after = |word| words.iter().skip_while(move |w| **w != word).nth(1);
            let way = match after("dev") {
                Some(dev) => format!("{dev} via {:?}", after("via")),
                None => answer.trim().to_owned(),
            };
            ways.insert(question, way);
        }
    }
    ways
}

/// Whether the container could be compared.
fn round(host: &Host, rng: &mut Rng) -> bool {
    let nics = host.rails(2);
    let (routes, rules) = (routes(rng), rules(rng));
    let profile = ["off", "loose"][rng.below(2) as usize];
    host.ip(
        "link add m0 type veth peer name pm0\nlink set pm0 up\nlink set m0 up\n\
         address add 192.0.2.10/24 dev m0\n\
         route add default via 192.0.2.1 dev m0",
    );
    routes
        .iter()
        .for_each(|route| host.ip(&format!("route add {route}")));
    rules
        .iter()
        .for_each(|rule| host.ip(&format!("rule add {rule}")));
    println!("{profile}: {routes:#?} {rules:#?}");
    let before = host.look();
    let on_host = ways(sh);
    let flags = ["--allow-bootstrap-iface", "--arp-profile", profile];
    let said = host
        .rdmaprep(&[&["prepare", "--ifaces", &nics][..], &flags].concat())
        .ok();
    let mut c = Container::new("c");
    let created = c.create(host);
    let could_return = created.code == Some(0);
    if could_return {
        let is_whole = !said.err.contains("stays on the host");
        compare(&c, on_host, is_whole);
        c.stop(host).ok();
    } else {
        assert!(
            created.err.contains("would not take the route"),
            "{created:?}"
        );
    }
    host.is_as(&before);
    sh("ip link delete m0; ip link delete r0; ip link delete r1");
    rules
        .iter()
        .for_each(|rule| host.ip(&format!("rule delete {rule}")));
    could_return && !said.err.contains("stays on the host")
}

fn compare(c: &Container, on_host: BTreeMap<String, String>, is_whole: bool) {
    let inside = ways(|command| c.sh(command));
    for (question, way) in on_host {
        let counts = way.starts_with('r') || way.starts_with("RTNETLINK answers: Permission");
        assert!(
            !is_whole || !counts || inside[&question] == way,
            "{question}: host {way}, inside {}\n{}",
            inside[&question],
            c.sh("ip rule; ip route show table all")
        );
    }
}

#[test]
fn random_rules_lead_inside_as_on_the_host() {
    alone(|host| {
        let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().unwrap());
        let first = number("RDMAPREP_RANDOM_SEED").unwrap_or(1);
        let count = number("RDMAPREP_RANDOM_HOSTS").unwrap_or(10);
        let mut compared = 0;
        for seed in first..first + count {
            println!("RDMAPREP_RANDOM_SEED={seed} RDMAPREP_RANDOM_HOSTS=1");
            compared += u64::from(round(host, &mut Rng(seed)));
        }
        assert!(count < 10 || compared * 4 >= count, "{compared} of {count}");
    });
}
