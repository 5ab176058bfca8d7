//! The runtime shim: what it makes of every form of a runtime's command line, and what reaches the
//! runtime.
//!
//! tests/cases/shim/args.txt has the forms; `UPDATE_GOLDEN=1` rewrites what is read of each.

mod asked;
mod command_line;
mod find;
mod view;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::alone;
use nix::sys::signal::Signal;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rdma_model::tree::{Node, Tree};
use rdmaprep::cli::{Cli, Command as Subcommand};
use rdmaprep::config::file::ConfigFile;
use rdmaprep::handle::Handle;
use rdmaprep::kernel::process::memfd::sealed;
use rdmaprep::kernel::process::pidfd::Process;
use rdmaprep::kernel::process::pidfd_getfd::handle_for;
use rdmaprep::nccl_env::topo_file;
use rdmaprep::shim::{self, Call, RuntimeChoice, RuntimeCommand};
use rdmaprep::store::Store;
use serde_json::{Value, json};
use testkit::hold::{Hold, POOL};
use testkit::{Container, Host, Said, run, sh};

#[test]
fn engines_read_the_reason_from_its_log() {
    let said = "a \"quoted\"\tthing\nof\u{1b}two lines";
    let line: Value =
        serde_json::from_str(&shim::log_line(true, "error", said, "2026-01-02T03:04:05Z")).unwrap();
    assert_eq!(
        line,
        json!({"level": "error", "msg": said, "time": "2026-01-02T03:04:05Z"})
    );
    let text = shim::log_line(false, "warning", "x \"y\"", "2026-01-02T03:04:05Z");
    assert_eq!(
        text,
        r#"time="2026-01-02T03:04:05Z" level=warning msg="x \"y\"""#
    );
}

/// A runtime that writes down what it was given and ends with 37; `more` runs before that.
struct Fake {
    dir: PathBuf,
    bundle: PathBuf,
}

impl Fake {
    fn new(host: &Host, more: &str) -> Fake {
        let dir = host.run.parent().unwrap().join("fake");
        let bundle = dir.join("bundle");
        fs::create_dir_all(&bundle).unwrap();
        let fake = Fake { bundle, dir };
        let at = fake.dir.display();
        fake.script(
            "runc",
            &format!(
                "cat /proc/$$/cmdline > {at}/args\nls -l /proc/$$/fd > {at}/fds\nenv > \
                {at}/env\npwd > {at}/cwd\n\
             cp {at}/bundle/config.json {at}/seen 2>/dev/null\n{more}\nexit 37"
            ),
        );
        host.configure(&format!("runtime = {:?}", fake.dir.join("runc")));
        fake
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn config(&self, config: &Value) -> String {
        let text = serde_json::to_string_pretty(config).unwrap();
        fs::write(self.bundle.join("config.json"), &text).unwrap();
        text
    }

    /// The bundle's config.json as it is now.
    fn now(&self) -> String {
        fs::read_to_string(self.bundle.join("config.json")).unwrap()
    }

    /// What the runtime wrote down; nothing where it did not run.
    fn seen(&self, what: &str) -> Option<String> {
        fs::read(self.dir.join(what))
            .ok()
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// `create` of the bundle, with a JSON log.
    fn create(&self, host: &Host) -> Said {
        let (log, bundle) = (self.dir.join("log.json"), self.bundle.clone());
        let args = [
            "--log".into(),
            log.into_os_string(),
            "--log-format".into(),
            "json".into(),
            "create".into(),
        ];
        run(
            shim(host, "rdmaprep-runtime")
                .args(args)
                .arg("--bundle")
                .arg(bundle)
                .arg("id"),
            "",
        )
    }

    /// What the engine reads: level and message of the last line.
    fn logged(&self) -> (String, String) {
        let log = fs::read_to_string(self.dir.join("log.json")).unwrap();
        let line: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        let time = line["time"].as_str().unwrap();
        assert!(
            time.len() == 20 && time.ends_with('Z') && time.contains('T'),
            "{time}"
        );
        (
            line["level"].as_str().unwrap().to_owned(),
            line["msg"].as_str().unwrap().to_owned(),
        )
    }
}

/// Our program under another name.
fn shim(host: &Host, name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    command
        .arg0(name)
        .env_clear()
        .env("RDMAPREP_CONFIG", &host.config);
    command
        .env("RDMAPREP_RUN_DIR", &host.run)
        .env("RDMAPREP_STATE_DIR", &host.state)
        .env("PATH", "/usr/bin:/bin")
        .env("RDMA_IFACES", "r0");
    command
}

fn spec(annotations: Value) -> Value {
    let mut spec: Value =
        serde_json::from_str(include_str!("../../../examples/spec.json")).unwrap();
    spec["annotations"] = annotations;
    spec
}

fn asking() -> Value {
    spec(json!({"rdmaprep.io/plan": "default"}))
}

/// All of ours on this host's disk, by name and content.
fn ours(host: &Host) -> String {
    let (run, state) = (host.run.display(), host.state.display());
    sh(&format!(
        "find {run} {state} -type f 2>/dev/null -exec sha256sum {{}} + | sort; find {run} {state} \
        2>/dev/null | sort"
    ))
}

#[test]
fn arguments_arrive_byte_for_byte() {
    alone(|host| {
        let fake = Fake::new(host, "");
        let word = prop_oneof![
            "[ -~]{0,20}",
            "--?(bundle|b|log|root|x)=?[a-z/]{0,5}",
            Just("create".to_owned()),
            Just("run".to_owned()),
            Just("--".to_owned())
        ]
        .prop_map(String::into_bytes);
        let bytes = prop::collection::vec(1..=255u8, 0..30);
        let words = prop::collection::vec(prop_oneof![word, bytes], 0..8);
        let mut runner = TestRunner::new(ProptestConfig {
            cases: 64,
            failure_persistence: None,
            ..Default::default()
        });
        let dir = host.run.parent().unwrap();
        runner
            .run(&words, |words| {
                let said = run(
                    shim(host, "rdmaprep-runtime")
                        .current_dir(dir)
                        .args(words.iter().map(|w| OsStr::from_bytes(w))),
                    "",
                );
                prop_assert_eq!(said.code, Some(37), "{:?}", said);
                let mut expected =
                    format!("/bin/sh\0{}\0", fake.dir.join("runc").display()).into_bytes();
                words
                    .iter()
                    .for_each(|word| expected.extend([word.as_slice(), b"\0"].concat()));
                prop_assert_eq!(fs::read(fake.dir.join("args")).unwrap(), expected);
                Ok(())
            })
            .unwrap();
        // As a command of ours it is no different.
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        let said = run(
            command
                .env_clear()
                .env("RDMAPREP_CONFIG", &host.config)
                .args(["runtime", "--help", "--config", "x"]),
            "",
        );
        assert_eq!(said.code, Some(37), "{said:?}");
        assert!(
            fake.seen("args")
                .unwrap()
                .ends_with("\0--help\0--config\0x\0")
        );
        let said = run(
            Command::new(env!("CARGO_BIN_EXE_rdmaprep"))
                .env_clear()
                .arg("--config")
                .arg(&host.config)
                .args(["runtime", "--help"]),
            "",
        );
        assert_eq!(said.code, Some(37), "{said:?}");
        assert!(fake.seen("args").unwrap().ends_with("\0--help\0"));
    });
}

#[test]
fn a_container_that_does_not_ask_is_not_changed() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        let text = fake.config(&spec(json!({"com.example/plan": "default"})));
        let inode = |fake: &Fake| {
            sh(&format!(
                "stat -c '%i %y' {}/config.json",
                fake.bundle.display()
            ))
        };
        let before = inode(&fake);
        let said = fake.create(host);
        assert_eq!(
            (said.code, said.out.as_str(), said.err.as_str()),
            (Some(37), "", "")
        );
        assert_eq!((fake.now(), inode(&fake)), (text, before));
        assert_eq!(ours(host), "");
        assert!(
            !fake.seen("env").unwrap().contains("RDMAPREP_HANDLES")
                && !fake.seen("fds").unwrap().contains("memfd")
        );
        assert!(!fake.dir.join("log.json").exists());
        // Nor is any other command, whatever the container asks for.
        let text = fake.config(&asking());
        for args in [
            &["delete", "--force", "id"][..],
            &["state", "id"],
            &["exec", "id", "create"],
            &["--version"],
            &[],
        ] {
            let said = run(
                shim(host, "rdmaprep-runtime")
                    .current_dir(&fake.bundle)
                    .args(args),
                "",
            );
            assert_eq!((said.code, said.err.as_str()), (Some(37), ""), "{args:?}");
        }
        assert_eq!((fake.now(), ours(host)), (text, String::new()));
        // What cannot be read as a config.json is the runtime's business.
        for text in ["", "{", "[]", "null", "{\"annotations\": 7}"] {
            fs::write(fake.bundle.join("config.json"), text).unwrap();
            assert_eq!(fake.create(host).code, Some(37), "{text}");
            assert_eq!(fake.seen("seen").unwrap(), text);
        }
        fs::remove_file(fake.bundle.join("config.json")).unwrap();
        assert_eq!(fake.create(host).code, Some(37));
    });
}

#[test]
fn an_opt_in_is_answered_whatever_its_config_json_is() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let fake = Fake::new(host, "");
        let (path, other) = (
            fake.bundle.join("config.json"),
            fake.bundle.join("other.json"),
        );
        fake.config(&asking());
        fs::rename(&path, &other).unwrap();
        symlink("other.json", &path).unwrap();
        let refused = |word: &str| {
            let said = fake.create(host);
            assert_eq!((said.code, fake.seen("args")), (Some(5), None), "{said:?}");
            assert!(fake.logged().1.contains(word), "{:?}", fake.logged());
        };
        refused("config.json");
        // Of every other command it is none of our business.
        let said = run(
            shim(host, "rdmaprep-runtime")
                .current_dir(&fake.bundle)
                .args(["delete", "id"]),
            "",
        );
        assert_eq!(said.code, Some(37), "{said:?}");
        fs::remove_file(fake.dir.join("args")).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(
            &path,
            b"{\"annotations\": {\"rdmaprep.io/plan\": \"default\"}, \"\xff\": 1}",
        )
        .unwrap();
        refused("UTF-8");
        for annotations in [
            json!({"rdmaprep.io/plan": "default", "a": 7, "z": null}),
            json!({"rdmaprep.io/plan": 7}),
        ] {
            fake.config(&spec(annotations));
            refused("no OCI runtime configuration");
        }
        fake.config(&spec(json!({"a": 7, "z": null})));
        assert_eq!(fake.create(host).code, Some(37));
    });
}

#[test]
fn a_container_that_asks_gets_the_edit_of_spec() {
    alone(|host| {
        let rails = host.rails(2);
        host.prepare(&rails);
        let fake = Fake::new(host, "");
        let text = fake.config(&asking());
        let edited = run(&mut host.command(&["spec"]), &text).ok().out;
        assert_ne!(edited, text);
        fs::set_permissions(
            fake.bundle.join("config.json"),
            fs::Permissions::from_mode(0o640),
        )
        .unwrap();
        assert_eq!(fake.create(host).code, Some(37));
        assert_eq!(fake.seen("seen").unwrap(), edited);
        assert_eq!(
            fs::metadata(fake.bundle.join("config.json"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o640
        );
        let all = ours(host);
        // The edit is idempotent, in each form of the command line, from any working directory.
        let inode = || sh(&format!("stat -c %i {}/config.json", fake.bundle.display()));
        let before = inode();
        for (dir, args) in [
            (&fake.dir, &["run", "-b=bundle", "id"][..]),
            (&fake.bundle, &["create", "id"]),
            (&fake.bundle, &["run", "--config", "config.json", "id"]),
            (
                &fake.dir,
                &[
                    "--root",
                    "create",
                    "run",
                    "--bundle",
                    "../fake/bundle",
                    "id",
                ],
            ),
        ] {
            let said = run(
                shim(host, "rdmaprep-runtime").current_dir(dir).args(args),
                "",
            );
            assert_eq!(said.code, Some(37), "{args:?}: {said:?}");
            assert_eq!(
                (fake.now(), inode()),
                (edited.clone(), before.clone()),
                "{args:?}"
            );
            assert_eq!(fake.seen("cwd").unwrap().trim(), dir.to_str().unwrap());
        }
        // Each of them edits as well.
        for args in [
            &["run", "-b=bundle", "id"][..],
            &["create", "--bundle", "./bundle/", "id"],
        ] {
            fake.config(&asking());
            run(
                shim(host, "rdmaprep-runtime")
                    .current_dir(&fake.dir)
                    .args(args),
                "",
            );
            assert_eq!(fake.now(), edited, "{args:?}");
        }
        assert_eq!(ours(host), all);
    });
}

#[test]
fn a_refusal_leaves_nothing_and_the_engine_reads_why() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        let mut shared = asking();
        shared["linux"]["namespaces"] = json!([{"type": "mount"}]);
        let refusals = [
            (shared, 3, "shares the host's network"),
            (
                spec(json!({"rdmaprep.io/plan": "../../etc/x"})),
                5,
                "plan name",
            ),
            // No container chooses the program that the host's root runs.
            (
                spec(json!({"rdmaprep.io/plan": "default", "rdmaprep.io/runtime": "/tmp/evil"})),
                5,
                "runtime",
            ),
            (
                spec(json!({"rdmaprep.io/plan": "auto", "rdmaprep.io/exclude": ".*"})),
                4,
                "no NIC",
            ),
            (asking(), 3, "plan default is not stored"),
        ];
        for (config, code, word) in refusals {
            let text = fake.config(&config);
            let said = run(
                shim(host, "rdmaprep-runtime")
                    .args(["create", "--bundle"])
                    .arg(&fake.bundle)
                    .arg("id"),
                "",
            );
            said.fails(code, &[word]);
            let said = fake.create(host);
            assert_eq!(said.code, Some(code), "{said:?}");
            let (level, message) = fake.logged();
            assert!(
                level == "error" && message.starts_with("rdmaprep: ") && message.contains(word),
                "{message}"
            );
            let report = host.report("id");
            assert_eq!(
                (&report["command"], &report["exit_code"]),
                (&json!("runtime"), &json!(code))
            );
            assert_eq!(
                format!("rdmaprep: {}", report["message"].as_str().unwrap()),
                message
            );
            assert!(
                fs::read_to_string(&host.log)
                    .unwrap()
                    .lines()
                    .last()
                    .unwrap()
                    .contains("command=runtime container=id ")
            );
            assert_eq!(
                (fake.now(), fake.seen("args")),
                (text, None),
                "the runtime ran"
            );
            assert!(!ours(host).contains("/plans/"), "{}", ours(host));
        }
        // A bundle that cannot be written.
        let text = fake.config(&spec(json!({"rdmaprep.io/plan": "auto"})));
        sh(&format!(
            "mount --bind {0} {0}; mount -o remount,bind,ro {0}",
            fake.bundle.display()
        ));
        let said = fake.create(host);
        assert!(
            said.code.is_some_and(|code| code != 0 && code != 37),
            "{said:?}"
        );
        assert_eq!((fake.now(), fake.seen("args")), (text, None));
        assert!(!ours(host).contains("/plans/"), "{}", ours(host));
    });
}

/// A runtime's stderr is the container's, or that of the engine's user.
#[test]
fn warnings_are_in_a_log_and_never_on_stderr() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let fake = Fake::new(host, "");
        let mut config = asking();
        config["process"]["env"] = json!(["NCCL_SOCKET_IFNAME=secret0", "NCCL_IB_HCA=secret1"]);
        let shown = run(&mut host.command(&["spec"]), &config.to_string())
            .ok()
            .err;
        assert!(
            shown.contains("rdmaprep: warning: ") && shown.contains("secret"),
            "{shown}"
        );
        fake.config(&config);
        let said = fake.create(host);
        assert_eq!((said.code, said.err.as_str()), (Some(37), ""));
        assert!(
            fs::read_to_string(fake.dir.join("log.json"))
                .unwrap()
                .contains("secret")
        );
        assert_eq!(fake.logged().0, "warning");
        // Without a log of the engine's, or with one that cannot be written, they are in that of
        // the hooks.
        for before in [&[][..], &["--log", "/nonexistent/log"]] {
            let _ = fs::remove_file(&host.log);
            fake.config(&config);
            let args = [
                before,
                &["create", "--bundle", fake.bundle.to_str().unwrap(), "id"],
            ]
            .concat();
            let said = run(shim(host, "rdmaprep-runtime").args(args), "");
            assert_eq!((said.code, said.err.as_str()), (Some(37), ""));
            let log = fs::read_to_string(&host.log).unwrap();
            assert!(
                log.starts_with("command=runtime ") && log.contains("secret"),
                "{log}"
            );
        }
    });
}

#[test]
fn whatever_the_config_file_is_containers_are_stopped() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        // The administrator's file may be a link, and an empty variable is none.
        let linked = fake.dir.join("config.toml");
        host.configure(&format!(
            "runtime = {:?}\nplan = \"auto\"",
            fake.dir.join("runc")
        ));
        fs::rename(&host.config, &linked).unwrap();
        symlink(&linked, &host.config).unwrap();
        fake.config(&spec(json!({})));
        assert_eq!(
            (fake.create(host).code, fake.now().contains("createRuntime")),
            (Some(37), true)
        );
        fs::remove_file(&host.config).unwrap();
        let with = |config: &str, name: &str, args: &[&str]| {
            let path = format!("{}:/bin", fake.dir.display());
            run(
                shim(host, name)
                    .env("RDMAPREP_CONFIG", config)
                    .env("PATH", path)
                    .args(args),
                "",
            )
        };
        let create = ["create", "--bundle", fake.bundle.to_str().unwrap(), "id"];
        fake.config(&spec(json!({"rdmaprep.io/plan": "auto"})));
        assert_eq!(
            with("", "rdmaprep-runtime", &["delete", "id"]).code,
            Some(37)
        );
        assert_eq!(with("", "rdmaprep-runtime", &create).code, Some(37));
        assert!(fake.now().contains("createRuntime"));
        // Nor does the hook stumble over it.
        run(
            host.command(&["hook", "poststop"])
                .env("RDMAPREP_CONFIG", ""),
            &Container::new("x").stopped(),
        )
        .ok();
        run(
            Command::new(env!("CARGO_BIN_EXE_rdmaprep"))
                .env_clear()
                .env("RDMAPREP_CONFIG", "")
                .arg("status"),
            "",
        )
        .ok();
        // Where our name tells the runtime, a file that cannot be read keeps no container from
        // being stopped.
        fs::write(&linked, "runtime = ").unwrap();
        for config in [linked.to_str().unwrap(), "/nonexistent/config.toml"] {
            for args in [
                &["kill", "id"][..],
                &["--root", "/x", "delete", "id"],
                &["state", "create"],
            ] {
                assert_eq!(
                    with(config, "rdmaprep-runtime-runc", args).code,
                    Some(37),
                    "{args:?}"
                );
                with(config, "rdmaprep-runtime", args).fails(2, &["config.toml"]);
            }
            with(config, "rdmaprep-runtime-runc", &create).fails(2, &["config.toml"]);
        }
        // No line of a file that is no TOML is taken for what it looks like.
        let (config, ours) = (linked.to_str().unwrap(), fake.dir.join("runc"));
        for text in [
            format!("x = \nruntime = \"crun\"\nruntime = {ours:?}"),
            format!("plan = \n  runtime = {ours:?}  # ours\n[x"),
            "[policy]\ndeny = [".to_owned(),
        ] {
            fs::write(&linked, text).unwrap();
            with(config, "rdmaprep-runtime", &["delete", "id"]).fails(2, &["config.toml"]);
            with(config, "rdmaprep-runtime", &create).fails(2, &["config.toml"]);
        }
    });
}
