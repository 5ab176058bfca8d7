//! The client asks only the API server that its authority has signed for.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rdmaprep_kubelet::dra::api_server::{Access, ApiServer, is_status};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Of a server, which is its own authority, as it is of the other one.
fn certificates(folder: &Path) {
    for name in ["server", "other"] {
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        let args = format!(
            "req -x509 {key} -days 2 -keyout {name}.key -out {name}.pem -subj /CN={name} \
             -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:false"
        );
        let mut openssl = Command::new("openssl");
        let said = openssl.args(args.split(' ')).current_dir(folder).output();
        let said = said.expect("openssl is needed: Debian's openssl, which scripts/test installs");
        assert!(said.status.success(), "{said:?}");
    }
}

/// It has nothing: 404.
fn serve(folder: &Path) -> String {
    let chain = CertificateDer::from_pem_file(folder.join("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![chain], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let tls = ServerConnection::new(config.clone()).unwrap();
            let mut stream = StreamOwned::new(tls, stream.unwrap());
            if stream.read(&mut [0; 4096]).is_ok() {
                let _ = stream.write_all(b"HTTP/1.1 404 X\r\nContent-Length: 2\r\n\r\n{}");
                let _ = stream.flush();
            }
        }
    });
    url
}

#[test]
fn only_a_server_of_that_authority_is_asked() {
    let folder = tempfile::TempDir::new().unwrap();
    certificates(folder.path());
    std::fs::write(folder.path().join("token"), "secret").unwrap();
    let url = serve(folder.path());
    let client = |url: &str, ca: &str| {
        ApiServer::new(&Access {
            api_server: Some(url.to_owned()),
            token_file: folder.path().join("token"),
            ca_file: folder.path().join(ca),
        })
    };
    let answer = client(&url, "server.pem").unwrap().get("/api").unwrap_err();
    assert!(is_status(&answer, 404), "{answer:#}");
    let answer = client(&url, "other.pem").unwrap().get("/api").unwrap_err();
    assert!(answer.to_string().contains("does not answer"), "{answer:#}");
    let no_ca = client(&url, "none.pem").err().unwrap().to_string();
    assert!(no_ca.ends_with("none.pem has no certificate"), "{no_ca}");
    // A token is for no one who listens on the way.
    let plain = client("http://192.0.2.1:80", "server.pem").err().unwrap();
    assert!(plain.to_string().contains("https://"), "{plain:#}");
}
