//! The agreement over etcd, with Debian's etcd: plain, with TLS and with passwords.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rail_agreement::etcd::{Cluster, Etcd, Login};
use rail_agreement::{MAX_VALUE, Store, agree};
use rdma_model::error_class::ErrorClass;
use serde_json::{Value as Json, json};
use support::etcd::{Server, free_port};
use support::fake::{rude, trickle};
use support::setup;

/// What a test asks a server by itself.
impl Server {
    /// A call of the test's own; a server may need a moment before it answers.
    fn call(&self, path: &str, request: &Json) -> Json {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        for _ in 0..100 {
            if let Ok(mut answer) = ureq::post(&url).send(request.to_string().as_bytes()) {
                return serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{path} {request} is not answered")
    }

    /// What there is below a prefix: the records.
    fn all(&self, prefix: &str) -> Vec<Json> {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().unwrap() += 1;
        let request = json!({"key": code(prefix.as_bytes()), "range_end": code(&end)});
        self.call("/v3/kv/range", &request)["kvs"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }

    fn set(&self, key: &str, value: &[u8]) {
        self.call(
            "/v3/kv/put",
            &json!({"key": code(key.as_bytes()), "value": code(value)}),
        );
    }
}

fn code(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn soon(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

fn connect(url: &str, login: Option<(&str, &str)>, seconds: u64) -> anyhow::Result<Etcd> {
    let cluster: Cluster = url.parse().unwrap();
    let login = login.map(|(user, password)| Login {
        user: user.into(),
        password: password.into(),
    });
    Etcd::connect(cluster, login, soon(seconds), Duration::ZERO)
}

fn why<T>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.err().expect("this has to fail"))
}

fn keys(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("k{n}")).collect()
}

#[test]
fn the_store_does_all_that_is_asked() {
    let server = Server::start();
    let mut store = connect(&format!("{}/jobs/a/", server.url()), None, 60).unwrap();
    assert!(
        store
            .addresses()
            .is_some_and(|(to, own)| to.is_loopback() && own.is_loopback())
            && store.warning().is_none()
            && store.persists()
    );
    let pairs: Vec<(String, Vec<u8>)> = keys(0..250)
        .into_iter()
        .map(|k| (k.clone(), k.into_bytes()))
        .collect();
    store.put(&pairs).unwrap();
    let values: Vec<Vec<u8>> = pairs.iter().map(|(_, v)| v.clone()).collect();
    assert_eq!(store.get(&keys(0..250), soon(10)).unwrap(), Some(values));
    assert!(store.check(&keys(0..250)).unwrap() && !store.check(&keys(0..251)).unwrap());
    assert_eq!(store.missing(&keys(248..253), 2).unwrap(), [2, 3]);
    assert_eq!(store.missing(&keys(100..360), 9).unwrap()[0], 150);
    assert_eq!(
        store.read(&keys(249..251)).unwrap(),
        [Some(b"k249".to_vec()), None]
    );
    assert_eq!(store.get(&[], Instant::now()).unwrap(), Some(Vec::new()));
    assert_eq!(store.get(&keys(200..310), Instant::now()).unwrap(), None);
    // Below the prefix, and on a lease that outlives the limit by a minute.
    let all = server.all("/jobs/a/k");
    let leases: Vec<&str> = all.iter().map(|r| r["lease"].as_str().unwrap()).collect();
    assert!(
        all.len() == 250 && leases.iter().all(|l| *l == leases[0] && *l != "0"),
        "{leases:?}"
    );
    let lease = server.call("/v3/lease/timetolive", &json!({"ID": leases[0]}));
    let granted: u64 = lease["grantedTTL"].as_str().unwrap().parse().unwrap();
    assert!((90..=120).contains(&granted), "{lease}");
    // A key twice in one go: the last one counts.
    store
        .put(&[("a".into(), b"1".to_vec()), ("a".into(), b"2".to_vec())])
        .unwrap();
    assert_eq!(store.read(&["a".into()]).unwrap(), [Some(b"2".to_vec())]);
    store
        .delete(&[keys(0..250), keys(0..1), vec!["a".into()]].concat())
        .unwrap();
    assert!(server.all("/jobs").is_empty());
}

#[test]
fn a_wait_ends_with_the_last_key_or_in_time() {
    let server = Server::start();
    let mut store = connect(&server.url(), None, 60).unwrap();
    let start = Instant::now();
    assert_eq!(
        store
            .get(&keys(0..1), Instant::now() + Duration::from_millis(300))
            .unwrap(),
        None
    );
    assert!((300..5000).contains(&start.elapsed().as_millis()));
    let url = server.url();
    let other = std::thread::spawn(move || {
        let mut other = connect(&url, None, 60).unwrap();
        for key in keys(0..130).into_iter().rev() {
            other.put(&[(key, b"v".to_vec())]).unwrap();
        }
    });
    assert_eq!(
        store.get(&keys(0..130), soon(50)).unwrap().map(|v| v.len()),
        Some(130)
    );
    other.join().unwrap();
}

#[test]
fn eight_nodes_agree_and_leave_nothing() {
    let server = Server::start();
    let url = format!("{}/jobs", server.url());
    let nodes: Vec<_> = (0..8)
        .map(|rank| {
            let url = url.clone();
            std::thread::spawn(move || {
                let rails: &[&str] = if rank == 5 {
                    &["r0", "r2"]
                } else {
                    &["r0", "r1", "r2"]
                };
                let mut store = connect(&url, None, 90).unwrap();
                agree(
                    &mut store,
                    setup(rank, 8, rails, 1),
                    soon(80),
                    &mut |_| Ok(()),
                    None,
                )
                .unwrap()
            })
        })
        .collect();
    let all: Vec<_> = nodes
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert!(
        all.iter()
            .all(|a| a.digest == all[0].digest && a.rails.len() == 2),
        "{all:?}"
    );
    assert_eq!(server.all("/jobs/rdmaprep/").len(), 0);
}

#[test]
fn a_node_that_never_comes_is_named_in_time() {
    let server = Server::start();
    let url = server.url();
    let all = [0, 2].map(|rank| {
        let url = url.clone();
        std::thread::spawn(move || {
            let (mut store, start) = (connect(&url, None, 60).unwrap(), Instant::now());
            let said = agree(
                &mut store,
                setup(rank, 3, &["r0"], 1),
                soon(6),
                &mut |_| Ok(()),
                None,
            );
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{:?}",
                start.elapsed()
            );
            said.unwrap_err()
        })
    });
    for thread in all {
        let e = thread.join().unwrap();
        assert!(
            ErrorClass::of(&e) == ErrorClass::Disagreed && format!("{e:#}").contains("rank 1"),
            "{e:#}"
        );
    }
}

#[test]
fn a_server_that_dies_in_the_middle_is_an_error_in_time() {
    let mut server = Server::start();
    let mut store = connect(&server.url(), None, 90).unwrap();
    let start = Instant::now();
    let waiting = std::thread::spawn(move || {
        agree(
            &mut store,
            setup(0, 2, &["r0"], 1),
            soon(80),
            &mut |_| Ok(()),
            None,
        )
    });
    std::thread::sleep(Duration::from_secs(1));
    server.stop();
    let e = waiting.join().unwrap().unwrap_err();
    let said = format!("{e:#}");
    assert!(
        ErrorClass::of(&e) == ErrorClass::Disagreed
            && said.contains("no answer in 1")
            && said.contains("refused"),
        "{said}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(40),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn the_next_member_is_asked_where_one_is_dead() {
    let server = Server::start();
    let url = format!(
        "etcd://127.0.0.1:{},127.0.0.1:{}/x",
        free_port(),
        server.port
    );
    let mut store = connect(&url, None, 60).unwrap();
    store.put(&[("a".into(), b"1".to_vec())]).unwrap();
    assert_eq!(store.read(&["a".into()]).unwrap(), [Some(b"1".to_vec())]);
    let start = Instant::now();
    let none = format!("etcd://127.0.0.1:{},nowhere.invalid", free_port());
    let said = why(connect(&none, None, 2));
    assert!(
        said.contains("no answer in 2")
            && said.contains("refused")
            && said.contains("nowhere.invalid"),
        "{said}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn values_have_a_bound_both_ways() {
    let server = Server::start();
    let mut store = connect(&server.url(), None, 60).unwrap();
    store.put(&[("fits".into(), vec![7; MAX_VALUE])]).unwrap();
    assert_eq!(
        store.read(&["fits".into()]).unwrap(),
        [Some(vec![7; MAX_VALUE])]
    );
    assert!(why(store.put(&[("a".into(), vec![7; MAX_VALUE + 1])])).contains("4097 bytes"));
    server.set("/b", &vec![7; MAX_VALUE + 1]);
    assert!(why(store.read(&["b".into()])).contains("a value of 4097 bytes"));
    assert!(
        store.check(&["b".into()]).unwrap(),
        "whether it is there does no harm"
    );
    server.set("/c", &vec![7; 1 << 20]);
    let said = why(store.read(&["c".into()]));
    assert!(said.contains("more than"), "{said}");
    assert_eq!(store.read(&["fits".into()]).unwrap().len(), 1);
}

#[test]
fn users_have_passwords_and_rights() {
    let server = Server::start();
    let node = json!({"name": "node", "password": "s3cret"});
    server.call(
        "/v3/auth/user/add",
        &json!({"name": "root", "password": "toor"}),
    );
    server.call("/v3/auth/user/add", &node);
    server.call("/v3/auth/role/add", &json!({"name": "root"}));
    server.call("/v3/auth/role/add", &json!({"name": "jobs"}));
    let perm =
        json!({"permType": "READWRITE", "key": code(b"/jobs/"), "range_end": code(b"/jobs0")});
    server.call(
        "/v3/auth/role/grant",
        &json!({"name": "jobs", "perm": perm}),
    );
    server.call(
        "/v3/auth/user/grant",
        &json!({"user": "node", "role": "jobs"}),
    );
    server.call(
        "/v3/auth/user/grant",
        &json!({"user": "root", "role": "root"}),
    );
    // Where no login is required, one does no harm.
    assert!(
        connect(&server.url(), Some(("node", "s3cret")), 60)
            .unwrap()
            .check(&["a".into()])
            .is_ok()
    );
    server.call("/v3/auth/enable", &json!({}));

    let (jobs, one) = (
        format!("{}/jobs", server.url()),
        vec![("a".to_owned(), b"1".to_vec())],
    );
    let mut store = connect(&jobs, Some(("node", "s3cret")), 60).unwrap();
    store.put(&one).unwrap();
    assert_eq!(
        store.get(&["a".into()], soon(5)).unwrap(),
        Some(vec![b"1".to_vec()])
    );
    assert!(store.warning().unwrap().contains("etcds://"));
    for (user, password) in [("node", "wrong"), ("no-such-user", "s3cret")] {
        let start = Instant::now();
        let said = why(connect(&jobs, Some((user, password)), 60));
        assert!(
            said.contains("does not let") && said.contains(user) && !said.contains(password),
            "{said}"
        );
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
    }
    let said = why(connect(&jobs, None, 60).and_then(|mut store| store.put(&one)));
    assert!(said.contains("RDMAPREP_ETCD_USER"), "{said}");
    let said = why(connect(&server.url(), Some(("node", "s3cret")), 60)
        .unwrap()
        .put(&one));
    assert!(said.contains("permission denied"), "{said}");
}

/// Certificates of an authority of the test's own: `ca`, and with its signature `server` and
/// `client`.
fn certificates(folder: &Path) {
    let openssl = |args: &str| {
        let said = Command::new("openssl")
            .args(args.split(' '))
            .current_dir(folder)
            .output();
        let said = said.expect("openssl is needed: Debian's openssl, which scripts/test installs");
        assert!(
            said.status.success(),
            "openssl {args}: {}",
            String::from_utf8_lossy(&said.stderr)
        );
    };
    std::fs::write(
        folder.join("ext"),
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n\
         basicConstraints=critical,CA:false\n",
    )
    .unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {key} -days 2 -keyout ca.key -out ca.pem -subj /CN=ca"
    ));
    openssl(&format!(
        "req -x509 {key} -days 2 -keyout other.key -out other.pem -subj /CN=other"
    ));
    for name in ["server", "client"] {
        openssl(&format!(
            "req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"
        ));
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile \
            ext -out {name}.pem"
        ));
    }
}

#[test]
fn tls_shows_who_is_who() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let files = [
        ("--cert-file", "server.pem"),
        ("--key-file", "server.key"),
        ("--trusted-ca-file", "ca.pem"),
        ("--client-cert-auth", ""),
    ];
    let server = Server::with("https", folder, &files);
    let at = |name: &str| -> PathBuf { server.folder.path().join(name) };
    let url = |ca: &str, cert: &str, key: &str| {
        let (ca, cert, key) = (at(ca), at(cert), at(key));
        format!(
            "{}?cacert={}&cert={}&key={}",
            server.url(),
            ca.display(),
            cert.display(),
            key.display()
        )
    };
    let mut store = connect(&url("ca.pem", "client.pem", "client.key"), None, 60).unwrap();
    store.put(&[("a".into(), b"1".to_vec())]).unwrap();
    assert_eq!(
        store.get(&["a".into()], soon(5)).unwrap(),
        Some(vec![b"1".to_vec()])
    );
    assert!(store.warning().is_none());

    // A wrong certificate is an error at once, not after a wait.
    let start = Instant::now();
    let said = why(connect(
        &url("other.pem", "client.pem", "client.key"),
        None,
        60,
    ));
    assert!(said.to_lowercase().contains("certificate"), "{said}");
    let said = why(connect(
        &format!("etcds://127.0.0.1:{}", server.port),
        None,
        60,
    ));
    assert!(said.to_lowercase().contains("certificate"), "{said}");
    // Go's server closes the connection, which a server that is restarted may do as well, and
    // seldom says why.
    let said = why(connect(
        &format!("{}?cacert={}", server.url(), at("ca.pem").display()),
        None,
        3,
    ));
    assert!(said.contains("cert=, key="), "{said}");
    let said = why(connect(&url("ca.pem", "client.pem", "other.key"), None, 60));
    assert!(said.contains("client certificate (cert=, key=)"), "{said}");
    assert!(
        why(connect(
            &url("nothing", "client.pem", "client.key"),
            None,
            60
        ))
        .contains("nothing")
    );
    assert!(why(connect(&url("ext", "client.pem", "client.key"), None, 60)).contains("cacert="));
    let said = why(connect(&server.url(), None, 3));
    assert!(said.contains("etcds://"), "{said}");
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "{:?}",
        start.elapsed()
    );
}

/// Reads a request's head, so that nothing is reset.
fn request(stream: &mut TcpStream) {
    let _ = stream.read(&mut [0; 4096]);
}

fn of(address: SocketAddr) -> String {
    format!("etcd://{address}")
}

#[test]
fn strangers_cost_bounded_time_and_memory() {
    let start = Instant::now();
    let slow = rude(|mut stream| {
        request(&mut stream);
        trickle(
            stream,
            &b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n".repeat(99),
            Duration::from_millis(50),
        );
    });
    assert!(
        why(connect(&of(slow), None, 2)).contains("no answer in"),
        "who trickles"
    );
    let endless = rude(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        while stream.write_all(&[b' '; 65536]).is_ok() {}
    });
    assert!(
        why(connect(&of(endless), None, 5)).contains("more than"),
        "who never ends"
    );
    let silent = rude(|mut stream| while stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {});
    assert!(
        why(connect(&of(silent), None, 2)).contains("no answer in"),
        "who is silent"
    );
    let moved = rude(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(
            b"HTTP/1.1 307 Away\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n",
        );
    });
    assert!(
        why(connect(&of(moved), None, 5)).contains("status 307"),
        "who sends us elsewhere"
    );
    let other = rude(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found");
    });
    assert!(
        why(connect(&of(other), None, 5)).contains("no etcd from 3.4 on"),
        "who is something else"
    );
    let nonsense = rude(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[\n");
    });
    assert!(
        why(connect(&of(nonsense), None, 5)).contains("not of etcd's kind"),
        "who talks nonsense"
    );
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{:?}",
        start.elapsed()
    );
}
