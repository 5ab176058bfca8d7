//! What `rdmaprep metrics` prints, by HTTP: one answer after the other, each client with a few
//! seconds for its request.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdmaprep::commands::metrics::Monitor;
use rdmaprep::store::Store;

/// For a request, and for an answer to be taken.
const TIME: Duration = Duration::from_secs(5);
/// Longer than any request of a monitoring.
const LONGEST: usize = 8 << 10;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Listens, and answers on a thread that ends with the program. [`ErrorClass::Usage`]: the address
/// is not this node's, or is taken.
pub fn start(address: SocketAddr, store: Store, log: fn(&str)) -> Result<()> {
    let doing = || format!("--metrics: listening at {address}");
    let listener = TcpListener::bind(address).class(ErrorClass::Usage, doing())?;
    let mut monitor = Monitor::new(store)?;
    thread::spawn(move || serve(&listener, || monitor.text(), log));
    log(&format!("metrics at http://{address}/metrics"));
    Ok(())
}

/// Returns only where no connection can be accepted any more.
pub fn serve(listener: &TcpListener, mut text: impl FnMut() -> Result<String>, log: fn(&str)) {
    for client in listener.incoming() {
        match client {
            // One that goes away, or is too slow, asks again.
            Ok(client) => drop(answer(client, &mut text)),
            Err(e) => {
                log(&format!("metrics: a connection: {e}"));
                // Of descriptors there may be enough in a moment.
                thread::sleep(TIME);
            }
        }
    }
}

fn answer(mut client: TcpStream, text: &mut impl FnMut() -> Result<String>) -> std::io::Result<()> {
    client.set_write_timeout(Some(TIME))?;
    let request = request(&mut client)?;
    let first = request.lines().next().unwrap_or_default();
    let words: Vec<&str> = first.split(' ').collect();
    let (status, kind, body) = match words[..] {
        ["GET", path, version] if version.starts_with("HTTP/1.") => match path {
            "/metrics" => match text() {
                Ok(text) => ("200 OK", OPENMETRICS, text),
                Err(e) => ("500 Internal Server Error", PLAIN, format!("{e:#}\n")),
            },
            _ => ("404 Not Found", PLAIN, "/metrics is here\n".to_owned()),
        },
        [_, _, version] if version.starts_with("HTTP/1.") => {
            ("405 Method Not Allowed", PLAIN, "GET alone\n".to_owned())
        }
        _ => (
            "400 Bad Request",
            PLAIN,
            "no request of HTTP/1\n".to_owned(),
        ),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
        Connection: close\r\n\r\n"
    );
    client.write_all(&[head, body].concat().into_bytes())
}

/// Up to the empty line, so that nothing is unread when the connection ends.
fn request(client: &mut TcpStream) -> std::io::Result<String> {
    let deadline = Instant::now() + TIME;
    let (mut read, mut part) = (Vec::new(), [0; 1024]);
    while !read.windows(4).any(|four| four == b"\r\n\r\n") && read.len() < LONGEST {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut part)? {
            0 => break,
            count => read.extend(part.iter().take(count)),
        }
    }
    Ok(String::from_utf8_lossy(&read).into_owned())
}
