//! Records as files: damaged ones are reported and never applied, and no NIC moves without one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::alone;
use rdmaprep::record::{Record, SCHEMA, salvage};
use testkit::{Container, Host, sh};

/// The record as the program writes it.
fn current() -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/record/current.json");
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

/// A container that holds r0 and r1, and its record's path and text.
fn holding(host: &Host) -> (testkit::Look, Container, PathBuf, String) {
    let rails = host.rails(2);
    host.prepare(&rails);
    let before = host.look();
    let c = Container::new("hurt");
    c.create(host).ok();
    let path = host.records().remove(0);
    let text = fs::read_to_string(&path).unwrap();
    (before, c, path, text)
}

#[test]
fn what_is_written_changes_with_the_schema_alone() {
    let (path, text) = current();
    let now = Record::parse(&text).unwrap().print().unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return fs::write(path, now).unwrap();
    }
    assert!(
        now == text,
        "it has changed: a new SCHEMA, then UPDATE_GOLDEN=1"
    );
    let other = text.replacen(&format!("\"schema\":{SCHEMA}"), "\"schema\":7,\"x\":0", 1);
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "the record has schema 7, rdmaprep {version} knows {SCHEMA}: use the rdmaprep that wrote it"
    );
    assert_eq!(
        format!("{:#}", Record::parse(&other).unwrap_err()),
        expected
    );
}

/// A later version reads what an earlier one has written.
#[test]
fn what_a_record_waits_for_keeps_its_names_in_json() {
    let mut record = Record::parse(&current().1).unwrap();
    let name = record.held[0].name().clone();
    record.waits_for = vec!["r0 is back".to_owned()];
    record.keep_objects_until_back = vec![name.clone()];
    let text = record.print().unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["awaits"], serde_json::json!(["r0 is back"]));
    assert_eq!(json["due_until_back"], serde_json::json!([name.as_str()]));
    assert_eq!(Record::parse(&text).unwrap(), record);
    let earlier = text.replace("due_until_back", "kept_for");
    assert_eq!(Record::parse(&earlier).unwrap(), record);
}

#[test]
fn a_record_cut_off_at_any_byte_is_none() {
    // Less of what it is long by.
    let mut record = Record::parse(&current().1).unwrap();
    record
        .held
        .iter_mut()
        .for_each(|h| h.before.netdev.sysctls.clear());
    record
        .held
        .iter_mut()
        .for_each(|h| h.inside.netdev.sysctls.clear());
    let text = record.print().unwrap();
    let whole = salvage(&text);
    assert_eq!(
        whole
            .nics
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["r0", "r1"]
    );
    assert_eq!(whole.ids, ["job"]);
    let mut named = 0;
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        let torn = &text[..end];
        let error = Record::parse(torn)
            .err()
            .unwrap_or_else(|| panic!("{end} of {} bytes are a record", text.len()));
        assert!(
            format!("{error:#}").starts_with("the record is damaged: "),
            "{error:#}"
        );
        let left = salvage(torn);
        assert!(
            left.nics.len() <= 2
                && whole.nics.starts_with(&left.nics)
                && whole.ids.starts_with(&left.ids)
        );
        named = left.nics.len();
    }
    assert_eq!(named, 2, "what is readable is reported");
    // Nor is one with something behind it, or with the rest of the block zeroed.
    assert!(
        Record::parse(&format!("{text}x")).is_err()
            && Record::parse(&format!("{text}\0\0")).is_err()
    );
}

/// Each is one line with the file's name, tells the NICs where they can still be read, and nothing
/// moves or goes.
#[test]
fn what_is_no_record_is_reported_and_left_as_it_is() {
    alone(|host| {
        let (before, mut c, path, text) = holding(host);
        let name = path.file_name().unwrap().to_str().unwrap();
        let inside = c.sh("ip -o -4 address");
        let other = Container::new("other");
        let zeroed = "\0".repeat(text.len());
        let damage = |text: &str| fs::write(&path, text).unwrap();
        let later = text.replacen("\"schema\":2", "\"schema\":3", 1);
        let torn = &text[..text.len() - 1];
        for (damaged, words) in [
            (
                torn,
                &["damaged", "names r0 r1, held by hurt", "kept by"][..],
            ),
            (&text[..text.len() / 3], &["damaged", "r0"]),
            (
                &zeroed,
                &["damaged", "which NICs it is about cannot be read"],
            ),
            ("", &["damaged", "cannot be read"]),
            (
                &later,
                &["schema 3", "use the rdmaprep that wrote it", "names r0 r1"],
            ),
        ] {
            damage(damaged);
            host.rdmaprep(&["restore", "--all"])
                .fails(8, words)
                .fails(8, &[name, "nothing is changed"]);
            let warning = host.rdmaprep(&["status"]).ok().err;
            assert!(
                words.iter().all(|w| warning.contains(w)) && warning.lines().count() == 1,
                "{warning}"
            );
            host.hook("poststop", &c.stopped()).fails(8, words);
            assert_eq!(
                (
                    c.sh("ip -o -4 address"),
                    fs::read_to_string(&path).unwrap().as_str()
                ),
                (inside.clone(), damaged)
            );
        }
        // It says which: by the container's name, and by the namespace's where that cannot be read.
        damage(torn);
        host.rdmaprep(&["restore", "hurt"]).fails(8, &[name]);
        other
            .create(host)
            .fails(3, &[name, "names r0 r1", "rdmaprep status"]);
        damage(&zeroed);
        other.create(host).fails(
            3,
            &[
                name,
                "which NICs it is about cannot be read",
                "rdmaprep status",
            ],
        );
        assert!(
            host.rdmaprep(&["status"])
                .ok()
                .out
                .starts_with("No record that can be read says")
        );
        host.rdmaprep(&["restore", "hurt"]).fails(2, &["hurt"]);
        host.rdmaprep(&["restore", name.trim_end_matches(".json")])
            .fails(8, &[name]);
        damage(&text);
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn what_is_no_plain_file_in_a_folder_of_ours_is_not_read() {
    alone(|host| {
        let (before, mut c, path, text) = holding(host);
        let elsewhere = host.run.join("elsewhere");
        fs::write(&elsewhere, &text).unwrap();
        let at = path.display();
        for make in [
            format!("mkfifo {at}"),
            format!("mkdir {at}"),
            format!("ln -s {} {at}", elsewhere.display()),
        ] {
            sh(&format!("rm {at}; {make}"));
            host.rdmaprep(&["restore", "--all"])
                .fails(8, &["is no plain file", &at.to_string()]);
            assert!(
                host.rdmaprep(&["status"])
                    .ok()
                    .err
                    .contains("is no plain file")
            );
            host.hook("poststop", &c.stopped())
                .fails(8, &["is no plain file"]);
            assert!(
                c.sh("ip -br link").contains("r1@"),
                "{make}: it was applied"
            );
            sh(&format!("rm -r {at}"));
            fs::write(&path, &text).unwrap();
        }
        for folder in [host.run.clone(), host.run.join("records")] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
            let words = ["can be written by others", folder.to_str().unwrap()];
            host.rdmaprep(&["restore", "--all"]).fails(1, &words);
            host.rdmaprep(&["status"]).fails(1, &words);
            host.hook("poststop", &c.stopped()).fails(1, &words);
            // The container runs already: poststart is no reason to fail it.
            host.hook("poststart", &c.state()).ok();
            assert!(c.sh("ip -br link").contains("r1@"), "it was applied");
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        }
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// Its NICs are here, and the kernel reuses the numbers of network namespaces.
#[test]
fn a_record_of_an_earlier_boot_is_nothing() {
    alone(|host| {
        let (before, mut c, path, text) = holding(host);
        c.stop(host).ok();
        let old = text.replace(&boot(), "00000000-0000-0000-0000-00000000cafe");
        // Its state of r0 is outdated: it must not be applied.
        host.ip("address delete 10.0.0.1/24 dev r0");
        let now = host.look();
        for old in [&old, &old[..old.len() / 2]] {
            fs::write(&path, old).unwrap();
            assert_eq!(host.status(), serde_json::json!([]));
            assert_eq!(host.rdmaprep(&["status"]).ok().err, "");
            host.rdmaprep(&["restore", "hurt"]).fails(2, &["hurt"]);
            let said = host.rdmaprep(&["restore", "--all"]).ok();
            assert_eq!(
                (said.out.as_str(), said.err.as_str()),
                ("No container holds a NIC.\n", "")
            );
            assert!(!path.exists());
        }
        host.is_as(&now);
        host.ip("address add 10.0.0.1/24 dev r0");
        let mut new = Container::new("new");
        let netns = new.sh("stat -Lc %i /proc/self/ns/net").trim().to_owned();
        let reused = path.with_file_name(format!("{netns}.json"));
        fs::write(&path, &old).unwrap();
        fs::write(
            &reused,
            old.replace(path.file_stem().unwrap().to_str().unwrap(), &netns),
        )
        .unwrap();
        new.create(host).ok();
        assert!(!path.exists() || path == reused);
        new.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn records_that_cannot_be_written_keep_the_nics_here() {
    alone(|host| {
        let (before, mut c, path, _) = holding(host);
        c.stop(host).ok();
        let records = path.parent().unwrap().display().to_string();
        sh(&format!(
            "mount -t tmpfs -o mode=700 tmpfs {records}; mount -o remount,ro {records}"
        ));
        let refused = Container::new("refused");
        let words = ["records", "Read-only file system"];
        refused.create(host).fails(1, &words);
        host.is_as(&before);
        assert!(!refused.sh("ip -br link").contains("r0@"));
        assert_eq!(host.records(), Vec::<PathBuf>::new());
        sh(&format!("umount {records}"));
    });
}

#[test]
fn only_nics_that_cannot_be_restored_are_forgotten() {
    alone(|host| {
        let (_, mut c, path, text) = holding(host);
        let netns = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let kept = host
            .run
            .join("archive")
            .join(format!("{}-{netns}.json", boot()));
        host.rdmaprep(&["restore", "hurt", "--forget"])
            .fails(3, &["hurt", "stop the container first"]);
        // A namespace that stays without one of its NICs: the NIC was virtual, and was deleted.
        let mut pause = Container::beside("pause", &c);
        c.sh("ip link delete r0");
        c.kill();
        host.rdmaprep(&["restore", "hurt", "--forget"])
            .fails(3, &["r1 can still be restored", "rdmaprep restore hurt"]);
        assert!(path.exists() && pause.sh("ip -br link").contains("r1@"));
        host.rdmaprep(&["restore", "hurt"]).fails(
            8,
            &[
                "r0 is neither in the container's namespace nor on the host",
                "`rdmaprep restore hurt --forget` gives up what has gone",
            ],
        );
        assert!(
            sh("ip -br link").contains("r1@"),
            "the other NIC must not wait"
        );
        let said = host.rdmaprep(&["restore", "hurt", "--forget"]).ok().out;
        for word in [
            "r0 is given up",
            "10.0.0.1/24",
            "should it come back",
            kept.to_str().unwrap(),
        ] {
            assert!(said.contains(word), "{word:?} in {said}");
        }
        assert!(!said.contains("r1 is given up"), "{said}");
        assert!(fs::read_to_string(&kept).unwrap().contains("10.0.0.1"));
        host.is_clean();
        pause.kill();
        host.rdmaprep(&["restore", "hurt", "--forget"])
            .fails(2, &["hurt"]);
        host.rdmaprep(&["restore", "--all", "--forget"])
            .fails(2, &["--forget"]);
        assert!(!text.is_empty());
    });
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap()
        .trim()
        .to_owned()
}

#[test]
fn unreadable_record_is_dropped_when_its_namespace_is_empty() {
    alone(|host| {
        let (before, mut c, path, text) = holding(host);
        let netns = path.file_stem().unwrap().to_str().unwrap().to_owned();
        c.kill();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        let words = [
            "r0 r1 can still be taken out",
            "nsenter --net=",
            "ip link set r0 netns 1",
        ];
        host.rdmaprep(&["restore", &netns, "--forget"])
            .fails(3, &words);
        assert!(path.exists());
        // By hand, as it says.
        let pin = host.run.join("netns").join(&netns).display().to_string();
        let me = std::process::id();
        sh(&format!(
            "for d in r0 r1; do nsenter --net={pin} ip link set $d netns {me}; ip link set $d up; \
            done"
        ));
        host.ip("address add 10.0.0.1/24 dev r0\naddress add 10.1.0.1/24 dev r1");
        let said = host.rdmaprep(&["restore", &netns, "--forget"]).ok().out;
        assert!(
            said.contains("it names r0 r1, held by hurt") && said.contains("/archive/"),
            "{said}"
        );
        host.is_as(&before);
        host.is_clean();
    });
}
