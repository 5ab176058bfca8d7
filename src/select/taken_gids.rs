//! The GID that NCCL takes of each rail where the host or the container sets how it chooses
//! (nccl_rules::gid): it is the planned one, or the rail is left out.

use nccl_rules::gid::{Choice, choose};
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use rdma_model::escape::shortened;
use rdma_model::ids::IfName;
use rdma_model::snapshot::{Gid, GidKind, Netdev, Port};

use super::candidates::{Context, counts};
use super::families::{is_one_index, rails};
use super::{Drop, DropCode, Verdict};
use crate::config::request::Request;

/// Characters of a value that are shown.
const VALUE: usize = 80;

const INDEX: &str = "NCCL_IB_GID_INDEX";
const FAMILY: &str = "NCCL_IB_ADDR_FAMILY";
const RANGE: &str = "NCCL_IB_ADDR_RANGE";

pub(super) fn follow(context: &Context, verdicts: &mut [Verdict]) {
    let mut set = context.request.gid_settings();
    let release = context.request.release(None).unwrap_or_default();
    let has_index = set.contains_key(INDEX);
    // What looks for no GID reads the index alone, and without one [`super::families::share_index`]
    // decides.
    if set.is_empty() || !(has_index || release.finds_gid()) {
        return;
    }
    let said = said(context.request);
    let rails = rails(context, verdicts);
    let planned = rails.iter().filter_map(|r| verdicts[r.at].gid.as_ref());
    // As `nccl_env` sets it.
    if !rails.is_empty() && planned.clone().all(|gid| gid.ip().is_ipv6()) {
        set.entry(FAMILY.to_owned())
            .or_insert_with(|| "AF_INET6".to_owned());
    }
    let is_free = !has_index && !set.contains_key(RANGE);
    let is_cured = is_free && is_one_index(&rails);
    let settings = Settings::of(set, "");
    let names: Vec<IfName> = verdicts
        .iter()
        .filter(|v| v.dropped.is_none())
        .filter_map(|v| v.netdev.clone())
        .collect();
    for rail in &rails {
        let port = match context.request.select.network_mode.is_own() {
            true => Inside::new(rail.port, &names),
            false => Inside::unmoved(rail.port),
        };
        let choice = choose(&port.table, &settings, release);
        let gid = port.taken(choice);
        let verdict = &mut verdicts[rail.at];
        match gid.filter(|gid| is_own(gid, rail.netdev, context)) {
            Some(gid) => verdict.gid = Some(gid.clone()),
            None if is_cured || choice == Choice::Unknown => {}
            None => {
                let drop = left_out(&said, release, choice, gid);
                (verdict.dropped, verdict.note, verdict.gid) = (Some(drop), None, None);
            }
        }
    }
}

/// What is set, in a clause. The values of a container are not for logs.
fn said(request: &Request) -> String {
    let own = request.own_gids.keys();
    let own = own.map(|name| format!("the container's {name}"));
    let set = request.gid_settings().into_iter();
    let theirs = set.filter(|(name, _)| !request.own_gids.contains_key(name));
    let theirs = theirs.map(|(name, value)| format!("{name}={}", shortened(&value, VALUE)));
    own.chain(theirs).collect::<Vec<_>>().join(", ")
}

/// A port's table as a container has it: a move empties it, and what comes again has no gaps, and
/// nothing of netdevs that stay.
struct Inside<'a> {
    table: Port,
    /// The entries on the host, in the order of the table.
    here: Vec<&'a Gid>,
}

impl<'a> Inside<'a> {
    fn unmoved(port: &'a Port) -> Inside<'a> {
        Inside {
            table: port.clone(),
            here: port.gids.iter().collect(),
        }
    }

    fn new(port: &'a Port, netdevs: &[IfName]) -> Inside<'a> {
        let is_theirs = |gid: &&Gid| gid.netdev.as_ref().is_none_or(|n| netdevs.contains(n));
        let mut here: Vec<&Gid> = port.gids.iter().filter(is_theirs).collect();
        here.sort_by_key(|gid| gid.index);
        let moved = |(index, gid): (u32, &&Gid)| Gid {
            index,
            ..(*gid).clone()
        };
        let table = Port {
            gids: (0..).zip(&here).map(moved).collect(),
            ..port.clone()
        };
        Inside { table, here }
    }

    fn taken(&self, choice: Choice) -> Option<&'a Gid> {
        let Choice::Index(index) = choice else {
            return None;
        };
        let mut entries = self.table.gids.iter().zip(&self.here);
        let (_, here) = entries.find(|(gid, _)| i32::try_from(gid.index) == Ok(index))?;
        Some(here)
    }
}

/// Whether peers reach the NIC by it: of whichever type, since that was asked for.
fn is_own(gid: &Gid, netdev: &Netdev, context: &Context) -> bool {
    let family = context.request.select.family;
    let mut addresses = netdev.addresses.iter();
    gid.netdev.as_ref() == Some(&netdev.name)
        && addresses.any(|a| counts(a, family) && a.address == gid.ip())
}

fn left_out(set: &str, release: Version, choice: Choice, gid: Option<&Gid>) -> Drop {
    let takes = match (choice, gid) {
        (_, Some(gid)) => format!(
            "takes GID {} ({}, {}), made from no address of this NIC that counts",
            gid.index,
            gid.ip(),
            kind(gid)
        ),
        (Choice::Index(index), None) => format!("takes GID {index}, which is unused inside"),
        (Choice::Crash, None) => "ends by a signal".to_owned(),
        _ => "finds no GID that it can read".to_owned(),
    };
    Drop {
        code: DropCode::NoGid,
        also: Vec::new(),
        why: format!("with {set} NCCL {release} {takes}"),
        fix: "unset that in the environment of prepare, or of the container; or give the NIC an \
            address that it means (--family)"
            .to_owned(),
    }
}

fn kind(gid: &Gid) -> &'static str {
    match gid.kind {
        Some(GidKind::IbRoceV1) => "RoCE v1",
        Some(GidKind::RoceV2) => "RoCE v2",
        None => "of no known type",
    }
}
