//! Gives a container its RDMA network cards, and the host everything back.
//!
//! Data goes one way; each stage is a file, a public noun and a public verb, takes values made above it and returns one:
//!
//! ```text
//! stdin + flags + config file ─► Request, State
//!                                Snapshot  ◄─ observe (route netlink, RDMA netlink, sysfs)
//! Request + Snapshot         ─► Selection  every NIC kept or dropped, each with a reason
//! Request + Selection        ─► Plan       the stored decision: NICs, environment, device nodes
//! Selections of all nodes    ─► Agreement  the same rails everywhere, or none
//! kept NICs' state           ─► Rails      ARP profile, and a routing table per rail where one for all will not do
//! Plan + Tree of /sys        ─► View       what the container sees: a Tree, too
//! Snapshot + the kept HCAs   ─► Topology   NCCL_TOPO_FILE; Picture: the same for people
//! Plan + View + config.json  ─► config.json                                  before the runtime reads it; `shim` is that moment
//!                                                                            where an engine knows nothing but a runtime
//! rails of a Plan            ─► cdi::Spec  devices that engines add to config.json; what they ask for together comes back
//!                                          to the hook as `asked`
//! Plan + View + Bundle       ─► Outfit     what config.json lacks: the hook mounts it while the NICs move
//! Plan + fresh Snapshots     ─► Attach { steps, what is held }               when the namespaces exist
//! what is held               ─► Record     written and synced before the first step
//! steps                      ─► apply      ─► observe again ─► Drift (must be empty)
//! Settings + Snapshot        ─► Explanation   what NCCL makes of it
//! Snapshot, Machine, Records ─► Diagnosis     known failures, each with its fix
//! Record + fresh Snapshots   ─► Homecoming { steps }    the way home is a plan, too, for the same executor
//! Record of an earlier boot  ─► Aftermath { steps }     what nobody has configured since
//! files of engines + Wanted  ─► Installation { changes }  and back, by the Ledger of what was there
//! ```
//!
//! Four crates below this one know nothing of it: `rdma-model` (names, snapshots, trees, steps, error classes), `rdma-netlink`
//! (codecs and one socket), `nccl-rules` (what NCCL makes of its settings), `rail-agreement` (the protocol by which all nodes
//! agree on the same rails, and its stores).
//!
//! Everything decided is data before anything is done, and everything done is written down before it is done. Only
//! [`kernel`] touches the machine, and `rail-agreement` its stores; [`commands`] and [`hook`] are the only composition.
#![forbid(unsafe_code)]

// In the order of the flow: what is asked, what is seen, what is decided, what is done, what is told.
pub mod cdi;
pub mod cli;
pub mod shim;

pub mod handle;

pub mod protected_ifaces;
pub mod select;

pub mod agreement;
pub mod nccl_env;
pub mod plan;
pub mod view;

pub mod attach;
pub mod journal;
pub mod precedence;

pub mod apply;
pub mod kernel;
pub mod verify;

pub mod install;

pub mod doctor;
pub mod drawing;
pub mod report;

pub mod commands;
pub mod config;
pub mod container;
pub mod deadline;
pub mod hook;
pub mod oci;
pub mod restore;
