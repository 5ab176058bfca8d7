//! A rail, as the device plugin shows it.

use ipnet::IpNet;
use serde::Serialize;

/// A rail as the CDI file names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rail {
    pub name: String,
    /// Absent where the platform does not say.
    pub numa: Option<i64>,
    /// Of its port; absent where that is not known.
    pub speed_gbps: Option<u32>,
    pub addresses: Vec<IpNet>,
    /// To each GPU of the node, in their order; 0 is the nearest kind.
    #[serde(skip)]
    pub distances: Vec<u8>,
    /// Why no container can have it now.
    pub unhealthy: Option<String>,
    /// No notification says when that is over.
    #[serde(skip)]
    pub unreported: bool,
}

/// By resource, in the order of the config file, its rails in the order of rails.
pub type Shown = Vec<(String, Vec<Rail>)>;
