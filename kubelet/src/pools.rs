//! The config file: resources, and the rails that each has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, ensure};
use ipnet::IpNet;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdmaprep::cdi::KIND;
use rdmaprep::disk::files;
use serde::Deserialize;

use crate::rail::{Rail, Shown};

/// Read unless `--config` names another; this one may be absent.
pub const CONFIG: &str = "/etc/rdmaprep/device-plugin.toml";

/// What is given has to fit, all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// `DOMAIN/NAME`, as a pod's limits name it.
    pub name: String,
    /// By name.
    pub rails: Option<Vec<String>>,
    /// One of its addresses is in one of these.
    pub subnets: Option<Vec<IpNet>>,
    pub numa: Option<Vec<i64>>,
    /// Speeds of the port in Gb/s.
    pub speed_gbps: Option<Vec<u32>>,
}

impl Resource {
    fn has(&self, rail: &Rail) -> bool {
        self.may_have(rail) && (self.speed_gbps.is_none() || rail.speed_gbps.is_some())
    }

    /// With any speed, where it is not known: another namespace may have the HCA.
    fn may_have(&self, rail: &Rail) -> bool {
        let within = |nets: &Vec<IpNet>| {
            nets.iter()
                .any(|n| rail.addresses.iter().any(|a| n.contains(&a.addr())))
        };
        self.rails
            .as_ref()
            .is_none_or(|names| names.contains(&rail.name))
            && self.subnets.as_ref().is_none_or(within)
            && self
                .numa
                .as_ref()
                .is_none_or(|nodes| rail.numa.is_some_and(|n| nodes.contains(&n)))
            && self
                .speed_gbps
                .as_ref()
                .is_none_or(|speeds| rail.speed_gbps.is_none_or(|s| speeds.contains(&s)))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    resource: Vec<Resource>,
    #[serde(default)]
    rail_order: Vec<Numbered>,
}

/// Which rail has a number: by its name, or by the subnet that one of its addresses is in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
enum Numbered {
    Name(String),
    Subnet(IpNet),
}

impl TryFrom<String> for Numbered {
    type Error = ipnet::AddrParseError;
    fn try_from(text: String) -> Result<Numbered, Self::Error> {
        Ok(match text.contains('/') {
            true => Numbered::Subnet(text.parse()?),
            false => Numbered::Name(text),
        })
    }
}

impl Numbered {
    fn is(&self, rail: &Rail) -> bool {
        match self {
            Numbered::Name(name) => *name == rail.name,
            Numbered::Subnet(net) => rail.addresses.iter().any(|a| net.contains(&a.addr())),
        }
    }
}

#[derive(Debug)]
pub struct Pools {
    resources: Vec<Resource>,
    /// Rails in the order that all nodes have; none where the config file does not say.
    numbered: Vec<Numbered>,
    /// The resource that a rail was given to: it stays there while the CDI file has the rail. A
    /// rail that is down has no speed and may have no address; it has to be unhealthy where it was,
    /// not absent.
    given: BTreeMap<String, usize>,
}

impl Pools {
    pub fn new(resources: Vec<Resource>) -> Result<Pools> {
        let default = || {
            vec![Resource {
                name: KIND.to_owned(),
                ..Resource::default()
            }]
        };
        let resources = if resources.is_empty() {
            default()
        } else {
            resources
        };
        let mut names = BTreeSet::new();
        for resource in &resources {
            let name = &resource.name;
            if let Some(why) = misnamed(name) {
                return Err(
                    ErrorClass::Usage.error(format!("{name:?} is no name for a resource: {why}"))
                );
            }
            ensure!(
                names.insert(name),
                ErrorClass::Usage.error(format!("two resources are named {name}"))
            );
        }
        Ok(Pools {
            resources,
            numbered: Vec::new(),
            given: BTreeMap::new(),
        })
    }

    pub fn parse(text: &str) -> Result<Pools> {
        let file: Result<File, _> = toml::from_str(text);
        let file = file.map_err(|e| {
            let line = e
                .span()
                .map(|at| text.bytes().take(at.start).filter(|b| *b == b'\n').count() + 1);
            let line = line.map(|n| format!("line {n}: ")).unwrap_or_default();
            ErrorClass::Usage.error(format!("{line}{}", e.message().replace('\n', " ")))
        })?;
        let twice = |at: usize| file.rail_order[..at].contains(&file.rail_order[at]);
        ensure!(
            !(0..file.rail_order.len()).any(twice),
            ErrorClass::Usage.error("rail_order has an entry more than once")
        );
        Ok(Pools {
            numbered: file.rail_order,
            ..Pools::new(file.resource)?
        })
    }

    pub fn read(named: Option<&Path>) -> Result<Pools> {
        let path = named.unwrap_or(Path::new(CONFIG));
        let doing = || format!("reading {}", path.display());
        match files::read_through(path).class(ErrorClass::Usage, doing())? {
            Some(text) => Pools::parse(&text)
                .map_err(|e| ErrorClass::of(&e).error(format!("{}: {e:#}", path.display()))),
            None if named.is_none() => Pools::new(Vec::new()),
            None => Err(ErrorClass::Usage
                .error(format!("the config file {} does not exist", path.display()))),
        }
    }

    /// What is wrong with the config on this node; only at the start, since rails come and go
    /// later.
    pub fn check(&self, rails: &[Rail]) -> Result<()> {
        for resource in &self.resources {
            let name = &resource.name;
            let unknown = |wanted: &&String| !rails.iter().any(|r| r.name == **wanted);
            if let Some(rail) = resource.rails.iter().flatten().find(unknown) {
                return Err(ErrorClass::Usage.error(format!(
                    "{name} lists {rail}, which the CDI file does not have"
                )));
            }
            ensure!(
                rails.iter().any(|rail| resource.may_have(rail)),
                ErrorClass::Nothing.error(format!(
                    "{name} fits none of the {} rails of this node",
                    rails.len()
                ))
            );
        }
        rails
            .iter()
            .filter_map(|rail| self.shared(rail))
            .next()
            .map_or(Ok(()), |why| Err(ErrorClass::Usage.error(why)))
    }

    fn fit<'s>(&'s self, rail: &'s Rail) -> impl Iterator<Item = usize> + 's {
        (0..self.resources.len()).filter(|at| self.resources[*at].has(rail))
    }

    /// That it fits two resources, as a sentence: each would count it.
    fn shared(&self, rail: &Rail) -> Option<String> {
        let mut fit = self.fit(rail).map(|at| &self.resources[at].name);
        let (one, other) = (fit.next()?, fit.next()?);
        Some(format!("{one} and {other} share the rail {}", rail.name))
    }

    /// Each rail to its resource: the one that it was given to, or the first that it fits. One that
    /// fits two by now is not given until that is settled; the others are.
    pub fn sort(&mut self, rails: Vec<Rail>) -> Shown {
        let mut given = BTreeMap::new();
        let mut shown: Shown = self
            .resources
            .iter()
            .map(|resource| (resource.name.clone(), Vec::new()))
            .collect();
        for mut rail in rails {
            rail.facts.number = self.numbered.iter().position(|n| n.is(&rail));
            let before = self.given.get(&rail.name).copied();
            let Some(at) = before.or(self.fit(&rail).next()) else {
                continue;
            };
            match self.shared(&rail).filter(|_| before.is_none()) {
                Some(why) => rail.unhealthy = Some(why),
                None => drop(given.insert(rail.name.clone(), at)),
            }
            shown[at].1.push(rail);
        }
        self.given = given;
        shown
    }
}

/// Why the kubelet would not count it (IsExtendedResourceName in
/// pkg/apis/core/v1/helper/helpers.go).
fn misnamed(name: &str) -> Option<&'static str> {
    let ends = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphanumeric())
            && s.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let label = |s: &str| {
        s.len() <= 63
            && ends(s)
            && s.chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let Some((domain, own)) = name.split_once('/') else {
        return Some("it has to be DOMAIN/NAME");
    };
    // `requests.` goes before it in a quota.
    let long = "requests.".len() + domain.len() > 253 || own.len() > 63;
    match () {
        () if domain == "kubernetes.io" || domain.ends_with(".kubernetes.io") => {
            Some("that domain is Kubernetes' own")
        }
        () if domain.starts_with("requests.") => Some("a quota's names begin with requests."),
        () if long => Some("it is too long"),
        () if !domain.split('.').all(label) => Some("DOMAIN is lower-case labels between dots"),
        () if !(ends(own) && own.chars().all(inner)) => {
            Some("NAME is letters, digits, '-', '_', '.', the first and last none of these signs")
        }
        () => None,
    }
}
