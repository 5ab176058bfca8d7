//! The rails that a container has, from outside: its network namespace, a /sys of that, and what
//! NCCL finds in it. The store is reached from the host, as `prepare` reached it.

use std::time::Instant;

use anyhow::{Result, ensure};
use nccl_rules::explain::explain_named;
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use rail_agreement::options::Options;
use rail_agreement::{Store, Value};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;

use super::{Targets, taken, with_plan};
use crate::cli::Global;
use crate::commands::running::{self, Found, Running};
use crate::commands::{config, nccl, store, warn};
use crate::config::host::Host;
use crate::kernel::mount::mntns;
use crate::kernel::netns::Netns;
use crate::kernel::process::capabilities;
use crate::kernel::process::pidfd::Process;
use crate::kernel::{Kernel, Scope, ThisMachine, World};
use crate::record::{Hold, Record};

/// A container, or a `hold`, that has its NICs.
pub struct Inside {
    id: String,
    process: Process,
    netns: Netns,
    host: Netns,
}

/// What NCCL would find there.
pub struct Seen {
    pub inside: Inside,
    snapshot: Snapshot,
    settings: Settings,
    planned: Option<Version>,
}

/// Finds a container by what its record says, or by its process.
pub fn find(global: &Global, name: &str) -> Result<Seen> {
    let host = Host::new(global, &config(global)?);
    // Who looks gives up what the queue pairs need.
    mntns::apart(|| look(&host, name))
}

impl Seen {
    /// Its rails as NCCL would use them.
    pub fn rails(self, asked: &Options) -> Result<(Targets, Inside)> {
        // Only the container has its resolver.
        let explained = explain_named(&self.settings, &self.snapshot, self.planned, &|_| None);
        let found = taken(asked, &self.settings, &explained, self.snapshot)?;
        let id = &self.inside.id;
        ensure!(
            !found.rails.is_empty(),
            ErrorClass::Nothing.error(format!(
                "NCCL would take no HCA in container {id:?}: `rdmaprep nccl explain --container \
                {id}` says why"
            ))
        );
        Ok((found, self.inside))
    }
}

fn look(host: &Host, name: &str) -> Result<Seen> {
    capabilities::shed()?;
    let namespaces = ThisMachine::new()?;
    let found = running::find(&namespaces, &store(host), name)?;
    match found.hold() {
        Some((record, hold)) => of_hold(&found, record, hold),
        None => of_container(Running::open(namespaces, found)?),
    }
}

fn of_container(running: Running) -> Result<Seen> {
    let found = nccl::settings_of(&running, None)?;
    warn(&found.notes);
    let snapshot = nccl::opened(&running)?;
    let inside = Inside::new(&running.id, running.pid, Netns::of_process(running.pid)?)?;
    running.still_runs()?;
    Ok(Seen {
        snapshot,
        settings: found.settings,
        planned: running.planned(),
        inside,
    })
}

/// No process is in it: the settings are those of its plan.
fn of_hold(found: &Found, record: &Record, hold: &Hold) -> Result<Seen> {
    let netns = Netns::existing(&hold.path)?;
    ensure!(
        netns.inode() == record.netns,
        ErrorClass::State.error(format!(
            "{} is another network namespace than that of {:?}",
            hold.path.display(),
            found.id
        ))
    );
    let given = record.given.as_deref();
    let env = given.map(|plan| plan.env.as_slice()).unwrap_or_default();
    let mut world = Kernel::quiet(Netns::current()?, Some(netns.again()?))?;
    Ok(Seen {
        snapshot: world.observe(Side::Inside, &Scope::full())?,
        settings: with_plan(&Settings::default(), env),
        planned: given.and_then(|plan| plan.nccl_version),
        inside: Inside::new(&found.id, found.pid, netns)?,
    })
}

impl Inside {
    fn new(id: &str, pid: i32, netns: Netns) -> Result<Inside> {
        Ok(Inside {
            id: id.to_owned(),
            process: Process::open(pid).class(ErrorClass::Usage, format!("container {id:?}"))?,
            netns,
            host: Netns::current()?,
        })
    }

    /// Runs `work` on a thread that is in its network namespace, with a /sys of that. This thread
    /// stays: what returns its NICs must not find a process there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        mntns::with_sys_of(&self.netns, work)
    }

    /// Runs `work` in the host's network namespace.
    pub fn on_host<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.host.visit(work)
    }

    /// Whether it has its NICs still.
    pub fn still_runs(&self) -> Result<()> {
        ensure!(
            self.process.alive(),
            ErrorClass::Other.error(format!("container {:?} ended during the test", self.id))
        );
        Ok(())
    }

    /// The store as this thread may use it there.
    pub fn store(&self, store: Box<dyn Store>) -> Result<Box<dyn Store>> {
        Ok(Box::new(OnHost {
            host: self.host.again()?,
            store,
        }))
    }
}

/// A store whose connections are the host's: one that is lost is made again from there.
struct OnHost {
    host: Netns,
    store: Box<dyn Store>,
}

impl Store for OnHost {
    fn put(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        self.host.visit(|| self.store.put(pairs))
    }

    fn put_unconfirmed(&mut self, pairs: &[(String, Value)]) -> Result<()> {
        self.host.visit(|| self.store.put_unconfirmed(pairs))
    }

    fn put_best_effort(&mut self, pairs: &[(String, Value)]) {
        let put = || {
            self.store.put_best_effort(pairs);
            Ok(())
        };
        // As its name says.
        let _ = self.host.visit(put);
    }

    fn get(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        self.host.visit(|| self.store.get(keys, until))
    }

    fn check(&mut self, keys: &[String]) -> Result<bool> {
        self.host.visit(|| self.store.check(keys))
    }

    fn delete(&mut self, keys: &[String]) -> Result<()> {
        self.host.visit(|| self.store.delete(keys))
    }

    fn persists(&self) -> bool {
        self.store.persists()
    }

    fn flush(&mut self, until: Instant) -> Result<bool> {
        self.host.visit(|| self.store.flush(until))
    }

    fn await_readers(&mut self, keys: &[String], until: Instant) -> Result<Option<Vec<Value>>> {
        self.host.visit(|| self.store.await_readers(keys, until))
    }

    fn missing(&mut self, keys: &[String], most: usize) -> Result<Vec<usize>> {
        self.host.visit(|| self.store.missing(keys, most))
    }

    fn read(&mut self, keys: &[String]) -> Result<Vec<Option<Value>>> {
        self.host.visit(|| self.store.read(keys))
    }
}
