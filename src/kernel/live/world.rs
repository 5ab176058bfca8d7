//! What the real machine is asked, and each step that it performs.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::libc::{EADDRNOTAVAIL, EINVAL, ENODEV, ENOENT, ESRCH};
use rdma_model::ids::Mac;
use rdma_model::snapshot::{HostPaths, JobAddresses, RdmaMode, Snapshot};
use rdma_model::step::{Side, Step};

use super::space::NO_RDMA;
use super::{GONE, Kernel};
use crate::kernel::beside::Beside;
use crate::kernel::host_paths::Sockets;
use crate::kernel::links::RouteSocket;
use crate::kernel::netns::search::{self, Search};
use crate::kernel::netns::{Netns, pins};
use crate::kernel::rdma::Rdma;
use crate::kernel::rdma::wait_port::{self, ExpectedPort};
use crate::kernel::sysfs::{self, Survey};
use crate::kernel::{Observed, Pin, Scope, World, host_paths};
use crate::plan::uverbs_minors::uverbs_number;

/// The numbers of verbs nodes that devices of other namespaces have.
fn verbs_elsewhere(here: &Snapshot) -> Vec<u32> {
    let nodes = here.hcas.iter().filter_map(|hca| hca.uverbs.as_ref());
    let ours: Vec<u32> = nodes.filter_map(uverbs_number).collect();
    let mut numbers = sysfs::verbs_numbers(Path::new("/sys"));
    numbers.retain(|number| !ours.contains(number));
    numbers
}

/// Deleting what has gone already is done.
fn gone(result: io::Result<()>, codes: &[i32]) -> Result<()> {
    match result {
        Err(e) if e.raw_os_error().is_some_and(|c| codes.contains(&c)) => Ok(()),
        other => Ok(other?),
    }
}

fn list_sockets(host: &Netns) -> io::Result<Sockets> {
    let listed = host.visit(|| Ok(host_paths::connected()));
    listed.unwrap_or_else(|e| Err(io::Error::other(e)))
}

fn search_elsewhere(host: &Netns) -> Search {
    Search::new(host, None, search::PATIENCE, |_| true)
}

impl World for Kernel {
    fn has_inside(&self) -> bool {
        self.inside.is_some()
    }

    fn look(&mut self, side: Side, scope: &Scope) -> Result<Observed> {
        let boot_id = self.boot_id.clone();
        // What takes long, and asks for nothing else of the host.
        let elsewhere = match scope.elsewhere && side == Side::Host {
            true => {
                let (host, again) = (self.host.netns.again()?, self.host.netns.again()?);
                self.sockets = Some(Beside::begin(host, list_sockets));
                Some(Beside::begin(again, search_elsewhere))
            }
            false => None,
        };
        let space = self.space(side)?;
        let network = space
            .route
            .network(scope, side)
            .with_context(|| format!("observing the network {side}"))?;
        let facts = space
            .rdma
            .as_mut()
            .map(Rdma::facts)
            .transpose()
            .context("observing RDMA devices")?;
        let survey = match side {
            _ if !scope.sysfs => None,
            Side::Host => Some(Survey::open(Path::new("/sys"))?),
            Side::Inside => Some(Survey::of_netns(&space.netns)?),
        };
        let tree = survey.as_ref().map(Survey::facts).unwrap_or_default();
        let mut snapshot = sysfs::merge(tree, facts, Some(network.netdevs));
        snapshot.cpu = snapshot.cpu.or_else(|| scope.sysfs.then(sysfs::this_cpu));
        snapshot.boot_id = boot_id;
        snapshot.netns = Some(space.netns.inode());
        if snapshot.rdma_mode == Some(RdmaMode::Exclusive) {
            snapshot.verbs_elsewhere = verbs_elsewhere(&snapshot);
        }
        snapshot.routes = network.routes;
        snapshot.routes_cut = network.routes_cut;
        snapshot.nexthops = network.nexthops;
        snapshot.rules = network.rules;
        space.neigh = None;
        space.read_settings(&mut snapshot, scope, network.confs)?;
        if let Some(elsewhere) = elsewhere {
            let search = elsewhere.answer(&mut self.idle)?;
            snapshot.strangers = search.found.into_iter().map(|found| found.link).collect();
            snapshot.warnings.extend(search.gap.clone());
            snapshot.strangers_gap = search.gap;
        }
        Ok(Observed { snapshot, survey })
    }

    fn host_paths(&mut self, host: &Snapshot, job: &JobAddresses) -> HostPaths {
        let listed = self.sockets.take().map(|listed| {
            let sockets = listed.answer(&mut self.idle);
            sockets.unwrap_or_else(|e| Err(io::Error::other(e)))
        });
        let asked = self.host.netns.visit(|| {
            let sockets = listed.unwrap_or_else(host_paths::connected);
            Ok(host_paths::observe(host, job, sockets))
        });
        asked.unwrap_or_else(|e| HostPaths {
            not_asked: vec![format!("{e:#}")],
            ..HostPaths::default()
        })
    }

    fn pin(&mut self, pin: Pin) -> Result<()> {
        let netns = &self.space(Side::Inside)?.netns;
        match pin {
            Pin::Own(path) => pins::pin(netns, path),
            Pin::Named(path) => pins::publish(netns, path),
        }
    }

    fn search(&self, side: Side, on: &BTreeSet<u32>) -> Result<Search> {
        let (host, inside) = (
            &self.host.netns,
            self.inside.as_ref().map(|space| &space.netns),
        );
        let (home, more) = match side {
            Side::Host => (host, inside.map(Netns::again).transpose()?),
            Side::Inside => (inside.context(GONE)?, None),
        };
        let mut search = Search::new(home, more, search::PATIENCE, |index| on.contains(&index));
        search
            .found
            .retain(|found| found.link.netns != host.inode());
        Ok(search)
    }

    fn forwarded(&self, on: &BTreeSet<u32>) -> Result<Vec<(u32, Mac)>> {
        let netns = &self.host.netns;
        netns.visit(|| RouteSocket::open()?.forwarded(on))
    }

    fn perform(&mut self, step: &Step, deadline: Instant) -> Result<()> {
        self.let_go(step);
        match step {
            Step::RdmaLinkDelete { side, hca } => self.link_delete(*side, hca),
            Step::RdmaLinkAdd {
                side,
                hca,
                dev,
                uverbs,
            } => self.link_add(*side, hca, dev, uverbs.as_ref()),
            Step::RdmaRename { hca, name } => self.rdma_rename(hca, name),
            Step::RdmaMove { from, hca, uverbs } => self.rdma_move(*from, hca, uverbs.as_ref()),
            Step::Move {
                from,
                dev,
                name,
                ifindex,
            } => self.move_link(*from, dev, name, *ifindex),
            Step::AwaitPort {
                hca,
                port,
                dev,
                addresses,
                index,
                gid_timeout,
            } => {
                let space = self.space(Side::Inside)?;
                let rdma = space.rdma.as_mut().context(NO_RDMA)?;
                let wanted = ExpectedPort {
                    hca,
                    port: *port,
                    dev,
                    addresses,
                    index: *index,
                };
                wait_port::wait(
                    rdma,
                    &space.netns,
                    wanted,
                    Duration::from_secs((*gid_timeout).into()),
                    deadline,
                )
            }
            Step::Sysctls { side, dev, values } => {
                self.space(*side)?.write_sysctls(*side, dev, values)
            }
            Step::Delete { side, dev } => gone(self.space(*side)?.route.delete(dev), &[ENODEV]),
            Step::Enslave { side, dev, master } => {
                Ok(self.space(*side)?.route.enslave(dev, master)?)
            }
            Step::Make { side, dev, made } => self.make(*side, dev, made, deadline),
            Step::Rename { side, dev, name } => Ok(self.space(*side)?.route.rename(dev, name)?),
            Step::AltnamesDelete {
                side,
                dev,
                altnames,
            } => Ok(self.space(*side)?.route.altnames_delete(dev, altnames)?),
            Step::AltnameAdd { side, dev, altname } => {
                Ok(self.space(*side)?.route.altname_add(dev, altname)?)
            }
            Step::Release { side, dev } => Ok(self.space(*side)?.route.release(dev)?),
            Step::XdpDetach { side, dev } => Ok(self.space(*side)?.route.xdp_detach(dev)?),
            Step::ProgramDetach { side, dev, program } => self.program_detach(*side, dev, program),
            Step::ProgramAttach {
                side,
                dev,
                program,
                before,
            } => self.program_attach(*side, dev, program, *before),
            Step::Settings {
                side,
                dev,
                settings,
            } => Ok(self.space(*side)?.route.set(dev, settings)?),
            Step::Device { side, dev, values } => self.space(*side)?.write_device(dev, values),
            Step::QdiscAdd { side, dev, qdisc } => {
                Ok(self.space(*side)?.route.qdisc_add(dev, qdisc)?)
            }
            Step::QdiscDelete { side, dev, qdisc } => gone(
                self.space(*side)?.route.qdisc_delete(dev, qdisc),
                &[ENOENT, EINVAL],
            ),
            Step::Token { side, dev, token } => {
                Ok(self.space(*side)?.route.set_token(dev, *token)?)
            }
            Step::Mac { side, dev, mac } => Ok(self.space(*side)?.route.set_mac(dev, mac)?),
            Step::AddressAdd { side, dev, address } => {
                Ok(self.space(*side)?.route.address_add(dev, address)?)
            }
            Step::AddressDelete { side, dev, address } => gone(
                self.space(*side)?.route.address_delete(dev, address),
                &[EADDRNOTAVAIL],
            ),
            Step::Link { side, dev, up } => Ok(self.space(*side)?.route.set_up(dev, *up)?),
            Step::RouteAdd { side, route } => self.route_add(*side, route, deadline),
            Step::LegsAdd { side, route } => self.legs_add(*side, route, deadline),
            Step::RoutePrepend { side, route } => self.space(*side)?.route.route_prepend(route),
            Step::RouteDelete { side, route } => self.space(*side)?.route.route_delete(route),
            Step::NexthopAdd { side, nexthop } => self.nexthop_add(*side, nexthop, deadline),
            Step::NexthopDelete { side, id } => {
                gone(self.space(*side)?.route.nexthop_delete(*id), &[ENOENT])
            }
            Step::NeighbourAdd {
                side,
                dev,
                neighbour,
            } => Ok(self.space(*side)?.route.neighbour_add(dev, neighbour)?),
            Step::NeighbourDelete {
                side,
                dev,
                neighbour,
            } => gone(
                self.space(*side)?.route.neighbour_delete(dev, neighbour),
                &[ENOENT],
            ),
            Step::RuleAdd { side, rule } => Ok(self.space(*side)?.route.rule_add(rule)?),
            Step::RuleAppend { side, rule } => Ok(self.space(*side)?.route.rule_append(rule)?),
            Step::RuleDelete { side, rule } => {
                gone(self.space(*side)?.route.rule_delete(rule), &[ENOENT, ESRCH])
            }
        }
    }
}
