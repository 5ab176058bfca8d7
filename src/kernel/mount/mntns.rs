//! Mount namespaces: visits to a container's, and a private one to prepare things in; both on a
//! thread that ends there. A mount namespace is entered with file system attributes (root, working
//! directory, umask) of the thread's own: setns(2) wants them unshared, and nothing of a visit can
//! reach the caller's thread.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::thread::Builder;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, umask};
use rustix::mount::{MountPropagationFlags, mount_change};

use super::fsmount;
use crate::kernel::netns::Netns;

#[derive(Debug)]
pub struct Mntns {
    file: File,
    id: (u64, u64),
}

impl Mntns {
    /// The namespace that a process is in. A caller that holds the process's pidfd checks
    /// afterwards that the process has not ended, which proves that the pid was not reused
    /// meanwhile.
    pub fn of_process(pid: i32) -> Result<Mntns> {
        Mntns::open(&format!("/proc/{pid}/ns/mnt"))
    }

    pub fn current() -> Result<Mntns> {
        Mntns::open("/proc/thread-self/ns/mnt")
    }

    fn open(path: &str) -> Result<Mntns> {
        let file = File::open(path).with_context(|| format!("opening mount namespace {path}"))?;
        let meta = file.metadata().with_context(|| format!("reading {path}"))?;
        Ok(Mntns {
            file,
            id: (meta.dev(), meta.ino()),
        })
    }

    pub fn is_same(&self, other: &Mntns) -> bool {
        self.id == other.id
    }

    pub fn visit<T: Send>(&self, visit: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        apart(|| {
            self.enter()?;
            visit()
        })
    }

    /// For a thread that ends there.
    pub fn enter(&self) -> Result<()> {
        unshare(CloneFlags::CLONE_FS).context("leaving the shared working directory")?;
        setns(self.file.as_fd(), CloneFlags::CLONE_NEWNS).context("entering the mount namespace")
    }
}

/// Runs `work` on a new thread in a copy of this mount namespace. What is mounted there is seen
/// nowhere else and ends with the thread, unless it was taken out as a detached mount. What the
/// host mounts and unmounts meanwhile still comes in: the copy must not keep a file system busy.
pub fn workshop<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    apart(|| {
        copy_mounts()?;
        // The thread's own, since a new mount namespace comes with unshared file system attributes.
        umask(Mode::empty());
        work()
    })
}

/// Runs `work` on a new thread in that network namespace, where /sys is one of it and all other
/// mounts are this namespace's.
pub fn with_sys_of<T: Send>(netns: &Netns, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    apart(|| {
        copy_mounts()?;
        netns.enter()?;
        let sys = fsmount::create("sysfs", &[], fsmount::PLAIN).context("making a /sys")?;
        let over = File::open("/sys").context("opening /sys")?;
        fsmount::attach(sys, over).context("mounting a /sys")?;
        work()
    })
}

fn copy_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("making a mount namespace")?;
    let receive_only = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", receive_only).context("closing the mount namespace")
}

/// Runs `work` on a new thread, which ends then.
pub fn apart<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = Builder::new().spawn_scoped(scope, work);
        let thread = thread.context("starting a thread")?;
        thread
            .join()
            .map_err(|_| anyhow!("a thread that was started for it panicked"))?
    })
}
