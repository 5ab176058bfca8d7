//! Macvlans on the real kernel: the kernel deletes them with the container's namespace, and a restore re-creates them.

use crate::alone;
use testkit::{Container, Host, Look, same, sh};

/// m0 and m1 on r0, each with something in all its properties; m1 is down.
fn stacked(host: &Host) -> String {
    host.rails(1);
    host.ip("link add link r0 name m0 address 02:00:00:00:aa:00 type macvlan mode bridge bcqueuelen 500
        link add link r0 name m1 type macvlan mode private
        link set m0 mtu 1400 txqueuelen 77 group 5 alias \"tenant 0\" up
        link property add dev m0 altname tenant-zero
        address add 10.5.0.1/24 dev m0
        address add 10.5.0.2/24 dev m0
        address add fd05::1/64 dev m0 nodad
        address add 10.6.0.1/24 dev m1
        route add 10.50.0.0/16 via 10.5.0.9 dev m0 metric 5
        neighbour add 10.5.0.77 lladdr 02:00:00:00:00:77 dev m0 nud permanent
        rule add from 10.5.0.1 table 100 priority 1000");
    sh("echo 1 > /proc/sys/net/ipv4/conf/m0/arp_ignore");
    details()
}

/// What macvlans are made of.
fn details() -> String {
    sh(
        "ip -d -o link show type macvlan | sed 's/ promiscuity [0-9]*//; s/ state [A-Z]*//; s/,LOWER_UP//; s/qdisc [a-z]*//'",
    )
}

/// A container with m0 and m1, which is killed; its namespace goes as well unless it is pinned.
fn lost(host: &Host, pinned: bool, mischief: &str) -> (String, Look) {
    let made = stacked(host);
    let before = host.look();
    host.prepare("m0,m1");
    let c = Container::new("c");
    c.create(host).ok();
    assert_eq!(sh("ip -o link show type macvlan"), "");
    let said = c.sh("ip -o -4 address show dev m0");
    assert!(said.contains("10.5.0.1/24") && said.contains("10.5.0.2/24"), "{said}");
    if !mischief.is_empty() {
        c.sh(mischief);
    }
    if !pinned {
        sh("umount /run/run/netns/*");
    }
    drop(c);
    (made, before)
}

/// `restore` says what it did.
fn home(host: &Host, made: &str, before: &Look) -> String {
    let said = host.rdmaprep(&["restore", "--all"]).ok();
    host.is_as(before);
    same("what macvlans are made of", made, &details());
    host.is_clean();
    said.out + &said.err
}

#[test]
fn a_namespace_takes_macvlans_along() {
    alone(|host| {
        let (made, before) = lost(host, false, "");
        home(host, &made, &before);
    });
}

#[test]
fn a_container_changes_and_deletes_them() {
    alone(|host| {
        let (made, before) =
            lost(host, true, "ip link delete m1; ip link set m0 type macvlan bcqueuelen 9; ip link set m0 name x");
        let said = home(host, &made, &before);
        assert!(said.contains("m1 had been deleted"), "{said}");
    });
}

/// Another interface has the name, or the lower device is missing: an error, and the record stays.
#[test]
fn a_device_that_cannot_be_recreated_is_reported() {
    alone(|host| {
        let (made, before) = lost(host, false, "");
        host.ip("link add m0 type veth peer name q");
        let words = ["m0 cannot be restored: the host has another interface m0"];
        host.rdmaprep(&["restore", "--all"]).fails(8, &words);
        assert_eq!(host.records().len(), 1);
        host.ip("link delete m0");
        home(host, &made, &before);
    });
}

/// What is not in a plan is not left behind: not by `prepare`, nor by a hook whose plan is older.
#[test]
fn a_macvlan_keeps_the_nic_below() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        host.ip("link add link r0 name m0 type macvlan");
        let before = host.look();
        let c = Container::new("c");
        c.create(host).fails(3, &["m0 (macvlan) sits on r0 now, and would be left without it; delete it first"]);
        host.rdmaprep(&["prepare", "--ifaces", "r0"])
            .fails(4, &["m0 (macvlan) sits on r0, and would be left without it"]);
        host.is_as(&before);
    });
}

/// A device with the same name, index and address, on a lower device of the container's own, is not moved to the host.
#[test]
fn an_impostor_stays_inside() {
    alone(|host| {
        let (made, before) = lost(
            host,
            true,
            "index=$(cat /sys/class/net/m0/ifindex 2>/dev/null || ip -o link show m0 | cut -d: -f1); ip link delete m0
             ip link add y0 type veth peer name y1
             ip link add link y0 name m0 index $index address 02:00:00:00:aa:00 type macvlan mode bridge bcqueuelen 500",
        );
        home(host, &made, &before);
        let below = sh("ip -o link show m0");
        assert!(below.contains(" m0@r0: "), "{below}");
    });
}

/// What a container's NIC sits on cannot go to another container, whatever an older plan says.
#[test]
fn the_nic_below_stays_while_the_macvlan_is_away() {
    alone(|host| {
        host.rails(1);
        host.rdmaprep(&["prepare", "--ifaces", "r0", "--plan", "older"]).ok();
        host.ip("link add link r0 name m0 type macvlan mode bridge
            link set m0 up
            address add 10.5.0.1/24 dev m0");
        let before = host.look();
        host.prepare("m0");
        let mut a = Container::new("a");
        a.create(host).ok();
        host.rdmaprep(&["prepare", "--ifaces", "r0"]).fails(4, &["m0, which container a holds, sits on r0"]);
        let b = Container::new("b").annotated(serde_json::json!({"rdmaprep.io/plan": "older"}));
        b.create(host).fails(9, &["m0, on r0, is held by container a", "--wait"]);
        a.stop(host).ok();
        host.is_as(&before);
    });
}

/// A plan has the lower device of each NIC.
#[test]
fn one_that_sits_elsewhere_by_now_is_another() {
    alone(|host| {
        host.rails(2);
        let make = |below: &str| {
            host.ip(&format!(
                "link add link {below} name m0 address 02:00:00:00:aa:00 type macvlan
                 link set m0 up
                 address add 10.5.0.1/24 dev m0"
            ));
        };
        make("r0");
        host.prepare("m0");
        host.ip("link delete m0");
        make("r1");
        Container::new("c").create(host).fails(3, &["m0 sits on another device now"]);
    });
}
