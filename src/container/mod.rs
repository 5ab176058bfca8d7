pub mod apply_mounts;
pub mod facts;
pub mod late_conf;
mod mount_point;
pub mod mounts;
mod nccl_conf;
pub mod running_setup;
pub mod sandbox;
pub mod setup;
