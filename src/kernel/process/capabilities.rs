//! What this process may do: less than the root that started it, before it reads what others wrote.

use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs,
};

use rdma_model::error_class::ErrorClass;

/// What hooks and `restore` keep, by its name in capabilities(7), and what for. SECURITY.md and the
/// systemd unit follow it.
pub const KEPT: [(CapabilitySet, &str, &str); 7] = [
    (
        CapabilitySet::NET_ADMIN,
        "CAP_NET_ADMIN",
        "links, addresses, routes, rules, their sysctls, and RDMA links",
    ),
    (
        CapabilitySet::SYS_ADMIN,
        "CAP_SYS_ADMIN",
        "entering namespaces, mounts, and BPF programs by their number",
    ),
    (
        CapabilitySet::SYS_PTRACE,
        "CAP_SYS_PTRACE",
        "finding the namespaces of other users' processes",
    ),
    (
        CapabilitySet::SYS_CHROOT,
        "CAP_SYS_CHROOT",
        "entering a mount namespace, which sets the root (setns(2))",
    ),
    (
        CapabilitySet::DAC_OVERRIDE,
        "CAP_DAC_OVERRIDE",
        "an overlay over a container's /etc, whose work directory is closed to all",
    ),
    (
        CapabilitySet::CHOWN,
        "CAP_CHOWN",
        "giving the owner of an image what is made for it",
    ),
    (
        CapabilitySet::SYS_RESOURCE,
        "CAP_SYS_RESOURCE",
        "lifting a container's RLIMIT_MEMLOCK, since RDMA pins memory",
    ),
];

/// The first user namespace (PROC_USER_INIT_INO in include/linux/proc_ns.h).
const FIRST_USER: &str = "user:[4026531837]";

/// Without these, the first two, nothing can be moved.
const NEEDED: usize = 2;

/// Gives up every other capability and the way to new ones, for this thread and those that it
/// starts: call it before there are others.
pub fn shed() -> Result<()> {
    set_no_new_privs(true).context("setting no_new_privs")?;
    let now = capabilities(None).context("reading the capabilities")?;
    let kept = KEPT.iter().fold(CapabilitySet::empty(), |all, (one, ..)| {
        all | (now.permitted & *one)
    });
    let sets = CapabilitySets {
        effective: now.effective & kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).context("giving up capabilities")
}

/// Whether a process, by its name in /proc, is in the first user namespace.
pub fn is_first_user(process: &str) -> bool {
    user_namespace(process).is_some_and(|link| link.as_os_str() == FIRST_USER)
}

/// Whether a process, by its name in /proc, is in the user namespace of this one.
pub fn shares_user(process: &str) -> bool {
    user_namespace(process) == user_namespace("self")
}

fn user_namespace(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/user")).ok()
}

/// Whether this process has a capability over what belongs to no user namespace of its own.
pub fn has_in_first_user(one: CapabilitySet) -> Result<bool> {
    let effective = capabilities(None)
        .context("reading the capabilities")?
        .effective;
    Ok(effective.contains(one) && is_first_user("self"))
}

/// Whether an error is one that root would not have.
pub fn is_denied(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    !rustix::process::geteuid().is_root()
        && causes.any(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
}

/// Whether it can do its work at all; else [`ErrorClass::Refused`] that names the missing
/// capability and the user.
pub fn require() -> Result<()> {
    let effective = capabilities(None)
        .context("reading the capabilities")?
        .effective;
    let needed = KEPT.iter().take(NEEDED);
    let missing: Vec<&str> = needed
        .filter(|(c, ..)| !effective.contains(*c))
        .map(|(_, name, _)| *name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let uid = rustix::process::geteuid().as_raw();
    Err(ErrorClass::Refused.error(format!(
        "{} missing, as uid {uid}: run it as root",
        missing.join(" and ")
    )))
}
