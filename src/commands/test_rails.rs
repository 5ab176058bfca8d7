//! `rdmaprep test-rails` becomes `rdmaprep-rail-test`, which links the verbs; and what that program
//! asks of this library: which rails there are, and where the nodes meet.

pub mod fix;
pub mod inside;
pub mod unstored;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ipnet::IpNet;
use nccl_rules::explain::{Explanation, explain_named};
use nccl_rules::gid::{Choice, choose};
use nccl_rules::queue_pair::QueuePair;
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use rail_agreement::message::HostName;
use rail_agreement::options::{Options, StoreUrl};
use rail_agreement::{
    Agreement, BareHca, Device, Digest, DroppedRail, Match, Rail, RailKey, RunId, Store,
};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::IfName;
use rdma_model::nic::EnvVar;
use rdma_model::snapshot::{Gid, Hca, Port, Snapshot};
use rdma_model::values::PlanName;
use rdma_model::verdict::DropCode;

use super::{config, load_snapshot, nccl, peers, warn};
use crate::cli::{Global, RendezvousArgs, TestRailsArgs};
use crate::config::host::Host;
use crate::container::userspace;
use crate::disk::home_and_hosts;
use crate::kernel::{netns, random};

const PROGRAM: &str = "rdmaprep-rail-test";
/// What puts it into PATH, in a clone.
pub const GET: &str = "cargo install --locked --root /usr/local --path rail-test";

/// One rail of this node, as NCCL would use it.
#[derive(Clone, Debug)]
pub struct Target {
    pub key: RailKey,
    pub device: Device,
    pub hca: String,
    pub port: u8,
    pub netdev: Option<IfName>,
    pub is_ethernet: bool,
    pub gid_index: u8,
    /// The library of libibverbs that drives it, where that is known.
    pub provider: Option<&'static str>,
}

/// What this node has, and how NCCL sets its queue pairs.
pub struct Targets {
    pub rails: Vec<Target>,
    /// Rails that it has, and that NCCL would not take: their ports are down.
    pub down: Vec<DroppedRail>,
    /// Rails of a plan that cannot be tested here, and why.
    pub untested: Vec<(RailKey, String)>,
    pub queue_pair: QueuePair,
    pub snapshot: Snapshot,
}

impl Targets {
    fn new(settings: &Settings, version: Version, snapshot: Snapshot) -> Targets {
        Targets {
            rails: Vec::new(),
            down: Vec::new(),
            untested: Vec::new(),
            queue_pair: QueuePair::of(settings, version),
            snapshot,
        }
    }
}

/// The nodes have met, and agree on rails.
pub struct Met {
    pub agreement: Agreement,
    pub store: Box<dyn Store>,
    pub host: HostName,
}

/// Becomes the program that tests; returns only where that cannot be done.
pub(super) fn start() -> Result<()> {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(at) = args.iter().position(|arg| arg == "test-rails") {
        args.remove(at);
    }
    Err(cannot_run(Command::new(program()).args(args).exec()))
}

pub(super) fn cannot_run(error: io::Error) -> anyhow::Error {
    let what = match error.kind() {
        io::ErrorKind::NotFound => {
            "it is in no package, as it cannot be static (it opens libibverbs); in a clone of \
            rdmaprep: "
        }
        _ => "it is a program of its own: ",
    };
    ErrorClass::Nothing.error(format!(
        "{PROGRAM} cannot be run ({error}): {what}`{GET}` (docs/rail-test.md)"
    ))
}

/// Beside this program, or in PATH.
pub(super) fn program() -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .map(|own| own.with_file_name(PROGRAM));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| Path::new(PROGRAM).to_owned())
}

/// How this node joins the others. A test has a run of its own: no key is like one of `prepare`.
pub fn options(args: &RendezvousArgs) -> Result<Options> {
    let asked = peers::peer_options(args)?;
    let mut asked = asked.ok_or_else(|| {
        ErrorClass::Usage.error(
            "no nodes to meet: give --rendezvous, --rank, --nodes and --run-id, or run it by \
            torchrun, srun or mpiexec",
        )
    })?;
    asked.run = test_run(&asked.run)?;
    Ok(asked)
}

fn test_run(run: &RunId) -> Result<RunId> {
    let named = format!("{run}.test");
    let digest = || format!("test.{}", Digest::of_text(run.as_str()).as_str());
    named.parse().or_else(|_| digest().parse())
}

/// The rails of the plan, or those that NCCL would take here: on the host, or in a container that
/// has its NICs, and few capabilities.
pub fn targets(global: &Global, args: &TestRailsArgs, asked: &Options) -> Result<Targets> {
    netns::stay();
    let snapshot = load_snapshot(None, None)?;
    let found = nccl::own_settings()?;
    warn(&found.notes);
    let (settings, named) = match &args.plan {
        Some(plan) => by_plan(global, plan, &found.settings)?,
        None => (found.settings, None),
    };
    let explained = explained(&settings, &snapshot, named);
    let found = taken(asked, &settings, &explained, snapshot)?;
    let why = "NCCL would take no HCA here: `rdmaprep nccl explain` says why";
    ensure!(!found.rails.is_empty(), ErrorClass::Nothing.error(why));
    Ok(found)
}

fn taken(
    asked: &Options,
    settings: &Settings,
    explained: &Explanation,
    snapshot: Snapshot,
) -> Result<Targets> {
    let mut rails = Vec::new();
    for name in &explained.hcas {
        if let Some((hca, port)) = port_of(&snapshot, name) {
            let nccl = (settings, explained.version);
            rails.push(target(asked, rails.len(), (&snapshot, hca, port), nccl)?);
        }
    }
    Ok(Targets {
        down: down(asked, &snapshot)?,
        rails,
        ..Targets::new(settings, explained.version, snapshot)
    })
}

fn explained(settings: &Settings, snapshot: &Snapshot, named: Option<Version>) -> Explanation {
    explain_named(settings, snapshot, named, &home_and_hosts::address_of)
}

/// By NCCL's name of a port, `HCA:PORT`.
fn port_of<'s>(snapshot: &'s Snapshot, name: &str) -> Option<(&'s Hca, &'s Port)> {
    let (hca, number) = name.rsplit_once(':')?;
    let hca = snapshot
        .hcas
        .iter()
        .find(|found| found.name.as_str() == hca)?;
    let port = hca
        .ports
        .iter()
        .find(|port| port.number.to_string() == number)?;
    Some((hca, port))
}

/// Rails whose ports are down, by their names: an address has none of these a GID.
fn down(asked: &Options, snapshot: &Snapshot) -> Result<Vec<DroppedRail>> {
    let mut down = Vec::new();
    for port in snapshot.hcas.iter().flat_map(|hca| &hca.ports) {
        let Some(netdev) = port.netdev.as_ref().filter(|_| !port.is_active()) else {
            continue;
        };
        if matches!(asked.by, Match::Name | Match::Label) && snapshot.netdev(netdev).is_some() {
            let device = Device::Netdev(netdev.clone());
            let key = key(asked, 0, &device, (snapshot, None))?;
            down.push(DroppedRail(key, DropCode::PortDown));
        }
    }
    Ok(down)
}

/// The plan's settings win over those of the environment, as in its containers.
fn by_plan(global: &Global, plan: &str, own: &Settings) -> Result<(Settings, Option<Version>)> {
    let host = Host::new(global, &config(global)?);
    ensure!(
        plan != PlanName::AUTO,
        ErrorClass::Usage.error("--plan: `auto` is not stored: choose another plan")
    );
    let stored = super::store(&host).plan(plan)?;
    let plan = stored.ok_or_else(|| no_plan(plan))?;
    Ok((with_plan(own, &plan.env), plan.nccl_version))
}

fn no_plan(name: &str) -> anyhow::Error {
    ErrorClass::Usage.error(format!(
        "no plan {name:?} is stored: `rdmaprep plan list` has all"
    ))
}

fn with_plan(own: &Settings, env: &[EnvVar]) -> Settings {
    let mut settings = own.clone();
    for var in env {
        settings = settings.but(&var.name, Some(&var.value));
    }
    settings
}

fn target(
    asked: &Options,
    place: usize,
    (snapshot, hca, port): (&Snapshot, &Hca, &Port),
    (settings, version): (&Settings, Version),
) -> Result<Target> {
    let refused =
        |why: &str| ErrorClass::Refused.error(format!("{}:{}: {why}", hca.name, port.number));
    let index = match choose(port, settings, version) {
        Choice::Lid => 0,
        Choice::Index(index) => {
            u8::try_from(index).map_err(|_| refused("verbs reach no GID beyond index 255"))?
        }
        Choice::Unreadable(_) | Choice::Crash | Choice::Unknown => {
            return Err(refused(
                "NCCL finds no GID: `rdmaprep nccl explain` says why",
            ));
        }
    };
    let gid = port.gids.iter().find(|gid| gid.index == u32::from(index));
    let netdev = gid
        .and_then(|gid| gid.netdev.clone())
        .or_else(|| port.netdev.clone());
    let device = match &netdev {
        Some(netdev) => Device::Netdev(netdev.clone()),
        None => Device::Bare(BareHca {
            hca: hca.name.clone(),
        }),
    };
    let driver = hca.driver.as_deref();
    Ok(Target {
        key: key(asked, place, &device, (snapshot, gid))?,
        device,
        hca: hca.name.to_string(),
        port: u8::try_from(port.number).unwrap_or(u8::MAX),
        is_ethernet: !port.is_infiniband(),
        netdev,
        gid_index: index,
        provider: driver.and_then(userspace::provider),
    })
}

/// A rail's name on all nodes, as --match has it.
fn key(
    asked: &Options,
    place: usize,
    device: &Device,
    (snapshot, gid): (&Snapshot, Option<&Gid>),
) -> Result<RailKey> {
    let key = match asked.by {
        Match::Name => device.to_string(),
        Match::Index => place.to_string(),
        Match::Label => match device {
            Device::Netdev(name) => asked.labels.get(name).map(ToString::to_string),
            Device::Bare(_) => None,
        }
        .unwrap_or_else(|| device.to_string()),
        Match::Subnet => subnet(snapshot, gid).unwrap_or_else(|| device.to_string()),
    };
    key.parse().class(ErrorClass::Refused, "naming a rail")
}

/// That of a GID's address.
fn subnet(snapshot: &Snapshot, gid: Option<&Gid>) -> Option<String> {
    let gid = gid?;
    let netdev = snapshot.netdev(gid.netdev.as_ref()?)?;
    let address = netdev.addresses.iter().find(|a| a.address == gid.ip())?;
    let subnet = IpNet::new(address.address, address.prefix).ok()?;
    Some(subnet.trunc().to_string())
}

/// Tells the other nodes why this one takes no part, and returns that reason.
pub fn refuse(asked: Options, why: anyhow::Error) -> anyhow::Error {
    match peers::enter(asked, false) {
        Ok(meeting) => meeting.refuse(why),
        Err(_) => why,
    }
}

/// Agrees with all other nodes on the rails; the store stays open for that long.
pub fn meet(asked: Options, targets: &Targets, after: Duration) -> Result<Met> {
    ensure!(
        asked.store != StoreUrl::Static,
        ErrorClass::Usage.error("--rendezvous static has no nodes to meet")
    );
    let meeting = peers::enter_for(asked, false, after)?;
    let mut rails = Vec::new();
    for rail in &targets.rails {
        rails.push(Rail(rail.key.clone(), rail.device.clone()));
    }
    let setup = meeting.setup_with(rails, targets.down.clone());
    let (agreement, store) = meeting.agree_and_stay(setup, &mut |_| Ok(()))?;
    Ok(Met {
        agreement,
        store,
        host: peers::host(),
    })
}

pub fn random_bits() -> Result<[u8; 16]> {
    random::bits()
}

/// What a person who waits sees.
pub fn progress(begun: Instant, text: &str) {
    if !io::stderr().is_terminal() {
        return;
    }
    super::progress(&format!("{} s: {text}", begun.elapsed().as_secs()));
}
