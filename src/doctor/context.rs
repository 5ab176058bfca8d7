//! What is examined: the selection, and which NICs are meant to be used. `--ifaces` and stored
//! plans decide; an address counts where neither names any.

use crate::config::sysfs_mode::SysfsMode;
use nccl_rules::version::Version;
use rdma_model::arp::ArpChoice;
use rdma_model::ids::{HcaName, IfName};
use rdma_model::snapshot::{Gid, GidKind, Hca, Netdev, Port};
use rdma_model::values::Family;
use rdma_model::values::GidTimeout;

use super::{Check, Examination, Finding, Rule};
use crate::config::request::Request;
use crate::kernel::probe::access::NodeAccess;
use crate::plan::Plan;
use crate::select::candidates::counts;
use crate::select::{Drop, DropCode, Selection, Verdict};

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
        let ill = |d: &Drop| {
            matches!(
                d.code,
                DropCode::NoAddress
                    | DropCode::PortDown
                    | DropCode::NoGid
                    | DropCode::FiniteLifetime
            )
        };
        let planned = |v: &Verdict| v.netdev.as_ref().is_some_and(|name| self.plans(name));
        let meant = |v: &&Verdict| v.dropped.as_ref().is_none_or(ill) || planned(v);
        self.selection
            .verdicts
            .iter()
            .filter(meant)
            .filter_map(|v| self.rail(v))
            .collect()
    }

    pub(super) fn kept(&self) -> Vec<Rail<'a>> {
        self.rails()
            .into_iter()
            .filter(|r| r.verdict.dropped.is_none())
            .collect()
    }

    /// Those of them that are meant to be used; where nothing says which, all.
    pub(super) fn meant(&self) -> Vec<Rail<'a>> {
        let means = |rail: &Rail| matches!(self.intent(rail), Intent::Meant | Intent::Unknown);
        self.kept().into_iter().filter(means).collect()
    }

    /// Those that one job has together: each stored plan's own, where plans alone say who is meant.
    pub(super) fn jobs(&self) -> Vec<Vec<Rail<'a>>> {
        if self.is_inside() || !self.of.request.select.ifaces.is_empty() || self.of.plans.is_empty()
        {
            return vec![self.meant()];
        }
        let of = |plan: &Plan| {
            let has = |rail: &Rail| plan.rails().any(|nic| nic.identity.name == *rail.name());
            self.kept().into_iter().filter(has).collect()
        };
        self.of.plans.iter().map(of).collect()
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
        let one = |hca: &'a Hca| {
            let ports: Vec<&Port> = hca.ports.iter().filter(|p| is_infiniband(p)).collect();
            let planned = self
                .of
                .plans
                .iter()
                .map(|p| p.ib.iter().filter(|name| **name == hca.name).count())
                .max();
            let planned = planned.unwrap_or(0);
            let wanted = match planned {
                _ if ports.is_empty() => return None,
                0 if self.is_inside() => {
                    return self.has_node(hca).then_some((hca, ports, 1, Intent::Meant));
                }
                0 => self.wants_fabric(&hca.name, &ports)?,
                _ => Intent::Meant,
            };
            Some((hca, ports, planned.max(1), wanted))
        };
        let all = self.of.snapshot.hcas.iter().filter_map(one);
        all.map(|(hca, ports, needs, wanted)| Fabric {
            hca,
            ports,
            needs,
            wanted,
        })
        .collect()
    }

    /// Of an HCA that no plan has; nothing where the selection leaves it to other uses.
    fn wants_fabric(&self, hca: &HcaName, ports: &[&Port]) -> Option<Intent> {
        let mine = |d: &Drop| matches!(d.code, DropCode::PortDown | DropCode::InfiniBand);
        let of_it = |v: &&Verdict| {
            v.hca.as_ref() == Some(hca) && ports.iter().any(|p| Some(p.number) == v.port)
        };
        let verdicts = || self.selection.verdicts.iter().filter(of_it);
        if !verdicts()
            .filter(|v| v.netdev.is_none())
            .any(|v| v.dropped.as_ref().is_none_or(mine))
        {
            return None;
        }
        let ipoib = verdicts().filter_map(|v| self.of.snapshot.netdev(v.netdev.as_ref()?));
        Some(match () {
            () if self.of.request.select.ib => Intent::Meant,
            () if self.is_said() => Intent::Unmeant,
            () if ipoib.into_iter().any(is_addressed) => Intent::Meant,
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

    pub(super) fn asks_for(&self, name: &IfName) -> bool {
        self.of.request.names(name) || self.plans(name)
    }

    /// Whether a stored plan has it for its own sake.
    pub(super) fn plans(&self, name: &IfName) -> bool {
        self.of
            .plans
            .iter()
            .flat_map(|p| p.rails())
            .any(|n| n.identity.name == *name)
    }

    /// Whether it has the very GID that a stored plan is about, of whatever family that counts.
    pub(super) fn is_as_planned(&self, rail: &Rail) -> bool {
        let planned = self
            .of
            .plans
            .iter()
            .flat_map(|p| p.rails())
            .filter(|n| n.identity.name == rail.netdev.name);
        let gids: Vec<_> = planned.filter_map(|n| n.gid.as_ref()).collect();
        let has = |gid: &&Gid| {
            gids.iter().any(|g| g.address == gid.address)
                && gid.netdev.as_ref() == Some(rail.name())
        };
        let own = |gid: &Gid| rail.netdev.addresses.iter().any(|a| a.address == gid.ip());
        rail.port
            .gids
            .iter()
            .filter(|g| g.kind == Some(GidKind::RoceV2))
            .filter(has)
            .any(own)
    }

    /// The command that prepares the stored plan again that these are of, or the default one, with
    /// just those of them.
    pub(super) fn prepare(&self, of: &[Rail], names: &str) -> Option<String> {
        let has = |plan: &&Plan| {
            of.iter()
                .all(|rail| plan.rails().any(|nic| nic.identity.name == *rail.name()))
        };
        match self.of.plans.iter().find(has) {
            Some(plan) => self.prepare_again(plan, names),
            // One that is there under that name is of other NICs, and would be lost.
            None if self.of.plans.iter().any(|plan| plan.name == DEFAULT_PLAN) => None,
            None => Some(format!("rdmaprep prepare --ifaces \"{names}\"")),
        }
    }

    /// The command that prepares a stored plan again with just these NICs; nothing where it was
    /// prepared with flags that are not known any more.
    pub(super) fn prepare_again(&self, plan: &Plan, names: &str) -> Option<String> {
        // What is with a container would be left out as well.
        let here = names.split_whitespace().all(|n| {
            self.of
                .snapshot
                .netdevs
                .iter()
                .any(|dev| dev.name.as_str() == n)
        });
        let plain = !names.is_empty() && here && is_plain(plan, self.of.request);
        plain.then(|| format!("rdmaprep prepare --plan {} --ifaces \"{names}\"", plan.name))
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
        let plain = |name: &str| {
            name.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_.@+-".contains(&b))
                && !name.starts_with('-')
        };
        let odd = |command: &String| {
            let names = self.of.snapshot.netdevs.iter().map(|n| n.name.as_str());
            let planned = self
                .of
                .plans
                .iter()
                .flat_map(|p| &p.nics)
                .map(|n| n.identity.name.as_str());
            names
                .chain(planned)
                .filter(|name| !plain(name))
                .any(|name| command.contains(name))
        };
        finding
            .run
            .retain(|command| (of_the_host || !self.is_inside()) && !odd(command));
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

/// What `prepare` sets for NCCL without a flag; any other variable shows that there was a flag or
/// an environment then.
const UNASKED: [&str; 4] = [
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_GID_INDEX",
];

/// Whether `--ifaces` alone makes such a plan, now and here: nothing else was asked then, nor is by
/// the host's file or the environment of now.
fn is_plain(plan: &Plan, now: &Request) -> bool {
    let four = plan
        .nics
        .iter()
        .all(|nic| nic.gid.as_ref().is_none_or(|gid| gid.ip().is_ipv4()));
    let plain = plan
        .env
        .iter()
        .all(|var| UNASKED.contains(&var.name.as_str()));
    let own_index =
        plan.gid_index.is_some() || plan.env.iter().all(|var| var.name != "NCCL_IB_GID_INDEX");
    let nics = plan.ib.is_empty()
        && !now.select.ib
        && four
        && now.select.family == Family::default()
        && plan.agreement.is_none();
    let rails = plan.rails.or_loose
        && now.select.arp_profile == ArpChoice::Auto
        && plan.rails.tables == Some(now.host.rail_tables);
    let host = [&plan.libraries, &now.select.libraries]
        .iter()
        .all(|l| l.is_default())
        && ![plan.hosts_entry, now.select.hosts_entry].contains(&true)
        && !plan.allow_bootstrap
        && !plan.freeze_lifetimes
        && !now.select.freeze_lifetimes;
    let shown = [plan.sysfs, now.select.sysfs] == [SysfsMode::default(); 2]
        && !plan.default_route
        && !now.select.default_route;
    nics && plain
        && own_index
        && rails
        && host
        && shown
        && [plan.gid_timeout, now.select.gid_timeout] == [GidTimeout::default(); 2]
}

/// Whether it has an address that peers can reach.
fn is_addressed(netdev: &Netdev) -> bool {
    netdev.addresses.iter().any(|a| counts(a, Family::Any))
}

pub(super) fn is_infiniband(port: &Port) -> bool {
    port.link_layer.as_deref() == Some("InfiniBand")
}
