//! Bad input: one clear line, the right exit code, nothing changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::alone;
use clap::FromArgMatches;
use rdmaprep::cli::{self, Cli};
use serde_json::{Value, json};
use testkit::{Container, Host, Said, run, sh};

/// Runs rdmaprep without any namespaces: for what reads nothing but its arguments.
fn rdmaprep(args: &[&str]) -> Said {
    run(
        Command::new(env!("CARGO_BIN_EXE_rdmaprep"))
            .env_clear()
            .args(args),
        "",
    )
}

#[test]
fn help_fits_a_terminal_and_has_the_exit_codes() {
    let help = rdmaprep(&["--help"]).ok().out;
    // What follows it is the runtime's, `--help` as well.
    assert!(
        help.contains("\n  runtime ")
            && rdmaprep(&["help", "runtime"])
                .ok()
                .out
                .contains("Usage: rdmaprep")
    );
    for fault in rdma_model::error_class::ErrorClass::ALL {
        assert!(
            help.contains(&format!("\n  {}  {}", fault.code(), fault.meaning())),
            "{fault:?} in\n{help}"
        );
    }
    for command in [
        "snapshot",
        "prepare",
        "env",
        "spec",
        "hook",
        "hold",
        "handle",
        "plan",
        "claims",
        "restore",
        "status",
        "sysfs",
        "nccl",
        "doctor",
        "topo",
        "job-status",
        "cdi",
        "install",
        "uninstall",
    ] {
        assert!(
            help.contains(&format!("\n  {command} ")),
            "{command} in\n{help}"
        );
        let long_flag = rdmaprep(&[command, "--help"]).ok().out;
        assert_eq!(long_flag, rdmaprep(&["help", command]).ok().out);
        for flag in ["--help", "-h"] {
            let mut wide = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
            let text = run(
                wide.env_clear().env("COLUMNS", "300").args([command, flag]),
                "",
            )
            .ok()
            .out;
            match flag {
                "-h" => assert!(text.lines().count() <= long_flag.lines().count()),
                _ => assert_eq!(text, long_flag),
            }
            let long: Vec<&str> = text.lines().filter(|l| l.chars().count() > 100).collect();
            assert!(
                long.is_empty() && text.contains("Usage: rdmaprep"),
                "{command} {flag}: {long:?}"
            );
        }
    }
}

/// A hook's arguments are read without the other commands, and mean the same.
#[test]
fn hook_alone_is_read_as_by_the_whole_command() {
    let lines = [
        "hook createRuntime",
        "hook createRuntime --hook-timeout 300",
        "hook prestart --plan p --deadline=+5 --agreed d",
        "hook prestart --plan p --plan q",
        "--plan p hook prestart",
        "--config=c hook --plan p prestart",
        "hook prestart --plan -x",
        "hook prestart --plan= --config=",
        "hook prestart --deadline 3601",
        "hook prestart poststop",
        "hook -- prestart",
        "hook poststop --state-dir /s --run-dir=/r",
        "--config hook --state-dir /s hook prestart --plan p --deadline 5 --ifaces r0,r1",
        "hook createRuntime --rail r0 --rail hca:mlx5_0 --handles=a=b,c=d --exclude= --ib \
        --no-auto-skip",
        "hook poststart --wait 3 --agreed x --hook-timeout 60 --allow-bootstrap-iface=0 \
        --exclude -x",
        "hook",
        "hook nonsense",
        "hook createRuntime --nonsense",
        "hook createRuntime --wait -1",
        "hook --help",
        "prepare --plan hook",
        "status hook",
        "runtime hook --config x",
    ];
    for line in lines {
        let args: Vec<&str> = ["rdmaprep"].into_iter().chain(line.split(' ')).collect();
        let whole = cli::command()
            .try_get_matches_from(&args)
            .and_then(|m| Cli::from_arg_matches(&m));
        let text = |read: Result<Cli, clap::Error>| {
            read.map(|c| format!("{c:?}")).map_err(|e| e.to_string())
        };
        assert_eq!(text(Cli::read(&args)), text(whole), "{line}");
    }
}

#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    for (args, word) in [
        (&["--nonsense"][..], "--nonsense"),
        (&["nonsense"], "nonsense"),
        (&["prepare", "--nonsense"], "--nonsense"),
        (&["prepare", "--hook-timeout", "0"], "0"),
        (&["prepare", "--plan", "../../etc/x"], "plan name"),
        (&["prepare", "--plan", ""], "--plan"),
        (&["prepare", "--family", "5"], "family"),
        // What counts for nothing is not offered.
        (
            &["topo", "--arp-profile", "off"],
            "there is no --arp-profile",
        ),
        (
            &["topo", "--nccl-version", "2.27.7"],
            "there is no --nccl-version",
        ),
        (&["topo", "--foo"], "there is no --foo"),
        (&["explain"], "did you mean `rdmaprep nccl explain`?"),
        (&["show"], "did you mean `rdmaprep plan show`?"),
        (&["doctor", "--no-auto-skip"], "--no-auto-skip"),
        (&["cdi", "generate", "--topo"], "--topo"),
        (&["hook"], "STAGE"),
        (&["hook", "midnight"], "midnight"),
        (&["hook", "createRuntime", "--deadline", "soon"], "soon"),
        (&["restore"], "--all"),
        (&["restore", "x", "--all"], "--all"),
        (&["snapshot", "--json", "--normal"], "--normal"),
        (
            &["snapshot", "--config", "/nonexistent/c.toml", "--root"],
            "--root",
        ),
        (
            &["status", "--config", "/nonexistent/c.toml"],
            "/nonexistent/c.toml",
        ),
    ] {
        rdmaprep(args).fails(2, &[word]);
    }
}

/// The host before, with everything of ours on its disk; compared when a refusal must have changed
/// nothing.
fn all(host: &Host) -> String {
    let root = host.run.parent().unwrap().display().to_string();
    host.normal()
        + &sh(&format!(
            "cd {root}; find . -path ./run/reports -prune -o -path ./log -o -path ./run/lock -o \
            -type f -exec sha256sum {{}} + -o -print"
        ))
}

#[test]
fn a_state_that_no_runtime_would_write_is_refused() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let c = Container::new("bad");
        let before = all(host);
        let state = |pid: Value| {
            json!({"id": "bad", "pid": pid, "bundle": "/b",
                "annotations": {"rdmaprep.io/plan": "default"}})
            .to_string()
        };
        let dead = {
            let mut child = Command::new("true").spawn().unwrap();
            child.wait().unwrap();
            child.id()
        };
        let whole = c.state();
        let cases: [(String, &str); 18] = [
            (String::new(), "stdin is empty"),
            (" \n".into(), "stdin is empty"),
            (
                whole[..whole.len() / 2].into(),
                "reading the runtime's state",
            ),
            ("not json at all".into(), "reading the runtime's state"),
            ("[]".into(), "reading the runtime's state"),
            ("\u{0}\u{1b}[2J".into(), "reading the runtime's state"),
            (format!("{{\"id\": \"{}\"}}", "x".repeat(5 << 20)), "bytes"),
            ("[".repeat(1 << 20), "reading the runtime's state"),
            (json!({"id": "", "pid": 7}).to_string(), "id"),
            (state(json!(dead)), "process"),
            (state(json!("12")), "reading the runtime's state"),
            (state(json!(1)), "pid 1"),
            (state(json!(0)), "pid"),
            (state(json!(-1)), "pid"),
            (state(json!(null)), "pid"),
            (state(json!(99999999999u64)), "pid"),
            (state(json!(1.5)), "reading the runtime's state"),
            (
                json!({"id": "bad", "pid": c.pid(), "annotations": {"rdmaprep.io/plan": 7}})
                    .to_string(),
                "reading the runtime's state",
            ),
        ];
        for (text, word) in cases {
            host.hook("createRuntime", &text).fails(5, &[word]);
        }
        // Our own pid.
        let own =
            json!({"id": "bad", "pid": "PID", "annotations": {"rdmaprep.io/plan": "default"}})
                .to_string();
        let hook = host.command(&["hook", "createRuntime"]);
        let mut shell = Command::new("sh");
        let line = "f=$1; shift; sed \"s/\\\"PID\\\"/$$/\" > $f; exec \"$@\" < $f";
        shell
            .args(["-ec", line, "sh", "/run/own-state"])
            .arg(hook.get_program())
            .args(hook.get_args());
        run(&mut shell, &own).fails(5, &["this very process"]);
        fs::remove_file("/run/own-state").unwrap();
        assert_eq!(before, all(host));
    });
}

#[test]
fn annotations_that_say_nothing_sensible_are_refused() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let before = all(host);
        for (key, value) in [
            ("plan", "../../x"),
            ("plan", ""),
            ("plan", "default train"),
            ("plan", "a\nb"),
            ("ifaces", "sixteen-bytes-or"),
            ("ifaces", "r0/../r1"),
            ("exclude", "("),
            ("exclude", "(a{1000}){1000}"),
            ("iface", "r0"),
            ("plann", "default"),
        ] {
            let mut annotations = json!({"rdmaprep.io/plan": "default"});
            annotations[format!("rdmaprep.io/{key}")] = json!(value);
            let c = Container::new("odd").annotated(annotations);
            c.create(host).fails(5, &[key]);
        }
        // podman's and CRI-O's hooks run for any annotation of ours: a slip of the pen starts no
        // container without NICs.
        for (key, value) in [
            ("plann", "default"),
            ("plan", ""),
            ("plan", "default train"),
            ("ifaces", "r0"),
        ] {
            let c = Container::new("slip").annotated(json!({format!("rdmaprep.io/{key}"): value}));
            c.create(host).fails(5, &["annotation"]);
        }
        let c = Container::new("none").annotated(json!({"rdmaprep.io/plan": "unheard-of"}));
        c.create(host).fails(3, &["plan unheard-of is not stored"]);
        assert_eq!(before, all(host));
    });
}

#[test]
fn a_container_in_the_hosts_own_namespace_is_refused() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let before = all(host);
        let init = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let state =
            json!({"id": "host", "pid": init.id(), "annotations": {"rdmaprep.io/plan": "default"}});
        host.hook("createRuntime", &state.to_string()).fails(
            3,
            &[
                "shares the host's network namespace",
                "`--network none`, or on a bridge",
            ],
        );
        drop(init);
        assert_eq!(before, all(host));
    });
}

/// podman does not show the output of its precreate hooks.
#[test]
fn why_spec_refuses_a_container_that_asks_is_in_the_log_too() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let log = || fs::read_to_string(&host.log).unwrap_or_default();
        let spec = |annotations: Value| {
            let config = json!({"ociVersion": "1.2.0", "annotations": annotations,
                "root": {"path": "rootfs"},
                "process": {"args": ["sh"], "cwd": "/"},
                "linux": {"namespaces": [{"type": "mount"}]}});
            run(&mut host.command(&["spec"]), &config.to_string())
        };
        spec(json!({})).ok();
        assert_eq!(log(), "");
        let said =
            spec(json!({"rdmaprep.io/plan": "default"})).fails(3, &["shares the host's network"]);
        let reason = said.err.trim().strip_prefix("rdmaprep: ").unwrap();
        assert!(
            log().starts_with("command=spec outcome=refused exit=3 "),
            "{}",
            log()
        );
        assert!(
            log().contains(&format!("message={reason:?}")) && log().lines().count() == 1,
            "{}",
            log()
        );
        let report = host.report("unknown@");
        assert_eq!(
            (&report["message"], &report["exit_code"]),
            (&json!(reason), &json!(3))
        );
        for (key, value) in [
            ("plann", "default"),
            ("plan", ""),
            ("plan", "default train"),
        ] {
            spec(json!({format!("rdmaprep.io/{key}"): value})).fails(5, &["annotation"]);
        }
    });
}

/// Engines show the exit status of a hook and no more.
#[test]
fn status_shows_why_hooks_failed_lately() {
    alone(|host| {
        host.rails(1);
        let failures = || -> Value {
            let said = host.rdmaprep(&["status", "--json"]).ok().out;
            serde_json::from_str::<Value>(&said).unwrap()["failures"].take()
        };
        assert_eq!(failures(), json!([]));
        let c = Container::new("a").annotated(json!({"rdmaprep.io/plan": "default"}));
        let said = c.create(host).fails(3, &["plan default is not stored"]);
        let reason = said.err.trim().strip_prefix("rdmaprep: ").unwrap();
        let first = failures();
        let report = host.run.join("reports/a.json");
        assert_eq!(
            (first[0]["container"].as_str(), first[0]["message"].as_str()),
            (Some("a"), Some(reason))
        );
        assert_eq!(
            (&first[0]["exit_code"], &first[0]["report"]),
            (&json!(3), &json!(report))
        );
        let text = host.rdmaprep(&["status"]).ok().out;
        let rest = text
            .strip_prefix("No container holds a NIC.\nfailed: hook createRuntime, ")
            .unwrap();
        let shown = format!(
            "container a reason {reason} exit code 3 report {}",
            report.display()
        );
        assert_eq!(
            rest.split_once("Z\n")
                .unwrap()
                .1
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" "),
            shown
        );
        assert!(rest.lines().all(|line| line.len() <= 100), "{rest}");
        // What `spec` refuses has the id that the engine made.
        let id = "0123456789abcdef".repeat(4);
        let config = json!({"ociVersion": "1.2.0", "annotations": {"rdmaprep.io/plan": "default"},
            "root": {"path": "rootfs"},
            "process": {"args": ["sh"], "cwd": "/"},
            "linux": {"namespaces": [{"type": "network"}],
                "cgroupsPath": format!("machine.slice:libpod:{id}")}});
        run(&mut host.command(&["spec"]), &config.to_string()).fails(3, &[]);
        assert!(
            failures()
                .as_array()
                .unwrap()
                .iter()
                .any(|f| f["container"] == *id && f["command"] == "spec")
        );
        let text = host.rdmaprep(&["status"]).ok().out;
        assert!(text.contains("  container   0123456789ab\n"), "{text}");
        // A container that has got its NICs has not failed, and what is older than an hour is
        // history.
        host.prepare("r0");
        c.create(host).ok();
        assert!(
            failures()
                .as_array()
                .unwrap()
                .iter()
                .all(|f| f["container"] != "a"),
            "{}",
            failures()
        );
        let old = host.run.join(format!("reports/{id}.json"));
        let mut report = host.report(&id);
        report["time"] = json!(report["time"].as_u64().unwrap() - 3601);
        fs::write(&old, report.to_string()).unwrap();
        assert_eq!(failures(), json!([]));
        host.rdmaprep(&["restore", "a"]).ok();
    });
}

/// A bundle with that config.json.
fn bundle(config: Option<&str>) -> PathBuf {
    let path = PathBuf::from("/run/bundle");
    fs::create_dir_all(&path).unwrap();
    let file = path.join("config.json");
    match config {
        Some(text) => fs::write(file, text).unwrap(),
        None => drop(fs::remove_file(file)),
    }
    path
}

#[test]
fn a_bundle_that_cannot_be_prepared_is_left_alone() {
    alone(|host| {
        let rails = host.rails(1);
        let config = |linux: Value| {
            json!({"ociVersion": "1.2.0", "process": {"args": ["sh"], "cwd": "/"},
                "root": {"path": "r"}, "linux": linux})
            .to_string()
        };
        let network =
            |path: &str| config(json!({"namespaces": [{"type": "network", "path": path}]}));
        for (text, code, word) in [
            (None, 5, "has no config.json"),
            (Some(String::new()), 5, "config.json"),
            (Some("{\"ociVersion\"".into()), 5, "config.json"),
            (Some("[1]".into()), 5, "not an object"),
            (Some(config(json!({}))), 5, "linux.namespaces"),
            (
                Some(config(json!({"namespaces": [{"type": "mount"}]}))),
                3,
                "host's network",
            ),
            (Some(network("/proc/1/ns/net")), 3, "host's own"),
            (
                Some(config(
                    json!({"namespaces": [{"type": "network"}], "netDevices": {"r0": {}}}),
                )),
                3,
                "netDevices",
            ),
        ] {
            let path = bundle(text.as_deref());
            let before = all(host);
            host.rdmaprep(&[
                "prepare",
                "--ifaces",
                &rails,
                "--bundle",
                path.to_str().unwrap(),
            ])
            .fails(code, &[word]);
            assert_eq!(before, all(host));
        }
        host.rdmaprep(&["prepare", "--ifaces", &rails, "--bundle", "/nonexistent"])
            .fails(5, &["/nonexistent"]);
        // A pod's namespace by its path is fine, and preparing twice is preparing once.
        let path = bundle(Some(&network("/run/netns/pod")));
        let args = [
            "prepare",
            "--ifaces",
            &rails,
            "--bundle",
            path.to_str().unwrap(),
        ];
        host.rdmaprep(&args).ok();
        let once = fs::read_to_string(path.join("config.json")).unwrap();
        let spec: Value = serde_json::from_str(&once).unwrap();
        for stage in ["prestart", "createRuntime", "poststart", "poststop"] {
            assert!(
                spec["hooks"][stage][0]["path"]
                    .as_str()
                    .unwrap()
                    .starts_with('/'),
                "{once}"
            );
        }
        host.rdmaprep(&args).ok();
        assert_eq!(once, fs::read_to_string(path.join("config.json")).unwrap());
    });
}

#[test]
fn selections_that_say_nothing_sensible_are_refused() {
    alone(|host| {
        host.rails(2);
        let before = all(host);
        for (flag, value, word) in [
            ("--exclude", "(", "does not compile"),
            ("--exclude", "[z-a]", "does not compile"),
            ("--exclude", "((((a{99}){99}){99}){99})", "does not compile"),
            ("--ifaces", "sixteen-bytes-or", "16 bytes"),
            ("--ifaces", "r0/../r1", "'/'"),
            ("--ifaces", "r0\u{1b}[31m", "interface name"),
            ("--ifaces", "..", "no interface name"),
            (
                "--ifaces",
                "r0 no such",
                "there is no no, such; there are: ",
            ),
            ("--ifaces", "r0\nnewline", "there is no newline"),
            ("--peer-ifaces", "a:b", "':'"),
            ("--bootstrap-address", "10.0.0.300", "no IP address"),
            ("--bootstrap-address", "10.99.0.1", "no interface here owns"),
            ("--peer-address", "10.99.0.1", "no route here leads"),
            ("--allow-bootstrap-iface=maybe", "--ifaces=r0", "maybe"),
        ] {
            host.rdmaprep(&["prepare", flag, value]).fails(2, &[word]);
        }
        // A regex that takes a backtracking engine years.
        let start = Instant::now();
        host.rdmaprep(&[
            "prepare",
            "--ifaces",
            "r0",
            "--exclude",
            "^(([a-z0-9])+.)+[A-Z]([a-z0-9])+$",
        ])
        .ok();
        assert!(start.elapsed() < Duration::from_secs(2));
        // No NIC is left: the message has the reason for each.
        let said = host.rdmaprep(&["prepare"]);
        assert_eq!(said.code, Some(4), "{said:?}");
        assert!(
            said.err
                .contains("not_rdma  r0: r0 has no RDMA device: it is virtual (veth)"),
            "{said:?}"
        );
        fs::remove_dir_all(&host.run).unwrap();
        assert_eq!(before, all(host));
    });
}

#[test]
fn a_damaged_config_file_is_reported_with_its_line() {
    alone(|host| {
        host.rails(1);
        for (text, words) in [
            ("plan = ", &["line 3"][..]),
            ("plan = \"../x\"", &["plan name"]),
            ("nonsense = 1", &["nonsense"]),
            (
                "[select]\nifaces = [\"a b\"]",
                &["line 4", "interface name"],
            ),
            ("deny = [\"(\"]", &["does not compile"]),
        ] {
            host.configure(text);
            host.rdmaprep(&["prepare", "--ifaces", "r0"])
                .fails(2, words);
            let c = Container::new("x");
            c.create(host).fails(2, words);
        }
        fs::write(&host.config, [0xff, 0xfe, 0x00]).unwrap();
        let said = host.rdmaprep(&["status"]).ok();
        assert!(said.err.contains("config.toml") && said.err.contains("defaults"));
        // The log and the container's report have the error, and that is all.
        assert_eq!(
            (host.records(), host.report("x")["outcome"].as_str()),
            (vec![], Some("usage"))
        );
    });
}

#[test]
fn a_damaged_record_is_reported_and_the_others_work() {
    alone(|host| {
        host.rails(3);
        let before = host.look();
        host.rdmaprep(&["prepare", "--ifaces", "r0", "--plan", "a"])
            .ok();
        host.rdmaprep(&["prepare", "--ifaces", "r1", "--plan", "b"])
            .ok();
        let asks =
            |id: &str, plan: &str| Container::new(id).annotated(json!({"rdmaprep.io/plan": plan}));
        let mut hurt = asks("hurt", "a");
        hurt.create(host).ok();
        let record = host.records().remove(0);
        let whole = fs::read(&record).unwrap();
        let zeroed = vec![0; whole.len()];
        let later = String::from_utf8(whole.clone())
            .unwrap()
            .replacen("\"schema\":2", "\"schema\":99", 1)
            .into_bytes();
        for (damaged, word) in [
            (&whole[..whole.len() / 2], "damaged"),
            (&zeroed, "damaged"),
            (&[][..], "damaged"),
            (&[0xff, 0xfe], "UTF-8"),
            (&later, "schema 99"),
        ] {
            fs::write(&record, damaged).unwrap();
            let file = record.file_name().unwrap().to_str().unwrap();
            assert!(host.rdmaprep(&["status"]).ok().err.contains(file));
            host.rdmaprep(&["restore", "--all"]).fails(8, &[file, word]);
            let mut other = asks("other", "b");
            other.create(host).ok();
            assert!(other.sh("ip -br link").contains("r1@"));
            other.stop(host).ok();
            assert_eq!(
                fs::read(&record).unwrap(),
                damaged,
                "a record that cannot be read must stay as it is"
            );
        }
        fs::write(&record, &whole).unwrap();
        hurt.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn restore_of_a_container_that_holds_nothing_says_so() {
    alone(|host| {
        host.rdmaprep(&["restore", "none"])
            .fails(2, &["none", "rdmaprep status"]);
        host.rdmaprep(&["restore", "--all"]).ok();
        assert_eq!(
            host.rdmaprep(&["status"]).ok().out,
            "No container holds a NIC.\n"
        );
        assert_eq!(host.status(), json!([]));
    });
}

#[test]
fn closed_descriptors_are_no_catastrophe() {
    alone(|host| {
        let rails = host.rails(1);
        let before = host.look();
        host.prepare(&rails);
        let mut c = Container::new("mute");
        fs::write("/run/create", c.state()).unwrap();
        fs::write("/run/stop", c.stopped()).unwrap();
        let shell = |line: &str, args: &[&str]| {
            let command = host.command(args);
            let mut shell = Command::new("sh");
            shell
                .args(["-c", &format!("exec \"$@\" {line}"), "sh"])
                .arg(command.get_program())
                .args(command.get_args());
            let said = run(&mut shell, "");
            assert!(!said.err.contains("panicked"), "{said:?}");
            said
        };
        for line in ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"] {
            for args in [
                &["status"][..],
                &["snapshot"],
                &["snapshot", "--json"],
                &["prepare", "--ifaces", "r0"],
                &["restore", "--all"],
            ] {
                shell(line, args).ok();
            }
            assert_eq!(shell(line, &["nonsense"]).code, Some(2));
            assert_eq!(shell(line, &["restore", "none"]).code, Some(2));
        }
        assert_eq!(shell("<&-", &["hook", "createRuntime"]).code, Some(5));
        shell("</run/create >&- 2>&-", &["hook", "createRuntime"]).ok();
        assert!(c.sh("ip -br link").contains("r0@"));
        // A full disk behind stdout is an error; a reader that has closed the pipe is not.
        assert_eq!(shell(">/dev/full", &["snapshot"]).code, Some(1));
        shell("| head -c 1", &["snapshot", "--json"]).ok();
        c.kill();
        shell("</run/stop >&- 2>&-", &["hook", "poststop"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn an_error_is_json_where_that_is_asked_for() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/snapshot.json");
    let none = [
        "prepare",
        "--dry-run",
        "--json",
        "--exclude",
        "rdma",
        "--snapshot",
        example,
    ];
    for (args, code) in [
        (&["status", "--json", "--no-such-flag"][..], 2),
        (&none[..], 4),
    ] {
        let said = rdmaprep(args);
        assert_eq!(said.code, Some(code), "{said:?}");
        let error: Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(error["exit_code"], code);
        let message = error["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.contains(" | "), "{message}");
        // None is left: the verdicts say why, as they do of a plan.
        let verdicts = error["verdicts"].as_array().map(Vec::len);
        assert_eq!(verdicts, (code == 4).then_some(2), "{}", said.out);
    }
    let said = rdmaprep(&["status", "--no-such-flag"]);
    said.fails(2, &["there is no "]);
}

/// What goes into a file does not depend on where it is written from.
#[test]
fn texts_are_as_wide_as_their_terminal() {
    let root = env!("CARGO_MANIFEST_DIR");
    let words = format!(
        "{} doctor --snapshot {root}/examples/snapshot.json",
        env!("CARGO_BIN_EXE_rdmaprep")
    );
    let widest = |columns: u16, to: &str| {
        let line = format!("stty cols {columns}; {words} {to}");
        let mut terminal = Command::new("script");
        terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        let said = run(&mut terminal, "").ok().out;
        // Commands are pasted.
        let text = said.lines().filter(|line| !line.starts_with("echo "));
        text.map(|line| line.trim_end().chars().count()).max()
    };
    let file = widest(100, "| cat");
    for (columns, within) in [(80, 71..=80), (100, 91..=100), (130, 101..=130)] {
        let found = widest(columns, "");
        assert!(
            found.is_some_and(|found| within.contains(&found)),
            "{columns}: {found:?}"
        );
        assert_eq!(widest(columns, "| cat"), file);
    }
    // A console may not know.
    assert_eq!(widest(0, ""), file);
}

#[test]
fn who_is_not_root_is_told_to_be() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o0)).unwrap();
    for command in [&["status"][..], &["plan", "list"]] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        program.env_clear().args(command);
        program.arg("--run-dir").arg(folder.path());
        program.arg("--state-dir").arg(folder.path());
        if nix::unistd::geteuid().is_root() {
            program.uid(65534);
        }
        run(&mut program, "").fails(3, &["rdmaprep: run it as root: ", "Permission denied"]);
    }
    // Others' containers are not seen, so that one which is there would be called missing.
    for command in [&["doctor"][..], &["nccl", "explain"], &["env"]] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        program.env_clear().args(command).args(["--container", "x"]);
        if nix::unistd::geteuid().is_root() {
            program.uid(65534);
        }
        run(&mut program, "").fails(3, &["missing, as uid ", ": run it as root"]);
    }
    // Whatever comes first of what is root's: all say the same.
    for command in [
        &["prepare"][..],
        &["restore", "--all"],
        &["install"],
        &["install", "--podman"],
        &["uninstall"],
    ] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        program.env_clear().args(command);
        let own = nix::unistd::geteuid();
        let uid = if own.is_root() { 65534 } else { own.as_raw() };
        program.uid(uid);
        let said = run(&mut program, "").fails(3, &[]).err;
        let line = format!(
            "rdmaprep: CAP_NET_ADMIN and CAP_SYS_ADMIN missing, as uid {uid}: run it as root\n"
        );
        assert_eq!(said, line, "{command:?}");
    }
}
