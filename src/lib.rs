//! Gives a container its RDMA NICs, and returns them to the host unchanged.
//!
//! Each stage takes values and returns one:
//!
//! ```text
//! flags + variables + config file ─► Request             config/, cli
//! route netlink, RDMA netlink, sysfs ─► Snapshot         kernel/
//! Request + Snapshot         ─► Selection                select/      every NIC kept or dropped, each with a reason
//! Selections of all nodes    ─► Agreement                agreement    the same rails on every node, or none
//! Request + Selection        ─► Plan                     plan/        the stored decision: NICs, environment, device nodes
//! kept NICs' state           ─► Rails                    plan/rails   ARP profile, a routing table per rail where needed
//! Plan + Tree of /sys        ─► Tree                     view         the /sys that the container sees
//! Plan + config.json         ─► config.json              oci/edit     before the runtime reads it: `prepare`, `spec`, the shim
//! rails of a Plan            ─► cdi::Spec                cdi          devices that engines add to config.json
//! Plan + config.json         ─► SetupPlan                container/   what config.json lacks; mounted while NICs move
//! Plan + fresh Snapshots     ─► Attach { steps, held }   attach       checked against the host as it is now
//! held                       ─► Record                   journal      written and synced before the first step
//! steps                      ─► apply, observe, Drift    apply, verify; Drift must be empty
//! Record + fresh Snapshots   ─► RestorePlan { steps }    restore/     for the same executor
//! Record of an earlier boot  ─► RebootPlan { steps }     restore/after_reboot
//! State of a container       ─► Outcome                  hook/        a create, start or stop: all of this, in order
//! Snapshot, Machine, Records ─► Diagnosis                doctor/      known failures, each with its fix
//! files of engines           ─► Installation { changes } install/     undone by the Manifest of what was there
//! ```
//!
//! A room imports from its own floor and from those below it; `scripts/check-layers` keeps that, by `scripts/layers.toml`:
//!
//! ```text
//! commands, hook                       composition: one file per command, one function per hook
//! report, doctor, install, shim        what people, engines and runtimes see
//! restore, planner, container, cli     return NICs; decide for one container, mount what it gets; the command line as types
//! kernel, handle, apply                the host: netlink, sysfs, mounts, namespaces, files; the only floor that touches it,
//!                                      for those above through two traits: World and Namespaces
//! journal, attach, verify, precedence  what is written down, lowered to steps, compared
//! view, oci, cdi, drawing              trees, config.json, device specifications, pictures
//! plan, nccl_env, agreement            the decision
//! select                               which NICs, and which links the host needs itself
//! config, deadline                     what is asked
//! ```
//!
//! Below them are crates that know nothing of this one: `rdma-model` (names, snapshots, trees, steps, error classes),
//! `rdma-netlink` (codecs and one socket), `nccl-rules` (what NCCL makes of its settings), `rail-agreement` (the protocol by
//! which all nodes agree on the same rails, and its stores) and `bpf-hooks`.
//!
//! Every decision is a value before anything is done, and every change is written down before it is made.
#![forbid(unsafe_code)]

// By floors, the lowest first.

// What is asked.
pub mod config;
pub mod deadline;

// Which NICs.
pub mod select;

// The decision.
pub mod agreement;
pub mod nccl_env;
pub mod plan;

// What it becomes for a container.
pub mod cdi;
pub mod drawing;
pub mod oci;
pub mod view;

// What is written down, lowered to steps, compared.
pub mod attach;
pub mod journal;
pub mod precedence;
pub mod verify;

// The host.
pub mod apply;
pub mod handle;
pub mod kernel;

// NICs and mounts, there and back; the command line.
pub mod cli;
pub mod container;
pub mod planner;
pub mod restore;

// What people, engines and runtimes see.
pub mod doctor;
pub mod install;
pub mod report;
pub mod shim;

// Composition.
pub mod commands;
pub mod hook;
