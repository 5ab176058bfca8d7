use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::files::read;
use super::url::{Cluster, PASSWORD_SOURCES};

/// A user and the password; `Debug` omits the password.
#[derive(Clone)]
pub struct Login {
    pub user: String,
    pub password: String,
}

impl Login {
    /// The user of the URL, else of RDMAPREP_ETCD_USER. The password is that of the URL's file,
    /// else of RDMAPREP_ETCD_PASSWORD_FILE, else of RDMAPREP_ETCD_PASSWORD; line ends after it are
    /// cut off. `None` if no user is named; a user without a password, or a password without a
    /// user, is an error.
    pub fn find(cluster: &Cluster, env: impl Fn(&str) -> Option<String>) -> Result<Option<Login>> {
        let env = |name: &str| env(name).filter(|text| !text.is_empty());
        let file = cluster
            .password_file
            .clone()
            .or_else(|| env("RDMAPREP_ETCD_PASSWORD_FILE").map(PathBuf::from));
        let password = match &file {
            Some(file) => {
                let text = read(file)?;
                let text = String::from_utf8(text)
                    .with_context(|| format!("{} is no text", file.display()))?;
                Some(text.trim_end_matches(['\n', '\r']).to_owned())
            }
            None => env("RDMAPREP_ETCD_PASSWORD"),
        };
        match (
            cluster.user.clone().or_else(|| env("RDMAPREP_ETCD_USER")),
            password,
        ) {
            (Some(user), Some(password)) => Ok(Some(Login { user, password })),
            (None, None) => Ok(None),
            (Some(user), None) => bail!("a password for {user:?} is needed: {}", PASSWORD_SOURCES),
            (None, Some(_)) => {
                bail!("a password for whom? RDMAPREP_ETCD_USER, or user= in the URL")
            }
        }
    }
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<Cluster> {
        text.parse()
    }

    #[test]
    fn a_password_comes_from_the_environment_or_a_file() {
        let plain = url("etcd://a").unwrap();
        let env = |all: &'static [(&str, &str)]| {
            move |name: &str| {
                all.iter()
                    .find(|(n, _)| *n == name)
                    .map(|(_, v)| (*v).to_owned())
            }
        };
        let both = env(&[
            ("RDMAPREP_ETCD_USER", "me"),
            ("RDMAPREP_ETCD_PASSWORD", "s3cret"),
        ]);
        let login = Login::find(&plain, both).unwrap().unwrap();
        assert_eq!(
            (login.user.as_str(), login.password.as_str()),
            ("me", "s3cret")
        );
        assert!(!format!("{login:?}").contains("s3cret"));
        assert!(Login::find(&plain, env(&[])).unwrap().is_none());
        assert!(Login::find(&plain, env(&[("RDMAPREP_ETCD_USER", "me")])).is_err());
        assert!(Login::find(&plain, env(&[("RDMAPREP_ETCD_PASSWORD", "x")])).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "of file\n").unwrap();
        let text = format!("etcd://a?user=me&password-file={}", file.path().display());
        let login = Login::find(
            &url(&text).unwrap(),
            env(&[("RDMAPREP_ETCD_PASSWORD", "x")]),
        )
        .unwrap()
        .unwrap();
        assert_eq!(login.password, "of file");
        let none = url("etcd://a?user=me&password-file=/nowhere/at/all").unwrap();
        assert!(Login::find(&none, env(&[])).is_err());
    }
}
