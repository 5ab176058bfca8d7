//! What a bundle, an engine or a configuration names is opened as what it must be: nothing else
//! hangs us, misleads us or is written to.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::alone;
use rdmaprep::disk::files;
use rdmaprep::disk::open::{self, Links};
use rdmaprep::kernel::netns::Netns;
use serde_json::{Value, json};
use testkit::{Container, Host, Said, run, sh};

/// The command, ended as by a hang after a time that is ample for it.
fn bounded(command: &Command, stdin: &str) -> Said {
    let mut bound = Command::new("timeout");
    bound
        .args(["-k", "1", "20"])
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear();
    bound.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    run(bound.env("PATH", "/usr/bin:/bin"), stdin)
}

/// Each kind of thing that is no plain file, how it is called and what makes it at a path.
const STRANGE: [(&str, Make); 4] = [
    ("a FIFO", |at| drop(sh(&format!("mkfifo {}", at.display())))),
    ("a folder", |at| fs::create_dir(at).unwrap()),
    ("a socket", |at| drop(UnixListener::bind(at).unwrap())),
    ("a link", |at| symlink("/dev/zero", at).unwrap()),
];

type Make = fn(&Path);

/// Puts one in place of what is at that path.
fn put(path: &Path, make: Make) {
    sh(&format!("rm -rf {}", path.display()));
    make(path);
}

fn config(network: &Path) -> String {
    let mut spec: Value = serde_json::from_str(include_str!("../../examples/spec.json")).unwrap();
    spec["annotations"] = json!({"rdmaprep.io/plan": "default"});
    spec["linux"]["namespaces"] = json!([{"type": "mount"}, {"type": "network", "path": network}]);
    spec.to_string()
}

fn shim(host: &Host, bundle: &Path) -> Command {
    let mut command = Command::new("bash");
    let own = env!("CARGO_BIN_EXE_rdmaprep");
    let line = format!(
        "exec -a rdmaprep-runtime {own} --log {}/log create --bundle \"$0\" id",
        bundle.display()
    );
    command
        .arg("-c")
        .arg(line)
        .arg(bundle)
        .env("RDMAPREP_CONFIG", &host.config);
    command
        .env("RDMAPREP_RUN_DIR", &host.run)
        .env("RDMAPREP_STATE_DIR", &host.state);
    command
}

#[test]
fn netns_path_of_another_type_is_refused() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        host.configure("runtime = \"/bin/true\"");
        let bundle = PathBuf::from("/run/bundle");
        fs::create_dir_all(&bundle).unwrap();
        let file = bundle.join("config.json");
        sh("mkfifo /run/fifo; touch /run/file; mkdir /run/folder; ln -s fifo /run/link");
        let nearly = [
            ("/proc/self/ns/mnt", "no network namespace"),
            ("/proc/self/ns/user", "no network namespace"),
        ];
        let others = [
            "/run/fifo",
            "/run/file",
            "/run/folder",
            "/run/link",
            "/dev/null",
            "/dev/zero",
        ];
        for (path, word) in nearly
            .into_iter()
            .chain(others.map(|path| (path, "no namespace file")))
        {
            let text = config(Path::new(path));
            fs::write(&file, &text).unwrap();
            let arg = bundle.to_str().unwrap();
            bounded(
                &host.command(&["prepare", "--ifaces", &rails, "--bundle", arg]),
                "",
            )
            .fails(5, &[path, word]);
            bounded(&host.command(&["spec"]), &text).fails(5, &[path, word]);
            assert_eq!(bounded(&shim(host, &bundle), "").code, Some(5), "{path}");
            assert!(
                fs::read_to_string(bundle.join("log"))
                    .unwrap()
                    .contains(word),
                "{path}"
            );
            assert_eq!(fs::read_to_string(&file).unwrap(), text, "{path}");
        }
        sh(
            "touch /run/net /run/mnt; unshare --net mount --bind /proc/self/ns/net /run/net; \
            mount --bind /proc/self/ns/uts /run/mnt",
        );
        assert!(Netns::named(Path::new("/run/net")).unwrap().is_some());
        assert!(
            Netns::named(Path::new("/proc/self/ns/net"))
                .unwrap()
                .is_some()
        );
        assert!(Netns::named(Path::new("/run/none")).unwrap().is_none());
        assert!(
            Netns::named(Path::new("/run/mnt"))
                .unwrap_err()
                .to_string()
                .contains("but uts:[")
        );
    });
}

#[test]
fn config_json_of_another_type_is_refused() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        host.configure("runtime = \"/bin/true\"");
        let bundle = PathBuf::from("/run/bundle");
        fs::create_dir_all(&bundle).unwrap();
        let arg = bundle.to_str().unwrap();
        for (what, make) in STRANGE {
            put(&bundle.join("config.json"), make);
            bounded(
                &host.command(&["prepare", "--ifaces", &rails, "--bundle", arg]),
                "",
            )
            .fails(5, &[what]);
            assert_eq!(bounded(&shim(host, &bundle), "").code, Some(5), "{what}");
            let mut c = Container::new("odd");
            let state = c.state().replace("\"/b\"", &json!(bundle).to_string());
            bounded(&host.command(&["hook", "createRuntime"]), &state).fails(5, &[what]);
            c.kill();
        }
    });
}

#[test]
fn our_own_files_of_another_type_are_refused() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let (plan, lock) = (host.run.join("plans/default.json"), host.run.join("lock"));
        let mut c = Container::new("c");
        for (path, code) in [(&plan, 1), (&lock, 1), (&host.config, 2)] {
            let before = sh(&format!("cat {0} 2>/dev/null || touch {0}", path.display()));
            for (what, make) in STRANGE {
                // An administrator's link to the config file is followed.
                let what = if what == "a link" && *path == host.config {
                    "a device"
                } else {
                    what
                };
                put(path, make);
                bounded(&host.command(&["hook", "createRuntime"]), &c.state()).fails(code, &[what]);
            }
            sh(&format!("rm -rf {}", path.display()));
            fs::write(path, before).unwrap();
        }
        c.create(host).ok();
        c.stop(host).ok();
        let file = PathBuf::from("/run/file");
        for (what, make) in STRANGE {
            put(&file, make);
            bounded(&host.command(&["prepare", "--snapshot", "/run/file"]), "").fails(2, &[what]);
            let what = if what == "a link" { "a device" } else { what };
            bounded(
                &host.command(&["nccl", "explain", "--conf", "/run/file"]),
                "",
            )
            .fails(2, &[what]);
        }
    });
}

#[test]
fn a_log_of_another_type_hangs_and_gets_nothing() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        for (what, make) in STRANGE {
            let what = if what == "a link" { "a device" } else { what };
            put(&host.log, make);
            let mut c = Container::new("c");
            let said = bounded(&host.command(&["hook", "createRuntime"]), &c.state()).ok();
            assert!(
                said.err.contains(&format!("is no plain file but {what}")),
                "{said:?}"
            );
            c.kill();
            bounded(&host.command(&["hook", "poststop"]), &c.stopped()).ok();
        }
        let said = |log: &Path| {
            sh(&format!("rm -rf {}", host.log.display()));
            symlink(log, &host.log).unwrap();
            let mut c = Container::new("c");
            let said = c.create(host).ok().err + &c.stop(host).ok().err;
            assert_eq!(said, "", "{}", log.display());
        };
        // Ours, through links of ours; and one that is to keep nothing.
        symlink("elsewhere", "/run/second").unwrap();
        said(Path::new("second"));
        assert_eq!(
            fs::read_to_string("/run/elsewhere")
                .unwrap()
                .lines()
                .count(),
            2
        );
        said(Path::new("/dev/null"));
        sh("ln -sfn second /run/elsewhere");
        let e = format!(
            "{:#}",
            files::append(&host.log.with_file_name("second"), "x").unwrap_err()
        );
        assert!(e.contains("leads over more than 8 links"), "{e}");
    });
}

#[test]
fn a_report_replaces_a_link_of_its_name() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let victim = PathBuf::from("/run/victim");
        fs::write(&victim, "precious").unwrap();
        let report = host.run.join("reports/c.json");
        fs::create_dir_all(report.parent().unwrap()).unwrap();
        sh(&format!("chmod 700 {}", report.parent().unwrap().display()));
        for planted in [victim.clone(), PathBuf::from("nowhere")] {
            let _ = fs::remove_file(&report);
            symlink(&planted, &report).unwrap();
            let mut c = Container::new("c");
            c.create(host).ok();
            assert!(fs::symlink_metadata(&report).unwrap().is_file());
            assert_eq!(host.report("c")["container"], "c");
            c.stop(host).ok();
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(!report.with_file_name("nowhere").exists());
        // Nothing else is left there.
        assert_eq!(fs::read_dir(report.parent().unwrap()).unwrap().count(), 1);
    });
}

#[test]
fn a_plain_file_is_opened_and_nothing_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "text").unwrap();
    symlink("file", &link).unwrap();
    assert!(open::plain(&file, Links::Refused).unwrap().is_some());
    assert!(open::plain(&link, Links::Followed).unwrap().is_some());
    assert!(open::plain(&link, Links::Refused).is_err());
    assert!(
        open::plain(&folder.path().join("none"), Links::Refused)
            .unwrap()
            .is_none()
    );
    assert!(open::to_write(&link, false).is_err());
    assert!(open::to_write(&folder.path().join("new"), true).is_ok());
}
