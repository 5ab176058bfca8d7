use super::*;
use crate::plan::Identity;

fn nic(name: &str, hca: Option<&str>, port: u32, ports: usize) -> Nic {
    Nic {
        identity: Identity { name: name.parse().unwrap(), ifindex: 1, pci: None, permanent_mac: None, node_guid: None },
        hca: hca.map(|h| h.parse().unwrap()),
        port: hca.map(|_| port),
        ports,
        rxe: false,
        gid: None,
        numa: None,
        uverbs: None,
        addresses: Vec::new(),
    }
}

fn options(env: &[(&str, &str)]) -> Options {
    let host_env = env.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    Options { host_env, topo_wanted: true, ..Options::default() }
}

fn pairs(env: Vec<EnvVar>) -> Vec<String> {
    env.into_iter().map(|v| format!("{}={}", v.name, v.value)).collect()
}

#[test]
fn hcas_are_listed_exactly_in_rail_order() {
    let o = options(&[]);
    let one_port = [nic("rdma0", Some("mlx5_0"), 1, 1), nic("rdma1", Some("mlx5_3"), 1, 1)];
    assert_eq!(pairs(env(&one_port, &[], &o)), ["NCCL_IB_HCA==mlx5_0,mlx5_3"]);
    let two_ports = [nic("a", Some("mlx4_0"), 2, 2), nic("b", Some("rxe0"), 1, 1)];
    assert_eq!(pairs(env(&two_ports, &["mlx5_9".parse().unwrap()], &o)), ["NCCL_IB_HCA==mlx4_0:2,rxe0,mlx5_9"]);
    let shared = [nic("a", Some("mlx5_0"), 1, 1), nic("b", Some("mlx5_0"), 1, 1)];
    assert_eq!(pairs(env(&shared, &["mlx5_0".parse().unwrap()], &o)), ["NCCL_IB_HCA==mlx5_0"]);
}

#[test]
fn nothing_certain_means_nothing_set() {
    assert!(env(&[], &[], &options(&[])).is_empty());
    assert!(env(&[nic("veth0", None, 0, 0)], &[], &options(&[("NCCL_IB_GID_INDEX", "")])).is_empty());
}

#[test]
fn sockets_follow_the_bootstrap_interface() {
    let with = |name: &str| Options { bootstrap_iface: Some(name.parse().unwrap()), ..options(&[]) };
    assert_eq!(pairs(env(&[], &[], &with("eth0"))), ["NCCL_SOCKET_IFNAME==eth0", "GLOO_SOCKET_IFNAME=eth0"]);
    assert!(env(&[], &[], &with("a,b")).is_empty());
}

#[test]
fn fabric_settings_of_the_host_pass() {
    let o = options(&[("NCCL_IB_TC", "106"), ("NCCL_IB_GID_INDEX", "3"), ("NCCL_DEBUG", "WARN"), ("PATH", "/bin")]);
    assert_eq!(pairs(env(&[], &[], &o)), ["NCCL_IB_GID_INDEX=3", "NCCL_IB_TC=106"]);
}

#[test]
fn debug_set_yields_to_the_host() {
    let o = Options { debug_all: true, ..options(&[("NCCL_DEBUG", "TRACE")]) };
    assert_eq!(
        pairs(env(&[], &[], &o)),
        [
            "NCCL_DEBUG=TRACE",
            "NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,NET,GRAPH,ENV",
            "NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log",
            "NCCL_TOPO_DUMP_FILE=/tmp/nccl_topo.xml"
        ]
    );
}

#[test]
fn topology_file_asked_for_else_the_hosts_own() {
    let own = options(&[("NCCL_TOPO_FILE", "/own.xml")]);
    let asked = Options { topo_file: Some("/t.xml".into()), ..own.clone() };
    let unwanted = Options { topo_wanted: false, ..asked.clone() };
    assert_eq!(pairs(env(&[], &[], &asked)), ["NCCL_TOPO_FILE=/t.xml"]);
    assert_eq!(pairs(env(&[], &[], &own)), ["NCCL_TOPO_FILE=/own.xml"]);
    assert_eq!(pairs(env(&[], &[], &unwanted)), ["NCCL_TOPO_FILE=/own.xml"]);
    assert!(env(&[], &[], &Options { host_env: BTreeMap::new(), ..unwanted }).is_empty());
}

#[test]
fn runsc_gets_flags_that_annotations_may_set() {
    assert!(runsc_annotations(&options(&[("RUNSC_DEBUG", "1")])).is_empty());
    let o = Options { debug_all: true, ..options(&[]) };
    let flags = runsc_annotations(&o);
    let names: Vec<&str> = flags.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["dev.gvisor.flag.debug", "dev.gvisor.flag.strace", "dev.gvisor.flag.strace-syscalls"]);
    let o = Options { debug_all: true, ..options(&[("RUNSC_STRACE", "0"), ("RUNSC_DEBUG_COMMAND", "boot")]) };
    let flags: Vec<String> = runsc_annotations(&o).iter().map(|(n, v)| format!("{n}={v}")).collect();
    assert_eq!(
        flags,
        ["dev.gvisor.flag.debug=true", "dev.gvisor.flag.debug-command=boot", "dev.gvisor.flag.strace=false"]
    );
}
