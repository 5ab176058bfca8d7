use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

use rdma_model::error_class::{ErrorClass, WithClass};

/// Below the usual limit of descriptors (RLIMIT_NOFILE, 1024), above what programs come to.
const HIGH: i32 = 900;

/// A file with that content, which cannot be changed any more and which stays open across `execve`.
pub fn sealed(name: &str, content: &[u8]) -> Result<OwnedFd> {
    let doing = || format!("making {name} in memory");
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    // Demanded where vm.memfd_noexec is 2, unknown to Linux before 6.3.
    let fd = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        made => made,
    };
    let mut file = File::from(fd.with_context(doing)?);
    file.write_all(content).with_context(doing)?;
    let fd = OwnedFd::from(file);
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&fd, seals).with_context(doing)?;
    // A high number, which a program gives to a file of its own last: a program that closes
    // descriptors that it did not open must not close another file instead. This one stays open
    // across `execve`.
    let high = [HIGH, 0]
        .into_iter()
        .find_map(|least| fcntl_dupfd_cloexec(&fd, least).ok())
        .with_context(doing)?;
    fcntl_setfd(&high, FdFlags::empty()).with_context(doing)?;
    Ok(high)
}

pub struct KeptFile {
    name: &'static str,
    fd: OwnedFd,
}

impl KeptFile {
    /// /proc shows it as `memfd:rdmaprep-NAME`.
    pub fn new(name: &'static str, content: &[u8]) -> Result<KeptFile> {
        Ok(KeptFile {
            name,
            fd: sealed(&format!("rdmaprep-{name}"), content)?,
        })
    }

    pub fn name(&self) -> &str {
        self.name
    }
}

impl AsFd for KeptFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The path by which every program that inherits the descriptor opens it.
pub fn path(fd: &OwnedFd) -> OsString {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Gives an open file the lowest number that a program does not use for its input and output, and
/// leaves it open across `execve`.
pub fn for_program(fd: OwnedFd) -> Result<(OwnedFd, i32)> {
    let doing = "making room for a program's descriptor";
    let low = fcntl_dupfd_cloexec(&fd, 3).context(doing)?;
    let fd = if low.as_raw_fd() < fd.as_raw_fd() {
        low
    } else {
        fd
    };
    fcntl_setfd(&fd, FdFlags::empty()).context(doing)?;
    let number = fd.as_raw_fd();
    Ok((fd, number))
}

/// Becomes that program, with one more variable where one is given. It returns only an error,
/// [`ErrorClass::Usage`].
pub fn become_program(command: &[OsString], variable: Option<(&str, &OsStr)>) -> Result<()> {
    let (program, args) = command
        .split_first()
        .context("there is no program to run")?;
    let mut command = Command::new(program);
    let error = command.args(args).envs(variable).exec();
    Err(error).class(
        ErrorClass::Usage,
        format!("running {}", program.to_string_lossy()),
    )
}
