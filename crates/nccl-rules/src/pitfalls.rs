//! Settings that do something else than their author probably meant.

mod hcas;

use std::borrow::Cow;
use std::collections::HashSet;

use rdma_model::escape::shortened;
use rdma_model::snapshot::Snapshot;

use super::explanation::{Bootstrap, Explanation, Network, Step, Trap, Warning};
use super::hca;
use super::ifname::{Entry, MAX_INTERFACES, Patterns};
use super::settings::Settings;
use super::socket::{Candidate, Family, Found, Refusal};
use super::version::Version;

const IFNAME: &str = "NCCL_SOCKET_IFNAME";
const HCA: &str = "NCCL_IB_HCA";

struct List<'a> {
    variable: &'static str,
    value: &'a str,
    patterns: Patterns,
    there: Vec<(&'a str, Option<u32>)>,
    limit: usize,
}

pub(crate) fn warnings(
    settings: &Settings,
    snapshot: &Snapshot,
    candidates: &[Candidate],
    found: &Found,
    explained: &Explanation,
) -> Vec<Warning> {
    let mut out = bootstrap(settings, candidates, found, explained);
    for list in lists(settings, snapshot, candidates, explained) {
        spelling(&list, &mut out);
        overruns(settings, &list, explained.version, &mut out);
        entries(&list, &mut out);
    }
    hcas::hcas(settings, snapshot, explained, &mut out);
    out
}

pub(crate) fn warning(trap: Trap, text: String) -> Warning {
    Warning {
        trap,
        fatal: matches!(
            trap,
            Trap::NoInterface | Trap::NoHca | Trap::NoNetwork | Trap::Overrun | Trap::GidTable
        ),
        text,
    }
}

fn lists<'a>(
    settings: &'a Settings,
    snapshot: &'a Snapshot,
    candidates: &[Candidate<'a>],
    explained: &Explanation,
) -> Vec<List<'a>> {
    let mut lists = Vec::new();
    let version = explained.version;
    if let (Some(value), Some(patterns)) = (
        settings.get(IFNAME),
        Patterns::interfaces(settings.get(IFNAME), version),
    ) {
        let mut there: Vec<_> = candidates.iter().map(|c| (c.name, None)).collect();
        there.extend(snapshot.netdevs.iter().map(|n| (n.name.as_str(), None)));
        lists.push(List {
            variable: IFNAME,
            value,
            patterns,
            there,
            limit: MAX_INTERFACES,
        });
    }
    let is_socket = explained.network == Some(Network::Socket) && version.asks_by_name();
    if let Some(value) = settings.get(HCA).filter(|_| !is_socket) {
        let ports = |h: &'a rdma_model::snapshot::Hca| {
            let bare = h.ports.is_empty().then_some((h.name.as_str(), None));
            h.ports
                .iter()
                .map(|p| (h.name.as_str(), Some(p.number)))
                .chain(bare)
        };
        let (there, limit) = (
            snapshot.hcas.iter().flat_map(ports).collect(),
            version.max_hcas(),
        );
        lists.push(List {
            variable: HCA,
            value,
            patterns: Patterns::hcas(Some(value), version),
            there,
            limit,
        });
    }
    lists
}

fn bootstrap(
    settings: &Settings,
    candidates: &[Candidate],
    found: &Found,
    explained: &Explanation,
) -> Vec<Warning> {
    let mut out = Vec::new();
    let asked = settings.get(IFNAME).filter(|_| found.step == Step::Asked);
    match &explained.bootstrap {
        Bootstrap::Fails(failure) => out.push(warning(
            Trap::NoInterface,
            format!("NCCL does not start: {}", failure.why),
        )),
        Bootstrap::Uses(endpoint, Step::NotCommId) => {
            let text = format!(
                "NCCL 2.29 takes an interface outside of NCCL_COMM_ID's subnet: {}",
                endpoint.interface
            );
            out.push(warning(Trap::Value, text));
        }
        Bootstrap::Uses(endpoint, step) if endpoint.interface == "lo" => {
            let text = match (step, asked) {
                // What it excludes is no longer what NCCL excludes by itself, lo and docker.
                (Step::Asked, Some(list)) if list.starts_with('^') => {
                    format!(
                        "{IFNAME}={} takes lo for the bootstrap, which no other host reaches",
                        short(list)
                    )
                }
                _ => "the bootstrap uses lo, which other hosts cannot reach".to_owned(),
            };
            out.push(warning(Trap::Loopback, text));
        }
        Bootstrap::Uses(..) | Bootstrap::Unknown | Bootstrap::NotJudged => {}
    }
    if let (Some(_), Some(list)) = (settings.get("NCCL_COMM_ID"), asked) {
        out.push(warning(
            Trap::Overridden,
            format!(
                "NCCL_COMM_ID is set: {IFNAME}={} does not choose the bootstrap interface",
                short(list)
            ),
        ));
    }
    if let Some(value) = settings
        .get("NCCL_SOCKET_FAMILY")
        .filter(|v| Family::read(Some(v)).is_none())
    {
        let value = short(value);
        let text = format!(
            "NCCL_SOCKET_FAMILY={value} is neither AF_INET nor AF_INET6, so NCCL ignores it"
        );
        out.push(warning(Trap::Value, text));
    }
    passed_by(candidates, found, &mut out);
    if let Some((room, all)) = found
        .search
        .as_ref()
        .map(|s| (found.endpoints.len(), s.fitting(candidates)))
    {
        if all > room {
            out.push(warning(
                Trap::NoRoom,
                format!("{all} interfaces fit and NCCL's sockets have room for {room}"),
            ));
        }
    }
    out
}

fn passed_by(candidates: &[Candidate], found: &Found, out: &mut Vec<Warning>) {
    let Some(search) = found
        .search
        .as_ref()
        .filter(|s| s.step == Step::Asked && !s.patterns.exclude)
    else {
        return;
    };
    let mut warned: HashSet<&str> = HashSet::new();
    for c in candidates {
        let name = c.netdev.name.as_str();
        let meant = search.patterns.takes(c.name, None);
        let labelled = c.name != name && search.patterns.takes(name, None) && !meant;
        let text = match search.refusal(c) {
            Some(Refusal::NotRunning) if meant && c.netdev.up => {
                (Trap::NotRunning, format!("{name} has no carrier"))
            }
            Some(Refusal::NotRunning) if meant => (Trap::NotRunning, format!("{name} is down")),
            _ if labelled => (
                Trap::Label,
                format!("{} goes by its label {}", c.address.address, c.name),
            ),
            _ => continue,
        };
        if !warned.contains(name) {
            let why = match text.0 {
                Trap::Label => format!("{IFNAME} does not find it under the name {name}"),
                _ => "NCCL uses running interfaces only since 2.28.3".to_owned(),
            };
            out.push(warning(text.0, format!("{}: {why}", text.1)));
            warned.insert(name);
        }
    }
}

/// What is wrong with the text itself: of each kind one warning, since a value may be of any
/// length.
fn spelling(list: &List, out: &mut Vec<Warning>) {
    let List {
        variable,
        value,
        patterns,
        limit,
        ..
    } = list;
    let all = || patterns.entries.iter().chain(&patterns.dropped);
    if let Some(entry) = all().find(|e| e.name.starts_with(['^', '='])) {
        let name = shortened(&entry.name, 80);
        let text = format!(
            "{variable}={}: {name:?} is taken for a name; the order is ^ then =, once each, at \
            the very beginning",
            short(value)
        );
        out.push(warning(Trap::Marks, text));
    }
    if value.contains([' ', '\t', '\r', '"', '\'']) {
        let value = shortened(value, 80);
        let text = format!(
            "{variable}={value:?}: NCCL trims nothing, blanks and quotes belong to the names"
        );
        out.push(warning(Trap::Blanks, text));
    }
    if let Some(first) = patterns.dropped.first() {
        let count = patterns.entries.len() + patterns.dropped.len();
        let so = if patterns.exclude {
            ", so what they name is not excluded"
        } else {
            ""
        };
        let first = short(&first.name);
        let text = format!(
            "{variable} has {count} entries and NCCL reads {limit}: it drops {first} and what \
            follows{so}"
        );
        out.push(warning(Trap::TooMany, text));
    }
    if patterns.entries.is_empty() && !matches!(*value, "" | "=") {
        let what = if patterns.exclude {
            "excludes everything"
        } else {
            "has no entry, so it allows everything"
        };
        out.push(warning(
            Trap::Value,
            format!("{variable}={} {what}", short(value)),
        ));
    }
}

/// A line of NCCL's log has 1,024 bytes: host, process, thread and what the line says of a
/// variable's value take up to 120 of them.
const LOGGED: usize = 900;

/// What does not fit into NCCL's memory.
fn overruns(settings: &Settings, list: &List, version: Version, out: &mut Vec<Warning>) {
    let List {
        variable,
        value,
        patterns,
        ..
    } = list;
    if let Some(entry) = patterns
        .entries
        .iter()
        .chain(&patterns.dropped)
        .find(|e| e.overlong)
    {
        let text = format!(
            "{variable}: a name of more than 63 bytes does not fit ({})",
            short(&entry.name)
        );
        out.push(match version.splits_fields() {
            true => warning(Trap::Value, text),
            false => warning(
                Trap::Overrun,
                format!("{text}: NCCL {version} writes past its place, and may crash"),
            ),
        });
    }
    let logs = settings
        .get("NCCL_DEBUG")
        .is_some_and(|v| ["INFO", "TRACE"].iter().any(|l| v.eq_ignore_ascii_case(l)));
    if logs && !version.cuts_log() && value.len() > LOGGED {
        let text = format!(
            "{variable} has {} bytes and NCCL {version} logs it with NCCL_DEBUG: it writes past a \
            line, and may crash",
            value.len()
        );
        out.push(warning(Trap::Overrun, text));
    }
}

fn entries(list: &List, out: &mut Vec<Warning>) {
    let List {
        variable,
        patterns,
        there,
        ..
    } = list;
    let does = if patterns.exclude {
        "excludes"
    } else {
        "takes"
    };
    let mut missing: Vec<String> = Vec::new();
    for entry in &patterns.entries {
        let whole = there.iter().any(|(n, _)| *n == entry.name);
        let mut more: Vec<&str> = there
            .iter()
            .filter(|(n, port)| entry.fits_port(*port) && surprises(entry, n, whole, list))
            .map(|(n, _)| *n)
            .collect();
        more.sort_unstable();
        more.dedup();
        if !more.is_empty() {
            let text = format!(
                "{variable}: {} also {does} {}; {}={} is exact",
                short(&entry.name),
                few(&more),
                mark(patterns),
                short(&entry.name)
            );
            out.push(warning(Trap::Prefix, text));
        }
        let fits = there
            .iter()
            .any(|(name, port)| entry.matches(name, *port, patterns.exact));
        let port = entry.port.map_or(String::new(), |p| format!(":{p}"));
        let own = entry.name.strip_suffix(hca::DIRECT);
        if let Some(own) = own.filter(|own| !fits && there.iter().any(|(name, _)| name == own)) {
            let text = format!(
                "{variable} is compared with an HCA's own name: {own} in place of {}, which NCCL \
                makes of it since 2.27.3 (NCCL_IB_DATA_DIRECT)",
                entry.name
            );
            out.push(warning(Trap::Missing, text));
            continue;
        }
        // A list of interfaces often names those of several kinds of hosts, and whole lists without
        // a match are reported above.
        if *variable == HCA && !fits {
            missing.push(format!("{}{port}", short(&entry.name)));
        }
    }
    let mut seen = HashSet::new();
    let missing: Vec<&str> = missing
        .iter()
        .map(String::as_str)
        .filter(|name| seen.insert(*name))
        .collect();
    if !missing.is_empty() {
        out.push(warning(
            Trap::Missing,
            format!("{variable}: there is no {}", few(&missing)),
        ));
    }
}

/// For a sentence: in quotes where blanks at its ends would not be seen.
pub(crate) fn short(text: &str) -> Cow<'_, str> {
    let short = shortened(text, 80);
    match text.trim() == text {
        true => short,
        false => format!("{short:?}").into(),
    }
}

pub(crate) fn few(names: &[&str]) -> String {
    let shown: Vec<Cow<str>> = names.iter().take(8).map(|name| short(name)).collect();
    let rest = names.len() - shown.len();
    if rest == 0 {
        shown.join(", ")
    } else {
        format!("{} and {rest} more", shown.join(", "))
    }
}

fn mark(patterns: &Patterns) -> &'static str {
    if patterns.exclude { "^" } else { "" }
}

/// Whether an entry matches a name that its author hardly thought of: one that goes on where a
/// complete name, or a number, has ended. `whole`: the entry is such a name.
fn surprises(entry: &Entry, name: &str, whole: bool, list: &List) -> bool {
    let Some(rest) = name
        .strip_prefix(entry.name.as_str())
        .filter(|rest| !rest.is_empty())
    else {
        return false;
    };
    let numbered = entry.name.ends_with(|c: char| c.is_ascii_digit())
        && rest.starts_with(|c: char| c.is_ascii_digit());
    // A label is the interface's own.
    let own = rest.starts_with(':');
    let named = list.patterns.entries.iter().any(|e| e.name == name);
    !list.patterns.exact && (numbered || whole) && !own && !named
}
