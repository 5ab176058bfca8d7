use super::tables::{spaced, table};
use serde::Serialize;

use super::printable;

#[derive(Clone, Debug, Serialize)]
pub struct PlanLine {
    pub plan: String,
    pub nics: Vec<String>,
    /// InfiniBand HCAs without a netdev.
    pub ib: Vec<String>,
    /// Those that have its NICs now.
    pub containers: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct DeletedPlan {
    pub plan: String,
    pub deleted: bool,
    /// Those that have its NICs now, and keep them.
    pub containers: Vec<String>,
}

pub fn plan_table(lines: &[PlanLine]) -> String {
    let mut rows = Vec::new();
    for l in lines {
        rows.push(vec![
            printable(&l.plan),
            spaced(&[&l.nics[..], &l.ib].concat()),
            spaced(&l.containers),
        ]);
    }
    table(&["plan", "NICs", "containers"], rows, "no plan is stored")
}

pub fn deleted_plans(all: &[DeletedPlan]) -> String {
    let mut lines = Vec::new();
    for d in all {
        let done = if d.deleted {
            "deleted"
        } else {
            "would be deleted"
        };
        let kept = match d.containers.is_empty() {
            true => String::new(),
            false => format!(
                "; {} keeps its NICs until it stops",
                d.containers.join(", ")
            ),
        };
        lines.push(printable(&format!("plan {}: {done}{kept}", d.plan)));
    }
    lines.join("\n")
}
