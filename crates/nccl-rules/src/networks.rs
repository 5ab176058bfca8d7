//! Who serves the network: NCCL's own verbs or sockets, or a plugin (NCCL_NET and NCCL_NET_PLUGIN;
//! src/net.cc, `ncclNetInit`, src/plugin/net.cc from 2.27 on). Names are compared without regard to
//! case.

use super::explanation::{Explanation, Trap, Warning};
use super::hca::{self, ROCM_IB, parameter};
use super::pitfalls::{short, warning};
use super::settings::{Plugin, Settings};

const NET: &str = "NCCL_NET";
const PLUGIN: &str = "NCCL_NET_PLUGIN";

pub(crate) fn warnings(settings: &Settings, explained: &Explanation) -> Vec<Warning> {
    let mut out = Vec::new();
    let is_ib = settings
        .get(NET)
        .is_some_and(|name| name.eq_ignore_ascii_case("ib"));
    let is_known = explained
        .ports
        .iter()
        .all(|p| !p.why.starts_with(hca::UNKNOWN));
    if is_ib && explained.hcas.is_empty() && is_known {
        let text = "NCCL_NET=IB and no HCA is taken: NCCL does not start, and does not go on over \
            TCP"
        .to_owned();
        out.push(Warning {
            fatal: true,
            ..warning(Trap::NoHca, text)
        });
    }
    let other = named_plugin(settings).map(|plugin| format!("{PLUGIN}={}", short(plugin)));
    let rocm = settings
        .get(NET)
        .filter(|name| name.eq_ignore_ascii_case(ROCM_IB));
    let other = other.or_else(|| rocm.map(|name| format!("{NET}={name}")));
    if let Some(other) = other.filter(|_| hca::disabled(settings, explained.version)) {
        let text = format!(
            "NCCL_IB_DISABLE is a setting of NCCL's own network: that of {other} may use HCAs all \
            the same"
        );
        out.push(warning(Trap::Value, text));
    }
    let hides = settings
        .get(MISMATCH)
        .filter(|v| !v.is_empty() && parameter(settings, explained.version, MISMATCH, 1) != 0);
    if let Some(value) = hides {
        let text = format!(
            "{MISMATCH}={}: nodes with different numbers of HCAs are not refused, and may hang; 0 \
            makes it an error",
            short(value)
        );
        out.push(warning(Trap::Value, text));
    }
    out
}

const MISMATCH: &str = "NCCL_IGNORE_NET_MISMATCH";

fn named_plugin(settings: &Settings) -> Option<&str> {
    let name = settings.get(PLUGIN).filter(|name| !name.is_empty())?;
    (!name.eq_ignore_ascii_case("none")).then_some(name)
}

/// The names by which NCCL opens a plugin, the first that is there (src/plugin/plugin_open.cc in
/// 2.27.3); RCCL's own name is the second.
pub fn plugin_names(settings: &Settings) -> Vec<String> {
    if settings.get(PLUGIN).is_none_or(str::is_empty) {
        return ["libnccl-net.so", "librccl-net.so"]
            .map(str::to_owned)
            .into();
    }
    let names = named_plugin(settings).map_or("", |names| names);
    let names = names.split(',').filter(|name| !name.is_empty());
    names
        .flat_map(|name| [name.to_owned(), format!("libnccl-net-{name}.so")])
        .collect()
}

impl Explanation {
    /// Adds what is known of a plugin. One that NCCL_NET does not name has no part in it.
    pub fn with_plugin(mut self, settings: &Settings, plugin: &Plugin) -> Explanation {
        let net = settings.get(NET).filter(|name| !name.is_empty());
        let is_own = net.is_some_and(|name| {
            ["ib", "socket", ROCM_IB].contains(&name.to_ascii_lowercase().as_str())
        });
        match plugin {
            Plugin::Found(path) if !is_own => self.plugin = Some(path.clone()),
            Plugin::Missing if !is_own => {
                let names = plugin_names(settings).join(", ");
                let missing = format!("the loader of the container finds none of {names}");
                let text = match net {
                    Some(net) => Some(Warning {
                        fatal: true,
                        ..warning(
                            Trap::Value,
                            format!("{NET}={}: {missing}, and NCCL does not start", short(net)),
                        )
                    }),
                    None => named_plugin(settings).map(|plugin| {
                        let text = format!(
                            "{PLUGIN}={}: {missing}, and NCCL uses a network of its own",
                            short(plugin)
                        );
                        warning(Trap::Value, text)
                    }),
                };
                self.warnings.extend(text);
            }
            _ => {}
        }
        self
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
        let names = |value: Option<&str>| {
            plugin_names(&Settings::of(value.map(|value| (PLUGIN, value)), ""))
        };
        assert_eq!(names(None), ["libnccl-net.so", "librccl-net.so"]);
        assert_eq!(names(Some("")), names(None));
        assert_eq!(names(Some("NONE")), [""; 0]);
        assert_eq!(names(Some("ofi")), ["ofi", "libnccl-net-ofi.so"]);
        assert_eq!(names(Some("a,b"))[2..], ["b", "libnccl-net-b.so"]);
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
        assert_eq!(with(&[], &Plugin::Missing), (false, vec![]));
        assert_eq!(
            with(&[(PLUGIN, "ofi")], &Plugin::Missing),
            (false, vec![false])
        );
        assert_eq!(with(&[(PLUGIN, "none")], &Plugin::Missing), (false, vec![]));
        assert_eq!(with(&[(NET, "gIB")], &Plugin::Missing), (false, vec![true]));
        assert_eq!(with(&[(NET, "IB")], &Plugin::Missing), (false, vec![]));
        assert_eq!(with(&[(NET, "gIB")], &Plugin::Unknown), (false, vec![]));
    }
}
