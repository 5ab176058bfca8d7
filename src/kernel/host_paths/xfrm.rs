//! The other ends of IPsec: NETLINK_XFRM (include/uapi/linux/xfrm.h), which takes CAP_NET_ADMIN.
//! Packets of a tunnel leave for its other end, wherever the route to what they carried leads.

use std::io;
use std::net::IpAddr;

use nix::libc::{AF_INET, AF_INET6, EPROTONOSUPPORT};
use rdma_model::snapshot::Question;

use rdma_netlink::raw::{attributes, ip};
use rdma_netlink::socket::KernelSocket;

const NETLINK_XFRM: isize = 6;
const GET_STATES: u16 = 0x12;
const GET_POLICIES: u16 = 0x15;
/// The lengths of xfrm_userpolicy_info and xfrm_user_tmpl.
const POLICY: usize = 168;
const TEMPLATE: usize = 64;
const XFRMA_TMPL: u16 = 5;
/// XFRM_POLICY_OUT.
const OUT: u8 = 1;
/// XFRM_MODE_TUNNEL and XFRM_MODE_BEET: in the others packets have their own destination.
const TUNNELS: [u8; 2] = [1, 4];

/// Where the tunnels of this thread's namespace end: those that are up, and those that policies
/// want.
pub(super) fn ends() -> io::Result<Vec<Question>> {
    let mut socket = match KernelSocket::open(NETLINK_XFRM) {
        // A kernel without IPsec.
        Err(e) if e.raw_os_error() == Some(EPROTONOSUPPORT) => return Ok(Vec::new()),
        socket => socket?,
    };
    let states = socket.dump(GET_STATES, &[])?;
    let policies = socket.dump(GET_POLICIES, &[])?;
    let mut all: Vec<Question> = states
        .iter()
        .filter_map(|s| state(s))
        .chain(policies.iter().flat_map(|p| policy(p)))
        .collect();
    all.sort();
    all.dedup();
    Ok(all)
}

/// xfrm_usersa_info: a selector; xfrm_id with the other end; this end; limits, counters; the family
/// and the mode.
fn state(payload: &[u8]) -> Option<Question> {
    end(
        payload.get(56..)?,
        payload.get(80..)?,
        payload.get(212..)?,
        *payload.get(214)?,
    )
}

/// xfrm_userpolicy_info, and a list of templates: xfrm_id with the other end, the family, this end,
/// a number, the mode.
fn policy(payload: &[u8]) -> Vec<Question> {
    let Some((_, rest)) = payload
        .split_at_checked(POLICY)
        .filter(|(info, _)| info[160] == OUT)
    else {
        return Vec::new();
    };
    let list = attributes(rest)
        .ok()
        .and_then(|mut all| all.remove(&XFRMA_TMPL))
        .map(|list| list.0)
        .unwrap_or_default();
    list.chunks_exact(TEMPLATE)
        .filter_map(|t| end(t, &t[28..], &t[24..], t[48]))
        .collect()
}

fn end(to: &[u8], from: &[u8], family: &[u8], mode: u8) -> Option<Question> {
    let length = match i32::from(u16::from_ne_bytes(family.get(..2)?.try_into().ok()?)) {
        AF_INET => 4,
        AF_INET6 => 16,
        _ => return None,
    };
    let to = ip(to.get(..length)?).filter(|to| TUNNELS.contains(&mode) && !to.is_unspecified())?;
    let from = ip(from.get(..length)?).filter(|from: &IpAddr| !from.is_unspecified());
    Some(Question {
        from,
        ..Question::to(to)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state from 10.0.0.1 to 10.0.0.9; the test machine's kernel has no ESP.
    fn sample(family: i32, mode: u8) -> Vec<u8> {
        let mut bytes = vec![0; 224];
        bytes[56..60].copy_from_slice(&[10, 0, 0, 9]);
        bytes[80..84].copy_from_slice(&[10, 0, 0, 1]);
        bytes[212..214].copy_from_slice(&(family as u16).to_ne_bytes());
        bytes[214] = mode;
        bytes
    }

    #[test]
    fn states_of_tunnels_name_their_other_ends() {
        let seen = state(&sample(AF_INET, 1)).unwrap();
        assert_eq!(
            (seen.to.to_string(), seen.from.unwrap().to_string()),
            ("10.0.0.9".into(), "10.0.0.1".into())
        );
        assert_eq!(
            state(&sample(AF_INET6, 1)).unwrap().to.to_string(),
            "a00:9::"
        );
        assert_eq!(
            state(&sample(AF_INET, 0)),
            None,
            "transport mode changes no destination"
        );
        assert_eq!(state(&sample(0, 1)), None);
        assert_eq!(state(&sample(AF_INET, 1)[..214]), None);
        assert_eq!(policy(&[0; 20]), []);
    }
}
