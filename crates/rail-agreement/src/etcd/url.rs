use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};

use crate::endpoint::Endpoint;

/// etcd's client port, where the URL has none.
const PORT: u16 = 2379;
const MEMBERS: usize = 16;
const PREFIX: usize = 128;
pub(super) const PASSWORD_SOURCES: &str =
    "RDMAPREP_ETCD_PASSWORD, or password-file= (RDMAPREP_ETCD_PASSWORD_FILE)";
const FORM: &str = "etcd://HOST:PORT[,HOST:PORT…][/PREFIX]\
    [?cacert=FILE&cert=FILE&key=FILE&user=NAME&password-file=FILE]";

/// An etcd, as a URL names it. Nothing in a URL is percent-encoded, and a password in it is an
/// error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub endpoints: Vec<Endpoint>,
    /// Prefix of our keys: empty, or `/` and a path without `/` at the end.
    pub prefix: String,
    /// Whether it speaks TLS: `etcds://`, or a file for TLS is named.
    pub tls: bool,
    /// CA certificates that sign its certificate (PEM); `None`: those of the system.
    pub cacert: Option<PathBuf>,
    /// Client certificate and its key (PEM).
    pub identity: Option<(PathBuf, PathBuf)>,
    pub user: Option<String>,
    pub password_file: Option<PathBuf>,
}

impl FromStr for Cluster {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        let (rest, tls) = match (s.strip_prefix("etcd://"), s.strip_prefix("etcds://")) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ => bail!("{s:?} is no {FORM}"),
        };
        // The text may hold a password, so the error does not repeat it.
        ensure!(
            !rest.contains('@'),
            "no user or password belongs before the host: everybody here can read a command line"
        );
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let prefix = path.trim_end_matches('/');
        ensure!(
            prefix.len() <= PREFIX && prefix.bytes().all(|b| b.is_ascii_graphic()),
            "{prefix:?} is no prefix (1 to {PREFIX} printable ASCII characters)"
        );
        let endpoints: Vec<Endpoint> = hosts.split(',').map(endpoint).collect::<Result<_>>()?;
        ensure!(
            endpoints.len() <= MEMBERS,
            "{} members of an etcd are more than {MEMBERS}",
            endpoints.len()
        );
        let (cacert, identity, user, password_file) = (None, None, None, None);
        let cluster = Cluster {
            endpoints,
            prefix: prefix.to_owned(),
            tls,
            cacert,
            identity,
            user,
            password_file,
        };
        cluster.with(query)
    }
}

fn endpoint(text: &str) -> Result<Endpoint> {
    ensure!(!text.trim().is_empty(), "a host is missing in {FORM}");
    let bare = if text.starts_with('[') {
        text.ends_with(']')
    } else {
        !text.contains(':')
    };
    if bare {
        format!("{text}:{PORT}").parse()
    } else {
        text.parse()
    }
}

impl Cluster {
    fn with(mut self, query: &str) -> Result<Cluster> {
        let (mut cert, mut key) = (None, None);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let before = match name {
                "cacert" => self.cacert.replace(path(name, value)?).is_some(),
                "cert" => cert.replace(path(name, value)?).is_some(),
                "key" => key.replace(path(name, value)?).is_some(),
                "password-file" => self.password_file.replace(path(name, value)?).is_some(),
                "user" => {
                    ensure!(!value.is_empty(), "user= is empty");
                    self.user.replace(value.to_owned()).is_some()
                }
                "password" => bail!("no password belongs into a URL: {}", PASSWORD_SOURCES),
                _ => bail!("{name:?} is not known in {FORM}"),
            };
            ensure!(!before, "{name}= is there twice");
        }
        self.identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => bail!("cert= and key= need one another"),
        };
        self.tls |= self.cacert.is_some() || self.identity.is_some();
        Ok(self)
    }
}

fn path(name: &str, value: &str) -> Result<PathBuf> {
    ensure!(value.starts_with('/'), "{name}={value} is no absolute path");
    Ok(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_url(text: &str) -> Result<Cluster> {
        text.parse()
    }

    #[test]
    fn a_url_has_members_a_prefix_and_files() {
        let plain = read_url("etcd://a,b:1,[::1],[::1]:5/jobs/x/").unwrap();
        let members: Vec<String> = plain.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(members, ["a:2379", "b:1", "[::1]:2379", "[::1]:5"]);
        assert_eq!((plain.prefix.as_str(), plain.tls), ("/jobs/x", false));
        let tls =
            read_url("etcd://a?cacert=/ca.pem&cert=/c&key=/k&user=me&password-file=/p").unwrap();
        assert_eq!(
            (tls.tls, tls.prefix.as_str(), tls.user.as_deref()),
            (true, "", Some("me"))
        );
        assert!(tls.identity.is_some() && tls.cacert == Some("/ca.pem".into()));
        assert!(read_url("etcds://a/").unwrap().tls && !read_url("etcd://a/?user=x").unwrap().tls);
    }

    #[test]
    fn what_nobody_can_mean_is_refused_and_no_password_is_repeated() {
        for wrong in [
            "etcd://",
            "etcd:///p",
            "etcd://a,",
            "etcd://a:0",
            "etcd://::1",
            "etcd://a/b c",
            "etcd://a?cert=/c",
            "http://a",
            "etcd://a?cacert=ca.pem",
            "etcd://a?user=",
            "etcd://a?what=1",
            "etcd://a?user=x&user=y",
            "etcd://a/é",
        ] {
            assert!(read_url(wrong).is_err(), "{wrong}");
        }
        for secret in ["etcd://me:s3cret@a", "etcd://a?password=s3cret"] {
            let said = format!("{:#}", read_url(secret).unwrap_err());
            assert!(!said.contains("s3cret"), "{said}");
        }
    }
}
