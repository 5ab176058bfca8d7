//! The texts of a /sys, captured or live, and /proc/PID/mountinfo. Each line of the input goes into
//! one file or link of a small machine: its first byte says into which.
#![no_main]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rdma_model::ids::HcaName;
use rdma_model::snapshot::{Hca, Snapshot};
use rdmaprep::kernel::mount::mountinfo;
use rdmaprep::kernel::sysfs::{Survey, tree_snapshot};
use rdmaprep::report;
use rdmaprep::view::{self, Keep};

/// `PATH CONTENTS`, or `PATH -> TARGET`.
const MACHINE: &str = include_str!("../machine.txt");

struct Slot {
    path: PathBuf,
    link: bool,
    text: &'static str,
}

static SLOTS: LazyLock<Vec<Slot>> = LazyLock::new(|| {
    let slot = |line: &'static str| match line.split_once(" -> ") {
        Some((path, text)) => Slot {
            path: root().join(path),
            link: true,
            text,
        },
        None => {
            let (path, text) = line.split_once(' ').unwrap_or((line, ""));
            Slot {
                path: root().join(path),
                link: false,
                text,
            }
        }
    };
    let slots: Vec<Slot> = MACHINE.lines().map(slot).collect();
    for slot in &slots {
        fs::create_dir_all(slot.path.parent().expect("a path has a parent"))
            .expect("a writable temporary directory");
        slot.put(slot.text.as_bytes());
    }
    slots
});

/// Of this process alone. scripts/fuzz says where, in memory, and removes it.
fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = std::env::temp_dir().join(format!("sys.{}", std::process::id()));
        fs::create_dir_all(&path).expect("a writable temporary directory");
        path
    });
    &ROOT
}

impl Slot {
    fn put(&self, text: &[u8]) {
        if !self.link {
            fs::write(&self.path, text).expect("a writable temporary directory");
            return;
        }
        let _ = fs::remove_file(&self.path);
        // What can be no target leaves a hole.
        let target = String::from_utf8_lossy(text);
        let _ = symlink(&*target, &self.path);
    }
}

fuzz_target!(|data: &[u8]| {
    let mounts = mountinfo::parse(data);
    for dir in ["/", "/sys"] {
        let below = mountinfo::below(&mounts, 1, Path::new(dir));
        assert!(below.iter().all(|path| path.is_relative()), "{below:?}");
    }
    let lines: Vec<(usize, &[u8])> = data
        .split(|b| *b == b'\n')
        .take(40)
        .filter_map(|l| Some((usize::from(*l.first()?), l.get(1..)?)))
        .collect();
    let slots = &*SLOTS;
    for (at, text) in &lines {
        slots[at % slots.len()].put(text);
    }
    look();
    for (at, _) in &lines {
        let slot = &slots[at % slots.len()];
        slot.put(slot.text.as_bytes());
    }
    rdmaprep_fuzz::print_heap();
});

fn look() {
    let seen = tree_snapshot(root()).expect("a /sys");
    let text = serde_json::to_string(&seen).expect("a snapshot as JSON");
    assert_eq!(
        serde_json::from_str::<Snapshot>(&text).expect("it is read back"),
        seen
    );
    let table = report::snapshot_table(&seen);
    assert!(
        !table.contains(|c: char| c.is_control() && c != '\n'),
        "{table:?}"
    );
    let survey = Survey::open(root()).expect("a /sys");
    let (links, whole) = (survey.links(), survey.whole());
    let one: BTreeSet<HcaName> = seen.hcas.iter().take(1).map(|h| h.name.clone()).collect();
    let keep = Keep::hcas(one, &seen);
    let live = view::live(&keep, &seen, &links);
    view::covers(&live);
    // Nonsense may hide what is kept, never show what is not. One in which nothing is hidden has no
    // such directory.
    for view in [live, view::snapshot(&keep, &seen, whole)] {
        let hidden = seen
            .hcas
            .iter()
            .filter(|hca| !keep.hcas.contains(&hca.name));
        let shown: Vec<&Hca> = hidden
            .filter(|h| view.get(&format!("class/infiniband/{}", h.name)).is_some())
            .collect();
        assert!(shown.is_empty(), "seen, too: {shown:?}");
    }
}
