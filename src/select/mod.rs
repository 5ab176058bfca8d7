//! Which NICs a job gets, and why not the others.

pub mod candidates;
mod fabrics;
pub mod families;
mod link_layers;
pub mod protected_ifaces;
mod rules;
mod taken_gids;

use std::fmt;

use anyhow::Result;
use nccl_rules::version::Version;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::ids::{BusId, HcaName, IfName};
use rdma_model::nic::Nic;
use rdma_model::snapshot::{Gid, Snapshot};
pub use rdma_model::verdict::DropCode;
use rdma_model::{natural, upper_lower};
use serde::{Deserialize, Serialize};

use crate::config::request::Request;
use candidates::Context;
pub use rules::names::{Unknown, check_listed, left_out, unknown, without_names, without_unknown};
use rules::names::{by_regex, idle_exclusion};

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
}

impl Selection {
    /// What a plan keeps; why others are left out, it does not say.
    pub fn of_plan(nics: &[Nic], ib: &[HcaName]) -> Selection {
        let mut verdicts = Vec::new();
        for n in nics {
            verdicts.push(Verdict {
                netdev: Some(n.identity.name.clone()),
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
                let is_taken_away = request.narrowing.forbids(name).is_some();
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
        f.write_str(&reasons.join(" | "))
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

/// Judges every NIC of the snapshot. An empty result is an error that tells every reason; so is one
/// without a NIC that was named.
pub fn select(request: &Request, snapshot: &Snapshot, held: &[BusyNic]) -> Result<Selection> {
    let selection = judge(request, snapshot, held)?;
    selection.named(request)?;
    selection.some()?;
    Ok(selection)
}

/// Judges every NIC of the snapshot, for who only looks: it may be that nothing is left.
pub fn judge(request: &Request, snapshot: &Snapshot, held: &[BusyNic]) -> Result<Selection> {
    let mut warnings = Vec::new();
    let context = Context::new(request, snapshot, held, &mut warnings)?;
    let release = request.release(None);
    warnings.extend(
        release
            .filter(|release| !release.is_judged())
            .map(|release| {
                format!(
                    "NCCL {release} was not judged: NICs and settings are chosen as for {}",
                    Version::OLDEST
                )
            }),
    );
    known(&context)?;
    let mut verdicts: Vec<Verdict> = candidates::candidates(&context)
        .iter()
        .map(|c| rules::judge(&context, c))
        .collect();
    let along = come_along(snapshot, &mut verdicts);
    fabrics::leave_out_slower(&context, &mut verdicts);
    link_layers::leave_one(&context, &mut verdicts);
    families::agree(&context, &mut verdicts);
    let gid_range = taken_gids::follow(&context, &mut verdicts);
    families::share_index(&context, &mut verdicts);
    match request.moves() {
        true => stay_behind(snapshot, &mut verdicts, along),
        // Its GIDs counted, as NCCL may take one of them.
        false => along
            .into_iter()
            .for_each(|(at, before)| verdicts[at] = before),
    }
    verdicts.sort_by_cached_key(|v| (v.dropped.is_some(), rank(&context, v)));
    let mut selection = Selection {
        verdicts,
        warnings,
        gid_range,
    };
    addressed(request, &selection)?;
    let more = remarks(&context, &selection);
    selection.warnings.extend(more);
    Ok(selection)
}

/// What is a part of a NIC that is kept comes with it, asked or not: [`rules`] has seen to it that
/// all of it can. With what each of these was before, by its place.
fn come_along(snapshot: &Snapshot, verdicts: &mut [Verdict]) -> Vec<(usize, Verdict)> {
    let mut along = Vec::new();
    loop {
        let kept = kept_netdevs(verdicts);
        let all = verdicts.iter_mut().enumerate();
        let dropped = all.filter(|(_, v)| v.dropped.is_some());
        let Some((why, at, v)) = dropped
            .filter_map(|(at, v)| Some((part_of(snapshot, v.netdev.as_ref()?, &kept)?, at, v)))
            .next()
        else {
            return along;
        };
        along.push((at, v.clone()));
        (v.dropped, v.note) = (None, Some(format!("comes along with {why}")));
    }
}

/// Leaves out what came along with a NIC that was left out afterwards, and what came along with
/// that.
fn stay_behind(snapshot: &Snapshot, verdicts: &mut [Verdict], along: Vec<(usize, Verdict)>) {
    let mut gone = true;
    while std::mem::take(&mut gone) {
        for (at, before) in &along {
            let kept = kept_netdevs(verdicts);
            let name = verdicts[*at].netdev.as_ref().filter(|n| kept.contains(n));
            if name.is_some_and(|name| part_of(snapshot, name, &kept).is_none()) {
                verdicts[*at] = before.clone();
                gone = true;
            }
        }
    }
}

fn kept_netdevs(verdicts: &[Verdict]) -> Vec<IfName> {
    let kept = verdicts.iter().filter(|v| v.dropped.is_none());
    kept.filter_map(|v| v.netdev.clone()).collect()
}

/// The kept netdev that one is a part of, as a clause.
fn part_of(snapshot: &Snapshot, name: &IfName, kept: &[IfName]) -> Option<String> {
    let netdev = snapshot.netdev(name)?;
    let below = upper_lower::lower(snapshot, netdev).filter(|_| upper_lower::follows(netdev));
    if let Some(d) = below.filter(|d| kept.contains(&d.name)) {
        return Some(format!("{}, which it sits on", d.name));
    }
    let bond = snapshot.netdev(netdev.master.as_ref()?)?;
    let is_kept = upper_lower::is_bond(bond) && kept.contains(&bond.name);
    is_kept.then(|| format!("{}, of which it is a member", bond.name))
}

/// Rail order. NICs without a PCI function come last; digits in names count as numbers, so that
/// rxe2 precedes rxe10.
fn rank(context: &Context, verdict: &Verdict) -> impl Ord + use<> {
    let request = context.request;
    let (netdev, hca) = (verdict.netdev.as_ref(), verdict.hca.as_ref());
    let placeholder = netdev.filter(|_| context.blind());
    let placeholder = placeholder.and_then(|name| place(&request.select.ifaces, name));
    let agreed = match (netdev, hca) {
        (Some(netdev), _) => place(&request.agreed, netdev),
        (None, Some(hca)) => place(request.agreed_ib.as_deref().unwrap_or_default(), hca),
        (None, None) => None,
    };
    let label = verdict.label();
    (
        // What comes along with an agreed one is in no list.
        agreed.unwrap_or(usize::MAX),
        placeholder,
        verdict.pci.is_none(),
        verdict.pci,
        natural::key(&label),
        label,
    )
}

fn place<T: PartialEq>(list: &[T], name: &T) -> Option<usize> {
    list.iter().position(|n| n == name)
}

/// A name that does not exist is a mistake, and the list of what does exist its cure.
fn known(context: &Context) -> Result<()> {
    unknown(context.request, context.snapshot, context.held)
        .first()
        .map_or(Ok(()), |list| Err(list.error()))
}

/// With `--no-auto-skip`, a NIC that lacks nothing but an address is an error.
fn addressed(request: &Request, selection: &Selection) -> Result<()> {
    let naked = selection
        .dropped()
        .filter(|(_, d)| d.code == DropCode::NoAddress);
    let naked: Vec<String> = naked
        .map(|(_, d)| format!("{}; {}", d.why, d.fix))
        .collect();
    if !request.select.no_auto_skip || naked.is_empty() {
        return Ok(());
    }
    Err(ErrorClass::Refused.error(format!("--no-auto-skip: {}", naked.join(". "))))
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

/// What the user should hear although it worked.
fn remarks(context: &Context, selection: &Selection) -> Vec<String> {
    let request = context.request;
    let mut said = Vec::new();
    if context.blind() {
        let kept: Vec<&IfName> = selection.kept().filter_map(|v| v.netdev.as_ref()).collect();
        said.push(format!(
            "no RDMA device here: {} taken as placeholders, without HCA, port or GID; NCCL_IB_HCA \
            is not derived",
            join(&kept)
        ));
    }
    for (verdict, drop) in selection.dropped() {
        let (netdev, hca) = (verdict.netdev.as_ref(), verdict.hca.as_ref());
        let narrowed = match (netdev, hca) {
            (Some(netdev), _) => request.narrowing.forbids(netdev),
            (None, hca) => hca.and_then(|hca| request.narrowing.forbids_hca(hca.as_str())),
        };
        if drop.code == DropCode::Excluded
            && narrowed.is_none()
            && by_regex(request, netdev, hca).is_some()
        {
            said.push(format!("{}; {}", drop.why, drop.fix));
        }
        let Some(name) = netdev else { continue };
        if drop.code != DropCode::Excluded && request.names(name) {
            said.push(format!(
                "{name} is in --ifaces, but is left out: {}; {}",
                drop.why, drop.fix
            ));
        }
    }
    said.extend(idle_exclusion(request, context.snapshot, context.held));
    said.extend(fabrics::left_out(&selection.verdicts));
    said.extend(fabrics::hints(context, &selection.verdicts));
    said.extend(link_layers::hint(context, &selection.verdicts));
    let mut absent: Vec<&IfName> = request.select.peer_ifaces.iter().collect();
    absent.retain(|n| selection.kept().all(|v| v.netdev.as_ref() != Some(*n)));
    if !absent.is_empty() {
        said.push(format!(
            "the peer has {}, which is not kept here",
            join(&absent)
        ));
    }
    if request.moves() && selection.kept().any(|v| v.netdev.is_some()) {
        said.extend(
            context
                .snapshot
                .unlisted_routes()
                .map(|why| format!("the hook will refuse: {why}")),
        );
    }
    said
}

fn join(names: &[&IfName]) -> String {
    names
        .iter()
        .map(|n| n.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}
