//! The machine as rails: those of the CDI file, where they are now, and whether a container can
//! have them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use ipnet::IpNet;
use nccl_rules::levels::{Distance, Levels};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::{BusId, HcaName};
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Hca, JobAddresses, Netdev, Port, Snapshot};
use rdmaprep::cdi::{ALL, RailName, Spec};
use rdmaprep::config::file::ConfigFile;
use rdmaprep::config::host::{CONFIG, Config};
use rdmaprep::config::request::Request;
use rdmaprep::disk::files;
use rdmaprep::kernel::netns::Netns;
use rdmaprep::kernel::{Kernel, Namespaces, ThisMachine};
use rdmaprep::planner::{busy_nics, observe_host};
use rdmaprep::record::Record;
use rdmaprep::store::Store;
use rdmaprep::store::claims::Binding;
use rdmaprep::store::records::Records;

use crate::dra::away::record_has;
use crate::node::Inventory;
use crate::rail::{Facts, Rail};
use crate::refusal::{asked, refused};

pub struct Host {
    pub cdi: PathBuf,
    pub store: Store,
    pub machine: ThisMachine,
    /// By the namespace of a record, whether a pod made it; decided while a container of it lives.
    pods: Mutex<BTreeMap<u64, bool>>,
    /// By rail, what it had when it was seen here last: a container may have its HCA as well, and
    /// the record lacks what the kernel says of that.
    here: Mutex<BTreeMap<String, Facts>>,
}

impl Host {
    pub fn new(cdi: PathBuf, store: Store) -> Result<Host> {
        Ok(Host {
            cdi,
            store,
            machine: ThisMachine::new()?,
            pods: Mutex::default(),
            here: Mutex::default(),
        })
    }

    /// Addresses to which the ways are asked, as the create hook does.
    fn job(&self, request: &Request) -> Result<JobAddresses> {
        let plan = request
            .plan_name()
            .map(|name| self.store.plan(name.as_str()))
            .transpose()?
            .flatten();
        Ok(plan
            .map(|plan| plan.job)
            .unwrap_or_default()
            .with(&request.job()))
    }

    /// Whether the kubelet counts the holder of these NICs. It never says when a pod has ended, and
    /// asks for no rail again when a container of a pod starts again, so what Allocate gave does
    /// not say who has a rail now; the cgroup of the record's containers does, also after a restart
    /// of this program. A rail that a pod has stays healthy: the kubelet subtracts what its pods
    /// have from the healthy ones, and would count it twice. It stays so while its containers have
    /// ended and it is not back, for else the next pod would be refused for good
    /// (UnexpectedAdmissionError) instead of started a second later: the create hook waits, or
    /// fails and is tried again.
    fn is_pods(&self, record: &Record) -> bool {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if !record.claims.is_empty() {
            return true;
        }
        // The plugin of a CNI runtime has ended, and the kubelet counts no rail by it.
        let mut containers = record.members.iter().filter(|m| m.cni.is_none());
        if let Some(member) = containers.find(|m| self.machine.is_alive(record, m)) {
            let cgroup =
                fs::read_to_string(format!("/proc/{}/cgroup", member.pid)).unwrap_or_default();
            let is = record.hold.is_none() && is_kubernetes(&cgroup, &member.id);
            pods.insert(namespace(record), is);
            return is;
        }
        pods.get(&namespace(record)).copied().unwrap_or(false)
    }

    fn held(&self, rail: &RailName, records: &Records) -> Option<Held> {
        let record = records.readable().find(|record| record_has(record, rail))?;
        let is_counted = record.claims.is_empty() && self.is_pods(record);
        // The create hook waits for the manager of a NIC that is back; no pod waits for it to end.
        if record.is_back() && !is_counted {
            return None;
        }
        let nic = record
            .held
            .iter()
            .find(|h| matches!(rail, RailName::Netdev(n) if n == h.name()))
            .cloned();
        let why = match (record.held_back.is_empty(), self.is_pods(record)) {
            (false, _) => Some("it did not return whole: see `rdmaprep status`".to_owned()),
            (true, true) => None,
            (true, false) => {
                let by = record
                    .members
                    .first()
                    .map(|m| m.id.chars().take(12).collect::<String>());
                Some(format!("held by container {}", by.unwrap_or_default()))
            }
        };
        Some(Held {
            is_away: !record.is_back(),
            is_others: !record.is_back() && record.claims.is_empty(),
            nic: nic.map(Box::new),
            why,
            held_back: !record.held_back.is_empty(),
        })
    }
}

/// The CDI file of all rails.
pub fn spec(path: &Path) -> Result<Spec> {
    let at = path.display();
    let text = files::read_through(path).class(ErrorClass::Usage, format!("reading {at}"))?;
    let missing = || {
        ErrorClass::Usage.error(format!(
            "there is no {at}; `rdmaprep cdi generate` writes it"
        ))
    };
    Spec::parse(&text.ok_or_else(missing)?)
        .map_err(|e| ErrorClass::of(&e).error(format!("{at}: {e:#}")))
}

fn claim_of(rail: &RailName, bindings: &Result<Vec<Binding>>) -> Option<String> {
    match bindings {
        Err(e) => Some(format!("{e:#}")),
        Ok(all) => {
            let binding = all.iter().find(|b| b.rails().any(|bound| bound == *rail))?;
            Some(format!("{}/{}", binding.namespace, binding.claim.name))
        }
    }
}

/// That the record was written for: one of NICs that wait has a number of which these bits stay.
fn namespace(record: &Record) -> u64 {
    record.netns & u64::from(u32::MAX)
}

struct Held {
    is_away: bool,
    is_others: bool,
    nic: Option<Box<MovedNic>>,
    why: Option<String>,
    held_back: bool,
}

/// Whether a path of /proc/PID/cgroup is below the kubelet's root (`kubepods`, `kubepods.slice`),
/// or a pod's, seen from a pod's own cgroup namespace (`/../podUID/…`). What counts is what stands
/// before the container's own id: below that, the container makes cgroups as it likes.
fn is_kubernetes(cgroup: &str, id: &str) -> bool {
    let is_its = |part: &str| {
        let name = part.strip_suffix(".scope").unwrap_or(part);
        name == id
            || name
                .strip_suffix(id)
                .is_some_and(|engine| engine.ends_with('-'))
    };
    let pod = |part: &str| {
        let uid = part.strip_prefix("pod").unwrap_or_default();
        uid.len() == 36 && uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
    };
    cgroup.lines().any(|line| {
        let parts: Vec<&str> = line.split('/').collect();
        let own = parts.iter().position(|part| is_its(part));
        let above = &parts[..own.unwrap_or(0)];
        above
            .iter()
            .any(|part| part.starts_with("kubepods") || pod(part))
    })
}

impl Inventory for Host {
    fn look(&self) -> Result<Vec<Rail>> {
        let (spec, config) = (spec(&self.cdi)?, config()?);
        // Records first: one that is written meanwhile is of a NIC that is still seen, and wakes
        // us.
        let records = Records::read(&self.store, self.machine.boot_id())?;
        let busy = busy_nics(&records, &self.machine);
        let bindings = self.store.bindings(self.machine.boot_id());
        let devices = spec.devices.iter().filter(|d| d.name != ALL);
        let devices = devices.filter_map(|d| Some((d, d.rails().into_iter().next()?)));
        let devices: Vec<_> = devices.collect();
        // All hooks of the file have the same flags.
        let first = devices
            .iter()
            .find_map(|(device, name)| asked(device, name, &config)?.ok());
        let job = first
            .map(|request| self.job(&request))
            .transpose()?
            .unwrap_or_default();
        let seen = observe_host(&mut Kernel::open(Netns::current()?, None)?, &job)?;
        let levels = Levels::new(&seen);
        let mut rails = Vec::new();
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, (device, name)) in devices.into_iter().enumerate() {
            let held = self.held(&name, &records);
            let mut rail = rail(
                &device.name,
                &name,
                device.hca(&name),
                held.as_ref(),
                &seen,
                &levels,
            );
            rail.facts.place = place;
            rail.facts.claim = claim_of(&name, &bindings);
            match here.get(&rail.name) {
                Some(known) if rail.facts.is_away => rail.facts = known.while_away(rail.facts),
                _ => drop(here.insert(rail.name.clone(), rail.facts.clone())),
            }
            if held.is_none() && rail.unhealthy.is_none() {
                // Here, and not for each device of a long file: to read a hook's line takes time.
                let refused = asked(device, &name, &config)
                    .transpose()
                    .and_then(|request| match request {
                        Some(request) => refused(&request, &name, &seen, &records, &busy),
                        None => Ok(()),
                    });
                rail.unhealthy = refused.err().map(|e| format!("{e:#}"));
                rail.unreported = rail.unhealthy.is_some();
            }
            rails.push(rail);
        }
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        pods.retain(|netns, _| records.readable().any(|record| namespace(record) == *netns));
        Ok(rails)
    }
}

/// Of the hooks: with one that is wrong, they start no container that has devices.
fn config() -> Result<Config> {
    match files::read_through(Path::new(CONFIG))
        .class(ErrorClass::Usage, format!("reading {CONFIG}"))?
    {
        Some(text) => ConfigFile::new(&text).config(),
        None => Ok(Config::default()),
    }
}

/// `hca` is `HCA:port`, or `HCA` where there is one port.
fn rail(
    device: &str,
    name: &RailName,
    hca: Option<&str>,
    held: Option<&Held>,
    seen: &Snapshot,
    levels: &Levels,
) -> Rail {
    let netdev = match name {
        RailName::Netdev(name) => seen.netdev(name),
        RailName::Hca(_) => None,
    };
    let nic = held.and_then(|h| h.nic.as_deref());
    let hca_name: Option<HcaName> = hca.and_then(|hca| hca.split(':').next()?.parse().ok());
    let number: Option<u32> = hca.and_then(|hca| hca.split_once(':')?.1.parse().ok());
    let its = hca_name.as_ref().and_then(|name| seen.hca(name));
    let port = its.and_then(|h| {
        h.ports
            .iter()
            .find(|p| number.is_none_or(|n| n == p.number))
    });
    let pci = netdev
        .and_then(|n| n.pci)
        .or(its.and_then(|h| h.pci))
        .or(nic.and_then(|n| n.nic.identity.pci));
    let numa = pci.map(|at| levels.numa(at)).filter(|n| *n >= 0);
    let numa = numa
        .or(its.and_then(|h| h.numa))
        .or(nic.and_then(|n| n.nic.numa))
        .filter(|n| *n >= 0);
    let (unhealthy, unreported) = match held {
        Some(held) => (held.why.clone(), false),
        None => match (
            link_fault(name, netdev),
            hca.and_then(|hca| port_fault(hca, port)),
        ) {
            (Some(why), _) => (Some(why), false),
            // No notification is of a port.
            (None, why) => (why.clone(), why.is_some()),
        },
    };
    let speed_gbps = port.and_then(|p| p.gigabits()).map(|rate| rate as u32);
    let link = netdev.or(nic.map(|n| &n.before.netdev));
    let function = pci.and_then(|at| levels.function(at));
    let facts = Facts {
        is_away: held.is_some_and(|h| h.is_away),
        is_others: held.is_some_and(|h| h.is_others),
        held_back: held.is_some_and(|h| h.held_back),
        is_hca: matches!(name, RailName::Hca(_)),
        netdev: link.map(|n| n.name.to_string()),
        mac: link.and_then(|n| n.mac.clone()),
        hca: hca_name.as_ref().map(HcaName::to_string),
        port: number.or(port.map(|p| p.number)),
        kind: its.and_then(|h| kind(h, port?)),
        speed_gbps,
        mtu: link.map_or(0, |n| n.mtu),
        driver: link
            .and_then(|n| n.driver.clone())
            .or(its.and_then(|h| h.driver.clone())),
        model: function.map(|f| (f.vendor, f.device)),
        firmware: its.and_then(|h| h.firmware.clone()),
        pci,
        pcie_root: pci.and_then(pcie_root),
        ..Facts::default()
    };
    Rail {
        name: device.to_owned(),
        numa: numa.map(i64::from),
        speed_gbps,
        addresses: addresses(link),
        facts,
        distances: pci
            .map(|at| distances(at, seen, levels))
            .unwrap_or_default(),
        unhealthy,
        unreported,
    }
}

fn kind(hca: &Hca, port: &Port) -> Option<&'static str> {
    let is_iwarp = hca.protocol.as_deref() == Some("iw");
    Some(match port.link_layer.as_deref()? {
        "InfiniBand" => "ib",
        "Ethernet" if is_iwarp => "iwarp",
        "Ethernet" => "roce",
        _ => return None,
    })
}

/// The first part of a function's path below /sys/devices, as the standard attribute has it.
fn pcie_root(at: BusId) -> Option<String> {
    let path = fs::canonicalize(format!("/sys/bus/pci/devices/{at}")).ok()?;
    let root = path.strip_prefix("/sys/devices").ok()?.iter().next()?;
    Some(root.to_str()?.to_owned())
}

/// What keeps a rail that no container has from working.
fn link_fault(name: &RailName, netdev: Option<&Netdev>) -> Option<String> {
    let why = match (name, netdev) {
        (RailName::Netdev(_), None) => "not on this host",
        (_, Some(netdev)) if !netdev.up => "the link is down",
        (_, Some(netdev)) if !netdev.running => "no carrier",
        _ => return None,
    };
    Some(why.to_owned())
}

fn port_fault(hca: &str, port: Option<&Port>) -> Option<String> {
    match port.map(|p| p.state.as_deref()) {
        None => Some(format!("{hca} is not on this host")),
        Some(Some("ACTIVE") | None) => None,
        Some(Some(state)) => Some(format!("port {hca} is {state}")),
    }
}

fn addresses(netdev: Option<&Netdev>) -> Vec<IpNet> {
    let all = netdev.iter().flat_map(|n| &n.addresses);
    all.filter_map(|a| IpNet::new(a.address, a.prefix).ok())
        .collect()
}

fn distances(nic: BusId, seen: &Snapshot, levels: &Levels) -> Vec<u8> {
    let rank = |gpu| match levels.between(nic, gpu).0 {
        Distance::Pix => 0,
        Distance::Pxb => 1,
        Distance::Phb => 2,
        Distance::Sys => 3,
    };
    seen.gpus().map(|gpu| rank(gpu.address)).collect()
}

impl Facts {
    /// What is known of it while a container has it: its place may have changed, else it is as it
    /// was here. Another card may have its name after a reboot alone.
    fn while_away(&self, now: Facts) -> Facts {
        Facts {
            place: now.place,
            is_away: true,
            is_others: now.is_others,
            claim: now.claim,
            held_back: now.held_back,
            ..self.clone()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::{Host, claim_of, is_kubernetes};
    use rdmaprep::cdi::RailName;
    use rdmaprep::record::{Phase, Record};
    use rdmaprep::store::Store;
    use rdmaprep::store::records::Records;

    /// What its manager has still to do keeps no pod from ending, nor the next one from starting.
    #[test]
    fn rail_that_waits_for_its_manager_is_not_away() {
        let folder = tempfile::TempDir::new().unwrap();
        let store = Store::new(&folder.path().join("run"), &folder.path().join("state"));
        store.make_folders().unwrap();
        let text = include_str!("../../tests/cases/record/current.json");
        let mut record = Record::parse(text).unwrap();
        record.claims = vec!["of-a-claim".to_owned()];
        record.held_back.clear();
        let host = Host::new(folder.path().join("cdi.json"), store.clone()).unwrap();
        let rail = RailName::Netdev(record.held[0].name().clone());
        let held = |record: &Record| {
            store.save(record).unwrap();
            let records = Records::read(&store, &record.boot_id).unwrap();
            host.held(&rail, &records)
                .map(|held| (held.is_away, held.is_others))
        };
        record.phase = Phase::Attached;
        assert_eq!(held(&record), Some((true, false)));
        record.phase = Phase::Waiting;
        assert_eq!(held(&record), None);
        // The kubelet counts that of a pod without claims as healthy all the time.
        record.claims.clear();
        assert_eq!(held(&record), None);
        host.pods.lock().unwrap().insert(record.netns, true);
        record.netns += 1 << 32;
        std::fs::remove_dir_all(folder.path().join("run/records")).unwrap();
        assert_eq!(held(&record), Some((false, false)));
        record.phase = Phase::Attached;
        assert_eq!(held(&record), Some((true, true)));
        assert_eq!(claim_of(&rail, &Ok(Vec::new())), None);
        let unread = Err(anyhow::anyhow!("damaged"));
        assert_eq!(claim_of(&rail, &unread).as_deref(), Some("damaged"));
    }

    #[test]
    fn a_pods_cgroup() {
        let uid = "0f1e2d3c-0123-4567-89ab-0123456789ab";
        let slice = uid.replace('-', "_");
        let pods = [
            format!(
                "0::/kubepods.slice/kubepods-besteffort.slice/\
                 kubepods-besteffort-pod{slice}.slice/cri-containerd-1.scope"
            ),
            format!("0::/kubepods/burstable/pod{uid}/1"),
            format!("0::/kubepods/pod{uid}/crio-1.scope/container"),
            format!("12:cpu:/kubelet/kubepods/pod{uid}/1\n0::/"),
            format!("0::/../../pod{uid}/1"),
        ];
        let is = |text: &str| is_kubernetes(text, "1");
        pods.iter().for_each(|text| assert!(is(text), "{text}"));
        for other in [
            "0::/system.slice/docker-1.scope",
            "0::/machine.slice/libpod-1.scope",
            "",
            "0::/pods/podium/1",
            "0::/kubepods",
            // What a container's init has made below its own.
            "0::/system.slice/docker-1.scope/kubepods",
            &format!("0::/system.slice/docker-1.scope/kubepods/pod{uid}/1"),
            &format!("0::/1/pod{uid}"),
        ] {
            assert!(!is(other), "{other}");
        }
    }
}
