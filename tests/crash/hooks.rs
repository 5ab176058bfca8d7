//! Crash at every step, on the real kernel: whatever ends an attach or a restore, wherever,
//! `restore --all` gives the host everything back. The points are those that the program tells it
//! has passed.

use crate::abreast;
use crate::points::{Crash, Point, crashes, passed, passed_so_far, steps, struck};
use testkit::rich::rich;
use testkit::{Container, Host, Look, Said, same, sh};

/// The NICs of the plan.
const NICS: &str = "r0,r1,m0";
/// Sets of namespaces at a time: most of them sleep. A prime, so that each gets its share of every
/// way.
const ABREAST: usize = 13;
/// Deadline of a hook that is not to be late, on a machine however busy, in seconds.
const PATIENT: &str = "60";

/// What the host was.
struct Was {
    look: Look,
    left: String,
}

/// Files of ours, those of killed writers included, but not reports that did not fit into the run
/// folder; mounts, and the order of addresses: the first one of a subnet is its primary.
fn left() -> String {
    sh(
        "find /run/run /run/state ! -path '/run/state' ! -path '/run/state/reports*' \
        -printf '%y %m %p\n' | sort; grep ' /run/' /proc/self/mounts | \
        cut -d' ' -f1-4
        ip -o -4 address | awk '{print $2, $4}'; ip -o -6 address show scope global | awk '{print \
        $2, $4}'",
    )
}

impl Was {
    /// The host with a plan, and once used, so that there are the folders and the report.
    fn prepared(host: &Host) -> Was {
        rich(host);
        host.ip(
            "link add link up0 name m0 address 02:00:00:00:aa:00 type macvlan mode bridge
            link set m0 mtu 1400 up
            address add 10.5.0.1/24 dev m0
            address add fd05::1/64 dev m0 nodad
            route add 10.50.0.0/16 via 10.5.0.9 dev m0 metric 5
            rule add from 10.5.0.1 table 105 priority 1005",
        );
        host.prepare(NICS);
        let look = host.look();
        let mut c = Container::new("c");
        c.create(host).ok();
        c.stop(host).ok();
        host.is_as(&look);
        host.is_clean();
        Was { look, left: left() }
    }

    /// Insists that it is that again.
    fn is_again(&self, host: &Host) {
        host.is_as(&self.look);
        host.is_clean();
        same("what is left", &self.left, &left());
    }

    /// Brings everything back, and then has nothing more to do.
    fn restored(&self, host: &Host) {
        host.rdmaprep(&["restore", "--all"]).ok();
        self.is_again(host);
        let again = struck(&mut host.command(&["restore", "--all"]), "", "").ok();
        assert_eq!(
            (again.out.as_str(), passed()),
            ("No container holds a NIC.\n", Vec::new())
        );
    }
}

/// A hook, to be struck by that.
fn hook(host: &Host, c: &Container, fault: &str) -> Said {
    struck(
        &mut host.command(&["hook", "createRuntime", "--deadline", PATIENT]),
        &c.state(),
        fault,
    )
}

/// A hook that a crash strikes, `first` by something else. A busy machine may let its deadline pass
/// before it comes to where it hangs: then it has undone everything, or left that to `restore`, and
/// is given more time.
fn crashed(host: &Host, was: &Was, c: &Container, first: &str, crash: &Crash) -> Said {
    if crash.way != "hang" {
        let said = hook(host, c, &format!("{first}{}", crash.chosen(0)));
        crash.has_struck(&said);
        return said;
    }
    for seconds in [2, 8, 30] {
        let deadline = seconds.to_string();
        let mut hook = host.command(&["hook", "createRuntime", "--deadline", &deadline]);
        let said = struck(
            &mut hook,
            &c.state(),
            &format!("{first}{}", crash.chosen(seconds)),
        );
        if crash.is_among(&passed_so_far()) {
            crash.has_struck(&said);
            return said;
        }
        assert!(matches!(said.code, Some(7 | 8)), "{crash:?}: {said:?}");
        if said.code == Some(8) {
            host.rdmaprep(&["restore", "--all"]).ok();
        }
        was.is_again(host);
        passed();
    }
    panic!("{crash:?} was not reached in 30 seconds");
}

/// Points of an attach: two a step, as the hook counts them, three for each time that it writes the
/// record, first and last, three for the pin, and at its end one for its report.
fn of_attach(host: &Host) -> Vec<Point> {
    let c = Container::new("c");
    hook(host, &c, "").ok();
    let points = passed();
    let done = host.report("c")["steps_done"].as_u64().unwrap() as usize;
    assert_eq!(steps(&points).len(), done);
    assert_eq!(points.len(), 2 * done + 3 * 2 + 3 + 1, "{points:#?}");
    assert!(points.last().unwrap().is_report(), "{points:#?}");
    host.rdmaprep(&["restore", "--all"]).ok();
    points
}

#[test]
fn an_attach_that_ends_anywhere() {
    tell(
        "attach",
        &abreast(ABREAST, |host, number| {
            let was = Was::prepared(host);
            each(number, &of_attach(host), |crash| {
                let mut c = Container::new("c");
                let said = crashed(host, &was, &c, "", crash);
                if matches!(crash.way, "error" | "full") {
                    assert_eq!(
                        said.code == Some(0),
                        crash.point.is_report(),
                        "{crash:?}: {said:?}"
                    );
                }
                // A hook that can still tell that it failed has undone everything; after its
                // deadline it may say that it has not.
                let incomplete = crash.way == "hang" && said.code == Some(8);
                if said.code.is_some_and(|code| code != 0) && !incomplete {
                    was.is_again(host);
                }
                if crash.dead {
                    c.kill();
                }
                was.restored(host);
            });
        }),
    );
}

/// Fault points of a restore: two for each step, and the steps are those that --dry-run foretold;
/// three for writing the record, two each for the mount and the file of the pin, for a shell's
/// settings, and for the record; one for the report.
fn of_restore(host: &Host) -> Vec<Point> {
    let c = Container::new("c");
    c.create(host).ok();
    let foretold = host.rdmaprep(&["restore", "--all", "--dry-run"]).ok().out;
    let restored = struck(&mut host.command(&["restore", "--all", "--json"]), "", "").ok();
    let points = passed();
    assert_eq!(steps(&points), foretold.lines().collect::<Vec<_>>());
    let report: serde_json::Value = serde_json::from_str(&restored.out).unwrap();
    assert_eq!(report[0]["steps_done"], steps(&points).len());
    assert_eq!(
        points.len(),
        2 * steps(&points).len() + 3 + 2 * 4 + 1,
        "{points:#?}"
    );
    points
}

/// A restore that ends at each of these points, with its container alive or dead; the next one
/// restores the host.
fn restores(host: &Host, number: usize, points: &[Point], was: &Was) {
    each(number, points, |crash| {
        let mut c = Container::new("c");
        c.create(host).ok();
        if crash.dead {
            c.kill();
        }
        let said = struck(
            &mut host.command(&["restore", "--all"]),
            "",
            &crash.chosen(5),
        );
        crash.has_struck(&said);
        if said.code == Some(0) {
            host.is_as(&was.look);
            was.is_again(host);
        }
        was.restored(host);
    });
}

#[test]
fn a_restore_that_ends_anywhere() {
    tell(
        "restore",
        &abreast(ABREAST, |host, number| {
            let was = Was::prepared(host);
            restores(host, number, &of_restore(host), &was);
        }),
    );
}

/// Equals of NICs that stay are put back in their order by several messages: whatever ends it
/// between two of them, the next restore repairs.
#[test]
fn an_order_of_equals_that_ends_anywhere() {
    tell(
        "order",
        &abreast(ABREAST, |host, number| {
            order(host, number, ["up0", "r0", "up1"])
        }),
    );
}

/// Then it is the NIC's own routes that are put first, those of the local table among them, which
/// the kernel alone makes.
#[test]
fn an_order_that_the_nic_leads_ends_anywhere() {
    tell(
        "order, first",
        &abreast(ABREAST, |host, number| {
            order(host, number, ["r0", "up0", "up1"])
        }),
    );
}

/// Crashes of a restore, from the first step on that puts equals in order. r0 was given away.
fn order(host: &Host, number: usize, nics: [&str; 3]) {
    for (i, nic) in nics.iter().enumerate() {
        host.ip(&format!(
            "link add {nic} type veth peer name p{nic}\nlink set {nic} up\nlink set p{nic} up\n\
             address add 192.168.1.{i}/24 dev {nic}\naddress add fd00::1{i}/64 dev {nic} nodad\n\
             rule add oif {nic} table 100 priority 5"
        ));
    }
    let (was, points) = of_r0(host);
    let of_order = |p: &Point| p.name.contains("step putting") || p.name.contains("192.168.1.0/24");
    let first = points.iter().position(of_order).unwrap();
    restores(host, number, &points[first..], &was);
}

/// The host with a plan for r0, once used, and the points of a restore of r0.
fn of_r0(host: &Host) -> (Was, Vec<Point>) {
    host.prepare("r0");
    let was = Was {
        look: host.look(),
        left: String::new(),
    };
    let mut c = Container::new("c");
    c.create(host).ok();
    c.stop(host).ok();
    let was = Was {
        left: left(),
        ..was
    };
    Container::new("c").create(host).ok();
    struck(&mut host.command(&["restore", "--all"]), "", "").ok();
    (was, passed())
}

/// Each of two routes covers the other one's gateway, so a host route leads to that while it is
/// added.
#[test]
fn a_route_with_a_covered_gateway_ends_anywhere() {
    tell(
        "covered",
        &abreast(ABREAST, |host, number| {
            host.rails(1);
            host.ip("address add fd00:1::1/64 dev r0 nodad
                route add fd00::/8 via fd00:1::fe dev r0 table 200
                route add fd00::/16 via fd00:1::fd dev r0 table 200");
            sh("ip -6 rule add to fd00::/8 lookup 200 priority 1000");
            let (was, mut points) = of_r0(host);
            points.retain(|p| p.name.contains("fd00:1::f") || p.name.contains("fd00::/"));
            assert!(
                points
                    .iter()
                    .any(|p| p.name.contains("deleting route fd00:1::fe dev r0")),
                "{points:#?}"
            );
            restores(host, number, &points, &was);
        }),
    );
}

/// The last thing that an attach does before its report fails, and then its undo is cut short as
/// well.
#[test]
fn an_undo_that_ends_anywhere() {
    tell(
        "undo",
        &abreast(ABREAST, |host, number| {
            let was = Was::prepared(host);
            let last = of_attach(host).len() - 1;
            let undone = hook(host, &Container::new("c"), &format!("{last}:error"));
            assert_eq!(undone.code, Some(1), "{undone:?}");
            let all = passed();
            let points = &all[last..];
            let home = of_restore(host);
            assert_eq!(
                (points.len(), steps(points)),
                // One more for what failed, and none for the report, which the hook writes later.
                (home.len(), steps(&home))
            );
            each(number, points, |crash| {
                let mut c = Container::new("c");
                let said = crashed(host, &was, &c, &format!("{last}:error,"), crash);
                assert_ne!(said.code, Some(0), "{crash:?}");
                if crash.dead {
                    c.kill();
                }
                was.restored(host);
            });
        }),
    );
}

/// Runs those crashes that are this one's share, and says so.
fn each(number: usize, points: &[Point], crash: impl Fn(&Crash)) {
    let all = crashes(points);
    let full = all.iter().filter(|c| c.way == "full").count();
    let share: Vec<&Crash> = all.iter().skip(number).step_by(ABREAST).collect();
    for c in &share {
        println!("{c:?}");
        crash(c);
    }
    println!(
        "\nshare: {} {full} {} {}",
        points.len(),
        all.len(),
        share.len()
    );
}

/// Sums up the shares, which have to agree on what there is and to be all of it.
fn tell(what: &str, said: &[String]) {
    let share = |text: &String| -> Vec<usize> {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix("share: "))
            .unwrap();
        line.split(' ').map(|n| n.parse().unwrap()).collect()
    };
    let shares: Vec<Vec<usize>> = said.iter().map(share).collect();
    let Some(&[points, full, all, _]) = shares.first().map(Vec::as_slice) else {
        return;
    };
    assert!(
        shares.iter().all(|s| s[..3] == [points, full, all]),
        "{shares:?}"
    );
    let crashes: usize = shares.iter().map(|s| s[3]).sum();
    assert_eq!(crashes, all);
    println!("{what}: {points} points, {full} × full disk: {crashes} crashes, all restored");
}
