use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Table};
use rdma_model::snapshot::{Gid, GidKind, Hca, Netdev, Port, RdmaMode, Snapshot};

use super::{printable, printable_lines, width};
use crate::install::Paste;
use crate::select::{Drop, DropCode, LeftOut, Selection, Verdict};

/// Names that a list shows before it counts the others.
const MAX_NAMES: usize = 8;

/// Addresses, or GIDs, that a cell shows.
const MAX_LINES: usize = 4;

pub fn snapshot_table(snapshot: &Snapshot) -> String {
    let hcas = snapshot
        .hcas
        .iter()
        .flat_map(|hca| hca_rows(snapshot, hca))
        .collect();
    let netdevs = snapshot.netdevs.iter().map(netdev_row).collect();
    let mut facts = vec![("PCI", pci_counts(snapshot)), ("GPUs", gpus(snapshot))];
    facts.extend(snapshot.rdma_mode.map(|mode| match mode {
        RdmaMode::Shared => (
            "RDMA",
            "devices are shared by all network namespaces".to_owned(),
        ),
        RdmaMode::Exclusive => (
            "RDMA",
            "each device belongs to one network namespace".to_owned(),
        ),
    }));
    facts.extend(snapshot.lacks_rdma_driver().map(|hint| ("hint", hint)));
    let conflicts = snapshot
        .hcas
        .iter()
        .flat_map(|h| h.conflicts.iter().map(move |c| format!("{}: {c}", h.name)));
    let warnings = counted(conflicts.chain(snapshot.warnings.iter().cloned()));
    facts.extend(warnings.into_iter().map(|w| ("warning", w)));
    let facts = facts
        .into_iter()
        .map(|(label, text)| (label.to_owned(), text))
        .collect();
    let hca_header = [
        "HCA:port",
        "state",
        "layer",
        "rate",
        "netdev",
        "RoCE v2 GIDs",
        "PCI",
        "NUMA",
        "verbs",
    ];
    let netdev_header = [
        "netdev",
        "link",
        "MTU",
        "addresses",
        "PCI",
        "driver",
        "master",
    ];
    [
        table(&hca_header, hcas, "no RDMA devices"),
        table(&netdev_header, netdevs, "no network devices"),
        remarks(facts),
    ]
    .join("\n\n")
}

/// Sentences that differ in their first word alone, the name of a device, become one.
fn counted(sentences: impl Iterator<Item = String>) -> Vec<String> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for sentence in sentences {
        let (name, what) = sentence.split_once(' ').unwrap_or(("", &sentence));
        match groups.iter_mut().find(|(known, _)| known == what) {
            Some((_, others)) => others.push(name.trim_end_matches(':').to_owned()),
            None => groups.push((what.to_owned(), vec![name.to_owned()])),
        }
    }
    let mut all = Vec::new();
    for (what, devices) in groups {
        let (first, others) = (&devices[0], &devices[1..]);
        all.push(match others.len() {
            0 => format!("{first} {what}").trim_start().to_owned(),
            more => format!("{first} {what}, and {more} others: {}", names(others)),
        });
    }
    all
}

pub fn selection_table(selection: &Selection) -> String {
    let (plain, shown): (Vec<&Verdict>, Vec<&Verdict>) = selection.verdicts.iter().partition(|v| {
        let code = v.dropped.as_ref().map(|d| d.code);
        v.hca.is_none() && code == Some(DropCode::NotRdma)
    });
    let rows = shown.iter().map(|v| verdict_row(v)).collect();
    let table = table(
        &["netdev", "HCA:port", "GID", "PCI", "NUMA", "verdict"],
        rows,
        "no RDMA NICs",
    );
    let mut lines = reasons(&shown);
    let plain: Vec<String> = plain.into_iter().map(label).collect();
    if !plain.is_empty() {
        lines.push((
            code(DropCode::NotRdma),
            format!("{}: no RDMA device behind", names(&plain)),
        ));
    }
    for v in shown.iter().filter(|v| v.dropped.is_none()) {
        lines.extend(
            v.note
                .iter()
                .map(|note| ("note".to_owned(), format!("{}: {note}", label(v)))),
        );
    }
    if lines.is_empty() {
        table
    } else {
        format!("{table}\n\n{}", remarks(lines))
    }
}

/// A labelled text of `status`, in a column of its own.
pub(super) fn wrapped(label: &str, text: &str) -> String {
    const COLUMN: u16 = 14;
    let mut line = bare();
    let label = format!("  {label}");
    let gap = COLUMN.saturating_sub(u16::try_from(label.len()).unwrap_or(COLUMN));
    line.add_row(vec![label, printable(text)]);
    for (column, padding) in line.column_iter_mut().zip([gap, 0]) {
        column.set_padding((0, padding));
    }
    line.trim_fmt()
}

/// An error as a person reads it: one line; under it the reasons of [`LeftOut`], or what to
/// [`Paste`].
pub fn error_text(error: &anyhow::Error) -> String {
    if let Some(Paste(lines)) = error.downcast_ref() {
        let causes = error.chain().filter(|cause| !cause.is::<Paste>());
        let causes: Vec<String> = causes.map(ToString::to_string).collect();
        let lines = printable_lines(lines);
        return format!("{}:\n\n{}", printable(&causes.join(": ")), lines.trim_end());
    }
    match error.downcast_ref::<LeftOut>() {
        Some(LeftOut(verdicts)) if !verdicts.is_empty() => {
            let causes = error
                .chain()
                .filter(|cause| !cause.is::<LeftOut>())
                .map(ToString::to_string);
            let heading = printable(&causes.collect::<Vec<_>>().join(": "));
            format!(
                "{heading}:\n{}",
                remarks(reasons(&verdicts.iter().collect::<Vec<_>>()))
            )
        }
        _ => printable(&format!("{error:#}")),
    }
}

fn hca_rows(snapshot: &Snapshot, hca: &Hca) -> Vec<Vec<String>> {
    let verbs = hca.uverbs.as_ref().map(|u| u.name.clone());
    let mut ports: Vec<Option<&Port>> = hca.ports.iter().map(Some).collect();
    if ports.is_empty() {
        ports.push(None);
    }
    let mut rows = Vec::new();
    for port in ports {
        let name = match port {
            Some(port) => format!("{}:{}", hca.name, port.number),
            None => hca.name.to_string(),
        };
        let rate = port
            .and_then(|p| p.rate.as_deref())
            .and_then(|r| r.split(" (").next());
        let rate = rate.map(|r| r.replace(" Gb/sec", "G"));
        rows.push(vec![
            name,
            cell(port.and_then(|p| p.state.clone())),
            cell(port.and_then(|p| p.link_layer.clone())),
            cell(rate),
            cell(
                port.and_then(|p| p.netdev.clone())
                    .or_else(|| Some(snapshot.netdev_beside(hca)?.name.clone())),
            ),
            lines(
                port.iter()
                    .flat_map(|p| &p.gids)
                    .filter(|g| usable(g))
                    .map(gid),
            ),
            cell(hca.pci),
            cell(hca.numa),
            cell(verbs.clone()),
        ]);
    }
    rows
}

/// RoCE v2 of an address that routes; link-local ones are of no use across a fabric.
fn usable(gid: &Gid) -> bool {
    gid.kind == Some(GidKind::RoceV2) && !gid.address.is_unicast_link_local()
}

fn gid(gid: &Gid) -> String {
    format!("{} {}", gid.index, gid.ip())
}

fn netdev_row(netdev: &Netdev) -> Vec<String> {
    let link = match (netdev.up, netdev.running) {
        (true, true) => "up",
        (true, false) => "no carrier",
        // A capture without its files.
        (false, _) if netdev.operstate.is_none() && netdev.mtu == 0 => "unknown",
        (false, _) => "down",
    };
    vec![
        netdev.name.to_string(),
        link.to_owned(),
        if netdev.mtu == 0 {
            "-".to_owned()
        } else {
            netdev.mtu.to_string()
        },
        lines(
            netdev
                .addresses
                .iter()
                .map(|a| format!("{}/{}", a.address, a.prefix)),
        ),
        cell(netdev.pci),
        cell(netdev.driver.as_ref().or(netdev.kind.as_ref())),
        cell(netdev.master.as_ref()),
    ]
}

fn pci_counts(snapshot: &Snapshot) -> String {
    let bridges = snapshot.pci.iter().filter(|f| f.is_bridge()).count();
    format!("functions: {}, bridges: {bridges}", snapshot.pci.len())
}

fn gpus(snapshot: &Snapshot) -> String {
    let gpus: Vec<String> = snapshot
        .gpus()
        .map(|g| match g.numa {
            Some(numa) if numa >= 0 => format!("{} (NUMA {numa})", g.address),
            _ => g.address.to_string(),
        })
        .collect();
    if gpus.is_empty() {
        "none".to_owned()
    } else {
        format!("{}: {}", gpus.len(), gpus.join(", "))
    }
}

fn verdict_row(v: &Verdict) -> Vec<String> {
    let hca = v.hca.as_ref().map(|h| match v.port {
        Some(port) => format!("{h}:{port}"),
        None => h.to_string(),
    });
    let verdict = v
        .dropped
        .as_ref()
        .map_or("kept".to_owned(), |d| code(d.code));
    vec![
        cell(v.netdev.as_ref()),
        cell(hca),
        cell(v.gid.as_ref().map(gid)),
        cell(v.pci),
        cell(v.numa),
        verdict,
    ]
}

/// One remark per reason; NICs that share one share the line.
fn reasons(shown: &[&Verdict]) -> Vec<(String, String)> {
    let mut groups: Vec<(&Drop, Vec<String>)> = Vec::new();
    for v in shown {
        let Some(drop) = &v.dropped else { continue };
        match groups.iter_mut().find(|(d, _)| *d == drop) {
            Some((_, members)) => members.push(label(v)),
            None => groups.push((drop, vec![label(v)])),
        }
    }
    let mut lines = Vec::new();
    for (drop, members) in groups {
        let text = format!("{}: {}", names(&members), drop.sentence());
        lines.push((code(drop.code), text));
    }
    lines
}

fn label(v: &Verdict) -> String {
    match (&v.netdev, &v.hca) {
        (Some(netdev), _) => netdev.to_string(),
        (None, Some(hca)) => hca.to_string(),
        (None, None) => "-".to_owned(),
    }
}

fn code(code: DropCode) -> String {
    serde_json::to_value(code)
        .ok()
        .and_then(|v| v.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn names(names: &[String]) -> String {
    let shown = names
        .iter()
        .take(MAX_NAMES)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MAX_NAMES {
        format!("{shown} + {} more", names.len() - MAX_NAMES)
    } else {
        shown
    }
}

pub(super) fn spaced(words: &[String]) -> String {
    cell((!words.is_empty()).then(|| words.join(" ")))
}

fn cell(value: Option<impl ToString>) -> String {
    value.map_or("-".to_owned(), |v| printable(&v.to_string()))
}

/// Items one below the other, of types that print no controls.
fn lines(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    let mut text = items
        .iter()
        .take(MAX_LINES)
        .cloned()
        .collect::<Vec<_>>()
        .join(
            "
",
        );
    if items.len() > MAX_LINES {
        text.push_str(&format!(
            "
+ {} more",
            items.len() - MAX_LINES
        ));
    }
    if text.is_empty() {
        "-".to_owned()
    } else {
        text
    }
}

/// A table under a header, or a word where it would be empty. What is short by its type is never
/// broken.
pub(super) fn table(header: &[&str], rows: Vec<Vec<String>>, empty: &str) -> String {
    if rows.is_empty() {
        return empty.to_owned();
    }
    let mut table = bare();
    table.set_header(header);
    table.add_rows(rows);
    for (column, name) in table.column_iter_mut().zip(header) {
        column.set_padding((0, if Some(name) == header.last() { 0 } else { 2 }));
        if matches!(
            *name,
            "netdev" | "link" | "MTU" | "PCI" | "NUMA" | "verdict" | "interface"
        ) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.trim_fmt()
}

/// Labelled sentences with a hanging indent. Labels are ours, and never broken: people search for
/// the names of settings.
pub(super) fn remarks(rows: Vec<(String, String)>) -> String {
    let mut table = bare();
    table.add_rows(
        rows.iter()
            .map(|(label, text)| vec![printable(label), printable(text)]),
    );
    if let Some(column) = table.column_mut(0) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    for c in table.column_iter_mut() {
        c.set_padding((0, 2));
    }
    table.trim_fmt()
}

pub(super) fn bare() -> Table {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width());
    table
}
