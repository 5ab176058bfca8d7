//! The device nodes of verbs: whether they are there, and open.

use super::facts::{Machine, SandboxFacts};
use super::{Check, CheckContext, Finding, Severity};
use crate::kernel::probe::access::NodeAccess;

pub(super) fn verbs_nodes(context: &CheckContext, machine: &Machine) -> Vec<Finding> {
    let mut found = machine.sandbox.as_ref().map(sandbox).unwrap_or_default();
    for (name, node) in &machine.nodes {
        let path = format!("/dev/infiniband/{name}");
        let (severity, seen) = match node {
            NodeAccess::Opened => continue,
            NodeAccess::Missing => (Severity::Breaks, format!("{path} is missing")),
            NodeAccess::Wrong(what) => (Severity::Breaks, format!("{path} is {what}")),
            NodeAccess::Refused(error) => (
                Severity::Breaks,
                format!("{path} cannot be opened: {error}"),
            ),
            NodeAccess::Narrow(mode) => (
                Severity::Warning,
                format!("{path} is for root alone: {mode}"),
            ),
            NodeAccess::Untried(why) => (
                Severity::Unknown,
                format!("whether {path} can be opened is not known: {why}"),
            ),
        };
        // NCCL does without this one.
        let severity = if name == "rdma_cm" {
            severity.max(Severity::Warning)
        } else {
            severity
        };
        let why = match node {
            NodeAccess::Narrow(_) => {
                "jobs of other users, here or in a container that gets the node as it is \
                (--device), do without it"
            }
            _ => "libibverbs passes the device over, and NCCL goes on without it, or by TCP",
        };
        let one = Finding::new(Check::VerbsNodes, severity, seen, why, fix(context, node));
        found.push(Finding {
            run: mknod_commands(context, name, node),
            ..one
        });
    }
    found
}

/// Of a container in gVisor this host sees the sandbox's own root and memory alone.
fn sandbox(facts: &SandboxFacts) -> Vec<Finding> {
    let outside = match &facts.unread {
        None => {
            "which files NCCL reads there, and whether its device nodes open, is unknown".to_owned()
        }
        Some(why) => format!("what it was given is unknown: {why}"),
    };
    let unknown = Finding::new(
        Check::VerbsNodes,
        Severity::Unknown,
        format!("the container is in a sandbox (gVisor): {outside}"),
        "its root, its environment and its nodes are inside; config.json is what can be read of \
        them here",
        "run ibv_devinfo in the container: a NIC that works there has a port with PORT_ACTIVE",
    );
    let blind = Finding::new(
        Check::VerbsNodes,
        Severity::Warning,
        "the container is in a sandbox (gVisor) that runs without --rdmaproxy",
        "opening a verbs node fails there with ENXIO, and NCCL goes on by TCP",
        "a runsc of August 2026 or later with --rdmaproxy: docs/gvisor.md",
    );
    if facts.proxy {
        vec![unknown]
    } else {
        vec![blind, unknown]
    }
}

fn fix(context: &CheckContext, node: &NodeAccess) -> &'static str {
    match (context.is_inside(), node) {
        (true, _) => {
            "start the container from a config.json that `rdmaprep prepare --bundle` or `spec` \
            edited, or give it the node: --device; where its mode is in the way: chmod 666 on the \
            host, or a group of the container's user"
        }
        (false, NodeAccess::Refused(_)) => {
            "see the mode of the node, the options of its mount, and the device cgroup of this \
            shell"
        }
        (false, NodeAccess::Narrow(_)) => {
            "rdma-core's udev rules give it 666, at boot as well; or give it to a group of its own"
        }
        (false, NodeAccess::Wrong(_)) => {
            "have udev make it, or make it by hand; what is mounted there, umount first"
        }
        (false, _) => "have udev make it, or make it by hand",
    }
}

fn mknod_commands(context: &CheckContext, name: &str, node: &NodeAccess) -> Vec<String> {
    let snapshot = context.of.snapshot;
    let all = snapshot
        .hcas
        .iter()
        .filter_map(|h| h.uverbs.as_ref())
        .chain(&snapshot.rdma_cm);
    let known = all
        .into_iter()
        .find(|d| d.name == name)
        .filter(|_| !context.is_inside());
    let path = format!("/dev/infiniband/{name}");
    let mknod = known.map(|d| {
        format!(
            "mkdir -p /dev/infiniband && mknod -m 666 {path} c {} {}",
            d.major, d.minor
        )
    });
    match node {
        NodeAccess::Narrow(_) => vec![format!("chmod 666 {path}")],
        NodeAccess::Missing => mknod.into_iter().collect(),
        NodeAccess::Wrong(_) => mknod
            .map(|mknod| vec![format!("rm -d {path}"), mknod])
            .unwrap_or_default(),
        _ => Vec::new(),
    }
}
