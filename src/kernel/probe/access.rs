//! Whether a device node can be opened, and by which process.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeAccess {
    Opened,
    Missing,
    /// It is no character device, or one with other numbers: what it is, in words.
    Wrong(String),
    /// Opening it failed: the kernel's words.
    Refused(String),
    /// It was opened, by one who may open everything; others may not: its mode, in words.
    Narrow(String),
    /// It is the right one, and was not opened as the container would: why.
    Untried(String),
}

/// Reading and writing, of each of a mode's three parts: what opening a device for RDMA takes.
const READ_WRITE: u32 = 0o6;

impl NodeAccess {
    /// Whether libibverbs passes over its device.
    pub fn is_shut(&self) -> bool {
        matches!(
            self,
            NodeAccess::Missing | NodeAccess::Wrong(_) | NodeAccess::Refused(_)
        )
    }

    /// A node of the host that was opened by root, for everybody else. A group of its own is
    /// intended.
    pub fn for_all(mode: u32, uid: u32, gid: u32) -> NodeAccess {
        let group = gid != 0 && allows(mode >> 3);
        if allows(mode) || group {
            NodeAccess::Opened
        } else {
            NodeAccess::Narrow(owned(mode, uid, gid))
        }
    }
}

/// A process, as far as files ask who it is: by its numbers on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessUser {
    pub uid: u32,
    /// Its groups: its own first.
    pub gids: Vec<u32>,
    /// Whether no mode keeps it out: CAP_DAC_OVERRIDE in the first user namespace.
    pub any: bool,
}

impl ProcessUser {
    /// A node that was opened, for this user: by the first of owner, group and others that it is
    /// (path_resolution(7)).
    pub fn opens(&self, mode: u32, uid: u32, gid: u32) -> NodeAccess {
        let part = match () {
            () if self.uid == uid => mode >> 6,
            () if self.gids.contains(&gid) => mode >> 3,
            () => mode,
        };
        if self.any || allows(part) {
            return NodeAccess::Opened;
        }
        let groups = self
            .gids
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        NodeAccess::Refused(format!(
            "{}, and its init is user {} of group {groups}",
            owned(mode, uid, gid),
            self.uid
        ))
    }
}

fn allows(part: u32) -> bool {
    part & READ_WRITE == READ_WRITE
}

fn owned(mode: u32, uid: u32, gid: u32) -> String {
    format!("mode {:03o} of user {uid} and group {gid}", mode & 0o777)
}

/// `UID:GID,GID,…`, with `!` before it where no mode keeps it out.
impl fmt::Display for ProcessUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gids = self
            .gids
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(",");
        write!(f, "{}{}:{gids}", if self.any { "!" } else { "" }, self.uid)
    }
}

impl FromStr for ProcessUser {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<ProcessUser> {
        let (uid, gids) = text
            .trim_start_matches('!')
            .split_once(':')
            .context("a user is UID:GID,GID,...")?;
        let gids = gids
            .split(',')
            .filter(|gid| !gid.is_empty())
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        Ok(ProcessUser {
            uid: uid.parse()?,
            gids,
            any: text.starts_with('!'),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_for_owner_group_and_others() {
        let user = |uid, gids: &[u32], any| ProcessUser {
            uid,
            gids: gids.to_vec(),
            any,
        };
        let opens = |user: &ProcessUser, mode| user.opens(mode, 0, 44) == NodeAccess::Opened;
        let stranger = user(1000, &[1000], false);
        assert_eq!(
            [0o666, 0o660, 0o600, 0o664].map(|mode| opens(&stranger, mode)),
            [true, false, false, false]
        );
        let member = user(1000, &[1000, 44], false);
        assert_eq!(
            [0o660, 0o606, 0o640].map(|mode| opens(&member, mode)),
            [true, false, false]
        );
        // Root without its capabilities is an owner like others.
        assert_eq!(
            [0o600, 0o066].map(|mode| opens(&user(0, &[0], false), mode)),
            [true, false]
        );
        assert!(opens(&user(1000, &[], true), 0o000));
        let NodeAccess::Refused(why) = member.opens(0o20640, 0, 44) else {
            panic!("opened")
        };
        assert_eq!(
            why,
            "mode 640 of user 0 and group 44, and its init is user 1000 of group 1000, 44"
        );
        for user in [stranger, member, user(0, &[], true)] {
            assert_eq!(user.to_string().parse::<ProcessUser>().unwrap(), user);
        }
        assert!(
            "1000".parse::<ProcessUser>().is_err()
                && "x:1".parse::<ProcessUser>().is_err()
                && "1:x".parse::<ProcessUser>().is_err()
        );
        let narrow = [(0o666, 0), (0o660, 44), (0o660, 0), (0o600, 44)]
            .map(|(m, gid)| NodeAccess::for_all(m, 0, gid));
        assert_eq!(narrow[..2], [NodeAccess::Opened, NodeAccess::Opened]);
        assert_eq!(
            narrow[2],
            NodeAccess::Narrow("mode 660 of user 0 and group 0".to_owned())
        );
        assert_eq!(
            narrow[3],
            NodeAccess::Narrow("mode 600 of user 0 and group 44".to_owned())
        );
    }
}
