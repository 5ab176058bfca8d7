//! Who serves the network: NCCL's own verbs or sockets, or a plugin (NCCL_NET and NCCL_NET_PLUGIN;
//! src/net.cc, `ncclNetInit`, src/plugin/net.cc from 2.27 on). Names are compared without regard to
//! case.

use super::explanation::{Explanation, Network, Ring, Trap, Warning};
use super::hca;
use super::pitfalls::{short, warning};
use super::settings::{Plugin, Settings};
use super::version::Version;

const NET: &str = "NCCL_NET";
const PLUGIN: &str = "NCCL_NET_PLUGIN";

/// What NCCL_NET_PLUGIN names, where a plugin has a part in it.
pub(crate) fn named_first(settings: &Settings) -> Option<String> {
    let plugin = named_plugin(settings)?;
    takes_part(Network::asked(settings).as_ref()).then(|| plugin.to_owned())
}

/// Whether a plugin may serve the network. RCCL's own name is none of a plugin.
fn takes_part(network: Option<&Network>) -> bool {
    match network {
        None => true,
        Some(Network::Other(name)) => !name.eq_ignore_ascii_case(Network::ROCM_IB),
        Some(_) => false,
    }
}

pub(crate) fn warnings(settings: &Settings, explained: &Explanation) -> Vec<Warning> {
    let mut out: Vec<Warning> = no_network(settings, explained).into_iter().collect();
    let other = match &explained.network {
        Some(Network::Other(name)) => Some(format!("{NET}={}", short(name))),
        _ => {
            let plugin = explained.plugin.as_ref();
            plugin.map(|name| format!("{PLUGIN}={}", short(name)))
        }
    };
    out.extend(other.and_then(|other| not_disabled(settings, explained.version, &other)));
    out
}

/// Of a network that is not NCCL's: that of HPC-X has NCCL_IBEXT_DISABLE.
fn not_disabled(settings: &Settings, version: Version, other: &str) -> Option<Warning> {
    let text = format!(
        "NCCL_IB_DISABLE is a setting of NCCL's own network: that of {other} may use HCAs all the \
        same"
    );
    hca::disabled(settings, version).then(|| warning(Trap::Value, text))
}

/// Without the network that NCCL_NET names, NCCL takes no other.
fn no_network(settings: &Settings, explained: &Explanation) -> Option<Warning> {
    let mut ports = explained.ports.iter();
    let is_known = ports.all(|p| !p.why.starts_with(hca::UNKNOWN));
    let text = match &explained.network {
        Some(Network::Other(_)) if plugins(settings, explained.version).is_empty() => {
            "NCCL_NET names a plugin's network and NCCL_NET_PLUGIN no plugin: NCCL does not start"
        }
        Some(Network::Nothing) => {
            "NCCL_NET is empty, which no network is called: NCCL does not start; unset it"
        }
        // Without an interface it ends before that.
        Some(Network::Ib)
            if explained.hcas.is_empty() && is_known && !explained.sockets.is_empty() =>
        {
            "NCCL_NET=IB and no HCA is taken: NCCL does not start, and does not go on over TCP"
        }
        _ => return None,
    };
    Some(warning(Trap::NoNetwork, text.to_owned()))
}

fn named_plugin(settings: &Settings) -> Option<&str> {
    let name = settings.get(PLUGIN).filter(|name| !name.is_empty())?;
    (!name.eq_ignore_ascii_case("none")).then_some(name)
}

/// The libraries that NCCL tries as a plugin, one after the other until one serves: each has names,
/// of which the first that is there counts (src/plugin/plugin_open.cc). RCCL's own name is the
/// default's second.
pub fn plugins(settings: &Settings, version: Version) -> Vec<Vec<String>> {
    let named = settings.get(PLUGIN);
    let Some(value) = named.filter(|value| !value.is_empty() || version.lists_plugins()) else {
        return vec![
            ["libnccl-net.so", "librccl-net.so"]
                .map(str::to_owned)
                .into(),
        ];
    };
    let value = named_plugin(settings).map_or("", |_| value);
    let names: Vec<&str> = match version.lists_plugins() {
        true => value.split(',').collect(),
        false => vec![value],
    };
    let names = names.into_iter().filter(|name| !name.is_empty());
    names
        .map(|name| {
            let long = format!("libnccl-net-{name}.so");
            match version.opens_named_plugin() {
                true => vec![name.to_owned(), long],
                false => vec![long],
            }
        })
        .collect()
}

/// The names of what a plugin exports, of which NCCL looks for one.
pub fn plugin_symbols(version: Version) -> Vec<String> {
    let (first, last) = version.plugin_interfaces();
    (first..=last)
        .map(|n| format!("ncclNetPlugin_v{n}"))
        .collect()
}

impl Explanation {
    /// Adds what the container lacks for the HCAs that are taken.
    pub fn with_lacks(mut self, lacks: Vec<String>) -> Explanation {
        let lacks = lacks.into_iter().map(|text| warning(Trap::Libraries, text));
        self.warnings.extend(lacks);
        self
    }

    /// Adds what is known of a plugin. One that NCCL_NET does not name has no part in it.
    pub fn with_plugin(mut self, settings: &Settings, plugin: &Plugin) -> Explanation {
        match plugin {
            _ if !self.version.is_judged() || !takes_part(self.network.as_ref()) => {}
            Plugin::Unknown => {}
            Plugin::Found(path) => {
                let is_said = self.network.is_some() || self.plugin.is_some();
                let warning = not_disabled(settings, self.version, &short(path));
                self.warnings.extend(warning.filter(|_| !is_said));
                self.plugin = Some(path.clone());
                // Its network has devices of its own.
                let is_theirs = |w: &Warning| !matches!(w.trap, Trap::NoRing | Trap::Merge);
                self.warnings.retain(is_theirs);
                let unknown = "a plugin's network names its devices";
                self.ring = self.ring.map(|_| Ring::Unknown(unknown.to_owned()));
            }
            Plugin::Missing => {
                let names = plugins(settings, self.version).concat().join(", ");
                let text = format!("the loader of the container finds none of {names}");
                let is_meant = !names.is_empty() && named_plugin(settings).is_some();
                self.without_plugin(settings, text, is_meant);
            }
            Plugin::Unfit(path) => {
                let (first, last) = self.version.plugin_interfaces();
                let text = format!(
                    "{} has none of ncclNetPlugin_v{first} to _v{last}, of which NCCL {} needs one",
                    short(path),
                    self.version
                );
                self.without_plugin(settings, text, true);
            }
        }
        self
    }

    fn without_plugin(&mut self, settings: &Settings, why: String, is_meant: bool) {
        self.plugin = None;
        let (trap, text) = match (&self.network, named_plugin(settings)) {
            (Some(Network::Other(net)), _) => {
                let does = "and NCCL does not start";
                (
                    Trap::NoNetwork,
                    format!("{NET}={}: {why}, {does}", short(net)),
                )
            }
            (_, named) if is_meant => {
                let named =
                    named.map_or(String::new(), |name| format!("{PLUGIN}={}: ", short(name)));
                let does = "and NCCL uses a network of its own";
                (Trap::Value, format!("{named}{why}, {does}"))
            }
            _ => return,
        };
        self.warnings.push(warning(trap, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::explain;
    use crate::version::Version;
    use rdma_model::snapshot::Snapshot;

    #[test]
    fn a_plugin_is_found_by_its_names() {
        let names = |value: Option<&str>, release: &str| {
            let settings = Settings::of(value.map(|value| (PLUGIN, value)), "");
            plugins(&settings, release.parse().unwrap())
        };
        let default = [["libnccl-net.so", "librccl-net.so"]];
        assert_eq!(names(None, "2.32.3"), default);
        assert_eq!(names(Some(""), "2.26.6"), default);
        assert_eq!(names(Some(""), "2.27.3"), [[""; 0]; 0]);
        assert_eq!(names(Some("NONE"), "2.26.6"), [[""; 0]; 0]);
        assert_eq!(
            names(Some("ofi"), "2.21.5"),
            [["ofi", "libnccl-net-ofi.so"]]
        );
        assert_eq!(names(Some("ofi"), "2.20.5"), [["libnccl-net-ofi.so"]]);
        let file = "libnccl-net-libnccl-net-ofi.so.so";
        assert_eq!(names(Some("libnccl-net-ofi.so"), "2.20.5"), [[file]]);
        assert_eq!(names(Some("a,b"), "2.27.3")[1], ["b", "libnccl-net-b.so"]);
        assert_eq!(
            names(Some("a,b"), "2.26.5"),
            [["a,b", "libnccl-net-a,b.so"]]
        );
        assert_eq!(
            plugin_symbols(Version::OLDEST).concat().len(),
            3 * "ncclNetPlugin_v4".len()
        );
    }

    #[test]
    fn a_plugin_counts_where_nccl_net_leaves_it() {
        let with = |env: &[(&str, &str)], plugin: &Plugin| {
            let settings = Settings::of(env.iter().copied(), "");
            let explained = explain(&settings, &Snapshot::default(), Version::NEWEST, &|_| None);
            let before = explained.warnings.len();
            let explained = explained.with_plugin(&settings, plugin);
            let fatal: Vec<bool> = explained.warnings[before..]
                .iter()
                .map(|w| w.fatal)
                .collect();
            (explained.plugin.is_some(), fatal)
        };
        let found = Plugin::Found("/usr/lib/libnccl-net.so".to_owned());
        assert_eq!(with(&[], &found), (true, vec![]));
        assert_eq!(with(&[(NET, "gIB")], &found), (true, vec![]));
        assert_eq!(with(&[(NET, "ib")], &found), (false, vec![]));
        assert_eq!(with(&[(NET, "Socket")], &found), (false, vec![]));
        let disabled = ("NCCL_IB_DISABLE", "1");
        assert_eq!(with(&[disabled], &found), (true, vec![false]));
        assert_eq!(with(&[disabled, (PLUGIN, "ofi")], &found), (true, vec![]));
        assert_eq!(with(&[], &Plugin::Missing), (false, vec![]));
        assert_eq!(
            with(&[(PLUGIN, "ofi")], &Plugin::Missing),
            (false, vec![false])
        );
        assert_eq!(with(&[(PLUGIN, "none")], &Plugin::Missing), (false, vec![]));
        assert_eq!(with(&[(NET, "gIB")], &Plugin::Missing), (false, vec![true]));
        assert_eq!(with(&[(NET, "IB")], &Plugin::Missing), (false, vec![]));
        assert_eq!(with(&[(NET, "gIB")], &Plugin::Unknown), (false, vec![]));
        let unfit = Plugin::Unfit("/usr/lib/libnccl-net.so".to_owned());
        assert_eq!(with(&[], &unfit), (false, vec![false]));
        assert_eq!(with(&[(NET, "gIB")], &unfit), (false, vec![true]));
        assert_eq!(with(&[(NET, "IB")], &unfit), (false, vec![]));
    }
}
