//! The runtime shim: what it makes of every form of a runtime's command line, and what reaches the runtime.
//!
//! tests/cases/shim/args.txt has the forms; `BLESS=1` writes what is read of each anew.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]
mod support;

use rdmaprep::config::sysfs_mode::SysfsMode;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rdma_model::tree::{Node, Tree};
use rdmaprep::cli::{Cli, Command as Subcommand};
use rdmaprep::handle::Handle;
use rdmaprep::kernel::process::memfd::sealed;
use rdmaprep::kernel::process::pidfd::Process;
use rdmaprep::kernel::process::pidfd_getfd::handle_for;
use rdmaprep::kernel::store::Store;
use rdmaprep::nccl_env::topo_file;
use rdmaprep::shim::{self, Call, RuntimeChoice, RuntimeCommand, ShimConfig};
use serde_json::{Value, json};
use support::hold::{Hold, POOL};
use support::{Container, Host, Said, alone, run, sh};

fn told(asked: &RuntimeCommand) -> String {
    let config = asked.config.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
    let log = asked.log.as_ref().map(|path| format!(", log {}", path.display()));
    let json = if asked.json { ", json" } else { "" };
    format!("{config}{}{json}", log.unwrap_or_default())
}

#[test]
fn every_form_of_a_command_line() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/shim/args.txt");
    let golden = fs::read_to_string(path).unwrap();
    let mut now = String::new();
    for line in golden.lines() {
        let form = line.split_once(" -> ").map_or(line, |(form, _)| form);
        if form.is_empty() || line.starts_with('#') {
            now += &format!("{line}\n");
            continue;
        }
        let words: Vec<OsString> = form.split(' ').map(|word| if word == "''" { "" } else { word }.into()).collect();
        now += &format!("{form} -> {}\n", told(&shim::read(Path::new(&words[0]), &words[1..])));
    }
    if std::env::var_os("BLESS").is_some() {
        fs::write(path, &now).unwrap();
    }
    support::same("what is read of command lines", &golden, &now);
}

proptest! {
    /// Whatever else stands there: the last `--bundle` before the id counts, and no word makes it panic.
    #[test]
    fn a_bundle_is_found_among_other_options(
        program in "runc|crun|runsc|youki|x",
        before in prop::collection::vec("--root=/[a-z]{1,5}|--debug|--log=/[a-z]|--systemd-cgroup", 0..4),
        own in prop::collection::vec("--pid-file=/[a-z ]{1,5}|--console-socket=/[a-z]|--no-pivot|--bundle=/[a-z]{1,5}", 0..5),
        bundle in "/[a-zA-Z =-]{1,9}",
    ) {
        let all = before.into_iter().chain(["create".to_owned()]).chain(own);
        let all = all.chain(["--bundle".to_owned(), bundle.clone(), "id".to_owned()]);
        let asked = shim::read(Path::new(&program), &all.map(OsString::from).collect::<Vec<_>>());
        prop_assert_eq!(asked.config, Some(Path::new(&bundle).join("config.json")));
    }

    #[test]
    fn any_words_are_read(program in "runc|crun|runsc|youki", words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..8)) {
        shim::read(Path::new(&program), &words.into_iter().map(OsString::from_vec).collect::<Vec<_>>());
    }
}

fn call(words: &[&str]) -> Option<Call> {
    Call::parse(words.iter().map(OsString::from))
}

#[test]
fn it_is_a_runtime_by_its_name_alone() {
    let asked = |named: Option<&str>, args: &[&str]| {
        Some(Call { named: named.map(str::to_owned), args: args.iter().map(OsString::from).collect() })
    };
    assert_eq!(call(&["rdmaprep-runtime", "--version"]), asked(None, &["--version"]));
    assert_eq!(call(&["/usr/bin/rdmaprep-runtime"]), asked(None, &[]));
    assert_eq!(call(&["/x/rdmaprep-runtime-crun", "run", "runtime"]), asked(Some("crun"), &["run", "runtime"]));
    assert_eq!(call(&["rdmaprep", "runtime", "--config", "x"]), asked(None, &["--config", "x"]));
    for own in [
        &["rdmaprep", "prepare", "runtime"][..],
        &["rdmaprep"],
        &["rdmaprep", "--config", "runtime"],
        &["/rdmaprep-runtime/rdmaprep", "spec"],
        &["rdmaprep-runtimes", "x"],
        &[],
    ] {
        assert_eq!(call(own), None, "{own:?}");
    }
}

#[test]
fn the_config_file_and_our_name_choose_the_program_and_nothing_else() {
    let names = |names: &[&str]| RuntimeChoice::Names(names.iter().map(|n| (*n).to_owned()).collect());
    for (named, configured, wanted) in [
        (None, None, names(&["runc", "crun"])),
        (None, Some("crun"), names(&["crun"])),
        (None, Some("/opt/runc"), RuntimeChoice::Path("/opt/runc".into())),
        (Some("runsc"), None, names(&["runsc"])),
        (Some("runsc"), Some("/opt/runc"), names(&["runsc"])),
        (Some("runsc"), Some("/opt/runsc"), RuntimeChoice::Path("/opt/runsc".into())),
        (Some("nvidia"), Some("runc"), names(&["nvidia-container-runtime"])),
    ] {
        assert_eq!(shim::choose_runtime(named, configured).unwrap(), wanted, "{named:?} {configured:?}");
    }
    for (named, configured) in [
        (None, Some("")),
        (None, Some("./runc")),
        (None, Some("../../tmp/runc")),
        (Some("crun"), Some("bin/crun")),
        (Some("sh"), None),
        (Some(""), None),
        (Some("../../tmp/x"), None),
    ] {
        assert!(shim::choose_runtime(named, configured).is_err(), "{named:?} {configured:?}");
    }
    let places = shim::places(&["runc".into(), "crun".into()], OsStr::new("/a:rel::/b:."));
    assert_eq!(places, ["/a/runc", "/b/runc", "/a/crun", "/b/crun"].map(PathBuf::from));
    // What is wrong elsewhere must not keep containers from being stopped.
    assert_eq!(ShimConfig::parse("runtime = \"crun\"\nno_such_key = 1").unwrap().runtime.as_deref(), Some("crun"));
    assert!(ShimConfig::parse("runtime = 7").is_err() && ShimConfig::parse("runtime = ").is_err());
}

#[test]
fn engines_read_the_reason_from_its_log() {
    let said = "a \"quoted\"\tthing\nof\u{1b}two lines";
    let line: Value = serde_json::from_str(&shim::log_line(true, "error", said, "2026-01-02T03:04:05Z")).unwrap();
    assert_eq!(line, json!({"level": "error", "msg": said, "time": "2026-01-02T03:04:05Z"}));
    let text = shim::log_line(false, "warning", "x \"y\"", "2026-01-02T03:04:05Z");
    assert_eq!(text, r#"time="2026-01-02T03:04:05Z" level=warning msg="x \"y\"""#);
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
                "cat /proc/$$/cmdline > {at}/args\nls -l /proc/$$/fd > {at}/fds\nenv > {at}/env\npwd > {at}/cwd\n\
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
        fs::read(self.dir.join(what)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// `create` of the bundle, with a JSON log.
    fn create(&self, host: &Host) -> Said {
        let (log, bundle) = (self.dir.join("log.json"), self.bundle.clone());
        let args = ["--log".into(), log.into_os_string(), "--log-format".into(), "json".into(), "create".into()];
        run(shim(host, "rdmaprep-runtime").args(args).arg("--bundle").arg(bundle).arg("id"), "")
    }

    /// What the engine reads: level and message of the last line.
    fn logged(&self) -> (String, String) {
        let log = fs::read_to_string(self.dir.join("log.json")).unwrap();
        let line: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        let time = line["time"].as_str().unwrap();
        assert!(time.len() == 20 && time.ends_with('Z') && time.contains('T'), "{time}");
        (line["level"].as_str().unwrap().to_owned(), line["msg"].as_str().unwrap().to_owned())
    }
}

/// Our program under another name.
fn shim(host: &Host, name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
    command.arg0(name).env_clear().env("RDMAPREP_CONFIG", &host.config);
    command
        .env("RDMAPREP_RUN_DIR", &host.run)
        .env("RDMAPREP_STATE_DIR", &host.state)
        .env("PATH", "/usr/bin:/bin")
        .env("RDMA_IFACES", "r0");
    command
}

fn spec(annotations: Value) -> Value {
    let mut spec: Value = serde_json::from_str(include_str!("../examples/spec.json")).unwrap();
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
        "find {run} {state} -type f 2>/dev/null -exec sha256sum {{}} + | sort; find {run} {state} 2>/dev/null | sort"
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
        let mut runner = TestRunner::new(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() });
        let dir = host.run.parent().unwrap();
        runner
            .run(&words, |words| {
                let said = run(
                    shim(host, "rdmaprep-runtime").current_dir(dir).args(words.iter().map(|w| OsStr::from_bytes(w))),
                    "",
                );
                prop_assert_eq!(said.code, Some(37), "{:?}", said);
                let mut expected = format!("/bin/sh\0{}\0", fake.dir.join("runc").display()).into_bytes();
                words.iter().for_each(|word| expected.extend([word.as_slice(), b"\0"].concat()));
                prop_assert_eq!(fs::read(fake.dir.join("args")).unwrap(), expected);
                Ok(())
            })
            .unwrap();
        // As a command of ours it is no different.
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
        let said = run(
            command.env_clear().env("RDMAPREP_CONFIG", &host.config).args(["runtime", "--help", "--config", "x"]),
            "",
        );
        assert_eq!(said.code, Some(37), "{said:?}");
        assert!(fake.seen("args").unwrap().ends_with("\0--help\0--config\0x\0"));
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
fn who_does_not_ask_is_not_touched() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        let text = fake.config(&spec(json!({"com.example/plan": "default"})));
        let inode = |fake: &Fake| sh(&format!("stat -c '%i %y' {}/config.json", fake.bundle.display()));
        let before = inode(&fake);
        let said = fake.create(host);
        assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (Some(37), "", ""));
        assert_eq!((fake.now(), inode(&fake)), (text, before));
        assert_eq!(ours(host), "");
        assert!(
            !fake.seen("env").unwrap().contains("RDMAPREP_HANDLES") && !fake.seen("fds").unwrap().contains("memfd")
        );
        assert!(!fake.dir.join("log.json").exists());
        // Nor is any other command, whatever the container asks for.
        let text = fake.config(&asking());
        for args in [&["delete", "--force", "id"][..], &["state", "id"], &["exec", "id", "create"], &["--version"], &[]]
        {
            let said = run(shim(host, "rdmaprep-runtime").current_dir(&fake.bundle).args(args), "");
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
fn who_asks_is_told_whatever_its_config_json_is() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let fake = Fake::new(host, "");
        let (path, other) = (fake.bundle.join("config.json"), fake.bundle.join("other.json"));
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
        let said = run(shim(host, "rdmaprep-runtime").current_dir(&fake.bundle).args(["delete", "id"]), "");
        assert_eq!(said.code, Some(37), "{said:?}");
        fs::remove_file(fake.dir.join("args")).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"{\"annotations\": {\"rdmaprep.io/plan\": \"default\"}, \"\xff\": 1}").unwrap();
        refused("UTF-8");
        for annotations in [json!({"rdmaprep.io/plan": "default", "a": 7, "z": null}), json!({"rdmaprep.io/plan": 7})] {
            fake.config(&spec(annotations));
            refused("no OCI runtime configuration");
        }
        fake.config(&spec(json!({"a": 7, "z": null})));
        assert_eq!(fake.create(host).code, Some(37));
    });
}

#[test]
fn who_asks_gets_what_spec_gives() {
    alone(|host| {
        let rails = host.rails(2);
        host.prepare(&rails);
        let fake = Fake::new(host, "");
        let text = fake.config(&asking());
        let edited = run(&mut host.command(&["spec"]), &text).ok().out;
        assert_ne!(edited, text);
        fs::set_permissions(fake.bundle.join("config.json"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fake.create(host).code, Some(37));
        assert_eq!(fake.seen("seen").unwrap(), edited);
        assert_eq!(fs::metadata(fake.bundle.join("config.json")).unwrap().permissions().mode() & 0o777, 0o640);
        let all = ours(host);
        // Twice is once; and in each form, from wherever it is called.
        let inode = || sh(&format!("stat -c %i {}/config.json", fake.bundle.display()));
        let before = inode();
        for (dir, args) in [
            (&fake.dir, &["run", "-b=bundle", "id"][..]),
            (&fake.bundle, &["create", "id"]),
            (&fake.bundle, &["run", "--config", "config.json", "id"]),
            (&fake.dir, &["--root", "create", "run", "--bundle", "../fake/bundle", "id"]),
        ] {
            let said = run(shim(host, "rdmaprep-runtime").current_dir(dir).args(args), "");
            assert_eq!(said.code, Some(37), "{args:?}: {said:?}");
            assert_eq!((fake.now(), inode()), (edited.clone(), before.clone()), "{args:?}");
            assert_eq!(fake.seen("cwd").unwrap().trim(), dir.to_str().unwrap());
        }
        // Each of them edits as well.
        for args in [&["run", "-b=bundle", "id"][..], &["create", "--bundle", "./bundle/", "id"]] {
            fake.config(&asking());
            run(shim(host, "rdmaprep-runtime").current_dir(&fake.dir).args(args), "");
            assert_eq!(fake.now(), edited, "{args:?}");
        }
        assert_eq!(ours(host), all);
    });
}

/// The hook as the runtime's child, with the environment that it has.
fn hook(host: &Host, before: &str) -> String {
    let (program, root) = (env!("CARGO_BIN_EXE_rdmaprep"), host.run.parent().unwrap().display());
    format!("{before}\n{program} hook createRuntime < {root}/stdin.json > {root}/hook.out 2>&1 || exit 99")
}

#[test]
fn the_runtimes_process_holds_what_the_hook_reads() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        // The files are gone by then.
        let fake = Fake::new(host, &hook(host, &format!("rm -r {}/views", host.run.display())));
        fake.config(&spec(json!({})));
        fake.create(host);
        let count = |fds: &str| fds.lines().filter(|line| line.contains(" -> ")).count();
        let bare = count(&fake.seen("fds").unwrap());
        let mut c = Container::new("id");
        fake.config(&asking());
        let here = |state: String| state.replace("\"/b\"", &format!("{:?}", fake.bundle));
        fs::write(host.run.parent().unwrap().join("stdin.json"), here(c.state())).unwrap();
        let said = fake.create(host);
        let hook = fs::read_to_string(host.run.parent().unwrap().join("hook.out"));
        assert_eq!(said.code, Some(37), "{said:?} {hook:?}");
        let report = host.report("id");
        assert_eq!((&report["outcome"], &report["taken"]), (&json!("ok"), &json!(["sysfs"])), "{report:#}");
        let (env, fds) = (fake.seen("env").unwrap(), fake.seen("fds").unwrap());
        assert!(env.contains("RDMAPREP_HANDLES=sysfs=h1.") && fds.contains("memfd:rdmaprep-sysfs"), "{env}\n{fds}");
        // Nothing else of ours is open there.
        assert_eq!(count(&fds), bare + 1, "{fds}");
        c.kill();
        host.hook("poststop", &here(c.stopped())).ok();
        host.is_clean();
    });
}

#[test]
fn a_runtime_that_hands_everything_on_is_given_nothing() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let fake = Fake::new(host, "");
        for (name, kept) in [("runc", true), ("runsc", false), ("crun", true), ("youki", false), ("mine", false)] {
            let place = fake.dir.join(name);
            if !place.exists() {
                fs::copy(fake.dir.join("runc"), &place).unwrap();
            }
            host.configure(&format!("runtime = {place:?}"));
            fake.config(&asking());
            assert_eq!(fake.create(host).code, Some(37), "{name}");
            assert!(fake.now().contains("createRuntime"), "{name}");
            assert_eq!(fake.seen("fds").unwrap().contains("memfd:rdmaprep"), kept, "{name}");
            assert_eq!(fake.seen("env").unwrap().contains("RDMAPREP_HANDLES"), kept, "{name}");
        }
    });
}

#[test]
fn a_sandbox_gets_a_tree_of_files() {
    let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    for (program, args, sysfs) in [
        ("/usr/bin/runc", &["--rdmaproxy", "create"][..], None),
        ("/usr/bin/runsc", &["--root", "/x", "create"], Some(SysfsMode::Snapshot)),
        ("/usr/bin/runsc", &["--rdmaproxy=false", "create"], Some(SysfsMode::Snapshot)),
        ("/usr/bin/runsc", &["--rdmaproxy-other", "create", "rdmaproxy"], Some(SysfsMode::Snapshot)),
        ("/usr/bin/runsc", &["-rdmaproxy", "create"], Some(SysfsMode::Off)),
        ("/opt/runsc-1", &["--rdmaproxy=true", "create"], Some(SysfsMode::Off)),
    ] {
        assert_eq!(shim::sysfs(Path::new(program), &words(args)), sysfs, "{program} {args:?}");
    }
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let fake = Fake::new(host, "");
        let runsc = fake.dir.join("runsc");
        fs::copy(fake.dir.join("runc"), &runsc).unwrap();
        // The mounts of ours, by destination.
        let mounts = |program: &str, before: &[&str]| {
            host.configure(&format!("runtime = {:?}", fake.dir.join(program)));
            fake.config(&asking());
            let args = [before, &["create", "--bundle", fake.bundle.to_str().unwrap(), "id"]].concat();
            assert_eq!(run(shim(host, "rdmaprep-runtime").args(args), "").code, Some(37));
            let now: Value = serde_json::from_str(&fake.now()).unwrap();
            let views = host.run.join("views").display().to_string();
            let own = |m: &&Value| m["source"].as_str().is_some_and(|source| source.starts_with(&views));
            let all = now["mounts"].as_array().unwrap().iter().filter(own);
            all.map(|m| m["destination"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let live = mounts("runc", &[]);
        assert!(!live.is_empty() && live.iter().all(|at| at.starts_with("/sys/")), "{live:?}");
        assert_eq!(mounts("runsc", &[]), ["/sys"]);
        assert_eq!(mounts("runsc", &["--rdmaproxy"]), [""; 0]);
        // What is asked for stays.
        run(&mut host.command(&["prepare", "--ifaces", "r0", "--sysfs", "live"]), "").ok();
        assert_eq!(mounts("runsc", &[]), live);
    });
}

#[test]
fn a_handle_of_something_else_is_not_believed() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let own = Process::current().unwrap();
        let links =
            |name: &str| [(format!("class/infiniband/{name}"), Node::Link("x".into()))].into_iter().collect::<Tree>();
        let evil = sealed("rdmaprep-sysfs", Store::view_text(&links("evil")).unwrap().as_bytes()).unwrap();
        let handle = handle_for(&own, &evil).unwrap();
        let config = serde_json::from_str(&run(&mut host.command(&["spec"]), &asking().to_string()).ok().out).unwrap();
        for (handles, note) in [
            (format!("sysfs={handle}"), "sysfs is read from its file: what the handle names is another one"),
            (format!("sysfs={}", Handle { ino: handle.ino + 1, ..handle.clone() }), "is another object now"),
            (format!("sysfs={}", Handle { fd: 777, ..handle.clone() }), "has closed descriptor 777"),
            ("sysfs=nonsense".to_owned(), ""),
            ("=,=,sysfs,,topology=".to_owned(), ""),
        ] {
            let mut c = Container::new("id").bundled(host, &config);
            let said = run(host.command(&["hook", "createRuntime"]).env("RDMAPREP_HANDLES", &handles), &c.state());
            said.ok();
            let report = host.report("id");
            assert_eq!((&report["outcome"], report.get("taken")), (&json!("ok"), None), "{handles}: {report:#}");
            let notes = report["notes"].to_string();
            assert!(note.is_empty() || notes.contains(note), "{handles}: {notes}");
            c.stop(host).ok();
            host.is_clean();
        }
    });
}

#[test]
fn a_topology_file_places_the_plans_hcas_alone() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let store = Store::new(&host.run, &host.state);
        let own = Process::current().unwrap();
        // Of NICs without an HCA: a file that places one speaks of others.
        for (xml, code) in [("<system><net name=\"mlx5_9\"/></system>", 3), ("<system/>", 0)] {
            let tree = topo_file::tree(xml);
            let name = Store::view_name(&tree).unwrap();
            let mut config = asking();
            let source = store.views().join(&name).join(topo_file::FILE);
            config["mounts"].as_array_mut().unwrap().push(json!({"destination": topo_file::PLACE, "source": source}));
            let file = sealed("rdmaprep-topology", xml.as_bytes()).unwrap();
            let handles = format!("topology={}", handle_for(&own, &file).unwrap());
            for (handles, kept) in [(handles.as_str(), false), ("", true)] {
                let json = host.run.join(format!("views/{name}.json"));
                let _ = fs::remove_file(&json);
                if kept {
                    store.save_view(&name, &tree).unwrap();
                }
                let mut c = Container::new("id").bundled(host, &config);
                let said = run(
                    host.command(&["hook", "createRuntime", "--sysfs", "off"]).env("RDMAPREP_HANDLES", handles),
                    &c.state(),
                );
                assert_eq!(said.code, Some(code), "{said:?}");
                let report = host.report("id");
                let taken = if kept { None } else { Some(&json!(["topology"])) };
                assert_eq!(report.get("taken"), taken, "{report:#}");
                if code != 0 {
                    said.fails(3, &["other HCAs than those of plan default"]);
                }
                c.stop(host).ok();
                host.is_clean();
            }
        }
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
            (spec(json!({"rdmaprep.io/plan": "../../etc/x"})), 5, "plan name"),
            // No container chooses the program that the host's root runs.
            (spec(json!({"rdmaprep.io/plan": "default", "rdmaprep.io/runtime": "/tmp/evil"})), 5, "runtime"),
            (spec(json!({"rdmaprep.io/plan": "default", "rdmaprep.io/exclude": ".*"})), 4, "no NIC"),
        ];
        for (config, code, word) in refusals {
            let text = fake.config(&config);
            let said = run(shim(host, "rdmaprep-runtime").args(["create", "--bundle"]).arg(&fake.bundle).arg("id"), "");
            said.fails(code, &[word]);
            let said = fake.create(host);
            assert_eq!(said.code, Some(code), "{said:?}");
            let (level, message) = fake.logged();
            assert!(level == "error" && message.starts_with("rdmaprep: ") && message.contains(word), "{message}");
            assert_eq!((fake.now(), fake.seen("args")), (text, None), "the runtime ran");
            assert!(!ours(host).contains("/plans/"), "{}", ours(host));
        }
        // A bundle that cannot be written.
        let text = fake.config(&asking());
        sh(&format!("mount --bind {0} {0}; mount -o remount,bind,ro {0}", fake.bundle.display()));
        let said = fake.create(host);
        assert!(said.code.is_some_and(|code| code != 0 && code != 37), "{said:?}");
        assert_eq!((fake.now(), fake.seen("args")), (text, None));
        assert!(!ours(host).contains("/plans/"), "{}", ours(host));
    });
}

/// A runtime's stderr is its container's, or that of whoever looks at it.
#[test]
fn warnings_are_in_a_log_and_never_on_stderr() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let fake = Fake::new(host, "");
        let mut config = asking();
        config["process"]["env"] = json!(["NCCL_SOCKET_IFNAME=secret0", "NCCL_IB_HCA=secret1"]);
        let shown = run(&mut host.command(&["spec"]), &config.to_string()).ok().err;
        assert!(shown.contains("rdmaprep: warning: ") && shown.contains("secret"), "{shown}");
        fake.config(&config);
        let said = fake.create(host);
        assert_eq!((said.code, said.err.as_str()), (Some(37), ""));
        assert!(fs::read_to_string(fake.dir.join("log.json")).unwrap().contains("secret"));
        assert_eq!(fake.logged().0, "warning");
        // Without a log of the engine's, or with one that cannot be written, they are in that of the hooks.
        for before in [&[][..], &["--log", "/nonexistent/log"]] {
            let _ = fs::remove_file(&host.log);
            fake.config(&config);
            let args = [before, &["create", "--bundle", fake.bundle.to_str().unwrap(), "id"]].concat();
            let said = run(shim(host, "rdmaprep-runtime").args(args), "");
            assert_eq!((said.code, said.err.as_str()), (Some(37), ""));
            let log = fs::read_to_string(&host.log).unwrap();
            assert!(log.starts_with("command=runtime ") && log.contains("secret"), "{log}");
        }
    });
}

#[test]
fn a_plan_of_the_host_keeps_no_container_from_starting() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        let runtime = fake.dir.join("runc");
        host.configure(&format!("runtime = {runtime:?}\nplan = \"default\""));
        let mut shared = spec(json!({}));
        shared["linux"]["namespaces"] = json!([{"type": "mount"}]);
        let text = fake.config(&shared);
        let said = fake.create(host);
        assert_eq!(said.code, Some(37), "{said:?}");
        assert_eq!(said.err, "");
        let (level, message) = fake.logged();
        assert!(level == "warning" && message.contains("left as it is"), "{level} {message}");
        assert_eq!(fake.seen("seen").unwrap(), text);
        fake.config(&spec(json!({})));
        assert_eq!(fake.create(host).code, Some(37));
        assert!(fake.now().contains("\"rdmaprep.io/plan\""), "{}", fake.now());
    });
}

#[test]
fn the_runtime_is_found_or_nothing_happens() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        let text = fake.config(&asking());
        let runtime = |value: &str| host.configure(&format!("runtime = {value:?}"));
        let own = env!("CARGO_BIN_EXE_rdmaprep");
        let (link, plain) = (fake.dir.join("link"), fake.dir.join("plain"));
        symlink(own, &link).unwrap();
        fs::write(&plain, "").unwrap();
        fake.script("ring", &format!("exec -a rdmaprep-runtime {own} \"$@\""));
        fake.script("circle", &format!("(exec -a rdmaprep-runtime {own} \"$@\"); exit $?"));
        sh(&format!("sed -i 's,/bin/sh,/bin/bash,' {0}/ring {0}/circle", fake.dir.display()));
        fake.script("broken", "");
        sh(&format!("sed -i 's,/bin/sh,/nonexistent,' {}/broken", fake.dir.display()));
        for (value, word) in [
            ("/nonexistent/runc", "/nonexistent/runc"),
            ("no-such-runtime", "no-such-runtime in PATH"),
            ("bin/runc", "neither a name nor an absolute path"),
            (plain.to_str().unwrap(), "is no program"),
            (fake.dir.to_str().unwrap(), "is no program"),
            (own, "is rdmaprep itself"),
            (link.to_str().unwrap(), "is rdmaprep itself"),
            (fake.dir.join("broken").to_str().unwrap(), "running "),
        ] {
            runtime(value);
            let said = fake.create(host);
            assert_eq!(said.code, Some(2), "{value}: {said:?}");
            assert!(fake.logged().1.contains(word), "{value}: {:?}", fake.logged());
            assert_eq!((fake.now(), fake.seen("args")), (text.clone(), None), "{value}");
            assert!(!ours(host).contains("/plans/"), "{value}: {}", ours(host));
        }
        // A script that leads back to us: it would never end.
        fake.config(&spec(json!({})));
        for script in ["ring", "circle"] {
            runtime(fake.dir.join(script).to_str().unwrap());
            assert_eq!(fake.create(host).code, Some(2));
            assert!(fake.logged().1.contains("has led back to it") && fake.seen("args").is_none());
        }
        // Whatever else is wrong in the config file, containers are stopped; but not by a runtime that nobody meant.
        host.configure(&format!("runtime = {:?}\nno_such_key = 1", fake.dir.join("runc")));
        assert_eq!(run(shim(host, "rdmaprep-runtime").args(["delete", "id"]), "").code, Some(37));
        fs::write(&host.config, "runtime = \"runc\" \"crun\"").unwrap();
        run(shim(host, "rdmaprep-runtime").args(["delete", "id"]), "").fails(2, &["config.toml"]);
        // A link to us in PATH is passed over.
        host.configure("");
        let first = fake.dir.join("first");
        fs::create_dir(&first).unwrap();
        symlink(own, first.join("runc")).unwrap();
        let path = format!("{}:{}", first.display(), fake.dir.display());
        assert_eq!(
            run(shim(host, "rdmaprep-runtime").env("PATH", format!("{path}:/bin")).arg("state"), "").code,
            Some(37)
        );
        assert!(fake.seen("args").unwrap().contains("/fake/runc\0state\0"));
        // Our name chooses, too.
        fs::rename(fake.dir.join("runc"), fake.dir.join("crun")).unwrap();
        let said =
            run(shim(host, "/usr/bin/rdmaprep-runtime-crun").env("PATH", format!("{path}:/bin")).arg("state"), "");
        assert_eq!(said.code, Some(37), "{said:?}");
        run(shim(host, "rdmaprep-runtime-sh").args(["-c", "true"]), "").fails(2, &["no runtime that is known"]);
    });
}

/// Processes in between hide from each of us that it was called by another one.
#[test]
fn a_circle_of_runtimes_ends_and_a_wrapper_works() {
    alone(|host| {
        let fake = Fake::new(host, "");
        let own = env!("CARGO_BIN_EXE_rdmaprep");
        // One that leads back by processes in between: the eighth of us ends it, and its error is that of all.
        let count = fake.dir.join("count");
        fake.script(
            "long",
            &format!(
                "echo >> {}; bash -c '(exec -a rdmaprep-runtime {own} \"$@\"); exit $?' bash \"$@\"; exit $?",
                count.display()
            ),
        );
        let runtime = |value: &str| host.configure(&format!("runtime = {value:?}"));
        runtime(fake.dir.join("long").to_str().unwrap());
        let mut bounded = Command::new("timeout");
        let called = shim(host, "rdmaprep-runtime");
        bounded.args(["60", "bash", "-c", "exec -a rdmaprep-runtime \"$@\"", "bash", own, "state", "id"]).env_clear();
        bounded.envs(called.get_envs().filter_map(|(name, value)| Some((name, value?))));
        run(&mut bounded, "").fails(2, &["has led back to it 8 times"]);
        assert_eq!(fs::read_to_string(&count).unwrap().lines().count(), 8);
        // A wrapper that calls us once, as one for each engine in another one's container does, is none.
        let inner = format!(
            "bash -c '(RDMAPREP_CONFIG={}/inner.toml exec -a rdmaprep-runtime {own} \"$@\"); exit $?' bash \"$@\"; exit $?",
            fake.dir.display()
        );
        fake.script("wrapper", &inner);
        fs::write(fake.dir.join("inner.toml"), format!("runtime = {:?}", fake.dir.join("runc"))).unwrap();
        runtime(fake.dir.join("wrapper").to_str().unwrap());
        assert_eq!(run(shim(host, "rdmaprep-runtime").args(["state", "id"]), "").code, Some(37));
    });
}

/// The hook as a config.json has it, with no more of an environment than some runtimes give.
fn hook_of(host: &Host, config: &str, container: &Container) -> Said {
    let config: Value = serde_json::from_str(config).unwrap();
    let args = config["hooks"]["createRuntime"][0]["args"].as_array().unwrap().clone();
    let args: Vec<&str> = args.iter().skip(1).map(|arg| arg.as_str().unwrap()).collect();
    run(&mut host.command(&args), &container.state())
}

#[test]
fn a_plan_that_nobody_prepared_is_this_containers_alone() {
    alone(|host| {
        host.rails(2);
        let fake = Fake::new(host, "");
        let edited = || {
            fake.config(&asking());
            let args = ["create", "--bundle", fake.bundle.to_str().unwrap(), "id"];
            let said = run(shim(host, "rdmaprep-runtime").env("RDMA_IFACES", "r0 r1").args(args), "");
            assert_eq!(said.code, Some(37), "{said:?}");
            fake.now()
        };
        let mut first = Container::new("first").annotated(json!({"rdmaprep.io/plan": "default"}));
        run(host.command(&["hook", "createRuntime"]).env("RDMA_IFACES", "r0"), &first.state()).ok();
        // What somebody has just now, others do not lack from then on.
        let less = edited();
        assert!(less.contains("\"--ifaces=r1\""), "{less}");
        first.stop(host).ok();
        let all = edited();
        assert!(all.contains("\"--ifaces=r0,r1\""), "{all}");
        let mut second = Container::new("second");
        hook_of(host, &all, &second).ok();
        assert_eq!(host.report("second")["nics"], json!(["r0", "r1"]));
        // Nor does one get less than it was edited for.
        second.stop(host).ok();
        let mut third = Container::new("third");
        hook_of(host, &less, &third).ok();
        assert_eq!(host.report("third")["nics"], json!(["r1"]));
        let fourth = Container::new("fourth");
        hook_of(host, &all, &fourth).fails(9, &["r1 is held by container third"]);
        third.stop(host).ok();
        host.is_clean();
        // Whatever name a container invents leaves no plan.
        for name in ["a", "b", "c"] {
            fake.config(&spec(json!({"rdmaprep.io/plan": name})));
            assert_eq!(fake.create(host).code, Some(37));
            assert!(fake.now().contains(&format!("\"rdmaprep.io/plan\": \"{name}\"")), "{}", fake.now());
        }
        assert!(!ours(host).contains("/plans/"), "{}", ours(host));
    });
}

#[test]
fn what_was_asked_reaches_the_hook_as_flags() {
    let cases: [(&[&str], &[&str]); 3] = [
        (&[], &[]),
        (
            &["--ifaces", "a b", "--ifaces", "c", "--exclude", "-x", "--family=6", "--sysfs", "off", "--ib"],
            &["--ifaces=a b,c", "--exclude=-x", "--family=6", "--ib=1", "--sysfs=off"],
        ),
        (
            &["--exclude=", "--no-auto-skip", "--no-nccl-topo", "--peer-ifaces=a", "--topo=no", "--arp-profile", "off"],
            &["--peer-ifaces=a", "--exclude=", "--arp-profile=off", "--topo=no", "--no-auto-skip", "--no-nccl-topo"],
        ),
    ];
    let select = |words: &[&str]| match Cli::read([&["rdmaprep", "spec"], words].concat()).unwrap().command {
        Subcommand::Spec(args) => args.select,
        other => panic!("{other:?}"),
    };
    for (said, flags) in cases {
        let select_of = select(said);
        assert_eq!(select_of.flags(), flags);
        // They are read as what they were made of.
        let again: Vec<String> = select_of.flags();
        let again = select(&again.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(again.flags(), flags);
    }
}

#[test]
fn the_hosts_own_namespace_by_a_path_is_no_containers() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        let place = fake.dir.join("default");
        sh(&format!("touch {0}; mount --bind /proc/self/ns/net {0}", place.display()));
        let joining = |mut config: Value| {
            config["linux"]["namespaces"] = json!([{"type": "network", "path": place}, {"type": "mount"}]);
            config
        };
        let text = fake.config(&joining(asking()));
        assert_eq!(fake.create(host).code, Some(3));
        assert!(fake.logged().1.contains("is the host's own"), "{:?}", fake.logged());
        assert_eq!((fake.now(), fake.seen("args")), (text, None));
        // As `docker run --network host` of one that asks for nothing.
        host.configure(&format!("runtime = {:?}\nplan = \"default\"", fake.dir.join("runc")));
        let text = fake.config(&joining(spec(json!({}))));
        let said = fake.create(host);
        assert_eq!(said.code, Some(37), "{said:?}");
        assert_eq!(fake.now(), text);
    });
}

#[test]
fn a_namespace_that_has_its_nics_keeps_the_plan_of_then() {
    alone(|host| {
        let rails = host.rails(2);
        host.prepare(&rails);
        let hold = Hold::new(host, POOL);
        fs::remove_file(host.run.join("plans/default.json")).unwrap();
        let fake = Fake::new(host, "");
        let joining = |mut config: Value| {
            config["linux"]["namespaces"] = json!([{"type": "network", "path": "/run/netns/pool"}, {"type": "mount"}]);
            config
        };
        fake.config(&joining(asking()));
        assert_eq!(fake.create(host).code, Some(37), "{:?}", fake.logged());
        let config = serde_json::from_str(&fake.now()).unwrap();
        let mut one = Container::joining("one", "/run/netns/pool").bundled(host, &config);
        hook_of(host, &fake.now(), &one).ok();
        assert_eq!(host.report("one")["nics"], json!(["r0", "r1"]));
        // Another plan's it cannot have as well.
        let text = fake.config(&joining(spec(json!({"rdmaprep.io/plan": "other"}))));
        assert_eq!(fake.create(host).code, Some(3));
        assert!(fake.logged().1.contains("has NICs by plan default, not other"), "{:?}", fake.logged());
        assert_eq!(fake.now(), text);
        one.stop(host).ok();
        hold.end(Signal::SIGTERM).ok();
        host.is_clean();
    });
}

#[test]
fn whatever_the_config_file_is_containers_are_stopped() {
    alone(|host| {
        host.rails(1);
        let fake = Fake::new(host, "");
        // The administrator's file may be a link, and an empty variable is none.
        let linked = fake.dir.join("config.toml");
        host.configure(&format!("runtime = {:?}\nplan = \"default\"", fake.dir.join("runc")));
        fs::rename(&host.config, &linked).unwrap();
        symlink(&linked, &host.config).unwrap();
        fake.config(&spec(json!({})));
        assert_eq!((fake.create(host).code, fake.now().contains("createRuntime")), (Some(37), true));
        fs::remove_file(&host.config).unwrap();
        let with = |config: &str, name: &str, args: &[&str]| {
            let path = format!("{}:/bin", fake.dir.display());
            run(shim(host, name).env("RDMAPREP_CONFIG", config).env("PATH", path).args(args), "")
        };
        let create = ["create", "--bundle", fake.bundle.to_str().unwrap(), "id"];
        fake.config(&asking());
        assert_eq!(with("", "rdmaprep-runtime", &["delete", "id"]).code, Some(37));
        assert_eq!(with("", "rdmaprep-runtime", &create).code, Some(37));
        assert!(fake.now().contains("createRuntime"));
        // Nor does the hook stumble over it.
        run(host.command(&["hook", "poststop"]).env("RDMAPREP_CONFIG", ""), &Container::new("x").stopped()).ok();
        run(Command::new(env!("CARGO_BIN_EXE_rdmaprep")).env_clear().env("RDMAPREP_CONFIG", "").arg("status"), "").ok();
        // Where our name tells the runtime, a file that cannot be read keeps no container from being stopped.
        fs::write(&linked, "runtime = ").unwrap();
        for config in [linked.to_str().unwrap(), "/nonexistent/config.toml"] {
            for args in [&["kill", "id"][..], &["--root", "/x", "delete", "id"], &["state", "create"]] {
                assert_eq!(with(config, "rdmaprep-runtime-runc", args).code, Some(37), "{args:?}");
                with(config, "rdmaprep-runtime", args).fails(2, &["config.toml"]);
            }
            with(config, "rdmaprep-runtime-runc", &create).fails(2, &["config.toml"]);
        }
        // Nor where a line of it does, or none is about that; but not by one of several, or by a line about something else.
        let (config, ours) = (linked.to_str().unwrap(), fake.dir.join("runc"));
        for text in [
            format!("x = \nruntime = \"crun\"\nruntime = {ours:?}"),
            format!("x = \nruntimes = 1\n# runtime = {ours:?}"),
        ] {
            fs::write(&linked, text).unwrap();
            with(config, "rdmaprep-runtime", &["delete", "id"]).fails(2, &["config.toml"]);
        }
        let config = linked.to_str().unwrap();
        for text in
            [format!("plan = \n  runtime = {:?}  # ours\n[x", fake.dir.join("runc")), "[policy]\ndeny = [".to_owned()]
        {
            fs::write(&linked, text).unwrap();
            for args in [&["kill", "id"][..], &["--root", "/x", "delete", "id"], &["state", "create"]] {
                assert_eq!(with(config, "rdmaprep-runtime", args).code, Some(37), "{args:?}");
            }
            with(config, "rdmaprep-runtime", &create).fails(2, &["config.toml"]);
        }
    });
}
