//! What the status of claims says of their rails, and that nothing waits for it.

use std::time::{Duration, Instant};

use rdmaprep_kubelet::dra::api;
use serde_json::{Value, json};

use crate::events::refuse;
use crate::kubelet::{Kubelet, find};
use crate::machine::{BOOT, Machine, Running};
use crate::server::{NODE, State};

async fn started() -> (Machine, Running, Kubelet) {
    let machine = Machine::new();
    machine.set(0, |rail| rail.facts.mac = "02:00:00:00:00:01".parse().ok());
    let running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    (machine, running, kubelet)
}

/// Our entry for that rail.
fn entry(state: &State, name: &str, device: &str) -> Option<Value> {
    let devices = state.claims.get(&format!("jobs/{name}"))?["status"]["devices"].as_array()?;
    let mut ours = devices
        .iter()
        .filter(|d| d["driver"] == "rdmaprep.io" && d["pool"] == NODE);
    ours.find(|d| d["device"] == device).cloned()
}

fn reason(state: &State, name: &str, device: &str) -> Option<String> {
    let entry = entry(state, name, device)?;
    Some(entry["conditions"][0]["reason"].as_str()?.to_owned())
}

fn wait(machine: &Machine, name: &str, expected: &str) -> Value {
    machine
        .server
        .wait(|s| reason(s, name, "rdma0").as_deref() == Some(expected));
    entry(&machine.server.state(), name, "rdma0").unwrap()
}

fn writes(machine: &Machine) -> usize {
    let state = machine.server.state();
    state
        .calls
        .iter()
        .filter(|c| c.starts_with("PATCH"))
        .count()
}

/// While the driver's own tasks go on.
async fn until_reason(machine: &Machine, expected: &str) {
    let start = Instant::now();
    while reason(&machine.server.state(), "a", "rdma0").as_deref() != Some(expected) {
        assert!(start.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A record in which the claim's pod has rdma0, as the hook writes it.
fn attached(machine: &Machine, claim: &api::Claim) {
    in_phase(machine, claim, "attached");
}

fn in_phase(machine: &Machine, claim: &api::Claim, phase: &str) {
    let text = include_str!("../../../tests/cases/record/current.json");
    let text = text.replace("\"r0\"", "\"rdma0\"");
    let mut record: Value = serde_json::from_str(&text).unwrap();
    record["boot_id"] = json!(BOOT);
    record["netns"] = json!(77);
    record["claims"] = json!([claim.uid]);
    record["held_back"] = json!([]);
    record["phase"] = json!(phase);
    let unfinished = machine.path("run/records/.new~");
    std::fs::write(&unfinished, record.to_string()).unwrap();
    std::fs::rename(unfinished, machine.record_path(77)).unwrap();
    machine.set(0, |rail| {
        rail.facts.is_away = true;
        // Of a driver that has started since, which has never seen it here.
        (rail.addresses, rail.facts.mac) = (Vec::new(), None);
    });
}

#[tokio::test]
async fn status_follows_a_claim_from_prepare_to_its_end() {
    let (machine, running, kubelet) = started().await;
    let claim = machine.claim("a", &[0, 1]);
    let gpu = json!({"driver": "gpu.example.com", "pool": "x", "device": "gpu-0",
        "conditions": [], "data": {"index": 0}});
    machine.change_claim("a", |c| c["status"]["devices"] = json!([gpu]));
    kubelet.one(&claim).await.unwrap();
    let prepared = wait(&machine, "a", "Prepared");
    assert_eq!(prepared["conditions"][0]["status"], "False");
    let expected = json!({"interfaceName": "rdma0", "hardwareAddress": "02:00:00:00:00:01",
        "ips": ["192.0.2.0/24", "2001:db8::/64", "fe80::/64"]});
    assert_eq!(prepared["networkData"], expected);
    attached(&machine, &claim);
    running.driver.wake();
    let ready = wait(&machine, "a", "Attached");
    assert_eq!(ready["conditions"][0]["status"], "True");
    assert!(
        ready["conditions"][0]["message"]
            .as_str()
            .unwrap()
            .contains("pod-a")
    );
    assert_eq!(ready["networkData"]["interfaceName"], "rdma0");
    let ips = ready["networkData"]["ips"].as_array().unwrap();
    assert!(ips.contains(&json!("10.0.0.1/24")), "{ready}");
    assert!(
        ready["networkData"]["hardwareAddress"].is_string(),
        "{ready}"
    );
    // The other rail has not moved, and the other driver's entry is its own.
    assert_eq!(
        reason(&machine.server.state(), "a", "rdma1").unwrap(),
        "Prepared"
    );
    kubelet.unprepare(&claim).await.unwrap_err();
    wait(&machine, "a", "Returning");
    std::fs::remove_file(machine.record_path(77)).unwrap();
    machine.set(0, |rail| rail.facts.is_away = false);
    kubelet.unprepare(&claim).await.unwrap();
    let returned = wait(&machine, "a", "Returned");
    assert!(returned.get("networkData").is_none(), "{returned}");
    assert_eq!(
        machine.server.state().claims["jobs/a"]["status"]["devices"][0],
        gpu
    );
}

/// Between the two, nothing changes but the record.
#[tokio::test]
async fn status_follows_the_phase_of_a_record() {
    let (machine, running, kubelet) = started().await;
    let claim = machine.claim("a", &[0]);
    kubelet.one(&claim).await.unwrap();
    wait(&machine, "a", "Prepared");
    in_phase(&machine, &claim, "attaching");
    running.driver.node.refresh().await.unwrap();
    running.driver.wake();
    wait(&machine, "a", "Attaching");
    in_phase(&machine, &claim, "attached");
    until_reason(&machine, "Attached").await;
    // Of the pod before, whose NICs the next one gets: that has not ended.
    in_phase(&machine, &claim, "restoring");
    until_reason(&machine, "Returning").await;
    let entry = entry(&machine.server.state(), "a", "rdma0").unwrap();
    assert_eq!(entry["conditions"][0]["message"], "on its way back");
}

/// As one that lost its carrier, or that a record has which cannot be read.
#[tokio::test]
async fn rail_that_is_not_well_is_not_just_prepared() {
    let (machine, running, kubelet) = started().await;
    kubelet.one(&machine.claim("a", &[0])).await.unwrap();
    wait(&machine, "a", "Prepared");
    let before = "2026-11-27T00:00:00Z";
    machine.change_claim("a", |c| {
        c["status"]["devices"][0]["conditions"][0]["lastTransitionTime"] = json!(before);
    });
    machine.set(0, |rail| {
        rail.unhealthy = Some("not on this host".to_owned())
    });
    running.driver.node.refresh().await.unwrap();
    running.driver.wake();
    let after = wait(&machine, "a", "Unhealthy");
    let time = &after["conditions"][0]["lastTransitionTime"];
    assert_eq!(time, before, "it was not ready before");
    assert_eq!(after["conditions"][0]["message"], "not on this host");
}

/// What is right is not written again, also by a driver that has started since.
#[tokio::test]
async fn what_the_status_says_is_not_written_again() {
    let (machine, running, kubelet) = started().await;
    kubelet.one(&machine.claim("a", &[0])).await.unwrap();
    let before = wait(&machine, "a", "Prepared");
    running.end().await;
    let running = machine.start();
    for _ in 0..3 {
        running.driver.wake();
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    let state = || entry(&machine.server.state(), "a", "rdma0");
    assert_eq!((writes(&machine), state()), (1, Some(before)));
}

/// Without the permission, or while the server is away: it is tried again, and the kubelet gets its
/// answer at once.
#[tokio::test]
async fn status_that_is_refused_keeps_no_pod_waiting() {
    for refusal in [
        (403, "not allowed"),
        (404, "not found"),
        (409, "a conflict"),
        (500, "busy"),
    ] {
        let (machine, _running, kubelet) = started().await;
        let claim = machine.claim("a", &[0]);
        machine.server.state().refuses_status = Some(refusal);
        kubelet.one(&claim).await.unwrap();
        machine
            .server
            .wait(|s| s.calls.iter().any(|c| c.starts_with("PATCH")));
        kubelet.one(&claim).await.unwrap();
        machine.server.state().refuses_status = None;
        wait(&machine, "a", "Prepared");
        machine.server.state().refuses_status = Some(refusal);
        kubelet.unprepare(&claim).await.unwrap();
        assert!(machine.files().is_empty());
    }
}

#[tokio::test]
async fn server_that_is_slow_with_the_status_delays_nothing() {
    let (machine, _running, kubelet) = started().await;
    machine.server.state().slow_status = Duration::from_secs(12);
    let (a, b) = (machine.claim("a", &[0]), machine.claim("b", &[1]));
    let start = Instant::now();
    kubelet.one(&a).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    kubelet.one(&b).await.unwrap();
    kubelet.unprepare(&a).await.unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(writes(&machine), 0, "the answer has not come yet");
}

/// Nor another one of its name, nor one whose devices are another's by now.
#[tokio::test]
async fn claim_that_is_gone_is_not_written() {
    type Change = fn(&mut Value);
    let cases: [Option<Change>; 4] = [
        None,
        Some(|c| c["metadata"]["uid"] = json!("other")),
        Some(|c| drop(c["status"].as_object_mut().unwrap().remove("allocation"))),
        Some(|c| c["status"]["allocation"]["devices"]["results"][0]["pool"] = json!("node-2")),
    ];
    for change in cases {
        let (machine, running, kubelet) = started().await;
        let claim = machine.claim("a", &[0]);
        kubelet.one(&claim).await.unwrap();
        wait(&machine, "a", "Prepared");
        let written = writes(&machine);
        match change {
            Some(change) => machine.change_claim("a", change),
            None => drop(machine.server.state().claims.remove("jobs/a")),
        }
        attached(&machine, &claim);
        running.driver.wake();
        let asked = |s: &State| {
            s.calls
                .iter()
                .filter(|c| c.ends_with("/jobs/resourceclaims/a"))
                .count()
        };
        machine.server.wait(|s| asked(s) >= 3);
        let asked = || asked(&machine.server.state());
        let before = (asked(), written);
        running.driver.wake();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!((asked(), writes(&machine)), before);
    }
}

/// The end of a claim takes what its status says with it.
#[tokio::test]
async fn status_of_a_released_claim_is_not_tried_for_ever() {
    let (machine, _running, kubelet) = started().await;
    let claim = machine.claim("a", &[0]);
    kubelet.one(&claim).await.unwrap();
    wait(&machine, "a", "Prepared");
    machine.server.state().refuses_status = Some((403, "not allowed"));
    kubelet.unprepare(&claim).await.unwrap();
    machine
        .server
        .wait(|s| s.calls.iter().filter(|c| c.starts_with("PATCH")).count() == 3);
    machine.server.state().claims.remove("jobs/a");
    tokio::time::sleep(Duration::from_millis(6000)).await;
    let calls = machine.server.state().calls.len();
    tokio::time::sleep(Duration::from_millis(9000)).await;
    assert_eq!(machine.server.state().calls.len(), calls);
}

#[tokio::test]
async fn refusal_of_the_create_hook_is_told_in_its_words() {
    let engines = [
        "run/containerd/io.containerd.runtime.v2.task/k8s.io/ID",
        "run/containers/storage/overlay-containers/ID/userdata",
    ];
    for bundle in engines {
        let (machine, running, kubelet) = started().await;
        let claim = machine.claim("a", &[0]);
        kubelet.one(&claim).await.unwrap();
        wait(&machine, "a", "Prepared");
        // A second pod with the claim: its refusal is not the first one's.
        refuse(&machine, &claim, "second", bundle, "one pod at a time");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        running.driver.wake();
        wait(&machine, "a", "Prepared");
        // As long as the server takes it, and in characters of two bytes.
        let words = format!("rdma0 lacks its address\u{1b}: {}", "ü".repeat(40_000));
        refuse(&machine, &claim, "pod-a", bundle, &words);
        until_reason(&machine, "Refused").await;
        let refused = wait(&machine, "a", "Refused");
        let message = refused["conditions"][0]["message"].as_str().unwrap();
        assert!(
            message.starts_with("rdma0 lacks its address\\u{1b}: üü"),
            "{message:.60}"
        );
        assert!(
            (32_760..=32_768).contains(&message.len()),
            "{}",
            message.len()
        );
        // The next container has it.
        attached(&machine, &claim);
        running.driver.wake();
        wait(&machine, "a", "Attached");
    }
}
