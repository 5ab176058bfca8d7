//! A unix socket that we serve: made, recognised and removed.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use tokio::net::{UnixListener, UnixStream};

/// Removes its file when dropped, which has to be before its listener: see [`inode`].
pub struct Socket {
    path: PathBuf,
    inode: Option<u64>,
}

/// As long as we listen, no other file gets the inode of our socket. Its ctime changes with its
/// mode or its label.
fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|m| m.ino())
}

impl Socket {
    /// [`ErrorClass::Locked`]: another program listens there.
    pub async fn listen(path: PathBuf) -> Result<(Socket, UnixListener)> {
        let at = path.display();
        match fs::symlink_metadata(&path) {
            Ok(file) if !file.file_type().is_socket() => {
                return Err(ErrorClass::Refused.error(format!("{at} is no socket: remove it")));
            }
            Ok(_) if UnixStream::connect(&path).await.is_ok() => {
                return Err(ErrorClass::Locked
                    .error(format!("another program serves {at}: stop that first")));
            }
            Ok(_) => match fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(e).class(ErrorClass::Other, format!("removing {at}"));
                }
                _ => {}
            },
            Err(_) => {}
        }
        let listener = UnixListener::bind(&path);
        let listener = listener.class(ErrorClass::Other, format!("listening at {at}"))?;
        let inode = inode(&path);
        Ok((Socket { path, inode }, listener))
    }

    /// Whether it is still the one that was made.
    pub fn stands(&self) -> bool {
        inode(&self.path) == self.inode
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.stands() {
            // The kubelet may be removing it as well.
            let _ = fs::remove_file(&self.path);
        }
    }
}
