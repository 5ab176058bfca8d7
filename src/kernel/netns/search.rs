//! Links of other network namespaces that sit on netdevs of this one: macvlans, ipvlans and VLANs
//! of a NIC that a pod has. The kernel lists them nowhere on this side (netdev_adjacent_sysfs_add()
//! in net/core/dev.c links within a namespace alone), but each names the device below: its index,
//! and by IFLA_LINK_NETNSID the namespace in which that counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rdma_model::ids::Mac;
use rdma_model::snapshot::Stranger;
use serde::Deserialize;

use crate::kernel::links::RouteSocket;
use crate::kernel::netns::{self, Journey, NAMED, Netns, pins};
use crate::kernel::process::pidfd::start_time;
use crate::kernel::process::status::{pid_namespace, status};
use crate::record::Record;

/// How long to look: there may be thousands of namespaces, and a container waits.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// A link of another namespace, which this value keeps open.
pub struct FoundLink {
    pub link: Stranger,
    netns: Netns,
    /// Where the namespace was found.
    path: PathBuf,
    /// Whether an engine or `ip netns` keeps its namespace by a name.
    has_name: bool,
    /// What a CNI plugin has put into its namespace, if any: whether this link.
    is_given: Option<bool>,
    /// Whether the container moved a link to its namespace: the kernel gives a namespace a number
    /// in the one that a link leaves for it (__dev_change_net_namespace() in net/core/dev.c).
    pub is_fed_from_inside: bool,
}

impl FoundLink {
    /// Whether the process that was found in its namespace is older than one that started then, in
    /// the unit of proc_pid_stat(5): no container has made its namespace that began later.
    pub fn is_older_than(&self, start: u64) -> bool {
        let process = self.path.strip_prefix("/proc").ok();
        let first = process.and_then(|path| path.iter().next()?.to_str()?.parse().ok());
        first
            .and_then(start_time)
            .is_some_and(|began| began < start)
    }

    /// Whether a CNI plugin has put it where it is.
    pub fn is_of_cni(&self) -> bool {
        self.is_given == Some(true)
    }

    /// Whether its namespace is that of another container: an engine or `ip netns` gave it a name,
    /// or the process that was found in it is in a PID namespace of its own, which is not one of
    /// the container's.
    pub fn is_anothers(&self, container: &Processes) -> bool {
        let process = self.path.ancestors().nth(2);
        self.has_name || process.is_some_and(|p| is_in_pid_namespace(p) && !container.have(p))
    }

    /// Whether an engine may have put it where it is, in the namespace of that container. The
    /// engines that do so while a container runs keep its namespace by a name, and what a CNI
    /// plugin gives they write down.
    pub fn may_be_of_engine(&self, container: &Processes) -> bool {
        !container.all.is_empty() && self.has_name && self.is_given.is_none()
    }
}

/// Deletes links, those of one namespace together. What came of each, in their order.
pub fn delete_all(found: &[&FoundLink]) -> Vec<Result<()>> {
    let mut there: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, link) in found.iter().enumerate() {
        there.entry(link.link.netns).or_default().push(at);
    }
    let mut all = BTreeMap::new();
    for places in there.into_values() {
        let links: Vec<&FoundLink> = places.iter().map(|at| found[*at]).collect();
        all.extend(places.into_iter().zip(delete_there(&links)));
    }
    all.into_values().collect()
}

/// Of links of one namespace.
fn delete_there(links: &[&FoundLink]) -> Vec<Result<()>> {
    let indexes: Vec<u32> = links.iter().map(|f| f.link.ifindex).collect();
    let visit = || RouteSocket::open()?.delete_links(&indexes);
    let Some(first) = links.first() else {
        return Vec::new();
    };
    match first.netns.visit(visit) {
        Ok(done) => done.into_iter().map(|d| d.map_err(Into::into)).collect(),
        Err(e) => links.iter().map(|_| Err(anyhow!("{e:#}"))).collect(),
    }
}

/// The processes of a container. A PID namespace that one of them has made is below theirs, and
/// each process of it has one of theirs above it: the kernel gives the children of one that ends
/// to none outside (find_new_reaper() in kernel/exit.c).
pub struct Processes {
    all: Vec<i32>,
    pid_namespaces: BTreeSet<PathBuf>,
}

impl Processes {
    pub fn of(record: &Record) -> Processes {
        let all = netns::processes_in(record.netns);
        // A first process may have left its network namespace.
        let mut members = record.members.clone();
        members.retain(|m| start_time(m.pid) == Some(m.start_time));
        let pids = all.iter().copied().chain(members.iter().map(|m| m.pid));
        let pid_namespaces = pids.filter_map(|pid| pid_namespace(&folder(pid)));
        Processes {
            pid_namespaces: pid_namespaces.collect(),
            all,
        }
    }

    pub fn live(&self) -> bool {
        !self.pid_namespaces.is_empty()
    }

    fn have(&self, process: &Path) -> bool {
        let mut chain = std::iter::successors(Some(process.to_owned()), |p| parent(p));
        chain.any(|p| pid_namespace(&p).is_some_and(|own| self.pid_namespaces.contains(&own)))
    }
}

fn parent(process: &Path) -> Option<PathBuf> {
    status(process, "PPid:").map(folder)
}

fn folder(pid: impl Display) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// What a container runtime keeps of each interface that a CNI plugin has given: `libcni` of
/// containerd and CRI-O, and multus.
const CNI_RESULTS: [&str; 2] = ["/var/lib/cni/results", "/var/lib/cni/multus/results"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CniResult {
    if_name: String,
    netns: PathBuf,
    #[serde(default)]
    result: CniLinks,
}

#[derive(Default, Deserialize)]
struct CniLinks {
    #[serde(default)]
    interfaces: Vec<CniLink>,
}

#[derive(Deserialize)]
struct CniLink {
    name: String,
    #[serde(default)]
    mac: String,
    /// Empty for a link of the host.
    #[serde(default)]
    sandbox: String,
}

impl CniResult {
    /// The address that it gave; empty where it does not say so.
    fn mac(&self) -> &str {
        let mut links = self.result.interfaces.iter();
        let link = links.find(|l| l.name == self.if_name && !l.sandbox.is_empty());
        link.map_or("", |link| &link.mac)
    }

    /// Root in a container can give a link of its own that name.
    fn has_given(&self, link: &Stranger) -> bool {
        let mac = link.mac.as_ref().map(Mac::to_string).unwrap_or_default();
        self.if_name == link.name.as_str()
            && (self.mac().is_empty() || self.mac().eq_ignore_ascii_case(&mac))
    }
}

/// What CNI plugins have given, by the inode of the namespace.
fn results_of_cni() -> Vec<(u64, CniResult)> {
    let folders = CNI_RESULTS
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok());
    let files = folders.flatten().flatten();
    let results = files.filter_map(|entry| {
        serde_json::from_slice::<CniResult>(&std::fs::read(entry.path()).ok()?).ok()
    });
    results
        .filter_map(|result| Some((inode(&result.netns)?, result)))
        .collect()
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|file| file.ino())
}

/// Docker's names are not among those of `ip netns`.
const ENGINES: [&str; 2] = [NAMED, "/run/docker/netns"];

/// Whether a process has another number in a PID namespace below ours (NSpid in
/// proc_pid_status(5)).
fn is_in_pid_namespace(process: &Path) -> bool {
    let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1)
}

/// What was found, and whether all namespaces that a process has or `ip netns` keeps were searched.
#[derive(Default)]
pub struct Search {
    pub found: Vec<FoundLink>,
    /// A sentence where the search is not complete.
    pub gap: Option<String>,
}

impl Search {
    /// Links elsewhere that sit on netdevs of `home` with an index that `concerns`; `more` are
    /// namespaces that may have neither process nor name.
    pub fn new(
        home: &Netns,
        more: Option<Netns>,
        patience: Duration,
        concerns: impl Fn(u32) -> bool + Sync,
    ) -> Search {
        let deadline = Instant::now() + patience;
        let mut search = Search::default();
        let Ok(journey) = Journey::begin() else {
            return search;
        };
        let mut known = vec![home.inode()];
        if let Some(one) = &more {
            known.push(one.inode());
            search.search_in(&journey, home, (Path::new(""), one), &concerns, deadline);
        }
        for (path, other) in netns::others(&known) {
            if Instant::now() >= deadline {
                search.gap = Some(
                    "there are more network namespaces than could be searched for links on the \
                    NICs, such as macvlans"
                        .to_owned(),
                );
                break;
            }
            search.search_in(&journey, home, (&path, &other), &concerns, deadline);
        }
        let inside = more.and_then(|inside| journey.visit(&inside, RouteSocket::open).ok());
        if let Some(mut inside) = inside {
            for found in &mut search.found {
                let number = inside.number_of(&found.netns);
                found.is_fed_from_inside = number.is_ok_and(|number| number.is_some());
            }
        }
        search.ask_engines();
        search
    }

    fn ask_engines(&mut self) {
        if self.found.is_empty() {
            return;
        }
        let results = results_of_cni();
        let named: BTreeSet<u64> = ENGINES.iter().flat_map(|f| pins::named_in(f)).collect();
        for found in &mut self.found {
            let link = &found.link;
            let mut there = results.iter().filter(|(netns, _)| *netns == link.netns);
            found.has_name = named.contains(&link.netns);
            found.is_given = there
                .clone()
                .next()
                .map(|_| there.any(|(_, result)| result.has_given(link)));
        }
    }

    /// A namespace that ends meanwhile takes its links along, and one that cannot be entered is
    /// none of ours. One whose links cannot be listed as a whole is a gap.
    fn search_in(
        &mut self,
        journey: &Journey,
        home: &Netns,
        (path, other): (&Path, &Netns),
        concerns: &(impl Fn(u32) -> bool + Sync),
        deadline: Instant,
    ) {
        let keeper = keeper(path);
        let Ok(mut socket) = journey.visit(other, RouteSocket::open) else {
            return;
        };
        let seen = socket.strangers(home, concerns, deadline);
        let (seen, why) = match seen {
            Ok((seen, true)) => (seen, None),
            Ok((seen, false)) => (seen, Some("they change all the time".to_owned())),
            Err(e) => (Vec::new(), Some(format!("{e:#}"))),
        };
        if let Some(why) = why {
            let whose = if keeper.is_empty() {
                "the container"
            } else {
                &keeper
            };
            self.gap = Some(format!(
                "not all links of the network namespace of {whose} are known, such as macvlans on \
                the NICs: {why}"
            ));
        }
        for stranger in seen {
            let Ok(netns) = other.again() else { continue };
            let link = Stranger {
                netns: other.inode(),
                keeper: keeper.clone(),
                ..stranger
            };
            self.found.push(FoundLink {
                link,
                netns,
                path: path.to_owned(),
                has_name: false,
                is_given: None,
                is_fed_from_inside: false,
            });
        }
    }
}

fn keeper(path: &Path) -> String {
    let text = path.to_string_lossy();
    match text
        .strip_prefix("/proc/")
        .and_then(|rest| rest.split('/').next())
    {
        Some(pid) => format!("process {pid}"),
        None => text
            .strip_prefix(NAMED)
            .map_or(text.to_string(), |name| format!("ip netns {}", &name[1..])),
    }
}
