//! What the doctor found, for people.

use comfy_table::{ColumnConstraint, Width};

use super::printable;
use super::tables::bare;
use crate::doctor::{Diagnosis, Finding};

/// A row for each finding: how bad, which check, and below one another what was seen, why it hurts and the fix; then the counts.
pub fn diagnosis_table(d: &Diagnosis) -> String {
    let mut parts = Vec::new();
    if !d.findings.is_empty() {
        let mut table = bare();
        table.add_rows(d.findings.iter().map(row));
        for (column, padding) in table.column_iter_mut().zip([2, 2, 0]) {
            column.set_padding((0, padding));
        }
        // Else comfy-table breaks the words of the narrow ones first.
        for (at, width) in [(0, 9), (1, 18)] {
            if let Some(column) = table.column_mut(at) {
                column.set_constraint(ColumnConstraint::Absolute(Width::Fixed(width)));
            }
        }
        parts.push(table.trim_fmt());
    }
    if !d.not_checked.is_empty() {
        let names: Vec<String> = d.not_checked.iter().map(ToString::to_string).collect();
        parts.push(textwrapped(&format!("not checked, as they take a live machine: {}", names.join(", "))));
    }
    let of = d.container.as_ref().map_or(String::new(), |id| format!("container {}: ", printable(id)));
    parts.push(format!("{of}breaks a job: {}, warnings: {}, unknown: {}", d.breaks, d.warnings, d.unknown));
    parts.join("\n\n")
}

fn row(f: &Finding) -> Vec<String> {
    let fix = format!("→ {}", printable(&f.fix));
    let commands = f.run.iter().map(|c| format!("# {}", printable(c)));
    let told = [printable(&f.seen), printable(&f.why), fix].into_iter().chain(commands);
    vec![f.severity.to_string(), f.check.to_string(), told.collect::<Vec<_>>().join("\n")]
}

fn textwrapped(text: &str) -> String {
    let mut table = bare();
    table.add_row(vec![text]);
    if let Some(column) = table.column_mut(0) {
        column.set_padding((0, 0));
    }
    table.trim_fmt()
}
