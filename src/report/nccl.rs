//! What NCCL does, for people.

use nccl_rules::bootstrap::{Call, Outcome, Tried, Wait};
use nccl_rules::explain::{
    Bootstrap, Explanation, Failure, Judged, Network, PortGid, Ring, Trap, UNKNOWN,
};

use rdma_model::escape::shortened;
use rdma_model::snapshot::GidKind;

use super::printable;
use super::tables::{remarks, table};

/// Characters of a setting that are shown: a table takes time to break a long word. With --json it
/// is whole.
const VALUE: usize = 200;

/// The outcome, then every interface and HCA port with its reason, then what is probably not meant.
pub fn explanation_table(e: &Explanation) -> String {
    let line = |label: &str, text: String| (label.to_owned(), text);
    let assumed = if e.assumed {
        ", assumed: --nccl-version names another"
    } else {
        ""
    };
    let mut head = vec![line("NCCL", format!("{}{assumed}", e.version))];
    for s in &e.settings {
        let value = shortened(&s.value, VALUE);
        head.push(line(s.name, format!("{value:?} ({})", s.place)));
    }
    head.push(line("bootstrap", bootstrap(&e.bootstrap)));
    head.extend(e.ring.iter().map(|ring| {
        let text = match ring {
            Ring::Uses(device) => format!("{device} (NCCL_OOB_NET_ENABLE)"),
            Ring::Fails(why) => format!("fails: {why}"),
            Ring::Unknown(why) => format!("unknown: {why}"),
        };
        line("ranks meet by", printable(&text))
    }));
    let is_unknown = matches!(e.bootstrap, Bootstrap::Unknown | Bootstrap::NotJudged);
    let sockets: Vec<String> = e.sockets.iter().map(|s| s.interface.clone()).collect();
    let none = if is_unknown {
        "unknown"
    } else {
        "no interface"
    };
    let by_tcp = other_network(e, Network::Socket).unwrap_or_else(|| listed(&sockets, none));
    head.push(line("data by TCP", by_tcp));
    // A plugin's network, or ports whose state is not known.
    let is_open = e.ports.iter().any(|port| port.why.starts_with(UNKNOWN));
    let none = if is_open { "unknown" } else { "none" };
    let by_hca = other_network(e, Network::Ib).unwrap_or_else(|| listed(&e.hcas, none));
    head.push(line("data by HCA", by_hca));
    head.extend(e.plugin.iter().map(|plugin| {
        let plugin = printable(&shortened(plugin, VALUE));
        let text = match &e.network {
            Some(_) => format!("{plugin}: which HCAs it takes is its own choice"),
            None => format!(
                "{plugin}: NCCL asks it first, and which HCAs it takes is its own choice; without \
                it the above"
            ),
        };
        line("plugin", text)
    }));
    let by = match e.version.merges_ports() {
        true => "NCCL_IB_MERGE_NICS",
        false if e.settings.iter().any(|s| s.name == "NCCL_NET_FORCE_MERGE") => {
            "NCCL_NET_FORCE_MERGE, NCCL_NET_MERGE_LEVEL"
        }
        false => "NCCL_NET_MERGE_LEVEL",
    };
    head.extend(
        e.merged
            .iter()
            .map(|ports| line("one device", format!("{} ({by})", ports.join(" and ")))),
    );
    let interfaces = table(
        &["interface", "verdict", "why"],
        rows(&e.interfaces, "bootstrap"),
        "no interfaces",
    );
    let mut parts = vec![remarks(head), interfaces];
    if !e.ports.is_empty() {
        parts.push(table(
            &["HCA:port", "verdict", "why"],
            rows(&e.ports, if starts(e) { "taken" } else { "fits" }),
            "no HCAs",
        ));
    }
    if !e.gids.is_empty() {
        parts.push(table(
            &["HCA:port", "GID", "address", "type", "chosen by"],
            e.gids.iter().map(gid_row).collect(),
            "no GIDs",
        ));
    }
    if !e.warnings.is_empty() {
        parts.push(remarks(
            e.warnings
                .iter()
                .map(|w| line(if w.fatal { "fatal" } else { "warning" }, w.text.clone()))
                .collect(),
        ));
    }
    if let Some(hint) = &e.hint {
        parts.push(remarks(vec![line("hint", hint.clone())]));
    }
    parts.join("\n\n")
}

fn bootstrap(outcome: &Bootstrap) -> String {
    match outcome {
        Bootstrap::Uses(endpoint, step) => {
            let scope = endpoint
                .scope
                .as_ref()
                .map_or(String::new(), |scope| format!("%{}", scope.as_str()));
            format!(
                "{} {}{scope} ({})",
                endpoint.interface,
                endpoint.address,
                step.why()
            )
        }
        Bootstrap::Unknown => "unknown: this snapshot has no addresses".to_owned(),
        Bootstrap::NotJudged => "not judged".to_owned(),
        Bootstrap::Fails(Failure {
            error: Some(error),
            message,
            why,
        }) => {
            format!(
                "fails with {error}, \"{}\": {why}",
                message.unwrap_or_default()
            )
        }
        Bootstrap::Fails(Failure { why, .. }) => format!("a matter of chance: {why}"),
    }
}

/// Whether NCCL gets as far as its data.
fn starts(e: &Explanation) -> bool {
    let ends = |t| matches!(t, Trap::NoNetwork | Trap::NoRing | Trap::Merge);
    !e.warnings.iter().any(|w| ends(w.trap))
}

/// What stands for the data of NCCL's `own` network where NCCL_NET names another.
fn other_network(e: &Explanation, own: Network) -> Option<String> {
    if !starts(e) {
        return Some("none: NCCL does not start".to_owned());
    }
    let text = match e.network.as_ref()? {
        named if *named == own => return None,
        Network::Ib => "none: NCCL_NET=IB uses HCAs alone".to_owned(),
        Network::Socket => "none: NCCL_NET=Socket uses TCP alone".to_owned(),
        Network::Nothing => return None,
        Network::Other(name) => {
            let name = printable(&shortened(name, VALUE));
            format!("unknown: the network {name} chooses (NCCL_NET)")
        }
    };
    Some(text)
}

fn listed(names: &[String], none: &str) -> String {
    if names.is_empty() {
        none.to_owned()
    } else {
        names.join(", ")
    }
}

fn rows(judged: &[Judged], taken: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for j in judged {
        let verdict = match j.taken {
            true => taken,
            false if j.why.starts_with(UNKNOWN) => "unknown",
            false => "no",
        };
        let why = printable(j.why.strip_prefix(UNKNOWN).unwrap_or(&j.why));
        rows.push(vec![printable(&j.name), verdict.to_owned(), why]);
    }
    rows
}

fn gid_row(of: &PortGid) -> Vec<String> {
    let gid = of.gid.as_ref();
    let index = of
        .index
        .map_or("none".to_owned(), |index| index.to_string());
    let address = match (gid, of.index) {
        (Some(gid), _) => gid.ip().to_string(),
        (None, Some(_)) => "unused".to_owned(),
        (None, None) => "-".to_owned(),
    };
    let kind = match gid.and_then(|g| g.kind) {
        Some(GidKind::RoceV2) => "RoCE v2",
        Some(GidKind::IbRoceV1) => "IB/RoCE v1",
        None => "-",
    };
    vec![
        printable(&of.port),
        index,
        address,
        kind.to_owned(),
        of.why.clone(),
    ]
}

pub fn call(call: &Call) -> String {
    let from = match call.from {
        Some(from) => format!("{from} ({})", listed(&call.over, "no interface owns it")),
        None => "nowhere: the kernel knows no way there".to_owned(),
    };
    remarks(vec![
        ("NCCL".to_owned(), call.version.label()),
        ("bootstrap".to_owned(), bootstrap(&call.bootstrap)),
        ("leaves from".to_owned(), from),
        ("retries".to_owned(), call.rules.to_string()),
    ])
}

pub fn tried(tried: &Tried) -> String {
    let text = match &tried.outcome {
        Outcome::Reached {
            seen_as: Some(from),
        } => format!("reached; the other node is called from {from}"),
        Outcome::Reached { seen_as: None } => "reached".to_owned(),
        Outcome::Failed { trouble, .. } => trouble.meaning().to_owned(),
    };
    remarks(vec![(tried.call.to.to_string(), text)])
}

pub fn wait(wait: &Wait) -> String {
    remarks(vec![
        ("bootstrap".to_owned(), bootstrap(&wait.bootstrap)),
        ("listening".to_owned(), wait.at.to_string()),
        (
            "elsewhere".to_owned(),
            format!("rdmaprep nccl test-bootstrap {}", wait.at),
        ),
    ])
}
