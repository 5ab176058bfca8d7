//! Processes by pidfd: a pid alone may be reused at any time.

use std::ffi::{OsStr, OsString};
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
        Ok(Process {
            pidfd: pidfd_open(valid, PidfdFlags::empty())?,
            pid,
        })
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
    Some(
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .ok()?
            .trim_end()
            .to_owned(),
    )
}

/// `process 12 (cat)`.
pub fn in_words(pid: i32) -> String {
    format!(
        "process {pid} ({})",
        name(pid).unwrap_or_else(|| "?".to_owned())
    )
}

/// The process that started this one; a hook's is its runtime.
pub fn parent() -> Option<i32> {
    Some(rustix::process::getppid()?.as_raw_nonzero().get())
}

/// The parent and when it started, by the pids of /proc: that may be of a pid namespace above ours,
/// as in gVisor's gofer. `None` for an init, which may be that of a namespace that others do not
/// see.
pub fn parent_in_proc() -> Option<(i32, u64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let parent = stat
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()?;
    Some((parent, start_time(parent).filter(|_| parent != 1)?))
}

/// The program that a process executes, whatever the process calls itself, and its arguments.
pub fn command(pid: i32) -> Option<(PathBuf, Vec<OsString>)> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = line
        .strip_suffix(b"\0")
        .unwrap_or(&line)
        .split(|byte| *byte == 0)
        .skip(1);
    Some((
        program,
        words
            .map(|word| OsStr::from_bytes(word).to_owned())
            .collect(),
    ))
}

/// The absolute `--bundle` among a runtime's arguments. crun 1.21 reports `/` as the bundle of a
/// container with a user namespace.
pub fn bundle(args: &[OsString]) -> Option<PathBuf> {
    let mut words = args.iter().map(|word| word.as_bytes());
    let given = words.find_map(|word| match word {
        b"--bundle" | b"-bundle" | b"-b" => Some(None),
        word => word
            .strip_prefix(b"--bundle=")
            .or(word.strip_prefix(b"-bundle="))
            .map(Some),
    })?;
    let path = PathBuf::from(OsStr::from_bytes(given.or_else(|| words.next())?));
    path.is_absolute().then_some(path)
}

/// Field 22 of `/proc/PID/stat`: clock ticks after boot at which the process started. With the pid
/// and the boot id it names a process for good. `None` when there is no such process.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold spaces and brackets; the last ')' ends it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    // A zombie has no namespaces any more; its parent may take its time to reap it.
    fields.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    fields.nth(18)?.parse().ok()
}
