//! Rails as a node shows them.

use rdmaprep_kubelet::rail::{Facts, Rail, Shown};

pub const POOL: &str = "rdmaprep.io/rail";

/// A RoCE NIC with all that is known of one.
pub fn rail(at: usize) -> Rail {
    let facts = Facts {
        place: at,
        number: Some(at),
        netdev: Some(format!("rdma{at}")),
        hca: Some(format!("mlx5_{at}")),
        port: Some(1),
        kind: Some("roce"),
        speed_gbps: Some(400),
        mtu: 4200,
        driver: Some("mlx5_core".to_owned()),
        model: Some((0x15b3, 0x1021)),
        firmware: Some("28.39.1002".to_owned()),
        pci: Some(format!("0000:{:02x}:00.0", 0x18 + at).parse().unwrap()),
        pcie_root: Some(format!("pci0000:{:02x}", 0x15 + at)),
        ..Facts::default()
    };
    let addresses = [
        format!("192.0.2.{at}/24"),
        format!("fe80::{at}/64"),
        format!("2001:db8::{at}/64"),
    ];
    Rail {
        name: format!("rdma{at}"),
        numa: Some(i64::from(at > 3)),
        speed_gbps: Some(400),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        facts,
        ..Rail::default()
    }
}

pub fn shown(rails: impl IntoIterator<Item = Rail>) -> Shown {
    vec![(POOL.to_owned(), rails.into_iter().collect())]
}
