//! Records that cannot be read: an intact copy of the same move counts, else what is known is said.

use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Error, Result};
use rdma_model::ids::IfName;

use super::Store;
use crate::journal::{Record, SCHEMA, salvage};
use crate::kernel::boot_id;
use crate::kernel::host::files;
use crate::kernel::netns::pins;

impl Store {
    pub(super) fn parsed(&self, path: &Path, read: Result<String>) -> Result<Record> {
        // What is no text is damaged as well; what is no plain file is not.
        let is_garbled = |e: &Error| {
            e.downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == ErrorKind::InvalidData)
        };
        let (text, e) = match read {
            Ok(text) => match Record::parse(&text) {
                Ok(record) => return Ok(record),
                Err(e) => (text, e),
            },
            Err(e) if is_garbled(&e) => (String::new(), e),
            Err(e) => return Err(e),
        };
        self.intact_copy(path, &text).ok_or(e)
    }

    /// The copy of a damaged live record with that text, if it is about the same move: a namespace
    /// of an earlier boot may have had this one's number. What a later version wrote is not
    /// damaged.
    fn intact_copy(&self, path: &Path, text: &str) -> Option<Record> {
        let copy = self.records().join(path.file_name()?);
        let record = Record::parse(&files::read(&copy).ok()??).ok()?;
        let left = salvage(text);
        let is_ours = left.schema.is_none_or(|schema| schema == SCHEMA);
        let is_same = left
            .nics
            .iter()
            .all(|nic| record.names().any(|name| name == nic));
        let is_of_this_boot = boot_id().is_ok_and(|id| id == record.boot_id);
        (copy != path && is_ours && is_same && is_of_this_boot).then_some(record)
    }

    /// All that an administrator can know and do.
    pub fn unreadable(&self, path: &Path, e: &Error) -> String {
        let left = self.remains(path);
        let Some(netns) = self.netns_of(path) else {
            return format!(
                "{e:#}; {}; no record has such a name: examine the file",
                left.describe()
            );
        };
        let pin = self.pin(netns);
        let place = if pins::is_pinned(&pin, netns) {
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
