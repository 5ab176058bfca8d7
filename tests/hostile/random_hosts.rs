//! Random hosts on this kernel, each in namespaces of its own: what the host uses stays, what it
//! does not use can be moved, and after each container the host is what it was, by an opinion that
//! shares no code with the program.
//!
//! `RDMAPREP_RANDOM_HOSTS=N` hosts instead of 24; `RDMAPREP_SEED=0x…` repeats one host, and prints
//! it as a shell script; `RDMAPREP_RANDOM_SEED=N` chooses other hosts. With `RDMAPREP_SHRINK=1` a
//! host that fails loses lines as long as it fails.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::compare::{Observation, differs_for_good};
use crate::random::{Host, Line, Place, Rng, Talk, Tool};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use testkit::{Container, ipv6, run, sh};

/// Of all hosts; the hosts of a suite are always the same ones, since it must not fail by luck.
const SEED: u64 = 17;
/// How many hosts at a time.
const AT_ONCE: usize = 2;
/// Which host a process is to be.
const ONE: &str = "RDMAPREP_SEED";
/// Which of its lines are left.
const KEEP: &str = "RDMAPREP_KEEP";
/// Set inside the namespaces of a host.
const INSIDE: &str = "RDMAPREP_RANDOM_INSIDE";
/// How long the kernel may take until addresses and carriers stand still.
const SETTLED: Duration = Duration::from_secs(20);
/// How long the kernel may hold its one lock of all networks (rtnl_mutex). The end of a network
/// namespace with a bridge waits with it for all RCU callbacks of the machine (rcu_barrier() in
/// br_multicast_dev_del()): for four minutes where 800,000 kernfs nodes of namespaces that had
/// ended were to be freed, at 4,000 a second on two busy cores.
const STALLED: Duration = Duration::from_secs(300);

#[test]
fn random_hosts_keep_their_network_and_get_everything_back() {
    let number = |name: &str| std::env::var(name).ok().map(|n| parsed(&n));
    if std::env::var_os(INSIDE).is_some() {
        return one(number(ONE).unwrap());
    }
    if let Some(seed) = number(ONE) {
        let keep = std::env::var_os("RDMAPREP_SHRINK").map(|_| smallest(seed));
        let host = Host::new(seed);
        println!(
            "{}",
            keep.iter()
                .fold(host, |host, keep| host.keeping(keep))
                .script()
        );
        let said = hosted(seed, keep.as_deref());
        println!("{}", said.as_ref().unwrap_or_else(|e| e));
        return assert!(said.is_ok());
    }
    let base = number("RDMAPREP_RANDOM_SEED").unwrap_or(SEED);
    let count = number("RDMAPREP_RANDOM_HOSTS").unwrap_or(24);
    println!("{count} hosts of RDMAPREP_RANDOM_SEED={base}");
    let mut rng = Rng::new(base);
    let seeds: Vec<u64> = (0..count).map(|_| rng.next()).collect();
    let all = in_parallel(&seeds);
    totals(all.iter().map(|r| r.as_ref().unwrap_or_else(|said| said)));
    let failed: Vec<String> = all
        .iter()
        .filter_map(|r| r.as_ref().err().cloned())
        .collect();
    let failed: Vec<String> = failed.iter().map(|f| uncounted(f)).collect();
    assert!(
        failed.is_empty(),
        "{} of {count} hosts:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

fn parsed(text: &str) -> u64 {
    text.strip_prefix("0x")
        .map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16))
        .unwrap()
}

fn in_parallel(seeds: &[u64]) -> Vec<Result<String, String>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push(hosted(*seed, None));
        }
        done
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .flat_map(|w| w.join().unwrap())
            .collect()
    })
}

/// Runs one host in namespaces of its own; root needs no user namespace, and without one may set
/// queues as well.
fn hosted(seed: u64, keep: Option<&[usize]>) -> Result<String, String> {
    let mut command = Command::new("timeout");
    let limit = STALLED * 2;
    command.args([&limit.as_secs().to_string(), "unshare", "--net", "--mount"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .args(["--"])
        .arg(std::env::current_exe().unwrap())
        .args(testkit::only(
            &random_hosts_keep_their_network_and_get_everything_back,
        ))
        .env(INSIDE, "1")
        .env(ONE, format!("{seed:#x}"))
        .env("RUST_BACKTRACE", "0");
    if let Some(keep) = keep {
        command.env(
            KEEP,
            keep.iter()
                .map(usize::to_string)
                .collect::<Vec<_>>()
                .join(","),
        );
    }
    let said = run(&mut command, "");
    if said.code == Some(0) && said.out.contains(" 1 passed;") {
        return Ok(said.out);
    }
    if said.code == Some(124) {
        return Err(format!(
            "RDMAPREP_SEED={seed:#x}: has not ended after {limit:?}"
        ));
    }
    let why: Vec<&str> = said
        .out
        .lines()
        .chain(said.err.lines())
        .filter(|l| !is_noise(l))
        .collect();
    Err(format!(
        "RDMAPREP_SEED={seed:#x}:\n    {}",
        why.join("\n    ")
    ))
}

/// The lines of the smallest host that still fails: halves, quarters and so on are left out in
/// turn.
fn smallest(seed: u64) -> Vec<usize> {
    let mut keep: Vec<usize> = (0..Host::new(seed).lines.len()).collect();
    let mut size = keep.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < keep.len() {
            let less: Vec<usize> = keep
                .iter()
                .enumerate()
                .filter(|(i, _)| *i < at || *i >= at + size)
                .map(|(_, n)| *n)
                .collect();
            match hosted(seed, Some(&less)) {
                Err(said)
                    if said.contains("differs")
                        || said.contains("lost its way")
                        || said.contains("cut off") =>
                {
                    keep = less
                }
                _ => at += size,
            }
        }
        size /= 2;
    }
    keep
}

fn uncounted(said: &str) -> String {
    said.lines()
        .filter(|l| !l.trim_start().starts_with("count "))
        .collect::<Vec<_>>()
        .join("\n")
}

fn is_noise(line: &str) -> bool {
    let starts = [
        "running 1",
        "test random",
        "test result",
        "failures:",
        "note: run with",
        "error: test failed",
        "    random_",
        "thread '",
    ];
    line.is_empty() || starts.iter().any(|s| line.starts_with(s))
}

/// Adds up the `COUNT WHAT` that the hosts have said.
fn totals<'a>(said: impl Iterator<Item = &'a String>) {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for out in said {
        for line in out
            .lines()
            .filter_map(|l| l.trim_start().strip_prefix("count "))
        {
            let (count, what) = line.split_once(' ').unwrap();
            *sums.entry(what).or_default() += count.parse::<u64>().unwrap();
        }
    }
    sums.iter()
        .for_each(|(what, count)| println!("{count} {what}"));
}

fn count(number: usize, what: &str) {
    println!("count {number} {what}");
}

/// The way a container ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// By its runtime.
    Stop,
    /// Killed, and no runtime says so.
    Dies,
    /// The hook that brings the NICs is killed midway; the container keeps running.
    HookKilled,
    /// Both.
    HookKilledAndDies,
}

/// In its namespaces: builds the host, and has containers take NICs of it.
fn one(seed: u64) {
    let mut host = Host::new(seed);
    if let Ok(keep) = std::env::var(KEEP) {
        let keep: Vec<usize> = keep
            .split(',')
            .filter(|n| !n.is_empty())
            .map(|n| n.parse().unwrap())
            .collect();
        host = host.keeping(&keep);
    }
    let built = Built::new(&host);
    let mut rng = Rng::new(seed ^ 1);
    let all: Vec<&str> = host
        .nics
        .iter()
        .map(|n| n.name.as_str())
        .filter(|_| rng.chance(60))
        .collect();
    let idle = host.nics.iter().filter(|n| n.idle).map(|n| n.name.as_str());
    let idle: Vec<&str> = idle
        .filter(|name| !built.talks.iter().any(|talk| talk.goes_by(name)))
        .collect();
    let some: Vec<&str> = idle.iter().copied().filter(|_| rng.chance(60)).collect();
    let ends = [
        End::Stop,
        End::Stop,
        End::Stop,
        End::Dies,
        End::HookKilled,
        End::HookKilledAndDies,
    ];
    for (number, (wanted, must)) in [(all, false), (idle, true), (some, true)]
        .into_iter()
        .enumerate()
    {
        if !wanted.is_empty() {
            let end = ends[rng.below(ends.len())];
            let after = Duration::from_micros(rng.next() % 60_000);
            let attempt = Attempt {
                built: &built,
                wanted,
                must,
                end,
                after,
                id: format!("c{number}"),
            };
            attempt.run();
        }
    }
}

/// A host as it stands.
struct Built {
    machine: testkit::Host,
    talks: Vec<Spoken>,
    destinations: Vec<IpAddr>,
    _fabric: Container,
}

impl Built {
    fn new(host: &Host) -> Built {
        let machine = testkit::Host::new(env!("CARGO_BIN_EXE_rdmaprep"));
        sh("mount -t sysfs sysfs /sys");
        let fabric = Container::new("fabric");
        let refused = build(&host.lines, fabric.pid());
        count(host.lines.len(), "lines of the hosts");
        count(refused.len(), "lines that the kernel refused");
        if std::env::var_os("RDMAPREP_VERBOSE").is_some() {
            println!("{}", refused.join("\n"));
        }
        let names: String = host
            .name_servers
            .iter()
            .map(|a| format!("nameserver {a}\n"))
            .collect();
        fs::write("/run/resolv.conf", names).unwrap();
        sh("mount --bind /run/resolv.conf /etc/resolv.conf");
        settle();
        let talks: Vec<Spoken> = host
            .talks
            .iter()
            .filter_map(|t| Spoken::new(t, fabric.pid()))
            .collect();
        count(host.talks.len(), "sockets wanted");
        count(talks.len(), "sockets that speak");
        let mut destinations = host.destinations.clone();
        destinations.extend(&host.name_servers);
        destinations.extend(host.talks.iter().map(|t| t.far));
        destinations.sort();
        destinations.dedup();
        Built {
            machine,
            talks,
            destinations,
            _fabric: fabric,
        }
    }

    /// How the host sends to each of its destinations, as the kernel says.
    fn ways(&self) -> BTreeMap<IpAddr, String> {
        self.destinations.iter().map(|d| (*d, way(*d))).collect()
    }
}

fn way(to: IpAddr) -> String {
    let said = run(
        Command::new("ip").args(["-o", "route", "get", &to.to_string()]),
        "",
    );
    said.out
        .split_whitespace()
        .take_while(|w| *w != "uid" && *w != "cache")
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs the lines, neighbours of one tool at once; those that the kernel refused.
fn build(lines: &[Line], fabric: u32) -> Vec<String> {
    let mut refused = Vec::new();
    for batch in lines.chunk_by(|a, b| a.place == b.place && a.tool == b.tool) {
        let words: &[&str] = match batch[0].tool {
            Tool::Ip => &["ip", "-force", "-batch", "-"],
            Tool::Ip6 => &["ip", "-6", "-force", "-batch", "-"],
            Tool::Tc => &["tc", "-force", "-batch", "-"],
            Tool::Sh => &["sh"],
        };
        let text: Vec<String> = batch
            .iter()
            .map(|l| l.text.replace("FABRIC_PID", &fabric.to_string()))
            .collect();
        if text.iter().any(|line| line.contains("forwarding")) {
            // Linux joins the anycast address for each address that is there, and again when its
            // work queue comes to that: then the next link that goes down and up loses the anycast
            // route (addrconf_join_anycast in net/ipv6/addrconf.c).
            network_stands_still();
        }
        let mut command = match batch[0].place {
            Place::Host => Command::new(words[0]),
            Place::Fabric => {
                let mut command = Command::new("nsenter");
                command
                    .arg(format!("--net=/proc/{fabric}/ns/net"))
                    .arg(words[0]);
                command
            }
        };
        let said = run(command.args(&words[1..]), &(text.join("\n") + "\n"));
        let mut why = "";
        for line in said.err.lines() {
            match line
                .strip_prefix("Command failed -:")
                .and_then(|n| n.parse::<usize>().ok())
            {
                Some(number) => refused.push(format!("{}: {why}", text[number - 1])),
                None if batch[0].tool == Tool::Sh => refused.push(line.to_owned()),
                None => why = line,
            }
        }
    }
    refused
}

/// Waits until the fabric's carriers are there, and the kernel is done with all addresses. A link
/// that has lost its carrier ends what duplicate address detection it had begun (at most 1 s + 2 ×
/// 1.5 s by the sysctls that are generated), and then the address has its local route; one that
/// never had a carrier does not begin it (addrconf_dad_begin in net/ipv6/addrconf.c), so that this
/// waits for no longer than 5 s.
fn settle() {
    for _ in 0..60 {
        if !sh("ip -o link").contains("state LOWERLAYERDOWN") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    network_stands_still();
    for _ in 0..100 {
        if sh("ip -o -6 address show up tentative -dadfailed").is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(50));
}

/// A machine with a load takes its time for what the kernel does with carriers and IPv6 addresses
/// by itself.
fn network_stands_still() {
    let start = Instant::now();
    let unfinished = || [unfinished_carriers(), ipv6::unfinished(sh, true)].concat();
    while !unfinished().is_empty() {
        assert!(
            start.elapsed() < STALLED,
            "the kernel is not done with {:?}",
            unfinished()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Links that have a carrier, of which the kernel has not taken notice yet: it does so once in a
/// second (linkwatch_event in net/core/link_watch.c), and only then a bridge gets its own carrier,
/// and an IPv6 address.
fn unfinished_carriers() -> Vec<String> {
    let links = sh("ip -o link show up");
    links
        .lines()
        .filter(|l| l.contains("LOWER_UP") && l.contains("NO-CARRIER"))
        .map(str::to_owned)
        .collect()
}

/// Runs it in the network namespace of that process.
fn within<T: Send>(pid: u32, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let there = scope.spawn(move || {
            let ns = fs::File::open(format!("/proc/{pid}/ns/net")).unwrap();
            nix::sched::setns(ns, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            what()
        });
        there.join().unwrap()
    })
}

/// Two ends of a conversation.
enum Spoken {
    Tcp(TcpStream, TcpStream, String),
    Udp(UdpSocket, UdpSocket, String),
}

impl Spoken {
    /// `None` if they cannot hear each other.
    fn new(talk: &Talk, fabric: u32) -> Option<Spoken> {
        let name = format!("{talk:?}");
        let spoken = match (talk.tcp, talk.inbound) {
            (true, true) => {
                let listener = TcpListener::bind((talk.near?, 0)).ok()?;
                let at = listener.local_addr().ok()?;
                let far = within(fabric, move || {
                    TcpStream::connect_timeout(&at, Duration::from_millis(300)).ok()
                })?;
                Spoken::Tcp(listener.accept().ok()?.0, far, name)
            }
            (true, false) => {
                let far = talk.far;
                let listener = within(fabric, move || TcpListener::bind((far, 0)).ok())?;
                let near = outward(talk.near, listener.local_addr().ok()?)?;
                Spoken::Tcp(near, listener.accept().ok()?.0, name)
            }
            (false, _) => {
                let far = talk.far;
                let far = within(fabric, move || UdpSocket::bind((far, 0)).ok())?;
                let any: IpAddr = if talk.far.is_ipv4() {
                    "0.0.0.0".parse().unwrap()
                } else {
                    "::".parse().unwrap()
                };
                let near = UdpSocket::bind((talk.near.unwrap_or(any), 0)).ok()?;
                near.connect(far.local_addr().ok()?).ok()?;
                Spoken::Udp(near, far, name)
            }
        };
        spoken.speaks().then_some(spoken)
    }

    /// Whether a word goes there and another comes back.
    fn speaks(&self) -> bool {
        self.try_speak().is_ok()
    }

    fn try_speak(&self) -> std::io::Result<()> {
        let (patience, mut word) = (Some(Duration::from_millis(1500)), [0; 4]);
        match self {
            Spoken::Tcp(near, far, _) => {
                for (mut from, mut to) in [(near, far), (far, near)] {
                    to.set_read_timeout(patience)?;
                    from.write_all(b"word")?;
                    to.read_exact(&mut word)?;
                }
            }
            Spoken::Udp(near, far, _) => {
                near.set_read_timeout(patience)?;
                far.set_read_timeout(patience)?;
                near.send(b"word")?;
                let (_, from) = far.recv_from(&mut word)?;
                far.send_to(b"back", from)?;
                near.recv(&mut word)?;
            }
        }
        Ok(())
    }

    /// Whether it leaves by that NIC: of a socket that is bound to no address the kernel chooses
    /// the source, and a rule for that source then the table.
    fn goes_by(&self, nic: &str) -> bool {
        let (own, far) = match self {
            Spoken::Tcp(near, ..) => (near.local_addr().unwrap(), near.peer_addr().unwrap()),
            Spoken::Udp(near, ..) => (near.local_addr().unwrap(), near.peer_addr().unwrap()),
        };
        let (own, far) = (own.ip().to_string(), far.ip().to_string());
        let said = run(
            Command::new("ip").args(["-o", "route", "get", &far, "from", &own]),
            "",
        );
        said.out.contains(&format!(" dev {nic} "))
    }

    fn name(&self) -> &str {
        match self {
            Spoken::Tcp(.., name) | Spoken::Udp(.., name) => name,
        }
    }
}

/// Connects from that address.
fn outward(near: Option<IpAddr>, to: SocketAddr) -> Option<TcpStream> {
    let Some(near) = near else {
        return TcpStream::connect_timeout(&to, Duration::from_millis(300)).ok();
    };
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).ok()?;
    socket.bind(&SocketAddr::new(near, 0).into()).ok()?;
    socket
        .connect_timeout(&to.into(), Duration::from_millis(300))
        .ok()?;
    Some(socket.into())
}

/// One container that wants NICs of a host.
struct Attempt<'a> {
    built: &'a Built,
    wanted: Vec<&'a str>,
    /// Whether the host does not use them, so that there is no reason to refuse one.
    must: bool,
    end: End,
    /// When a hook is killed.
    after: Duration,
    id: String,
}

impl Attempt<'_> {
    fn run(&self) {
        let before = Observation::here();
        let ways = self.built.ways();
        let Some(kept) = self.prepare() else {
            count(1, "selections refused by prepare");
            return self.nothing_changed(&before);
        };
        let mut container = Container::new(&self.id);
        match self.end {
            End::Stop | End::Dies => {
                if !self.create(&container, &kept) {
                    count(1, "selections refused by the hook");
                    return self.nothing_changed(&before);
                }
                count(kept.len(), "NICs taken");
                self.still_reaches(&ways, &kept);
            }
            End::HookKilled | End::HookKilledAndDies => {
                self.killed_hook(&container);
                count(1, "hooks killed midway");
            }
        }
        self.end(&mut container);
        self.nothing_changed(&before);
        self.built.machine.is_clean();
    }

    fn what(&self) -> String {
        format!(
            "{} ({:?}, {})",
            self.wanted.join(","),
            self.end,
            if self.must {
                "not used by the host"
            } else {
                "any"
            }
        )
    }

    /// The NICs that are kept, unless all are refused.
    fn prepare(&self) -> Option<Vec<String>> {
        let prepare = |names: &[&str]| {
            self.built
                .machine
                .rdmaprep(&["prepare", "--ifaces", &names.join(","), "--json"])
        };
        let mut said = prepare(&self.wanted);
        if said.code != Some(0) {
            assert!(
                !self.must,
                "over-blocking: {} refused: {said:#?}",
                self.what()
            );
            assert!(
                matches!(said.code, Some(3 | 4)),
                "{}: {said:#?}",
                self.what()
            );
            // Each that cannot be taken has a line that says why; the others are taken without
            // them.
            let refused = refused(&said.err);
            let is_taken = |name: &&str| refused.iter().all(|other| other != name);
            let rest: Vec<&str> = self.wanted.iter().copied().filter(is_taken).collect();
            if said.code != Some(4) || rest.is_empty() {
                return None;
            }
            assert!(rest.len() < self.wanted.len(), "no reason: {said:#?}");
            said = prepare(&rest);
            assert_eq!(
                said.code,
                Some(0),
                "{} without {refused:?}: {said:#?}",
                self.what()
            );
        }
        let plan: Value = serde_json::from_str(&said.out).unwrap();
        let kept: Vec<String> = plan["plan"]["nics"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| n["identity"]["name"].as_str().unwrap().to_owned())
            .collect();
        if self.must {
            assert_eq!(
                kept.len(),
                self.wanted.len(),
                "over-blocking: of {} only {kept:?}: {}",
                self.what(),
                said.err
            );
        }
        Some(kept)
    }

    /// Whether the container has got its NICs; if not there is one line that says why.
    fn create(&self, container: &Container, kept: &[String]) -> bool {
        let said = container.create(&self.built.machine);
        if said.code == Some(0) {
            let moved = |name: &String| !fs::exists(format!("/sys/class/net/{name}")).unwrap();
            assert!(
                kept.iter().all(moved),
                "{}: not moved: {said:#?}",
                self.what()
            );
            return true;
        }
        assert!(
            !self.must,
            "over-blocking by the hook: {}: {said:#?}",
            self.what()
        );
        said.fails(3, &[]);
        false
    }

    /// The host's own ways are those that they were, and its sockets live.
    fn still_reaches(&self, before: &BTreeMap<IpAddr, String>, kept: &[String]) {
        for (to, was) in before {
            let now = way(*to);
            let by = |text: &str, name: &str| text.contains(&format!(" dev {name} "));
            let lost = kept.iter().any(|k| by(was, k)) || (!was.is_empty() && was != &now);
            assert!(
                !lost,
                "{}: lost its way to {to}: was {was:?}, is {now:?}",
                self.what()
            );
        }
        for talk in &self.built.talks {
            assert!(talk.speaks(), "{}: cut off {}", self.what(), talk.name());
        }
        count(before.len(), "ways compared while away");
        count(self.built.talks.len(), "sockets alive while away");
    }

    fn killed_hook(&self, container: &Container) {
        let mut command = self.built.machine.command(&["hook", "createRuntime"]);
        let mut hook: Child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        hook.stdin
            .take()
            .unwrap()
            .write_all(container.state().as_bytes())
            .unwrap();
        std::thread::sleep(self.after);
        let _ = hook.kill();
        hook.wait().unwrap();
    }

    fn end(&self, container: &mut Container) {
        let said = match self.end {
            End::Stop => container.stop(&self.built.machine),
            End::Dies | End::HookKilledAndDies => {
                container.kill();
                self.built.machine.rdmaprep(&["restore", "--all"])
            }
            End::HookKilled => self.built.machine.rdmaprep(&["restore", "--all"]),
        };
        let differs = || Observation::here();
        assert_eq!(
            said.code,
            Some(0),
            "{}: {said:#?}\n{:?}",
            self.what(),
            differs().lines("link").len()
        );
    }

    fn nothing_changed(&self, before: &Observation) {
        network_stands_still();
        let difference = differs_for_good(before, SETTLED, Observation::here);
        assert!(
            difference.is_empty(),
            "{}: the host differs:\n{}",
            self.what(),
            difference.join("\n")
        );
        let silent: Vec<&str> = self
            .built
            .talks
            .iter()
            .filter(|t| !t.speaks())
            .map(Spoken::name)
            .collect();
        assert!(
            silent.is_empty(),
            "{}: cut off afterwards: {silent:?}",
            self.what()
        );
        count(1, "comparisons");
    }
}

/// The NICs that an error's table names: `CODE  NAME, NAME: WHY → FIX`.
fn refused(err: &str) -> Vec<String> {
    let row = |line: &str| {
        Some(
            line.split_once("  ")?
                .1
                .trim_start()
                .split_once(": ")?
                .0
                .to_owned(),
        )
    };
    let rows = err
        .lines()
        .filter(|line| !line.starts_with(' '))
        .filter_map(row);
    rows.flat_map(|names| names.split(", ").map(str::to_owned).collect::<Vec<_>>())
        .collect()
}
