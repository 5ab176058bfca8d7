//! What a container sets on its NIC's device, on the real kernel: the host gets its own settings
//! back, or the NIC is held back with the reason. A veth has features, channels and queues; rings,
//! coalescing and pause are tests/vm/cases/59-device-settings.sh.

use crate::alone;
use testkit::{Container, Host, same, sh};

/// A NIC of four queues that is up, as its peer is.
fn nic(host: &Host) {
    sh(
        "ip link add r0 numtxqueues 4 numrxqueues 4 type veth peer name p0 numtxqueues 4 \
        numrxqueues 4",
    );
    host.ip("link set p0 up\nlink set r0 up\naddress add 10.0.0.1/24 dev r0");
}

/// A shell line with a /sys of its own network namespace.
fn with_sys(line: &str) -> String {
    format!("unshare --mount sh -ec 'mount -t sysfs sysfs /sys; cd /sys/class/net; {line}'")
}

/// The state of r0 by ethtool and sysfs.
fn device_state() -> String {
    let files = "cd r0; for f in threaded queues/*/xps_rxqs; do echo $f $(cat $f); done";
    sh(&format!(
        "ethtool -k r0; ethtool -l r0; {}",
        with_sys(files)
    ))
}

#[test]
fn settings_that_a_container_changed_come_back() {
    alone(|host| {
        nic(host);
        sh("ethtool -K r0 gro on tx-udp-segmentation off; ethtool -L r0 rx 3 tx 3");
        sh(&with_sys(
            "echo 5 > r0/queues/tx-1/xps_rxqs; echo 1 > r0/threaded",
        ));
        let before = device_state();
        host.prepare("r0");
        for (what, change) in [
            (
                "features",
                "ethtool -K r0 tso off gro off tx-udp-segmentation on rx-gro-list on".to_owned(),
            ),
            ("channels", "ethtool -L r0 rx 1 tx 2".to_owned()),
            (
                "queues",
                with_sys("echo 7 > r0/queues/tx-1/xps_rxqs; echo 1 > r0/queues/tx-2/xps_rxqs"),
            ),
            ("threads", with_sys("echo 0 > r0/threaded")),
        ] {
            for by_hook in [true, false] {
                let mut c = Container::new(what);
                c.create(host).ok();
                assert!(
                    c.sh("ethtool -k r0").contains("tx-udp-segmentation: off"),
                    "the host's came not along"
                );
                c.sh(&change);
                if by_hook {
                    c.stop(host).ok();
                    let notes = host.report(what)["notes"].to_string();
                    assert!(
                        notes.contains("r0 had other device settings: "),
                        "{what}: {notes}"
                    );
                } else {
                    host.rdmaprep(&["restore", "--all"]).ok();
                }
                same(what, &before, &device_state());
                host.is_clean();
            }
        }
        // All at once, after a crash.
        let mut c = Container::new("all");
        c.create(host).ok();
        c.sh(&format!(
            "ethtool -K r0 tso off gro off; ethtool -L r0 rx 1 tx 1; {}",
            with_sys("echo 9 > r0/queues/tx-0/xps_rxqs")
        ));
        c.kill();
        host.rdmaprep(&["restore", "--all"]).ok();
        same("all", &before, &device_state());
        // Where udev runs, devices are read by the second look.
        sh("mkdir -p /run/udev; touch /run/udev/control");
        let mut c = Container::new("udev");
        c.create(host).ok();
        c.sh("ethtool -K r0 tso off");
        c.stop(host).ok();
        let report = host.report("udev").to_string();
        assert!(
            report.contains("r0 had other device settings: ethtool features "),
            "{report}"
        );
        same("udev", &before, &device_state());
    });
}

/// A record of an earlier rdmaprep has none of these: they are not compared.
#[test]
fn a_record_without_device_settings_is_still_restored() {
    alone(|host| {
        nic(host);
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        let path = &host.records()[0];
        let mut record: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let netdev = record["held"][0]["before"]["netdev"]
            .as_object_mut()
            .unwrap();
        assert!(netdev.remove("device").unwrap()["ethtool channels rx"] == "4");
        std::fs::write(path, record.to_string()).unwrap();
        c.sh("ethtool -L r0 rx 1 tx 1");
        c.stop(host).ok();
        host.is_clean();
    });
}

/// What cannot be set back keeps the NIC from the next container, and each command says why.
#[test]
fn a_setting_that_is_refused_holds_its_nic_back() {
    alone(|host| {
        nic(host);
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        let path = &host.records()[0];
        // As if the driver had forgotten how: more queues than there are.
        let text = std::fs::read_to_string(path).unwrap();
        let spoilt = text.replace(
            r#""ethtool channels rx":"4""#,
            r#""ethtool channels rx":"9""#,
        );
        assert_ne!(text, spoilt);
        std::fs::write(path, &spoilt).unwrap();
        let why = "r0 ethtool channels rx: 4 instead of 9";
        c.stop(host).fails(8, &[why]);
        let status = host.status();
        assert!(
            status[0]["held_back"][0].as_str().unwrap().contains(why),
            "{status}"
        );
        assert!(
            host.rdmaprep(&["status"])
                .ok()
                .out
                .contains(&format!("held back   {why}"))
        );
        let doctor = host.rdmaprep(&["doctor"]);
        assert!(
            doctor.out.contains("held back") && doctor.out.contains("channels rx: 4 instead"),
            "{doctor:?}"
        );
        Container::new("next")
            .create(host)
            .fails(9, &["r0 is held by container c"]);
        host.rdmaprep(&["restore", "--all"]).fails(8, &[why]);
        // The driver can do it again.
        std::fs::write(path, text).unwrap();
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_clean();
    });
}

/// What no restore can set back would hold the NIC for ever.
#[test]
fn a_setting_that_is_refused_can_be_given_up() {
    alone(|host| {
        nic(host);
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        // Before the container has ended, the NIC is not to be given up.
        host.rdmaprep(&["restore", "--forget", "c"])
            .fails(3, &["container c still runs"]);
        let path = &host.records()[0];
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::write(
            path,
            text.replace(
                r#""ethtool channels rx":"4""#,
                r#""ethtool channels rx":"9""#,
            ),
        )
        .unwrap();
        let why = "r0 ethtool channels rx: 4 instead of 9";
        c.stop(host)
            .fails(8, &[why, "can be set by hand", "restore c --forget"]);
        let said = host.rdmaprep(&["restore", "--forget", "c"]).ok();
        assert!(
            format!("{} {}", said.out, said.err).contains(why),
            "{said:?}"
        );
        host.is_clean();
        Container::new("next").create(host).ok();
    });
}
