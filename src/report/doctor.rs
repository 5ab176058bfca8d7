use comfy_table::{ColumnConstraint, Width};

use super::printable;
use super::tables::{bare, remarks};
use crate::doctor::{Checked, Diagnosis, Finding};
use crate::record::short_id;

/// A row for each finding: how bad, which check, and below one another what was seen, why it hurts
/// and the fix; then its commands, as they are pasted; then the counts.
pub fn diagnosis_table(d: &Diagnosis) -> String {
    let mut parts = Vec::new();
    if !d.findings.is_empty() {
        parts.push(
            d.findings
                .iter()
                .map(finding_text)
                .collect::<Vec<_>>()
                .join("\n"),
        );
    }
    if let Some(hint) = &d.hint {
        parts.push(remarks(vec![("hint".to_owned(), hint.clone())]));
    }
    if !d.not_checked.is_empty() {
        let names: Vec<String> = d.not_checked.iter().map(ToString::to_string).collect();
        parts.push(textwrapped(&format!(
            "not checked, as what they look at is not here: {}",
            names.join(", ")
        )));
    }
    let of = d.container.as_ref().map_or(String::new(), |id| {
        format!("container {}: ", printable(short_id(id)))
    });
    let Checked {
        checks,
        hcas,
        plans,
        records,
    } = d.checked;
    // A container's own NICs are away, and no others are its business.
    let away = d.container.as_ref().map_or(
        format!(", records of NICs that are away: {records}"),
        |_| String::new(),
    );
    let clean = if d.findings.is_empty() {
        "no known failure was found\n"
    } else {
        ""
    };
    parts.push(format!(
        "checks made: {checks}, over HCAs: {hcas}, plans: {plans}{away}\n\
         {clean}{of}breaks a job: {}, warnings: {}, unknown: {}",
        d.breaks, d.warnings, d.unknown
    ));
    parts.join("\n\n")
}

/// A command is made to be pasted: nothing before it, and never wrapped.
fn finding_text(f: &Finding) -> String {
    let mut table = bare();
    table.add_row(row(f));
    for (column, padding) in table.column_iter_mut().zip([2, 2, 0]) {
        column.set_padding((0, padding));
    }
    // Else comfy-table breaks the words of the narrow ones first; and each finding has a table of
    // its own.
    for (at, width) in [(0, 9), (1, 18)] {
        if let Some(column) = table.column_mut(at) {
            column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
        }
    }
    let commands = f.run.iter().map(|c| printable(c));
    std::iter::once(table.trim_fmt())
        .chain(commands)
        .collect::<Vec<_>>()
        .join("\n")
}

fn row(f: &Finding) -> Vec<String> {
    let fix = format!("→ {}", printable(&f.fix));
    let text = [printable(&f.seen), printable(&f.why), fix].join("\n");
    vec![f.severity.to_string(), f.check.to_string(), text]
}

fn textwrapped(text: &str) -> String {
    let mut table = bare();
    table.add_row(vec![text]);
    if let Some(column) = table.column_mut(0) {
        column.set_padding((0, 0));
    }
    table.trim_fmt()
}
