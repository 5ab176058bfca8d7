//! The line of a container's own name in its /etc/hosts, whatever is in that file's place.

use crate::alone;
use crate::mounted_container::{CANARY, Container, ROOTFS, image, outside, vars};
use rdmaprep::container::apply_mounts::apply_mounts;
use rdmaprep::container::mounts::{AppliedMounts, ConfOutcome, ContainerMounts, HostsEntry};
use rdmaprep::oci::bundle::ContainerRoot;
use testkit::{same, sh};

const LINE: &str = "198.51.100.10\ttrainer\n";

/// A container whose image has what these shell lines make, run in its root.
fn container(lines: &str, more: &str) -> Container {
    container_by(Container::new, lines, more)
}

fn container_by(start: fn(&str) -> Container, lines: &str, more: &str) -> Container {
    sh(&format!("rm -rf {ROOTFS}"));
    image();
    sh(&format!("cd {ROOTFS}; {lines}"));
    start(more)
}

/// Gives it the line, and insists that nothing outside of it changed.
fn name(container: &Container) -> Option<String> {
    give(&container.root(), &[]).hosts
}

/// Gives it these settings as well.
fn give(root: &ContainerRoot, settings: &[(&str, &str)]) -> AppliedMounts {
    let before = outside();
    let additions = ContainerMounts {
        conf: vars(settings),
        hosts: HostsEntry::new("198.51.100.10".parse().unwrap(), "trainer"),
        ..ContainerMounts::default()
    };
    let applied = apply_mounts(root, &additions, &[]).unwrap_or_else(|e| panic!("{e:#}"));
    same("the outside", &before, &outside());
    applied
}

const NAMED: &str = "/etc/hosts names trainer by 198.51.100.10";

#[test]
fn name_comes_before_what_the_engine_wrote() {
    alone(|_| {
        for own in ["127.0.0.1 localhost", "127.0.1.1 trainer"] {
            let container = container(&format!("echo '{own}' >etc/hosts"), "");
            assert_eq!(name(&container).as_deref(), Some(NAMED));
            assert_eq!(container.sh("cat etc/hosts"), format!("{LINE}{own}\n"));
            container.sh("echo 192.0.2.1 other >>etc/hosts");
            same(
                "the image",
                &format!("{own}\n"),
                &sh(&format!("cat {ROOTFS}/etc/hosts")),
            );
        }
    });
}

#[test]
fn name_with_an_address_stays_as_it_is() {
    alone(|_| {
        let container = container("echo '192.0.2.7 trainer' >etc/hosts", "");
        let before = container.mountinfo();
        assert_eq!(name(&container), None);
        same("its mounts", &before, &container.mountinfo());
    });
}

/// Engines mount a file of their own there, one for all containers of a pod.
#[test]
fn file_that_others_see_is_not_written_to() {
    alone(|_| {
        let shared = format!("{CANARY}/hosts");
        let mount = format!("mount --bind {shared} etc/hosts");
        let lines = format!("touch etc/hosts; echo '127.0.0.1 localhost' >{shared}");
        let container = container(&lines, &mount);
        assert_eq!(name(&container).as_deref(), Some(NAMED));
        assert!(container.sh("cat etc/hosts").starts_with(LINE));
        container.sh("echo 192.0.2.1 other >>etc/hosts");
        assert_eq!(sh(&format!("cat {shared}")), "127.0.0.1 localhost\n");
    });
}

/// An overlay over /etc brings the settings: what lies over a file below it is not seen.
#[test]
fn name_is_seen_beside_the_settings() {
    const OWN: &str = "127.0.0.1 localhost";
    const OVERLAY: ConfOutcome = ConfOutcome::Overlay;
    alone(|_| {
        let file = format!("echo '{OWN}' >etc/hosts");
        let inner = format!("echo '{OWN}' >etc/own; ln -s own etc/hosts");
        let outer = format!("echo '{OWN}' >opt/hosts; ln -s ../opt/hosts etc/hosts");
        let merged = format!("{file}; touch etc/nccl.conf");
        let bound = format!("echo '{OWN}' >opt/hosts; touch etc/hosts");
        for start in [Container::new as fn(&str) -> Container, Container::apart] {
            for (lines, more, conf) in [
                (&file, "", OVERLAY),
                (&inner, "", OVERLAY),
                (&outer, "", OVERLAY),
                (&bound, "mount --bind opt/hosts etc/hosts", OVERLAY),
                (&merged, "", ConfOutcome::Merged),
            ] {
                let container = container_by(start, lines, more);
                let applied = give(&container.root(), &[("NCCL_DEBUG", "INFO")]);
                assert_eq!(applied.conf, conf, "{lines}");
                assert_eq!(applied.hosts.as_deref(), Some(NAMED), "{lines}");
                let seen = container.sh("cat etc/nccl.conf");
                assert_eq!(seen, "NCCL_DEBUG=INFO\n", "{lines}");
                let wanted = format!("{LINE}{OWN}\n");
                assert_eq!(container.sh("cat etc/hosts"), wanted, "{lines}");
                container.sh("echo 192.0.2.1 other >>etc/hosts");
            }
        }
    });
}

/// The container's own root could undo what only a mount says.
fn is_frozen(container: &Container) {
    assert!(container.sh("cat etc/hosts").starts_with(LINE));
    for remount in ["true", "mount -o remount,bind,rw etc/hosts"] {
        let said = container.said(&format!("{remount}; echo x >>etc/hosts"));
        assert!(said.err.contains("Read-only file system"), "{}", said.err);
    }
}

#[test]
fn read_only_file_stays_read_only() {
    let own = "echo 127.0.0.1 localhost >etc/hosts";
    let readonly = "mount --bind etc/hosts etc/hosts; mount -o remount,bind,ro etc/hosts";
    let settings = [("NCCL_DEBUG", "INFO")];
    alone(|_| {
        for start in [Container::new as fn(&str) -> Container, Container::apart] {
            let bound = container_by(start, own, readonly);
            let applied = give(&bound.root(), &settings);
            assert_eq!(applied.hosts.as_deref(), Some(NAMED));
            is_frozen(&bound);
            // crun makes the root, and what is bound, read-only after the hooks.
            for conf in [&settings[..], &[]] {
                let later = container_by(start, own, "");
                let root = ContainerRoot {
                    readonly: true,
                    hosts_readonly: true,
                    ..later.root()
                };
                assert_eq!(give(&root, conf).hosts.as_deref(), Some(NAMED));
                is_frozen(&later);
            }
        }
    });
}

/// What the container writes is memory of the host's.
#[test]
fn file_of_its_own_takes_little_memory() {
    alone(|_| {
        let container = container("echo 127.0.0.1 localhost >etc/hosts", "");
        assert_eq!(name(&container).as_deref(), Some(NAMED));
        let said = container.said("head -c 2M /dev/zero >>etc/hosts");
        assert!(said.err.contains("No space left"), "{}", said.err);
    });
}

#[test]
fn link_in_its_place_leads_out_of_nothing() {
    alone(|_| {
        for link in [
            format!("{CANARY}/secret"),
            format!("../../../..{CANARY}/secret"),
        ] {
            let container = container(&format!("ln -s {link} etc/hosts"), "");
            let said = name(&container).unwrap();
            assert!(said.starts_with("no line in /etc/hosts: "), "{said}");
            assert_eq!(sh(&format!("cat {CANARY}/secret")), "secret\n");
        }
        for place in ["mkdir etc/hosts", "mkfifo etc/hosts", "true"] {
            let said = name(&container(place, "")).unwrap();
            assert!(
                said.starts_with("no line in /etc/hosts: "),
                "{place}: {said}"
            );
        }
    });
}

#[test]
fn what_is_no_name_is_no_line() {
    let entry = |name: &str| HostsEntry::new("192.0.2.1".parse().unwrap(), name);
    assert!(entry("a.b-c_d9").is_some());
    for name in ["", "a b", "a\nb", "a#", &"a".repeat(254)] {
        assert_eq!(entry(name), None, "{name:?}");
    }
}
