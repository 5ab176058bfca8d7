//! What NCCL learns from the C library and the user's files: hosts by name, the user's home, its config files.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::{O_CLOEXEC, O_NONBLOCK};
use nix::unistd::{User, getuid};

/// Bytes of a config file that we look at.
const LIMIT: u64 = 1 << 20;

/// The first address of a host, by getaddrinfo as NCCL asks it. It may ask a name server.
pub fn address_of(host: &str) -> Option<IpAddr> {
    (host, 0).to_socket_addrs().ok()?.next().map(|address| address.ip())
}

/// The home that the user database has for this process's user.
pub fn home() -> Option<PathBuf> {
    User::from_uid(getuid()).ok().flatten().map(|user| user.dir)
}

/// A config file, opened as NCCL opens it: links are followed. A FIFO in its place must not make us wait for a writer.
pub fn config(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(O_CLOEXEC | O_NONBLOCK).open(path)?;
    let mut text = Vec::new();
    file.take(LIMIT).read_to_end(&mut text)?;
    Ok(text)
}
