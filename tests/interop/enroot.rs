//! enroot: `hooks/enroot/publish` as root runs it, and `hooks/enroot/90-rdmaprep.sh` as enroot runs
//! its hooks.
//!
//! `enroot/start` does around the hook what enroot does, in a user and mount namespace of its own.
//! /sys, the verbs nodes and the image are made up: what real ones do is seen in the guest
//! (tests/vm/cases/46-enroot.sh).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::alone;
use testkit::trees::made::Sys;
use testkit::{Host, Said, run, same, sh};

const HOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hooks/enroot/90-rdmaprep.sh");
const PUBLISH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hooks/enroot/publish");
const START: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/enroot/start");
const PUBLISHED: &str = "/run/rdmaprep-enroot";

/// Three NICs, as the kernel shows them and their nodes, the plan `a` of two, an image, and
/// enroot's folders.
fn node(host: &Host) {
    for i in 0..3 {
        host.ip(&format!(
            "link add r{i} type veth peer name p{i}\nlink set p{i} up\nlink set r{i} up\naddress \
            add 10.0.{i}.1/24 dev r{i}"
        ));
    }
    let mut sys = Sys::new(Path::new("/run/sys"));
    for i in 0..3 {
        sys.describe(&format!(
            "function 0000:00:0{i}.0 under=pci0000:00 class=0x020000 driver=mlx5_core\n\
             hca mlx5_{i} at=0000:00:0{i}.0 gids=4 net=r{i}\nnet r{i} at=0000:00:0{i}.0"
        ));
    }
    // No verbs node can be made here: a file that says which one it is has to do.
    sh(
        "mkdir -p /run/dev/infiniband; cd /run/dev; ln -s /proc/self/fd fd
        for node in null zero full urandom; do : >$node; mount --bind /dev/$node $node; done
        for node in uverbs0 uverbs1 uverbs2 umad0 rdma_cm; do echo $node >infiniband/$node; done
        mount --rbind /run/dev /dev; mount --rbind /run/sys /sys
        mkdir -p /run/image/etc /run/image/usr /run/user /run/enroot/hooks.d
        for dir in bin lib lib64 sbin; do [ ! -L /$dir ] || ln -s usr/$dir /run/image/$dir; done
        mount --bind /usr /run/image/usr",
    );
    fs::copy(HOOK, "/run/enroot/hooks.d/90-rdmaprep.sh").unwrap();
    host.rdmaprep(&["prepare", "--plan", "a", "--ifaces", "r0,r2"])
        .ok();
}

/// A command with the environment of root, or of a user who logs in: rdmaprep in PATH, and where
/// this host keeps its things.
fn command(host: &Host, program: &str, args: &[&str]) -> Command {
    let bin = Path::new(env!("CARGO_BIN_EXE_rdmaprep"))
        .parent()
        .unwrap()
        .display()
        .to_string();
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .env("PATH", format!("{bin}:/usr/sbin:/usr/bin:/sbin:/bin"));
    command
        .env("ENROOT_SYSCONF_PATH", "/run/enroot")
        .env("ENROOT_RUNTIME_PATH", "/run/user");
    command
        .env("RDMAPREP_RUN_DIR", &host.run)
        .env("RDMAPREP_STATE_DIR", &host.state);
    command.env("RDMAPREP_CONFIG", &host.config);
    command
}

fn publish(host: &Host, args: &[&str]) -> Said {
    run(&mut command(host, PUBLISH, args), "")
}

/// Starts a container with these variables; the payload tells what it has.
fn start(host: &Host, variables: &[&str]) -> Said {
    run(&mut starting(host, variables), "")
}

fn starting(host: &Host, variables: &[&str]) -> Command {
    let tells =
        "echo hcas $(ls /sys/class/infiniband); echo verbs $(ls /sys/class/infiniband_verbs)
        echo nodes $(ls /dev/infiniband) of $(cat /dev/infiniband/uverbs*)
        echo places $(for place in /sys/devices/pci0000:00/*; do [ ! -e $place/class ] || echo \
        ${place##*/}; done)
        echo state $(cat /sys/class/infiniband/*/ports/1/state); env | grep -E \
        '^(NCCL|GLOO|RDMAPREP)_' | sort";
    let mut args: Vec<&str> = variables
        .iter()
        .flat_map(|variable| ["--env", variable])
        .collect();
    args.extend(["/run/image", "sh", "-c", tells]);
    command(host, START, &args)
}

const ALL: &str = "hcas mlx5_0 mlx5_1 mlx5_2\nverbs abi_version uverbs0 uverbs1 uverbs2\n\
    nodes rdma_cm umad0 uverbs0 uverbs1 uverbs2 of uverbs0 uverbs1 uverbs2\n\
    places 0000:00:00.0 0000:00:01.0 0000:00:02.0\nstate 4: ACTIVE 4: ACTIVE 4: ACTIVE\n";
const TWO: &str = "hcas mlx5_0 mlx5_2\nverbs abi_version uverbs0 uverbs2\nnodes rdma_cm uverbs0 \
    uverbs2 of uverbs0 uverbs2\n\
    places 0000:00:00.0 0000:00:02.0\nstate 4: ACTIVE 4: ACTIVE\n";

/// What of the host a container could change.
fn outside() -> String {
    sh(
        "cat /proc/self/mountinfo; ls -lR /run/image/etc /run/dev /run/user; find /run/sys | \
        sort; ls /sys/class/infiniband /dev/infiniband",
    )
}

#[test]
fn a_container_that_asks_has_the_plans_nics_alone() {
    alone(|host| {
        node(host);
        publish(host, &["a"]).ok();
        let before = outside();
        same(
            "a container that does not ask",
            ALL,
            &start(host, &[]).ok().out,
        );
        let given =
            format!("{TWO}NCCL_IB_GID_INDEX=3\nNCCL_IB_HCA==mlx5_0,mlx5_2\nRDMAPREP_PLAN=a\n");
        same(
            "one that asks",
            &given,
            &start(host, &["RDMAPREP_PLAN=a"]).ok().out,
        );
        // Its own value counts.
        let own = start(host, &["NCCL_IB_HCA=^mlx5_9", "RDMAPREP_PLAN=a"])
            .ok()
            .out;
        same(
            "one with a list of its own",
            &format!("{TWO}NCCL_IB_GID_INDEX=3\nNCCL_IB_HCA=^mlx5_9\nRDMAPREP_PLAN=a\n"),
            &own,
        );
        same("the outside", &before, &outside());
    });
}

/// Root's containers have no user namespace: nothing but the mounts' own propagation keeps them
/// apart from the host's.
#[test]
fn a_superusers_container_mounts_nothing_on_the_host() {
    alone(|host| {
        node(host);
        publish(host, &["a"]).ok();
        sh("mount --make-rshared /");
        let before = outside();
        let given = run(
            starting(host, &["RDMAPREP_PLAN=a"]).env("ENROOT_ALLOW_SUPERUSER", "y"),
            "",
        )
        .ok();
        assert!(given.out.starts_with(TWO), "{given:#?}");
        same("the outside", &before, &outside());
    });
}

#[test]
fn an_image_a_user_and_a_job_ask_and_the_last_word_counts() {
    alone(|host| {
        node(host);
        publish(host, &["a"]).ok();
        fs::write(
            "/run/image/etc/environment",
            "RDMAPREP_PLAN='a'\nENROOT_MOUNTS=/etc/passwd\n",
        )
        .unwrap();
        assert!(start(host, &[]).ok().out.starts_with(TWO));
        assert_eq!(
            start(host, &["RDMAPREP_PLAN="]).ok().out,
            format!("{ALL}RDMAPREP_PLAN=\n")
        );
        start(host, &["RDMAPREP_PLAN=b"]).fails_with(3, "plan b is not published on this node");
        fs::remove_file("/run/image/etc/environment").unwrap();

        // A job of Slurm whose prolog has published its plan; of another job there is none.
        host.rdmaprep(&["prepare", "--plan", "slurm-7", "--ifaces", "r0,r2"])
            .ok();
        publish(host, &["slurm-7"]).ok();
        let job = |id: &str, variables: &[&str]| {
            run(starting(host, variables).env("SLURM_JOB_ID", id), "")
                .ok()
                .out
        };
        assert!(job("7", &[]).starts_with(TWO));
        assert!(job("8", &[]).starts_with(ALL) && job("../plans/a", &[]).starts_with(ALL));
        assert!(job("7", &["RDMAPREP_PLAN="]).starts_with(ALL));
        publish(host, &["--withdraw", "slurm-7"]).ok();
        assert!(job("7", &[]).starts_with(ALL));
    });
}

/// The prolog, with stand-ins for Slurm's programs and ours, which note how they are called.
#[test]
fn a_comment_in_other_letters_ends_its_job() {
    let folder = tempfile::tempdir().unwrap();
    let called = folder.path().join("called");
    for name in ["rdmaprep", "scontrol", "scancel"] {
        let text = format!("#!/bin/sh\necho \"{name} $*\" >> {}\n", called.display());
        let place = folder.path().join(name);
        fs::write(&place, text).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let prolog = concat!(env!("CARGO_MANIFEST_DIR"), "/hooks/slurm/prolog");
    let job = |comment: &str| {
        let _ = fs::remove_file(&called);
        let mut command = Command::new("/bin/sh");
        command.arg(prolog).env_clear().env("PATH", folder.path());
        command
            .env("SLURM_JOB_ID", "7")
            .env("SLURMD_NODENAME", "n0");
        command.env("SLURM_JOB_COMMENT", comment);
        command.env("RDMAPREP_RUN_DIR", folder.path());
        run(&mut command, "").ok();
        fs::read_to_string(&called).unwrap_or_default()
    };
    assert_eq!(job("other"), "");
    assert_eq!(job("rdmaprep-not"), "");
    assert_eq!(job("a rdmaprep b"), "rdmaprep prepare --plan slurm-7\n");
    for comment in ["RDMAPREP", "x Rdmaprep"] {
        let said = job(comment);
        assert!(
            said.starts_with("scontrol update JobId=7 AdminComment=n0: "),
            "{said}"
        );
        assert!(said.contains("not in small letters"), "{said}");
        assert!(said.ends_with("scancel 7\n"), "{said}");
        assert!(!said.contains("prepare"), "{said}");
    }
}

trait Fails {
    fn fails_with(self, code: i32, text: &str);
}

impl Fails for Said {
    /// The hook's one line, what enroot makes of it, and that no payload ran.
    fn fails_with(self, code: i32, text: &str) {
        assert_eq!((self.code, self.out.as_str()), (Some(1), ""), "{self:#?}");
        let lines: Vec<&str> = self.err.lines().collect();
        assert_eq!(lines.len(), 2, "{self:#?}");
        assert!(
            lines[0].starts_with("rdmaprep: enroot: ") && lines[0].contains(text),
            "{self:#?}"
        );
        assert!(
            lines[1].ends_with(&format!("90-rdmaprep.sh exited with return code {code}")),
            "{self:#?}"
        );
    }
}

#[test]
fn a_container_that_cannot_have_them_does_not_start() {
    alone(|host| {
        node(host);
        publish(host, &["a"]).ok();
        let published = fs::read_to_string(format!("{PUBLISHED}/plans/a")).unwrap();
        let long = "a".repeat(65);
        for name in ["../a", "a/../a", ".a", "a b", "$(id)", "-n", "*", &long] {
            let refused = if name == "-n" {
                "plan -n is not published"
            } else {
                "RDMAPREP_PLAN is no plan name"
            };
            start(host, &[&format!("RDMAPREP_PLAN={name}")]).fails_with(3, refused);
        }
        // As pyxis gives one (`--container-unshare=net`).
        let mut apart = command(
            host,
            "unshare",
            &[
                "--net",
                START,
                "--env",
                "RDMAPREP_PLAN=a",
                "/run/image",
                "true",
            ],
        );
        run(&mut apart, "").fails_with(3, "the container has a network namespace of its own");
        // A NIC that another container holds is not in the host's /sys/class/net.
        fs::rename("/run/sys/class/net/r2", "/run/r2").unwrap();
        start(host, &["RDMAPREP_PLAN=a"]).fails_with(9, "r2 of plan a is not on this host");
        fs::rename("/run/r2", "/run/sys/class/net/r2").unwrap();
        // A device that was re-created, and got another number.
        sh("echo mlx5_9 > /run/sys/class/infiniband_verbs/uverbs2/ibdev");
        start(host, &["RDMAPREP_PLAN=a"]).fails_with(9, "uverbs2 is not mlx5_2's any more");
        sh("echo mlx5_2 > /run/sys/class/infiniband_verbs/uverbs2/ibdev");
        // A line of a later version.
        fs::write(
            format!("{PUBLISHED}/plans/a"),
            format!("{published}limit memlock\n"),
        )
        .unwrap();
        start(host, &["RDMAPREP_PLAN=a"]).fails_with(2, "a line that is not known here: limit");
    });
}

#[test]
fn a_hook_that_refuses_has_changed_nothing() {
    alone(|host| {
        node(host);
        publish(host, &["a"]).ok();
        let hook = |mounts: &str| {
            // Its last line has no end, as an image's may have none.
            fs::write("/run/environment", "RDMAPREP_PLAN=a").unwrap();
            fs::write("/run/fstab", "").unwrap();
            let mut hook = command(host, HOOK, &[]);
            hook.env("ENROOT_ENVIRON", "/run/environment")
                .env("ENROOT_MOUNTS", mounts);
            let said = run(&mut hook, "");
            (
                said,
                fs::read_to_string("/run/environment").unwrap(),
                fs::read_to_string("/run/fstab").unwrap(),
            )
        };
        let (said, environment, mounts) = hook("");
        said.fails(2, &["ENROOT_MOUNTS"]);
        assert_eq!(
            (environment.as_str(), mounts.as_str()),
            ("RDMAPREP_PLAN=a", "")
        );
        fs::rename("/run/sys/class/net/r2", "/run/r2").unwrap();
        let (said, environment, mounts) = hook("/run/fstab");
        said.fails(9, &["r2"]);
        assert_eq!(
            (environment.as_str(), mounts.as_str()),
            ("RDMAPREP_PLAN=a", "")
        );
        fs::rename("/run/r2", "/run/sys/class/net/r2").unwrap();
        let mut nowhere = command(host, HOOK, &[]);
        nowhere
            .env("ENROOT_ENVIRON", "/run/none")
            .env("ENROOT_MOUNTS", "/run/fstab");
        run(&mut nowhere, "").fails(2, &["/run/none cannot be read"]);
        let (said, environment, mounts) = hook("/run/fstab");
        said.ok();
        assert_eq!(
            environment,
            "RDMAPREP_PLAN=a\nNCCL_IB_HCA==mlx5_0,mlx5_2\nNCCL_IB_GID_INDEX=3\n"
        );
        assert!(
            mounts.lines().all(|line| line.split(' ').count() == 4) && mounts.lines().count() > 6,
            "{mounts}"
        );
        run(&mut command(host, HOOK, &[]), "").fails(2, &["not called by enroot"]);
    });
}

#[test]
fn what_is_published_is_what_the_plan_says_now() {
    alone(|host| {
        node(host);
        publish(host, &["--dry-run", "a"]).ok();
        assert!(!Path::new(PUBLISHED).exists());
        for (args, text) in [
            (&["nope"][..], "there is no plan nope"),
            (&["../a"], "no plan name"),
            (&[], "usage"),
            (&["a", "b"], "usage"),
            (&["--withdraw", "../../x"], "no plan name"),
        ] {
            publish(host, args).fails(2, &[text]);
        }
        assert!(!Path::new(PUBLISHED).exists());

        let dry = publish(host, &["--dry-run", "a"]).ok().out;
        publish(host, &["a"]).ok();
        publish(host, &["a"]).ok();
        same(
            "what is published",
            &dry,
            &fs::read_to_string(format!("{PUBLISHED}/plans/a")).unwrap(),
        );
        let views = || fs::read_dir(format!("{PUBLISHED}/views")).unwrap().count();
        assert_eq!(views(), 1);
        // Every user can read it, and only root can write it.
        let modes = sh(&format!(
            "find {PUBLISHED} ! -type l -printf '%m\\n' | sort -u"
        ));
        assert!(
            modes
                .lines()
                .all(|mode| ["755", "644", "444", "555"].contains(&mode)),
            "{modes}"
        );

        // What runs keeps what it has, whatever the plan becomes.
        let waits = "read line; ls /sys/class/infiniband";
        let args = [
            "--env",
            "RDMAPREP_PLAN=a",
            "/run/image",
            "sh",
            "-c",
            &format!("echo ready; {waits}"),
        ];
        let mut child = command(host, START, &args)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert_eq!(line, "ready\n");
        host.rdmaprep(&["prepare", "--plan", "a", "--ifaces", "r1"])
            .ok();
        publish(host, &["a"]).ok();
        assert_eq!(views(), 2);
        assert!(
            start(host, &["RDMAPREP_PLAN=a"])
                .ok()
                .out
                .contains("hcas mlx5_1\n")
        );
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\n").unwrap();
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut out, &mut rest).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(rest, "mlx5_0\nmlx5_2\n");

        publish(host, &["--withdraw", "a"]).ok();
        publish(host, &["--withdraw", "a"]).ok();
        assert!(!Path::new(&format!("{PUBLISHED}/plans/a")).exists());
        // What is forbidden, has no node, or is away is no reason to publish less of the plan.
        host.rdmaprep(&["prepare", "--plan", "a", "--ifaces", "r1,r2"])
            .ok();
        host.configure("deny = [\"r2\"]");
        publish(host, &["a"]).fails(3, &["has come to forbid mlx5_2"]);
        host.configure("");
        sh("mv /run/sys/class/infiniband_verbs/uverbs1 /run");
        publish(host, &["a"]).fails(4, &["mlx5_1 of r1 has no verbs node"]);
        sh("mv /run/uverbs1 /run/sys/class/infiniband_verbs");
        fs::rename("/run/sys/class/infiniband/mlx5_1", "/run/mlx5_1").unwrap();
        publish(host, &["a"]).fails(9, &["mlx5_1 of r1 is not on this host"]);
        assert!(!Path::new(&format!("{PUBLISHED}/plans/a")).exists());
    });
}
