//! `file:///PATH`: a file that all nodes share, in the format of PyTorch's FileStore
//! (torch/csrc/distributed/c10d/FileStore.cpp). It grows by records
//! `u32 length, key, u32 length, value`, little-endian. The last record of a key counts; `-/key`
//! with an empty value deletes it. Writers hold flock(2) exclusively, readers shared. Each access
//! opens the file again, which makes NFS fetch what other nodes wrote. Values stay in the file: a
//! node asks for few of them, and what all nodes write grows with their number.

mod record;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::{MAX_VALUE, Store, Value, poll};
use record::{Next, next, record};

/// The most keys of ours: what [`crate::MAX_NODES`] nodes write.
const MOST: usize = 1 << 22;
/// The most bytes of a file, which only grows: several attempts of [`crate::MAX_NODES`] nodes. A
/// longer file is an error, as all nodes wait while one reads.
const LONGEST: u64 = 1 << 30;
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
const LOCK: Duration = Duration::from_secs(20);
/// Between the end of a torn record and what comes in its place.
const SETTLE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    known: HashMap<Hash, Place>,
    hashers: [RandomState; 2],
    read: u64,
    inode: u64,
    limit: Instant,
    /// Read only: a file that does not exist is an empty store.
    read_only: bool,
}

/// Of a key, by two hashers with keys of their own: no one can choose two keys that are alike.
type Hash = (u64, u64);

/// What is done with the locked file.
type Read<T> = fn(&mut FileStore, Flock<File>) -> Result<T>;

/// Where a value is in the file.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    length: u32,
}

impl FileStore {
    /// Opens the file, or creates it with mode 0644. No wait, here or later, goes beyond `limit`.
    pub fn open(path: &Path, limit: Instant) -> Result<FileStore> {
        ensure!(
            path.is_absolute(),
            "the path {} is not absolute",
            path.display()
        );
        FileStore::first_read(path, limit, false)
    }

    /// The file is neither created nor written to; a folder that does not exist is an error.
    pub fn open_read_only(path: &Path, limit: Instant) -> Result<FileStore> {
        let folder = path.parent().unwrap_or(path);
        ensure!(
            folder.is_dir(),
            "the folder {} does not exist",
            folder.display()
        );
        FileStore::first_read(path, limit, true)
    }

    fn first_read(path: &Path, limit: Instant, read_only: bool) -> Result<FileStore> {
        let mut store = FileStore {
            path: path.to_owned(),
            known: HashMap::new(),
            hashers: Default::default(),
            read: 0,
            inode: 0,
            limit,
            read_only,
        };
        store.look()?;
        Ok(store)
    }

    pub fn with_limit(mut self, limit: Instant) -> FileStore {
        self.limit = limit;
        self
    }

    fn file(&self) -> Result<File> {
        let flags = nix::libc::O_CLOEXEC | nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(!self.read_only)
            .create(!self.read_only)
            .truncate(false)
            .mode(0o644)
            .custom_flags(flags);
        let file = options
            .open(&self.path)
            .with_context(|| format!("opening {}", self.path.display()))?;
        ensure!(
            file.metadata()?.is_file(),
            "{} is no plain file",
            self.path.display()
        );
        Ok(file)
    }

    /// Opens the file, locks it and reads what is new in it; `None` if it does not exist and is not
    /// to be created. ESTALE, with which an NFS server answers for a file that it has forgotten, is
    /// tried again.
    fn refresh<T>(&mut self, how: FlockArg, read: Read<T>) -> Result<Option<T>> {
        let errno = |e: &anyhow::Error| {
            let io = e.root_cause().downcast_ref::<std::io::Error>();
            io.and_then(std::io::Error::raw_os_error)
        };
        let deadline = self.limit.min(Instant::now() + LOCK);
        loop {
            match self
                .file()
                .and_then(|file| lock(file, how, &self.path, (LOCK, self.limit)))
                .and_then(|file| read(self, file))
            {
                Err(e) if errno(&e) == Some(nix::libc::ESTALE) && Instant::now() < deadline => {
                    std::thread::sleep(PAUSE.0)
                }
                Err(e) if errno(&e) == Some(nix::libc::ENOENT) && self.read_only => {
                    (self.inode, self.read) = (0, 0);
                    self.known.clear();
                    return Ok(None);
                }
                other => return other.map(Some),
            }
        }
    }

    /// As a reader. What has not grown is not locked: among many readers no writer would get it.
    fn look(&mut self) -> Result<Option<File>> {
        if let Ok(file) = self.file() {
            let meta = file.metadata()?;
            if (meta.ino(), meta.len()) == (self.inode, self.read) {
                return Ok(Some(file));
            }
        }
        self.refresh(FlockArg::LockShared, FileStore::read_after)
    }

    /// The lock says how far the file is written, and is let go of before that is read: what is
    /// written does not change.
    fn read_after(&mut self, file: Flock<File>) -> Result<File> {
        let end = self.end(&file)?;
        let file = file.unlock().map_err(|(_, e)| std::io::Error::from(e))?;
        self.catch_up(&file, end)?;
        Ok(file)
    }

    fn read_locked(&mut self, file: Flock<File>) -> Result<Flock<File>> {
        let end = self.end(&file)?;
        self.catch_up(&file, end)?;
        Ok(file)
    }

    /// Where the file ends. One that was replaced or truncated meanwhile is read from the start.
    fn end(&mut self, file: &File) -> Result<u64> {
        let meta = file.metadata()?;
        if meta.ino() != self.inode || meta.len() < self.read {
            (self.inode, self.read) = (meta.ino(), 0);
            self.known.clear();
        }
        let longest = "a store of c10d that is used for one job is shorter";
        ensure!(
            meta.len() <= LONGEST,
            "{} has {} bytes: {longest}",
            self.path.display(),
            meta.len()
        );
        Ok(meta.len())
    }

    /// Reads from the last offset.
    fn catch_up(&mut self, file: &File, end: u64) -> Result<()> {
        if end == self.read {
            return Ok(());
        }
        let mut reader = BufReader::with_capacity(1 << 16, file);
        reader.seek(SeekFrom::Start(self.read))?;
        let doing = format!("reading {}", self.path.display());
        loop {
            ensure!(
                Instant::now() < self.limit,
                "{doing} takes longer than there is time: {end} bytes"
            );
            match next(&mut reader, end - self.read).with_context(|| doing.clone())? {
                Next::Record {
                    key,
                    value,
                    is_ours,
                    length,
                } => {
                    let known = [&b"/"[..], b"-/", b"refcount/", b"cleanup/"]
                        .iter()
                        .any(|p| key.starts_with(p));
                    let good = !key.is_empty() && (self.read > 0 || known);
                    ensure!(good, "{} is no store of c10d", self.path.display());
                    self.read += length;
                    if is_ours {
                        self.learn(&key, value)?;
                    }
                }
                Next::Torn if self.read == 0 => {
                    bail!("{} is no store of c10d", self.path.display())
                }
                Next::End | Next::Torn => return Ok(()),
            }
        }
    }

    /// A record of ours that ends where the reader is.
    fn learn(&mut self, key: &[u8], length: u32) -> Result<()> {
        if let Some(key) = key.strip_prefix(b"-") {
            self.known.remove(&self.hash(key));
            return Ok(());
        }
        let at = self.read - u64::from(length);
        self.known.insert(self.hash(key), Place { at, length });
        ensure!(
            self.known.len() <= MOST,
            "{} holds more than {MOST} keys of ours",
            self.path.display()
        );
        Ok(())
    }

    fn hash(&self, key: &[u8]) -> Hash {
        let [first, second] = &self.hashers;
        (first.hash_one(key), second.hash_one(key))
    }

    /// Appends records. The part of a record that a writer left when it died is cut off first:
    /// readers would wait for its end.
    fn append(&mut self, records: impl Iterator<Item = Vec<u8>>) -> Result<()> {
        let doing = format!("writing {}", self.path.display());
        // So that there is little to read while all others wait.
        self.look()?;
        let mut file = self
            .refresh(FlockArg::LockExclusive, FileStore::read_locked)?
            .with_context(|| doing.clone())?;
        if file.metadata()?.len() > self.read {
            file.set_len(self.read).context(doing.clone())?;
            // Who has seen how long it was reads now, without the lock: half of that record and
            // half of the one in its place may be whole together.
            std::thread::sleep(SETTLE);
        }
        file.seek(SeekFrom::End(0))?;
        for record in records {
            // A record that was written in part is cut off.
            if let Err(e) = file.write_all(&record) {
                let whole = self.read;
                let _ = file.set_len(whole);
                return Err(e).context(doing);
            }
            self.read += record.len() as u64;
            if let Next::Record { key, value, .. } =
                next(&mut record.as_slice(), record.len() as u64)?
            {
                self.learn(&key, value)?;
            }
        }
        Ok(())
    }

    fn place(&self, key: &str) -> Option<&Place> {
        self.known.get(&self.hash(format!("/{key}").as_bytes()))
    }

    /// Too long a value is empty, which no reader accepts.
    fn value(&self, file: Option<&File>, key: &str) -> Result<Option<Value>> {
        let (Some(place), Some(file)) = (self.place(key), file) else {
            return Ok(None);
        };
        let length = place.length as usize;
        let mut value = vec![0; if length > MAX_VALUE { 0 } else { length }];
        file.read_exact_at(&mut value, place.at)
            .with_context(|| format!("reading {}", self.path.display()))?;
        Ok(Some(value))
    }

    fn values(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        let file = self.look()?;
        keys.iter()
            .map(|key| self.value(file.as_ref(), key))
            .collect()
    }

    fn has(&self, key: &str) -> bool {
        self.place(key).is_some()
    }
}

impl Store for FileStore {
    fn put(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        self.append(
            pairs
                .iter()
                .map(|(key, value)| record(&format!("/{key}"), value)),
        )
    }

    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        poll(PAUSE, until, || {
            let file = self.look()?;
            if !keys.iter().all(|key| self.has(key)) {
                return Ok(None);
            }
            keys.iter()
                .map(|key| self.value(file.as_ref(), key))
                .collect()
        })
    }

    fn check(&mut self, keys: &[String]) -> Result<bool> {
        self.look()?;
        Ok(keys.iter().all(|key| self.has(key)))
    }

    fn delete(&mut self, keys: &[String]) -> Result<()> {
        self.look()?;
        let there: Vec<Vec<u8>> = keys
            .iter()
            .filter(|key| self.has(key))
            .map(|key| record(&format!("-/{key}"), b""))
            .collect();
        if there.is_empty() {
            Ok(())
        } else {
            self.append(there.into_iter())
        }
    }

    fn persists(&self) -> bool {
        true
    }

    fn missing(&mut self, keys: &[String], most: usize) -> Result<Vec<usize>> {
        self.look()?;
        Ok((0..keys.len())
            .filter(|at| !self.has(&keys[*at]))
            .take(most)
            .collect())
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        self.values(keys)
    }
}

/// Gives up when the file has not grown for that long, and at `limit`: among many writers one may
/// wait for longer.
fn lock(
    file: File,
    how: FlockArg,
    path: &Path,
    (patience, limit): (Duration, Instant),
) -> Result<Flock<File>> {
    let how = match how {
        FlockArg::LockExclusive => FlockArg::LockExclusiveNonblock,
        _ => FlockArg::LockSharedNonblock,
    };
    let (mut file, mut pause, start) = (file, Duration::from_micros(100), Instant::now());
    let (mut length, mut deadline) = (file.metadata()?.len(), limit.min(start + patience));
    loop {
        match Flock::lock(file, how) {
            Ok(held) => return Ok(held),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < deadline => {
                file = back
            }
            Err((back, Errno::EWOULDBLOCK)) if deadline < limit && is_longer(&back, length)? => {
                length = back.metadata()?.len();
                file = back;
                deadline = limit.min(Instant::now() + patience);
            }
            Err((_, Errno::EWOULDBLOCK)) => {
                bail!(
                    "another process holds {} locked, {:.1} s long",
                    path.display(),
                    start.elapsed().as_secs_f64()
                )
            }
            Err((_, e @ (Errno::ENOSYS | Errno::ENOLCK | Errno::EOPNOTSUPP))) => {
                let cure =
                    "flock does not work on this file system (Lustre: mount it with -o flock)";
                return Err(anyhow!("locking {}: {e}: {cure}", path.display()));
            }
            Err((_, e)) => {
                return Err(std::io::Error::from(e))
                    .with_context(|| format!("locking {}", path.display()));
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

fn is_longer(file: &File, length: u64) -> std::io::Result<bool> {
    Ok(file.metadata()?.len() > length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);

    /// Whether a writer gets the lock of another one, which keeps it for a time and writes, or does
    /// nothing until it is given up; and after how long.
    fn waits(writes: bool) -> (bool, Duration) {
        let folder = tempfile::tempdir().unwrap();
        let path = &folder.path().join("store");
        let mut options = File::options();
        options.append(true).create(true);
        let file = options.open(path).unwrap();
        let mut held = Flock::lock(file, FlockArg::LockExclusive).unwrap();
        let file = options.open(path).unwrap();
        std::thread::scope(|scope| {
            let begun = Instant::now();
            let times = (SHORT, begun + 50 * SHORT);
            let waits = scope.spawn(move || lock(file, FlockArg::LockExclusive, path, times));
            while match writes {
                true => begun.elapsed() < 2 * SHORT,
                false => !waits.is_finished(),
            } {
                if writes {
                    held.write_all(b"x").unwrap();
                }
                std::thread::sleep(SHORT / 20);
            }
            drop(held);
            (waits.join().unwrap().is_ok(), begun.elapsed())
        })
    }

    #[test]
    fn only_a_writer_that_does_nothing_is_given_up() {
        let (got_it, after) = waits(true);
        assert!(got_it && after >= 2 * SHORT, "{after:?}");
        assert!(!waits(false).0);
    }
}
