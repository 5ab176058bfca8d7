//! The pure stages on hosts of 1 to 512 RoCE NICs: what a hook does besides waiting for the kernel.
//! `cargo bench --bench stages`; `scripts/bench` measures whole hooks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    missing_docs,
    reason = "a benchmark fails by panicking"
)]
use std::collections::BTreeMap;
use std::hint::black_box;

use anyhow::Result;
use criterion::{BenchmarkId, Criterion, Throughput};
use netlink_packet_core::NetlinkMessage;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rdma_model::host_objects::HostObjects;
use rdma_model::snapshot::Snapshot;
use rdma_model::step::NicState;
use rdma_netlink::rtnl;
use rdmaprep::attach::{AttachPlan, plan_attach};
use rdmaprep::cli::{Global, SelectArgs};
use rdmaprep::config::host::{Config, Host};
use rdmaprep::config::options::SelectOptions;
use rdmaprep::config::request::Request;
use rdmaprep::nccl_env::Options;
use rdmaprep::plan::Plan;
use rdmaprep::precedence::Precedence;
use rdmaprep::record::{Member, Phase, Record, SCHEMA};
use rdmaprep::restore::plan::{Goal, plan_restore};
use rdmaprep::select::select;
use rdmaprep::verify;
use serde_json::{Value, json};

const COUNTS: [usize; 5] = [1, 8, 16, 64, 512];

/// As many per-device sysctls as Linux 6.18 has.
const SYSCTLS: usize = 129;

fn main() -> Result<()> {
    let mut criterion = Criterion::default().configure_from_args();
    for count in COUNTS {
        stages(&mut criterion, count)?;
    }
    criterion.final_summary();
    Ok(())
}

fn stages(criterion: &mut Criterion, count: usize) -> Result<()> {
    let host = host(count)?;
    let request = request()?;
    let selection = select(&request, &host, &[])?;
    let plan = Plan::new("default", &request, &host, &selection, &Options::default());
    let empty = Snapshot {
        netdevs: Vec::new(),
        routes: Vec::new(),
        ..host.clone()
    };
    let AttachPlan { held, .. } = plan_attach(&plan, &host, &empty)?;
    let states: Vec<NicState> = held.iter().map(|h| h.before.clone()).collect();
    let record = Record {
        schema: SCHEMA,
        boot_id: host.boot_id.clone(),
        netns: 2,
        host_netns: 1,
        phase: Phase::Attached,
        plan: plan.name.clone(),
        members: vec![Member {
            id: "c".into(),
            bundle: "/b".into(),
            pid: 2,
            start_time: 1,
            sandboxed: false,
            cni: None,
        }],
        given: None,
        claims: Vec::new(),
        pod: None,
        held_back: Vec::new(),
        notes: Vec::new(),
        lost: std::collections::BTreeSet::new(),
        waits_for: Vec::new(),
        host_objects: HostObjects::default(),
        keep_objects_until_back: Vec::new(),
        children_gone: false,
        refused: Default::default(),
        rules_beside: None,
        static_rules: Vec::new(),
        searched: None,
        hold: None,
        held: held.clone(),
        precedence: Precedence::default(),
    };
    let (links, stored) = (links(count)?, record.print()?);

    let mut measure = |stage: &str, work: &mut dyn FnMut()| {
        let mut group = criterion.benchmark_group(stage);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(BenchmarkId::from_parameter(count), |b| b.iter(&mut *work));
        group.finish();
    };
    measure("observe: links of a dump", &mut || {
        black_box(netdevs(black_box(&links)));
    });
    measure("select", &mut || {
        drop(black_box(select(&request, black_box(&host), &[])))
    });
    measure("plan", &mut || {
        black_box(Plan::new(
            "default",
            &request,
            black_box(&host),
            &selection,
            &Options::default(),
        ));
    });
    measure("attach", &mut || {
        drop(black_box(plan_attach(black_box(&plan), &host, &empty)))
    });
    measure("record: print", &mut || {
        drop(black_box(black_box(&record).print()))
    });
    measure("record: parse", &mut || {
        drop(black_box(Record::parse(black_box(&stored))))
    });
    measure("verify", &mut || {
        drop(black_box(verify::drift(black_box(&states), &host)))
    });
    measure("restore", &mut || {
        drop(black_box(plan_restore(
            black_box(&held),
            &empty,
            Some(&host),
            Goal::Exact,
        )))
    });
    Ok(())
}

fn request() -> Result<Request> {
    let host = Host::new(&Global::default(), &Config::default());
    Request::new(
        None,
        &SelectArgs::default(),
        host,
        SelectOptions::default(),
        |_| None,
    )
}

/// One HCA with one port, one netdev, one address for each NIC, and an uplink.
fn host(count: usize) -> Result<Snapshot> {
    let sysctls: BTreeMap<String, &str> = (0..SYSCTLS)
        .map(|i| (format!("ipv4/conf/leaf{i}"), "0"))
        .collect();
    let netdev = |i: usize| {
        json!({
            "name": format!("rdma{i}"), "ifindex": i + 3, "link_type": 1, "mac": mac(i),
            "permanent_mac": mac(i), "mtu": 9000,
            "txqlen": 1000, "up": true, "running": true, "operstate": "up", "pci": pci(i),
            "dev_port": 0, "driver": "mlx5_core",
            "addresses": [{"address": address(i), "prefix": 24, "label": format!("rdma{i}"),
                "flags": 128}],
            "sysctls": sysctls,
        })
    };
    let hca = |i: usize| {
        let gid = json!({
            "index": 3, "address": format!("::ffff:{}", address(i)), "kind": "RoCE v2",
            "netdev": format!("rdma{i}"),
        });
        json!({
            "name": format!("mlx5_{i}"), "index": i, "driver": "mlx5_core", "protocol": "roce",
            "pci": pci(i),
            "node_guid": format!("0000:0000:0000:{:04x}", i + 1),
            "uverbs": {"name": format!("uverbs{i}"), "major": 231, "minor": 192 + i},
            "ports": [{
                "number": 1, "state": "ACTIVE", "link_layer": "Ethernet",
                "netdev": format!("rdma{i}"), "gids": [gid],
            }],
        })
    };
    let route = |i: usize| {
        json!({
            "destination": format!("{}.0/24", subnet(i)), "table": 254, "protocol": 2, "scope": 253,
            "kind": 1,
            "prefsrc": address(i), "hops": [{"dev": format!("rdma{i}")}],
        })
    };
    let all = |one: &dyn Fn(usize) -> Value| (0..count).map(one).collect::<Vec<Value>>();
    let mut routes = all(&route);
    routes.push(json!({
        "destination": "0.0.0.0/0", "table": 254, "protocol": 3, "kind": 1,
        "hops": [{"dev": "uplink", "gateway": "192.0.2.1"}],
    }));
    let mut netdevs = all(&netdev);
    netdevs
        .push(json!({"name": "uplink", "ifindex": 2, "link_type": 1, "up": true, "running": true}));
    let text = json!({
        "schema": 1, "boot_id": "b", "netns": 1, "hcas": all(&hca), "netdevs": netdevs,
        "routes": routes,
        "paths": {"paths": []},
    });
    Ok(serde_json::from_value(text)?)
}

fn subnet(i: usize) -> String {
    format!("10.{}.{}", i / 256, i % 256)
}

fn address(i: usize) -> String {
    format!("{}.1", subnet(i))
}

fn mac(i: usize) -> String {
    format!("02:00:00:00:{:02x}:{:02x}", i / 256, i % 256)
}

fn pci(i: usize) -> String {
    format!("0000:{:02x}:{:02x}.{}", i / 256 + 1, i % 256 / 8, i % 8)
}

/// What a dump of links brings, one message after the other.
fn links(count: usize) -> Result<Vec<Vec<u8>>> {
    let link = |i: usize| {
        let mut link = LinkMessage::default();
        link.header.index = u32::try_from(i)? + 3;
        link.header.flags = LinkFlags::Up | LinkFlags::Running | LinkFlags::LowerUp;
        let mac = vec![2, 0, 0, 0, u8::try_from(i / 256)?, u8::try_from(i % 256)?];
        link.attributes.extend([
            LinkAttribute::IfName(format!("rdma{i}")),
            LinkAttribute::Mtu(9000),
            LinkAttribute::TxQueueLen(1000),
            LinkAttribute::Qdisc("mq".into()),
            LinkAttribute::Address(mac.clone()),
            LinkAttribute::PermAddress(mac),
        ]);
        let mut message = NetlinkMessage::from(Message::NewLink(link));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        Ok(bytes)
    };
    (0..count).map(link).collect()
}

fn netdevs(links: &[Vec<u8>]) -> usize {
    let parsed = links
        .iter()
        .filter_map(|bytes| NetlinkMessage::<Message>::deserialize(bytes).ok());
    let links: Vec<LinkMessage> = parsed
        .filter_map(|m| match m.payload {
            netlink_packet_core::NetlinkPayload::InnerMessage(Message::NewLink(link)) => Some(link),
            _ => None,
        })
        .collect();
    let names: rtnl::Names = links.iter().filter_map(rtnl::link_name).collect();
    links
        .iter()
        .filter_map(|link| rtnl::netdev(link, &names))
        .count()
}
