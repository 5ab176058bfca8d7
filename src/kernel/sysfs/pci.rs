use std::collections::BTreeMap;

use rdma_model::ids::BusId;
use rdma_model::snapshot::PciFunction;

use super::dir::Dir;
use super::root::Root;
use super::threads::each;

/// Every function below bus/pci/devices, by address. A captured tree may have directories there
/// instead of links.
pub(super) fn functions(root: &Root, warnings: &mut Vec<String>) -> Vec<PciFunction> {
    let Some(devices) = root.dir("bus/pci/devices") else {
        return Vec::new();
    };
    let devices_at = devices.path();
    let mut found = BTreeMap::new();
    for one in each(root, &devices.names(), |root, names| {
        let all = names.iter();
        all.map(|name| read(root.find(devices_at, name), name))
            .collect()
    }) {
        let warning = match one {
            Ok(function) => twice(&mut found, function),
            Err(why) => Some(why),
        };
        warnings.extend(warning);
    }
    let unclassed = found.values().filter(|f| f.class == 0).count();
    if unclassed > 0 {
        warnings.push(format!("{unclassed} PCI functions have no readable class"));
    }
    found.into_values().collect()
}

fn read(dir: Option<Dir>, name: &str) -> Result<PciFunction, String> {
    let address = name
        .parse()
        .map_err(|_| format!("bus/pci/devices/{name} is no PCI address"))?;
    let dir = dir.ok_or_else(|| format!("bus/pci/devices/{name} leads nowhere"))?;
    Ok(function(address, &dir))
}

fn twice(found: &mut BTreeMap<BusId, PciFunction>, function: PciFunction) -> Option<String> {
    let address = function.address;
    found
        .insert(address, function)
        .map(|_| format!("bus/pci/devices holds {address} twice"))
}

fn id(dir: &Dir, name: &str) -> u16 {
    dir.hex(name)
        .and_then(|v| u16::try_from(v).ok())
        .unwrap_or_default()
}

/// Vendor files prove that any of these may be missing.
fn function(address: BusId, dir: &Dir) -> PciFunction {
    PciFunction {
        address,
        class: dir.hex("class").unwrap_or_default(),
        vendor: id(dir, "vendor"),
        device: id(dir, "device"),
        subsystem_vendor: id(dir, "subsystem_vendor"),
        subsystem_device: id(dir, "subsystem_device"),
        driver: dir.link("driver"),
        numa: dir.parse("numa_node"),
        bridge: dir.above().and_then(|above| above.pci()).map(|(id, _)| id),
        link_speed: dir.attr("current_link_speed"),
        link_width: dir.parse("current_link_width"),
        max_link_speed: dir.attr("max_link_speed"),
        max_link_width: dir.parse("max_link_width"),
        physfn: dir.link("physfn").and_then(|pf| pf.parse().ok()),
    }
}
