//! Debian's etcd, for tests.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server of its own for one test, in a folder and on ports of its own.
pub struct Server {
    child: Child,
    pub folder: tempfile::TempDir,
    pub port: u16,
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

impl Server {
    pub fn start() -> Server {
        let folder = tempfile::tempdir().unwrap();
        Server::with("http", folder, &[])
    }

    /// `files`: flags with a file of that folder each.
    pub fn with(scheme: &str, folder: tempfile::TempDir, files: &[(&str, &str)]) -> Server {
        // Another process may take the ports meanwhile.
        for attempt in 0..3 {
            let (port, peers) = (free_port(), free_port());
            let log = std::fs::File::create(folder.path().join("log")).unwrap();
            let mut command = Command::new("etcd");
            command.env_clear().env("PATH", "/usr/bin:/bin");
            command
                .arg("--data-dir")
                .arg(folder.path().join(format!("data{attempt}")));
            for flag in ["--listen-client-urls", "--advertise-client-urls"] {
                command.args([flag, &format!("{scheme}://127.0.0.1:{port}")]);
            }
            for flag in ["--listen-peer-urls", "--initial-advertise-peer-urls"] {
                command.args([flag, &format!("http://127.0.0.1:{peers}")]);
            }
            command.args([
                "--initial-cluster",
                &format!("default=http://127.0.0.1:{peers}"),
            ]);
            for (flag, file) in files {
                command
                    .arg(flag)
                    .args((!file.is_empty()).then(|| folder.path().join(file)));
            }
            let child = command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn();
            let mut child =
                child.expect("etcd is needed: Debian's etcd-server, which scripts/test installs");
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none() {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Server {
                        child,
                        folder,
                        port,
                    };
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!(
            "etcd does not start: {}",
            std::fs::read_to_string(folder.path().join("log")).unwrap()
        )
    }

    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }

    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
