//! Records that cannot be read: what is known of them is said.

use std::path::Path;

use anyhow::Error;
use rdma_model::ids::IfName;

use super::Store;
use crate::kernel::netns::pins;

impl Store {
    /// All that an administrator can know and do.
    pub fn unreadable(&self, path: &Path, e: &Error) -> String {
        let left = self.remains(path);
        let Some(netns) = self.netns_of(path) else {
            return format!(
                "{e:#}; {}; no record has such a name: examine the file",
                left.describe()
            );
        };
        let pin = pins::place(&self.pin(netns), netns);
        let place = if let Some(pin) = pin {
            let (pin, nic) = (
                pin.display(),
                left.nics.first().map_or("NIC", IfName::as_str),
            );
            format!(
                "their namespace is kept by {pin}: nsenter --net={pin} ip link set {nic} netns 1 \
                gives {nic} back"
            )
        } else {
            "their namespace is not pinned: the kernel has returned physical ones, under any name"
                .to_owned()
        };
        let unknown = "what they were like on the host is not known, so nothing is changed";
        let forget = format!(
            "rdmaprep restore {netns} --forget gives them up, and says what to take out first"
        );
        format!(
            "{e:#}; {}; {unknown}; {place}; then {forget}",
            left.describe()
        )
    }
}
