//! The variables by which NCCL chooses interfaces, HCAs and GIDs: one table, from which the order
//! of the output, the releases and docs/nccl.md are made.

use super::version::Version;

pub struct Variable {
    pub name: &'static str,
    pub decides: &'static str,
    /// The first release that reads it; none where all that were compared do.
    pub since: Option<Version>,
    /// Where 2.30.7 reads it; none where only the libraries tell, by the names in them.
    pub source: Option<&'static str>,
}

const fn all(name: &'static str, decides: &'static str, source: &'static str) -> Variable {
    Variable {
        name,
        decides,
        since: None,
        source: Some(source),
    }
}

const fn since(
    (minor, patch): (u16, u16),
    name: &'static str,
    decides: &'static str,
    source: &'static str,
) -> Variable {
    Variable {
        since: Some(Version::new(2, minor, patch)),
        ..all(name, decides, source)
    }
}

const fn by_library(release: (u16, u16), name: &'static str, decides: &'static str) -> Variable {
    Variable {
        source: None,
        ..since(release, name, decides, "")
    }
}

const INIT: &str = "src/transport/net_ib/init.cc";
const CONNECT: &str = "src/transport/net_ib/connect.cc";
const TOPO: &str = "src/graph/topo.cc";
const BOOTSTRAP: &str = "src/bootstrap.cc";
const SOCKET: &str = "src/misc/socket.cc";

/// In the order of the output.
pub const VARIABLES: [Variable; 29] = [
    all(
        "NCCL_COMM_ID",
        "address of the root; chooses the bootstrap interface by its subnet",
        BOOTSTRAP,
    ),
    all(
        "NCCL_SOCKET_IFNAME",
        "interfaces of the bootstrap, and of data by TCP",
        SOCKET,
    ),
    all("NCCL_SOCKET_FAMILY", "IPv4 or IPv6 for these", SOCKET),
    all(
        "NCCL_IB_HCA",
        "HCA ports, with rail and plane from 2.30.7 on",
        INIT,
    ),
    all("NCCL_IB_DISABLE", "no HCA by NCCL's own network", INIT),
    since(
        (29, 7),
        "NCCL_IB_DEVICE_PCI_ORDER",
        "order of HCAs: by PCI address, or libibverbs'",
        INIT,
    ),
    since(
        (20, 3),
        "NCCL_IB_MERGE_NICS",
        "ports of a card as one device",
        INIT,
    ),
    since(
        (18, 1),
        "NCCL_IB_MERGE_VFS",
        "functions of a card count as one place",
        INIT,
    ),
    all("NCCL_IB_GID_INDEX", "the GID of each RoCE port", CONNECT),
    since(
        (21, 5),
        "NCCL_IB_ADDR_FAMILY",
        "family of the GID that is looked for",
        CONNECT,
    ),
    since((21, 5), "NCCL_IB_ADDR_RANGE", "its network", CONNECT),
    since(
        (21, 5),
        "NCCL_IB_ROCE_VERSION_NUM",
        "its RoCE version",
        CONNECT,
    ),
    since(
        (22, 3),
        "NCCL_IB_ROUTABLE_FLID_GID_INDEX",
        "the GID of InfiniBand ports, for routers",
        CONNECT,
    ),
    all(
        "NCCL_NET",
        "who serves the network: IB, Socket, or a plugin's name",
        "src/init.cc",
    ),
    all(
        "NCCL_NET_PLUGIN",
        "the library of a plugin",
        "src/plugin/net.cc",
    ),
    since(
        (23, 4),
        "NCCL_OOB_NET_ENABLE",
        "ranks meet over a device of the network",
        BOOTSTRAP,
    ),
    since((23, 4), "NCCL_OOB_NET_IFNAME", "over which one", BOOTSTRAP),
    since(
        (28, 3),
        "NCCL_NETDEVS_POLICY",
        "how many NICs a GPU uses",
        TOPO,
    ),
    since(
        (24, 3),
        "NCCL_NET_MERGE_LEVEL",
        "how near NICs are that become one",
        TOPO,
    ),
    since(
        (24, 3),
        "NCCL_NET_FORCE_MERGE",
        "which NICs become one",
        TOPO,
    ),
    since(
        (30, 7),
        "NCCL_NET_MERGE_POLICY",
        "whether such NICs are all, or of one rail",
        TOPO,
    ),
    since(
        (27, 3),
        "NCCL_IB_DATA_DIRECT",
        "Data Direct functions of ConnectX-8",
        INIT,
    ),
    since(
        (30, 7),
        "NCCL_IB_SUBNET_AWARE_ROUTING",
        "another HCA per connection, by its subnet",
        CONNECT,
    ),
    since(
        (30, 7),
        "NCCL_IB_SUBNET_PREFIX_LEN",
        "how long that subnet's prefix is",
        CONNECT,
    ),
    since(
        (30, 3),
        "NCCL_IBVERBS_LIB",
        "the library that is opened for libibverbs",
        "src/misc/ibvsymbols.cc",
    ),
    by_library((31, 2), "NCCL_IB_PKEY_VALUE", "the P_Key by its value"),
    by_library(
        (32, 3),
        "NCCL_IB_RAIL_POLICY",
        "which rails a connection uses",
    ),
    by_library(
        (32, 3),
        "NCCL_IB_SORT_MERGE_NICS",
        "the order of NICs that become one",
    ),
    since(
        (30, 3),
        "NCCL_IGNORE_NET_MISMATCH",
        "0: nodes with different numbers of HCAs are an error; they may hang else",
        "src/init.cc",
    ),
];
