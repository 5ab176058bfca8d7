//! Looking at a /sys and telling what a container sees of it, against a loop that opens, reads and
//! closes the same files and does nothing else: on a node of 560 PCI functions and 18 HCAs, and on
//! nodes of 1 to 512 NICs. `cargo bench --bench sysfs` prints the ratio, and what it takes of
//! memory; with `make DIR`, then `ours DIR` or `bare DIR`, each is done a single time, for
//! `strace -c`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark fails by panicking"
)]
use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use rdma_model::snapshot::Snapshot;
use rdmaprep::cli::{Global, SelectArgs};
use rdmaprep::config::host::{Config, Host};
use rdmaprep::config::options::SelectOptions;
use rdmaprep::config::request::Request;
use rdmaprep::kernel::sysfs::{self, Survey};
use rdmaprep::select::select;
use rdmaprep::view::{self, Keep};
use tempfile::TempDir;
use testkit::trees::made::{LARGE, Shape};

const ROUNDS: usize = 31;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "make", dir, ..] => {
            fs::create_dir(dir).unwrap();
            LARGE.write(Path::new(dir));
            let files: Vec<String> = files(Path::new(dir))
                .iter()
                .map(|f| f.display().to_string())
                .collect();
            fs::write(format!("{dir}.files"), files.join("\n")).unwrap();
        }
        [_, "ours", dir, ..] => {
            let survey = ours(Path::new(dir));
            let status = fs::read_to_string("/proc/self/status").unwrap();
            println!(
                "{} in memory at most",
                status
                    .lines()
                    .find_map(|l| l.strip_prefix("VmHWM:"))
                    .unwrap()
                    .trim()
            );
            drop(survey);
        }
        [_, "bare", dir, ..] => {
            let list = fs::read_to_string(format!("{dir}.files")).unwrap();
            bare(&list.lines().map(PathBuf::from).collect::<Vec<_>>());
        }
        _ => bench(),
    }
}

fn bench() {
    let dir = in_memory();
    LARGE.write(dir.path());
    let mut criterion = Criterion::default().configure_from_args();
    large(&mut criterion, dir.path());
    for count in [1, 8, 64, 512] {
        nics(&mut criterion, count);
    }
    criterion.final_summary();
    let once = Command::new(std::env::current_exe().unwrap())
        .arg("ours")
        .arg(dir.path())
        .output()
        .unwrap();
    print!("{}", String::from_utf8(once.stdout).unwrap());
    ratio(dir.path());
}

/// A disk's filesystem takes its own time, which sysfs does not.
fn in_memory() -> TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        TempDir::new_in(shm).unwrap()
    } else {
        TempDir::new().unwrap()
    }
}

/// Observe, select, render, for both carriers.
fn ours(root: &Path) -> Survey {
    let survey = Survey::open(root).unwrap();
    let facts = sysfs::merge(survey.facts(), None, None);
    let request = Request::new(
        None,
        &SelectArgs::default(),
        Host::new(&Global::default(), &Config::default()),
        SelectOptions::default(),
        |_| None,
    );
    // Without route netlink no netdev has an address for select() to judge by: half() chooses by
    // position.
    let _ = black_box(select(&request.unwrap(), &facts, &[]));
    let keep = half(&facts);
    black_box(view::snapshot(&keep, &facts, survey.whole()));
    black_box(view::live(&keep, &facts, &survey.links()));
    survey
}

fn half(seen: &Snapshot) -> Keep {
    Keep::hcas(
        seen.hcas
            .iter()
            .map(|h| h.name.clone())
            .step_by(2)
            .collect(),
        seen,
    )
}

fn files(root: &Path) -> Vec<PathBuf> {
    let mut files = ours(root).files();
    files.sort();
    files.into_iter().map(|file| root.join(file)).collect()
}

fn bare(files: &[PathBuf]) {
    let mut page = [0; 4096];
    for file in files {
        black_box(File::open(file).unwrap().read(&mut page).unwrap());
    }
}

fn large(criterion: &mut Criterion, root: &Path) {
    let files = files(root);
    let mut group = criterion.benchmark_group("sysfs of 560 functions and 18 HCAs");
    group
        .sample_size(20)
        .throughput(Throughput::Elements(files.len() as u64));
    group.bench_function("observe, select, render", |b| b.iter(|| ours(root)));
    group.bench_function("open, read, close", |b| b.iter(|| bare(&files)));
    group.finish();
}

/// Cards with one function; nothing else grows.
fn nics(criterion: &mut Criterion, count: usize) {
    let dir = in_memory();
    Shape {
        cards: count,
        functions: 1,
        vfs: 0,
        gids: 16,
        total: 0,
        ..LARGE
    }
    .write(dir.path());
    let survey = Survey::open(dir.path()).unwrap();
    let facts = sysfs::merge(survey.facts(), None, None);
    assert_eq!(facts.hcas.len(), count);
    let (whole, links, keep) = (survey.whole(), survey.links(), half(&facts));
    let mut group = criterion.benchmark_group("sysfs by NICs");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(3))
        .throughput(Throughput::Elements(count as u64));
    group.bench_function(BenchmarkId::new("observe, select, render", count), |b| {
        b.iter(|| ours(dir.path()))
    });
    group.bench_function(BenchmarkId::new("render: snapshot", count), |b| {
        b.iter(|| view::snapshot(&keep, &facts, black_box(whole.clone())));
    });
    group.bench_function(BenchmarkId::new("render: live", count), |b| {
        b.iter(|| view::live(&keep, &facts, black_box(&links)));
    });
    group.finish();
}

/// Both in turn, so that whatever else the machine does befalls both.
fn ratio(root: &Path) {
    let files = files(root);
    let time = |work: &dyn Fn()| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    let mut rounds: Vec<(Duration, Duration)> = (0..ROUNDS)
        .map(|_| (time(&|| drop(ours(root))), time(&|| bare(&files))))
        .collect();
    rounds.sort_by(|a, b| ratio_of(a).total_cmp(&ratio_of(b)));
    let (us, loop_) = rounds[ROUNDS / 2];
    println!(
        "{} files: {us:?} on {} cores against {loop_:?} of the bare loop, which has one, {:.2} \
        times (median of {ROUNDS})",
        files.len(),
        std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(8),
        ratio_of(&(us, loop_))
    );
}

fn ratio_of((ours, bare): &(Duration, Duration)) -> f64 {
    ours.as_secs_f64() / bare.as_secs_f64()
}
