//! A cluster around one node, as a shell says: for the guest, where claims meet a container runtime
//! (tests/vm/claims.sh). The API server and the kubelet's calls are those of the other tests here.

use std::collections::BTreeMap;
use std::fs;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rdmaprep_kubelet::dra::api;
use rdmaprep_kubelet::dra::session::KUBELET_DIR;
use serde_json::{Value, json};

use crate::kubelet;
use crate::server::{NODE, Server, reserved, uid};

struct Cluster {
    server: Server,
    /// Also those that the API server has no more: the kubelet still knows them.
    claims: Mutex<BTreeMap<String, api::Claim>>,
}

/// Reads a command from each line of stdin, a word of the caller's before it. The answer, `ok` with
/// what was asked for or `error` and why, is then in `$RDMAPREP_CLUSTER/WORD`: a call that takes
/// long keeps no other one waiting. `flags` there is what the driver is to be started with.
#[tokio::test]
#[ignore = "needs the guest"]
async fn cluster_of_a_shell() {
    let folder = PathBuf::from(std::env::var("RDMAPREP_CLUSTER").unwrap());
    let cluster = Arc::new(Cluster {
        server: Server::start(),
        claims: Mutex::default(),
    });
    let access = cluster.server.access();
    let (url, token) = (&cluster.server.url, access.token_file.display());
    let flags = format!("--api-server {url} --token-file {token} --node {NODE}");
    put(&folder.join("flags"), &flags);
    let (lines, mut read) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock().lines().map_while(Result::ok);
        stdin.all(|line| lines.send(line).is_ok())
    });
    while let Some(line) = read.recv().await {
        let (cluster, folder) = (cluster.clone(), folder.clone());
        tokio::spawn(async move {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let to = folder.join(&words[0]);
            // A call that the driver's end has cut short panics.
            let answer = tokio::spawn(async move { cluster.answer(&words[1..]).await }).await;
            match answer {
                Ok(Ok(said)) => put(&to, format!("ok {}", said.join(" ")).trim_end()),
                Ok(Err(why)) => put(&to, &format!("error {why}")),
                Err(_) => put(&to, "error no answer"),
            }
        });
    }
}

/// Whole, or not there.
fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, format!("{text}\n")).unwrap();
    fs::rename(new, path).unwrap();
}

impl Cluster {
    async fn answer(&self, words: &[String]) -> Result<Vec<String>, String> {
        let (verb, rest) = words.split_first().expect("a command");
        match (verb.as_str(), rest) {
            // Its UID, and the pod's.
            ("claim", [name, pod, devices @ ..]) => {
                let claim = self.server.claim(name, pod, devices);
                let said = vec![claim.uid.clone(), uid(pod)];
                self.claims.lock().unwrap().insert(name.clone(), claim);
                Ok(said)
            }
            ("reserve", [name, pods @ ..]) => {
                let pods: Vec<Value> = pods.iter().map(|pod| reserved(pod)).collect();
                let mut state = self.server.state();
                let claim = state.claims.get_mut(&format!("jobs/{name}")).unwrap();
                claim["status"]["reservedFor"] = json!(pods);
                Ok(Vec::new())
            }
            ("delete", [name]) => {
                let gone = self.server.state().claims.remove(&format!("jobs/{name}"));
                gone.map(|_| Vec::new()).ok_or(format!("no claim {name}"))
            }
            // The CDI devices of all of them, or the first error.
            ("prepare", names) => {
                let claims = self.known(names);
                let all: Vec<&api::Claim> = claims.iter().collect();
                let mut answers = self.kubelet().await.prepare(&all).await;
                let of = |claim: &api::Claim| answers.remove(&claim.uid).unwrap();
                let ids: Result<Vec<Vec<String>>, String> = claims.iter().map(of).collect();
                ids.map(|ids| ids.concat())
            }
            ("unprepare", names) => {
                for claim in self.known(names) {
                    self.kubelet().await.unprepare(&claim).await?;
                }
                Ok(Vec::new())
            }
            // DEVICE=REASON of each condition that the driver has written.
            ("status", [name]) => {
                let state = self.server.state();
                let claim = state.claims.get(&format!("jobs/{name}"));
                let claim = claim.ok_or(format!("no claim {name}"))?;
                let devices = claim["status"]["devices"].as_array().into_iter().flatten();
                Ok(devices.map(condition).collect())
            }
            _ => panic!("no such command: {words:?}"),
        }
    }

    fn known(&self, names: &[String]) -> Vec<api::Claim> {
        let claims = self.claims.lock().unwrap();
        names.iter().map(|name| claims[name].clone()).collect()
    }

    /// As it is after a start of its own: it finds the driver by its socket. One that takes more
    /// than a second to say who it is, is asked again.
    async fn kubelet(&self) -> kubelet::Kubelet {
        for _ in 0..10 {
            let found = tokio::spawn(kubelet::find(Path::new(KUBELET_DIR))).await;
            if let Ok(kubelet) = found {
                return kubelet;
            }
        }
        panic!("no driver");
    }
}

fn condition(device: &Value) -> String {
    let name = device["device"].as_str().unwrap();
    let reason = device["conditions"][0]["reason"].as_str().unwrap();
    format!("{name}={reason}")
}
