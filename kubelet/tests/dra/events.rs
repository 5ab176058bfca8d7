//! Why the create hook refused a container is in the events of its pod.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdmaprep::report::Report;
use rdmaprep_kubelet::dra::api;
use serde_json::{Value, json};

use crate::kubelet::{Kubelet, find};
use crate::machine::{Machine, Running};
use crate::server::{NODE, State, uid};

const BUNDLE: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io/ID";

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap().as_secs()
}

/// The report of a create hook that refused a container with that claim, which has config.json at
/// that place.
pub fn refuse(machine: &Machine, claim: &api::Claim, pod: &str, bundle: &str, words: &str) {
    refuse_at(machine, claim, pod, bundle, words, now());
}

fn refuse_at(
    machine: &Machine,
    claim: &api::Claim,
    pod: &str,
    bundle: &str,
    words: &str,
    time: u64,
) {
    let id = format!("{:0>64}", bundle.len());
    let folder = machine.path("host").join(bundle.replace("ID", &id));
    std::fs::create_dir_all(&folder).unwrap();
    let pod = uid(pod);
    let config = json!({"ociVersion": "1.2.0",
        "linux": {"cgroupsPath": format!("/kubepods/burstable/pod{pod}/{id}")},
        "hooks": {"createRuntime": [{"path": "/usr/bin/rdmaprep", "args": ["rdmaprep", "hook",
            "createRuntime", "--rail", "rdma0", "--claim", claim.uid]}]}});
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut report = Report::new("hook createRuntime");
    report.container = Some(id.clone());
    report.time = Some(time);
    (report.exit_code, report.message) = (3, Some(words.to_owned()));
    let text = serde_json::to_string(&report).unwrap();
    let unfinished = machine.path("run/reports/.new~");
    std::fs::write(&unfinished, text).unwrap();
    std::fs::rename(unfinished, machine.path(&format!("run/reports/{id}.json"))).unwrap();
}

async fn started() -> (Machine, Running, Kubelet, api::Claim) {
    let machine = Machine::new();
    let running = machine.start();
    let kubelet = find(machine.folder.path()).await;
    let claim = machine.claim("a", &[0]);
    kubelet.one(&claim).await.unwrap();
    (machine, running, kubelet, claim)
}

fn events_of(state: &State, pod: &str) -> Vec<Value> {
    let all = state.events.values();
    all.filter(|event| event["regarding"]["name"] == pod)
        .cloned()
        .collect()
}

fn tries(state: &State) -> usize {
    state
        .calls
        .iter()
        .filter(|call| call.starts_with("POST") && call.ends_with("/events"))
        .count()
}

async fn wait(machine: &Machine, what: impl Fn(&State) -> bool) {
    let start = Instant::now();
    while !what(&machine.server.state()) {
        let state = machine.server.state();
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{:#?} {:#?}",
            state.calls,
            state.events
        );
        drop(state);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn pod_that_is_refused_has_the_hooks_words_in_its_events() {
    let (machine, running, _kubelet, claim) = started().await;
    let words = format!("rdma0 lacks its address\u{1b}: {}", "ü".repeat(1000));
    refuse(&machine, &claim, "pod-a", BUNDLE, &words);
    wait(&machine, |s| !events_of(s, "pod-a").is_empty()).await;
    let event = events_of(&machine.server.state(), "pod-a").remove(0);
    let note = event["note"].as_str().unwrap();
    assert!(note.starts_with("rdma0 lacks its address\\u{1b}: üü"));
    assert!((1020..=1024).contains(&note.len()), "{}", note.len());
    let regarding = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "jobs",
        "name": "pod-a", "uid": uid("pod-a")});
    assert_eq!(event["regarding"], regarding);
    assert_eq!(
        (&event["type"], &event["reportingInstance"]),
        (&json!("Warning"), &json!(NODE))
    );
    // A second pod, of which the kubelet asks no one, has its own.
    machine.reserve("a", &["pod-a", "second"]);
    refuse(&machine, &claim, "second", BUNDLE, "one pod at a time");
    wait(&machine, |s| !events_of(s, "second").is_empty()).await;
    // And one that does not have the claim has none.
    refuse(&machine, &claim, "other", BUNDLE, "not yours");
    tokio::time::sleep(Duration::from_millis(500)).await;
    running.driver.wake();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(machine.server.state().events.len(), 2);
}

/// Nor does one whose words have a time in them.
#[tokio::test]
async fn container_that_is_refused_again_and_again_makes_one_event() {
    let (machine, running, kubelet, claim) = started().await;
    refuse(&machine, &claim, "pod-a", BUNDLE, "no address");
    wait(&machine, |s| s.events.len() == 1).await;
    for at in 0..30 {
        let words = match at % 2 {
            0 => "no address".to_owned(),
            _ => format!("no address after {at} s"),
        };
        refuse(&machine, &claim, "pod-a", BUNDLE, &words);
        tokio::time::sleep(Duration::from_millis(120)).await;
    }
    assert_eq!(tries(&machine.server.state()), 1);
    // A driver that has started since does not know, and the server does.
    refuse(&machine, &claim, "pod-a", BUNDLE, "no address");
    running.end().await;
    drop(kubelet);
    let _running = machine.start();
    wait(&machine, |s| tries(s) == 2).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let state = machine.server.state();
    assert_eq!((tries(&state), state.events.len()), (2, 1));
}

/// As of a container that was refused yesterday, whose report is still there.
#[tokio::test]
async fn refusal_of_the_past_is_no_event() {
    let (machine, running, _kubelet, claim) = started().await;
    refuse_at(
        &machine,
        &claim,
        "pod-a",
        BUNDLE,
        "no address",
        now() - 4000,
    );
    wait(&machine, |s| {
        s.claims["jobs/a"]["status"]["devices"][0]["conditions"][0]["reason"] == "Refused"
    })
    .await;
    running.driver.wake();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(tries(&machine.server.state()), 0);
}

/// Without the permission, or while the server is away or slow: the kubelet gets its answers, the
/// claim its status, and it is tried again.
#[tokio::test]
async fn event_that_is_refused_keeps_nothing_waiting() {
    let refusals = [
        (403, "namespace jobs is being terminated"),
        (404, "namespaces \"jobs\" not found"),
        (422, "invalid"),
        (500, "busy"),
    ];
    for refusal in refusals {
        let (machine, _running, kubelet, claim) = started().await;
        machine.server.state().refuses_events = Some(refusal);
        refuse(&machine, &claim, "pod-a", BUNDLE, "no address");
        wait(&machine, |s| tries(s) == 1).await;
        wait(&machine, |s| {
            s.claims["jobs/a"]["status"]["devices"][0]["conditions"][0]["reason"] == "Refused"
        })
        .await;
        kubelet.one(&claim).await.unwrap();
        kubelet.one(&machine.claim("b", &[1])).await.unwrap();
        machine.server.state().refuses_events = None;
        wait(&machine, |s| s.events.len() == 1).await;
        assert!(tries(&machine.server.state()) >= 2);
        machine.server.state().refuses_events = Some(refusal);
        kubelet.unprepare(&claim).await.unwrap();
    }
}

#[tokio::test]
async fn server_that_is_slow_with_events_delays_no_call() {
    let (machine, _running, kubelet, claim) = started().await;
    machine.server.state().slow_events = Duration::from_secs(12);
    refuse(&machine, &claim, "pod-a", BUNDLE, "no address");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let start = Instant::now();
    kubelet.one(&machine.claim("b", &[1])).await.unwrap();
    kubelet.one(&claim).await.unwrap();
    kubelet.unprepare(&claim).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(machine.server.state().events.len(), 0);
}
