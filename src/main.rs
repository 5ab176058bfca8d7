//! Parses, runs, prints one error, exits with its code.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use rdmaprep::cli::Cli;
use rdmaprep::fault::Fault;
use rdmaprep::{flow, report};

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        // Help and version are no errors: clap prints them to stdout and names their code.
        Err(e) => e.exit(),
    };
    match flow::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let line = report::printable(&format!("{e:#}"));
            // A runtime may have closed stderr; the hook's log has the line as well.
            let _ = writeln!(std::io::stderr(), "rdmaprep: {line}");
            ExitCode::from(Fault::of(&e).code())
        }
    }
}
