//! The container's own name in its `/etc/hosts`, with the address that its peers reach, where its
//! engine left it without. A file of the container's alone lies over the one that is there: that
//! may be the image's, or an engine's that other containers see as well.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::container::mount_point::MountPoint;
use crate::container::mounts::HostsEntry;
use crate::container::nccl_conf::{ImageFile, image_file, laid_over};
use crate::kernel::mount::mountinfo::Mount;
use crate::kernel::mount::rootfs::Root;

const PATH: &str = "etc/hosts";

pub(super) struct HostsPlan {
    file: Option<ImageFile>,
    note: Option<String>,
}

/// Looks at the container's file; to be called in its mount namespace. Nothing is to be done where
/// the name has an address already.
pub(super) fn plan_hosts(root: &Root, mounts: &[Mount], entry: Option<&HostsEntry>) -> HostsPlan {
    let Some(entry) = entry else {
        return HostsPlan::without(None);
    };
    let mut file = match image_file(root, mounts, PATH) {
        Ok(file) => file,
        Err(e) => return HostsPlan::without(Some(refusal(&e))),
    };
    let text = String::from_utf8_lossy(&file.bytes);
    if text.lines().any(|line| names(line, &entry.name)) {
        return HostsPlan::without(None);
    }
    // The first line of a name counts, and an engine may have one with a loopback address.
    let line = format!("{}\t{}\n", entry.address, entry.name);
    file.bytes.splice(..0, line.into_bytes());
    HostsPlan {
        file: Some(file),
        note: Some(format!(
            "/etc/hosts names {} by {}",
            entry.name, entry.address
        )),
    }
}

/// Whether a line of hosts(5) gives the name an address that others can reach.
fn names(line: &str, name: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split_ascii_whitespace();
    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
    let is_reached = address.is_some_and(|address| !address.to_canonical().is_loopback());
    is_reached && words.any(|word| word.eq_ignore_ascii_case(name))
}

fn refusal(e: &anyhow::Error) -> String {
    format!("no line in /etc/hosts: {e:#}")
}

impl HostsPlan {
    fn without(note: Option<String>) -> HostsPlan {
        HostsPlan { file: None, note }
    }

    pub(super) fn spot(&self) -> Option<&MountPoint> {
        self.file.as_ref().map(|file| &file.spot)
    }

    /// Makes the file, which the container may go on writing to; to be called in the workshop.
    /// Returns what to say of it as well.
    pub(super) fn build(&self, label: Option<&str>) -> (Option<OwnedFd>, Option<String>) {
        let make = |file: &ImageFile| laid_over(&file.bytes, file.owner.into(), label, false);
        match self.file.as_ref().map(make).transpose() {
            Ok(mount) => (mount, self.note.clone()),
            Err(e) => (None, Some(refusal(&e))),
        }
    }
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
