//! A process that holds.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Host, Look, Said};

/// The namespace /run/netns/pool, with the plan `default`.
pub const POOL: &[&str] = &["--name", "pool"];

/// A process that holds; it does not outlive the test.
pub struct Hold {
    child: Child,
    out: BufReader<ChildStdout>,
    pub line: String,
}

impl Hold {
    /// Waits until it is ready.
    pub fn new(host: &Host, args: &[&str]) -> Hold {
        Hold::begun(&mut host.command(&[&["hold"], args].concat()))
            .unwrap_or_else(|said| panic!("{said:?}"))
    }

    /// Starts one that may end before it is ready.
    pub fn begun(command: &mut Command) -> Result<Hold, Said> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut out, mut line) = (BufReader::new(child.stdout.take().unwrap()), String::new());
        out.read_line(&mut line).unwrap();
        if line.is_empty() {
            return Err(child.wait_with_output().unwrap().into());
        }
        Ok(Hold { child, out, line })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn handle(&self, name: &str) -> String {
        let of = |word: &str| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        self.line
            .split_whitespace()
            .find_map(of)
            .unwrap_or_else(|| panic!("no {name} in {}", self.line))
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    /// Tells it to end and waits until it has.
    pub fn end(mut self, signal: Signal) -> Said {
        self.signal(signal);
        let mut said = Said {
            code: self.child.wait().unwrap().code(),
            out: String::new(),
            err: String::new(),
        };
        self.out.read_to_string(&mut said.out).unwrap();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said.err)
            .unwrap();
        said
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Insists that nothing is left of a hold.
pub fn whole(host: &Host, before: &Look) {
    host.is_as(before);
    host.is_clean();
    assert!(
        !Path::new("/run/netns/pool").exists(),
        "its name is still there"
    );
    assert!(
        !fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .contains("/run/netns/"),
        "it is still mounted"
    );
}
