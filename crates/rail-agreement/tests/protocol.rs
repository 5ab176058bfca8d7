//! The agreement: nodes may die, come late, start again or lie; all that commit hold the same list,
//! and none commits alone.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod support;

use std::time::{Duration, Instant};

use proptest::prelude::*;
use rail_agreement::message::{self, Ack, Proposal, Verdict};
use rail_agreement::node::Agreement;
use rail_agreement::{DroppedRail, MAX_VALUE, Match, Offer, RunId, Store, Waiting, agree};
use rdma_model::error_class::ErrorClass;
use rdma_model::verdict::DropCode;
use support::sim::{Ended, Sim};
use support::{Memory, nonce, setup};

const RAILS: [&str; 4] = ["rdma0", "rdma1", "rdma2", "rdma3"];

fn keys(a: &Agreement) -> Vec<String> {
    a.rails.iter().map(|r| r.0.to_string()).collect()
}

/// What all came to, where all ended well.
fn all(ended: Vec<Ended>) -> Vec<Agreement> {
    ended
        .into_iter()
        .map(|e| e.expect("it died").1.unwrap_or_else(|e| panic!("{e:#}")))
        .collect()
}

#[test]
fn all_nodes_hold_the_same_list_in_rank_0s_order() {
    for nodes in [1, 2, 3, 8, 64] {
        let mut sim = Sim::new(u64::from(nodes));
        for rank in 0..nodes {
            let order: Vec<&str> = if rank == 0 {
                vec!["rdma3", "rdma0", "rdma1"]
            } else {
                RAILS.to_vec()
            };
            sim.add(setup(rank, nodes, &order, 1), 0, 60_000, None);
        }
        let (ended, _) = sim.run();
        let agreed = all(ended);
        for a in &agreed {
            assert_eq!(
                (keys(a), &a.digest),
                (
                    vec!["rdma3".into(), "rdma0".into(), "rdma1".into()],
                    &agreed[0].digest
                )
            );
            a.check().unwrap();
        }
        assert_eq!(agreed[0].lost.is_empty(), nodes == 1, "rank 0 has no rdma2");
    }
}

#[test]
fn what_some_lack_is_told_by_rail_and_node() {
    let mut sim = Sim::new(3);
    for rank in 0..3 {
        let mut setup = setup(rank, 3, &RAILS, 1);
        if rank > 0 {
            setup
                .offer
                .rails
                .retain(|r| r.0.as_str() != RAILS[rank as usize + 1]);
        }
        if rank == 2 {
            setup
                .offer
                .dropped
                .push(DroppedRail("rdma3".parse().unwrap(), DropCode::NoAddress));
        }
        sim.add(setup, 0, 60_000, None);
    }
    for a in all(sim.run().0) {
        assert_eq!(keys(&a), ["rdma0", "rdma1"]);
        assert_eq!(
            a.lost,
            [
                "rdma2: missing on node-1: no such NIC",
                "rdma3: missing on node-2: no IPv4 address"
            ]
        );
    }
}

#[test]
fn without_a_common_rail_nobody_moves_and_all_know_why() {
    let mut sim = Sim::new(5);
    sim.add(setup(0, 3, &["rdma0"], 1), 0, 60_000, None);
    sim.add(setup(1, 3, &["rdma0"], 1), 0, 60_000, None);
    sim.add(setup(2, 3, &["rdma1"], 1), 0, 60_000, None);
    for (_, result) in sim.run().0.into_iter().flatten() {
        let e = result.unwrap_err();
        assert_eq!(ErrorClass::of(&e), ErrorClass::Disagreed);
        let text = format!("{e:#}");
        assert!(
            text.contains("no rail is on all nodes: rdma0: missing on node-2: no such NIC"),
            "{text}"
        );
    }
}

#[test]
fn nodes_that_compare_or_count_otherwise_are_named() {
    for (change, words) in [
        (
            (|o: &mut Offer| o.policy.by = Match::Subnet) as fn(&mut Offer),
            "node-1 (rank 1) has --match subnet --family 4",
        ),
        (
            |o| o.policy.dry = true,
            "node-1 (rank 1) has --match name --family 4 --dry-run, rank 0 --match name --family 4",
        ),
        (|o| o.nodes = 5, "node-1 (rank 1) counts 5 nodes, rank 0 2"),
    ] {
        let mut sim = Sim::new(7);
        sim.add(setup(0, 2, &RAILS, 1), 0, 10_000, None);
        let mut other = setup(1, 2, &RAILS, 1);
        change(&mut other.offer);
        sim.add(other, 0, 10_000, None);
        for (_, result) in sim.run().0.into_iter().flatten() {
            let text = format!("{:#}", result.unwrap_err());
            assert!(text.contains(words), "{text}");
        }
    }
}

#[test]
fn a_missing_rank_is_named_by_all_before_the_deadline() {
    let mut sim = Sim::new(11);
    for rank in [0, 1, 2, 3, 5] {
        sim.add(
            setup(rank, 6, &RAILS, 1),
            u64::from(rank) * 10,
            30_000,
            None,
        );
    }
    for (when, result) in sim.run().0.into_iter().flatten() {
        assert_eq!(
            format!("{:#}", result.unwrap_err()),
            "missing rank 4: nothing was published in time"
        );
        assert!(when < Duration::from_secs(31), "{when:?}");
    }
    // Without rank 0 the others find out by themselves.
    let mut sim = Sim::new(11);
    for rank in [1, 2] {
        sim.add(setup(rank, 4, &RAILS, 1), 0, 30_000, None);
    }
    for (_, result) in sim.run().0.into_iter().flatten() {
        let text = format!("{:#}", result.unwrap_err());
        assert!(
            text == "missing ranks 0, 3: nothing was published in time",
            "{text}"
        );
    }
}

/// Any of them, rank 0 as well: what it cannot do it says before anybody counts on it.
#[test]
fn node_that_rejects_the_common_list_leaves_all_without_one() {
    for (victim, seed) in (0..3u32).flat_map(|v| (0..20).map(move |s| (v, s))) {
        let mut sim = Sim::new(seed);
        for rank in 0..3 {
            sim.add(setup(rank, 3, &RAILS, 1), 0, 60_000, None);
        }
        sim.judge = Box::new(move |a: &Agreement| match a.rank == victim {
            true => Err(ErrorClass::Refused.error(format!("no room for {} NICs", a.rails.len()))),
            false => Ok(()),
        });
        for (rank, (when, result)) in sim.run().0.into_iter().flatten().enumerate() {
            let e = result.unwrap_err();
            let (fault, text) = match rank as u32 == victim {
                true => (ErrorClass::Refused, "no room for 4 NICs".to_owned()),
                false => (
                    ErrorClass::Disagreed,
                    format!("node-{victim} (rank {victim}) refused: no room for 4 NICs"),
                ),
            };
            assert_eq!((ErrorClass::of(&e), format!("{e:#}")), (fault, text));
            assert!(when < Duration::from_secs(3), "{when:?}");
        }
    }
}

/// Rank 0 or another, whichever else is missing: all that are there hear why, long before the
/// deadline; a later run under the same id is not disturbed.
#[test]
fn a_node_that_refuses_is_heard_by_all_that_are_there_at_once() {
    for (victim, missing, seed) in
        (0..4u32).flat_map(|v| [None, Some(2)].map(move |m| (v, m, u64::from(v) + 3)))
    {
        let there = |rank: &u32| Some(*rank) != missing || *rank == victim;
        let late = if missing.is_none() { 3_000 } else { 0 };
        let mut sim = Sim::new(seed);
        for rank in (0..4u32).filter(there) {
            let mut setup = setup(rank, 4, &RAILS, 1);
            if rank == victim {
                setup.offer.rails.clear();
                setup.offer.refuses = Some("its config file is broken".to_owned());
            }
            sim.add(setup, if rank == 3 { late } else { 0 }, 60_000, None);
        }
        let (ended, store) = sim.run();
        for (when, result) in ended.into_iter().flatten() {
            let text = format!("{:#}", result.unwrap_err());
            assert_eq!(
                text,
                format!("node-{victim} (rank {victim}) refuses: its config file is broken")
            );
            assert!(
                when < Duration::from_secs(13),
                "{victim}, without {missing:?}: {when:?}"
            );
        }
        let mut again = Sim::new(seed);
        again.store = store;
        for rank in 0..4 {
            again.add(
                setup(rank, 4, &RAILS, 2),
                if rank == 0 { 2_500 } else { 0 },
                60_000,
                None,
            );
        }
        assert_eq!(keys(&all(again.run().0)[3]), RAILS);
    }
}

/// Rank 0 has gone by then: its offer tells why.
#[test]
fn who_comes_long_after_a_refusal_hears_why() {
    for (persists, victim) in [(false, 0), (true, 0), (false, 1), (true, 1)] {
        let mut sim = Sim::new(5);
        sim.persists = persists;
        for rank in 0..3u32 {
            let mut setup = setup(rank, 3, &RAILS, 1);
            if rank == victim {
                setup.offer.refuses = Some("its config file is broken".to_owned());
            }
            sim.add(setup, if rank == 2 { 30_000 } else { 0 }, 60_000, None);
        }
        let (ended, store) = sim.run();
        let text = format!("{:#}", ended[2].as_ref().unwrap().1.as_ref().unwrap_err());
        let why = format!("node-{victim} (rank {victim}) refuses: its config file is broken");
        assert_eq!(
            text,
            format!("rank 0 has ended this, and not begun again: {why}"),
            "persists {persists}"
        );
        let mut again = Sim::new(6);
        again.store = store;
        for rank in 0..3 {
            again.add(setup(rank, 3, &RAILS, 2), 0, 60_000, None);
        }
        assert_eq!(keys(&all(again.run().0)[2]), RAILS);
    }
}

/// What the last run left is taken for rank 0's offer of this one, for as long as one wait.
#[test]
fn a_run_that_is_made_again_takes_little_longer() {
    let (mut store, mut times) = (std::collections::BTreeMap::new(), Vec::new());
    for attempt in 1..4 {
        let mut sim = Sim::new(7);
        sim.store = store;
        for rank in 0..4 {
            sim.add(
                setup(rank, 4, &RAILS, attempt),
                if rank == 0 { 100 } else { 0 },
                60_000,
                None,
            );
        }
        let (ended, after) = sim.run();
        times.push(ended.iter().flatten().map(|(when, _)| *when).max().unwrap());
        all(ended);
        store = after;
    }
    assert!(
        times
            .iter()
            .all(|time| *time < Duration::from_millis(1_500)),
        "{times:?}"
    );
}

/// A rank 0 that is started while the last one has not gone is the one that is found, also when
/// that has gone.
#[test]
fn who_parts_leaves_a_later_rank_0_alone() {
    for persists in [false, true] {
        let mut sim = Sim::new(8);
        sim.persists = persists;
        // The last one never comes the first time, so that rank 0 stays for some 8 s.
        for rank in 0..2u32 {
            let mut setup = setup(rank, 3, &RAILS, 1);
            setup.offer.refuses = (rank == 0).then(|| "its config file is broken".to_owned());
            sim.add(setup, 0, 60_000, None);
        }
        for rank in 0..3 {
            sim.add(
                setup(rank, 3, &RAILS, 2),
                if rank == 2 { 15_000 } else { 3_000 },
                60_000,
                None,
            );
        }
        let mut ended = sim.run().0;
        let again = ended.split_off(2);
        assert!(
            ended
                .into_iter()
                .flatten()
                .all(|(when, _)| when < Duration::from_secs(13)),
            "the first have gone by then"
        );
        assert_eq!(keys(&all(again)[2]), RAILS, "persists {persists}");
    }
}

/// Two of them at once, as a restart can leave them: no node counts on the word of one that has
/// gone over to the other.
#[test]
fn of_two_rank_0s_only_one_is_followed() {
    let (mut first, mut second) = (0, 0);
    for (start, seed) in (0..40u64).flat_map(|s| (0..20).map(move |seed| (s * 100, seed))) {
        let mut sim = Sim::new(seed);
        sim.persists = seed % 2 == 1;
        sim.slow = Some((2, Duration::from_millis(3_500)));
        for rank in 0..3 {
            sim.add(setup(rank, 3, &RAILS, 1), 0, 20_000, None);
        }
        sim.add(setup(0, 3, &RAILS[..2], 2), start, 20_000, None);
        let (ended, _) = sim.run();
        let said: Vec<Result<Agreement, String>> = ended
            .into_iter()
            .map(|e| e.unwrap().1.map_err(|e| format!("{e:#}")))
            .collect();
        let case = || format!("the second after {start} ms, seed {seed}: {said:#?}");
        let led = [said[0].as_ref().ok(), said[3].as_ref().ok()];
        assert!(led.iter().flatten().count() < 2, "{}", case());
        // Whom one that holds counts on holds the same, or knows that it may be alone.
        for leader in led.into_iter().flatten() {
            for node in &said[1..3] {
                match node {
                    Ok(a) => assert!(
                        led.iter().flatten().any(|l| l.digest == a.digest),
                        "{}",
                        case()
                    ),
                    Err(why) => assert!(
                        why.contains("others may have committed"),
                        "{leader:?}: {}",
                        case()
                    ),
                }
            }
        }
        first += usize::from(said[0].is_ok());
        second += usize::from(said[3].is_ok());
    }
    assert!(
        first > 50 && second > 50,
        "{first} times the first one, {second} times the second"
    );
}

/// A refusal can be the word of a stranger.
#[test]
fn a_refusal_that_nobody_means_stops_nobody() {
    let mut sim = Sim::new(3);
    for rank in 0..3 {
        sim.add(
            setup(rank, 3, &RAILS, 1),
            u64::from(rank) * 2_000,
            60_000,
            None,
        );
    }
    let leader = nonce(1 << 32);
    sim.stranger = Some(Box::new(move |store| {
        store.insert(format!("rdmaprep/v1/job.1/no/{leader}"), b"1".to_vec());
    }));
    assert_eq!(keys(&all(sim.run().0)[0]), RAILS);
}

/// A no counts as soon as it is said, whichever other node never answers.
#[test]
fn a_no_is_heard_although_another_node_has_died() {
    for seed in 0..40 {
        let mut sim = Sim::new(seed);
        // Rank 2 dies when it has published.
        for rank in 0..3 {
            sim.add(
                setup(rank, 3, &RAILS, 1),
                0,
                60_000,
                (rank == 2).then_some(4),
            );
        }
        sim.judge = Box::new(|a: &Agreement| match a.rank {
            1 => Err(ErrorClass::Refused.error("no room")),
            _ => Ok(()),
        });
        let (when, result) = sim.run().0.swap_remove(0).unwrap();
        assert_eq!(
            format!("{:#}", result.unwrap_err()),
            "node-1 (rank 1) refused: no room"
        );
        assert!(when < Duration::from_secs(10), "{when:?}");
    }
}

/// One of three nodes dies after each of its steps, and stays dead: of those that live, all hold
/// the same list or none does.
#[test]
fn rank_that_dies_at_any_step_leaves_all_or_none_agreed() {
    let (mut committed, mut asked) = (0, 0);
    for (victim, step, persists) in
        (0..3).flat_map(|v| (0..20).flat_map(move |s| [(v, s, false), (v, s, true)]))
    {
        for seed in 0..20 {
            let mut sim = Sim::new(seed);
            sim.persists = persists;
            for rank in 0..3 {
                sim.add(
                    setup(rank, 3, &RAILS, 1),
                    0,
                    20_000,
                    (rank == victim).then_some(step),
                );
            }
            let (ended, store) = sim.run();
            let case = format!("{victim} dies after {step}, seed {seed}, persists {persists}");
            let verdict = store
                .iter()
                .find(|(k, _)| k.contains("/end/"))
                .map(|(_, v)| message::parse(v).unwrap());
            let mut held = Vec::new();
            for (rank, end) in ended
                .into_iter()
                .enumerate()
                .filter(|(rank, _)| *rank as u32 != victim)
            {
                let (when, result) = end.unwrap();
                assert!(
                    when < Duration::from_secs(23),
                    "{case}: rank {rank} at {when:?}"
                );
                if let (Err(e), 1..) = (&result, victim) {
                    let text = format!("{e:#}");
                    let named = [
                        format!("missing rank {victim}:"),
                        format!("missing node-{victim} (rank {victim})"),
                    ];
                    assert!(
                        named.iter().any(|n| text.contains(n)),
                        "{case}: rank {rank}: {text}"
                    );
                    asked += usize::from(text.contains(&named[1]));
                }
                held.push(result.ok());
            }
            assert_eq!(held.len(), 2);
            let digests: Vec<_> = held.iter().map(|a| a.as_ref().map(|a| &a.digest)).collect();
            assert_eq!(digests[0], digests[1], "{case}");
            // Who commits does so on the written word of rank 0, which it gives when all have said
            // yes.
            match verdict {
                Some(Verdict::Commit(digest)) => {
                    assert_eq!(digests[0], Some(&digest), "{case}");
                    assert_eq!(
                        store.keys().filter(|k| k.contains("/ack/")).count(),
                        2,
                        "{case}"
                    );
                }
                // Swept away with all the rest when all had heard it.
                None if persists && held[0].is_some() => {
                    assert!(store.is_empty(), "{case}: {:?}", store.keys())
                }
                _ => assert_eq!(digests[0], None, "{case}"),
            }
            committed += usize::from(held[0].is_some());
        }
    }
    assert!(committed > 0, "who dies after the end does no harm");
    assert!(
        asked > 0,
        "who dies after it has published is named as well"
    );
}

/// One of three nodes dies after each of its steps, and starts again with other rails.
#[test]
fn rank_that_restarts_at_any_step_counts_with_its_new_offer() {
    let mut together = 0;
    for (victim, step) in (0..3).flat_map(|v| (0..12).map(move |s| (v, s))) {
        for seed in 0..20 {
            let mut sim = Sim::new(seed);
            sim.persists = seed % 2 == 1;
            for rank in 0..3 {
                sim.add(
                    setup(rank, 3, &RAILS, 1),
                    0,
                    40_000,
                    (rank == victim).then_some(step),
                );
            }
            sim.add(setup(victim, 3, &RAILS[..2], 2), 3_000, 40_000, None);
            let (mut ended, store) = sim.run();
            let again = ended.pop().unwrap().unwrap().1;
            let through = ended[victim as usize].is_some();
            let others: Vec<_> = ended.into_iter().flatten().map(|(_, r)| r).collect();
            // A node that commits removes what outlives the job.
            let swept = seed % 2 == 1 && others.iter().all(Result::is_ok);
            let commit = store
                .iter()
                .any(|(k, v)| k.contains("/end/") && v.starts_with(b"{\"commit"))
                || swept;
            let Ok(again) = again else {
                assert!(through || commit, "{victim} after {step} is not heard");
                continue;
            };
            together += 1;
            assert_eq!(keys(&again), ["rdma0", "rdma1"]);
            for other in others {
                assert_eq!(
                    other
                        .unwrap_or_else(|e| panic!("{victim} after {step}: {e:#}"))
                        .digest,
                    again.digest
                );
            }
        }
    }
    assert!(together > 200, "{together} of 720 came together");
}

#[test]
fn runs_under_one_id_do_not_disturb_one_another() {
    let mut store = std::collections::BTreeMap::new();
    for (attempt, rails) in [(1, &RAILS[..]), (2, &RAILS[1..]), (3, &RAILS[..1])] {
        let mut sim = Sim::new(attempt);
        sim.store = store;
        sim.persists = attempt == 2;
        for rank in 0..4 {
            // The last one is late, and what it published the last time is still there.
            sim.add(
                setup(rank, 4, rails, attempt),
                if rank == 3 { 2_500 } else { 0 },
                60_000,
                None,
            );
        }
        let (ended, after) = sim.run();
        for a in all(ended) {
            assert_eq!(keys(&a), rails);
        }
        store = after;
    }
}

/// Of another version, or of none: rank 0 may still come, and where it does not, that is what was
/// there.
#[test]
fn unreadable_remains_of_an_earlier_rank_0_stop_no_run() {
    let version = String::from_utf8(setup(0, 3, &RAILS, 1).offer.encode().unwrap())
        .unwrap()
        .replacen("\"v\":1", "\"v\":9", 1);
    for (seed, old, words) in [
        (1, &*version, "it speaks version 9"),
        (2, "garbage", "it is no message of this version"),
    ] {
        for late in [None, Some(2_500), Some(25_000)] {
            let mut sim = Sim::new(seed);
            sim.store
                .insert("rdmaprep/v1/job.1/in/0".to_owned(), old.as_bytes().to_vec());
            for (rank, begins) in [(1, Some(0)), (2, Some(0)), (0, late)] {
                begins.map(|begins| sim.add(setup(rank, 3, &RAILS, 1), begins, 60_000, None));
            }
            let ended = sim.run().0;
            if late.is_some() {
                assert_eq!(keys(&all(ended)[2]), RAILS);
                continue;
            }
            for (when, result) in ended.into_iter().flatten() {
                let text = format!("{:#}", result.unwrap_err());
                assert!(
                    text.contains("what rank 0 published cannot be used: ") && text.contains(words),
                    "{text}"
                );
                assert!(when >= Duration::from_secs(60), "{when:?}");
            }
        }
    }
}

/// Real threads and a real clock, through the driver.
#[test]
fn thirty_two_threads_agree() {
    let store = Memory::default();
    let start = Instant::now();
    let all: Vec<_> = (0..32)
        .map(|rank| {
            let mut store = store.clone();
            std::thread::spawn(move || {
                let deadline = Instant::now() + Duration::from_secs(30);
                agree(
                    &mut store,
                    setup(rank, 32, &RAILS, 1),
                    deadline,
                    &mut |_| Ok(()),
                    None,
                )
            })
        })
        .collect();
    let all: Vec<Agreement> = all
        .into_iter()
        .map(|t| t.join().unwrap().unwrap())
        .collect();
    assert!(
        all.iter()
            .all(|a| a.digest == all[0].digest && keys(a) == RAILS)
    );
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    // 32 offers, 31 hellos, proposals, acks and goodbyes, one verdict in two places: nothing grows
    // with the square of the nodes.
    assert_eq!(store.len(), 32 + 4 * 31 + 2);
}

/// No node waits for those that have heard already.
#[test]
fn rank_0_names_whom_it_waits_for() {
    let store = Memory::default();
    let part = |rank: u32| {
        let (mut store, mut setup) = (store.clone(), setup(rank, 4, &RAILS, 1));
        setup.offer.refuses = (rank == 0).then(|| "its config file is broken".to_owned());
        std::thread::spawn(move || {
            let mut last = Vec::new();
            let watch: &mut dyn FnMut(Waiting) = &mut |waiting| last = waiting.missing;
            let deadline = Instant::now() + Duration::from_secs(6);
            agree(&mut store, setup, deadline, &mut |_| Ok(()), Some(watch)).unwrap_err();
            last
        })
    };
    let (one, zero) = (part(1), part(0));
    assert_eq!(
        (zero.join().unwrap(), one.join().unwrap()),
        (vec![2, 3], Vec::new())
    );
}

#[test]
fn a_store_that_is_lost_is_an_error_of_its_own() {
    struct Lost;
    impl Store for Lost {
        fn put(&mut self, _: &[(String, Vec<u8>)]) -> anyhow::Result<()> {
            anyhow::bail!("connection reset")
        }
        fn get(&mut self, _: &[String], _: Instant) -> anyhow::Result<Option<Vec<Vec<u8>>>> {
            unreachable!()
        }
        fn check(&mut self, _: &[String]) -> anyhow::Result<bool> {
            unreachable!()
        }
        fn delete(&mut self, _: &[String]) -> anyhow::Result<()> {
            unreachable!()
        }
    }
    let e = agree(
        &mut Lost,
        setup(1, 2, &RAILS, 1),
        Instant::now() + Duration::from_secs(5),
        &mut |_| Ok(()),
        None,
    )
    .unwrap_err();
    assert_eq!(
        (ErrorClass::of(&e), format!("{e:#}").as_str()),
        (
            ErrorClass::Disagreed,
            "the rendezvous store: connection reset"
        )
    );
}

/// A store that takes the commit, and is gone before it says so.
#[test]
fn store_lost_with_the_commit_leaves_rank_0_unsure() {
    struct Falls(Memory);
    impl Store for Falls {
        fn put(&mut self, pairs: &[(String, Vec<u8>)]) -> anyhow::Result<()> {
            self.0.put(pairs)?;
            anyhow::ensure!(
                !pairs.iter().any(|(key, _)| key.contains("/end/")),
                "connection reset"
            );
            Ok(())
        }
        fn get(&mut self, keys: &[String], until: Instant) -> anyhow::Result<Option<Vec<Vec<u8>>>> {
            self.0.get(keys, until)
        }
        fn check(&mut self, keys: &[String]) -> anyhow::Result<bool> {
            self.0.check(keys)
        }
        fn delete(&mut self, keys: &[String]) -> anyhow::Result<()> {
            self.0.delete(keys)
        }
    }
    let store = Memory::default();
    let part = |rank| {
        let mut store = Falls(store.clone());
        let deadline = Instant::now() + Duration::from_secs(60);
        std::thread::spawn(move || {
            agree(
                &mut store,
                setup(rank, 2, &RAILS, 1),
                deadline,
                &mut |_| Ok(()),
                None,
            )
        })
    };
    let (zero, one) = (part(0), part(1));
    let e = zero.join().unwrap().unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Disagreed);
    let text = format!("{e:#}");
    assert!(
        text.contains("others may have committed") && text.ends_with(": connection reset"),
        "{text}"
    );
    assert_eq!(keys(&one.join().unwrap().unwrap()), RAILS);
}

#[test]
fn wrong_ranks_counts_and_run_ids_are_wrong_usage() {
    for (rank, nodes) in [(1, 1), (7, 3), (0, 0), (0, 16385)] {
        let e = agree(
            &mut Memory::default(),
            setup(rank, nodes, &RAILS, 1),
            Instant::now(),
            &mut |_| Ok(()),
            None,
        )
        .unwrap_err();
        assert_eq!(ErrorClass::of(&e), ErrorClass::Usage, "{rank} of {nodes}");
    }
    for bad in ["", "none", "a/b", "a b", "a\n", "é", &"x".repeat(129)] {
        assert!(bad.parse::<RunId>().is_err(), "{bad:?}");
    }
    assert!("4711.0.1".parse::<RunId>().is_ok());
}

#[test]
fn what_does_not_fit_is_left_out_or_refused() {
    let mut offer = setup(0, 2, &RAILS, 1).offer;
    offer.dropped = (0..2000)
        .map(|i| DroppedRail(format!("rdma{i}").parse().unwrap(), DropCode::NoAddress))
        .collect();
    let value = offer.encode().unwrap();
    assert!(value.len() <= MAX_VALUE && value.len() > MAX_VALUE - 100);
    let read = Offer::parse(&value).unwrap();
    assert_eq!(read.rails, offer.rails);
    let long: Vec<String> = (0..64).map(|i| format!("{i:060}")).collect();
    offer.rails = long
        .iter()
        .enumerate()
        .map(|(i, k)| rail_agreement::Rail(k.parse().unwrap(), format!("r{i}").parse().unwrap()))
        .collect();
    assert!(format!("{:#}", offer.encode().unwrap_err()).contains("4096 are the most"));
    let line = message::clip_line(&"ü\n".repeat(300), 101);
    assert!(line.len() <= 101 && !line.contains('\n'));
}

/// A value that no node of ours would write.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let mut good: Vec<Vec<u8>> = vec![
        setup(1, 3, &["rdma0", "evil\"0"], 9)
            .offer
            .encode()
            .unwrap(),
    ];
    good.push(message::encode(&Ack::No("x".repeat(500))).unwrap());
    good.push(message::encode(&Verdict::Again).unwrap());
    let offer = String::from_utf8(good[0].clone()).unwrap();
    for unknown in ["\x7f", "\\u001b[2J"] {
        good.push(offer.replacen("lacks", unknown, 1).into_bytes());
    }
    good.push(
        Proposal::Abort {
            turn: 3,
            why: "\u{1b}[2J".into(),
        }
        .encode()
        .unwrap(),
    );
    let bent = (
        prop::sample::select(good.clone()),
        any::<prop::sample::Index>(),
        any::<u8>(),
    )
        .prop_map(|(mut v, at, b)| {
            let at = at.index(v.len());
            v[at] = b;
            v
        });
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..64),
        Just(b"[".repeat(4000)),
        Just(b"{\"v\":1,".repeat(3000)),
        Just(vec![0; 1 << 20]),
        Just(b"{\"abort\":{\"turn\":0,\"why\":\"a\\nb\\u001b[31m\"}}".to_vec()),
        prop::sample::select(good),
        bent,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each ends with a part of what it has offered, in the same order everywhere, or all end
    /// without.
    #[test]
    fn a_subset_in_one_order(
        seed in any::<u64>(),
        rails in prop::collection::vec(prop::sample::subsequence((0..8).collect::<Vec<u32>>(), 0..8)
            .prop_shuffle(), 1..7),
        late in prop::collection::vec(0..3000u64, 7),
    ) {
        let mut sim = Sim::new(seed);
        let nodes = rails.len() as u32;
        let names: Vec<Vec<String>> = rails.iter()
            .map(|r| r.iter().map(|i| format!("rdma{i}")).collect()).collect();
        for (rank, names) in names.iter().enumerate() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            sim.add(setup(rank as u32, nodes, &names, 1), late[rank], 60_000, None);
        }
        let ended: Vec<_> = sim.run().0.into_iter().map(|e| e.unwrap().1).collect();
        let common: Vec<&String> = names[0].iter().filter(|k| names.iter().all(|n| n.contains(k)))
            .collect();
        for (rank, end) in ended.iter().enumerate() {
            match end {
                Ok(a) => {
                    prop_assert_eq!(keys(a),
                        common.iter().map(|k| (*k).clone()).collect::<Vec<_>>());
                    prop_assert!(a.ifaces().all(|i| names[rank].contains(&i.to_string())));
                    prop_assert_eq!(&a.digest, &ended[0].as_ref().unwrap().digest);
                }
                Err(e) => {
                    prop_assert!(common.is_empty(), "{:#}", e);
                    prop_assert_eq!(format!("{e:#}").lines().count(), 1);
                }
            }
        }
    }

    /// A stranger writes what it likes, where it likes, as often as it likes: all end, in time, in
    /// one line, and who commits has nothing that it did not offer.
    #[test]
    fn a_stranger_in_the_store(
        seed in any::<u64>(),
        lies in prop::collection::vec((any::<prop::sample::Index>(), garbage(), 0..40usize), 1..6),
    ) {
        let mut sim = Sim::new(seed);
        for rank in 0..3 {
            sim.add(setup(rank, 3, &RAILS, 1), 0, 10_000, None);
        }
        let mut count = 0;
        sim.stranger = Some(Box::new(move |store| {
            count += 1;
            for (at, value, when) in &lies {
                let keys: Vec<String> = store.keys().cloned().collect();
                if count % 40 == *when && !keys.is_empty() {
                    store.insert(keys[at.index(keys.len())].clone(), value.clone());
                }
            }
        }));
        for (when, result) in sim.run().0.into_iter().flatten() {
            prop_assert!(when < Duration::from_secs(13), "{:?}", when);
            match result {
                Ok(a) => {
                    prop_assert!(a.check().is_ok());
                    prop_assert!(a.ifaces().all(|i| RAILS.contains(&i.as_str())));
                }
                Err(e) => {
                    let text = format!("{e:#}");
                    prop_assert!(!text.contains(char::is_control) && text.len() < 5000, "{}", text);
                    prop_assert_eq!(ErrorClass::of(&e), ErrorClass::Disagreed);
                }
            }
        }
    }

    /// Nothing that is read makes the reader panic.
    #[test]
    fn readers_stand_anything(value in garbage()) {
        let _ = Offer::parse(&value);
        let _ = message::parse::<Proposal>(&value);
        let _ = message::parse::<Ack>(&value);
        let _ = message::parse::<Verdict>(&value);
        let _ = nonce(1);
    }
}
