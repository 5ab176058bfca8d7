//! A store that means ill: whatever it says, a node ends by its deadline with one line, and keeps
//! little of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rail_agreement::c10d::C10d;
use rail_agreement::{Agreement, RunId, Store, agree, status::Status};
use rdma_model::error_class::ErrorClass;
use support::fake::{Fake, Manner, rude};
use support::setup;

/// What a request is, and with how many keys.
type Answer = Arc<dyn Fn(u8, u64) -> Vec<u8> + Send + Sync>;

fn number(stream: &mut TcpStream) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn skip(stream: &mut TcpStream) -> std::io::Result<()> {
    let length = number(stream)?;
    std::io::copy(&mut stream.take(length), &mut std::io::sink()).map(drop)
}

/// Reads requests as they are meant, and answers as it likes, each byte after a pause.
fn serve(mut stream: TcpStream, pause: Duration, answer: &Answer) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 5])?;
    loop {
        let mut op = [0];
        stream.read_exact(&mut op)?;
        let count = if matches!(op[0], 5 | 6 | 10 | 11) {
            number(&mut stream)?
        } else {
            1
        };
        let texts = match op[0] {
            1 => 2,
            11 => 2 * count,
            5 | 6 | 8 | 10 => count,
            _ => 0,
        };
        (0..texts).try_for_each(|_| skip(&mut stream))?;
        let said = answer(op[0], count);
        if pause.is_zero() {
            stream.write_all(&said)?;
            continue;
        }
        for byte in said {
            std::thread::sleep(pause);
            stream.write_all(&[byte])?;
        }
    }
}

fn hostile(pause: u64, answer: impl Fn(u8, u64) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    let answer: Answer = Arc::new(answer);
    rude(move |stream| drop(serve(stream, Duration::from_millis(pause), &answer)))
}

/// The usual answers, all keys being there, and that value for each.
fn all_there(op: u8, count: u64, value: &[u8]) -> Vec<u8> {
    let text = [&(value.len() as u64).to_le_bytes()[..], value].concat();
    match op {
        7 | 8 => 1_000_000u64.to_le_bytes().to_vec(),
        5 | 6 => vec![0],
        10 => text.repeat(count as usize),
        12 => vec![1],
        _ => Vec::new(),
    }
}

fn part(to: SocketAddr, rank: u32, nodes: u32, seconds: u64) -> anyhow::Result<Agreement> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let store = C10d::connect(to.to_string().parse().unwrap(), deadline, Duration::ZERO)?;
    let mut store = store.with_limit(deadline + Duration::from_secs(1));
    agree(
        &mut store,
        setup(rank, nodes, &["rdma0"], 1),
        deadline,
        &mut |_| Ok(()),
        None,
    )
}

/// Both kinds of rank end in time, with one short line that has one of these words.
fn ends(what: &str, to: SocketAddr, nodes: u32, words: &[&str]) {
    for rank in [0, nodes - 1] {
        let start = Instant::now();
        let e = part(to, rank, nodes, 2).unwrap_err();
        let text = format!("{e:#}");
        assert!(
            words.iter().any(|w| text.contains(w)),
            "{what}, rank {rank}: {text}"
        );
        assert!(
            text.len() < 5000 && !text.contains(char::is_control),
            "{what}, rank {rank}: {text}"
        );
        assert!(
            start.elapsed() < Duration::from_secs(6),
            "{what}, rank {rank}: {:?}",
            start.elapsed()
        );
    }
}

#[test]
fn numbers_lengths_and_answers_that_cannot_be_are_refused() {
    let keys = |n: u64| {
        move |op, count| {
            if op == 7 {
                n.to_le_bytes().to_vec()
            } else {
                all_there(op, count, b"")
            }
        }
    };
    ends(
        "2^63 keys",
        hostile(0, keys(1 << 63)),
        3,
        &["answers, but not as a TCPStore: it has 9223372036854775808 keys"],
    );
    for length in [1u64 << 30, u64::MAX] {
        let long = move |op, count| {
            if op == 10 {
                length.to_le_bytes().to_vec()
            } else {
                all_there(op, count, b"")
            }
        };
        ends(
            "a long value",
            hostile(0, long),
            3,
            &[&format!("a value of {length} bytes, 4096 are the most")],
        );
    }
    let odd = |op, count| {
        if matches!(op, 5 | 6) {
            vec![9]
        } else {
            all_there(op, count, b"")
        }
    };
    ends(
        "an answer that is none",
        hostile(0, odd),
        3,
        &["the store answers 9 to a wait"],
    );
}

#[test]
fn an_endless_trickle_ends_with_the_deadline() {
    let words = [
        "the store has not answered in",
        "takes connections, but does not answer within",
        "no time left",
    ];
    // A value comes at ten bytes a second; then every answer does.
    let value = |op, count| all_there(op, count, &[b'x'; 4096]);
    ends("a trickled value", hostile(100, value), 3, &words);
    // Nothing is there, which the server says so slowly that halves of 16384 nodes would take an
    // hour.
    let never = |op, count| {
        if op == 5 {
            vec![1]
        } else if op == 6 {
            Vec::new()
        } else {
            all_there(op, count, b"")
        }
    };
    ends(
        "no node is there, slowly",
        hostile(20, never),
        16384,
        &[&words[..], &["missing"]].concat(),
    );
}

/// What a server with libuv says of a key that was set to nothing, and one that has gone since: a
/// wait ends with it at once.
#[test]
fn value_that_stays_empty_is_read_a_few_times_only() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let none = move |op, keys| {
        count.fetch_add(1, Ordering::Relaxed);
        all_there(op, keys, b"")
    };
    ends(
        "values that are none",
        hostile(0, none),
        3,
        &["missing", "nothing was published"],
    );
    let asked = asked.load(Ordering::Relaxed);
    assert!(
        asked < 200,
        "{asked} requests of two nodes in two seconds each"
    );
}

/// One of them hides no other node.
#[test]
fn who_is_there_is_there_whatever_another_key_holds() {
    for manner in [Manner::Libuv, Manner::Legacy] {
        let server = Fake::start(manner);
        let to = server.address.to_string().parse().unwrap();
        let mut store =
            C10d::connect(to, Instant::now() + Duration::from_secs(10), Duration::ZERO).unwrap();
        let keys: Vec<String> = (0..5).map(|n| format!("key/{n}")).collect();
        for n in [0, 1, 4] {
            store.put(&[(keys[n].clone(), vec![n as u8 + 1])]).unwrap();
        }
        server.set("key/3", b"");
        let read = store.read(&keys).unwrap();
        assert_eq!(
            [&read[0], &read[1], &read[2], &read[4]],
            [&Some(vec![1]), &Some(vec![2]), &None, &Some(vec![5])]
        );
    }
}

#[test]
fn values_that_nobody_of_ours_writes_are_no_offers() {
    let offer = |rest: &str| {
        let nonce = "0".repeat(32);
        let policy = r#""policy":{"match":"name","family":"4"}"#;
        format!(r#"{{"v":1,"nonce":"{nonce}","nodes":3,{policy},"lacks":[],{rest}}}"#).into_bytes()
    };
    let line = &offer(r#""host":"a\nb","rails":[]"#)[..];
    let name = &offer(r#""host":"a","rails":[["r\n0","r0"]]"#)[..];
    for value in [&b"\x1b[2J\n"[..], line, name, b"{}", &[b'['; 4096]] {
        let value = value.to_vec();
        let to = hostile(0, move |op, count| all_there(op, count, &value));
        ends("garbage", to, 3, &["cannot be used"]);
    }
}

/// It has whatever is asked for, and it is another offer each time.
#[test]
fn a_store_that_says_something_else_each_time_ends_nobody_well() {
    let turn = std::sync::atomic::AtomicU64::new(0);
    let to = hostile(0, move |op, count| {
        let n = turn.fetch_add(1, Ordering::Relaxed);
        let offer = setup(1, 3, &["rdma0"], n).offer.encode().unwrap();
        all_there(op, count, &offer)
    });
    for rank in [0, 2] {
        let start = Instant::now();
        assert_eq!(
            ErrorClass::of(&part(to, rank, 3, 2).unwrap_err()),
            ErrorClass::Disagreed
        );
        assert!(
            start.elapsed() < Duration::from_secs(6),
            "{:?}",
            start.elapsed()
        );
    }
}

#[test]
fn who_only_looks_ends_as_well() {
    let run: RunId = "job.1".parse().unwrap();
    let look = |to: SocketAddr, seconds| {
        let limit = Instant::now() + Duration::from_secs(seconds);
        let mut store = C10d::connect(to.to_string().parse().unwrap(), limit, Duration::ZERO)?;
        Status::read(&mut store as &mut dyn Store, &run, 16384)
    };
    let start = Instant::now();
    let seen = look(hostile(0, |op, count| all_there(op, count, b"\x1b[2J")), 30).unwrap();
    assert_eq!((seen.unusable.len(), seen.waiting.len()), (1, 16383));
    assert!(
        look(
            hostile(5, |op, count| if op == 5 {
                vec![1]
            } else {
                all_there(op, count, b"")
            }),
            2
        )
        .is_err()
    );
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
}
