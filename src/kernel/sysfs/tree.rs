//! What of a /sys a container may see, verbatim: the raw material of [`crate::view`]. The lists are
//! what NCCL, libibverbs, librdmacm, libfabric, hwloc, lspci and gVisor read. Counters are never
//! read: on some NICs that makes the firmware act; nor is anything that no list names, since some
//! attributes act when they are read (class/zram-control/hot_add).

use std::net::Ipv6Addr;
use std::sync::Arc;

use rdma_model::tree::{Node, Tree};

use super::dir::Dir;
use super::root::{Contents, Kind, Root, join};
use super::threads::each;

/// Of a PCI function. `irq` and `resource` are for lspci, which refuses to work without them.
const PCI: &[&str] = &[
    "class",
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "revision",
    "max_link_speed",
    "max_link_width",
    "current_link_speed",
    "current_link_width",
    "numa_node",
    "local_cpus",
    "local_cpulist",
    "modalias",
    "uevent",
    "config",
    "irq",
    "resource",
];

/// Of an RDMA device; `parent` is soft-RoCE's.
const HCA: &[&str] = &[
    "node_type",
    "node_guid",
    "sys_image_guid",
    "fw_ver",
    "hca_type",
    "hw_rev",
    "board_id",
    "node_desc",
    "parent",
];

const PORT: &[&str] = &[
    "state",
    "phys_state",
    "rate",
    "lid",
    "sm_lid",
    "sm_sl",
    "link_layer",
    "cap_mask",
];

const NETDEV: &[&str] = &[
    "address",
    "addr_len",
    "type",
    "dev_id",
    "dev_port",
    "mtu",
    "speed",
    "duplex",
    "operstate",
    "carrier",
    "ifindex",
    "iflink",
    "flags",
    "tx_queue_len",
    "uevent",
];

const NODE: &[&str] = &["ibdev", "dev", "abi_version", "uevent"];

const NUMA: &[&str] = &["cpumap", "cpulist", "distance"];

const PLACE: &[&str] = &[
    "physical_package_id",
    "core_id",
    "core_cpus",
    "core_cpus_list",
    "package_cpus",
    "package_cpus_list",
];

/// Files at fixed places: who reads them is said in [`crate::view`]'s sources.
const FIXED: &[(&str, &[&str])] = &[
    ("class/infiniband_verbs", &["abi_version"]),
    (
        "devices/system/node",
        &[
            "online",
            "possible",
            "has_cpu",
            "has_memory",
            "has_normal_memory",
        ],
    ),
    ("devices/system/cpu", &["online", "possible", "present"]),
    (
        "devices/virtual/dmi/id",
        &["product_name", "sys_vendor", "board_name"],
    ),
    ("module/nvidia_peermem", &["version"]),
    ("kernel/mm/memory_peers/nv_mem", &["version"]),
    ("kernel/mm/memory_peers/nv_mem_nc", &["version"]),
    ("kernel/mm/memory_peers/nvidia-peermem", &["version"]),
];

fn below(root: &Root, path: &str) -> (String, Vec<String>) {
    root.dir(path)
        .map(|dir| (dir.path().to_owned(), dir.names()))
        .unwrap_or_default()
}

/// Every directory of links below class, bus and dev, with the links as they are written: enough to
/// know what leads where.
pub(super) fn links(root: &Root) -> Tree {
    let mut shot = Shot {
        root,
        seen: Vec::new(),
    };
    let (class, names) = below(root, "class");
    for name in &names {
        shot.farm(&join(&class, name));
    }
    let (bus, names) = below(root, "bus");
    for name in &names {
        shot.farm(&format!("{bus}/{name}/devices"));
        let (drivers, names) = below(root, &format!("{bus}/{name}/drivers"));
        for driver in &names {
            shot.farm(&join(&drivers, driver));
        }
    }
    shot.farm("dev/char");
    shot.farm("dev/block");
    shot.files("class/infiniband_verbs", &["abi_version"]);
    shot.files("class/infiniband_mad", &["abi_version"]);
    shot.seen.into_iter().collect()
}

pub(super) fn whole(root: &Root) -> Tree {
    let mut shot = Shot {
        root,
        seen: Vec::new(),
    };
    shot.each("bus/pci/devices", |shot, device| {
        shot.files(device, PCI);
        shot.links_of(device, |name| {
            matches!(name, "subsystem" | "driver" | "physfn") || name.starts_with("virtfn")
        });
    });
    shot.linked("class/pci_bus");
    shot.each("class/infiniband", |shot, hca| {
        shot.files(hca, HCA);
        shot.device_links(hca);
        for port in shot.subdirs(&join(hca, "ports")) {
            shot.port(&port);
        }
    });
    shot.each("class/infiniband_verbs", |shot, node| {
        shot.files(node, NODE);
        shot.device_links(node);
    });
    shot.each("class/net", |shot, netdev| {
        shot.files(netdev, NETDEV);
        shot.device_links(netdev);
    });
    shot.rdma_cm();
    shot.system();
    shot.char_devices();
    shot.seen.into_iter().collect()
}

struct Shot<'r> {
    root: &'r Root,
    seen: Vec<(Box<str>, Node)>,
}

impl Shot<'_> {
    fn each(&mut self, dir: &str, wanted: impl Fn(&mut Shot, &str) + Sync) {
        let devices = self.linked(dir);
        self.seen.extend(each(self.root, &devices, |root, devices| {
            let mut shot = Shot {
                root,
                seen: Vec::new(),
            };
            for device in devices {
                wanted(&mut shot, device);
            }
            // What is sorted piece by piece is merged soon; of what is there twice the last still
            // counts.
            shot.seen.sort_by(|(a, _), (b, _)| a.cmp(b));
            shot.seen
        }));
    }

    fn put(&mut self, path: impl Into<Box<str>>, node: Node) {
        self.seen.push((path.into(), node));
    }

    fn dir(&mut self, path: &str) {
        self.put(path, Node::Dir);
    }

    fn files(&mut self, dir: &str, names: &[&str]) {
        let Some(found) = self.root.dir(dir) else {
            return;
        };
        for name in names {
            if let Contents::Bytes(bytes) = found.contents(name) {
                self.put(join(found.path(), name), Node::File(lines(name, bytes)));
            }
        }
    }

    /// A link with the directory that it leads to, so that it does not dangle unless it does so
    /// here.
    fn link(&mut self, dir: &Dir, name: &str) -> Option<String> {
        let target = dir.target(name)?;
        let path = join(dir.path(), name);
        self.put(path.as_str(), Node::Link(target));
        let end = self.root.dir(&path)?.path().to_owned();
        self.dir(&end);
        Some(end)
    }

    fn links_of(&mut self, dir: &str, wanted: impl Fn(&str) -> bool) {
        let Some(dir) = self.root.dir(dir) else {
            return;
        };
        for name in dir.names().iter().filter(|name| wanted(name)) {
            self.link(&dir, name);
        }
    }

    fn device_links(&mut self, dir: &str) {
        self.links_of(dir, |name| matches!(name, "device" | "subsystem"));
    }

    /// Every link of a directory, verbatim, whatever it leads to.
    fn farm(&mut self, dir: &str) {
        let Some(found) = self.root.dir(dir) else {
            return;
        };
        self.dir(found.path());
        for name in found.names() {
            if let Some(target) = found.target(&name) {
                self.put(join(found.path(), &name), Node::Link(target));
            }
        }
    }

    /// The devices of a directory of links, each by its real path. A copy may have directories
    /// there instead.
    fn linked(&mut self, dir: &str) -> Vec<String> {
        let Some(dir) = self.root.dir(dir) else {
            return Vec::new();
        };
        self.dir(dir.path());
        let mut devices = Vec::new();
        for name in dir.names() {
            match dir.kind(&name) {
                Some(Kind::Link) => devices.extend(self.link(&dir, &name)),
                Some(Kind::Dir) => {
                    let path = join(dir.path(), &name);
                    self.dir(&path);
                    devices.push(path);
                }
                Some(Kind::File) | None => {}
            }
        }
        devices
    }

    fn subdirs(&mut self, dir: &str) -> Vec<String> {
        let Some(dir) = self.root.dir(dir) else {
            return Vec::new();
        };
        let names = dir.names().into_iter().filter(|name| dir.is_dir(name));
        names
            .map(|name| join(dir.path(), &name))
            .inspect(|path| self.dir(path))
            .collect()
    }

    fn port(&mut self, port: &str) {
        self.files(port, PORT);
        let Some(dir) = self.root.dir(port) else {
            return;
        };
        if let Some(keys) = dir.sub("pkeys") {
            self.files(
                keys.path(),
                &keys.names().iter().map(String::as_str).collect::<Vec<_>>(),
            );
        }
        let Some(gids) = dir.sub("gids") else { return };
        self.dir(gids.path());
        let attributes = [dir.sub("gid_attrs/types"), dir.sub("gid_attrs/ndevs")];
        let nothing: Arc<[u8]> = Arc::default();
        for index in gids.names() {
            let Contents::Bytes(gid) = gids.contents(&index) else {
                continue;
            };
            let unused = std::str::from_utf8(&gid)
                .ok()
                .and_then(|g| g.trim().parse().ok())
                == Some(Ipv6Addr::UNSPECIFIED);
            self.put(join(gids.path(), &index), Node::File(lines(&index, gid)));
            for table in attributes.iter().flatten() {
                // NCCL opens these for every index. The kernel answers EINVAL for an unused one, a
                // file can only be empty.
                let contents = match (!unused).then(|| table.contents(&index)) {
                    Some(Contents::Bytes(bytes)) => lines(&index, bytes),
                    _ => nothing.clone(),
                };
                self.put(join(table.path(), &index), Node::File(contents));
            }
        }
    }

    fn rdma_cm(&mut self) {
        let Some(misc) = self.root.dir("class/misc") else {
            return;
        };
        if let Some(end) = misc
            .kind("rdma_cm")
            .and_then(|_| self.link(&misc, "rdma_cm"))
        {
            self.files(&end, NODE);
            self.device_links(&end);
        }
    }

    fn system(&mut self) {
        for (dir, names) in FIXED {
            self.files(dir, names);
        }
        for node in self.numbered("devices/system/node", "node") {
            self.files(&node, NUMA);
        }
        for cpu in self.numbered("devices/system/cpu", "cpu") {
            self.files(&join(&cpu, "topology"), PLACE);
        }
        // The partitions of one switch of Broadcom, as its driver and NCCL (ncclOsGetBcmLinks) know
        // them: links from each upstream port to the others.
        for switch in self.subdirs("kernel/pci_switch_link/virtual_switch_links") {
            self.links_of(&switch, |_| true);
        }
    }

    fn numbered(&self, dir: &str, prefix: &str) -> Vec<String> {
        let Some(dir) = self.root.dir(dir) else {
            return Vec::new();
        };
        let mut all = dir.names();
        all.retain(|name| {
            name.strip_prefix(prefix)
                .is_some_and(|n| n.parse::<u32>().is_ok())
        });
        all.iter().map(|name| join(dir.path(), name)).collect()
    }

    fn char_devices(&mut self) {
        let Some(dir) = self.root.dir("dev/char") else {
            return;
        };
        self.dir(dir.path());
        for name in dir.names() {
            let is_verbs = dir.target(&name).is_some_and(|target| {
                target.contains("/infiniband_verbs/") || target.ends_with("/misc/rdma_cm")
            });
            if is_verbs {
                self.link(&dir, &name);
            }
        }
    }
}

/// NCCL strips the last byte of every file, whatever it is (src/os/linux.cc:659 in 2.30.7).
fn lines(name: &str, bytes: Arc<[u8]>) -> Arc<[u8]> {
    match bytes.last() {
        Some(last) if *last != b'\n' && name != "config" => {
            bytes.iter().copied().chain([b'\n']).collect()
        }
        _ => bytes,
    }
}
