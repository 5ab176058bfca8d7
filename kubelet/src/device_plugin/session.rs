//! The time of one kubelet: a socket for each resource in its folder, and their registration. When
//! the kubelet starts, it removes all sockets there and makes its own again: then all of this is
//! done again.

use std::error::Error;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::device_plugin::api;
use crate::device_plugin::service::{OPTIONS, Service};
use crate::grpc;
use crate::node::Node;
use crate::socket::Socket;
use crate::watch::Wakes;

/// A socket is there before its program listens, and stays where that was killed: tried this often.
const TRIES: usize = 25;
const BETWEEN: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(10);
/// Until a kubelet that has a socket and did not answer is asked again: no notification says that
/// it answers.
const AGAIN: Duration = Duration::from_secs(5);

/// Which file the kubelet's is: when it starts again, its socket may get the same inode.
type Identity = (u64, i64, i64);

fn identity(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path)
        .ok()
        .map(|m| (m.ino(), m.ctime(), m.ctime_nsec()))
}

struct Endpoint {
    resource: Arc<str>,
    socket: Socket,
}

struct Session {
    folder: PathBuf,
    kubelet: Option<Identity>,
    endpoints: Vec<Endpoint>,
    ended: watch::Sender<bool>,
}

/// Serves the node's resources, for one kubelet after the other; returns only with an error.
pub async fn run(node: &Arc<Node>, folder: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(folder)
        .class(ErrorClass::Other, folder.display())?;
    let mut said_so = false;
    loop {
        // Again for each session: the folder may be another one. First, so that it reports what
        // changes from here on.
        let changes = Wakes::of_folders()?;
        changes.watch(folder)?;
        let session = Session::open(node, folder).await?;
        let mut waits = true;
        while session.stands() {
            if waits {
                match session.register().await? {
                    None => {
                        let names: Vec<&str> =
                            session.endpoints.iter().map(|e| &*e.resource).collect();
                        (node.log)(&format!("the kubelet has registered {}", names.join(", ")));
                        (waits, said_so) = (false, false);
                    }
                    Some(why) if !said_so => {
                        (node.log)(&format!("waiting for the kubelet: {why}"));
                        said_so = true;
                    }
                    Some(_) => {}
                }
            }
            match waits && session.kubelet.is_some() {
                true => timeout(AGAIN, changes.next()).await.unwrap_or(Ok(()))?,
                false => changes.next().await?,
            }
        }
        ensure!(
            folder.is_dir(),
            ErrorClass::Other.error(format!("{} was removed", folder.display()))
        );
    }
}

impl Session {
    async fn open(node: &Arc<Node>, folder: &Path) -> Result<Session> {
        let kubelet = identity(&folder.join(api::KUBELET_SOCKET));
        let mut session = Session {
            folder: folder.to_owned(),
            kubelet,
            endpoints: Vec::new(),
            ended: watch::Sender::new(false),
        };
        for (resource, _) in node.shown().iter() {
            let path = folder.join(socket_name(resource));
            let (socket, listener) = Socket::listen(path).await?;
            let resource: Arc<str> = resource.as_str().into();
            session.endpoints.push(Endpoint {
                resource: resource.clone(),
                socket,
            });
            let service = Service {
                node: node.clone(),
                resource,
                ended: session.ended.subscribe(),
            };
            let ended = session.ended.subscribe();
            tokio::spawn(grpc::serve(listener, service, ended, node.log));
        }
        Ok(session)
    }

    /// Whether the kubelet's socket and ours are those of the start.
    fn stands(&self) -> bool {
        identity(&self.folder.join(api::KUBELET_SOCKET)) == self.kubelet
            && self.endpoints.iter().all(|e| e.socket.stands())
    }

    /// Why there is no kubelet now. [`ErrorClass::Refused`]: there is one, and it says no.
    async fn register(&self) -> Result<Option<String>> {
        let channel = match self.connect().await {
            Ok(channel) => channel,
            Err(why) => return Ok(Some(why)),
        };
        for endpoint in &self.endpoints {
            let request = api::RegisterRequest {
                version: api::VERSION.to_owned(),
                endpoint: socket_name(&endpoint.resource),
                resource_name: endpoint.resource.to_string(),
                options: Some(OPTIONS),
            };
            let answer: Result<Result<grpc::Empty, Status>, _> =
                timeout(PATIENCE, grpc::call(&channel, api::REGISTER, request)).await;
            match answer {
                Ok(Ok(_)) => {}
                Err(_) => return Ok(Some("it does not answer".to_owned())),
                Ok(Err(status)) if is_away(&status) => {
                    return Ok(Some(status.message().to_owned()));
                }
                Ok(Err(status)) => {
                    let said = status.message();
                    return Err(ErrorClass::Refused
                        .error(format!("the kubelet refuses {}: {said}", endpoint.resource)));
                }
            }
        }
        Ok(None)
    }

    async fn connect(&self) -> Result<Channel, String> {
        let path = self.folder.join(api::KUBELET_SOCKET);
        let mut why = String::new();
        for _ in 0..TRIES {
            if identity(&path).is_none() {
                return Err(format!("there is no {}", path.display()));
            }
            match timeout(PATIENCE, grpc::connect(&path)).await {
                Ok(Ok(channel)) => return Ok(channel),
                Ok(Err(_)) => why = format!("{} is not served", path.display()),
                Err(_) => return Err(format!("{} does not answer", path.display())),
            }
            sleep(BETWEEN).await;
        }
        Err(why)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Their files go while we listen still.
        self.endpoints.clear();
        self.ended.send_replace(true);
    }
}

/// Whether the call did not reach a kubelet, or its answer did not come back.
fn is_away(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Cancelled) || status.source().is_some()
}

/// `rdmaprep.io_rail.sock`.
pub fn socket_name(resource: &str) -> String {
    format!("{}.sock", resource.replace('/', "_"))
}
