//! The service against a stand-in for the kubelet: a server of Registration, a client of DevicePlugin.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdmaprep_device_plugin::node::{Inventory, Node};
use rdmaprep_device_plugin::pools::Pools;
use rdmaprep_device_plugin::rail::Rail;
use rdmaprep_device_plugin::{api, session};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status, Streaming};

const RESOURCE: &str = "rdmaprep.io/rail";
const SOON: Duration = Duration::from_secs(20);

/// Eight rails and four GPUs on two NUMA nodes, two rails below the switch of each GPU.
#[derive(Default)]
struct Fake(Mutex<BTreeMap<String, Option<String>>>);

impl Fake {
    fn set(&self, rail: &str, unhealthy: Option<&str>) {
        self.0.lock().unwrap().insert(rail.to_owned(), unhealthy.map(str::to_owned));
    }
}

impl Inventory for Fake {
    fn look(&self) -> Result<Vec<Rail>> {
        let set = self.0.lock().unwrap();
        let distance = |rail: usize, gpu: usize| if rail / 2 == gpu { 0 } else { 2 + u8::from(rail / 4 != gpu / 2) };
        let rail = |at: usize| Rail {
            name: format!("rdma{at}"),
            numa: Some((at / 4) as i64),
            speed_gbps: Some(if at < 6 { 400 } else { 200 }),
            addresses: vec![format!("192.0.{}.{at}/24", at / 4).parse().unwrap()],
            distances: (0..4).map(|gpu| distance(at, gpu)).collect(),
            unhealthy: set.get(&format!("rdma{at}")).cloned().flatten(),
        };
        Ok((0..8).map(rail).collect())
    }
}

/// The kubelet's own folder, and what it does there when it starts.
struct Kubelet {
    folder: PathBuf,
    registered: mpsc::UnboundedReceiver<api::RegisterRequest>,
    server: JoinHandle<()>,
    _end: watch::Sender<()>,
}

impl Kubelet {
    fn start(folder: &Path, answer: Result<(), Status>) -> Kubelet {
        for entry in fs::read_dir(folder).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let listener = UnixListener::bind(folder.join(api::KUBELET_SOCKET)).unwrap();
        let (to, registered) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (to, answer) = (to.clone(), answer.clone());
            async move {
                assert_eq!(request.uri().path(), api::REGISTER);
                let register = |asked: api::RegisterRequest| {
                    let _ = to.send(asked);
                    std::future::ready(answer.clone().map(|()| api::Empty {}))
                };
                Ok::<_, Infallible>(api::unary(request, register).await)
            }
        });
        let (end, mut ended) = watch::channel(());
        let server = tokio::spawn(async move {
            let end = async move {
                let _ = ended.changed().await;
            };
            let _ =
                Server::builder().serve_with_incoming_shutdown(service, UnixListenerStream::new(listener), end).await;
        });
        Kubelet { folder: folder.to_owned(), registered, server, _end: end }
    }

    async fn plugin(&mut self) -> (api::RegisterRequest, Channel) {
        let asked = soon(self.registered.recv()).await.unwrap();
        let channel = soon(api::connect(&self.folder.join(&asked.endpoint))).await.unwrap();
        (asked, channel)
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("in time")
}

struct Plugin {
    folder: TempDir,
    fake: Arc<Fake>,
    node: Arc<Node>,
}

fn plugin(pools: &str) -> Plugin {
    let fake = Arc::new(Fake::default());
    let node = Arc::new(Node::new(fake.clone(), Pools::parse(pools).unwrap(), |_| ()).unwrap());
    Plugin { folder: TempDir::new().unwrap(), fake, node }
}

impl Plugin {
    fn run(&self) -> JoinHandle<Result<()>> {
        let (node, folder) = (self.node.clone(), self.folder.path().to_owned());
        tokio::spawn(async move { session::run(&node, &folder).await })
    }

    async fn set(&self, rail: &str, unhealthy: Option<&str>) {
        self.fake.set(rail, unhealthy);
        self.node.refresh().await.unwrap();
    }
}

async fn list(channel: &Channel) -> Streaming<api::Devices> {
    soon(api::call_streaming(channel, api::LIST_AND_WATCH, api::Empty {})).await.unwrap()
}

/// The healthy ones of the next message, and the others.
async fn next(stream: &mut Streaming<api::Devices>) -> (Vec<String>, Vec<String>) {
    let devices = soon(stream.next()).await.unwrap().unwrap().devices;
    let (healthy, others): (Vec<_>, Vec<_>) = devices.into_iter().partition(|d| d.health == api::HEALTHY);
    let ids = |devices: Vec<api::Device>| devices.into_iter().map(|d| d.id).collect();
    (ids(healthy), ids(others))
}

async fn prefer(channel: &Channel, available: &[String], must: &[String], size: i32) -> Vec<String> {
    let asked = api::ContainerPreferredRequest { available: available.to_vec(), must_include: must.to_vec(), size };
    let asked = api::PreferredRequest { containers: vec![asked] };
    let answer: api::PreferredResponse = soon(api::call(channel, api::PREFERRED, asked)).await.unwrap();
    answer.containers.into_iter().flat_map(|c| c.ids).collect()
}

async fn allocate(channel: &Channel, ids: &[String]) -> Result<Vec<String>, Status> {
    let asked = api::AllocateRequest { containers: vec![api::Ids { ids: ids.to_vec() }] };
    let answer: api::AllocateResponse = soon(api::call(channel, api::ALLOCATE, asked)).await?;
    Ok(answer.containers.into_iter().flat_map(|c| c.cdi_devices).map(|d| d.name).collect())
}

fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(|n| format!("rdma{n}")).collect()
}

#[tokio::test]
async fn from_registration_to_cdi_devices() {
    let plugin = plugin("");
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let _run = plugin.run();
    let (asked, channel) = kubelet.plugin().await;
    assert_eq!((asked.version.as_str(), asked.resource_name.as_str()), ("v1beta1", RESOURCE));
    assert_eq!(asked.endpoint, "rdmaprep.io_rail.sock");
    let options: api::Options = soon(api::call(&channel, api::OPTIONS, api::Empty {})).await.unwrap();
    assert_eq!(Some(&options), asked.options.as_ref());
    assert!(options.get_preferred_allocation_available && !options.pre_start_required);

    let mut stream = list(&channel).await;
    let devices = soon(stream.next()).await.unwrap().unwrap().devices;
    let numa: Vec<i64> = devices.iter().map(|d| d.topology.as_ref().unwrap().nodes[0].id).collect();
    assert_eq!(numa, [0, 0, 0, 0, 1, 1, 1, 1]);

    let all = names("0 1 2 3 4 5 6 7");
    let chosen = prefer(&channel, &all, &names("5"), 2).await;
    assert_eq!(chosen, names("5 6"));
    assert_eq!(allocate(&channel, &chosen).await.unwrap(), ["rdmaprep.io/rail=rdma5", "rdmaprep.io/rail=rdma6"]);
    let _: api::Empty = soon(api::call(&channel, api::PRE_START, api::Ids { ids: chosen })).await.unwrap();

    let unknown = soon(api::call::<_, api::Empty>(&channel, "/v1beta1.DevicePlugin/Other", api::Empty {})).await;
    assert_eq!(unknown.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_rail_goes_away_and_comes_back() {
    let plugin = plugin("");
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let _run = plugin.run();
    let (_, channel) = kubelet.plugin().await;
    let mut stream = list(&channel).await;
    assert_eq!(next(&mut stream).await, (names("0 1 2 3 4 5 6 7"), Vec::new()));
    plugin.set("rdma1", Some("no carrier")).await;
    assert_eq!(next(&mut stream).await, (names("0 2 3 4 5 6 7"), names("1")));
    // The event of this one is still on its way: Allocate looks itself.
    plugin.fake.set("rdma2", Some("held by container abc"));
    let refused = allocate(&channel, &names("0 2")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, "rail rdma2: held by container abc"));
    assert_eq!(next(&mut stream).await.1, names("1 2"));
    plugin.set("rdma1", None).await;
    assert_eq!(next(&mut stream).await.1, names("2"));
    assert_eq!(allocate(&channel, &names("1")).await.unwrap(), ["rdmaprep.io/rail=rdma1"]);
    for (ids, why) in [("0 9", "rdma9 is no rail of rdmaprep.io/rail"), ("0 0", "rail rdma0 is named twice")] {
        assert_eq!(allocate(&channel, &names(ids)).await.unwrap_err().message(), why);
    }
    assert_eq!(allocate(&channel, &["all".to_owned()]).await.unwrap_err().code(), Code::NotFound);
    let wrong = api::ContainerPreferredRequest { available: names("0 1"), must_include: names("0 1"), size: 1 };
    let wrong = api::PreferredRequest { containers: vec![wrong] };
    let wrong = soon(api::call::<_, api::PreferredResponse>(&channel, api::PREFERRED, wrong)).await;
    assert_eq!(wrong.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn the_kubelet_starts_late_and_again() {
    let plugin = plugin("");
    let run = plugin.run();
    let own = plugin.folder.path().join(session::socket_name(RESOURCE));
    let begun = Instant::now();
    while !own.exists() {
        assert!(begun.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..3 {
        let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
        // The start of a kubelet may be two events: its last registration counts.
        let (_, channel) = kubelet.plugin().await;
        let mut stream = list(&channel).await;
        assert_eq!(next(&mut stream).await.0.len(), 8);
        kubelet.server.abort();
    }
    // A socket that is left of a kubelet which was killed.
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    kubelet.plugin().await;
    assert!(!run.is_finished());
    run.abort();
    assert!(soon(run).await.unwrap_err().is_cancelled());
    assert!(!own.exists(), "it is removed at the end");
}

#[tokio::test]
async fn several_resources_have_a_socket_each() {
    let pools = "[[resource]]\nname = 'a.example/one'\nnuma = [0]\n[[resource]]\nname = 'a.example/two'\nsubnets = ['192.0.1.0/24']\n";
    let plugin = plugin(pools);
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let _run = plugin.run();
    for (name, rails) in [("a.example/one", "0 1 2 3"), ("a.example/two", "4 5 6 7")] {
        let (asked, channel) = kubelet.plugin().await;
        assert_eq!(asked.resource_name, name);
        assert_eq!(next(&mut list(&channel).await).await.0, names(rails));
        assert_eq!(allocate(&channel, &names("3")).await.is_ok(), name == "a.example/one");
    }
}

#[tokio::test]
async fn a_kubelet_that_says_no_and_a_socket_that_is_served() {
    let plugin = plugin("");
    let _kubelet = Kubelet::start(plugin.folder.path(), Err(Status::unknown("no such version")));
    let e = soon(plugin.run()).await.unwrap().unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Refused);
    assert_eq!(e.to_string(), "the kubelet refuses rdmaprep.io/rail: no such version");

    let own = plugin.folder.path().join(session::socket_name(RESOURCE));
    let other = UnixListener::bind(&own).unwrap();
    let e = soon(plugin.run()).await.unwrap().unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Locked);
    assert_eq!(e.to_string(), format!("another program serves {}: stop that first", own.display()));
    drop(other);
    // Left by a program that was killed; a file is nothing that a program of ours leaves.
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    drop(UnixListener::bind(&own).unwrap());
    let run = plugin.run();
    kubelet.plugin().await;
    run.abort();
    let _ = run.await;
    fs::write(&own, "").unwrap();
    let e = soon(plugin.run()).await.unwrap().unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Refused);
}

/// A kubelet under load: its socket is there, and no notification says when it answers again.
#[tokio::test]
async fn a_kubelet_that_was_too_slow_is_asked_again() {
    let plugin = plugin("");
    let slow = Kubelet::start(plugin.folder.path(), Err(Status::unavailable("it starts")));
    let run = plugin.run();
    let mut registered = slow.registered;
    for _ in 0..2 {
        assert_eq!(soon(registered.recv()).await.unwrap().resource_name, RESOURCE);
    }
    assert!(!run.is_finished());
}

#[tokio::test]
async fn the_kubelets_folder_is_made_again() {
    let plugin = plugin("");
    let folder = plugin.folder.path().to_owned();
    let mut kubelet = Kubelet::start(&folder, Ok(()));
    let run = plugin.run();
    kubelet.plugin().await;
    for _ in 0..2 {
        fs::rename(&folder, folder.with_extension("old")).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::remove_dir_all(folder.with_extension("old")).unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut kubelet = Kubelet::start(&folder, Ok(()));
        let (_, channel) = kubelet.plugin().await;
        assert_eq!(next(&mut list(&channel).await).await.0.len(), 8);
        assert!(!run.is_finished());
    }
}

/// Its ctime changes by that, as by a label of SELinux.
#[tokio::test]
async fn own_socket_with_another_mode_stays_own() {
    let plugin = plugin("");
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let mut run = plugin.run();
    let (asked, channel) = kubelet.plugin().await;
    let own = plugin.folder.path().join(asked.endpoint);
    fs::set_permissions(&own, Permissions::from_mode(0o600)).unwrap();
    // An event, so that it looks at its socket.
    fs::write(plugin.folder.path().join("kubelet_internal_checkpoint"), "").unwrap();
    let ended = timeout(Duration::from_millis(500), &mut run).await;
    assert!(ended.is_err(), "{ended:?}");
    assert!(kubelet.registered.try_recv().is_err(), "it was registered again");
    assert_eq!(next(&mut list(&channel).await).await.0.len(), 8);
}

#[test]
fn pools_that_cannot_be() {
    let one = |name: &str, more: &str| format!("[[resource]]\nname = '{name}'\n{more}\n");
    let cases = [
        (one("a.example/x", "numa = [7]"), ErrorClass::Nothing, "a.example/x fits none of the 8 rails of this node"),
        (
            one("a.example/x", "numa = [0]") + &one("a.example/y", "rails = ['rdma3']"),
            ErrorClass::Usage,
            "a.example/x and a.example/y share the rail rdma3",
        ),
        (
            one("a.example/x", "rails = ['rdma3', 'rdma8']"),
            ErrorClass::Usage,
            "a.example/x lists rdma8, which the CDI file does not have",
        ),
        (one("a.example/x", "speed_gbps = [100]"), ErrorClass::Nothing, "a.example/x fits none of the 8 rails"),
        (one("a.example/x", "") + &one("a.example/x", ""), ErrorClass::Usage, "two resources are named a.example/x"),
        (one("a.example/x", "pkey = 1"), ErrorClass::Usage, "line 3: unknown field `pkey`"),
        ("rails = []".to_owned(), ErrorClass::Usage, "line 1: unknown field `rails`"),
        (one("a.example/x", "subnets = ['192.0.2.0/33']"), ErrorClass::Usage, "line 3: "),
        (one("rail", ""), ErrorClass::Usage, "\"rail\" is no name for a resource: it has to be DOMAIN/NAME"),
        (one("kubernetes.io/rail", ""), ErrorClass::Usage, "\"kubernetes.io/rail\" is no name"),
        (one("a.example/rail-", ""), ErrorClass::Usage, "\"a.example/rail-\" is no name"),
        (one("A.example/rail", ""), ErrorClass::Usage, "\"A.example/rail\" is no name"),
        (one("a.example/b/c", ""), ErrorClass::Usage, "\"a.example/b/c\" is no name"),
    ];
    for (text, class, why) in cases {
        let e = Pools::parse(&text)
            .and_then(|pools| Node::new(Arc::new(Fake::default()), pools, |_| ()))
            .err()
            .expect(&text);
        assert_eq!(ErrorClass::of(&e), class, "{e:#}");
        let said = format!("{e:#}");
        assert!(said.starts_with(why) && !said.contains('\n'), "{said:?} is not {why:?}");
    }
}

/// A rail that is down has no speed and may have no address: it stays in its resource.
#[test]
fn a_rail_stays_in_its_resource() {
    let text = "[[resource]]\nname = 'a.example/x'\nspeed_gbps = [400]\n[[resource]]\nname = 'a.example/y'\nspeed_gbps = [200]\n";
    let mut pools = Pools::parse(text).unwrap();
    let rails = Fake::default().look().unwrap();
    let before = pools.sort(rails.clone()).unwrap();
    let dark: Vec<Rail> = rails.into_iter().map(|r| Rail { speed_gbps: None, ..r }).collect();
    let now = pools.sort(dark).unwrap();
    let names = |shown: &[(String, Vec<Rail>)]| -> Vec<Vec<String>> {
        shown.iter().map(|(_, rails)| rails.iter().map(|r| r.name.clone()).collect()).collect()
    };
    assert_eq!(names(&before), names(&now));
}

/// splitmix64: the same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// A node in the hands of chance.
struct Game {
    dice: Dice,
    plugin: Plugin,
    kubelet: Kubelet,
    channel: Channel,
    stream: Streaming<api::Devices>,
    /// As the kubelet was shown.
    healthy: BTreeSet<String>,
    pods: Vec<Vec<String>>,
    /// Rails that no pod can have, with the reason.
    gone: BTreeMap<String, &'static str>,
    given: usize,
    refused: usize,
}

impl Game {
    fn taken(&self, rail: &String) -> bool {
        self.pods.iter().flatten().any(|r| r == rail)
    }

    /// A rail goes, or comes back. What a pod has is not on the host: nothing else takes it.
    async fn rail_changes(&mut self) {
        let rail = format!("rdma{}", self.dice.below(8));
        let why = ["no carrier", "held by container abc", "not on this host"][self.dice.below(3)];
        if self.taken(&rail) {
            return;
        }
        let back = self.gone.remove(&rail).is_some();
        self.plugin.fake.set(&rail, (!back).then_some(why));
        if !back {
            self.gone.insert(rail, why);
        }
        // Half of the events are late: the kubelet then asks for what it was shown.
        if self.dice.below(2) == 0 {
            self.plugin.node.refresh().await.unwrap();
        }
    }

    async fn kubelet_restarts(&mut self) {
        self.kubelet.server.abort();
        self.kubelet = Kubelet::start(self.plugin.folder.path(), Ok(()));
        self.channel = self.kubelet.plugin().await.1;
        self.stream = list(&self.channel).await;
        self.healthy = next(&mut self.stream).await.0.into_iter().collect();
    }

    /// Healthy ones that no pod has, those of them that are preferred, then Allocate.
    async fn pod_starts(&mut self) {
        while let Ok(Some(shown)) = timeout(Duration::from_millis(1), self.stream.next()).await {
            let shown = shown.unwrap().devices.into_iter();
            self.healthy = shown.filter(|d| d.health == api::HEALTHY).map(|d| d.id).collect();
        }
        let available: Vec<String> = self.healthy.iter().filter(|r| !self.taken(r)).cloned().collect();
        if available.is_empty() {
            return self.pods.clear();
        }
        let size = 1 + self.dice.below(available.len());
        let must = &available[..self.dice.below(size + 1)];
        let chosen = prefer(&self.channel, &available, must, size as i32).await;
        let distinct: BTreeSet<&String> = chosen.iter().collect();
        assert_eq!((chosen.len(), distinct.len()), (size, size), "{chosen:?}");
        assert!(chosen.iter().all(|r| available.contains(r)) && must.iter().all(|r| chosen.contains(r)), "{chosen:?}");
        assert_eq!(chosen, prefer(&self.channel, &available, must, size as i32).await);
        match allocate(&self.channel, &chosen).await {
            Ok(cdi) => {
                assert_eq!(cdi, chosen.iter().map(|r| format!("{RESOURCE}={r}")).collect::<Vec<_>>());
                assert!(!chosen.iter().any(|r| self.gone.contains_key(r) || self.taken(r)), "{chosen:?}");
                self.pods.push(chosen);
                self.given += 1;
            }
            Err(status) => {
                let why = chosen.iter().find_map(|r| Some(format!("rail {r}: {}", self.gone.get(r)?)));
                assert_eq!(Some(status.message()), why.as_deref());
                self.refused += 1;
            }
        }
    }
}

/// 1,000 allocations as the kubelet makes them. Between them rails lose their carrier, containers outside Kubernetes take some, pods
/// end, and the kubelet starts again. The seed is printed, which a failed test shows.
#[tokio::test]
async fn no_rail_is_given_twice() {
    let seed = std::env::var("RDMAPREP_RANDOM_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(21);
    println!("RDMAPREP_RANDOM_SEED={seed}");
    let plugin = plugin("");
    let mut kubelet = Kubelet::start(plugin.folder.path(), Ok(()));
    let run = plugin.run();
    let (_, channel) = kubelet.plugin().await;
    let mut stream = list(&channel).await;
    let healthy = next(&mut stream).await.0.into_iter().collect();
    let (pods, gone) = (Vec::new(), BTreeMap::new());
    let mut game =
        Game { dice: Dice(seed), plugin, kubelet, channel, stream, healthy, pods, gone, given: 0, refused: 0 };
    let mut restarts = 0;
    while game.given < 1000 {
        match game.dice.below(12) {
            0..=2 if !game.pods.is_empty() => {
                let ended = game.dice.below(game.pods.len());
                game.pods.swap_remove(ended);
            }
            3 | 4 => game.rail_changes().await,
            5 if game.dice.below(20) == 0 => {
                game.kubelet_restarts().await;
                restarts += 1;
            }
            _ => game.pod_starts().await,
        }
    }
    println!("{} given, {} refused, {restarts} restarts of the kubelet", game.given, game.refused);
    assert!(game.refused > 10 && restarts > 1, "too tame");
    run.abort();
}
