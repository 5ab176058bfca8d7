//! NVSHMEM takes the interface that `--libraries nvshmem` names for its bootstrap, and no other
//! whose name begins so. That part of it runs without a GPU; what it makes of HCAs does not.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use rdma_model::nic::EnvVar;
use rdmaprep::nccl_env::{Hcas, libraries};

use testkit::Said;

use crate::alone;

const VARIABLE: &str = "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME";

/// Of the library in the working directory.
const SCRIPT: &str = "import ctypes
library = ctypes.CDLL('./libnvshmem_host.so.3')
print('status', library.nvshmemx_get_uniqueid((ctypes.c_byte * 1024)()))";

/// What a container whose bootstrap goes over eth0 gets.
fn setting() -> String {
    let mut env = vec![EnvVar {
        name: "NCCL_SOCKET_IFNAME".to_owned(),
        value: "=eth0".to_owned(),
        why: String::new(),
    }];
    let ib_ports = BTreeMap::new();
    let hcas = Hcas {
        nics: &[],
        ib: &[],
        ib_ports: &ib_ports,
        named: None,
    };
    let chosen = "nccl nvshmem".parse().unwrap();
    libraries::fit(&mut env, &chosen, &BTreeMap::new(), hcas, Ok(None));
    let found = env.into_iter().find(|v| v.name == VARIABLE);
    found.expect("the setting").value
}

#[test]
#[ignore = "needs RDMAPREP_NVSHMEM: the lib folder of PyPI's nvidia-nvshmem-cu12"]
fn nvshmem_bootstraps_over_the_interface_of_the_setting() {
    let folder = std::env::var_os("RDMAPREP_NVSHMEM").map(PathBuf::from);
    testkit::require!(folder.is_some(), "NVSHMEM's libraries: RDMAPREP_NVSHMEM");
    let folder = folder.unwrap();
    alone(|host| {
        for (name, address) in [("eth01", "192.0.2.1"), ("eth0", "198.51.100.1")] {
            host.ip(&format!(
                "link add {name} type veth peer name q{name}
                address add {address}/24 dev {name}
                link set {name} up
                link set q{name} up"
            ));
        }
        let said = |value: &str| {
            let mut python = Command::new("python3");
            let python = python
                .args(["-c", SCRIPT])
                .current_dir(&folder)
                .envs([("NVSHMEM_DEBUG", "INFO"), (VARIABLE, value)])
                .env("LD_LIBRARY_PATH", &folder);
            let Said { out, err, .. } = testkit::run(python, "");
            [out, err].concat()
        };
        let exact = said(&setting());
        assert!(
            exact.contains("network using:  eth0:198.51.100.1"),
            "{exact}"
        );
        assert!(exact.contains("status 0"), "{exact}");
        let prefix = said("eth0");
        assert!(prefix.contains("network using:  eth01:"), "{prefix}");
    });
}
