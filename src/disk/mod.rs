//! Files on the host's disks: reading, locking and replacing them.

use std::path::Path;

pub mod attributes;
pub mod files;
pub mod home_and_hosts;
pub mod host_tree;
pub mod open;
pub mod replace;

/// What is done to a path, in an error's context.
pub fn doing<'a>(what: &'a str, path: &'a Path) -> impl Fn() -> String + Copy + 'a {
    move || format!("{what} {}", path.display())
}
