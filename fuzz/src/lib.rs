//! What the targets share: the cap on memory, requests to fuzz with, and a mutator that knows JSON.

pub mod json;

use std::alloc::System;
use std::sync::atomic::{AtomicUsize, Ordering};

use cap::Cap;
use rdmaprep::cli::{Global, SelectArgs};
use rdmaprep::config::file::ConfigFile;
use rdmaprep::config::host::Host;
use rdmaprep::config::request::Request;

/// What the code under test may hold at once. libFuzzer's own limit counts libFuzzer, too, which
/// takes more than this; its memory is C++'s, so that here every byte is ours. What asks for more
/// ends the program, which libFuzzer calls a crash.
const LIMIT: usize = 64 << 20;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, LIMIT);

/// The most memory that was held so far, as printed last.
static PRINTED: AtomicUsize = AtomicUsize::new(0);

/// Prints the most memory that was held so far, as often as that has grown by a quarter;
/// scripts/fuzz reads it.
pub fn print_heap() {
    let most = HEAP.max_allocated();
    let printed = PRINTED.load(Ordering::Relaxed);
    if most > printed + printed / 4 {
        PRINTED.store(most, Ordering::Relaxed);
        eprintln!("heap: {} KiB", most >> 10);
    }
}

/// What a host with that config file, and nothing else, asks for.
pub fn request(config: &str) -> Option<Request> {
    let config = ConfigFile::new(config).config().ok()?;
    let host = Host::new(&Global::default(), &config);
    Request::new(None, &SelectArgs::default(), host, config.select, |_| None).ok()
}

/// Everything that may be moved, for a host without a policy.
pub fn anything() -> Request {
    request("[select]\nexclude = ''\nfamily = 'any'\nib = true\nfreeze_lifetimes = true")
        .expect("a good config file")
}
