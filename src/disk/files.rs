//! Files on disk: folders that only root reads, locks with a deadline, and the log.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::AccessFlags;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::tree::{Node, Tree};

use crate::disk::doing;
use crate::disk::open::{self, Links};
use crate::faults;

/// The largest file of ours that we read; a larger one is not ours.
const LIMIT: u64 = 64 << 20;

/// Makes a folder that only its owner enters, and checks that an existing one is a folder, not a
/// link.
pub fn private_dir(path: &Path) -> Result<()> {
    if !path.exists() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| format!("creating {}", path.display()))?;
    }
    owned(path)
}

/// Makes a folder that everybody may read, whatever our umask; one that is there stays as it is.
pub fn shared_dir(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let doing = doing("creating", path);
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .with_context(doing)?;
    fs::set_permissions(path, Permissions::from_mode(0o755)).with_context(doing)
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Checks that a folder, if there is one, is no link, and that no other user can change what is in
/// it.
pub fn owned(path: &Path) -> Result<()> {
    let meta = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.with_context(|| format!("reading {}", path.display()))?,
    };
    ensure!(meta.is_dir(), "{} is no folder", path.display());
    ensure!(
        meta.mode() & 0o022 == 0,
        "{} can be written by others",
        path.display()
    );
    let owner = nix::unistd::geteuid().as_raw();
    ensure!(
        [0, owner].contains(&meta.uid()),
        "{} belongs to user {}",
        path.display(),
        meta.uid()
    );
    Ok(())
}

/// Whether files can be put into a folder, or it can be made: judged by the nearest one that there
/// is, and nothing is written.
pub fn writable(path: &Path) -> Result<()> {
    // The last one of a path that does not begin with a slash is empty.
    let mut there = path;
    for at in path.ancestors() {
        let at = if at == Path::new("") {
            Path::new(".")
        } else {
            at
        };
        if fs::symlink_metadata(at).is_ok() {
            there = at;
            break;
        }
    }
    let doing = doing("writing to", path);
    ensure!(
        fs::metadata(there).with_context(doing)?.is_dir(),
        "{}: {} is no folder",
        doing(),
        there.display()
    );
    let (may, how) = (AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS);
    nix::unistd::faccessat(AT_FDCWD, there, may, how)
        .map_err(std::io::Error::from)
        .with_context(doing)
}

/// The end of the link that the administrator may have put at `named`, or at `default`; else
/// `named`.
pub fn followed(named: Option<PathBuf>, default: &Path) -> Option<PathBuf> {
    let path = named.as_deref().unwrap_or(default);
    let is_link = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
    let end = fs::canonicalize(path).ok().filter(|_| is_link);
    end.or(named)
}

/// Reads a whole plain file without following a link; `None` if there is none.
pub fn read(path: &Path) -> Result<Option<String>> {
    let file = open::plain(path, Links::Refused)?;
    file.map(|file| read_whole(file, &path.display().to_string()))
        .transpose()
}

pub fn read_through(path: &Path) -> Result<Option<String>> {
    let file = open::plain(path, Links::Followed)?;
    file.map(|file| read_whole(file, &path.display().to_string()))
        .transpose()
}

pub fn read_whole(file: File, name: &str) -> Result<String> {
    // With room for one byte more, the end is found without a larger buffer.
    let size = file.metadata().map_or(0, |meta| meta.len().min(LIMIT));
    let mut text = String::with_capacity(size as usize + 1);
    let read = file
        .take(LIMIT + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("reading {name}"))?;
    ensure!(read as u64 <= LIMIT, "{name} is larger than {LIMIT} bytes");
    Ok(text)
}

pub fn read_or_stdin(path: &Path) -> Result<Option<String>> {
    if path != Path::new("-") {
        return read(path);
    }
    let mut text = String::new();
    let read = std::io::stdin()
        .take(LIMIT + 1)
        .read_to_string(&mut text)
        .context("reading stdin")?;
    ensure!(read as u64 <= LIMIT, "stdin is larger than {LIMIT} bytes");
    Ok(Some(text))
}

/// Writes a tree into a folder that is empty or yet to be made. All may read it, whatever our
/// umask; none may write.
pub fn write_tree(folder: &Path, tree: &Tree) -> Result<()> {
    match fs::create_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            ensure!(
                fs::read_dir(folder)?.next().is_none(),
                ErrorClass::Usage.error(format!("{} is not empty", folder.display()))
            );
        }
        other => other.class(ErrorClass::Usage, doing("writing", folder)())?,
    }
    fs::set_permissions(folder, Permissions::from_mode(0o755))
        .with_context(doing("writing", folder))?;
    for (path, node) in tree.iter() {
        let path = folder.join(path);
        write_node(&path, node).with_context(doing("writing", &path))?;
    }
    Ok(())
}

fn write_node(path: &Path, node: &Node) -> std::io::Result<()> {
    let mode = match node {
        Node::Link(target) => return std::os::unix::fs::symlink(&**target, path),
        Node::Dir => {
            fs::create_dir(path)?;
            0o755
        }
        Node::File(bytes) => {
            let mut new = OpenOptions::new();
            new.write(true).create_new(true).mode(0o444);
            new.open(path)?.write_all(bytes)?;
            0o444
        }
    };
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Writes a file for people: it goes where a link leads, and has the umask's mode.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).class(ErrorClass::Usage, format!("writing {}", path.display()))
}

/// Whether what a folder is on was mounted read-only, or is so by itself.
pub fn is_read_only(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_RDONLY))
}

/// What is free on the folder's file system, in words.
pub fn space(folder: &Path) -> String {
    let name = folder.display();
    let Ok(fs) = statvfs(folder) else {
        return format!("{name} cannot be asked for its free space");
    };
    let [free, all] =
        [fs.blocks_available(), fs.blocks()].map(|blocks| blocks * fs.fragment_size() / 1024);
    format!(
        "{name} has {free} of {all} KiB and {} files free",
        fs.files_available()
    )
}

pub fn open_folder(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_DIRECTORY | nix::libc::O_CLOEXEC)
        .open(path)
}

/// How long a file has been as it is.
pub fn age(path: &Path) -> Duration {
    let written = fs::metadata(path).and_then(|m| m.modified()).ok();
    // The clock may have been set back since.
    written
        .and_then(|written| written.elapsed().ok())
        .unwrap_or(Duration::MAX)
}

/// Removes a file; one that is not there is fine.
pub fn remove(path: &Path) -> Result<()> {
    let doing = doing("removing", path);
    faults::around(doing(), || match fs::remove_file(path) {
        // A read-only file system refuses before it looks.
        Err(e) if !is_missing(path) => Err(e).with_context(doing),
        _ => Ok(()),
    })
}

fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
}

/// Removes a file, or a folder with all that is in it; what is not there is fine.
pub fn remove_all(path: &Path) -> Result<()> {
    let folder = fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    let removed = if folder {
        fs::remove_dir_all(path)
    } else {
        return remove(path);
    };
    removed.with_context(|| format!("removing {}", path.display()))
}

/// Renames a file of ours into another folder, for us alone to read.
pub fn put_aside(from: &Path, to: &Path) -> Result<()> {
    let doing = || format!("keeping {} as {}", from.display(), to.display());
    if fs::symlink_metadata(from).with_context(doing)?.is_file() {
        fs::set_permissions(from, Permissions::from_mode(0o600)).with_context(doing)?;
    }
    fs::rename(from, to).with_context(doing)
}

pub fn keep_newest(folder: &Path, most: usize) -> Result<()> {
    let mut paths: Vec<_> = list(folder)?.iter().map(|name| folder.join(name)).collect();
    // A rename changes ctime, and no call sets it.
    paths.sort_by_cached_key(|path| {
        let put = fs::symlink_metadata(path).map_or((0, 0), |m| (m.ctime(), m.ctime_nsec()));
        std::cmp::Reverse(put)
    });
    paths
        .iter()
        .skip(most)
        .try_for_each(|path| remove_all(path))
}

pub fn list(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("listing {}", folder.display()))?,
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

/// An exclusive lock; dropping it releases it, as does the end of the process.
pub struct Lock(#[allow(dead_code, reason = "held for its Drop")] Flock<File>);

pub fn lock(path: &Path, deadline: Instant) -> Result<Lock> {
    lock_file(open::to_write(path, false)?, deadline).class(
        ErrorClass::Locked,
        format!("another rdmaprep holds {}", path.display()),
    )
}

/// Locks a folder itself: no file is made in it.
pub fn lock_folder(path: &Path, deadline: Instant) -> Result<Lock> {
    let folder = open_folder(path).with_context(|| format!("opening {}", path.display()))?;
    lock_file(folder, deadline).class(
        ErrorClass::Locked,
        format!("another rdmaprep holds {}", path.display()),
    )
}

pub fn lock_file(mut file: File, deadline: Instant) -> nix::Result<Lock> {
    let mut pause = Duration::from_micros(200);
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(held) => return Ok(Lock(held)),
            Err((back, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file = back,
            Err((_, e)) => return Err(e),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Appends one line; a log that cannot be written must not fail the hook, so the caller decides.
pub fn append(path: &Path, line: &str) -> Result<()> {
    let Some(mut file) = open::log(path)? else {
        return Ok(());
    };
    file.write_all(format!("{line}\n").as_bytes())
        .with_context(|| format!("writing {}", path.display()))
}

/// New files are for us alone, unless a mode is given: crun runs hooks with umask 0.
pub fn private_umask() {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_yet_to_be_made_is_told_by_the_nearest_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        writable(&folder.path().join("a/b")).unwrap();
        for relative in [
            "no-such-folder",
            "no-such-folder/b",
            "./no-such-folder",
            "src/no-such-folder",
        ] {
            writable(Path::new(relative)).unwrap();
        }
        assert!(writable(&folder.path().join("file/a")).is_err());
        assert!(!Path::new("no-such-folder").exists());
    }
}
