//! Each rail where it is now, with what it has counted.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use rdma_model::ids::{HcaName, IfName};
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Netdev, Snapshot};
use rdma_model::step::Side;

use super::owner;
use super::patience::Patience;
use crate::cdi::{self, RailName, Spec};
use crate::disk::files;
use crate::faults;
use crate::kernel::counters;
use crate::kernel::netns::Netns;
use crate::kernel::{Depth, Kernel, Namespaces, Scope, ThisMachine, World};
use crate::metrics::{Fault, LinkState, Owner, Place, Rail};
use crate::record::Record;
use crate::restore::locate::inside_of;
use crate::store::Store;
use crate::store::records::Records;

/// A rail that someone may ask for, and its port as far as it is known.
struct Wanted {
    name: RailName,
    hca: Option<HcaName>,
    port: Option<u32>,
}

/// Those that containers hold, and those of stored plans and of the file of devices; where there
/// are neither plans nor that file, every RDMA NIC of the host.
pub(super) fn all(
    store: &Store,
    machine: &ThisMachine,
    patience: &mut Patience,
    records: &Records,
) -> Vec<Rail> {
    let host = patience.ask("the host's network", || look(None));
    let mut found = Found {
        patience,
        host,
        rails: Vec::new(),
        names: BTreeSet::new(),
    };
    for record in records.readable().filter(|record| !record.is_back()) {
        found.held(store, machine, record);
    }
    let wanted = wanted(store);
    let wanted = match wanted.is_empty() {
        true => found.of_host(),
        false => wanted,
    };
    for wanted in wanted {
        found.on_host(&wanted, records);
    }
    found.rails
}

/// The host's links and HCAs, or those of a container.
fn look(inside: Option<Netns>) -> Result<Snapshot> {
    let side = match inside {
        Some(_) => Side::Inside,
        None => Side::Host,
    };
    let mut kernel = Kernel::quiet(Netns::current()?, inside)?;
    kernel.observe(side, &Scope::only(Depth::Links))
}

/// What cannot be read names no rail: its own command says why.
fn wanted(store: &Store) -> Vec<Wanted> {
    let mut all = Vec::new();
    for name in store.all_plans().unwrap_or_default() {
        let Some(plan) = store.plan(&name).ok().flatten() else {
            continue;
        };
        all.extend(plan.nics.iter().map(|nic| Wanted {
            name: RailName::Netdev(nic.name().clone()),
            hca: nic.hca.clone(),
            port: nic.port,
        }));
        all.extend(plan.ib.iter().map(|hca| of_hca(hca, None)));
    }
    let devices = files::read_through(Path::new(cdi::FILE)).ok().flatten();
    let devices = devices.and_then(|text| Spec::parse(&text).ok());
    for device in devices.iter().flat_map(|spec| &spec.devices) {
        for name in device.rails() {
            let (hca, port) = device.hca(&name).map_or((None, None), parts);
            all.push(Wanted { name, hca, port });
        }
    }
    all
}

fn of_hca(hca: &HcaName, port: Option<u32>) -> Wanted {
    Wanted {
        name: RailName::Hca(hca.clone()),
        hca: Some(hca.clone()),
        port,
    }
}

/// Of `HCA:port`.
fn parts(text: &str) -> (Option<HcaName>, Option<u32>) {
    let (hca, port) = text.split_once(':').unwrap_or((text, ""));
    (hca.parse().ok(), port.parse().ok())
}

struct Found<'p> {
    patience: &'p mut Patience,
    /// Absent where it could not be looked at.
    host: Option<Snapshot>,
    rails: Vec<Rail>,
    /// Of these rails.
    names: BTreeSet<RailName>,
}

impl Found<'_> {
    fn held(&mut self, store: &Store, machine: &ThisMachine, record: &Record) {
        let living = record.members.iter().find(|m| machine.is_alive(record, m));
        let owner = owner::of(store, record, living);
        let netns = machine.netns_of(record, &store.pin(record.netns));
        let what = format!("the namespace {}", record.netns);
        let inside = netns.as_ref().and_then(|netns| {
            let netns = netns.again().ok();
            self.patience.ask(&what, move || look(netns))
        });
        for held in &record.held {
            if !self.names.insert(RailName::Netdev(held.name().clone())) {
                continue;
            }
            let mut rail = of_record(held, record, owner.clone());
            let inside_of_it = |inside| inside_of(held, &record.held, inside);
            let dev = inside.as_ref().and_then(inside_of_it);
            match (&netns, &inside, dev) {
                (Some(netns), _, Some(dev)) => self.read(&mut rail, netns.again(), dev),
                (Some(_), None, _) => drop(rail.faults.insert(Fault::Unread)),
                _ => self.returned(&mut rail, held, record),
            }
            self.rails.push(rail);
        }
    }

    /// One that is not where its record says: the kernel may have put it on the host.
    fn returned(&mut self, rail: &mut Rail, held: &MovedNic, record: &Record) {
        rail.place = Place::Host;
        let Some(host) = &self.host else {
            rail.faults.insert(Fault::Unread);
            return;
        };
        let is_here = record.on_host(host).contains(&held.name());
        match host.netdev(held.name()).filter(|_| is_here).cloned() {
            Some(dev) => self.read(rail, Netns::current(), &dev),
            None => drop(rail.faults.insert(Fault::Absent)),
        }
    }

    /// Every port of an RDMA device, but for those of NICs that containers hold.
    fn of_host(&self) -> Vec<Wanted> {
        let mut all = Vec::new();
        for hca in self.host.iter().flat_map(|host| &host.hcas) {
            for port in &hca.ports {
                let is_held = self.rails.iter().any(|rail| {
                    rail.hca.as_deref() == Some(hca.name.as_str()) && rail.port == Some(port.number)
                });
                let wanted = match &port.netdev {
                    _ if is_held => continue,
                    Some(netdev) => Wanted {
                        name: RailName::Netdev(netdev.clone()),
                        hca: Some(hca.name.clone()),
                        port: Some(port.number),
                    },
                    None => of_hca(&hca.name, Some(port.number)),
                };
                all.push(wanted);
            }
        }
        all
    }

    fn on_host(&mut self, wanted: &Wanted, records: &Records) {
        if !self.names.insert(wanted.name.clone()) {
            return;
        }
        let mut rail = Rail {
            name: wanted.name.as_str().to_owned(),
            hca: wanted.hca.as_ref().map(HcaName::to_string),
            port: wanted.port,
            ..Rail::default()
        };
        let netdev = match &wanted.name {
            RailName::Netdev(name) => Some(name),
            RailName::Hca(_) => None,
        };
        let mut held_back = records.readable().filter(|r| !r.held_back.is_empty());
        if held_back.any(|r| r.names().any(|name| Some(name) == netdev)) {
            rail.faults.insert(Fault::HeldBack);
        }
        let Some(host) = &self.host else {
            rail.faults.insert(Fault::Unread);
            self.rails.push(rail);
            return;
        };
        match netdev.map(|name| host.netdev(name).cloned()) {
            Some(Some(dev)) => {
                let its = port_of(host, &dev.name);
                if let Some((hca, port)) = its {
                    (rail.hca, rail.port) = (Some(hca.to_string()), Some(port));
                }
                self.read(&mut rail, Netns::current(), &dev);
            }
            Some(None) => drop(rail.faults.insert(Fault::Absent)),
            None => self.read_port(&mut rail),
        }
        self.rails.push(rail);
    }

    /// What a rail without a netdev has.
    fn read_port(&mut self, rail: &mut Rail) {
        let name: Option<HcaName> = rail.hca.as_ref().and_then(|hca| hca.parse().ok());
        let host = self.host.as_ref();
        let Some(hca) = name.and_then(|name| host?.hca(&name)) else {
            rail.faults.insert(Fault::Absent);
            return;
        };
        let port = rail.port.or(hca.ports.first().map(|port| port.number));
        let (name, port) = (hca.name.clone(), port.unwrap_or(1));
        rail.port = Some(port);
        let read = self.patience.ask(&rail.name, move || {
            faults::point("reading a port")?;
            Ok(counters::of_port(&Netns::current()?, &name, port))
        });
        rail.take(None, read);
    }

    fn read(&mut self, rail: &mut Rail, netns: Result<Netns>, dev: &Netdev) {
        rail.netdev = Some(dev.name.to_string());
        rail.link = Some(LinkState {
            up: dev.up,
            carrier: dev.running,
            mtu: dev.mtu,
        });
        let (index, name) = (dev.ifindex, dev.name.clone());
        let hca: Option<HcaName> = rail.hca.as_ref().and_then(|hca| hca.parse().ok());
        let port = hca.zip(rail.port);
        let read = self.patience.ask(&rail.name, move || {
            faults::point(format_args!("reading {name}"))?;
            let netns = netns?;
            let counted = counters::of_link(&netns, index, &name)?;
            let port = port.and_then(|(hca, port)| counters::of_port(&netns, &hca, port));
            Ok((counted.context("it has gone meanwhile")?, port))
        });
        let (counted, port) =
            read.map_or((None, None), |(counted, port)| (Some(counted), Some(port)));
        rail.take(counted, port);
    }
}

fn of_record(held: &MovedNic, record: &Record, owner: Owner) -> Rail {
    let held_back = !record.held_back.is_empty();
    Rail {
        name: held.name().to_string(),
        hca: held.nic.hca.as_ref().map(HcaName::to_string),
        port: held.nic.port,
        place: match record.hold {
            Some(_) => Place::Hold,
            None => Place::Container,
        },
        holder: Some(owner),
        faults: held_back.then_some(Fault::HeldBack).into_iter().collect(),
        ..Rail::default()
    }
}

/// The port that this netdev has now.
fn port_of<'s>(host: &'s Snapshot, netdev: &IfName) -> Option<(&'s HcaName, u32)> {
    let mut all = host.hcas.iter().flat_map(|hca| {
        let ports = hca.ports.iter();
        ports.map(move |port| (&hca.name, port))
    });
    let (name, port) = all.find(|(_, port)| port.netdev.as_ref() == Some(netdev))?;
    Some((name, port.number))
}
