//! What others write, at the real program: a policy that came after the plan, secrets in
//! environments, users without power.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::alone;
use serde_json::{Value, json};
use testkit::{Container, Said, run};

#[test]
fn a_policy_holds_for_plans_that_are_older() {
    alone(|host| {
        host.rails(3);
        let before = host.look();
        host.prepare("r0,r1,r2");
        let asks = |annotations: Value| Container::new("c").annotated(annotations);
        let plain = || asks(json!({"rdmaprep.io/plan": "default"}));
        // A veth is of no driver and on no bus: what is allowed by these alone leaves none of them.
        for policy in [
            "allow_drivers = ['^mlx5_core$']",
            "allow_pci = ['.']",
            "deny = ['^r']",
        ] {
            host.configure(policy);
            plain()
                .create(host)
                .fails(4, &["annotations and policy leave no NIC of plan default"]);
            host.rdmaprep(&["prepare", "--ifaces", "r0", "--plan", "new"])
                .fails(4, &["forbidden"]);
        }
        host.configure("max_nics = 2");
        plain().create(host).fails(
            3,
            &["3 NICs, `max_nics` of the host's config file allows 2"],
        );
        host.rdmaprep(&["prepare", "--ifaces", "r0,r1,r2"])
            .fails(3, &["`max_nics`"]);
        let mut two = asks(json!({"rdmaprep.io/plan": "default", "rdmaprep.io/ifaces": "r0 r2"}));
        two.create(host).ok();
        two.stop(host).ok();
        host.configure("annotations = ['plan']");
        let two = asks(json!({"rdmaprep.io/plan": "default", "rdmaprep.io/ifaces": "r0 r2"}));
        two.create(host)
            .fails(3, &["\"rdmaprep.io/ifaces\" is not among `annotations`"]);
        let mut one = plain();
        one.create(host).ok();
        one.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// No word of ours, nor part of one.
const SECRET: &str = "hunter2-9f3c";

/// What a container may have in its environment, all with the secret as value: our variables,
/// NCCL's, and common ones.
fn secrets() -> Vec<String> {
    let names = [
        "AWS_SECRET_ACCESS_KEY",
        "PASSWORD",
        "HOME",
        "PATH",
        "LD_PRELOAD",
        "NCCL_IB_HCA",
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_GID_INDEX",
        "NCCL_COMM_ID",
        "NCCL_DEBUG",
        "NCCL_CONF_FILE",
        "NCCL_TOPO_FILE",
        "NCCL_SOCKET_FAMILY",
        "NCCL_IB_DISABLE",
        "GLOO_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
        "RDMA_IFACES",
        "RDMAPREP_PLAN",
        "MASTER_ADDR",
    ];
    names
        .iter()
        .map(|name| format!("{name}={SECRET}"))
        .collect()
}

/// All that is written below a folder.
fn written(folder: &Path, all: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder)
        .into_iter()
        .flatten()
        .map(|e| e.unwrap())
    {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            written(&path, all);
        } else if let Ok(bytes) = fs::read(&path) {
            all.insert(
                path.display().to_string(),
                String::from_utf8_lossy(&bytes).into_owned(),
            );
        }
    }
}

fn keeps_it(what: &str, said: &Said) {
    for text in [&said.out, &said.err] {
        let line = text.lines().find(|l| l.contains(SECRET));
        assert_eq!(line, None, "{what} tells what is in an environment");
    }
}

#[test]
fn no_environment_is_printed_or_logged() {
    alone(|host| {
        host.rails(2);
        // Ours, as a runtime might leave it to a hook.
        let with_secrets = |args: &[&str], stdin: &str| {
            let mut command = host.command(args);
            command.envs(
                ["TOKEN", "AWS_SECRET_ACCESS_KEY", "LD_LIBRARY_PATH", "HOME"]
                    .map(|name| (name, SECRET)),
            );
            run(&mut command, stdin)
        };
        let config = json!({
            "ociVersion": "1.2.0",
            "process": {"env": secrets(), "args": ["/bin/true"], "cwd": "/",
                "user": {"uid": 0, "gid": 0}},
            "root": {"path": "rootfs"},
            "annotations": {"rdmaprep.io/plan": "default", "password": SECRET},
            "linux": {"namespaces": [{"type": "network"}, {"type": "mount"}]},
        });
        let mut c = Container::new("c").bundled(host, &config);
        let bundle = host.run.parent().unwrap().join("bundle-c");
        for args in [
            &["prepare", "--ifaces", "r0,r1"][..],
            &["snapshot", "--json"],
        ] {
            keeps_it(args[0], &with_secrets(args, "").ok());
        }
        // An edit of a config.json prints the settings for NCCL in it, on the terminal, and no
        // other environment; and what comes out of `spec` is that config.json.
        let keeps_all_but_nccl = |said: Said| {
            let settings =
                |line: &&str| line.contains("NCCL in this container: ") || line.contains("NCCL_");
            let text = [&said.out, &said.err]
                .iter()
                .flat_map(|t| t.lines())
                .filter(|l| !settings(l))
                .collect();
            let said = Said {
                err: text,
                ..said.ok()
            };
            keeps_it("an edit", &said);
        };
        keeps_all_but_nccl(with_secrets(
            &[
                "prepare",
                "--ifaces",
                "r0,r1",
                "--bundle",
                bundle.to_str().unwrap(),
            ],
            "",
        ));
        let spec = with_secrets(&["spec"], &config.to_string());
        assert!(spec.out.contains(SECRET), "{spec:?}");
        keeps_all_but_nccl(Said {
            out: String::new(),
            ..spec
        });
        for (stage, state) in [("createRuntime", c.state()), ("poststart", c.state())] {
            let said = with_secrets(&["hook", stage], &state);
            assert_eq!(said.code, Some(0), "{said:?}");
            keeps_it(stage, &said);
        }
        for args in [
            &["status"][..],
            &["status", "--json"],
            &["restore", "--all", "--dry-run"],
        ] {
            keeps_it(args[0], &with_secrets(args, "").ok());
        }
        let look = || {
            let mut all = BTreeMap::new();
            [&host.run, &host.state]
                .into_iter()
                .for_each(|folder| written(folder, &mut all));
            all.insert("the log".to_owned(), fs::read_to_string(&host.log).unwrap());
            assert!(all.len() > 3, "{all:?}");
            for (path, text) in all {
                let at = text
                    .find(SECRET)
                    .map(|at| text.get(at.saturating_sub(200)..at).unwrap_or_default());
                assert_eq!(at, None, "{path} has what is in an environment");
            }
        };
        look();
        c.stop(host).ok();
        look();
        // Not when it is refused, either.
        host.configure("max_nics = 1");
        let refused = Container::new("d").bundled(host, &config);
        let said = with_secrets(&["hook", "createRuntime"], &refused.state());
        assert_eq!(said.code, Some(3), "{said:?}");
        keeps_it("a refusal", &said);
        look();
    });
}

/// As a user without privileges: uid 65534, where the tests are run by root.
fn as_a_user(program: &Path, args: &[&str], state: &str) -> Said {
    let mut command = match rustix::process::geteuid().is_root() {
        true => {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
                .arg(program);
            command
        }
        false => Command::new(program),
    };
    run(command.env_clear().args(args), state)
}

#[test]
fn users_runtime_gets_an_error_where_it_asks_and_none_elsewhere() {
    let place = tempfile::Builder::new()
        .prefix("rdmaprep-user")
        .tempdir_in("/tmp")
        .unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    // Where the user can get at it, wherever this is built.
    let program = place.path().join("rdmaprep");
    fs::copy(env!("CARGO_BIN_EXE_rdmaprep"), &program).unwrap();
    // Root's folders, as on any host.
    let root = |name: &str| {
        let folder = place.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::create_dir(folder.join("records")).unwrap();
        fs::set_permissions(
            &folder,
            Permissions::from_mode(if rustix::process::geteuid().is_root() {
                0o700
            } else {
                0
            }),
        )
        .unwrap();
        folder.display().to_string()
    };
    let (run_dir, state_dir) = (root("run"), root("state"));
    let hook = |stage: &str, annotations: Value| {
        let args = [
            "hook",
            stage,
            "--config",
            "/dev/null",
            "--run-dir",
            &run_dir,
            "--state-dir",
            &state_dir,
        ];
        let pid = std::process::id();
        let state = json!({"ociVersion": "1.2.0", "id": "c", "pid": pid, "bundle": "/b",
            "annotations": annotations});
        as_a_user(&program, &args, &state.to_string())
    };
    for stage in ["prestart", "createRuntime", "poststart", "poststop"] {
        let said = hook(stage, json!({})).ok();
        assert_eq!((said.out.as_str(), said.err.as_str()), ("", ""), "{stage}");
    }
    for stage in ["prestart", "createRuntime"] {
        hook(stage, json!({"rdmaprep.io/plan": "x"}))
            .fails(3, &["CAP_NET_ADMIN and CAP_SYS_ADMIN missing", "as root"]);
    }
    for stage in ["poststart", "poststop"] {
        hook(stage, json!({"rdmaprep.io/plan": "x"})).ok();
    }
    for folder in [run_dir, state_dir] {
        fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
    }
}
