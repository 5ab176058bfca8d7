//! Files on disk: folders that only root reads, atomic replacement, locks with a deadline, and the
//! log.

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

use crate::disk::attributes::Attributes;
use crate::disk::open::{self, Links};
use crate::faults;

/// The largest file of ours that we read; a larger one is not ours.
const LIMIT: u64 = 64 << 20;

pub const UNFINISHED: &str = ".new-";

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
    let doing = || format!("creating {}", path.display());
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .with_context(doing)?;
    fs::set_permissions(path, Permissions::from_mode(0o755)).with_context(doing)
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
    let named = |at| {
        if at == Path::new("") {
            Path::new(".")
        } else {
            at
        }
    };
    let there = path
        .ancestors()
        .map(named)
        .find(|at| fs::symlink_metadata(at).is_ok())
        .unwrap_or(path);
    let doing = || format!("writing to {}", path.display());
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
    let is_link = |path: &Path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
    let end = |path: &Path| fs::canonicalize(path).ok().filter(|_| is_link(path));
    end(named.as_deref().unwrap_or(default)).or(named)
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
    let mut text = String::new();
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
    let doing = |path: &Path| format!("writing {}", path.display());
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).with_context(|| doing(path))
    };
    match fs::create_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            ensure!(
                fs::read_dir(folder)?.next().is_none(),
                ErrorClass::Usage.error(format!("{} is not empty", folder.display()))
            );
        }
        other => other.class(ErrorClass::Usage, doing(folder))?,
    }
    mode(folder, 0o755)?;
    for (path, node) in tree.iter() {
        let path = folder.join(path);
        match node {
            Node::Dir => fs::create_dir(&path)
                .with_context(|| doing(&path))
                .and_then(|()| mode(&path, 0o755))?,
            Node::Link(target) => {
                std::os::unix::fs::symlink(&**target, &path).with_context(|| doing(&path))?
            }
            Node::File(bytes) => {
                let new = OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o444)
                    .open(&path);
                new.and_then(|mut file| file.write_all(bytes))
                    .with_context(|| doing(&path))?;
                mode(&path, 0o444)?;
            }
        }
    }
    Ok(())
}

/// Writes a file for people: it goes where a link leads, and has the umask's mode.
pub fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).class(ErrorClass::Usage, format!("writing {}", path.display()))
}

/// Replaces a file so that a crash leaves the old or the new content, never a mixture: temporary
/// file, fsync, rename, fsync of the folder. What a link there leads to stays as it is.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    replace_as(path, content, &New::Mode(mode), &named(mode))
}

/// As [`replace`], for a tmpfs, where nothing is to be synced.
pub fn replace_unsynced(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    put(path, content, &New::Mode(mode), &named(mode), false)
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
    let kib = |blocks: u64| blocks * fs.fragment_size() / 1024;
    let (free, all) = (kib(fs.blocks_available()), kib(fs.blocks()));
    format!(
        "{name} has {free} of {all} KiB and {} files free",
        fs.files_available()
    )
}

/// Replaces a file of another program, which keeps its owner, its mode and its extended attributes.
pub fn replace_keeping_attributes(path: &Path, content: &[u8]) -> Result<()> {
    let kept = Attributes::read(path).with_context(|| format!("writing {}", path.display()))?;
    replace_as(path, content, &New::Kept(kept), &named(0o600))
}

fn named(mode: u32) -> tempfile::Builder<'static, 'static> {
    let mut named = tempfile::Builder::new();
    named
        .prefix(UNFINISHED)
        .permissions(Permissions::from_mode(mode));
    named
}

pub(super) enum New {
    Mode(u32),
    Kept(Attributes),
}

pub(super) fn replace_as(
    path: &Path,
    content: &[u8],
    new: &New,
    named: &tempfile::Builder<'_, '_>,
) -> Result<()> {
    put(path, content, new, named, true)
}

/// As [`replace`]; `synced` false: no fsync.
pub(super) fn put(
    path: &Path,
    content: &[u8],
    new: &New,
    named: &tempfile::Builder<'_, '_>,
    synced: bool,
) -> Result<()> {
    let folder = path.parent().context("a file needs a folder")?;
    let doing = || format!("writing {}", path.display());
    let mut temporary = named.tempfile_in(folder).with_context(doing)?;
    temporary.write_all(content).with_context(doing)?;
    match new {
        // Whatever umask we were started with.
        New::Mode(mode) => temporary
            .as_file()
            .set_permissions(Permissions::from_mode(*mode))
            .with_context(doing)?,
        New::Kept(attributes) => attributes.apply(temporary.as_file()).with_context(doing)?,
    }
    if synced {
        temporary.as_file().sync_all().with_context(doing)?;
    }
    faults::point(format_args!("while writing {}", path.display()))?;
    temporary.persist(path).with_context(doing)?;
    if synced {
        open_folder(folder)
            .and_then(|f| f.sync_all())
            .with_context(doing)
    } else {
        Ok(())
    }
}

pub fn open_folder(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_DIRECTORY | nix::libc::O_CLOEXEC)
        .open(path)
}

/// Removes a file; one that is not there is fine.
pub fn remove(path: &Path) -> Result<()> {
    let doing = || format!("removing {}", path.display());
    // A read-only file system refuses before it looks.
    let is_there = || {
        fs::symlink_metadata(path)
            .map_or_else(|e| e.kind() != std::io::ErrorKind::NotFound, |_| true)
    };
    faults::around(doing(), || match fs::remove_file(path) {
        Err(e) if is_there() => Err(e).with_context(doing),
        _ => Ok(()),
    })
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

/// Removes what killed writers left.
pub fn sweep(folder: &Path) -> Result<()> {
    let names = list(folder)?;
    let mut unfinished = names.iter().filter(|name| name.starts_with(UNFINISHED));
    unfinished.try_for_each(|name| remove(&folder.join(name)))
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
    // A rename changes ctime, and no call sets it.
    let put =
        |path: &Path| fs::symlink_metadata(path).map_or((0, 0), |m| (m.ctime(), m.ctime_nsec()));
    let mut paths: Vec<_> = list(folder)?.iter().map(|name| folder.join(name)).collect();
    paths.sort_by_cached_key(|path| std::cmp::Reverse(put(path)));
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

/// The same by a folder, in which nothing is made for it.
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
