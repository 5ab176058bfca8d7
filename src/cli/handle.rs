use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::handle::Handle;

#[derive(Debug, Subcommand)]
pub enum HandleCommand {
    /// Run a program with the file that a handle names as its descriptor 3
    ///
    /// RDMAPREP_HANDLE_FD has the number: the next free one if 3 is taken. Refused if the process
    /// has ended, if its pid is another's, or if the descriptor is another object now.
    Open(HandleOpenArgs),
}

#[derive(Debug, Args)]
pub struct HandleOpenArgs {
    /// Handle, from `hold` or `status --json`
    #[arg(value_name = "HANDLE", env = "RDMAPREP_HANDLE")]
    pub handle: Handle,
    /// Open FILE if the kernel forbids the descriptor
    // FILE is not checked; a handle whose process has ended is refused all the same.
    #[arg(long, env = "RDMAPREP_HANDLE_FILE", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Program and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    pub program: Vec<OsString>,
}
