//! What the kubelet is served with. The create hook moves the NICs, as for every engine that knows
//! CDI; nothing here changes the host's network. Each way is a program of its own in `bin/`.
//!
//! ```text
//! bin/                       flags, signals, one error
//! device_plugin              rails that the kubelet counts
//!   session                  sockets, registration, a kubelet that starts again
//!   service, preferred       the five calls of kubelet's; which rails belong together
//!   api                      its messages
//! dra                        rails that claims ask for
//!   session, service         sockets; the kubelet's calls
//!     driver, release        to prepare claims, and to end them
//!     health                 how rails are, for the status of pods
//!     tell, status             what the status of claims says
//!     refused, events          what the create hook said to their containers, and of it their pods
//!     tries                    what failed at the API server is tried again
//!     reserved, sharing      claims that are gone, or another pod's by now
//!     claim, binding         what is ours of a claim; its word on this node
//!     away                   whether its NICs are back
//!   publish, slice           the slice at the API server; what a node offers
//!   api_server, api          calls to the API server; the kubelet's messages
//! metrics                    what monitoring asks for
//! on_node                    rdmaprep on a pod's node: put there, and taken away again
//! program                    flags that the programs share, when to look
//!   watch                    what wakes them: inotify, route netlink, uevents
//! node                       rails and their resources, as they are now
//!   pools, host              the config file; the machine, by rdmaprep's library
//!     refusal                what the create hook would say of a rail
//!     rail                   a rail, as all of these know it
//! grpc, socket               calls on unix sockets
//!   authority                replaces the authority that the kubelet names, which h2 refuses
//! ```
#![forbid(unsafe_code)]

mod authority;
pub mod device_plugin;
pub mod dra;
pub mod grpc;
pub mod host;
pub mod metrics;
pub mod node;
pub mod on_node;
pub mod pools;
pub mod program;
pub mod rail;
pub mod refusal;
pub mod socket;
pub mod watch;
