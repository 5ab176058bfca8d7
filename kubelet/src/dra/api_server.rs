//! The few calls to the API server, by HTTP and JSON. The crate kube would add 53 crates, and needs
//! a newer Rust.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::escape::printable;
use rdmaprep::disk::files;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// Where a pod has what its service account is known by.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
const CA: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
const ANSWER: Duration = Duration::from_secs(10);
/// How long a watch goes on: then what it may have missed is listed.
const WATCH: Duration = Duration::from_secs(300);
/// A slice of 128 rails has some 100 kB.
const MOST: u64 = 16 << 20;

/// What the server says where it does not do what was asked.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    message: String,
    reason: String,
    /// Of the objects that it is about.
    kind: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let message: String = printable(&self.message).chars().take(400).collect();
        match message.is_empty() {
            true => write!(f, "the API server answers with status {}", self.status),
            false => write!(f, "the API server: {message} ({})", self.status),
        }
    }
}

impl std::error::Error for Refusal {}

/// Whether it failed since the server says that status.
pub fn is_status(error: &anyhow::Error, status: u16) -> bool {
    error
        .downcast_ref::<Refusal>()
        .is_some_and(|refusal| refusal.status == status)
}

/// Whether the server itself says that there is no such object. A proxy in between, or a server
/// that does not know the kind (yet), answers with 404, too.
pub fn is_missing(error: &anyhow::Error, kind: &str) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| {
        refusal.status == 404 && refusal.reason == "NotFound" && refusal.kind == kind
    })
}

#[derive(clap::Args)]
pub struct Access {
    /// The API server [default: that of the pod's environment]
    #[arg(long, value_name = "URL")]
    pub api_server: Option<String>,
    /// The token of the service account, read again for each call
    #[arg(long, value_name = "FILE", default_value = TOKEN)]
    pub token_file: PathBuf,
    /// The certificates that the API server's is signed by
    #[arg(long, value_name = "FILE", default_value = CA)]
    pub ca_file: PathBuf,
}

pub struct ApiServer {
    agent: Agent,
    url: String,
    token: PathBuf,
}

/// Whether it names a loopback address: the token then stays on this machine.
fn is_this_machine(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = host.parse().is_ok_and(|at: IpAddr| at.is_loopback());
    url.starts_with("http://") && is_local
}

impl ApiServer {
    pub fn new(access: &Access) -> Result<ApiServer> {
        let url = match &access.api_server {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => of_pod()?,
        };
        let is_tls = url.starts_with("https://");
        ensure!(
            is_tls || is_this_machine(&url),
            ErrorClass::Usage.error(format!("{url} is no address that begins with https://"))
        );
        let tls = match is_tls {
            true => tls(&access.ca_file)?,
            false => TlsConfig::default(),
        };
        let config = Agent::config_builder()
            .tls_config(tls)
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("rdmaprep-dra/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(ANSWER))
            .timeout_resolve(Some(ANSWER));
        Ok(ApiServer {
            agent: config.build().new_agent(),
            url,
            token: access.token_file.clone(),
        })
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        let request = self.agent.get(self.at(path));
        let request = request.config().timeout_global(Some(ANSWER)).build();
        self.read(request.header("Authorization", self.bearer()?).call())
    }

    pub fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let request = self.agent.post(self.at(path));
        let request = request.config().timeout_global(Some(ANSWER)).build();
        let request = request.header("Authorization", self.bearer()?);
        self.read(request.content_type("application/json").send(json(object)?))
    }

    pub fn replace(&self, path: &str, object: &Value) -> Result<Value> {
        let request = self.agent.put(self.at(path));
        let request = request.config().timeout_global(Some(ANSWER)).build();
        let request = request.header("Authorization", self.bearer()?);
        self.read(request.content_type("application/json").send(json(object)?))
    }

    /// By server-side apply: of the object, what this program has applied becomes that.
    pub fn apply(&self, path: &str, object: &Value) -> Result<Value> {
        let request = self.agent.patch(self.at(path));
        let request = request.config().timeout_global(Some(ANSWER)).build();
        let request = request.header("Authorization", self.bearer()?);
        // JSON is YAML.
        let request = request.content_type("application/apply-patch+yaml");
        self.read(request.send(json(object)?))
    }

    /// One that is not there is deleted.
    pub fn delete(&self, path: &str) -> Result<()> {
        let request = self.agent.delete(self.at(path));
        let request = request.config().timeout_global(Some(ANSWER)).build();
        let deleted = self.read(request.header("Authorization", self.bearer()?).call());
        match deleted {
            Err(e) if !is_status(&e, 404) => Err(e),
            _ => Ok(()),
        }
    }

    /// Calls for each event until the server ends the stream, as it does after some minutes.
    pub fn watch(&self, path: &str, version: &str, mut event: impl FnMut()) -> Result<()> {
        let seconds = WATCH.as_secs();
        let at = format!("{path}&watch=1&resourceVersion={version}&timeoutSeconds={seconds}");
        let request = self.agent.get(self.at(&at));
        let request = request
            .config()
            .timeout_recv_response(Some(ANSWER))
            .timeout_global(Some(WATCH + ANSWER))
            .build();
        let answer = request.header("Authorization", self.bearer()?).call();
        let answer = answer.map_err(|e| self.away(&e))?;
        if answer.status() != 200 {
            return self.read(Ok(answer)).map(drop);
        }
        let body = answer.into_body().into_with_config().limit(u64::MAX);
        let mut lines = BufReader::new(body.reader());
        loop {
            let mut line = Vec::new();
            let read = lines.by_ref().take(MOST).read_until(b'\n', &mut line);
            match read.context("watching")? {
                0 => return Ok(()),
                _ => event(),
            }
        }
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// It is replaced each hour or so.
    fn bearer(&self) -> Result<String> {
        let text = files::read_through(&self.token)?;
        let text = text.with_context(|| format!("there is no {}", self.token.display()))?;
        Ok(format!("Bearer {}", text.trim()))
    }

    fn away(&self, error: &ureq::Error) -> anyhow::Error {
        anyhow!(
            "the API server {} does not answer: {}",
            self.url,
            printable(&error.to_string())
        )
    }

    fn read(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<Value> {
        let mut answer = answer.map_err(|e| self.away(&e))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(MOST).read_to_vec();
        let body = body.map_err(|e| self.away(&e))?;
        if (200..300).contains(&status) {
            return serde_json::from_slice(&body).context("the API server's answer is no JSON");
        }
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let refusal = Refusal {
            status,
            message: text(&said["message"]),
            reason: text(&said["reason"]),
            kind: text(&said["details"]["kind"]),
        };
        Err(refusal.into())
    }
}

fn json(object: &Value) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(object)?)
}

/// As the kubelet says it to each container.
fn of_pod() -> Result<String> {
    let said = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let (host, port) = said("KUBERNETES_SERVICE_HOST")
        .zip(said("KUBERNETES_SERVICE_PORT"))
        .ok_or_else(|| {
            ErrorClass::Usage.error("this is no pod: --api-server, --token-file and --ca-file")
        })?;
    Ok(match host.contains(':') {
        true => format!("https://[{host}]:{port}"),
        false => format!("https://{host}:{port}"),
    })
}

fn tls(path: &Path) -> Result<TlsConfig> {
    let doing = || format!("reading {}", path.display());
    let pem = files::read_through(path).class(ErrorClass::Usage, doing())?;
    let pem = pem.unwrap_or_default();
    let roots = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let roots = roots.class(ErrorClass::Usage, doing())?;
    let none = || format!("{} has no certificate", path.display());
    ensure!(!roots.is_empty(), ErrorClass::Usage.error(none()));
    let roots: Vec<Certificate> = roots
        .iter()
        .map(|c| Certificate::from_der(c).to_owned())
        .collect();
    let config = TlsConfig::builder().root_certs(RootCerts::from(roots));
    let provider = Arc::new(ring::default_provider());
    Ok(config.unversioned_rustls_crypto_provider(provider).build())
}

#[cfg(test)]
mod tests {
    use super::is_this_machine;

    #[test]
    fn token_goes_in_clear_to_this_machine_alone() {
        for url in [
            "http://127.0.0.1:1",
            "http://[::1]:6443/",
            "http://127.9.9.9",
        ] {
            assert!(is_this_machine(url), "{url}");
        }
        for url in [
            "http://127.evil.example",
            "http://127.0.0.1@evil.example",
            "http://10.0.0.1",
            "127.0.0.1",
        ] {
            assert!(!is_this_machine(url), "{url}");
        }
    }
}
