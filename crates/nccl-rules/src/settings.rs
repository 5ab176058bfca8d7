//! NCCL's variables with the place that each comes from. NCCL adds to the environment, once and
//! without overwriting, `$NCCL_CONF_FILE` or else `~/.nccl.conf`, and then always `/etc/nccl.conf`
//! (src/misc/param.cc, `initEnvFunc`). So the environment comes first, an empty value in it is a
//! value, and within a file the first assignment of a name counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rdma_model::escape::shortened;
use serde::{Deserialize, Serialize};

use super::conf;
use super::version::Version;

pub const ETC: &str = "/etc/nccl.conf";

/// The variables, each with its value and where that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Settings(BTreeMap<String, (String, String)>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FoundSettings {
    pub settings: Settings,
    pub notes: Vec<String>,
    #[serde(default)]
    pub plugin: Plugin,
}

/// The library of a network, by [`super::explain::plugins`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Plugin {
    /// It was not looked for.
    #[default]
    Unknown,
    Missing,
    /// The library has no interface that this release looks for.
    Unfit(String),
    Found(String),
}

impl FoundSettings {
    /// Adds what a config file has, and a note on lines that NCCL passes over.
    pub fn add(&mut self, path: &Path, text: &[u8], version: Version) {
        self.settings.add(path, text, version);
        for line in conf::unread(text).iter().take(8) {
            let (path, line) = (path.display(), shortened(line, 80));
            let note = format!("{path} has a line without =, which NCCL passes over: {line:?}");
            self.notes.push(note);
        }
    }
}

impl Settings {
    /// An environment alone, found in `place`: `the environment`, `the plan`.
    pub fn of<N, V>(env: impl IntoIterator<Item = (N, V)>, place: &str) -> Settings
    where
        N: Into<String>,
        V: Into<String>,
    {
        Settings(
            env.into_iter()
                .map(|(name, value)| (name.into(), (value.into(), place.to_owned())))
                .collect(),
        )
    }

    /// Adds what a config file has, unless an earlier source has it.
    pub fn add(&mut self, path: &Path, text: &[u8], version: Version) {
        for (name, value) in conf::parse(text) {
            let value = if version.strips_cr() {
                value.strip_suffix(b"\r").unwrap_or(value)
            } else {
                value
            };
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            self.0
                .entry(text(name))
                .or_insert_with(|| (text(value), path.display().to_string()));
        }
    }

    /// A copy with another value of a variable, or without it.
    pub fn but(&self, name: &str, value: Option<&str>) -> Settings {
        let mut other = self.clone();
        match value {
            Some(value) => other
                .0
                .insert(name.to_owned(), (value.to_owned(), String::new())),
            None => other.0.remove(name),
        };
        other
    }

    /// A variable's value; an empty one is there, too.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|(value, _)| value.as_str())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn place(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|(_, place)| place.as_str())
    }

    /// The files that NCCL reads with this environment, in order: `home` is the user's home in the
    /// user database.
    pub fn files(&self, home: Option<&Path>, version: Version) -> Vec<PathBuf> {
        let named = self
            .get("NCCL_CONF_FILE")
            .filter(|file| version.knows_conf_file() && !file.is_empty());
        let home = if version.uses_home_variable() {
            self.get("HOME").map(Path::new)
        } else {
            home
        };
        let own = named
            .map(PathBuf::from)
            .or_else(|| home.map(|home| home.join(".nccl.conf")));
        own.into_iter().chain([PathBuf::from(ETC)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Version = Version::new(2, 27, 7);

    #[test]
    fn who_comes_first_wins() {
        let mut s = Settings::of([("NCCL_A", "env"), ("NCCL_EMPTY", "")], "the environment");
        s.add(
            Path::new("/u"),
            b"NCCL_A=u\nNCCL_B=u\nNCCL_B=second\nNCCL_EMPTY=u\nNCCL_C=u\r\n",
            OLD,
        );
        s.add(Path::new(ETC), b"NCCL_B=etc\nNCCL_D=etc", OLD);
        let all = [
            "NCCL_A",
            "NCCL_B",
            "NCCL_C",
            "NCCL_D",
            "NCCL_EMPTY",
            "NCCL_NONE",
        ]
        .map(|name| s.get(name));
        assert_eq!(
            all,
            [
                Some("env"),
                Some("u"),
                Some("u\r"),
                Some("etc"),
                Some(""),
                None
            ]
        );
        assert_eq!(
            (s.place("NCCL_B"), s.place("NCCL_D")),
            (Some("/u"), Some("/etc/nccl.conf"))
        );
        let mut new = Settings::default();
        new.add(Path::new("/u"), b"NCCL_C=u\r\n", Version::NEWEST);
        assert_eq!(new.get("NCCL_C"), Some("u"));
    }

    #[test]
    fn each_release_has_its_files() {
        let files = |env: &[(&str, &str)], version: &str| {
            let s = Settings::of(env.iter().copied(), "the environment");
            let files = s.files(Some(Path::new("/root")), version.parse().unwrap());
            files
                .iter()
                .map(|f| f.display().to_string())
                .collect::<Vec<_>>()
        };
        let both = [("HOME", "/h"), ("NCCL_CONF_FILE", "/c")];
        assert_eq!(files(&both, "2.22.3"), ["/root/.nccl.conf", ETC]);
        assert_eq!(files(&both, "2.23.4"), ["/c", ETC]);
        assert_eq!(
            files(&[("HOME", "/h"), ("NCCL_CONF_FILE", "")], "2.30.3"),
            ["/h/.nccl.conf", ETC]
        );
        assert_eq!(
            files(&[("HOME", "/h")], "2.29.7"),
            ["/root/.nccl.conf", ETC]
        );
        assert_eq!(files(&[], "2.30.3"), [ETC]);
    }
}
