//! How a node was asked to meet the others: flags before the environment of an engine that says so by itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::IfName;

use super::endpoint::Endpoint;
use super::etcd::Cluster;
use super::{MAX_NODES, Match, RailKey, RunId};

/// Where the nodes meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere.
    Static,
    /// A TCPStore.
    C10d(Endpoint),
    /// A file that all share.
    File(PathBuf),
    /// An etcd.
    Etcd(Cluster),
    /// The socket that PMI_FD names.
    Pmi,
}

impl FromStr for Place {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        match s.split_once("://") {
            None if s == "static" => Ok(Place::Static),
            None if s == "pmi" => Ok(Place::Pmi),
            Some(("c10d", rest)) => {
                ensure!(!rest.trim().is_empty(), "{s:?} names no host");
                Ok(Place::C10d(rest.parse()?))
            }
            Some(("file", path)) => {
                ensure!(
                    path.starts_with('/') && !path.ends_with('/'),
                    "{s:?} is no absolute path (file:///shared/job)"
                );
                Ok(Place::File(path.into()))
            }
            Some(("etcd" | "etcds", _)) => Ok(Place::Etcd(s.parse()?)),
            _ => bail!("{s:?} is none of c10d://HOST:PORT, file:///PATH, etcd://HOST:PORT/PREFIX, pmi, static"),
        }
    }
}

/// What the user has set, as text: the tool's flags, or the variables that stand for them. Empty is unset.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Where the nodes meet, a [`Place`]: `--rendezvous`.
    pub rendezvous: Option<String>,
    /// The host of torchrun's store, in place of MASTER_ADDR: `--store-host`.
    pub store_host: Option<String>,
    /// This node's rank: `--rank`.
    pub rank: Option<String>,
    /// How many nodes there are: `--nodes`.
    pub nodes: Option<String>,
    /// What all nodes call this run, a [`RunId`]: `--run-id`.
    pub run_id: Option<String>,
    /// Seconds that all of it may take, 1 to 86400: `--rendezvous-timeout`.
    pub rendezvous_timeout: Option<String>,
    /// What makes two NICs the same rail, a [`Match`]: `--match`.
    pub by: Option<String>,
    /// `IFACE=LABEL`, separated by commas or white space: `--rail-labels`.
    pub rail_labels: Option<String>,
}

/// How to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Where.
    pub place: Place,
    /// This node's rank.
    pub rank: u32,
    /// How many nodes there are.
    pub nodes: u32,
    /// What they call the run.
    pub run: RunId,
    /// What makes two NICs the same rail.
    pub by: Match,
    /// For [`Match::Label`].
    pub labels: BTreeMap<IfName, RailKey>,
    /// How long all of it may take.
    pub timeout: Duration,
}

/// What a torchrun without a store of its agents is told.
const ALONE: &str =
    "this torchrun shares no store: --rendezvous URL, or --rendezvous static to prepare each node alone";

/// What an engine's environment tells.
#[derive(Default)]
struct Told {
    place: Option<Place>,
    rank: Option<String>,
    nodes: Option<String>,
    run: Option<String>,
}

impl Asked {
    /// What was asked; nothing where nodes are prepared one by one. `env` reads the environment of the job's engine.
    pub fn new(args: &Settings, env: impl Fn(&str) -> Option<String>) -> Result<Option<Asked>> {
        Asked::read(args, env, false)
    }

    /// The same for who only looks, and is none of the nodes: any rank will do, and any number of workers on this one.
    pub fn looking(set: &Settings, env: impl Fn(&str) -> Option<String>) -> Result<Option<Asked>> {
        let args = Settings { rank: Some("0".to_owned()), by: None, rail_labels: None, ..set.clone() };
        let env = |name: &str| if name == "LOCAL_WORLD_SIZE" { None } else { env(name) };
        Asked::read(&args, env, true)
    }

    fn read(args: &Settings, env: impl Fn(&str) -> Option<String>, looks: bool) -> Result<Option<Asked>> {
        let env = |name: &str| env(name).filter(|text| !text.is_empty());
        let url: Option<Place> = value(&args.rendezvous, "--rendezvous (RDMAPREP_RENDEZVOUS)")?;
        let told = match &url {
            Some(Place::Static) => return Ok(None),
            Some(Place::Pmi) if env("PMI_FD").is_none() => {
                return Err(ErrorClass::Usage.error("--rendezvous pmi: there is no PMI_FD in the environment"));
            }
            Some(Place::Pmi) => pmi(&env),
            // Within a step of Slurm's or MPI's, torchrun is what started this process.
            _ if agents(&env) || (url.is_some() && env("TORCHELASTIC_RUN_ID").is_some()) => {
                torchrun(args, url.as_ref(), &env)?
            }
            None if storeless(&env)? => return Err(ErrorClass::Usage.error(ALONE)),
            None if env("PMI_FD").is_some() && env("TORCHELASTIC_RUN_ID").is_none() => pmi(&env),
            _ => Told::default(),
        };
        let Some(place) = url.or(told.place) else { return if looks { Ok(None) } else { forgotten(args) } };
        let needed = |what: &str| ErrorClass::Usage.error(format!("--rendezvous: {what} is needed as well"));
        let rank = value(&args.rank, "--rank (RDMAPREP_RANK)")?.or(number(told.rank, "rank")?);
        let nodes = value(&args.nodes, "--nodes (RDMAPREP_NODES)")?.or(number(told.nodes, "number of nodes")?);
        let (rank, nodes) = (rank.ok_or_else(|| needed("--rank"))?, nodes.ok_or_else(|| needed("--nodes"))?);
        if !(1..=MAX_NODES).contains(&nodes) || rank >= nodes {
            let text = format!("rank {rank} of {nodes} nodes: there are 1 to {MAX_NODES}, and ranks begin at 0");
            return Err(ErrorClass::Usage.error(text));
        }
        let run: Option<RunId> = value(&args.run_id, "--run-id (RDMAPREP_RUN_ID)")?;
        let found = told.run.or_else(|| slurm(&env));
        let run = run.map(Ok).or_else(|| found.map(|id| id.parse().class(ErrorClass::Usage, "the engine's run id")));
        let by: Match = value(&args.by, "--match (RDMAPREP_MATCH)")?.unwrap_or_default();
        let labels = labels(args.rail_labels.as_deref().unwrap_or_default())
            .class(ErrorClass::Usage, "--rail-labels (RDMAPREP_RAIL_LABELS)")?;
        if (by == Match::Label) == labels.is_empty() {
            return Err(ErrorClass::Usage.error("--match label and --rail-labels need one another"));
        }
        let seconds: u32 =
            value(&args.rendezvous_timeout, "--rendezvous-timeout (RDMAPREP_RENDEZVOUS_TIMEOUT)")?.unwrap_or(120);
        if !(1..=86400).contains(&seconds) {
            return Err(ErrorClass::Usage.error("--rendezvous-timeout: 1 to 86400 seconds"));
        }
        let timeout = Duration::from_secs(seconds.into());
        Ok(Some(Asked { place, rank, nodes, run: run.ok_or_else(|| needed("--run-id"))??, by, labels, timeout }))
    }
}

/// Who says how to meet, but not where, has forgotten something.
fn forgotten(args: &Settings) -> Result<Option<Asked>> {
    let said = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty());
    if [&args.rank, &args.nodes, &args.run_id, &args.by, &args.rail_labels].into_iter().any(said) {
        return Err(ErrorClass::Usage.error("--rank, --nodes, --run-id, --match and --rail-labels need --rendezvous"));
    }
    Ok(None)
}

/// A process per node, as a step of Slurm, Hydra or Flux starts it.
fn pmi(env: &impl Fn(&str) -> Option<String>) -> Told {
    // The step's key-value space is its own: any id will do.
    let run = slurm(env).or_else(|| Some("pmi".to_owned()));
    Told { place: Some(Place::Pmi), rank: env("PMI_RANK"), nodes: env("PMI_SIZE"), run }
}

/// The agent's store is up before its workers are, and its own: torch/distributed/rendezvous.py. Without
/// TORCHELASTIC_USE_AGENT_STORE=True it is the training process that brings one, which does not run yet.
fn agents(env: &impl Fn(&str) -> Option<String>) -> bool {
    env("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True")
}

/// A torchrun of several nodes that has nothing to meet in: each of them would be prepared alone, and nobody would hear of it.
fn storeless(env: &impl Fn(&str) -> Option<String>) -> Result<bool> {
    let nodes = number(env("GROUP_WORLD_SIZE"), "number of nodes")?.unwrap_or(1);
    Ok(env("TORCHELASTIC_RUN_ID").is_some() && nodes > 1)
}

/// What torchrun's environment tells; the id of its run is one only where the store is private to it, or where it was given one.
fn torchrun(args: &Settings, url: Option<&Place>, env: &impl Fn(&str) -> Option<String>) -> Result<Told> {
    let local = env("LOCAL_WORLD_SIZE").unwrap_or_else(|| "1".to_owned());
    if local != "1" {
        let text = format!("torchrun starts {local} workers on this node: one is to prepare it (--nproc-per-node 1)");
        return Err(ErrorClass::Usage.error(text));
    }
    let host: Option<String> = value(&args.store_host, "--store-host (RDMAPREP_STORE_HOST)")?;
    let place = match (host.or(env("MASTER_ADDR")), env("MASTER_PORT")) {
        (Some(host), Some(port)) => {
            // An address of IPv6 comes without brackets.
            let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
            let endpoint = format!("{host}:{port}").parse().class(ErrorClass::Usage, "MASTER_ADDR and MASTER_PORT")?;
            Some(Place::C10d(endpoint))
        }
        _ => None,
    };
    if url.is_none() && place.is_none() && storeless(env)? {
        return Err(ErrorClass::Usage.error(ALONE));
    }
    let private = agents(env) && (url.is_none() || url == place.as_ref());
    let run = env("TORCHELASTIC_RUN_ID").or(private.then(String::new)).filter(|id| private || id != "none");
    let restarts = env("TORCHELASTIC_RESTART_COUNT").unwrap_or_else(|| "0".to_owned());
    let run = run.map(|run| format!("{run}.{restarts}"));
    Ok(Told { place, rank: env("GROUP_RANK"), nodes: env("GROUP_WORLD_SIZE"), run })
}

fn slurm(env: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let (job, step) = (env("SLURM_JOB_ID")?, env("SLURM_STEP_ID").unwrap_or_else(|| "batch".to_owned()));
    Some(format!("{job}.{step}.{}", env("SLURM_RESTART_COUNT").unwrap_or_else(|| "0".to_owned())))
}

fn labels(text: &str) -> Result<BTreeMap<IfName, RailKey>> {
    let mut labels = BTreeMap::new();
    for word in text.split(|c: char| c == ',' || c.is_whitespace()).filter(|w| !w.is_empty()) {
        let (iface, label) = word.split_once('=').ok_or_else(|| anyhow!("{word:?} is no IFACE=LABEL"))?;
        ensure!(labels.insert(iface.parse()?, label.parse()?).is_none(), "{iface} has two labels");
    }
    Ok(labels)
}

/// A flag's value; empty is unset.
fn value<T: FromStr>(text: &Option<String>, flag: &str) -> Result<Option<T>>
where
    T::Err: Into<anyhow::Error>,
{
    text.as_deref().filter(|t| !t.is_empty()).map(|t| t.parse().class(ErrorClass::Usage, flag)).transpose()
}

fn number(text: Option<String>, what: &str) -> Result<Option<u32>> {
    let wrong = |t: &str| ErrorClass::Usage.error(format!("the engine's {what}, {t:?}, is no number"));
    text.map(|t| t.parse().map_err(|_| wrong(&t))).transpose()
}
