use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::kernel::namespaces::{Namespaces, Pin, Recipient};
use crate::kernel::netns::{self, Netns, pins};
use crate::kernel::process::pidfd::{self, Process};
use crate::kernel::process::{capabilities, limits};
use crate::kernel::{Kernel, World, boot_id};
use crate::record::Record;

#[derive(Debug)]
pub struct ThisMachine {
    boot_id: String,
}

impl ThisMachine {
    pub fn new() -> Result<ThisMachine> {
        Ok(ThisMachine {
            boot_id: boot_id()?,
        })
    }

    /// The namespace of a record's NICs: by the pin, or through a member that still lives.
    pub fn netns_of(&self, record: &Record, pin: &Path) -> Option<Netns> {
        let is_its = |netns: &Netns| netns.inode() == record.netns;
        if let Some(pinned) = Netns::open(pin).ok().filter(is_its) {
            return Some(pinned);
        }
        for member in &record.members {
            let path = member.cni.as_ref().map(|cni| &cni.netns);
            let at_path = path.and_then(|path| Netns::open(path).ok());
            if at_path.as_ref().is_some_and(is_its) {
                return at_path;
            }
            let through = Netns::of_process(member.pid).ok().filter(is_its);
            if through.is_some() && self.is_alive(record, member) {
                return through;
            }
        }
        // Its file goes with the pin, wherever that is mounted: then the namespace ends.
        let place = pins::place(pin, record.netns)?;
        Netns::open(&place).ok().filter(is_its)
    }
}

#[derive(Debug)]
pub struct RecipientProcess {
    process: Process,
    netns: Netns,
    /// Where a CNI runtime keeps the namespace.
    path: Option<PathBuf>,
}

impl RecipientProcess {
    /// A container's init.
    pub fn of(pid: i32) -> Result<RecipientProcess> {
        let process = Process::open(pid)?;
        Ok(RecipientProcess {
            process,
            netns: Netns::of_process(pid)?,
            path: None,
        })
    }

    /// This process, which keeps a namespace for containers to come.
    pub fn keeping(netns: &Netns) -> Result<RecipientProcess> {
        Ok(RecipientProcess {
            process: Process::current()?,
            netns: netns.again()?,
            path: None,
        })
    }

    /// This process in place of one in the namespace that a CNI runtime keeps at that path.
    /// [`ErrorClass::State`] where there is none.
    pub fn at(path: &Path) -> Result<RecipientProcess> {
        let netns = Netns::existing(path)?;
        Ok(RecipientProcess {
            process: Process::current()?,
            netns,
            path: Some(path.to_owned()),
        })
    }
}

impl Recipient for RecipientProcess {
    fn pid(&self) -> i32 {
        self.process.pid()
    }

    fn is_running(&self) -> bool {
        self.process.alive()
            && self
                .path
                .as_ref()
                .is_none_or(|path| pins::is_pinned(path, self.netns.inode()))
    }

    fn netns(&self) -> u64 {
        self.netns.inode()
    }

    fn lift_memlock(&self) -> Result<()> {
        limits::lift_memlock(self.process.pid())
    }

    fn open(&self) -> Result<Box<dyn World>> {
        Ok(Box::new(Kernel::open(
            Netns::current()?,
            Some(self.netns.again()?),
        )?))
    }
}

impl Namespaces for ThisMachine {
    fn boot_id(&self) -> &str {
        &self.boot_id
    }

    fn root(&self) -> &Path {
        Path::new("/")
    }

    fn require_capabilities(&self) -> Result<()> {
        capabilities::require()
    }

    fn host_netns(&self) -> Result<u64> {
        Ok(Netns::current()?.inode())
    }

    fn start_time(&self, pid: i32) -> Option<u64> {
        pidfd::start_time(pid)
    }

    fn occupant(&self, netns: u64, but: Option<i32>) -> Option<i32> {
        netns::occupant(netns, but)
    }

    fn may_be_netns(&self, path: &Path, netns: u64) -> bool {
        pins::is_pinned(path, netns) || pins::is_hidden(path)
    }

    fn recipient(&self, pid: i32) -> Result<Box<dyn Recipient>> {
        Ok(Box::new(RecipientProcess::of(pid)?))
    }

    fn open(&self, record: &Record, pin: &Path) -> Result<Box<dyn World>> {
        Ok(Box::new(Kernel::open(
            Netns::current()?,
            self.netns_of(record, pin),
        )?))
    }

    fn pinned(&self, pin: &Path, netns: u64) -> Result<Option<Box<dyn World>>> {
        let Some(place) = pins::place(pin, netns) else {
            return Ok(None);
        };
        let world = Kernel::open(Netns::current()?, Some(Netns::open(&place)?))?;
        Ok(Some(Box::new(world)))
    }

    fn others(
        &self,
        known: &[u64],
        passed: usize,
    ) -> Box<dyn Iterator<Item = Result<Box<dyn World>>>> {
        Box::new(netns::others(known).skip(passed).map(|(_, netns)| {
            let world = Kernel::open(Netns::current()?, Some(netns))?;
            Ok(Box::new(world) as Box<dyn World>)
        }))
    }

    fn unpin(&self, pin: Pin, netns: u64) -> Result<()> {
        match pin {
            Pin::Own(path) => pins::unpin(path),
            Pin::Named(path) => pins::withdraw(path, netns),
        }
    }
}
