//! Macvlans on the real kernel: the kernel deletes them with the container's namespace, and a
//! restore re-creates them.

use std::process::Command;

use crate::alone;
use testkit::{Container, Host, Look, same, sh, until};

/// m0 and m1 on r0, each with something in all its properties; m1 is down.
fn stacked(host: &Host) -> String {
    host.rails(1);
    host.ip(
        "link add link r0 name m0 address 02:00:00:00:aa:00 type macvlan mode bridge bcqueuelen 500
        link add link r0 name m1 type macvlan mode private
        link set m0 mtu 1400 txqueuelen 77 group 5 alias \"tenant 0\" up
        link property add dev m0 altname tenant-zero
        address add 10.5.0.1/24 dev m0
        address add 10.5.0.2/24 dev m0
        address add fd05::1/64 dev m0 nodad
        address add 10.6.0.1/24 dev m1
        route add 10.50.0.0/16 via 10.5.0.9 dev m0 metric 5
        neighbour add 10.5.0.77 lladdr 02:00:00:00:00:77 dev m0 nud permanent
        rule add from 10.5.0.1 table 100 priority 1000",
    );
    sh("echo 1 > /proc/sys/net/ipv4/conf/m0/arp_ignore");
    details()
}

/// What macvlans are made of.
fn details() -> String {
    sh(
        "ip -d -o link show type macvlan | sed 's/ promiscuity [0-9]*//; s/ state [A-Z]*//; \
        s/,LOWER_UP//; s/qdisc [a-z]*//'",
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
    assert!(
        said.contains("10.5.0.1/24") && said.contains("10.5.0.2/24"),
        "{said}"
    );
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
        let (made, before) = lost(
            host,
            true,
            "ip link delete m1; ip link set m0 type macvlan bcqueuelen 9; ip link set m0 name x",
        );
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
        c.create(host).fails(
            3,
            &["m0 (macvlan) sits on r0 now, and would be left without it; delete it first"],
        );
        host.rdmaprep(&["prepare", "--ifaces", "r0"]).fails(
            4,
            &["m0 (macvlan) sits on r0, and would be left without it"],
        );
        host.is_as(&before);
    });
}

/// A device with the same name, index and address, on a lower device of the container's own, is not
/// moved to the host.
#[test]
fn an_impostor_stays_inside() {
    alone(|host| {
        let (made, before) = lost(
            host,
            true,
            "index=$(cat /sys/class/net/m0/ifindex 2>/dev/null || ip -o link show m0 | cut -d: \
            -f1); ip link delete m0
             ip link add y0 type veth peer name y1
             ip link add link y0 name m0 index $index address 02:00:00:00:aa:00 type macvlan mode \
             bridge bcqueuelen 500",
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
        host.rdmaprep(&["prepare", "--ifaces", "r0", "--plan", "older"])
            .ok();
        host.ip("link add link r0 name m0 type macvlan mode bridge
            link set m0 up
            address add 10.5.0.1/24 dev m0");
        let before = host.look();
        host.prepare("m0");
        let mut a = Container::new("a");
        a.create(host).ok();
        host.rdmaprep(&["prepare", "--ifaces", "r0"])
            .fails(4, &["m0, which container a holds, sits on r0"]);
        let b = Container::new("b").annotated(serde_json::json!({"rdmaprep.io/plan": "older"}));
        b.create(host)
            .fails(9, &["m0, on r0, is held by container a", "--wait"]);
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
        Container::new("c")
            .create(host)
            .fails(3, &["m0 sits on another device now"]);
    });
}

const MACVLAN: &str = "link add link r0 name m0 type macvlan mode bridge";

/// A plan of m0 on r0.
fn planned(host: &Host) -> Look {
    host.rails(1);
    host.ip(MACVLAN);
    host.ip("link set m0 up\naddress add 10.5.0.1/24 dev m0");
    let before = host.look();
    host.prepare("m0");
    before
}

/// m0 on r0, which a container has; r0 stays on the host.
fn given(host: &Host) -> (Look, Container) {
    let before = planned(host);
    let c = Container::new("c");
    c.create(host).ok();
    (before, c)
}

/// A macvlan that stays has its MTU lowered with that of the link below.
#[test]
fn a_macvlan_gets_the_lower_mtu_of_the_link_below() {
    alone(|host| {
        for is_killed in [false, true] {
            host.rails(1);
            sh("ip link set r0 mtu 9000");
            host.ip(MACVLAN);
            host.ip("link set m0 mtu 9000 up\naddress add 10.5.0.1/24 dev m0");
            let before = host.look();
            host.prepare("m0");
            let mut c = Container::new("c");
            c.create(host).ok();
            sh("ip link set r0 mtu 1500");
            let said = if is_killed {
                sh("umount /run/run/netns/*");
                drop(c);
                host.rdmaprep(&["restore", "--all"]).ok().out
            } else {
                c.stop(host).ok();
                host.report("c")["notes"].to_string()
            };
            assert!(said.contains("m0 has the MTU 1500 now"), "{said}");
            assert!(sh("ip link show m0").contains("mtu 1500"));
            sh("ip link set r0 mtu 9000; ip link set m0 mtu 9000");
            host.is_as(&before);
            host.is_clean();
            sh("ip link delete r0");
        }
    });
}

fn mac_of(c: &Container) -> String {
    c.sh("ip -json link show m0 | jq --raw-output .[0].address")
        .trim()
        .to_owned()
}

/// What it has on cards of other namespaces.
fn parts(c: &Container) -> String {
    c.sh("ip -o link | grep -o '[a-z0-9]*@if[0-9]*' | cut -d@ -f1 | sort | tr '\\n' ' '")
}

/// It would reach the fabric beside the one that a restore makes, and the next tenant has that.
#[test]
fn a_stacked_nic_that_was_moved_on_is_deleted_there() {
    alone(|host| {
        let (before, mut c) = given(host);
        let nested = Container::new("nested");
        c.sh(&format!("ip link set m0 netns {}", nested.pid()));
        nested.sh("ip link set m0 up");
        c.stop(host).ok();
        assert_eq!(parts(&nested), "");
        host.is_as(&before);
        host.is_clean();
        let notes = host.report("c")["notes"].to_string();
        assert!(
            notes.contains("m0 (macvlan) of another network namespace"),
            "{notes}"
        );
        assert!(
            notes.contains("had been moved on and is deleted"),
            "{notes}"
        );
        assert!(!notes.contains("m0 had been deleted"), "{notes}");
    });
}

/// A macvlan that is made on a macvlan sits on the card: the end of the NIC is not its end.
#[test]
fn a_sibling_in_a_namespace_that_lives_on_is_deleted() {
    alone(|host| {
        let (before, mut c) = given(host);
        let beside = Container::beside("beside", &c);
        c.sh("ip link add link m0 name spy type macvlan mode bridge; ip link set spy up");
        assert_eq!(parts(&c), "m0 spy ");
        c.stop(host).ok();
        assert_eq!(parts(&beside), "");
        host.is_as(&before);
        host.is_clean();
        let notes = host.report("c")["notes"].to_string();
        assert!(
            notes.contains("spy (macvlan)") && notes.contains("had been put on r0 and is deleted"),
            "{notes}"
        );
    });
}

/// No one can tell whose it is: no other container gets the NIC beside it.
#[test]
fn a_sibling_in_an_unknown_namespace_holds_the_nic_back() {
    alone(|host| {
        let (before, mut c) = given(host);
        let nested = Container::new("nested");
        c.sh(&format!(
            "ip link add link m0 name spy type macvlan mode bridge; ip link set spy netns {}",
            nested.pid()
        ));
        let keeper = format!("process {}", nested.pid());
        c.stop(host).fails(
            8,
            &[
                "spy (macvlan)",
                &keeper,
                "has been put on r0 since",
                "delete it there",
            ],
        );
        assert_eq!(parts(&nested), "spy ");
        assert!(
            host.status()[0]["held_back"]
                .to_string()
                .contains("spy (macvlan)"),
            "{}",
            host.status()
        );
        nested.sh("ip link delete spy");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// No container has made a namespace whose process is older than its own first one.
#[test]
fn a_macvlan_of_an_older_namespace_stays() {
    alone(|host| {
        let older = Container::new("older");
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (before, mut c) = given(host);
        host.ip(&format!(
            "link add link r0 name a0 type macvlan mode bridge\nlink set a0 netns {}",
            older.pid()
        ));
        c.stop(host).ok();
        assert_eq!(parts(&older), "a0 ");
        host.is_as(&before);
        host.is_clean();
    });
}

/// What a container does to keep a link on the card, in the namespace of process X.
const RENAMED: &str = "ip link set m0 name old0; ip link set old0 netns X";
const DISGUISED: &str = "ip link set m0 name old0; ip link set old0 address 02:11:22:33:44:55; \
    ip link set old0 netns X";
const SIBLING: &str = "ip link add link m0 name old0 type macvlan mode bridge; ip link set old0 \
    netns X";
/// By a namespace that keeps no trace of it.
const DETOUR: &str = "ip link set m0 name old0; ip link set old0 address 02:11:22:33:44:55; \
    unshare --net sleep 60 & there=$!; own=$(readlink /proc/self/ns/net); \
    until [ $(readlink /proc/$there/ns/net) != $own ]; do sleep 0.02; done; \
    ip link set old0 netns $there; \
    nsenter -t $there -n ip link set old0 netns X; kill $there; wait $there || true";

/// A process in a PID namespace and a network namespace of its own.
fn with_pids(name: &str) -> (Container, String) {
    let mut command = Command::new("unshare");
    let outer = Container::start(name, command.args(["--pid", "--fork", "unshare", "--net"]));
    let init = sh(&format!("cat /proc/{0}/task/{0}/children", outer.pid()));
    (outer, init.trim().to_owned())
}

/// Containers that keep a link, in a namespace that is older than they are and in one that has its
/// own PIDs.
fn kept(host: &Host, trick: &str, remains: &[&str]) {
    let older = Container::new("older");
    std::thread::sleep(std::time::Duration::from_millis(20));
    let (before, first) = given(host);
    kept_in(host, &older.pid().to_string(), first, trick, remains);
    host.is_as(&before);
    let second = Container::new("c");
    second.create(host).ok();
    let (_outer, init) = with_pids("late");
    kept_in(host, &init, second, trick, remains);
    host.is_as(&before);
}

/// `remains` is why the NIC is held back, until the link is gone; nothing where a stop deletes it.
fn kept_in(host: &Host, there: &str, mut c: Container, trick: &str, remains: &[&str]) {
    c.sh(&trick.replace('X', there));
    let links = || {
        sh(&format!(
            "nsenter -t {there} -n ip -o link show type macvlan"
        ))
    };
    if remains.is_empty() {
        c.stop(host).ok();
        let notes = host.report("c")["notes"].to_string();
        assert!(
            notes.contains("had been moved on and is deleted"),
            "{notes}"
        );
        assert!(!notes.contains("m0 had been deleted"), "{notes}");
    } else {
        let said = c.stop(host).fails(8, remains);
        assert!(!said.err.contains("m0 had been deleted"), "{}", said.err);
        host.rdmaprep(&["restore", "--all"]).fails(8, remains);
        let status = host.rdmaprep(&["status"]).ok().out;
        assert!(status.contains("(held back; "), "{status}");
        assert!(links().contains("old0@"));
        sh(&format!("nsenter -t {there} -n ip link delete old0"));
        host.rdmaprep(&["restore", "--all"]).ok();
    }
    assert_eq!(links(), "");
    host.is_clean();
}

#[test]
fn a_renamed_nic_in_anothers_namespace_is_deleted() {
    alone(|host| kept(host, RENAMED, &[]));
}

const MAY_BE: [&str; 2] = ["old0 (macvlan)", "may be m0 under another name"];

#[test]
fn a_disguised_nic_in_anothers_namespace_holds_the_nic_back() {
    alone(|host| kept(host, DISGUISED, &MAY_BE));
}

/// One looks again when some have been deleted.
#[test]
fn a_disguised_nic_stays_in_doubt_when_others_go() {
    let beside = "ip link add link m0 name own0 type macvlan mode bridge;";
    alone(|host| kept(host, &format!("{beside} {DISGUISED}"), &MAY_BE));
}

/// The next try knows of it by what the record says, however much else there is to say.
#[test]
fn a_disguised_nic_stays_in_doubt_behind_many_siblings() {
    alone(|host| {
        host.rails(2);
        host.ip("link add link r0 name m0 type macvlan mode bridge
            link add link r1 name m1 type macvlan mode bridge
            link set m0 up\nlink set m1 up
            address add 10.5.0.1/24 dev m0\naddress add 10.6.0.1/24 dev m1");
        let before = host.look();
        host.prepare("m0,m1");
        let older = Container::new("older");
        let mut c = Container::new("c");
        c.create(host).ok();
        let there = older.pid();
        c.sh(&format!(
            "for i in 1 2 3 4 5 6 7 8; do
                ip link add link m1 name s$i type macvlan mode bridge
                ip link set s$i netns {there}
            done
            {}",
            DISGUISED.replace('X', &there.to_string())
        ));
        c.stop(host).fails(8, &["may be m0 under another name"]);
        older.sh("for i in 1 2 3 4 5 6 7 8; do ip link delete s$i; done");
        host.rdmaprep(&["restore", "--all"]).fails(8, &MAY_BE);
        older.sh("ip link delete old0");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_disguised_nic_that_took_a_detour_holds_the_nic_back() {
    alone(|host| kept(host, DETOUR, &MAY_BE));
}

#[test]
fn a_sibling_in_anothers_namespace_holds_the_nic_back() {
    alone(|host| kept(host, SIBLING, &["old0 (macvlan)", "may be the container's"]));
}

/// The container deleted its NIC, and another one got a macvlan meanwhile: no one can tell that
/// from a NIC in disguise, so that an administrator decides.
#[test]
fn a_macvlan_beside_a_deleted_one_stays_and_can_be_accepted() {
    alone(|host| {
        let (before, mut c) = given(host);
        let (_outer, init) = with_pids("late");
        host.ip(&format!(
            "link add link r0 name a0 type macvlan mode bridge\nlink set a0 netns {init}"
        ));
        c.sh("ip link delete m0");
        c.stop(host)
            .fails(8, &["a0 (macvlan)", "may be m0", "restore c --forget"]);
        host.is_as(&before);
        host.rdmaprep(&["restore", "c", "--forget"]).ok();
        let there = sh(&format!(
            "nsenter -t {init} -n ip -o link show type macvlan"
        ));
        assert!(there.contains("a0@"), "{there}");
        host.is_as(&before);
        host.is_clean();
    });
}

/// An engine calls interfaces eth1 as well, and indexes are small numbers.
#[test]
fn anothers_macvlan_with_the_nics_name_and_index_stays() {
    alone(|host| {
        let (before, mut c) = given(host);
        sh("ip netns add engine");
        let index = c.sh("ip -o link show m0 | cut -d: -f1");
        host.ip(&format!(
            "link add link r0 name m0 index {} netns engine type macvlan mode bridge",
            index.trim()
        ));
        c.stop(host).ok();
        assert!(sh("ip -n engine link").contains("m0@"));
        host.is_as(&before);
        host.is_clean();
    });
}

/// The kernel deleted the NIC with its namespace, and others use its address by then.
#[test]
fn a_macvlan_that_was_given_the_nics_address_stays_and_is_named() {
    alone(|host| {
        let (before, mut c) = given(host);
        let mac = mac_of(&c);
        c.sh("ip link delete m0");
        sh("ip netns add by-hand");
        host.ip(&format!(
            "link add link r0 name eth9 address {mac} netns by-hand type macvlan mode bridge"
        ));
        c.stop(host).fails(8, &["eth9 (macvlan)", "may be m0"]);
        assert!(sh("ip -n by-hand link").contains("eth9@"));
        sh("ip netns delete by-hand");
        until("the namespace is gone", || {
            host.rdmaprep(&["restore", "--all"]).code == Some(0)
        });
        host.is_as(&before);
        host.is_clean();
    });
}

/// Two containers on one card; the second one has n0.
fn beside_another(host: &Host) -> (Look, Container, Container) {
    let (before, first) = given(host);
    host.ip(
        "link add link r0 name n0 type macvlan mode bridge\nlink set n0 up\n\
        address add 10.6.0.1/24 dev n0",
    );
    host.rdmaprep(&["prepare", "--plan", "second", "--ifaces", "n0"])
        .ok();
    let plan = serde_json::json!({"rdmaprep.io/plan": "second"});
    let second = Container::new("second").annotated(plan);
    second.create(host).ok();
    (before, first, second)
}

fn both_return(host: &Host, before: &Look, mut second: Container) {
    second.stop(host).ok();
    host.rdmaprep(&["restore", "--all"]).ok();
    host.ip("link delete n0");
    host.is_as(before);
    host.is_clean();
}

#[test]
fn a_container_that_takes_the_address_of_anothers_nic_is_named() {
    alone(|host| {
        let (before, mut first, second) = beside_another(host);
        let mac = mac_of(&first);
        first.sh("ip link delete m0");
        second.sh(&format!("ip link set n0 address {mac}"));
        first
            .stop(host)
            .fails(8, &["n0 (macvlan)", "has taken the address of m0"]);
        both_return(host, &before, second);
    });
}

/// While a link is down, others may use its address (macvlan_open() in drivers/net/macvlan.c).
#[test]
fn an_address_that_a_link_has_while_down_is_no_obstacle() {
    alone(|host| {
        let (before, mut first, second) = beside_another(host);
        let mac = mac_of(&first);
        first.sh("ip link delete m0");
        second.sh(&format!(
            "ip link set n0 down; ip link set n0 address {mac}"
        ));
        first.stop(host).ok();
        assert!(
            host.report("c")["notes"]
                .to_string()
                .contains("has taken the address of m0")
        );
        both_return(host, &before, second);
    });
}

/// Multus may give a running pod a further interface on the card.
#[test]
fn a_macvlan_that_a_cni_plugin_gave_stays() {
    alone(|host| {
        let (before, c) = given(host);
        sh("mount -t tmpfs tmpfs /var/lib; mkdir -p /var/lib/cni/results");
        let result = serde_json::json!({
            "kind": "cniCacheV1", "ifName": "net1", "networkName": "macvlan",
            "netns": format!("/proc/{}/ns/net", c.pid()),
        });
        std::fs::write("/var/lib/cni/results/macvlan-c-net1", result.to_string()).unwrap();
        c.sh("ip link add link m0 name spy type macvlan mode bridge");
        host.ip(&format!(
            "link add link r0 name a0 type macvlan mode bridge\nlink set a0 netns {} name net1",
            c.pid()
        ));
        let said = host.rdmaprep(&["restore", "c"]).ok().out;
        assert!(
            said.contains("net1 (macvlan)") && said.contains("it stays"),
            "{said}"
        );
        assert_eq!(parts(&c), "net1 ", "the container's own goes");
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_macvlan_with_the_name_of_a_cni_link_is_deleted() {
    alone(|host| {
        let (before, c) = given(host);
        sh("mount -t tmpfs tmpfs /var/lib; mkdir -p /var/lib/cni/results");
        let netns = format!("/proc/{}/ns/net", c.pid());
        let result = serde_json::json!({
            "kind": "cniCacheV1", "ifName": "eth0", "networkName": "bridge", "netns": netns,
            "result": {"interfaces": [
                {"name": "eth0", "mac": "0a:58:0a:00:00:07"},
                {"name": "eth0", "mac": "0A:58:0A:00:00:05", "sandbox": netns},
            ]},
        });
        std::fs::write("/var/lib/cni/results/bridge-c-eth0", result.to_string()).unwrap();
        c.sh("ip link add link m0 name eth0 type macvlan mode bridge");
        let said = host.rdmaprep(&["restore", "c"]).ok().out;
        assert!(
            said.contains("eth0 (macvlan)") && said.contains("is deleted"),
            "{said}"
        );
        assert_eq!(parts(&c), "");
        host.is_as(&before);
        host.is_clean();
    });
}

/// Where it joins one: the hook was killed before its record said that the NICs are attached.
#[test]
fn a_sibling_made_before_a_create_was_done_is_found() {
    alone(|host| {
        let before = planned(host);
        let c = Container::new("c");
        c.create(host).ok();
        let record = host.records().remove(0);
        let text = std::fs::read_to_string(&record).unwrap();
        let unfinished = text.replacen(r#""phase":"attached""#, r#""phase":"attaching""#, 1);
        assert_ne!(unfinished, text);
        std::fs::write(&record, unfinished).unwrap();
        c.sh("ip link add link m0 name y type macvlan mode bridge");
        let said = host.rdmaprep(&["restore", "c"]).ok().out;
        assert!(
            said.contains("y (macvlan)") && said.contains("is deleted"),
            "{said}"
        );
        assert_eq!(parts(&c), "");
        host.is_as(&before);
        host.is_clean();
    });
}

/// `podman network connect` writes nothing that says so.
#[test]
fn a_macvlan_that_an_engine_may_have_put_holds_the_nic_back() {
    alone(|host| {
        let before = planned(host);
        sh("ip netns add engines");
        let mut c = Container::joining("c", "/run/netns/engines");
        c.create(host).ok();
        host.ip("link add link r0 name eth1 netns engines type macvlan mode bridge");
        host.rdmaprep(&["restore", "c"])
            .fails(8, &["eth1 (macvlan)", "by the container or by its engine"]);
        assert_eq!(parts(&c), "eth1 ");
        host.is_as(&before);
        c.stop(host).ok();
        assert_eq!(sh("ip -n engines -o link show type macvlan"), "");
        host.is_as(&before);
        host.is_clean();
    });
}

/// A container that has not ended made it there by one command, which leaves no trace but the
/// process.
#[test]
fn a_sibling_in_a_namespace_within_holds_the_nic_back() {
    alone(|host| {
        let before = planned(host);
        let (outer, init) = with_pids("c");
        let state = outer.state().replace(&outer.pid().to_string(), &init);
        host.hook("createRuntime", &state).ok();
        // The container's process that made the namespace has ended.
        let there = sh(&format!(
            "nsenter -t {init} -n -p unshare --net --pid --fork sleep 60 > /dev/null \
                2>&1 & outer=$!
            child() {{
                pid=; until read -r pid _ < /proc/$1/task/$1/children || [ \"$pid\" ]; do
                sleep 0.02; done
            }}
            child $outer; maker=$pid
            child $maker; there=$pid
            nsenter -t {init} -n ip link add link m0 name y netns $((there)) type macvlan
            kill -9 $maker
            echo $((there))"
        ));
        let there = there.trim();
        host.rdmaprep(&["restore", "c"]).fails(
            8,
            &[
                "y (macvlan)",
                &format!("process {there}"),
                "may be the container's",
            ],
        );
        assert!(sh(&format!("nsenter -t {there} -n ip -o link")).contains("y@"));
        host.is_as(&before);
        sh(&format!("kill -9 {there}"));
        until("the namespace is gone", || {
            host.rdmaprep(&["restore", "--all"]).code == Some(0)
        });
        host.is_as(&before);
        host.is_clean();
    });
}

/// A namespace that nothing but an open file keeps is in no list.
#[test]
fn a_sibling_in_a_hidden_namespace_holds_the_nic_back() {
    alone(|host| {
        let (before, mut c) = given(host);
        let keeper = c.sh("unshare --net sleep 60 > /dev/null 2>&1 & there=$!
            own=$(readlink /proc/self/ns/net)
            until [ $(readlink /proc/$there/ns/net) != $own ]; do sleep 0.02; done
            ip link add link m0 name y netns $there type macvlan
            nsenter -t $there -n ip link set y up
            exec 9< /proc/$there/ns/net; kill -9 $there
            sleep 60 > /dev/null 2>&1 & echo $!");
        host.rdmaprep(&["restore", "c"])
            .fails(8, &["r0 takes packets for", "end the container"]);
        host.is_as(&before);
        sh(&format!("kill -9 {keeper}"));
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// Engines give pods macvlans of a card that is shared: those that were there before, those in a
/// namespace that has a name, and those of a container with a PID namespace.
#[test]
fn a_macvlan_of_another_container_stays() {
    alone(|host| {
        host.rails(1);
        let give = |name: &str, netns: &str| {
            host.ip(&format!(
                "link add link r0 name {name} type macvlan mode bridge\nlink set \
                {name} netns {netns}"
            ));
        };
        let early = Container::new("early");
        give("a0", &early.pid().to_string());
        host.ip(MACVLAN);
        host.ip("link set m0 up\naddress add 10.5.0.1/24 dev m0");
        let before = host.look();
        host.prepare("m0");
        let mut c = Container::new("c");
        c.create(host).ok();
        sh("ip netns add engine");
        give("a1", "engine");
        let (_late, init) = with_pids("late");
        give("a2", &init);
        c.stop(host).ok();
        assert_eq!(parts(&early), "a0 ");
        let there = |netns: &str| sh(&format!("nsenter {netns} ip -o link show type macvlan"));
        assert!(there("--net=/run/netns/engine").contains("a1@"));
        assert!(there(&format!("-t {init} -n")).contains("a2@"));
        host.is_as(&before);
        host.is_clean();
        let notes = host.report("c")["notes"].to_string();
        assert!(
            !notes.contains("a0 ")
                && notes.matches("is another container's: it stays").count() == 2,
            "{notes}"
        );
    });
}

/// A restore was, after it had begun.
fn was_killed(host: &Host) {
    let path = host.records().remove(0);
    let text = std::fs::read_to_string(&path).unwrap();
    let restoring = text.replace("\"phase\":\"attached\"", "\"phase\":\"restoring\"");
    assert_ne!(restoring, text);
    std::fs::write(&path, restoring).unwrap();
}

/// Its engine may have put that on the NIC since it was back.
#[test]
fn a_killed_restore_leaves_what_an_engine_may_have_put() {
    alone(|host| {
        host.rails(1);
        let before = host.look();
        host.prepare("r0");
        sh("ip netns add engines");
        let c = Container::joining("c", "/run/netns/engines");
        c.create(host).ok();
        c.sh(&format!("ip link set r0 netns {}", std::process::id()));
        was_killed(host);
        host.ip("link add link r0 name eth1 netns engines type macvlan mode bridge");
        host.rdmaprep(&["restore", "c"])
            .fails(8, &["eth1 (macvlan)", "sits on r0: delete it there"]);
        c.sh("ip link delete eth1");
        host.rdmaprep(&["restore", "c"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// Its namespace is kept by the record alone: no one else could delete what is in it.
#[test]
fn a_killed_restore_deletes_what_is_in_the_containers_netns() {
    alone(|host| {
        host.rails(1);
        let before = host.look();
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        c.sh(&format!(
            "ip link add link r0 name evil type macvlan mode bridge
            ip link set r0 netns {}",
            std::process::id()
        ));
        was_killed(host);
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// While one goes it is used to make the next, and all of them sit on the card.
fn makes_links(host: &Host, nic: &str, before: &Look, c: &Container) {
    c.sh(&format!(
        "for i in 0 1 2 3 4 5 6 7; do
            ip link add link {nic} name q$i type macvlan mode bridge
        done"
    ));
    let makes = "n=0; while :; do
            q=$(ip -o link show type macvlan | shuf -n 1 | cut -d: -f2 | cut -d@ -f1)
            n=$((n + 1)); ip link add link $q name x$n type macvlan mode bridge
        done > /dev/null 2>&1";
    let mut maker = Command::new("nsenter");
    let enter = format!("--net=/proc/{}/ns/net", c.pid());
    let mut maker = maker.args([&enter, "sh", "-c", makes]).spawn().unwrap();
    let said = host.rdmaprep(&["restore", "--all"]);
    let left = parts(c);
    maker.kill().unwrap();
    maker.wait().unwrap();
    assert!(said.code == Some(8) || left.is_empty(), "{said:?} {left}");
    host.rdmaprep(&["restore", "--all"]).ok();
    assert_eq!(parts(c), "");
    host.is_as(before);
    host.is_clean();
}

#[test]
fn a_container_that_makes_links_on_its_nic_keeps_none() {
    alone(|host| {
        host.rails(1);
        let before = host.look();
        host.prepare("r0");
        let c = Container::new("c");
        c.create(host).ok();
        makes_links(host, "r0", &before, &c);
    });
}

#[test]
fn a_container_that_makes_links_beside_its_nic_keeps_none() {
    alone(|host| {
        let (before, c) = given(host);
        makes_links(host, "m0", &before, &c);
    });
}

/// A stop has the lock that others wait for.
#[test]
fn thousands_of_links_go_together() {
    alone(|host| {
        host.rails(1);
        let before = host.look();
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        c.sh("for i in $(seq 1000); do
                echo link add link r0 name q$i type macvlan mode bridge
            done | ip -batch -");
        c.stop(host).ok();
        let notes = host.report("c")["notes"].to_string();
        assert!(notes.contains("so it is with 996 more links"), "{notes}");
        host.is_as(&before);
        host.is_clean();
    });
}

/// Nothing says then whether the container's links on its NICs had been deleted.
#[test]
fn a_killed_restore_excuses_no_link_on_a_nic() {
    alone(|host| {
        host.rails(1);
        let before = host.look();
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        let (_other, init) = with_pids("other");
        sh(&format!(
            "nsenter -t {c} -n ip link add link r0 name evil type macvlan mode bridge
            nsenter -t {c} -n ip link set evil netns {init}
            nsenter -t {c} -n ip link set r0 netns {host}",
            c = c.pid(),
            host = std::process::id()
        ));
        was_killed(host);

        for _ in 0..2 {
            host.rdmaprep(&["restore", "c"])
                .fails(8, &["evil (macvlan)", "sits on r0: delete it there"]);
        }
        sh(&format!("nsenter -t {init} -n ip link delete evil"));
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}
