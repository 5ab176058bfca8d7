//! Network namespaces to judge in: links of the names that matter, in every state, with every kind
//! of address.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;
use rdmaprep::kernel::netns::Netns;
use rdmaprep::kernel::{Kernel, Scope, World as _};

use testkit::{Host, sh};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Up,
    /// Up, and its other end is not.
    NoCarrier,
    Down,
}

#[derive(Clone, Debug)]
pub struct Link {
    pub name: &'static str,
    pub state: State,
    /// `address/prefix`, and the label where it has one of its own.
    pub addresses: Vec<(String, Option<String>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lo {
    Up,
    /// Down, with its address.
    Down,
    /// Down, without one.
    Bare,
}

/// lo's state, and the other links in the order of their ifindexes.
#[derive(Clone, Debug)]
pub struct World {
    pub lo: Lo,
    pub links: Vec<Link>,
}

const NAMES: [&str; 11] = [
    "eth0",
    "eth1",
    "eth10",
    "ib0",
    "rdma0",
    "rdma1",
    "docker0",
    "virbr0",
    "mv0",
    "ens1f0np0",
    "lowpan0",
];

fn link(n: usize, name: &'static str) -> impl Strategy<Value = Link> {
    let label = format!("{name}:1");
    let n = n + 1;
    let plain = |text: String| (text, None);
    let all = vec![
        plain(format!("10.{n}.0.1/24")),
        (format!("10.{n}.1.1/24"), Some(label)),
        plain(format!("10.{n}.0.2/24")),
        // A subnet that several links have.
        plain(format!("10.99.0.{n}/16")),
        plain(format!("10.98.0.{n}/32")),
        plain(format!("2001:db8:{n}::1/64")),
        plain(format!("2001:db8:99::{n}/64")),
        plain(format!("fe80::{n}/64")),
    ];
    let state =
        prop_oneof![6 => Just(State::Up), 2 => Just(State::NoCarrier), 2 => Just(State::Down)];
    (state, subsequence(all, 0..=3)).prop_map(move |(state, addresses)| Link {
        name,
        state,
        addresses,
    })
}

/// Any of the names in any order.
pub fn any() -> impl Strategy<Value = World> {
    let names = subsequence(NAMES.to_vec(), 2..=7).prop_shuffle();
    let links = names.prop_flat_map(|names| {
        names
            .into_iter()
            .enumerate()
            .map(|(n, name)| link(n, name))
            .collect::<Vec<_>>()
    });
    (
        prop_oneof![8 => Just(Lo::Up), 1 => Just(Lo::Down), 1 => Just(Lo::Bare)],
        links,
    )
        .prop_map(|(lo, links)| World { lo, links })
}

/// Those in which the automatic choice is down to its last resorts.
pub fn last_resorts() -> Vec<World> {
    let link = |name, state, addresses: &[&str]| {
        let addresses = addresses.iter().map(|a| (a.to_string(), None)).collect();
        Link {
            name,
            state,
            addresses,
        }
    };
    let docker = || link("docker0", State::Up, &["172.17.0.1/16"]);
    let virbr = || link("virbr0", State::Up, &["192.168.122.1/24", "fe80::7/64"]);
    let idle = || link("eth0", State::NoCarrier, &[]);
    vec![
        World {
            lo: Lo::Up,
            links: vec![idle(), docker()],
        },
        World {
            lo: Lo::Up,
            links: vec![docker(), virbr()],
        },
        World {
            lo: Lo::Up,
            links: vec![virbr()],
        },
        World {
            lo: Lo::Down,
            links: vec![virbr(), idle()],
        },
        World {
            lo: Lo::Up,
            links: vec![idle()],
        },
        World {
            lo: Lo::Bare,
            links: vec![idle()],
        },
        World {
            lo: Lo::Up,
            links: vec![
                link("rdma0", State::Up, &["fe80::3/64"]),
                link("eth0", State::Up, &["10.3.0.1/24"]),
            ],
        },
        World {
            lo: Lo::Up,
            links: vec![
                link("eth0", State::Up, &["2001:db8:3::1/64"]),
                link("ib0", State::Down, &["10.3.0.1/24"]),
            ],
        },
    ]
}

impl World {
    /// Takes the place of the world before it.
    pub fn build(&self, host: &Host) -> Snapshot {
        let names = sh("ip -o link | cut -d: -f2 | cut -d@ -f1");
        let old: std::collections::BTreeSet<&str> =
            names.split_whitespace().filter(|n| *n != "lo").collect();
        for name in old {
            // The other end of a pair goes with it.
            let _ = std::process::Command::new("ip")
                .args(["link", "delete", name])
                .stderr(std::process::Stdio::null())
                .status();
        }
        // No address but those that are asked for.
        fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1").unwrap();
        // It has its address again once it is up.
        host.ip(match self.lo {
            Lo::Up => "link set lo up\n",
            Lo::Down => "link set lo up\nlink set lo down\n",
            Lo::Bare => "link set lo down\naddress flush dev lo\n",
        });
        for (n, link) in self.links.iter().enumerate() {
            host.ip(&link.batch(n));
        }
        self.settled()
    }

    /// Carriers follow some time after the calls.
    fn settled(&self) -> Snapshot {
        let start = Instant::now();
        loop {
            let snapshot = observe();
            let running = |name: &str| {
                snapshot
                    .netdevs
                    .iter()
                    .find(|d| d.name.as_str() == name)
                    .map(|d| d.running)
            };
            let as_asked = |l: &&Link| running(l.name) == Some(l.state == State::Up);
            if running("lo") == Some(self.lo == Lo::Up) && self.links.iter().all(|l| as_asked(&l)) {
                return snapshot;
            }
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "waited in vain for {self:#?}"
            );
            sleep(Duration::from_millis(5));
        }
    }
}

/// This namespace.
pub fn observe() -> Snapshot {
    Kernel::open(Netns::current().unwrap(), None)
        .unwrap()
        .observe(Side::Host, &Scope::full())
        .unwrap()
}

impl Link {
    fn batch(&self, n: usize) -> String {
        let Link { name, state, .. } = self;
        let up = |name: &str| format!("link set {name} up\n");
        let carrier = if *state == State::Up {
            up(&format!("zp{n}"))
        } else {
            String::new()
        };
        let pair = |name: &str| format!("link add {name} type veth peer name zp{n}\n");
        let mut batch = match *name {
            "docker0" | "virbr0" => {
                let port = pair(&format!("zb{n}"));
                format!(
                    "link add {name} type bridge\n{port}link set zb{n} master {name}\n{}{carrier}",
                    up(&format!("zb{n}"))
                )
            }
            "mv0" => {
                let lower = pair(&format!("zb{n}"));
                format!(
                    "{lower}{}{carrier}link add link zb{n} name {name} type macvlan\n",
                    up(&format!("zb{n}"))
                )
            }
            _ => format!("{}{carrier}", pair(name)),
        };
        if *state != State::Down {
            batch += &up(name);
        }
        // getifaddrs does not know this name, if_nametoindex does.
        batch += &format!("link property add dev {name} altname alt{name}\n");
        for (address, label) in &self.addresses {
            let more = match label {
                Some(label) => format!("label {label}"),
                None if address.contains("::") => "nodad".to_owned(),
                None => String::new(),
            };
            batch += &format!("address add {address} dev {name} {more}\n");
        }
        batch
    }
}

/// A name that is there, or one that begins like it, or none.
pub fn some_name(world: &World) -> impl Strategy<Value = String> + use<> {
    let there: Vec<String> = world
        .links
        .iter()
        .map(|l| l.name.to_owned())
        .chain(["lo".to_owned()])
        .collect();
    let short = there.iter().map(|n| n[..n.len() - 1].to_owned());
    let begun = short
        .chain(["eth", "ib", "rdma", "docker", "virbr", "eth1"].map(str::to_owned))
        .collect::<Vec<_>>();
    let labels = there.iter().map(|n| format!("{n}:1")).collect::<Vec<_>>();
    let alternative = there.iter().map(|n| format!("alt{n}")).collect::<Vec<_>>();
    let others = prop_oneof![select(alternative), Just("gone0".to_owned())];
    prop_oneof![7 => select(there), 6 => select(begun), 2 => select(labels), 2 => others]
}

/// The beginning of a name that is there.
pub fn some_beginning(world: &World) -> impl Strategy<Value = String> + use<> {
    let there = world
        .links
        .iter()
        .map(|l| l.name)
        .chain(["lo"])
        .map(|n| n[..n.len() - 1].to_owned());
    select(there.collect::<Vec<_>>())
}
