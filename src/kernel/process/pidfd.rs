//! Processes by pidfd: a pid alone may be reused at any time.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

#[derive(Debug)]
pub struct Process {
    pub(super) pidfd: OwnedFd,
    pid: i32,
}

impl Process {
    pub fn open(pid: i32) -> Result<Process> {
        Process::try_open(pid).with_context(|| format!("opening process {pid}"))
    }

    pub fn current() -> Result<Process> {
        Process::open(rustix::process::getpid().as_raw_nonzero().get())
    }

    pub(super) fn try_open(pid: i32) -> rustix::io::Result<Process> {
        let valid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or(Errno::INVAL)?;
        Ok(Process { pidfd: pidfd_open(valid, PidfdFlags::empty())?, pid })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it has not yet ended: a pidfd becomes readable at exit (pidfd_open(2)).
    pub fn alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
    }
}

pub fn name(pid: i32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// The file name of the program that started this one; a hook's is its runtime.
pub fn parent_program() -> Option<String> {
    let parent = rustix::process::getppid()?.as_raw_nonzero();
    let program = std::fs::read_link(format!("/proc/{parent}/exe")).ok()?;
    Some(program.file_name()?.to_str()?.to_owned())
}

/// The `--bundle` that this program's parent, the runtime, was called with. crun 1.21 reports `/` as the bundle of a container
/// with a user namespace.
pub fn parent_bundle() -> Option<PathBuf> {
    let parent = rustix::process::getppid()?.as_raw_nonzero();
    let line = std::fs::read(format!("/proc/{parent}/cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0);
    let given = words.find_map(|word| match word {
        b"--bundle" | b"-b" => Some(None),
        word => word.strip_prefix(b"--bundle=").map(Some),
    })?;
    let path = PathBuf::from(OsStr::from_bytes(given.or_else(|| words.next())?));
    path.is_absolute().then_some(path)
}

/// Field 22 of `/proc/PID/stat`: clock ticks after boot at which the process started. With the pid and the boot id it names
/// a process for good. `None` when there is no such process.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold spaces and brackets; the last ')' ends it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    // A zombie has no namespaces any more; its parent may take its time to reap it.
    fields.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    fields.nth(18)?.parse().ok()
}
