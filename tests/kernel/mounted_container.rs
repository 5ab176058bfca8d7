//! A container as `container::apply_mounts` finds it: its runtime has mounted everything below its
//! root and not yet changed to it.

use rdma_model::nic::EnvVar;
use rdmaprep::oci::bundle::ContainerRoot;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rdmaprep::container::apply_mounts::apply_mounts;
use rdmaprep::container::mounts::{AppliedMounts, ContainerMounts};

use testkit::{Said, run, sh};

/// The container's root, and what must not be touched, both on the test's own tmpfs.
pub const ROOTFS: &str = "/run/rootfs";
pub const CANARY: &str = "/run/canary";

/// A container whose runtime has mounted everything and not yet changed to its root.
pub struct Container {
    pub init: Child,
    /// Whether it has a user namespace of its own.
    pub apart: bool,
}

/// An image with the usual folders.
pub fn image() {
    sh(&format!(
        "mkdir -p {ROOTFS}/etc {ROOTFS}/sys {ROOTFS}/dev {ROOTFS}/proc {ROOTFS}/opt {CANARY}/etc
        echo root:x: >{ROOTFS}/etc/passwd; chmod 751 {ROOTFS}/etc
        echo secret >{CANARY}/secret; echo NCCL_CANARY=1 >{CANARY}/nccl.conf"
    ));
}

impl Container {
    pub fn new(more: &str) -> Container {
        Container::start(&["--mount"], more)
    }

    /// In a user namespace of its own.
    pub fn apart(more: &str) -> Container {
        Container::start(&["--user", "--map-root-user", "--net", "--mount"], more)
    }

    /// Runs the shell lines `more` after the mounts, with the root as working directory.
    fn start(flags: &[&str], more: &str) -> Container {
        let script = format!(
            "mount --rbind {ROOTFS} {ROOTFS}; cd {ROOTFS}; mount -t sysfs sysfs sys 2>/dev/null \
            || mount --rbind /sys sys
            mount -t tmpfs -o mode=755 tmpfs dev; mkdir dev/infiniband; mount --rbind /proc proc
            {more}
            echo; exec cat"
        );
        let mut command = Command::new("unshare");
        command
            .args(flags)
            .args(["sh", "-ec", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut init = command.spawn().expect("unshare (util-linux) is needed");
        let mut line = String::new();
        BufReader::new(init.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "\n", "the container did not start");
        Container {
            init,
            apart: flags.contains(&"--user"),
        }
    }

    pub fn root(&self) -> ContainerRoot {
        let pid = i32::try_from(self.init.id()).unwrap();
        ContainerRoot {
            pid,
            rootfs: ROOTFS.into(),
            ..ContainerRoot::default()
        }
    }

    pub fn set_up(&self, additions: &ContainerMounts) -> AppliedMounts {
        apply_mounts(&self.root(), additions, &[]).unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Gives it these settings and returns what became of them.
    pub fn give(&self, settings: &[(&str, &str)]) -> AppliedMounts {
        self.set_up(&ContainerMounts {
            covers: Vec::new(),
            conf: vars(settings),
            hosts: None,
        })
    }

    /// Runs a shell line in it, in its root.
    pub fn said(&self, line: &str) -> Said {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.init.id()))
            .arg("--mount");
        if self.apart {
            command.args(["--user", "--net", "--preserve-credentials"]);
        }
        run(
            command.args(["sh", "-ec", &format!("cd {ROOTFS}; {line}")]),
            "",
        )
    }

    pub fn sh(&self, line: &str) -> String {
        self.said(line).ok().out
    }

    pub fn mountinfo(&self) -> String {
        fs::read_to_string(format!("/proc/{}/mountinfo", self.init.id())).unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.init.kill();
        let _ = self.init.wait();
    }
}

pub fn vars(settings: &[(&str, &str)]) -> Vec<EnvVar> {
    let var = |(name, value): &(&str, &str)| EnvVar {
        name: (*name).into(),
        value: (*value).into(),
        why: String::new(),
    };
    settings.iter().map(var).collect()
}

/// Everything that could be left behind or changed: the host's mounts, the image, and what is
/// outside of it. Mounts elsewhere may go away meanwhile, when another program removes what they
/// are mounted on.
pub fn outside() -> String {
    let places = ["/proc", "/sys", "/dev", "/run"];
    let ours = |line: &&str| {
        let point = line.split(' ').nth(4).unwrap_or_default();
        point == "/"
            || places.iter().any(|place| point.starts_with(place))
            || line.contains("rdmaprep")
    };
    let all = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let mounts: Vec<&str> = all.lines().filter(ours).collect();
    let files = "cd /run; find rootfs canary -printf '%p %y %m %U %G %s %T@ %C@ %l\\n' | sort
        find rootfs canary -type f -size -9999k -exec cksum {} + | sort; ls -d /nccl.conf \
        /etc/nccl.conf 2>&1 || true";
    mounts.join("\n") + "\n" + &sh(files)
}
