use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a listener of ours says before the address that it was called from.
const HELLO: &str = "rdmaprep bootstrap ";
const PATIENCE: Duration = Duration::from_secs(1);
const LINE: u64 = 128;

/// The address that the kernel would send from. No packet is sent.
pub fn source(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

pub fn connect(to: SocketAddr, within: Duration) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&to, within)
}

pub fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(at)
}

/// Takes the first connection by then, tells it where it comes from, and where that is; nothing if
/// none came.
pub fn welcome(listener: &TcpListener, until: Instant) -> io::Result<Option<SocketAddr>> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((mut stream, from)) => {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(PATIENCE))?;
                // Who has gone again has been here all the same.
                let _ = stream.write_all(format!("{HELLO}{from}\n").as_bytes());
                return Ok(Some(from));
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) => {}
            Err(e) => return Err(e),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let time = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Where a listener of ours says that we come from; nothing where it is another program's. An
/// error: the connection was reset.
pub fn hello(stream: TcpStream) -> io::Result<Option<SocketAddr>> {
    let (until, mut said) = (Instant::now() + PATIENCE, Vec::new());
    while said.len() < LINE as usize && !said.contains(&b'\n') {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; LINE as usize];
        match (&stream).read(&mut bytes) {
            Ok(0) => break,
            Ok(n) => said.extend(bytes.iter().take(n)),
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(e) => return Err(e),
        }
    }
    let line = said.split(|b| *b == b'\n').next().unwrap_or_default();
    Ok(std::str::from_utf8(line)
        .ok()
        .and_then(|line| line.strip_prefix(HELLO)?.parse().ok()))
}
