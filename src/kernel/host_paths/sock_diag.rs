//! Connections of a network namespace: NETLINK_SOCK_DIAG (include/uapi/linux/inet_diag.h), or
//! /proc/net where the kernel has none of it.

use std::io;
use std::net::IpAddr;

use nix::libc::{AF_INET, AF_INET6, ENOENT, EOPNOTSUPP, EPROTONOSUPPORT, IPPROTO_TCP, IPPROTO_UDP};

use rdma_netlink::raw::{attributes, ip, word};
use rdma_netlink::socket::KernelSocket;

const NETLINK_SOCK_DIAG: isize = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Lists sockets of both families in one walk of the kernel's table, which is as large as its
/// memory (inet_diag_dump_compat() in net/ipv4/inet_diag.c); there is none for UDP.
const TCPDIAG_GETSOCK: u16 = 18;
/// TCP_ESTABLISHED, which is also the state of a UDP socket that is connected, TCP_SYN_SENT and
/// TCP_SYN_RECV: a mount may wait for its server for hours. Sockets that are to be accepted have
/// the last one, too (inet_diag_dump_icsk() in net/ipv4/inet_diag.c). TCP_CLOSE_WAIT, TCP_FIN_WAIT1
/// and TCP_FIN_WAIT2: one end has said that it sends no more, and the other may (shutdown(2)).
const WITH_ANOTHER_END: [u32; 6] = [1, 2, 3, 8, 4, 5];
/// In these a socket stays for a while after its owner closed it: it then has no inode
/// (inet_twsk_diag_fill()).
const AFTER_CLOSE: [u32; 2] = [4, 5];
/// The length of inet_diag_msg.
const INET_DIAG_MSG: usize = 72;
const INET_DIAG_SOCKID: usize = 48;
/// IPv4's and IPv6's types of service, which are given where they are asked for (idiag_ext).
const INET_DIAG_TOS: u16 = 5;
const INET_DIAG_TCLASS: u16 = 6;
const EXTENSIONS: u8 = 1 << (INET_DIAG_TOS - 1) | 1 << (INET_DIAG_TCLASS - 1);
/// It takes CAP_NET_ADMIN.
const INET_DIAG_MARK: u16 = 15;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sock {
    pub(crate) protocol: u8,
    pub(crate) local: (IpAddr, u16),
    pub(crate) remote: (IpAddr, u16),
    pub(crate) oif: Option<u32>,
    pub(crate) mark: Option<u32>,
    /// Its type of service, without the bits of ECN, which no route looks at; 0 where it is not
    /// known.
    pub(crate) tos: u8,
    pub(crate) uid: u32,
}

pub(crate) struct Sockets {
    pub(crate) list: Vec<Sock>,
    /// Whether it is known of each which link it is bound to.
    pub(crate) has_links: bool,
}

/// Every TCP socket that is connected or about to be, and every connected UDP socket of the calling
/// thread's namespace.
pub(crate) fn connected() -> io::Result<Sockets> {
    match by_netlink() {
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(ENOENT | EOPNOTSUPP | EPROTONOSUPPORT)
            ) =>
        {
            Ok(Sockets {
                list: by_proc()?,
                has_links: false,
            })
        }
        other => Ok(Sockets {
            list: other?,
            has_links: true,
        }),
    }
}

fn by_netlink() -> io::Result<Vec<Sock>> {
    let mut socket = KernelSocket::open(NETLINK_SOCK_DIAG)?;
    let mut all = match socket.dump(TCPDIAG_GETSOCK, &tcp_of_all_families()) {
        Ok(answers) => socks(&answers, IPPROTO_TCP),
        // Of a kernel that has no such request any more.
        Err(_) => of_each_family(&mut socket, IPPROTO_TCP)?,
    };
    all.append(&mut of_each_family(&mut socket, IPPROTO_UDP)?);
    Ok(all)
}

/// inet_diag_req with an empty inet_diag_sockid, which fits every socket.
fn tcp_of_all_families() -> Vec<u8> {
    let mut body = vec![0, 0, 0, EXTENSIONS];
    body.extend([0; INET_DIAG_SOCKID]);
    body.extend(states().to_ne_bytes());
    body.extend([0; 4]);
    body
}

fn of_each_family(socket: &mut KernelSocket, protocol: i32) -> io::Result<Vec<Sock>> {
    let mut all = Vec::new();
    for family in [AF_INET, AF_INET6] {
        // inet_diag_req_v2.
        let mut body = vec![family as u8, protocol as u8, EXTENSIONS, 0];
        body.extend(states().to_ne_bytes());
        body.extend([0; INET_DIAG_SOCKID]);
        all.append(&mut socks(
            &socket.dump(SOCK_DIAG_BY_FAMILY, &body)?,
            protocol,
        ));
    }
    Ok(all)
}

fn socks(answers: &[Vec<u8>], protocol: i32) -> Vec<Sock> {
    let all = answers.iter();
    all.filter_map(|answer| sock(answer, protocol as u8))
        .collect()
}

fn states() -> u32 {
    WITH_ANOTHER_END
        .iter()
        .fold(0, |all, state| all | 1 << state)
}

fn is_open(state: u32, inode: u32) -> bool {
    WITH_ANOTHER_END.contains(&state) && (inode != 0 || !AFTER_CLOSE.contains(&state))
}

/// inet_diag_msg: family, state, timer, retrans; inet_diag_sockid: ports, addresses, the link, a
/// cookie; expires, rqueue, wqueue, uid, inode.
fn sock(payload: &[u8], protocol: u8) -> Option<Sock> {
    let (message, rest) = payload.split_at_checked(INET_DIAG_MSG)?;
    is_open(u32::from(message[1]), word(message.get(68..72)?)?).then_some(())?;
    let oif = word(message.get(40..44)?).filter(|index| *index != 0);
    let all = attributes(rest).unwrap_or_default();
    let mark = all.get(&INET_DIAG_MARK).and_then(|value| word(&value.0));
    let (local, remote) = (end(message, 8, 4)?, end(message, 24, 6)?);
    // A socket of IPv6 may talk IPv4, and then its packets have the type of service of that.
    let of_family = if remote.0.is_ipv4() {
        INET_DIAG_TOS
    } else {
        INET_DIAG_TCLASS
    };
    let tos = all
        .get(&of_family)
        .and_then(|value| value.0.first())
        .map_or(0, |tos| tos & 0xfc);
    Some(Sock {
        protocol,
        local,
        remote,
        oif,
        mark,
        tos,
        uid: word(message.get(64..68)?)?,
    })
}

/// One end of a connection, from where its address and its port are in inet_diag_msg.
fn end(message: &[u8], address: usize, port: usize) -> Option<(IpAddr, u16)> {
    let length = if i32::from(message[0]) == AF_INET {
        4
    } else {
        16
    };
    let address = ip(message.get(address..address + length)?)?.to_canonical();
    let port = message.get(port..port + 2)?.try_into().ok()?;
    Some((address, u16::from_be_bytes(port)))
}

fn by_proc() -> io::Result<Vec<Sock>> {
    let mut all = Vec::new();
    for (name, protocol) in [
        ("tcp", IPPROTO_TCP),
        ("tcp6", IPPROTO_TCP),
        ("udp", IPPROTO_UDP),
        ("udp6", IPPROTO_UDP),
    ] {
        match std::fs::read_to_string(format!("/proc/thread-self/net/{name}")) {
            Ok(text) => all.extend(
                text.lines()
                    .filter_map(|line| line_of_proc(line, protocol as u8)),
            ),
            // A kernel without IPv6.
            Err(e) if e.kind() == io::ErrorKind::NotFound && name.ends_with('6') => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// `sl local remote state …` (get_tcp4_sock() in net/ipv4/tcp_ipv4.c): words of an address as
/// numbers of this machine.
fn line_of_proc(line: &str, protocol: u8) -> Option<Sock> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, state, _, _, _, uid, _, inode, ..] = fields[..] else {
        return None;
    };
    is_open(u32::from_str_radix(state, 16).ok()?, inode.parse().ok()?).then_some(())?;
    let (local, remote) = (end_of_proc(local)?, end_of_proc(remote)?);
    Some(Sock {
        protocol,
        local,
        remote,
        oif: None,
        mark: None,
        tos: 0,
        uid: uid.parse().ok()?,
    })
}

/// `ADDRESS:PORT`, of which the address is one word or four.
fn end_of_proc(field: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = field.split_once(':')?;
    let mut bytes = Vec::new();
    for at in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((ip(&bytes)?.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_lines_are_read_as_the_kernel_writes_them() {
        let v4 = "   1: 0100000A:0016 0900000A:C35A 01 00000000:00000000 02:0007 00000000  1000 0 \
            12345 2 0000";
        let read = line_of_proc(v4, 6).unwrap();
        let ends = |s: &Sock| {
            (
                s.local.0.to_string(),
                s.local.1,
                s.remote.0.to_string(),
                s.remote.1,
                s.uid,
            )
        };
        if cfg!(target_endian = "little") {
            assert_eq!(
                ends(&read),
                ("10.0.0.1".into(), 22, "10.0.0.9".into(), 50010, 1000)
            );
            let v6 = "0: 000000FD000000000000000001000000:0801 \
                000000FD000000000000000009000000:03E8 01 0:0 0:0 0 0 0 7";
            let read = line_of_proc(v6, 6).unwrap();
            assert_eq!(
                ends(&read),
                ("fd00::1".into(), 2049, "fd00::9".into(), 1000, 0)
            );
        }
        assert_eq!(
            line_of_proc(&v4.replace(" 01 ", " 02 "), 6),
            Some(read),
            "it is about to be connected"
        );
        assert_eq!(
            line_of_proc(&v4.replace(" 01 ", " 0A "), 6),
            None,
            "a listening socket has no other end"
        );
        assert_eq!(
            line_of_proc("  sl  local_address rem_address   st", 6),
            None
        );
    }
}
