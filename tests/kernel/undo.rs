//! Failures on the real kernel: whatever stops a hook in the middle, the host gets everything back.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::alone;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testkit::{Container, Host, Said, ipv6, same, sh, until};

/// NICs with addresses, routes and rules, the plan for them stored.
fn prepared(host: &Host, count: usize) -> testkit::Look {
    let rails = host.rails(count);
    for i in 0..count {
        host.ip(&format!(
            "route add 10.2{i}.0.0/16 via 10.{i}.0.9 dev r{i}
rule add from 10.{i}.0.1 table 10{i} priority 100{i}
\
             address add fd0{i}::1/64 dev r{i} nodad
link property add dev r{i} altname rail{i}"
        ));
    }
    host.prepare(&rails);
    host.look()
}

/// The lock in the hands of another process, as far as rdmaprep can tell.
fn hold_lock(host: &Host) -> Flock<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(host.run.join("lock"))
        .unwrap();
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|(_, e)| e)
        .unwrap()
}

/// A create that runs beside the test.
fn start(host: &Host, c: &Container) -> Child {
    start_with(host, c, &[])
}

fn start_with(host: &Host, c: &Container, args: &[&str]) -> Child {
    start_stage(host, "createRuntime", &c.state(), args)
}

fn start_stage(host: &Host, stage: &str, state: &str, args: &[&str]) -> Child {
    let mut hook = host.command(&["hook", stage]);
    let hook = hook
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut hook = hook.spawn().unwrap();
    hook.stdin
        .take()
        .unwrap()
        .write_all(state.as_bytes())
        .unwrap();
    hook
}

fn signal(hook: &Child, signal: Signal) {
    kill(Pid::from_raw(hook.id() as i32), signal).unwrap();
}

/// Waits, as closely as it can, until the first NIC is inside, or the hook has ended.
fn arrives(c: &Container, hook: &Child) {
    let links = format!("/proc/{}/net/dev", c.pid());
    let stat = format!("/proc/{}/stat", hook.id());
    let has_ended = || fs::read_to_string(&stat).unwrap().contains(") Z ");
    while !fs::read_to_string(&links).unwrap().contains("r0:") && !has_ended() {
        std::hint::spin_loop();
    }
}

/// Waits until it has the lock file open, that is, has looked at the container and waits for the
/// lock.
fn waits(host: &Host, hook: &Child) {
    let lock = host.run.join("lock");
    until("the hook waits for the lock", || {
        let open = fs::read_dir(format!("/proc/{}/fd", hook.id())).unwrap();
        open.flatten()
            .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == lock))
    });
}

fn end(hook: Child) -> Said {
    hook.wait_with_output().unwrap().into()
}

#[test]
fn a_name_that_is_taken_inside_is_found_before_anything_moves() {
    alone(|host| {
        let before = prepared(host, 2);
        let c = Container::new("taken");
        c.sh("ip link add r1 type veth peer name x");
        c.create(host)
            .fails(3, &["the container has an interface r1 already"]);
        host.is_as(&before);
        host.is_clean();
        // Altnames are names, on either side.
        for (name, link) in [
            (
                "r0",
                "ip link add aa type veth peer name bb; ip link property add dev aa altname r0",
            ),
            ("rail1", "ip link add rail1 type veth peer name bb"),
        ] {
            let c = Container::new("taken too");
            c.sh(link);
            c.create(host).fails(
                3,
                &[&format!("the container has an interface {name} already")],
            );
            host.is_as(&before);
            host.is_clean();
        }
    });
}

#[test]
fn name_taken_on_the_host_keeps_that_nic_back_and_is_named() {
    alone(|host| {
        let before = prepared(host, 2);
        for name in ["r0", "rail0"] {
            let mut c = Container::new("away");
            c.create(host).ok();
            host.ip(&format!("link add {name} type veth peer name q0"));
            let words = [
                "r0 cannot be restored",
                &format!("another interface {name}"),
                "rename",
                "rdmaprep restore away",
            ];
            let start = Instant::now();
            c.stop(host).fails(8, &words);
            assert!(
                start.elapsed() < Duration::from_secs(4),
                "it waits for what cannot happen"
            );
            assert!(
                sh("ip -br link").contains("r1@"),
                "the other NIC must not wait"
            );
            host.rdmaprep(&["restore", "away"]).fails(8, &words);
            assert_eq!(host.records().len(), 1);
            host.ip(&format!("link set {name} name other"));
            host.rdmaprep(&["restore", "away"]).ok();
            host.ip("link delete other");
            host.is_as(&before);
            host.is_clean();
        }
    });
}

/// The first rail's name is another link's as the container ends: that rail stays in the record.
#[test]
fn what_came_back_whole_is_the_administrators_again() {
    let changes = [
        "address flush dev r1\nlink set r1 down",
        "address add 10.77.0.1/24 dev r1\nlink set r1 mtu 1400",
        "link set r1 down\nlink set r1 name mine",
        "rule delete table 101\nroute delete 10.21.0.0/16",
    ];
    alone(|host| {
        for change in changes {
            prepared(host, 2);
            let mut c = Container::new("away");
            c.create(host).ok();
            host.ip("link add r0 type veth peer name q0");
            c.stop(host).fails(8, &["r0 cannot be restored"]);
            let whole = sh("ip -o address show dev r1");
            assert!(whole.contains("10.1.0.1/24"), "{whole}");
            host.ip(change);
            let is_now = seen_of_second_rail();
            host.rdmaprep(&["restore", "away"])
                .fails(8, &["r0 cannot be restored"]);
            assert_eq!(seen_of_second_rail(), is_now, "after {change}");
            host.ip("link delete r0");
            host.rdmaprep(&["restore", "--all"]).ok();
            assert_eq!(seen_of_second_rail(), is_now, "after {change}");
            let back = sh("ip -o address show dev r0; ip rule");
            assert!(
                back.contains("10.0.0.1/24") && back.contains("lookup 100"),
                "{back}"
            );
            host.is_clean();
            sh("ip link delete p0; ip link delete p1
ip rule delete table 100; ip rule delete table 101 || true");
        }
    });
}

/// By its own name and by the one that an administrator gives it.
fn seen_of_second_rail() -> String {
    sh("for nic in r1 mine; do
ip -o link show dev $nic; ip -o address show dev $nic; ip route show dev $nic; done 2>&1 || true
ip rule | grep -w 101 || true")
}

#[test]
fn shared_routes_come_in_parts_while_a_nic_is_stuck() {
    alone(|host| {
        prepared(host, 3);
        host.ip(
            "route add 10.50.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1
route add 10.51.0.0/16 nexthop via 10.1.0.9 dev r1 nexthop via 10.2.0.9 dev r2
route add fd50::/64 nexthop via fe80::9 dev r0 nexthop via fe80::9 dev r1
nexthop add id 40 via 10.0.0.9 dev r0
nexthop add id 41 via 10.1.0.9 dev r1
nexthop add id 42 group 40/41
route add 10.52.0.0/16 nhid 42
route add 10.53.0.0/16 via 10.1.0.8 src 10.0.0.1",
        );
        let before = host.look();
        let mut c = Container::new("away");
        c.create(host).ok();
        host.ip("link add r0 type veth peer name q0");
        c.stop(host).fails(8, &["r0 cannot be restored"]);
        for (family, subnet) in [("-4", "10.50.0.0/16"), ("-6", "fd50::/64")] {
            let part = sh(&format!("ip {family} route show {subnet}"));
            assert!(part.contains("dev r1") && !part.contains("r0"), "{part}");
        }
        let group = sh("ip nexthop show id 42; ip route show 10.52.0.0/16");
        assert!(
            group.contains("group 41") && group.contains("nhid 42"),
            "{group}"
        );
        host.ip("link delete r0");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_clean();
        host.is_as(&before);
    });
}

#[test]
fn routes_by_what_an_administrator_deleted_are_left_out() {
    alone(|host| {
        let rails = host.rails(1);
        host.ip(
            "link add d0 type veth peer name d1\nlink set d1 up\nlink set d0 up
address add 10.9.0.1/24 dev d0
address add 10.255.0.1/32 dev lo\naddress add 10.255.0.2/32 dev lo
route add 203.0.115.0/24 via 10.0.0.9 dev r0 src 10.255.0.2
route add 203.0.113.0/24 nexthop via 10.0.0.9 dev r0 nexthop via 10.9.0.9 dev d0
route add 203.0.114.0/24 via 10.0.0.9 dev r0 src 10.255.0.1",
        );
        host.prepare(&rails);
        let mut c = Container::new("late");
        c.create(host).ok();
        host.ip("link delete d0\naddress delete 10.255.0.1/32 dev lo");
        c.stop(host).ok();
        let notes = host.report("late")["notes"].to_string();
        for gone in ["d0 has gone", "10.255.0.1 has gone"] {
            assert!(notes.contains(gone), "{notes}");
        }
        let routes = sh("ip route");
        assert!(
            routes.contains("203.0.113.0/24 via 10.0.0.9 dev r0"),
            "{routes}"
        );
        assert!(!routes.contains("203.0.114.0/24"), "{routes}");
        let with_source = "203.0.115.0/24 via 10.0.0.9 dev r0 src 10.255.0.2";
        assert!(routes.contains(with_source), "{routes}");
        host.is_clean();
    });
}

/// The link is no NIC of any record, and is there.
#[test]
fn legs_over_what_was_set_down_meanwhile_are_left_out() {
    alone(|host| {
        let rails = host.rails(1);
        host.ip(
            "link add d0 type veth peer name d1\nlink set d1 up\nlink set d0 up
address add 10.9.0.1/24 dev d0\naddress add fd09::1/64 dev d0 nodad
address add fd00::1/64 dev r0 nodad
nexthop add id 10 via 10.9.0.9 dev d0\nnexthop add id 11 via 10.0.0.9 dev r0
nexthop add id 20 group 10/11\nroute add 203.0.114.0/24 nhid 20
route add 203.0.113.0/24 nexthop via 10.0.0.9 dev r0 nexthop via 10.9.0.9 dev d0
route add fd13::/48 nexthop via fd00::9 dev r0 nexthop via fd09::9 dev d0",
        );
        host.prepare(&rails);
        let mut c = Container::new("down");
        c.create(host).ok();
        host.ip("address flush dev d0\nlink set d0 down");
        c.stop(host).ok();
        let notes = host.report("down")["notes"].to_string();
        for note in ["d0 is down", "nexthop object 10 has gone"] {
            assert!(notes.contains(note), "{notes}");
        }
        let routes = sh("ip route; ip -6 route");
        for route in [
            "203.0.113.0/24 via 10.0.0.9 dev r0",
            "203.0.114.0/24 nhid 20 via 10.0.0.9 dev r0",
            "fd13::/48 via fd00::9 dev r0",
        ] {
            assert!(routes.contains(route), "{routes}");
        }
        host.is_clean();
    });
}

#[test]
fn legs_over_a_link_that_is_down_for_a_moment_come_back() {
    alone(|host| {
        let rails = host.rails(1);
        host.ip(
            "link add d0 type veth peer name d1\nlink set d1 up\nlink set d0 up
address add 10.9.0.1/24 dev d0
route add 203.0.113.0/24 nexthop via 10.0.0.9 dev r0 nexthop via 10.9.0.9 dev d0",
        );
        host.prepare(&rails);
        let before = host.look();
        let mut c = Container::new("flap");
        c.create(host).ok();
        host.ip("link set d0 down");
        let mut up = std::process::Command::new("sh")
            .args(["-c", "sleep 1; ip link set d0 up"])
            .spawn()
            .unwrap();
        c.stop(host).ok();
        up.wait().unwrap();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn ipv6_legs_over_a_link_without_ipv6_are_left_out() {
    alone(|host| {
        let rails = host.rails(1);
        host.ip(
            "link add d0 type veth peer name d1\nlink set d1 up\nlink set d0 up
address add fd09::1/64 dev d0 nodad\naddress add fd00::1/64 dev r0 nodad
route add fd13::/48 nexthop via fd00::9 dev r0 nexthop via fd09::9 dev d0",
        );
        host.prepare(&rails);
        let mut c = Container::new("off");
        c.create(host).ok();
        sh("sysctl -qw net.ipv6.conf.d0.disable_ipv6=1");
        c.stop(host).ok();
        let notes = host.report("off")["notes"].to_string();
        assert!(notes.contains("d0 is without IPv6"), "{notes}");
        let routes = sh("ip -6 route");
        assert!(routes.contains("fd13::/48 via fd00::9 dev r0"), "{routes}");
        host.is_clean();
    });
}

#[test]
fn groups_come_back_without_members_that_were_deleted() {
    alone(|host| {
        host.rails(2);
        host.ip(
            "nexthop add id 10 via 10.1.0.9 dev r1\nnexthop add id 12 via 10.1.0.8 dev r1
nexthop add id 11 via 10.0.0.9 dev r0\nnexthop add id 20 group 10/11/12
route add 203.0.114.0/24 nhid 20",
        );
        host.prepare("r0");
        let mut c = Container::new("members");
        c.create(host).ok();
        host.ip("nexthop delete id 10");
        c.stop(host).ok();
        let notes = host.report("members")["notes"].to_string();
        assert!(notes.contains("nexthop object 10 has gone"), "{notes}");
        let routes = sh("ip route show 203.0.114.0/24 | tr -s ' \\n\\t' ' '");
        let legs = ["via 10.0.0.9 dev r0", "via 10.1.0.8 dev r1"];
        assert!(legs.iter().all(|leg| routes.contains(leg)), "{routes}");
        host.is_clean();
    });
}

/// As in the group of a host whose NIC was never away.
#[test]
fn groups_lead_by_what_their_members_are_by_now() {
    alone(|host| {
        host.rails(3);
        host.ip(
            "nexthop add id 10 via 10.1.0.9 dev r1\nnexthop add id 11 via 10.0.0.9 dev r0
nexthop add id 12 via 10.1.0.9 dev r1
nexthop add id 20 group 10/11/12\nroute add 203.0.114.0/24 nhid 20",
        );
        for (plan, nic) in [("zero", "r0"), ("one", "r1")] {
            host.rdmaprep(&["prepare", "--plan", plan, "--ifaces", nic])
                .ok();
        }
        let annotated =
            |plan| Container::new(plan).annotated(serde_json::json!({"rdmaprep.io/plan": plan}));
        let legs = || sh("ip route show 203.0.114.0/24 | tr -s ' \\n\\t' ' '");
        // The member's NIC is here, then away when it changes.
        for away in [false, true] {
            let (mut zero, mut one) = (annotated("zero"), annotated("one"));
            zero.create(host).ok();
            sh("ip nexthop replace id 10 via 10.2.0.9 dev r2");
            if away {
                one.create(host).ok();
            }
            zero.stop(host).ok();
            if away {
                one.stop(host).ok();
            }
            host.is_clean();
            let now = legs();
            assert!(
                now.contains("via 10.0.0.9 dev r0") && now.contains("10.2.0.9 dev r2"),
                "{now}"
            );
            sh("ip nexthop replace id 10 via 10.1.0.9 dev r1");
        }
    });
}

/// The kernel keeps such a leg of an IPv6 route, dead.
#[test]
fn ipv6_routes_come_back_beside_a_dead_leg() {
    alone(|host| {
        host.rails(3);
        host.ip(
            "address add fd00::1/64 dev r0 nodad\naddress add fd01::1/64 dev r1 nodad
address add fd02::1/64 dev r2 nodad
route add fd13::/48 nexthop via fd00::9 dev r0 nexthop via fd01::9 dev r1 \
        nexthop via fd02::9 dev r2",
        );
        host.prepare("r0");
        let mut c = Container::new("dead");
        c.create(host).ok();
        sh("ip link set r2 down");
        c.stop(host).ok();
        let notes = host.report("dead")["notes"].to_string();
        assert!(notes.contains("r2 is down"), "{notes}");
        let routes = sh("ip -6 route show fd13::/48");
        assert!(
            routes.contains("dev r0") && routes.contains("dev r1"),
            "{routes}"
        );
        host.is_clean();
    });
}

/// With the address the kernel takes it from the IPv6 routes that are there, and keeps these.
#[test]
fn ipv6_routes_come_back_without_a_source_that_was_deleted() {
    alone(|host| {
        let rails = host.rails(1);
        host.ip("address add fd00::1/64 dev r0 nodad
address add fd99::1/128 dev lo nodad\naddress add fd99::2/128 dev lo nodad
route add fd13::/48 via fd00::9 dev r0 src fd99::1
route add fd14::/48 via fd00::9 dev r0 src fd99::2");
        host.prepare(&rails);
        let mut c = Container::new("source");
        c.create(host).ok();
        host.ip("address delete fd99::1/128 dev lo");
        c.stop(host).ok();
        let notes = host.report("source")["notes"].to_string();
        assert!(notes.contains("fd99::1 has gone"), "{notes}");
        let routes = sh("ip -6 route");
        assert!(
            routes.contains("fd13::/48 via fd00::9 dev r0 metric"),
            "{routes}"
        );
        let with_source = "fd14::/48 via fd00::9 dev r0 src fd99::2";
        assert!(routes.contains(with_source), "{routes}");
        host.is_clean();
    });
}

/// As NetworkManager does when it misses its link-local address for a moment.
#[test]
fn a_link_local_address_chosen_anew_is_no_change() {
    alone(|host| {
        let rails = host.rails(1);
        host.ip("link set r0 addrgenmode none\naddress flush dev r0 scope link");
        host.ip("address add fe80::16ac:5cd5:1234:5/64 dev r0 noprefixroute nodad");
        host.prepare(&rails);
        host.ip("address delete fe80::16ac:5cd5:1234:5/64 dev r0");
        host.ip("address add fe80::16ac:5cd5:1234:6/64 dev r0 noprefixroute nodad");
        let before = host.look();
        let mut c = Container::new("new");
        c.create(host).ok();
        assert!(c.sh("ip -br address").contains("fe80::16ac:5cd5:1234:6"));
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_plan_that_is_out_of_date_is_refused_with_its_cure() {
    alone(|host| {
        prepared(host, 2);
        const AGAIN: &str = "run `rdmaprep prepare --plan default --ifaces=r0,r1` again";
        let c = Container::new("late");
        let stale = |why: &str| {
            let before = host.look();
            c.create(host).fails(3, &["out of date", why, AGAIN]);
            host.is_as(&before);
            host.is_clean();
        };
        host.ip("address add 10.1.0.7/24 dev r1");
        stale("r1 has 10.1.0.7/24 now");
        host.ip("address delete 10.1.0.7/24 dev r1\nlink set r1 name else");
        stale("r1 is not on the host");
        host.ip("link set else name r1");
        let path = host.run.join("plans/default.json");
        let mut plan: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        plan["boot_id"] = "00000000-0000-0000-0000-000000000000".into();
        fs::write(&path, plan.to_string()).unwrap();
        stale("before the last boot");
        fs::write(&path, "{").unwrap();
        let before = host.look();
        c.create(host).fails(1, &["default.json"]);
        host.is_as(&before);
    });
}

#[test]
fn lock_of_another_rdmaprep_is_awaited_until_the_deadline() {
    alone(|host| {
        let before = prepared(host, 1);
        let mut c = Container::new("locked");
        let held = hold_lock(host);
        let start_time = Instant::now();
        let mut hook = host.command(&["hook", "createRuntime", "--deadline", "1"]);
        testkit::run(&mut hook, &c.state()).fails(9, &["another rdmaprep holds"]);
        assert!((900..3000).contains(&start_time.elapsed().as_millis()));
        host.rdmaprep(&["restore", "--all"])
            .fails(9, &["another rdmaprep holds"]);
        host.is_as(&before);
        // One that lets go in time is no obstacle.
        let hook = start(host, &c);
        waits(host, &hook);
        drop(held);
        end(hook).ok();
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// It has read the record before, to know whether there is one.
#[test]
fn a_record_counts_as_it_is_when_its_stop_gets_the_lock() {
    alone(|host| {
        let before = prepared(host, 1);
        let c = Container::new("waits");
        c.create(host).ok();
        let held = hold_lock(host);
        let stop = start_stage(host, "poststop", &c.stopped(), &[]);
        waits(host, &stop);
        let path = &host.records()[0];
        let text = fs::read_to_string(path).unwrap();
        let mut record: Value = serde_json::from_str(&text).unwrap();
        let members = record["members"].as_array_mut().unwrap();
        let mut beside = members[0].clone();
        beside["id"] = "beside".into();
        members.push(beside);
        fs::write(path, record.to_string()).unwrap();
        drop(held);
        end(stop).ok();
        assert!(c.sh("ip -br link").contains("r0"), "the other one keeps it");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn an_init_that_dies_while_its_hook_waits_gets_nothing() {
    alone(|host| {
        let before = prepared(host, 3);
        let mut c = Container::new("short");
        let held = hold_lock(host);
        let hook = start(host, &c);
        waits(host, &hook);
        c.kill();
        drop(held);
        end(hook).fails(5, &[]);
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_refusal_of_the_kernel_undoes_every_nic() {
    alone(|host| {
        let before = prepared(host, 3);
        // A container whose first rule hides the gateway of the last NIC: the kernel finds no way
        // to it and refuses the route.
        let c = Container::new("refused");
        c.sh(
            "ip rule add lookup local priority 1; ip rule delete lookup local priority 0
            ip rule add to 10.2.0.9 unreachable priority 0",
        );
        c.create(host).fails(
            6,
            &[
                "adding route 10.22.0.0/16 via 10.2.0.9 dev r2 in the container",
                "unreachable",
            ],
        );
        host.is_as(&before);
        host.is_clean();
        assert_eq!(host.report("refused")["outcome"], "kernel");
        assert_eq!(c.sh("ip -br link | grep -c r || :").trim(), "0");
        // The same container gets them when that is settled.
        c.sh("ip rule delete priority 0 to 10.2.0.9");
        let mut c = c;
        c.create(host).ok();
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_deadline_that_passes_in_the_middle_undoes_everything() {
    alone(|host| {
        let before = prepared(host, 8);
        // A busy machine may let the whole hook pass before we see the first NIC inside: then once
        // more.
        let timed_out = (0..5).any(|_| {
            let mut c = Container::new("slow");
            let hook = start_with(host, &c, &["--deadline", "1"]);
            arrives(&c, &hook);
            signal(&hook, Signal::SIGSTOP);
            std::thread::sleep(Duration::from_millis(1050));
            signal(&hook, Signal::SIGCONT);
            let said = end(hook);
            if said.code == Some(0) {
                c.stop(host).ok();
                return false;
            }
            said.fails(7, &["the deadline passed before"]);
            true
        });
        assert!(timed_out);
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_route_that_is_refused_keeps_no_other_away() {
    alone(|host| {
        let before = prepared(host, 2);
        let mut c = Container::new("barred");
        c.create(host).ok();
        host.ip(HIDE_GATEWAY);
        c.stop(host)
            .fails(8, &["adding route 10.20.0.0/16 via 10.0.0.9 dev r0"]);
        assert!(sh("ip route").contains("10.21.0.0/16 via 10.1.0.9 dev r1"));
        assert!(sh("ip rule").contains("from 10.1.0.1 lookup 101"));
        host.ip(SHOW_GATEWAY);
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// No table is asked before this rule: the kernel finds no way to the gateway and refuses it.
const HIDE_GATEWAY: &str = "rule add lookup local priority 1
rule delete lookup local priority 0
rule add to 10.0.0.9 unreachable priority 0";
const SHOW_GATEWAY: &str = "rule delete to 10.0.0.9 unreachable priority 0
rule add lookup local priority 0
rule delete lookup local priority 1";

#[test]
fn a_gateway_that_a_rule_prohibits_keeps_no_route_away() {
    alone(|host| {
        prepared(host, 1);
        let mut c = Container::new("prohibited");
        c.create(host).ok();
        host.ip("rule add to 10.0.0.9 prohibit priority 100");
        c.stop(host).ok();
        assert!(sh("ip route").contains("10.20.0.0/16 via 10.0.0.9 dev r0"));
        host.is_clean();
    });
}

/// The parts of the work that a report has times of.
fn laps(report: &Value) -> Vec<String> {
    let phases = report["phases"].as_array().unwrap().iter();
    phases
        .map(|lap| lap["name"].as_str().unwrap().to_owned())
        .collect()
}

/// No step fails: only a look at the NICs shows it.
#[test]
fn an_address_that_comes_in_the_middle_undoes_everything() {
    alone(|host| {
        let before = prepared(host, 8);
        let was_found = (0..5).any(|_| {
            let mut c = Container::new("other");
            let hook = start(host, &c);
            arrives(&c, &hook);
            signal(&hook, Signal::SIGSTOP);
            c.sh("ip address add 192.0.2.1/32 dev r0");
            signal(&hook, Signal::SIGCONT);
            let said = end(hook);
            if said.code == Some(0) {
                c.stop(host).ok();
                return false;
            }
            said.fails(6, &["the NICs inside differ from the plan", "192.0.2.1/32"]);
            // The look that failed is not booked as the undo.
            assert!(laps(&host.report("other")).contains(&"verify".to_owned()));
            true
        });
        assert!(was_found);
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn an_init_that_dies_while_its_nics_arrive_gets_none() {
    alone(|host| {
        let before = prepared(host, 8);
        let died = (0..5).any(|_| {
            let mut c = Container::new("short");
            let hook = start(host, &c);
            arrives(&c, &hook);
            c.kill();
            let said = end(hook);
            if said.code == Some(0) {
                host.hook("poststop", &c.stopped()).ok();
                return false;
            }
            said.fails(5, &["the container's init has ended; everything is undone"]);
            true
        });
        assert!(died);
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_hook_that_is_killed_at_any_moment_loses_nothing() {
    alone(|host| {
        let before = prepared(host, 3);
        let mut whole = {
            let mut c = Container::new("whole");
            let start = Instant::now();
            c.create(host).ok();
            let took = start.elapsed();
            c.stop(host).ok();
            took
        };
        let mut killed = 0;
        for round in 0..25u32 {
            let mut c = Container::new("killed");
            let mut hook = start(host, &c);
            std::thread::sleep(whole * round / 24);
            hook.kill().unwrap();
            if hook.wait().unwrap().code().is_none() {
                killed += 1;
            } else {
                // The machine is less busy than when it was measured: the next one is killed
                // earlier.
                whole = whole * 3 / 4;
            }
            c.kill();
            // In every second round the restore is interrupted as well.
            if round % 2 == 1 {
                let mut restore = host
                    .command(&["restore", "--all"])
                    .stderr(Stdio::null())
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap();
                std::thread::sleep(whole * (round % 8) / 8);
                restore.kill().unwrap();
                restore.wait().unwrap();
            }
            host.rdmaprep(&["restore", "--all"]).ok();
            same(
                &format!("round {round}: normal form"),
                &before.normal,
                &host.normal(),
            );
            host.is_clean();
        }
        assert!(
            killed >= 10,
            "{killed} of 25 were killed: the delays miss the work"
        );
        host.is_as(&before);
    });
}

/// Killed between the making of a record's file and its name.
#[test]
fn what_a_killed_writer_left_is_removed() {
    alone(|host| {
        prepared(host, 1);
        for how in ["restore", "hook"] {
            let mut c = Container::new("c");
            c.create(host).ok();
            let left = [&host.run].map(|folder| folder.join("records/.new-xxxxxx"));
            left.iter().for_each(|file| fs::write(file, "{").unwrap());
            match how {
                "restore" => drop(host.rdmaprep(&["restore", "--all"]).ok()),
                _ => drop(c.stop(host).ok()),
            }
            assert!(!left.iter().any(|file| file.exists()), "{how}");
            c.kill();
        }
    });
}

/// The kernel makes a temporary address for one that manages them, as soon as that is added. To
/// delete it again would take the anycast address of the subnet along, on a link that forwards.
#[test]
fn an_address_that_manages_temporary_ones_comes_back_alone() {
    alone(|host| {
        host.rails(1);
        host.ip("address add fd00:4::1/64 dev r0 nodad mngtmpaddr");
        // The link-local one has an anycast address as well, when it is not tentative any more.
        until("no address is tentative", || {
            ipv6::unfinished(sh, true).is_empty()
        });
        sh("echo 1 > /proc/sys/net/ipv6/conf/r0/forwarding; echo 1 > \
            /proc/sys/net/ipv6/conf/r0/use_tempaddr");
        let anycast = || sh("ip -6 route show table local type anycast dev r0 | sort");
        let (before, was) = (host.look(), anycast());
        assert!(was.contains("fd00:4::"), "{was}");
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        c.stop(host).ok();
        host.is_as(&before);
        // A work queue of the kernel's joins it.
        until("the anycast address is there again", || anycast() == was);
        host.is_clean();
    });
}

/// It replaces those that it made for privacy after some time: a plan outlasts them, inside there
/// are none, and the host gets others from the kernel.
#[test]
fn temporary_addresses_are_the_kernels() {
    alone(|host| {
        host.rails(1);
        sh("echo 2 > /proc/sys/net/ipv6/conf/r0/use_tempaddr");
        let public = "fd00:4::1/64 dev r0 nodad mngtmpaddr valid_lft 3600 preferred_lft 1800";
        host.ip(&format!("address add {public}"));
        ipv6::settled(sh);
        let temporary = || sh("ip -o -6 address show dev r0 temporary | awk '{print $4}'");
        let planned = temporary();
        assert_eq!(planned.lines().count(), 1, "{planned}");
        let before = host.normal();
        host.rdmaprep(&["prepare", "--ifaces", "r0", "--freeze-lifetimes"])
            .ok();
        host.ip(&format!("address delete {public}\naddress add {public}"));
        for _ in 0..2 {
            let was = temporary();
            assert_eq!(was.lines().count(), 1, "{was}");
            assert_ne!(was, planned);
            let mut c = Container::new("c");
            c.create(host).ok();
            let inside = c.sh("ip -o -6 address show dev r0 scope global");
            assert!(inside.contains("fd00:4::1/64"), "{inside}");
            assert_eq!(inside.lines().count(), 1, "{inside}");
            let record = fs::read_to_string(host.records().remove(0)).unwrap();
            let ip = was.split('/').next().unwrap();
            assert!(
                !record.contains(&format!("\"address\":\"{ip}\"")),
                "{record}"
            );
            c.stop(host).ok();
            same("the host's normal form", &before, &host.normal());
            until("the kernel has made another one", || {
                let is = temporary();
                is.lines().count() == 1 && is != was
            });
            host.is_clean();
        }
    });
}

/// The kernel rejected an address in the middle of a restore: those behind it are there, and one of
/// them has its place.
#[test]
fn addresses_come_back_in_their_order() {
    alone(|host| {
        host.rails(1);
        host.ip("address add 10.0.5.1/24 dev r0
            address add 10.0.0.2/24 dev r0
            address add fd00::1/64 dev r0 nodad
            address add fd00::2/64 dev r0 nodad
            route add 10.20.0.0/16 via 10.0.0.9 dev r0 src 10.0.0.2
            route add fd20::/64 via fd00::9 dev r0 src fd00::2");
        let order = || sh("ip -o address show dev r0 scope global | awk '{print $4}'");
        let (before, was) = (host.look(), order());
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        let path = host.records().remove(0);
        let record = fs::read(&path).unwrap();
        c.stop(host).ok();
        // Its secondary goes with a primary.
        host.ip("address delete 10.0.0.1/24 dev r0
            address add 10.0.0.2/24 dev r0
            address delete fd00::1/64 dev r0
            address delete fd00::2/64 dev r0
            address add fd00::1/64 dev r0 nodad");
        fs::write(&path, record).unwrap();
        host.rdmaprep(&["restore", "--all"]).ok();
        same("addresses", &was, &order());
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_killed_hooks_container_may_try_again() {
    alone(|host| {
        let before = prepared(host, 3);
        let mut c = Container::new("again");
        for delay in [12, 16, 20, 24] {
            let mut hook = start(host, &c);
            std::thread::sleep(Duration::from_millis(delay));
            hook.kill().unwrap();
            hook.wait().unwrap();
        }
        c.create(host).ok();
        assert_eq!(c.sh("ip -o -4 address | wc -l").trim(), "3");
        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn without_room_for_the_record_nothing_moves() {
    alone(|host| {
        let before = prepared(host, 2);
        let records = host.run.join("records");
        sh(&format!(
            "mount -t tmpfs -o size=16k,mode=700 tmpfs {}",
            records.display()
        ));
        {
            let mut full = File::create(records.join("full")).unwrap();
            while full.write_all(&[0; 4096]).is_ok() {}
        }
        let c = Container::new("full");
        c.create(host).fails(1, &["records", "No space left"]);
        host.is_as(&before);
        assert_eq!(
            fs::read_dir(&records).unwrap().count(),
            1,
            "a temporary file is left"
        );
        sh(&format!("umount {}", records.display()));
        host.is_clean();
    });
}

#[test]
fn a_run_folder_that_others_can_write_is_refused() {
    alone(|host| {
        let before = prepared(host, 1);
        sh(&format!("chmod 777 {}", host.run.display()));
        let c = Container::new("loose");
        c.create(host).fails(1, &["can be written by others"]);
        host.is_as(&before);
    });
}

/// Linux refuses an address of its own as a gateway of IPv6: what no host can have does not hold a
/// record for ever.
#[test]
fn what_linux_refuses_for_some_time_is_given_up() {
    alone(|host| {
        host.rails(2);
        host.ip("address add fd00::1/64 dev r0 nodad
route add fd13::/48 via fd00::9 dev r0
route add fd14::/48 via fd00::8 dev r0");
        host.prepare("r0");
        let mut c = Container::new("gateway");
        c.create(host).ok();
        sh("ip address add fd00::9/128 dev r1 nodad");
        let said = c.stop(host);
        assert_eq!(said.code, Some(8), "{said:?}");
        // It may be passing.
        let said = host.rdmaprep(&["restore", "--all"]);
        assert_eq!(said.code, Some(8), "{said:?}");
        refuse_since_some_time(host);
        let said = host.rdmaprep(&["restore", "--all"]).ok();
        let note = "\n  note        route fd13::/48";
        assert!(said.out.contains(note), "{said:?}");
        assert!(
            said.out.contains("left out: the kernel refuses it by now"),
            "{said:?}"
        );
        let routes = sh("ip -6 route show dev r0");
        assert!(routes.contains("fd14::/48 via fd00::8"), "{routes}");
        host.is_clean();
    });
}

/// The others are listed in its place, each in that of the one before it.
#[test]
fn what_is_given_up_takes_no_equal_routes_with_it() {
    alone(|host| {
        host.rails(1);
        host.ip("address add fd00::1/64 dev r0 nodad
route add fd13::/48 via fd00::9 dev r0 metric 100
route add fd13::/48 via fd00::8 dev r0 metric 200
route add fd13::/48 via fd00::7 dev r0 metric 300");
        host.prepare("r0");
        let mut c = Container::new("equals");
        c.create(host).ok();
        sh("ip address add fd00::9/128 dev lo nodad");
        c.stop(host).fails(8, &["fd00::9"]);
        refuse_since_some_time(host);
        let said = host.rdmaprep(&["restore", "--all"]).ok();
        assert!(said.out.contains("left out"), "{said:?}");
        let routes = sh("ip -6 route show fd13::/48");
        assert!(
            routes.contains("fd00::8") && routes.contains("fd00::7"),
            "{routes}"
        );
        host.is_clean();
    });
}

/// As if the kernel had begun to refuse ten minutes earlier.
fn refuse_since_some_time(host: &Host) {
    for path in fs::read_dir(host.run.join("records")).unwrap() {
        let path = path.unwrap().path();
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let refused = record.get_mut("refused").and_then(Value::as_object_mut);
        for since in refused.into_iter().flat_map(|all| all.values_mut()) {
            *since = (since.as_i64().unwrap() - 601).into();
        }
        fs::write(path, record.to_string()).unwrap();
    }
}

/// A virtual address that fails over, an administrator's rule.
#[test]
fn what_linux_refuses_for_a_while_leaves_the_other_legs() {
    alone(|host| {
        prepared(host, 2);
        host.prepare("r0");
        host.ip(
            "route add 10.50.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1
route add fd50::/48 nexthop via fd00::9 dev r0 nexthop via fd01::9 dev r1",
        );
        let before = host.look();
        let mut c = Container::new("for-a-while");
        c.create(host).ok();
        host.ip("rule add to 10.0.0.9 prohibit priority 100\naddress add fd00::9/128 dev r1 nodad");
        for _ in 0..2 {
            let said = c.stop(host);
            assert_eq!(said.code, Some(8), "{said:?}");
            for (family, subnet) in [("-4", "10.50.0.0/16"), ("-6", "fd50::/48")] {
                let left = sh(&format!("ip {family} route show {subnet}"));
                assert!(left.contains("dev r1"), "{subnet}: {left}");
            }
            host.rdmaprep(&["restore", "--all", "--stale"])
                .fails(8, &[]);
        }
        host.ip("rule delete to 10.0.0.9 prohibit priority 100\naddress delete fd00::9/128 dev r1");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_clean();
        host.is_as(&before);
    });
}

/// The route over the second one's NIC is from the first one's address.
#[test]
fn what_waits_for_an_address_of_another_container_comes() {
    alone(|host| {
        prepared(host, 2);
        host.ip("route add fd99::/64 via fd01::9 dev r1 src fd00::1
route add 10.51.0.0/16 via 10.1.0.9 dev r1 src 10.0.0.1");
        let before = host.look();
        let (mut a, mut b) = (Container::new("a"), Container::new("b"));
        host.prepare("r0");
        a.create(host).ok();
        host.prepare("r1");
        b.create(host).ok();
        b.stop(host);
        refuse_since_some_time(host);
        host.rdmaprep(&["restore", "--all", "--stale"]);
        a.stop(host);
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_clean();
        host.is_as(&before);
    });
}

/// A stop that is killed has brought the NIC over which another one's route leads.
#[test]
fn a_route_over_the_nic_of_a_killed_stop_stays() {
    alone(|host| {
        prepared(host, 2);
        host.ip("route add 10.51.0.0/16 via 10.1.0.9 dev r1 src 10.0.0.1");
        let before = host.look();
        // In the middle NICs are here, and the record stays.
        for point in (1..30).step_by(3) {
            let (mut a, b) = (Container::new("a"), Container::new("b"));
            host.prepare("r0");
            a.create(host).ok();
            host.prepare("r1");
            b.create(host).ok();
            let mut stop = host.command(&["hook", "poststop"]);
            stop.env("RDMAPREP_FAULT", format!("{point}:kill"));
            testkit::run(&mut stop, &b.stopped());
            a.stop(host).ok();
            host.rdmaprep(&["restore", "--all"]).ok();
            host.is_clean();
            host.is_as(&before);
        }
    });
}

#[test]
fn a_group_that_cannot_be_any_more_is_given_up() {
    alone(|host| {
        host.rails(2);
        host.ip(
            "nexthop add id 40 via 10.0.0.9 dev r0\nnexthop add id 41 via 10.1.0.9 dev r1
nexthop add id 42 via 10.1.0.8 dev r1",
        );
        host.prepare("r0");
        // What the member 41, or the group 50 itself, is by then.
        for (number, is_now) in [
            (41, "blackhole"),
            (41, "group 42"),
            (50, "via 10.1.0.9 dev r1"),
        ] {
            host.ip("nexthop add id 50 group 40/41\nroute add 203.0.114.0/24 nhid 50");
            let mut c = Container::new("group");
            c.create(host).ok();
            sh(&format!(
                "ip nexthop del id {number}; ip nexthop add id {number} {is_now}"
            ));
            c.stop(host);
            host.rdmaprep(&["restore", "--all"]);
            refuse_since_some_time(host);
            host.rdmaprep(&["restore", "--all"]).ok();
            host.is_clean();
            assert!(sh("ip nexthop show dev r0").contains("id 40 "), "{is_now}");
            sh("ip nexthop del id 50 || true; ip nexthop del id 41 || true");
            host.ip("nexthop add id 41 via 10.1.0.9 dev r1");
        }
    });
}

/// A reader settles what holds a NIC back: what has been done is no part of it.
#[test]
fn a_note_of_what_was_done_holds_nothing_back() {
    alone(|host| {
        host.rails(2);
        host.ip("route add 10.40.0.0/16 nexthop via 10.0.0.9 dev r0 nexthop via 10.1.0.9 dev r1");
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        host.ip("link delete r1\nlink add r0 type bridge");
        c.stop(host).fails(8, &["r0", "r1 has gone: its legs"]);
        let held = host.status()[0].clone();
        let reasons = held["held_back"].to_string();
        assert!(!reasons.contains("its legs"), "{held}");
        assert!(reasons.contains("name"), "{held}");
        assert!(
            held["notes"].to_string().contains("r1 has gone: its legs"),
            "{held}"
        );
        let said = host.rdmaprep(&["status"]).ok().out;
        assert!(
            said.contains("  note        r1 has gone: its legs"),
            "{said}"
        );
        assert!(said.lines().all(|line| line.len() <= 100), "{said}");
        assert!(said.contains("failed: hook poststop"), "{said}");
        host.ip("link delete r0");
        host.rdmaprep(&["restore", "--all"]).ok();
        let said = host.rdmaprep(&["status"]).ok().out;
        let rest = said.strip_prefix("No container holds a NIC.\n").unwrap();
        assert!(rest.starts_with("returned: r0, "), "{said}");
        assert_eq!(rest.lines().count(), 1, "that is settled: {said}");
    });
}
