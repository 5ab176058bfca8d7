//! The client of PyTorch's TCPStore, against a server with the manners of both of PyTorch's.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rail_agreement::c10d::C10d;
use rail_agreement::endpoint::Endpoint;
use rail_agreement::{Store, agree};
use support::fake::{Fake, Manner, rude, trickle};
use support::setup;

const MANNERS: [Manner; 2] = [Manner::Libuv, Manner::Legacy];

fn endpoint(address: SocketAddr) -> Endpoint {
    address.to_string().parse().unwrap()
}

fn connect(address: SocketAddr, seconds: u64) -> anyhow::Result<C10d> {
    C10d::connect(
        endpoint(address),
        Instant::now() + Duration::from_secs(seconds),
        Duration::ZERO,
    )
}

fn one(key: &str, value: &[u8]) -> Vec<(String, Vec<u8>)> {
    vec![(key.to_owned(), value.to_vec())]
}

fn keys(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn soon(millis: u64) -> Instant {
    Instant::now() + Duration::from_millis(millis)
}

#[test]
fn both_servers_do_all_that_is_asked() {
    for manner in MANNERS {
        let server = Fake::start(manner);
        let mut store = connect(server.address, 10).unwrap();
        store.put(&one("a", b"1")).unwrap();
        store
            .put(&[("b".into(), b"2".to_vec()), ("c".into(), b"3".to_vec())])
            .unwrap();
        let three = Some(vec![b"1".to_vec(), b"2".to_vec(), b"3".to_vec()]);
        assert_eq!(
            store.get(&keys(&["a", "b", "c"]), soon(1000)).unwrap(),
            three,
            "{manner:?}"
        );
        assert_eq!(store.get(&keys(&["a", "x"]), Instant::now()).unwrap(), None);
        assert_eq!(
            store.read(&keys(&["x", "b", "y"])).unwrap(),
            [None, Some(b"2".to_vec()), None]
        );
        assert_eq!(
            store.missing(&keys(&["a", "x", "b", "y", "z"]), 2).unwrap(),
            [1, 3]
        );
        store.delete(&keys(&["a", "x"])).unwrap();
        assert!(!store.check(&keys(&["a"])).unwrap() && store.check(&keys(&["b", "c"])).unwrap());
        assert_eq!(store.get(&[], Instant::now()).unwrap(), Some(Vec::new()));
        assert!(server.keys().contains(&"b".to_owned()) && store.warning().is_none());
        assert_eq!(server.connections.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn wait_ends_by_key_or_deadline_and_keeps_the_connection() {
    for manner in MANNERS {
        let server = Fake::start(manner);
        let mut store = connect(server.address, 10).unwrap();
        for _ in 0..20 {
            let start = Instant::now();
            assert_eq!(store.get(&keys(&["late"]), soon(20)).unwrap(), None);
            assert!((20..2000).contains(&start.elapsed().as_millis()));
        }
        let address = server.address;
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            connect(address, 10)
                .unwrap()
                .put(&one("late", b"v"))
                .unwrap();
        });
        assert_eq!(
            store.get(&keys(&["late"]), soon(8000)).unwrap(),
            Some(vec![b"v".to_vec()])
        );
        other.join().unwrap();
        assert_eq!(server.connections.load(Ordering::Relaxed), 2);
    }
}

/// The key comes just while the wait is called off: the answers to both are read, in whatever
/// order.
#[test]
fn a_key_that_comes_while_the_wait_is_called_off_is_there() {
    for manner in MANNERS {
        let server = Fake::start(manner);
        let mut store = connect(server.address, 30).unwrap();
        let mut came = 0;
        for round in 0..200 {
            let key = format!("k{round}");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_micros(500 + round * 50));
                    server.set(&key, b"v");
                });
                came += usize::from(store.get(&keys(&[&key]), soon(2)).unwrap().is_some());
            });
            assert_eq!(
                store.get(&keys(&[&key]), soon(5000)).unwrap(),
                Some(vec![b"v".to_vec()]),
                "{manner:?} {round}"
            );
        }
        assert!(
            (1..200).contains(&came),
            "{came} of 200 came in time: both ways are to be seen"
        );
    }
}

#[test]
fn key_deleted_during_a_wait_is_none_on_every_server() {
    // A server without libuv closes the connection on a MULTI_GET of a missing key: here on each
    // that it sees.
    let server = Fake::start(Manner::Legacy);
    let upstream = server.address;
    let address = rude(move |mut client| {
        let mut server = std::net::TcpStream::connect(upstream).unwrap();
        let mut buffer = [0; 4096];
        let mut back = server.try_clone().unwrap();
        let mut to = client.try_clone().unwrap();
        std::thread::spawn(move || std::io::copy(&mut back, &mut to));
        loop {
            let n = client.read(&mut buffer).unwrap_or(0);
            if n == 0 || buffer[0] == 10 {
                let _ = client.shutdown(std::net::Shutdown::Both);
                return;
            }
            server.write_all(&buffer[..n]).unwrap();
        }
    });
    server.set("a", b"1");
    let mut store = connect(address, 10).unwrap();
    assert!(
        store.get(&keys(&["a"]), soon(1000)).is_err(),
        "it is there, and is refused twice"
    );
    let mut store = connect(address, 10).unwrap();
    assert_eq!(store.get(&keys(&["gone"]), Instant::now()).unwrap(), None);
}

#[test]
fn server_that_starts_late_is_awaited_until_the_deadline() {
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let start = Instant::now();
    let e = connect(address, 1).unwrap_err();
    let text = format!("{e:#}");
    assert!(
        text.contains(&format!("no connection to the store {address}")) && text.contains("refused"),
        "{text}"
    );
    assert!((900..3000).contains(&start.elapsed().as_millis()));
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        Fake::at(&address.to_string(), Manner::Libuv)
    });
    connect(address, 10).unwrap();
    drop(late.join().unwrap());
    let e = C10d::connect(
        "no-such-host.invalid:1".parse().unwrap(),
        soon(300),
        Duration::ZERO,
    )
    .unwrap_err();
    assert!(
        format!("{e:#}").contains("resolving no-such-host.invalid"),
        "{e:#}"
    );
}

#[test]
fn each_address_is_tried_and_ipv6_is_one() {
    // localhost is both, and the server listens on one of them.
    let server = Fake::start(Manner::Libuv);
    let to = format!("localhost:{}", server.address.port())
        .parse()
        .unwrap();
    let store = C10d::connect(to, soon(5000), Duration::ZERO).unwrap();
    assert_eq!(store.address().to_string(), "127.0.0.1");
    let server = Fake::at("[::1]:0", Manner::Legacy);
    assert_eq!(
        connect(server.address, 5).unwrap().address().to_string(),
        "::1"
    );
}

/// A tunnel whose other end is not up yet takes a connection, and closes it.
#[test]
fn one_that_closes_a_few_connections_is_tried_again() {
    let (server, came) = (Fake::start(Manner::Libuv), AtomicU64::new(0));
    let upstream = server.address;
    let tunnel = rude(move |client| {
        if came.fetch_add(1, Ordering::Relaxed) < 4 {
            return;
        }
        let server = std::net::TcpStream::connect(upstream).unwrap();
        let (mut back, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut back, &mut to));
        let _ = std::io::copy(&mut &client, &mut &server);
    });
    let mut store = connect(tunnel, 60).unwrap();
    store.put(&one("a", b"1")).unwrap();
    assert!(server.keys().contains(&"a".to_owned()));
    // Of two addresses one closes, the other is a store.
    let port = server.address.port();
    let closing = TcpListener::bind(("::1", port)).unwrap();
    std::thread::spawn(move || closing.incoming().for_each(drop));
    let to = format!("localhost:{port}").parse().unwrap();
    let store = C10d::connect(to, soon(60_000), Duration::ZERO).unwrap();
    assert_eq!(store.address().to_string(), "127.0.0.1");
}

#[test]
fn who_is_no_store_is_found_out_in_time() {
    let closing = rude(drop);
    let start = Instant::now();
    let e = connect(closing, 60).unwrap_err();
    assert!(
        format!("{e:#}").contains("no TCPStore, or one of PyTorch before 2.2"),
        "{e:#}"
    );
    assert!(
        (10..40).contains(&start.elapsed().as_secs()),
        "{:?}",
        start.elapsed()
    );
    for silent in [
        rude(|s| trickle(s, &[], Duration::ZERO)),
        rude(|mut s| {
            drop(
                s.read(&mut [0; 1 << 16])
                    .map(|_| std::thread::sleep(Duration::from_secs(20))),
            )
        }),
    ] {
        let start = Instant::now();
        let e = connect(silent, 1).unwrap_err();
        let text = format!("{e:#}");
        assert!(
            text.contains("is it a TCPStore?") || text.contains("closes the connection"),
            "{text}"
        );
        assert!(
            start.elapsed() < Duration::from_secs(4),
            "{:?}",
            start.elapsed()
        );
    }
    // One that answers a byte at a time for ever.
    let endless = rude(|s| trickle(s, &[1; 4000], Duration::from_millis(50)));
    let start = Instant::now();
    let result = connect(endless, 2).and_then(|mut s| s.get(&keys(&["a"]), soon(100)));
    assert!(
        result.is_err() && start.elapsed() < Duration::from_secs(5),
        "{result:?}"
    );
}

/// Slowness, silence and another protocol are three things.
#[test]
fn a_slow_store_is_no_wrong_one_and_a_silent_one_is_asked_about() {
    let slow = rude(|mut s| {
        let mut first = [0; 6];
        s.read_exact(&mut first).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        s.write_all(&[0; 8]).unwrap();
        std::thread::sleep(Duration::from_secs(5));
    });
    connect(slow, 10).unwrap();
    let e = format!("{:#}", connect(slow, 1).unwrap_err());
    assert!(
        e.contains("takes connections, but does not answer within 1.0 s: is it a TCPStore?"),
        "{e}"
    );
    for banner in [
        &b"SSH-2.0-OpenSSH_9.2\r\n"[..],
        b"HTTP/1.1 400 Bad Request\r\n",
    ] {
        let other = rude(move |mut s| {
            let _ = s.write_all(banner);
            std::thread::sleep(Duration::from_secs(3));
        });
        let e = format!("{:#}", connect(other, 5).unwrap_err());
        assert!(e.contains("answers, but not as a TCPStore"), "{e}");
    }
}

/// Nodes that start at once do not all come at once.
#[test]
fn the_jitter_comes_before_the_first_attempt() {
    let server = Fake::start(Manner::Libuv);
    let start = Instant::now();
    C10d::connect(
        endpoint(server.address),
        soon(5000),
        Duration::from_millis(300),
    )
    .unwrap();
    assert!(start.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_value_that_is_too_long_is_refused_before_it_is_read() {
    let server = Fake::start(Manner::Libuv);
    server.set("big", &vec![b'x'; 7 << 20]);
    let e = connect(server.address, 10)
        .unwrap()
        .get(&keys(&["big"]), soon(1000))
        .unwrap_err();
    assert!(
        format!("{e:#}").contains("7340032 bytes, 4096 are the most"),
        "{e:#}"
    );
}

#[test]
fn handshake_is_one_write_of_five_bytes_without_a_ping() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || connect(address, 5).map(|_| ()));
    let (mut stream, _) = listener.accept().unwrap();
    let mut buffer = [0; 64];
    let n = stream.read(&mut buffer).unwrap();
    assert!(
        n >= 5 && buffer[..5] == [0, 0xce, 0xf7, 0x85, 0x3c],
        "{:?}",
        &buffer[..n]
    );
    let rest = if n > 5 {
        buffer[5..n].to_vec()
    } else {
        let m = stream.read(&mut buffer).unwrap();
        buffer[..m].to_vec()
    };
    assert_eq!(rest, [7], "GETNUMKEYS, and no PING");
    stream.write_all(&0u64.to_le_bytes()).unwrap();
    client.join().unwrap().unwrap();
}

#[test]
fn the_fake_has_the_manners_that_were_measured() {
    let talk = |manner, pieces: &[&[u8]]| {
        let server = Fake::start(manner);
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        stream.set_nodelay(true).unwrap();
        for piece in pieces {
            let _ = stream.write_all(piece);
            std::thread::sleep(Duration::from_millis(50));
        }
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(0) => "closed",
            Ok(_) => "answered",
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => "silent",
            Err(_) => "closed",
        }
    };
    let validate: &[u8] = &[0, 0xce, 0xf7, 0x85, 0x3c];
    let missing: &[u8] = b"\x0a\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/x";
    for (pieces, libuv, legacy) in [
        (
            vec![&validate[..1], &validate[1..], &[7]],
            "closed",
            "answered",
        ),
        (vec![&[0, 1, 2, 3, 4][..]], "silent", "closed"),
        (vec![&[0, 1, 2, 3, 4][..], &[7]], "closed", "closed"),
        (vec![&[13, 0, 0, 0, 0][..]], "silent", "closed"),
        (vec![validate, missing], "answered", "closed"),
        (vec![validate, &[99]], "closed", "closed"),
    ] {
        assert_eq!(
            (talk(Manner::Libuv, &pieces), talk(Manner::Legacy, &pieces)),
            (libuv, legacy),
            "{pieces:?}"
        );
    }
}

#[test]
fn sixty_four_nodes_agree_with_one_connection_each() {
    for manner in MANNERS {
        let server = Fake::start(manner);
        let address = server.address;
        let part = |rank: u32| {
            std::thread::spawn(move || {
                let limit = Instant::now() + Duration::from_secs(30);
                let mut store = C10d::connect(
                    endpoint(address),
                    limit,
                    Duration::from_millis(u64::from(rank) / 2),
                )?;
                agree(
                    &mut store,
                    setup(rank, 64, &["rdma0", "rdma1"], 1),
                    limit,
                    &mut |_| Ok(()),
                    None,
                )
            })
        };
        let all: Vec<_> = (0..64).map(part).collect();
        let all: Vec<_> = all
            .into_iter()
            .map(|t| t.join().unwrap().unwrap())
            .collect();
        assert!(all.iter().all(|a| a.digest == all[0].digest), "{manner:?}");
        assert_eq!(server.connections.load(Ordering::Relaxed), 64);
        let each = server.traffic.load(Ordering::Relaxed) / 64;
        assert!(each < 4000, "{each} bytes of requests per node");
        // One each to begin with, for what it has come for, its offer, its yes and its goodbye, and
        // three waits of two: what is said goes with the wait that follows. A wait that is called
        // off costs four more.
        let requests = server.requests.load(Ordering::Relaxed);
        assert!(requests < 64 * 14, "{requests} requests of 64 nodes");
    }
}

#[test]
fn store_that_dies_during_a_put_fails_the_put() {
    // It answers the first question, takes a SET, and is gone.
    let address = rude(|mut stream| {
        let mut first = [0; 6];
        stream.read_exact(&mut first).unwrap();
        stream.write_all(&[0; 8]).unwrap();
        let mut set = [0; 1 + 8 + 2 + 8 + 1];
        stream.read_exact(&mut set).unwrap();
    });
    let mut store = connect(address, 10).unwrap();
    assert!(store.put(&one("a", b"1")).is_err());
}

/// What is said goes out in one write with the wait that follows, and is the store's before the
/// wait is answered.
#[test]
fn what_is_told_goes_with_the_wait_that_follows() {
    for manner in MANNERS {
        let server = Fake::start(manner);
        let mut store = connect(server.address, 10).unwrap();
        let before = server.requests.load(Ordering::Relaxed);
        store.put_unconfirmed(&one("sent", b"1")).unwrap();
        assert!(server.keys().is_empty(), "it is on no way of its own");
        assert_eq!(
            store.get(&keys(&["sent"]), soon(2000)).unwrap(),
            Some(vec![b"1".to_vec()]),
            "{manner:?}"
        );
        assert_eq!(
            server.requests.load(Ordering::Relaxed) - before,
            3,
            "SET, WAIT, MULTI_GET"
        );
        store.put_best_effort(&one("last", b"1"));
        assert_eq!(
            connect(server.address, 10)
                .unwrap()
                .get(&keys(&["last"]), soon(2000))
                .unwrap(),
            Some(vec![b"1".to_vec()])
        );
    }
}

#[test]
fn a_store_that_dies_in_the_middle_is_an_error_in_time() {
    // It takes everything, and dies at the first wait.
    let address = rude(|mut stream| {
        let mut buffer = [0; 4096];
        while let Ok(n) = stream.read(&mut buffer) {
            if n == 0 || buffer[..n].contains(&6) && n > 20 {
                return;
            }
            if buffer[n - 1] == 7 {
                stream.write_all(&[0; 8]).unwrap();
            }
        }
    });
    let mut store = connect(address, 10).unwrap();
    let start = Instant::now();
    let e = agree(
        &mut store,
        setup(1, 2, &["rdma0"], 1),
        soon(10_000),
        &mut |_| Ok(()),
        None,
    )
    .unwrap_err();
    assert!(
        format!("{e:#}").contains("the rendezvous store: the store went away"),
        "{e:#}"
    );
    assert!(start.elapsed() < Duration::from_secs(2));
}
