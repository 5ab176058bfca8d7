//! What NCCL learns from the C library and the user's files: hosts by name, the user's home, its
//! config files.

use std::io::Read;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::unistd::{User, getuid};

use crate::disk::open::{self, Links};

const LIMIT: u64 = 1 << 20;

/// The first address of a host, by getaddrinfo as NCCL asks it. It may ask a name server.
pub fn address_of(host: &str) -> Option<IpAddr> {
    (host, 0)
        .to_socket_addrs()
        .ok()?
        .next()
        .map(|address| address.ip())
}

pub fn home_dir() -> Option<PathBuf> {
    User::from_uid(getuid()).ok().flatten().map(|user| user.dir)
}

/// A config file as NCCL opens it: links are followed. What is no plain file is an error: NCCL
/// would wait for it, this does not.
pub fn config(path: &Path) -> Result<Option<Vec<u8>>> {
    let Some(file) = open::plain(path, Links::Followed)? else {
        return Ok(None);
    };
    let mut text = Vec::new();
    file.take(LIMIT).read_to_end(&mut text)?;
    Ok(Some(text))
}
