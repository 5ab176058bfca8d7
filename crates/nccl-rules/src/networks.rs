//! Who serves the network: NCCL's own verbs or sockets, or a plugin (NCCL_NET and NCCL_NET_PLUGIN;
//! src/net.cc, `ncclNetInit`, src/plugin/net.cc from 2.27 on). Names are compared without regard to
//! case.

use super::explanation::{Explanation, Trap, Warning};
use super::hca;
use super::pitfalls::{short, warning};
use super::settings::Settings;

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
    let plugin = settings
        .get(PLUGIN)
        .filter(|v| !v.is_empty() && !v.eq_ignore_ascii_case("none"));
    if let Some(plugin) = plugin.filter(|_| hca::disabled(settings, explained.version)) {
        let text = format!(
            "NCCL_IB_DISABLE is a setting of NCCL's own network: the plugin of {PLUGIN}={} may \
            use HCAs all the same",
            short(plugin)
        );
        out.push(warning(Trap::Value, text));
    }
    out
}
