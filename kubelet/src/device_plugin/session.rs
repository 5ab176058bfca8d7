//! The time of one kubelet: a socket for each resource in its folder, and their registration. When
//! the kubelet starts, it removes all sockets there and makes its own again: then all of this is
//! done again.

use std::error::Error;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};

use crate::device_plugin::api;
use crate::device_plugin::service::{OPTIONS, Service};
use crate::grpc;
use crate::node::Node;
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

/// As long as we listen, no other file gets the inode of our socket. Its ctime changes with its
/// mode or its label.
fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|m| m.ino())
}

struct Endpoint {
    resource: Arc<str>,
    path: PathBuf,
    inode: Option<u64>,
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
            let listener = listen(&path).await?;
            let inode = inode(&path);
            let resource: Arc<str> = resource.as_str().into();
            session.endpoints.push(Endpoint {
                resource: resource.clone(),
                path,
                inode,
            });
            let (service, mut ended) = (
                Service {
                    node: node.clone(),
                    resource,
                    ended: session.ended.subscribe(),
                },
                session.ended.subscribe(),
            );
            let log = node.log;
            tokio::spawn(async move {
                let end = async move {
                    let _ = ended.wait_for(|ended| *ended).await;
                };
                let served = Server::builder().serve_with_incoming_shutdown(
                    service,
                    UnixListenerStream::new(listener),
                    end,
                );
                if let Err(e) = served.await {
                    log(&format!("serving: {e}"));
                }
            });
        }
        Ok(session)
    }

    /// Whether the kubelet's socket and ours are those of the start.
    fn stands(&self) -> bool {
        identity(&self.folder.join(api::KUBELET_SOCKET)) == self.kubelet
            && self.endpoints.iter().all(|e| inode(&e.path) == e.inode)
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
        // While we listen still: see [`inode`].
        for endpoint in self.endpoints.iter().filter(|e| inode(&e.path) == e.inode) {
            // The kubelet may be removing it as well.
            let _ = fs::remove_file(&endpoint.path);
        }
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

/// [`ErrorClass::Locked`]: another program listens there.
async fn listen(path: &Path) -> Result<UnixListener> {
    let at = path.display();
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            return Err(ErrorClass::Refused.error(format!("{at} is no socket: remove it")));
        }
        Ok(_) if UnixStream::connect(path).await.is_ok() => {
            return Err(
                ErrorClass::Locked.error(format!("another program serves {at}: stop that first"))
            );
        }
        Ok(_) => match fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(e).class(ErrorClass::Other, format!("removing {at}"));
            }
            _ => {}
        },
        Err(_) => {}
    }
    UnixListener::bind(path).class(ErrorClass::Other, format!("listening at {at}"))
}
