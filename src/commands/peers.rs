//! The agreement of all nodes, after this node's own decision and before anything is written; and
//! `rdmaprep job-status`.

use std::io::{IsTerminal, Write};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rail_agreement::c10d::C10d;
#[cfg(feature = "etcd")]
use rail_agreement::etcd::{Etcd, Login};
use rail_agreement::file::FileStore;
use rail_agreement::message::HostName;
use rail_agreement::node::Setup;
use rail_agreement::options::{Options, Settings, StoreUrl};
use rail_agreement::pmi::Pmi;
use rail_agreement::status::Status;
use rail_agreement::{Agreement, DroppedRail, Nonce, Offer, Policy, Rail, Store, Waiting, agree};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::{Snapshot, StoreRoute};
use rdma_model::values::Family;

use super::{say, warn};
use crate::agreement::{RailNames, fill_offer};
use crate::cli::{JobStatusArgs, MeetArgs, RendezvousArgs};
use crate::disk::files;
use crate::kernel::links::RouteSocket;
use crate::kernel::random;
use crate::plan::Plan;
use crate::report;
use crate::select::protected_ifaces::store_links;
use crate::select::{LeftOut, Selection};

/// Nodes that start at once connect within this for each of them, and at most a thousand times
/// that.
const SPREAD: Duration = Duration::from_micros(100);

/// A little more than the deadline: what is read then was asked for before it.
const GRACE: Duration = Duration::from_secs(5);

pub(super) struct Meeting {
    asked: Options,
    /// Whether this node only tries.
    dry: bool,
    store: Box<dyn Store>,
    nonce: Nonce,
    deadline: Instant,
    /// How the store is reached, if known: an interface on that way must not be moved.
    pub(super) way: Option<StoreRoute>,
}

/// How this node joins the others; `None`: it is prepared alone.
pub(super) fn peer_options(args: &RendezvousArgs) -> Result<Option<Options>> {
    let RendezvousArgs {
        meet,
        rank,
        by,
        rail_labels,
    } = args.clone();
    Options::new(
        &Settings {
            rank,
            by,
            rail_labels,
            ..settings(&meet)
        },
        |name| std::env::var(name).ok(),
    )
}

fn settings(meet: &MeetArgs) -> Settings {
    let MeetArgs {
        rendezvous,
        nodes,
        run_id,
        rendezvous_timeout,
        store_host,
    } = meet.clone();
    Settings {
        rendezvous,
        nodes,
        run_id,
        rendezvous_timeout,
        store_host,
        ..Settings::default()
    }
}

/// Opens the store; nothing was decided yet. `dry`: whether this node will store nothing.
pub(super) fn enter(asked: Options, dry: bool) -> Result<Meeting> {
    enter_for(asked, dry, Duration::ZERO)
}

/// Opens a store that is used for that long after the agreement.
pub(super) fn enter_for(asked: Options, dry: bool, after: Duration) -> Result<Meeting> {
    let bits = random::bits()?;
    let jitter = (SPREAD * asked.nodes.min(1000)).mul_f64(f64::from(bits[0]) / 256.0);
    let deadline = Instant::now() + asked.timeout;
    let (store, way) = connect(&asked.store, deadline, after, jitter)?;
    Ok(Meeting {
        asked,
        dry,
        store,
        nonce: Nonce::from_bits(bits),
        deadline,
        way,
    })
}

/// Opens a store. Also returns how it is reached, unless a file system or a launcher makes the
/// connection.
fn connect(
    url: &StoreUrl,
    deadline: Instant,
    after: Duration,
    jitter: Duration,
) -> Result<(Box<dyn Store>, Option<StoreRoute>)> {
    const DOING: &str = "the rendezvous store";
    let limit = deadline + after + GRACE;
    match url {
        StoreUrl::C10d(to) => {
            let store = C10d::connect(to.clone(), deadline, jitter)
                .class(ErrorClass::Disagreed, DOING)?
                .with_limit(limit);
            warn(store.warning().map(str::to_owned).as_slice());
            let way = way((store.address(), store.local()));
            Ok((Box::new(store), Some(way)))
        }
        StoreUrl::File(path) => {
            let store = FileStore::open(path, deadline)
                .class(ErrorClass::Disagreed, DOING)?
                .with_limit(limit);
            Ok((Box::new(store), None))
        }
        #[cfg(feature = "etcd")]
        StoreUrl::Etcd(cluster) => {
            let login = Login::find(cluster, |name| std::env::var(name).ok())
                .class(ErrorClass::Usage, DOING)?;
            let store = Etcd::connect(cluster.clone(), login, deadline, jitter)
                .class(ErrorClass::Disagreed, DOING)?
                .with_limit(limit);
            warn(store.warning().map(str::to_owned).as_slice());
            let way = store.addresses().map(way);
            Ok((Box::new(store), way))
        }
        #[cfg(not(feature = "etcd"))]
        StoreUrl::Etcd(_) => {
            Err(ErrorClass::Usage
                .error("--rendezvous etcd://…: this rdmaprep was built without etcd"))
        }
        StoreUrl::Pmi => {
            let fd = std::env::var("PMI_FD").unwrap_or_default();
            Ok((
                Box::new(Pmi::open(&fd, deadline).class(ErrorClass::Disagreed, DOING)?),
                None,
            ))
        }
        StoreUrl::Static => {
            Err(ErrorClass::Usage.error("--rendezvous static has no nodes to meet"))
        }
    }
}

/// How packets leave for the other end of a connection: where the kernel does not say, the
/// snapshot's routes are looked at later.
fn way((to, local): (IpAddr, IpAddr)) -> StoreRoute {
    let over = RouteSocket::open()
        .and_then(|mut socket| Ok(socket.way(to, local)?))
        .ok()
        .flatten();
    StoreRoute {
        store: to,
        local,
        over,
    }
}

impl Meeting {
    /// Over which interfaces the store is reached.
    pub(super) fn over(&self, seen: &Snapshot) -> Option<String> {
        let devices = self
            .way
            .map(|way| store_links(&way, seen))
            .unwrap_or_default();
        let way = devices
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        Some(way).filter(|way| !way.is_empty())
    }

    /// What this node offers of what it has decided for itself.
    pub(super) fn setup(
        &self,
        family: Family,
        plan: &Plan,
        selection: &Selection,
        seen: &Snapshot,
    ) -> Setup {
        let (offer, left) = self.offered(family, plan, selection, seen);
        warn(&left);
        self.with_offer(offer)
    }

    /// The offer, and a line for each device that cannot be in it.
    pub(super) fn offered(
        &self,
        family: Family,
        plan: &Plan,
        selection: &Selection,
        seen: &Snapshot,
    ) -> (Offer, Vec<String>) {
        let names = RailNames::new(self.policy(family), &self.asked.labels, selection, seen);
        let (offer, nameless) = fill_offer(self.offer(family), plan, selection, &names);
        let left = nameless.iter();
        let left = left.map(|n| format!("{n} is not offered: it has no {}", names.requirement()));
        (offer, left.collect())
    }

    fn offer(&self, family: Family) -> Offer {
        Offer::new(
            self.nonce.clone(),
            host(),
            self.asked.nodes,
            self.policy(family),
        )
    }

    fn with_offer(&self, offer: Offer) -> Setup {
        Setup {
            run: self.asked.run.clone(),
            rank: self.asked.rank,
            offer,
        }
    }

    fn policy(&self, family: Family) -> Policy {
        Policy {
            by: self.asked.by,
            family,
            dry: self.dry,
        }
    }

    /// Says at once why this node takes no part: the others may be waited for as long as the
    /// deadline.
    pub(super) fn announce(&self, why: &anyhow::Error) {
        if self.asked.nodes > 1 {
            // Reasons by NIC follow at the end.
            let causes = why
                .chain()
                .filter(|cause| !cause.is::<LeftOut>())
                .map(ToString::to_string);
            warn(&[format!(
                "{}; telling the other nodes",
                causes.collect::<Vec<_>>().join(": ")
            )]);
        }
    }

    /// Publishes why this node takes no part, and returns that reason as this node's own error.
    pub(super) fn refuse(self, why: anyhow::Error) -> anyhow::Error {
        self.announce(&why);
        let setup = self.with_offer(self.offer(Family::default()).refusing(&format!("{why:#}")));
        // The other nodes report their own outcome.
        let _ = self.agree(setup, &mut |_| Ok(()));
        why
    }

    /// Agrees with all other nodes on a part of that which `judge` says yes to. The store is closed
    /// then.
    pub(super) fn agree(
        self,
        setup: Setup,
        judge: &mut dyn FnMut(&Agreement) -> Result<()>,
    ) -> Result<Agreement> {
        self.agree_and_stay(setup, judge)
            .map(|(agreement, _)| agreement)
    }

    /// As [`Meeting::agree`], with the store open.
    pub(super) fn agree_and_stay(
        mut self,
        setup: Setup,
        judge: &mut dyn FnMut(&Agreement) -> Result<()>,
    ) -> Result<(Agreement, Box<dyn Store>)> {
        let mut print = |waiting: Waiting| {
            let line = report::printable(&waiting.line());
            // stderr may be closed.
            let _ = writeln!(std::io::stderr(), "rdmaprep: {line}");
        };
        let watch: Option<&mut dyn FnMut(Waiting)> = if std::io::stderr().is_terminal() {
            Some(&mut print)
        } else {
            None
        };
        let agreement = agree(self.store.as_mut(), setup, self.deadline, judge, watch)?;
        Ok((agreement, self.store))
    }

    /// This node's part with rails that have their names already.
    pub(super) fn setup_with(&self, rails: Vec<Rail>, dropped: Vec<DroppedRail>) -> Setup {
        let offer = self.offer(Family::default());
        self.with_offer(Offer {
            rails,
            dropped,
            ..offer
        })
    }
}

pub(super) fn host() -> HostName {
    let name = files::read(Path::new("/proc/sys/kernel/hostname"))
        .ok()
        .flatten()
        .unwrap_or_default();
    HostName::sanitized(name.trim())
}

/// `rdmaprep job-status`: what is in the store, once or until all have published.
pub(super) fn show(args: &JobStatusArgs) -> Result<()> {
    let Some(asked) =
        Options::for_observer(&settings(&args.meet), |name| std::env::var(name).ok())?
    else {
        return Err(ErrorClass::Usage
            .error("--rendezvous: no store given; give the URL that the nodes gave `prepare`"));
    };
    // Any request on PMI_FD would count as the job step's own.
    if asked.store == StoreUrl::Pmi {
        return Err(ErrorClass::Usage
            .error("--rendezvous pmi: only processes of the job step can read its store"));
    }
    let (run, nodes, deadline, mut before) = (
        asked.run.clone(),
        asked.nodes,
        Instant::now() + asked.timeout,
        None,
    );
    let mut store: Box<dyn Store> = match &asked.store {
        // An observer must not create the file.
        StoreUrl::File(path) => Box::new(
            FileStore::open_read_only(path, deadline + GRACE)
                .class(ErrorClass::Disagreed, "the rendezvous store")?,
        ),
        _ => enter(asked, false)?.store,
    };
    loop {
        let seen = Status::read(store.as_mut(), &run, nodes)
            .class(ErrorClass::Disagreed, "the rendezvous store")?;
        let over = !args.watch || seen.complete() || Instant::now() >= deadline;
        if before.as_ref() != Some(&seen) {
            match args.json {
                true => say(&report::json(&seen)?)?,
                false => say(&seen
                    .lines()
                    .iter()
                    .map(|l| report::printable(l))
                    .collect::<Vec<_>>()
                    .join("\n"))?,
            }
        }
        if over {
            return Ok(());
        }
        before = Some(seen);
        std::thread::sleep(Duration::from_secs(1));
    }
}
