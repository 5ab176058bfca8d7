//! RDMA devices, their ports, GIDs and device nodes as sysfs shows them
//! (drivers/infiniband/core/sysfs.c). `counters` and `hw_counters` are for `counters.rs` alone: on
//! some NICs it makes the firmware act to read them.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use rdma_model::ids::{BusId, HcaName, IfName};
use rdma_model::snapshot::{CharDevice, Gid, GidKind, Hca, Port};

use super::dir::Dir;
use super::root::Root;
use super::threads::each;

pub(super) struct FoundHca {
    pub(super) hca: Hca,
    /// Real path of its `device`, below the root.
    pub(super) device: Option<String>,
    pub(super) carrier: Option<IfName>,
}

fn read(dir: Option<Dir>, name: &str) -> Result<FoundHca, String> {
    let parsed = name
        .parse()
        .map_err(|_| format!("class/infiniband/{name:?} is no name of an RDMA device"))?;
    let dir = dir.ok_or_else(|| format!("class/infiniband/{name} leads nowhere"))?;
    Ok(hca(parsed, &dir))
}

pub(super) fn hcas(root: &Root, warnings: &mut Vec<String>) -> Vec<FoundHca> {
    let Some(class) = root.dir("class/infiniband") else {
        return Vec::new();
    };
    let (mut verbs, mut umads) = (
        nodes(root, "infiniband_verbs", "uverbs"),
        nodes(root, "infiniband_mad", "umad"),
    );
    let (class, names) = (class.path(), class.names());
    let mut found = Vec::new();
    let hcas = each(root, &names, |root, names| {
        let all = names.iter();
        all.map(|name| read(root.find(class, name), name)).collect()
    });
    for (name, one) in names.iter().zip(hcas) {
        let mut one = match one {
            Ok(one) => one,
            Err(why) => {
                warnings.push(why);
                continue;
            }
        };
        one.hca.uverbs = verbs
            .remove(name)
            .and_then(|nodes| nodes.into_iter().next());
        one.hca.umad = umads.remove(name).unwrap_or_default();
        if one.hca.ports.is_empty() {
            warnings.push(format!("{name} shows no ports"));
        }
        found.push(one);
    }
    found.sort_by(|a, b| a.hca.name.cmp(&b.hca.name));
    found
}

fn hca(name: HcaName, dir: &Dir) -> FoundHca {
    // parent_show() in drivers/infiniband/sw/rxe/rxe_verbs.c: no other driver has this attribute.
    let carrier: Option<IfName> = dir.parse("parent");
    let device = dir.sub("device");
    let pci = device
        .as_ref()
        .unwrap_or(dir)
        .pci()
        .filter(|_| carrier.is_none());
    let driver = device
        .as_ref()
        .and_then(|d| uevent_driver(d).or_else(|| d.link("driver")));
    // Auxiliary devices have no numa_node of their own.
    let numa = device.as_ref().and_then(|d| d.parse("numa_node"));
    let numa = numa.or_else(|| pci.as_ref().and_then(|(_, d)| d.parse("numa_node")));
    let hca = Hca {
        name,
        index: None,
        node_guid: dir.parse("node_guid"),
        sys_image_guid: dir.parse("sys_image_guid"),
        firmware: dir.attr("fw_ver"),
        driver: if carrier.is_some() {
            Some(Hca::RXE.into())
        } else {
            driver
        },
        protocol: None,
        pci: pci.map(|(id, _)| id),
        numa: numa.filter(|_| carrier.is_none()),
        uverbs: None,
        umad: Vec::new(),
        ports: ports(dir),
        conflicts: Vec::new(),
    };
    FoundHca {
        hca,
        device: device.map(|d| d.path().to_owned()),
        carrier,
    }
}

/// The driver of an HCA of this namespace, else of the function that it sits on.
pub fn driver(hca: &HcaName, pci: Option<BusId>) -> Option<String> {
    let own = format!("/sys/class/infiniband/{hca}/device/driver");
    let of_function = pci.map(|at| format!("/sys/bus/pci/devices/{at}/driver"));
    let mut places = [Some(own), of_function].into_iter().flatten();
    let driver = places.find_map(|path| std::fs::read_link(path).ok())?;
    Some(driver.file_name()?.to_str()?.to_owned())
}

/// The driver's name in its uevent (dev_uevent() in drivers/base/core.c); gVisor's RDMA proxy goes
/// by it.
fn uevent_driver(device: &Dir) -> Option<String> {
    let text = device.attr("uevent")?;
    text.lines()
        .find_map(|line| line.strip_prefix("DRIVER="))
        .map(str::to_owned)
}

fn ports(dir: &Dir) -> Vec<Port> {
    let Some(ports) = dir.sub("ports") else {
        return Vec::new();
    };
    let numbered = ports
        .names()
        .into_iter()
        .filter_map(|name| Some((name.parse().ok()?, ports.sub(&name)?)));
    let mut ports: Vec<Port> = numbered
        .map(|(number, dir)| Port {
            number,
            // "4: ACTIVE" (state_show()).
            state: dir
                .attr("state")
                .map(|s| s.rsplit(':').next().unwrap_or_default().trim().to_owned()),
            link_layer: dir.attr("link_layer"),
            rate: dir.attr("rate"),
            netdev: None,
            gids: gid_table(&dir),
            gid_table: places(&dir),
        })
        .collect();
    ports.sort_by_key(|p| p.number);
    ports
}

/// The used entries of a port's GID table, and nothing else: cheap enough to ask again and again.
pub(super) fn gids(root: &Root, hca: &HcaName, port: u32) -> Vec<Gid> {
    root.dir(&format!("class/infiniband/{hca}/ports/{port}"))
        .map(|dir| gid_table(&dir))
        .unwrap_or_default()
}

fn gid_table(port: &Dir) -> Vec<Gid> {
    let Some(table) = port.sub("gids") else {
        return Vec::new();
    };
    let (types, ndevs) = (port.sub("gid_attrs/types"), port.sub("gid_attrs/ndevs"));
    let mut indexes: Vec<u32> = table
        .names()
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    indexes.sort_unstable();
    let infiniband = port.attr("link_layer").as_deref() == Some("InfiniBand");
    // mlx5 has 256 entries, nearly all unused: their attributes are not worth a read.
    let used = indexes
        .into_iter()
        .filter_map(|index| Some((index, used(table.parse(&index.to_string())?, infiniband)?)));
    used.map(|(index, address)| Gid {
        index,
        address,
        kind: types
            .as_ref()
            .and_then(|d| kind(&d.attr(&index.to_string())?)),
        netdev: ndevs.as_ref().and_then(|d| d.parse(&index.to_string())),
    })
    .collect()
}

/// How many GIDs a port has room for.
fn places(port: &Dir) -> Option<u32> {
    port.sub("gids")?.names().len().try_into().ok()
}

/// Unused RoCE entries are all zero; unused InfiniBand ones may hold the subnet's prefix before a
/// zero GUID, which no port has. An IPv6 address may end in zeros, so without a link layer only the
/// default prefix makes such an entry unused.
fn used(address: Ipv6Addr, infiniband: bool) -> Option<Ipv6Addr> {
    let (prefix, guid) = (
        address.to_bits() >> 64,
        address.to_bits() & u128::from(u64::MAX),
    );
    let unused = guid == 0 && (infiniband || prefix == 0 || prefix == 0xfe80_0000_0000_0000);
    (!unused).then_some(address)
}

/// `gid_type_str[]` in drivers/infiniband/core/cache.c.
fn kind(text: &str) -> Option<GidKind> {
    match text {
        "IB/RoCE v1" => Some(GidKind::IbRoceV1),
        "RoCE v2" => Some(GidKind::RoceV2),
        _ => None,
    }
}

/// The device nodes of a class by the ibdev that they name. class/infiniband_mad also holds issmN,
/// which we leave alone.
fn nodes(root: &Root, class: &str, prefix: &str) -> BTreeMap<String, Vec<CharDevice>> {
    let mut found: BTreeMap<String, Vec<CharDevice>> = BTreeMap::new();
    let Some(class) = root.dir(&format!("class/{class}")) else {
        return found;
    };
    for name in class
        .names()
        .into_iter()
        .filter(|name| name.starts_with(prefix))
    {
        let Some(dir) = class.sub(&name) else {
            continue;
        };
        if let (Some(ibdev), Some(node)) = (dir.attr("ibdev"), node(name, &dir)) {
            found.entry(ibdev).or_default().push(node);
        }
    }
    found
}

/// `dev`: major and minor with a colon between (dev_show() in drivers/base/core.c).
fn node(name: String, dir: &Dir) -> Option<CharDevice> {
    let dev = dir.attr("dev")?;
    let (major, minor) = dev.split_once(':')?;
    Some(CharDevice {
        name,
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

pub(super) fn rdma_cm(root: &Root) -> Option<CharDevice> {
    node("rdma_cm".into(), &root.dir("class/misc/rdma_cm")?)
}
