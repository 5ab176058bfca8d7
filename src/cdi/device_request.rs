//! What the devices of one container ask for together. Each of them has a hook in config.json;
//! every hook finds all of them there, and the first does the work for all.

use std::collections::BTreeSet;

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};

use super::rail::{self, RailName};
use super::{CLAIM, FLAG, KIND};
use crate::config::device_request::DeviceRequest;
use crate::oci::config::Config;
use crate::oci::edit::Stage;
use crate::plan::Plan;

impl DeviceRequest {
    /// What all devices ask for together, for the hook of that stage and plan that names the rails
    /// `mine`; nothing where the hook of another device comes before it. [`ErrorClass::State`]
    /// where config.json has no such hook: what the other devices ask for is unknown then.
    pub fn of_all_if_first(
        config: &Config,
        stage: Stage,
        plan: Option<&str>,
        mine: &[String],
    ) -> Result<Option<DeviceRequest>> {
        let mut claims = BTreeSet::new();
        let all: Vec<Vec<String>> = config
            .hooks(stage.name())?
            .into_iter()
            .filter_map(|hook| words(&hook.args?, stage, plan, &mut claims))
            .collect();
        if !all.iter().any(|words| words == mine) {
            let text =
                format!("{FLAG}: config.json has no such hook; devices of {KIND} add it there");
            return Err(ErrorClass::State.error(text));
        }
        if all.first().is_none_or(|words| words != mine) {
            return Ok(None);
        }
        let names = rail::names(all.iter().flatten());
        let mut asked = DeviceRequest {
            claims,
            ..DeviceRequest::default()
        };
        asked.extend(names.class(ErrorClass::State, "hooks of config.json")?);
        Ok(Some(asked))
    }

    /// Whether a container's devices have brought hooks, which name its rails: then these count,
    /// and no plan beside them.
    pub fn brought_hooks(config: &Config) -> bool {
        config.hook_args().any(|args| {
            args.get(1).is_some_and(|word| word == "hook") && !values(&args, FLAG).is_empty()
        })
    }

    pub fn lacking<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = RailName> + 'a {
        let netdevs = self.netdevs.iter().cloned().map(RailName::Netdev);
        let hcas = self.hcas.iter().cloned().map(RailName::Hca);
        netdevs.chain(hcas).filter(|rail| !rail.is_in(plan))
    }
}

impl FromIterator<RailName> for DeviceRequest {
    fn from_iter<I: IntoIterator<Item = RailName>>(names: I) -> DeviceRequest {
        let mut asked = DeviceRequest::default();
        asked.extend(names);
        asked
    }
}

impl Extend<RailName> for DeviceRequest {
    fn extend<I: IntoIterator<Item = RailName>>(&mut self, names: I) {
        for name in names {
            match name {
                RailName::Netdev(name) => drop(self.netdevs.insert(name)),
                RailName::Hca(name) => drop(self.hcas.insert(name)),
            }
        }
    }
}

/// Collects the claims besides.
fn words(
    args: &[String],
    stage: Stage,
    plan: Option<&str>,
    claims: &mut BTreeSet<String>,
) -> Option<Vec<String>> {
    let rails = values(args, FLAG);
    let ours = args
        .get(1..3)
        .is_some_and(|two| two == ["hook", stage.name()])
        && values(args, "--plan").first().map(String::as_str) == plan;
    if !ours || rails.is_empty() {
        return None;
    }
    claims.extend(values(args, CLAIM));
    Some(rails)
}

/// What is no name is left out.
pub fn named(args: &[String]) -> Vec<RailName> {
    values(args, FLAG)
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect()
}

fn values(args: &[String], flag: &str) -> Vec<String> {
    args.windows(2)
        .filter(|pair| pair[0] == flag)
        .map(|pair| pair[1].clone())
        .collect()
}
