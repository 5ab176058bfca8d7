//! Whole tests over a store, with queue pairs that exist in memory alone.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "a test fails by panicking, and prints what it measures"
)]

#[path = "../../crates/rail-agreement/tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use rail_agreement::c10d::C10d;
#[cfg(feature = "etcd")]
use rail_agreement::etcd::Etcd;
use rail_agreement::file::FileStore;
use rail_agreement::message::HostName;
use rail_agreement::pmi::Pmi;
use rail_agreement::{Digest, Store};
use rail_test::addresses::Own;
use rail_test::cause::Culprit;
use rail_test::meet::{Asked, Cross, Ended, Keys, farewell, test};
use rail_test::pairs::{Pattern, Schedule};
use rail_test::transport::{
    Far, Fault, LaneEnd, LaneId, Measured, Outcome, RailEnd, Transport, Why,
};
use support::Memory;
use support::fake::{Fake, Manner};
use support::pmi::launch;

type Says = fn(u32, u32, LaneId) -> Option<Fault>;

/// Who has which queue pair.
#[derive(Default)]
struct Fabric(Mutex<BTreeMap<u32, (u32, LaneId)>>);

struct InMemory {
    fabric: Arc<Fabric>,
    rank: u32,
    rails: u8,
    says: Says,
    lanes: Vec<LaneId>,
    far: Vec<Option<Far>>,
    contacted: Arc<Mutex<Vec<Ipv6Addr>>>,
}

fn gid(rank: u32, rail: u8) -> Ipv6Addr {
    Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(rail) << 64 | u128::from(rank + 1))
}

impl Transport for InMemory {
    fn rails(&self) -> Vec<RailEnd> {
        (0..self.rails)
            .map(|rail| RailEnd(gid(self.rank, rail), 0, 5, None))
            .collect()
    }

    fn open(&mut self, lanes: &[LaneId]) -> Vec<Result<LaneEnd, Fault>> {
        self.lanes = lanes.to_vec();
        let mut pairs = self.fabric.0.lock().unwrap();
        let mut ends = Vec::new();
        for lane in lanes {
            let queue_pair = pairs.len() as u32 + 2;
            pairs.insert(queue_pair, (self.rank, *lane));
            ends.push(Ok(LaneEnd {
                queue_pair,
                packet: 1,
                key: 2,
                address: 3,
            }));
        }
        ends
    }

    fn connect(&mut self, far: &[Option<Far>]) -> Vec<Option<Fault>> {
        self.far = far.to_vec();
        let gids = far.iter().flatten().map(|far| far.rail.gid());
        self.contacted.lock().unwrap().extend(gids);
        far.iter().map(|_| None).collect()
    }

    /// It works where both ends have each other's queue pair.
    fn run(&mut self) -> Vec<Option<Outcome>> {
        let pairs = self.fabric.0.lock().unwrap();
        let mut outcomes = Vec::new();
        for (lane, far) in self.lanes.iter().zip(&self.far) {
            let Some(far) = far else {
                outcomes.push(None);
                continue;
            };
            let sent = match pairs.get(&far.lane.queue_pair) {
                Some((rank, there)) if *there == lane.turned() => {
                    (self.says)(self.rank, *rank, *lane).map_or(Ok(Measured::default()), Err)
                }
                _ => Err(Fault::of(Why::NoAnswer)),
            };
            outcomes.push(Some(Outcome { sent }));
        }
        outcomes
    }

    fn close(&mut self) {}
}

struct World {
    nodes: u32,
    rails: u8,
    pattern: Pattern,
    round: Duration,
    says: Says,
    fabric: Arc<Fabric>,
    contacted: Arc<Mutex<Vec<Ipv6Addr>>>,
}

impl World {
    fn new(nodes: u32, rails: u8, pattern: Pattern, says: Says) -> World {
        World {
            nodes,
            rails,
            pattern,
            round: Duration::from_secs(60),
            says,
            fabric: Arc::default(),
            contacted: Arc::default(),
        }
    }

    fn asked(&self, rank: u32) -> Asked {
        Asked {
            run: "job.1".parse().unwrap(),
            digest: Digest::of_text("attempt"),
            rank,
            nodes: self.nodes,
            host: HostName::sanitized(&format!("node-{rank}")),
            schedule: Schedule::new(self.pattern, self.nodes, 7),
            cross: Cross::First,
            rails: (0..self.rails).map(|rail| format!("rdma{rail}")).collect(),
            lost: Vec::new(),
            round: self.round,
            own: Own {
                addresses: vec![gid(rank, 0).into()],
                rails: vec!["2001:db8::/32".parse().unwrap()],
                others: vec!["fd00::/8".parse().unwrap()],
                ..Own::default()
            },
        }
    }

    fn one(&self, rank: u32, store: &mut dyn Store) -> Result<Ended> {
        let mut transport = InMemory {
            fabric: self.fabric.clone(),
            rank,
            rails: self.rails,
            says: self.says,
            lanes: Vec::new(),
            far: Vec::new(),
            contacted: self.contacted.clone(),
        };
        test(store, &self.asked(rank), &mut transport, &mut |_| {})
    }

    /// All nodes but those left out, each with a store of its own.
    fn run<S: Store>(
        &self,
        left_out: &[u32],
        store: impl Fn(u32) -> S + Sync,
    ) -> BTreeMap<u32, Result<Ended>> {
        let store = &store;
        std::thread::scope(|scope| {
            let mut all = BTreeMap::new();
            for rank in (0..self.nodes).filter(|rank| !left_out.contains(rank)) {
                let builder = std::thread::Builder::new().stack_size(512 << 10);
                let part = move || self.one(rank, &mut store(rank));
                all.insert(rank, builder.spawn_scoped(scope, part).unwrap());
            }
            all.into_iter()
                .map(|(rank, part)| (rank, part.join().unwrap()))
                .collect()
        })
    }
}

fn all_good(_: u32, _: u32, _: LaneId) -> Option<Fault> {
    None
}

#[test]
fn all_nodes_hear_that_all_works_and_no_key_stays() {
    for (nodes, rails, pattern) in [
        (2, 8, Pattern::Ring),
        (3, 4, Pattern::Ring),
        (7, 2, Pattern::All),
        (9, 3, Pattern::Random(3)),
        (1, 2, Pattern::Ring),
    ] {
        let world = World::new(nodes, rails, pattern, all_good);
        let memory = Memory::default();
        for (rank, ended) in world.run(&[], |_| memory.clone()) {
            let ended = ended.unwrap();
            assert!(
                ended.verdict.error().is_none(),
                "{pattern} {:?}",
                ended.verdict
            );
            assert_eq!(ended.findings.is_some(), rank == 0);
            assert!(
                ended
                    .told
                    .straight
                    .values()
                    .all(|outcome| outcome.sent.is_ok())
            );
        }
        assert_eq!(memory.len(), 0, "{pattern}");
    }
}

#[test]
fn all_nodes_hear_the_same_cause() {
    let world = World::new(5, 3, Pattern::Ring, |from, to, lane| {
        let is_bad = (from == 2 && lane.0 == 1) || (to == 2 && lane.1 == 1);
        is_bad.then(|| Fault::of(Why::NoNeighbour))
    });
    let memory = Memory::default();
    let mut verdicts = Vec::new();
    for ended in world.run(&[], |_| memory.clone()).into_values() {
        verdicts.push(ended.unwrap().verdict);
    }
    verdicts.dedup();
    assert_eq!(verdicts.len(), 1);
    let verdict = &verdicts[0];
    assert!(
        verdict.lines[0]
            .text
            .starts_with("rdma1 of node-2 (rank 2): all its pairs fail")
    );
    assert_eq!((verdict.broken, verdict.failed), (true, 0b10));
}

#[test]
fn a_node_that_ends_midway_is_named_and_its_keys_go() {
    let mut world = World::new(4, 2, Pattern::Ring, all_good);
    world.round = Duration::from_millis(300);
    let memory = Memory::default();
    // It has published its card of the first round, and no more.
    let keys = Keys::new(&"job.1".parse().unwrap(), &Digest::of_text("attempt"));
    let card = br#"{"rails":[],"lanes":[]}"#.to_vec();
    memory.clone().put(&[(keys.card(0, 3, 0), card)]).unwrap();
    for ended in world.run(&[3], |_| memory.clone()).into_values() {
        let verdict = ended.unwrap().verdict;
        assert_eq!((verdict.missing.as_slice(), verdict.failed), (&[3][..], 0));
        let error = verdict.error().unwrap();
        assert_eq!(error.to_string(), "rank 3 did not tell what they found");
    }
    assert_eq!(memory.len(), 0);
}

#[test]
fn without_rank_0_the_others_say_so() {
    let mut world = World::new(3, 1, Pattern::Ring, all_good);
    world.round = Duration::from_millis(50);
    let memory = Memory::default();
    let begun = Instant::now();
    for ended in world.run(&[0], |_| memory.clone()).into_values() {
        let text = format!("{:#}", ended.unwrap_err());
        assert!(text.starts_with("missing rank 0"), "{text}");
    }
    // Not for ever: it waits some 10 s, and a busy machine adds to that.
    assert!(begun.elapsed() < Duration::from_secs(60));
}

/// A store that shows other values than were written, for keys that contain some text.
#[derive(Clone)]
struct Lying {
    inner: Memory,
    about: &'static str,
    from: &'static str,
    to: &'static str,
}

impl Store for Lying {
    fn put(&mut self, pairs: &[(String, Vec<u8>)]) -> Result<()> {
        let mut pairs = pairs.to_vec();
        for (key, value) in &mut pairs {
            if key.contains(self.about) {
                let text = String::from_utf8(value.clone()).unwrap();
                *value = text.replace(self.from, self.to).into_bytes();
            }
        }
        self.inner.put(&pairs)
    }

    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Vec<u8>>>> {
        self.inner.get(keys, until)
    }

    fn check(&mut self, keys: &[String]) -> Result<bool> {
        self.inner.check(keys)
    }

    fn delete(&mut self, keys: &[String]) -> Result<()> {
        self.inner.delete(keys)
    }
}

/// Rank 1 of 4 lies in this way; its own pairs fail, and those of no others.
fn lie(about: &'static str, from: &'static str, to: &'static str) -> Vec<Ipv6Addr> {
    let mut world = World::new(4, 2, Pattern::Ring, all_good);
    world.round = Duration::from_secs(2);
    let memory = Memory::default();
    let mut all = world.run(&[], |rank| Lying {
        inner: memory.clone(),
        about: if rank == 1 { about } else { "nothing" },
        from,
        to,
    });
    let ended = all.remove(&0).unwrap().unwrap();
    let findings = ended.findings.unwrap();
    let text = findings.text();
    assert!(!findings.causes.is_empty(), "{about} {from}: {text}");
    for cause in &findings.causes {
        match cause.culprit {
            Some(Culprit::Node(1) | Culprit::Nic(1, _)) => {}
            // What one partner alone has refused.
            Some(Culprit::Pair(a, b, _)) if a == 1 || b == 1 => {}
            _ => panic!("{about} {from}: {text}"),
        }
    }
    for tested in findings
        .tested
        .iter()
        .filter(|t| t.edge.a != 1 && t.edge.b != 1)
    {
        assert_eq!(tested.fault(), None, "{about} {from}");
    }
    world.contacted.lock().unwrap().clone()
}

#[test]
fn a_node_that_lies_in_its_cards_spoils_its_own_pairs() {
    lie("/card/", "\"rails\"", "\"sliar\"");
    lie("/card/", "[0,0,", "[0,3,");
    lie("/card/", ",5,null", ",9,null");
    // Addresses of another node's other interface, of this node, unspecified, multicast.
    for address in ["fd00::1", "2001:db8::1", "::", "ff02::1", "::1", "10.0.0.1"] {
        let contacted = lie("/card/", "2001:db8::2", address);
        let bad: Vec<_> = contacted
            .iter()
            .filter(|gid| gid.segments()[0] != 0x2001)
            .collect();
        assert!(bad.is_empty(), "{bad:?}");
    }
}

#[test]
fn a_node_that_lies_in_what_it_tells_spoils_no_other() {
    lie("/told/", "\"host\"", "\"tsoh\"");
    lie("/told/", "[0,0,", "[2,7,");
    lie("/told/", "\"parts\":1", "\"parts\":77777");
    lie("/told/", "null,0]", "\"no_answer\",12]");
}

/// A store that keeps until when rank 0 waits for the verdict's readers, and whether they all come;
/// and until when others wait for the verdict. Of rank 0's verdict it may show something else.
#[derive(Clone, Default)]
struct Patient {
    inner: Memory,
    spoils: bool,
    readers: Arc<Mutex<Vec<(Instant, bool)>>>,
    verdict: Arc<Mutex<Vec<Instant>>>,
}

impl Store for Patient {
    fn put(&mut self, pairs: &[(String, Vec<u8>)]) -> Result<()> {
        let mut pairs = pairs.to_vec();
        for (key, value) in &mut pairs {
            if self.spoils && key.ends_with("/verdict") {
                *value = b"{}".to_vec();
            }
        }
        self.inner.put(&pairs)
    }

    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Vec<u8>>>> {
        if keys.iter().any(|key| key.ends_with("/verdict")) {
            self.verdict.lock().unwrap().push(until);
        }
        self.inner.get(keys, until)
    }

    fn check(&mut self, keys: &[String]) -> Result<bool> {
        self.inner.check(keys)
    }

    fn delete(&mut self, keys: &[String]) -> Result<()> {
        self.inner.delete(keys)
    }

    fn await_readers(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Vec<u8>>>> {
        let found = self.inner.get(keys, until)?;
        self.readers.lock().unwrap().push((until, found.is_some()));
        Ok(found)
    }
}

#[test]
fn rank_0_and_the_others_wait_longer_for_more_nodes() {
    for nodes in [2, 1024] {
        let mut world = World::new(nodes, 1, Pattern::Ring, all_good);
        world.round = Duration::from_millis(50);
        let (begun, store) = (Instant::now(), Patient::default());
        let all: Vec<u32> = (2..nodes).collect();
        for ended in world.run(&all, |_| store.clone()).into_values() {
            assert_eq!(ended.unwrap().verdict.missing.is_empty(), nodes == 2);
        }
        let readers = store.readers.lock().unwrap();
        let verdict = store.verdict.lock().unwrap();
        assert_eq!((readers.len(), verdict.len()), (1, 1));
        assert!(readers[0].1 && readers[0].0 >= begun + farewell(nodes));
        assert!(verdict[0] >= begun + farewell(nodes));
    }
    // Of 1,024 nodes over a file, on a busy machine, one took longer than 10 s.
    assert!(farewell(1024) > Duration::from_secs(60) && farewell(2) < Duration::from_secs(11));
}

#[test]
fn who_cannot_use_the_verdict_has_read_it() {
    let world = World::new(3, 1, Pattern::Ring, all_good);
    let store = Patient {
        spoils: true,
        ..Patient::default()
    };
    for (rank, ended) in world.run(&[], |_| store.clone()) {
        match rank {
            0 => assert!(ended.unwrap().verdict.error().is_none()),
            _ => {
                let text = format!("{:#}", ended.unwrap_err());
                assert!(
                    text.starts_with("what rank 0 said cannot be used"),
                    "{text}"
                );
            }
        }
    }
    let readers = store.readers.lock().unwrap();
    assert!(readers.len() == 1 && readers[0].1, "rank 0 waited in vain");
    assert_eq!(store.inner.len(), 0);
}

/// What a ring of five with a NIC that fails comes to, over stores of any kind.
fn same_over<S: Store>(name: &str, store: impl Fn(u32) -> S + Sync) {
    let world = World::new(5, 2, Pattern::Ring, |from, to, lane| {
        let is_bad = (from == 3 && lane.0 == 1) || (to == 3 && lane.1 == 1);
        is_bad.then(|| Fault::of(Why::NoAnswer))
    });
    for ended in world.run(&[], store).into_values() {
        let verdict = ended.unwrap().verdict;
        let first = &verdict.lines[0].text;
        let cause = "rdma1 of node-3 (rank 3): all its pairs fail";
        assert!(first.starts_with(cause), "{name}: {first}");
        assert_eq!((verdict.missing, verdict.failed), (vec![], 0b10), "{name}");
    }
}

#[cfg(feature = "etcd")]
#[test]
fn nodes_meet_over_etcd_and_leave_no_key() {
    let server = support::etcd::Server::start();
    let open = || {
        let limit = Instant::now() + Duration::from_secs(120);
        Etcd::connect(server.url().parse().unwrap(), None, limit, Duration::ZERO).unwrap()
    };
    same_over("etcd", |_| open());
    let keys = Keys::new(&"job.1".parse().unwrap(), &Digest::of_text("attempt"));
    let mut all = vec![keys.verdict(), keys.wish()];
    for rank in 0..5 {
        all.extend([keys.told(rank, 0), keys.done(rank)]);
        all.extend((0..6).flat_map(|round| [keys.card(round, rank, 0), keys.ready(round, rank)]));
    }
    assert_eq!(open().missing(&all, all.len()).unwrap().len(), all.len());
}

#[test]
fn nodes_meet_over_pmi() {
    for eager in [false, true] {
        let sockets: Vec<_> = launch(5, 1024, eager).into_iter().map(Some).collect();
        let sockets: Mutex<Vec<Option<File>>> = Mutex::new(sockets);
        same_over("pmi", |rank| {
            let socket = sockets.lock().unwrap()[rank as usize].take();
            let limit = Instant::now() + Duration::from_secs(120);
            Pmi::from_socket(socket.unwrap(), limit).unwrap()
        });
    }
}

/// Seconds that a whole ring takes, and keys that each node writes.
fn scale(name: &str, nodes: u32, rails: u8, pattern: Pattern, ended: BTreeMap<u32, Result<Ended>>) {
    for ended in ended.into_values() {
        let verdict = ended.unwrap().verdict;
        assert!(
            verdict.error().is_none(),
            "{name} {nodes} {rails} {pattern}: {verdict:?}"
        );
    }
}

#[test]
fn many_nodes_over_a_tcp_store_and_a_file() {
    let nodes = std::env::var("RDMAPREP_RAIL_TEST_NODES").ok();
    let nodes: u32 = nodes.map_or(64, |nodes| nodes.parse().unwrap());
    let limit = Instant::now() + Duration::from_secs(300);
    for pattern in [Pattern::Ring, Pattern::All] {
        if pattern == Pattern::All && nodes > 64 {
            continue;
        }
        let world = World::new(nodes, 8, pattern, all_good);
        let server = Fake::start(Manner::Libuv);
        let begun = Instant::now();
        let ended = world.run(&[], |_| {
            let to = server.address.to_string().parse().unwrap();
            C10d::connect(to, limit, Duration::ZERO).unwrap()
        });
        let took = begun.elapsed();
        scale("c10d", nodes, 8, pattern, ended);
        let (bytes, asked) = (
            server.traffic.load(std::sync::atomic::Ordering::Relaxed),
            server.requests.load(std::sync::atomic::Ordering::Relaxed),
        );
        let rounds = Schedule::new(pattern, nodes, 7).rounds();
        println!("c10d, {nodes} nodes, {pattern}: {rounds} rounds, {took:.2?}");
        let each = u64::from(nodes);
        println!(
            "  per node: {} requests, {} bytes sent",
            asked / each,
            bytes / each
        );
        assert!(server.keys().is_empty(), "{:?}", server.keys());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let world = World::new(nodes, 8, Pattern::Ring, all_good);
    let begun = Instant::now();
    let ended = world.run(&[], |_| FileStore::open(&path, limit).unwrap());
    println!("file, {nodes} nodes, ring: {:.2?}", begun.elapsed());
    scale("file", nodes, 8, Pattern::Ring, ended);
    let length = std::fs::metadata(&path).unwrap().len();
    println!(
        "  per node: {} bytes of the file",
        length / u64::from(nodes)
    );
}
