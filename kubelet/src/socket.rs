//! A unix socket that we serve: made, recognised and removed.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use tokio::net::{UnixListener, UnixStream};

const MODE: u32 = 0o600;
/// Calls that wait to be accepted; as the standard library has it.
const BACKLOG: i32 = 128;

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
        let listener = bind(&path).class(ErrorClass::Other, format!("listening at {at}"))?;
        let inode = inode(&path);
        Ok((Socket { path, inode }, listener))
    }

    /// Whether it is still the one that was made.
    pub fn stands(&self) -> bool {
        inode(&self.path) == self.inode
    }
}

/// For root alone, as the kubelet is, whatever the umask: the file never has a wider mode.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Its file gets this mode, less the umask.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(MODE))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(MODE))?;
    rustix::net::listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.stands() {
            // The kubelet may be removing it as well.
            let _ = fs::remove_file(&self.path);
        }
    }
}
