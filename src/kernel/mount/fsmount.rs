//! Mounts as descriptors: made, copied and put somewhere without naming a path that others could
//! change.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MountFlags, MoveMountFlags,
    OpenTreeFlags, fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, fspick, mount_remount, move_mount, open_tree,
};

use rdma_model::tree::{Node, Tree};

pub const PLAIN: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

pub type Setting<'s> = (&'s str, Option<&'s str>);

pub fn create(
    kind: &str,
    settings: &[Setting<'_>],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in settings {
        match value {
            Some(value) => fsconfig_set_string(&context, *key, *value)?,
            None => fsconfig_set_flag(&context, *key)?,
        }
    }
    fsconfig_create(&context)?;
    Ok(fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

/// A tmpfs in this thread's private namespace, seen through its descriptor alone: it lies over the
/// root, which the thread has entered before. Only an attached mount can be copied or be a layer of
/// an overlay before Linux 6.15. Without a size it may grow to half of the memory.
pub fn tmpfs(
    label: Option<&str>,
    attributes: MountAttrFlags,
    size: Option<&str>,
) -> Result<OwnedFd> {
    let mut settings = vec![("mode", Some("755")), ("source", Some("rdmaprep"))];
    settings.extend(label.map(|label| ("context", Some(label))));
    settings.extend(size.map(|size| ("size", Some(size))));
    let made = create("tmpfs", &settings, attributes).context("making a tmpfs")?;
    let root =
        openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).context("opening /")?;
    attach(&made, &root).context("mounting a tmpfs")?;
    Ok(made)
}

/// Makes a file system read-only for good: unlike a mount, undoing it takes privileges where the
/// file system was made, not where it is mounted.
pub fn freeze(mount: &OwnedFd) -> io::Result<()> {
    let context = fspick(
        mount,
        "",
        FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH,
    )?;
    fsconfig_set_flag(&context, "ro")?;
    Ok(fsconfig_reconfigure(&context)?)
}

/// Makes a mount of this thread's namespace read-only: the mount, not what is mounted there.
pub fn make_readonly(mount: &OwnedFd) -> io::Result<()> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let path = format!("/proc/thread-self/fd/{}", mount.as_raw_fd());
    Ok(mount_remount(
        path,
        MountFlags::BIND | MountFlags::RDONLY | plain,
        "",
    )?)
}

/// A copy of what is mounted at a path below `dir` (`""`: there), without what is mounted on it;
/// itself mounted nowhere.
pub fn copy(dir: impl AsFd, path: &str) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    Ok(open_tree(dir, path, flags)?)
}

/// Puts a mount, with all that is on it, over what is held; one that is mounted elsewhere is moved.
pub fn attach(mount: impl AsFd, over: impl AsFd) -> io::Result<()> {
    let held = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", over, "", held)?)
}

pub fn folder(dir: impl AsFd, name: &str) -> Result<OwnedFd> {
    let doing = || format!("creating folder {name}");
    mkdirat(&dir, name, Mode::from_raw_mode(0o755)).with_context(doing)?;
    openat(
        dir,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .with_context(doing)
}

pub fn file(dir: impl AsFd, name: &str, bytes: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(dir, name, flags, Mode::from_raw_mode(0o444))
        .with_context(|| format!("creating {name}"))?;
    let mut open = std::fs::File::from(made);
    io::Write::write_all(&mut open, bytes).with_context(|| format!("writing {name}"))?;
    Ok(open.into())
}

/// Writes a tree into a directory of ours. Nothing is written through one of the tree's own links.
pub fn plant(dir: &OwnedFd, tree: &Tree) -> Result<()> {
    for (path, node) in tree.iter() {
        let above = path.rsplit_once('/').map(|(above, _)| above);
        let sound = !path.split('/').any(|part| matches!(part, "" | "." | ".."));
        ensure!(
            sound && above.is_none_or(|a| tree.get(a) == Some(&Node::Dir)),
            "{path:?} is in no directory of its tree"
        );
        match node {
            Node::Dir => mkdirat(dir, path, Mode::from_raw_mode(0o755))
                .with_context(|| format!("creating {path}"))?,
            Node::Link(target) => {
                symlinkat(&**target, dir, path).with_context(|| format!("linking {path}"))?
            }
            Node::File(bytes) => drop(file(dir, path, bytes)?),
        }
    }
    Ok(())
}
