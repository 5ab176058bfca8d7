//! What a selection says: a verdict for each NIC, and why the others are not taken.

use std::fmt;

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::{BusId, HcaName, IfName};
use rdma_model::manager::Manager;
use rdma_model::nic::Nic;
use rdma_model::snapshot::Gid;
use rdma_model::verdict::DropCode;
use serde::{Deserialize, Serialize};

use crate::config::request::Request;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// One verdict per NIC: kept ones first, in rail order (PCI address, then name; placeholders as
    /// they were named).
    pub verdicts: Vec<Verdict>,
    pub warnings: Vec<String>,
    /// NCCL_IB_ADDR_RANGE, where it is what makes NCCL take the GIDs of these verdicts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid_range: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub netdev: Option<IfName>,
    pub hca: Option<HcaName>,
    pub port: Option<u32>,
    pub gid: Option<Gid>,
    pub pci: Option<BusId>,
    pub numa: Option<i32>,
    /// Absent: kept.
    pub dropped: Option<Drop>,
    /// Kept with this remark.
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drop {
    pub code: DropCode,
    /// Further reasons, which `why` and `fix` have as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<DropCode>,
    pub why: String,
    pub fix: String,
}

/// A NIC that a container holds already, from its record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusyNic {
    pub netdev: IfName,
    #[serde(default)]
    pub hca: Option<HcaName>,
    /// Its port of the HCA.
    #[serde(default)]
    pub port: Option<u32>,
    /// What it sits on, which stays where it is as long as it is away.
    #[serde(default)]
    pub over: Option<IfName>,
    /// Who holds it, for a sentence: `container 4f2a`.
    pub by: String,
    /// Whether that one has ended.
    #[serde(default)]
    pub ended: bool,
}

/// A manager that has still to configure a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuring {
    pub by: Manager,
    pub awaits: Awaits,
}

/// What a manager waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Awaits {
    /// Itself, or a router.
    Nothing,
    /// A DHCP server.
    Lease,
    Carrier,
    /// Its networking is off.
    Networking,
    /// An administrator has disconnected the link.
    Connection,
}

impl Configuring {
    pub fn state(&self) -> String {
        let by = self.by.name();
        match self.awaits {
            Awaits::Nothing => format!("{by} is still configuring it"),
            Awaits::Lease => format!("{by} waits for a lease of DHCP"),
            Awaits::Carrier => format!("it has no carrier, for which {by} waits"),
            Awaits::Networking => format!("networking is off in {by}"),
            Awaits::Connection => format!("someone has disconnected it in {by}"),
        }
    }

    /// What to wait for, or to do.
    pub fn until(&self, name: &IfName) -> String {
        let tool = match self.by {
            Manager::NetworkManager => "nmcli device show",
            _ => "networkctl status",
        };
        let how = format!("`{tool} {name}` says how far it is");
        match self.awaits {
            Awaits::Nothing => format!("wait until it is done: {how}"),
            Awaits::Lease => format!("wait for the lease, or see to the DHCP server: {how}"),
            Awaits::Carrier => format!("see to the cable and the switch port of {name}: {how}"),
            Awaits::Networking => "`nmcli networking on`".to_owned(),
            Awaits::Connection => format!("`nmcli device connect {name}`"),
        }
    }
}

impl Selection {
    /// NICs that lack an address which their manager is about to give need none by hand.
    pub fn explain(&mut self, mut configuring: impl FnMut(&IfName) -> Option<Configuring>) {
        for verdict in &mut self.verdicts {
            let (Some(name), Some(drop)) = (&verdict.netdev, &mut verdict.dropped) else {
                continue;
            };
            let due = drop.code == DropCode::NoAddress && drop.also.is_empty();
            if let Some(at_work) = due.then(|| configuring(name)).flatten() {
                drop.why = format!("{}: {}", drop.why, at_work.state());
                drop.fix = at_work.until(name);
            }
        }
    }

    /// What a plan keeps; why others are left out, it does not say.
    pub fn of_plan(nics: &[Nic], ib: &[HcaName]) -> Selection {
        let mut verdicts = Vec::new();
        for n in nics {
            verdicts.push(Verdict {
                netdev: Some(n.name().clone()),
                hca: n.hca.clone(),
                port: n.port,
                gid: n.gid.clone(),
                pci: n.identity.pci,
                numa: n.numa,
                ..Verdict::default()
            });
        }
        for hca in ib {
            verdicts.push(Verdict {
                hca: Some(hca.clone()),
                ..Verdict::default()
            });
        }
        Selection {
            verdicts,
            ..Selection::default()
        }
    }

    pub fn kept(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|v| v.dropped.is_none())
    }

    pub fn dropped(&self) -> impl Iterator<Item = (&Verdict, &Drop)> {
        self.verdicts
            .iter()
            .filter_map(|v| Some((v, v.dropped.as_ref()?)))
    }

    /// [`ErrorClass::Nothing`], caused by [`LeftOut`], where none is kept.
    pub fn some(&self) -> Result<()> {
        if self.kept().next().is_some() {
            return Ok(());
        }
        let mut verdicts = self.verdicts.clone();
        verdicts.sort_by_key(|v| v.dropped.as_ref().map(|d| nearness(d.code)));
        Err(LeftOut(verdicts)).class(ErrorClass::Nothing, "no NIC is left for the container")
    }

    /// NICs that were asked for by name, and are left out. What annotations, `--exclude-hca` or the
    /// peer's list take away was not asked for; what devices name is checked later.
    fn lacking<'a>(
        &'a self,
        request: &'a Request,
    ) -> impl Iterator<Item = (&'a Verdict, &'a Drop)> {
        let peers = &request.select.peer_ifaces;
        let by_name = self
            .dropped()
            .filter(|(_, d)| request.narrowing.devices.is_none() && d.code != DropCode::Excluded);
        by_name.filter(move |(v, _)| {
            let name = v.netdev.as_ref().filter(|name| request.names(name));
            name.is_some_and(|name| {
                let is_taken_away = request.narrowing.leaves_out(name).is_some();
                !is_taken_away && (peers.is_empty() || peers.contains(name))
            })
        })
    }

    /// An error where a NIC is left out that was asked for by name: a job with a rail less hangs,
    /// or is slow. [`ErrorClass::Locked`], in one line, if containers hold all of these; else
    /// [`ErrorClass::Nothing`], caused by [`LeftOut`].
    pub fn named(&self, request: &Request) -> Result<()> {
        let lacking: Vec<Verdict> = self.lacking(request).map(|(v, _)| v.clone()).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let text = "--ifaces names NICs that cannot be taken";
        match self.lacking(request).all(|(_, d)| d.code == DropCode::Held) {
            true => Err(ErrorClass::Locked.error(format!("{text}: {}", LeftOut(lacking)))),
            false => {
                let text = format!("{text}; mend them, or take them out of the list");
                Err(LeftOut(lacking)).class(ErrorClass::Nothing, text)
            }
        }
    }

    /// Why a NIC that was asked for by name is left out, where nothing but a link that comes up
    /// keeps all such NICs: a second later, they may be there.
    pub fn coming(&self, request: &Request) -> Option<String> {
        use DropCode::{NoAddress, NoGid, PortDown};
        let lacking: Vec<&Drop> = self.lacking(request).map(|(_, d)| d).collect();
        let mut codes = lacking.iter().flat_map(|d| d.also.iter().chain([&d.code]));
        let all_come = codes.all(|code| matches!(code, NoAddress | PortDown | NoGid));
        lacking.first().filter(|_| all_come).map(|d| d.why.clone())
    }
}

/// What an error lists first: NICs that can be had by ending what has them, then those that lack
/// something, then those that are not meant, and last what no container can have.
fn nearness(code: DropCode) -> u8 {
    match code {
        DropCode::Held => 0,
        DropCode::Uplink | DropCode::Bootstrap | DropCode::Excluded => 2,
        DropCode::Iwarp | DropCode::NotRdma | DropCode::NoNetdev => 3,
        _ => 1,
    }
}

/// NICs that are left out; the text names each, with the reason and the fix.
#[derive(Debug)]
pub struct LeftOut(pub Vec<Verdict>);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons = Vec::new();
        for v in &self.0 {
            let dropped = v.dropped.as_ref();
            reasons.extend(dropped.map(|d| format!("{}: {}; {}", v.label(), d.why, d.fix)));
        }
        if reasons.is_empty() {
            return f.write_str("this network namespace has no interface but lo");
        }
        f.write_str(&reasons.join("; and "))
    }
}

impl std::error::Error for LeftOut {}

impl Verdict {
    pub fn label(&self) -> String {
        match (&self.netdev, &self.hca, self.port) {
            (Some(netdev), _, _) => netdev.to_string(),
            (None, Some(hca), Some(port)) => format!("{hca}:{port}"),
            (None, Some(hca), None) => hca.to_string(),
            (None, None, _) => String::new(),
        }
    }
}

impl Drop {
    /// The reason, and what helps.
    pub fn sentence(&self) -> String {
        match self.fix.as_str() {
            "" => self.why.clone(),
            fix => format!("{} → {fix}", self.why),
        }
    }
}
