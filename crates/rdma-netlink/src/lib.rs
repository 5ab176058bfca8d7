//! Route netlink, RDMA netlink, generic netlink and its families as bytes and values, and one synchronous socket for them.
//!
//! Everything but [`socket`] is without I/O: messages are built and read as bytes, into the values of `rdma-model`. A name of a
//! link is bytes to the kernel, and stays so ([`ifname_utf8`]). A length that the kernel tells is checked before it is used.
//!
//! - [`socket`]: sequence numbers, a deadline, answers of any size, lists that were interrupted are asked again
//! - [`raw`], [`reply`], [`generic`]: messages as a header and attributes by number
//! - [`devconf`], [`neigh_parms`]: sysctls of a link that route netlink reports
//! - [`rtnl`], [`route`], [`route_lookup`], [`nexthop`], [`qdisc`], [`link_info`], [`lower_link`], [`vf`]: route netlink
//! - [`nldev`], [`nldev_users`]: RDMA netlink
//! - [`ethtool`]: generic netlink; [`dcb`]: Data Center Bridging
#![forbid(unsafe_code)]

pub mod dcb;
pub mod devconf;
pub mod ethtool;
pub mod generic;
pub mod ifname_utf8;
pub mod link_info;
pub mod lower_link;
pub mod neigh_parms;
pub mod nexthop;
pub mod nldev;
pub mod nldev_users;
pub mod qdisc;
pub mod raw;
pub mod reply;
pub mod route;
pub mod route_lookup;
pub mod rtnl;
pub mod socket;
pub mod vf;
