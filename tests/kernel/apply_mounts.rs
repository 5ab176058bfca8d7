//! Mounts into a container on the real kernel: what it sees then, what it cannot do to it, and what
//! a hostile image gets.

use rdmaprep::oci::bundle::ContainerRoot;
use rdmaprep::view::Cover;
use std::time::Instant;

use crate::alone;
use crate::mounted_container::{Container, ROOTFS, image, outside, vars};
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::CharDevice;
use rdma_model::tree::{Node, Tree};
use rdmaprep::container::apply_mounts::apply_mounts;
use rdmaprep::container::mounts::ContainerMounts;
use testkit::{same, sh};

/// A farm as the view has it: links into the living sysfs around it.
fn farm() -> Tree {
    let mut tree = Tree::default();
    tree.put("lo", Node::Link("../../devices/virtual/net/lo".into()));
    tree.put(
        "sub/inner",
        Node::Link("../../../devices/virtual/net/lo/mtu".into()),
    );
    tree.put("sub/text", Node::File(b"said\n".as_slice().into()));
    tree
}

fn covers() -> ContainerMounts {
    let mut devices = Tree::default();
    devices.put("address", Node::File(b"ours\n".as_slice().into()));
    let at = |at: &str, tree: Tree| Cover {
        at: at.into(),
        tree,
    };
    let covers = vec![
        at("sys/class/net", farm()),
        at("sys/devices/virtual/mem", devices),
    ];
    ContainerMounts {
        covers,
        conf: Vec::new(),
        hosts: None,
    }
}

/// Mounts below what is going to be covered.
const BELOW: &str = "mount -t tmpfs none sys/devices/virtual/mem/full; echo kept \
    >sys/devices/virtual/mem/full/marker
    mkdir sys/devices/virtual/mem/full/deep; mount -t tmpfs none sys/devices/virtual/mem/full/deep
    echo deeper >sys/devices/virtual/mem/full/deep/marker
    mount --bind etc/passwd sys/devices/virtual/mem/null/uevent";

fn check_covers(container: &Container) {
    let before = outside();
    let marked = |mark: &str| {
        let number = |line: &str| line.split(' ').next().map(str::to_owned);
        let info = container.mountinfo();
        info.lines()
            .filter(|l| l.contains(mark))
            .filter_map(number)
            .collect::<Vec<String>>()
    };
    let below = marked("/virtual/mem/");
    container.set_up(&covers());
    same("the outside", &before, &outside());
    // The other stage of the create finds it done.
    let once = container.mountinfo();
    container.set_up(&covers());
    same("a second time", &once, &container.mountinfo());
    // They are the same mounts: what the runtime still does to those it holds is done to what is
    // seen.
    assert_eq!((below.len(), &below), (3, &marked("/virtual/mem/")));
    assert_eq!(
        container.sh("ls sys/class/net; readlink sys/class/net/lo"),
        "lo\nsub\n../../devices/virtual/net/lo\n"
    );
    let living = container.sh("cat sys/devices/virtual/net/lo/mtu");
    assert_eq!(
        container.sh("cat sys/class/net/lo/mtu sys/class/net/sub/inner"),
        format!("{living}{living}")
    );
    assert_eq!(
        container.sh("cat sys/class/net/sub/text sys/devices/virtual/mem/address"),
        "said\nours\n"
    );
    assert_eq!(
        container.sh("stat -c %a sys/class/net sys/class/net/sub sys/class/net/sub/text"),
        "755\n755\n444\n"
    );
    let mem = "sys/devices/virtual/mem";
    assert_eq!(
        container.sh(&format!("cat {mem}/full/marker {mem}/full/deep/marker")),
        "kept\ndeeper\n"
    );
    assert_eq!(container.sh(&format!("cat {mem}/null/uevent")), "root:x:\n");
    // Neither a new file nor another content, not even after a remount by a process that may do
    // that here.
    let undo = "mount -o remount,bind,rw sys/class/net || true; mount -o remount,rw sys/class/net \
        2>/dev/null || true;";
    for undo in ["", if container.apart { undo } else { "" }] {
        for write in [
            "echo x >sys/class/net/new",
            "echo x >>sys/class/net/sub/text",
            "rm sys/class/net/lo",
        ] {
            let said = container.said(&format!("{undo} {write}"));
            assert!(
                said.code != Some(0) && said.err.contains("Read-only file system"),
                "{write}: {said:?}"
            );
        }
    }
    let info = container.mountinfo();
    let ours: Vec<&str> = info.lines().filter(|l| l.contains("rdmaprep")).collect();
    assert_eq!(ours.len(), 2, "{ours:#?}");
    for line in ours {
        assert!(
            line.contains("nosuid,nodev,noexec") && line.contains("- tmpfs rdmaprep ro"),
            "{line}"
        );
        assert!(!line.contains("shared:"), "{line}");
    }
}

#[test]
fn covers_lie_over_the_living_sysfs() {
    alone(|_| {
        image();
        check_covers(&Container::new(BELOW));
    });
}

#[test]
fn covers_hold_in_a_user_namespace_of_its_own() {
    alone(|_| {
        image();
        check_covers(&Container::apart(BELOW));
    });
}

#[test]
fn forty_covers_take_little_time() {
    alone(|_| {
        image();
        let container = Container::new("");
        let dirs = sh(
            "cd /sys && find class bus module kernel -mindepth 1 -maxdepth 1 -type d | sort | \
            head -40",
        );
        let covers: Vec<Cover> = dirs
            .lines()
            .map(|dir| Cover {
                at: format!("sys/{dir}"),
                tree: farm(),
            })
            .collect();
        assert_eq!(covers.len(), 40);
        let start = Instant::now();
        container.set_up(&ContainerMounts {
            covers,
            conf: vars(&[("NCCL_DEBUG", "INFO")]),
            hosts: None,
        });
        println!("40 covers and an overlay: {:?}", start.elapsed());
        assert_eq!(
            container.mountinfo().matches("- tmpfs rdmaprep").count(),
            40
        );
    });
}

#[test]
fn a_mount_that_reaches_the_host_or_no_container_is_refused() {
    alone(|_| {
        image();
        let refused = |container: &Container, additions: &ContainerMounts, word: &str| {
            let before = outside();
            let error = apply_mounts(&container.root(), additions, &[]).unwrap_err();
            assert_eq!(ErrorClass::of(&error), ErrorClass::Refused, "{error:#}");
            assert!(format!("{error:#}").contains(word), "{error:#}");
            same("the outside", &before, &outside());
        };
        // The host's /sys with propagation, as privileged pods have it.
        sh("mount --make-rshared /");
        let shared = "umount sys; mount --rbind /sys sys; mount --make-rshared sys";
        refused(&Container::new(shared), &covers(), "shared");
        sh("mount --make-rprivate /");
        refused(
            &Container::new("umount sys"),
            &covers(),
            "finding the container's /sys/class/net",
        );
        refused(
            &Container::new("umount sys; mkdir -p sys/class/net"),
            &covers(),
            "is not on a sysfs",
        );
        let file = Cover {
            at: "sys/kernel/uevent_seqnum".into(),
            tree: farm(),
        };
        refused(
            &Container::new(""),
            &ContainerMounts {
                covers: vec![file],
                conf: Vec::new(),
                hosts: None,
            },
            "is no directory",
        );
        let nested = ["sys/class", "sys/class/net"].map(|at| Cover {
            at: at.into(),
            tree: farm(),
        });
        let nested = ContainerMounts {
            covers: nested.to_vec(),
            conf: Vec::new(),
            hosts: None,
        };
        refused(&Container::new(""), &nested, "another cover would hide");
        // No mount namespace of its own: all would be mounted on the host.
        let pid = i32::try_from(std::process::id()).unwrap();
        let error = apply_mounts(
            &ContainerRoot {
                pid,
                rootfs: ROOTFS.into(),
                ..ContainerRoot::default()
            },
            &covers(),
            &[],
        )
        .unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "the container has no mount namespace of its own"
        );
    });
}

#[test]
fn trees_are_written_nowhere_else() {
    alone(|_| {
        image();
        let container = Container::new("");
        for (link, below) in [("out", "out/x"), ("a/out", "a/out/x"), ("b", "../x")] {
            let mut tree = Tree::default();
            tree.put(link, Node::Link("/run/canary".into()));
            tree.put(below, Node::File(b"escaped".as_slice().into()));
            let before = outside();
            let covers = vec![Cover {
                at: "sys/class/net".into(),
                tree,
            }];
            let error = apply_mounts(
                &container.root(),
                &ContainerMounts {
                    covers,
                    conf: Vec::new(),
                    hosts: None,
                },
                &[],
            )
            .unwrap_err();
            assert!(
                format!("{error:#}").contains("is in no directory of its tree"),
                "{error:#}"
            );
            same("the outside", &before, &outside());
        }
    });
}

#[test]
fn devices_are_found_by_their_numbers() {
    alone(|_| {
        image();
        let container = Container::new(
            "cd dev/infiniband; touch other file; mkdir uverbs7; ln -s /dev/null uverbs5; mkfifo \
            rdma_cm
            mount --bind /dev/zero other",
        );
        let device = |name: &str, minor: u32| CharDevice {
            name: name.into(),
            major: 1,
            minor,
        };
        // 1:5 is /dev/zero, under whatever name; 1:3 is /dev/null, to which there is but a link.
        let devices = [
            device("uverbs0", 5),
            device("uverbs5", 3),
            device("uverbs7", 7),
        ];
        let applied =
            apply_mounts(&container.root(), &ContainerMounts::default(), &devices).unwrap();
        assert_eq!(applied.lacking, devices[1..]);
        let none = Container::new("rmdir dev/infiniband");
        assert_eq!(
            apply_mounts(&none.root(), &ContainerMounts::default(), &devices)
                .unwrap()
                .lacking,
            devices
        );
    });
}

#[test]
fn a_folder_of_very_many_names_does_no_harm() {
    alone(|_| {
        image();
        let container = Container::new("cd dev/infiniband; seq 1 100000 | xargs touch");
        let device = CharDevice {
            name: "uverbs0".into(),
            major: 1,
            minor: 5,
        };
        let start = Instant::now();
        let applied = apply_mounts(
            &container.root(),
            &ContainerMounts::default(),
            std::slice::from_ref(&device),
        )
        .unwrap();
        assert!(start.elapsed().as_millis() < 500, "{:?}", start.elapsed());
        assert_eq!(applied.lacking, [device]);
    });
}

#[test]
fn a_bound_sys_of_the_host_is_covered_in_the_container_alone() {
    alone(|_| {
        image();
        sh("mount -t tmpfs none /sys/devices/virtual/mem/null");
        let bound = "umount -l sys; mount --rbind /sys sys";
        for container in [Container::new(bound), Container::apart(bound)] {
            let before = outside();
            let mut additions = covers();
            let below = additions.covers.pop().unwrap();
            container.set_up(&additions);
            assert_eq!(container.sh("ls sys/class/net"), "lo\nsub\n");
            same("the outside", &before, &outside());
            assert!(!sh("ls /sys/class/net").contains("sub"));
            // A mount that came from a namespace with more privileges cannot be moved in one with
            // less.
            let additions = ContainerMounts {
                covers: vec![below],
                conf: Vec::new(),
                hosts: None,
            };
            let moved = apply_mounts(&container.root(), &additions, &[])
                .map_err(|e| (ErrorClass::of(&e), format!("{e:#}")));
            match moved {
                Ok(_) => assert!(!container.apart),
                Err((fault, why)) => {
                    assert!(container.apart && fault == ErrorClass::Kernel, "{why}");
                    assert!(
                        why.contains("moving the mount at /sys/devices/virtual/mem/null up"),
                        "{why}"
                    );
                }
            }
            same("the outside", &before, &outside());
        }
    });
}
