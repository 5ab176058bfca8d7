//! The kubelet's side, and a node with rails that a test sets.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use rdmaprep_kubelet::device_plugin::{api, session};
use rdmaprep_kubelet::grpc;
use rdmaprep_kubelet::node::{Inventory, Node};
use rdmaprep_kubelet::pools::Pools;
use rdmaprep_kubelet::rail::{Facts, Rail};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::transport::{Channel, Server};
use tonic::{Status, Streaming};

pub const RESOURCE: &str = "rdmaprep.io/rail";
pub const SOON: Duration = Duration::from_secs(20);

/// Eight rails and four GPUs on two NUMA nodes, two rails below the switch of each GPU.
#[derive(Default)]
pub struct Fake {
    unhealthy: Mutex<BTreeMap<String, Option<String>>>,
    speeds: Mutex<BTreeMap<String, Option<u32>>>,
    /// By rail, the claim that is prepared.
    pub claims: Mutex<BTreeMap<String, String>>,
    /// Rails beyond the eight.
    more: usize,
}

impl Fake {
    pub fn set(&self, rail: &str, unhealthy: Option<&str>) {
        self.unhealthy
            .lock()
            .unwrap()
            .insert(rail.to_owned(), unhealthy.map(str::to_owned));
    }

    pub fn set_speed(&self, rail: &str, speed: Option<u32>) {
        self.speeds.lock().unwrap().insert(rail.to_owned(), speed);
    }
}

impl Inventory for Fake {
    fn look(&self) -> Result<Vec<Rail>> {
        let (set, speeds) = (self.unhealthy.lock().unwrap(), self.speeds.lock().unwrap());
        let distance = |rail: usize, gpu: usize| {
            if rail / 2 == gpu {
                0
            } else {
                2 + u8::from(rail / 4 != gpu / 2)
            }
        };
        let rail = |at: usize| Rail {
            name: format!("rdma{at}"),
            numa: Some((at / 4).min(1) as i64),
            speed_gbps: speeds
                .get(&format!("rdma{at}"))
                .copied()
                .unwrap_or(Some(if at < 6 { 400 } else { 200 })),
            addresses: vec![
                format!("192.0.{}.{}/24", at / 4 % 200, at % 200)
                    .parse()
                    .unwrap(),
            ],
            distances: (0..4).map(|gpu| distance(at, gpu)).collect(),
            unhealthy: set.get(&format!("rdma{at}")).cloned().flatten(),
            unreported: false,
            facts: Facts {
                claim: self
                    .claims
                    .lock()
                    .unwrap()
                    .get(&format!("rdma{at}"))
                    .cloned(),
                ..Facts::default()
            },
        };
        Ok((0..8 + self.more).map(rail).collect())
    }
}

/// The kubelet's own folder, and what it does there when it starts.
pub struct Kubelet {
    folder: PathBuf,
    pub registered: mpsc::UnboundedReceiver<api::RegisterRequest>,
    pub server: JoinHandle<()>,
    _end: watch::Sender<()>,
}

impl Kubelet {
    pub fn start(folder: &Path, answer: Result<(), Status>) -> Kubelet {
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
                    std::future::ready(answer.clone().map(|()| grpc::Empty {}))
                };
                Ok::<_, Infallible>(grpc::unary(request, register).await)
            }
        });
        let (end, mut ended) = watch::channel(());
        let server = tokio::spawn(async move {
            let end = async move {
                let _ = ended.changed().await;
            };
            let _ = Server::builder()
                .serve_with_incoming_shutdown(service, UnixListenerStream::new(listener), end)
                .await;
        });
        Kubelet {
            folder: folder.to_owned(),
            registered,
            server,
            _end: end,
        }
    }

    pub async fn plugin(&mut self) -> (api::RegisterRequest, Channel) {
        let asked = soon(self.registered.recv()).await.unwrap();
        let channel = soon(grpc::connect(&self.folder.join(&asked.endpoint)))
            .await
            .unwrap();
        (asked, channel)
    }
}

pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(SOON, what).await.expect("in time")
}

pub struct Plugin {
    pub folder: TempDir,
    pub fake: Arc<Fake>,
    pub node: Arc<Node>,
}

pub fn plugin(pools: &str) -> Plugin {
    plugin_with(pools, 0)
}

pub fn plugin_with(pools: &str, more: usize) -> Plugin {
    let fake = Arc::new(Fake {
        more,
        ..Fake::default()
    });
    let node = Arc::new(Node::new(fake.clone(), Pools::parse(pools).unwrap(), |_| ()).unwrap());
    Plugin {
        folder: TempDir::new().unwrap(),
        fake,
        node,
    }
}

impl Plugin {
    pub fn run(&self) -> JoinHandle<Result<()>> {
        let (node, folder) = (self.node.clone(), self.folder.path().to_owned());
        tokio::spawn(async move { session::run(&node, &folder).await })
    }

    pub async fn set(&self, rail: &str, unhealthy: Option<&str>) {
        self.fake.set(rail, unhealthy);
        self.node.refresh().await.unwrap();
    }
}

pub async fn list(channel: &Channel) -> Streaming<api::Devices> {
    soon(grpc::call_streaming(
        channel,
        api::LIST_AND_WATCH,
        grpc::Empty {},
    ))
    .await
    .unwrap()
}

/// The healthy ones of the next message, and the others.
pub async fn next(stream: &mut Streaming<api::Devices>) -> (Vec<String>, Vec<String>) {
    let devices = soon(stream.next()).await.unwrap().unwrap().devices;
    let (healthy, others): (Vec<_>, Vec<_>) =
        devices.into_iter().partition(|d| d.health == api::HEALTHY);
    let ids = |devices: Vec<api::Device>| devices.into_iter().map(|d| d.id).collect();
    (ids(healthy), ids(others))
}

pub async fn prefer(
    channel: &Channel,
    available: &[String],
    must: &[String],
    size: i32,
) -> Vec<String> {
    let asked = api::ContainerPreferredRequest {
        available: available.to_vec(),
        must_include: must.to_vec(),
        size,
    };
    let asked = api::PreferredRequest {
        containers: vec![asked],
    };
    let answer: api::PreferredResponse = soon(grpc::call(channel, api::PREFERRED, asked))
        .await
        .unwrap();
    answer.containers.into_iter().flat_map(|c| c.ids).collect()
}

pub async fn allocate(channel: &Channel, ids: &[String]) -> Result<Vec<String>, Status> {
    let asked = api::AllocateRequest {
        containers: vec![api::Ids { ids: ids.to_vec() }],
    };
    let answer: api::AllocateResponse = soon(grpc::call(channel, api::ALLOCATE, asked)).await?;
    Ok(answer
        .containers
        .into_iter()
        .flat_map(|c| c.cdi_devices)
        .map(|d| d.name)
        .collect())
}

pub fn names(text: &str) -> Vec<String> {
    text.split_whitespace()
        .map(|n| format!("rdma{n}"))
        .collect()
}
