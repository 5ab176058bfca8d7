//! Name servers.

use super::*;

#[test]
fn name_server_is_asked_for_by_its_port() {
    alone(|host| {
        let case = Case::new(host);
        let file = host.run.parent().unwrap().join("resolv");
        fs::write(&file, "nameserver 10.66.0.53\n").unwrap();
        sh(&format!(
            "mount --bind {} /etc/resolv.conf; ip route add default via 10.2.0.254",
            file.display()
        ));
        goes_by_a_rule("10.66.0.53", "ipproto udp dport 53");
        case.refuses("leads to the name server 10.66.0.53 (via 10.0.0.254 dev r0, table 100)");
    });
}

#[test]
fn name_server_is_kept() {
    alone(|host| {
        let case = Case::new(host);
        let file = host.run.parent().unwrap().join("resolv.conf");
        fs::write(
            &file,
            "# a comment\nnameserver 127.0.0.53\nnameserver 10.66.0.53\nsearch example.com\n",
        )
        .unwrap();
        sh(&format!(
            "mount --bind {} /etc/resolv.conf; ip route add 10.66.0.0/16 via 10.0.0.254",
            file.display()
        ));
        let why = "leads to the name server 10.66.0.53 (via 10.0.0.254 dev r0, table main)";
        case.keeps("10.66.0.53", "r0", why);
    });
}

/// docker0 and many routers have the address `fe80::1`.
#[test]
fn link_local_name_server_is_not_another_links_address() {
    alone(|host| {
        let case = Case::new(host);
        sh(
            "ip link add br0 type bridge; ip link set br0 up; ip address add fe80::1/64 dev br0 \
            nodad",
        );
        let file = host.run.parent().unwrap().join("resolv.conf");
        fs::write(&file, "nameserver fe80::1%br0\n").unwrap();
        sh(&format!("mount --bind {} /etc/resolv.conf", file.display()));
        prepare(host, "again", "r0", &[]).ok();
        fs::write(&file, "nameserver fe80::1%r0\n").unwrap();
        case.refuses("leads to the name server fe80::1 (dev r0, table main)");
    });
}

#[test]
fn resolv_conf_that_nothing_writes_to_is_not_waited_for() {
    alone(|host| {
        Case::new(host);
        let file = host.run.parent().unwrap().join("fifo");
        sh(&format!(
            "mkfifo {0}; mount --bind {0} /etc/resolv.conf",
            file.display()
        ));
        let said = prepare(host, "again", "r1", &[]).ok();
        assert!(
            said.err
                .contains("/etc/resolv.conf is no plain file but a FIFO"),
            "{said:?}"
        );
        asking("free", "free")
            .create(host)
            .fails(3, &["could not be asked", "is no plain file but a FIFO"]);
    });
}

#[test]
fn resolv_conf_in_another_encoding_is_read() {
    alone(|host| {
        let case = Case::new(host);
        let file = host.run.parent().unwrap().join("latin1");
        fs::write(&file, b"# B\xfcro\nnameserver 10.0.0.9\n").unwrap();
        sh(&format!("mount --bind {} /etc/resolv.conf", file.display()));
        case.keeps(
            "10.0.0.9",
            "r0",
            "leads to the name server 10.0.0.9 (dev r0, table main)",
        );
    });
}

#[test]
fn name_server_by_a_link_that_is_gone_guards_nothing() {
    alone(|host| {
        Case::new(host);
        let file = host.run.parent().unwrap().join("resolv.conf");
        fs::write(&file, "nameserver fe80::1%gone\nnameserver fe80::2\n").unwrap();
        sh(&format!("mount --bind {} /etc/resolv.conf", file.display()));
        let said = prepare(host, "again", "r0", &[]).ok();
        assert!(!said.err.contains("is not known"), "{said:?}");
        let mut used = asking("used", "used");
        used.create(host).ok();
        used.stop(host).ok();
    });
}
