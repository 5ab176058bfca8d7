//! Records on disk: old ones are read, damaged ones are reported and never applied, and no NIC
//! moves without a record.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::alone;
use rdma_model::strict_json::unheard;
use rdmaprep::config::sysfs_mode::SysfsMode;
use rdmaprep::journal::{Record, SCHEMA, salvage};
use rdmaprep::kernel::host::files;
use rdmaprep::kernel::records::Records;
use rdmaprep::kernel::store::Store;
use serde_json::{Value, json};
use testkit::hold::{Hold, POOL};
use testkit::{Container, Host, sh};

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/journal")
}

/// The record as the program writes it today.
fn current() -> String {
    fs::read_to_string(cases().join("v1-current.json")).unwrap()
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

/// A record and its copy, which would be used instead.
fn write_both(host: &Host, path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::write(
        host.state.join("records").join(path.file_name().unwrap()),
        text,
    )
    .unwrap();
}

#[test]
fn every_form_that_was_ever_written_is_read() {
    let mut seen = 0;
    for entry in fs::read_dir(cases()).unwrap() {
        let path = entry.unwrap().path();
        let record = Record::parse(&fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|e| panic!("{path:?}: {e:#}"));
        assert_eq!((record.schema, record.held.len()), (SCHEMA, 2), "{path:?}");
        assert_eq!(
            record.held[0].before.netdev.addresses[0]
                .address
                .to_string(),
            "10.0.0.1",
            "{path:?}"
        );
        assert!(
            record.has("job") && record.held[0].before.routes.len() > 2,
            "{path:?}"
        );
        seen += 1;
    }
    assert_eq!(seen, 6, "a form is never dropped");
    let text = current();
    let now = Record::parse(&text).unwrap().print().unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return fs::write(cases().join("v1-current.json"), now).unwrap();
    }
    assert!(
        now == text,
        "what is written has changed: keep v1-current.json under another name, then UPDATE_GOLDEN=1"
    );
}

#[test]
fn older_forms_get_the_meaning_of_fields_that_they_lack() {
    let first = fs::read_to_string(cases().join("v1-first.json")).unwrap();
    for newer in [
        "given",
        "hold",
        "overruled",
        "nexthops",
        "over",
        "borrowed",
        "router",
        "qdiscs",
        "token",
        "made",
    ] {
        assert!(!first.contains(&format!("\"{newer}\"")), "{newer}");
    }
    let record = Record::parse(&first).unwrap();
    assert!(record.given.is_none());
    for held in &record.held {
        assert!(
            held.overruled.is_empty() && held.before.nexthops.is_empty() && held.nic.over.is_none()
        );
        assert_eq!(
            held.before.netdev.qdiscs, None,
            "what was not looked at is not put back"
        );
    }
    let given = Record::parse(&fs::read_to_string(cases().join("v1-given.json")).unwrap()).unwrap();
    assert_eq!(given.given.unwrap().gid_index, None);
    let text = fs::read_to_string(cases().join("v1-without-hold.json")).unwrap();
    assert!(!text.contains("\"hold\""));
    let container = Record::parse(&text).unwrap();
    assert_eq!(container.hold, None);
    assert_eq!(
        container.print().unwrap(),
        text,
        "a container's record is of that form to this day"
    );
    assert_eq!(
        Record::parse(&current()).unwrap().hold.unwrap().path,
        Path::new("/run/netns/job")
    );
}

/// The places of all fields in a record, `held.before.netdev.mtu`; what is in a list has the list's
/// place.
fn fields(value: &Value, at: &str, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let at = format!("{at}.{key}");
            fields(value, &at, all);
            all.insert(at);
        }),
        Value::Array(list) => list.iter().for_each(|value| fields(value, at, all)),
        _ => {}
    }
}

fn without(value: &mut Value, at: &str, newer: &BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !newer.contains(&format!("{at}.{key}")));
            map.iter_mut()
                .for_each(|(key, value)| without(value, &format!("{at}.{key}"), newer));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| without(value, at, newer)),
        _ => {}
    }
}

/// The rdmaprep that moved the NICs was an earlier one: its record lacks the fields that have come
/// since.
#[test]
fn nics_moved_by_an_earlier_version_are_restored() {
    alone(|host| {
        let of = |text: &str| {
            let mut all = BTreeSet::new();
            fields(&serde_json::from_str(text).unwrap(), "", &mut all);
            all
        };
        let today = of(&current());
        let mut forms: Vec<PathBuf> = fs::read_dir(cases())
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        forms.sort();
        let rails = host.rails(2);
        host.prepare(&rails);
        let before = host.look();
        for form in forms {
            let newer: BTreeSet<String> = &today - &of(&fs::read_to_string(&form).unwrap());
            assert!(
                newer.is_empty() == form.ends_with("v1-current.json"),
                "{form:?} is as today's"
            );
            let hold = Hold::new(host, POOL);
            let path = host.records().remove(0);
            let mut record: Value =
                serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            without(&mut record, "", &newer);
            assert_eq!(
                record.get("hold").is_some(),
                form.ends_with("v1-current.json")
            );
            fs::write(&path, record.to_string()).unwrap();
            hold.kill();
            let said = host.rdmaprep(&["restore", "--all", "--stale"]).ok().out;
            assert!(
                said.contains("container=pool ") && said.contains("nics=r0,r1 "),
                "{form:?}: {said}"
            );
            host.is_as(&before);
            host.is_clean();
            // Versions before `rdmaprep hold` knew no name.
            sh("[ ! -e /run/netns/pool ] || ip netns delete pool");
        }
    });
}

/// Version 0.1.0 knows no mode `proxy`: it has to read the record all the same, to restore the
/// NICs.
#[test]
fn mode_that_older_versions_lack_is_off_for_them() {
    let mut record =
        Record::parse(&fs::read_to_string(cases().join("v1-given.json")).unwrap()).unwrap();
    for mode in [SysfsMode::Proxy, SysfsMode::ProxyWarn] {
        let plan = record.given_plan().unwrap().with_sysfs(mode, None);
        let (given, given_sysfs) = Record::giving(plan.clone());
        (record.given, record.given_sysfs) = (Some(given), given_sysfs);
        assert_eq!(record.given_plan(), Some(plan));
        let text = record.print().unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap()["given"]["sysfs"],
            "off"
        );
        assert_eq!(Record::parse(&text).unwrap(), record);
        assert!(unheard(&text, &record).unwrap().is_empty());
    }
}

#[test]
fn a_record_cut_off_at_any_byte_is_none() {
    // Less of what it is long by.
    let mut record = Record::parse(&current()).unwrap();
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

#[test]
fn later_field_is_ignored_and_later_schema_is_refused_by_name() {
    let text = current();
    let version = env!("CARGO_PKG_VERSION");
    let today = Record::parse(&text).unwrap();
    assert!(unheard(&text, &today).unwrap().is_empty());
    for (old, new, at) in [
        ("\"phase\":", "\"lease\":1,\"phase\":", "lease"),
        (
            "\"hca\":",
            "\"lease\":{\"until\":7},\"hca\":",
            "given.nics.0.lease",
        ),
        ("\"handles\":", "\"lease\":\"\",\"handles\":", "hold.lease"),
        (
            "\"before\":{\"netdev\":{",
            "\"before\":{\"netdev\":{\"lease\":[7],",
            "held.0.before.netdev.lease",
        ),
    ] {
        let later = text.replacen(old, new, 1);
        let record = Record::parse(&later).unwrap();
        assert_eq!(unheard(&later, &record).unwrap(), [at]);
        assert_eq!(record, today);
    }
    let error = format!(
        "{:#}",
        Record::parse(&text.replacen("\"schema\":1", "\"schema\":7,\"x\":0", 1)).unwrap_err()
    );
    assert_eq!(
        error,
        format!(
            "the record has schema 7, rdmaprep {version} knows 1: use the rdmaprep that wrote it"
        )
    );
}

/// Adds a field to everything that is no map of names.
fn with_more(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let names = ["sysctls", "device", "other", "handles", "overruled"];
            map.iter_mut()
                .filter(|(key, _)| !names.contains(&key.as_str()))
                .for_each(|(_, value)| with_more(value));
            map.insert("lease".to_owned(), json!({ "until": 7 }));
        }
        Value::Array(list) => list.iter_mut().for_each(with_more),
        _ => {}
    }
}

/// The rdmaprep that moved the NICs was a later one: everything in its record has a field that is
/// not known here.
#[test]
fn nics_moved_by_a_later_version_are_restored() {
    alone(|host| {
        let (before, mut c, ..) = holding(host);
        let later = || {
            let path = host.records().remove(0);
            let mut record: Value =
                serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            with_more(&mut record);
            fs::write(&path, record.to_string()).unwrap();
            assert_eq!(host.rdmaprep(&["status"]).ok().err, "");
        };
        let note = "a later rdmaprep has written the record: what it knew besides is not given \
            back (lease)";
        later();
        // A container that joins and leaves meanwhile keeps the unknown keys.
        let mut second = Container::beside("second", &c);
        second.create(host).ok();
        second.stop(host).ok();
        let kept = fs::read_to_string(host.records().remove(0)).unwrap();
        assert!(
            kept.matches("\"lease\":{\"until\":7}").count() > 20,
            "{kept}"
        );
        c.stop(host).ok();
        assert!(fs::read_to_string(&host.log).unwrap().contains(note));
        host.is_as(&before);
        let mut again = Container::new("again");
        again.create(host).ok();
        later();
        assert!(host.rdmaprep(&["restore", "again"]).ok().out.contains(note));
        again.kill();
        host.is_as(&before);
        host.is_clean();
    });
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
        let damage = |text: &str| write_both(host, &path, text);
        let later = text.replacen("\"schema\":1", "\"schema\":2", 1);
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
                &["schema 2", "use the rdmaprep that wrote it", "names r0 r1"],
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
            host.hook("poststop", &c.stopped()).ok();
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

/// Two places have the same: one of them is enough. What a later version wrote, and the copy of an
/// earlier boot, is not that.
#[test]
fn damaged_record_is_replaced_by_its_intact_copy() {
    alone(|host| {
        let (before, mut c, path, text) = holding(host);
        let copy = host.state.join("records").join(path.file_name().unwrap());
        let later = text.replacen("\"schema\":1", "\"schema\":2", 1);
        fs::write(&path, &later).unwrap();
        host.rdmaprep(&["restore", "--all"]).fails(8, &["schema 2"]);
        fs::write(&path, "").unwrap();
        let earlier = text.replace(
            fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .unwrap()
                .trim(),
            OLD_BOOT,
        );
        fs::write(&copy, earlier).unwrap();
        host.rdmaprep(&["restore", "--all"])
            .fails(8, &["damaged", "which NICs it is about cannot be read"]);
        fs::write(&copy, &text).unwrap();
        for damaged in [&b""[..], &text.as_bytes()[..text.len() / 2], &[0xff, 0xfe]] {
            fs::write(&path, damaged).unwrap();
            let status = host.rdmaprep(&["status"]).ok();
            assert!(
                status.err.is_empty() && status.out.contains("hurt"),
                "{status:?}"
            );
            Container::new("other")
                .create(host)
                .fails(9, &["r0 is held by container hurt"]);
        }
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
        // And the other way round.
        let mut again = Container::new("again");
        again.create(host).ok();
        fs::write(
            host.state
                .join("records")
                .join(host.records()[0].file_name().unwrap()),
            "",
        )
        .unwrap();
        again.stop(host).ok();
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
            host.hook("poststop", &c.stopped()).ok();
            assert!(
                c.sh("ip -br link").contains("r1@"),
                "{make}: it was applied"
            );
            sh(&format!("rm -r {at}"));
            fs::write(&path, &text).unwrap();
        }
        for folder in [
            host.state.clone(),
            host.state.join("records"),
            host.run.join("records"),
        ] {
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

/// As after a reboot: the record is of another boot, and its NICs are here. Returns the record's
/// text.
fn rebooted(host: &Host) -> (testkit::Look, PathBuf, String) {
    let (before, mut c, path, text) = holding(host);
    c.stop(host).ok();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let old = text.replace(boot.trim(), OLD_BOOT);
    // Only the copy outlives a boot.
    let path = host.state.join("records").join(path.file_name().unwrap());
    fs::write(&path, &old).unwrap();
    (before, path, old)
}

const OLD_BOOT: &str = "00000000-0000-0000-0000-00000000cafe";

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_record_of_another_boot_is_reported_and_archived() {
    alone(|host| {
        let (before, path, old) = rebooted(host);
        let netns = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let archive = host.state.join("archive");
        let kept = archive.join(format!("{OLD_BOOT}-{netns}.json"));
        // Its state of r0 is outdated: it must not be applied.
        host.ip("address delete 10.0.0.1/24 dev r0");
        let now = host.look();
        for how in [
            &["restore", "--all"][..],
            &["restore", "hurt"],
            &["restore", "hurt", "--after-reboot"],
        ] {
            fs::write(&path, &old).unwrap();
            let advice = host.status()[0]["advice"].as_str().unwrap().to_owned();
            assert!(
                advice
                    .starts_with("nothing: since the reboot none is away; rdmaprep restore hurt "),
                "{advice}"
            );
            // Hooks and the timer leave it alone.
            host.hook(
                "poststop",
                r#"{"ociVersion":"1.0","id":"hurt","pid":0,"bundle":"/b"}"#,
            )
            .ok();
            host.rdmaprep(&["restore", "--all", "--stale"]).ok();
            let foretold = host.rdmaprep(&[how, &["--dry-run"]].concat()).ok().out;
            assert!(
                foretold.contains("r0 r1 never left") && path.exists(),
                "{foretold}"
            );
            let said = host.rdmaprep(how).ok().out;
            for word in [
                OLD_BOOT,
                "nics=r0,r1",
                "steps=0",
                "never left after the reboot",
                kept.to_str().unwrap(),
            ] {
                assert!(said.contains(word), "{word:?} in {said}");
            }
            let left_alone = "r0 has no PCI and permanent address to know it by: left alone";
            assert_eq!(
                said.contains(left_alone),
                how.contains(&"--after-reboot"),
                "{said}"
            );
            assert!(!path.exists());
            assert_eq!(fs::read_to_string(&kept).unwrap(), old);
            assert_eq!((mode(&archive), mode(&kept)), (0o700, 0o600));
            host.is_as(&now);
            host.rdmaprep(how).fails_or_finds_nothing(how);
        }
        host.ip("address add 10.0.0.1/24 dev r0");
        host.is_as(&before);
    });
}

trait Nothing {
    fn fails_or_finds_nothing(self, how: &[&str]);
}

impl Nothing for testkit::Said {
    /// The second time: all is well, but a container that is asked for by name is none.
    fn fails_or_finds_nothing(self, how: &[&str]) {
        match how.contains(&"--all") {
            true => assert_eq!(self.ok().out, "No container holds a NIC.\n"),
            false => drop(self.fails(2, &["hurt"])),
        }
    }
}

#[test]
fn archive_keeps_the_last_and_a_live_container_its_nics() {
    alone(|host| {
        let (_, path, old) = rebooted(host);
        for boot in 0..40 {
            fs::write(
                &path,
                old.replace(OLD_BOOT, &format!("00000000-0000-0000-0000-{boot:012}")),
            )
            .unwrap();
            host.rdmaprep(&["restore", "--all"]).ok();
            // Clocks of file systems tick slowly.
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let mut kept: Vec<_> = fs::read_dir(host.state.join("archive"))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        kept.sort();
        assert_eq!(kept.len(), 32);
        assert!(
            kept[0].to_str().unwrap().contains("-000000000008-"),
            "{:?}",
            kept[0]
        );
        // What the boot id says becomes no path.
        fs::write(&path, old.replace(OLD_BOOT, "../../x")).unwrap();
        let said = host.rdmaprep(&["restore", "--all"]).ok().out;
        assert!(said.contains("/archive/unknown-"), "{said}");

        let c = Container::new("living");
        c.create(host).ok();
        let said = host
            .rdmaprep(&["restore", "--all", "--after-reboot"])
            .ok()
            .out;
        assert_eq!(said, "No record is of an earlier boot.\n");
        assert!(c.sh("ip -br link").contains("r0@"));
    });
}

#[test]
fn hooks_leave_a_record_of_another_boot_alone() {
    alone(|host| {
        let (before, path, old) = rebooted(host);
        fs::remove_file(&path).unwrap();
        let path = path.with_file_name("77.json");
        let old = old.replace(
            &format!("\"netns\":{}", Record::parse(&old).unwrap().netns),
            "\"netns\":77",
        );
        fs::write(&path, &old).unwrap();
        let mut other = Container::new("other");
        other.create(host).ok();
        host.hook("poststart", &other.state()).ok();
        other.stop(host).ok();
        // Nor is a container of the same name its container.
        let mut same = Container::new("hurt");
        same.create(host).ok();
        same.stop(host).ok();
        assert_eq!(fs::read_to_string(&path).unwrap(), old);
        host.is_as(&before);
        fs::remove_file(&path).unwrap();
        host.is_clean();
    });
}

/// The kernel reuses inode numbers of network namespaces after a boot.
#[test]
fn container_with_a_reused_inode_keeps_the_older_record() {
    alone(|host| {
        let (before, path, old) = rebooted(host);
        let mut c = Container::new("new");
        let netns = c.sh("stat -Lc %i /proc/self/ns/net").trim().to_owned();
        let first = path.file_stem().unwrap().to_str().unwrap();
        fs::write(
            path.with_file_name(format!("{netns}.json")),
            old.replace(first, &netns),
        )
        .unwrap();
        // The kernel may have given it the same number.
        if netns != first {
            fs::remove_file(&path).unwrap();
        }
        c.create(host).ok();
        assert!(
            host.state
                .join(format!("archive/{OLD_BOOT}-{netns}.json"))
                .exists()
        );
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn unwritable_disk_keeps_nics_here_and_lets_them_return() {
    alone(|host| {
        let (before, mut c, _, text) = holding(host);
        c.stop(host).ok();
        let records = host.state.join("records").display().to_string();
        sh(&format!(
            "mount -t tmpfs -o mode=700 tmpfs {records}; mount -o remount,ro {records}"
        ));
        let refused = Container::new("refused");
        refused
            .create(host)
            .fails(1, &["records", "Read-only file system"]);
        host.is_as(&before);
        assert!(!refused.sh("ip -br link").contains("r0@"));
        assert_eq!(
            host.records(),
            Vec::<PathBuf>::new(),
            "a temporary file is left"
        );
        // It became read-only when the NICs were away: they are restored, and what stays of the
        // record does not count.
        sh(&format!("mount -o remount,rw {records}"));
        let mut away = Container::new("away");
        away.create(host).ok();
        sh(&format!("mount -o remount,ro {records}"));
        away.stop(host).ok();
        assert!(
            host.report("away")["notes"]
                .to_string()
                .contains("Read-only file system")
        );
        host.is_as(&before);
        let said = host.rdmaprep(&["restore", "--all"]).ok();
        assert!(
            said.err.contains("Read-only file system") && said.out.contains("No container holds"),
            "{said:?}"
        );
        sh(&format!("mount -o remount,rw {records}"));
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_as(&before);
        host.is_clean();
        assert!(!text.is_empty());
        sh(&format!("umount {records}"));
    });
}

/// As an earlier version wrote it, or where an administrator has emptied the run folder. Writing it
/// moves it there.
#[test]
fn record_that_is_a_copy_alone_is_found_after_it_was_written() {
    alone(|host| {
        let (before, mut c, path, _) = holding(host);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        let store = Store::new(&host.run, &host.state);
        let mut records = Records::read(&store, &boot()).unwrap();
        let copy = records.paths().remove(0);
        assert_eq!(
            copy,
            host.state.join("records").join(path.file_name().unwrap())
        );
        let record = records.at(&copy).unwrap().as_ref().unwrap().clone();
        records.save(&record).unwrap();
        assert_eq!((records.paths(), path.exists()), (vec![path], true));
        assert_eq!(records.at(&copy).unwrap().as_ref().unwrap(), &record);
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// A disk that is too slow: what comes after the deadline stays away.
#[test]
fn file_that_is_not_wanted_any_more_is_not_put_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record");
    let replace = |unwanted| files::replace_unless(&Mutex::new(unwanted), &path, b"text", 0o600);
    let refused = replace(true).unwrap_err().to_string();
    assert!(refused.contains("not wanted any more"), "{refused}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    replace(false).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"text");
}

#[test]
fn only_nics_that_cannot_be_restored_are_forgotten() {
    alone(|host| {
        let (_, mut c, path, text) = holding(host);
        let netns = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let kept = host
            .state
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
            &["r0 is neither in the container's namespace nor on the host"],
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
        write_both(host, &path, &text[..text.len() / 2]);
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
