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
            Err(e) => fail(&e, false),
        };
    }
    if let Some(columns) = columns() {
        report::fit(columns);
    }
    let is_json = asks_for_json();
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        // Help and version are no errors: clap prints them and names their code.
        Err(e) => match cli::complaint(&e) {
            Some(text) => return fail(&ErrorClass::Usage.error(text), is_json),
            None => e.exit(),
        },
    };
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(&e, is_json),
    }
}

/// Of the terminal that stdout is, if it is one that says so: a serial console may say 0.
fn columns() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col)
}

fn fail(error: &anyhow::Error, is_json: bool) -> ExitCode {
    if is_json && !commands::has_said() {
        let _ = report::json_error(error).and_then(|text| commands::say(&text));
    }
    // A runtime may have closed stderr; the hook's log has the line as well.
    let _ = writeln!(std::io::stderr(), "rdmaprep: {}", report::error_text(error));
    ExitCode::from(ErrorClass::of(error).code())
}

/// Whatever else is wrong with the command line. What a runtime or a program behind `--`
/// gets is not ours.
fn asks_for_json() -> bool {
    let mut own = std::env::args_os().take_while(|arg| arg != "--" && arg != "runtime");
    own.any(|arg| arg == "--json")
}
