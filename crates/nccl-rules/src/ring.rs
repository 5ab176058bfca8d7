//! Which device carries the ring by which ranks meet, with NCCL_OOB_NET_ENABLE: one of the network
//! that serves the data (src/bootstrap.cc, `netGetDevice`).

use rdma_model::snapshot::{PciFunction, Snapshot};

use super::explanation::{Bootstrap, Explanation, Network, Ring, Trap, Warning};
use super::hca::{self, UNKNOWN, data_direct, parameter};
use super::ifname::Patterns;
use super::merges;
use super::pitfalls::{few, short, warning};
use super::settings::Settings;

const ENABLE: &str = "NCCL_OOB_NET_ENABLE";
const IFNAME: &str = "NCCL_OOB_NET_IFNAME";

/// Entries of the list that are read (MAX_OOB_DEVS).
const MOST: usize = 16;

/// Nothing where the ring is that of sockets, or where NCCL ends before it.
pub(crate) fn judge(
    settings: &Settings,
    snapshot: &Snapshot,
    explained: &Explanation,
) -> Option<Ring> {
    let is_on = parameter(settings, explained.version, ENABLE, 0) != 0;
    let starts = !matches!(explained.bootstrap, Bootstrap::Fails(_));
    if !is_on || !starts || !explained.version.has_net_ring() {
        return None;
    }
    if explained.plugin.is_some() || matches!(explained.network, Some(Network::Other(_))) {
        return Some(Ring::Unknown("a plugin's network names its devices".into()));
    }
    if explained.ports.iter().any(|p| p.why.starts_with(UNKNOWN)) {
        return Some(Ring::Unknown("which HCAs are taken is not known".into()));
    }
    let devices = devices(settings, snapshot, explained);
    if devices.is_empty() {
        return None;
    }
    let plain = choose(settings, explained, &devices);
    let direct: Vec<Device> = devices
        .iter()
        .map(|device| device.direct(settings, snapshot, explained))
        .collect();
    let is_same = choose(settings, explained, &direct) == plain;
    Some(match plain {
        _ if !is_same => {
            let why = "which HCAs have a Data Direct function, and NAME_dma for a name, is \
                firmware's to say";
            Ring::Unknown(why.to_owned())
        }
        Some(at) => Ring::Uses(devices[at].label()),
        None if explained.version.ends_without_ring() => {
            let names: Vec<String> = devices.iter().map(Device::label).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let value = short(settings.get(IFNAME).unwrap_or_default());
            Ring::Fails(format!("{IFNAME}={value} fits none of {}", few(&names)))
        }
        None => Ring::Uses(devices[0].label()),
    })
}

pub(crate) fn warnings(settings: &Settings, explained: &Explanation) -> Option<Warning> {
    let version = explained.version;
    let value = settings.get(IFNAME).filter(|value| !value.is_empty())?;
    if !version.has_net_ring() {
        return None;
    }
    if parameter(settings, version, ENABLE, 0) == 0 {
        let text = format!(
            "{IFNAME}={} has no effect: {ENABLE} is not set to 1",
            short(value)
        );
        return Some(warning(Trap::Value, text));
    }
    let Some(Ring::Fails(why)) = &explained.ring else {
        return None;
    };
    let text = format!("{why}: NCCL does not start (ncclInvalidArgument)");
    Some(warning(Trap::NoRing, text))
}

#[derive(Clone, Debug)]
struct Device {
    name: String,
    port: u32,
    /// As [`merges::Device::number`].
    number: u32,
}

impl Device {
    fn label(&self) -> String {
        match self.port {
            0 => self.name.clone(),
            port => format!("{}:{port}", self.name),
        }
    }

    /// Under the name that it has where its HCA has a Data Direct function.
    fn direct(&self, settings: &Settings, snapshot: &Snapshot, explained: &Explanation) -> Device {
        let is_on = data_direct(settings, explained.version) != 0;
        let mut hcas = snapshot.hcas.iter();
        let is_mlx5 = hcas.any(|hca| hca.name.as_str() == self.name && hca::may_be_direct(hca));
        let has_function = snapshot.pci.iter().any(PciFunction::is_data_direct);
        let name = match is_on && is_mlx5 && has_function {
            true => format!("{}{}", self.name, hca::DIRECT),
            false => self.name.clone(),
        };
        Device { name, ..*self }
    }
}

/// The devices of the network in its order; an interface is port 0.
fn devices(settings: &Settings, snapshot: &Snapshot, explained: &Explanation) -> Vec<Device> {
    let numbered = merges::devices(settings, snapshot, explained);
    let interfaces = explained.sockets.iter().map(|s| Device {
        name: s.interface.clone(),
        port: 0,
        number: 0,
    });
    let port = |label: &String| {
        let (name, port) = label.rsplit_once(':')?;
        let merged = explained.merged.iter().find(|m| m.contains(label));
        let name = match merged {
            Some(ports) if ports.first() != Some(label) => return None,
            Some(ports) => {
                let names = ports.iter().filter_map(|p| Some(p.rsplit_once(':')?.0));
                names.collect::<Vec<_>>().join("+")
            }
            None => name.to_owned(),
        };
        let port = port.parse().ok()?;
        let own = numbered.iter().find(|d| d.label() == *label)?;
        let number = own.number;
        Some(Device { name, port, number })
    };
    match (&explained.network, explained.hcas.is_empty()) {
        (Some(Network::Socket), _) | (None, true) => interfaces.collect(),
        _ => explained.hcas.iter().filter_map(port).collect(),
    }
}

/// The first that the list takes; an empty list takes all.
fn choose(settings: &Settings, explained: &Explanation, devices: &[Device]) -> Option<usize> {
    let value = settings.get(IFNAME).unwrap_or_default();
    let patterns = Patterns::parse(value, MOST, explained.version);
    let mut devices = devices.iter();
    devices.position(|d| value.is_empty() || patterns.takes(&d.name, Some(d.number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::explain;
    use serde_json::json;

    /// eth0, and two HCAs.
    fn ring(env: &[(&str, &str)], version: &str, direct: bool) -> (Option<Ring>, Vec<String>) {
        let hca = |index: u32, name: &str| {
            let port = json!({"number": 1, "state": "ACTIVE", "link_layer": "InfiniBand"});
            json!({"name": name, "index": index, "driver": "mlx5_core", "ports": [port],
                "pci": format!("0000:{index}1:00.0")})
        };
        let address = json!({"address": "192.0.2.1", "prefix": 24});
        let function = json!({"address": "0000:31:00.0", "class": 0x020000, "vendor": 0x15b3,
            "device": 0x2100, "driver": "mlx5_ib"});
        let pci = if direct { vec![function] } else { vec![] };
        let snapshot = json!({"schema": 1, "hcas": [hca(0, "mlx5_0"), hca(1, "mlx5_1")],
            "pci": pci, "netdevs": [{"name": "eth0", "ifindex": 2, "up": true, "running": true,
                "addresses": [address]}]});
        let snapshot: Snapshot = serde_json::from_value(snapshot).unwrap();
        let on = [(ENABLE, "1")].into_iter().chain(env.iter().copied());
        let settings = Settings::of(on, "");
        let explained = explain(&settings, &snapshot, version.parse().unwrap(), &|_| None);
        let warnings = explained.warnings.iter().filter(|w| w.trap == Trap::NoRing);
        (
            explained.ring.clone(),
            warnings.map(|w| w.text.clone()).collect(),
        )
    }

    #[test]
    fn the_ring_goes_by_a_device_of_the_network() {
        let uses = |name: &str| Some(Ring::Uses(name.to_owned()));
        let of = |env: &[(&str, &str)]| ring(env, "2.32.3", false).0;
        assert_eq!(of(&[]), uses("mlx5_0:1"));
        assert_eq!(of(&[(IFNAME, "=mlx5_1")]), uses("mlx5_1:1"));
        assert_eq!(of(&[(IFNAME, "^=mlx5_0")]), uses("mlx5_1:1"));
        let tcp = ("NCCL_NET", "Socket");
        assert_eq!(of(&[tcp]), uses("eth0"));
        assert_eq!(of(&[tcp, (IFNAME, "eth")]), uses("eth0"));
        assert!(matches!(of(&[("NCCL_NET", "gIB")]), Some(Ring::Unknown(_))));
        assert_eq!(of(&[(ENABLE, "0")]), None);
        assert_eq!(ring(&[], "2.22.3", false).0, None);
    }

    #[test]
    fn a_list_that_fits_no_device_ends_nccl() {
        let wrong = [(IFNAME, "=eth0")];
        let (found, warnings) = ring(&wrong, "2.32.3", false);
        let why = "NCCL_OOB_NET_IFNAME==eth0 fits none of mlx5_0:1, mlx5_1:1";
        assert_eq!(found, Some(Ring::Fails(why.to_owned())));
        assert_eq!(
            warnings,
            [format!("{why}: NCCL does not start (ncclInvalidArgument)")]
        );
        let (found, warnings) = ring(&wrong, "2.23.4", false);
        assert_eq!(
            (found, warnings.len()),
            (Some(Ring::Uses("mlx5_0:1".into())), 0)
        );
    }

    #[test]
    fn a_data_direct_function_may_change_the_name() {
        let exact = [(IFNAME, "=mlx5_1")];
        assert!(matches!(
            ring(&exact, "2.32.3", true).0,
            Some(Ring::Unknown(_))
        ));
        let prefix = ring(&[(IFNAME, "mlx5_1")], "2.32.3", true).0;
        assert_eq!(prefix, Some(Ring::Uses("mlx5_1:1".to_owned())));
        let off = [exact[0], ("NCCL_IB_DATA_DIRECT", "0")];
        assert_eq!(ring(&off, "2.32.3", true).0, prefix);
    }
}
