//! Hooks on the real kernel: NICs go into a container and come back, whatever runtime, container or
//! host do meanwhile.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::alone;
use serde_json::json;
use testkit::rich::rich;
use testkit::{Container, run, same, sh, until};

/// What iproute2 prints, without the index and what names the other end of a pair.
fn unnumbered(text: &str) -> String {
    let mut lines: Vec<String> = text
        .lines()
        .filter(|l| !l.contains("fe80::") && !l.contains("ff00::") && !l.contains("anycast"))
        .map(|l| {
            l.split_once(": ")
                .filter(|(n, _)| n.parse::<u32>().is_ok())
                .map_or(l, |(_, rest)| rest)
                .to_owned()
        })
        .collect();
    lines.sort();
    lines.join("\n") + "\n"
}

#[test]
fn everything_that_a_move_destroys_arrives_and_comes_back() {
    alone(|host| {
        rich(host);
        let before = host.look();
        let addresses = "for d in r0 r1 r2; do ip -o address show dev $d; done";
        let neighbours = "for p in 'nud permanent' proxy; do for d in r0 r1 r2; do
            ip -4 neighbour show $p dev $d; ip -6 neighbour show $p dev $d; done; done";
        let links = r"for d in r0 r1 r2; do ip -o link show $d |
            sed 's/.*mtu/mtu/; s/qdisc.*group/group/; s/ *link-netnsid [0-9]*//';
            ip -o link show up dev $d | wc -l; cat /proc/net/if_inet6 | grep -c $d || :; done";
        let (want_addresses, want_neighbours, want_links) =
            (unnumbered(&sh(addresses)), sh(neighbours), sh(links));

        host.prepare("r0,r1,r2");
        let mut c = Container::new("rich");
        let rules_before = c.sh("ip -4 rule; ip -6 rule");
        c.create(host).ok();
        assert!(!sh("ip -br link").contains("r0@") && !sh("ip rule").contains("100[012]:"));
        same("addresses", &want_addresses, &unnumbered(&c.sh(addresses)));
        same("neighbours", &want_neighbours, &c.sh(neighbours));
        same("links", &want_links, &c.sh(links));
        let alias = |say: String| assert!(say.contains("rail zero, cage 4"), "{say}");
        alias(c.sh("ip link show r0"));
        let routes = c.sh("ip -o route show table all; ip -o -6 route show table all");
        assert!(
            !routes
                .lines()
                .any(|l| l.starts_with("default") && !l.contains(" table ")),
            "{routes}"
        );
        for want in [
            "10.20.0.0/16 via 10.0.0.9 dev r0 src 10.0.0.2 metric 7",
            "10.21.0.0/16 via 10.0.0.9 dev r0 table 100 mtu 3000 advmss 2900",
            "default via 10.0.0.9 dev r0 table 100",
            "default via 10.0.0.9 dev r0 table 29000 proto static metric 900",
            "10.22.0.0/16 \\\tnexthop via 10.0.0.9 dev r0 weight 1 \\\tnexthop via 10.1.0.9 dev \
            r1 weight 3",
            "10.23.0.0/16 via 10.0.0.9 dev r0",
            "10.24.0.0/16 dev r1 table 101 scope link",
            "10.0.4.0/24 dev r0 proto kernel scope link src 10.0.4.1 metric 50",
            "fd23::/32 via fd00::9 dev r0",
            "fd20::/32 via fd00::9 dev r0 metric 77",
            "fd22::/32 metric 1024 pref medium\\\tnexthop via fd00::9 dev r0 weight 1 \\\tnexthop \
            via fd01::9 dev r1 weight 1",
        ] {
            assert!(
                routes.lines().any(|l| l.starts_with(want)),
                "no {want:?} in\n{routes}"
            );
        }
        assert!(!routes.contains("10.0.3.0/24"), "noprefixroute: {routes}");
        let rules = c.sh("ip -4 rule; ip -6 rule");
        let new = rules.lines().filter(|l| !rules_before.contains(l));
        // r0 has a default route: rails get tables for what has no rule yet, here of both NICs that
        // are up.
        let (ours, mut new): (Vec<&str>, Vec<&str>) = new.partition(|l| l.starts_with("2900"));
        assert_eq!(
            ours.iter()
                .filter(|l| l.contains("from 10.0.0.2 lookup 29000"))
                .count(),
            1,
            "{ours:?}"
        );
        assert_eq!(
            ours.iter()
                .filter(|l| l.contains("from 10.1.0.1 lookup 29001"))
                .count(),
            1,
            "{ours:?}"
        );
        new.sort();
        let want = [
            "1000:\tfrom 10.0.0.1 lookup 100",
            "1000:\tfrom fd00::1 lookup 100",
            "1001:\tfrom all iif r0 lookup 100",
            "1002:\tfrom all oif r1 lookup 101",
        ];
        assert_eq!(new, want);
        for dev in ["r0", "r1", "r2"] {
            let arp = c.sh(&format!(
                "cd /proc/sys/net/ipv4/conf/{dev}; cat arp_announce arp_ignore arp_filter rp_filter"
            ));
            assert_eq!(arp, "2\n1\n1\n1\n", "{dev}");
        }

        c.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
        alias(sh("ip link show r0"));
    });
}

#[test]
fn default_route_comes_if_asked_and_never_as_the_second_one() {
    alone(|host| {
        let rails = host.rails(2);
        host.ip(
            "link add up0 type veth peer name qup0\nlink set up0 up\nlink set qup0 up
            address add 192.168.9.2/24 dev up0\nroute add default via 192.168.9.1 dev up0 metric 100
            route add default via 10.0.0.9 dev r0 metric 300\nroute add default via 10.1.0.9 dev \
            r1 metric 200
            address add fd99::2/64 dev up0 nodad\nroute add ::/0 via fd99::1 dev up0 metric 100
            address add fd00::1/64 dev r0 nodad\nroute add ::/0 via fd00::9 dev r0 metric 2000",
        );
        let before = host.look();
        let defaults = |c: &Container| {
            let both = c.sh("ip route show default; ip -6 route show default");
            both.lines()
                .map(|l| l.trim_end().replace(" pref medium", ""))
                .collect::<Vec<_>>()
        };
        let inside = |id: &str, theirs: bool| {
            let mut c = Container::new(id);
            if theirs {
                c.sh(
                    "ip link add eth0 type veth peer name far; ip link set far up; ip link set \
                    eth0 up
                    ip address add 198.51.100.2/24 dev eth0; ip route add default via \
                    198.51.100.1",
                );
            }
            c.create(host).ok();
            let seen = defaults(&c);
            let notes = host.report(id)["notes"].to_string();
            c.stop(host).ok();
            host.is_as(&before);
            (seen, notes)
        };
        host.prepare(&rails);
        assert_eq!(inside("unasked", false).0, [""; 0]);
        let said = host
            .rdmaprep(&["prepare", "--ifaces", &rails, "--default-route"])
            .ok()
            .out;
        assert!(
            said.contains("\nthe IPv4 default route via 10.1.0.9 of r1 comes along\n"),
            "{said}"
        );
        let v6 = "default via fd00::9 dev r0 metric 2000";
        let (seen, notes) = inside("alone", false);
        assert_eq!(
            (seen, notes.as_str()),
            (
                vec!["default via 10.1.0.9 dev r1 metric 200".into(), v6.into()],
                "[]"
            )
        );
        let (seen, notes) = inside("beside", true);
        assert_eq!(seen, ["default via 198.51.100.1 dev eth0", v6]);
        assert!(notes.contains("10.1.0.9 of r1 stays behind"), "{notes}");
        host.is_clean();
    });
}

#[test]
fn both_stages_of_one_container_act_once() {
    alone(|host| {
        host.rails(2);
        let before = host.look();
        host.prepare("r0,r1");
        let mut c = Container::new("twice");
        host.hook("prestart", &c.state()).ok();
        assert!(host.report("twice")["steps_done"].as_u64().unwrap() > 0);
        let inside = c.sh("ip -o address");
        let record = fs::read_to_string(&host.records()[0]).unwrap();
        c.create(host).ok();
        assert_eq!(host.report("twice")["steps_done"], 0);
        assert_eq!(fs::read_to_string(&host.records()[0]).unwrap(), record);
        assert_eq!(c.sh("ip -o address"), inside);
        c.stop(host).ok();
        host.is_as(&before);
        // A runtime may call it twice; and a container that never held anything ends as well.
        host.hook("poststop", &c.stopped()).ok();
        host.is_as(&before);
    });
}

#[test]
fn a_pod_keeps_its_nics_until_the_last_container_ends() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        host.prepare(&rails);
        let mut first = Container::new("first");
        first.create(host).ok();
        let mut second = Container::beside("second", &first);
        second.create(host).ok();
        assert_eq!(
            host.status()[0]["members"],
            json!([["first", true], ["second", true]])
        );
        // Link-local addresses are tentative for a second or two.
        let addresses = |c: &Container| c.sh("ip -o address").replace(" tentative", "");
        let inside = addresses(&second);
        first.stop(host).ok();
        assert_eq!(addresses(&second), inside);
        assert_eq!(host.status()[0]["members"], json!([["second", true]]));
        // A third one joins the second, though the container that brought the NICs is no more.
        let mut third = Container::beside("third", &second);
        third.create(host).ok();
        second.stop(host).ok();
        assert_eq!(addresses(&third), inside);
        third.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// The host's duplicate address detection has ended; until one of the container's ends, a program
/// cannot bind the address.
#[test]
fn an_ipv6_address_can_be_bound_as_soon_as_it_is_inside() {
    alone(|host| {
        host.rails(1);
        sh("echo 1 > /proc/sys/net/ipv6/conf/r0/accept_dad");
        host.ip("address add fd00::1/64 dev r0");
        until("the host's own detection", || {
            sh("ip -6 address show tentative dev r0 to fd00::/64").is_empty()
        });
        let before = host.look();
        host.prepare("r0");
        // The second one finds the host's detection running again.
        for _ in 0..2 {
            let mut c = Container::new("c");
            c.create(host).ok();
            c.sh(
                "python3 -c \"import socket; socket.socket(socket.AF_INET6).bind(('fd00::1', 0))\"",
            );
            c.stop(host).ok();
        }
        host.is_as(&before);
        host.is_clean();
    });
}

/// While the host's detection of an optimistic address runs: inside it is not both.
#[test]
fn an_optimistic_ipv6_address_comes_along() {
    alone(|host| {
        host.rails(1);
        sh(
            "cd /proc/sys/net/ipv6/conf/r0; echo 1 > accept_dad; echo 1 > optimistic_dad; echo 30 \
            > dad_transmits
            ip address add fd00::1/64 dev r0 optimistic",
        );
        assert!(sh("ip -6 address show dev r0").contains("fd00::1/64 scope global optimistic"));
        host.prepare("r0");
        let mut c = Container::new("c");
        c.create(host).ok();
        assert!(
            c.sh("ip -6 address show dev r0")
                .contains("fd00::1/64 scope global nodad")
        );
        c.stop(host).ok();
        assert!(sh("ip -6 address show dev r0").contains("fd00::1/64"));
        host.is_clean();
    });
}

#[test]
fn twenty_restarts_leave_the_host_as_it_was() {
    alone(|host| {
        let rails = host.rails(2);
        host.ip(
            "route add 10.20.0.0/16 via 10.0.0.9 dev r0\nrule add from 10.1.0.1 table 100 \
            priority 1000",
        );
        let before = host.look();
        host.prepare(&rails);
        for _ in 0..20 {
            let mut c = Container::new("again");
            c.create(host).ok();
            host.hook("poststart", &c.state()).ok();
            c.stop(host).ok();
            assert_eq!(
                host.report("again")["notes"],
                json!([]),
                "nothing has changed after they were restored"
            );
            same("the host's normal form", &before.normal, &host.normal());
        }
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_container_that_does_not_opt_in_costs_nothing() {
    alone(|host| {
        host.rails(1);
        let before = host.look();
        let mut c = Container::new("other").annotated(json!({"io.kubernetes.cri-o.Name": "x"}));
        for stage in ["prestart", "createRuntime", "poststart"] {
            assert_eq!(host.hook(stage, &c.state()).ok().err, "");
        }
        c.stop(host).ok();
        assert!(!host.run.exists() && !host.state.exists() && !host.log.exists());
        host.is_as(&before);
    });
}

#[test]
fn a_container_opts_in_by_argument_annotation_or_config_file() {
    alone(|host| {
        let rails = host.rails(2);
        host.prepare(&rails);
        host.rdmaprep(&["prepare", "--ifaces", "r1", "--plan", "small"])
            .ok();
        let has = |c: &Container, r0: bool| {
            let links = c.sh("ip -br link");
            assert_eq!(
                (links.contains("r0@"), links.contains("r1@")),
                (r0, true),
                "{links}"
            );
        };
        let bare = |id: &str| Container::new(id).annotated(json!(null));

        let mut by_argument = bare("argument");
        run(
            &mut host.command(&["hook", "createRuntime", "--plan", "small"]),
            &by_argument.state(),
        )
        .ok();
        has(&by_argument, false);
        // poststop needs no opt-in: the record knows.
        by_argument.stop(host).ok();

        let mut by_annotation =
            Container::new("annotation").annotated(json!({"rdmaprep.io/plan": "small"}));
        by_annotation.create(host).ok();
        has(&by_annotation, false);
        by_annotation.stop(host).ok();

        host.configure("plan = \"default\"");
        let mut by_config = bare("config");
        by_config.create(host).ok();
        has(&by_config, true);
        by_config.stop(host).ok();

        // The host's argument is the host's word; an annotation cannot choose another plan.
        let clash = Container::new("clash").annotated(json!({"rdmaprep.io/plan": "default"}));
        run(
            &mut host.command(&["hook", "createRuntime", "--plan", "small"]),
            &clash.state(),
        )
        .fails(3, &["default", "small"]);

        // For `auto` the hook makes a plan.
        host.configure("plan = \"auto\"\nselect.ifaces = [\"r1\"]");
        let mut fresh = bare("fresh");
        fresh.create(host).ok();
        has(&fresh, false);
        fresh.stop(host).ok();
        host.configure("");
        let mut asks = Container::new("asks").annotated(json!({"rdmaprep.io/plan": "auto"}));
        run(
            &mut host.command(&["hook", "createRuntime", "--ifaces", "r1"]),
            &asks.state(),
        )
        .ok();
        has(&asks, false);
        asks.stop(host).ok();
        host.is_clean();
    });
}

/// A slip of the pen must not give a container all NICs of the host.
#[test]
fn a_plan_that_is_not_stored_is_refused_wherever_it_is_named() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        let refused = |why: &str| {
            let asks = Container::new("asks").annotated(json!({"rdmaprep.io/plan": "defualt"}));
            asks.create(host).fails(3, &[why]);
            let bare = Container::new("bare").annotated(json!(null));
            let by_flags = [
                "hook",
                "createRuntime",
                "--plan",
                "defualt",
                "--ifaces",
                "r0",
            ];
            run(&mut host.command(&by_flags), &bare.state()).fails(3, &[why]);
            host.configure("plan = \"defualt\"");
            let said = bare.create(host).fails(3, &[why]);
            assert_eq!(said.err.lines().count(), 1, "{said:?}");
            host.configure("");
            host.rdmaprep(&["env", "--plan", "defualt"])
                .fails(3, &[why]);
            host.is_as(&before);
        };
        refused(
            "plan defualt is not stored: no plan is stored; run `rdmaprep prepare --plan \
            defualt`, or ask for plan `auto`",
        );
        host.prepare(&rails);
        host.rdmaprep(&["prepare", "--plan", "train", "--ifaces", "r0"])
            .ok();
        refused(
            "plan defualt is not stored: stored are default, train: name one of these, or run \
            `rdmaprep prepare --plan defualt`",
        );
        for n in 10..20 {
            host.rdmaprep(&["prepare", "--plan", &format!("p{n}"), "--ifaces", "r0"])
                .ok();
        }
        refused(
            "stored are default, p10, p11, p12, p13, p14, p15, p16 and 4 others: name one of \
            these, or run",
        );
        // Nor is one stored under the name that says to make one.
        host.rdmaprep(&["prepare", "--plan", "auto"])
            .fails(2, &["`auto`", "choose another name"]);
    });
}

/// As for a plan that lacks the rail: its engine has given the container the nodes of it.
#[test]
fn rail_without_a_plan_to_take_it_from_is_refused() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        let asks = |plan: &[&str]| {
            let line = [&["hook", "createRuntime"], plan, &["--rail", "r0"]].concat();
            let args: Vec<&str> = [&["rdmaprep"], &line[..]].concat();
            let hooks = json!({"createRuntime": [{"path": "/usr/bin/rdmaprep", "args": args}]});
            let config = json!({"root": {"path": "/"}, "process": {"env": []}, "hooks": hooks});
            let c = Container::new("c")
                .annotated(json!({}))
                .bundled(host, &config);
            let said = run(&mut host.command(&line), &c.state());
            (c, said)
        };
        let (_, said) = asks(&[]);
        said.fails(5, &["--rail: the hook names no plan"]);
        host.is_as(&before);
        host.rdmaprep(&["prepare", "--ifaces", "r1"]).ok();
        let (_, said) = asks(&["--plan", "default"]);
        said.fails(3, &["asks for r0 as devices"]);
        // That of all containers counts as well; one that is not stored is made.
        for (stored, words) in [(true, &[][..]), (false, &["--plan", "default"][..])] {
            if stored {
                host.configure("plan = \"default\"");
                host.prepare(&rails);
            } else {
                host.configure("");
                host.rdmaprep(&["plan", "delete", "default"]).ok();
            }
            let (mut c, said) = asks(words);
            said.ok();
            assert_eq!(host.report("c")["nics"], json!(["r0"]));
            c.stop(host).ok();
        }
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn annotations_narrow_and_never_widen() {
    alone(|host| {
        host.rails(4);
        let before = host.look();
        host.prepare("r0,r1,r2");
        let inside = |annotations: serde_json::Value| {
            let in_vain = annotations.to_string().contains("r3");
            let mut c = Container::new("narrow").annotated(annotations);
            c.create(host).ok();
            host.hook("poststart", &c.state()).ok();
            // A NIC that it asks for, and that is not the plan's, is not passed over in silence.
            let said = host.rdmaprep(&["status"]).ok().out;
            let note = "  note        annotation rdmaprep.io/ifaces names r3, which is not in \
                plan default\n";
            assert_eq!(
                (said.contains(note), said.contains("note        annotation")),
                (in_vain, in_vain),
                "{said}"
            );
            let links = c.sh("ip -br link");
            c.stop(host).ok();
            ["r0@", "r1@", "r2@", "r3@"]
                .into_iter()
                .filter(|n| links.contains(n))
                .collect::<String>()
        };
        assert_eq!(
            inside(json!({"rdmaprep.io/plan": "default", "rdmaprep.io/ifaces": "r0, r2 r3"})),
            "r0@r2@"
        );
        assert_eq!(
            inside(json!({"rdmaprep.io/plan": "default", "rdmaprep.io/exclude": "^r[01]$"})),
            "r2@"
        );
        // What else takes a NIC away does not take it out of the plan.
        let both = json!({"rdmaprep.io/plan": "default", "rdmaprep.io/ifaces": "r0 r1",
            "rdmaprep.io/exclude": "^r1$"});
        assert_eq!(inside(both), "r0@");
        let none = Container::new("none")
            .annotated(json!({"rdmaprep.io/plan": "default", "rdmaprep.io/ifaces": "r3"}));
        let why = "no NIC of plan default: annotation rdmaprep.io/ifaces names r3, which is not \
            in plan default";
        none.create(host).fails(4, &[why]);
        // Some runtimes do not show the output of a hook: an error is in the log, too.
        let odd = Container::new("odd").annotated(json!({"rdmaprep.io/plan": "../x"}));
        odd.create(host)
            .fails(5, &["annotation \"rdmaprep.io/plan\""]);
        let log = fs::read_to_string(&host.log).unwrap();
        assert!(
            log.lines()
                .any(|l| l.contains("container=odd") && l.contains("annotation")),
            "{log}"
        );
        // The administrator's policy holds at create time, too.
        host.configure("deny = [\"^r1$\"]");
        assert_eq!(inside(json!({"rdmaprep.io/plan": "default"})), "r0@r2@");
        host.is_as(&before);
    });
}

#[test]
fn nics_of_a_container_that_died_without_a_hook_are_restored() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        host.prepare(&rails);
        let died = |id: &str| {
            let mut c = Container::new(id);
            c.create(host).ok();
            // Only our pin keeps its namespace.
            c.kill();
            assert_eq!(host.status()[0]["members"], json!([[id, false]]));
            assert!(!sh("ip -br link").contains("r0@"));
        };
        died("one");
        host.rdmaprep(&["restore", "one"]).ok();
        host.is_as(&before);
        host.is_clean();
        died("two");
        host.rdmaprep(&["restore", "--all", "--dry-run"]).ok();
        assert_eq!(host.records().len(), 1);
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_as(&before);
        host.is_clean();
        died("three");
        let mut next = Container::new("next");
        next.create(host).ok();
        assert!(
            host.report("next")["notes"]
                .to_string()
                .contains("their container has died (three)")
        );
        assert_eq!(host.status()[0]["members"], json!([["next", true]]));
        next.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn what_a_containers_root_did_to_its_nics_is_undone() {
    alone(|host| {
        host.rails(3);
        host.ip("link property add dev r0 altname fabric0");
        let before = host.look();
        host.prepare("r0,r1,r2");
        let mut c = Container::new("vandal");
        // The container's own veth sits where r0 had its index: it must not be taken for r0.
        let index = sh("ip -o link show r0 | cut -d: -f1");
        c.sh(&format!(
            "ip link add eth0 index {} type veth peer name other",
            index.trim()
        ));
        c.create(host).ok();
        c.sh(
            "ip link set r0 down; ip link set r0 name mine address 02:11:22:33:44:55 mtu 1280
            ip link property add dev mine altname r0-as-was
            ip address flush dev mine; ip address add 1.2.3.4/8 dev mine; ip link set mine up
            echo 1 > /proc/sys/net/ipv4/conf/mine/forwarding; echo 0 > \
            /proc/sys/net/ipv4/conf/mine/arp_ignore
            ip link add br0 type bridge; ip link set r1 master br0; ip link set r1 promisc on \
            allmulticast on
            ip link set r1 down txqueuelen 5 alias stolen
            ip link set r2 group 9; ip neighbour add 10.2.0.9 lladdr 02:00:00:00:00:09 dev r2 nud \
            permanent",
        );
        let said = c.stop(host).ok();
        assert_eq!(said.err, "");
        host.is_as(&before);
        host.is_clean();
        let notes = host.report("vandal")["notes"].to_string();
        assert!(
            notes.contains("r0 had been renamed to mine")
                && notes.contains("r1 had been put into br0"),
            "{notes}"
        );
        assert!(!notes.contains("after the restore"), "{notes}");
    });
}

#[test]
fn a_nic_moved_to_another_netns_is_found_and_no_other_nic() {
    alone(|host| {
        host.rails(2);
        let before = host.look();
        host.prepare("r0,r1");
        let mut c = Container::new("vandal");
        c.create(host).ok();
        let index = |c: &Container, dev: &str| {
            c.sh(&format!("ip -o link show {dev} | cut -d: -f1"))
                .trim()
                .to_owned()
        };
        // Another container has a NIC of that name, kind and index.
        let bystander = Container::new("bystander");
        bystander.sh(&format!(
            "ip link add r1 index {} type veth peer name other",
            index(&c, "r1")
        ));
        let theirs = bystander.sh("ip -o link show r1");
        let nested = Container::new("nested");
        c.sh(&format!(
            "ip link set r1 netns {0}; ip link set r0 netns {0}",
            nested.pid()
        ));
        let said = c.stop(host).ok();
        assert_eq!(said.err, "");
        host.is_as(&before);
        host.is_clean();
        let notes = host.report("vandal")["notes"].to_string();
        assert!(
            notes.contains("r1 had been moved on to network namespace "),
            "{notes}"
        );
        same(
            "the other container's NIC",
            &theirs,
            &bystander.sh("ip -o link show r1"),
        );
    });
}

/// A namespace of which only the links matter must not keep the search from the next one.
#[test]
fn a_nic_moved_on_is_found_behind_many_routes() {
    alone(|host| {
        host.rails(2);
        host.prepare("r0,r1");
        let mut c = Container::new("vandal");
        c.create(host).ok();
        // Found first: the search goes by process.
        let decoy = Container::new("decoy");
        decoy.sh("ip link set lo up; python3 -c '
for i in range(80000): print(\"route add 60.%d.%d.%d/32\" % (i >> 16, i >> 8 & 255, i & \
    255), \"nexthop dev lo \" * 100)' | ip -batch -");
        let nested = Container::new("nested");
        c.sh(&format!("ip link set r1 netns {}", nested.pid()));
        c.stop(host).ok();
        let notes = host.report("vandal")["notes"].to_string();
        assert!(
            notes.contains("r1 had been moved on to network namespace "),
            "{notes}"
        );
        host.is_clean();
    });
}

/// What was found on the way is said where the end is an error, too.
#[test]
fn notes_of_a_search_are_in_the_error() {
    alone(|host| {
        host.rails(2);
        host.prepare("r0,r1");
        let mut c = Container::new("vandal");
        c.create(host).ok();
        let nested = Container::new("nested");
        c.sh(&format!(
            "ip link set r1 netns {0}; ip link set r0 netns {0} name other",
            nested.pid()
        ));
        let said = [
            "r0 is neither",
            "r1 had been moved on to network namespace ",
        ];
        c.stop(host).fails(8, &said);
        nested.sh("ip link set other name r0");
        host.rdmaprep(&["restore", "--all"]).ok();
        host.is_clean();
    });
}

/// A routing daemon learns its routes some seconds after a NIC is back.
#[test]
fn a_container_without_learned_routes_says_so() {
    alone(|host| {
        host.rails(2);
        let learn = || sh("ip route add 198.51.100.0/24 dev r0 proto bgp metric 20");
        learn();
        host.prepare("r0,r1");
        let said = "r0 has no route by bgp now, as it had when it was prepared";
        for is_learned in [true, false] {
            let mut c = Container::new(&format!("learned-{is_learned}"));
            c.create(host).ok();
            let notes = host.report(&format!("learned-{is_learned}"))["notes"].to_string();
            assert_eq!(notes.contains(said), !is_learned, "{notes}");
            assert!(!notes.contains("r1 has no route"), "{notes}");
            c.stop(host).ok();
        }
    });
}

#[test]
fn poststart_repeats_what_a_runtime_tore_down() {
    alone(|host| {
        rich(host);
        let before = host.look();
        host.prepare("r0,r1,r2");
        let mut c = Container::new("sandbox");
        c.create(host).ok();
        let look = || {
            unnumbered(&c.sh(
                "ip -o address; ip -o route show table all; ip -o -6 route show \
                table all; ip rule; ip neighbour show nud permanent",
            ))
        };
        // The kernel makes IPv6 local routes a moment after the address (addrconf_dad_work in
        // net/ipv6/addrconf.c).
        let mut inside = look();
        until("its network is at rest", || {
            std::thread::sleep(Duration::from_millis(300));
            std::mem::replace(&mut inside, look()) == inside
        });
        host.hook("poststart", &c.state()).ok();
        assert_eq!(host.report("sandbox")["steps_done"], 0);
        c.sh("for d in r0 r1 r2; do ip address flush dev $d; done");
        assert_ne!(inside, look());
        host.hook("poststart", &c.state()).ok();
        let end = Instant::now() + Duration::from_secs(10);
        while look() != inside && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
        }
        same("the container's network", &inside, &look());
        c.stop(host).ok();
        host.is_as(&before);
    });
}

/// Modes of everything below a folder.
fn modes(folder: &Path, found: &mut Vec<(String, u32)>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let meta = entry.metadata().unwrap();
        // A pin has nsfs's mode.
        if entry.path().parent().is_some_and(|p| p.ends_with("netns")) {
            continue;
        }
        found.push((
            entry.path().display().to_string(),
            meta.permissions().mode() & 0o7777,
        ));
        if meta.is_dir() {
            modes(&entry.path(), found);
        }
    }
}

#[test]
fn files_are_private_although_a_runtime_calls_with_umask_0() {
    alone(|host| {
        host.rails(1);
        host.configure("plan = \"auto\"\nselect.ifaces = [\"r0\"]");
        let mut c = Container::new("open").annotated(json!({}));
        let hook = host.command(&["hook", "createRuntime"]);
        let mut under_umask_0 = Command::new("sh");
        under_umask_0
            .args(["-c", "umask 0; exec \"$@\"", "sh"])
            .arg(hook.get_program())
            .args(hook.get_args());
        run(&mut under_umask_0, &c.state()).ok();
        let mut found = Vec::new();
        modes(&host.run, &mut found);
        assert!(found.len() >= 6, "{found:?}");
        found.push((
            "log".into(),
            fs::metadata(&host.log).unwrap().permissions().mode() & 0o7777,
        ));
        let mode = fs::metadata(&host.run).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o700);
        for (path, mode) in &found {
            let want = if Path::new(path).is_dir() {
                0o700
            } else {
                0o600
            };
            assert_eq!(*mode, want, "{path}: {mode:o}");
        }
        c.stop(host).ok();
    });
}

#[test]
fn names_and_aliases_that_are_no_text_hide_no_nic() {
    alone(|host| {
        let names = host.rails(2);
        let before = host.look();
        host.prepare(&names).ok();
        let mut container = Container::new("c1");
        container.create(host).ok();
        container.sh("ip link set r0 down");
        container.sh(r"ip link set r0 alias $(printf '\377\376')");
        container.sh(r"ip link set r0 name $(printf '\376x')");
        container.sh(r"ip link set r1 name $(printf 'b\007ll')");
        container.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_broken_config_file_keeps_no_nic_away() {
    alone(|host| {
        let names = host.rails(1);
        let before = host.look();
        host.prepare(&names).ok();
        let mut container = Container::new("c1");
        container.create(host).ok();
        host.configure("nonsense");
        container.stop(host).ok();
        host.is_as(&before);
        // Nor does an unknown key, or another state_dir, keep `--stale` from restoring NICs of dead
        // containers.
        let elsewhere = host.state.with_file_name("elsewhere");
        let config = format!("state_dir = {elsewhere:?}\n");
        host.configure(&config);
        let mut container = Container::new("c2");
        let at = [
            "--run-dir".as_ref(),
            host.run.as_os_str(),
            "--config".as_ref(),
            host.config.as_os_str(),
        ];
        let rdmaprep = |args: &[&str], stdin: &str| {
            run(
                Command::new(env!("CARGO_BIN_EXE_rdmaprep"))
                    .env_clear()
                    .args(args)
                    .args(at),
                stdin,
            )
        };
        rdmaprep(
            &["hook", "createRuntime", "--plan", "default"],
            &container.state(),
        )
        .ok();
        assert_eq!(host.records().len(), 1);
        host.configure(&(config + "no_such_key = 1\n"));
        container.kill();
        let said = rdmaprep(&["restore", "--all", "--stale"], "").ok();
        assert!(said.err.contains("only the folders are used"), "{said:?}");
        host.configure("");
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn a_namespace_holds_one_plan() {
    alone(|host| {
        host.rails(2);
        host.rdmaprep(&["prepare", "--plan", "other", "--ifaces", "r1"])
            .ok();
        host.prepare("r0").ok();
        let mut first = Container::new("c1");
        first.create(host).ok();
        let second = Container::beside("c2", &first)
            .annotated(serde_json::json!({"rdmaprep.io/plan": "other"}));
        second.create(host).fails(3, &["plan default", "not other"]);
        first.stop(host).ok();
        host.is_clean();
    });
}

#[test]
fn frozen_lifetimes_do_not_run_down() {
    alone(|host| {
        let names = host.rails(1);
        host.ip("address add 203.0.113.7/24 dev r0 valid_lft 900 preferred_lft 600");
        host.rdmaprep(&["prepare", "--ifaces", &names])
            .fails(4, &["finite_lifetime"]);
        host.rdmaprep(&["prepare", "--ifaces", &names, "--freeze-lifetimes"])
            .ok();
        let mut container = Container::new("c1");
        container.create(host).ok();
        let inside = container.sh("ip -json address show dev r0 | jq '[.[].addr_info[] | \
            select(.family == \"inet\") | .valid_life_time] | unique'");
        assert_eq!(
            inside.split_whitespace().collect::<String>(),
            "[4294967295]"
        );
        container.stop(host).ok();
        host.is_clean();
    });
}

#[test]
fn the_bootstrap_interface_is_named_where_it_is_known() {
    alone(|host| {
        let names = host.rails(1);
        let pod = Container::new("pod");
        pod.sh(
            "ip link add eth0 type veth peer name far; ip link set far up; ip link set eth0 up
            ip address add 198.51.100.2/24 dev eth0; ip route add default via 198.51.100.1",
        );
        let bundle = host.run.with_file_name("bundle");
        fs::create_dir(&bundle).unwrap();
        let config = |network: serde_json::Value| {
            let config = serde_json::json!({
                "ociVersion": "1.0.2",
                "process": {"cwd": "/", "args": ["true"], "env": ["PATH=/bin"]},
                "linux": {"namespaces": [network]},
            });
            fs::write(bundle.join("config.json"), config.to_string()).unwrap();
            host.rdmaprep(&[
                "prepare",
                "--ifaces",
                &names,
                "--bundle",
                bundle.to_str().unwrap(),
            ])
            .ok();
            fs::read_to_string(bundle.join("config.json")).unwrap()
        };
        let path = format!("/proc/{}/ns/net", pod.pid());
        let joined = config(serde_json::json!({"type": "network", "path": path}));
        assert!(
            joined.contains("\"NCCL_SOCKET_IFNAME==eth0\"")
                && joined.contains("\"GLOO_SOCKET_IFNAME=eth0\""),
            "{joined}"
        );
        let own = config(serde_json::json!({"type": "network"}));
        assert!(!own.contains("SOCKET_IFNAME"), "{own}");
    });
}

/// NCCL fails without its interface: a warning where an engine may still add it, an error where
/// none will.
#[test]
fn a_bootstrap_without_a_route_is_reported_or_refused() {
    alone(|host| {
        let names = host.rails(1);
        let pod = Container::new("pod");
        let bundle = host.run.with_file_name("bundle");
        fs::create_dir(&bundle).unwrap();
        let prepare = |network: serde_json::Value| {
            let config = serde_json::json!({
                "ociVersion": "1.0.2",
                "process": {"cwd": "/", "args": ["true"], "env": ["NCCL_SOCKET_IFNAME=eth7"]},
                "linux": {"namespaces": [network]},
            });
            fs::write(bundle.join("config.json"), config.to_string()).unwrap();
            host.rdmaprep(&[
                "prepare",
                "--ifaces",
                &names,
                "--bundle",
                bundle.to_str().unwrap(),
            ])
        };
        let read = || fs::read_to_string(bundle.join("config.json")).unwrap();
        let words = "NCCL_SOCKET_IFNAME=eth7 fits no interface that can be used";
        let warned = prepare(serde_json::json!({"type": "network"})).ok();
        assert!(warned.err.contains(words), "{}", warned.err);
        assert!(read().contains("createRuntime"));
        let path = format!("/proc/{}/ns/net", pod.pid());
        prepare(serde_json::json!({"type": "network", "path": path}))
            .fails(3, &["NCCL in this container", words]);
        assert!(!read().contains("createRuntime"));
    });
}

/// Of NICs that another container has NCCL cannot be judged: the create hook waits for them, or
/// says which container.
#[test]
fn a_pod_that_waits_for_nics_is_edited() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let mut first = Container::new("first");
        first.create(host).ok();
        let pod = Container::new("pod");
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {"cwd": "/", "args": ["true"], "env": ["NCCL_SOCKET_IFNAME==r0"]},
            "linux": {"namespaces": [{"type": "network",
                "path": format!("/proc/{}/ns/net", pod.pid())}]},
        });
        let edited = run(
            &mut host.command(&["spec", "--plan", "default"]),
            &config.to_string(),
        )
        .ok();
        assert!(edited.out.contains("createRuntime"), "{}", edited.out);
        pod.create(host)
            .fails(9, &["r0 is held by container first"]);
        first.stop(host).ok();
    });
}

/// What the host asks for in the name of all containers is not left out in silence, whatever else
/// is wrong.
#[test]
fn containers_of_the_hosts_own_plan_do_not_start_without_it() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let before = host.look();
        let plain = || Container::new("plain").annotated(json!({}));
        host.configure("nonsense = 1\n");
        plain().create(host).ok();
        host.configure("plan = \"default\"\nnonsense = 1\n");
        plain().create(host).fails(2, &["unknown field `nonsense`"]);
        assert_eq!(host.report("plain")["exit_code"], 2);
        // One that has the host's network has all NICs already.
        let mut shares = Command::new("sleep");
        let mut shares = shares.arg("60").spawn().unwrap();
        let state = json!({"ociVersion": "1.1.0", "id": "s", "status": "creating",
            "pid": shares.id(), "bundle": "/b"});
        host.hook("createRuntime", &state.to_string()).ok();
        shares.kill().and_then(|()| shares.wait()).unwrap();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn empty_variables_and_annotations_without_a_plan() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let before = host.look();
        let plain = Container::new("plain").annotated(json!({}));
        let mut hook = host.command(&["hook", "createRuntime"]);
        for name in [
            "RDMAPREP_WAIT",
            "RDMAPREP_DEADLINE",
            "RDMAPREP_HOOK_TIMEOUT",
            "RDMAPREP_RAIL",
            "RDMAPREP_PLAN",
        ] {
            hook.env(name, "");
        }
        run(&mut hook, &plain.state()).ok();
        let half = Container::new("half").annotated(json!({"rdmaprep.io/ifaces": "r0"}));
        half.create(host).fails(5, &["none names a plan"]);
        host.is_as(&before);
        host.is_clean();
    });
}

/// A NIC that a container has just given back is without a carrier, a GID or an address for a
/// moment.
#[test]
fn a_named_nic_that_comes_up_is_waited_for() {
    alone(|host| {
        host.rails(2);
        sh("ip address flush dev r1");
        let waiting = host
            .command(&["prepare", "--ifaces", "r0 r1"])
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(1800));
        sh("ip address add 10.1.0.1/24 dev r1");
        let done = waiting.wait_with_output().unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr),
        );
        assert!(done.status.success(), "{err}");
        assert!(out.ends_with("RDMA_PEER_IFACES=\"r0 r1\"\n"), "{out}");
        assert_eq!(
            err.matches("rdmaprep: waiting up to 5 s: r1 has no IPv4 address\n")
                .count(),
            1,
            "{err}"
        );
    });
}

/// A plan with a NIC less than were named makes a job hang, or slow.
#[test]
fn a_named_nic_that_cannot_be_taken_fails_and_nothing_is_stored() {
    alone(|host| {
        host.rails(2);
        sh("ip address flush dev r1");
        let before = host.look();
        let why = [
            "--ifaces names NICs that cannot be taken",
            "r1 has no IPv4 address",
            "add one: ip address add",
        ];
        let begun = Instant::now();
        host.rdmaprep(&["prepare", "--ifaces", "r0 r1"])
            .fails(4, &why);
        assert!(begun.elapsed().as_secs() >= 5, "{:?}", begun.elapsed());
        assert!(!host.run.join("plans/default.json").exists());
        // Nor does a plan that the hook makes have fewer.
        let c = Container::new("c").annotated(json!({"rdmaprep.io/plan": "auto"}));
        run(
            &mut host.command(&["hook", "createRuntime", "--ifaces", "r0 r1"]),
            &c.state(),
        )
        .fails(4, &why);
        sh("ip link set r1 down");
        let why = [
            "r1 has no IPv4 address, and is down",
            "bring it up by what configures it",
        ];
        host.rdmaprep(&["prepare", "--ifaces", "r0 r1"])
            .fails(4, &why);
        sh("ip link set r1 up");
        host.is_as(&before);
        // What the container itself leaves out is not missed.
        let mut c = Container::new("c")
            .annotated(json!({"rdmaprep.io/plan": "auto", "rdmaprep.io/exclude": "^r1$"}));
        run(
            &mut host.command(&["hook", "createRuntime", "--ifaces", "r0 r1"]),
            &c.state(),
        )
        .ok();
        c.stop(host).ok();
        host.is_as(&before);
        // Nor if another container holds it.
        host.ip("address add 10.0.77.1/24 dev r1");
        let before = host.look();
        let mut other = Container::new("other").annotated(json!({"rdmaprep.io/plan": "auto"}));
        run(
            &mut host.command(&["hook", "createRuntime", "--ifaces", "r1"]),
            &other.state(),
        )
        .ok();
        let mut c = Container::new("c")
            .annotated(json!({"rdmaprep.io/plan": "auto", "rdmaprep.io/ifaces": "r0"}));
        run(
            &mut host.command(&["hook", "createRuntime", "--ifaces", "r0 r1"]),
            &c.state(),
        )
        .ok();
        c.stop(host).ok();
        other.stop(host).ok();
        host.is_as(&before);
        // One that only a peer's list leaves out is not, either.
        let said = host
            .rdmaprep(&["prepare", "--ifaces", "r0 r1", "--peer-ifaces", "r0"])
            .ok();
        assert!(said.out.ends_with("RDMA_PEER_IFACES=\"r0\"\n"), "{said:?}");
    });
}

/// Ids are unique only within a runtime.
#[test]
fn refused_namesake_leaves_the_first_ones_report() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let mut first = Container::new("twin");
        first.create(host).ok();
        let before = host.report("twin");
        let second = Container::new("twin");
        second
            .create(host)
            .fails(9, &["r0 is held by container twin"]);
        assert_eq!(host.report("twin"), before);
        let other = host.report("unknown@");
        assert_eq!(
            (&other["container"], &other["exit_code"]),
            (&"twin".into(), &9.into()),
            "{other}"
        );
        first.stop(host).ok();
        host.is_clean();
    });
}

/// The look for a namesake fails, too: what is reported is the failure itself.
#[test]
fn an_error_is_reported_where_the_boot_id_is_not_known() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let annotations = serde_json::json!({"rdmaprep.io/ifaces": "../r0"});
        let container = Container::new("strange").annotated(annotations);
        sh("mount -t tmpfs none /proc/sys/kernel/random");
        let said = container.create(host);
        sh("umount /proc/sys/kernel/random");
        said.fails(5, &["rdmaprep.io/ifaces"]);
        let message = host.report("strange")["message"].to_string();
        assert!(message.contains("rdmaprep.io/ifaces"), "{message}");
        host.is_clean();
    });
}

/// A cgroup may have as many threads as it is allowed: here none gets the stack that it asks for.
#[test]
fn hooks_go_on_or_refuse_where_no_thread_starts() {
    alone(|host| {
        host.rails(2);
        host.prepare("r0 r1");
        let before = host.look();
        let hook = |stage: &str, state: &str| {
            let mut command = host.command(&["hook", stage]);
            run(
                command.env("RUST_MIN_STACK", (1_u64 << 50).to_string()),
                state,
            )
        };
        let mut c = Container::new("c");
        let created = hook("createRuntime", &c.state());
        assert!(matches!(created.code, Some(0 | 1)), "{created:?}");
        if created.code == Some(1) {
            assert_eq!(created.err.trim().lines().count(), 1, "{created:?}");
            host.is_as(&before);
            c.create(host).ok();
        }
        c.kill();
        hook("poststop", &c.stopped()).ok();
        host.is_as(&before);
        host.is_clean();
    });
}
