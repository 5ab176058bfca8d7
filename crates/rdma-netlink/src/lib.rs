//! Route netlink, RDMA netlink, generic netlink and its families as bytes and values, and one
//! synchronous socket for them. Everything but [`socket`] is without I/O: messages are built and
//! read as bytes, into the values of `rdma-model`. Link names stay bytes, as for the kernel
//! ([`ifname_utf8`]). A length that the kernel reports is checked before it is used.
#![forbid(unsafe_code)]

mod af_spec;
pub mod counters;
pub mod dcb;
pub mod devconf;
pub mod ethtool;
pub mod generic;
pub mod ifname_utf8;
pub mod link_info;
pub mod lower_link;
pub mod neigh_parms;
pub mod nexthop;
mod nla;
pub mod nldev;
pub mod nldev_users;
pub mod qdisc;
pub mod raw;
pub mod reply;
pub mod route;
pub mod route_list;
pub mod route_lookup;
pub mod rtnl;
pub mod socket;
pub mod vf;

/// The end of setting several values: an error names those that were refused.
pub fn unless_refused(refused: Vec<String>) -> Result<(), String> {
    match refused[..] {
        [] => Ok(()),
        _ => Err(refused.join(", ")),
    }
}
