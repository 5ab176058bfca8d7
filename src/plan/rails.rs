//! How rails are kept apart: the ARP profile, and a routing table with its rules for each rail
//! where one table for all will not do.
//!
//! arp_filter=1 and rp_filter=1 ask the routing tables which NIC leads back to the sender
//! (arp_filter in net/ipv4/arp.c, `__fib_validate_source` in net/ipv4/fib_frontend.c). Where rails
//! share a subnet the main table names one of them for all, and the others resolve no peer. A rule
//! `from <address>` with a table of the rail's own gives each its own answer, in IPv6 as well,
//! where all would leave by one NIC. The same holds where each has a gateway of its own to one
//! destination; and the default route of a rail, which a container's main table does not get,
//! serves in a table of its own.

mod default;
mod effective;
mod groups;
mod tables;

use rdma_model::arp::{ArpChoice, ArpProfile, TableRange};

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use crate::plan::rule_carry::is_to_kernel_table;
pub use default::{carry_default, default_notes, winners};
pub use effective::{describe, drift, effective, give_back, overruled, overruling_step};
pub use groups::{Group, Why, groups};
use rdma_model::step::NicState;
use tables::tables;

/// How rails that share a subnet are kept apart, besides by the ARP profile. The numbers of tables
/// are chosen at create, when it is known which are free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Separation {
    /// Numbers for tables and rules, where rails need them; absent: none are made.
    pub tables: Option<TableRange>,
    /// Whether 2/1/0/2 without tables will do where no number is free.
    pub or_loose: bool,
    /// The profile and its reason, and what each table will hold: a line each.
    pub notes: Vec<String>,
}

fn link_local(address: std::net::IpAddr) -> bool {
    matches!(address, std::net::IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// The profile for rails as they are on the host, in rail order.
pub fn decide(
    wish: ArpChoice,
    numbers: TableRange,
    rails: &[NicState],
) -> (Option<ArpProfile>, Separation) {
    let groups = groups(rails);
    let main_comes_first = main_comes_first(rails);
    let (arp, how, wanted) = match wish {
        ArpChoice::Auto if main_comes_first => (
            Some(ArpProfile::LOOSE),
            "loose, as a rule to main comes first",
            false,
        ),
        ArpChoice::Auto | ArpChoice::Strict => (Some(ArpProfile::STRICT), "strict", true),
        ArpChoice::Loose => (Some(ArpProfile::LOOSE), "loose", false),
        ArpChoice::Off => (None, "off", false),
        ArpChoice::Exact(arp) => (Some(arp), "as asked", false),
    };
    let values = arp.map_or("the kernel's own values".to_owned(), |a| a.to_string());
    let made = if wanted && !groups.is_empty() {
        tables(rails, None)
    } else {
        Vec::new()
    };
    let one_wire = groups.iter().any(|g| matches!(g.why, Why::Subnet(_)));
    let what = match (groups.is_empty(), wanted) {
        (true, _) => "no two rails share a subnet or a destination",
        (false, true) if made.is_empty() && rails.iter().all(|s| s.rules.is_empty()) => {
            "no rail has a route for a table of its own"
        }
        (false, true) if made.is_empty() => "the rails' own rules come along",
        (false, true) => "a routing table and rules for each rail",
        (false, false) if one_wire && arp.is_some_and(|a| a.asks_for_routes()) => {
            "no routing tables: of rails that share a subnet, one can resolve its peers"
        }
        (false, false) => "no routing tables",
    };
    let mut notes = vec![format!("ARP profile {values} ({how}): {what}")];
    if wish == ArpChoice::Strict && main_comes_first {
        notes.push(
            "a rule to main comes before those of the rails: with strict, not all may answer ARP"
                .to_owned(),
        );
    }
    notes.extend(groups.iter().map(ToString::to_string));
    notes.extend(made.iter().map(ToString::to_string));
    (
        arp,
        Separation {
            tables: wanted.then_some(numbers),
            or_loose: wish == ArpChoice::Auto,
            notes,
        },
    )
}

/// Whether a table for each rail would never be asked: a rule of the rails to the main table comes
/// before it, and of several rails to one destination that table names only one.
fn main_comes_first(rails: &[NicState]) -> bool {
    let mut rules = rails.iter().flat_map(|rail| &rail.rules);
    rules.any(is_to_kernel_table) && !groups(rails).is_empty()
}

const COLUMNS: usize = 100;

/// As many of a list as `room` columns hold; their number where that is none.
fn listed(items: &[impl ToString], room: usize, noun: &str) -> String {
    let words: Vec<String> = items.iter().map(ToString::to_string).collect();
    for shown in (1..=words.len()).rev() {
        let mut text = words[..shown].join(", ");
        if shown < words.len() {
            text += &format!(" and {} more", words.len() - shown);
        }
        if text.len() <= room {
            return text;
        }
    }
    format!("{} {noun}", words.len())
}

/// Gives rails, as they come into the container, their profile and, where [`groups`] finds a
/// reason, their tables and rules. [`ErrorClass::Refused`] where no number is left for a table.
pub fn configure(
    arp: Option<ArpProfile>,
    separation: &Separation,
    rails: &mut [NicState],
    inside: &Snapshot,
) -> Result<()> {
    let mut arp = arp;
    let numbers = separation.tables.filter(|_| !groups(rails).is_empty());
    if separation.or_loose && numbers.is_some() && main_comes_first(rails) {
        arp = Some(ArpProfile::LOOSE);
    } else if let Some(numbers) = numbers {
        let made = tables(rails, Some(inside));
        let free = tables::free(numbers, rails, inside);
        if made.len() <= free.len() {
            for (table, number) in made.iter().zip(free) {
                table.assign(number, rails);
            }
        } else if separation.or_loose {
            arp = Some(ArpProfile::LOOSE);
        } else {
            return Err(ErrorClass::Refused.error(format!(
                "{} routing tables are needed, and of {numbers} the container's namespace leaves \
                {}: set `rail_tables` in the host's config file, or use --arp-profile loose",
                made.len(),
                free.len()
            )));
        }
    }
    for (key, value) in arp.iter().flat_map(ArpProfile::sysctls) {
        for s in rails.iter_mut() {
            s.netdev.sysctls.insert(key.to_owned(), value.to_string());
        }
    }
    Ok(())
}
