//! Random hosts as data: a list of commands that a shell could run, the sockets that live on them,
//! and which NICs the host does not use in any way.

mod idle;
mod used;

use std::fmt::Write as _;
use std::net::IpAddr;

/// A generator of numbers that is the same everywhere (splitmix64): a seed is a host.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..count`.
    pub fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).unwrap()
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

/// Whose namespace a command is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    Host,
    Fabric,
}

/// What runs a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Tool {
    Ip,
    Ip6,
    Tc,
    /// A shell.
    Sh,
}

/// One command.
#[derive(Clone, Debug)]
pub struct Line {
    pub place: Place,
    pub tool: Tool,
    pub text: String,
}

impl Line {
    fn shell(&self) -> String {
        let at = if self.place == Place::Host { "h" } else { "f" };
        match self.tool {
            Tool::Ip => format!("{at} ip {}", self.text),
            Tool::Ip6 => format!("{at} ip -6 {}", self.text),
            Tool::Tc => format!("{at} tc {}", self.text),
            Tool::Sh => format!("{at} sh -c {:?}", self.text),
        }
    }
}

/// The two ends of a connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Talk {
    pub tcp: bool,
    /// Whether the fabric connects to the host, as an ssh client does.
    pub inbound: bool,
    /// The end in the fabric.
    pub far: IpAddr,
    /// The host's address: where it listens, or what it binds; none: the kernel chooses.
    pub near: Option<IpAddr>,
}

/// A link that a container may want.
#[derive(Clone, Debug)]
pub struct Nic {
    pub name: String,
    /// Whether the host does not use it in any way that README refuses.
    pub idle: bool,
}

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    pub seed: u64,
    pub nics: Vec<Nic>,
    pub lines: Vec<Line>,
    pub talks: Vec<Talk>,
    pub name_servers: Vec<IpAddr>,
    /// Where the host's packets go: gateways and addresses in each half of each family.
    pub destinations: Vec<IpAddr>,
    /// What it is made of, to count the layouts.
    pub layout: Vec<&'static str>,
}

/// Addresses out on the internet, which the fabric owns.
pub const PUBLIC: [&str; 4] = ["9.9.9.9", "203.0.113.9", "2606:4700::1111", "3fff::9"];

struct Draft {
    rng: Rng,
    host: Host,
}

impl Host {
    /// The host of that seed.
    pub fn new(seed: u64) -> Host {
        let host = Host {
            seed,
            nics: Vec::new(),
            lines: Vec::new(),
            talks: Vec::new(),
            name_servers: Vec::new(),
            destinations: PUBLIC.iter().map(|a| a.parse().unwrap()).collect(),
            layout: Vec::new(),
        };
        let mut draft = Draft {
            rng: Rng::new(seed),
            host,
        };
        draft.links();
        draft.used();
        draft.idle();
        draft.host
    }

    /// Without the lines that are not in the list, to find the smallest host that fails.
    pub fn keeping(mut self, keep: &[usize]) -> Host {
        let lines = std::mem::take(&mut self.lines);
        self.lines = lines
            .into_iter()
            .enumerate()
            .filter(|(i, _)| keep.contains(i))
            .map(|(_, l)| l)
            .collect();
        self
    }

    /// As a shell script for `unshare --net --mount`.
    pub fn script(&self) -> String {
        let mut text = format!(
            "#!/bin/bash\n# Host {:#018x}: {}. Run it by: unshare --net --mount bash FILE\n\
             ip link set lo up; mount -t tmpfs tmpfs /run; mount -t sysfs sysfs /sys\n\
             unshare --net sleep infinity & FABRIC=$!; sleep 0.2\n\
             h() {{ \"$@\"; }}\nf() {{ nsenter --net=/proc/$FABRIC/ns/net \"$@\"; }}\n",
            self.seed,
            self.layout.join(", ")
        );
        for (index, line) in self.lines.iter().enumerate() {
            let _ = writeln!(
                text,
                "{} # {index}",
                line.shell().replace("FABRIC_PID", "$FABRIC")
            );
        }
        for talk in &self.talks {
            let _ = writeln!(text, "# {talk:?}");
        }
        let idle = |idle| {
            self.nics
                .iter()
                .filter(|n| n.idle == idle)
                .map(|n| n.name.as_str())
                .collect::<Vec<_>>()
                .join(" ")
        };
        let _ = writeln!(
            text,
            "# not used by the host: {}; used: {}",
            idle(true),
            idle(false)
        );
        text
    }
}

impl Draft {
    fn push(&mut self, place: Place, tool: Tool, text: String) {
        self.host.lines.push(Line { place, tool, text });
    }

    fn ip(&mut self, text: impl Into<String>) {
        self.push(Place::Host, Tool::Ip, text.into());
    }

    fn ip6(&mut self, text: impl Into<String>) {
        self.push(Place::Host, Tool::Ip6, text.into());
    }

    fn fabric(&mut self, text: impl Into<String>) {
        self.push(Place::Fabric, Tool::Ip, text.into());
    }

    fn sh(&mut self, text: impl Into<String>) {
        self.push(Place::Host, Tool::Sh, text.into());
    }

    fn name(&self, nic: usize) -> String {
        self.host.nics[nic].name.clone()
    }

    /// The links, and the fabric on their other ends. Each NIC has a subnet of its own per family,
    /// `10.N.0.0/24` and `fd00:N::/64`, in which the host is `.1` and the fabric `.254` and `::fe`.
    fn links(&mut self) {
        let count = 2 + self.rng.below(5);
        let fast = self.rng.chance(85);
        if fast {
            // No duplicate address detection: most hosts are looked at as soon as they are built.
            self.sh("echo 0 | tee /proc/sys/net/ipv6/conf/*/accept_dad > /dev/null");
            self.host.lines.push(Line {
                place: Place::Fabric,
                tool: Tool::Sh,
                text: "echo 0 | tee /proc/sys/net/ipv6/conf/*/accept_dad > /dev/null".into(),
            });
        }
        let style = self.rng.below(4);
        for i in 0..count {
            let name = match style {
                0 => format!("rdma{i}"),
                1 => format!("ens{}f{}np0", i / 2, i % 2),
                2 => format!("r{i}"),
                _ => format!("rail-{i}"),
            };
            self.host.nics.push(Nic {
                name: name.clone(),
                idle: true,
            });
            let queues = if self.rng.chance(30) {
                " numtxqueues 2 numrxqueues 2"
            } else {
                ""
            };
            let mac = if self.rng.chance(50) {
                format!(" address 02:00:00:00:0{i}:01")
            } else {
                String::new()
            };
            self.ip(format!(
                "link add {name}{mac}{queues} type veth peer name f{i} netns FABRIC_PID"
            ));
            if self.rng.chance(15) {
                let mode = self.rng.pick(&["random", "none", "eui64"]);
                self.ip(format!("link set {name} addrgenmode {mode}"));
            } else if self.rng.chance(8) {
                self.sh(format!(
                    "echo 2001:db8::{i} > /proc/sys/net/ipv6/conf/{name}/stable_secret"
                ));
            }
            self.fabric(format!("link set f{i} up"));
            self.fabric(format!("address add 10.{i}.0.254/24 dev f{i}"));
            self.fabric(format!("address add fd00:{i}::fe/64 dev f{i} nodad"));
            self.ip(format!("link set {name} up"));
            self.ip(format!("address add 10.{i}.0.1/24 dev {name}"));
            self.ip(format!("address add fd00:{i}::1/64 dev {name} nodad"));
        }
        for address in PUBLIC {
            self.fabric(format!("address add {address} dev lo"));
        }
        self.fabric("link set lo up");
    }
}
