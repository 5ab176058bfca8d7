//! The slice at the API server: what is done to it, and what the server does.

use std::collections::BTreeSet;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdmaprep_kubelet::dra::publish::{Publisher, follow};
use rdmaprep_kubelet::dra::slice::{TAINT, devices, spec};
use rdmaprep_kubelet::rail::Rail;
use serde_json::{Value, json};

use crate::rails::{rail, shown};
use crate::server::{NODE, Server};

struct Running {
    server: Server,
    rails: Arc<Mutex<Vec<Rail>>>,
    wakes: SyncSender<()>,
}

fn wanted(rails: &Mutex<Vec<Rail>>, taints: bool) -> Value {
    let shown = shown(rails.lock().unwrap().clone());
    spec(NODE, &devices(&shown).0, &BTreeSet::new(), taints)
}

/// A publisher of two rails, as the program runs it.
fn running(prepare: impl FnOnce(&Server)) -> Running {
    let server = Server::start();
    prepare(&server);
    let rails = Arc::new(Mutex::new(vec![rail(0), rail(1)]));
    let (wakes, woken) = sync_channel(1);
    let (client, there) = (server.client(), rails.clone());
    std::thread::spawn(move || {
        let wanted = move |taints| wanted(&there, taints);
        Publisher::new(client, NODE, wanted, |_| ()).run(&woken);
    });
    let (client, to) = (server.client(), wakes.clone());
    std::thread::spawn(move || follow(&client, NODE, &to));
    Running {
        server,
        rails,
        wakes,
    }
}

fn has(server: &Server, count: usize) {
    server.wait(|s| {
        let slice = s
            .slices
            .values()
            .find(|s| s["spec"]["driver"] == "rdmaprep.io");
        slice.is_some_and(|s| s["spec"]["devices"].as_array().unwrap().len() == count)
    });
}

impl Running {
    fn change(&self, how: impl FnOnce(&mut Vec<Rail>)) {
        how(&mut self.rails.lock().unwrap());
        let _ = self.wakes.try_send(());
    }
}

#[test]
fn published_with_the_node_as_owner_and_on_each_change() {
    let run = running(|_| ());
    has(&run.server, 2);
    let slice = run.server.only_slice();
    assert_eq!(slice["metadata"]["name"], "rdmaprep-node-1");
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    run.change(|rails| rails.push(rail(2)));
    has(&run.server, 3);
    run.change(|rails| rails[0].unhealthy = Some("no carrier".to_owned()));
    run.server.wait(|s| {
        let taint = &s.slices["rdmaprep-node-1"]["spec"]["devices"][0]["taints"][0];
        taint["key"] == TAINT && taint["value"] == "no-carrier"
    });
}

/// The kubelet does at its start, and after 30 s without us.
#[test]
fn deleted_by_another_it_is_published_again() {
    let run = running(|_| ());
    has(&run.server, 2);
    for _ in 0..2 {
        run.server.change(|slices| slices.clear());
        has(&run.server, 2);
    }
}

#[test]
fn changed_by_another_it_is_made_right_again() {
    let run = running(|_| ());
    has(&run.server, 2);
    run.server.change(|slices| {
        let slice = slices.get_mut("rdmaprep-node-1").unwrap();
        slice["spec"]["devices"].as_array_mut().unwrap().pop();
        slice["metadata"]["resourceVersion"] = json!("other");
    });
    has(&run.server, 2);
}

/// What is right is not written again, also where the server adds times to taints.
#[test]
fn nothing_is_written_without_a_change() {
    let run = running(|_| ());
    run.change(|rails| rails[0].unhealthy = Some("no carrier".to_owned()));
    has(&run.server, 2);
    std::thread::sleep(Duration::from_millis(1500));
    let writes = |server: &Server| {
        let state = server.state();
        state.calls.iter().filter(|c| !c.starts_with("GET")).count()
    };
    let before = writes(&run.server);
    for _ in 0..5 {
        let _ = run.wakes.send(());
        std::thread::sleep(Duration::from_millis(150));
    }
    assert_eq!(writes(&run.server), before);
}

#[test]
fn server_without_taints_gets_healthy_rails_alone() {
    let run = running(|server| server.state().no_taints = true);
    has(&run.server, 2);
    run.change(|rails| rails[0].unhealthy = Some("no carrier".to_owned()));
    has(&run.server, 1);
    run.change(|rails| rails[0].unhealthy = None);
    has(&run.server, 2);
}

/// Of another version of this program; those of other drivers stay.
#[test]
fn our_other_slices_of_the_node_go_others_stay() {
    let slice = |name: &str, driver: &str| {
        let spec = json!({"driver": driver, "nodeName": NODE, "devices": []});
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let run = running(|server| {
        server.change(|slices| {
            slices.insert("old".to_owned(), slice("old", "rdmaprep.io"));
            slices.insert("gpus".to_owned(), slice("gpus", "gpu.example.com"));
        });
    });
    run.server.wait(|s| {
        let names: Vec<&String> = s.slices.keys().collect();
        names == ["gpus", "rdmaprep-node-1"]
    });
}

#[test]
fn errors_are_tried_again_and_tokens_read_again() {
    let run = running(|server| server.state().refuses = Some((403, "not allowed")));
    run.server.wait(|s| s.calls.len() > 1);
    run.server.state().refuses = None;
    has(&run.server, 2);
    run.server.rotate("second");
    run.change(|rails| drop(rails.pop()));
    has(&run.server, 1);
}

/// A slice that another driver has under our name is not ours to change.
#[test]
fn slice_of_our_name_that_is_not_ours_stays() {
    let server = Server::start();
    let foreign =
        json!({"metadata": {"name": "rdmaprep-node-1"}, "spec": {"driver": "gpu.example.com"}});
    server.change(|slices| drop(slices.insert("rdmaprep-node-1".to_owned(), foreign.clone())));
    let rails = Mutex::new(vec![rail(0)]);
    let mut publisher = Publisher::new(server.client(), NODE, |t| wanted(&rails, t), |_| ());
    let why = publisher.step().unwrap_err().to_string();
    assert!(why.contains("already exists (409)"), "{why}");
    assert_eq!(server.only_slice(), foreign);
}

#[test]
fn watch_that_ends_at_once_is_begun_again_after_a_pause() {
    let running = running(|server| server.state().ends_watches = true);
    has(&running.server, 2);
    let began = Instant::now();
    let before = lists(&running.server);
    std::thread::sleep(Duration::from_secs(3));
    let more = lists(&running.server) - before;
    // Each second the watcher lists once, and so does the publisher that it wakes.
    let most = 4 * began.elapsed().as_secs() as usize + 8;
    assert!(more <= most, "{more} lists, at most {most}");
}

fn lists(server: &Server) -> usize {
    let state = server.state();
    let lists = state
        .calls
        .iter()
        .filter(|c| c.starts_with("GET") && c.contains('?'));
    lists.count()
}
