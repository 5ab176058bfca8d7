//! Pins: bind mounts that keep a network namespace alive when its container has gone.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rdma_model::error_class::ErrorClass;

use crate::disk::{doing, files, open};
use crate::faults;
use crate::kernel::mount::mountinfo;
use crate::kernel::netns::{NAMED, Netns, processes};

/// How long to wait for another process that is about to share the folder of names.
const MOMENT: Duration = Duration::from_millis(200);

pub fn is_pinned(path: &Path, inode: u64) -> bool {
    Netns::open(path).is_ok_and(|ns| ns.inode() == inode)
}

/// Whether something is at `path` that is no namespace file: what a mount has covered elsewhere, in
/// a mount namespace that this process does not see.
pub fn is_hidden(path: &Path) -> bool {
    path.exists() && Netns::open(path).is_err()
}

/// Where this process reaches the namespace of a pin: at its path, or, if that is hidden, by a
/// process that sees it. A service with mounts of its own has run the hook then.
pub fn place(path: &Path, inode: u64) -> Option<PathBuf> {
    if is_pinned(path, inode) {
        return Some(path.to_owned());
    }
    if !is_hidden(path) {
        return None;
    }
    let name = format!("net:[{inode}]");
    let mut seen: BTreeSet<PathBuf> = fs::read_link("/proc/self/ns/mnt").into_iter().collect();
    // Who may mount in a user namespace of its own may also lay a file over the pin's path.
    let own_user = fs::read_link("/proc/self/ns/user").ok()?;
    for pid in processes() {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let mounts = fs::read_link(process.join("ns/mnt"));
        if !mounts.is_ok_and(|mounts| seen.insert(mounts)) {
            continue;
        }
        let user = fs::read_link(process.join("ns/user"));
        if user.is_ok_and(|user| user != own_user) {
            continue;
        }
        let text = fs::read(process.join("mountinfo")).unwrap_or_default();
        let mut pins = mountinfo::parse(&text).into_iter();
        if !pins.any(|m| m.point == path && mountinfo::root(&text, m.id) == Some(name.as_bytes())) {
            continue;
        }
        let there = process.join("root").join(path.strip_prefix("/").ok()?);
        if is_pinned(&there, inode) {
            return Some(there);
        }
    }
    None
}

/// Binds the namespace onto `path`. Binds stack silently, so an existing one is checked first and
/// never covered.
pub fn pin(ns: &Netns, path: &Path) -> Result<()> {
    if is_pinned(path, ns.inode()) {
        return Ok(());
    }
    ensure!(
        Netns::open(path).is_err(),
        "{} already pins another namespace",
        path.display()
    );
    let doing = doing("pinning the network namespace at", path);
    faults::around(doing(), || {
        open::to_write(path, false)?;
        faults::point(format_args!("while {}", doing()))?;
        let source = format!("/proc/self/fd/{}", ns.raw_fd());
        mount(
            Some(source.as_str()),
            path,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .with_context(doing)
    })
}

/// Drops the pin and its file; one that is not there is fine.
pub fn unpin(path: &Path) -> Result<()> {
    if Netns::open(path).is_ok() {
        faults::around(format_args!("unmounting {}", path.display()), || {
            umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
                .with_context(|| format!("unmounting {}", path.display()))
        })?;
    }
    files::remove(path)
}

/// Whether a namespace may get this path as its name: what exists there may be in use, and is
/// [`ErrorClass::Refused`].
pub fn check_vacant(path: &Path) -> Result<()> {
    ensure!(
        fs::symlink_metadata(path).is_err(),
        ErrorClass::Refused.error(format!(
            "{} exists already: choose another name",
            path.display()
        ))
    );
    Ok(())
}

/// Binds the namespace onto a path where runtimes find it, as `ip netns` would: in other mount
/// namespaces, too. The folder and its mount stay, as those of `ip netns` do.
pub fn publish(ns: &Netns, path: &Path) -> Result<()> {
    let folder = Path::new(NAMED);
    ensure!(
        path.parent() == Some(folder),
        "{} is not in {NAMED}",
        path.display()
    );
    if !folder.exists() {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
        // Whatever our umask.
        made.and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755)))
            .with_context(|| format!("creating {NAMED}"))?;
    }
    faults::around(format_args!("sharing {NAMED}"), || share(folder))?;
    pin(ns, path)
}

fn change(from: Option<&Path>, folder: &Path, how: MsFlags) -> nix::Result<()> {
    let flags = how | MsFlags::MS_REC;
    mount(from, folder, None::<&str>, flags, None::<&str>)
}

/// What is mounted in the folder from now on shows up wherever its mount does: it becomes a shared
/// mount of its own, once, as `ip netns add` makes it (netns_add in iproute2's ip/ipnetns.c),
/// whatever the mount that it is on.
fn share(folder: &Path) -> Result<()> {
    let doing = || format!("making {} a shared mount", folder.display());

    // Two that find it unmounted would both mount it, and names would be under the upper one. Any
    // user can keep that lock: it is not worth more than a moment.
    let turn = files::open_folder(folder).map(|dir| files::lock_file(dir, Instant::now() + MOMENT));
    match change(None, folder, MsFlags::MS_SHARED) {
        // It is no mount yet.
        Err(Errno::EINVAL) => {
            change(Some(folder), folder, MsFlags::MS_BIND).with_context(doing)?;
            change(None, folder, MsFlags::MS_SHARED).with_context(doing)?;
        }
        done => done.with_context(doing)?,
    }
    drop(turn);
    Ok(())
}

/// Undoes [`publish`], whole or cut short; what others have put there since stays.
pub fn withdraw(path: &Path, inode: u64) -> Result<()> {
    let begun = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == 0);
    let ours = is_pinned(path, inode) || begun && Netns::open(path).is_err();
    if ours && path.parent() == Some(Path::new(NAMED)) {
        unpin(path)
    } else {
        Ok(())
    }
}

pub fn names(inode: u64) -> Vec<PathBuf> {
    let all = paths_in(NAMED);
    all.filter(|path| is_pinned(path, inode)).collect()
}

/// The inodes of the namespaces that have a name in a folder.
pub fn named_in(folder: &str) -> impl Iterator<Item = u64> {
    paths_in(folder).filter_map(|path| Some(Netns::open(&path).ok()?.inode()))
}

fn paths_in(folder: &str) -> impl Iterator<Item = PathBuf> {
    let folder = Path::new(folder).to_owned();
    let names = files::list(&folder).unwrap_or_default();
    names.into_iter().map(move |name| folder.join(name))
}
