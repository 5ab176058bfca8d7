//! NICs whose moves take long, by the channels that their driver opens when the link goes up.

use super::{Check, CheckContext, Finding, Rail, Severity, join};
use crate::deadline;

/// As many as a move takes some 100 ms for.
const FEW: u32 = 16;
/// What is left where RDMA does the work: none of its queues is among the netdev's.
const ENOUGH: u32 = 8;

const WHY: &str = "a move closes them, and opens one after the other with the lock on all network \
    configuration held; RDMA traffic needs none of them";

pub(super) fn many(context: &CheckContext) -> Vec<Finding> {
    let mut rails: Vec<(u32, Rail)> = context.meant().into_iter().filter_map(many_of).collect();
    rails.sort_by_key(|(channels, _)| *channels);
    rails
        .chunk_by(|(a, _), (b, _)| a == b)
        .map(finding)
        .collect()
}

fn many_of(rail: Rail) -> Option<(u32, Rail)> {
    let channels = rail.netdev.channels.filter(|count| *count > FEW)?;
    Some((channels, rail))
}

fn finding(rails: &[(u32, Rail)]) -> Finding {
    let channels = rails.first().map_or(0, |(channels, _)| *channels);
    let each = deadline::opening(channels).as_secs_f64();
    let (have, all) = match rails.len() {
        1 => ("has", String::new()),
        count => {
            let all = each * count as f64;
            ("have", format!(" and all {count} some {all:.1} s"))
        }
    };
    let names = join(rails.iter().map(|(_, rail)| rail.name()));
    let seen = format!(
        "{names} {have} {channels} channels: on ConnectX-7 a NIC takes some {each:.1} s each \
        way{all}"
    );
    let fix = format!("open {ENOUGH} at boot, by a unit or a udev rule that runs this");
    let found = Finding::new(Check::Channels, Severity::Warning, seen, WHY, fix);
    rails.iter().fold(found, |found, (_, rail)| {
        found.run(format!("ethtool -L {} combined {ENOUGH}", rail.name()))
    })
}
