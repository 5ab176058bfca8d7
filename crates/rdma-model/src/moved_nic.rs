//! A NIC that a container has, with the state that the host gets back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::nic::Nic;
use crate::snapshot::{CharDevice, Route};
use crate::step::NicState;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MovedNic {
    pub nic: Nic,
    pub before: NicState,
    /// Its state in the container, which poststart sets again after a runtime that tore it down.
    pub inside: NicState,
    pub uverbs_before: Option<CharDevice>,
    /// Values of `conf/all` in the container's namespace that would have defeated its own: written before it came.
    #[serde(default)]
    pub overruled: BTreeMap<String, Overruled>,
    /// What the host has in place of routes with a leg over it: the legs that stayed, and those of
    /// NICs that returned first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stand_ins: Vec<Route>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overruled {
    /// The earlier value, which a namespace that outlasts its container gets back.
    pub was: String,
    pub now: String,
}
