use serde::Serialize;

use super::printable;
use super::tables::table;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceLine {
    /// Its name behind `rdmaprep.io/rail=`.
    pub device: String,
    pub rails: Vec<String>,
    pub hcas: Vec<String>,
    /// Device nodes, by their names below /dev/infiniband.
    pub nodes: Vec<String>,
    pub now: String,
}

pub fn device_table(lines: &[DeviceLine]) -> String {
    let list = |words: &[String]| {
        if words.is_empty() {
            "-".to_owned()
        } else {
            printable(&words.join(" "))
        }
    };
    let row = |l: &DeviceLine| {
        vec![
            printable(&l.device),
            list(&l.rails),
            list(&l.hcas),
            list(&l.nodes),
            printable(&l.now),
        ]
    };
    table(
        &["device", "rails", "HCA:port", "nodes", "now"],
        lines.iter().map(row).collect(),
        "no devices",
    )
}
