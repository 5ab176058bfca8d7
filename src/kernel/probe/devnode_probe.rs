//! Whether device nodes can be opened: here, or as a container would, in its cgroup, below its
//! root. The kernel does not report what a device cgroup allows: it runs the cgroup's programs only
//! for a process that opens. So a process of ours enters the container's cgroup, opens the nodes
//! and ends. A container's root is untrusted: a node is opened only when it is known to be the
//! right one, and its file systems need not answer, so that whatever looks there is a process of
//! its own.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rdma_model::snapshot::CharDevice;
use serde::de::DeserializeOwned;

use super::access::{NodeAccess, ProcessUser};
use crate::kernel::mount::rootfs::{Root, stat_of};

/// A cgroup may be frozen, and a process that enters it freezes as well; a file system of a
/// container's own may never answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Bytes that such a process may say: all files of NCCL's, and an environment.
const MOST: u64 = 16 << 20;

type Nodes = BTreeMap<String, NodeAccess>;

/// Tries them below this process's own root, for everybody.
pub fn here(devices: &[CharDevice]) -> Nodes {
    below(Path::new("/"), devices, None)
}

fn below(root: &Path, devices: &[CharDevice], user: Option<&ProcessUser>) -> Nodes {
    match Root::open(root) {
        Ok(root) => each(devices, |d| try_node(&root, d, user)),
        Err(e) => each(devices, |_| NodeAccess::Untried(format!("{e:#}"))),
    }
}

fn each(devices: &[CharDevice], access: impl Fn(&CharDevice) -> NodeAccess) -> Nodes {
    devices
        .iter()
        .map(|d| (d.name.clone(), access(d)))
        .collect()
}

fn try_node(root: &Root, device: &CharDevice, user: Option<&ProcessUser>) -> NodeAccess {
    let found = match root.find(&format!("dev/infiniband/{}", device.name)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return NodeAccess::Missing,
        Err(e) => return NodeAccess::Refused(e.to_string()),
        Ok(found) => found,
    };
    match root.open_device(&found, (device.major, device.minor)) {
        Err(e) => NodeAccess::Refused(e.to_string()),
        Ok(Err(what)) => NodeAccess::Wrong(what),
        Ok(Ok(_)) => match (stat_of(&found), user) {
            // We may open what that user may not.
            (Ok(stat), Some(user)) => user.opens(stat.st_mode, stat.st_uid, stat.st_gid),
            (Ok(stat), None) => NodeAccess::for_all(stat.st_mode, stat.st_uid, stat.st_gid),
            (Err(_), _) => NodeAccess::Opened,
        },
    }
}

pub fn within(pid: i32, user: &ProcessUser, devices: &[CharDevice]) -> Nodes {
    let nodes = devices
        .iter()
        .map(|d| format!("{}:{}:{}", d.name, d.major, d.minor));
    let words = [pid.to_string(), "--user".to_owned(), user.to_string()]
        .into_iter()
        .chain(nodes);
    let why = match run_probe(words) {
        Ok(Some(nodes)) => return nodes,
        Ok(None) => "nothing happens there; is it frozen, or a file system of its own?".to_owned(),
        Err(e) => format!("{e:#}"),
    };
    each(devices, |_| NodeAccess::Untried(why.clone()))
}

/// NCCL's settings there, as `rdmaprep try-nodes --settings` prints them for a release.
pub fn settings<T: DeserializeOwned>(pid: i32, release: impl Display) -> Result<T> {
    run_probe([pid.to_string(), format!("--settings={release}")])?
        .with_context(|| format!("its files or its memory do not answer in {PATIENCE:?}"))
}

/// The libraries there, as `rdmaprep try-nodes --libraries` prints them.
pub fn libraries<T: DeserializeOwned>(pid: i32, providers: &str) -> Result<T> {
    let words = [pid.to_string(), format!("--libraries={providers}")];
    run_probe(words)?.with_context(|| format!("its files do not answer in {PATIENCE:?}"))
}

fn top(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root"))
}

/// What `rdmaprep try-nodes` prints; nothing where it does not answer. It is killed then, and not
/// waited for: where a file system does not answer, even a killed process may not end soon.
fn run_probe<T: DeserializeOwned>(words: impl IntoIterator<Item = String>) -> Result<Option<T>> {
    let mut command = Command::new("/proc/self/exe");
    let Some(said) = bounded(command.arg("try-nodes").args(words).env_clear(), PATIENCE)? else {
        return Ok(None);
    };
    serde_json::from_slice(&said)
        .map(Some)
        .context("reading what it tells")
}

fn bounded(command: &mut Command, patience: Duration) -> Result<Option<Vec<u8>>> {
    let end = Instant::now() + patience;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting a process for it")?;
    let (stdout, stderr) = (hear(child.stdout.take())?, hear(child.stderr.take())?);
    let left = || end.saturating_duration_since(Instant::now());
    let (Ok(stdout), Ok(stderr)) = (stdout.recv_timeout(left()), stderr.recv_timeout(left()))
    else {
        child.kill().context("ending it")?;
        return Ok(None);
    };
    // Both have been closed: it is about to end.
    let status = loop {
        match child.try_wait().context("waiting for it")? {
            Some(status) => break status,
            None if left().is_zero() => {
                child.kill().context("ending it")?;
                return Ok(None);
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    let stderr = String::from_utf8_lossy(&stderr);
    ensure!(
        status.success(),
        "{}",
        stderr.trim().trim_start_matches("rdmaprep: ")
    );
    Ok(Some(stdout))
}

/// All that comes from a pipe, by a thread that ends with this process at the latest.
fn hear(pipe: Option<impl Read + Send + 'static>) -> Result<Receiver<Vec<u8>>> {
    let (tell, heard) = channel();
    let reader = thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        // What was read until it broke is what there is.
        let _ = pipe.map(|pipe| pipe.take(MOST).read_to_end(&mut bytes));
        // The caller may have given up.
        let _ = tell.send(bytes);
    });
    reader.context("starting a thread")?;
    Ok(heard)
}

/// For `rdmaprep try-nodes` alone: where memory ends, in a cgroup whose limits are others' or by a
/// file of the container's, this process is what goes.
pub fn make_way() -> Result<()> {
    fs::write("/proc/self/oom_score_adj", b"1000").context("making way for others")
}

/// The process that enters: for `rdmaprep try-nodes` alone.
pub fn enter(pid: i32, user: &ProcessUser, devices: &[CharDevice]) -> Result<Nodes> {
    let entered = cgroups(pid).and_then(|all| all.iter().try_for_each(|procs| join(procs)));
    let nodes = below(&top(pid), devices, Some(user));
    Ok(match entered {
        Ok(()) => nodes,
        Err(e) => outside(
            nodes,
            format_args!("its cgroup could not be entered: {e:#}"),
        ),
    })
}

fn join(procs: &Path) -> Result<()> {
    fs::write(procs, b"0").with_context(|| format!("entering {}", procs.display()))
}

/// What is missing is missing in every cgroup.
fn outside(nodes: Nodes, why: impl Display) -> Nodes {
    let mut nodes = nodes;
    for node in nodes.values_mut().filter(|n| **n == NodeAccess::Opened) {
        *node = NodeAccess::Untried(why.to_string());
    }
    nodes
}

/// Where to enter: the one of the second version; of the first, that of devices.
fn cgroups(pid: i32) -> Result<Vec<PathBuf>> {
    let mut text = String::new();
    let path = format!("/proc/{pid}/cgroup");
    File::open(&path)
        .and_then(|f| f.take(64 << 10).read_to_string(&mut text))
        .with_context(|| format!("reading {path}"))?;
    let found: Vec<PathBuf> = text.lines().filter_map(procs_of_devices).collect();
    ensure!(
        !found.is_empty(),
        "no cgroup that holds devices is known of process {pid}"
    );
    Ok(found)
}

fn procs_of_devices(line: &str) -> Option<PathBuf> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let mount = match controllers {
        "" if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() => "/sys/fs/cgroup",
        "devices" => "/sys/fs/cgroup/devices",
        _ => return None,
    };
    // A path that leads up is of another cgroup namespace than ours.
    (!path.contains("..")).then(|| PathBuf::from(format!("{mount}{path}/cgroup.procs")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, patience: Duration) -> Result<Option<Vec<u8>>> {
        bounded(Command::new("sh").args(["-c", script]), patience)
    }

    #[test]
    fn who_does_not_come_back_is_not_waited_for() {
        let (began, short) = (Instant::now(), Duration::from_millis(200));
        assert_eq!(sh("exec sleep 60", short).unwrap(), None);
        // Nor who says that it has ended, and has not.
        assert_eq!(sh("exec >&- 2>&-; exec sleep 60", short).unwrap(), None);
        // Nor a pipe that others hold.
        assert_eq!(sh("sleep 3 & echo x", short).unwrap(), None);
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn more_than_a_pipe_holds_is_heard() {
        let patience = Duration::from_secs(30);
        let said = sh("head -c 1000000 /dev/zero", patience).unwrap().unwrap();
        assert_eq!(said.len(), 1_000_000);
        assert_eq!(
            sh("echo rdmaprep: no >&2; exit 1", patience)
                .unwrap_err()
                .to_string(),
            "no"
        );
    }
}
