//! What is examined: the selection, and which NICs are meant to be used. `--ifaces` and stored
//! plans decide; an address counts where neither names any.

use nccl_rules::version::Version;
use rdma_model::escape::is_plain;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{GidKind, Hca, Netdev, Port};
use rdma_model::values::Family;

use super::{Check, Examination, Finding, Rule};
use crate::kernel::probe::access::NodeAccess;
use crate::plan::Plan;
use crate::select::candidates::counts;
use crate::select::{DropCode, Selection, Verdict};

pub(super) struct CheckContext<'a> {
    pub(super) of: &'a Examination<'a>,
    pub(super) selection: &'a Selection,
}

pub(super) struct Rail<'a> {
    pub(super) netdev: &'a Netdev,
    pub(super) hca: &'a Hca,
    pub(super) port: &'a Port,
    pub(super) verdict: &'a Verdict,
}

/// An HCA with InfiniBand ports: it needs no netdev.
pub(super) struct Fabric<'a> {
    pub(super) hca: &'a Hca,
    pub(super) ports: Vec<&'a Port>,
    /// How many of them have to be ACTIVE.
    pub(super) needs: usize,
    pub(super) wanted: Intent,
}

/// Whether a NIC is meant to work: it decides whether what is wrong breaks a job, may, or is
/// nothing to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// `--ifaces`, `--ib` or a stored plan names it, it is in the container, or it has an address
    /// and nothing says more.
    Meant,
    /// It has an address, and the stored plans have others.
    Unplanned,
    /// It has no address, and nothing says more.
    Unknown,
    /// It has no address, and what is said is about others.
    Unmeant,
}

impl<'a> CheckContext<'a> {
    /// NICs with an HCA that are kept, planned, or dropped for what is wrong with them; not those
    /// that are for other uses.
    pub(super) fn rails(&self) -> Vec<Rail<'a>> {
        use DropCode::{FiniteLifetime, NoAddress, NoGid, PortDown};
        let mut rails = Vec::new();
        for v in &self.selection.verdicts {
            let code = v.dropped.as_ref().map(|d| d.code);
            if matches!(
                code,
                None | Some(NoAddress | PortDown | NoGid | FiniteLifetime)
            ) || v.netdev.as_ref().is_some_and(|name| self.plans(name))
            {
                rails.extend(self.rail(v));
            }
        }
        rails
    }

    pub(super) fn kept(&self) -> Vec<Rail<'a>> {
        let mut rails = self.rails();
        rails.retain(|r| r.verdict.dropped.is_none());
        rails
    }

    /// Those of them that are meant to be used; where nothing says which, all.
    pub(super) fn meant(&self) -> Vec<Rail<'a>> {
        let mut kept = self.kept();
        kept.retain(|rail| !self.is_unmeant(rail));
        kept
    }

    /// Those that one job has together: each stored plan's own, where plans alone say who is meant.
    pub(super) fn jobs(&self) -> Vec<Vec<Rail<'a>>> {
        if self.is_inside() || !self.of.request.select.ifaces.is_empty() || self.of.plans.is_empty()
        {
            return vec![self.meant()];
        }
        let mut jobs = Vec::new();
        for plan in self.of.plans {
            let mut rails = self.kept();
            rails.retain(|rail| plan.has_rail(rail.name()));
            jobs.push(rails);
        }
        jobs
    }

    fn rail(&self, verdict: &'a Verdict) -> Option<Rail<'a>> {
        let netdev = self.of.snapshot.netdev(verdict.netdev.as_ref()?)?;
        let hca = self.of.snapshot.hca(verdict.hca.as_ref()?)?;
        let port = hca.ports.iter().find(|p| Some(p.number) == verdict.port)?;
        Some(Rail {
            netdev,
            hca,
            port,
            verdict,
        })
    }

    /// HCAs with InfiniBand ports; of a container those that it has.
    pub(super) fn fabrics(&self) -> Vec<Fabric<'a>> {
        let hcas = self.of.snapshot.hcas.iter();
        hcas.filter_map(|hca| self.fabric(hca)).collect()
    }

    fn fabric(&self, hca: &'a Hca) -> Option<Fabric<'a>> {
        let ports: Vec<&Port> = hca.ports.iter().filter(|p| p.is_infiniband()).collect();
        let plans = self.of.plans.iter();
        let planned = plans.map(|p| p.ib.iter().filter(|name| **name == hca.name).count());
        let needs = planned.max().unwrap_or(0);
        let wanted = match needs {
            _ if ports.is_empty() => return None,
            0 if !self.is_inside() => self.wants_fabric(&hca.name, &ports)?,
            0 if !self.has_node(hca) => return None,
            _ => Intent::Meant,
        };
        Some(Fabric {
            hca,
            ports,
            needs: needs.max(1),
            wanted,
        })
    }

    /// Of an HCA that no plan has; nothing where the selection leaves it to other uses.
    fn wants_fabric(&self, hca: &HcaName, ports: &[&Port]) -> Option<Intent> {
        let (mut is_free, mut is_used) = (false, false);
        for v in &self.selection.verdicts {
            if v.hca.as_ref() != Some(hca) || !ports.iter().any(|p| Some(p.number) == v.port) {
                continue;
            }
            let Some(name) = &v.netdev else {
                let code = v.dropped.as_ref().map(|d| d.code);
                is_free |= matches!(code, None | Some(DropCode::PortDown | DropCode::InfiniBand));
                continue;
            };
            is_used |= self.of.snapshot.netdev(name).is_some_and(is_addressed);
        }
        is_free.then(|| match () {
            () if self.of.request.select.ib => Intent::Meant,
            () if self.is_said() => Intent::Unmeant,
            () if is_used => Intent::Meant,
            () => Intent::Unknown,
        })
    }

    pub(super) fn has_node(&self, hca: &Hca) -> bool {
        let node = hca
            .uverbs
            .as_ref()
            .and_then(|d| self.of.machine?.nodes.get(&d.name));
        node.is_some_and(|node| *node != NodeAccess::Missing)
    }

    pub(super) fn intent(&self, rail: &Rail) -> Intent {
        match is_addressed(rail.netdev) {
            // What is in a container has come there.
            _ if self.is_inside() || self.asks_for(rail.name()) => Intent::Meant,
            true if self.is_said() => Intent::Unplanned,
            true => Intent::Meant,
            false if self.is_said() => Intent::Unmeant,
            false => Intent::Unknown,
        }
    }

    pub(super) fn is_unmeant(&self, rail: &Rail) -> bool {
        matches!(self.intent(rail), Intent::Unplanned | Intent::Unmeant)
    }

    pub(super) fn asks_for(&self, name: &IfName) -> bool {
        self.of.request.names(name) || self.plans(name)
    }

    /// Whether a stored plan has it for its own sake.
    pub(super) fn plans(&self, name: &IfName) -> bool {
        self.of.plans.iter().any(|p| p.has_rail(name))
    }

    /// Whether it has the very GID that a stored plan is about, of whatever family that counts.
    pub(super) fn is_as_planned(&self, rail: &Rail) -> bool {
        let mut planned = Vec::new();
        for nic in self.of.plans.iter().flat_map(|p| p.rails()) {
            if nic.name() == rail.name() {
                planned.extend(nic.gid.as_ref().map(|gid| gid.address));
            }
        }
        rail.port.gids.iter().any(|gid| {
            gid.kind == Some(GidKind::RoceV2)
                && gid.netdev.as_ref() == Some(rail.name())
                && planned.contains(&gid.address)
                && rail.netdev.has(gid.ip())
        })
    }

    /// The command that prepares the stored plan again that these are of, or the default one, with
    /// just those of them.
    pub(super) fn prepare(&self, of: &[Rail], names: &str) -> Option<String> {
        let mut plans = self.of.plans.iter();
        match plans.find(|plan| of.iter().all(|rail| plan.has_rail(rail.name()))) {
            Some(plan) => self.prepare_again(plan, names),
            // One that is there under that name is of other NICs, and would be lost.
            None if self.of.plans.iter().any(|plan| plan.name == DEFAULT_PLAN) => None,
            None => Some(format!("rdmaprep prepare --ifaces \"{names}\"")),
        }
    }

    /// The command that prepares a stored plan again with just these NICs; nothing where it is not
    /// known how it was prepared, or other nodes have it.
    pub(super) fn prepare_again(&self, plan: &Plan, names: &str) -> Option<String> {
        // What is with a container would be left out as well.
        let here = names.split_whitespace().all(|n| {
            self.of
                .snapshot
                .netdevs
                .iter()
                .any(|dev| dev.name.as_str() == n)
        });
        let recipe = plan.recipe.as_ref().filter(|_| plan.agreement.is_none());
        // Which NICs it has, the config file says.
        let recipe = recipe.filter(|recipe| !recipe.is_configured());
        let recipe = recipe.filter(|_| here && !names.is_empty());
        Some(recipe?.command(&plan.name, Some(names)))
    }

    /// Whether anything says which NICs are meant.
    fn is_said(&self) -> bool {
        !self.of.request.select.ifaces.is_empty() || !self.of.plans.is_empty()
    }

    /// Whether NICs of this node are with containers: with them go their routes, and in exclusive
    /// mode their HCAs.
    pub(super) fn lends(&self) -> bool {
        let lent = &self.of;
        !self.is_inside() && (!lent.traces.is_empty() || !lent.held.is_empty())
    }

    /// Whether addresses and routes were looked at: a captured tree has none.
    pub(super) fn has_network(&self) -> bool {
        self.of.snapshot.netns.is_some()
    }

    /// Whether it is known which way packets go, or that they go nowhere.
    pub(super) fn has_routes(&self) -> bool {
        let snapshot = self.of.snapshot;
        self.of.machine.is_some() || snapshot.paths.is_some() || !snapshot.routes.is_empty()
    }

    /// The release of NCCL, where one is named; of a container its plan names it as well.
    pub(super) fn release(&self) -> Option<Version> {
        let plans = self.of.plans.iter().filter(|_| self.is_inside());
        let by_plan = plans.filter_map(|plan| plan.nccl_version).next();
        self.of.request.release(by_plan)
    }

    pub(super) fn is_inside(&self) -> bool {
        self.of.container.is_some()
    }

    /// Without commands that are not for this shell: those about a container's network, which are
    /// typed on the host, and those with a name that a shell would read as more than one.
    pub(super) fn safe(&self, rule: &Rule, mut finding: Finding) -> Finding {
        let of_the_host = matches!(
            rule.check,
            Check::KernelFeatures | Check::VerbsNodes | Check::Memlock | Check::PeerMemory
        );
        if self.is_inside() && !of_the_host {
            finding.run.clear();
        }
        let nics = self.of.plans.iter().flat_map(|p| &p.nics);
        let here = self.of.snapshot.netdevs.iter().map(|n| &n.name);
        for name in here.chain(nics.map(|n| n.name())) {
            let name = name.as_str();
            if name.starts_with('-') || !is_plain(name, b"_.@+-") {
                finding.run.retain(|command| !command.contains(name));
            }
        }
        finding
    }
}

impl Rail<'_> {
    pub(super) fn name(&self) -> &IfName {
        &self.netdev.name
    }

    pub(super) fn is_software(&self) -> bool {
        self.hca.is_software()
    }
}

/// The plan that `prepare` makes without `--plan`.
const DEFAULT_PLAN: &str = "default";

/// Whether it has an address that peers can reach.
pub(super) fn is_addressed(netdev: &Netdev) -> bool {
    netdev.addresses.iter().any(|a| counts(a, Family::Any))
}
