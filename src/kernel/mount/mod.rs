pub mod elf;
pub(crate) mod fsmount;
pub mod mntns;
pub mod mountinfo;
pub mod program;
pub mod rootfs;
