//! The settings of libraries beside NCCL for exactly the NICs that the container got: one table,
//! from which the environment and docs/libraries.md are made.

use std::collections::{BTreeMap, BTreeSet};

use rdma_model::nic::EnvVar;

use super::{Hcas, OF_GID, var};
use crate::config::libraries::{Libraries, Library};

mod table;

pub use table::SETTINGS;

/// A row of the table.
pub struct Setting {
    pub library: Library,
    pub variable: &'static str,
    pub form: Form,
    /// Where the library reads it.
    pub source: &'static str,
    /// The release in which that was looked up.
    pub release: &'static str,
}

/// What a value is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Made with NCCL's: by [`super::build_env`] and [`super::fit_container`].
    Nccl(&'static str),
    Ports,
    Names,
    /// Of a library that uses the port [`Form::Port`] of each.
    PortNames,
    OneName,
    /// The number of all ports, where it is not the default, 1.
    Port,
    /// Where it is not set, the library does this.
    GidIndex(&'static str),
    Interface,
    ExactInterface,
    Constant(&'static str),
}

use Form::{Constant, ExactInterface, GidIndex, Interface, Names, OneName, Port, PortNames, Ports};

const UCX_LIST: &str = "UCX_NET_DEVICES";
const NVSHMEM_LIST: &str = "NVSHMEM_HCA_LIST";
/// `HCA:PORT:PES`, which rdmaprep never sets.
pub const NVSHMEM_PES: &str = "NVSHMEM_HCA_PE_MAPPING";
/// Without it NVSHMEM reads neither.
pub const NVSHMEM_MAPPING: &str = "NVSHMEM_ENABLE_NIC_PE_MAPPING";

/// Settings that exclude each other: a container that has one of them otherwise has chosen.
const CHOICES: [&[&str]; 4] = [
    &[NVSHMEM_MAPPING, NVSHMEM_LIST, NVSHMEM_PES],
    &["MC_TE_FILTERS", "MC_TE_FILTERS_EXCLUDE"],
    &["OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude"],
    // One interface for all.
    &[
        "NCCL_SOCKET_IFNAME",
        "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
        "MSCCLPP_SOCKET_IFNAME",
        "OMPI_MCA_btl_tcp_if_include",
    ],
];

impl Setting {
    fn is_nccls(&self) -> bool {
        matches!(self.form, Form::Nccl(_))
    }
}

/// Whose variable that is; NCCL has many more than the table.
fn library(name: &str) -> Option<Library> {
    let of_table = SETTINGS
        .iter()
        .find(|s| s.variable == name)
        .map(|s| s.library);
    of_table.or(name.starts_with("NCCL_").then_some(Library::Nccl))
}

pub fn is_of_table(variable: &str) -> bool {
    variable == NVSHMEM_PES || SETTINGS.iter().any(|s| s.variable == variable)
}

/// What a variable of the table names, where that counts. NCCL's list is judged with its rules.
pub fn named_hcas<'v>(variable: &str, value: &'v str, is_mapped: bool) -> Vec<&'v str> {
    let setting = SETTINGS.iter().find(|s| s.variable == variable);
    let is_list = setting.is_some_and(|s| matches!(s.form, Ports | Names | PortNames | OneName));
    let is_list = is_list || variable == NVSHMEM_PES;
    let is_all = variable == UCX_LIST && value == "all";
    let is_unread = [NVSHMEM_LIST, NVSHMEM_PES].contains(&variable) && !is_mapped;
    if !is_list || is_all || value.starts_with('^') || is_unread {
        return Vec::new();
    }
    let words = value.split(',').map(str::trim);
    words.filter(|word| !word.is_empty()).collect()
}

/// Whether a word of such a list means something of these: UCX takes interfaces as well, and ranges
/// (src/ucp/core/ucp_context.c, src/ucs/config/parser.c); libfabric the beginning of a name
/// (fi_verbs(7)).
pub fn means(variable: &str, word: &str, hcas: &[&str], interfaces: &[&str]) -> bool {
    let name = word.split(':').next().unwrap_or(word);
    match variable {
        UCX_LIST => {
            let mut all = hcas.iter().chain(interfaces);
            all.any(|there| *there == name || in_range(there, name))
        }
        "FI_VERBS_DEVICE_NAME" => hcas.iter().any(|hca| hca.starts_with(name)),
        _ => hcas.contains(&name),
    }
}

/// Whether a name is one of `mlx5_[0-3]`.
fn in_range(name: &str, range: &str) -> bool {
    let Some((head, (numbers, tail))) = range
        .split_once('[')
        .and_then(|(head, rest)| Some((head, rest.split_once(']')?)))
    else {
        return false;
    };
    let number = name
        .strip_prefix(head)
        .and_then(|rest| rest.strip_suffix(tail)?.parse::<u32>().ok());
    let ends = numbers.split_once('-').map(|(a, b)| (a.parse(), b.parse()));
    matches!((number, ends), (Some(n), Some((Ok(a), Ok(b)))) if (a..=b).contains(&n))
}

impl Form {
    /// How a value looks, for docs/libraries.md.
    pub fn example(self) -> &'static str {
        match self {
            Form::Nccl(example) => example,
            Ports => "`mlx5_0:1,mlx5_1:1`",
            Names => "`mlx5_0,mlx5_1`; none where an HCA has several ports",
            PortNames => "`mlx5_0,mlx5_1`; none where the ports differ",
            OneName => "`mlx5_0`, where it is the only HCA",
            Port => "a number, where all ports have one that is not 1",
            GidIndex(_) => "a number, where one is right on all ports",
            Interface => "`eth0`",
            ExactInterface => "`=eth0`",
            Constant(value) => value,
        }
    }

    fn why(self, hcas: Hcas) -> String {
        let why = match self {
            Form::Nccl(_) | Constant(_) => "what the HCAs below need to count",
            Ports | Names | PortNames | OneName => {
                let order = hcas.order();
                return format!("exactly the HCAs that the container gets, {order}");
            }
            Port => "the number of every port",
            GidIndex(_) => OF_GID,
            Interface | ExactInterface => "that of NCCL's bootstrap",
        };
        why.to_owned()
    }
}

/// Sets what these libraries read, and nothing of others. Returns what nothing certain can be said
/// of: `NAME: reason`.
pub fn fit(
    env: &mut Vec<EnvVar>,
    libraries: &Libraries,
    own: &BTreeMap<String, String>,
    hcas: Hcas,
    gid_index: Result<Option<u32>, &str>,
) -> Vec<String> {
    let made = Made {
        ports: ports(hcas),
        names: names(hcas),
        gid_index,
        interface: interface(env),
    };
    env.retain(|v| {
        SETTINGS
            .iter()
            .all(|s| s.variable != v.name || s.is_nccls())
    });
    env.retain(|v| library(&v.name).is_none_or(|library| libraries.has(library)));
    let mut unset = Vec::new();
    let chosen = SETTINGS
        .iter()
        .filter(|s| libraries.has(s.library) && !s.is_nccls());
    for setting in chosen {
        match made.value(setting.form) {
            Ok(Some(value)) => {
                let why = setting.form.why(hcas);
                env.push(var(setting.variable, &value, &why));
            }
            Ok(None) => {}
            Err(why) => unset.push(format!("{}: {why}", setting.variable)),
        }
    }
    for (name, by) in chosen_otherwise(env, own) {
        let before = env.len();
        env.retain(|v| v.name != name || own.contains_key(name));
        if env.len() < before {
            unset.push(format!("{name}: the container sets {by}"));
        }
    }
    unset
}

/// Whether a line of what is not set stays: not those of [`fit`], nor of a library that is not
/// meant.
pub fn keeps(line: &str, libraries: &Libraries) -> bool {
    let variable = line.split(':').next().unwrap_or_default();
    let is_made = SETTINGS
        .iter()
        .any(|s| s.variable == variable && !s.is_nccls());
    !is_made && library(variable).is_none_or(|library| libraries.has(library))
}

/// Variables that wait for the container's network: they have the bootstrap's interface.
pub fn at_start(libraries: &Libraries) -> Vec<&'static str> {
    let chosen = SETTINGS.iter().filter(|s| libraries.has(s.library));
    let waiting = chosen.filter(|s| {
        matches!(s.form, Interface | ExactInterface) || s.variable.ends_with("SOCKET_IFNAME")
    });
    waiting.map(|s| s.variable).collect()
}

pub fn read_gids(libraries: &Libraries) -> bool {
    let mut meant = SETTINGS.iter().filter(|s| libraries.has(s.library));
    meant.any(|s| matches!(s.form, GidIndex(_)) || s.variable == "NCCL_IB_GID_INDEX")
}

/// Ours that belong to a choice which the container has made in another way, each with what it has
/// set.
fn chosen_otherwise(
    env: &[EnvVar],
    own: &BTreeMap<String, String>,
) -> Vec<(&'static str, &'static str)> {
    let mut left = Vec::new();
    for choice in CHOICES {
        let by = choice.iter().find(|name| {
            let ours = env.iter().find(|v| v.name == **name).map(|v| &v.value);
            own.get(**name).is_some_and(|own| Some(own) != ours)
        });
        if let Some(by) = by {
            let ours = choice.iter().filter(|name| !name.starts_with("NCCL_"));
            left.extend(ours.map(|name| (*name, *by)));
        }
    }
    left
}

/// What of a plan values are made of.
struct Made<'a> {
    ports: Vec<String>,
    /// Names alone say the same only of HCAs with one port.
    names: Result<Vec<String>, String>,
    gid_index: Result<Option<u32>, &'a str>,
    interface: Option<String>,
}

impl Made<'_> {
    fn value(&self, form: Form) -> Result<Option<String>, String> {
        let list = match form {
            Form::Nccl(_) => return Ok(None),
            Constant(value) => return Ok(self.given().then(|| value.to_owned())),
            Port => return self.port(),
            GidIndex(without) => return self.index(without),
            Interface => return Ok(self.interface.clone()),
            ExactInterface => return Ok(self.interface.as_ref().map(|name| format!("={name}"))),
            Ports => self.ports.clone(),
            Names => self.names.clone()?,
            PortNames => match self.port() {
                Ok(_) => first_parts(&self.ports),
                Err(_) => return Err("the ports differ, and a name is one of them".to_owned()),
            },
            OneName => match self.names.clone()? {
                many if many.len() > 1 => {
                    return Err("older releases read a single name, and there are several".into());
                }
                one => one,
            },
        };
        Ok((!list.is_empty()).then(|| list.join(",")))
    }

    fn port(&self) -> Result<Option<String>, String> {
        let numbers = self.ports.iter().filter_map(|port| port.split(':').nth(1));
        let numbers: BTreeSet<&str> = numbers.collect();
        match numbers.first() {
            Some(_) if numbers.len() > 1 => {
                Err("the ports differ; without it port 1 counts on each HCA".to_owned())
            }
            Some(number) if *number != "1" => Ok(Some((*number).to_owned())),
            _ => Ok(None),
        }
    }

    /// Ports without a GID, as InfiniBand's are, need none.
    fn index(&self, without: &str) -> Result<Option<String>, String> {
        match self.gid_index {
            Ok(index) => Ok(index.map(|index| index.to_string())),
            Err(why) => Err(format!("{why}; without it {without}")),
        }
    }

    fn given(&self) -> bool {
        !self.ports.is_empty()
    }
}

/// Every HCA with its port. An InfiniBand HCA has one, or those that were chosen.
fn ports(hcas: Hcas) -> Vec<String> {
    let moved = hcas
        .nics
        .iter()
        .filter_map(|nic| Some(format!("{}:{}", nic.hca.as_ref()?, nic.port?)));
    let mut ports: Vec<String> = moved.collect();
    for hca in hcas.ib {
        let chosen = hcas.ib_ports.get(hca).map_or(&[1][..], Vec::as_slice);
        ports.extend(chosen.iter().map(|port| format!("{hca}:{port}")));
    }
    let mut seen = BTreeSet::new();
    ports.retain(|port| seen.insert(port.clone()));
    ports
}

fn names(hcas: Hcas) -> Result<Vec<String>, String> {
    let mut several = hcas.nics.iter().filter(|n| n.ports > 1);
    let moved = several.find_map(|n| n.hca.as_ref());
    if let Some(hca) = moved.or_else(|| hcas.ib_ports.keys().next()) {
        return Err(format!(
            "{hca} has several ports, and a name is all of them"
        ));
    }
    Ok(first_parts(&ports(hcas)))
}

/// The HCAs of these ports.
fn first_parts(ports: &[String]) -> Vec<String> {
    let names = ports.iter().filter_map(|port| port.split(':').next());
    names.map(str::to_owned).collect()
}

/// The bootstrap's, where one was chosen.
fn interface(env: &[EnvVar]) -> Option<String> {
    let chosen = env.iter().find(|v| v.name.ends_with("SOCKET_IFNAME"))?;
    Some(chosen.value.trim_start_matches('=').to_owned())
}

#[cfg(test)]
mod tests;
