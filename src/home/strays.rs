//! NICs that are in neither of the two namespaces: whoever is root in a container can put them into one that it made.

use std::time::Instant;

use anyhow::Result;

use super::SETTLE;
use crate::apply::apply_all;
use crate::journal::{Held, Record};
use crate::restore::{is_surely_in, restore};
use crate::step::Side;
use crate::world::netns::{self, Netns};
use crate::world::{Live, Scope, World};

/// Brings home those of `missing` that are in a network namespace which a process has or `ip netns` keeps; returns a sentence
/// for each. What cannot be looked into is passed over: others' namespaces are none of our business.
pub(super) fn fetch(record: &Record, missing: &[Held]) -> Result<Vec<String>> {
    let mut told = Vec::new();
    for other in netns::others(&[record.netns, record.host_netns]) {
        let inode = other.inode();
        let Ok(mut live) = Live::open(Netns::current()?, Some(other)) else { continue };
        let Ok(there) = live.observe(Side::Inside, &Scope::links()) else { continue };
        // What they overruled was written in the container's namespace, not here.
        let bare = |h: &Held| Held { overruled: Default::default(), ..h.clone() };
        let strays: Vec<Held> = missing.iter().filter(|h| is_surely_in(h, missing, &there)).map(bare).collect();
        if strays.is_empty() {
            continue;
        }
        let home = restore(&strays, &live.observe(Side::Host, &Scope::links())?, Some(&there));
        let errors = apply_all(&home.steps, &mut live, Instant::now() + SETTLE);
        let what = |h: &Held| format!("{} had been moved on to network namespace {inode}", h.nic.identity.name);
        told.extend(strays.iter().map(what));
        told.extend(home.notes);
        told.extend(errors.iter().map(|e| format!("{e:#}")));
    }
    Ok(told)
}
