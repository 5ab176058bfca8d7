//! The network namespaces of this machine and the processes in them: where a [`World`] comes from.

use std::path::Path;

use anyhow::Result;

use crate::kernel::World;
use crate::record::{Member, Phase, Record};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin<'a> {
    /// Ours, below the run folder.
    Own(&'a Path),
    /// A name below [`crate::kernel::netns::NAMED`], where runtimes find the namespace.
    Named(&'a Path),
}

/// Who gets NICs: a network namespace, and the process that stands for it. That is a container's
/// init, `rdmaprep hold`, or the CNI plugin. Neither can be confused with a later one: a pid may be
/// reused, and an inode too.
pub trait Recipient {
    fn pid(&self) -> i32;
    fn is_running(&self) -> bool;
    fn netns(&self) -> u64;
    /// Sets its RLIMIT_MEMLOCK to unlimited.
    fn lift_memlock(&self) -> Result<()>;
    fn open(&self) -> Result<Box<dyn World>>;
}

/// The namespaces and processes of a machine. [`crate::kernel::ThisMachine`] is the one that we run
/// on.
pub trait Namespaces {
    /// `/proc/sys/kernel/random/boot_id`: inodes and pids of another boot mean nothing.
    fn boot_id(&self) -> &str;
    /// The folder below which those who manage links have their files: `/`.
    fn root(&self) -> &Path;
    /// Whether this process may enter namespaces and change links; else an error that names the
    /// missing capabilities.
    fn require_capabilities(&self) -> Result<()>;
    /// Inode of this process's own namespace: NICs belong to it.
    fn host_netns(&self) -> Result<u64>;
    /// When a process started, in clock ticks after boot; nothing where no such process runs.
    fn start_time(&self, pid: i32) -> Option<u64>;
    /// A process in the namespace with that inode, other than `but`.
    fn occupant(&self, netns: u64, but: Option<i32>) -> Option<i32>;
    fn recipient(&self, pid: i32) -> Result<Box<dyn Recipient>>;
    /// Opens the host's namespace and, where it still exists, that of a record: by its pin, else
    /// through a member that lives.
    fn open(&self, record: &Record, pin: &Path) -> Result<Box<dyn World>>;
    /// The host's namespace and the one with that inode, where it is pinned at that path and this
    /// process reaches it.
    fn pinned(&self, pin: &Path, netns: u64) -> Result<Option<Box<dyn World>>>;
    /// Every namespace that a process has or `ip netns` keeps, other than those with `known`
    /// inodes: each with the host's, but for the first `passed` ones.
    fn others(
        &self,
        known: &[u64],
        passed: usize,
    ) -> Box<dyn Iterator<Item = Result<Box<dyn World>>>>;
    /// Drops a pin of the namespace with that inode; one that is not there is fine, and so is a
    /// name that is another's by now.
    fn unpin(&self, pin: Pin, netns: u64) -> Result<()>;

    /// Whether the network namespace at that path is the one with that inode, as far as this
    /// process sees: a runtime may have mounted it in a mount namespace of its own, and unlinks the
    /// path when the pod ends.
    fn may_be_netns(&self, path: &Path, netns: u64) -> bool;

    /// Whether a member may still use the NICs of its record. A CNI runtime removes the path when
    /// the pod ends; until all NICs are attached, the plugin itself has to be at work.
    fn is_alive(&self, record: &Record, member: &Member) -> bool {
        match &member.cni {
            Some(cni) if record.phase == Phase::Attached => {
                self.may_be_netns(&cni.netns, record.netns)
            }
            _ => self.start_time(member.pid) == Some(member.start_time),
        }
    }
}
