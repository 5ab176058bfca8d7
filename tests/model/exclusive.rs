//! RDMA devices that belong to one namespace each: what of them moves, which nodes they get, what
//! is refused; and the wait for their GIDs. The moves themselves: tests/model/roundtrip on a small
//! kernel, tests/vm/exclusive on a real one.

use rdma_model::nic::{Identity, Nic};
use rdma_model::values::GidTimeout;
use std::io::Write;
use std::process::{Command, Output};

use rdma_model::ids::HcaName;
use rdma_model::snapshot::{CharDevice, Hca, Netdev, Port, RdmaMode, Snapshot};
use rdma_model::step::{Side, Step};
use rdmaprep::plan::rdma_mode;

fn node(number: u32) -> CharDevice {
    CharDevice {
        name: format!("uverbs{number}"),
        major: 231,
        minor: 192 + number,
    }
}

/// An HCA of hardware with a port for each netdev.
fn hca(name: &str, number: u32, netdevs: &[&str]) -> Hca {
    let ports = netdevs.iter().zip(1..).map(|(dev, number)| Port {
        number,
        state: Some("ACTIVE".into()),
        link_layer: Some("Ethernet".into()),
        rate: None,
        netdev: Some(dev.parse().unwrap()),
        gids: Vec::new(),
        gid_table: None,
    });
    let json = serde_json::json!({ "name": name, "ports": [], "driver": "mlx5_core" });
    let bare: Hca = serde_json::from_value(json).unwrap();
    Hca {
        uverbs: Some(node(number)),
        ports: ports.collect(),
        ..bare
    }
}

fn rxe(name: &str, number: u32, netdev: &str) -> Hca {
    Hca {
        driver: Some("rxe".into()),
        ..hca(name, number, &[netdev])
    }
}

fn nic(netdev: &str, hca: &Hca) -> Nic {
    let name = netdev.parse().unwrap();
    let identity = Identity {
        name,
        ifindex: 7,
        pci: None,
        permanent_mac: None,
        node_guid: None,
    };
    let json = serde_json::json!({
        "identity": identity, "hca": hca.name, "port": 1, "ports": hca.ports.len(),
        "rxe": hca.is_rxe(),
        "gid": null, "numa": null, "uverbs": hca.uverbs, "addresses": []
    });
    serde_json::from_value(json).unwrap()
}

fn host(mode: RdmaMode, hcas: &[Hca]) -> Snapshot {
    Snapshot {
        rdma_mode: Some(mode),
        hcas: hcas.to_vec(),
        ..Snapshot::default()
    }
}

/// What nodes the first devices of a host get when they move, in the order of their names.
fn foretold(host: &Snapshot, moving: usize) -> Vec<String> {
    let nics: Vec<Nic> = host.hcas[..moving]
        .iter()
        .map(|h| nic(h.ports[0].netdev.as_ref().unwrap().as_str(), h))
        .collect();
    rdma_mode::nodes_inside(&nics, &[], host)
        .into_iter()
        .map(|(hca, node)| format!("{hca} {}", node.name))
        .collect()
}

#[test]
fn each_move_takes_the_lowest_free_node() {
    let hcas = [
        hca("mlx5_0", 1, &["a"]),
        hca("mlx5_1", 3, &["b"]),
        hca("mlx5_2", 2, &["c"]),
    ];
    let mut host = host(RdmaMode::Exclusive, &hcas);
    assert_eq!(foretold(&host, 2), ["mlx5_0 uverbs0", "mlx5_1 uverbs1"]);
    // A device of another namespace has the free one.
    host.verbs_elsewhere = vec![0];
    assert_eq!(foretold(&host, 2), ["mlx5_0 uverbs1", "mlx5_1 uverbs3"]);
    host.rdma_mode = Some(RdmaMode::Shared);
    assert_eq!(foretold(&host, 2), [""; 0]);
}

#[test]
fn soft_roce_is_made_again_before_anything_moves() {
    let hcas = [rxe("rxe0", 2, "a"), hca("mlx5_0", 1, &["b"])];
    // It takes the gap at 0 then, and the other one finds none.
    assert_eq!(
        foretold(&host(RdmaMode::Exclusive, &hcas), 2),
        ["mlx5_0 uverbs1", "rxe0 uverbs0"]
    );
    assert_eq!(
        foretold(&host(RdmaMode::Shared, &hcas), 2),
        ["rxe0 uverbs0"]
    );
}

#[test]
fn a_device_moves_with_all_its_ports() {
    let dual = hca("mlx5_0", 0, &["a", "b"]);
    let (one, both) = (
        vec![nic("a", &dual)],
        vec![nic("a", &dual), nic("b", &dual)],
    );
    let shared = host(RdmaMode::Shared, std::slice::from_ref(&dual));
    let host = host(RdmaMode::Exclusive, &[dual]);
    let said = rdma_mode::check(&one, &[], &host).unwrap_err().to_string();
    assert!(
        said.contains("b of its port 2 is not taken")
            && said.contains("rdma system set netns shared"),
        "{said}"
    );
    rdma_mode::check(&both, &[], &host).unwrap();
    rdma_mode::check(&one, &[], &shared).unwrap();
}

#[test]
fn what_sits_on_infiniband_is_not_deleted_unasked() {
    let pci: rdma_model::ids::BusId = "0000:0c:00.0".parse().unwrap();
    let mut ib = hca("mlx5_0", 0, &[]);
    ib.pci = Some(pci);
    let name: HcaName = ib.name.clone();
    let json = serde_json::json!({ "name": "ib0", "ifindex": 9, "link_type": 32 });
    let ipoib = Netdev {
        pci: Some(pci),
        ..serde_json::from_value(json).unwrap()
    };
    let mut host = host(RdmaMode::Exclusive, &[ib]);
    rdma_mode::check(&[], std::slice::from_ref(&name), &host).unwrap();
    host.netdevs.push(ipoib);
    let said = rdma_mode::check(&[], &[name], &host)
        .unwrap_err()
        .to_string();
    assert!(said.contains("the kernel would delete ib0"), "{said}");
}

#[test]
fn infiniband_that_the_host_has_storage_over_stays() {
    let ib = hca("mlx5_0", 0, &[]);
    let name: HcaName = ib.name.clone();
    let json =
        serde_json::json!({ "paths": [], "rdma": [{ "hca": "mlx5_0", "user": "ko2iblnd" }] });
    let paths = serde_json::from_value(json).unwrap();
    let host = Snapshot {
        paths: Some(paths),
        ..host(RdmaMode::Exclusive, &[ib])
    };
    let said = rdma_mode::check(&[], std::slice::from_ref(&name), &host)
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("ko2iblnd of this host uses it") && said.contains("system set netns shared"),
        "{said}"
    );
    let shared = Snapshot {
        rdma_mode: Some(RdmaMode::Shared),
        ..host
    };
    rdma_mode::check(&[], &[name], &shared).unwrap();
}

#[test]
fn only_moved_nics_are_restored() {
    let all = [
        hca("mlx5_0", 3, &["a"]),
        hca("mlx5_1", 1, &["b"]),
        hca("mlx5_2", 2, &["c"]),
        rxe("rxe0", 0, "d"),
    ];
    let names: Vec<HcaName> = all
        .iter()
        .map(|h| h.name.clone())
        .chain([all[0].name.clone()])
        .collect();
    let (outside, inside) = (
        host(RdmaMode::Exclusive, &all[2..3]),
        host(RdmaMode::Exclusive, &all),
    );
    let home = rdma_mode::restore_hcas(names.iter(), &outside, Some(&inside));
    let moves = home.iter().map(|s| match s {
        Step::RdmaMove {
            from: Side::Inside,
            hca,
            uverbs: None,
        } => hca.to_string(),
        other => panic!("{other}"),
    });
    // In the order of their nodes; soft-RoCE is deleted instead.
    assert_eq!(moves.collect::<Vec<_>>(), ["mlx5_1", "mlx5_0"]);
    assert_eq!(rdma_mode::restore_hcas(names.iter(), &outside, None), []);
    let shared = host(RdmaMode::Shared, &all);
    assert_eq!(
        rdma_mode::restore_hcas(names.iter(), &shared, Some(&shared)),
        []
    );
    assert_eq!(
        rdma_mode::missing_everywhere(&names[..3], &outside, None),
        [&names[0], &names[1]]
    );
    assert_eq!(
        rdma_mode::missing_everywhere(&names[..3], &shared, None),
        [&names[0]; 0]
    );
}

/// `prepare --dry-run` from the example's snapshot, in the exclusive mode or as it is.
fn prepare(exclusive: bool, more: &[&str]) -> Output {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/snapshot.json"
    ))
    .unwrap();
    let mut snapshot: Snapshot = serde_json::from_str(&text).unwrap();
    if exclusive {
        snapshot.rdma_mode = Some(RdmaMode::Exclusive);
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(serde_json::to_string(&snapshot).unwrap().as_bytes())
        .unwrap();
    Command::new(env!("CARGO_BIN_EXE_rdmaprep"))
        .args([
            "prepare",
            "--dry-run",
            "--config",
            "/dev/null",
            "--state-dir",
            "/nonexistent",
            "--run-dir",
            "/nonexistent",
        ])
        .arg("--snapshot")
        .arg(file.path())
        .args(more)
        .env_clear()
        .output()
        .unwrap()
}

#[test]
fn prepare_says_that_devices_move() {
    let out = String::from_utf8(prepare(true, &[]).stdout).unwrap();
    let line = "RDMA namespace mode exclusive: rxe0, rxe1 move, too; the host lacks them as long \
        as a container has them";
    assert!(out.lines().any(|l| l == line), "{out}");
    let out = String::from_utf8(prepare(false, &[]).stdout).unwrap();
    assert!(!out.contains("exclusive"), "{out}");
}

#[test]
fn the_wait_for_gids_is_in_the_plan() {
    let seconds = |more: &[&str]| {
        let out = prepare(false, &[&["--json"], more].concat());
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        json["plan"]["gid_timeout"].as_u64()
    };
    assert_eq!(
        (seconds(&[]), seconds(&["--gid-timeout", "12"])),
        (Some(5), Some(12))
    );
    for wrong in ["0", "3601", "1.5", "-1", "soon"] {
        let out = prepare(false, &[&format!("--gid-timeout={wrong}")]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{wrong}: {said}");
        assert!(
            said.contains("--gid-timeout")
                && said.contains("is no number of seconds from 1 to 3600"),
            "{said}"
        );
    }
    assert_eq!("3600".parse::<GidTimeout>().unwrap().get(), 3600);
}
