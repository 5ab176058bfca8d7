//! A file in memory that a program inherits.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::fault::{Fault, WithFault};

/// A file with that content, which nobody can change any more and which stays open across `execve`.
pub fn sealed(name: &str, content: &[u8]) -> Result<OwnedFd> {
    let doing = || format!("making {name} in memory");
    let fd = memfd_create(name, MemfdFlags::ALLOW_SEALING).with_context(doing)?;
    let mut file = File::from(fd);
    file.write_all(content).with_context(doing)?;
    let fd = OwnedFd::from(file);
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&fd, seals).with_context(doing)?;
    Ok(fd)
}

/// The path by which every program that inherits the descriptor opens it.
pub fn path(fd: &OwnedFd) -> OsString {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Becomes that program, with one more variable where one is given.
///
/// # Errors
/// [`Fault::Usage`] where it cannot be run; it does not return else.
pub fn become_program(command: &[OsString], variable: Option<(&str, &OsStr)>) -> Result<()> {
    let (program, args) = command.split_first().context("there is no program to run")?;
    let mut command = Command::new(program);
    let error = command.args(args).envs(variable).exec();
    Err(error).fault(Fault::Usage, format!("running {}", program.to_string_lossy()))
}
