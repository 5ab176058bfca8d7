//! Mounts into a container whose namespaces exist and whose payload does not run yet, in three
//! steps, each on a thread of its own: look inside the container's mount namespace; make in a
//! private namespace what is to be put there; put it there. Nothing is written into the image, and
//! nothing is mounted on the host: what is made lives in file systems of its own and ends with the
//! container's mount namespace. If anything fails, the container is not to be started; its
//! namespace takes along what is already there. The hosts file follows in three such steps, and a
//! container starts without it. A container's root decides what is found, never where: see
//! [`crate::kernel::mount::rootfs`].

use crate::oci::bundle::ContainerRoot;
use crate::view::Cover;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::snapshot::CharDevice;
use rdma_model::tree::{Node, Tree};

use crate::container::hosts;
use crate::container::mount_point::{KeptMount, MountPoint, mount_point, put};
use crate::container::mounts::{AppliedMounts, ContainerMounts};
use crate::container::nccl_conf::{self, ConfPlan};
use crate::kernel::mount::fsmount;
use crate::kernel::mount::mntns::{Mntns, workshop};
use crate::kernel::mount::mountinfo::Mount;
use crate::kernel::mount::rootfs::{self, Root};
use crate::kernel::process::pidfd::Process;

struct Inspected<'o> {
    spots: Vec<MountPoint>,
    covers: Vec<&'o Cover>,
    conf: ConfPlan,
    lacking: Vec<CharDevice>,
}

/// Gives a container what [`ContainerMounts`] says, and tells which of `devices` it lacks. The
/// caller holds the process's pidfd and checks afterwards that it still lives.
pub fn apply_mounts(
    container: &ContainerRoot,
    additions: &ContainerMounts,
    devices: &[CharDevice],
) -> Result<AppliedMounts> {
    let process =
        Process::open(container.pid).class(ErrorClass::State, "finding the container's init")?;
    let inside = Mntns::of_process(container.pid)
        .class(ErrorClass::State, "finding the container's mount namespace")?;
    ensure!(
        process.alive(),
        ErrorClass::State.error("the container's init has ended")
    );
    let own = !inside.is_same(&Mntns::current()?);
    ensure!(
        own,
        ErrorClass::Refused.error("the container has no mount namespace of its own")
    );
    let Inspected {
        spots,
        covers,
        conf,
        lacking,
    } = inside.visit(|| inspect(container, additions, devices))?;
    let label = container.label.as_deref();
    let is_idle = spots.is_empty() && conf.spot().is_none();
    let build = || Ok((sew(&spots, &covers, label)?, conf.build(label)));
    let (mut made, given) = match is_idle {
        true => build()?,
        false => workshop(build)?,
    };
    let mut places: Vec<&MountPoint> = spots.iter().collect();
    if let (Some(spot), Some(mount)) = (conf.spot(), given.mount) {
        places.push(spot);
        made.push(mount);
    }
    if !made.is_empty() {
        inside.visit(|| {
            places
                .iter()
                .zip(&made)
                .try_for_each(|(spot, mount)| put(spot, mount))
        })?;
    }
    let entry = additions.hosts.as_ref();
    Ok(AppliedMounts {
        conf: given.outcome,
        kept: conf.kept,
        left: conf.left,
        lacking,
        hosts: entry.and_then(|entry| hosts::name(&inside, container, entry)),
    })
}

fn inspect<'o>(
    container: &ContainerRoot,
    additions: &'o ContainerMounts,
    devices: &[CharDevice],
) -> Result<Inspected<'o>> {
    let root =
        Root::open(&container.rootfs).class(ErrorClass::State, "finding the container's root")?;
    let mounts = root.mounts()?;
    for other in &additions.covers {
        let below = format!("{}/", other.at);
        let mut covers = additions.covers.iter();
        let hidden = covers
            .find(|cover| cover.at.starts_with(&below))
            .map(|cover| &cover.at);
        ensure!(
            hidden.is_none(),
            ErrorClass::Refused.error(format!("another cover would hide {hidden:?}"))
        );
    }
    // What has gone since the covers were made shows nothing any more, as long as the /sys around
    // it is the kernel's.
    let sys = root.find("sys").is_ok_and(|sys| rootfs::is_sysfs(&sys));
    let mut covers: Vec<&Cover> = additions.covers.iter().collect();
    covers.retain(|cover| {
        let has_gone =
            sys && matches!(root.find(&cover.at), Err(e) if e.kind() == ErrorKind::NotFound);
        !has_gone && !is_covered(&root, &mounts, &cover.at)
    });
    let spots: Result<Vec<MountPoint>> = covers
        .iter()
        .map(|cover| place(&root, &mounts, &cover.at))
        .collect();
    let conf = nccl_conf::plan_conf(&root, &mounts, additions, container);
    Ok(Inspected {
        spots: spots?,
        covers,
        conf,
        lacking: lacking(&root, devices),
    })
}

/// Whether the other stage of the create has covered it: on the host's network, there is no record
/// that tells it.
fn is_covered(root: &Root, mounts: &[Mount], at: &str) -> bool {
    let on = root.find(at).and_then(rootfs::mount_of);
    on.is_ok_and(|id| mounts.iter().any(|m| m.id == id && m.ours))
}

fn place(root: &Root, mounts: &[Mount], at: &str) -> Result<MountPoint> {
    let over = root.find(at).class(
        ErrorClass::Refused,
        format!("finding the container's /{at}"),
    )?;
    if at == "sys" || at.starts_with("sys/") {
        ensure!(
            rootfs::is_sysfs(&over),
            ErrorClass::Refused.error(format!("the container's /{at} is not on a sysfs"))
        );
    }
    ensure!(
        rootfs::is_dir(&over)?,
        ErrorClass::Refused.error(format!("the container's /{at} is no directory"))
    );
    mount_point(root, mounts, at, over).class(
        ErrorClass::Refused,
        format!("looking at the container's /{at}"),
    )
}

/// Those of the devices that no node below the container's /dev/infiniband is for.
fn lacking(root: &Root, devices: &[CharDevice]) -> Vec<CharDevice> {
    let nodes = root
        .find("dev/infiniband")
        .and_then(rootfs::nodes)
        .unwrap_or_default();
    devices
        .iter()
        .filter(|d| !nodes.contains(&(d.major, d.minor)))
        .cloned()
        .collect()
}

/// Makes the covers, all in one file system.
fn sew(spots: &[MountPoint], covers: &[&Cover], label: Option<&str>) -> Result<Vec<OwnedFd>> {
    if covers.is_empty() {
        return Ok(Vec::new());
    }
    let doing = "making the covers";
    let cloth = fsmount::tmpfs(label, fsmount::PLAIN, None).class(ErrorClass::Kernel, doing)?;
    for (number, (spot, cover)) in spots.iter().zip(covers).enumerate() {
        let dir = fsmount::folder(&cloth, &number.to_string()).class(ErrorClass::Kernel, doing)?;
        let tree = with_room(cover.tree.clone(), &spot.kept)?;
        fsmount::plant(&dir, &tree).class(
            ErrorClass::Kernel,
            format!("making the cover of /{}", cover.at),
        )?;
    }
    fsmount::freeze(&cloth).class(ErrorClass::Kernel, "making the covers read-only")?;
    let cut = (0..covers.len()).map(|number| fsmount::copy(&cloth, &number.to_string()));
    cut.map(|made| made.class(ErrorClass::Kernel, doing))
        .collect()
}

fn with_room(mut tree: Tree, kept: &[KeptMount]) -> Result<Tree> {
    for mount in kept {
        let path = mount
            .at
            .to_str()
            .context("a mount's path is no text")
            .class(ErrorClass::Refused, "reading mountinfo")?;
        match (tree.get(path), mount.is_dir) {
            (None, true) => tree.put(path, Node::Dir),
            (None, false) => tree.put(path, Node::File(Arc::default())),
            // Where the kinds differ, the kernel refuses to put the mount there.
            (Some(_), _) => {}
        }
    }
    Ok(tree)
}
