use std::collections::BTreeMap;

use rdma_model::ids::HcaName;
use rdma_model::nic::Nic;

use super::*;
use crate::nccl_env::tests::nic;

fn settings(
    libraries: &str,
    nics: &[Nic],
    before: &[(&str, &str)],
    own: &[(&str, &str)],
) -> (Vec<String>, Vec<String>) {
    settings_by(Ok(Some(3)), libraries, nics, before, own)
}

fn settings_by(
    gid_index: Result<Option<u32>, &str>,
    libraries: &str,
    nics: &[Nic],
    before: &[(&str, &str)],
    own: &[(&str, &str)],
) -> (Vec<String>, Vec<String>) {
    let ib: &[HcaName] = &[];
    let mut env: Vec<EnvVar> = before.iter().map(|(n, v)| var(n, v, "")).collect();
    let own = own.iter().map(|(n, v)| (n.to_string(), v.to_string()));
    let own: BTreeMap<String, String> = own.collect();
    let ib_ports = BTreeMap::new();
    let hcas = Hcas {
        nics,
        ib,
        ib_ports: &ib_ports,
        named: None,
    };
    let libraries = libraries.parse().unwrap();
    let unset = fit(&mut env, &libraries, &own, hcas, gid_index);
    let lines = env.iter().map(|v| format!("{}={}", v.name, v.value));
    (lines.collect(), unset)
}

const BOOTSTRAP: [(&str, &str); 3] = [
    ("NCCL_IB_HCA", "=mlx5_0,mlx5_1"),
    ("NCCL_SOCKET_IFNAME", "=eth0"),
    ("GLOO_SOCKET_IFNAME", "eth0"),
];

fn two() -> [Nic; 2] {
    [
        nic("rdma0", Some("mlx5_0"), 1, 1),
        nic("rdma1", Some("mlx5_1"), 1, 1),
    ]
}

#[test]
fn each_library_gets_its_own_form() {
    let (lines, unset) = settings("all", &two(), &BOOTSTRAP, &[]);
    assert_eq!(
        lines,
        [
            "NCCL_IB_HCA==mlx5_0,mlx5_1",
            "NCCL_SOCKET_IFNAME==eth0",
            "GLOO_SOCKET_IFNAME=eth0",
            "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1",
            "OMPI_MCA_btl_tcp_if_include=eth0",
            "NVSHMEM_ENABLE_NIC_PE_MAPPING=1",
            "NVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1",
            "NVSHMEM_IB_GID_INDEX=3",
            "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME==eth0",
            "MSCCLPP_HCA_DEVICES=mlx5_0,mlx5_1",
            "MSCCLPP_IB_GID_INDEX=3",
            "MSCCLPP_SOCKET_IFNAME==eth0",
            "MC_TE_FILTERS=mlx5_0,mlx5_1",
            "MC_MS_FILTERS=mlx5_0,mlx5_1",
            "MC_GID_INDEX=3",
            "FI_VERBS_GID_IDX=3",
        ]
    );
    let why = "FI_VERBS_DEVICE_NAME: older releases read a single name, and there are several";
    assert_eq!(unset, [why]);
    let (lines, unset) = settings("libfabric", &two()[..1], &[], &[]);
    assert_eq!(lines, ["FI_VERBS_DEVICE_NAME=mlx5_0", "FI_VERBS_GID_IDX=3"]);
    assert!(unset.is_empty());
}

#[test]
fn an_index_that_fits_no_port_is_named_with_what_counts_then() {
    let why = "it is 3 on mlx5_0 and 5 on mlx5_1";
    let libraries = "nvshmem,mscclpp,mooncake,libfabric";
    let (lines, unset) = settings_by(Err(why), libraries, &two()[..1], &[], &[]);
    assert!(lines.iter().all(|l| !l.contains("GID")), "{lines:?}");
    let of = |name: &str, then: &str| format!("{name}: {why}; without it {then}");
    let newer = "older releases take 0, newer ones look for one of NVSHMEM_IB_ADDR_FAMILY";
    let expected = [
        of("NVSHMEM_IB_GID_INDEX", newer),
        of("MSCCLPP_IB_GID_INDEX", "MSCCL++ takes 0"),
        of(
            "MC_GID_INDEX",
            "Mooncake takes NCCL_IB_GID_INDEX, or looks for one itself",
        ),
        of("FI_VERBS_GID_IDX", "libfabric takes 0"),
    ];
    assert_eq!(unset, expected);
    let (_, none) = settings_by(Ok(None), libraries, &two()[..1], &[], &[]);
    assert_eq!(none, [""; 0]);
}

#[test]
fn libraries_that_are_not_meant_get_nothing() {
    let before = [&BOOTSTRAP[..], &[("NCCL_DEBUG", "INFO"), ("OTHER", "1")]].concat();
    let (lines, _) = settings("ucx", &two(), &before, &[]);
    assert_eq!(lines, ["OTHER=1", "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1"]);
    let (lines, _) = settings("nccl,gloo", &two(), &before, &[]);
    assert_eq!(lines.len(), before.len());
}

#[test]
fn fitted_again_nothing_changes_and_fewer_nics_count() {
    let (once, _) = settings("all", &two(), &BOOTSTRAP, &[]);
    let pairs: Vec<(&str, &str)> = once.iter().filter_map(|l| l.split_once('=')).collect();
    let (again, _) = settings("all", &two(), &pairs, &[]);
    assert_eq!(again, once);
    let (fewer, _) = settings("ucx", &two()[1..], &pairs, &[]);
    assert_eq!(fewer, ["UCX_NET_DEVICES=mlx5_1:1"]);
    let (none, _) = settings("ucx", &[], &pairs[3..4], &[]);
    assert_eq!(none, [""; 0]);
}

#[test]
fn choice_of_the_container_is_whole() {
    let beside = |own: &[(&str, &str)]| settings("nvshmem,openmpi", &two(), &BOOTSTRAP, own).0;
    let mapping = beside(&[("NVSHMEM_HCA_PE_MAPPING", "mlx5_0:1:8")]);
    assert!(
        mapping
            .iter()
            .all(|l| !l.contains("HCA") && !l.contains("MAPPING")),
        "{mapping:?}"
    );
    let interface = beside(&[("NCCL_SOCKET_IFNAME", "bond0")]);
    assert!(
        interface.iter().all(|l| !l.contains("eth0")),
        "{interface:?}"
    );
    let same = beside(&[("NVSHMEM_HCA_LIST", "mlx5_0:1,mlx5_1:1")]);
    assert!(
        same.contains(&"NVSHMEM_ENABLE_NIC_PE_MAPPING=1".to_owned()),
        "{same:?}"
    );
}

#[test]
fn names_alone_cannot_say_a_port() {
    let nics = [nic("rdma0", Some("mlx4_0"), 2, 2)];
    let (lines, unset) = settings("ucx,mscclpp,mooncake", &nics, &[], &[]);
    let second = [
        "UCX_NET_DEVICES=mlx4_0:2",
        "MSCCLPP_IB_GID_INDEX=3",
        "MC_TE_FILTERS=mlx4_0",
        "MC_MS_FILTERS=mlx4_0",
        "MC_IB_PORT=2",
        "MC_GID_INDEX=3",
    ];
    assert_eq!(lines, second);
    assert_eq!(
        unset,
        ["MSCCLPP_HCA_DEVICES: mlx4_0 has several ports, and a name is all of them"]
    );
    let first = nic("rdma1", Some("mlx5_0"), 1, 1);
    let (_, unset) = settings("mooncake", &[nics[0].clone(), first], &[], &[]);
    let differ = "the ports differ, and a name is one of them";
    assert_eq!(unset[0], format!("MC_TE_FILTERS: {differ}"));
    assert!(
        unset[2].starts_with("MC_IB_PORT: the ports differ"),
        "{unset:?}"
    );
}

#[test]
fn what_yields_to_a_choice_of_the_container_is_told() {
    let own = [
        ("NVSHMEM_HCA_LIST", "mlx5_9:1"),
        ("OMPI_MCA_btl_tcp_if_exclude", "lo"),
    ];
    let (lines, unset) = settings("nvshmem,openmpi", &two(), &BOOTSTRAP, &own);
    let list = "NVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1";
    assert!(lines.iter().any(|line| line == list), "{lines:?}");
    let yields = [
        "NVSHMEM_ENABLE_NIC_PE_MAPPING: the container sets NVSHMEM_HCA_LIST",
        "OMPI_MCA_btl_tcp_if_include: the container sets OMPI_MCA_btl_tcp_if_exclude",
    ];
    assert_eq!(unset, yields);
}

#[test]
fn what_waits_for_the_network_is_of_the_libraries_meant() {
    let of = |libraries: &str| at_start(&libraries.parse().unwrap());
    assert_eq!(
        of("nccl,gloo"),
        ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"]
    );
    assert_eq!(of("ucx,libfabric"), [""; 0]);
    assert_eq!(of("openmpi"), ["OMPI_MCA_btl_tcp_if_include"]);
}

#[test]
fn only_lists_of_hcas_are_read_as_such() {
    let both = ["mlx5_0:1", "mlx5_1:1"];
    assert_eq!(
        named_hcas("UCX_NET_DEVICES", "mlx5_0:1, mlx5_1:1", false),
        both
    );
    assert_eq!(
        named_hcas("NVSHMEM_HCA_LIST", "mlx5_0:1,mlx5_1:1", true),
        both
    );
    for (variable, value) in [
        ("NVSHMEM_HCA_LIST", "mlx5_0:1,mlx5_1:1"),
        ("NVSHMEM_HCA_LIST", "^mlx5_0"),
        ("UCX_NET_DEVICES", "all"),
        ("NCCL_IB_HCA", "=mlx5_0"),
        ("MC_GID_INDEX", "3"),
    ] {
        assert_eq!(
            named_hcas(variable, value, false),
            [""; 0],
            "{variable}={value}"
        );
    }
}

#[test]
fn each_library_reads_names_in_its_own_way() {
    let means = |variable: &str, word: &str| means(variable, word, &["mlx5_2"], &["eth0"]);
    for (variable, word, is_there) in [
        ("UCX_NET_DEVICES", "mlx5_2:1", true),
        ("UCX_NET_DEVICES", "mlx5:1", false),
        ("UCX_NET_DEVICES", "eth0", true),
        ("UCX_NET_DEVICES", "eth1", false),
        ("UCX_NET_DEVICES", "mlx5_[0-2]:1", true),
        ("UCX_NET_DEVICES", "mlx5_[0-1]:1", false),
        ("UCX_NET_DEVICES", "mlx5_[x-2]", false),
        ("MC_TE_FILTERS", "eth0", false),
        ("MC_TE_FILTERS", "mlx5_2", true),
        ("FI_VERBS_DEVICE_NAME", "mlx5", true),
        ("FI_VERBS_DEVICE_NAME", "mlx5_20", false),
    ] {
        assert_eq!(means(variable, word), is_there, "{variable}={word}");
    }
}

/// mlx4_0 has two ports, of which the second is chosen; mlx5_0 has one.
#[test]
fn an_infiniband_hca_is_named_by_its_chosen_ports() {
    let ib: [HcaName; 2] = ["mlx4_0", "mlx5_0"].map(|name| name.parse().unwrap());
    let ib_ports = BTreeMap::from([(ib[0].clone(), vec![2])]);
    let hcas = Hcas {
        nics: &[],
        ib: &ib,
        ib_ports: &ib_ports,
        named: None,
    };
    assert_eq!(ports(hcas), ["mlx4_0:2", "mlx5_0:1"]);
    let why = "mlx4_0 has several ports, and a name is all of them";
    assert_eq!(names(hcas), Err(why.to_owned()));
    let both = BTreeMap::from([(ib[0].clone(), vec![1, 2])]);
    let hcas = Hcas {
        ib: &[ib[0].clone(), ib[0].clone()],
        ib_ports: &both,
        ..hcas
    };
    assert_eq!(ports(hcas), ["mlx4_0:1", "mlx4_0:2"]);
}
