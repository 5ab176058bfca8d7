//! What this process may do: less than the root that started it, before it reads a word of what others wrote.

use anyhow::{Context, Result};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use crate::fault::Fault;

/// What hooks and `restore` keep, and why (capabilities(7)):
/// links, addresses, routes, RDMA links and their sysctls; entering namespaces and mounting; reading what belongs to processes
/// of other users, their namespaces foremost; entering a mount namespace, which sets the root; writing where the root of a
/// user namespace owns the folder; giving it what was made for it.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::CHOWN);

/// Without these nothing can be moved.
const NEEDED: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN")];

/// Gives up every other capability and the way to new ones, for this thread and those that it starts: call it before there are
/// others.
pub fn shed() -> Result<()> {
    set_no_new_privs(true).context("setting no_new_privs")?;
    let now = capabilities(None).context("reading the capabilities")?;
    let kept = now.permitted & KEPT;
    let sets = CapabilitySets { effective: now.effective & kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("giving up capabilities")
}

/// Whether it can do its work at all.
///
/// # Errors
/// [`Fault::Refused`] that names what is missing and the user.
pub fn require() -> Result<()> {
    let effective = capabilities(None).context("reading the capabilities")?.effective;
    let missing: Vec<&str> = NEEDED.iter().filter(|(c, _)| !effective.contains(*c)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let uid = rustix::process::geteuid().as_raw();
    Err(Fault::Refused.error(format!("{} missing, as uid {uid}: run it as root", missing.join(" and "))))
}
