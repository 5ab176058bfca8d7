use serde::Serialize;

use super::printable;
use super::tables::table;

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
    let list = |words: &[String]| {
        if words.is_empty() {
            "-".to_owned()
        } else {
            printable(&words.join(" "))
        }
    };
    let row = |l: &PlanLine| {
        vec![
            printable(&l.plan),
            list(&[&l.nics[..], &l.ib].concat()),
            list(&l.containers),
        ]
    };
    table(
        &["plan", "NICs", "containers"],
        lines.iter().map(row).collect(),
        "no plan is stored",
    )
}

pub fn deleted_plans(all: &[DeletedPlan]) -> String {
    let line = |d: &DeletedPlan| {
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
        printable(&format!("plan {}: {done}{kept}", d.plan))
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}
