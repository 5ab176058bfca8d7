//! The container's own name in its `/etc/hosts`, with the address that its peers reach, where its
//! engine left it without. A file of the container's alone lies over the one that is there: that
//! may be the image's, or an engine's that other containers see as well.

use std::net::IpAddr;

use anyhow::Result;

use crate::container::mount_point::put;
use crate::container::mounts::HostsEntry;
use crate::container::nccl_conf::{ImageFile, image_file, laid_over};
use crate::kernel::mount::mntns::{Mntns, workshop};
use crate::kernel::mount::rootfs::Root;
use crate::oci::bundle::ContainerRoot;

/// Names the container whose mount namespace this is, and says what became of it; nothing where the
/// name has an address already. To be called when all else is mounted: what lies over a file below
/// an overlay is not seen.
pub(super) fn name(
    inside: &Mntns,
    container: &ContainerRoot,
    entry: &HostsEntry,
) -> Option<String> {
    match lay_over(inside, container, entry) {
        Ok(true) => Some(format!(
            "/etc/hosts names {} by {}",
            entry.name, entry.address
        )),
        Ok(false) => None,
        Err(e) => Some(format!("no line in /etc/hosts: {e:#}")),
    }
}

fn lay_over(inside: &Mntns, container: &ContainerRoot, entry: &HostsEntry) -> Result<bool> {
    let ImageFile { spot, bytes, owner } = inside.visit(|| {
        let root = Root::open(&container.rootfs)?;
        image_file(&root, &root.mounts()?, "etc/hosts")
    })?;
    let own = String::from_utf8_lossy(&bytes);
    if own.lines().any(|line| names(line, &entry.name)) {
        return Ok(false);
    }
    // The first line of a name counts, and an engine may have one with a loopback address.
    let mut text = format!("{}\t{}\n", entry.address, entry.name).into_bytes();
    text.extend(&bytes);
    // The container may go on writing to it, if it could before.
    let is_frozen = container.hosts_readonly || spot.options.iter().any(|o| o == "ro");
    let label = container.label.as_deref();
    let file = workshop(|| laid_over(&text, owner.into(), label, is_frozen))?;
    inside.visit(|| put(&spot, &file))?;
    Ok(true)
}

/// Whether a line of hosts(5) gives the name an address that others can reach.
fn names(line: &str, name: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split_ascii_whitespace();
    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
    let is_reached = address.is_some_and(|address| !address.to_canonical().is_loopback());
    is_reached && words.any(|word| word.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_with_an_address_that_peers_reach() {
        assert!(names("192.0.2.1 trainer.example Trainer # x", "trainer"));
        for line in [
            "127.0.1.1 trainer",
            "::1 trainer",
            "::ffff:127.0.0.1 trainer",
            "# 192.0.2.1 trainer",
            "192.0.2.1 trainer2",
            "trainer trainer",
        ] {
            assert!(!names(line, "trainer"), "{line}");
        }
    }
}
