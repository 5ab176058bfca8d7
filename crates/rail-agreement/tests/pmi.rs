//! PMI-1, against a launcher of a few lines; scripts/peers-interop has a real one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod support;

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rail_agreement::node::{Action, Event, Node, Stage};
use rail_agreement::pmi::Pmi;
use rail_agreement::{Agreement, Rail, Store, agree};
use rdma_model::error_class::ErrorClass;
use support::pmi::{Space, file, launch, serve};
use support::setup;

fn soon(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

#[test]
fn a_step_agrees_whatever_fits_into_a_value() {
    for (count, vallen, eager) in [
        (1, 1024, false),
        (5, 1024, false),
        (5, 1024, true),
        (5, 256, true),
    ] {
        let part = |(rank, socket): (usize, File)| {
            std::thread::spawn(move || {
                let mut store = Pmi::from_socket(socket, soon(90))?;
                let mut setup = setup(rank as u32, count as u32, &[], 1);
                let names = (0..64).map(|i| format!("rail{i}-of-64"));
                setup.offer.rails = names
                    .map(|n| Rail(n.parse().unwrap(), n.parse().unwrap()))
                    .collect();
                agree(&mut store, setup, soon(90), &mut |_| Ok(()), None)
            })
        };
        let all: Vec<_> = launch(count, vallen, eager)
            .into_iter()
            .enumerate()
            .map(part)
            .collect();
        let all: Vec<_> = all
            .into_iter()
            .map(|t| t.join().unwrap().unwrap())
            .collect();
        assert!(
            all.iter()
                .all(|a| a.digest == all[0].digest && a.rails.len() == 64),
            "{count} {vallen} {eager}"
        );
    }
}

#[test]
fn process_missing_at_the_barrier_is_awaited_until_deadline() {
    let mut sockets = launch(3, 1024, false).into_iter();
    let (first, second, _third) = (
        sockets.next().unwrap(),
        sockets.next().unwrap(),
        sockets.next().unwrap(),
    );
    let start = Instant::now();
    let part = |rank: u32, socket: File| {
        std::thread::spawn(move || {
            agree(
                &mut Pmi::from_socket(socket, soon(20)).unwrap(),
                setup(rank, 3, &["rdma0"], 1),
                soon(1),
                &mut |_| Ok(()),
                None,
            )
        })
    };
    for thread in [part(0, first), part(1, second)] {
        let e = thread.join().unwrap().unwrap_err();
        assert_eq!(ErrorClass::of(&e), ErrorClass::Disagreed);
        assert!(
            format!("{e:#}")
                .contains("not all processes of the step have come to the barrier in time"),
            "{e:#}"
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

/// A no travels with a barrier as well: the node that says it comes to the next ones with all
/// others.
#[test]
fn a_no_is_heard_by_all_within_a_few_barriers() {
    let start = Instant::now();
    let part = |(rank, socket): (usize, File)| {
        std::thread::spawn(move || {
            let judge = &mut |_: &Agreement| {
                if rank == 1 {
                    Err(ErrorClass::Refused.error("no room"))
                } else {
                    Ok(())
                }
            };
            let mut store = Pmi::from_socket(socket, soon(60)).unwrap();
            agree(
                &mut store,
                setup(rank as u32, 3, &["rdma0"], 1),
                soon(60),
                judge,
                None,
            )
            .unwrap_err()
        })
    };
    let all: Vec<_> = launch(3, 1024, false)
        .into_iter()
        .enumerate()
        .map(part)
        .collect();
    for (rank, thread) in all.into_iter().enumerate() {
        let e = thread.join().unwrap();
        let own = rank == 1;
        let (fault, words) = if own {
            (ErrorClass::Refused, "no room")
        } else {
            (ErrorClass::Disagreed, "node-1 (rank 1) refused: no room")
        };
        assert_eq!(
            (ErrorClass::of(&e), format!("{e:#}").as_str()),
            (fault, words),
            "rank {rank}"
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
}

/// As it was proposed and acked: what is committed then is seen by those alone that come to the
/// last barrier.
#[test]
fn a_commit_that_nobody_comes_to_hear_of_is_none() {
    let mut sockets = launch(2, 1024, false).into_iter();
    let (first, second) = (sockets.next().unwrap(), sockets.next().unwrap());
    let leader = std::thread::spawn(move || {
        agree(
            &mut Pmi::from_socket(first, soon(20)).unwrap(),
            setup(0, 2, &["rdma0"], 1),
            soon(4),
            &mut |_| Ok(()),
            None,
        )
    });
    // The other one says yes, and does not come to the barrier after that.
    let mut node = Node::new(setup(1, 2, &["rdma0"], 1), false).unwrap();
    let mut store = Pmi::from_socket(second, soon(20)).unwrap();
    let (mut event, mut said_yes) = (Event::Begin, false);
    let start = Instant::now();
    while !said_yes {
        event = match node.next(event) {
            Action::Put(pairs) | Action::PutUnconfirmed(pairs) => {
                store.put(&pairs).unwrap();
                Event::Done
            }
            Action::Judge(_) => Event::Judged(Ok(())),
            Action::Await {
                stage: Stage::Verdict,
                ..
            } => {
                // The barrier with which its yes travels.
                store.flush(soon(10)).unwrap();
                said_yes = true;
                Event::Done
            }
            Action::Await { keys, slice, .. } => {
                match store.get(&keys, Instant::now() + slice).unwrap() {
                    Some(values) => Event::Values(values),
                    None => Event::Missing,
                }
            }
            act => panic!("{act:?}"),
        };
    }
    let e = leader.join().unwrap().unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Disagreed);
    assert!(
        format!("{e:#}").contains("not all nodes have come to hear of the commit in time"),
        "{e:#}"
    );
    assert!(
        start.elapsed() >= Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    drop(store);
}

#[test]
fn who_speaks_something_else_is_found_out() {
    for (said, words) in [
        ("", "the launcher closed PMI_FD"),
        ("hello\n", "PMI answers \"hello\""),
        (
            "cmd=response_to_init rc=0\ncmd=maxes vallen_max=80\ncmd=my_kvsname kvsname=k\n",
            "which is too few",
        ),
        (
            "cmd=response_to_init rc=0\ncmd=maxes\ncmd=my_kvsname\n",
            "no kvsname",
        ),
        (&"x".repeat(20_000), "a line without an end"),
    ] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let _ = ours.write_all(said.as_bytes());
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let e = Pmi::from_socket(file(theirs), soon(2)).unwrap_err();
        assert!(format!("{e:#}").contains(words), "{said:.40}: {e:#}");
    }
    let (_silent, theirs) = UnixStream::pair().unwrap();
    let e =
        Pmi::from_socket(file(theirs), Instant::now() + Duration::from_millis(100)).unwrap_err();
    assert!(format!("{e:#}").contains("does not answer"), "{e:#}");
    for fd in ["", "x", "-1", "99999"] {
        assert!(Pmi::open(fd, soon(1)).is_err(), "{fd:?}");
    }
}

/// Launchers that show a value at once let no node be a barrier ahead of the others.
#[test]
fn what_is_put_counts_after_the_next_barrier() {
    let shared = Space::default();
    let one = || {
        let ((ours, theirs), space) = (UnixStream::pair().unwrap(), shared.clone());
        std::thread::spawn(move || serve(ours, space, Arc::new(Barrier::new(1)), 1024, true));
        Pmi::from_socket(file(theirs), soon(5)).unwrap()
    };
    let (mut writer, mut reader) = (one(), one());
    writer.put(&[("a".into(), b"value".to_vec())]).unwrap();
    assert!(writer.flush(soon(5)).unwrap() && !reader.check(&["a".into()]).unwrap());
    assert!(reader.flush(soon(5)).unwrap() && reader.check(&["a".into()]).unwrap());
}

#[test]
fn a_value_that_is_none_of_ours_is_refused() {
    for value in [
        "5:00",
        "x",
        "1:0:zz",
        "9999:0:00",
        "5:0:00",
        ":",
        "::",
        "-1:0:00",
        "1:-1:00",
        "1::00",
    ] {
        let (shared, all) = (Space::default(), Arc::new(Barrier::new(1)));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let space = shared.clone();
        std::thread::spawn(move || serve(ours, space, all, 1024, true));
        let mut store = Pmi::from_socket(file(theirs), soon(5)).unwrap();
        store.put(&[("a".into(), b"value".to_vec())]).unwrap();
        assert_eq!(
            store.get(&["a".into()], soon(5)).unwrap(),
            Some(vec![b"value".to_vec()])
        );
        shared
            .lock()
            .unwrap()
            .values_mut()
            .for_each(|v| *v = value.to_owned());
        let key = shared.lock().unwrap().keys().next().unwrap().clone();
        assert!(key.starts_with("rdmaprep.") && key.len() < 64);
        // What this process has put it knows; another one looks.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let space = shared.clone();
        std::thread::spawn(move || serve(ours, space, Arc::new(Barrier::new(1)), 1024, true));
        let mut other = Pmi::from_socket(file(theirs), soon(5)).unwrap();
        assert!(other.get(&["a".into()], soon(5)).is_err(), "{value}");
    }
}
