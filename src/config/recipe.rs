//! How a stored plan was made, for who has to make it again.

use std::collections::BTreeMap;
use std::path::Path;

use rdma_model::escape::{is_plain, shell_word};
use serde::{Deserialize, Serialize};

/// What `prepare` was given, wherever it was said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    /// Variables that containers get.
    env: BTreeMap<String, String>,
    /// `--name=value`.
    flags: Vec<String>,
    /// Whether the config file says how.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    configured: bool,
}

impl Recipe {
    /// Of a plan that the config file describes.
    pub fn configured() -> Recipe {
        Recipe {
            configured: true,
            ..Recipe::default()
        }
    }

    pub fn is_configured(&self) -> bool {
        self.configured
    }

    pub fn new(env: BTreeMap<String, String>, mut flags: Vec<String>, of: &Besides) -> Recipe {
        let bundle = of.bundle.map(|path| format!("--bundle={}", path.display()));
        let runtime = of.runtime.map(|line| format!("--runtime={line}"));
        let timeout = of.hook_timeout.map(|s| format!("--hook-timeout={s}"));
        flags.extend(bundle.into_iter().chain(runtime).chain(timeout));
        Recipe {
            env,
            flags,
            configured: false,
        }
    }

    /// With a variable that was found out after it.
    pub fn with(mut self, name: &str, value: &str) -> Recipe {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The command that makes that plan again; with just these netdevs, where any are given.
    pub fn command(&self, plan: &str, ifaces: Option<&str>) -> String {
        if self.configured {
            return "rdmaprep prepare --configured".to_owned();
        }
        let mut words: Vec<String> = self.env.iter().map(|(k, v)| assigned(k, v)).collect();
        words.push(format!("rdmaprep prepare --plan {plan}"));
        words.extend(ifaces.map(|names| format!("--ifaces \"{names}\"")));
        for flag in &self.flags {
            let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
            match (name, value) {
                ("--ifaces", _) if ifaces.is_some() => {}
                (_, "") => words.push(name.to_owned()),
                _ => words.push(assigned(name, value)),
            }
        }
        words.join(" ")
    }
}

/// What besides its NICs and their settings a plan was made for.
pub struct Besides<'a> {
    pub bundle: Option<&'a Path>,
    pub runtime: Option<&'a str>,
    pub hook_timeout: Option<u32>,
}

fn assigned(name: &str, value: &str) -> String {
    match () {
        () if is_plain(value, b"-_.,:/@+") => format!("{name}={value}"),
        () if is_plain(value, b"-_.,:/@+ ") => format!("{name}=\"{value}\""),
        () => format!("{name}={}", shell_word(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_out_later_is_in_the_command() {
        let besides = Besides {
            bundle: None,
            runtime: None,
            hook_timeout: None,
        };
        let set = |value: &str| BTreeMap::from([("NCCL_CROSS_NIC".to_owned(), value.to_owned())]);
        let made = Recipe::new(set("1"), Vec::new(), &besides).with("NCCL_CROSS_NIC", "0");
        let expected = "NCCL_CROSS_NIC=0 rdmaprep prepare --plan p";
        assert_eq!(made.command("p", None), expected);
    }
}
