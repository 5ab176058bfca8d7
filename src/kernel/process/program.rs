use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::kernel::mount::{mountinfo, rootfs};

pub struct Program {
    pub runs: bool,
    /// Whether it is the program of this process, by whatever name.
    pub is_own: bool,
}

pub fn at(path: &Path) -> io::Result<Program> {
    let own = fs::metadata("/proc/self/exe")?;
    let meta = fs::metadata(path)?;
    let runs = meta.is_file() && meta.permissions().mode() & 0o111 != 0;
    Ok(Program {
        runs,
        is_own: (meta.dev(), meta.ino()) == (own.dev(), own.ino()),
    })
}

/// Whether the program that a process executes is this host's. A container's own is on a mount of
/// its mount namespace, whose number we do not have, or below its root where that is a folder of
/// ours. A container can choose its program's name, and not this.
pub fn is_of_host(pid: i32) -> bool {
    look(pid).unwrap_or(false)
}

fn look(pid: i32) -> io::Result<bool> {
    let exe = format!("/proc/{pid}/exe");
    let program: File = fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::PATH | OFlags::CLOEXEC).bits() as i32)
        .open(&exe)?;
    let mount = rootfs::mount_of(&program)?;
    let is_ours = mountinfo::parse(&fs::read("/proc/thread-self/mountinfo")?)
        .iter()
        .any(|m| m.id == mount);
    let root = fs::read_link(format!("/proc/{pid}/root"))?;
    let is_below = root != Path::new("/") && fs::read_link(&exe)?.starts_with(&root);
    Ok(is_ours && !is_below)
}
