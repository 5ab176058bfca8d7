//! A directory of a /sys: its names, and what is in its files and links.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use rdma_model::ids::BusId;

use super::root::{ATTRIBUTE, Contents, Entry, Kind, Listing, Root};

#[derive(Clone)]
pub(super) struct Dir<'r> {
    root: &'r Root,
    path: String,
    listing: Option<Listing>,
}

impl Root {
    pub(super) fn dir(&self, path: &str) -> Option<Dir<'_>> {
        match self.known(path) {
            Some(listing) => Some(Dir {
                root: self,
                path: path.to_owned(),
                listing: Some(listing),
            }),
            None => self.find("", path),
        }
    }

    pub(super) fn find(&self, from: &str, path: &str) -> Option<Dir<'_>> {
        self.walk(from, path).map(|(path, listing)| Dir {
            root: self,
            path,
            listing,
        })
    }
}

impl<'r> Dir<'r> {
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// A directory in it, through links; none where they dangle, turn in a circle, or lead out of
    /// the root.
    pub(super) fn sub(&self, name: &str) -> Option<Dir<'r>> {
        self.root.find(&self.path, name)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.listing
            .as_ref()
            .map(|l| l.iter().map(|(name, _)| name.to_owned()).collect())
            .unwrap_or_default()
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.listing.as_ref()?.get(name)
    }

    pub(super) fn kind(&self, name: &str) -> Option<Kind> {
        self.entry(name).map(Entry::kind)
    }

    /// Whether the name is a plain file, such as `class/net/bonding_masters`.
    pub(super) fn is_file(&self, name: &str) -> bool {
        self.kind(name) == Some(Kind::File)
    }

    pub(super) fn is_dir(&self, name: &str) -> bool {
        self.kind(name) == Some(Kind::Dir)
    }

    /// What is in a file; a copy's pipes and devices are not there.
    pub(super) fn contents(&self, name: &str) -> Contents {
        match self.entry(name) {
            Some(Entry::File(known)) => known
                .get_or_init(|| self.root.contents(&self.path, name))
                .clone(),
            _ => Contents::Unreadable,
        }
    }

    /// An attribute without the white space around it; none where it is absent, unreadable, or
    /// empty.
    pub(super) fn attr(&self, name: &str) -> Option<String> {
        let Contents::Bytes(value) = self.contents(name) else {
            return None;
        };
        let value = String::from_utf8_lossy(value.get(..ATTRIBUTE).unwrap_or(&value));
        let value = value.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!value.is_empty()).then(|| value.to_owned())
    }

    pub(super) fn parse<T: FromStr>(&self, name: &str) -> Option<T> {
        self.attr(name)?.parse().ok()
    }

    pub(super) fn hex(&self, name: &str) -> Option<u32> {
        u32::from_str_radix(self.attr(name)?.strip_prefix("0x")?, 16).ok()
    }

    /// A link's target as it is written, which need not exist.
    pub(super) fn target(&self, name: &str) -> Option<Arc<str>> {
        let Entry::Link(known) = self.entry(name)? else {
            return None;
        };
        self.root.target(&self.path, name, known)
    }

    pub(super) fn link(&self, name: &str) -> Option<String> {
        let target = self.target(name)?;
        Some(Path::new(&*target).file_name()?.to_str()?.to_owned())
    }

    /// The nearest PCI function at or above it: its parent may be an auxiliary device or a virtio
    /// child of that.
    pub(super) fn pci(&self) -> Option<(BusId, Dir<'r>)> {
        let mut path = self.path.as_str();
        loop {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            // Making an error that is dropped takes time.
            if let Some(id) = name.contains(':').then(|| name.parse().ok()).flatten() {
                return self.root.dir(path).map(|dir| (id, dir));
            }
            if above.is_empty() {
                return None;
            }
            path = above;
        }
    }

    pub(super) fn above(&self) -> Option<Dir<'r>> {
        let path = self.path.rsplit_once('/').map_or("", |(above, _)| above);
        if self.path.is_empty() {
            None
        } else {
            self.root.dir(path)
        }
    }
}
