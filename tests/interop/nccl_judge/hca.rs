//! HCAs: made-up ones in a /sys of our own and a libibverbs of our own. A release's network for
//! verbs is started on them, and says which ports it takes, or crashes as `explain` says.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nccl_rules::explain::{Explanation, Trap};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use rdma_model::snapshot::Snapshot;
use serde_json::{Value, json};
use testkit::nccl_case::Env;
use testkit::sh;

use super::worlds;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Ethernet,
    InfiniBand,
    Down,
    /// A link layer that is neither.
    Other,
}

#[derive(Clone, Debug)]
pub struct Device {
    pub name: String,
    /// Bus, device, function; none has no PCI path.
    pub pci: Option<(u8, u8, u8)>,
    pub guid: u64,
    pub ports: Vec<State>,
}

/// In the order of libibverbs.
pub type World = Vec<Device>;

/// With their index behind them no two are the same.
const NAMES: [&str; 10] = [
    "mlx5_", "mlx5_x", "mlx4_", "rxe", "bnxt_re", "irdma", "mlx", "ib", "siw", "m",
];

pub fn any() -> impl Strategy<Value = World> {
    let few = prop_oneof![6 => 1..=6usize, 1 => 14..=18usize, 2 => 30..=34usize];
    (
        few,
        prop_oneof![3 => Just(0u32), 2 => Just(12), 1 => Just(60)],
        any_ports(),
    )
        .prop_flat_map(|(count, bare, ports)| {
            let cards = (1..=0x7fu8).collect::<Vec<_>>();
            let device = move |at: usize, bus: u8| {
                let place =
                    prop_oneof![8 => Just((0u8, 0u8)), 1 => Just((0, 1)), 1 => Just((3, 2))];
                let shares = prop::bool::weighted(0.2);
                (
                    select(NAMES.to_vec()),
                    place,
                    shares,
                    prop::bool::weighted(f64::from(bare) / 100.0),
                    ports.clone(),
                )
                    .prop_map(
                        move |(name, (device, function), shares, bare, ports)| Device {
                            name: format!("{name}{at}"),
                            pci: (!bare).then_some((bus, device, function)),
                            guid: if shares { 1 } else { u64::from(bus) },
                            ports,
                        },
                    )
            };
            subsequence(cards, count)
                .prop_shuffle()
                .prop_flat_map(move |buses| {
                    buses
                        .into_iter()
                        .enumerate()
                        .map(|(at, bus)| device(at, bus))
                        .collect::<Vec<_>>()
                })
        })
        .prop_map(paired)
}

fn any_ports() -> impl Strategy<Value = BoxedStrategy<Vec<State>>> {
    let state = prop_oneof![8 => Just(State::Ethernet), 4 => Just(State::InfiniBand),
        1 => Just(State::Down), 1 => Just(State::Other)];
    let one = prop_oneof![5 => Just(1usize), 1 => Just(2)];
    let mixed = one
        .prop_flat_map(move |n| prop::collection::vec(state.clone(), n))
        .boxed();
    let plain = Just(vec![State::Ethernet]).boxed();
    let two = Just(vec![State::Ethernet; 2]).boxed();
    select(vec![plain.clone(), plain, two, mixed.clone(), mixed])
}

/// Each second one of those with a second function becomes the other one of the card before it.
fn paired(mut world: World) -> World {
    for at in 1..world.len() {
        let before = (world[at - 1].pci, world[at - 1].guid);
        if let ((Some((bus, device, 0)), guid), Some((_, own, function @ 1..))) =
            (before, world[at].pci)
        {
            world[at].pci = Some((bus, if own == 0 { device } else { own }, function));
            world[at].guid = guid;
        }
    }
    world
}

/// Worlds in which each release has shown what it does.
pub fn classics() -> Vec<World> {
    let device = |name: &str, bus: u8, ports: usize| Device {
        name: name.to_owned(),
        pci: (bus > 0).then_some((bus, 0, 0)),
        guid: u64::from(bus),
        ports: vec![State::Ethernet; ports],
    };
    let many = |count: u8| {
        (1..=count)
            .map(|n| device(&format!("m{n}"), n, 1))
            .collect::<World>()
    };
    let with = |mut world: World, more: Device| {
        world.push(more);
        world
    };
    vec![
        vec![device("rxe0", 0, 1), device("mlx5_0", 5, 1)],
        vec![device("mlx5_0", 5, 1), device("rxe0", 0, 1)],
        vec![device("rxe0", 0, 1), device("rxe1", 0, 1)],
        vec![
            device("mlx5_0", 5, 2),
            device("mlx5_1", 6, 2),
            device("rxe0", 0, 1),
        ],
        vec![device("mlx5_0", 5, 2), device("mlx5_1", 6, 1)],
        vec![device("mlx5_0", 5, 2), device("mlx5_1", 6, 2)],
        many(16),
        many(17),
        with(many(15), device("two", 0x7e, 2)),
        many(33),
        with(many(31), device("two", 0x7e, 2)),
        with(many(30), device("two", 0x7e, 2)),
    ]
}

/// Makes /sys and the list of devices, and says what rdmaprep would see of them.
pub fn build(world: &World, list: &Path) -> Snapshot {
    sh("umount /sys 2>/dev/null || true; mount -t tmpfs -o mode=755 tmpfs /sys");
    let mut lines = String::new();
    let mut hcas: Vec<Value> = Vec::new();
    for (index, device) in world.iter().enumerate() {
        let dir = format!("/sys/class/infiniband/{}", device.name);
        let pci = device
            .pci
            .map(|(bus, device, function)| format!("0000:{bus:02x}:{device:02x}.{function}"));
        fs::create_dir_all(&dir).unwrap();
        if let Some(pci) = &pci {
            let place = format!("/sys/devices/pci0000:00/{pci}");
            fs::create_dir_all(&place).unwrap();
            symlink(&place, format!("{dir}/device")).unwrap();
        }
        lines += &format!("{} {:x}", device.name, device.guid);
        let mut ports = Vec::new();
        for (n, state) in device.ports.iter().enumerate() {
            // 2.32 reads this when it starts.
            let types = format!("{dir}/ports/{}/gid_attrs/types", n + 1);
            fs::create_dir_all(&types).unwrap();
            fs::write(format!("{types}/0"), "RoCE v2\n").unwrap();
            let (number, layer, text, name) = match state {
                State::Ethernet => (4, 2, "ACTIVE", "Ethernet"),
                State::InfiniBand => (4, 1, "ACTIVE", "InfiniBand"),
                State::Down => (1, 2, "DOWN", "Ethernet"),
                State::Other => (4, 0, "ACTIVE", "Unspecified"),
            };
            lines += &format!(" {number} {layer}");
            ports.push(json!({"number": n + 1, "state": text, "link_layer": name}));
        }
        lines += "\n";
        let guid = format!("0000:0000:0000:{:04x}", device.guid);
        hcas.push(
            json!({"name": device.name, "index": index, "pci": pci, "sys_image_guid": guid,
                "ports": ports}),
        );
    }
    fs::write(list, lines).unwrap();
    Snapshot {
        hcas: serde_json::from_value(hcas.into()).unwrap(),
        ..worlds::observe()
    }
}

pub fn envs(world: &World) -> impl Strategy<Value = Env> + use<> {
    let number = || select(vec!["0", "1", "", "0x0", "x", "-1", "0x", "010", "1x"]);
    let some = |name: &'static str, weight: f64| {
        prop::option::weighted(weight, number())
            .prop_map(move |v| v.map(|v| (name.to_owned(), v.to_owned())))
    };
    let list = prop::option::weighted(0.7, list(world))
        .prop_map(|v| v.map(|v| ("NCCL_IB_HCA".to_owned(), v)));
    let gone = prop::option::weighted(
        0.03,
        Just(("NCCL_SOCKET_IFNAME".to_owned(), "=gone".to_owned())),
    );
    let all = (
        list,
        some("NCCL_IB_DEVICE_PCI_ORDER", 0.25),
        some("NCCL_IB_MERGE_NICS", 0.2),
        some("NCCL_IB_MERGE_VFS", 0.2),
        some("NCCL_IB_DISABLE", 0.06),
        gone,
    );
    all.prop_map(|(a, b, c, d, e, f)| {
        let vars: BTreeMap<_, _> = [a, b, c, d, e, f].into_iter().flatten().collect();
        Env {
            vars,
            files: BTreeMap::new(),
        }
    })
}

fn list(world: &World) -> impl Strategy<Value = String> + use<> {
    let there: Vec<String> = world.iter().map(|d| d.name.clone()).collect();
    // A plane for each.
    let planes: Vec<String> = there
        .iter()
        .enumerate()
        .map(|(at, name)| format!("{name}:::{at}"))
        .collect();
    let planes = format!("={}", planes.join(","));
    let begun = there
        .iter()
        .map(|n| n[..n.len() - 1].to_owned())
        .filter(|n| !n.is_empty())
        .collect::<Vec<_>>();
    let name = prop_oneof![8 => select(there), 3 => select(begun), 1 => Just("gone0".to_owned()),
        1 => Just(String::new())];
    let suffix = prop_oneof![8 => Just(""),
        3 => select(vec![":1", ":2", ":", ":-1", ":x", "::1", ":1:2", ":1:2:3", "::2:3",
            ":::16384", ":::-2", ":::-1", ":::32768", ":::7"])];
    let entry = prop_oneof![
        24 => (name.clone(), suffix).prop_map(|(name, suffix)| name + suffix),
        1 => name.clone().prop_map(|name| format!(" {name}")),
        1 => name.prop_map(|name| format!("{name}{}", "x".repeat(64))),
    ];
    let marks = prop_oneof![4 => Just(""), 5 => Just("="), 4 => Just("^"), 3 => Just("^="),
        1 => select(vec!["=^", "=="])];
    // Names that nothing has, so that the next ones are the last that fit, or the first that do
    // not.
    let fill = prop_oneof![12 => Just(0), 1 => 14..=17usize, 1 => 30..=33usize];
    let all =
        (marks, fill, prop::collection::vec(entry, 0..=6)).prop_map(|(marks, fill, entries)| {
            let fill = (0..fill).map(|i| format!("x{i}"));
            format!(
                "{marks}{}",
                fill.chain(entries).collect::<Vec<_>>().join(",")
            )
        });
    prop_oneof![12 => all, 1 => Just(planes)]
}

/// The explanation in the words of `Judges::ask_hcas`.
pub fn words(e: &Explanation) -> String {
    if e.sockets.is_empty() || e.ports.iter().any(|p| p.why == "NCCL_IB_DISABLE is set") {
        return "none".to_owned();
    }
    if e.warnings.iter().any(|w| w.trap == Trap::Planes) {
        return "none".to_owned();
    }
    if e.warnings.iter().any(|w| w.trap == Trap::Crash) {
        return "signal".to_owned();
    }
    let mut words: Vec<String> = Vec::new();
    for port in &e.hcas {
        match merged_at_init(e)
            .iter()
            .find(|device| device.contains(port))
        {
            Some(device) if device[0] == *port => words.push(format!("{{{}}}", device.join(" "))),
            Some(_) => {}
            None => words.push(port.clone()),
        }
    }
    words.join(" ")
}

/// From 2.24.3 on NICs become one when NCCL knows the topology, which no judge has.
fn merged_at_init(e: &Explanation) -> &[Vec<String>] {
    if e.version.forces_merges() {
        return &[];
    }
    &e.merged
}

/// Whether the release may as well say something else: it has written past its memory.
pub fn is_chance(e: &Explanation, says: &str) -> bool {
    let beyond = e.hcas.len() > e.version.max_hcas() && !e.version.lists_beyond();
    e.warnings.iter().any(|w| w.trap == Trap::Overrun) && (says == "signal" || beyond)
}

/// What an environment may try, in the words of the summary.
pub const REACHED: [&str; 8] = [
    "a crash on an HCA without a PCI path",
    "memory that is written past",
    "no room for more",
    "two ports as one device",
    "an order by PCI address",
    "no verbs at all",
    "no HCA left",
    "HCAs that are taken",
];

pub fn reached(e: &Explanation, snapshot: &Snapshot) -> Vec<&'static str> {
    let trap = |trap| e.warnings.iter().any(|w| w.trap == trap);
    let name = |port: &str| port.rsplit_once(':').map(|(name, _)| name.to_owned());
    let index = |port: &String| {
        snapshot
            .hcas
            .iter()
            .position(|h| name(port).as_deref() == Some(h.name.as_str()))
    };
    let words = words(e);
    let so = [
        trap(Trap::Crash),
        trap(Trap::Overrun),
        trap(Trap::NoRoom),
        !merged_at_init(e).is_empty(),
        !e.hcas.is_sorted_by_key(index),
        words == "none",
        words.is_empty(),
        !matches!(words.as_str(), "" | "none" | "signal"),
    ];
    REACHED
        .into_iter()
        .zip(so)
        .filter(|(_, so)| *so)
        .map(|(what, _)| what)
        .collect()
}
