//! What sits on a NIC, on the real kernel: it keeps the NIC on the host, and is still whole after
//! the refusal.

use crate::alone;
use crate::managed::index_of;
use testkit::{Container, Host, same, sh};

/// Everything of the vxlan x0: link, addresses, routes, forwarding entries.
fn vxlan() -> String {
    sh(
        "ip -d link show x0 | sed 's/ promiscuity [0-9]*//'; ip -o address show dev x0; ip route \
        show dev x0; bridge fdb show dev x0",
    )
}

/// x0 over r0, by a link attribute of its kind alone.
fn lay_vxlan(host: &Host) -> String {
    host.ip(
        "link add x0 type vxlan id 5 dev r0 remote 10.0.0.9 dstport 4789
        address add 10.9.0.1/24 dev x0
        link set x0 up
        route add 10.90.0.0/16 via 10.9.0.9 dev x0",
    );
    sh(
        "bridge fdb append 00:00:00:00:00:00 dev x0 dst 10.0.0.8; bridge fdb append \
        02:00:00:00:00:07 dev x0 dst 10.0.0.7",
    );
    vxlan()
}

#[test]
fn vxlan_over_a_nic_keeps_it_and_stays_whole() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let before = lay_vxlan(host);
        let look = host.look();
        let c = Container::new("c");
        c.create(host).fails(
            3,
            &["x0 (vxlan) sits on r0 now, and would be deleted, with all that is set on it"],
        );
        let why = "x0 (vxlan) sits on r0, and would be deleted, with all that is set on it";
        host.rdmaprep(&["prepare", "--ifaces", "r0"])
            .fails(4, &[why, "delete the upper netdev first"]);
        same("the vxlan", &before, &vxlan());
        host.is_as(&look);
        host.is_clean();
    });
}

/// The proof that the refusal is needed: a bare move takes the vxlan away.
#[test]
fn vxlan_is_deleted_when_its_nic_moves() {
    alone(|host| {
        host.rails(1);
        lay_vxlan(host);
        let c = Container::new("c");
        host.ip(&format!("link set r0 netns {}", c.pid()));
        assert_eq!(sh("ip -o link show type vxlan"), "");
    });
}

/// A placeholder that is named in --ifaces goes as a NIC of its own, and must not vanish with the
/// NIC below before its turn.
#[test]
fn vxlan_that_is_asked_for_keeps_the_nic_below() {
    alone(|host| {
        host.rails(1);
        let before = lay_vxlan(host);
        host.rdmaprep(&["prepare", "--ifaces", "r0,x0"])
            .fails(4, &["--ifaces names NICs", "x0 (vxlan) sits on r0"]);
        same("the vxlan", &before, &vxlan());
    });
}

/// The model: what a tunnel sits on, and where it leads.
#[test]
fn snapshot_names_lowers_and_tunnel_ends() {
    alone(|host| {
        host.rails(1);
        lay_vxlan(host);
        host.ip("link add link r0 name m0 type macvlan
            link add x1 type vxlan id 6 dev r0 group 239.1.1.1 local 10.0.0.1 dstport 4790");
        let snapshot: serde_json::Value =
            serde_json::from_str(&host.rdmaprep(&["snapshot", "--json"]).ok().out).unwrap();
        let dev = |name: &str| {
            snapshot["netdevs"]
                .as_array()
                .unwrap()
                .iter()
                .find(|d| d["name"] == name)
                .unwrap()
                .clone()
        };
        let r0 = dev("r0")["ifindex"].clone();
        for name in ["x0", "m0", "x1"] {
            assert_eq!(dev(name)["lowers"], serde_json::json!([r0]), "{name}");
        }
        assert_eq!(
            dev("x0")["tunnel"],
            serde_json::json!({"local": null, "remote": "10.0.0.9"})
        );
        assert_eq!(
            dev("x1")["tunnel"],
            serde_json::json!({"local": "10.0.0.1", "remote": "239.1.1.1"})
        );
        assert_eq!(dev("r0").get("lowers"), None, "a pair's peer is not below");
    });
}

/// A namespace of its own with a process in it.
fn pod() -> Container {
    Container::new("pod")
}

/// A pod's macvlan, as Multus makes it: in the pod, on a NIC of the host.
#[test]
fn macvlan_of_a_pod_keeps_the_nic() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let pod = pod();
        host.ip(&format!(
            "link add link r0 name m0 type macvlan mode bridge
            link set m0 netns {} name net1",
            pod.pid()
        ));
        let look = host.look();
        let c = Container::new("c");
        let keeper = format!("process {}", pod.pid());
        c.create(host).fails(
            3,
            &[
                "net1 (macvlan) of another network namespace",
                &keeper,
                "sits on r0 now: two would share the card",
            ],
        );
        let said = [
            "net1 (macvlan) of another network namespace",
            "sits on r0: two would share the card",
        ];
        host.rdmaprep(&["prepare", "--ifaces", "r0"])
            .fails(4, &said);
        host.is_as(&look);
        host.is_clean();
        assert!(pod.sh("ip -d -o link show net1").contains("macvlan"));
        // Its end sets the NIC free.
        pod.sh("ip link delete net1");
        host.prepare("r0");
        c.create(host).ok();
    });
}

/// Equal indexes of other namespaces' devices are no sign: a pod's macvlan on a device of its own.
#[test]
fn macvlan_on_another_device_of_that_index_does_not_count() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let index: u32 = sh("ip -o link show r0 | cut -d: -f1")
            .trim()
            .parse()
            .unwrap();
        let (pod, other) = (pod(), Container::new("other"));
        pod.sh(&format!(
            "ip link add y0 index {index} type veth peer name y1; ip link add link y0 name m0 \
            type macvlan"
        ));
        sh(&format!(
            "nsenter -t {} -n ip link set m0 netns {}",
            pod.pid(),
            other.pid()
        ));
        let there = other.sh("ip -o link show m0");
        assert!(there.contains(&format!("@if{index}")), "{there}");
        Container::new("c").create(host).ok();
    });
}

/// What a container made on its NIC and put elsewhere keeps talking after the container has ended,
/// unless it is deleted.
#[test]
fn macvlan_that_a_container_put_elsewhere_is_deleted() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let look = host.look();
        let other = pod();
        let mut c = Container::new("c");
        c.create(host).ok();
        c.sh("ip link add link r0 name spy type macvlan mode bridge");
        sh(&format!(
            "nsenter -t {} -n ip link set spy netns {}",
            c.pid(),
            other.pid()
        ));
        other.sh("ip link set spy up");
        c.stop(host).ok();
        assert_eq!(other.sh("ip -o link show type macvlan"), "");
        let notes = host.report("c")["notes"].to_string();
        assert!(
            notes.contains("spy (macvlan) of another network namespace"),
            "{notes}"
        );
        assert!(
            notes.contains("had been put on r0 and is deleted"),
            "{notes}"
        );
        host.is_as(&look);
        host.is_clean();
        // The next one gets the NIC alone: a passthru macvlan is refused as long as there is
        // another.
        host.ip("link add link r0 name probe type macvlan mode passthru");
        host.ip("link delete probe");
        Container::new("d").create(host).ok();
    });
}

/// Its NIC comes back with another index than the one by which it is asked for first.
#[test]
fn macvlan_elsewhere_goes_whatever_index_its_nic_gets() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let index = index_of("r0");
        let other = pod();
        let mut c = Container::new("c");
        c.create(host).ok();
        host.ip(&format!(
            "link add eth0 index {index} type veth peer name eth1"
        ));
        c.sh("ip link add link r0 name spy type macvlan mode bridge");
        sh(&format!(
            "nsenter -t {} -n ip link set spy netns {}",
            c.pid(),
            other.pid()
        ));
        other.sh("ip link set spy up");
        c.stop(host).ok();
        assert_ne!(index_of("r0"), index);
        assert_eq!(other.sh("ip -o link show type macvlan"), "");
    });
}

/// A NIC that is back whole is the host's, while another one of its record is held back.
#[test]
fn macvlan_that_came_after_the_nic_stays() {
    alone(|host| {
        host.rails(2);
        host.prepare("r0,r1");
        let mut c = Container::new("c");
        c.create(host).ok();
        c.kill();
        // A name that is taken keeps r1 away, and the record here.
        host.ip("link add r1 type veth peer name q1");
        host.rdmaprep(&["restore", "--all"]).fails(8, &["r1"]);
        let pod = pod();
        host.ip(&format!(
            "link add link r0 name m0 type macvlan mode bridge
            link set m0 netns {}
            link delete r1",
            pod.pid()
        ));
        host.rdmaprep(&["restore", "--all"]).ok();
        assert!(pod.sh("ip -o link show m0").contains("m0"));
        host.is_clean();
    });
}
