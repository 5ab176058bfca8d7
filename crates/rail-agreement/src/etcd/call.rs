//! Calls to etcd's members: if one does not answer, the next one is tried.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rdma_model::escape::printable;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::{Agent, Error};

use super::files::read;
use super::login::Login;
use super::url::Cluster;
use super::wire::{Refusal, Token};
use crate::resolve::resolve;

const ANSWER: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(3);
/// How long members are tried again after one was lost: electing a leader takes them some seconds.
const PATIENCE: Duration = Duration::from_secs(15);
/// The first and the longest pause between two rounds of members; it doubles.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// gRPC's status codes for temporary failures: deadline exceeded, aborted, unavailable.
const PASSING: [u32; 3] = [4, 10, 14];
const UNAUTHENTICATED: u32 = 16;
/// etcd's code for "authentication is not enabled".
const PRECONDITION: u32 = 9;

#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    cluster: Cluster,
    at: usize,
    login: Option<Login>,
    token: Option<String>,
    jitter: Duration,
    pub limit: Instant,
}

enum Outcome {
    Said(Vec<u8>),
    Refused(u16, Refusal),
    /// No answer: another member, or the same one later, may answer.
    Lost(String),
}

impl Client {
    pub fn new(
        cluster: Cluster,
        login: Option<Login>,
        limit: Instant,
        jitter: Duration,
    ) -> Result<Client> {
        let tls = if cluster.tls {
            tls(&cluster)?
        } else {
            TlsConfig::default()
        };
        // The caller protects the interfaces that lead to the members; a proxy or a redirect may
        // use others.
        let config = Agent::config_builder()
            .tls_config(tls)
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false);
        let config = config
            .http_status_as_error(false)
            .user_agent("rdmaprep")
            .max_response_header_size(16 << 10);
        let config = config
            .timeout_connect(Some(CONNECT))
            .timeout_resolve(Some(CONNECT));
        let agent = config.build().new_agent();
        Ok(Client {
            agent,
            cluster,
            at: 0,
            login,
            token: None,
            jitter,
            limit,
        })
    }

    pub fn begin(&mut self) -> Result<()> {
        if self.login.is_none() {
            // A request that needs no permission.
            return self
                .call_until("/v3/maintenance/status", &json!({}), 1 << 16, self.limit)
                .map(|_: Json| ());
        }
        self.authenticate(self.limit)
    }

    /// The address of the member that answered last and the local address towards it, by a
    /// connection of its own.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let to = self.cluster.endpoints.get(self.at)?;
        let found = resolve(to, self.limit.min(Instant::now() + CONNECT)).ok()?;
        let stream = found
            .into_iter()
            .find_map(|address| TcpStream::connect_timeout(&address, CONNECT).ok())?;
        Some((
            stream.peer_addr().ok()?.ip().to_canonical(),
            stream.local_addr().ok()?.ip().to_canonical(),
        ))
    }

    pub fn sends_plain_password(&self) -> bool {
        self.login.is_some() && !self.cluster.tls
    }

    pub fn call<T: DeserializeOwned>(
        &mut self,
        path: &str,
        request: &Json,
        most: u64,
    ) -> Result<T> {
        let until = self.limit.min(Instant::now() + PATIENCE);
        self.call_until(path, request, most, until)
    }

    fn authenticate(&mut self, until: Instant) -> Result<()> {
        let Some(login) = self.login.clone() else {
            return Ok(());
        };
        self.token = None;
        let request = json!({"name": login.user, "password": login.password});
        self.token = match self.answer("/v3/auth/authenticate", &request, 1 << 16, until)? {
            Ok(said) => Some(parse::<Token>(&said)?.token),
            // Without authentication no token is needed.
            Err((_, refusal)) if refusal.code == PRECONDITION => None,
            Err((status, refusal)) => {
                bail!(
                    "{} does not let {:?} in: {}",
                    self.member(),
                    login.user,
                    said(status, &refusal)
                )
            }
        };
        Ok(())
    }

    fn call_until<T: DeserializeOwned>(
        &mut self,
        path: &str,
        request: &Json,
        most: u64,
        until: Instant,
    ) -> Result<T> {
        let mut answer = self.answer(path, request, most, until)?;
        // A token expires after some minutes.
        if matches!(&answer, Err((_, r)) if r.code == UNAUTHENTICATED) && self.login.is_some() {
            self.authenticate(until)?;
            answer = self.answer(path, request, most, until)?;
        }
        match answer {
            Ok(said) => parse(&said),
            Err((404, r)) if r.code != 5 => bail!(
                "{} is no etcd from 3.4 on, or has no JSON gateway",
                self.member()
            ),
            Err((status, refusal)) => {
                bail!("{} refuses: {}", self.member(), said(status, &refusal))
            }
        }
    }

    /// A member's answer, unless it is a temporary failure: then the others are tried, until
    /// `until`.
    fn answer(
        &mut self,
        path: &str,
        request: &Json,
        most: u64,
        until: Instant,
    ) -> Result<Result<Vec<u8>, (u16, Refusal)>> {
        let (body, start, mut pause) = (serde_json::to_vec(request)?, Instant::now(), PAUSE.0);
        loop {
            let mut tried = Vec::new();
            for _ in 0..self.cluster.endpoints.len() {
                match self.once(path, &body, most, until)? {
                    Outcome::Said(said) => return Ok(Ok(said)),
                    Outcome::Refused(status, refusal) if !PASSING.contains(&refusal.code) => {
                        return Ok(Err((status, refusal)));
                    }
                    Outcome::Refused(status, refusal) => {
                        tried.push(format!("{}: {}", self.member(), said(status, &refusal)))
                    }
                    Outcome::Lost(why) => tried.push(format!("{}: {why}", self.member())),
                }
                self.at = (self.at + 1) % self.cluster.endpoints.len();
            }
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep((pause + self.jitter).min(left));
            if Instant::now() >= until {
                bail!(
                    "no answer in {:.1} s: {}",
                    start.elapsed().as_secs_f64(),
                    tried.join("; ")
                );
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn once(&self, path: &str, body: &[u8], most: u64, until: Instant) -> Result<Outcome> {
        let left = until.saturating_duration_since(Instant::now()).min(ANSWER);
        if left.is_zero() {
            return Ok(Outcome::Lost("there is no time left".to_owned()));
        }
        let scheme = if self.cluster.tls { "https" } else { "http" };
        let mut request = self
            .agent
            .post(format!("{scheme}://{}{path}", self.member()));
        if let Some(token) = &self.token {
            request = request.header("Authorization", token);
        }
        let request = request.header("Content-Type", "application/json");
        let sent = request
            .config()
            .timeout_global(Some(left))
            .build()
            .send(body);
        let answer = sent.and_then(|mut answer| {
            let status = answer.status().as_u16();
            // One byte more, so that an answer of just that length is read as a whole.
            answer
                .body_mut()
                .with_config()
                .limit(most + 1)
                .read_to_vec()
                .map(|bytes| (status, bytes))
        });
        match answer {
            Ok((200, bytes)) => Ok(Outcome::Said(bytes)),
            Ok((status, bytes)) => Ok(Outcome::Refused(status, refusal(&bytes))),
            Err(e) if passes(&e) => Ok(Outcome::Lost(format!(
                "{}{}",
                printable(&e.to_string()),
                self.hint(&e)
            ))),
            Err(Error::BodyExceedsLimit(_)) => {
                bail!("{} answers with more than {most} bytes", self.member())
            }
            Err(e) => Err(anyhow!(
                "{}: {}{}",
                self.member(),
                printable(&e.to_string()),
                self.hint(&e)
            )),
        }
    }

    /// What the user may have missed: a server that wants TLS or a client certificate closes the
    /// connection, mostly without a reason.
    fn hint(&self, e: &Error) -> &'static str {
        use ErrorKind::{BrokenPipe, ConnectionReset, InvalidData, UnexpectedEof};
        let closed = match e {
            Error::Io(e) if e.kind() == InvalidData => e.to_string().contains("alert"),
            Error::Io(e) => matches!(e.kind(), UnexpectedEof | ConnectionReset | BrokenPipe),
            _ => false,
        };
        match (closed, self.cluster.tls, &self.cluster.identity) {
            (true, false, _) => " (perhaps it speaks TLS: etcds://)",
            (true, true, None) => " (perhaps it wants a client certificate: cert=, key=)",
            _ => "",
        }
    }

    fn member(&self) -> String {
        self.cluster
            .endpoints
            .get(self.at)
            .map(ToString::to_string)
            .unwrap_or_default()
    }
}

/// Whether another attempt may succeed; not after an error of certificates.
fn passes(e: &Error) -> bool {
    match e {
        Error::Io(e) => e.kind() != ErrorKind::InvalidData,
        Error::Timeout(_) | Error::HostNotFound | Error::ConnectionFailed | Error::Protocol(_) => {
            true
        }
        _ => false,
    }
}

fn refusal(bytes: &[u8]) -> Refusal {
    let parsed: Option<Refusal> = serde_json::from_slice(bytes).ok();
    parsed.unwrap_or_else(|| Refusal {
        code: 0,
        message: String::from_utf8_lossy(bytes).trim().to_owned(),
    })
}

fn said(status: u16, refusal: &Refusal) -> String {
    let message: String = printable(&refusal.message).chars().take(200).collect();
    let hint = match message.contains("user name is empty") {
        true => " (it wants a user and a password: RDMAPREP_ETCD_USER, RDMAPREP_ETCD_PASSWORD)",
        false => "",
    };
    if message.is_empty() {
        format!("status {status}")
    } else {
        format!("{message}{hint}")
    }
}

fn parse<T: DeserializeOwned>(said: &[u8]) -> Result<T> {
    serde_json::from_slice(said).context("its answer is not of etcd's kind")
}

fn tls(cluster: &Cluster) -> Result<TlsConfig> {
    let roots = match &cluster.cacert {
        Some(path) => {
            let pem = read(path)?;
            let all = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
            all.map_err(|e| anyhow!("{}: {e}", path.display()))?
        }
        None => rustls_native_certs::load_native_certs().certs,
    };
    ensure!(
        !roots.is_empty(),
        "no CA certificate is configured for etcd: pass cacert=FILE"
    );
    let roots: Vec<Certificate> = roots
        .iter()
        .map(|c| Certificate::from_der(c).to_owned())
        .collect();
    let client = cluster
        .identity
        .as_ref()
        .map(|(cert, key)| identity(&read(cert)?, &read(key)?))
        .transpose();
    let client = client.context("the client certificate (cert=, key=)")?;
    let provider = Arc::new(ring::default_provider());
    let config = TlsConfig::builder()
        .root_certs(RootCerts::from(roots))
        .client_cert(client);
    Ok(config.unversioned_rustls_crypto_provider(provider).build())
}

/// The client certificate with its key. Checks here that they belong together, as the HTTP client
/// does not.
fn identity(cert: &[u8], key: &[u8]) -> Result<ClientCert> {
    let chain = CertificateDer::pem_slice_iter(cert)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| anyhow!("{e}"))?;
    ensure!(!chain.is_empty(), "there is no certificate in it");
    let private = PrivateKeyDer::from_pem_slice(key).map_err(|e| anyhow!("its key: {e}"))?;
    CertifiedKey::from_der(chain.clone(), private, &ring::default_provider())?;
    let chain: Vec<Certificate> = chain
        .iter()
        .map(|c| Certificate::from_der(c).to_owned())
        .collect();
    Ok(ClientCert::new_with_certs(
        &chain,
        PrivateKey::from_pem(key)?,
    ))
}
