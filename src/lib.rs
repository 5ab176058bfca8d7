//! Gives a container its RDMA NICs, and returns them to the host unchanged.
//!
//! Every decision is a value before it is carried out, and every change of the host is recorded
//! before it is made. A room is a folder or a file directly below `src/`; it imports from its own
//! floor and from those below it. `scripts/layers.toml` sorts the rooms into floors, and
//! `scripts/check-layers` checks the imports. The floors from the top; an indented line continues
//! the floor of the line above it, and `;` separates what its rooms hold, in their order:
//!
//! ```text
//! commands, hook             a file for each command; a create, start or stop of a container
//! doctor, install            known failures with their fixes; files of engines, and their undo
//!   shim, report             rdmaprep-runtime; what a command or a hook prints and logs
//!   metrics                  what monitoring reads
//! restore, container         Record + Snapshot ─► RestorePlan; what config.json leaves to mount
//!   planner, cli             Request + host ─► Plan for one container; the command line as types
//! apply, store               runs steps, until one fails or the time is over; the run folder
//! kernel                     what the host is, and one step done to it: World and Namespaces
//! attach, verify             Plan + Snapshot ─► AttachPlan; Drift from what was meant
//!   record, precedence       Record of NICs that left the host; orders of routes and rules
//!   link_managers            what networkd, NetworkManager and udev say of a link
//! view, oci, cdi, cni        Plan ─► a container's /sys, config.json, CDI devices, CNI answer;
//!   drawing                  the drawing of `topo`
//! plan, nccl_env, agreement  Selection ─► Plan; NCCL's settings; rails that all nodes have
//! select                     Request + Snapshot ─► Selection: every NIC kept, or the reason
//! config, deadline, handle   flags + variables + config file ─► Request; clocks; open files
//!   disk, faults             files on the host's disks; points where a test makes us fail
//! ```
//!
//! Below are crates without knowledge of this one: `rdma-model` (names, snapshots, steps, error
//! classes), `rdma-netlink` (codecs, one socket), `nccl-rules` (what NCCL makes of its settings),
//! `rail-agreement` (the protocol of all nodes, and its stores) and `bpf-hooks`.
#![forbid(unsafe_code)]

pub mod config;
pub mod deadline;
pub mod disk;
pub mod faults;
pub mod handle;

pub mod select;

pub mod agreement;
pub mod nccl_env;
pub mod plan;

pub mod cdi;
pub mod cni;
pub mod drawing;
pub mod oci;
pub mod view;

pub mod attach;
pub mod link_managers;
pub mod precedence;
pub mod record;
pub mod verify;

pub mod kernel;

pub mod apply;
pub mod store;

pub mod cli;
pub mod container;
pub mod planner;
pub mod restore;

pub mod doctor;
pub mod install;
pub mod metrics;
pub mod report;
pub mod shim;

pub mod commands;
pub mod hook;
