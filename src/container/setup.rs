//! What of a plan reaches a container besides its NICs: the filtered /sys, NCCL's settings, device
//! nodes. What config.json did not say when the runtime read it, the create hook does in the
//! container's mount namespace, while the NICs move.

use crate::config::sysfs_mode::SysfsMode;
use crate::view::{self, Cover, Keep};
use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::Result;
use nccl_rules::explain::{self, Trap, Warning};
use nccl_rules::settings::Settings;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{BusId, HcaName};
use rdma_model::nic::EnvVar;
use rdma_model::snapshot::{CharDevice, Snapshot};
use rdma_model::step::Side;
use rdma_model::tree::{Node, Tree};

use crate::container::facts::ContainerFacts;
use crate::container::mounts::{ContainerMounts, HostsEntry};
use crate::kernel::{Scope, World, sysfs};
use crate::nccl_env::{self, topo_file};
use crate::oci::bundle::Bundle;
use crate::oci::state::State;
use crate::plan::Plan;
use crate::planner::{inside_with_nics, view_of};
use crate::store::Store;

#[derive(Clone, Copy)]
pub struct SetupContext<'a> {
    pub state: &'a State,
    pub facts: &'a ContainerFacts,
    pub store: &'a Store,
    pub deadline: Instant,
}

/// The notes of a setup, also of one that failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SetupNotes {
    /// How the container's /sys shows its NICs alone, or why it does not.
    pub sysfs: Option<String>,
    /// What was read out of the memory of the runtime's process: `sysfs`, `topology`.
    pub from_memory: Vec<String>,
    /// Where NCCL's settings are, if not in the environment.
    pub settings: Option<String>,
    pub notes: Vec<String>,
}

pub struct SetupPlan {
    pub(super) bundle: Bundle,
    pub(super) additions: ContainerMounts,
    /// Device nodes that config.json does not have: the engine may have made them in another way.
    pub(super) nodes: Vec<CharDevice>,
    pub(super) sysfs: SysfsMode,
    /// A runtime with a kernel of its own: nothing can be put into it any more.
    pub(super) sandboxed: bool,
    /// Its HCAs with their drivers, as far as these are known.
    pub(super) drivers: Vec<(HcaName, String)>,
}

/// Both namespaces before NICs move, as far as they were observed: of a container that joins
/// others, neither is.
#[derive(Clone, Copy, Default)]
pub struct Observations<'a> {
    pub host: Option<&'a Snapshot>,
    /// Absent where it is the host's, too.
    pub inside: Option<&'a Snapshot>,
}

/// Finds out what is lacking for a container's plan. Nothing where there is no bundle.
pub fn plan_setup(
    context: &SetupContext,
    bundle: Option<Bundle>,
    plan: &Plan,
    observed: Observations,
    world: &mut dyn World,
) -> (SetupNotes, Result<Option<SetupPlan>>) {
    let mut draft = Draft {
        context,
        plan,
        observed,
        notes: SetupNotes::default(),
    };
    let setup = draft.setup(bundle, world);
    (draft.notes, setup)
}

struct Draft<'a> {
    context: &'a SetupContext<'a>,
    plan: &'a Plan,
    observed: Observations<'a>,
    notes: SetupNotes,
}

impl Draft<'_> {
    fn setup(
        &mut self,
        bundle: Option<Bundle>,
        world: &mut dyn World,
    ) -> Result<Option<SetupPlan>> {
        let plan = self.plan;
        let Some(bundle) = bundle else {
            self.leave_sysfs("the bundle has no config.json")?;
            return Ok(None);
        };
        // gVisor's gofer has gone to its root before this moment, and its sentry has a /sys of its
        // own.
        let sandboxed = self.context.facts.sandbox.is_some();
        if let Some(name) = &bundle.topology {
            self.check_topology(name)?;
        }
        let covers = match &bundle.view {
            Some(name) => {
                self.notes.sysfs = Some(self.mounted(name, sandboxed)?);
                Vec::new()
            }
            None if plan.sysfs == SysfsMode::Off => Vec::new(),
            None if plan.sysfs.is_proxy() => {
                self.notes.sysfs = sandboxed.then(|| "by gVisor's RDMA proxy".to_owned());
                Vec::new()
            }
            None if sandboxed => {
                self.leave_sysfs(
                    "the sandbox has a /sys of its own, which is settled before hooks run",
                )?;
                Vec::new()
            }
            None => covers(plan, self.view(world)?),
        };
        let conf = nccl_env::lacking(&plan.env, &bundle.env);
        let nodes = bundle.lacking(&plan.devices);
        let hosts = self.hosts_entry(&bundle, &conf);
        Ok(Some(SetupPlan {
            bundle,
            additions: ContainerMounts {
                covers,
                conf,
                hosts,
            },
            nodes,
            sysfs: plan.sysfs,
            sandboxed,
            drivers: drivers(plan),
        }))
    }

    /// The name that the container has for itself, with its address for the bootstrap by its own
    /// settings and those that are added.
    fn hosts_entry(&mut self, bundle: &Bundle, added: &[EnvVar]) -> Option<HostsEntry> {
        let plan = self.plan;
        if !plan.hosts_entry {
            return None;
        }
        let added = added.iter().map(|v| (&v.name, &v.value));
        let settings = Settings::of(bundle.env.iter().chain(added), "");
        let address = self.observed.host.map(|host| {
            let inside = inside_with_nics(plan, host, self.observed.inside);
            nccl_env::bootstrap_address(&settings, &inside, plan.nccl_version)
        });
        let why = match (&bundle.hostname, address) {
            (None, _) => "config.json has no hostname",
            (_, None) => "only the first container of a namespace gets one",
            (_, Some(None)) => "NCCL's bootstrap has no address that peers reach",
            (Some(name), Some(Some(address))) => match HostsEntry::new(address, name) {
                None => "the hostname in config.json is no host name",
                entry => return entry,
            },
        };
        let note = format!("no line in /etc/hosts: {why}");
        self.notes.notes.push(note);
        None
    }

    /// How config.json's own mount is reported, if it shows this plan's HCAs and no others.
    fn mounted(&mut self, name: &str, sandboxed: bool) -> Result<String> {
        let view = self.stored("sysfs", name)?;
        if !view
            .as_ref()
            .is_some_and(|view| view::shows(view, &Keep::for_plan(self.plan)))
        {
            let text = format!(
                "config.json mounts a /sys for other HCAs than those of plan {}: prepare the \
                bundle again",
                self.plan.name
            );
            return Err(ErrorClass::Refused.error(text));
        }
        // A tree of files has places with files in them; of places, a live view has those that it
        // empties.
        let has_no_files = !view.is_some_and(|view| {
            let mut places = view.iter().filter(|(path, _)| path.starts_with("devices/"));
            places.any(|(_, node)| matches!(node, Node::File(_)))
        });
        Ok(match sandboxed && has_no_files {
            true if self.plan.sysfs.is_proxy() => {
                "config.json mounts links over the /sys of gVisor's RDMA proxy: prepare it with \
                --sysfs proxy"
                    .to_owned()
            }
            true => "config.json mounts links, which lead nowhere in a sandbox: prepare it with \
                --sysfs snapshot"
                .to_owned(),
            false => "mounted by config.json".to_owned(),
        })
    }

    /// Whether the topology file that config.json mounts places this plan's HCAs alone: NCCL
    /// believes it.
    fn check_topology(&mut self, name: &str) -> Result<()> {
        let keep = Keep::for_plan(self.plan);
        let tree = self.stored("topology", name)?;
        let xml = tree.as_ref().and_then(topo_file::xml);
        let mut nets = xml.into_iter().flat_map(topo_file::nets);
        if nets.any(|net| !keep.hcas.iter().any(|hca| hca.as_str() == net)) {
            let text = format!(
                "config.json mounts a topology file with other HCAs than those of plan {}",
                self.plan.name
            );
            return Err(ErrorClass::Refused.error(format!("{text}: prepare the bundle again")));
        }
        Ok(())
    }

    /// What is stored under that name as the runtime's process keeps it, where a shim left it
    /// there: files may have gone since. Else its file.
    fn stored(&mut self, what: &str, name: &str) -> Result<Option<Tree>> {
        match self.context.store.handed_view(what, name) {
            Some(Ok(tree)) => {
                self.notes.from_memory.push(what.to_owned());
                return Ok(Some(tree));
            }
            Some(Err(e)) => self
                .notes
                .notes
                .push(format!("{what} is read from its file: {e:#}")),
            None => {}
        }
        self.context.store.view(name)
    }

    /// Without a view; an error where one was asked for, and not only tried.
    fn leave_sysfs(&mut self, why: &str) -> Result<()> {
        match self.plan.sysfs {
            SysfsMode::Off | SysfsMode::Proxy | SysfsMode::ProxyWarn => {}
            SysfsMode::Auto => self.notes.sysfs = Some(format!("off: {why}")),
            SysfsMode::Live | SysfsMode::Snapshot => {
                return Err(ErrorClass::Refused.error(format!("--sysfs: {why}")));
            }
        }
        Ok(())
    }

    /// The stored view; or one from a fresh observation, where none was stored, the plan was
    /// narrowed since, or the container has other NICs already, which it shall go on seeing.
    fn view(&mut self, world: &mut dyn World) -> Result<Option<Tree>> {
        let others: BTreeSet<BusId> = self
            .observed
            .inside
            .iter()
            .flat_map(|inside| &inside.netdevs)
            .filter_map(|n| n.pci)
            .collect();
        let wanted = self.plan.view.as_ref().filter(|_| others.is_empty());
        if let Some(view) = wanted
            .map(|name| self.stored("sysfs", name))
            .transpose()?
            .flatten()
        {
            return Ok(Some(view));
        }
        let seen = world.look(Side::Host, &Scope::full())?;
        view_of(self.plan, others, &seen.snapshot, seen.survey.as_ref())
    }
}

/// By this host's /sys: the NICs may be in the container already.
fn drivers(plan: &Plan) -> Vec<(HcaName, String)> {
    let nics = plan.nics.iter().filter_map(|nic| {
        let hca = nic.hca.clone()?;
        let driver = match nic.rxe {
            true => "rxe".to_owned(),
            false => sysfs::driver(&hca, nic.identity.pci)?,
        };
        Some((hca, driver))
    });
    let fabric = plan.ib.iter();
    let fabric = fabric.filter_map(|hca| Some((hca.clone(), sysfs::driver(hca, None)?)));
    nics.chain(fabric).collect()
}

fn covers(plan: &Plan, view: Option<Tree>) -> Vec<Cover> {
    let Some(tree) = view else {
        return Vec::new();
    };
    if plan.sysfs == SysfsMode::Snapshot {
        let at = "sys".to_owned();
        return vec![Cover { at, tree }];
    }
    let mut covers = view::covers(&tree);
    for cover in &mut covers {
        cover.at.insert_str(0, "sys/");
    }
    covers
}

impl SetupPlan {
    /// What NCCL makes of the container's environment and what is added to it, where that is not
    /// what was meant. These are notes and no errors: an engine may set the namespace up after us.
    pub fn nccl_pitfalls(&self, plan: &Plan, host: &Snapshot, inside: &Snapshot) -> Vec<String> {
        let added = self.additions.conf.iter().map(|v| (&v.name, &v.value));
        let found = explain::check(
            self.bundle.env.iter().chain(added),
            &inside_with_nics(plan, host, Some(inside)),
            plan.nccl_version,
        );
        pitfall_notes(found)
    }
}

/// Each kind of pitfall once. A container chooses its settings: of these, no note has the words.
fn pitfall_notes(found: Vec<Warning>) -> Vec<String> {
    let more = "`rdmaprep nccl explain --bundle` says more";
    let mut sentences = BTreeSet::new();
    for w in found {
        let sentence = match w.trap {
            // It names the release and nothing that the container chose. Only what an image's
            // release does has the way out in it.
            Trap::Crash if w.fatal => format!("{}; {more}", w.text),
            Trap::Crash => w.text,
            trap => format!("{}; {more}", trap.summary()),
        };
        sentences.insert(format!("NCCL in this container: {sentence}"));
    }
    sentences.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_said_with_the_way_out() {
        let warning = |trap, text: &str| Warning {
            trap,
            fatal: false,
            text: text.to_owned(),
        };
        let crash = "NCCL 2.27.7 crashes: rxe0 has no PCI path; prepare --nccl-version 2.27.7 \
            leaves such HCAs out";
        let found = [
            warning(Trap::Missing, "NCCL_IB_HCA: there is no a"),
            warning(Trap::Crash, crash),
            warning(Trap::Missing, "NCCL_IB_HCA: there is no b"),
        ];
        let fatal = "NCCL 2.32.3 crashes: rxe0 has no PCI path";
        let certain = Warning {
            fatal: true,
            ..warning(Trap::Crash, fatal)
        };
        let more = "NCCL in this container: NCCL 2.32.3 crashes: rxe0 has no PCI path; `rdmaprep \
            nccl explain --bundle` says more";
        assert_eq!(pitfall_notes(vec![certain]), [more]);
        let missing =
            "NCCL_IB_HCA names an HCA that is not here; `rdmaprep nccl explain --bundle` says more";
        let said = [crash, missing].map(|text| format!("NCCL in this container: {text}"));
        assert_eq!(pitfall_notes(found.into()), said);
    }
}
