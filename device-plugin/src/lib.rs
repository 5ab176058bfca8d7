//! `rdmaprep-device-plugin`: counts rails for the kubelet, and answers with their CDI devices. The
//! create hook moves the NICs, as for every engine that knows CDI; nothing here changes the host.
//!
//! ```text
//! main                       flags, signals, one error
//! session                    sockets, registration, a kubelet that starts again
//!   watch                    what wakes it: inotify, route netlink, uevents
//! service, preferred         the five calls of kubelet's; which rails belong together
//! node                       rails and their resources, as they are now
//!   pools, host              the config file; the machine, by rdmaprep's library
//!     refusal                what the create hook would say of a rail
//!     rail                   a rail, as all of these know it
//! api                        kubelet's messages
//! ```
#![forbid(unsafe_code)]

pub mod api;
pub mod host;
pub mod node;
pub mod pools;
pub mod preferred;
pub mod rail;
pub mod refusal;
pub mod service;
pub mod session;
pub mod watch;

use std::io::Write;

/// A line for the journal, or for the container's log.
pub fn log(line: &str) {
    // Nothing is left to write to where that fails.
    let _ = writeln!(
        std::io::stderr(),
        "rdmaprep-device-plugin: {}",
        line.replace('\n', " ")
    );
}
