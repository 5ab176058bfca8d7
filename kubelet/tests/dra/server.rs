//! The API server's side: lists, watches and refusals as Kubernetes 1.36 has them, over HTTP.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rdmaprep_kubelet::dra::api;
use rdmaprep_kubelet::dra::api_server::{Access, ApiServer};
use serde_json::{Value, json};

use crate::{status, valid};

pub const NODE: &str = "node-1";

#[derive(Default)]
pub struct State {
    version: u64,
    pub slices: BTreeMap<String, Value>,
    /// By `NAMESPACE/NAME`.
    pub claims: BTreeMap<String, Value>,
    /// Verbs and paths, in their order.
    pub calls: Vec<String>,
    /// Without the gate DRADeviceTaints: they are dropped.
    pub no_taints: bool,
    /// Answers all calls with that.
    pub refuses: Option<(u16, &'static str)>,
    /// As a proxy may: a watch ends as it begins.
    pub ends_watches: bool,
    pub token: String,
    /// Takes that long for each answer.
    pub slow: Duration,
    /// The same for a claim's status alone.
    pub refuses_status: Option<(u16, &'static str)>,
    pub slow_status: Duration,
    /// By `NAMESPACE/NAME`.
    pub events: BTreeMap<String, Value>,
    /// The same for events alone.
    pub refuses_events: Option<(u16, &'static str)>,
    pub slow_events: Duration,
}

pub struct Server {
    state: Arc<(Mutex<State>, Condvar)>,
    pub url: String,
    folder: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = State {
            token: "first".to_owned(),
            ..State::default()
        };
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        let served = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let state = served.clone();
                std::thread::spawn(move || serve(stream.unwrap(), &state));
            }
        });
        let folder = tempfile::TempDir::new().unwrap();
        let server = Server { state, url, folder };
        server.rotate("first");
        server
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    /// Another token counts from now on.
    pub fn rotate(&self, token: &str) {
        std::fs::write(self.folder.path().join("token"), format!("{token}\n")).unwrap();
        self.state().token = token.to_owned();
    }

    pub fn access(&self) -> Access {
        Access {
            api_server: Some(self.url.clone()),
            token_file: self.folder.path().join("token"),
            ca_file: self.folder.path().join("none"),
        }
    }

    pub fn client(&self) -> Arc<ApiServer> {
        Arc::new(ApiServer::new(&self.access()).unwrap())
    }

    /// A claim that is reserved for that pod, with these devices allocated, and one of another
    /// driver.
    pub fn claim(&self, name: &str, pod: &str, devices: &[String]) -> api::Claim {
        let uid = uid(name);
        let result = |device: &String| {
            let (request, driver) = ("nic", "rdmaprep.io");
            json!({"request": request, "driver": driver, "pool": NODE, "device": device})
        };
        let mut results: Vec<Value> = devices.iter().map(result).collect();
        results.push(
            json!({"request": "gpu", "driver": "gpu.example.com", "pool": "x",
            "device": "gpu-0"}),
        );
        let allocation = json!({"devices": {"results": results}});
        let object = json!({
            "metadata": {"name": name, "namespace": "jobs", "uid": uid},
            "status": {"allocation": allocation, "reservedFor": [reserved(pod)]},
        });
        self.state().claims.insert(format!("jobs/{name}"), object);
        api::Claim {
            namespace: "jobs".to_owned(),
            uid,
            name: name.to_owned(),
        }
    }

    /// As anyone may.
    pub fn change(&self, how: impl FnOnce(&mut BTreeMap<String, Value>)) {
        let mut state = self.state();
        state.version += 1;
        how(&mut state.slices);
        self.state.1.notify_all();
    }

    /// Until that is so.
    pub fn wait(&self, what: impl Fn(&State) -> bool) {
        for _ in 0..1000 {
            if what(&self.state()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let state = self.state();
        panic!("calls: {:#?}, slices: {:#?}", state.calls, state.slices);
    }

    pub fn only_slice(&self) -> Value {
        let state = self.state();
        assert_eq!(state.slices.len(), 1);
        state.slices.values().next().unwrap().clone()
    }
}

fn serve(stream: TcpStream, state: &(Mutex<State>, Condvar)) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace();
        let (verb, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (mut length, mut token, mut kind) = (0, String::new(), String::new());
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim().split_once(": ") else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "authorization" => token = value.to_owned(),
                "content-type" => kind = value.to_owned(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let slow = {
            let state = state.0.lock().unwrap();
            match verb.as_str() {
                "PATCH" => state.slow_status,
                _ if path.starts_with(EVENTS) => state.slow_events,
                _ => state.slow,
            }
        };
        std::thread::sleep(slow);
        let is_watch = path.contains("watch=1");
        let mut locked = state.0.lock().unwrap();
        if !is_watch {
            locked.calls.push(format!("{verb} {path}"));
        }
        let (status, answer) = if token != format!("Bearer {}", locked.token) {
            (401, failure("Unauthorized"))
        } else if let Some((status, why)) = locked.refuses {
            (status, failure(why))
        } else if is_watch {
            let ends = locked.ends_watches;
            drop(locked);
            return watch(&mut stream, state, ends);
        } else if let (Some((status, why)), "PATCH") = (locked.refuses_status, verb.as_str()) {
            (status, failure(why))
        } else if verb == "PATCH" {
            assert_eq!(kind, "application/apply-patch+yaml");
            status::apply(&mut locked.claims, &path, &body)
        } else {
            locked.answer(&verb, &path, serde_json::from_slice(&body).ok())
        };
        state.1.notify_all();
        drop(locked);
        let text = answer.to_string();
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n",
            text.len()
        );
        stream.write_all(format!("{head}{text}").as_bytes()).ok()?;
    }
}

/// A line for each change.
fn watch(stream: &mut TcpStream, state: &(Mutex<State>, Condvar), ends: bool) -> Option<()> {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).ok()?;
    if ends {
        return stream.write_all(b"0\r\n\r\n").ok();
    }
    let mut known = state.0.lock().unwrap().version;
    loop {
        let mut locked = state.0.lock().unwrap();
        while locked.version == known {
            locked = state.1.wait(locked).unwrap();
        }
        known = locked.version;
        drop(locked);
        let line = "{\"type\":\"MODIFIED\",\"object\":{}}\n";
        stream
            .write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
            .ok()?;
    }
}

/// An entry of `reservedFor`.
pub fn reserved(pod: &str) -> Value {
    json!({"resource": "pods", "name": pod, "uid": uid(pod)})
}

pub fn uid(name: &str) -> String {
    let mut hex = String::new();
    name.bytes().for_each(|b| hex.push_str(&format!("{b:02x}")));
    format!("{hex:0>8.8}-0000-4000-8000-{hex:0>12.12}")
}

/// As the server says that an object is not there; of a path that it does not know, it says less.
pub fn not_found(name: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
        "message": format!("resourceclaims.resource.k8s.io \"{name}\" not found"), "code": 404,
        "details": {"name": name, "group": "resource.k8s.io", "kind": "resourceclaims"}})
}

pub fn failure(message: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "message": message})
}

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/";
pub const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/";

impl State {
    fn answer(&mut self, verb: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let missing = || (404, failure(&format!("{path} not found")));
        if verb == "GET" && path == format!("/api/v1/nodes/{NODE}") {
            return (200, json!({"metadata": {"name": NODE, "uid": "node-uid"}}));
        }
        if let Some(rest) = path.strip_prefix(EVENTS) {
            let namespace = rest.strip_suffix("/events").unwrap();
            assert_eq!(verb, "POST");
            return self.create_event(namespace, body.unwrap());
        }
        if let Some(rest) = path.strip_prefix(CLAIMS) {
            let key = rest.replace("/resourceclaims/", "/");
            let claim = self.claims.get(&key).cloned();
            let name = key.rsplit('/').next().unwrap_or_default();
            return claim.map_or_else(|| (404, not_found(name)), |claim| (200, claim));
        }
        let Some(rest) = path.strip_prefix(SLICES) else {
            return missing();
        };
        let name = rest.trim_start_matches('/').to_owned();
        match (verb, body) {
            ("GET", _) => {
                let selector =
                    format!("?fieldSelector=spec.nodeName%3D{NODE}%2Cspec.driver%3Drdmaprep.io");
                assert_eq!(rest, selector, "all slices of the cluster");
                let items: Vec<&Value> = self
                    .slices
                    .values()
                    .filter(|s| s["spec"]["driver"] == "rdmaprep.io")
                    .collect();
                let version = self.version.to_string();
                let list = json!({"metadata": {"resourceVersion": version}, "items": items});
                (200, list)
            }
            ("POST", Some(slice)) => {
                let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
                match self.slices.contains_key(&name) {
                    true => (409, failure(&format!("{name} already exists"))),
                    false => self.store(name, slice),
                }
            }
            ("PUT", Some(slice)) => {
                let Some(there) = self.slices.get(&name) else {
                    return missing();
                };
                let version = |s: &Value| s["metadata"]["resourceVersion"].clone();
                if version(there) != version(&slice) {
                    return (409, failure("the object has been modified"));
                }
                self.store(name, slice)
            }
            ("DELETE", _) => {
                self.version += 1;
                let gone = self.slices.remove(&name);
                gone.map_or_else(missing, |slice| (200, slice))
            }
            _ => (405, failure("no such verb")),
        }
    }

    fn create_event(&mut self, namespace: &str, event: Value) -> (u16, Value) {
        if let Some((status, why)) = self.refuses_events {
            return (status, failure(why));
        }
        if let Err(why) = valid::event(namespace, &event) {
            return (422, failure(&why));
        }
        let key = format!(
            "{namespace}/{}",
            event["metadata"]["name"].as_str().unwrap()
        );
        match self.events.contains_key(&key) {
            true => (409, failure(&format!("{key} already exists"))),
            false => {
                self.events.insert(key, event.clone());
                (201, event)
            }
        }
    }

    fn store(&mut self, name: String, mut slice: Value) -> (u16, Value) {
        if let Err(why) = valid::slice(&slice) {
            return (422, failure(&why));
        }
        for device in slice["spec"]["devices"].as_array_mut().unwrap() {
            let device = device.as_object_mut().unwrap();
            if self.no_taints {
                device.remove("taints");
            }
            for taint in device
                .get_mut("taints")
                .into_iter()
                .flat_map(|t| t.as_array_mut())
            {
                taint
                    .iter_mut()
                    .for_each(|t| t["timeAdded"] = json!("2026-11-27T00:00:00Z"));
            }
        }
        self.version += 1;
        slice["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.slices.insert(name, slice.clone());
        (200, slice)
    }
}
