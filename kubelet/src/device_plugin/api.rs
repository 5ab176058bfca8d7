//! kubelet's device plugin API, package `v1beta1`: the messages and fields that are used, by the
//! numbers of staging/src/k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto of Kubernetes
//! 1.36.

use prost::Message;

pub const VERSION: &str = "v1beta1";
pub const KUBELET_DIR: &str = "/var/lib/kubelet/device-plugins";
/// Within that folder.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
pub const HEALTHY: &str = "Healthy";
pub const UNHEALTHY: &str = "Unhealthy";

pub const REGISTER: &str = "/v1beta1.Registration/Register";
pub const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
pub const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
pub const PREFERRED: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
pub const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
pub const PRE_START: &str = "/v1beta1.DevicePlugin/PreStartContainer";

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Options {
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegisterRequest {
    #[prost(string, tag = "1")]
    pub version: String,
    /// The socket's file name, in the kubelet's folder.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    #[prost(string, tag = "3")]
    pub resource_name: String,
    #[prost(message, optional, tag = "4")]
    pub options: Option<Options>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct NumaNode {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Topology {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NumaNode>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Device {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub health: String,
    #[prost(message, optional, tag = "3")]
    pub topology: Option<Topology>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Devices {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreferredRequest {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerPreferredRequest>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerPreferredRequest {
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    #[prost(int32, tag = "3")]
    pub size: i32,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreferredResponse {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Ids>,
}

/// ContainerPreferredAllocationResponse, ContainerAllocateRequest and PreStartContainerRequest:
/// each has this one field.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Ids {
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Ids>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Allocated>,
}

/// Its fields 1 to 4 are environment, mounts, device nodes and annotations: the CDI file has these.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Allocated {
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CdiDevice {
    /// `rdmaprep.io/rail=rdma0`.
    #[prost(string, tag = "1")]
    pub name: String,
}
