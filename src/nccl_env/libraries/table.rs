//! The table: each variable with its form, its default, and the source that says so.

use super::Form::{
    Constant, ExactInterface, GidIndex, Interface, Names, OneName, Port, PortNames, Ports,
};
use super::{Form, Setting};
use crate::config::libraries::Library;

const fn setting(
    library: Library,
    variable: &'static str,
    form: Form,
    source: &'static str,
    release: &'static str,
) -> Setting {
    Setting {
        library,
        variable,
        form,
        source,
        release,
    }
}

const NCCL: &str = "2.30.7";

const MSCCLPP: &str = "main of 2026-08";

const MOONCAKE: &str = "0.3.12.post1";

const NVSHMEM: &str = "3.8.0";

const LIBFABRIC: &str = "1.17.0";

const ENV_DEFS: &str = "src/modules/transport/common/env_defs.h";

const MSCCLPP_ENV: &str = "src/core/env.cpp";

const VERBS: &str = "prov/verbs/src/verbs_init.c";

/// By library, in the order in which a container gets them.
pub const SETTINGS: [Setting; 20] = {
    use Library::*;
    [
        setting(
            Nccl,
            "NCCL_IB_HCA",
            Form::Nccl("`=mlx5_0,mlx5_1`; `:PORT` behind HCAs with several ports"),
            "src/transport/net_ib/init.cc",
            NCCL,
        ),
        setting(
            Nccl,
            "NCCL_IB_GID_INDEX",
            Form::Nccl("a number, where one is right on all ports"),
            "src/transport/net_ib/connect.cc",
            NCCL,
        ),
        setting(
            Nccl,
            "NCCL_IB_ADDR_FAMILY",
            Form::Nccl("`AF_INET6`, where all planned GIDs are of IPv6"),
            "src/transport/net_ib/connect.cc",
            NCCL,
        ),
        setting(
            Nccl,
            "NCCL_SOCKET_IFNAME",
            Form::Nccl("`=eth0`"),
            "src/misc/socket.cc",
            NCCL,
        ),
        setting(
            Gloo,
            "GLOO_SOCKET_IFNAME",
            Form::Nccl("`eth0`"),
            "torch/csrc/distributed/c10d/init.cpp",
            "PyTorch 2",
        ),
        setting(
            Ucx,
            "UCX_NET_DEVICES",
            Ports,
            "src/ucp/core/ucp_context.c",
            "1.13.1, 1.22.0",
        ),
        setting(
            OpenMpi,
            "OMPI_MCA_btl_tcp_if_include",
            Interface,
            "opal/mca/btl/tcp/btl_tcp_component.c",
            "4.1.4",
        ),
        setting(
            Nvshmem,
            "NVSHMEM_ENABLE_NIC_PE_MAPPING",
            Constant("1"),
            ENV_DEFS,
            NVSHMEM,
        ),
        setting(Nvshmem, "NVSHMEM_HCA_LIST", Ports, ENV_DEFS, NVSHMEM),
        setting(
            Nvshmem,
            "NVSHMEM_IB_GID_INDEX",
            GidIndex("older releases take 0, newer ones look for one of NVSHMEM_IB_ADDR_FAMILY"),
            ENV_DEFS,
            NVSHMEM,
        ),
        setting(
            Nvshmem,
            "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
            ExactInterface,
            "src/modules/bootstrap/uid/ncclSocket/ncclsocket_socket.cpp",
            NVSHMEM,
        ),
        setting(
            Mscclpp,
            "MSCCLPP_HCA_DEVICES",
            Names,
            "src/core/ib.cc",
            MSCCLPP,
        ),
        setting(
            Mscclpp,
            "MSCCLPP_IB_GID_INDEX",
            GidIndex("MSCCL++ takes 0"),
            MSCCLPP_ENV,
            MSCCLPP,
        ),
        setting(
            Mscclpp,
            "MSCCLPP_SOCKET_IFNAME",
            ExactInterface,
            "src/core/bootstrap/socket.cc",
            MSCCLPP,
        ),
        setting(
            Mooncake,
            "MC_TE_FILTERS",
            PortNames,
            "mooncake-transfer-engine/src/topology.cpp",
            MOONCAKE,
        ),
        setting(
            Mooncake,
            "MC_MS_FILTERS",
            PortNames,
            "mooncake-store/src/client_service.cpp",
            MOONCAKE,
        ),
        setting(
            Mooncake,
            "MC_IB_PORT",
            Port,
            "mooncake-transfer-engine/src/config.cpp",
            MOONCAKE,
        ),
        setting(
            Mooncake,
            "MC_GID_INDEX",
            GidIndex("Mooncake takes NCCL_IB_GID_INDEX, or looks for one itself"),
            "mooncake-transfer-engine/src/config.cpp",
            MOONCAKE,
        ),
        setting(Libfabric, "FI_VERBS_DEVICE_NAME", OneName, VERBS, LIBFABRIC),
        setting(
            Libfabric,
            "FI_VERBS_GID_IDX",
            GidIndex("libfabric takes 0"),
            VERBS,
            LIBFABRIC,
        ),
    ]
};
