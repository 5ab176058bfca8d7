//! Resolves names with a deadline. The C library's resolver has none: it asks each server several
//! times, for 5 s each (resolv.conf(5), `timeout` and `attempts`).

use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use super::endpoint::Endpoint;

/// All addresses of a host, in the resolver's order. After the deadline a thread is left behind,
/// which ends with the resolver.
pub fn resolve(to: &Endpoint, until: Instant) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = to.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, to.port)]);
    }
    let ((said, heard), (host, port)) = (channel(), (to.host.clone(), to.port));
    std::thread::Builder::new().spawn(move || {
        let found = (host.as_str(), port)
            .to_socket_addrs()
            .map(Iterator::collect);
        // The receiver may have timed out.
        let _ = said.send(found);
    })?;
    let left = until.saturating_duration_since(Instant::now());
    heard.recv_timeout(left).unwrap_or_else(|e| match e {
        RecvTimeoutError::Timeout => Err(Error::new(
            ErrorKind::TimedOut,
            "DNS has not answered in time",
        )),
        RecvTimeoutError::Disconnected => Err(Error::other("the thread that asks DNS has ended")),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_address_asks_nobody_and_a_name_no_longer_than_it_may() {
        let now = Instant::now();
        assert_eq!(
            resolve(&"[::1]:5".parse().unwrap(), now).unwrap(),
            ["[::1]:5".parse().unwrap()]
        );
        assert_eq!(
            resolve(&"no-such-host.invalid:5".parse().unwrap(), now)
                .unwrap_err()
                .kind(),
            ErrorKind::TimedOut
        );
        let found = resolve(
            &"localhost:5".parse().unwrap(),
            now + Duration::from_secs(10),
        )
        .unwrap();
        assert!(
            found.iter().all(|a| a.ip().is_loopback() && a.port() == 5),
            "{found:?}"
        );
    }
}
