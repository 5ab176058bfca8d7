//! The program's flags for etcd, with Debian's etcd.
#[path = "../../crates/rail-agreement/tests/support/mod.rs"]
mod support_peers;

use std::process::Command;
use std::time::{Duration, Instant};

use rail_agreement::agree;
use rail_agreement::etcd::Etcd;
use support_peers::etcd::Server;
use support_peers::setup;

fn soon(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

#[test]
fn the_program_takes_the_url_and_never_a_password() {
    let server = Server::start();
    let mut other = Etcd::connect(
        server.url().parse().unwrap(),
        None,
        soon(60),
        Duration::ZERO,
    )
    .unwrap();
    let waiting = std::thread::spawn(move || {
        agree(
            &mut other,
            setup(0, 2, &["r0"], 1),
            soon(10),
            &mut |_| Ok(()),
            None,
        )
    });
    let peers = |url: &str, env: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        command.env_clear().envs(env.iter().copied());
        let said = command
            .args([
                "job-status",
                "--nodes",
                "2",
                "--run-id",
                "job.1",
                "--rendezvous",
                url,
            ])
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (said.status.code(), text(&said.stdout), text(&said.stderr))
    };
    let start = Instant::now();
    while !peers(&server.url(), &[]).1.contains("1 of 2 nodes") {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{:?}",
            peers(&server.url(), &[])
        );
    }
    assert!(waiting.join().unwrap().is_err(), "rank 1 never came");
    let (code, _, said) = peers("etcd://me:s3cret@127.0.0.1", &[]);
    assert!(code == Some(2) && !said.contains("s3cret"), "{said}");
    let (code, _, said) = peers(&server.url(), &[("RDMAPREP_ETCD_USER", "me")]);
    assert!(
        code == Some(2) && said.contains("RDMAPREP_ETCD_PASSWORD"),
        "{said}"
    );
    let (code, _, said) = peers(&format!("etcd://127.0.0.1:{}?what=x", server.port), &[]);
    assert!(
        code == Some(2) && said.contains("what") && said.lines().count() == 1,
        "{said}"
    );
}
