//! Parses, runs, prints one error, exits with its code.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use rdma_model::error_class::ErrorClass;
use rdmaprep::cli::{self, Cli};
use rdmaprep::shim::Call;
use rdmaprep::{commands, report};

fn main() -> ExitCode {
    if let Some(call) = Call::parse(std::env::args_os()) {
        return match commands::runtime(&call) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => fail(&e),
        };
    }
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        // Help and version are no errors: clap prints them and names their code.
        Err(e) => match cli::complaint(&e) {
            Some(text) => return fail(&ErrorClass::Usage.error(text)),
            None => e.exit(),
        },
    };
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(&e),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    // A runtime may have closed stderr; the hook's log has the line as well.
    let _ = writeln!(std::io::stderr(), "rdmaprep: {}", report::error_text(error));
    ExitCode::from(ErrorClass::of(error).code())
}
