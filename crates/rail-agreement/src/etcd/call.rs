//! One call after another, to whichever member answers.

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

/// The longest for one call to one member.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest for one member to take a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// How long members are tried again when one was lost: they need some seconds to agree on who leads them.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two rounds of members.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Codes of gRPC: what passes (deadline exceeded, aborted, unavailable), and who has to say anew who he is.
const PASSING: [u32; 3] = [4, 10, 14];
const UNAUTHENTICATED: u32 = 16;
/// "authentication is not enabled".
const PRECONDITION: u32 = 9;

/// A way to all members.
#[derive(Debug)]
pub(super) struct Caller {
    agent: Agent,
    cluster: Cluster,
    /// Which member answered last.
    at: usize,
    login: Option<Login>,
    token: Option<String>,
    jitter: Duration,
    /// Nothing is waited for beyond this.
    pub limit: Instant,
}

/// How a call to one member ended.
enum Ended {
    Said(Vec<u8>),
    Refused(u16, Refusal),
    /// Another one, or the same one later, may answer.
    Lost(String),
}

impl Caller {
    pub fn new(cluster: Cluster, login: Option<Login>, limit: Instant, jitter: Duration) -> Result<Caller> {
        let tls = if cluster.tls { tls(&cluster)? } else { TlsConfig::default() };
        // A proxy or a redirection would lead over interfaces that nobody has looked at.
        let config =
            Agent::config_builder().tls_config(tls).proxy(None).max_redirects(0).max_redirects_will_error(false);
        let config = config.http_status_as_error(false).user_agent("rdmaprep").max_response_header_size(16 << 10);
        let config = config.timeout_connect(Some(CONNECT)).timeout_resolve(Some(CONNECT));
        let agent = config.build().new_agent();
        Ok(Caller { agent, cluster, at: 0, login, token: None, jitter, limit })
    }

    /// Waits for a member that answers, as long as there is time, and says who we are.
    pub fn begin(&mut self) -> Result<()> {
        if self.login.is_none() {
            // What asks for nothing, and needs no right.
            return self.until("/v3/maintenance/status", &json!({}), 1 << 16, self.limit).map(|_: Json| ());
        }
        self.authenticate(self.limit)
    }

    /// The address of the member that answered last, and ours towards it, as far as a connection shows them.
    pub fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        let to = self.cluster.endpoints.get(self.at)?;
        let found = resolve(to, self.limit.min(Instant::now() + CONNECT)).ok()?;
        let stream = found.into_iter().find_map(|address| TcpStream::connect_timeout(&address, CONNECT).ok())?;
        Some((stream.peer_addr().ok()?.ip().to_canonical(), stream.local_addr().ok()?.ip().to_canonical()))
    }

    /// Whether a password goes over the wire as it is.
    pub fn bares_password(&self) -> bool {
        self.login.is_some() && !self.cluster.tls
    }

    /// Calls; `most` bytes are read of the answer.
    pub fn call<T: DeserializeOwned>(&mut self, path: &str, request: &Json, most: u64) -> Result<T> {
        let until = self.limit.min(Instant::now() + PATIENCE);
        self.until(path, request, most, until)
    }

    fn authenticate(&mut self, until: Instant) -> Result<()> {
        let Some(login) = self.login.clone() else { return Ok(()) };
        self.token = None;
        let request = json!({"name": login.user, "password": login.password});
        self.token = match self.answer("/v3/auth/authenticate", &request, 1 << 16, until)? {
            Ok(said) => Some(parse::<Token>(&said)?.token),
            // Where nobody is asked who he is, everybody may do everything.
            Err((_, refusal)) if refusal.code == PRECONDITION => None,
            Err((status, refusal)) => {
                bail!("{} does not let {:?} in: {}", self.called(), login.user, said(status, &refusal))
            }
        };
        Ok(())
    }

    fn until<T: DeserializeOwned>(&mut self, path: &str, request: &Json, most: u64, until: Instant) -> Result<T> {
        let mut answer = self.answer(path, request, most, until)?;
        // Its word for who we are lasts some minutes.
        if matches!(&answer, Err((_, r)) if r.code == UNAUTHENTICATED) && self.login.is_some() {
            self.authenticate(until)?;
            answer = self.answer(path, request, most, until)?;
        }
        match answer {
            Ok(said) => parse(&said),
            Err((404, r)) if r.code != 5 => bail!("{} is no etcd from 3.4 on, or has no JSON gateway", self.called()),
            Err((status, refusal)) => bail!("{} refuses: {}", self.called(), said(status, &refusal)),
        }
    }

    /// What a member says, if not that it cannot do it now; one after the other is asked until then.
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
                    Ended::Said(said) => return Ok(Ok(said)),
                    Ended::Refused(status, refusal) if !PASSING.contains(&refusal.code) => {
                        return Ok(Err((status, refusal)));
                    }
                    Ended::Refused(status, refusal) => {
                        tried.push(format!("{}: {}", self.called(), said(status, &refusal)))
                    }
                    Ended::Lost(why) => tried.push(format!("{}: {why}", self.called())),
                }
                self.at = (self.at + 1) % self.cluster.endpoints.len();
            }
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep((pause + self.jitter).min(left));
            if Instant::now() >= until {
                bail!("no answer in {:.1} s: {}", start.elapsed().as_secs_f64(), tried.join("; "));
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn once(&self, path: &str, body: &[u8], most: u64, until: Instant) -> Result<Ended> {
        let left = until.saturating_duration_since(Instant::now()).min(ANSWER);
        if left.is_zero() {
            return Ok(Ended::Lost("there is no time left".to_owned()));
        }
        let scheme = if self.cluster.tls { "https" } else { "http" };
        let mut request = self.agent.post(format!("{scheme}://{}{path}", self.called()));
        if let Some(token) = &self.token {
            request = request.header("Authorization", token);
        }
        let request = request.header("Content-Type", "application/json");
        let sent = request.config().timeout_global(Some(left)).build().send(body);
        let answer = sent.and_then(|mut answer| {
            let status = answer.status().as_u16();
            // A byte more than is taken: what has just that length is read whole.
            answer.body_mut().with_config().limit(most + 1).read_to_vec().map(|bytes| (status, bytes))
        });
        match answer {
            Ok((200, bytes)) => Ok(Ended::Said(bytes)),
            Ok((status, bytes)) => Ok(Ended::Refused(status, refusal(&bytes))),
            Err(e) if passes(&e) => Ok(Ended::Lost(format!("{}{}", printable(&e.to_string()), self.hint(&e)))),
            Err(Error::BodyExceedsLimit(_)) => bail!("{} answers with more than {most} bytes", self.called()),
            Err(e) => Err(anyhow!("{}: {}{}", self.called(), printable(&e.to_string()), self.hint(&e))),
        }
    }

    /// A server that wants TLS or a certificate closes the connection of who has none, and seldom says why.
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

    fn called(&self) -> String {
        self.cluster.endpoints.get(self.at).map(ToString::to_string).unwrap_or_default()
    }
}

/// Whether another try may end otherwise: not where certificates are at fault.
fn passes(e: &Error) -> bool {
    match e {
        Error::Io(e) => e.kind() != ErrorKind::InvalidData,
        Error::Timeout(_) | Error::HostNotFound | Error::ConnectionFailed | Error::Protocol(_) => true,
        _ => false,
    }
}

/// The reason in a refusal; what is no JSON is a reason, too.
fn refusal(bytes: &[u8]) -> Refusal {
    let told: Option<Refusal> = serde_json::from_slice(bytes).ok();
    told.unwrap_or_else(|| Refusal { code: 0, message: String::from_utf8_lossy(bytes).trim().to_owned() })
}

fn said(status: u16, refusal: &Refusal) -> String {
    let message: String = printable(&refusal.message).chars().take(200).collect();
    let hint = match message.contains("user name is empty") {
        true => " (it wants a user and a password: RDMAPREP_ETCD_USER, RDMAPREP_ETCD_PASSWORD)",
        false => "",
    };
    if message.is_empty() { format!("status {status}") } else { format!("{message}{hint}") }
}

fn parse<T: DeserializeOwned>(said: &[u8]) -> Result<T> {
    serde_json::from_slice(said).context("its answer is not of etcd's kind")
}

/// Whom we trust, and who we are.
fn tls(cluster: &Cluster) -> Result<TlsConfig> {
    let roots = match &cluster.cacert {
        Some(path) => {
            let pem = read(path)?;
            let all = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
            all.map_err(|e| anyhow!("{}: {e}", path.display()))?
        }
        None => rustls_native_certs::load_native_certs().certs,
    };
    ensure!(!roots.is_empty(), "nobody is trusted to have signed etcd's certificate: cacert=FILE names who is");
    let roots: Vec<Certificate> = roots.iter().map(|c| Certificate::from_der(c).to_owned()).collect();
    let client = cluster.identity.as_ref().map(|(cert, key)| identity(&read(cert)?, &read(key)?)).transpose();
    let client = client.context("the client certificate (cert=, key=)")?;
    let provider = Arc::new(ring::default_provider());
    let config = TlsConfig::builder().root_certs(RootCerts::from(roots)).client_cert(client);
    Ok(config.unversioned_rustls_crypto_provider(provider).build())
}

/// Our certificate with its key; that they belong together is looked at here, since the HTTP client takes it for granted.
fn identity(cert: &[u8], key: &[u8]) -> Result<ClientCert> {
    let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>().map_err(|e| anyhow!("{e}"))?;
    ensure!(!chain.is_empty(), "there is no certificate in it");
    let private = PrivateKeyDer::from_pem_slice(key).map_err(|e| anyhow!("its key: {e}"))?;
    CertifiedKey::from_der(chain.clone(), private, &ring::default_provider())?;
    let chain: Vec<Certificate> = chain.iter().map(|c| Certificate::from_der(c).to_owned()).collect();
    Ok(ClientCert::new_with_certs(&chain, PrivateKey::from_pem(key)?))
}
