//! NCCL's settings in a container whose image is not written to, whatever the image holds in their
//! place.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::alone;
use crate::mounted_container::{CANARY, Container, ROOTFS, image, outside, vars};
use rdmaprep::container::apply_mounts::apply_mounts;
use rdmaprep::container::mounts::{AppliedMounts, ConfOutcome, ContainerMounts};
use testkit::{same, sh};

const OURS: &[(&str, &str)] = &[
    ("NCCL_IB_HCA", "=mlx5_0"),
    ("GLOO_SOCKET_IFNAME", "eth0"),
    ("NCCL_DEBUG", "INFO"),
];
const LINES: &str = "NCCL_IB_HCA==mlx5_0\nNCCL_DEBUG=INFO\n";

/// Makes the image with these shell lines, run in it, and starts a container with the others.
fn container(lines: &str, more: &str, start: fn(&str) -> Container) -> Container {
    sh(&format!("rm -rf {ROOTFS}"));
    image();
    sh(&format!("cd {ROOTFS}; {lines}"));
    start(more)
}

/// Gives the settings and insists that nothing else changed.
fn give(container: &Container) -> AppliedMounts {
    let before = outside();
    let start = Instant::now();
    let applied = container.give(OURS);
    assert!(start.elapsed() < Duration::from_secs(2), "it waited");
    same("the outside", &before, &outside());
    applied
}

/// In the host's user namespace, and in one of the container's own.
fn both(test: impl Fn(fn(&str) -> Container)) {
    test(Container::new);
    test(Container::apart);
}

#[test]
fn the_images_file_wins_and_is_merged() {
    alone(|_| {
        both(|start| {
            let lines = "printf 'NCCL_DEBUG=WARN' >etc/nccl.conf; chmod 640 etc/nccl.conf";
            let container = container(lines, "", start);
            let applied = give(&container);
            assert_eq!(
                (applied.conf, applied.kept),
                (ConfOutcome::Merged, vec!["NCCL_DEBUG=WARN".to_owned()])
            );
            assert_eq!(
                applied.left,
                ["GLOO_SOCKET_IFNAME: only NCCL reads its config file"]
            );
            assert_eq!(
                container.sh("cat etc/nccl.conf"),
                "NCCL_DEBUG=WARN\nNCCL_IB_HCA==mlx5_0\n"
            );
            // A user who cannot read the image's file cannot read ours.
            assert_eq!(container.sh("stat -c %a.%u etc/nccl.conf"), "640.0\n");
            assert!(
                container
                    .said("echo x >>etc/nccl.conf")
                    .err
                    .contains("Read-only file system")
            );
            let again = give(&container);
            assert_eq!(again.conf, ConfOutcome::Nothing);
        });
    });
}

#[test]
fn nothing_to_add_changes_nothing() {
    alone(|_| {
        let container = container(
            &format!("printf '{LINES}' >etc/nccl.conf"),
            "",
            Container::new,
        );
        let before = container.mountinfo();
        assert_eq!(give(&container).conf, ConfOutcome::Nothing);
        assert_eq!(container.give(&[]).conf, ConfOutcome::Nothing);
        assert_eq!(
            container.give(&[("GLOO_SOCKET_IFNAME", "eth0")]).conf,
            ConfOutcome::Nothing
        );
        same("the container's mounts", &before, &container.mountinfo());
    });
}

#[test]
fn links_end_inside() {
    alone(|_| {
        for link in [
            "../opt/nccl.conf",
            "/opt/nccl.conf",
            "../../../../opt/nccl.conf",
            "/etc/../../opt/nccl.conf",
        ] {
            let lines = format!("echo '#own' >opt/nccl.conf; ln -s {link} etc/nccl.conf");
            let container = container(&lines, "", Container::new);
            assert_eq!(give(&container).conf, ConfOutcome::Merged, "{link}");
            assert_eq!(container.sh("cat opt/nccl.conf"), format!("#own\n{LINES}"));
        }
        // A file of the same path as one of the host's is the image's own.
        let lines = format!(
            "mkdir -p .{CANARY}; echo '#image' >.{CANARY}/nccl.conf; ln -s {CANARY}/nccl.conf \
            etc/nccl.conf"
        );
        let container = container(&lines, "", Container::new);
        assert_eq!(give(&container).conf, ConfOutcome::Merged);
        assert_eq!(
            container.sh(&format!("cat .{CANARY}/nccl.conf")),
            format!("#image\n{LINES}")
        );
        assert_eq!(
            container.sh(&format!("cat {CANARY}/nccl.conf")),
            "NCCL_CANARY=1\n"
        );
    });
}

/// What Docker binds below /etc, and a folder.
const BINDS: &str =
    "echo ours >/run/hosts; mount --bind /run/hosts etc/hosts; mount -t tmpfs none etc/ssl
    echo marker >etc/ssl/marker";
const MOUNT_POINTS: &str =
    "touch etc/hosts; mkdir etc/ssl; chmod 4711 etc/passwd; mkdir -m 700 etc/own";

#[test]
fn without_a_file_an_overlay_has_it() {
    alone(|_| {
        sh("touch /run/hosts");
        both(|start| {
            let container = container(MOUNT_POINTS, BINDS, start);
            let before =
                container.sh("stat -c '%n %a %u %g' etc etc/passwd etc/hosts etc/ssl etc/own");
            assert_eq!(give(&container).conf, ConfOutcome::Overlay);
            assert_eq!(
                container.sh("cat etc/nccl.conf etc/hosts etc/ssl/marker"),
                format!("{LINES}ours\nmarker\n")
            );
            let after =
                container.sh("stat -c '%n %a %u %g' etc etc/passwd etc/hosts etc/ssl etc/own");
            assert_eq!(before, after);
            // It may write there as before, and the image does not notice.
            let image = outside();
            container.sh(
                "echo new >etc/new; echo x >>etc/passwd; rm -r etc/own; mkdir etc/own; \
                mv etc/own etc/other; rm etc/nccl.conf",
            );
            assert_eq!(
                container.sh("cat etc/new; tail -1 etc/passwd; ls -d etc/o*"),
                "new\nx\netc/other\n"
            );
            same("the outside", &image, &outside());
        });
    });
}

#[test]
fn a_read_only_root_gets_a_read_only_overlay() {
    alone(|_| {
        sh("touch /run/hosts");
        both(|start| {
            let container = container(MOUNT_POINTS, BINDS, start);
            let mut root = container.root();
            root.readonly = true;
            let before = outside();
            let applied = apply_mounts(
                &root,
                &ContainerMounts {
                    covers: Vec::new(),
                    conf: vars(OURS),
                    hosts: None,
                },
                &[],
            )
            .unwrap();
            assert_eq!(applied.conf, ConfOutcome::Overlay);
            assert_eq!(
                container.sh("cat etc/nccl.conf etc/hosts etc/ssl/marker"),
                format!("{LINES}ours\nmarker\n")
            );
            assert_eq!(container.sh("stat -c %a.%u etc"), "751.0\n");
            for write in [
                "echo x >etc/new",
                "mount -o remount,bind,rw etc; echo x >etc/new",
            ] {
                assert!(container.said(write).err.contains("Read-only file system"));
            }
            same("the outside", &before, &outside());
        });
    });
}

#[test]
fn a_hostile_image_gets_nothing_and_does_no_harm() {
    alone(|_| {
        let cases = [
            ("mkfifo etc/nccl.conf", "", "it is a fifo"),
            ("mkdir etc/nccl.conf", "", "it is a directory"),
            (
                "truncate -s 4G etc/nccl.conf",
                "",
                "it is larger than 65536 bytes",
            ),
            ("mknod etc/nccl.conf c 0 0", "", "it is a device"),
            (
                "touch etc/nccl.conf",
                "mount --bind /dev/zero etc/nccl.conf",
                "it is a device",
            ),
            (
                "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"etc/nccl.conf\")'",
                "",
                "it is a socket",
            ),
            (
                "ln -s /nowhere etc/nccl.conf",
                "",
                "a link that leads nowhere",
            ),
            (
                "ln -s /run/canary/secret etc/nccl.conf",
                "",
                "a link that leads nowhere",
            ),
            ("ln -s nccl.conf etc/nccl.conf", "", "symbolic link"),
            (
                "ln -s /proc/self/environ etc/nccl.conf",
                "",
                "the container's /etc/nccl.conf: it is",
            ),
            (
                "ln -s /proc/1/environ etc/nccl.conf",
                "",
                "it is a file of the kernel's",
            ),
            (
                "ln -s /proc/1/root/run/canary/secret etc/nccl.conf",
                "",
                "the container's /etc/nccl.conf: ",
            ),
            (
                "ln -s /sys/kernel/uevent_seqnum etc/nccl.conf",
                "",
                "it is a file of the kernel's",
            ),
            ("rm -r etc", "", "finding its directory"),
            ("rm -r etc; touch etc", "", "directory"),
            (
                "rm -r etc; ln -s ../../.. etc",
                "",
                "/etc is no directory of the image",
            ),
            (
                "rm -r etc; ln -s proc etc",
                "",
                "/etc is no directory of the image",
            ),
            (
                "true",
                "mount -t tmpfs none etc; mount --make-shared etc",
                "is shared",
            ),
            (
                "true",
                "mount -t tmpfs none etc; mount --make-unbindable etc",
                "copying the mount of /etc",
            ),
            (
                "true",
                "mount -t sysfs none etc",
                "/etc is no directory of the image",
            ),
        ];
        both(|start| {
            for (lines, more, why) in cases {
                let container = container(lines, more, start);
                let before = container.mountinfo();
                match give(&container).conf {
                    ConfOutcome::Refused(said) => assert!(said.contains(why), "{lines}: {said}"),
                    other => panic!("{lines}; {more}: {other:?}"),
                }
                same("the container's mounts", &before, &container.mountinfo());
            }
        });
    });
}

#[test]
fn an_etc_that_cannot_be_a_layer_is_refused() {
    alone(|_| {
        // The kernel stacks two overlays, not three.
        let stack = "mkdir /run/stack; mount -t tmpfs none /run/stack; cd /run/stack; mkdir a b c \
            d; touch a/hosts
            mount -t overlay -o lowerdir=a:b none c; mount -t overlay -o lowerdir=c:b none d; cd \
            - >/dev/null
            mount --bind /run/stack/d etc";
        let container = container("true", stack, Container::new);
        match give(&container).conf {
            ConfOutcome::Refused(why) => {
                assert!(why.contains("making an overlay over /etc"), "{why}")
            }
            other => panic!("{other:?}"),
        }
    });
}

/// Exchanges these two below the root for a second, over and over, while the settings are given
/// again and again.
fn while_exchanging(container: &Container, one: &str, other: &str) -> Vec<ConfOutcome> {
    let path = |name: &str| format!("{ROOTFS}/{name}");
    let look = || {
        sh(&format!(
            "cd {CANARY}; find . -printf '%p %m %T@ %C@\\n'; cat secret nccl.conf"
        ))
    };
    let before = look();
    let end = AtomicBool::new(false);
    let given: Vec<ConfOutcome> = std::thread::scope(|scope| {
        scope.spawn(|| {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            while !end.load(Ordering::Relaxed) {
                renameat_with(CWD, path(one), CWD, path(other), RenameFlags::EXCHANGE).unwrap();
            }
        });
        let start = Instant::now();
        let mut given = Vec::new();
        while start.elapsed() < Duration::from_secs(1) || given.len() < 20 {
            given.push(container.give(OURS).conf);
        }
        end.store(true, Ordering::Relaxed);
        given
    });
    same("the canary", &before, &look());
    let info = container.mountinfo();
    assert!(!info.contains(&format!(" {CANARY}")), "{info}");
    given
}

#[test]
fn nothing_leaves_while_a_directory_becomes_a_link_and_back() {
    alone(|_| {
        let out = format!("../../../..{CANARY}");
        let file = format!(
            "echo '#own' >opt/nccl.conf; mkdir opt/dir; echo '#own' >opt/dir/nccl.conf; ln -s \
            {out} opt/swap"
        );
        let cases = [
            (
                format!("{file}; rm -r etc; ln -s opt/dir etc"),
                "opt/dir",
                "opt/swap",
                ConfOutcome::Merged,
            ),
            (
                format!("{file}; rm -r etc; ln -s opt/dir etc"),
                "etc",
                "opt",
                ConfOutcome::Merged,
            ),
            (
                format!("ln -s {out} swap"),
                "etc",
                "swap",
                ConfOutcome::Overlay,
            ),
        ];
        for (lines, one, other, wanted) in cases {
            let container = container(&lines, "", Container::new);
            let given = while_exchanging(&container, one, other);
            let done = given.iter().filter(|g| **g == wanted).count();
            assert!(done >= 1, "{done} of {}", given.len());
        }
    });
}
