//! A second opinion on what a network namespace holds, which shares no code with the program: the
//! text of iproute2, ethtool and of the kernel's own files, in the order in which the kernel gives
//! it.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use diffy::Line;
use serde_json::Value;

/// What is looked at. Each `@@ NAME` begins a section.
///
/// Not name_assign_type and addr_assign_type: how a name or an address was set last, which the
/// kernel has no call to set.
const SCRIPT: &str = r#"
at() { echo "@@ $1"; }
at link; ip -j -d link
at address; ip -j address
at route4; ip -o -d -4 route show table all
at route6; ip -o -d -6 route show table all
at rule4; ip -o -d -4 rule
at rule6; ip -o -d -6 rule
at nexthop; ip -o -d nexthop
at neighbour; ip -4 -o neigh show nud all; ip -6 -o neigh show nud all
at proxy; ip -4 -o neigh show proxy; ip -6 -o neigh show proxy
at token; ip token
at qdisc; tc -d qdisc
at tc
for n in /sys/class/net/*; do n=${n##*/}; tc -d class show dev $n
  for w in root ingress egress; do tc -d filter show dev $n $w; done
done 2>/dev/null
at port; bridge -j -d link
at fdb; bridge fdb
at vlan; bridge -j vlan
at socket; ss -tanuH
at xfrm; ip -d xfrm state; ip -d xfrm policy
at netconf; ip -4 -o netconf; ip -6 -o netconf
at ethtool
for n in /sys/class/net/*; do n=${n##*/}
  [ $n = lo ] || for w in k l g c a; do ethtool -$w $n 2>&1 | sed "s/^/$n $w /"; done
done
if [ -n "$BPF" ]; then at bpf; python3 -IS "$BPF" query; fi
at sysctl; grep -rs '' /proc/sys/net/ipv4 /proc/sys/net/ipv6
at sysfs
for n in /sys/class/net/*/; do
  for f in dev_id dormant flags gro_flush_timeout ifalias link_mode mtu napi_defer_hard_irqs \
    netdev_group proto_down testing threaded tx_queue_len type address broadcast;
    do grep -sH '' $n$f; done
  for f in ${n}queues/*/*; do case $f in */tx_timeout|*/inflight) ;; *) grep -sH '' $f ;; esac; done
done; true
"#;

/// Lists BPF programs, and attaches them.
pub const BPF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hostile/compare/bpf.py");

/// A namespace's network at one time, by section and in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation(BTreeMap<String, Vec<String>>);

/// What `verify::LEFT_OUT` lists, which README names; all else has to be equal.
mod excepted {
    use serde_json::Value;

    /// Members of links and addresses: counters, the carrier (which follows some time after the
    /// call), the timers of a bridge, the lifetimes that run down, the name of a namespace that is
    /// not ours.
    const MEMBERS: [&str; 16] = [
        "stats",
        "stats64",
        "operstate",
        "hello_timer",
        "tcn_timer",
        "topology_change_timer",
        "gc_timer",
        "hold_timer",
        "message_age_timer",
        "forward_delay_timer",
        "topology_change",
        "topology_change_detected",
        "config_pending",
        "tentative",
        "dadfailed",
        "deprecated",
    ];
    /// Flags that say what the other end does.
    const FLAGS: [&str; 4] = ["NO-CARRIER", "LOWER_UP", "M-DOWN", "RUNNING"];

    /// Takes them out of `ip -j`'s.
    pub fn members(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|k, _| !MEMBERS.contains(&k.as_str()));
                if let Some(Value::Array(flags)) = map.get_mut("flags") {
                    flags.retain(|f| !FLAGS.iter().any(|x| f == x));
                }
                // The kernel's own discipline: none for a link that was never up.
                if map.get("qdisc").is_some_and(|q| q == "noop") {
                    map.insert("qdisc".into(), "noqueue".into());
                }
                for key in ["valid_life_time", "preferred_life_time"] {
                    if map
                        .get(key)
                        .and_then(Value::as_u64)
                        .is_some_and(|left| left < u64::from(u32::MAX))
                    {
                        map.insert(key.into(), "finite".into());
                    }
                }
                // A set: what a tenant takes away is added behind the others.
                if let Some(Value::Array(names)) = map.get_mut("altnames") {
                    names.sort_by_key(Value::to_string);
                }
                map.values_mut().for_each(members);
            }
            Value::Array(all) => all.iter_mut().for_each(members),
            _ => {}
        }
    }

    /// Routes that the kernel makes of addresses in table local, of link-local ones and for
    /// multicast, some time after the call: there, but in no order.
    pub fn kernels_own(route: &str) -> bool {
        route.contains("proto kernel")
            && [" table local", "unicast fe80::/64"]
                .iter()
                .any(|w| route.contains(w))
    }

    /// A route without what runs down and what says that the other end is down.
    pub fn route(line: &str) -> String {
        let mut words = line.split_whitespace().peekable();
        let mut kept = Vec::new();
        while let Some(word) = words.next() {
            match word {
                "linkdown" | "dead" => {}
                "expires" => drop(words.next()),
                _ => kept.push(word),
            }
        }
        kept.join(" ")
    }

    /// A forwarding entry that was configured, and no multicast address, which follows the
    /// addresses of a link.
    pub fn configured_fdb(line: &str) -> bool {
        let set = line.contains("permanent") || line.contains("static");
        set && !line.starts_with("33:33:") && !line.starts_with("01:00:5e:")
    }

    /// A socket that stays until a program closes it. Half-open ones, and those that say goodbye,
    /// run out by themselves.
    pub fn lasting_socket(line: &str) -> bool {
        let states = [
            "SYN-RECV",
            "SYN-SENT",
            "FIN-WAIT-1",
            "FIN-WAIT-2",
            "TIME-WAIT",
            "CLOSING",
            "LAST-ACK",
        ];
        !line
            .split_whitespace()
            .nth(1)
            .is_some_and(|state| states.contains(&state))
    }

    /// A neighbour that was configured; those that the kernel found out by itself are not compared,
    /// and of the others not what it finds out.
    pub fn neighbour(line: &str) -> Option<String> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let state = words.pop()?;
        let managed = words.contains(&"managed");
        if state == "PERMANENT" {
            return Some(format!("{} {state}", words.join(" ")));
        }
        if let (true, Some(at)) = (managed, words.iter().position(|w| *w == "lladdr")) {
            words.drain(at..at + 2);
        }
        (managed || words.contains(&"extern_learn")).then(|| words.join(" "))
    }
}

fn json_lines(text: &str) -> Vec<String> {
    let Ok(Value::Array(all)) = serde_json::from_str(text) else {
        return vec![text.trim().to_owned()];
    };
    let line = |mut value: Value| {
        excepted::members(&mut value);
        value.to_string()
    };
    all.into_iter().map(line).collect()
}

/// The order that a section has a meaning in: none for what the kernel keeps in hash tables.
fn section(name: &str, text: &str) -> Vec<String> {
    let plain = || {
        text.lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    match name {
        "link" | "address" | "port" | "vlan" => json_lines(text),
        "route4" | "route6" => {
            let all = text.lines().map(excepted::route);
            let (own, mut set): (Vec<String>, Vec<String>) =
                all.partition(|r| excepted::kernels_own(r));
            // `show table all` walks a hash table of tables: their order has no meaning, only that
            // within each.
            set.sort_by_key(|r| {
                r.split(" table ")
                    .nth(1)
                    .and_then(|t| t.split(' ').next())
                    .map(str::to_owned)
            });
            set.extend(sorted(own));
            set
        }
        "neighbour" => sorted(text.lines().filter_map(excepted::neighbour).collect()),
        // Only what was set by hand stands still; what was learned ages.
        "fdb" => sorted(plain().filter(|l| excepted::configured_fdb(l)).collect()),
        "socket" => sorted(plain().filter(|l| excepted::lasting_socket(l)).collect()),
        // Links come in the order in which they appeared in the namespace.
        "qdisc" => {
            let mut all: Vec<String> = plain().filter(|l| !l.contains("noqueue")).collect();
            all.sort_by_key(|l| {
                l.split(" dev ")
                    .nth(1)
                    .and_then(|d| d.split(' ').next())
                    .map(str::to_owned)
            });
            all
        }
        "tc" | "rule4" | "rule6" | "nexthop" => plain().collect(),
        // One that bridges nothing has no number of its own.
        "sysfs" => sorted(plain().filter(|l| !l.contains("/lo/")).collect()),
        _ => sorted(plain().collect()),
    }
}

impl Observation {
    /// Of the namespace that the test runs in, whose sysfs is mounted at /sys.
    pub fn here() -> Observation {
        Observation::of(&said(Command::new("sh").args(["-c", SCRIPT])))
    }

    /// As [`Observation::here`], with the BPF programs at each link, which iproute2 does not list.
    pub fn here_with_bpf() -> Observation {
        Observation::of(&said(
            Command::new("sh").args(["-c", SCRIPT]).env("BPF", BPF),
        ))
    }

    /// Of a process's network namespace.
    pub fn inside(pid: u32) -> Observation {
        let net = format!("--net=/proc/{pid}/ns/net");
        let script = format!("mount -t sysfs sysfs /sys; {SCRIPT}");
        let mut command = Command::new("nsenter");
        command
            .args([&net, "unshare", "--mount", "sh", "-c", &script])
            .env("BPF", BPF);
        Observation::of(&said(&mut command))
    }

    fn of(text: &str) -> Observation {
        let parts = text
            .split("@@ ")
            .skip(1)
            .filter_map(|part| part.split_once('\n'));
        let mut all = Observation(
            parts
                .map(|(name, body)| (name.to_owned(), section(name, body)))
                .collect(),
        );
        all.forget_locals_of_down_links();
        all
    }

    /// An address has its IPv6 route in table local since it was added, or not, if its link is
    /// down.
    fn forget_locals_of_down_links(&mut self) {
        let up = |link: &Value| {
            link["flags"]
                .as_array()
                .is_some_and(|f| f.iter().any(|f| f == "UP"))
        };
        let links = self
            .lines("link")
            .iter()
            .filter_map(|l| serde_json::from_str::<Value>(l).ok());
        let down: Vec<String> = links
            .filter(|l| !up(l))
            .map(|l| format!(" dev {} ", l["ifname"].as_str().unwrap()))
            .collect();
        let local = |r: &String| r.starts_with("local ") && down.iter().any(|d| r.contains(d));
        if let Some(routes) = self.0.get_mut("route6") {
            routes.retain(|r| !local(r));
        }
    }

    /// The lines that are not the same, in order: `-` before, `+` after.
    pub fn difference(&self, after: &Observation) -> Vec<String> {
        let mut all = Vec::new();
        for (name, was) in &self.0 {
            let none = Vec::new();
            let now = after.0.get(name).unwrap_or(&none);
            let text =
                |lines: &[String]| lines.iter().map(|l| format!("{l}\n")).collect::<String>();
            let (was, now) = (text(was), text(now));
            let patch = diffy::create_patch(&was, &now);
            let changed = |line: &Line<str>| match line {
                Line::Delete(l) => Some(format!("{name} -{}", l.trim_end_matches('\n'))),
                Line::Insert(l) => Some(format!("{name} +{}", l.trim_end_matches('\n'))),
                Line::Context(_) => None,
            };
            let lines: Vec<String> = patch
                .hunks()
                .iter()
                .flat_map(|h| h.lines())
                .filter_map(changed)
                .collect();
            all.extend(brief(lines));
        }
        self.without_lost(after, all)
    }

    /// Of a link that is lost, or new, one line.
    fn without_lost(&self, after: &Observation, all: Vec<String>) -> Vec<String> {
        let names = |o: &Observation| -> Vec<String> {
            let links = o
                .lines("link")
                .iter()
                .filter_map(|l| serde_json::from_str::<Value>(l).ok());
            links
                .filter_map(|l| Some(l.get("ifname")?.as_str()?.to_owned()))
                .collect()
        };
        let (was, now) = (names(self), names(after));
        let lost: Vec<&String> = was
            .iter()
            .filter(|n| !now.contains(n))
            .chain(now.iter().filter(|n| !was.contains(n)))
            .collect();
        let of_lost = |line: &String| {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
            !line.starts_with("link ")
                && words.any(|w| lost.iter().any(|n| *n == w.trim_start_matches('-')))
        };
        all.into_iter().filter(|l| !of_lost(l)).collect()
    }

    /// With each of these words replaced, so that NICs of two tenants can be compared.
    pub fn filtered(&self, keep: impl Fn(&str, &str) -> bool) -> Observation {
        let lines = |(k, v): (&String, &Vec<String>)| {
            (
                k.clone(),
                v.iter().filter(|l| keep(k, l)).cloned().collect(),
            )
        };
        Observation(self.0.iter().map(lines).collect())
    }

    /// The lines of a section.
    pub fn lines(&self, section: &str) -> &[String] {
        self.0.get(section).map_or(&[], Vec::as_slice)
    }
}

/// Of two JSON lines of one link only the members that differ.
fn brief(lines: Vec<String>) -> Vec<String> {
    let object = |line: &String| -> Option<(String, serde_json::Map<String, Value>)> {
        let (tag, json) = line.split_at(line.find('{')?);
        Some((tag.to_owned(), serde_json::from_str(json).ok()?))
    };
    let objects: Option<Vec<_>> = lines.iter().map(object).collect();
    let Some(objects) = objects else { return lines };
    let mut out = Vec::new();
    for (index, (tag, map)) in objects.iter().enumerate() {
        let other = objects
            .iter()
            .find(|(t, m)| t != tag && m.get("ifname") == map.get("ifname"));
        let Some((_, other)) = other else {
            out.push(lines[index].clone());
            continue;
        };
        let differ = map
            .iter()
            .filter(|(k, v)| other.get(*k) != Some(v))
            .map(|(k, v)| format!("{k}={v}"));
        let differ: Vec<String> = differ.collect();
        out.push(format!(
            "{tag}{} {}",
            map.get("ifname").unwrap_or(&Value::Null),
            differ.join(" ")
        ));
    }
    out
}

/// What a command prints, names that are no UTF-8 included.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What still differs after `limit`: the kernel settles addresses and carriers some time after the
/// call.
pub fn differs_for_good(
    before: &Observation,
    limit: Duration,
    look: impl Fn() -> Observation,
) -> Vec<String> {
    let start = Instant::now();
    loop {
        let difference = before.difference(&look());
        if difference.is_empty() || start.elapsed() > limit {
            return difference;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
