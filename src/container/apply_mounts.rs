//! Puts an outfit on a container whose namespaces exist and whose payload does not run yet.
//!
//! Three steps, each on a thread of its own: look inside the container's mount namespace; make what is to be put there in a
//! private namespace; put it there. Nothing is written into the image, and nothing is mounted on the host: what is made lives
//! in file systems of its own and ends with the container's mount namespace. If anything fails, the container is not to be
//! started; its namespace takes along what is already there.
//!
//! A container's root decides what is found, never where: see [`crate::kernel::mount::rootfs`].

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::CharDevice;
use rdma_model::tree::{Node, Tree};
use rustix::fs::FileType;

use crate::container::mounts::{Cover, Dressed, Outfit, Wearer};
use crate::container::nccl_conf::{self, Conf};
use crate::kernel::mount::fsmount::{self, attach};
use crate::kernel::mount::mntns::{Mntns, workshop};
use crate::kernel::mount::mountinfo::{self, Mount};
use crate::kernel::mount::rootfs::{self, Root};
use crate::kernel::process::pidfd::Process;

/// A place for a mount, and what is mounted below it now and shall still be seen afterwards.
#[derive(Debug)]
pub(super) struct Spot {
    /// How messages call it.
    pub name: String,
    /// The place itself.
    pub over: OwnedFd,
    /// The options of the mount that it is on.
    pub options: Vec<String>,
    kept: Vec<Kept>,
}

/// A mount below a place. It is moved, not copied: crun holds it and makes it read-only after the hooks.
#[derive(Debug)]
struct Kept {
    at: PathBuf,
    held: OwnedFd,
    is_dir: bool,
}

/// What was found in a container.
struct Look<'o> {
    spots: Vec<Spot>,
    /// What is for each of them.
    covers: Vec<&'o Cover>,
    conf: Conf,
    lacking: Vec<CharDevice>,
}

/// Gives a container what [`Outfit`] says, and tells which of `devices` it lacks. The caller holds the process's pidfd and
/// checks afterwards that it still lives.
pub fn dress(wearer: &Wearer, outfit: &Outfit, devices: &[CharDevice]) -> Result<Dressed> {
    let process = Process::open(wearer.pid).class(ErrorClass::State, "finding the container's init")?;
    let inside = Mntns::of(wearer.pid).class(ErrorClass::State, "finding the container's mount namespace")?;
    ensure!(process.alive(), ErrorClass::State.error("the container's init has ended"));
    let own = !inside.is(&Mntns::current()?);
    ensure!(own, ErrorClass::Refused.error("the container has no mount namespace of its own"));
    let Look { spots, covers, conf, lacking } = inside.visit(|| look(wearer, outfit, devices))?;
    let label = wearer.label.as_deref();
    let (mut made, given) = match spots.is_empty() && conf.spot().is_none() {
        true => (Vec::new(), conf.make(label)),
        false => workshop(|| Ok((sew(&spots, &covers, label)?, conf.make(label))))?,
    };
    let mut places: Vec<&Spot> = spots.iter().collect();
    if let (Some(spot), Some(mount)) = (conf.spot(), given.mount) {
        places.push(spot);
        made.push(mount);
    }
    if !made.is_empty() {
        inside.visit(|| places.iter().zip(&made).try_for_each(|(spot, mount)| put(spot, mount)))?;
    }
    Ok(Dressed { conf: given.given, kept: conf.kept, left: conf.left, lacking })
}

fn look<'o>(wearer: &Wearer, outfit: &'o Outfit, devices: &[CharDevice]) -> Result<Look<'o>> {
    let root = Root::open(&wearer.rootfs).class(ErrorClass::State, "finding the container's root")?;
    let mounts = root.mounts()?;
    let below = |cover: &Cover| outfit.covers.iter().any(|other| cover.at.starts_with(&format!("{}/", other.at)));
    let hidden = outfit.covers.iter().find(|cover| below(cover)).map(|cover| &cover.at);
    ensure!(hidden.is_none(), ErrorClass::Refused.error(format!("another cover would hide {hidden:?}")));
    // What has gone since the covers were made shows nothing any more, as long as the /sys around it is the kernel's.
    let sys = root.find("sys").is_ok_and(|sys| rootfs::is_sysfs(&sys));
    let there = |cover: &&Cover| !sys || !matches!(root.find(&cover.at), Err(e) if e.kind() == ErrorKind::NotFound);
    let covers: Vec<&Cover> = outfit.covers.iter().filter(there).collect();
    let spots: Result<Vec<Spot>> = covers.iter().map(|cover| place(&root, &mounts, &cover.at)).collect();
    let conf = nccl_conf::look(&root, &mounts, outfit, wearer);
    Ok(Look { spots: spots?, covers, conf, lacking: lacking(&root, devices) })
}

/// Finds the directory that a cover is for.
fn place(root: &Root, mounts: &[Mount], at: &str) -> Result<Spot> {
    let over = root.find(at).class(ErrorClass::Refused, format!("finding the container's /{at}"))?;
    if at == "sys" || at.starts_with("sys/") {
        ensure!(rootfs::is_sysfs(&over), ErrorClass::Refused.error(format!("the container's /{at} is not on a sysfs")));
    }
    ensure!(is_dir(&over)?, ErrorClass::Refused.error(format!("the container's /{at} is no directory")));
    spot(root, mounts, at, over).class(ErrorClass::Refused, format!("looking at the container's /{at}"))
}

/// A place for a mount, with what is mounted below it.
pub(super) fn spot(root: &Root, mounts: &[Mount], name: &str, over: OwnedFd) -> Result<Spot> {
    let id = rootfs::mount_of(&over).context("asking for its mount")?;
    let on = mounts.iter().find(|m| m.id == id).context("its mount is not in mountinfo")?;
    // Else it would show up wherever that mount is, too: on the host, if the container has the host's /sys.
    ensure!(
        !on.shared,
        "what is mounted there would be seen outside of the container: {} is shared",
        on.point.display()
    );
    let below = mountinfo::below(mounts, id, &root.path_of(over.as_fd())?);
    let keep = |at: PathBuf| -> Result<Kept> {
        let doing = || format!("finding the mount at {}", at.display());
        let held = rootfs::find_below(over.as_fd(), &at).with_context(doing)?;
        Ok(Kept { is_dir: is_dir(&held)?, at, held })
    };
    let kept = below.into_iter().map(keep).collect::<Result<Vec<Kept>>>()?;
    Ok(Spot { name: name.to_owned(), options: on.options.clone(), over, kept })
}

fn is_dir(found: &OwnedFd) -> Result<bool> {
    let stat = rootfs::stat_of(found).context("asking what it is")?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Those of the devices that no node below the container's /dev/infiniband is for.
fn lacking(root: &Root, devices: &[CharDevice]) -> Vec<CharDevice> {
    let nodes = root.find("dev/infiniband").and_then(rootfs::nodes).unwrap_or_default();
    devices.iter().filter(|d| !nodes.contains(&(d.major, d.minor))).cloned().collect()
}

/// Makes the covers, all in one file system.
fn sew(spots: &[Spot], covers: &[&Cover], label: Option<&str>) -> Result<Vec<OwnedFd>> {
    if covers.is_empty() {
        return Ok(Vec::new());
    }
    let doing = "making the covers";
    let cloth = fsmount::tmpfs(label, fsmount::PLAIN).class(ErrorClass::Kernel, doing)?;
    for (number, (spot, cover)) in spots.iter().zip(covers).enumerate() {
        let dir = fsmount::folder(&cloth, &number.to_string()).class(ErrorClass::Kernel, doing)?;
        let tree = with_room(cover.tree.clone(), &spot.kept)?;
        fsmount::plant(&dir, &tree).class(ErrorClass::Kernel, format!("making the cover of /{}", cover.at))?;
    }
    fsmount::freeze(&cloth).class(ErrorClass::Kernel, "making the covers read-only")?;
    let cut = |number: usize| fsmount::copy(&cloth, &number.to_string()).class(ErrorClass::Kernel, doing);
    (0..covers.len()).map(cut).collect()
}

/// The tree with a place for each mount that is to stay seen.
fn with_room(mut tree: Tree, kept: &[Kept]) -> Result<Tree> {
    for mount in kept {
        let path =
            mount.at.to_str().context("a mount's path is no text").class(ErrorClass::Refused, "reading mountinfo")?;
        match (tree.get(path), mount.is_dir) {
            (None, true) => tree.put(path, Node::Dir),
            (None, false) => tree.put(path, Node::File(Arc::default())),
            // Where the kinds differ, the kernel refuses to put the mount there.
            (Some(_), _) => {}
        }
    }
    Ok(tree)
}

fn put(spot: &Spot, mount: &OwnedFd) -> Result<()> {
    attach(mount, &spot.over).class(ErrorClass::Kernel, format!("covering the container's /{}", spot.name))?;
    for kept in &spot.kept {
        let doing = || format!("moving the mount at /{}/{} up", spot.name, kept.at.display());
        let over = rootfs::find_below(mount.as_fd(), &kept.at).class(ErrorClass::Kernel, doing())?;
        attach(&kept.held, &over).class(ErrorClass::Kernel, doing())?;
    }
    Ok(())
}
