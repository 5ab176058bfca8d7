//! PCI functions, and the nodes and processor that they are near.

use serde::{Deserialize, Serialize};

use crate::ids::BusId;

/// A PCI function as sysfs shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PciFunction {
    /// Address.
    pub address: BusId,
    /// 24-bit class: `0x020000` Ethernet, `0x060400` bridge, `0x03….` display.
    pub class: u32,
    /// Vendor id.
    #[serde(default)]
    pub vendor: u16,
    /// Device id.
    #[serde(default)]
    pub device: u16,
    /// Subsystem vendor id.
    #[serde(default)]
    pub subsystem_vendor: u16,
    /// Subsystem device id.
    #[serde(default)]
    pub subsystem_device: u16,
    /// Bound driver.
    #[serde(default)]
    pub driver: Option<String>,
    /// −1 where the platform does not say.
    #[serde(default)]
    pub numa: Option<i32>,
    /// The bridge above; absent on a root bus.
    #[serde(default)]
    pub bridge: Option<BusId>,
    /// `current_link_speed`, verbatim: `32.0 GT/s PCIe`.
    #[serde(default)]
    pub link_speed: Option<String>,
    /// `current_link_width` in lanes.
    #[serde(default)]
    pub link_width: Option<u32>,
    /// `max_link_speed`, verbatim.
    #[serde(default)]
    pub max_link_speed: Option<String>,
    /// `max_link_width` in lanes.
    #[serde(default)]
    pub max_link_width: Option<u32>,
    /// The PF of a VF.
    #[serde(default)]
    pub physfn: Option<BusId>,
}

impl PciFunction {
    /// Whether this is a GPU: a display controller of a vendor that makes compute GPUs, or a processing accelerator of AMD.
    pub fn is_gpu(&self) -> bool {
        matches!((self.class >> 16, self.vendor), (0x03, 0x10de | 0x1002 | 0x8086) | (0x12, 0x1002))
    }

    /// Whether this is a PCI-to-PCI bridge or switch port.
    pub fn is_bridge(&self) -> bool {
        self.class >> 8 == 0x0604
    }
}

/// A NUMA node (`devices/system/node/nodeN`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
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
    #[serde(default)]
    pub vendor: Option<String>,
    /// Family as /proc/cpuinfo counts it; x86 only.
    #[serde(default)]
    pub family: Option<u32>,
    /// Model as /proc/cpuinfo counts it; x86 only.
    #[serde(default)]
    pub model: Option<u32>,
}
