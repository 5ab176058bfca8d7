//! `rdmaprep hold`: NICs that are prepared before any container is, on the real kernel.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::alone;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use testkit::hold::{Hold, POOL, whole};
use testkit::{Container, Host, Look, run, sh, until};

/// What it may do, as tests/hostile/privilege.rs has it.
const KEPT: &str = "00000000012c1003";

/// A host with a plan for r0 and r1, and how it is.
fn ready(host: &Host) -> Look {
    let rails = host.rails(2);
    let before = host.look();
    host.prepare(&rails);
    before
}

fn restored() -> bool {
    sh("ip -br link").contains("r0@")
}

#[test]
fn containers_join_and_the_last_one_to_leave_restores_nics() {
    alone(|host| {
        let before = ready(host);
        let hold = Hold::new(host, POOL);
        assert!(
            hold.line.starts_with("/run/netns/pool sysfs=h1.") && hold.line.ends_with('\n'),
            "{}",
            hold.line
        );
        let inside = sh("nsenter --net=/run/netns/pool ip -o -4 address");
        assert!(
            !restored() && inside.contains("10.0.0.1/24") && inside.contains("10.1.0.1/24"),
            "{inside}"
        );
        assert!(
            inside.contains("127.0.0.1"),
            "the loopback interface is down: {inside}"
        );
        // It is as the create hook would have left it, and stays so.
        let (mut one, mut two) = (
            Container::joining("one", "/run/netns/pool")
                .bundled(host, &json!({"root": {"path": "/"}})),
            Container::joining("two", "/run/netns/pool"),
        );
        one.create(host).ok();
        assert_eq!(
            host.report("one")["notes"],
            json!(["joined pool, which has the namespace's NICs"])
        );
        // The time that its own setup took.
        let phases = host.report("one")["phases"].to_string();
        assert!(phases.contains("\"setup\""), "{phases}");
        two.create(host).ok();
        assert_eq!(one.sh("ip -o -4 address"), inside);
        let members = |host: &Host| host.status()[0]["members"].clone();
        assert_eq!(
            members(host),
            json!([["pool", true], ["one", true], ["two", true]])
        );
        one.stop(host).ok();
        assert!(!restored() && members(host) == json!([["pool", true], ["two", true]]));
        // A newcomer of the same name is another container.
        let mut pool = Container::joining("pool", "/run/netns/pool");
        pool.create(host).ok();
        pool.stop(host).ok();
        assert_eq!(members(host), json!([["pool", true], ["two", true]]));
        let said = hold.end(Signal::SIGTERM).ok();
        assert_eq!(said.out, "another container keeps the NICs\n");
        assert!(
            !restored() && members(host) == json!([["two", true]]),
            "{:?}",
            members(host)
        );
        assert!(Path::new("/run/netns/pool").exists());
        assert_eq!(
            host.status()[0]["hold"],
            json!({"path": "/run/netns/pool", "handles": {}})
        );
        let said = host.rdmaprep(&["status"]).ok().out;
        assert!(!said.contains("to join"), "{said}");
        two.stop(host).ok();
        whole(host, &before);
    });
}

/// As an engine does when a container starts: its NICs are where it is about to go.
#[test]
fn a_config_that_names_the_path_is_edited_as_ever() {
    alone(|host| {
        let before = ready(host);
        let edit = |path: &str| {
            let config = json!({"ociVersion": "1.2.0", "process": {"args": ["sh"], "cwd": "/"},
                "root": {"path": "rootfs"},
                "linux": {"namespaces": [{"type": "network", "path": path}, {"type": "mount"}]}});
            let edited = run(
                &mut host.command(&["spec", "--plan", "default"]),
                &config.to_string(),
            )
            .ok();
            serde_json::from_str::<Value>(&edited.out).unwrap_or_else(|e| panic!("{e}: {edited:?}"))
        };
        let pod = Container::new("pod");
        let mut elsewhere = edit(&format!("/proc/{}/ns/net", pod.pid()));
        let hold = Hold::new(host, POOL);
        let here = edit("/run/netns/pool");
        assert!(here["hooks"]["poststop"].is_array(), "{here:#}");
        elsewhere["linux"]["namespaces"] = here["linux"]["namespaces"].clone();
        assert_eq!(here["hooks"], elsewhere["hooks"]);
        assert_eq!(here["process"], elsewhere["process"]);
        hold.end(Signal::SIGTERM).ok();
        whole(host, &before);
    });
}

#[test]
fn every_signal_ends_it_and_meanwhile_it_sleeps() {
    alone(|host| {
        let before = ready(host);
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let hold = Hold::new(host, POOL);
            let status = || fs::read_to_string(format!("/proc/{}/status", hold.pid())).unwrap();
            // The thread that wrote the record's copy ends after the moves, as this one says that
            // it is ready.
            until("one thread is left", || {
                status().lines().any(|l| l == "Threads:\t1")
            });
            for line in ["NoNewPrivs:\t1", &format!("CapPrm:\t{KEPT}")] {
                assert!(
                    status().lines().any(|l| l == line),
                    "no {line:?} in {}",
                    status()
                );
            }
            let times = || fs::read_to_string(format!("/proc/{}/schedstat", hold.pid())).unwrap();
            // It may still be on its way to sleep.
            until("it sleeps", || {
                let earlier = times();
                std::thread::sleep(Duration::from_millis(300));
                times() == earlier
            });
            hold.end(signal).ok();
            whole(host, &before);
        }
    });
}

#[test]
fn a_hold_that_was_killed_is_cleared_away() {
    alone(|host| {
        let before = ready(host);
        let stale = || host.rdmaprep(&["restore", "--all", "--stale"]).ok().out;
        // By the timer.
        Hold::new(host, POOL).kill();
        assert!(!restored());
        let advice = host.status()[0]["advice"].as_str().unwrap().to_owned();
        assert!(
            advice.ends_with("rdmaprep restore --all --stale"),
            "{advice}"
        );
        assert!(stale().contains("container pool"));
        whole(host, &before);
        // By any container's hook.
        Hold::new(host, POOL).kill();
        let mut c = Container::new("c");
        let said = c.create(host).ok();
        assert!(
            host.report("c")["notes"][0]
                .as_str()
                .unwrap()
                .contains("restored r0 r1"),
            "{said:?}"
        );
        c.stop(host).ok();
        whole(host, &before);
        // By the next hold of that name.
        Hold::new(host, POOL).kill();
        let hold = Hold::new(host, POOL);
        let mut one = Container::joining("one", "/run/netns/pool");
        one.create(host).ok();
        // With a process in it, the namespace stays.
        hold.kill();
        assert_eq!((stale().as_str(), restored()), ("", false));
        host.rdmaprep(&["hold", "--name", "pool"])
            .fails(3, &["/run/netns/pool exists already"]);
        one.stop(host).ok();
        whole(host, &before);
    });
}

#[test]
fn what_was_restored_meanwhile_is_not_missed() {
    alone(|host| {
        let before = ready(host);
        let hold = Hold::new(host, POOL);
        host.rdmaprep(&["restore", "pool"]).ok();
        whole(host, &before);
        let said = hold.end(Signal::SIGTERM).ok();
        assert_eq!((said.out, said.err), (String::new(), String::new()));
        whole(host, &before);
    });
}

/// Killed between the file and the mount; or another program uses the name by now.
#[test]
fn only_its_own_name_is_removed() {
    alone(|host| {
        let before = ready(host);
        Hold::new(host, POOL).kill();
        sh("umount /run/netns/pool");
        host.rdmaprep(&["restore", "--all"]).ok();
        whole(host, &before);
        Hold::new(host, POOL).kill();
        sh("umount /run/netns/pool; rm /run/netns/pool; echo mine > /run/netns/pool");
        host.rdmaprep(&["restore", "--all"]).ok();
        assert_eq!(fs::read_to_string("/run/netns/pool").unwrap(), "mine\n");
        sh("rm /run/netns/pool");
        Hold::new(host, POOL).kill();
        sh("umount /run/netns/pool; rm /run/netns/pool; ip netns add pool");
        host.rdmaprep(&["restore", "--all"]).ok();
        sh("ip netns exec pool true; ip netns delete pool; umount /run/netns || true");
        whole(host, &before);
    });
}

/// As `ip netns add` does it: the folder of names is a shared mount, and a runtime's own mount
/// namespace has them all.
#[test]
fn its_name_is_seen_where_else_the_folder_is() {
    alone(|host| {
        let before = ready(host);
        let folder = || {
            sh("grep -c ' /run/netns .* shared:' /proc/self/mountinfo")
                .trim()
                .to_owned()
        };
        Hold::new(host, POOL).end(Signal::SIGTERM).ok();
        assert_eq!(folder(), "1");
        let mut runtime = Command::new("unshare")
            .args([
                "--mount",
                "--propagation",
                "unchanged",
                "sh",
                "-c",
                "echo; exec cat",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        runtime
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0])
            .unwrap();
        let there = |line: &str| {
            sh(&format!(
                "nsenter --target={} --mount sh -ec '{line}'",
                runtime.id()
            ))
        };
        let hold = Hold::new(host, POOL);
        assert!(there("nsenter --net=/run/netns/pool ip -br link").contains("r1@"));
        // Neither of the two mounts it again.
        sh("ip netns add other; ip netns delete other");
        assert_eq!(folder(), "1");
        hold.end(Signal::SIGTERM).ok();
        assert_eq!(
            there("ls /run/netns; grep /run/netns/ /proc/self/mounts || true"),
            ""
        );
        whole(host, &before);
        runtime.kill().unwrap();
        runtime.wait().unwrap();
    });
}

/// If a damaged record still says that it is a hold's, the name is removed with it; else the name
/// is reported.
#[test]
fn the_name_of_a_torn_record_is_forgotten_too() {
    alone(|host| {
        let before = ready(host);
        let me = std::process::id();
        let home = || {
            for nic in ["r0", "r1"] {
                sh(&format!(
                    "nsenter --net=/run/netns/pool ip link set {nic} netns {me}; ip link set \
                    {nic} up"
                ));
            }
            host.ip("address add 10.0.0.1/24 dev r0\naddress add 10.1.0.1/24 dev r1");
        };
        let held = "\"hold\":{\"path\":\"/run/netns/pool\"";
        // After the member that holds it; in the middle of the NICs, where that has left; and
        // nothing at all.
        for tear in [
            &(|text: &str| text[..text.find("\"given\"").unwrap()].to_owned())
                as &dyn Fn(&str) -> String,
            &|text| {
                text[..text.find(held).unwrap() + held.len() + 9]
                    .replace("\"bundle\":\"/run", "\"bundle\":\"/else")
            },
            &|text| "\0".repeat(text.len()),
        ] {
            Hold::new(host, POOL).kill();
            let path = host.records().remove(0);
            let netns = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let torn = tear(&fs::read_to_string(&path).unwrap());
            fs::write(&path, &torn).unwrap();
            let forget = || host.rdmaprep(&["restore", &netns, "--forget"]);
            forget().fails(3, &["r0 r1 can still be taken out"]);
            assert!(Path::new("/run/netns/pool").exists());
            home();
            let said = forget().ok().out;
            let reported = said.contains("its namespace is still /run/netns/pool: ")
                && said.contains("if `rdmaprep hold` made that, ip netns delete pool");
            assert_eq!(reported, torn.starts_with('\0'), "{said}");
            if reported {
                sh("ip netns delete pool");
            }
            whole(host, &before);
        }
        // A name that another program has given the namespace stays.
        Hold::new(host, POOL).kill();
        sh("touch /run/netns/mine; mount --bind /run/netns/pool /run/netns/mine");
        let path = host.records().remove(0);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.find("\"given\"").unwrap()]).unwrap();
        home();
        let netns = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let said = host.rdmaprep(&["restore", &netns, "--forget"]).ok().out;
        assert!(
            said.contains("/run/netns/mine: ") && !said.contains("/run/netns/pool: "),
            "{said}"
        );
        sh("umount /run/netns/mine; rm /run/netns/mine");
        whole(host, &before);
    });
}

#[test]
fn a_process_without_a_hook_keeps_the_nics() {
    alone(|host| {
        let before = ready(host);
        let hold = Hold::new(host, POOL);
        let mut stranger = Container::joining("stranger", "/run/netns/pool");
        let said = hold.end(Signal::SIGTERM).ok();
        let process = format!("process {} (", stranger.pid());
        assert!(
            said.out.contains(&process)
                && said
                    .out
                    .contains(") is still in the namespace and keeps the NICs"),
            "{said:?}"
        );
        assert_eq!(host.rdmaprep(&["restore", "--all", "--stale"]).ok().out, "");
        assert!(stranger.sh("ip -br link").contains("r1@"));
        // A container with hooks joins it, and its end is not the stranger's.
        let mut late = Container::joining("late", "/run/netns/pool");
        late.create(host).ok();
        assert!(stranger.sh("ip -br link").contains("r1@"));
        late.stop(host).ok();
        assert!(stranger.sh("ip -br link").contains("r1@"));
        assert!(
            host.report("late")["notes"]
                .to_string()
                .contains("is still in the namespace and keeps the NICs")
        );
        stranger.kill();
        host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        whole(host, &before);
    });
}

/// The operator restores by hand, and another hold takes the name: the first one's end is not the
/// second one's.
#[test]
fn a_restored_hold_does_not_end_another_one() {
    alone(|host| {
        let before = ready(host);
        let first = Hold::new(host, POOL);
        host.rdmaprep(&["restore", "pool"]).ok();
        whole(host, &before);
        let second = Hold::new(host, POOL);
        assert_eq!(first.end(Signal::SIGTERM).ok().out, "");
        assert!(sh("ip netns exec pool ip -br link").contains("r1@"));
        second.end(Signal::SIGTERM).ok();
        whole(host, &before);
    });
}

/// Without stdout, the path of the namespace cannot be printed.
#[test]
fn what_cannot_be_said_is_undone() {
    alone(|host| {
        let before = ready(host);
        let mut command = host.command(&["hold", "--name", "pool"]);
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let ended = command.stdout(full).stderr(Stdio::null()).status().unwrap();
        assert_eq!(ended.code(), Some(1));
        whole(host, &before);
    });
}

#[test]
fn its_handles_lead_to_what_it_keeps_until_it_ends() {
    alone(|host| {
        let before = ready(host);
        let hold = Hold::new(host, POOL);
        let status = host.status()[0]["hold"].clone();
        assert_eq!(status["path"], "/run/netns/pool");
        let cat = ["--", "cat", "/proc/self/fd/3"];
        let open = |handle: &str| run(host.command(&["handle", "open", handle]).args(cat), "");
        for (name, begins) in [("sysfs", "{\n"), ("topology", "<system ")] {
            let handle = hold.handle(name);
            assert_eq!(status["handles"][name], handle.as_str());
            let number = handle.split('.').nth(4).unwrap();
            let own = format!("/proc/{}/fd/{number}", hold.pid());
            assert_eq!(
                fs::read_link(&own).unwrap().to_str(),
                Some(format!("/memfd:rdmaprep-{name} (deleted)").as_str())
            );
            let kept = fs::read_to_string(own).unwrap();
            assert!(kept.starts_with(begins), "{kept}");
            for _ in 0..2 {
                assert!(open(&handle).ok().out == kept, "{name} is not what is kept");
            }
        }
        // It is the /sys that its containers would see: what the commands about it read.
        let sysfs = hold.handle("sysfs");
        let line = [
            "--",
            "sh",
            "-c",
            "exec \"$0\" sysfs materialize --from - /run/sys <&3",
            env!("CARGO_BIN_EXE_rdmaprep"),
        ];
        run(host.command(&["handle", "open", &sysfs]).args(line), "").ok();
        assert!(Path::new("/run/sys/class").is_dir() && Path::new("/run/sys/devices").is_dir());
        let shown = host.rdmaprep(&["status"]).ok().out;
        assert!(
            shown.contains("to join     /run/netns/pool")
                && shown.contains(&format!("handle      sysfs {sysfs}")),
            "{shown}"
        );
        let pid = hold.pid();
        let advice = format!(
            "end rdmaprep hold, process {pid}, and stop the containers that joined; or: rdmaprep \
            restore pool"
        );
        assert_eq!(host.status()[0]["advice"], advice);
        hold.end(Signal::SIGTERM).ok();
        open(&sysfs).fails(3, &[&format!("process {pid} has gone")]);
        whole(host, &before);
    });
}

#[test]
fn what_cannot_be_held_is_refused_and_changes_nothing() {
    alone(|host| {
        let before = ready(host);
        for (args, code, word) in [
            (&["--name", "../x"][..], 2, "--name"),
            (&["--name", ""], 2, "--name"),
            (&["--plan", ""], 2, "--plan"),
            (&["--deadline", "0"], 2, "--deadline"),
            (
                &["--plan", "auto", "--ifaces", "nope"],
                2,
                "there is no nope",
            ),
            // A misspelt name is no plan of all NICs.
            (
                &["--plan", "other"],
                3,
                "plan other is not stored: stored are default",
            ),
        ] {
            host.rdmaprep(&[&["hold"], args].concat())
                .fails(code, &[word]);
            whole(host, &before);
        }
        sh("mkdir -p /run/netns; touch /run/netns/pool");
        host.rdmaprep(&["hold", "--name", "pool"])
            .fails(3, &["/run/netns/pool exists already"]);
        sh("rm /run/netns/pool");
        let hold = Hold::new(host, &["--name", "pool", "--json"]);
        let line: Value = serde_json::from_str(&hold.line).unwrap();
        assert_eq!(
            (&line["id"], &line["path"]),
            (&json!("pool"), &json!("/run/netns/pool"))
        );
        assert_eq!(
            (&line["nics"], &line["netns"]),
            (&json!(["r0", "r1"]), &host.status()[0]["netns"])
        );
        let keeps = host.normal();
        host.rdmaprep(&["hold", "--name", "second"])
            .fails(9, &["r0 is held by rdmaprep hold pool"]);
        host.rdmaprep(&["hold", "--name", "pool"])
            .fails(3, &["/run/netns/pool exists already"]);
        assert!(!Path::new("/run/netns/second").exists() && host.normal() == keeps);
        assert_eq!(host.status()[0]["last"]["outcome"], "ok");
        hold.end(Signal::SIGINT).ok();
        whole(host, &before);
    });
}

/// Each command that looks for links enters all namespaces for a moment: it is no process that
/// keeps NICs there.
#[test]
fn visits_of_rdmaprep_keep_no_nics() {
    alone(|host| {
        let before = ready(host);
        let looks = format!(
            "while :; do {} snapshot > /dev/null 2>&1; done",
            env!("CARGO_BIN_EXE_rdmaprep")
        );
        let mut visitors: Vec<_> = (0..8)
            .map(|_| Command::new("sh").args(["-c", &looks]).spawn().unwrap())
            .collect();
        for _ in 0..15 {
            let said = Hold::new(host, POOL).end(Signal::SIGTERM).ok();
            assert_eq!(said.err, "", "its NICs are kept");
        }
        for visitor in &mut visitors {
            visitor.kill().unwrap();
            visitor.wait().unwrap();
        }
        whole(host, &before);
    });
}
