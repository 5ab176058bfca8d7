//! PCI functions, and the nodes and processor that they are near.

use serde::{Deserialize, Serialize};

use crate::ids::BusId;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PciFunction {
    pub address: BusId,
    /// 24-bit class: `0x020000` Ethernet, `0x060400` bridge, `0x03….` display.
    pub class: u32,
    #[serde(default)]
    pub vendor: u16,
    #[serde(default)]
    pub device: u16,
    #[serde(default)]
    pub subsystem_vendor: u16,
    #[serde(default)]
    pub subsystem_device: u16,
    pub driver: Option<String>,
    /// −1 where the platform does not say.
    pub numa: Option<i32>,
    /// The bridge above; absent on a root bus.
    pub bridge: Option<BusId>,
    /// `current_link_speed`, verbatim: `32.0 GT/s PCIe`.
    pub link_speed: Option<String>,
    pub link_width: Option<u32>,
    pub max_link_speed: Option<String>,
    pub max_link_width: Option<u32>,
    pub physfn: Option<BusId>,
}

impl PciFunction {
    /// Whether this is a GPU: a display controller of a vendor that makes compute GPUs, or a
    /// processing accelerator of AMD.
    pub fn is_gpu(&self) -> bool {
        matches!(
            (self.class >> 16, self.vendor),
            (0x03, 0x10de | 0x1002 | 0x8086) | (0x12, 0x1002)
        )
    }

    /// Whether an HCA of Mellanox (ConnectX-8) reads GPUs through this function, which has neither
    /// an HCA nor a netdev. Which HCA, only that HCA's verbs node says
    /// (MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH; drivers/infiniband/hw/mlx5/data_direct.c).
    pub fn is_data_direct(&self) -> bool {
        (self.vendor, self.device) == (0x15b3, 0x2100)
    }

    pub fn is_bridge(&self) -> bool {
        self.class >> 8 == 0x0604
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    pub id: i32,
    /// Its processors as a mask, verbatim: 32 bits in hex between commas, the highest first.
    pub cpumap: String,
}

/// What the kernel knows the processors by (`devices/system/cpu/modalias`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// `x86_64`, `arm64`, `ppc64`: NCCL's words; else the kernel's.
    pub arch: String,
    /// `GenuineIntel`, `AuthenticAMD`, … as CPUID spells it; x86 only.
    pub vendor: Option<String>,
    /// Family as /proc/cpuinfo counts it; x86 only.
    pub family: Option<u32>,
    pub model: Option<u32>,
}
