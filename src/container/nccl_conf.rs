//! NCCL's settings as `/etc/nccl.conf` of a container whose image is not written to. Where the
//! image has the file, a merged one is mounted over it. Where it has none, there is nothing to
//! mount over, and none may be created: an overlay over the container's /etc then has the file. Its
//! upper layer is a tmpfs, so what the container writes to its /etc ends with the container; a
//! container whose root is read-only gets an overlay without upper layer.

use crate::oci::bundle::ContainerRoot;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Error, Result, bail};
use nccl_rules::conf::merge;
use rustix::fs::{
    FileType, Mode, OFlags, XattrFlags, fchmod, fgetxattr, flistxattr, fsetxattr, openat,
};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::process::fchdir;

use crate::container::mount_point::{MountPoint, mount_point};
use crate::container::mounts::{ConfOutcome, ContainerMounts};
use crate::kernel::mount::fsmount::{
    self, Setting, attach, copy, create, file, folder, freeze, tmpfs,
};
use crate::kernel::mount::mountinfo::Mount;
use crate::kernel::mount::rootfs::{Root, is_talking, read, stat_of};

pub(super) const PATH: &str = "etc/nccl.conf";

/// The largest file of an image that is read; NCCL has some 400 variables.
const LIMIT: u64 = 64 << 10;

/// The size of a file system for one such file: its pages are the host's memory.
const ROOM: &str = "1m";

#[derive(Debug)]
pub(super) struct ConfPlan {
    placement: ConfPlacement,
    pub kept: Vec<String>,
    pub left: Vec<String>,
}

#[derive(Debug)]
enum ConfPlacement {
    Nothing,
    Refused(String),
    Over {
        spot: MountPoint,
        bytes: Vec<u8>,
        owner: Owner,
    },
    /// Over the image's /etc, of which `lower` is a copy.
    Overlay {
        spot: MountPoint,
        lower: OwnedFd,
        bytes: Vec<u8>,
        readonly: bool,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    uid: u32,
    gid: u32,
    mode: u32,
}

/// By user, group, mode.
impl From<(u32, u32, u32)> for Owner {
    fn from((uid, gid, mode): (u32, u32, u32)) -> Owner {
        Owner { uid, gid, mode }
    }
}

pub(super) struct BuiltConf {
    pub outcome: ConfOutcome,
    pub mount: Option<OwnedFd>,
}

/// Looks at the container's file; to be called in its mount namespace.
pub(super) fn plan_conf(
    root: &Root,
    mounts: &[Mount],
    additions: &ContainerMounts,
    container: &ContainerRoot,
) -> ConfPlan {
    let new = merge(b"", &additions.conf);
    let mut conf = ConfPlan {
        placement: ConfPlacement::Nothing,
        kept: Vec::new(),
        left: new.left,
    };
    if new.added.is_empty() {
        return conf;
    }
    let found = match root.find(PATH) {
        Ok(found) => over(root, mounts, found, additions, &mut conf.kept),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            overlay(root, mounts, new.bytes, container)
        }
        Err(e) => Err(e.to_string()),
    };
    conf.placement = found
        .unwrap_or_else(|why| ConfPlacement::Refused(format!("the container's /{PATH}: {why}")));
    conf
}

/// An overlay whose file is empty, where the image has none.
pub(super) fn plan_empty(
    root: &Root,
    mounts: &[Mount],
    container: &ContainerRoot,
) -> Result<Option<ConfPlan>> {
    match root.find(PATH) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let placement = overlay(root, mounts, Vec::new(), container).map_err(Error::msg)?;
            Ok(Some(ConfPlan {
                placement,
                kept: Vec::new(),
                left: Vec::new(),
            }))
        }
        found => found.map(|_| None).context("finding it"),
    }
}

pub(super) struct ImageFile {
    pub spot: MountPoint,
    pub bytes: Vec<u8>,
    /// User, group, mode.
    pub owner: (u32, u32, u32),
}

pub(super) fn image_file(root: &Root, mounts: &[Mount], path: &str) -> Result<ImageFile> {
    let found = root.find(path).context("finding it")?;
    let bytes = image_bytes(root, &found).map_err(Error::msg)?;
    let stat = stat_of(&found)?;
    let spot = mount_point(root, mounts, path, found)?;
    Ok(ImageFile {
        spot,
        bytes,
        owner: (stat.st_uid, stat.st_gid, stat.st_mode & 0o777),
    })
}

fn image_bytes(root: &Root, found: &OwnedFd) -> Result<Vec<u8>, String> {
    let file = root.open_file(found)?;
    let bytes = read(&file, LIMIT)?;
    // A file of ours is readable for whom the image's is, by owner and mode; lists are more than
    // these two can say.
    match fgetxattr(&file, "system.posix_acl_access", &mut [0_u8; 0]) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(bytes),
        _ => Err("it has an access control list".into()),
    }
}

fn over(
    root: &Root,
    mounts: &[Mount],
    found: OwnedFd,
    additions: &ContainerMounts,
    kept: &mut Vec<String>,
) -> Result<ConfPlacement, String> {
    let bytes = image_bytes(root, &found)?;
    let merged = merge(&bytes, &additions.conf);
    *kept = merged.kept;
    if merged.added.is_empty() {
        return Ok(ConfPlacement::Nothing);
    }
    let stat = stat_of(&found).map_err(|e| e.to_string())?;
    let owner = Owner {
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode & 0o777,
    };
    let spot = mount_point(root, mounts, PATH, found).map_err(|e| format!("{e:#}"))?;
    Ok(ConfPlacement::Over {
        spot,
        bytes: merged.bytes,
        owner,
    })
}

/// The image has no such file, or a link that leads nowhere.
fn overlay(
    root: &Root,
    mounts: &[Mount],
    bytes: Vec<u8>,
    container: &ContainerRoot,
) -> Result<ConfPlacement, String> {
    if root.find_itself(PATH).is_ok() {
        return Err("it is a link that leads nowhere".into());
    }
    // A link here could make us cover the root, /dev or /proc, which the runtime is not done with.
    let etc = root
        .find_itself("etc")
        .map_err(|e| format!("finding its directory: {e}"))?;
    let stat = stat_of(&etc).map_err(|e| e.to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory || is_talking(&etc) {
        return Err("there is none, and /etc is no directory of the image".into());
    }
    let lower = copy(&etc, "").map_err(|e| format!("copying the mount of /etc: {e}"))?;
    let spot = mount_point(root, mounts, "etc", etc).map_err(|e| format!("{e:#}"))?;
    let readonly = container.readonly || spot.options.iter().any(|o| o == "ro");
    Ok(ConfPlacement::Overlay {
        spot,
        lower,
        bytes,
        readonly,
    })
}

impl ConfPlan {
    pub fn spot(&self) -> Option<&MountPoint> {
        match &self.placement {
            ConfPlacement::Over { spot, .. } | ConfPlacement::Overlay { spot, .. } => Some(spot),
            ConfPlacement::Nothing | ConfPlacement::Refused(_) => None,
        }
    }

    /// Makes what is to be put there; to be called in the workshop. What cannot be made is refused.
    pub fn build(&self, label: Option<&str>) -> BuiltConf {
        let (done, made) = match &self.placement {
            ConfPlacement::Nothing => {
                return BuiltConf {
                    outcome: ConfOutcome::Nothing,
                    mount: None,
                };
            }
            ConfPlacement::Refused(why) => {
                return BuiltConf {
                    outcome: ConfOutcome::Refused(why.clone()),
                    mount: None,
                };
            }
            ConfPlacement::Over { bytes, owner, .. } => {
                (ConfOutcome::Merged, laid_over(bytes, *owner, label, true))
            }
            ConfPlacement::Overlay {
                spot,
                lower,
                bytes,
                readonly,
            } => (
                ConfOutcome::Overlay,
                layered(lower, bytes, *readonly, &spot.options, label),
            ),
        };
        match made {
            Ok(mount) => BuiltConf {
                outcome: done,
                mount: Some(mount),
            },
            Err(why) => BuiltConf {
                outcome: ConfOutcome::Refused(format!("{why:#}")),
                mount: None,
            },
        }
    }
}

/// A file in a file system of its own, to lie over one of the image. It may grow to [`ROOM`] unless
/// it is frozen.
pub(super) fn laid_over(
    bytes: &[u8],
    owner: Owner,
    label: Option<&str>,
    is_frozen: bool,
) -> Result<OwnedFd> {
    let cloth = tmpfs(label, fsmount::PLAIN, Some(ROOM))?;
    owner.apply(&file(&cloth, "file", bytes)?)?;
    if is_frozen {
        freeze(&cloth).context("making the file read-only")?;
    }
    copy(&cloth, "file").context("taking the file")
}

/// An overlay over a copy of /etc that has the file.
fn layered(
    lower: &OwnedFd,
    bytes: &[u8],
    readonly: bool,
    options: &[String],
    label: Option<&str>,
) -> Result<OwnedFd> {
    let cloth = tmpfs(label, MountAttrFlags::empty(), None)?;
    let upper = folder(&cloth, "upper")?;
    file(&upper, "nccl.conf", bytes)?;
    let work = folder(&cloth, "work")?;
    attach(lower, folder(&cloth, "lower")?).context("laying out /etc")?;
    like(&upper, lower, label.is_some())?;
    // Names without a path keep the layers' real places out of the container's mountinfo.
    fchdir(&cloth).context("entering the tmpfs")?;
    let mut settings: Vec<Setting<'_>> = vec![("source", Some("rdmaprep"))];
    // The overlay's own notes (what was removed, …) are trusted.* attributes, which only the host's
    // root may write.
    if fsetxattr(&work, "trusted.overlay.probe", b"", XattrFlags::empty()) == Err(Errno::PERM) {
        settings.push(("userxattr", None));
    }
    match readonly {
        true => settings.push(("lowerdir", Some("upper:lower"))),
        false => settings.extend([
            ("lowerdir", Some("lower")),
            ("upperdir", Some("upper")),
            ("workdir", Some("work")),
        ]),
    }
    settings.extend(label.map(|label| ("context", Some(label))));
    create("overlay", &settings, attributes(options, readonly))
        .context("making an overlay over /etc")
}

/// Gives the overlay's own directory what /etc has: owner, mode, extended attributes.
fn like(upper: &OwnedFd, lower: &OwnedFd, labelled: bool) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let etc = openat(lower, ".", flags, Mode::empty()).context("opening /etc")?;
    let stat = stat_of(&etc).context("reading /etc")?;
    let (mut names, mut value) = (vec![0; XATTR_MAX], vec![0; XATTR_MAX]);
    let length = match flistxattr(&etc, names.as_mut_slice()) {
        Err(Errno::OPNOTSUPP) => 0,
        other => other.context("listing the attributes of /etc")?,
    };
    for name in names
        .get(..length)
        .unwrap_or_default()
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
    {
        let text = String::from_utf8_lossy(name);
        // Those of an overlay below mean that one, EVM's its own file; a label is given to the
        // whole file system.
        if text.contains(".overlay.")
            || text == "security.evm"
            || (labelled && text == "security.selinux")
        {
            continue;
        }
        let doing = || format!("copying {text} of /etc");
        let length = fgetxattr(&etc, name, value.as_mut_slice()).with_context(doing)?;
        match fsetxattr(
            upper,
            name,
            value.get(..length).unwrap_or_default(),
            XattrFlags::empty(),
        ) {
            // user.* came to tmpfs in Linux 6.6; nothing of the system's depends on those.
            Err(Errno::OPNOTSUPP) if text.starts_with("user.") => {}
            other => other.with_context(doing)?,
        }
    }
    Owner {
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: stat.st_mode & 0o7777,
    }
    .apply(upper)
}

const XATTR_MAX: usize = 64 << 10;

impl Owner {
    fn apply(self, to: &OwnedFd) -> Result<()> {
        if self.uid == OVERFLOW || self.gid == OVERFLOW {
            bail!("its owner does not exist in this user namespace");
        }
        // What is another one's can be changed by CAP_FOWNER alone, which hooks give up.
        fchmod(to, Mode::from_raw_mode(self.mode)).context("giving it its mode")?;
        std::os::unix::fs::fchown(to.as_fd(), Some(self.uid), Some(self.gid))
            .context("giving it its owner")
    }
}

/// Who owns what has no owner here (/proc/sys/kernel/overflowuid).
const OVERFLOW: u32 = 65534;

/// What the mount that is covered allows, the one on it allows.
fn attributes(options: &[String], readonly: bool) -> MountAttrFlags {
    let known = [
        ("nosuid", MountAttrFlags::MOUNT_ATTR_NOSUID),
        ("nodev", MountAttrFlags::MOUNT_ATTR_NODEV),
        ("noexec", MountAttrFlags::MOUNT_ATTR_NOEXEC),
        ("noatime", MountAttrFlags::MOUNT_ATTR_NOATIME),
        ("nodiratime", MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        ("nosymfollow", MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ];
    let given = known
        .into_iter()
        .filter(|(name, _)| options.iter().any(|o| o == name))
        .map(|(_, flag)| flag);
    given.fold(
        if readonly {
            MountAttrFlags::MOUNT_ATTR_RDONLY
        } else {
            MountAttrFlags::empty()
        },
        |all, one| all | one,
    )
}
