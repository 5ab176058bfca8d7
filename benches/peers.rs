//! How long many nodes take to agree over one TCPStore, and what the server pays for it; beside it
//! the way in which every node reads what every other has published.
//! `cargo bench --bench peers -- [--server HOST:PORT --pid PID] [--all-to-all] NODES...`: without a
//! server, the tests' own one serves, within this very process. `scripts/peers-interop bench`
//! brings PyTorch's.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    reason = "a benchmark fails by panicking"
)]

#[path = "../crates/rail-agreement/tests/support/mod.rs"]
mod support_peers;

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rail_agreement::c10d::C10d;
use rail_agreement::endpoint::Endpoint;
use rail_agreement::{Store, agree};
use support_peers::fake::{Fake, Manner};
use support_peers::setup;

const RAILS: [&str; 8] = [
    "rdma0", "rdma1", "rdma2", "rdma3", "rdma4", "rdma5", "rdma6", "rdma7",
];
const LIMIT: Duration = Duration::from_secs(300);

/// User and system time of a process so far, in seconds (proc(5), stat, fields 14 and 15, in ticks
/// of 10 ms).
fn cpu(pid: Option<u32>) -> f64 {
    let Some(pid) = pid else { return f64::NAN };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the server has gone");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// A part of the agreement.
fn leader(store: &mut C10d, rank: u32, nodes: u32, attempt: u64) {
    let mut setup = setup(rank, nodes, &RAILS, attempt);
    // As an engine that counts its restarts does: what an earlier run left is not even looked at.
    setup.run = format!("job.{attempt}").parse().unwrap();
    let agreed = agree(store, setup, Instant::now() + LIMIT, &mut |_| Ok(()), None).unwrap();
    assert_eq!(agreed.rails.len(), RAILS.len());
}

/// A part of the other way: publish, wait for all, read all.
fn all_to_all(store: &mut C10d, rank: u32, nodes: u32, attempt: u64) {
    let key = |rank: u32| format!("all/{attempt}/{rank}");
    let value = setup(rank, nodes, &RAILS, attempt).offer.encode().unwrap();
    store.put(&[(key(rank), value)]).unwrap();
    let keys: Vec<String> = (0..nodes).map(key).collect();
    assert_eq!(
        store
            .get(&keys, Instant::now() + LIMIT)
            .unwrap()
            .unwrap()
            .len(),
        nodes as usize
    );
}

fn run(
    to: &Endpoint,
    pid: Option<u32>,
    nodes: u32,
    name: &str,
    part: fn(&mut C10d, u32, u32, u64),
    nth: usize,
) {
    let before = cpu(pid);
    let (start, connected) = (Instant::now(), Arc::new(Barrier::new(nodes as usize + 1)));
    // No two attempts have a nonce in common.
    let attempt = u64::from(std::process::id()) * 100 + nth as u64;
    let one = |rank: u32| {
        let (to, connected) = (to.clone(), connected.clone());
        let body = move || {
            let mut store = C10d::connect(
                to,
                Instant::now() + LIMIT,
                Duration::from_millis(u64::from(rank % 50)),
            )
            .unwrap();
            connected.wait();
            part(&mut store, rank, nodes, attempt);
        };
        std::thread::Builder::new()
            .stack_size(256 << 10)
            .spawn(body)
            .unwrap()
    };
    let all: Vec<_> = (0..nodes).map(one).collect();
    connected.wait();
    let (meeting, paid) = (Instant::now(), cpu(pid));
    all.into_iter().for_each(|t| t.join().unwrap());
    println!(
        "{nodes:>6} nodes, {name:<10}: {:6.2} s ({:.2} s to connect), server CPU {:5.2} s ({:.2} \
        s to connect)",
        start.elapsed().as_secs_f64(),
        (meeting - start).as_secs_f64(),
        cpu(pid) - before,
        paid - before,
    );
}

fn main() {
    let (mut server, mut pid, mut counts, mut both) = (None, None, Vec::new(), false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--server" => server = args.next(),
            "--pid" => pid = args.next().map(|p| p.parse().expect("a pid")),
            "--all-to-all" => both = true,
            "--bench" => {}
            count => counts.push(count.parse::<u32>().expect("a number of nodes")),
        }
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let fake = server.is_none().then(|| Fake::start(Manner::Libuv));
    let to = server
        .unwrap_or_else(|| fake.as_ref().unwrap().address.to_string())
        .parse()
        .expect("HOST:PORT");
    let counts = if counts.is_empty() { vec![256] } else { counts };
    for (nth, nodes) in counts.into_iter().enumerate() {
        run(&to, pid, nodes, "leader", leader, nth);
        if both {
            run(&to, pid, nodes, "all-to-all", all_to_all, nth);
        }
    }
}
