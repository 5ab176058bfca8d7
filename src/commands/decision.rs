//! What a container gets, as a value: the plan, what it shows of /sys, and the machine that both
//! were made from.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use nccl_rules::explain::{self, Trap};
use rail_agreement::Agreement;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::Snapshot;
use rdma_model::step::Side;
use rdma_model::tree::Tree;

use super::{busy_nics, progress, recorded, warn};
use crate::config::request::Request;
use crate::config::sandbox::{self, Sandbox};
use crate::config::sysfs_mode::SysfsMode;
use crate::kernel::netns::Netns;
use crate::kernel::sysfs::Survey;
use crate::kernel::{Kernel, Observed, Scope, World};
use crate::link_managers::Managers;
use crate::nccl_env::Namespace;
use crate::oci::edit;
use crate::plan::{Plan, rdma_proxy};
use crate::planner::{
    check_agreed, check_selection, inside_with_nics, look_at_host, moved_away, options,
    plan_of_any, view_of,
};
use crate::select::{Selection, protected_ifaces};
use crate::store::Store;

/// For a link to come up, and its address and GID.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Decision {
    pub(super) plan: Plan,
    pub(super) selection: Selection,
    pub(super) view: Option<Tree>,
    /// The namespace that the container joins, where it is known.
    pub(super) pod: Option<Snapshot>,
    pub(super) host: Snapshot,
    /// Whether that is another machine, or this one at another time.
    pub(super) recorded: bool,
}

pub(super) fn decide(
    request: &Request,
    name: &str,
    file: Option<&Path>,
    config: Option<&str>,
    store: &Store,
) -> Result<Decision> {
    DraftInputs::new(request, name, file, config, store)?.decide(None)
}

impl Decision {
    /// Where nothing is known of it, the container is to have one of its own.
    pub(super) fn namespace(&self) -> Namespace<'_> {
        match &self.pod {
            _ if !self.plan.moves() => Namespace::Seen(&self.host),
            Some(pod) => Namespace::Seen(pod),
            None => Namespace::New,
        }
    }

    fn shown(self, config: Option<&str>, survey: Option<&Survey>) -> Result<Decision> {
        let others = self
            .pod
            .iter()
            .flat_map(|pod| pod.netdevs.iter().filter_map(|n| n.pci))
            .collect();
        let mut view = view_of(&self.plan, others, &self.host, survey)?;
        if let (Some(view), SysfsMode::Snapshot, Some(config)) =
            (&mut view, self.plan.sysfs, config)
        {
            for dir in edit::below_sys(config)?
                .iter()
                .filter(|dir| !dir.is_empty())
            {
                view.make_room(dir);
            }
        }
        let sysfs = self.plan.sysfs;
        let plan = self
            .plan
            .with_sysfs(sysfs, view.as_ref().map(Store::view_name).transpose()?);
        Ok(Decision { plan, view, ..self })
    }

    /// What NCCL makes of the container's environment, where that is not what was meant. One on
    /// which NCCL crashes is refused, and where the namespace is known, one that keeps NCCL from
    /// its NICs: it would end, or hang, an hour later.
    pub(super) fn traps(
        &self,
        env: &BTreeMap<String, String>,
        request: &Request,
    ) -> Result<Vec<String>> {
        let is_here = |name: &IfName| {
            [Some(&self.host), self.pod.as_ref()]
                .into_iter()
                .flatten()
                .any(|s| s.netdev(name).is_some())
        };
        if !self.plan.nics.iter().all(|nic| is_here(&nic.identity.name)) {
            // Another container has it: the create hook waits for it, or says which one.
            return Ok(Vec::new());
        }
        let inside = inside_with_nics(&self.plan, &self.host, self.pod.as_ref());
        let found = explain::check(env, &inside, self.plan.nccl_version);
        let crashes = |trap| matches!(trap, Trap::Crash | Trap::Overrun);
        if let Some(trap) = found
            .iter()
            .find(|w| w.fatal && (self.pod.is_some() || crashes(w.trap)))
        {
            let more =
                "change that setting of the container, or its NICs (--exclude-hca, --exclude)";
            return Err(
                ErrorClass::Refused.error(format!("NCCL in this container: {}; {more}", trap.text))
            );
        }
        let mut notes: Vec<String> = found
            .into_iter()
            .map(|w| format!("NCCL in this container: {}", w.text))
            .collect();
        if let Some(peer) = request
            .select
            .peer_address
            .filter(|peer| !protected_ifaces::leads(&inside, *peer))
        {
            notes.push(format!(
                "nothing in this container leads to the peer address {peer}: it is in no rail's \
                subnet, and no route of a rail, or of the namespace as it is now, goes there"
            ));
        }
        Ok(notes)
    }

    /// The plan's HCAs with their drivers.
    pub(super) fn drivers(&self) -> impl Iterator<Item = (&HcaName, &str)> + Clone {
        let names = self.plan.nics.iter().filter_map(|nic| nic.hca.as_ref());
        let hcas = names
            .chain(&self.plan.ib)
            .filter_map(|name| self.host.hca(name));
        hcas.filter_map(|hca| Some((&hca.name, hca.driver.as_deref()?)))
    }

    /// Stores it, the plan last: a plan names the view.
    pub(super) fn keep(&self, store: &Store) -> Result<()> {
        self.keep_view(store)?;
        store.save_plan(&self.plan).map(|_| ())
    }

    pub(super) fn keep_view(&self, store: &Store) -> Result<()> {
        store.make_folders()?;
        match (&self.plan.view, &self.view) {
            (Some(name), Some(view)) => store.save_view(name, view),
            _ => Ok(()),
        }
    }
}

/// What a node decides from: one look at the machine, for as many decisions as it takes.
pub(super) struct DraftInputs<'a> {
    pub(super) request: &'a Request,
    pub(super) name: &'a str,
    pub(super) config: Option<&'a str>,
    pub(super) store: &'a Store,
    pod: Option<Snapshot>,
    /// Absent for a recorded machine.
    live: Option<Kernel>,
    pub(super) seen: Snapshot,
    survey: Option<Survey>,
}

impl<'a> DraftInputs<'a> {
    pub(super) fn new(
        request: &'a Request,
        name: &'a str,
        file: Option<&Path>,
        config: Option<&'a str>,
        store: &'a Store,
    ) -> Result<DraftInputs<'a>> {
        let pod = config.map(pod).transpose()?.flatten();
        let mut live = None;
        let Observed {
            snapshot: seen,
            survey,
        } = match file {
            Some(file) => Observed {
                snapshot: recorded(file)?,
                survey: None,
            },
            None => {
                let world = live.insert(Kernel::open(Netns::current()?, None)?);
                look_at_host(world, &request.job())?
            }
        };
        Ok(DraftInputs {
            request,
            name,
            config,
            store,
            pod,
            live,
            seen,
            survey,
        })
    }

    pub(super) fn selected(&self, request: &Request) -> Result<(Plan, Selection)> {
        let (busy, options) = (busy_nics(self.store)?, options(request));
        let (plan, mut selection) = plan_of_any(request, self.name, &self.seen, &busy, options)?;
        if self.live.is_some() {
            let mut managers = Managers::of(Path::new("/"));
            selection.explain(|name| managers.at_work(self.seen.netdev(name)?));
        }
        Ok((plan, selection))
    }

    /// Looks again for that long, as long as nothing but links that come up keeps out a NIC that
    /// was named: one that a container has just given back is without a carrier for a while.
    fn plan(&mut self, request: &Request, patience: Duration) -> Result<(Plan, Selection)> {
        let (begun, mut said) = (Instant::now(), false);
        loop {
            let (plan, selection) = self.selected(request)?;
            let coming = selection
                .coming(request)
                .filter(|_| begun.elapsed() < patience);
            let (Some(why), Some(live)) = (coming, &mut self.live) else {
                check_selection(request, &plan, &selection, &self.seen)?;
                return Ok((plan, selection));
            };
            if !said && begun.elapsed() >= Duration::from_secs(1) {
                progress(&format!("waiting up to {} s: {why}", patience.as_secs()));
                said = true;
            }
            thread::sleep(Duration::from_millis(250));
            let again = look_at_host(live, &request.job())?;
            (self.seen, self.survey) = (again.snapshot, again.survey);
        }
    }

    pub(super) fn decide(&mut self, agreement: Option<&Agreement>) -> Result<Decision> {
        let ifaces: Vec<IfName> = agreement.iter().flat_map(|a| a.ifaces()).cloned().collect();
        let mut request = self.request.clone();
        if let Some(agreement) = agreement {
            (request.select.peer_ifaces, request.agreed) = (ifaces.clone(), ifaces);
            request.agreed_ib = Some(agreement.hcas().cloned().collect());
        }
        // Nodes that have agreed do not wait for each other any longer.
        let patience = if agreement.is_none() {
            PATIENCE
        } else {
            Duration::ZERO
        };
        let (plan, selection) = self.plan(&request, patience)?;
        let plan = plan.agreed(agreement.cloned());
        check_agreed(&plan, None)?;
        if agreement.is_none() {
            warn(&self.seen.warnings);
        }
        warn(&selection.warnings);
        warn(&rdma_proxy::judge(&plan, &self.seen)?);
        warn(&missing_topology(self.request));
        warn(moved_away(&plan, &request, &self.seen).as_slice());
        let (host, pod) = (self.seen.clone(), self.pod.clone());
        let decision = Decision {
            plan,
            selection,
            view: None,
            pod,
            host,
            recorded: self.live.is_none(),
        };
        // Of a recorded machine there is no /sys to filter: the hook makes the view.
        if decision.recorded {
            return Ok(decision);
        }
        decision.shown(self.config, self.survey.as_ref())
    }
}

/// A stored plan as one container gets it: without what its annotations take away, and with the
/// view that suits it.
pub(super) fn for_container(
    plan: Plan,
    mine: &Request,
    text: &str,
    store: &Store,
) -> Result<Decision> {
    let selection = Selection::default();
    let pod = pod(text)?;
    let mut live = Kernel::open(Netns::current()?, None)?;
    let scope = Scope {
        sysfs: mine.host.policy.asks_for_hardware(),
        ..Scope::network()
    };
    let seen = live.observe(Side::Host, &scope)?;
    let (plan, unplanned) = mine.what_is_left(plan, &seen)?;
    warn(&unplanned.into_iter().collect::<Vec<_>>());
    check_agreed(&plan, None)?;
    mine.host.policy.check_limits(&plan)?;
    let (sysfs, _) = plan
        .sysfs
        .within(Sandbox::of_annotations(&edit::annotations(text)));
    let serves = sysfs == plan.sysfs && sysfs != SysfsMode::Snapshot && pod.is_none();
    let name = plan.view.clone().filter(|_| serves);
    let view = name
        .as_ref()
        .and_then(|name| store.view(name).ok().flatten());
    let plan = plan.with_sysfs(sysfs, name.filter(|_| view.is_some()));
    if view.is_some() {
        return Ok(Decision {
            plan,
            selection,
            view,
            pod,
            host: seen,
            recorded: false,
        });
    }
    let Observed {
        snapshot: host,
        survey,
    } = live.look(Side::Host, &Scope::full())?;
    warn(&rdma_proxy::judge(&plan, &host)?);
    Decision {
        plan,
        selection,
        view: None,
        pod,
        host,
        recorded: false,
    }
    .shown(Some(text), survey.as_ref())
}

/// A request with what the container's annotations take away, and what they and its runtime, where
/// it is known, show of /sys.
pub(super) fn narrowed(
    request: Request,
    config: &str,
    runtime: Option<Sandbox>,
) -> Result<Request> {
    let annotations = edit::annotations(config);
    let mut request = request
        .narrow(&annotations)?
        .for_environment(&edit::environment(config));
    let said = Sandbox::of_annotations(&annotations);
    show_within(&mut request, Sandbox::of_both(runtime, &annotations));
    if said == Some(Sandbox::RdmaProxy) && runtime != said {
        warn(&[sandbox::REFUSED.to_owned()]);
    }
    Ok(request)
}

/// Chooses the /sys of a container in that sandbox, where none was asked for.
pub(super) fn show_within(request: &mut Request, sandbox: Option<Sandbox>) {
    let (sysfs, why) = request.select.sysfs.within(sandbox);
    request.select.sysfs = sysfs;
    warn(
        &why.map(|why| format!("--sysfs: {why}"))
            .into_iter()
            .collect::<Vec<_>>(),
    );
}

/// The namespace that a container joins (a pod's), where it exists before the container.
fn pod(config: &str) -> Result<Option<Snapshot>> {
    let named = edit::netns_path(config)
        .map(|path| Netns::named(&path))
        .transpose()?;
    let Some(inside) = named.flatten() else {
        return Ok(None);
    };
    let look =
        || Kernel::open(Netns::current()?, Some(inside))?.observe(Side::Inside, &Scope::network());
    Ok(look().ok())
}

fn missing_topology(request: &Request) -> Vec<String> {
    let users = request.passed_on.contains_key("NCCL_TOPO_FILE");
    let asked = request
        .select
        .nccl_topo
        .as_ref()
        .filter(|f| !request.select.no_nccl_topo && !users && !f.exists());
    asked
        .map(|f| {
            format!(
                "the topology file {} does not exist: NCCL_TOPO_FILE is not set",
                f.display()
            )
        })
        .into_iter()
        .collect()
}
