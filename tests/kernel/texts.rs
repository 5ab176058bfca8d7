//! Routes and rules in words, beside what `ip` writes of the same.

use std::collections::BTreeSet;

use crate::alone;
use testkit::sh;

/// The lines of `ip` without what it puts in front of a rule, or behind a line; the legs of a route
/// follow it on lines of their own.
fn written(command: &str) -> BTreeSet<String> {
    let text = sh(command).replace("\n\t", " ");
    let line = |line: &str| match line.split_once(":\t") {
        Some((priority, rule)) => format!("{rule} pref {priority}"),
        None => line.split_whitespace().collect::<Vec<_>>().join(" "),
    };
    text.lines().map(line).collect()
}

/// What follows a word in the lines of the host's normal form.
fn said(normal: &str, field: impl Fn(&str) -> Option<String>) -> BTreeSet<String> {
    normal.lines().filter_map(field).collect()
}

#[test]
fn rules_and_routes_are_written_as_ip_writes_them() {
    alone(|host| {
        host.rails(2);
        host.ip(
            "address add fd00::1/64 dev r0 nodad\naddress add 10.5.0.1 peer 10.5.0.2/32 dev \
            r1 metric 7",
        );
        host.ip(
            "rule add fwmark 0x1100 table 200\nrule add fwmark 1/0xff table 5 pref 9\n\
             rule add from 10.0.0.0/24 to 10.1.0.1 table 100 protocol static\nrule add not fwmark \
             0xca6c table 51820\n\
             rule add iif r0 table 5\nrule add uidrange 0-0 table 7\nrule add oif r1 table 254 \
             suppress_prefixlength 0\n\
             rule add from 10.0.0.8 blackhole pref 77\nrule add tos 0x10 table 8\nrule add from \
             10.0.0.9 goto 32766 pref 88\n\
             rule add ipproto tcp dport 80 table 11\nrule add ipproto udp sport 80-90 table \
             11\nrule add l3mdev pref 1000",
        );
        host.ip(
            "route add 10.9.0.0/16 nexthop via 10.0.0.9 dev r0 weight 2 nexthop via 10.1.0.7 dev \
            r1 onlink\n\
             route add 10.8.0.0/16 via 10.0.0.9 metric 50 table 100 proto static src 10.0.0.1\n\
             route add default via 10.0.0.9 proto bird\nroute add ::/0 via fd00::9 metric 9 pref \
             high\n\
             route add blackhole 10.10.0.0/16\nroute add 10.11.0.0/16 dev r0 tos 0x10\n\
             nexthop add id 1 via 10.0.0.9 dev r0\nnexthop add id 2 dev r1\nnexthop add id 3 \
             group 1,4/2\n\
             route add 10.12.0.0/16 nhid 3\nroute add fd09::/48 via fd00::9 dev r0 table \
             90\nroute add unreachable fd0a::/48 metric 7",
        );
        sh(
            "ip -6 rule add from fd00::/64 table 9; ip -6 rule add from fd00::7 table 10 protocol \
            bird",
        );
        let normal = host.normal();
        let rules = said(&normal, |line| Some(line.strip_prefix("rule ")?.to_owned()));
        let by_ip: BTreeSet<String> = [written("ip -4 rule"), written("ip -6 rule")]
            .into_iter()
            .flatten()
            .collect();
        // This release of iproute2 does not know of masks of ports.
        let plain = |rule: &String| rule.replace(" (IPv6)", "").replace(" attr 29=0xffff", "");
        assert_eq!(rules.iter().map(plain).collect::<BTreeSet<_>>(), by_ip);
        assert_eq!(
            rules.iter().filter(|rule| rule.ends_with("(IPv6)")).count(),
            2,
            "{rules:#?}"
        );
        let route = |line: &str| {
            Some(
                line.split_once(" route ")?
                    .1
                    .split_once(" #")?
                    .1
                    .split_once(' ')?
                    .1
                    .to_owned(),
            )
        };
        let routes = said(&normal, route);
        let by_ip: BTreeSet<String> = [
            written("ip -4 route show table all"),
            written("ip -6 route show table all"),
        ]
        .into_iter()
        .flatten()
        .collect();
        let unknown: Vec<&String> = routes
            .iter()
            .filter(|route| !by_ip.contains(*route))
            .collect();
        assert!(
            unknown.is_empty() && routes.len() >= 12,
            "{unknown:#?} of {routes:#?}, by ip: {by_ip:#?}"
        );
    });
}
