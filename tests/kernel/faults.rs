//! A build without the cargo feature `faults` cannot be made to fail: it has no fault points and
//! reads none of their variables.
#![cfg(not(feature = "faults"))]

use std::path::Path;

use crate::alone;
use testkit::{Container, run};

#[test]
fn a_build_without_the_feature_passes_no_points() {
    alone(|host| {
        host.rails(1);
        let before = host.look();
        host.prepare("r0");
        let mut c = Container::new("c");
        let points = "/run/points";
        let mut hook = host.command(&["hook", "createRuntime"]);
        let hook = hook
            .env("RDMAPREP_FAULT", "1:kill,2:error")
            .env("RDMAPREP_FAULT_POINTS", points);
        run(hook, &c.state()).ok();
        assert!(!Path::new(points).exists());
        c.stop(host).ok();
        host.is_as(&before);
    });
}

#[test]
fn a_build_without_the_feature_knows_no_variable_for_them() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_rdmaprep")).unwrap();
    let has = |word: &str| program.windows(word.len()).any(|w| w == word.as_bytes());
    // One that it does read: a search in the wrong file would find nothing.
    assert!(has("RDMAPREP_RUN_DIR"));
    assert!(!has("RDMAPREP_FAULT"));
}

#[test]
#[ignore = "needs a build with fault points: cargo test --features faults --test crash; \
    scripts/test does so"]
fn crash_at_every_step() {
    panic!("this build has no fault points: run cargo test --features faults --test crash");
}
