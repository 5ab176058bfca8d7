//! How a node joins the others: from what the user set, then from the environment of torchrun,
//! Slurm or a PMI launcher. Errors name a setting as `rdmaprep` has it on its command line
//! (`--rank`) and in its environment (`RDMAPREP_RANK`).

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `static`: none; each node is prepared alone.
    Static,
    /// `c10d://HOST[:PORT]`: PyTorch's TCPStore.
    C10d(Endpoint),
    /// `file:///PATH`: a file that all nodes share.
    File(PathBuf),
    /// `etcd://…` or `etcds://…`: etcd.
    Etcd(Cluster),
    /// `pmi`: the launcher behind PMI_FD.
    Pmi,
}

impl FromStr for StoreUrl {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        match s.split_once("://") {
            None if s == "static" => Ok(StoreUrl::Static),
            None if s == "pmi" => Ok(StoreUrl::Pmi),
            Some(("c10d", rest)) => {
                ensure!(!rest.trim().is_empty(), "{s:?} names no host");
                Ok(StoreUrl::C10d(rest.parse()?))
            }
            Some(("file", path)) => {
                ensure!(
                    path.starts_with('/') && !path.ends_with('/'),
                    "{s:?} is no absolute path (file:///shared/job)"
                );
                Ok(StoreUrl::File(path.into()))
            }
            Some(("etcd" | "etcds", _)) => Ok(StoreUrl::Etcd(s.parse()?)),
            _ => bail!(
                "{s:?} is none of c10d://HOST:PORT, file:///PATH, etcd://HOST:PORT/PREFIX, pmi, \
                static"
            ),
        }
    }
}

/// What the user set, as text: flags, or the variables that stand for them. Empty text is unset.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub rendezvous: Option<String>,
    /// The host of torchrun's store, in place of MASTER_ADDR: `--store-host`.
    pub store_host: Option<String>,
    pub rank: Option<String>,
    pub nodes: Option<String>,
    pub run_id: Option<String>,
    /// Seconds for the whole agreement, 1 to 86400, by default 120: `--rendezvous-timeout`.
    pub rendezvous_timeout: Option<String>,
    pub by: Option<String>,
    /// `IFACE=LABEL`, separated by commas or white space: `--rail-labels`.
    pub rail_labels: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub store: StoreUrl,
    pub rank: u32,
    pub nodes: u32,
    pub run: RunId,
    pub by: Match,
    /// Names of rails for [`Match::Label`]; empty otherwise.
    pub labels: BTreeMap<IfName, RailKey>,
    /// How long the whole agreement may take, including the wait for the store.
    pub timeout: Duration,
}

const ALONE: &str = "this torchrun shares no store: --rendezvous URL, or --rendezvous static to \
    prepare each node alone";

#[derive(Default)]
struct Launcher {
    store: Option<StoreUrl>,
    rank: Option<String>,
    nodes: Option<String>,
    run: Option<String>,
}

impl Options {
    /// Reads settings and, through `env`, the environment of the job's launcher. `None`: each node
    /// is prepared alone.
    pub fn new(set: &Settings, env: impl Fn(&str) -> Option<String>) -> Result<Option<Options>> {
        Options::read(set, env, false)
    }

    /// Reads the settings of a process that only reads the store: it needs no rank, and may be one
    /// of several workers on a node.
    pub fn for_observer(
        set: &Settings,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Options>> {
        let set = Settings {
            rank: Some("0".to_owned()),
            by: None,
            rail_labels: None,
            ..set.clone()
        };
        let env = |name: &str| {
            if name == "LOCAL_WORLD_SIZE" {
                None
            } else {
                env(name)
            }
        };
        Options::read(&set, env, true)
    }

    fn read(
        set: &Settings,
        env: impl Fn(&str) -> Option<String>,
        observer: bool,
    ) -> Result<Option<Options>> {
        let env = |name: &str| env(name).filter(|text| !text.is_empty());
        let url: Option<StoreUrl> = value(&set.rendezvous, "--rendezvous (RDMAPREP_RENDEZVOUS)")?;
        let launcher = match &url {
            Some(StoreUrl::Static) => return Ok(None),
            Some(StoreUrl::Pmi) if env("PMI_FD").is_none() => {
                return Err(ErrorClass::Usage
                    .error("--rendezvous pmi: there is no PMI_FD in the environment"));
            }
            Some(StoreUrl::Pmi) => pmi(&env),
            // torchrun is asked before PMI: it may itself be a process of a Slurm or MPI step.
            _ if shares_agent_store(&env)
                || (url.is_some() && env("TORCHELASTIC_RUN_ID").is_some()) =>
            {
                torchrun(set, url.as_ref(), &env)?
            }
            None if has_several_nodes(&env)? => return Err(ErrorClass::Usage.error(ALONE)),
            None if env("PMI_FD").is_some() && env("TORCHELASTIC_RUN_ID").is_none() => pmi(&env),
            _ => Launcher::default(),
        };
        let Some(store) = url.or(launcher.store) else {
            return if observer { Ok(None) } else { no_store(set) };
        };
        let needed =
            |what: &str| ErrorClass::Usage.error(format!("--rendezvous: {what} is needed as well"));
        let rank = value(&set.rank, "--rank (RDMAPREP_RANK)")?.or(number(launcher.rank, "rank")?);
        let nodes = value(&set.nodes, "--nodes (RDMAPREP_NODES)")?
            .or(number(launcher.nodes, "number of nodes")?);
        let (rank, nodes) = (
            rank.ok_or_else(|| needed("--rank"))?,
            nodes.ok_or_else(|| needed("--nodes"))?,
        );
        if !(1..=MAX_NODES).contains(&nodes) || rank >= nodes {
            let text = format!(
                "rank {rank} of {nodes} nodes: there are 1 to {MAX_NODES}, and ranks begin at 0"
            );
            return Err(ErrorClass::Usage.error(text));
        }
        let run: Option<RunId> = value(&set.run_id, "--run-id (RDMAPREP_RUN_ID)")?;
        let found = launcher.run.or_else(|| slurm(&env));
        let run = run
            .map(Ok)
            .or_else(|| found.map(|id| id.parse().class(ErrorClass::Usage, "the engine's run id")));
        let by: Match = value(&set.by, "--match (RDMAPREP_MATCH)")?.unwrap_or_default();
        let labels = labels(set.rail_labels.as_deref().unwrap_or_default())
            .class(ErrorClass::Usage, "--rail-labels (RDMAPREP_RAIL_LABELS)")?;
        if (by == Match::Label) == labels.is_empty() {
            return Err(ErrorClass::Usage.error("--match label and --rail-labels need one another"));
        }
        let seconds: u32 = value(
            &set.rendezvous_timeout,
            "--rendezvous-timeout (RDMAPREP_RENDEZVOUS_TIMEOUT)",
        )?
        .unwrap_or(120);
        if !(1..=86400).contains(&seconds) {
            return Err(ErrorClass::Usage.error("--rendezvous-timeout: 1 to 86400 seconds"));
        }
        let timeout = Duration::from_secs(seconds.into());
        Ok(Some(Options {
            store,
            rank,
            nodes,
            run: run.ok_or_else(|| needed("--run-id"))??,
            by,
            labels,
            timeout,
        }))
    }
}

/// Settings that need a store are wrong without one.
fn no_store(set: &Settings) -> Result<Option<Options>> {
    if [
        &set.rank,
        &set.nodes,
        &set.run_id,
        &set.by,
        &set.rail_labels,
    ]
    .into_iter()
    .any(|text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty()))
    {
        return Err(ErrorClass::Usage
            .error("--rank, --nodes, --run-id, --match and --rail-labels need --rendezvous"));
    }
    Ok(None)
}

/// PMI-1's environment, one process per node: a step of Slurm, Hydra or Flux.
fn pmi(env: &impl Fn(&str) -> Option<String>) -> Launcher {
    // The key-value space belongs to the step, so any id is unique.
    let run = slurm(env).or_else(|| Some("pmi".to_owned()));
    Launcher {
        store: Some(StoreUrl::Pmi),
        rank: env("PMI_RANK"),
        nodes: env("PMI_SIZE"),
        run,
    }
}

/// Whether torchrun's agents keep a store of their own, which is up before the workers start
/// (torch/distributed/rendezvous.py). Without TORCHELASTIC_USE_AGENT_STORE=True the training
/// process creates the store, which does not run yet.
fn shares_agent_store(env: &impl Fn(&str) -> Option<String>) -> bool {
    env("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True")
}

/// A torchrun of several nodes. Without a shared store each node would be prepared alone, without a
/// word about it.
fn has_several_nodes(env: &impl Fn(&str) -> Option<String>) -> Result<bool> {
    let nodes = number(env("GROUP_WORLD_SIZE"), "number of nodes")?.unwrap_or(1);
    Ok(env("TORCHELASTIC_RUN_ID").is_some() && nodes > 1)
}

/// torchrun's environment. Its run id counts only where the store is private to the job, or where
/// the user gave it one.
fn torchrun(
    set: &Settings,
    url: Option<&StoreUrl>,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<Launcher> {
    let local = env("LOCAL_WORLD_SIZE").unwrap_or_else(|| "1".to_owned());
    if local != "1" {
        let text = format!(
            "torchrun starts {local} workers on this node: one is to prepare it \
             (--nproc-per-node 1)"
        );
        return Err(ErrorClass::Usage.error(text));
    }
    let host: Option<String> = value(&set.store_host, "--store-host (RDMAPREP_STORE_HOST)")?;
    let store = match (host.or(env("MASTER_ADDR")), env("MASTER_PORT")) {
        (Some(host), Some(port)) => {
            // MASTER_ADDR has an IPv6 address without brackets.
            let host = if host.contains(':') && !host.starts_with('[') {
                format!("[{host}]")
            } else {
                host
            };
            let endpoint = format!("{host}:{port}")
                .parse()
                .class(ErrorClass::Usage, "MASTER_ADDR and MASTER_PORT")?;
            Some(StoreUrl::C10d(endpoint))
        }
        _ => None,
    };
    if url.is_none() && store.is_none() && has_several_nodes(env)? {
        return Err(ErrorClass::Usage.error(ALONE));
    }
    let private = shares_agent_store(env) && (url.is_none() || url == store.as_ref());
    let run = env("TORCHELASTIC_RUN_ID")
        .or(private.then(String::new))
        .filter(|id| private || id != "none");
    let restarts = env("TORCHELASTIC_RESTART_COUNT").unwrap_or_else(|| "0".to_owned());
    let run = run.map(|run| format!("{run}.{restarts}"));
    Ok(Launcher {
        store,
        rank: env("GROUP_RANK"),
        nodes: env("GROUP_WORLD_SIZE"),
        run,
    })
}

fn slurm(env: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let (job, step) = (
        env("SLURM_JOB_ID")?,
        env("SLURM_STEP_ID").unwrap_or_else(|| "batch".to_owned()),
    );
    Some(format!(
        "{job}.{step}.{}",
        env("SLURM_RESTART_COUNT").unwrap_or_else(|| "0".to_owned())
    ))
}

fn labels(text: &str) -> Result<BTreeMap<IfName, RailKey>> {
    let mut labels = BTreeMap::new();
    for word in text
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|w| !w.is_empty())
    {
        let (iface, label) = word
            .split_once('=')
            .ok_or_else(|| anyhow!("{word:?} is no IFACE=LABEL"))?;
        ensure!(
            labels.insert(iface.parse()?, label.parse()?).is_none(),
            "{iface} has two labels"
        );
    }
    Ok(labels)
}

fn value<T: FromStr>(text: &Option<String>, flag: &str) -> Result<Option<T>>
where
    T::Err: Into<anyhow::Error>,
{
    text.as_deref()
        .filter(|t| !t.is_empty())
        .map(|t| t.parse().class(ErrorClass::Usage, flag))
        .transpose()
}

fn number(text: Option<String>, what: &str) -> Result<Option<u32>> {
    let wrong =
        |t: &str| ErrorClass::Usage.error(format!("the engine's {what}, {t:?}, is no number"));
    text.map(|t| t.parse().map_err(|_| wrong(&t))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TORCHRUN: [(&str, &str); 7] = [
        ("TORCHELASTIC_RUN_ID", "none"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("MASTER_ADDR", "::1"),
        ("MASTER_PORT", "29500"),
        ("GROUP_RANK", "1"),
        ("GROUP_WORLD_SIZE", "2"),
        ("LOCAL_WORLD_SIZE", "1"),
    ];

    fn set(rendezvous: &str) -> Settings {
        let some = |text: &str| Some(text.to_owned());
        Settings {
            rendezvous: some(rendezvous),
            rank: some("1"),
            nodes: some("2"),
            ..Settings::default()
        }
    }

    fn read(set: &Settings, env: &[(&str, &str)]) -> Result<Option<Options>> {
        Options::new(set, |name| {
            env.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    fn why(set: &Settings, env: &[(&str, &str)]) -> String {
        let e = read(set, env).unwrap_err();
        assert_eq!(ErrorClass::of(&e), ErrorClass::Usage);
        format!("{e:#}")
    }

    #[test]
    fn settings_without_a_launcher_need_all_values() {
        assert_eq!(read(&Settings::default(), &[]).unwrap(), None);
        assert_eq!(read(&set("static"), &TORCHRUN).unwrap(), None);
        assert_eq!(
            why(&set("file:///shared/job"), &[]),
            "--rendezvous: --run-id is needed as well"
        );
        let full = Settings {
            run_id: Some("job.1".into()),
            ..set("file:///shared/job")
        };
        let options = read(&full, &[]).unwrap().unwrap();
        assert_eq!(
            (options.store, options.rank, options.nodes),
            (StoreUrl::File("/shared/job".into()), 1, 2)
        );
        assert_eq!(
            (options.by, options.timeout),
            (Match::Name, Duration::from_secs(120))
        );
        assert_eq!(
            why(
                &Settings {
                    rendezvous: None,
                    ..full.clone()
                },
                &[]
            )
            .split(' ')
            .next(),
            Some("--rank,")
        );
        let third = Settings {
            rank: Some("2".into()),
            ..full.clone()
        };
        assert_eq!(
            why(&third, &[]),
            "rank 2 of 2 nodes: there are 1 to 16384, and ranks begin at 0"
        );
        let labels = Settings {
            rail_labels: Some("rdma0=a,rdma1=b".into()),
            ..full
        };
        assert_eq!(
            why(&labels, &[]),
            "--match label and --rail-labels need one another"
        );
        let options = read(
            &Settings {
                by: Some("label".into()),
                ..labels
            },
            &[],
        )
        .unwrap()
        .unwrap();
        assert_eq!(
            options
                .labels
                .into_values()
                .map(|l| l.to_string())
                .collect::<Vec<_>>(),
            ["a", "b"]
        );
    }

    #[test]
    fn torchrun_gives_store_rank_nodes_and_run() {
        let options = read(&Settings::default(), &TORCHRUN).unwrap().unwrap();
        assert_eq!(
            options.store,
            StoreUrl::C10d("[::1]:29500".parse().unwrap())
        );
        assert_eq!(
            (
                options.rank,
                options.nodes,
                options.run.to_string().as_str()
            ),
            (1, 2, "none.0")
        );
        let without_store: Vec<_> = TORCHRUN
            .into_iter()
            .filter(|(n, _)| *n != "TORCHELASTIC_USE_AGENT_STORE")
            .collect();
        assert_eq!(why(&Settings::default(), &without_store), ALONE);
        // Its run id is not unique in a store of other jobs.
        assert_eq!(
            why(&set("file:///shared/job"), &TORCHRUN),
            "--rendezvous: --run-id is needed as well"
        );
        let workers: Vec<_> = TORCHRUN
            .into_iter()
            .map(|(n, v)| (n, if n == "LOCAL_WORLD_SIZE" { "8" } else { v }))
            .collect();
        assert!(
            why(&Settings::default(), &workers)
                .starts_with("torchrun starts 8 workers on this node")
        );
        let observer = Options::for_observer(&Settings::default(), |name| {
            workers
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, value)| (*value).to_owned())
        });
        assert_eq!(observer.unwrap().unwrap().rank, 0);
    }

    #[test]
    fn a_pmi_step_gives_rank_nodes_and_slurms_run() {
        let step = [
            ("PMI_FD", "9"),
            ("PMI_RANK", "3"),
            ("PMI_SIZE", "4"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
        ];
        let options = read(&Settings::default(), &step).unwrap().unwrap();
        assert_eq!(
            (options.store, options.rank, options.nodes),
            (StoreUrl::Pmi, 3, 4)
        );
        assert_eq!(options.run.to_string(), "7.0.0");
        assert_eq!(
            read(&Settings::default(), &step[..3])
                .unwrap()
                .unwrap()
                .run
                .to_string(),
            "pmi"
        );
        assert_eq!(
            why(&set("pmi"), &[]),
            "--rendezvous pmi: there is no PMI_FD in the environment"
        );
    }

    #[test]
    fn store_urls_are_read_strictly() {
        for wrong in [
            "",
            "c10d://",
            "file://relative",
            "file:///folder/",
            "http://a",
            "etcd://",
            "PMI",
        ] {
            assert!(wrong.parse::<StoreUrl>().is_err(), "{wrong}");
        }
        assert_eq!(
            "c10d://a".parse::<StoreUrl>().unwrap(),
            StoreUrl::C10d("a:29400".parse().unwrap())
        );
    }
}
