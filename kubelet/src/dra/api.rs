//! kubelet's API for drivers: messages by the numbers of
//! staging/src/k8s.io/kubelet/pkg/apis/dra/v1/api.proto, pluginregistration/v1 and
//! dra-health/v1alpha1 beside it, of Kubernetes 1.36.

use std::collections::BTreeMap;

use prost::Message;

/// What the registration names; no path has these.
pub const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"];
pub const TYPE: &str = "DRAPlugin";

pub const INFO: &str = "/pluginregistration.Registration/GetInfo";
pub const STATUS: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
pub const PREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
pub const UNPREPARE: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
pub const HEALTH: &str = "/v1alpha1.DRAResourceHealth/NodeWatchResources";

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Info {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
pub struct Claim {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

/// NodePrepareResourcesRequest and NodeUnprepareResourcesRequest.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Claims {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

/// Each claim of the request is in it, by its UID.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Prepared {
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, PreparedClaim>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreparedClaim {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Device {
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub pool_name: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Unprepared {
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, UnpreparedClaim>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct UnpreparedClaim {
    #[prost(string, tag = "1")]
    pub error: String,
}

/// NodeWatchResourcesResponse: all devices of the node, each time.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Healths {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Health>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Health {
    #[prost(message, optional, tag = "1")]
    pub device: Option<Identifier>,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(int32, tag = "2")]
    pub health: i32,
    /// Seconds since 1970.
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    /// When what it says counts no more.
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
    #[prost(string, tag = "5")]
    pub message: String,
}

pub const HEALTHY: i32 = 1;
pub const UNHEALTHY: i32 = 2;

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Identifier {
    #[prost(string, tag = "1")]
    pub pool_name: String,
    #[prost(string, tag = "2")]
    pub device_name: String,
}
