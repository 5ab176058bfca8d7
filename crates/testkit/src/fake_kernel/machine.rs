//! A machine around a small kernel: one container's process, pins, and a boot. Whole hooks run on
//! it without privileges, and any of their effects can be refused, or end the program.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nix::libc::EIO;
use rdma_model::snapshot::{HostPaths, JobAddresses, Snapshot};
use rdma_model::step::{Side, Step};
use rdmaprep::kernel::netns::search::Search;
use rdmaprep::kernel::{Namespaces, Observed, Pin, Recipient, Scope, World};
use rdmaprep::record::Record;

use super::{Kernel, errno};

/// The container's init.
pub const INIT: i32 = 4242;
const STARTED: u64 = 77;

/// What happens at one effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// The kernel refuses it, and nothing changes.
    Refused,
    /// The same, but the kernel takes this time for it.
    RefusedAfter(Duration),
    /// The program ends before it.
    EndsBefore,
    /// The program ends right after it.
    EndsAfter,
}

/// What the program's end unwinds with.
struct Ended;

type Change = Box<dyn FnOnce(&mut Kernel)>;

struct State {
    kernel: Kernel,
    init_runs: bool,
    /// Pins of the container's namespace.
    pins: BTreeSet<PathBuf>,
    /// Steps, pins and unpins so far.
    effects: usize,
    mishaps: BTreeMap<usize, Mishap>,
    changes: BTreeMap<usize, Change>,
}

/// The host, and one container with its namespace.
#[derive(Clone)]
pub struct Machine {
    state: Rc<RefCell<State>>,
    root: PathBuf,
}

impl Machine {
    /// Its link managers have their files below `root`.
    pub fn new(kernel: Kernel, root: &Path) -> Machine {
        let (pins, mishaps) = (BTreeSet::new(), BTreeMap::new());
        let state = State {
            kernel,
            init_runs: true,
            pins,
            effects: 0,
            mishaps,
            changes: BTreeMap::new(),
        };
        Machine {
            state: Rc::new(RefCell::new(state)),
            root: root.to_owned(),
        }
    }

    /// What is on the host.
    pub fn host(&self) -> Snapshot {
        self.state.borrow().kernel.see(Side::Host)
    }

    /// What is in the container, where its namespace is still there.
    pub fn inside(&self) -> Option<Snapshot> {
        let state = self.state.borrow();
        state
            .kernel
            .has_inside()
            .then(|| state.kernel.see(Side::Inside))
    }

    /// Something beside the program acts on the machine.
    pub fn act<T>(&self, act: impl FnOnce(&mut Kernel) -> T) -> T {
        act(&mut self.state.borrow_mut().kernel)
    }

    /// How many effects there were.
    pub fn effects(&self) -> usize {
        self.state.borrow().effects
    }

    /// Plans what happens at the effect with that number, counted from now.
    pub fn plan_mishap(&self, number: usize, mishap: Mishap) {
        let mut state = self.state.borrow_mut();
        let at = state.effects + number;
        state.mishaps.insert(at, mishap);
    }

    /// Plans what something beside the program does before the effect with that number, counted
    /// from now.
    pub fn plan_change(&self, number: usize, change: impl FnOnce(&mut Kernel) + 'static) {
        let mut state = self.state.borrow_mut();
        let at = state.effects + number;
        state.changes.insert(at, Box::new(change));
    }

    /// Whether all mishaps were reached.
    pub fn came_to_mishap(&self) -> bool {
        let state = self.state.borrow();
        state.mishaps.keys().all(|at| *at < state.effects)
    }

    /// The container's init ends. Its namespace does with it where no pin keeps it.
    pub fn kill_init(&self) {
        let mut state = self.state.borrow_mut();
        state.init_runs = false;
        state.let_go();
    }

    /// Runs the program, to its end or until a mishap ends it: then there is no result.
    pub fn run<T>(&self, program: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(program)) {
            Ok(result) => Some(result),
            Err(why) if why.is::<Ended>() => None,
            Err(why) => resume_unwind(why),
        }
    }

    fn effect<T>(&self, act: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let state = &mut *self.state.borrow_mut();
        if let Some(change) = state.changes.remove(&state.effects) {
            change(&mut state.kernel);
        }
        let mishap = state.mishaps.get(&state.effects).copied();
        state.effects += 1;
        match mishap {
            Some(Mishap::Refused) => return Err(errno(EIO)),
            Some(Mishap::RefusedAfter(time)) => {
                std::thread::sleep(time);
                return Err(errno(EIO));
            }
            Some(Mishap::EndsBefore) => resume_unwind(Box::new(Ended)),
            Some(Mishap::EndsAfter) | None => {}
        }
        let result = act(state);
        match mishap {
            Some(_) => resume_unwind(Box::new(Ended)),
            None => result,
        }
    }
}

impl State {
    fn let_go(&mut self) {
        if !self.init_runs && self.pins.is_empty() && self.kernel.has_inside() {
            self.kernel.die();
        }
    }
}

impl World for Machine {
    fn has_inside(&self) -> bool {
        self.state.borrow().kernel.has_inside()
    }

    fn look(&mut self, side: Side, scope: &Scope) -> Result<Observed> {
        self.state.borrow_mut().kernel.look(side, scope)
    }

    fn host_paths(&mut self, host: &Snapshot, job: &JobAddresses) -> HostPaths {
        self.state.borrow_mut().kernel.host_paths(host, job)
    }

    fn perform(&mut self, step: &Step, deadline: Instant) -> Result<()> {
        self.effect(|state| state.kernel.perform(step, deadline))
    }

    /// Its file is there, as a bind mount has one: the store lists pins by their files.
    fn pin(&mut self, pin: Pin) -> Result<()> {
        self.effect(|state| {
            state.kernel.pin(pin)?;
            let (Pin::Own(path) | Pin::Named(path)) = pin;
            state.pins.insert(path.to_owned());
            Ok(())
        })
    }

    fn search(&self, side: Side, on: &BTreeSet<u32>) -> Result<Search> {
        self.state.borrow().kernel.search(side, on)
    }
}

impl Recipient for Machine {
    fn pid(&self) -> i32 {
        INIT
    }

    fn is_running(&self) -> bool {
        self.state.borrow().init_runs
    }

    fn netns(&self) -> u64 {
        self.inside().and_then(|inside| inside.netns).unwrap()
    }

    fn lift_memlock(&self) -> Result<()> {
        Ok(())
    }

    fn open(&self) -> Result<Box<dyn World>> {
        Ok(Box::new(self.clone()))
    }
}

impl Namespaces for Machine {
    fn boot_id(&self) -> &str {
        "boot"
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn require_capabilities(&self) -> Result<()> {
        Ok(())
    }

    fn host_netns(&self) -> Result<u64> {
        self.host()
            .netns
            .ok_or_else(|| anyhow!("the host's namespace has no number"))
    }

    fn start_time(&self, pid: i32) -> Option<u64> {
        (pid == INIT && self.is_running()).then_some(STARTED)
    }

    fn occupant(&self, _: u64, but: Option<i32>) -> Option<i32> {
        (self.is_running() && but != Some(INIT)).then_some(INIT)
    }

    fn may_be_netns(&self, _: &Path, netns: u64) -> bool {
        self.inside().and_then(|inside| inside.netns) == Some(netns)
    }

    fn recipient(&self, pid: i32) -> Result<Box<dyn Recipient>> {
        match self.start_time(pid) {
            Some(_) => Ok(Box::new(self.clone())),
            None => Err(anyhow!("there is no process {pid}")),
        }
    }

    fn open(&self, _: &Record, _: &Path) -> Result<Box<dyn World>> {
        Ok(Box::new(self.clone()))
    }

    fn pinned(&self, pin: &Path, _: u64) -> Result<Option<Box<dyn World>>> {
        let is_pinned = self.state.borrow().pins.contains(pin);
        Ok(is_pinned.then(|| Box::new(self.clone()) as Box<dyn World>))
    }

    fn others(&self, _: &[u64], _: usize) -> Box<dyn Iterator<Item = Result<Box<dyn World>>>> {
        Box::new(std::iter::empty())
    }

    fn unpin(&self, pin: Pin, _: u64) -> Result<()> {
        self.effect(|state| {
            let (Pin::Own(path) | Pin::Named(path)) = pin;
            if state.pins.remove(path) || File::open(path).is_ok() {
                std::fs::remove_file(path)?;
            }
            state.let_go();
            Ok(())
        })
    }
}
