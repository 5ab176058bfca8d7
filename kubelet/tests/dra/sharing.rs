//! Claims that pods share: the kubelet asks for the first of them alone.

use crate::kubelet::find;
use crate::machine::Machine;

#[tokio::test]
async fn shared_claim_is_the_next_pods_when_the_first_is_gone() {
    let machine = Machine::new();
    let running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    let (shared, own) = (machine.claim("shared", &[0]), machine.claim("own", &[1]));
    machine.reserve("shared", &["first"]);
    kubelet.one(&shared).await.unwrap();
    machine.away(0, true);
    machine.reserve("shared", &["first", "second"]);
    machine.reserve("own", &["second"]);
    kubelet.one(&own).await.unwrap();
    running.driver.follow_claims().await.unwrap();
    assert_eq!(machine.pod_of(&shared), "first");
    machine.reserve("shared", &["second"]);
    running.driver.follow_claims().await.unwrap();
    assert_eq!(
        (machine.pod_of(&shared), machine.pod_of(&own)),
        ("second".into(), "second".into())
    );
}

/// The kubelet has called for the end of the first, which a process outlives, and has a second by
/// now: it calls neither for that one's start nor again for the end.
#[tokio::test]
async fn claim_that_has_ended_goes_on_with_the_next_pod() {
    let machine = Machine::new();
    let running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    let shared = machine.claim("shared", &[0]);
    machine.reserve("shared", &["first"]);
    kubelet.one(&shared).await.unwrap();
    machine.away(0, true);
    kubelet.unprepare(&shared).await.unwrap_err();
    machine.reserve("shared", &["first", "second"]);
    running.driver.follow_claims().await.unwrap();
    assert_eq!(machine.pod_of(&shared), "second");
}

/// After a boot, both ask again: one after the other.
#[tokio::test]
async fn claim_that_two_pods_share_at_once_is_one_pods() {
    let machine = Machine::new();
    let running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    let (shared, own) = (machine.claim("shared", &[0]), machine.claim("own", &[1]));
    machine.reserve("shared", &["first", "second"]);
    machine.reserve("own", &["second"]);
    let answers = kubelet.prepare(&[&shared, &own]).await;
    assert!(answers.values().all(Result::is_ok));
    assert_eq!(machine.pod_of(&shared), "second");
    machine.reserve("shared", &["first"]);
    running.driver.follow_claims().await.unwrap();
    assert_eq!(machine.pod_of(&shared), "first");
}

/// One error makes the kubelet keep the next pod, for which it calls no Prepare.
#[tokio::test]
async fn end_of_a_pod_does_not_take_the_claim_from_the_next() {
    let machine = Machine::new();
    let running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    let shared = machine.claim("shared", &[0]);
    machine.reserve("shared", &["first"]);
    kubelet.one(&shared).await.unwrap();
    machine.reserve("shared", &["first", "second"]);
    let why = kubelet.unprepare(&shared).await.unwrap_err();
    assert_eq!(why, "pod second has the claim next");
    running.driver.follow_claims().await.unwrap();
    assert_eq!(machine.pod_of(&shared), "second");
    // A kubelet that has no such pod asks again.
    kubelet.unprepare(&shared).await.unwrap();
    assert!(machine.files().is_empty());
}

/// Both are deleted while a process keeps the NICs: the claim is not the first one's again.
#[tokio::test]
async fn claim_does_not_return_to_a_pod_that_has_ended() {
    let machine = Machine::new();
    let running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    let shared = machine.claim("shared", &[0]);
    machine.reserve("shared", &["first"]);
    kubelet.one(&shared).await.unwrap();
    machine.away(0, true);
    machine.reserve("shared", &["first", "second"]);
    kubelet.unprepare(&shared).await.unwrap_err();
    running.driver.follow_claims().await.unwrap();
    assert_eq!(machine.pod_of(&shared), "second");
    let why = kubelet.unprepare(&shared).await.unwrap_err();
    assert!(why.contains("are not back"), "{why}");
    running.driver.follow_claims().await.unwrap();
    let binding = running.driver.bindings.of(&shared.uid).unwrap().unwrap();
    assert!(binding.ended, "{binding:?}");
    machine.away(0, false);
    kubelet.unprepare(&shared).await.unwrap();
    assert!(machine.files().is_empty());
}
