//! The sockets: the driver's, and the one by which the kubelet finds it. Where they are removed, as
//! with the kubelet's folder, they are made again; the kubelet that starts again finds them.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use tokio::sync::watch;

use crate::dra::DRIVER;
use crate::dra::driver::Driver;
use crate::dra::service::Service;
use crate::grpc;
use crate::socket::Socket;
use crate::watch::Wakes;

/// The kubelet's `--root-dir`.
pub const KUBELET_DIR: &str = "/var/lib/kubelet";

/// Returns only with an error.
pub async fn run(driver: &Arc<Driver>, kubelet: &Path) -> Result<()> {
    let own = kubelet.join("plugins").join(DRIVER);
    let registry = kubelet.join("plugins_registry");
    loop {
        let changes = Wakes::of_folders()?;
        for folder in [&own, &registry] {
            let mut made = DirBuilder::new();
            made.recursive(true).mode(0o750);
            made.create(folder)
                .class(ErrorClass::Other, folder.display())?;
            changes.watch(folder)?;
        }
        let end = watch::Sender::new(false);
        let endpoint = own.join("dra.sock");
        let service = Service {
            driver: driver.clone(),
            endpoint: endpoint.display().to_string(),
            ended: end.subscribe(),
        };
        let (end, log) = (Ended(end), driver.node.log);
        // The kubelet calls as soon as it sees the second.
        let (drives, listener) = Socket::listen(endpoint).await?;
        tokio::spawn(grpc::serve(
            listener,
            service.clone(),
            end.0.subscribe(),
            log,
        ));
        let at = registry.join(format!("{DRIVER}-reg.sock"));
        let (registers, listener) = Socket::listen(at).await?;
        tokio::spawn(grpc::serve(listener, service, end.0.subscribe(), log));
        while drives.stands() && registers.stands() {
            changes.next().await?;
        }
        drop((registers, drives, end));
    }
}

/// Servers end with it, also where the program does.
struct Ended(watch::Sender<bool>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}
