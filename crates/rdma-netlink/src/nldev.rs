//! NETLINK_RDMA's nldev family as bytes and types (include/uapi/rdma/rdma_netlink.h,
//! drivers/infiniband/core/nldev.c).

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use netlink_packet_core::{DefaultNla, Emitable};
use rdma_model::ids::{Guid, HcaName, IfName};
use rdma_model::snapshot::{Hca, RdmaMode};

use crate::reply::{self, End, Replies, array, attributes, string};

/// RDMA_NL_NLDEV: the family's number in the upper bits of a message type (RDMA_NL_GET_TYPE).
pub const FAMILY: u16 = 5;

// enum rdma_nldev_command
const GET: u16 = 1;
const SET: u16 = 2;
const NEWLINK: u16 = 3;
const DELLINK: u16 = 4;
const PORT_GET: u16 = 5;
const SYS_GET: u16 = 6;
const RES_CM_ID_GET: u16 = 11;
const GET_CHARDEV: u16 = 15;
const STAT_GET: u16 = 17;

// enum rdma_nldev_attr
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const FW_VERSION: u16 = 5;
const NODE_GUID: u16 = 6;
const SYS_IMAGE_GUID: u16 = 7;
const LID: u16 = 9;
const PORT_STATE: u16 = 12;
const PORT_PHYS_STATE: u16 = 13;
const DEV_NODE_TYPE: u16 = 14;
const NDEV_INDEX: u16 = 50;
const NDEV_NAME: u16 = 51;
const LINK_TYPE: u16 = 65;
const NETNS_MODE: u16 = 66;
const DEV_PROTOCOL: u16 = 67;
const NET_NS_FD: u16 = 68;
const CHARDEV_TYPE: u16 = 69;
const CHARDEV_NAME: u16 = 70;
const CHARDEV_ABI: u16 = 71;
const CHARDEV: u16 = 72;
const UVERBS_DRIVER_ID: u16 = 73;
const STAT_HWCOUNTERS: u16 = 80;
const STAT_HWCOUNTER_ENTRY: u16 = 81;
const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;

/// A character device that an RDMA client offers, by the name under which the client is registered
/// (RDMA_NLDEV_ATTR_CHARDEV_TYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CharKind {
    Uverbs {
        device: u32,
    },
    /// Management datagrams of a port (drivers/infiniband/core/user_mad.c).
    Umad {
        device: u32,
        port: u32,
    },
    /// The connection manager, one for all devices (drivers/infiniband/core/ucma.c).
    RdmaCm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Devices,
    Ports {
        device: u32,
    },
    Connections {
        device: u32,
    },
    /// What a port has counted, by its driver's names.
    Counters {
        device: u32,
        port: u32,
    },
    /// Settings of the RDMA subsystem: shared or exclusive namespaces.
    System,
    CharDevice(CharKind),
    LinkAdd {
        name: &'a HcaName,
        /// `rxe` or `siw`.
        kind: &'a str,
        netdev: &'a IfName,
    },
    LinkDelete {
        device: u32,
    },
    Rename {
        device: u32,
        name: &'a HcaName,
    },
    /// Moves a device into another network namespace; exclusive mode only.
    Move {
        device: u32,
        netns: u32,
    },
}

impl Request<'_> {
    pub(crate) fn end(&self) -> End {
        match self {
            Request::Devices | Request::Ports { .. } | Request::Connections { .. } => End::Done,
            _ => End::Ack,
        }
    }

    /// What its replies are read into.
    pub fn replies(&self, sequence: u32) -> Replies {
        Replies::of_family(FAMILY, self.end(), sequence)
    }

    pub fn encode(&self, sequence: u32) -> Vec<u8> {
        let (command, attributes) = self.parts();
        let attributes = attributes.as_slice();
        let mut body = vec![0; attributes.buffer_len()];
        attributes.emit(&mut body);
        reply::request(
            (FAMILY << 10) | command,
            self.end().flags(),
            sequence,
            &body,
        )
    }

    fn parts(&self) -> (u16, Vec<DefaultNla>) {
        match *self {
            Request::Devices => (GET, vec![]),
            Request::Ports { device } => (PORT_GET, vec![u32(DEV_INDEX, device)]),
            Request::Connections { device } => (RES_CM_ID_GET, vec![u32(DEV_INDEX, device)]),
            Request::Counters { device, port } => (
                STAT_GET,
                vec![u32(DEV_INDEX, device), u32(PORT_INDEX, port)],
            ),
            Request::System => (SYS_GET, vec![]),
            Request::CharDevice(kind) => (GET_CHARDEV, chardev_attributes(kind)),
            Request::LinkAdd { name, kind, netdev } => (
                NEWLINK,
                vec![
                    text(DEV_NAME, name.as_str()),
                    text(LINK_TYPE, kind),
                    text(NDEV_NAME, netdev.as_str()),
                ],
            ),
            Request::LinkDelete { device } => (DELLINK, vec![u32(DEV_INDEX, device)]),
            Request::Rename { device, name } => (
                SET,
                vec![u32(DEV_INDEX, device), text(DEV_NAME, name.as_str())],
            ),
            Request::Move { device, netns } => {
                (SET, vec![u32(DEV_INDEX, device), u32(NET_NS_FD, netns)])
            }
        }
    }
}

fn chardev_attributes(kind: CharKind) -> Vec<DefaultNla> {
    match kind {
        CharKind::Uverbs { device } => vec![u32(DEV_INDEX, device), text(CHARDEV_TYPE, "uverbs")],
        CharKind::Umad { device, port } => {
            vec![
                u32(DEV_INDEX, device),
                u32(PORT_INDEX, port),
                text(CHARDEV_TYPE, "umad"),
            ]
        }
        CharKind::RdmaCm => vec![text(CHARDEV_TYPE, "rdma_cm")],
    }
}

fn u32(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_ne_bytes().to_vec())
}

/// NLA_NUL_STRING: the kernel refuses a string without its NUL.
fn text(kind: u16, value: &str) -> DefaultNla {
    DefaultNla::new(kind, [value.as_bytes(), &[0]].concat())
}

/// An RDMA device (fill_dev_info() in nldev.c).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub index: u32,
    pub name: String,
    pub firmware: Option<String>,
    pub node_guid: Option<Guid>,
    pub sys_image_guid: Option<Guid>,
    /// `ib`, `roce`, `iw`, `opa`, `usnic`, by the first port.
    pub protocol: Option<String>,
    pub last_port: u32,
    /// `enum rdma_node_type` (include/rdma/ib_verbs.h).
    pub node_type: Option<u8>,
}

impl Device {
    pub fn parse(payload: &[u8]) -> Result<Device> {
        let (mut device, mut index, mut name) = (Device::default(), None, None);
        for attribute in attributes(payload) {
            let (kind, value) = attribute?;
            match kind {
                DEV_INDEX => index = Some(number(value)?),
                DEV_NAME => name = Some(string(value)),
                PORT_INDEX => device.last_port = number(value)?,
                FW_VERSION => device.firmware = Some(string(value)),
                NODE_GUID => device.node_guid = Some(Guid(wide(value)?)),
                SYS_IMAGE_GUID => device.sys_image_guid = Some(Guid(wide(value)?)),
                DEV_NODE_TYPE => device.node_type = Some(byte(value)?),
                DEV_PROTOCOL => device.protocol = Some(string(value)),
                _ => {}
            }
        }
        device.index = index.context("RDMA netlink reported a device without an index")?;
        device.name = name.context("RDMA netlink reported a device without a name")?;
        Ok(device)
    }
}

/// A port of an RDMA device (fill_port_info() in nldev.c).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    pub device: u32,
    pub number: u32,
    /// `enum ib_port_state`; see [`Port::state_name`].
    pub state: Option<u8>,
    pub phys_state: Option<u8>,
    /// Ifindex of the netdev, only when that is in the socket's namespace.
    pub ifindex: Option<u32>,
    pub netdev: Option<String>,
    /// Local identifier; InfiniBand only.
    pub lid: Option<u32>,
}

impl Port {
    pub fn parse(payload: &[u8]) -> Result<Port> {
        let (mut port, mut device, mut index) = (Port::default(), None, None);
        for attribute in attributes(payload) {
            let (kind, value) = attribute?;
            match kind {
                DEV_INDEX => device = Some(number(value)?),
                PORT_INDEX => index = Some(number(value)?),
                PORT_STATE => port.state = Some(byte(value)?),
                PORT_PHYS_STATE => port.phys_state = Some(byte(value)?),
                NDEV_INDEX => port.ifindex = Some(number(value)?),
                NDEV_NAME => port.netdev = Some(string(value)),
                LID => port.lid = Some(number(value)?),
                _ => {}
            }
        }
        port.device = device.context("RDMA netlink reported a port without its device")?;
        port.number = index.context("RDMA netlink reported a port without a number")?;
        Ok(port)
    }

    /// The state in the words of sysfs (`state_name[]` in drivers/infiniband/core/sysfs.c).
    pub fn state_name(&self) -> Option<&'static str> {
        Some(match self.state? {
            0 => "NOP",
            1 => "DOWN",
            2 => "INIT",
            3 => "ARMED",
            4 => "ACTIVE",
            5 => "ACTIVE_DEFER",
            _ => "UNKNOWN",
        })
    }
}

/// A character device (nldev_get_chardev() in nldev.c).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharDev {
    pub name: String,
    pub major: u32,
    pub minor: u32,
    pub abi: Option<u64>,
    /// `enum rdma_driver_id` (include/uapi/rdma/ib_user_ioctl_verbs.h), for uverbs only: see
    /// [`CharDev::software`].
    pub driver: Option<u32>,
}

impl CharDev {
    pub fn parse(payload: &[u8]) -> Result<CharDev> {
        let (mut name, mut dev, mut abi, mut driver) = (None, None, None, None);
        for attribute in attributes(payload) {
            let (kind, value) = attribute?;
            match kind {
                CHARDEV_NAME => name = Some(string(value)),
                CHARDEV => dev = Some(wide(value)?),
                CHARDEV_ABI => abi = Some(wide(value)?),
                // rdma_netlink.h says u64, the kernel sends u32 (ib_uverbs_get_nl_info() in
                // uverbs_main.c).
                UVERBS_DRIVER_ID => driver = Some(number(value)?),
                _ => {}
            }
        }
        let name = name.context("RDMA netlink reported a character device without a name")?;
        let dev = dev.context("RDMA netlink reported a character device without a number")?;
        // huge_encode_dev() is new_encode_dev(): 12 bits of major between the minor's 8 low and 12
        // high bits.
        let (major, minor) = ((dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xfff00));
        ensure!(
            dev >> 32 == 0,
            "RDMA netlink reported {dev:#x} as a device number of {name}"
        );
        Ok(CharDev {
            name,
            major: major as u32,
            minor: minor as u32,
            abi,
            driver,
        })
    }

    /// The kind of link that made the device, when it is a software device: RDMA_DRIVER_RXE or
    /// RDMA_DRIVER_SIW.
    pub fn software(&self) -> Option<&'static str> {
        match self.driver {
            Some(14) => Some(Hca::RXE),
            Some(18) => Some("siw"),
            _ => None,
        }
    }
}

/// Reads the answer to [`Request::Counters`] (stat_get_doit_default_counter() in nldev.c).
pub fn counters(payload: &[u8]) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for attribute in attributes(payload) {
        let (STAT_HWCOUNTERS, table) = attribute? else {
            continue;
        };
        for entry in attributes(table) {
            let (STAT_HWCOUNTER_ENTRY, entry) = entry? else {
                continue;
            };
            let (mut name, mut count) = (None, None);
            for attribute in attributes(entry) {
                match attribute? {
                    (STAT_HWCOUNTER_ENTRY_NAME, value) => name = Some(string(value)),
                    (STAT_HWCOUNTER_ENTRY_VALUE, value) => count = Some(wide(value)?),
                    _ => {}
                }
            }
            all.extend(name.zip(count));
        }
    }
    Ok(all)
}

/// Reads the answer to [`Request::System`]; none from kernels before 5.3, which only know the
/// shared mode.
pub fn netns_mode(payload: &[u8]) -> Result<Option<RdmaMode>> {
    for attribute in attributes(payload) {
        match attribute? {
            (NETNS_MODE, [0]) => return Ok(Some(RdmaMode::Exclusive)),
            (NETNS_MODE, [1]) => return Ok(Some(RdmaMode::Shared)),
            (NETNS_MODE, value) => {
                bail!("RDMA netlink reported the unknown namespace mode {value:?}")
            }
            _ => {}
        }
    }
    Ok(None)
}

fn byte(value: &[u8]) -> Result<u8> {
    Ok(u8::from_ne_bytes(array(value)?))
}

fn number(value: &[u8]) -> Result<u32> {
    Ok(u32::from_ne_bytes(array(value)?))
}

fn wide(value: &[u8]) -> Result<u64> {
    Ok(u64::from_ne_bytes(array(value)?))
}
