//! Libraries whose settings a container may get, by the names that `--libraries` has for them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use serde::{Deserialize, Deserializer, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum Library {
    Nccl,
    Gloo,
    Ucx,
    OpenMpi,
    Nvshmem,
    Mscclpp,
    Mooncake,
    Libfabric,
}

/// Some of them. Without a word: what PyTorch uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Libraries(BTreeSet<Library>);

const ALL: &str = "all";

impl Libraries {
    pub fn all() -> Libraries {
        Libraries(Library::value_variants().iter().copied().collect())
    }

    pub fn has(&self, library: Library) -> bool {
        self.0.contains(&library)
    }

    pub fn is_default(&self) -> bool {
        *self == Libraries::default()
    }

    fn named<'a>(words: impl Iterator<Item = &'a str>) -> Result<Libraries> {
        let mut named = BTreeSet::new();
        for word in words {
            match (word, Library::from_str(word, false)) {
                (ALL, _) => named.extend(Library::value_variants()),
                (_, Ok(library)) => drop(named.insert(library)),
                (_, Err(_)) => {
                    let all = Libraries::all();
                    return Err(anyhow!("{word:?} is none of {all}, {ALL}"));
                }
            }
        }
        Ok(Libraries(named))
    }
}

impl Default for Libraries {
    fn default() -> Libraries {
        Libraries(BTreeSet::from([Library::Nccl, Library::Gloo]))
    }
}

impl FromStr for Libraries {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Libraries> {
        let words = text.split(|c: char| c == ',' || c.is_whitespace());
        Libraries::named(words.filter(|word| !word.is_empty()))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    List(Vec<String>),
}

impl<'de> Deserialize<'de> for Libraries {
    fn deserialize<D: Deserializer<'de>>(file: D) -> Result<Libraries, D::Error> {
        let libraries = match Written::deserialize(file)? {
            Written::Text(text) => text.parse(),
            Written::List(list) => Libraries::named(list.iter().map(String::as_str)),
        };
        libraries.map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Libraries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, library) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{library}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_names_and_all_are_read() {
        let read = |text: &str| text.parse::<Libraries>().unwrap();
        assert!(read("nccl,gloo").is_default());
        assert_eq!(read("ucx all"), Libraries::all());
        assert!(!read("").has(Library::Nccl));
        let e = "nccl,uxc".parse::<Libraries>().unwrap_err().to_string();
        assert!(
            e.starts_with("\"uxc\" is none of nccl, gloo, ucx, openmpi"),
            "{e}"
        );
    }

    #[test]
    fn file_has_a_list_or_one_word() {
        let read = |text: &str| serde_json::from_str::<Libraries>(text);
        assert_eq!(read("\"all\"").unwrap(), Libraries::all());
        let written = serde_json::to_string(&read("[\"ucx\",\"nccl\"]").unwrap()).unwrap();
        assert_eq!(written, "[\"nccl\",\"ucx\"]");
        assert!(read("[\"uxc\"]").is_err());
    }
}
