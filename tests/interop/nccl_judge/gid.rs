//! GID tables: made-up ones in a /sys and a libibverbs of our own. A release's own function says
//! which GID it takes of each.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;

use nccl_rules::gid::{Choice, choose, has_place};
use nccl_rules::settings::Settings;
use nccl_rules::version::Version;
use proptest::prelude::*;
use proptest::sample::select;
use rdma_model::snapshot::Snapshot;
use serde_json::{Value, json};
use testkit::nccl_case::Env;
use testkit::sh;

#[derive(Clone, Debug)]
pub struct Table {
    pub infiniband: bool,
    /// By index; none is unused.
    pub gids: Vec<Option<(Ipv6Addr, &'static str)>>,
}

/// A device for each.
pub type World = Vec<Table>;

const V1: &str = "IB/RoCE v1";
const V2: &str = "RoCE v2";

const ADDRESSES: [&str; 11] = [
    "fe80::ff:fe00:a",
    "fe80::1",
    "fe80:0:0:1::1",
    "::ffff:10.0.1.1",
    "::ffff:10.0.2.1",
    "::ffff:192.0.2.10",
    "2001:db8:1::10",
    "2001:db8:2::10",
    "fd00::1",
    "ff0e::ffff:10.0.1.1",
    "fe80:0:1200::9",
];

pub fn any() -> impl Strategy<Value = World> {
    let gid = (select(ADDRESSES.to_vec()), select(vec![V1, V2, V2]))
        .prop_map(|(address, kind)| (address.parse().unwrap(), kind));
    let gids = prop::collection::vec(prop::option::weighted(0.8, gid), 1..=12);
    let table =
        (prop::bool::weighted(0.1), gids).prop_map(|(infiniband, gids)| Table { infiniband, gids });
    prop::collection::vec(table, 12)
}

pub fn envs() -> impl Strategy<Value = Env> {
    let index = prop_oneof![
        12 => Just(None),
        3 => select(vec!["0", "1", "2", "3", "4"]).prop_map(Some),
        2 => select(vec!["-1", "-2", "", "x", "0x1", "999"]).prop_map(Some),
    ];
    let family = prop::option::weighted(
        0.6,
        select(vec![
            "AF_INET6", "AF_INET6", "AF_INET6", "AF_INET", "", "af_inet6",
        ]),
    );
    let ranges = [
        "10.0.0.0/8",
        "10.0.2.0/24",
        "192.0.2.10/32",
        "10.0.1.1",
        "10.0.2.0/33",
        "10.0.2.0/0",
        "10.0.2.0/-1",
        "10.0.2.0/x",
        "2001:db8::/32",
        "2001:db8:2::/48",
        "2001:db8:2::10/128",
        "fe80::/10",
        "2001:db8::/129",
        "::/0",
        "::/1",
        "::ffff:10.0.0.0/104",
        "x/8",
        "",
        "/8",
        "10.0.2.0/ 24",
        "10.0.2.0/24x",
        "99999999999999999999/24",
        "10.0.2.0/99999999999999999999",
    ];
    let range = prop::option::weighted(0.4, select(ranges.to_vec()));
    let version = prop::option::weighted(0.3, select(vec!["1", "2", "3", "", "x", "-1"]));
    let routable = prop::option::weighted(0.15, select(vec!["0", "1", "2", "5", "99", "x"]));
    (index, family, range, version, routable).prop_map(
        |(index, family, range, version, routable)| {
            let vars = [
                ("NCCL_IB_GID_INDEX", index),
                ("NCCL_IB_ADDR_FAMILY", family),
                ("NCCL_IB_ADDR_RANGE", range),
                ("NCCL_IB_ROCE_VERSION_NUM", version),
                ("NCCL_IB_ROUTABLE_FLID_GID_INDEX", routable),
            ];
            env(&vars)
        },
    )
}

fn env(vars: &[(&str, Option<&str>)]) -> Env {
    let set = vars
        .iter()
        .filter_map(|(name, value)| Some(((*name).to_owned(), (*value)?.to_owned())));
    Env {
        vars: set.collect(),
        files: BTreeMap::new(),
    }
}

/// Tables in which each release has shown what it does.
pub fn classics() -> Vec<(World, Env)> {
    let table = |gids: &[Option<(&str, &'static str)>]| Table {
        infiniband: false,
        gids: gids
            .iter()
            .map(|g| g.map(|(address, kind)| (address.parse().unwrap(), kind)))
            .collect(),
    };
    let local = [Some(("fe80::a", V1)), Some(("fe80::a", V2))];
    let four = [
        Some(("::ffff:192.0.2.1", V1)),
        Some(("::ffff:192.0.2.1", V2)),
    ];
    let six = [Some(("2001:db8::1", V1)), Some(("2001:db8::1", V2))];
    let world = vec![
        table(&[local, four].concat()),
        table(&[local, six].concat()),
        table(&[local, six, four].concat()),
        table(&[[None, None], six].concat()),
        table(&[[None, None], four].concat()),
        table(&local),
        Table {
            infiniband: true,
            ..table(&[Some(("fe80::1", V1)), Some(("fe80:0:12::1", V1))])
        },
    ];
    let settings = [
        env(&[]),
        env(&[("NCCL_IB_ADDR_FAMILY", Some("AF_INET6"))]),
        env(&[("NCCL_IB_GID_INDEX", Some("1"))]),
        env(&[("NCCL_IB_GID_INDEX", Some("3"))]),
        env(&[("NCCL_IB_GID_INDEX", Some("999"))]),
        env(&[
            ("NCCL_IB_GID_INDEX", Some("0")),
            ("NCCL_IB_ADDR_RANGE", Some("192.0.2.0")),
        ]),
    ];
    settings.map(|env| (world.clone(), env)).to_vec()
}

/// Makes /sys, the list of devices and their tables, and says what rdmaprep would see of them.
pub fn build(world: &World, list: &Path, gids: &Path) -> Snapshot {
    sh("umount /sys 2>/dev/null || true; mount -t tmpfs -o mode=755 tmpfs /sys");
    let (mut devices, mut tables) = (String::new(), String::new());
    let mut hcas: Vec<Value> = Vec::new();
    for (at, table) in world.iter().enumerate() {
        let name = format!("m{at}x");
        let dir = format!("/sys/class/infiniband/{name}");
        let (types, pci) = (
            format!("{dir}/ports/1/gid_attrs/types"),
            format!("0000:{at:02x}:00.0"),
        );
        let place = format!("/sys/devices/pci0000:00/{pci}");
        fs::create_dir_all(&types).unwrap();
        fs::create_dir_all(&place).unwrap();
        std::os::unix::fs::symlink(&place, format!("{dir}/device")).unwrap();
        let (number, layer) = match table.infiniband {
            true => (1, "InfiniBand"),
            false => (2, "Ethernet"),
        };
        devices += &format!("{name} {at:x} 4 {number}\n");
        tables += &format!("{name} {}", table.gids.len());
        let mut known: Vec<Value> = Vec::new();
        for (index, gid) in table.gids.iter().enumerate() {
            let text = gid.map_or(String::new(), |(_, kind)| format!("{kind}\n"));
            fs::write(format!("{types}/{index}"), text).unwrap();
            let Some((address, kind)) = gid else { continue };
            tables += &format!(" {index} {:032x}", address.to_bits());
            known.push(json!({"index": index, "address": address, "kind": kind}));
        }
        tables += "\n";
        let port = json!({
            "number": 1, "state": "ACTIVE", "link_layer": layer,
            "gids": known, "gid_table": table.gids.len(),
        });
        hcas.push(json!({"name": name, "index": at, "pci": pci, "ports": [port]}));
    }
    fs::write(list, devices).unwrap();
    fs::write(gids, tables).unwrap();
    serde_json::from_value(json!({"schema": 1, "hcas": hcas, "netdevs": []})).unwrap()
}

/// The choices in the words of `Judges::ask_gids`, by device; `lid` is not asked.
pub fn words(snapshot: &Snapshot, settings: &Settings, version: Version) -> Vec<(String, String)> {
    let ports = || {
        snapshot
            .hcas
            .iter()
            .map(|h| (h.name.to_string(), &h.ports[0]))
    };
    let choices = ports().map(|(name, port)| (name, port, choose(port, settings, version)));
    let choices: Vec<_> = choices.collect();
    let is_off = version.reads_gids_at_start()
        && choices.iter().any(|(_, port, choice)| match choice {
            Choice::Index(index) => !has_place(port, *index),
            Choice::Unreadable(_) => true,
            Choice::Lid | Choice::Unknown | Choice::Crash => false,
        });
    let ends = choices.iter().any(|(.., choice)| *choice == Choice::Crash);
    let words = choices.into_iter().map(|(name, _, choice)| {
        let text = match choice {
            _ if is_off => "off".to_owned(),
            _ if ends => "signal".to_owned(),
            Choice::Lid => "lid".to_owned(),
            Choice::Index(index) => index.to_string(),
            Choice::Unreadable(_) => "error 2".to_owned(),
            Choice::Crash | Choice::Unknown => "unknown".to_owned(),
        };
        (name, text)
    });
    words.collect()
}

/// What a table may show, in the words of the summary.
pub const REACHED: [&str; 6] = [
    "index 0",
    "another index",
    "a number that is no index",
    "a connection that fails",
    "no verbs at all",
    "an end by a signal",
];

pub fn reached(words: &str) -> &'static str {
    match words {
        "0" => REACHED[0],
        "off" => REACHED[4],
        "signal" => REACHED[5],
        text if text.starts_with("error") => REACHED[3],
        text if text.starts_with('-') => REACHED[2],
        _ => REACHED[1],
    }
}
