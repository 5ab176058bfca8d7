//! Which rules an environment reaches in a world. The names are what the judge prints.

use std::collections::BTreeSet;

use nccl_rules::explain::{Bootstrap, Endpoint, Explanation, NcclError, Step};
use nccl_rules::ifname::Patterns;
use nccl_rules::settings::{ETC, Settings};
use rdma_model::snapshot::{Address, Netdev, Snapshot};

use testkit::nccl_case::{CONF, Env};

/// Every rule; for some releases some do not exist.
pub const RULES: [&str; 53] = [
    "list: beginnings of names",
    "list: a beginning takes a longer name",
    "list: = whole names",
    "list: ^ excludes",
    "list: ^= excludes whole names",
    "list: a mark out of order is a name",
    "list: no entry allows all",
    "list: ^ without an entry excludes all",
    "list: empty entries are skipped",
    "list: nothing is trimmed",
    "list: name:port",
    "list: name:port:rail:plane",
    "list: an empty port",
    "list: the sixteenth entry counts",
    "list: the seventeenth is dropped",
    "list: a name of 64 bytes and more",
    "list: nothing fits",
    "automatic: the value is empty",
    "automatic: the value is one byte",
    "automatic: ib",
    "automatic: any other",
    "automatic: docker",
    "automatic: lo",
    "automatic: virbr",
    "automatic: nothing",
    "family: AF_INET",
    "family: AF_INET6",
    "family: anything else is ignored",
    "interface: not running",
    "interface: down",
    "interface: ::1 is never used",
    "interface: a label is a name",
    "interface: several addresses, the first counts",
    "interface: IPv4 anywhere comes before IPv6",
    "interface: IPv6 only",
    "interface: link-local",
    "id: address:port",
    "id: [address]:port",
    "id: link-local with its scope",
    "id: host:port",
    "id: cannot be read",
    "id: no interface in its subnet",
    "id: the list is not asked",
    "id: not running does not matter",
    "id: an IPv4 address outside of its subnet",
    "file: $NCCL_CONF_FILE",
    "file: that of the home",
    "file: /etc/nccl.conf",
    "file: the environment wins",
    "file: an empty variable is set",
    "file: the first assignment wins",
    "file: a comment, a blank or no = is no assignment",
    "file: CRLF",
];

/// The rules that these settings reach.
pub fn reached(
    env: &Env,
    settings: &Settings,
    snapshot: &Snapshot,
    e: &Explanation,
) -> BTreeSet<&'static str> {
    let mut out = BTreeSet::new();
    match settings.get("NCCL_COMM_ID") {
        Some(id) => by_id(id, settings, snapshot, e, &mut out),
        None => {
            by_list(settings, e, &mut out);
            family(settings, &mut out);
            interfaces(settings, snapshot, e, &mut out);
        }
    }
    files(env, settings, e, &mut out);
    let rules = out
        .iter()
        .filter(|rule| !RULES.contains(rule))
        .collect::<Vec<_>>();
    assert!(rules.is_empty(), "{rules:?} are no rules");
    out
}

type Out = BTreeSet<&'static str>;

fn used(e: &Explanation) -> Option<(&Endpoint, Step)> {
    match &e.bootstrap {
        Bootstrap::Uses(endpoint, step) => Some((endpoint, *step)),
        Bootstrap::Fails(_) | Bootstrap::Unknown | Bootstrap::NotJudged => None,
    }
}

fn by_list(settings: &Settings, e: &Explanation, out: &mut Out) {
    let value = settings.get("NCCL_SOCKET_IFNAME");
    let mut add = |so: bool, rule| {
        if so {
            out.insert(rule);
        }
    };
    let Some(list) = Patterns::interfaces(value, e.version) else {
        add(value == Some(""), "automatic: the value is empty");
        add(
            value.is_some_and(|v| v.len() == 1),
            "automatic: the value is one byte",
        );
        add(
            true,
            match used(e) {
                Some((_, Step::Ib)) => "automatic: ib",
                Some((_, Step::Docker)) => "automatic: docker",
                Some((_, Step::Loopback)) => "automatic: lo",
                Some((_, Step::Virbr)) => "automatic: virbr",
                Some(_) => "automatic: any other",
                None => "automatic: nothing",
            },
        );
        return;
    };
    let value = value.unwrap_or_default();
    let name = used(e).map(|(endpoint, _)| endpoint.interface.as_str());
    let text = value.trim_start_matches(['^', '=']);
    let fields = |n: usize| {
        text.split(',')
            .any(|entry| !entry.starts_with(':') && entry.matches(':').count() >= n)
    };
    if list.entries.is_empty() {
        add(
            true,
            if list.exclude {
                "list: ^ without an entry excludes all"
            } else {
                "list: no entry allows all"
            },
        );
    } else {
        add(
            true,
            match (list.exclude, list.exact) {
                (false, false) => "list: beginnings of names",
                (false, true) => "list: = whole names",
                (true, false) => "list: ^ excludes",
                (true, true) => "list: ^= excludes whole names",
            },
        );
    }
    let plain = !list.exact && !list.exclude && !list.entries.is_empty();
    add(
        plain && name.is_some_and(|n| list.entries.iter().all(|e| e.name != n)),
        "list: a beginning takes a longer name",
    );
    add(
        list.entries.iter().any(|e| e.name.starts_with(['^', '='])),
        "list: a mark out of order is a name",
    );
    add(
        text.split(',')
            .any(|entry| entry.is_empty() || entry.starts_with(':')),
        "list: empty entries are skipped",
    );
    add(text.contains(' '), "list: nothing is trimmed");
    add(fields(1), "list: name:port");
    add(fields(2), "list: name:port:rail:plane");
    add(
        text.contains("::") || text.contains(":,") || text.ends_with(':'),
        "list: an empty port",
    );
    add(list.entries.len() == 16, "list: the sixteenth entry counts");
    add(!list.dropped.is_empty(), "list: the seventeenth is dropped");
    add(
        list.entries.iter().any(|e| e.overlong),
        "list: a name of 64 bytes and more",
    );
    add(name.is_none(), "list: nothing fits");
}

fn family(settings: &Settings, out: &mut Out) {
    out.extend(
        settings
            .get("NCCL_SOCKET_FAMILY")
            .map(|family| match family {
                "AF_INET" => "family: AF_INET",
                "AF_INET6" => "family: AF_INET6",
                _ => "family: anything else is ignored",
            }),
    );
}

/// Addresses that the list allows, with their names.
fn allowed<'a>(
    settings: &Settings,
    snapshot: &'a Snapshot,
    e: &Explanation,
) -> Vec<(&'a Netdev, &'a Address)> {
    let list = Patterns::interfaces(settings.get("NCCL_SOCKET_IFNAME"), e.version);
    let all = snapshot
        .netdevs
        .iter()
        .flat_map(|n| n.addresses.iter().map(move |a| (n, a)));
    all.filter(|(n, a)| {
        list.as_ref()
            .is_none_or(|list| list.takes(name(n, a), None))
    })
    .collect()
}

fn name<'a>(n: &'a Netdev, a: &'a Address) -> &'a str {
    a.label.as_deref().unwrap_or(n.name.as_str())
}

fn interfaces(settings: &Settings, snapshot: &Snapshot, e: &Explanation, out: &mut Out) {
    let allowed = allowed(settings, snapshot, e);
    let mut add = |so: bool, rule| {
        if so {
            out.insert(rule);
        }
    };
    add(
        allowed.iter().any(|(n, _)| n.up && !n.running),
        "interface: not running",
    );
    add(allowed.iter().any(|(n, _)| !n.up), "interface: down");
    let loopback6 = allowed
        .iter()
        .any(|(_, a)| a.address.is_ipv6() && a.address.is_loopback());
    let Some((endpoint, _)) = used(e) else {
        add(loopback6, "interface: ::1 is never used");
        return;
    };
    let is = |(n, a): &&(&Netdev, &Address)| {
        a.address == endpoint.address && name(n, a) == endpoint.interface
    };
    let Some((netdev, _)) = allowed.iter().find(is) else {
        return;
    };
    let same = netdev
        .addresses
        .iter()
        .filter(|a| name(netdev, a) == endpoint.interface)
        .count();
    let earlier = |(n, a): &(&Netdev, &Address)| n.ifindex < netdev.ifindex && a.address.is_ipv6();
    let v6_alone = |n: &Netdev| n.addresses.iter().all(|a| a.address.is_ipv6());
    add(
        loopback6 && endpoint.address.is_ipv6(),
        "interface: ::1 is never used",
    );
    let labels = netdev
        .addresses
        .iter()
        .any(|a| name(netdev, a) != netdev.name.as_str());
    add(
        labels || endpoint.interface.contains(':'),
        "interface: a label is a name",
    );
    add(same > 1, "interface: several addresses, the first counts");
    let first = allowed
        .iter()
        .any(|c| earlier(c) && v6_alone(c.0) && !c.1.address.is_loopback());
    add(
        first && endpoint.address.is_ipv4(),
        "interface: IPv4 anywhere comes before IPv6",
    );
    add(v6_alone(netdev), "interface: IPv6 only");
    add(endpoint.scope.is_some(), "interface: link-local");
}

fn by_id(id: &str, settings: &Settings, snapshot: &Snapshot, e: &Explanation, out: &mut Out) {
    let mut add = |so: bool, rule| {
        if so {
            out.insert(rule);
        }
    };
    let list = Patterns::interfaces(settings.get("NCCL_SOCKET_IFNAME"), e.version);
    match &e.bootstrap {
        Bootstrap::Fails(failure) => {
            let unread = failure.error == Some(NcclError::InvalidArgument);
            add(
                true,
                if unread {
                    "id: cannot be read"
                } else {
                    "id: no interface in its subnet"
                },
            );
            add(!unread && id.contains('%'), "id: link-local with its scope");
        }
        Bootstrap::Uses(endpoint, step) => {
            add(
                *step == Step::NotCommId,
                "id: an IPv4 address outside of its subnet",
            );
            add(
                list.is_some_and(|list| !list.takes(&endpoint.interface, None)),
                "id: the list is not asked",
            );
            add(id.starts_with('1'), "id: address:port");
            add(id.starts_with('['), "id: [address]:port");
            add(id.contains('%'), "id: link-local with its scope");
            let netdev = snapshot.netdevs.iter().find(|n| {
                n.addresses
                    .iter()
                    .any(|a| a.address == endpoint.address && name(n, a) == endpoint.interface)
            });
            add(
                netdev.is_some_and(|n| !n.running),
                "id: not running does not matter",
            );
        }
        Bootstrap::Unknown | Bootstrap::NotJudged => {}
    }
    add(id.starts_with(['h', 'l', 'n']), "id: host:port");
}

fn files(env: &Env, settings: &Settings, e: &Explanation, out: &mut Out) {
    let mut add = |so: bool, rule| {
        if so {
            out.insert(rule);
        }
    };
    let variable = "NCCL_SOCKET_IFNAME";
    let paths = settings.files(
        Some(std::path::Path::new(testkit::nccl_case::USER)),
        e.version,
    );
    let read: Vec<&str> = paths
        .iter()
        .filter_map(|p| Some(env.files.get(p.to_str()?)?.as_str()))
        .collect();
    let place = settings.place(variable).unwrap_or_default();
    add(place == CONF, "file: $NCCL_CONF_FILE");
    add(place.ends_with("/.nccl.conf"), "file: that of the home");
    add(place == ETC, "file: /etc/nccl.conf");
    let assigns = |text: &&str| text.lines().any(|l| l.starts_with("NCCL_SOCKET_IFNAME="));
    let own = env.vars.get(variable);
    add(
        own.is_some_and(|v| !v.is_empty()) && read.iter().any(assigns),
        "file: the environment wins",
    );
    let empty_in_file = settings.get(variable) == Some("") && !read.is_empty();
    add(empty_in_file, "file: an empty variable is set");
    let twice = read
        .iter()
        .any(|t| t.matches("NCCL_SOCKET_IFNAME=").count() > 1);
    add(own.is_none() && twice, "file: the first assignment wins");
    let odd =
        |l: &str| l.starts_with('#') || l.starts_with(' ') || l.contains(" = ") || !l.contains('=');
    add(
        own.is_none() && read.iter().any(|t| t.lines().any(odd)),
        "file: a comment, a blank or no = is no assignment",
    );
    add(
        own.is_none() && read.iter().any(|t| t.contains("\r\n")),
        "file: CRLF",
    );
}
