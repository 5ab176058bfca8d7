//! `rdmaprep handle`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::handle::Handle;

/// `rdmaprep handle`.
#[derive(Debug, Subcommand)]
pub enum HandleCommand {
    /// Run a program with what a handle names as its descriptor 3, to be read from the beginning
    ///
    /// The number is in RDMAPREP_HANDLE_FD as well: it is the next free one where 3 is taken. Refused where the process
    /// has gone, its pid is another's, or it has another object there by now.
    Open(HandleOpenArgs),
}

/// `rdmaprep handle open`.
#[derive(Debug, Args)]
pub struct HandleOpenArgs {
    /// What `hold` prints and `status --json` shows
    #[arg(value_name = "HANDLE", env = "RDMAPREP_HANDLE")]
    pub handle: Handle,
    /// Open FILE instead, unchecked, where the kernel does not let us have the descriptor. A handle of the past is refused
    /// all the same
    #[arg(long, env = "RDMAPREP_HANDLE_FILE", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, last = true)]
    pub program: Vec<OsString>,
}
