//! What a file keeps when its content is replaced: owner, all mode bits, extended attributes.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{
    XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, lgetxattr, llistxattr,
};
use rustix::io::Errno;

use super::doing;

/// The kernel's limit for a list of names and for a value (XATTR_LIST_MAX, XATTR_SIZE_MAX in
/// linux/limits.h).
const MOST: usize = 64 << 10;
/// Bits that a change of the owner takes away (should_remove_suid() and setattr_should_drop_sgid()
/// in fs/attr.c).
const SET_ID: u32 = 0o6000;
const ACL: &[u8] = b"system.posix_acl_access";
/// Of the content, not of the file: sums of it, and rights that a program had; and an overlay's
/// notes on its own files.
const OF_CONTENT: [&str; 4] = [
    "security.evm",
    "security.ima",
    "security.capability",
    ".overlay.",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub mode: u32,
    owner: (u32, u32),
    extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// A link is an error, as is a path without a file.
    pub fn read(path: &Path) -> Result<Attributes> {
        let doing = doing("looking at", path);
        let meta = fs::symlink_metadata(path).with_context(doing)?;
        ensure!(meta.is_file(), "{} is no plain file", path.display());
        let names = listed(|buffer| llistxattr(path, buffer)).with_context(doing)?;
        let mut extended = Vec::new();
        for name in names.into_iter().filter(|name| !is_of_content(name)) {
            let value = valued(|buffer| lgetxattr(path, name.as_slice(), buffer));
            extended.extend(value.with_context(doing)?.map(|value| (name, value)));
        }
        Ok(Attributes {
            mode: meta.mode() & 0o7777,
            owner: (meta.uid(), meta.gid()),
            extended,
        })
    }

    /// Gives them to a new file: its folder may have given it others. Where the kernel refuses one,
    /// the file must not take the other's place.
    pub fn apply(&self, to: &File) -> Result<()> {
        // Before the owner, after which that takes CAP_FOWNER, which hooks give up.
        to.set_permissions(Permissions::from_mode(self.mode & !SET_ID))
            .context("giving it its mode")?;
        let has_acl = self.extended.iter().any(|(name, _)| name == ACL);
        if !has_acl
            && listed(|buffer| flistxattr(to, buffer))?
                .iter()
                .any(|name| name == ACL)
        {
            fremovexattr(to, ACL).context("removing what the folder gave it")?;
            to.set_permissions(Permissions::from_mode(self.mode & !SET_ID))
                .context("giving it its mode")?;
        }
        for (name, value) in &self.extended {
            let there = valued(|buffer| fgetxattr(to, name.as_slice(), buffer)).unwrap_or_default();
            if there.as_ref() != Some(value) {
                let doing = || format!("giving it {}", String::from_utf8_lossy(name));
                fsetxattr(to, name.as_slice(), value, XattrFlags::empty()).with_context(doing)?;
            }
        }
        // Before it has its name: a name in another user's folder may lead elsewhere a moment
        // later.
        std::os::unix::fs::fchown(to, Some(self.owner.0), Some(self.owner.1))
            .context("giving it its owner")?;
        if self.mode & SET_ID != 0 {
            to.set_permissions(Permissions::from_mode(self.mode))
                .context("giving it its mode")?;
        }
        Ok(())
    }
}

fn is_of_content(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name);
    OF_CONTENT.iter().any(|of| name.contains(of))
}

fn listed(
    list: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut buffer = vec![0; MOST];
    let length = match list(&mut buffer) {
        Err(Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    let names = buffer
        .get(..length)
        .unwrap_or_default()
        .split(|byte| *byte == 0);
    Ok(names
        .filter(|name| !name.is_empty())
        .map(<[u8]>::to_vec)
        .collect())
}

fn valued(
    get: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0; MOST];
    match get(&mut buffer) {
        Err(Errno::NODATA) => Ok(None),
        got => {
            buffer.truncate(got?);
            Ok(Some(buffer))
        }
    }
}
