//! The device plugin: rails that the kubelet counts.

pub mod api;
pub mod preferred;
pub mod service;
pub mod session;
