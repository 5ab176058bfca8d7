use std::io;

use anyhow::{Context, Result};
use netlink_packet_core::{DefaultNla, Emitable};
use nix::libc::ENOENT;

use crate::reply::attributes;
use crate::socket::KernelSocket;

/// include/uapi/linux/netlink.h.
const NETLINK_GENERIC: isize = 16;
/// Bytes of `struct genlmsghdr`.
const GENL_HEADER: usize = 4;
/// include/uapi/linux/genetlink.h.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

pub struct Genl {
    socket: KernelSocket,
    family: u16,
}

impl Genl {
    /// Opens it in the calling thread's namespace; nothing where the kernel has no such family.
    pub fn open(family: &str) -> Result<Option<Genl>> {
        let mut socket =
            KernelSocket::open(NETLINK_GENERIC).context("opening a generic netlink socket")?;
        let name = attribute(CTRL_ATTR_FAMILY_NAME, &[family.as_bytes(), &[0]].concat());
        let answers = match socket.transact(GENL_ID_CTRL, &message(CTRL_CMD_GETFAMILY, &name)) {
            Err(e) if e.raw_os_error() == Some(ENOENT) => return Ok(None),
            answers => answers.with_context(|| format!("asking for netlink family {family}"))?,
        };
        let id = answers
            .iter()
            .flat_map(|a| attributes(a.get(GENL_HEADER..).unwrap_or_default()).flatten());
        let id = id
            .filter(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID)
            .find_map(|(_, v)| v.try_into().ok());
        let family = id
            .map(u16::from_ne_bytes)
            .context("a netlink family without a number")?;
        Ok(Some(Genl { socket, family }))
    }

    pub fn ask(&mut self, command: u8, attributes: &[u8]) -> io::Result<Vec<u8>> {
        let answer = self
            .socket
            .ask(self.family, &message(command, attributes))?;
        Ok(answer.get(GENL_HEADER..).unwrap_or_default().to_vec())
    }

    pub fn list(&mut self, command: u8, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let answers = self
            .socket
            .dump(self.family, &message(command, attributes))?;
        Ok(answers
            .iter()
            .filter_map(|a| Some(a.get(GENL_HEADER..)?.to_vec()))
            .collect())
    }

    pub fn set(&mut self, command: u8, attributes: &[u8]) -> io::Result<()> {
        self.socket
            .transact(self.family, &message(command, attributes))
            .map(drop)
    }
}

fn message(command: u8, attributes: &[u8]) -> Vec<u8> {
    [&[command, 1, 0, 0], attributes].concat()
}

/// An attribute as it lies in a message; its number has NLA_F_NESTED in it where it consists of
/// attributes.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let nla = DefaultNla::new(kind, value.to_vec());
    let mut bytes = vec![0; nla.buffer_len()];
    nla.emit(&mut bytes);
    bytes
}
