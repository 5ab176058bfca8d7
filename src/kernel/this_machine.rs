use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::kernel::namespaces::{Container, Namespaces, Pin};
use crate::kernel::netns::{self, Netns, pins};
use crate::kernel::process::pidfd::{self, Process};
use crate::kernel::process::{capabilities, limits};
use crate::kernel::{Kernel, World, boot_id};
use crate::record::{Member, Record};

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
        let same = |ns: &Netns| ns.inode() == record.netns;
        let pinned = Netns::open(pin).ok().filter(same);
        let through = |m: &Member| {
            Netns::of_process(m.pid)
                .ok()
                .filter(same)
                .filter(|_| self.is_alive(record, m))
        };
        let at_path = |m: &Member| Netns::open(&m.cni.as_ref()?.netns).ok().filter(same);
        pinned.or_else(|| {
            record
                .members
                .iter()
                .find_map(|m| at_path(m).or_else(|| through(m)))
        })
    }
}

#[derive(Debug)]
pub struct Init {
    process: Process,
    netns: Netns,
    /// Where a CNI runtime keeps the namespace.
    path: Option<PathBuf>,
}

impl Init {
    pub fn of(pid: i32) -> Result<Init> {
        let process = Process::open(pid)?;
        Ok(Init {
            process,
            netns: Netns::of_process(pid)?,
            path: None,
        })
    }

    /// This process, which keeps a namespace for containers to come.
    pub fn keeping(netns: &Netns) -> Result<Init> {
        Ok(Init {
            process: Process::current()?,
            netns: netns.again()?,
            path: None,
        })
    }

    /// This process in place of one in the namespace that a CNI runtime keeps at that path.
    /// [`ErrorClass::State`] where there is none.
    pub fn at(path: &Path) -> Result<Init> {
        let netns = Netns::existing(path)?;
        Ok(Init {
            process: Process::current()?,
            netns,
            path: Some(path.to_owned()),
        })
    }
}

impl Container for Init {
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

    fn container(&self, pid: i32) -> Result<Box<dyn Container>> {
        Ok(Box::new(Init::of(pid)?))
    }

    fn open(&self, record: &Record, pin: &Path) -> Result<Box<dyn World>> {
        Ok(Box::new(Kernel::open(
            Netns::current()?,
            self.netns_of(record, pin),
        )?))
    }

    fn others(&self, known: &[u64]) -> Box<dyn Iterator<Item = Result<Box<dyn World>>>> {
        let open = |netns| -> Result<Box<dyn World>> {
            Ok(Box::new(Kernel::open(Netns::current()?, Some(netns))?))
        };
        Box::new(netns::others(known).map(move |(_, netns)| open(netns)))
    }

    fn unpin(&self, pin: Pin, netns: u64) -> Result<()> {
        match pin {
            Pin::Own(path) => pins::unpin(path),
            Pin::Named(path) => pins::withdraw(path, netns),
        }
    }
}
