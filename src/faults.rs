//! Fault points: where a test can make the program fail, before and after everything that it does
//! to the machine. A debug build has them. What is released has none, and reads no variable for
//! them: `scripts/build` looks for its name in the program.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::{Signal, raise};

/// What happens where: `NUMBER:WAY`, several with commas between. WAY is abort, kill, error,
/// full or hang=MILLISECONDS.
const CHOICE: &str = "RDMAPREP_FAULT";
/// A file that gets a line for each point: its number, what was chosen for it or `-`, and its
/// name.
const PASSED: &str = "RDMAPREP_FAULT_POINTS";

static LAST: AtomicUsize = AtomicUsize::new(0);

pub fn point(what: impl Display) -> Result<()> {
    if cfg!(debug_assertions) {
        pass(&what.to_string())?;
    }
    Ok(())
}

/// Has an effect between two points. Failing at the second one is an effect that was made and yet
/// reported as failed.
pub fn around<T>(what: impl Display, effect: impl FnOnce() -> Result<T>) -> Result<T> {
    point(format_args!("before {what}"))?;
    let done = effect()?;
    point(format_args!("after {what}"))?;
    Ok(done)
}

fn pass(what: &str) -> Result<()> {
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let way = chosen(number);
    tell(number, way.as_deref(), what)?;
    match way.as_deref() {
        None => Ok(()),
        Some("abort") => std::process::abort(),
        Some("kill") => Ok(raise(Signal::SIGKILL)?),
        Some("error") => Err(anyhow!("a test lets this fail: {what}")),
        Some("full") => {
            Err(io::Error::from_raw_os_error(nix::libc::ENOSPC)).with_context(|| what.to_owned())
        }
        Some(way) => {
            let time = way.strip_prefix("hang=").and_then(|ms| ms.parse().ok());
            std::thread::sleep(Duration::from_millis(
                time.with_context(|| format!("{CHOICE}: {way:?}?"))?,
            ));
            Ok(())
        }
    }
}

fn chosen(number: usize) -> Option<String> {
    let all = std::env::var(CHOICE).ok()?;
    let mut pairs = all.split(',').filter_map(|pair| pair.split_once(':'));
    pairs
        .find(|(n, _)| n.parse() == Ok(number))
        .map(|(_, way)| way.to_owned())
}

/// Written before the fault: the list then has the points that no process survives, too.
fn tell(number: usize, way: Option<&str>, what: &str) -> Result<()> {
    let Some(path) = std::env::var_os(PASSED) else {
        return Ok(());
    };
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .context(PASSED)?;
    let line = format!(
        "{number} {} {}\n",
        way.unwrap_or("-"),
        what.replace('\n', " ")
    );
    file.write_all(line.as_bytes()).context(PASSED)
}
