//! Claims: who gets which rail, and when it is free again.

use std::time::{Duration, Instant};

use rdmaprep_kubelet::dra::api;
use serde_json::json;

use crate::kubelet::{Kubelet, find};
use crate::machine::{GONE_FOR, Machine, Running};
use crate::server::uid;

async fn started() -> (Machine, Running, Kubelet) {
    let machine = Machine::new();
    let running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    (machine, running, kubelet)
}

fn id(claim: &api::Claim, at: usize) -> String {
    format!("rdmaprep.io/claim={}-rdma{at}", claim.uid)
}

/// A GPU of the same claim is the other driver's.
#[tokio::test]
async fn from_registration_to_the_end_of_a_pod() {
    let (machine, _running, kubelet) = started().await;
    let claim = machine.claim("a", &[1, 2]);
    assert_eq!(
        kubelet.one(&claim).await.unwrap(),
        [id(&claim, 1), id(&claim, 2)]
    );
    let cdi = machine.cdi(&claim);
    assert_eq!(
        (&cdi["kind"], &cdi["cdiVersion"]),
        (&json!("rdmaprep.io/claim"), &json!("0.5.0"))
    );
    assert_eq!(cdi["devices"][0]["name"], format!("{}-rdma1", claim.uid));
    let hook = &cdi["devices"][0]["containerEdits"]["hooks"][0];
    let args = hook["args"].as_array().unwrap();
    assert_eq!(
        args[args.len() - 4..],
        ["--rail", "rdma1", "--claim", &claim.uid]
    );
    kubelet.unprepare(&claim).await.unwrap();
    assert!(machine.files().is_empty(), "{:?}", machine.files());
    kubelet.unprepare(&claim).await.unwrap();
    let others = machine.claim("b", &[]);
    assert!(kubelet.one(&others).await.unwrap().is_empty());
    assert!(machine.files().is_empty());
}

/// After a restart of the kubelet, and after a boot that has emptied /run.
#[tokio::test]
async fn prepared_again_the_files_are_written_again() {
    let (machine, running, kubelet) = started().await;
    let claim = machine.claim("a", &[0]);
    let first = kubelet.one(&claim).await.unwrap();
    // A container has it, and another pod waits for the same claim.
    machine.away(0, true);
    // A driver that has started since does not know more of an HCA in a namespace.
    machine.set(0, |rail| rail.facts.pci = None);
    machine.reserve("a", &["pod-a", "second"]);
    std::fs::remove_file(machine.path("cdi").join(&machine.files()[0])).unwrap();
    assert_eq!(kubelet.one(&claim).await.unwrap(), first);
    assert_eq!(machine.files().len(), 2);
    machine.away(0, false);
    running.end().await;
    std::fs::remove_dir_all(machine.path("run")).unwrap();
    std::fs::remove_dir_all(machine.path("cdi")).unwrap();
    machine.claim("a", &[0]);
    let _running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    assert_eq!(kubelet.one(&claim).await.unwrap(), first);
    assert_eq!(machine.files().len(), 2);
}

#[tokio::test]
async fn what_is_wrong_is_one_line_and_binds_nothing() {
    let (machine, _running, kubelet) = started().await;
    type Change = fn(&mut serde_json::Value);
    let cases: [(&str, Change); 7] = [
        ("another one has its name", |c| {
            c["metadata"]["uid"] = json!("other")
        }),
        ("is not allocated", |c| {
            drop(c["status"].as_object_mut().unwrap().remove("allocation"))
        }),
        ("not of this node", |c| {
            c["status"]["allocation"]["devices"]["results"][0]["pool"] = json!("node-2");
        }),
        ("adminAccess", |c| {
            c["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = json!(true);
        }),
        ("no rail rdma9", |c| {
            c["status"]["allocation"]["devices"]["results"][0]["device"] = json!("rdma9");
        }),
        ("more than once", |c| {
            let results = c["status"]["allocation"]["devices"]["results"]
                .as_array_mut()
                .unwrap();
            results.push(results[0].clone());
        }),
        ("\"mtuu\"", |c| {
            c["status"]["allocation"]["devices"]["config"] = json!([{"source": "FromClaim",
                "opaque": {"driver": "rdmaprep.io", "parameters": {"mtuu": 1}}}]);
        }),
    ];
    for (expected, change) in cases {
        let claim = machine.claim("a", &[0]);
        machine.change_claim("a", change);
        let why = kubelet.one(&claim).await.unwrap_err();
        assert!(
            why.contains(expected) && !why.contains('\n'),
            "{expected}: {why}"
        );
        assert!(machine.files().is_empty(), "{expected}");
    }
    // What others say of theirs is not ours to judge, nor is a group of pods a pod.
    let claim = machine.claim("a", &[0]);
    machine.change_claim("a", |c| {
        c["status"]["allocation"]["devices"]["config"] = json!([{"source": "FromClaim",
            "opaque": {"driver": "gpu.example.com", "parameters": {"mtuu": 1}}}]);
        let group = json!({"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g",
            "uid": "3"});
        c["status"]["reservedFor"]
            .as_array_mut()
            .unwrap()
            .push(group);
    });
    kubelet.one(&claim).await.unwrap();
}

/// Each is a part of a path.
#[tokio::test]
async fn names_that_are_none_are_refused() {
    let (machine, _running, kubelet) = started().await;
    let good = machine.claim("a", &[0]);
    for odd in ["", "../a", "a/../../b", "A", "a b"] {
        let uid_ = api::Claim {
            uid: odd.to_owned(),
            ..good.clone()
        };
        assert!(kubelet.one(&uid_).await.unwrap_err().contains("is no UID"));
        assert!(
            kubelet
                .unprepare(&uid_)
                .await
                .unwrap_err()
                .contains("is no UID")
        );
        let name = api::Claim {
            name: odd.to_owned(),
            ..good.clone()
        };
        assert!(
            kubelet.one(&name).await.unwrap_err().contains("is no name"),
            "{odd}"
        );
    }
    assert!(machine.files().is_empty());
}

#[tokio::test]
async fn claims_of_a_call_are_bound_together_or_not() {
    let (machine, _running, kubelet) = started().await;
    let (a, b) = (machine.claim("a", &[0]), machine.claim("b", &[1]));
    machine.set(1, |rail| rail.unhealthy = Some("no carrier".to_owned()));
    let answers = kubelet.prepare(&[&a, &b]).await;
    let why = answers[&a.uid].as_ref().unwrap_err();
    assert!(why.contains("rdma1: no carrier"), "{why}");
    assert!(machine.files().is_empty());
    machine.set(1, |rail| rail.unhealthy = None);
    machine.change_claim("b", |c| c["metadata"]["uid"] = json!("other"));
    let answers = kubelet.prepare(&[&a, &b]).await;
    assert!(
        answers[&a.uid]
            .as_ref()
            .unwrap_err()
            .contains("another claim of the pod")
    );
    assert!(machine.files().is_empty());
    machine.claim("b", &[1]);
    assert!(kubelet.prepare(&[&a, &b]).await.values().all(Result::is_ok));
    assert_eq!(machine.files().len(), 4);
}

/// After a forced deletion, the scheduler gives a rail that the old pod still has.
#[tokio::test]
async fn rail_of_another_claim_is_waited_for_not_given() {
    let (machine, _running, kubelet) = started().await;
    let (a, b) = (machine.claim("a", &[0]), machine.claim("b", &[0]));
    kubelet.one(&a).await.unwrap();
    let why = kubelet.one(&b).await.unwrap_err();
    assert_eq!(why, "the claim jobs/a of pod pod-a has rdma0");
    let second = find(machine.folder.path()).await;
    let (got, released) = tokio::join!(second.one(&b), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        kubelet.unprepare(&a).await
    });
    released.unwrap();
    assert_eq!(got.unwrap(), [id(&b, 0)]);
}

/// A kubelet that was too slow to hear the answer, and a second claim for the same rail.
#[tokio::test]
async fn claims_that_are_asked_for_at_once_are_bound_once() {
    let (machine, _running, kubelet) = started().await;
    let (a, b) = (machine.claim("a", &[0, 1]), machine.claim("b", &[1]));
    let second = find(machine.folder.path()).await;
    let (one, again, other) = tokio::join!(kubelet.one(&a), second.one(&a), second.one(&b));
    assert_eq!(one.is_ok(), again.is_ok());
    assert_ne!(one.is_ok(), other.is_ok(), "{one:?} {other:?}");
    assert_eq!(machine.files().len(), 2);
    let (one, again) = tokio::join!(kubelet.unprepare(&a), second.unprepare(&a));
    one.and(again).unwrap();
    kubelet.unprepare(&b).await.unwrap();
    assert!(machine.files().is_empty());
}

/// The NIC of the pod before flaps, or is not back yet: a failure would cost a minute.
#[tokio::test]
async fn rail_on_its_way_back_is_waited_for() {
    let (machine, _running, kubelet) = started().await;
    let claim = machine.claim("a", &[0]);
    machine.away(0, true);
    let (got, ()) = tokio::join!(kubelet.one(&claim), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        machine.away(0, false);
    });
    got.unwrap();
    // And the way out.
    machine.away(0, true);
    let start = Instant::now();
    let why = kubelet.unprepare(&claim).await.unwrap_err();
    assert!(
        why.contains("are not back") && start.elapsed() < Duration::from_secs(5),
        "{why}"
    );
    assert_eq!(machine.files().len(), 2);
    let (released, ()) = tokio::join!(kubelet.unprepare(&claim), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        machine.away(0, false);
    });
    released.unwrap();
    assert!(machine.files().is_empty());
}

/// The pod can end, but first the scheduler must not take the rail for a free one.
#[tokio::test]
async fn rail_that_is_not_whole_is_withdrawn_before_it_is_free() {
    for no_taints in [false, true] {
        let (machine, _running, kubelet) = started().await;
        machine.server.state().no_taints = no_taints;
        let claim = machine.claim("a", &[0]);
        kubelet.one(&claim).await.unwrap();
        machine.set(0, |rail| {
            (rail.facts.is_away, rail.facts.held_back) = (true, true);
            rail.unhealthy = Some("it did not return whole".to_owned());
        });
        machine.server.state().refuses = Some((500, "busy"));
        let why = kubelet.unprepare(&claim).await.unwrap_err();
        assert!(why.contains("not whole"), "{why}");
        machine.server.state().refuses = None;
        while let Err(why) = kubelet.unprepare(&claim).await {
            assert!(why.contains("not whole"), "{why}");
        }
        let slice = machine.server.only_slice();
        let first = &slice["spec"]["devices"][0];
        assert!(
            first["name"] != "rdma0" || first["taints"].is_array(),
            "{first}"
        );
        let why = kubelet.one(&machine.claim("b", &[0])).await.unwrap_err();
        assert!(why.contains("whole") || why.contains("no rail"), "{why}");
    }
}

#[tokio::test]
async fn without_the_api_server_nothing_is_prepared() {
    let (machine, _running, kubelet) = started().await;
    let (a, b) = (machine.claim("a", &[0]), machine.claim("b", &[1]));
    kubelet.one(&a).await.unwrap();
    machine.server.state().refuses = Some((503, "shutting down"));
    let why = kubelet.one(&b).await.unwrap_err();
    assert_eq!(why, "the API server: shutting down (503)");
    kubelet.unprepare(&a).await.unwrap();
    machine.server.state().refuses = None;
    machine.server.rotate("second");
    kubelet.one(&b).await.unwrap();
}

/// The kubelet's state was wiped: it will never call for these.
#[tokio::test]
async fn claims_that_are_gone_are_released() {
    let (machine, running, kubelet) = started().await;
    let all: Vec<api::Claim> = (0..4)
        .map(|at| machine.claim(&format!("c{at}"), &[at]))
        .collect();
    for claim in &all {
        kubelet.one(claim).await.unwrap();
    }
    machine.server.state().claims.remove("jobs/c0");
    machine.change_claim("c1", |c| c["metadata"]["uid"] = json!("other"));
    machine.change_claim("c2", |c| {
        drop(c["status"].as_object_mut().unwrap().remove("allocation"))
    });
    machine.away(2, true);
    running.driver.follow_claims().await.unwrap();
    assert_eq!(
        machine.files().len(),
        8,
        "a server may lack for a moment what exists"
    );
    tokio::time::sleep(GONE_FOR).await;
    running.driver.follow_claims().await.unwrap();
    let left: Vec<String> = machine.files();
    let expected = [2, 3].map(|at| format!("rdmaprep.io-claim-{}.json", all[at].uid));
    assert_eq!(left[..2], expected);
    machine.server.state().refuses = Some((503, "away"));
    machine.away(2, false);
    running.driver.follow_claims().await.unwrap_err();
    assert_eq!(machine.files(), left);
}

/// A claim that was made by hand outlives its pods, and may have rails of another node next.
#[tokio::test]
async fn claim_that_another_node_has_is_gone() {
    let (machine, running, kubelet) = started().await;
    kubelet.one(&machine.claim("a", &[0])).await.unwrap();
    machine.change_claim("a", |c| {
        c["status"]["allocation"]["devices"]["results"][0]["pool"] = json!("another-node");
    });
    running.driver.follow_claims().await.unwrap();
    tokio::time::sleep(GONE_FOR).await;
    running.driver.follow_claims().await.unwrap();
    assert!(machine.files().is_empty());
}

/// The kubelet has yet to stop a pod that was deleted by force.
#[tokio::test]
async fn claim_that_is_gone_has_not_ended_for_a_container_that_runs() {
    let (machine, running, kubelet) = started().await;
    let claim = machine.claim("a", &[0]);
    kubelet.one(&claim).await.unwrap();
    machine.set(0, |rail| rail.facts.is_away = true);
    machine.record_of(1000, std::slice::from_ref(&claim.uid), &["trainer"]);
    machine.server.state().claims.remove("jobs/a");
    let binding = || running.driver.bindings.of(&claim.uid).unwrap();
    for _ in 0..3 {
        running.driver.follow_claims().await.unwrap();
        tokio::time::sleep(GONE_FOR).await;
        assert!(!binding().unwrap().ended);
    }
    machine.away(0, false);
    running.driver.follow_claims().await.unwrap();
    assert_eq!(binding(), None);
}

#[tokio::test]
async fn claim_that_is_prepared_again_is_not_gone() {
    let (machine, running, kubelet) = started().await;
    let claim = machine.claim("a", &[0]);
    kubelet.one(&claim).await.unwrap();
    let there = machine.server.state().claims.remove("jobs/a").unwrap();
    running.driver.follow_claims().await.unwrap();
    machine
        .server
        .state()
        .claims
        .insert("jobs/a".to_owned(), there);
    kubelet.one(&claim).await.unwrap();
    machine.server.state().claims.remove("jobs/a");
    tokio::time::sleep(GONE_FOR).await;
    running.driver.follow_claims().await.unwrap();
    assert_eq!(machine.files().len(), 2);
}

/// A proxy, or a server that does not know claims yet.
#[tokio::test]
async fn any_other_404_releases_nothing() {
    let (machine, running, kubelet) = started().await;
    kubelet.one(&machine.claim("a", &[0])).await.unwrap();
    machine.server.state().refuses = Some((404, "404 page not found"));
    for _ in 0..3 {
        let why = running
            .driver
            .follow_claims()
            .await
            .unwrap_err()
            .to_string();
        assert!(why.contains("404 page not found"), "{why}");
    }
    assert_eq!(machine.files().len(), 2);
}

/// Which rails are taken is not known then.
#[tokio::test]
async fn binding_that_was_edited_stops_new_ones() {
    let (machine, _running, kubelet) = started().await;
    let (claim, before) = (machine.claim("a", &[0]), machine.claim("b", &[1]));
    kubelet.one(&before).await.unwrap();
    for text in ["", "{}", "[1]", "{\"schema\": 1}"] {
        let path = machine.path(&format!("run/claims/{}.json", uid("x")));
        std::fs::write(&path, text).unwrap();
        let why = kubelet.one(&claim).await.unwrap_err();
        assert!(
            why.contains(&uid("x")) && why.contains("claims release"),
            "{why}"
        );
    }
    kubelet.unprepare(&before).await.unwrap();
    std::fs::remove_file(machine.path(&format!("run/claims/{}.json", uid("x")))).unwrap();
    std::fs::write(machine.path("run/claims/notes.txt"), "").unwrap();
    kubelet.one(&claim).await.unwrap();
}

/// With the kubelet's folder, or by hand.
#[tokio::test]
async fn sockets_that_were_removed_are_made_again() {
    let (machine, _running, _kubelet) = started().await;
    std::fs::remove_file(machine.path("plugins_registry/rdmaprep.io-reg.sock")).unwrap();
    let kubelet = find(machine.folder.path()).await;
    kubelet.one(&machine.claim("a", &[0])).await.unwrap();
}

/// Killed between its two files, or while it wrote one.
#[tokio::test]
async fn what_a_kill_left_is_used_or_removed() {
    let (machine, _running, kubelet) = started().await;
    let claim = machine.claim("a", &[0]);
    let unfinished = format!("cdi/.new-rdmaprep.io-claim-{}.json~", claim.uid);
    for left in ["cdi", "run/claims", "none"] {
        kubelet.one(&claim).await.unwrap();
        for file in machine.files().iter().filter(|_| left != "none") {
            let _ = std::fs::remove_file(machine.path(left).join(file));
        }
        std::fs::write(machine.path(&unfinished), "{").unwrap();
        kubelet.one(&claim).await.unwrap();
        assert_eq!(machine.files().len(), 2);
        std::fs::write(machine.path(&unfinished), "{").unwrap();
        kubelet.unprepare(&claim).await.unwrap();
        assert!(machine.files().is_empty(), "{left}: {:?}", machine.files());
    }
}
