//! `rdmaprep metrics`: rails wherever they are, on the real kernel.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::alone;
use nix::sys::signal::Signal;
use openmetrics_parser::{openmetrics, prometheus};
use serde_json::json;
use testkit::hold::{Hold, POOL};
use testkit::{Container, Host, ipv6, run, sh};

/// Each line of what is printed: its value by its name with its labels.
fn scraped(host: &Host) -> BTreeMap<String, f64> {
    lines(&host.rdmaprep(&["metrics"]).ok().out)
}

fn lines(text: &str) -> BTreeMap<String, f64> {
    openmetrics::parse_openmetrics(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
    let all = pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
    all.collect()
}

/// The lines of a metric that have these labels, in their order.
fn found<'l>(lines: &'l BTreeMap<String, f64>, name: &str, labels: &str) -> Vec<(&'l str, f64)> {
    let whole = format!("rdmaprep_{name}{{");
    let all = lines.iter().filter_map(|(line, value)| {
        let rest = line.strip_prefix(&whole)?;
        rest.contains(labels).then_some((rest, *value))
    });
    all.collect()
}

fn value(lines: &BTreeMap<String, f64>, name: &str, labels: &str) -> f64 {
    let all = found(lines, name, labels);
    let [(_, value)] = all[..] else {
        panic!("{name} {labels}: {all:?}")
    };
    value
}

/// Packets that a link has sent, by `ip`.
fn sent(ip: &str) -> f64 {
    let links: serde_json::Value = serde_json::from_str(ip).unwrap();
    links[0]["stats64"]["tx"]["packets"].as_f64().unwrap()
}

/// All that a look could change.
fn state(host: &Host, container: &Container) -> String {
    let files = sh(&format!(
        "find {} -printf '%p %s %T@ %i\\n' | sort; cat /proc/self/mounts",
        host.run.display()
    ));
    files + &container.sh("ip -d address; ip route show table all; ip rule")
}

#[test]
fn rails_are_counted_wherever_they_are() {
    alone(|host| {
        host.rails(3);
        host.prepare("r0,r1");
        host.rdmaprep(&["prepare", "--plan", "other", "--ifaces", "r2"])
            .ok();
        let mut one = Container::new("trainer");
        let on_host = scraped(host);
        for rail in ["r0", "r1", "r2"] {
            let labels = format!("rail=\"{rail}\",place=\"host\",netdev=\"{rail}\",");
            assert_eq!(value(&on_host, "rail_healthy", &labels), 1.0);
        }
        one.create(host).ok();
        // Nothing that the kernel does by itself is to come between the two looks.
        one.sh("echo 0 > /proc/sys/net/ipv6/conf/r0/accept_dad");
        one.sh("ip link set r0 down; ip link set r0 name x0; ip link set x0 up");
        ipv6::settled(|script| one.sh(script));
        let before = (state(host, &one), host.normal());
        let (earlier, lines) = (sent(&one.sh("ip -s -j link show r1")), scraped(host));
        let later = sent(&one.sh("ip -s -j link show r1"));
        assert_eq!((state(host, &one), host.normal()), before);
        let packets = value(&lines, "rail_transmit_packets_total", "rail=\"r1\"");
        assert!(
            earlier <= packets && packets <= later,
            "{earlier} {packets} {later}"
        );
        let labels = "place=\"container\",netdev=\"x0\",hca=\"\",port=\"\",container=\"trainer\"";
        assert_eq!(value(&lines, "rail_up", labels), 1.0);
        let on_host = "rail=\"r2\",place=\"host\",netdev=\"r2\",hca=\"\",port=\"\",container=\"\"";
        assert_eq!(value(&lines, "rail_up", on_host), 1.0);
        assert_eq!(value(&lines, "records", "attached"), 1.0);
        assert_eq!(value(&lines, "holder_nics", "container=\"trainer\""), 2.0);
        let age = value(&lines, "holder_age_seconds", "container=\"trainer\"");
        assert!((0.0..60.0).contains(&age), "{age}");
        let hooks = "command=\"hook createRuntime\",outcome=\"ok\"";
        assert_eq!(value(&lines, "hook_reports", hooks), 1.0);
        one.sh("ip link set x0 down");
        let lines = scraped(host);
        assert_eq!(value(&lines, "rail_healthy", "rail=\"r0\""), 0.0);
        let down = found(&lines, "rail_fault", "rail=\"r0\"");
        let faults: Vec<&str> = down.iter().filter(|f| f.1 == 1.0).map(|f| f.0).collect();
        assert!(
            matches!(faults[..], [fault] if fault.contains("reason=\"down\"")),
            "{faults:?}"
        );
        one.stop(host).ok();
    });
}

#[test]
fn containers_that_have_ended_leave_no_lines() {
    alone(|host| {
        let rails = host.rails(2);
        host.prepare(&rails);
        let before = scraped(host);
        for name in ["a", "b", "c"] {
            let mut container = Container::new(name);
            container.create(host).ok();
            container.kill();
            let lines = scraped(host);
            assert_eq!(value(&lines, "records", "abandoned"), 1.0);
            assert_eq!(lines["rdmaprep_restores_incomplete"], 1.0);
            assert_eq!(found(&lines, "holder_age_seconds", ""), []);
            host.rdmaprep(&["restore", "--all", "--stale"]).ok();
        }
        let after = scraped(host);
        let hooks = found(&after, "hook_reports", "");
        assert_eq!(hooks.len(), 1, "{hooks:?}");
        let mut names: Vec<&String> = after.keys().collect();
        names.retain(|name| !name.starts_with("rdmaprep_hook_"));
        assert_eq!(names, before.keys().collect::<Vec<_>>());
    });
}

#[test]
fn a_rail_that_hangs_is_told_by_a_metric() {
    alone(|host| {
        let rails = host.rails(3);
        host.prepare(&rails);
        let points = host.run.with_file_name("points");
        let mut look = host.command(&["metrics"]);
        look.env("RDMAPREP_FAULT_POINTS", &points);
        run(&mut look, "").ok();
        let points = fs::read_to_string(&points).unwrap();
        let line = points.lines().find(|line| line.ends_with("reading r1"));
        let (number, _) = line.unwrap().split_once(' ').unwrap();
        for (way, why) in [
            ("hang=60000", "no answer in 2 s"),
            ("error", "a test lets this fail"),
        ] {
            let mut look = host.command(&["metrics"]);
            look.env("RDMAPREP_FAULT", format!("{number}:{way}"));
            let begun = Instant::now();
            let said = run(&mut look, "").ok();
            assert!(begun.elapsed() < Duration::from_secs(10));
            assert!(
                said.err.contains("r1 could not be read") && said.err.contains(why),
                "{}",
                said.err
            );
            let lines = lines(&said.out);
            for (rail, healthy) in [("r0", 1.0), ("r1", 0.0), ("r2", 1.0)] {
                let rail = format!("rail=\"{rail}\"");
                assert_eq!(value(&lines, "rail_healthy", &rail), healthy, "{rail}");
                let unread = found(&lines, "rail_fault", &rail);
                let unread = unread.iter().find(|f| f.0.contains("\"unread\"")).unwrap();
                assert_eq!(unread.1, 1.0 - healthy, "{rail}");
                let counted = found(&lines, "rail_receive_bytes_total", &rail);
                assert_eq!(counted.len() as f64, healthy, "{rail}");
            }
        }
    });
}

#[test]
fn a_textfile_is_replaced_whole_and_others_can_read_it() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let file = host.run.with_file_name("rdmaprep.prom");
        fs::write(&file, "old").unwrap();
        let named = file.to_str().unwrap();
        let said = host.rdmaprep(&["metrics", "--textfile", named]).ok();
        assert_eq!(said.out, "");
        let text = fs::read_to_string(&file).unwrap();
        prometheus::parse_prometheus(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(
            text.contains("# TYPE rdmaprep_rail_receive_bytes_total counter\n"),
            "{text}"
        );
        assert!(!text.contains("# EOF"), "{text}");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        // What fails leaves the old text, and nothing beside it.
        let mut fails = host.command(&["metrics", "--textfile", named]);
        let points = host.run.with_file_name("points");
        fails.env("RDMAPREP_FAULT_POINTS", &points);
        run(&mut fails, "").ok();
        let text = fs::read_to_string(&file).unwrap();
        let points = fs::read_to_string(&points).unwrap();
        let line = points.lines().find(|line| line.contains("while writing"));
        let (number, _) = line.unwrap().split_once(' ').unwrap();
        let mut fails = host.command(&["metrics", "--textfile", named]);
        fails.env("RDMAPREP_FAULT", format!("{number}:full"));
        run(&mut fails, "").fails(1, &["No space left"]);
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        let folder = fs::read_dir(file.parent().unwrap()).unwrap();
        let names = folder.map(|e| e.unwrap().file_name().into_string().unwrap());
        let left: Vec<String> = names.filter(|name| name.contains("unfinished")).collect();
        assert_eq!(left, [""; 0]);
    });
}

#[test]
fn pods_and_holds_are_named() {
    alone(|host| {
        let rails = host.rails(2);
        host.prepare(&rails);
        let config = json!({
            "linux": {"cgroupsPath":
                "kubepods-pod0f1e2d3c_0123_4567_89ab_0123456789ab.slice:cri-containerd:pod"},
            "annotations": {
                "io.kubernetes.cri.container-name": "train\u{1b}\"er",
                "io.kubernetes.cri.sandbox-name": "job-0",
                "io.kubernetes.cri.sandbox-namespace": "team",
            },
            "root": {"path": "/"},
        });
        let mut pod = Container::new("pod").bundled(host, &config);
        pod.create(host).ok();
        let lines = scraped(host);
        let labels = "container=\"train\\\\u{1b}\\\"er\",pod=\"job-0\",namespace=\"team\"}";
        assert_eq!(found(&lines, "rail_up", labels).len(), 2, "{lines:#?}");
        pod.stop(host).ok();
        // Without the kubelet's cgroup, anybody may have written that.
        let mut other = config.clone();
        other["linux"]["cgroupsPath"] = json!("machine.slice:libpod:pod");
        let mut other = Container::new("other").bundled(host, &other);
        other.create(host).ok();
        let lines = scraped(host);
        let labels = "container=\"other\",pod=\"\",namespace=\"\"}";
        assert_eq!(found(&lines, "rail_up", labels).len(), 2, "{lines:#?}");
        other.stop(host).ok();
        let hold = Hold::new(host, POOL);
        let lines = scraped(host);
        let place = "place=\"hold\",netdev=\"r0\",hca=\"\",port=\"\",container=\"pool\"";
        assert_eq!(value(&lines, "rail_up", place), 1.0);
        hold.end(Signal::SIGTERM).ok();
    });
}
