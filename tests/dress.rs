//! Dressing a container on the real kernel: what it sees then, what it cannot do to it, and what a hostile image gets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rdmaprep::outfit::{Cover, Dressed, Given, Outfit, Wearer};
use rdmaprep::plan::EnvVar;
use rdmaprep::snapshot::CharDevice;
use rdmaprep::tree::{Node, Tree};
use rdmaprep::world::dress::dress;
use support::{Said, alone, run, same, sh};

/// The container's root, and what must not be touched, both on the test's own tmpfs.
const ROOTFS: &str = "/run/rootfs";
const CANARY: &str = "/run/canary";

/// A container whose runtime has mounted everything and not yet changed to its root.
struct Container {
    init: Child,
    /// Whether it has a user namespace of its own.
    apart: bool,
}

/// An image with the usual folders.
fn image() {
    sh(&format!(
        "mkdir -p {ROOTFS}/etc {ROOTFS}/sys {ROOTFS}/dev {ROOTFS}/proc {ROOTFS}/opt {CANARY}/etc
        echo root:x: >{ROOTFS}/etc/passwd; chmod 751 {ROOTFS}/etc
        echo secret >{CANARY}/secret; echo NCCL_CANARY=1 >{CANARY}/nccl.conf"
    ));
}

impl Container {
    fn new(more: &str) -> Container {
        Container::start(&["--mount"], more)
    }

    /// In a user namespace of its own.
    fn apart(more: &str) -> Container {
        Container::start(&["--user", "--map-root-user", "--net", "--mount"], more)
    }

    /// Runs the shell lines `more` after the mounts, with the root as working directory.
    fn start(flags: &[&str], more: &str) -> Container {
        let script = format!(
            "mount --rbind {ROOTFS} {ROOTFS}; cd {ROOTFS}; mount -t sysfs sysfs sys
            mount -t tmpfs -o mode=755 tmpfs dev; mkdir dev/infiniband; mount --rbind /proc proc
            {more}
            echo; exec cat"
        );
        let mut command = Command::new("unshare");
        command.args(flags).args(["sh", "-ec", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut init = command.spawn().expect("unshare (util-linux) is needed");
        let mut line = String::new();
        BufReader::new(init.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "the container did not start");
        Container { init, apart: flags.contains(&"--user") }
    }

    fn wearer(&self) -> Wearer {
        let pid = i32::try_from(self.init.id()).unwrap();
        Wearer { pid, rootfs: ROOTFS.into(), readonly: false, label: None }
    }

    fn dress(&self, outfit: &Outfit) -> Dressed {
        dress(&self.wearer(), outfit, &[]).unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Gives it these settings and returns what became of them.
    fn give(&self, settings: &[(&str, &str)]) -> Dressed {
        self.dress(&Outfit { covers: Vec::new(), conf: vars(settings) })
    }

    /// Runs a shell line in it, in its root.
    fn said(&self, line: &str) -> Said {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.init.id())).arg("--mount");
        if self.apart {
            command.args(["--user", "--net", "--preserve-credentials"]);
        }
        run(command.args(["sh", "-ec", &format!("cd {ROOTFS}; {line}")]), "")
    }

    fn sh(&self, line: &str) -> String {
        self.said(line).ok().out
    }

    fn mountinfo(&self) -> String {
        fs::read_to_string(format!("/proc/{}/mountinfo", self.init.id())).unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.init.kill();
        let _ = self.init.wait();
    }
}

fn vars(settings: &[(&str, &str)]) -> Vec<EnvVar> {
    let var =
        |(name, value): &(&str, &str)| EnvVar { name: (*name).into(), value: (*value).into(), why: String::new() };
    settings.iter().map(var).collect()
}

/// Everything that could be left behind or changed: the host's mounts, the image, and what is outside of it.
fn outside() -> String {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    mounts
        + &sh(&format!(
            "cd /run; find rootfs canary -printf '%p %y %m %U %G %s %T@ %C@ %l\\n' | sort
        find rootfs canary -type f -size -9999k -exec cksum {{}} + | sort; ls /"
        ))
}

/// A farm as the view has it: links into the living sysfs around it.
fn farm() -> Tree {
    let mut tree = Tree::default();
    tree.put("lo", Node::Link("../../devices/virtual/net/lo".into()));
    tree.put("sub/inner", Node::Link("../../../devices/virtual/net/lo/mtu".into()));
    tree.put("sub/text", Node::File(b"said\n".to_vec()));
    tree
}

fn covers() -> Outfit {
    let mut devices = Tree::default();
    devices.put("address", Node::File(b"ours\n".to_vec()));
    let at = |at: &str, tree: Tree| Cover { at: at.into(), tree };
    let covers = vec![at("sys/class/net", farm()), at("sys/devices/virtual/mem", devices)];
    Outfit { covers, conf: Vec::new() }
}

/// Mounts below what is going to be covered.
const BELOW: &str = "mount -t tmpfs none sys/devices/virtual/mem/full; echo kept >sys/devices/virtual/mem/full/marker
    mkdir sys/devices/virtual/mem/full/deep; mount -t tmpfs none sys/devices/virtual/mem/full/deep
    echo deeper >sys/devices/virtual/mem/full/deep/marker
    mount --bind etc/passwd sys/devices/virtual/mem/null/uevent";

fn check_covers(container: &Container) {
    let before = outside();
    container.dress(&covers());
    same("the outside", &before, &outside());
    assert_eq!(container.sh("ls sys/class/net; readlink sys/class/net/lo"), "lo\nsub\n../../devices/virtual/net/lo\n");
    let living = container.sh("cat sys/devices/virtual/net/lo/mtu");
    assert_eq!(container.sh("cat sys/class/net/lo/mtu sys/class/net/sub/inner"), format!("{living}{living}"));
    assert_eq!(container.sh("cat sys/class/net/sub/text sys/devices/virtual/mem/address"), "said\nours\n");
    assert_eq!(container.sh("stat -c %a sys/class/net sys/class/net/sub sys/class/net/sub/text"), "755\n755\n444\n");
    let mem = "sys/devices/virtual/mem";
    assert_eq!(container.sh(&format!("cat {mem}/full/marker {mem}/full/deep/marker")), "kept\ndeeper\n");
    assert_eq!(container.sh(&format!("cat {mem}/null/uevent")), "root:x:\n");
    // Neither a new file nor another content, not even after a remount by who may do that here.
    let undo = "mount -o remount,bind,rw sys/class/net || true; mount -o remount,rw sys/class/net 2>/dev/null || true;";
    for undo in ["", if container.apart { undo } else { "" }] {
        for write in ["echo x >sys/class/net/new", "echo x >>sys/class/net/sub/text", "rm sys/class/net/lo"] {
            let said = container.said(&format!("{undo} {write}"));
            assert!(said.code != Some(0) && said.err.contains("Read-only file system"), "{write}: {said:?}");
        }
    }
    let info = container.mountinfo();
    let ours: Vec<&str> = info.lines().filter(|l| l.contains("rdmaprep")).collect();
    assert_eq!(ours.len(), 2, "{ours:#?}");
    for line in ours {
        assert!(line.contains("nosuid,nodev,noexec") && line.contains("- tmpfs rdmaprep ro"), "{line}");
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
        let dirs = sh("cd /sys && find class bus module kernel -mindepth 1 -maxdepth 1 -type d | sort | head -40");
        let covers: Vec<Cover> = dirs.lines().map(|dir| Cover { at: format!("sys/{dir}"), tree: farm() }).collect();
        assert_eq!(covers.len(), 40);
        let start = Instant::now();
        container.dress(&Outfit { covers, conf: vars(&[("NCCL_DEBUG", "INFO")]) });
        println!("40 covers and an overlay: {:?}", start.elapsed());
        assert_eq!(container.mountinfo().matches("- tmpfs rdmaprep").count(), 40);
    });
}
