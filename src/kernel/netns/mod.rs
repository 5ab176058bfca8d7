//! Network namespaces: handles that keep one alive, and short visits.

mod nsfs;
pub mod pins;
pub mod search;

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::thread::Builder;
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

/// A thread of the kernel (include/linux/sched.h).
const PF_KTHREAD: u32 = 0x0020_0000;

#[derive(Debug)]
pub struct Netns {
    file: File,
    inode: u64,
}

impl Netns {
    /// A new one, with nothing in it but a loopback interface that is down.
    pub fn make() -> Result<Netns> {
        let thread = Builder::new().spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
            Netns::current()
        });
        let thread = thread.context("starting a thread")?;
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
        if !IS_AWAY.get() && own()? == self.inode {
            return visit();
        }
        let _home = WayHome::find()?;
        self.enter()?;
        visit()
    }

    /// For a thread that ends there.
    pub fn enter(&self) -> Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).or_else(|e| {
            capabilities::require()?;
            Err(e).context("entering the network namespace")
        })
    }
}

thread_local! {
    /// Where this thread is when it is on no visit, once that was asked for.
    static HOME: OnceCell<Rc<Netns>> = const { OnceCell::new() };
    static IS_AWAY: Cell<bool> = const { Cell::new(false) };
    static STAYS: Cell<bool> = const { Cell::new(false) };
}

/// For a program that this thread's namespace is enough for: it needs no CAP_SYS_ADMIN then, which
/// setns(2) takes even for the namespace that one is in. Without the capability, a visit to another
/// one fails.
pub fn stay() {
    STAYS.set(true);
}

/// The inode of this thread's namespace, which is on no visit.
fn own() -> Result<u64> {
    match STAYS.get() {
        true => Ok(Netns::current()?.inode),
        false => Ok(home()?.inode),
    }
}

/// The namespace of this thread, which is on no visit. Fails where there is no way back: from a
/// user namespace that does not own the network namespace of its processes.
fn home() -> Result<Rc<Netns>> {
    if let Some(home) = HOME.with(|home| home.get().cloned()) {
        return Ok(home);
    }
    let home = Rc::new(Netns::current()?);
    home.enter()?;
    Ok(HOME.with(|known| known.get_or_init(|| home).clone()))
}

/// Takes this thread back to where it was.
struct WayHome {
    from: Rc<Netns>,
    was_away: bool,
}

impl WayHome {
    /// A visit may begin on another one.
    fn find() -> Result<WayHome> {
        let was_away = IS_AWAY.get();
        let from = match was_away {
            true => Rc::new(Netns::current()?),
            false => home()?,
        };
        IS_AWAY.set(true);
        Ok(WayHome { from, was_away })
    }
}

impl Drop for WayHome {
    /// What would run on in a foreign namespace must not: the record says what is to be undone, as
    /// after any crash.
    fn drop(&mut self) {
        IS_AWAY.set(self.was_away);
        if let Err(e) = setns(&self.from.file, CloneFlags::CLONE_NEWNET) {
            let advice = "if NICs are away now: rdmaprep restore --all";
            let _ = writeln!(
                std::io::stderr(),
                "rdmaprep: going back to the host's network namespace: {e}; {advice}"
            );
            std::process::abort();
        }
    }
}

/// Visits of one namespace after the other; its end takes this thread back to its own.
pub struct Journey(#[allow(dead_code, reason = "held for its Drop")] WayHome);

impl Journey {
    pub fn begin() -> Result<Journey> {
        WayHome::find().map(Journey)
    }

    pub fn visit<T>(&self, netns: &Netns, visit: impl FnOnce() -> Result<T>) -> Result<T> {
        netns.enter()?;
        visit()
    }
}

/// Every network namespace that a process has or `ip netns` keeps, apart from `known`, by inode,
/// each with where it was found. There may be more of them than descriptors: each is opened when it
/// is its turn.
pub fn others(known: &[u64]) -> impl Iterator<Item = (PathBuf, Netns)> + use<> {
    let mut seen: BTreeSet<u64> = known.iter().copied().collect();
    let processes = processes().map(|pid| PathBuf::from(format!("/proc/{pid}/ns/net")));
    let kept = std::fs::read_dir(NAMED).into_iter().flatten().flatten();
    let of_processes = processes.filter_map(|path| Some((named_by(&path)?, path)));
    let kept = kept.map(|e| e.path());
    let kept = kept.filter_map(|path| Some((std::fs::metadata(&path).ok()?.ino(), path)));
    let new = of_processes
        .chain(kept)
        .filter(move |(inode, _)| seen.insert(*inode));
    new.filter_map(|(_, path)| Netns::open(&path).ok().map(|netns| (path, netns)))
}

/// The inode that a link of /proc names. To follow the link takes half as long again, and there may
/// be thousands of processes.
fn named_by(link: &Path) -> Option<u64> {
    let name = std::fs::read_link(link).ok()?;
    let number = name.to_str()?.strip_prefix("net:[")?;
    number.strip_suffix(']')?.parse().ok()
}

/// All processes but the kernel's threads, which never leave the first namespace. A machine of many
/// cores has thousands of these.
fn processes() -> impl Iterator<Item = i32> {
    let threads = kernel_threads().unwrap_or_default();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter(move |pid| !threads.contains(pid))
}

/// The children of kthreadd, of which all threads of the kernel are (kthreadd() in
/// kernel/kthread.c), and programs that the kernel starts, which root of the host alone names
/// (core_pattern, modprobe). In a PID namespace its number is another process's.
fn kernel_threads() -> Option<HashSet<i32>> {
    let stat = std::fs::read_to_string("/proc/2/stat").ok()?;
    // Behind the name: state, parent, group, session, terminal, its group, flags.
    let (_, fields) = stat.rsplit_once(')')?;
    let flags: u32 = fields.split_whitespace().nth(6)?.parse().ok()?;
    let children = std::fs::read_to_string("/proc/2/task/2/children").ok()?;
    let all = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    (flags & PF_KTHREAD != 0).then(|| all.collect())
}

/// A process in the namespace with that inode, other than `but`. A process may fork behind the
/// reader's back, so one look that finds none is no proof; two are, since a process that enters
/// from outside is a container's, whose hook waits for the lock, or rdmaprep on a visit. What we
/// may not look into is not seen: run with CAP_SYS_PTRACE, as root is.
pub fn occupant(inode: u64, but: Option<i32>) -> Option<i32> {
    let wanted = format!("net:[{inode}]");
    find_process(&wanted, but).or_else(|| find_process(&wanted, but))
}

/// The processes in the namespace with that inode.
fn processes_in(inode: u64) -> Vec<i32> {
    let wanted = format!("net:[{inode}]");
    processes()
        .filter(|pid| is_in(&format!("/proc/{pid}"), &wanted))
        .collect()
}

fn find_process(wanted: &str, but: Option<i32>) -> Option<i32> {
    processes().find(|pid| {
        Some(*pid) != but && is_in(&format!("/proc/{pid}"), wanted) && !is_visit(*pid, wanted)
    })
}

/// Whether that process is rdmaprep, which was in the namespace for a [`Netns::visit`]: it is seen
/// to leave.
fn is_visit(pid: i32, wanted: &str) -> bool {
    let is_ours =
        program::at(Path::new(&format!("/proc/{pid}/exe"))).is_ok_and(|program| program.is_own);
    is_ours
        && (0..LOOKS).any(|_| {
            std::thread::sleep(VISIT);
            !is_in(&format!("/proc/{pid}"), wanted)
        })
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
