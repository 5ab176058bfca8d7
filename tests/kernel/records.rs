//! Records whose folders fail, on the real kernel.

use std::fs;
use std::path::Path;

use crate::alone;
use serde_json::json;
use testkit::{Container, Host, sh};

fn stale(host: &Host) -> String {
    host.rdmaprep(&["restore", "--all", "--stale"]).ok().out
}

/// The hook of a pod's container was killed before the NICs were attached. The pod's sandbox, which
/// lives on, was promised none.
#[test]
fn nics_of_a_killed_hook_do_not_wait_for_the_sandbox() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let before = host.look();
        let sandbox = Container::new("sandbox").annotated(serde_json::json!({}));
        let mut c = Container::beside("c", &sandbox);
        c.create(host).ok();
        let record = host.records().remove(0);
        let text = fs::read_to_string(&record).unwrap();
        assert!(text.contains("\"phase\":\"attached\""), "{text}");
        c.kill();
        assert_eq!(stale(host), "", "the sandbox has NICs");
        fs::write(
            &record,
            text.replace("\"phase\":\"attached\"", "\"phase\":\"attaching\""),
        )
        .unwrap();
        assert!(stale(host).contains("container c"));
        host.is_as(&before);
        host.is_clean();
    });
}

/// No record can change there, so no NIC moves; what needs no change goes on.
#[test]
fn read_only_run_folder_is_named_and_stops_without_nics_pass() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let before = host.look();
        let mut c = Container::new("c");
        c.create(host).ok();
        sh("mount -o remount,ro /run");
        let others = Container::new("other").stopped();
        assert_eq!(host.hook("poststop", &others).ok().err, "");
        let words = [
            "/run/run is read-only here",
            "make it writable",
            "rdmaprep restore --all",
        ];
        c.stop(host).fails(3, &words);
        host.rdmaprep(&["restore", "c"]).fails(3, &words);
        Container::new("next").create(host).fails(3, &words);
        sh("mount -o remount,rw /run");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_as(&before);
        host.is_clean();
        sh("mount -o remount,ro /run");
        let said = host.rdmaprep(&["restore", "--all"]).ok();
        assert_eq!(said.out, "No container holds a NIC.\n");
    });
}

/// A run folder that has its plan and no room; its path.
pub fn full_run_folder(host: &Host) -> String {
    let run = host.run.display().to_string();
    let plan = fs::read(host.run.join("plans/default.json")).unwrap();
    sh(&format!("mount -t tmpfs -o size=64k,mode=700 none {run}"));
    fs::create_dir(host.run.join("plans")).unwrap();
    fs::write(host.run.join("plans/default.json"), plan).unwrap();
    sh(&format!("head -c 1m /dev/zero > {run}/fill || :"));
    run
}

/// A full run folder: nothing has moved, the hook says which folder is full, and `status` has it
/// from the disk.
#[test]
fn create_in_a_full_run_folder_says_so_and_status_too() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let run = full_run_folder(host);
        let before = host.look();
        let mut c = Container::new("a").annotated(json!({"rdmaprep.io/plan": "default"}));
        let said = c.create(host).fails(1, &["No space left on device"]).err;
        assert!(said.contains(&format!("{run} has 0 of 64 KiB")), "{said}");
        host.is_as(&before);
        let status = host.rdmaprep(&["status"]).ok().out;
        assert!(
            status.contains(&format!("{run} has 0 of 64 KiB")),
            "{status}"
        );
        assert!(status.contains("exit code   1"), "{status}");
        fs::remove_file(host.run.join("fill")).unwrap();
        c.create(host).ok();
        let status = host.rdmaprep(&["status"]).ok().out;
        assert!(!status.contains("failed:"), "{status}");
        c.stop(host).ok();
        host.is_as(&before);
    });
}

/// Of a container that has none, a damaged record is no matter.
#[test]
fn a_stop_says_what_it_knows_of_a_damaged_record() {
    alone(|host| {
        host.rails(1);
        let before = host.look();
        host.prepare("r0");
        for share in [2, 1000] {
            let mut c = Container::new("torn");
            c.create(host).ok();
            let path = host.records().remove(0);
            let text = fs::read(&path).unwrap();
            fs::write(&path, &text[..text.len() / share]).unwrap();
            let said = c
                .stop(host)
                .fails(8, &["the record is damaged", "--forget gives them up"]);
            assert_eq!(said.err.trim().lines().count(), 1, "{said:?}");
            let all = host.rdmaprep(&["restore", "--all"]);
            assert_eq!((all.code, all.out.as_str()), (Some(8), ""), "{all:?}");
            let other = Container::new("other").annotated(json!({})).stopped();
            host.hook("poststop", &other).ok();
            fs::write(&path, &text).unwrap();
            host.rdmaprep(&["restore", "--all"]).ok();
            host.is_as(&before);
        }
        host.is_clean();
    });
}

/// Has the pin as a mount of another process alone. Its path.
fn keep_in_other_mounts(host: &Host) -> String {
    let pin = sh(&format!(
        "cd {}; unshare --mount --propagation private sleep 60 > /dev/null 2>&1 & there=$!
        own=$(readlink /proc/self/ns/mnt)
        until [ $(readlink /proc/$there/ns/mnt) != $own ]; do sleep 0.02; done
        umount $PWD/netns/*; echo $PWD/netns/*",
        host.run.display()
    ));
    pin.trim().to_owned()
}

/// The hook ran with mounts of its own, as in a service: its pin is no mount here, and deleting
/// the file would unmount it there.
#[test]
fn a_pin_in_other_mounts_is_found() {
    alone(|host| {
        host.rails(1);
        let before = host.look();
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        let pin = keep_in_other_mounts(host);
        c.kill();
        let status = host.rdmaprep(&["status"]).ok().out;
        assert!(status.contains(&format!("({pin})")), "{status}");
        let refused = host.rdmaprep(&["restore", "c", "--forget"]);
        refused.fails(3, &["nothing is forgotten"]);
        host.rdmaprep(&["restore", "c"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// What is in its namespace comes back by hand alone, by the command that is said.
#[test]
fn a_pin_without_its_record_is_named() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        c.kill();
        let path = host.records().remove(0);
        fs::remove_file(&path).unwrap();
        let status = host.rdmaprep(&["status"]).ok().err;
        let doctor = host.rdmaprep(&["doctor"]).out;
        let doctor = doctor.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [&status, &doctor] {
            assert!(said.contains(&netns_number(&path)), "{said}");
            assert!(said.contains("r0 can still be taken out"), "{said}");
        }
        let (_, command) = status.split_once(": nsenter ").unwrap();
        let (command, _) = command.split_once("netns 1").unwrap();
        sh(&format!("nsenter {command} netns $$"));
        assert!(sh("ip -br link").contains("r0"));
        let status = host.rdmaprep(&["status"]).ok().err;
        assert!(!status.contains("no record"), "{status}");
    });
}

/// What is in its namespace would end with the pin: no hook drops that, and `restore` says what to
/// do. When the links have been taken out, any of these ends it.
#[test]
fn a_pin_without_its_record_keeps_what_is_in_it() {
    alone(|host| {
        host.rails(2);
        host.rdmaprep(&["prepare", "--plan", "other", "--ifaces", "r1"])
            .ok();
        let before = host.look();
        let other = |report: &str| {
            let asking = json!({"rdmaprep.io/plan": "other"});
            let mut other = Container::new("other").annotated(asking);
            other.create(host).ok();
            let notes = host.report("other")["notes"].to_string();
            assert_eq!(notes.contains("no record"), !report.is_empty(), "{notes}");
            assert!(notes.contains(report), "{notes}");
            other.stop(host).ok();
        };
        let number = |words: &[&str], netns: &str| -> Vec<String> {
            words.iter().map(|word| word.replace('N', netns)).collect()
        };
        let ways = [
            &["restore", "--all"][..],
            &["restore", "N"],
            &["restore", "N", "--forget"],
        ];
        for ends in ways.into_iter().map(Some).chain([None]) {
            host.prepare("r0");
            let mut c = Container::new("c");
            c.create(host).ok();
            c.kill();
            let record = host.records().remove(0);
            let netns = netns_number(&record);
            fs::remove_file(&record).unwrap();
            let pin = host.run.join("netns").join(&netns);
            other(&netns);
            stale(host);
            for words in ways {
                let words = number(words, &netns);
                let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
                host.rdmaprep(&words)
                    .fails(8, &["r0 can still be taken out", &netns]);
                words.push("--dry-run");
                let said = host.rdmaprep(&words);
                assert_eq!(said.code, Some(8), "{said:?}");
                assert!(said.out.contains("r0 can still be taken out"), "{said:?}");
            }
            let pinned = pin.display();
            sh(&format!("nsenter --net={pinned} ip link set r0 netns $$"));
            host.ip("link set r0 up\naddress add 10.0.0.1/24 dev r0");
            match ends {
                Some(words) => {
                    let words = number(words, &netns);
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    host.rdmaprep(&words).ok();
                }
                None => other(""),
            }
            host.is_clean();
            host.is_as(&before);
        }
    });
}

/// The command of the message is one that works.
#[test]
fn a_damaged_record_knows_a_pin_in_other_mounts() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        keep_in_other_mounts(host);
        c.kill();
        let path = host.records().remove(0);
        fs::write(&path, "{").unwrap();
        let said = host
            .rdmaprep(&["restore", "--all"])
            .fails(8, &["nsenter"])
            .err;
        let forget = host.rdmaprep(&["restore", &netns_number(&path), "--forget"]);
        forget.fails(3, &["can still be taken out"]);
        let command = said
            .split(": ")
            .find(|part| part.starts_with("nsenter"))
            .unwrap();
        let command = command
            .split(" gives ")
            .next()
            .unwrap()
            .replace("NIC", "r0");
        let command = command.replace("netns 1", "netns $$");
        sh(&format!("{command}; ip link show r0"));
        let forget = host.rdmaprep(&["restore", &netns_number(&path), "--forget"]);
        forget.ok();
        host.is_clean();
    });
}

fn netns_number(record: &Path) -> String {
    record.file_stem().unwrap().to_string_lossy().into_owned()
}
