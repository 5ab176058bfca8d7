//! A NIC that a container has, with the state that the host gets back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::IfName;
use crate::manager::Managed;
use crate::nic::Nic;
use crate::snapshot::{CharDevice, Route, Stranger};
use crate::step::NicState;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MovedNic {
    pub nic: Nic,
    pub before: NicState,
    /// Its state in the container, which poststart sets again after a runtime that tore it down.
    pub inside: NicState,
    pub uverbs_before: Option<CharDevice>,
    /// Values of `conf/all` in the container's namespace that would have defeated its own: written
    /// before it came.
    #[serde(default)]
    pub overruled: BTreeMap<String, Overruled>,
    /// What the host has in place of routes with a leg over it: the legs that stayed, and those of
    /// NICs that returned first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_ins: Vec<Route>,
    /// The program that configures it on the host; absent where none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<Managed>,
    /// UUIDs of NetworkManager's profiles that fit the NIC, and that an administrator keeps it from
    /// activating there.
    #[serde(default, alias = "ended", skip_serializing_if = "Vec::is_empty")]
    pub ended_profiles: Vec<String>,
    /// Links of other namespaces that sat on the device below it before its container did anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Stranger>,
}

impl MovedNic {
    pub fn name(&self) -> &IfName {
        self.nic.name()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overruled {
    /// The earlier value, which a namespace that outlasts its container gets back.
    pub was: String,
    pub now: String,
}
