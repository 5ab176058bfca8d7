//! What uses an RDMA device: the connections of its manager as nldev reports them
//! (fill_res_cm_id_entry() in drivers/infiniband/core/nldev.c). Storage over RDMA has no sockets,
//! and is seen here alone. Queue pairs are not listed: that asks the card's firmware of each, and
//! all storage of the kernel over RoCE connects by the manager.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use nix::libc::{AF_INET, AF_INET6};

use crate::reply::{array, attributes, string};

// enum rdma_nldev_attr
const PORT_INDEX: u16 = 3;
const RES_STATE: u16 = 27;
const RES_KERN_NAME: u16 = 29;
const RES_CM_ID: u16 = 30;
const RES_CM_ID_ENTRY: u16 = 31;
const RES_DST_ADDR: u16 = 34;

/// RDMA_CM_CONNECT (include/rdma/rdma_cm.h).
const CONNECTED: u8 = 5;
/// Its netdev is judged as any other.
const IPOIB: &str = "ib_ipoib";

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelUse {
    pub user: String,
    pub port: Option<u32>,
    pub peer: Option<IpAddr>,
}

/// Each connection once, from the answers to [`crate::nldev::Request::Connections`]. Those of
/// processes have a PID instead of a module.
pub fn kernel_uses(connections: &[Vec<u8>]) -> Result<Vec<KernelUse>> {
    // A controller has a queue for each processor.
    let mut found = BTreeSet::new();
    for payload in connections {
        for top in attributes(payload) {
            let (kind, list) = top?;
            for one in attributes(list).filter(|_| kind == RES_CM_ID) {
                let (kind, value) = one?;
                found.extend(if kind == RES_CM_ID_ENTRY {
                    of_kernel(value)?
                } else {
                    None
                });
            }
        }
    }
    Ok(found.into_iter().collect())
}

fn of_kernel(entry: &[u8]) -> Result<Option<KernelUse>> {
    let (mut one, mut state) = (KernelUse::default(), None);
    for attribute in attributes(entry) {
        let (number, value) = attribute?;
        match number {
            PORT_INDEX => {
                one.port = Some(u32::from_ne_bytes(array(value)?)).filter(|port| *port != 0)
            }
            RES_STATE => state = value.first().copied(),
            RES_KERN_NAME => one.user = string(value),
            RES_DST_ADDR => one.peer = address(value),
            _ => {}
        }
    }
    Ok(Some(one)
        .filter(|one| state == Some(CONNECTED) && !one.user.is_empty() && one.user != IPOIB))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?)) {
        AF_INET => Some(IpAddr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?)),
        AF_INET6 => {
            Some(IpAddr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?).to_canonical())
        }
        _ => None,
    }
}
