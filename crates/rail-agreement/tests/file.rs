//! The store in a file: many writers, writers that die, and what is no store at all.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod support;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use rail_agreement::file::FileStore;
use rail_agreement::node::Agreement;
use rail_agreement::{Store, agree};
use support::setup;

const KEY: &str = "rdmaprep/v1/job.1/x";
/// Set in the processes that a test starts: the file, the rank, the number of nodes.
const PART: &str = "RDMAPREP_TEST_PART";

fn at(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("store")
}

/// For long enough.
fn open(path: &Path) -> anyhow::Result<FileStore> {
    FileStore::open(path, Instant::now() + Duration::from_secs(60))
}

fn one(key: &str, value: &[u8]) -> Vec<(String, Vec<u8>)> {
    vec![(key.to_owned(), value.to_vec())]
}

fn keys(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn raw(key: &[u8], value: &[u8]) -> Vec<u8> {
    [
        &(key.len() as u32).to_le_bytes()[..],
        key,
        &(value.len() as u32).to_le_bytes(),
        value,
    ]
    .concat()
}

#[test]
fn the_format_is_that_of_torch() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&at(&folder)).unwrap();
    store.put(&one(KEY, b"one")).unwrap();
    store.put(&one(KEY, b"two")).unwrap();
    store.delete(&keys(&[KEY, "rdmaprep/never"])).unwrap();
    let key = format!("/{KEY}");
    let expected = [
        raw(key.as_bytes(), b"one"),
        raw(key.as_bytes(), b"two"),
        raw(format!("-{key}").as_bytes(), b""),
    ]
    .concat();
    assert_eq!(fs::read(at(&folder)).unwrap(), expected);
    assert!(!store.check(&keys(&[KEY])).unwrap());
    // What torch writes beside us is passed over, however long it is.
    let mut other = OpenOptions::new().append(true).open(at(&folder)).unwrap();
    other.write_all(&raw(b"refcount/", b"1")).unwrap();
    other.write_all(&raw(b"/job", &vec![9; 3 << 20])).unwrap();
    other.write_all(&raw(key.as_bytes(), b"three")).unwrap();
    assert_eq!(
        store.get(&keys(&[KEY]), Instant::now()).unwrap(),
        Some(vec![b"three".to_vec()])
    );
    assert_eq!(
        open(&at(&folder))
            .unwrap()
            .read(&keys(&[KEY, "job"]))
            .unwrap(),
        [Some(b"three".to_vec()), None]
    );
}

#[test]
fn torn_tail_is_skipped_by_readers_and_cut_by_the_next_writer() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&at(&folder)).unwrap();
    store.put(&one(KEY, b"whole")).unwrap();
    let whole = fs::read(at(&folder)).unwrap();
    let torn = raw(b"/rdmaprep/v1/torn", b"value");
    for end in 1..torn.len() {
        fs::write(at(&folder), [&whole[..], &torn[..end]].concat()).unwrap();
        let mut reader = open(&at(&folder)).unwrap();
        assert_eq!(
            reader.get(&keys(&[KEY]), Instant::now()).unwrap(),
            Some(vec![b"whole".to_vec()]),
            "{end}"
        );
        assert_eq!(
            fs::read(at(&folder)).unwrap().len(),
            whole.len() + end,
            "a reader changes nothing"
        );
        reader.put(&one("rdmaprep/next", b"n")).unwrap();
        assert_eq!(
            fs::read(at(&folder)).unwrap(),
            [&whole[..], &raw(b"/rdmaprep/next", b"n")].concat(),
            "{end}"
        );
    }
}

#[test]
fn what_is_no_store_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    for text in [
        &b"root:x:0:0:root:/root:/bin/bash\n"[..],
        b"\x05\0\0\0hello\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\x01",
    ] {
        fs::write(at(&folder), text).unwrap();
        let e = open(&at(&folder))
            .map(|mut s| s.put(&one(KEY, b"x")))
            .unwrap_err();
        assert!(format!("{e:#}").contains("is no store of c10d"), "{e:#}");
        assert_eq!(fs::read(at(&folder)).unwrap(), text);
    }
    for (path, words) in [
        ("relative", "not absolute"),
        ("/nonexistent/x", "opening /nonexistent/x"),
        ("/dev/null", "no plain file"),
        ("/tmp", "opening /tmp"),
    ] {
        let e = open(Path::new(path)).unwrap_err();
        assert!(format!("{e:#}").contains(words), "{path}: {e:#}");
    }
    std::os::unix::fs::symlink(at(&folder), folder.path().join("link")).unwrap();
    assert!(open(&folder.path().join("link")).is_err());
}

/// Among a thousand readers no writer would get the lock otherwise.
#[test]
fn who_reads_for_long_keeps_no_writer_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = at(&folder);
    let many: Vec<Vec<u8>> = (0..300_000)
        .map(|n| raw(format!("/rdmaprep/v1/x/{n}").as_bytes(), b"1"))
        .collect();
    fs::write(&path, many.concat()).unwrap();
    let held = Flock::lock(fs::File::open(&path).unwrap(), FlockArg::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| open(&path).unwrap());
        drop(held);
        // Until it has begun.
        std::thread::sleep(Duration::from_millis(30));
        let mut written = 0;
        while !reader.is_finished() {
            let file = fs::File::open(&path).unwrap();
            let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock);
            written += u32::from(lock.is_ok() && !reader.is_finished());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(written > 0);
    });
}

#[test]
fn endless_and_locked_files_fail_by_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let whole = raw(format!("/{KEY}").as_bytes(), b"x");
    fs::write(at(&folder), &whole).unwrap();
    let mut store = open(&at(&folder)).unwrap();
    let grow = |length: u64| {
        OpenOptions::new()
            .write(true)
            .open(at(&folder))
            .unwrap()
            .set_len(length)
            .unwrap()
    };
    let start = Instant::now();
    // Records without a key, as many as fit; then more than anybody reads.
    for (length, words) in [(1 << 29, "is no store of c10d"), (1 << 40, "is shorter")] {
        grow(length);
        for e in [
            store.check(&keys(&[KEY])).unwrap_err(),
            store.put(&one(KEY, b"y")).unwrap_err(),
        ] {
            assert!(format!("{e:#}").contains(words), "{e:#}");
        }
        assert_eq!(
            fs::metadata(at(&folder)).unwrap().len(),
            length,
            "what is no store is left as it is"
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    // Many small records of another writer.
    fs::write(
        at(&folder),
        [whole, raw(b"/", b"").repeat(4 << 20)].concat(),
    )
    .unwrap();
    let start = Instant::now();
    let e = FileStore::open(&at(&folder), start + Duration::from_millis(50)).unwrap_err();
    assert!(
        format!("{e:#}").contains("takes longer than there is time"),
        "{e:#}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    let file = OpenOptions::new().write(true).open(at(&folder)).unwrap();
    let _held = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    let start = Instant::now();
    let e = FileStore::open(&at(&folder), start + Duration::from_millis(300)).unwrap_err();
    assert!(format!("{e:#}").contains("another process holds"), "{e:#}");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_file_that_is_removed_or_replaced_is_a_new_store() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&at(&folder)).unwrap();
    store.put(&one(KEY, b"old")).unwrap();
    fs::remove_file(at(&folder)).unwrap();
    assert!(!store.check(&keys(&[KEY])).unwrap());
    store.put(&one(KEY, b"new")).unwrap();
    assert_eq!(
        open(&at(&folder)).unwrap().read(&keys(&[KEY])).unwrap(),
        [Some(b"new".to_vec())]
    );
}

#[test]
fn a_value_that_is_too_long_is_none() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        at(&folder),
        raw(format!("/{KEY}").as_bytes(), &vec![b'x'; 5 << 20]),
    )
    .unwrap();
    let mut store = open(&at(&folder)).unwrap();
    assert_eq!(
        store.get(&keys(&[KEY]), Instant::now()).unwrap(),
        Some(vec![Vec::new()])
    );
}

#[test]
fn waiting_ends_with_the_value_or_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = at(&folder);
    let mut store = open(&path).unwrap();
    let start = Instant::now();
    assert_eq!(
        store
            .get(&keys(&[KEY]), start + Duration::from_millis(100))
            .unwrap(),
        None
    );
    assert!((100..1000).contains(&start.elapsed().as_millis()));
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        open(&path).unwrap().put(&one(KEY, b"v")).unwrap();
    });
    assert!(
        store
            .get(&keys(&[KEY]), Instant::now() + Duration::from_secs(10))
            .unwrap()
            .is_some()
    );
    writer.join().unwrap();
}

#[test]
fn eight_threads_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = at(&folder);
    let write = |who: usize| {
        let path = path.clone();
        std::thread::spawn(move || {
            let mut store = open(&path).unwrap();
            for i in 0..100 {
                store
                    .put(&one(&format!("rdmaprep/{who}/{i}"), &vec![b'v'; i]))
                    .unwrap();
            }
        })
    };
    (0..8)
        .map(write)
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|t| t.join().unwrap());
    let all: Vec<String> = (0..8)
        .flat_map(|w| (0..100).map(move |i| format!("rdmaprep/{w}/{i}")))
        .collect();
    let values = open(&path)
        .unwrap()
        .get(&all, Instant::now())
        .unwrap()
        .unwrap();
    assert!(values.iter().enumerate().all(|(at, v)| v.len() == at % 100));
}

fn part(path: &str, rank: u32, nodes: u32) -> anyhow::Result<Agreement> {
    let mut store = open(Path::new(path))?;
    let attempt = u64::from(std::process::id());
    agree(
        &mut store,
        setup(rank, nodes, &["rdma0", "rdma1"], attempt),
        Instant::now() + Duration::from_secs(30),
        &mut |_| Ok(()),
        None,
    )
}

/// This test is also what each of the processes runs.
#[test]
fn sixteen_processes_agree_twice_under_one_id_and_leave_nothing() {
    if let Ok(text) = std::env::var(PART) {
        let words: Vec<&str> = text.split(' ').collect();
        let agreed = part(
            words[0],
            words[1].parse().unwrap(),
            words[2].parse().unwrap(),
        )
        .unwrap();
        return fs::write(format!("{}.{}", words[0], words[1]), agreed.digest.as_str()).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = at(&folder).display().to_string();
    let mut before = String::new();
    for _ in 0..2 {
        let start = |rank: u32| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([
                "--exact",
                "sixteen_processes_agree_twice_under_one_id_and_leave_nothing",
            ]);
            command
                .env(PART, format!("{path} {rank} 16"))
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        };
        let all: Vec<_> = (0..16).map(start).collect();
        all.into_iter()
            .for_each(|mut child| assert!(child.wait().unwrap().success()));
        let digests: Vec<String> = (0..16)
            .map(|r| fs::read_to_string(format!("{path}.{r}")).unwrap())
            .collect();
        assert!(
            digests.iter().all(|d| *d == digests[0] && *d != before),
            "{digests:?}"
        );
        before.clone_from(&digests[0]);
    }
    let mut left: Vec<String> = Vec::new();
    let bytes = fs::read(&path).unwrap();
    let mut at = 0;
    while at < bytes.len() {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let key = String::from_utf8(bytes[at + 4..at + 4 + number(at)].to_vec()).unwrap();
        at += 8 + number(at) + number(at + 4 + number(at));
        match key.strip_prefix('-') {
            Some(gone) => left.retain(|k| k != gone),
            None if !left.contains(&key) => left.push(key),
            None => {}
        }
    }
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_writer_waits_for_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = at(&folder);
    let store = open(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let held = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    let (mut store, start) = (store, Instant::now());
    let waiting = std::thread::spawn(move || store.put(&one(KEY, b"x")));
    std::thread::sleep(Duration::from_millis(200));
    drop(held);
    waiting.join().unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
}
