use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use rdma_model::error_class::{ErrorClass, WithClass};
use rustix::fs::{CWD, Mode, OFlags, SealFlags, fcntl_get_seals, fstat, fstatfs, openat};
use rustix::io::Errno;
use rustix::process::{PidfdGetfdFlags, getppid, getuid, pidfd_getfd};
use rustix::thread::{CapabilitySet, capabilities};

use super::pidfd::{Process, start_time};
use crate::disk::open::{self as door, Links};
use crate::handle::{Handle, Mark, Standing};
use crate::kernel::boot_id;

/// PID_FS_MAGIC in include/uapi/linux/magic.h.
const PIDFS: u64 = 0x5049_4446;

/// What keeps a file in memory as it is.
const SEALED: SealFlags = SealFlags::WRITE
    .union(SealFlags::GROW)
    .union(SealFlags::SHRINK)
    .union(SealFlags::SEAL);

/// The handle of an object that `process`, this one or a child that inherits it, holds under the
/// number that it has here.
pub fn handle_for(process: &Process, object: impl AsFd) -> Result<Handle> {
    let object = object.as_fd();
    let stat = fstat(object).context("looking at what a handle is for")?;
    let (pid, boot_id) = (process.pid(), boot_id()?);
    let process = mark(process).with_context(|| format!("process {pid} has gone"))?;
    Ok(Handle {
        boot_id,
        pid,
        process,
        fd: object.as_raw_fd(),
        dev: stat.st_dev,
        ino: stat.st_ino,
    })
}

pub fn lives(handle: &Handle) -> bool {
    boot_id().is_ok_and(|boot| boot == handle.boot_id) && holder(handle).is_ok()
}

/// Opens what a handle names, for reading from its beginning: an open file of our own, so that no
/// reader moves another one's place. Where the kernel refuses the descriptor, what we inherited
/// under its number serves, then /proc, then `file`, of which only the name is known.
/// [`ErrorClass::Refused`] names the cause: another boot, a process that has gone or whose pid is
/// another's, another object under that number, one that can be changed, or why the kernel refuses
/// it and what else was tried.
pub fn fetch(handle: &Handle, file: Option<&Path>) -> Result<OwnedFd> {
    if handle.boot_id != boot_id()? {
        return Err(stale("it was made before the last boot"));
    }
    let process = holder(handle)?;
    match pidfd_getfd(&process.pidfd, handle.fd, PidfdGetfdFlags::empty()) {
        Ok(fd) => reopen(&fd, handle),
        Err(Errno::BADF) => Err(stale(format!(
            "process {} has closed descriptor {}",
            handle.pid, handle.fd
        ))),
        Err(Errno::SRCH) => Err(gone(handle)),
        // The last is of Linux before 5.6.
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => climb(handle, &process, file),
        Err(e) => Err(e).class(
            ErrorClass::Refused,
            format!("taking descriptor {} of process {}", handle.fd, handle.pid),
        ),
    }
}

fn stale(why: impl std::fmt::Display) -> anyhow::Error {
    ErrorClass::Refused.error(format!("the handle names nothing any more: {why}"))
}

fn gone(handle: &Handle) -> anyhow::Error {
    stale(format!(
        "process {} has gone, or is of another pid namespace",
        handle.pid
    ))
}

/// What no other process of this boot has. The pid cannot have passed to another one: the one of
/// the pidfd lives still when all is read.
fn mark(process: &Process) -> Option<Mark> {
    let on_pidfs = fstatfs(&process.pidfd).is_ok_and(|fs| fs.f_type as u64 == PIDFS);
    let mark = match on_pidfs {
        true => fstat(&process.pidfd)
            .ok()
            .map(|stat| Mark::Pidfs(stat.st_ino)),
        false => start_time(process.pid()).map(Mark::Started),
    };
    mark.filter(|_| process.alive())
}

fn holder(handle: &Handle) -> Result<Process> {
    let process = match Process::try_open(handle.pid) {
        Ok(process) => process,
        Err(Errno::SRCH | Errno::INVAL) => return Err(gone(handle)),
        Err(e) => {
            return Err(e).class(
                ErrorClass::Refused,
                format!("opening process {}", handle.pid),
            );
        }
    };
    let found = match handle.process {
        Mark::Pidfs(_) => mark(&process),
        Mark::Started(_) => start_time(handle.pid)
            .map(Mark::Started)
            .filter(|_| process.alive()),
    };
    match found {
        Some(found) if found == handle.process => Ok(process),
        Some(_) => Err(stale(format!("pid {} is another process now", handle.pid))),
        None => Err(gone(handle)),
    }
}

/// An open file of our own for the object of `fd`, if it is the one that was meant.
fn reopen(fd: &OwnedFd, handle: &Handle) -> Result<OwnedFd> {
    is_meant(fd, handle)?;
    let fresh = open(
        &format!("/proc/self/fd/{}", fd.as_raw_fd()),
        OFlags::empty(),
    );
    let fresh = fresh.class(
        ErrorClass::Refused,
        format!("opening the object of handle {handle}"),
    )?;
    is_meant(&fresh, handle)?;
    match fcntl_get_seals(&fresh) {
        // Only what is in memory has seals.
        Err(Errno::INVAL) => Ok(fresh),
        Ok(seals) if seals.contains(SEALED) => Ok(fresh),
        Ok(_) => Err(ErrorClass::Refused
            .error("what the handle names is not sealed: its holder can change it")),
        Err(e) => Err(e).class(
            ErrorClass::Refused,
            "reading the seals of what the handle names",
        ),
    }
}

fn is_meant(fd: &OwnedFd, handle: &Handle) -> Result<()> {
    let stat = fstat(fd).class(ErrorClass::Refused, "looking at what the handle names")?;
    if (stat.st_dev, stat.st_ino) == (handle.dev, handle.ino) {
        return Ok(());
    }
    Err(stale(format!(
        "descriptor {} of process {} is another object now",
        handle.fd, handle.pid
    )))
}

fn open(path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    // Whatever it is, nothing is waited for.
    openat(
        CWD,
        path,
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | flags,
        Mode::empty(),
    )
}

/// The ways besides pidfd_getfd, which takes the right to trace a process; /proc wants the lesser
/// one to look at it.
fn climb(handle: &Handle, process: &Process, file: Option<&Path>) -> Result<OwnedFd> {
    let Handle { pid, fd, .. } = handle;
    let mut why = vec![format!(
        "taking descriptor {fd} of process {pid}: {}",
        standing(*pid).cause()
    )];
    let kin = [Some(rustix::process::getpid()), getppid()];
    // It lives: no other process has had the number meanwhile.
    let inherits = kin
        .iter()
        .flatten()
        .any(|kin| kin.as_raw_nonzero().get() == *pid);
    let places = [
        inherits.then(|| format!("/proc/self/fd/{fd}")),
        Some(format!("/proc/{pid}/fd/{fd}")),
    ];
    for place in places.iter().flatten() {
        // Looked at before it is opened: a device may mind.
        let found = open(place, OFlags::PATH).with_context(|| format!("opening {place}"));
        match found.and_then(|found| reopen(&found, handle)) {
            Ok(fd) if process.alive() => return Ok(fd),
            Ok(_) => return Err(gone(handle)),
            Err(e) => why.push(format!("{e:#}")),
        }
    }
    let Some(file) = file else {
        return Err(ErrorClass::Refused.error(why.join("; ")));
    };
    let doing = format!("{}; opening {}", why.join("; "), file.display());
    let opened = door::plain(file, Links::Followed).class(ErrorClass::Refused, doing.clone())?;
    opened
        .map(OwnedFd::from)
        .ok_or_else(|| ErrorClass::Refused.error(format!("{doing}: there is no such file")))
}

fn standing(pid: i32) -> Standing {
    let field = |file: String, name: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        Some(
            text.lines()
                .find_map(|line| line.strip_prefix(name))?
                .trim()
                .to_owned(),
        )
    };
    let uids = field(format!("/proc/{pid}/status"), "Uid:");
    let uids: Option<Vec<u32>> = uids.map(|line| {
        line.split_whitespace()
            .take(3)
            .filter_map(|uid| uid.parse().ok())
            .collect()
    });
    // Of a process that is not dumpable the kernel gives such files to root (task_dump_owner in
    // fs/proc/base.c).
    let owner = std::fs::metadata(format!("/proc/{pid}/environ"))
        .ok()
        .map(|meta| meta.uid());
    let user = uids
        .as_ref()
        .and_then(|uids| uids.get(1))
        .filter(|uid| **uid != 0);
    Standing {
        same_user: uids
            .as_ref()
            .map(|uids| uids.iter().all(|uid| *uid == getuid().as_raw())),
        dumpable: user.zip(owner).map(|(user, owner)| *user == owner),
        capable: capabilities(None)
            .is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_PTRACE)),
        yama: std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
            .ok()
            .and_then(|s| s.trim().parse().ok()),
        filtered: field("/proc/self/status".to_owned(), "Seccomp:").is_some_and(|mode| mode == "2"),
    }
}
