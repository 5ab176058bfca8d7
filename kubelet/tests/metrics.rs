//! What monitoring is answered with.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rdmaprep_kubelet::metrics::serve;

fn asked(address: SocketAddr, request: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

/// A server whose first look fails.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut looks = 0;
    thread::spawn(move || {
        let text = || {
            looks += 1;
            match looks {
                1 => anyhow::bail!("no records can be listed"),
                _ => Ok("# EOF\n".to_owned()),
            }
        };
        serve(&listener, text, |_| {});
    });
    address
}

#[test]
fn metrics_are_served_one_request_after_the_other() {
    let address = server();
    let scrape = "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n";
    let failed = asked(address, scrape);
    assert!(failed.starts_with("HTTP/1.1 500 "), "{failed}");
    assert!(
        failed.ends_with("\r\n\r\nno records can be listed\n"),
        "{failed}"
    );
    let whole = asked(address, scrape);
    assert!(whole.starts_with("HTTP/1.1 200 OK\r\n"), "{whole}");
    assert!(
        whole.contains("\r\nContent-Type: application/openmetrics-text; version=1.0.0;"),
        "{whole}"
    );
    assert!(whole.contains("\r\nContent-Length: 6\r\n"), "{whole}");
    assert!(whole.ends_with("\r\n\r\n# EOF\n"), "{whole}");
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("GET /metrics/../etc HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("GET /metrics\r\n\r\n", "400"),
        ("\u{0}\u{1}\r\n\r\n", "400"),
        (&"x".repeat(8 << 10), "400"),
    ] {
        let answer = asked(address, request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
}

#[test]
fn metrics_of_a_silent_client_are_not_waited_for() {
    let address = server();
    let begun = Instant::now();
    let silent = TcpStream::connect(address).unwrap();
    let mut gone = TcpStream::connect(address).unwrap();
    gone.write_all(b"GET").unwrap();
    gone.shutdown(Shutdown::Write).unwrap();
    let answer = asked(address, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(9));
    drop(silent);
}

/// The first free port, which another program may take before ours does.
fn address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[test]
fn metrics_are_served_by_both_programs() {
    const CDI: &str = r#"{"cdiVersion": "0.3.0", "kind": "rdmaprep.io/rail", "devices": [
      {"name": "nowhere0", "containerEdits": {"env": ["RDMAPREP_RAIL_nowhere0=mlx5_900"],
        "hooks": [{"hookName": "createRuntime", "path": "/usr/bin/rdmaprep",
          "args": ["rdmaprep", "hook", "createRuntime", "--rail", "nowhere0"]}]}}]}"#;
    for program in [
        env!("CARGO_BIN_EXE_rdmaprep-device-plugin"),
        env!("CARGO_BIN_EXE_rdmaprep-dra"),
    ] {
        let tree = tempfile::tempdir().unwrap();
        let at = |name: &str| tree.path().join(name).display().to_string();
        std::fs::write(at("cdi.json"), CDI).unwrap();
        let (address, run) = (address(), at("run"));
        let mut command = Command::new(program);
        command
            .env_clear()
            .args(["--cdi", &at("cdi.json"), "--run-dir", &run]);
        command.args(["--metrics", &address.to_string()]);
        let is_dra = program.ends_with("dra");
        match is_dra {
            true => command.args(["--kubelet-root", &at("kubelet"), "--cdi-folder", &at("cdi")]),
            false => command.args(["--kubelet-dir", &at("kubelet")]),
        };
        if is_dra {
            command.args(["--api-server", "http://127.0.0.1:1"]);
        }
        let mut server = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(server.stderr.take().unwrap()).lines();
        let line = said.find(|line| line.as_ref().is_ok_and(|l| l.contains("metrics at http")));
        assert!(line.is_some(), "{program}");
        let answer = asked(address, "GET /metrics HTTP/1.1\r\n\r\n");
        server.kill().unwrap();
        server.wait().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains("rdmaprep_records{state=\"attached\"} 0\n"),
            "{answer}"
        );
        assert!(answer.ends_with("# EOF\n"), "{answer}");
    }
}
