//! A claim has ended for the kubelet only when its NICs are back, whatever else is lost.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use rdmaprep_kubelet::dra::api;

use crate::kubelet::{Kubelet, find};
use crate::machine::{Machine, Running};

async fn prepared() -> (Machine, Running, Kubelet, api::Claim) {
    let machine = Machine::new();
    let running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    let claim = machine.claim("a", &[0]);
    kubelet.one(&claim).await.unwrap();
    (machine, running, kubelet, claim)
}

#[tokio::test]
async fn damaged_record_of_a_rail_keeps_its_claim() {
    let (machine, _running, kubelet, claim) = prepared().await;
    for torn in [
        "{\"schema\":2,\"nic\":{\"identity\":{\"name\":\"rdma0\"",
        &format!("{{\"claims\":[\"{}\"]", claim.uid),
        "",
    ] {
        std::fs::write(machine.record_path(77), torn).unwrap();
        let why = kubelet.unprepare(&claim).await.unwrap_err();
        assert!(
            why.contains("may be away") && why.contains("77.json"),
            "{why}"
        );
        assert_eq!(machine.files().len(), 2);
    }
    let other = "{\"schema\":2,\"nic\":{\"identity\":{\"name\":\"rdma3\"";
    std::fs::write(machine.record_path(77), other).unwrap();
    kubelet.unprepare(&claim).await.unwrap();
}

#[tokio::test]
async fn rail_that_is_listed_no_more_keeps_its_claim() {
    let (machine, _running, kubelet, claim) = prepared().await;
    machine.away(0, true);
    let rail = machine.rails.0.lock().unwrap().remove(0);
    let why = kubelet.unprepare(&claim).await.unwrap_err();
    assert!(why.contains("are not back"), "{why}");
    machine.rails.0.lock().unwrap().insert(0, rail);
    machine.away(0, false);
    kubelet.unprepare(&claim).await.unwrap();
}

#[tokio::test]
async fn record_keeps_a_claim_whose_binding_is_lost() {
    let (machine, _running, kubelet, claim) = prepared().await;
    machine.away(0, true);
    std::fs::remove_file(machine.path(&format!("run/claims/{}.json", claim.uid))).unwrap();
    let why = kubelet.unprepare(&claim).await.unwrap_err();
    assert!(why.contains("are not back"), "{why}");
    std::fs::remove_file(machine.record_path(1000)).unwrap();
    kubelet.unprepare(&claim).await.unwrap();
    assert!(machine.files().is_empty());
}

/// The containers have ended, and what one of them has left has not.
#[tokio::test]
async fn process_that_keeps_the_namespace_is_named() {
    let (machine, _running, kubelet, claim) = prepared().await;
    let own = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
    machine.record(own, std::slice::from_ref(&claim.uid));
    let why = kubelet.unprepare(&claim).await.unwrap_err();
    assert!(
        why.contains("still in the pod's network namespace"),
        "{why}"
    );
}

/// A hook that had the lock has given the rail to a container meanwhile.
#[tokio::test]
async fn rail_is_looked_at_while_the_lock_is_held() {
    let (machine, running, kubelet, claim) = prepared().await;
    let other = machine.claim("b", &[1]);
    let lock = running
        .driver
        .store
        .lock(std::time::Instant::now())
        .unwrap();
    let (prepared, ()) = tokio::join!(kubelet.one(&other), async {
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
        machine.away(1, true);
        drop(lock);
    });
    assert_eq!(prepared.unwrap_err(), "a container has rdma1");
    kubelet.unprepare(&claim).await.unwrap();
}

/// A timer or a hook has the lock when the time is over.
#[tokio::test]
async fn reason_is_why_it_waited_and_not_who_has_the_lock() {
    let (machine, running, kubelet, claim) = prepared().await;
    let other = machine.claim("b", &[1]);
    machine.away(0, true);
    machine.away(1, true);
    let looks = || machine.rails.2.load(Ordering::Relaxed);
    for call in ["unprepare", "prepare"] {
        let before = looks();
        let answered = async {
            match call {
                "unprepare" => kubelet.unprepare(&claim).await.unwrap_err(),
                _ => kubelet.one(&other).await.unwrap_err(),
            }
        };
        let (why, _lock) = tokio::join!(answered, async {
            // The driver looks while it has the lock, so it has tried once when this one has it.
            while looks() == before {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            let late = std::time::Instant::now() + std::time::Duration::from_secs(60);
            let store = running.driver.store.clone();
            // The driver needs this thread to let go of it.
            let locked = tokio::task::spawn_blocking(move || store.lock(late));
            locked.await.unwrap().unwrap()
        });
        let expected = match call {
            "unprepare" => "are not back",
            _ => "a container has rdma1",
        };
        assert!(why.contains(expected), "{call}: {why}");
    }
}

/// The records say what is away.
#[tokio::test]
async fn claim_ends_where_the_rails_cannot_be_looked_at() {
    let (machine, _running, kubelet, claim) = prepared().await;
    machine.rails.1.store(true, Ordering::Relaxed);
    machine.away(0, true);
    let why = kubelet.unprepare(&claim).await.unwrap_err();
    assert!(why.contains("are not back"), "{why}");
    machine.away(0, false);
    kubelet.unprepare(&claim).await.unwrap();
    assert!(machine.files().is_empty());
}
