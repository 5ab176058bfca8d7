use super::tables::{spaced, table};
use serde::Serialize;

use super::printable;

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
    let mut rows = Vec::new();
    for l in lines {
        rows.push(vec![
            printable(&l.device),
            spaced(&l.rails),
            spaced(&l.hcas),
            spaced(&l.nodes),
            printable(&l.now),
        ]);
    }
    let heads = ["device", "rails", "HCA:port", "nodes", "now"];
    table(&heads, rows, "no devices")
}
