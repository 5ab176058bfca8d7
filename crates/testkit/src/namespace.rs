//! A host and containers for tests of the real program on the real kernel, without privileges.
//!
//! A test body runs in user, network and mount namespaces of its own ([`alone`]): whatever it does
//! ends with it, and tests run beside one another. NICs are veth pairs; a container is a process in
//! a further network namespace.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ipv6;

/// Set inside the namespaces of a test.
const INSIDE: &str = "RDMAPREP_TEST_INSIDE";
/// A tmpfs that exists for the test alone.
const ROOT: &str = "/run";

/// Defines `alone`, `alone_as_root` and `abreast` in the root of a test program: they run the
/// `rdmaprep` that cargo built for it.
#[macro_export]
macro_rules! runner {
    () => {
        /// Runs the body in namespaces of its own, by running this test program there again with
        /// just this test.
        #[allow(dead_code, reason = "each program uses its part")]
        fn alone<F: FnOnce(&$crate::Host)>(body: F) {
            $crate::namespace::alone(env!("CARGO_BIN_EXE_rdmaprep"), body, true);
        }

        /// Runs the body in such namespaces with the machine's own root: it may load BPF
        /// programs and set the queues of a NIC, which root of a user namespace may not. Other
        /// users get a user namespace, and the kernel's refusals.
        #[allow(dead_code, reason = "each program uses its part")]
        fn alone_as_root<F: FnOnce(&$crate::Host)>(body: F) {
            let root = $crate::namespace::is_root();
            $crate::namespace::alone(env!("CARGO_BIN_EXE_rdmaprep"), body, !root);
        }

        /// Runs the body that many times at once, each in namespaces of its own and with a number
        /// of its own. What each has printed; inside it is nothing.
        #[allow(dead_code, reason = "each program uses its part")]
        fn abreast<F: FnOnce(&$crate::Host, usize)>(count: usize, body: F) -> Vec<String> {
            $crate::namespace::abreast(env!("CARGO_BIN_EXE_rdmaprep"), count, body)
        }
    };
}

/// Whether this process is the machine's root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs the body in network and mount namespaces of its own, and a user namespace if asked for: see
/// [`runner!`].
pub fn alone<F: FnOnce(&Host)>(program: &'static str, body: F, user: bool) {
    match inside() {
        Some(_) => body(&Host::new(program)),
        None => {
            let said = passed::<F>(enter::<F>(0, user).wait_with_output().unwrap());
            said.unwrap_or_else(|said| panic!("{said}"));
        }
    }
}

/// Runs the body that many times at once: see [`runner!`].
pub fn abreast<F: FnOnce(&Host, usize)>(
    program: &'static str,
    count: usize,
    body: F,
) -> Vec<String> {
    if let Some(number) = inside() {
        body(&Host::new(program), number);
        return Vec::new();
    }
    let all: Vec<Child> = (0..count).map(|number| enter::<F>(number, true)).collect();
    // Those that failed early must not leave the others alone.
    let all: Vec<Output> = all
        .into_iter()
        .map(|child| child.wait_with_output().unwrap())
        .collect();
    let all: Vec<Result<String, String>> = all.into_iter().map(passed::<F>).collect();
    let failed: Vec<&str> = all
        .iter()
        .filter_map(|r| r.as_ref().err())
        .map(String::as_str)
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    all.into_iter().flatten().collect()
}

fn inside() -> Option<usize> {
    std::env::var(INSIDE)
        .ok()
        .map(|number| number.parse().unwrap())
}

/// The test that a closure is written in, as libtest names it: `kernel::shim::starts::{{closure}}`
/// is in `shim::starts`.
fn test_of<F>() -> &'static str {
    let path = std::any::type_name::<F>();
    let (_program, path) = path.split_once("::").unwrap_or(("", path));
    path.split("::{{closure}}").next().unwrap_or(path)
}

fn arguments<F>() -> [&'static str; 5] {
    [
        "--exact",
        test_of::<F>(),
        "--include-ignored",
        "--nocapture",
        "--test-threads=1",
    ]
}

/// The arguments by which a test program runs just this test.
pub fn only<F: Fn()>(_test: &F) -> [&'static str; 5] {
    arguments::<F>()
}

fn enter<F>(number: usize, user: bool) -> Child {
    Command::new("unshare")
        .args(["--net", "--mount"])
        .args(if user {
            &["--user", "--map-root-user"][..]
        } else {
            &[]
        })
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(arguments::<F>())
        .env(INSIDE, number.to_string())
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare (util-linux) is needed")
}

fn passed<F>(output: Output) -> Result<String, String> {
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if output.status.success() && said.contains(" 1 passed;") {
        return Ok(said);
    }
    if said.contains("\nrunning 0 tests") {
        let test = test_of::<F>();
        return Err(format!(
            "{test} is no test: the closure of a body has to be written in the test itself\n{said}"
        ));
    }
    Err(format!("inside the namespaces:\n{said}"))
}

/// What a program said and how it ended.
#[derive(Debug)]
pub struct Said {
    /// Exit code; `None`: a signal.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

impl Said {
    /// Insists on success.
    pub fn ok(self) -> Said {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Insists on this exit code, and on exactly one error line on stderr, which has all these
    /// words; only code 4, no NIC is left, brings its table along.
    pub fn fails(self, code: i32, words: &[&str]) -> Said {
        assert_eq!(self.code, Some(code), "{self:#?}");
        let lines: Vec<&str> = self
            .err
            .lines()
            .filter(|l| !l.starts_with("rdmaprep: warning: "))
            .collect();
        let one = lines.len() == 1 || code == 4;
        assert!(
            one && lines[0].starts_with("rdmaprep: "),
            "not one line: {self:#?}"
        );
        // The table is wrapped.
        let text = self.err.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            let found =
                lines.iter().any(|l| l.contains(word)) || (code == 4 && text.contains(word));
            assert!(found, "no {word:?} in: {self:#?}");
        }
        self
    }
}

/// Runs a program to its end with that on its stdin.
pub fn run(command: &mut Command, stdin: &str) -> Said {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who refuses early does not read everything.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap().into()
}

/// Runs a shell line, insists on success and returns its stdout.
pub fn sh(line: &str) -> String {
    run(Command::new("sh").args(["-ec", line]), "").ok().out
}

/// Waits until it is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "waited in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Panics with a diff unless the texts are equal.
pub fn same(what: &str, before: &str, after: &str) {
    assert!(
        before == after,
        "{what} differs:\n{}",
        rdmaprep::oci::edit::file_diff(["before", "after"], before, after)
    );
}

/// A line of iproute2 without the carrier, which follows some time after the call, and the queueing
/// discipline, which a move resets (verify::LEFT_OUT).
fn settled(line: &str) -> String {
    let passing =
        ["UP", "DOWN", "UNKNOWN", "LOWERLAYERDOWN"].map(|state| format!(" state {state}"));
    let others = [
        "NO-CARRIER,",
        ",LOWER_UP",
        ",M-DOWN",
        " linkdown",
        " dead",
        " qdisc noqueue",
        " qdisc noop",
    ];
    let all = passing.iter().map(String::as_str).chain(others);
    all.fold(line.to_owned(), |line, word| line.replace(word, ""))
}

/// A route without the order of its legs, and what `ip` says of the first one of IPv6 alone: where
/// these are one program's the normal form has both.
fn legs_in_order(line: String) -> String {
    let mut parts = line.split("\\\tnexthop ");
    let route = parts.next().unwrap_or_default();
    let mut legs: Vec<&str> = parts.map(str::trim).collect();
    if legs.is_empty() || !route.contains(" pref ") {
        return line;
    }
    legs.sort_unstable();
    let destination = route.split(' ').next().unwrap_or_default();
    format!("{destination} legs {}", legs.join(", "))
}

/// The host: this network namespace, with a run folder, a state folder and a config file.
pub struct Host {
    program: &'static str,
    pub run: PathBuf,
    pub state: PathBuf,
    pub config: PathBuf,
    pub log: PathBuf,
}

impl Host {
    pub fn new(program: &'static str) -> Host {
        sh(&format!(
            "mount -t tmpfs -o mode=755 tmpfs {ROOT}; ip link set lo up"
        ));
        // This machine's name servers are none of the test's: the host uses them, and they may be
        // in a rail's subnet.
        sh("test ! -e /etc/resolv.conf || mount --bind /dev/null /etc/resolv.conf");
        let at = |name: &str| PathBuf::from(ROOT).join(name);
        let host = Host {
            program,
            run: at("run"),
            state: at("state"),
            config: at("config.toml"),
            log: at("log"),
        };
        host.configure("");
        host
    }

    /// Writes the config file; the log of the hooks is always the test's own.
    pub fn configure(&self, toml: &str) {
        fs::write(
            &self.config,
            format!("hook_log = {:?}\nlock_timeout_ms = 200\n{toml}", self.log),
        )
        .unwrap();
    }

    /// Runs `ip -batch` with these lines.
    pub fn ip(&self, batch: &str) {
        run(Command::new("ip").args(["-batch", "-"]), batch).ok();
    }

    /// Makes NICs r0 … with one IPv4 address each, which are up as their peers p0 … are.
    pub fn rails(&self, count: usize) -> String {
        let names: Vec<String> = (0..count).map(|i| format!("r{i}")).collect();
        for i in 0..count {
            self.ip(&format!(
                "link add r{i} type veth peer name p{i}\nlink set p{i} up\nlink set r{i} up\n\
                 address add 10.{i}.0.1/24 dev r{i}"
            ));
        }
        names.join(",")
    }

    /// rdmaprep with an environment as empty as some runtimes give it.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.env_clear().args(args);
        command
            .arg("--run-dir")
            .arg(&self.run)
            .arg("--state-dir")
            .arg(&self.state)
            .arg("--config")
            .arg(&self.config);
        command
    }

    /// Runs rdmaprep.
    pub fn rdmaprep(&self, args: &[&str]) -> Said {
        run(&mut self.command(args), "")
    }

    /// Stores the plan `default` with these NICs.
    pub fn prepare(&self, ifaces: &str) -> Said {
        self.rdmaprep(&["prepare", "--ifaces", ifaces]).ok()
    }

    /// Runs a hook with that state on stdin.
    pub fn hook(&self, stage: &str, state: &str) -> Said {
        run(&mut self.command(&["hook", stage]), state)
    }

    /// The normal form of this host's network.
    pub fn normal(&self) -> String {
        self.rdmaprep(&["snapshot", "--normal"]).ok().out
    }

    /// The host's network as iproute2 sees it: a second opinion on what is equal.
    pub fn iproute(&self) -> String {
        // A process for each table takes much of the time of tests that look often.
        let mut lines: Vec<String> = sh("ip -o -d link; ip -o address; for family in -4 -6; do
            printf '%s\n' 'route show table all' rule 'neighbour show nud permanent' \
            'neighbour show proxy' | ip -o $family -batch -; done")
        .lines()
        // The kernel makes and settles these by itself, some time after the call.
        .filter(|l| !l.contains("fe80::") && !l.contains("ff00::") && !l.contains("anycast"))
        .map(settled)
        .map(legs_in_order)
        .collect();
        lines.sort();
        lines.join("\n") + "\n"
    }

    /// Both opinions, when the kernel has done what it does by itself.
    pub fn look(&self) -> Look {
        ipv6::settled(sh);
        Look {
            normal: self.normal(),
            iproute: self.iproute(),
        }
    }

    /// Insists that the network is what it was: at once in normal form, and soon in what iproute2
    /// shows of the kernel's own doings.
    pub fn is_as(&self, before: &Look) {
        same("the host's normal form", &before.normal, &self.normal());
        let start = Instant::now();
        while before.iproute != self.iproute() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        same(
            "the host as iproute2 sees it",
            &before.iproute,
            &self.iproute(),
        );
    }

    /// Insists that nothing is left of containers: no record, no pin.
    pub fn is_clean(&self) {
        let count = |folder: PathBuf| fs::read_dir(folder).map_or(0, Iterator::count);
        assert_eq!((self.records(), count(self.run.join("netns"))), (vec![], 0));
        let pins = self.run.join("netns").display().to_string();
        assert!(
            !fs::read_to_string("/proc/self/mounts")
                .unwrap()
                .contains(&pins),
            "a pin is still mounted"
        );
    }

    /// The paths of the records that count.
    pub fn records(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.run.join("records")) else {
            return Vec::new();
        };
        let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
        paths.sort();
        paths
    }

    /// The holders of `status --json`.
    pub fn status(&self) -> Value {
        serde_json::from_str::<Value>(&self.rdmaprep(&["status", "--json"]).ok().out)
            .unwrap()["holders"].take()
    }

    /// The report of a container's last hook.
    pub fn report(&self, id: &str) -> Value {
        let path = self.run.join(format!("reports/{id}.json"));
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }
}

/// The host's network at one time.
pub struct Look {
    pub normal: String,
    iproute: String,
}

/// A container: an init in a network namespace of its own, which ends when this is dropped or the
/// test dies.
pub struct Container {
    pub id: String,
    init: Child,
    annotations: Value,
    bundle: String,
}

impl Container {
    /// One that asks for the plan `default`.
    pub fn new(id: &str) -> Container {
        Container::start(id, Command::new("unshare").arg("--net"))
    }

    /// A second one in the first one's network namespace.
    pub fn beside(id: &str, first: &Container) -> Container {
        Container::start(
            id,
            Command::new("nsenter").arg(format!("--net=/proc/{}/ns/net", first.pid())),
        )
    }

    /// One in a namespace that its config.json names by path.
    pub fn joining(id: &str, netns: &str) -> Container {
        Container::start(id, Command::new("nsenter").arg(format!("--net={netns}")))
    }

    /// One whose init that command becomes when it runs what is added to its arguments.
    pub fn start(id: &str, enter: &mut Command) -> Container {
        // cat ends when our end of its stdin is closed.
        let command = enter
            .args(["sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut init = command
            .spawn()
            .expect("unshare and nsenter (util-linux) are needed");
        let mut line = String::new();
        BufReader::new(init.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "\n", "init did not start");
        Container {
            id: id.to_owned(),
            init,
            annotations: json!({"rdmaprep.io/plan": "default"}),
            bundle: "/b".into(),
        }
    }

    /// With these annotations instead.
    pub fn annotated(mut self, annotations: Value) -> Container {
        self.annotations = annotations;
        self
    }

    /// With a bundle that holds this config.json.
    pub fn bundled(mut self, host: &Host, config: &Value) -> Container {
        let bundle = host
            .run
            .parent()
            .unwrap()
            .join(format!("bundle-{}", self.id));
        fs::create_dir_all(&bundle).unwrap();
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        self.bundle = bundle.display().to_string();
        self
    }

    /// With a bundle that is there.
    pub fn in_bundle(mut self, bundle: &str) -> Container {
        self.bundle = bundle.to_owned();
        self
    }

    pub fn pid(&self) -> u32 {
        self.init.id()
    }

    /// The state that a runtime gives to a hook while init lives.
    pub fn state(&self) -> String {
        let (id, pid, annotations, bundle) =
            (&self.id, self.pid(), &self.annotations, &self.bundle);
        json!({"ociVersion": "1.2.0", "id": id, "status": "creating", "pid": pid, "bundle": bundle,
            "annotations": annotations})
        .to_string()
    }

    /// The state at poststop, as crun gives it.
    pub fn stopped(&self) -> String {
        json!({"ociVersion": "1.0", "id": self.id, "status": "stopped", "pid": 0,
            "bundle": self.bundle})
        .to_string()
    }

    /// Runs a shell line in its network namespace.
    pub fn sh(&self, line: &str) -> String {
        let net = format!("--net=/proc/{}/ns/net", self.pid());
        run(Command::new("nsenter").args([&net, "sh", "-ec", line]), "")
            .ok()
            .out
    }

    /// Ends its init; its namespace goes with it unless something else holds that.
    pub fn kill(&mut self) {
        self.init.kill().unwrap();
        self.init.wait().unwrap();
    }

    /// createRuntime.
    pub fn create(&self, host: &Host) -> Said {
        host.hook("createRuntime", &self.state())
    }

    /// Ends it and runs poststop.
    pub fn stop(&mut self, host: &Host) -> Said {
        self.kill();
        host.hook("poststop", &self.stopped())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.init.kill();
        let _ = self.init.wait();
    }
}
