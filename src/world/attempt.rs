//! Whether device nodes can be opened: here, or as a container would, in its cgroup, below its root.
//!
//! What a device cgroup allows, nobody tells: its programs are asked by the kernel alone, for who opens. So a process of ours
//! enters the container's cgroup, opens the nodes and ends. A container's root is untrusted: a node is opened only when it is
//! known to be the right one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::doctor::seen::Node;
use crate::snapshot::CharDevice;
use crate::world::rootfs::{Root, stat_of};

/// A cgroup may be frozen, and who enters it freezes as well.
const PATIENCE: Duration = Duration::from_secs(3);

/// What becomes of nodes, by name.
type Nodes = BTreeMap<String, Node>;

/// Tries them below this process's own root.
pub fn here(devices: &[CharDevice]) -> Nodes {
    below(Path::new("/"), devices, 0)
}

/// The same below another root, for that user.
fn below(root: &Path, devices: &[CharDevice], uid: u32) -> Nodes {
    let root = Root::open(root);
    let one = |d: &CharDevice| match &root {
        Ok(root) => look(root, d, uid),
        Err(e) => Node::Untried(format!("{e:#}")),
    };
    devices.iter().map(|d| (d.name.clone(), one(d))).collect()
}

fn look(root: &Root, device: &CharDevice, uid: u32) -> Node {
    let found = match root.find(&format!("dev/infiniband/{}", device.name)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Node::Missing,
        Err(e) => return Node::Refused(e.to_string()),
        Ok(found) => found,
    };
    match root.open_device(&found, (device.major, device.minor)) {
        Err(e) => Node::Refused(e.to_string()),
        Ok(Err(what)) => Node::Wrong(what),
        Ok(Ok(_)) => match stat_of(&found) {
            // We may open what that user may not.
            Ok(stat) if uid != 0 && stat.st_mode & 0o006 != 0o006 && stat.st_uid != uid => {
                let mode = stat.st_mode & 0o777;
                Node::Refused(format!("mode {mode:o} of user {}, and its init is user {uid}", stat.st_uid))
            }
            _ => Node::Opened,
        },
    }
}

/// Tries the nodes as a process of that container would: by a process that enters its cgroup.
pub fn within(pid: i32, uid: u32, devices: &[CharDevice]) -> Nodes {
    spawn(pid, uid, devices).unwrap_or_else(|e| {
        let why = format!("its cgroup could not be entered: {e:#}");
        // What is missing is missing in every cgroup.
        let untried = |node| if node == Node::Opened { Node::Untried(why.clone()) } else { node };
        let seen = below(&top(pid), devices, uid);
        seen.into_iter().map(|(name, node)| (name, untried(node))).collect()
    })
}

fn top(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root"))
}

fn spawn(pid: i32, uid: u32, devices: &[CharDevice]) -> Result<Nodes> {
    let words = devices.iter().map(|d| format!("{}:{}:{}", d.name, d.major, d.minor));
    let mut child = Command::new("/proc/self/exe")
        .args(["try-nodes", &pid.to_string(), &uid.to_string()])
        .args(words)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting a process for it")?;
    let end = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().context("waiting for it")? {
            Some(status) => break status,
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            None => {
                child.kill().context("ending it")?;
                // Nobody waits for it, or looks in its place: a file system of the container's own need not answer, either.
                let untried = || Node::Untried("nothing happens there; is it frozen?".to_owned());
                return Ok(devices.iter().map(|d| (d.name.clone(), untried())).collect());
            }
        }
    };
    let read = |pipe: Option<&mut dyn Read>| {
        let mut text = String::new();
        pipe.map(|p| p.take(64 << 10).read_to_string(&mut text)).transpose().map(|_| text)
    };
    let said = read(child.stderr.as_mut().map(|p| p as &mut dyn Read))?;
    ensure!(status.success(), "{}", said.trim().trim_start_matches("rdmaprep: "));
    let told = read(child.stdout.as_mut().map(|p| p as &mut dyn Read))?;
    serde_json::from_str(&told).context("reading what it tells")
}

/// The process that enters: for `rdmaprep try-nodes` alone.
pub fn enter(pid: i32, uid: u32, devices: &[CharDevice]) -> Result<Nodes> {
    // Before it is in a cgroup whose limits are others': where memory ends there, this is what goes.
    fs::write("/proc/self/oom_score_adj", b"1000").context("making way for others")?;
    let root = top(pid);
    for procs in cgroups(pid)? {
        fs::write(&procs, b"0").with_context(|| format!("entering {}", procs.display()))?;
    }
    Ok(below(&root, devices, uid))
}

/// Where to enter: the one of the second version; of the first, that of devices.
fn cgroups(pid: i32) -> Result<Vec<PathBuf>> {
    let mut text = String::new();
    let path = format!("/proc/{pid}/cgroup");
    File::open(&path)
        .and_then(|f| f.take(64 << 10).read_to_string(&mut text))
        .with_context(|| format!("reading {path}"))?;
    let place = |line: &str| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let mount = match controllers {
            "" if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() => "/sys/fs/cgroup",
            "devices" => "/sys/fs/cgroup/devices",
            _ => return None,
        };
        // A path that leads up is of another cgroup namespace than ours.
        (!path.contains("..")).then(|| PathBuf::from(format!("{mount}{path}/cgroup.procs")))
    };
    let found: Vec<PathBuf> = text.lines().filter_map(place).collect();
    ensure!(!found.is_empty(), "no cgroup that holds devices is known of process {pid}");
    Ok(found)
}
