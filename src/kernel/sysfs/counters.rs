//! What a port of an HCA has counted. Nothing else reads these files: on some NICs that makes the
//! firmware act.

use std::collections::BTreeMap;

use rdma_model::ids::HcaName;

use super::Survey;
use super::dir::Dir;

/// A setting among the counters: for how many milliseconds the driver gives old numbers.
const LIFESPAN: &str = "lifespan";

/// A port as its files are now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortCounters {
    /// In capitals, as [`rdma_model::snapshot::Port::state`].
    pub state: Option<String>,
    pub gigabits: Option<f64>,
    /// By the names of the InfiniBand specification; absent where this /sys has none.
    pub counters: Option<BTreeMap<String, u64>>,
    /// By the driver's names.
    pub hw_counters: Option<BTreeMap<String, u64>>,
}

impl PortCounters {
    pub fn has_any(&self) -> bool {
        self.counters.is_some() || self.hw_counters.is_some()
    }
}

impl Survey {
    /// Nothing where there is no such port. In the /sys of a network namespace that shares its HCAs
    /// with others, a port has no counters: the first namespace's has them
    /// (ib_setup_port_attrs() in drivers/infiniband/core/sysfs.c).
    pub fn port_counters(&self, hca: &HcaName, port: u32) -> Option<PortCounters> {
        let dir = self
            .0
            .dir(&format!("class/infiniband/{hca}/ports/{port}"))?;
        let state = dir.attr("state");
        let state = state.and_then(|text| Some(text.rsplit(':').next()?.trim().to_owned()));
        let rate = dir.attr("rate");
        Some(PortCounters {
            state,
            gigabits: rate.and_then(|rate| rate.split_once(" Gb/sec")?.0.parse().ok()),
            counters: dir.sub("counters").as_ref().map(numbers),
            hw_counters: dir.sub("hw_counters").as_ref().map(numbers),
        })
    }
}

/// Those of a folder. What a driver does not have reads as an error, or as "N/A (no PMA)".
fn numbers(dir: &Dir) -> BTreeMap<String, u64> {
    let names = dir.names().into_iter().filter(|name| name != LIFESPAN);
    let files = names.filter_map(|name| Some((dir.parse(&name)?, name)));
    files.map(|(value, name)| (name, value)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn counters_are_the_numbers_of_both_folders() {
        let root = tempfile::tempdir().unwrap();
        let port = root.path().join("class/infiniband/mlx5_0/ports/1");
        for (name, text) in [
            ("state", "4: ACTIVE\n"),
            ("rate", "400 Gb/sec (4X NDR)\n"),
            ("counters/port_xmit_data", "12\n"),
            ("counters/VL15_dropped", "N/A (no PMA)\n"),
            ("hw_counters/out_of_sequence", "18446744073709551615\n"),
            ("hw_counters/lifespan", "10\n"),
        ] {
            let path = port.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let survey = Survey::open(root.path()).unwrap();
        let hca = "mlx5_0".parse().unwrap();
        let read = survey.port_counters(&hca, 1).unwrap();
        assert_eq!(read.state.as_deref(), Some("ACTIVE"));
        assert_eq!(read.gigabits, Some(400.0));
        let counters = BTreeMap::from([("port_xmit_data".to_owned(), 12)]);
        assert_eq!(read.counters, Some(counters));
        let hw = BTreeMap::from([("out_of_sequence".to_owned(), u64::MAX)]);
        assert_eq!(read.hw_counters, Some(hw));
        assert_eq!(survey.port_counters(&hca, 2), None);
    }
}
