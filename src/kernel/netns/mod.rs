//! Network namespaces: handles that keep one alive, and short visits.

mod nsfs;
pub mod pins;
pub mod search;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns, unshare};
use rdma_model::error_class::ErrorClass;

use crate::kernel::process::{capabilities, program};

/// Where `ip netns` keeps namespaces by name, and runtimes look for those that a config.json names.
pub const NAMED: &str = "/run/netns";

/// A visit takes a few milliseconds, or until a move of NICs lets go of the kernel's lock (rtnl).
const VISIT: Duration = Duration::from_millis(20);
const LOOKS: u32 = 10;

#[derive(Debug)]
pub struct Netns {
    file: File,
    inode: u64,
}

impl Netns {
    /// A new one, with nothing in it but a loopback interface that is down.
    pub fn make() -> Result<Netns> {
        let thread = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
            Netns::current()
        });
        thread
            .join()
            .map_err(|_| anyhow!("a thread that makes a network namespace panicked"))?
    }

    pub fn again(&self) -> Result<Netns> {
        let file = self
            .file
            .try_clone()
            .context("duplicating a network namespace's descriptor")?;
        Ok(Netns {
            file,
            inode: self.inode,
        })
    }

    pub fn current() -> Result<Netns> {
        Netns::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// The namespace that a process is in. A caller that holds the process's pidfd checks
    /// afterwards that the process has not ended, which proves that the pid was not reused
    /// meanwhile.
    pub fn of_process(pid: i32) -> Result<Netns> {
        Netns::open(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// The namespace behind a file of nsfs (a /proc link or a pin). The path may be anybody's: see
    /// [`nsfs::open`].
    pub fn open(path: &Path) -> Result<Netns> {
        let file = nsfs::open(path)?;
        let inode = file
            .metadata()
            .with_context(|| format!("reading {}", path.display()))?
            .ino();
        Ok(Netns { file, inode })
    }

    /// The one that a bundle names; nothing where that cannot be opened: the runtime reports it.
    /// What is no network namespace is [`ErrorClass::State`].
    pub fn named(path: &Path) -> Result<Option<Netns>> {
        match Netns::open(path) {
            Ok(netns) => nsfs::is_net(path, &netns.file).map(|()| Some(netns)),
            Err(e) if ErrorClass::of(&e) == ErrorClass::State => Err(e),
            Err(_) => Ok(None),
        }
    }

    /// The one at that path; [`ErrorClass::State`] where there is no network namespace.
    pub fn existing(path: &Path) -> Result<Netns> {
        let opened =
            Netns::open(path).and_then(|netns| nsfs::is_net(path, &netns.file).map(|()| netns));
        opened.map_err(|e| ErrorClass::State.error(format!("{e:#}")))
    }

    /// Its inode in nsfs: unique among the namespaces that exist.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `visit` inside this namespace. This thread is back in its own afterwards, or the
    /// process ends.
    ///
    /// A thread for each visit would be safe by itself. But what a thread leaves when it ends is
    /// freed by RCU, and each move of a NIC waits for that (rcu_barrier() in
    /// __dev_change_net_namespace()): ten threads make a move 18 ms slower, on 16 cores.
    pub fn visit<T>(&self, visit: impl FnOnce() -> Result<T>) -> Result<T> {
        let _home = WayHome::find()?;
        self.enter()?;
        visit()
    }

    fn enter(&self) -> Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).or_else(|e| {
            capabilities::require()?;
            Err(e).context("entering the network namespace")
        })
    }
}

/// Takes this thread back to where it was.
struct WayHome(File);

impl WayHome {
    /// Fails where there is none: from a user namespace that does not own the network namespace of
    /// its processes.
    fn find() -> Result<WayHome> {
        let own = Netns::current()?;
        own.enter()?;
        Ok(WayHome(own.file))
    }
}

impl Drop for WayHome {
    /// What would run on in a foreign namespace must not: the record says what is to be undone, as
    /// after any crash.
    fn drop(&mut self) {
        if let Err(e) = setns(&self.0, CloneFlags::CLONE_NEWNET) {
            let advice = "if NICs are away now: rdmaprep restore --all";
            let _ = writeln!(
                std::io::stderr(),
                "rdmaprep: going back to the host's network namespace: {e}; {advice}"
            );
            std::process::abort();
        }
    }
}

/// Every network namespace that a process has or `ip netns` keeps, apart from `known`, by inode,
/// each with where it was found. There may be more of them than descriptors: each is opened when it
/// is its turn.
pub fn others(known: &[u64]) -> impl Iterator<Item = (PathBuf, Netns)> + use<> {
    let mut seen: BTreeSet<u64> = known.iter().copied().collect();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|e| {
        e.file_name()
            .to_str()
            .is_some_and(|n| n.parse::<i32>().is_ok())
    });
    let kept = std::fs::read_dir(NAMED)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path());
    let paths = processes.map(|e| e.path().join("ns/net")).chain(kept);
    let new = paths.filter(move |path| std::fs::metadata(path).is_ok_and(|m| seen.insert(m.ino())));
    new.filter_map(|path| Netns::open(&path).ok().map(|netns| (path, netns)))
}

/// A process in the namespace with that inode, other than `but`. A process may fork behind the
/// reader's back, so one look that finds none is no proof; two are, since a process that enters
/// from outside is a container's, whose hook waits for the lock, or rdmaprep on a visit. What we
/// may not look into is not seen: run with CAP_SYS_PTRACE, as root is.
pub fn occupant(inode: u64, but: Option<i32>) -> Option<i32> {
    let wanted = format!("net:[{inode}]");
    find_process(&wanted, but).or_else(|| find_process(&wanted, but))
}

fn find_process(wanted: &str, but: Option<i32>) -> Option<i32> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        Some(*pid) != but && is_in(&format!("/proc/{pid}"), wanted) && !is_visit(*pid, wanted)
    })
}

/// Whether that process is rdmaprep, which was in the namespace for a [`Netns::visit`]: it is seen
/// to leave.
fn is_visit(pid: i32, wanted: &str) -> bool {
    let is_ours =
        program::at(Path::new(&format!("/proc/{pid}/exe"))).is_ok_and(|program| program.is_own);
    let has_left = |_| {
        std::thread::sleep(VISIT);
        !is_in(&format!("/proc/{pid}"), wanted)
    };
    is_ours && (0..LOOKS).any(has_left)
}

/// A process whose first thread has ended has no namespace to show; its others have.
fn is_in(process: &str, wanted: &str) -> bool {
    let shows = |of: &Path| std::fs::read_link(of.join("ns/net")).ok();
    match shows(Path::new(process)) {
        Some(link) => link.as_os_str() == wanted,
        None => {
            let threads = std::fs::read_dir(format!("{process}/task"))
                .into_iter()
                .flatten()
                .flatten();
            threads
                .filter_map(|t| shows(&t.path()))
                .any(|link| link.as_os_str() == wanted)
        }
    }
}
