//! An image's nccl.conf: it stays as it is and wins, whatever is in it, and what we add is read
//! back.
#![no_main]

use rdma_model::nic::EnvVar;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use nccl_rules::conf::{merge, parse};
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;

fuzz_target!(|data: &[u8]| {
    // After an empty line: settings that are not ours to trust either, NAME=VALUE.
    let at = data
        .windows(2)
        .position(|w| w == b"\n\n")
        .unwrap_or(data.len());
    let (image, more) = data.split_at(at);
    let more = String::from_utf8_lossy(more);
    let var = |(name, value): (&str, &str)| EnvVar {
        name: name.into(),
        value: value.into(),
        why: String::new(),
    };
    let fixed = [
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_1"),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("NCCL_IB_GID_INDEX", "3"),
    ];
    let ours: Vec<EnvVar> = fixed
        .into_iter()
        .chain(more.lines().filter_map(|l| l.split_once('=')))
        .map(var)
        .collect();
    let once = merge(image, &ours);
    assert!(once.bytes.starts_with(image));
    let twice = merge(&once.bytes, &ours);
    assert_eq!(twice.bytes, once.bytes);
    let (before, after) = (parse(image), parse(&once.bytes));
    assert!(
        before.iter().all(|pair| after.contains(pair)),
        "the image's own lines win"
    );
    let added = |name: &String| after.iter().any(|(n, _)| *n == name.as_bytes());
    assert!(once.added.iter().all(added));
    assert!(
        once.kept
            .iter()
            .all(|kept| !kept.contains(|c: char| c.is_control())),
        "{:?}",
        once.kept
    );
    for version in [Version::NEWEST, Version::new(2, 18, 3)] {
        let mut settings = Settings::default();
        settings.add(Path::new("/etc/nccl.conf"), &once.bytes, version);
        settings.files(Some(Path::new("/root")), version);
    }
    rdmaprep_fuzz::print_heap();
});
