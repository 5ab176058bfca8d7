//! Paths in a container's root, which is untrusted. A path is resolved by openat2(2) as if the
//! container's root were the root, so that neither a link nor `..` leads out, not even while
//! directories are exchanged for links. What is found is held by an O_PATH descriptor, which opens
//! nothing; only a regular file of an ordinary file system, and a directory of device nodes, is
//! opened through it, for reading.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nix::sys::statfs::{
    BPF_FS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, FsType, PROC_SUPER_MAGIC,
    SECURITYFS_MAGIC, SELINUX_MAGIC, SYSFS_MAGIC, TRACEFS_MAGIC, fstatfs,
};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, fstat, openat,
    openat2, readlinkat, statat, statx,
};
use rustix::io::Errno;

use crate::kernel::mount::mountinfo::{self, Mount};

/// File systems whose files are made by the kernel: opening or reading one may do something, block,
/// or reveal what its mode does not guard.
const TALKING: [FsType; 9] = [
    PROC_SUPER_MAGIC,
    SYSFS_MAGIC,
    DEBUGFS_MAGIC,
    TRACEFS_MAGIC,
    SECURITYFS_MAGIC,
    SELINUX_MAGIC,
    CGROUP_SUPER_MAGIC,
    CGROUP2_SUPER_MAGIC,
    BPF_FS_MAGIC,
];

/// How often a path is looked up again when renames elsewhere disturb the kernel's look-up of `..`.
const ATTEMPTS: usize = 128;

/// Names that are read of a directory; whatever has more is no directory of device nodes or
/// libraries.
const NAMES: usize = 4096;

const HOLD: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A container's root, seen by the thread that opened it.
#[derive(Debug)]
pub struct Root {
    top: OwnedFd,
    own: OwnedFd,
}

impl Root {
    /// The path itself is the runtime's and is trusted.
    pub fn open(path: &Path) -> Result<Root> {
        let dir = HOLD | OFlags::DIRECTORY;
        let top = openat(CWD, path, dir, Mode::empty())
            .with_context(|| format!("opening {}", path.display()))?;
        let own = openat(CWD, "/proc/thread-self", dir, Mode::empty())
            .context("opening /proc/thread-self")?;
        ensure!(is_on(&own, PROC_SUPER_MAGIC), "/proc is no procfs");
        Ok(Root { top, own })
    }

    pub fn find(&self, path: &str) -> io::Result<OwnedFd> {
        resolve(self.top.as_fd(), path.as_ref(), HOLD, ResolveFlags::IN_ROOT)
    }

    /// Where a path ends, not following a link in its last part.
    pub fn find_itself(&self, path: &str) -> io::Result<OwnedFd> {
        resolve(
            self.top.as_fd(),
            path.as_ref(),
            HOLD | OFlags::NOFOLLOW,
            ResolveFlags::IN_ROOT,
        )
    }

    /// Opens a regular file that [`Root::find`] found, for reading; `Err` says in a clause why not.
    pub fn open_file(&self, found: &OwnedFd) -> Result<File, String> {
        let stat = fstat(found).map_err(|e| e.to_string())?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Err(format!("it is {}", called(kind)));
        }
        if is_talking(found) {
            return Err("it is a file of the kernel's".into());
        }
        // NONBLOCK: a lease on the file must not make us wait for its holder.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = openat(&self.own, self.link(found.as_fd()), flags, Mode::empty());
        opened
            .map(File::from)
            .map_err(|e| format!("opening it: {e}"))
    }

    /// Opens a character device that [`Root::find`] found, for reading and writing, if it has this
    /// number. Where it has another one, nothing is opened, and `Ok` says in words what it is;
    /// `Err`: the kernel refused.
    pub fn open_device(
        &self,
        found: &OwnedFd,
        number: (u32, u32),
    ) -> io::Result<Result<File, String>> {
        let stat = fstat(found)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let (major, minor) = (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        );
        match kind {
            FileType::CharacterDevice if (major, minor) == number => {}
            FileType::CharacterDevice => {
                let (wanted, there) = (
                    format!("{}:{}", number.0, number.1),
                    format!("{major}:{minor}"),
                );
                return Ok(Err(format!("the device {there}, not {wanted}")));
            }
            FileType::RegularFile => return Ok(Err("a regular file".to_owned())),
            kind => return Ok(Err(called(kind).to_owned())),
        }
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(Ok(openat(
            &self.own,
            self.link(found.as_fd()),
            flags,
            Mode::empty(),
        )?
        .into()))
    }

    pub fn mounts(&self) -> Result<Vec<Mount>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file =
            openat(&self.own, "mountinfo", flags, Mode::empty()).context("opening mountinfo")?;
        let mut text = Vec::new();
        File::from(file)
            .read_to_end(&mut text)
            .context("reading mountinfo")?;
        Ok(mountinfo::parse(&text))
    }

    /// Where something found is, seen from this thread's root: as mountinfo spells it.
    pub fn path_of(&self, found: BorrowedFd<'_>) -> Result<PathBuf> {
        let path =
            readlinkat(&self.own, self.link(found), Vec::new()).context("asking for a path")?;
        Ok(PathBuf::from(std::ffi::OsStr::from_bytes(path.as_bytes())))
    }

    fn link(&self, found: BorrowedFd<'_>) -> String {
        format!("fd/{}", found.as_raw_fd())
    }
}

/// All of a file, unless it has more than `limit` bytes; `Err` says so in a clause.
pub fn read(file: &File, limit: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("reading it: {e}"))?;
    if bytes.len() as u64 > limit {
        Err(format!("it is larger than {limit} bytes"))
    } else {
        Ok(bytes)
    }
}

/// Where a path below a directory ends, as long as no link and no `..` is on the way.
pub fn find_below(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    resolve(
        dir,
        path,
        HOLD | OFlags::NOFOLLOW,
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
    )
}

fn resolve(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    how: ResolveFlags,
) -> io::Result<OwnedFd> {
    for _ in 0..ATTEMPTS {
        match openat2(
            dir,
            path,
            flags,
            Mode::empty(),
            how | ResolveFlags::NO_MAGICLINKS,
        ) {
            // openat2(2): a rename or mount elsewhere came between; the caller is to try again.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// What something is; nothing is opened for it.
pub fn stat_of(found: impl AsFd) -> io::Result<Stat> {
    Ok(fstat(found)?)
}

/// The number of the mount that something is on, as in mountinfo.
pub fn mount_of(found: impl AsFd) -> io::Result<u64> {
    Ok(statx(found, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

pub fn is_sysfs(found: impl AsFd) -> bool {
    is_on(found, SYSFS_MAGIC)
}

pub fn is_talking(found: impl AsFd) -> bool {
    fstatfs(found).map_or(true, |stat| TALKING.contains(&stat.filesystem_type()))
}

fn is_on(found: impl AsFd, kind: FsType) -> bool {
    fstatfs(found).is_ok_and(|stat| stat.filesystem_type() == kind)
}

/// The major and minor numbers of the character devices in a directory; none is opened.
pub fn nodes(dir: impl AsFd) -> io::Result<Vec<(u32, u32)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let dir = openat(dir, ".", flags, Mode::empty())?;
    let mut nodes = Vec::new();
    for entry in Dir::read_from(&dir)?.take(NAMES) {
        // A name that has gone since, or cannot be looked at, is no node.
        let Ok(stat) = statat(&dir, entry?.file_name(), AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice {
            nodes.push((
                rustix::fs::major(stat.st_rdev),
                rustix::fs::minor(stat.st_rdev),
            ));
        }
    }
    Ok(nodes)
}

/// The names in a directory, as far as they are text and not too many.
pub fn names(dir: impl AsFd) -> io::Result<Vec<String>> {
    if is_talking(&dir) {
        return Ok(Vec::new());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let dir = openat(dir, ".", flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&dir)?.take(NAMES) {
        names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
    }
    Ok(names)
}

fn called(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Symlink => "a link",
        FileType::Fifo => "a fifo",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::RegularFile | FileType::Unknown => "no regular file",
    }
}

pub fn is_dir(found: &OwnedFd) -> Result<bool> {
    let stat = stat_of(found).context("asking what it is")?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}
