//! What a hook may do: no more than its work takes, and nothing by other programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::alone;
use serde_json::json;
use testkit::{Container, Host, run, sh, until};

/// What is kept (src/kernel/process/capabilities.rs): chown, dac_override, net_admin, sys_chroot,
/// sys_ptrace, sys_admin and sys_resource by their numbers in linux/capability.h.
const KEPT: u64 = 1 | 1 << 1 | 1 << 12 | 1 << 18 | 1 << 19 | 1 << 21 | 1 << 24;

#[test]
fn a_hook_has_given_up_what_it_does_not_need() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let mut first = Container::new("first");
        first.create(host).ok();
        // One that waits can be looked at.
        let second = Container::new("second");
        let mut waiting = host.command(&["hook", "createRuntime", "--wait", "9"]);
        let mut waiting = waiting
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(
            &mut waiting.stdin.take().unwrap(),
            second.state().as_bytes(),
        )
        .unwrap();
        let status = || fs::read_to_string(format!("/proc/{}/status", waiting.id())).unwrap();
        let field = |name: &str| {
            let status = status();
            let line = status
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(":\t"))
                .unwrap();
            u64::from_str_radix(line, 16).unwrap()
        };
        until("it has no way to new privileges", || {
            field("NoNewPrivs") == 1
        });
        until("it has given them up", || field("CapPrm") == KEPT);
        assert_eq!(
            (field("CapEff"), field("CapInh"), field("CapAmb")),
            (KEPT, 0, 0)
        );
        waiting.kill().unwrap();
        waiting.wait().unwrap();
        first.stop(host).ok();
    });
}

/// Runs a hook under strace and insists that it starts no program and no process. Whether it has
/// made a thread, which strace shows alike.
fn traced(host: &Host, stage: &str, state: &str) {
    let trace = host.run.parent().unwrap().join("trace");
    let bare = host.command(&["hook", stage]);
    let mut strace = Command::new("strace");
    strace
        .args([
            "-f",
            "-qq",
            "-e",
            "trace=execve,execveat,fork,vfork,clone,clone3",
            "-o",
        ])
        .arg(&trace);
    run(strace.arg(bare.get_program()).args(bare.get_args()), state).ok();
    let trace = fs::read_to_string(trace).unwrap();
    let started: Vec<&str> = trace
        .lines()
        .filter(|l| !l.contains("CLONE_THREAD") && !l.contains(" resumed>"))
        .collect();
    assert_eq!(started.len(), 1, "more than itself: {started:#?}");
    assert!(started[0].contains("execve("), "{trace}");
}

#[test]
fn no_hook_starts_another_process() {
    alone(|host| {
        host.rails(2);
        let before = host.look();
        host.prepare("r0,r1");
        let mut c = Container::new("c");
        traced(host, "createRuntime", &c.state());
        assert!(c.sh("ip -br link").contains("r1@"));
        traced(host, "poststart", &c.state());
        c.kill();
        traced(host, "poststop", &c.stopped());
        host.is_as(&before);
    });
}

#[test]
fn a_user_other_than_root_gets_an_error() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let before = host.look();
        fs::set_permissions(&host.config, fs::Permissions::from_mode(0o644)).unwrap();
        let c = Container::new("c");
        // As a user in whose hands the kernel leaves nothing: the same uid without capabilities.
        let weak = |args: &[&str], state: &str| {
            let bare = host.command(args);
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set=-all", "--inh-caps=-all"]);
            run(command.arg(bare.get_program()).args(bare.get_args()), state)
        };
        weak(&["hook", "createRuntime"], &c.state())
            .fails(3, &["CAP_NET_ADMIN and CAP_SYS_ADMIN missing", "as root"]);
        weak(&["prepare", "--ifaces", "r0"], "").fails(3, &["CAP_SYS_ADMIN missing", "as root"]);
        weak(&["snapshot", "--normal"], "").fails(3, &["CAP_SYS_ADMIN missing", "as root"]);
        weak(&["restore", "--all"], "").fails(3, &["CAP_SYS_ADMIN missing", "as root"]);
        // One that asks for nothing is none of our business.
        let plain = Container::new("plain").annotated(serde_json::json!({}));
        weak(&["hook", "createRuntime"], &plain.state()).ok();
        host.is_as(&before);
    });
}

/// A container whose image has no /etc/nccl.conf: the hook mounts one in its mount namespace.
fn housed(host: &Host) -> Container {
    sh("mkdir -p /run/rootfs/etc");
    let enter = "mount --bind /run/rootfs /run/rootfs; exec \"$@\"";
    let mut unshare = Command::new("unshare");
    let config =
        json!({"ociVersion": "1.1.0", "root": {"path": "/run/rootfs"}, "process": {"env": []}});
    Container::start(
        "c",
        unshare.args(["--net", "--mount", "sh", "-ec", enter, "sh"]),
    )
    .bundled(host, &config)
}

/// Each in turn is missing, and the hook fails at what it is kept for; nothing is changed. Here all
/// files have one owner: of CAP_CHOWN, 67-capabilities in the guest shows the same.
#[test]
fn without_any_one_of_those_that_are_kept_a_hook_fails() {
    alone(|host| {
        host.rails(1);
        host.rdmaprep(&["prepare", "--ifaces", "r0", "--sysfs", "off", "--debug-all"])
            .ok();
        let before = host.look();
        let c = housed(host);
        let but = |lacking: &[&str]| {
            let bounding: String = lacking.iter().map(|name| format!(",-{name}")).collect();
            let bare = host.command(&["hook", "createRuntime"]);
            let mut command = Command::new("setpriv");
            command.arg(format!("--bounding-set=+all{bounding}"));
            run(
                command.arg(bare.get_program()).args(bare.get_args()),
                &c.state(),
            )
        };
        for (lacking, code, words) in [
            ("net_admin", 3, &["CAP_NET_ADMIN missing"][..]),
            ("sys_admin", 3, &["CAP_SYS_ADMIN missing"]),
            (
                "sys_ptrace",
                5,
                &["opening network namespace /proc/", "Permission denied"],
            ),
            (
                "sys_chroot",
                1,
                &[
                    "entering the mount namespace",
                    "not permitted",
                    "everything is undone",
                ],
            ),
        ] {
            but(&[lacking]).fails(code, words);
            host.is_as(&before);
            host.is_clean();
        }
        // The report says why the settings could not be placed in the container.
        but(&["dac_override"]).ok();
        let settings = host.report("c")["settings"].as_str().unwrap().to_owned();
        assert!(
            settings.contains("making an overlay over /etc: Permission denied"),
            "{settings}"
        );
        host.rdmaprep(&["restore", "c"]).ok();
        // What is given up is not missed.
        but(&[
            "chown",
            "kill",
            "net_raw",
            "setuid",
            "sys_module",
            "mknod",
            "fowner",
            "setpcap",
        ])
        .ok();
        assert_eq!(host.report("c")["settings"], "in an /etc/nccl.conf of ours");
        host.rdmaprep(&["restore", "c"]).ok();
        // A container's own limit on pinned memory stays, and the report says so.
        but(&["sys_resource"]).ok();
        let memlock = host.report("c")["memlock"].to_string();
        assert!(
            memlock.contains("as it was: setting RLIMIT_MEMLOCK: Operation not permitted"),
            "{memlock}"
        );
        host.rdmaprep(&["restore", "c"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// A runtime without CAP_SYS_RESOURCE does not start a container whose config.json asks for more
/// than its own hard limit.
#[test]
fn config_json_gets_no_limit_that_the_runtime_cannot_set() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let config = json!({
            "ociVersion": "1.1.0", "annotations": {"rdmaprep.io/plan": "default"},
            "root": {"path": "rootfs"}, "process": {"args": ["true"], "cwd": "/"},
            "linux": {"namespaces": [{"type": "network"}, {"type": "mount"}]}
        });
        let bare = host.command(&["spec"]);
        let mut lower = Command::new("prlimit");
        lower
            .arg("--memlock=65536:1048576")
            .arg(bare.get_program())
            .args(bare.get_args());
        let said = run(&mut lower, &config.to_string()).ok();
        let edited: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        let limit = json!([{"type": "RLIMIT_MEMLOCK", "hard": 1048576, "soft": 1048576}]);
        assert_eq!(edited["process"]["rlimits"], limit);
        assert!(
            said.err.contains("CAP_SYS_RESOURCE") && said.err.contains("`lift_memlock = false`"),
            "{}",
            said.err
        );
    });
}
