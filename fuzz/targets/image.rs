//! What an image has for its loader: the first byte of each part says into which file it goes.
#![no_main]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rdma_model::ids::HcaName;
use rdmaprep::container::budget::Budget;
use rdmaprep::container::userspace::{IBVERBS_LIB, LIBRARY_PATH, Userspace, look};
use rdmaprep::kernel::mount::rootfs::Root;

/// ELF files of both machines: the loader, and libibverbs with a provider.
const LIBRARIES: [&str; 4] = [
    "lib64/ld-linux-x86-64.so.2",
    "lib/ld-linux-aarch64.so.1",
    "usr/lib/libibverbs.so.1",
    "opt/lib/libmlx5-rdmav34.so",
];

/// What the parts go into; libibverbs and a program come last.
const FILES: [&str; 7] = [
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d/own.conf",
    "etc/os-release",
    "etc/libibverbs.d/mlx5.driver",
    LIBRARIES[2],
    "bin/job",
];

const SEPARATOR: &[u8] = b"\n--\n";

/// Of this process alone. scripts/fuzz says where, in memory, and removes it.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = std::env::temp_dir().join(format!("image.{}", std::process::id()));
    for path in LIBRARIES {
        put(&root, path, &elf(path));
    }
    root
});

fn put(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a path has a parent"))
        .expect("a writable temporary directory");
    fs::write(path, bytes).expect("a writable temporary directory");
}

fn elf(path: &str) -> Vec<u8> {
    let is_arm = cfg!(target_arch = "aarch64") || path.contains("aarch64");
    let mut head = b"\x7fELF\x02".to_vec();
    head.resize(18, 0);
    head.extend(if is_arm { [183, 0] } else { [62, 0] });
    head.resize(64, 0);
    head
}

fuzz_target!(|data: &[u8]| {
    let mut parts: [&[u8]; FILES.len()] = [&[]; FILES.len()];
    let mut rest = Some(data);
    while let Some((at, text)) = rest.and_then(<[u8]>::split_first) {
        let end = text
            .windows(SEPARATOR.len())
            .position(|w| w == SEPARATOR)
            .unwrap_or(text.len());
        parts[usize::from(*at) % FILES.len()] = &text[..end];
        rest = text.get(end + SEPARATOR.len()..);
    }
    for (path, text) in FILES.iter().zip(parts) {
        let head = match *path == LIBRARIES[2] {
            true => elf(path),
            false => Vec::new(),
        };
        put(&ROOT, path, &[&head, text].concat());
    }
    let root = Root::open(&ROOT).expect("a root");
    let name: HcaName = "mlx5_0".parse().expect("a name");
    for folders in [None, Some("/opt/lib")] {
        let mut env: BTreeMap<String, String> = folders
            .map(|folders| (LIBRARY_PATH.to_owned(), folders.to_owned()))
            .into_iter()
            .collect();
        // By its name, as a name without a folder, and one that is not there.
        let named = [
            None,
            Some("/usr/lib/libibverbs.so.1"),
            Some("libibverbs.so.1"),
            Some("/none"),
        ];
        let named = named[data.len() % named.len()];
        env.extend(named.map(|name| (IBVERBS_LIB.to_owned(), name.to_owned())));
        let Some(found) = look(&root, &env, Some("/bin/job"), &["mlx5"], &Budget::new(None)) else {
            continue;
        };
        let text = serde_json::to_string(&found).expect("what was found as JSON");
        let again: Userspace = serde_json::from_str(&text).expect("it is read back");
        assert_eq!(again, found);
        for lack in found.lacks([(&name, "mlx5_core")], true) {
            let said = format!("{}: {}", lack.seen, lack.fix);
            assert!(!said.contains(char::is_control), "{said:?}");
        }
    }
    rdmaprep_fuzz::print_heap();
});
