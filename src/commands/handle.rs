//! `rdmaprep handle`: what a process keeps open, for others.

use std::ffi::OsString;

use anyhow::Result;

use crate::cli::HandleOpenArgs;
use crate::kernel::process::{memfd, pidfd_getfd};

const NUMBER: &str = "RDMAPREP_HANDLE_FD";

/// `rdmaprep handle open`. Returns only where it is refused, or the program cannot be run.
pub(super) fn open(args: &HandleOpenArgs) -> Result<()> {
    let (_object, number) =
        memfd::for_program(pidfd_getfd::fetch(&args.handle, args.file.as_deref())?)?;
    let number = OsString::from(number.to_string());
    memfd::become_program(&args.program, Some((NUMBER, &number)))
}
