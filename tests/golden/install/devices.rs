//! The file of CDI devices.

use super::*;

/// `cdi generate`'s file is removed if it was written after an install; another vendor's file in
/// its place stays.
#[test]
fn the_file_of_devices_goes_if_it_is_ours() {
    let cases = [
        (OUR_DEVICES, true),
        (r#"{"cdiVersion":"0.3.0","kind":"vendor.com/net"}"#, false),
        ("", false),
    ];
    for (text, is_ours) in cases {
        for installed in [true, false] {
            let (root, goes) = (TempDir::new().unwrap(), is_ours && installed);
            if installed {
                let said = rdmaprep("install", root.path(), &["--systemd", "--cdi"])
                    .ok()
                    .out;
                assert!(
                    said.contains("then: systemctl start rdmaprep-cdi.path rdmaprep-cdi.service"),
                    "{said}"
                );
            }
            put(root.path(), "etc/cdi/rdmaprep.json", text);
            let before = all(root.path());
            let dry = rdmaprep("uninstall", root.path(), &["--dry-run"]).ok().out;
            assert_eq!(dry.contains("--- /etc/cdi/rdmaprep.json"), goes);
            assert_eq!(
                dry.contains("note: /etc/cdi/rdmaprep.json stays"),
                is_ours && !installed,
                "{dry}"
            );
            assert_eq!(before, all(root.path()));
            let said = rdmaprep("uninstall", root.path(), &[]).ok().out;
            assert_eq!(
                said.contains("systemctl stop rdmaprep-cdi.path rdmaprep-cdi.service"),
                installed,
                "{said}"
            );
            assert_eq!(said.contains("daemon-reload"), installed, "{said}");
            assert_eq!(files(root.path()).len(), usize::from(!goes));
            // The folder that `install` made for it goes with it.
            assert_eq!(root.path().join("etc/cdi").exists(), !goes);
        }
    }
}

/// What there was at the first install is there after uninstalling, whatever was installed later,
/// and however often.
#[test]
fn a_file_of_devices_that_was_there_first_stays() {
    let root = TempDir::new().unwrap();
    put(root.path(), "etc/cdi/rdmaprep.json", OUR_DEVICES);
    let before = all(root.path());
    rdmaprep("install", root.path(), &["--crio"]).ok();
    rdmaprep(
        "install",
        root.path(),
        &["--systemd", "--cdi", "--program", "/opt/rdmaprep"],
    )
    .ok();
    // A changed file keeps the manifest in place.
    let hook = "usr/share/containers/oci/hooks.d/rdmaprep-poststop.json";
    let ours = fs::read_to_string(root.path().join(hook)).unwrap();
    put(root.path(), hook, "{}");
    rdmaprep("uninstall", root.path(), &[]).fails(8, &[hook]);
    put(root.path(), hook, &ours);
    for _ in 0..2 {
        let said = rdmaprep("uninstall", root.path(), &[]).ok().out;
        assert!(
            said.contains("note: /etc/cdi/rdmaprep.json stays"),
            "{said}"
        );
        assert_eq!(before, all(root.path()));
    }
}

const PROM: &str = "/var/lib/node_exporter/rdmaprep.prom";

/// The file that a package's unit names is its own; another one needs a unit that comes before it.
#[test]
fn a_timer_for_metrics_comes_if_asked_and_goes_to_the_byte() {
    let root = TempDir::new().unwrap();
    let packaged = "usr/lib/systemd/system/rdmaprep-metrics.service";
    put(root.path(), packaged, "[Unit]\n");
    let before = all(root.path());
    let install = |more: &[&str]| {
        let words = [&["--systemd"], more].concat();
        rdmaprep("install", root.path(), &words).ok().out
    };
    let said = install(&["--textfile", PROM]);
    assert!(
        said.contains("then: systemctl start rdmaprep-metrics.timer"),
        "{said}"
    );
    let unit = root
        .path()
        .join("etc/systemd/system/rdmaprep-metrics.service");
    let text = fs::read_to_string(&unit).unwrap();
    assert!(
        text.contains(&format!("metrics --textfile {PROM}\n")),
        "{text}"
    );
    assert!(install(&["--textfile", PROM]).contains("nothing to change"));
    // Where Debian's node_exporter reads, the package's unit is used.
    install(&[
        "--textfile",
        "/var/lib/prometheus/node-exporter/rdmaprep.prom",
    ]);
    assert!(!unit.exists());
    install(&["--textfile", PROM]);
    // Not asked for any more, it goes, and what it wrote with it.
    let removal = format!(
        "then: systemctl stop rdmaprep-metrics.service rdmaprep-metrics.timer\nthen: rm -f {PROM}"
    );
    let said = install(&[]);
    assert!(said.contains(&removal), "{said}");
    install(&["--textfile", PROM]);
    let said = rdmaprep("uninstall", root.path(), &[]).ok().out;
    assert!(said.contains(&removal), "{said}");
    assert_eq!(before, all(root.path()));
}
