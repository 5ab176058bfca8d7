//! The text of the host's config file, parsed: all of it, or, whatever is wrong in it, what
//! returning NICs and passing on a runtime's command line takes.

use std::path::PathBuf;

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

use crate::config::host::{Config, HOOK_LOG};
use crate::config::plans::{Wrong, plans};

pub struct ConfigFile<'t> {
    text: &'t str,
    table: Result<Spanned<DeTable<'t>>, Error>,
}

/// What a shim has to know for every call. Whatever else is wrong in the file, containers that run
/// have to be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShimConfig {
    pub runtime: Option<String>,
    /// Whether there is a plan for containers that did not opt in.
    pub has_plan: bool,
    /// The log of the hooks, if there is to be one.
    pub log: Option<PathBuf>,
}

impl Default for ShimConfig {
    fn default() -> ShimConfig {
        ShimConfig {
            runtime: None,
            has_plan: false,
            log: Some(HOOK_LOG.into()),
        }
    }
}

impl<'t> ConfigFile<'t> {
    pub fn new(text: &'t str) -> ConfigFile<'t> {
        ConfigFile {
            text,
            table: DeTable::parse(text),
        }
    }

    /// [`ErrorClass::Usage`] with the line: no TOML, a key that is unknown, a bad value.
    pub fn config(&self) -> Result<Config> {
        let mut table = self.table.clone().map_err(|e| self.at_line(e))?;
        let of = table.get_mut().remove("plans");
        let select = table.get_ref().get("select").cloned();
        let mut config =
            Config::deserialize(Deserializer::from(table)).map_err(|e| self.at_line(e))?;
        if let Some(of) = of {
            config.plans = plans(of, select.as_ref()).map_err(|e| self.at_line(e))?;
        }
        Ok(config)
    }

    /// Of a text that cannot be used, what says where records are: each key that can be read by
    /// itself.
    pub fn folders(&self) -> Config {
        let [state_dir, run_dir, hook_log] = ["state_dir", "run_dir", "hook_log"]
            .map(|key| self.value(key).and_then(DeValue::as_str).map(PathBuf::from));
        Config {
            state_dir,
            run_dir,
            hook_log,
            ..Config::default()
        }
    }

    /// What is said of that.
    pub fn words(&self) -> &'static str {
        match &self.table {
            Ok(_) => "of this file only the folders are used",
            Err(_) => "the default folders are used",
        }
    }

    /// Another runtime than the one that is meant may take a sandbox away, so a bad value is
    /// [`ErrorClass::Usage`].
    pub fn shim(&self) -> Result<ShimConfig> {
        #[derive(Deserialize)]
        struct Runtime {
            runtime: Option<String>,
        }
        let table = self.table.clone().map_err(|e| self.at_line(e))?;
        let Runtime { runtime } =
            Runtime::deserialize(Deserializer::from(table)).map_err(|e| self.at_line(e))?;
        let log = self
            .value("hook_log")
            .map_or(Some(HOOK_LOG), DeValue::as_str);
        let log = log.filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(ShimConfig {
            runtime,
            has_plan: self.has_plan(),
            log,
        })
    }

    pub fn has_plan(&self) -> bool {
        self.value("plan").is_some()
    }

    fn value(&self, key: &str) -> Option<&DeValue<'t>> {
        self.table
            .as_ref()
            .ok()?
            .get_ref()
            .get(key)
            .map(Spanned::get_ref)
    }

    fn at_line(&self, e: impl Into<Wrong>) -> anyhow::Error {
        let Wrong { span, text } = e.into();
        let before = span.and_then(|s| self.text.get(..s.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        ErrorClass::Usage.error(format!(
            "config file, line {line}: {}",
            text.replace('\n', ", ")
        ))
    }
}
