//! A /sys that is made up, with the links that the kernel's has: `class/*`, `bus/*`, `driver`,
//! `subsystem`, `physfn`, `pci_bus`, `dev/char`. Of any size by [`Shape`], or by a description in
//! words ([`Sys::describe`]).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A GPU node: `sockets` times `switches` PCIe switches, over which cards, GPUs and NVSwitches are
/// dealt in turn.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub sockets: usize,
    pub switches: usize,
    pub gpus: usize,
    pub nvswitches: usize,
    pub cards: usize,
    /// Functions of each card, each with an HCA: 1 or 2.
    pub functions: usize,
    /// VFs of each of those, without HCAs.
    pub vfs: usize,
    /// PCI functions in all, filled up with memory controllers of processors.
    pub total: usize,
    /// Entries of each port's GID table, four of them used.
    pub gids: usize,
}

/// As large as GPU nodes get: 560 PCI functions and 18 HCAs, with the GID tables of mlx5.
pub const LARGE: Shape = Shape {
    sockets: 2,
    switches: 4,
    gpus: 8,
    nvswitches: 4,
    cards: 9,
    functions: 2,
    vfs: 4,
    total: 560,
    gids: 256,
};

impl Shape {
    /// Writes it below `root`. The HCAs are `mlx5_N`, the netdevs `rdmaN`.
    pub fn write(&self, root: &Path) -> Sys {
        let mut sys = Sys::new(root);
        let switches = (self.sockets * self.switches).max(1);
        let (mut slots, mut hcas) = (vec![0; switches], 0);
        for switch in 0..switches {
            let socket = switch / self.switches.max(1);
            let numa = socket.to_string();
            let bridge = |sys: &mut Sys, address: &str, under: &str| {
                sys.function(
                    address,
                    under,
                    &[
                        ("class", "0x060400"),
                        ("driver", "pcieport"),
                        ("numa", &numa),
                    ],
                );
            };
            let domain = switch;
            let root = format!("pci{domain:04x}:00");
            bridge(&mut sys, &format!("{domain:04x}:00:01.0"), &root);
            bridge(
                &mut sys,
                &format!("{domain:04x}:01:00.0"),
                &format!("{domain:04x}:00:01.0"),
            );
        }
        let mut slot = |sys: &mut Sys, at: usize| {
            let (domain, numa) = (
                at % switches,
                (at % switches / self.switches.max(1)).to_string(),
            );
            let slot = slots[domain];
            slots[domain] += 1;
            let port = format!("{domain:04x}:02:{:02x}.{}", slot / 8, slot % 8);
            let kind = [
                ("class", "0x060400"),
                ("driver", "pcieport"),
                ("numa", numa.as_str()),
            ];
            sys.function(&port, &format!("{domain:04x}:01:00.0"), &kind);
            (format!("{domain:04x}:{:02x}", slot + 3), port, numa)
        };
        for i in 0..self.cards {
            let (bus, port, numa) = slot(&mut sys, i);
            for f in 0..self.functions {
                let pf = format!("{bus}:00.{f}");
                sys.function(
                    &pf,
                    &port,
                    &[
                        ("class", "0x020000"),
                        ("driver", "mlx5_core"),
                        ("numa", &numa),
                    ],
                );
                sys.hca(
                    &format!("mlx5_{hcas}"),
                    &pf,
                    1,
                    self.gids,
                    &format!("rdma{hcas}"),
                );
                sys.netdev(&format!("rdma{hcas}"), &pf, "0");
                hcas += 1;
                for v in 0..self.vfs {
                    let vf = format!("{bus}:{:02x}.{}", 1 + f, v);
                    sys.function(
                        &vf,
                        &port,
                        &[
                            ("class", "0x020000"),
                            ("driver", "mlx5_core"),
                            ("physfn", &pf),
                        ],
                    );
                }
            }
        }
        let others = [
            (self.gpus, "0x030200", "nvidia"),
            (self.nvswitches, "0x068000", "nvidia-nvswitch"),
        ];
        for (count, class, driver) in others {
            for i in 0..count {
                let (bus, port, numa) = slot(&mut sys, i);
                let vendor = ("vendor", "0x10de");
                let kind = [
                    ("class", class),
                    ("driver", driver),
                    ("numa", numa.as_str()),
                    vendor,
                ];
                sys.function(&format!("{bus}:00.0"), &port, &kind);
            }
        }
        for i in 0..self.total.saturating_sub(sys.places.len()) {
            let (bus, device) = (i / 256, i % 256);
            let address = format!("00ff:{bus:02x}:{:02x}.{}", device / 8, device % 8);
            sys.function(
                &address,
                &format!("pci00ff:{bus:02x}"),
                &[("class", "0x088000")],
            );
        }
        sys
    }
}

/// A /sys that grows.
pub struct Sys {
    root: PathBuf,
    /// Where a function, an auxiliary device or a virtio device is.
    places: BTreeMap<String, String>,
    numbers: BTreeMap<&'static str, usize>,
}

impl Sys {
    /// An empty one.
    pub fn new(root: &Path) -> Sys {
        let sys = Sys {
            root: root.to_owned(),
            places: BTreeMap::new(),
            numbers: BTreeMap::new(),
        };
        for dir in [
            "class/net",
            "class/infiniband",
            "bus/pci/devices",
            "bus/pci/drivers",
            "dev/char",
        ] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        sys
    }

    /// Makes what a text says, a thing a line: `function ADDRESS under=… class=…`, `hca NAME at=…`,
    /// `net NAME at=…`, `aux NAME at=…`, `usb NAME at=…`, `virtio NAME at=… driver=…`,
    /// `soft NAME on=…`, `partitions ADDRESS ADDRESS` of one switch. Other lines come back.
    pub fn describe<'t>(&mut self, text: &'t str) -> Vec<Vec<&'t str>> {
        let mut others = Vec::new();
        for line in text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        {
            let words: Vec<&str> = line.split_whitespace().collect();
            let settings: Vec<(&str, &str)> =
                words.iter().filter_map(|w| w.split_once('=')).collect();
            let get = |key: &str, or: &'static str| {
                settings
                    .iter()
                    .find(|(k, _)| *k == key)
                    .map_or(or, |(_, v)| v)
            };
            let number = |key: &str, or: &'static str| get(key, or).parse().unwrap();
            match words[0] {
                "function" => self.function(words[1], get("under", "pci0000:00"), &settings),
                "hca" => self.hca(
                    words[1],
                    get("at", ""),
                    number("ports", "1"),
                    number("gids", "0"),
                    get("net", ""),
                ),
                "net" => self.netdev(words[1], get("at", "virtual"), get("dev_port", "0")),
                "aux" => self.child(
                    words[1],
                    get("at", ""),
                    "auxiliary",
                    get("driver", "mlx5_core.sf"),
                ),
                "usb" => self.child(words[1], get("at", ""), "usb", get("driver", "cdc_ether")),
                "virtio" => self.child(
                    words[1],
                    get("at", ""),
                    "virtio",
                    get("driver", "virtio_net"),
                ),
                "partitions" => {
                    let links = "kernel/pci_switch_link/virtual_switch_links";
                    for (from, to) in [(words[1], words[2]), (words[2], words[1])] {
                        self.link(&format!("{links}/{from}/{to}"), &format!("{links}/{to}"));
                    }
                }
                "soft" => self.soft(words[1], get("on", "")),
                _ => others.push(words),
            }
        }
        others
    }

    fn file(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A link whose target is given from the root, made relative as the kernel makes it.
    fn link(&self, path: &str, target: &str) {
        let (from, to): (Vec<&str>, Vec<&str>) =
            (path.split('/').collect(), target.split('/').collect());
        // The target's own name is always written (kernfs_get_target_path() in
        // fs/kernfs/symlink.c).
        let same = from
            .iter()
            .zip(&to)
            .take_while(|(a, b)| a == b)
            .count()
            .min(to.len() - 1);
        let text = "../".repeat(from.len() - 1 - same) + &to[same..].join("/");
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::create_dir_all(self.root.join(target)).unwrap();
        symlink(text, path).unwrap();
    }

    fn next(&mut self, what: &'static str) -> usize {
        let next = self.numbers.entry(what).or_default();
        *next += 1;
        *next - 1
    }

    /// A class device below a device: its directory, and the links to and from it.
    fn class(&self, class: &str, name: &str, device: &str) -> String {
        let home = format!("{device}/{class}/{name}");
        self.link(&format!("class/{class}/{name}"), &home);
        self.link(&format!("{home}/subsystem"), &format!("class/{class}"));
        if !device.starts_with("devices/virtual") {
            self.link(&format!("{home}/device"), device);
        }
        home
    }

    fn bus(&self, bus: &str, name: &str, place: &str, driver: Option<&str>) {
        self.link(&format!("bus/{bus}/devices/{name}"), place);
        self.link(&format!("{place}/subsystem"), &format!("bus/{bus}"));
        if let Some(driver) = driver {
            self.link(
                &format!("{place}/driver"),
                &format!("bus/{bus}/drivers/{driver}"),
            );
            self.link(&format!("bus/{bus}/drivers/{driver}/{name}"), place);
        }
    }

    /// A PCI function below another one, or on a root bus (`pciDDDD:BB`).
    pub fn function(&mut self, address: &str, under: &str, settings: &[(&str, &str)]) {
        let get = |key: &str| settings.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        let above = self
            .places
            .get(under)
            .cloned()
            .unwrap_or_else(|| format!("devices/{under}"));
        let place = format!("{above}/{address}");
        let bus = address.rsplit_once(':').unwrap().0;
        if !self.root.join("class/pci_bus").join(bus).exists() {
            self.class("pci_bus", bus, &above);
        }
        self.attributes(
            &place,
            address,
            get("class").unwrap_or("0x088000"),
            [
                get("vendor").unwrap_or("0x15b3"),
                get("device").unwrap_or("0x101b"),
            ],
        );
        self.file(
            &format!("{place}/numa_node"),
            get("numa").unwrap_or("0").to_owned() + "\n",
        );
        self.bus("pci", address, &place, get("driver"));
        let group = self.next("iommu");
        self.link(
            &format!("{place}/iommu_group"),
            &format!("kernel/iommu_groups/{group}"),
        );
        if let Some(pf) = get("physfn").and_then(|pf| self.places.get(pf)) {
            self.link(&format!("{place}/physfn"), pf);
            let free = (0..)
                .find(|n| !self.root.join(pf).join(format!("virtfn{n}")).exists())
                .unwrap();
            self.link(&format!("{pf}/virtfn{free}"), &place);
        }
        if get("driver") == Some("mlx5_core") {
            let number = self.next("ptp");
            self.class("ptp", &format!("ptp{number}"), &place);
            self.class("hwmon", &format!("hwmon{number}"), &place);
        }
        self.places.insert(address.to_owned(), place);
    }

    fn attributes(&self, place: &str, address: &str, class: &str, [vendor, device]: [&str; 2]) {
        let uevent = format!("PCI_CLASS={}\nPCI_SLOT_NAME={address}\n", &class[2..]);
        for (name, text) in [
            ("class", class),
            ("vendor", vendor),
            ("device", device),
            ("subsystem_vendor", "0x15b3"),
            ("subsystem_device", "0x0007"),
            ("revision", "0x00"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("max_link_width", "16"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("local_cpus", "ffffffff,ffffffff"),
            ("local_cpulist", "0-63"),
            ("modalias", "pci:v000015B3d0000101B"),
            ("irq", "16"),
            (
                "resource",
                &"0x0000000000000000 0x0000000000000000 0x0000000000000000\n".repeat(13),
            ),
        ] {
            self.file(&format!("{place}/{name}"), format!("{}\n", text.trim_end()));
        }
        self.file(&format!("{place}/uevent"), uevent);
        self.file(&format!("{place}/config"), [0xb3; 256]);
    }

    /// A device on another bus below a function.
    fn child(&mut self, name: &str, at: &str, bus: &str, driver: &str) {
        let place = format!("{}/{name}", self.places[at]);
        self.bus(bus, name, &place, Some(driver));
        self.places.insert(name.to_owned(), place);
    }

    /// An RDMA device with its nodes. Of the `gids` entries of its first port the first four are
    /// used.
    pub fn hca(&mut self, name: &str, at: &str, ports: usize, gids: usize, netdev: &str) {
        let device = self.places[at].clone();
        let number = self.rdma(name, &device);
        let home = format!("{device}/infiniband/{name}");
        for port in 1..=ports {
            let port = format!("{home}/ports/{port}");
            for (name, text) in [
                ("state", "4: ACTIVE"),
                ("phys_state", "5: LinkUp"),
                ("rate", "400 Gb/sec (4X NDR)"),
            ] {
                self.file(&format!("{port}/{name}"), format!("{text}\n"));
            }
            self.file(&format!("{port}/link_layer"), "Ethernet\n");
            self.file(&format!("{port}/pkeys/0"), "0xffff\n");
            for index in 0..gids {
                let used = index < 4;
                let gid = match index / 2 {
                    _ if !used => "0000:0000:0000:0000:0000:0000:0000:0000".to_owned(),
                    0 => format!("fe80:0000:0000:0000:0a00:00ff:fe00:{number:04x}"),
                    _ => format!(
                        "0000:0000:0000:0000:0000:ffff:0a{:02x}:{:02x}01",
                        number / 256,
                        number % 256
                    ),
                };
                let kind = ["IB/RoCE v1\n", "RoCE v2\n"][index % 2];
                self.file(&format!("{port}/gids/{index}"), gid + "\n");
                self.file(
                    &format!("{port}/gid_attrs/types/{index}"),
                    if used { kind } else { "" },
                );
                let netdev = if used {
                    format!("{netdev}\n")
                } else {
                    String::new()
                };
                self.file(&format!("{port}/gid_attrs/ndevs/{index}"), netdev);
            }
        }
    }

    fn rdma(&mut self, name: &str, device: &str) -> usize {
        let number = self.next("rdma");
        let home = self.class("infiniband", name, device);
        self.file(
            &format!("{home}/node_guid"),
            format!("0c42:a103:0065:{number:04x}\n"),
        );
        self.file(&format!("{home}/node_type"), "1: CA\n");
        let nodes = [
            ("infiniband_verbs", "uverbs", 192),
            ("infiniband_mad", "umad", 4096),
            ("infiniband_mad", "issm", 8192),
        ];
        for (class, prefix, first) in nodes {
            let home = self.class(class, &format!("{prefix}{number}"), device);
            self.file(&format!("{home}/ibdev"), format!("{name}\n"));
            self.file(&format!("{home}/dev"), format!("231:{}\n", first + number));
            self.link(&format!("dev/char/231:{}", first + number), &home);
            self.file(&format!("class/{class}/abi_version"), "6\n");
        }
        number
    }

    /// A netdev of a device, or `virtual`.
    pub fn netdev(&mut self, name: &str, at: &str, dev_port: &str) {
        let device = self
            .places
            .get(at)
            .cloned()
            .unwrap_or_else(|| "devices/virtual".to_owned());
        let ifindex = self.next("ifindex") + 2;
        let home = self.class("net", name, &device);
        let mac = format!("02:00:00:00:{:02x}:{:02x}", ifindex / 256, ifindex % 256);
        for (name, text) in [
            ("address", mac.as_str()),
            ("dev_port", dev_port),
            ("type", "1"),
            ("flags", "0x1003"),
        ] {
            self.file(&format!("{home}/{name}"), format!("{text}\n"));
        }
        for name in ["ifindex", "iflink"] {
            self.file(&format!("{home}/{name}"), format!("{ifindex}\n"));
        }
        self.file(&format!("{home}/operstate"), "up\n");
    }

    /// Soft-RoCE on a netdev.
    fn soft(&mut self, name: &str, on: &str) {
        self.rdma(name, "devices/virtual");
        let home = format!("devices/virtual/infiniband/{name}");
        self.file(&format!("{home}/parent"), format!("{on}\n"));
        self.file(&format!("{home}/ports/1/state"), "4: ACTIVE\n");
        self.file(&format!("{home}/ports/1/link_layer"), "Ethernet\n");
    }
}
