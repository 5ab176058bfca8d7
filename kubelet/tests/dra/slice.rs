//! What a node offers: the whole of it as a golden file, and rules that the API server has.

use std::collections::BTreeSet;
use std::path::Path;

use rdmaprep_kubelet::dra::slice::{devices, spec};
use rdmaprep_kubelet::rail::{Facts, Rail, Shown};
use serde_json::{Value, json};

use crate::rails::{rail, shown};
use crate::valid;

fn published(shown: &Shown, taints: bool) -> Value {
    let spec = spec("node-1", &devices(shown).0, &BTreeSet::new(), taints);
    let slice = json!({"metadata": {"name": "rdmaprep-node-1"}, "spec": spec.clone()});
    valid::slice(&slice).unwrap();
    spec
}

fn names(spec: &Value) -> Vec<&str> {
    let devices = spec["devices"].as_array().unwrap();
    devices
        .iter()
        .map(|d| d["name"].as_str().unwrap())
        .collect()
}

/// A NIC of which all is known; one with a VLAN's name, old firmware and no carrier; an HCA alone.
#[test]
fn a_node_as_a_slice() {
    let mut vlan = rail(1);
    vlan.name = "eth0.100".to_owned();
    vlan.unhealthy = Some("no carrier".to_owned());
    vlan.facts.netdev = Some("eth0.100".to_owned());
    vlan.facts.firmware = Some("20.08.0100".to_owned());
    vlan.facts.number = None;
    let facts = Facts {
        place: 2,
        is_hca: true,
        hca: Some("mlx5_2".to_owned()),
        port: Some(1),
        kind: Some("ib"),
        speed_gbps: Some(1000),
        firmware: Some("28.39.1002 (MT_0000000838)".to_owned()),
        ..Facts::default()
    };
    let hca = Rail {
        name: "mlx5_2".to_owned(),
        facts,
        ..Rail::default()
    };
    let spec = published(&shown([rail(0), vlan, hca]), true);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dra/slice.json");
    let text = format!("{}\n", serde_json::to_string_pretty(&spec).unwrap());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap());
}

/// One that lacks an attribute would fail each claim that reads it.
#[test]
fn every_device_has_the_same_attributes() {
    let bare = Rail {
        name: "bare".to_owned(),
        ..Rail::default()
    };
    let mut full = rail(0);
    full.facts.firmware = None;
    let spec = published(&shown([full, bare]), true);
    let of = |at: usize| -> Vec<&String> {
        let attributes = spec["devices"][at]["attributes"].as_object().unwrap();
        attributes.keys().collect()
    };
    assert_eq!(of(0), of(1));
    let bare = &spec["devices"][0]["attributes"];
    assert_eq!(bare["rdmaprep.io/rail"], json!({"int": 0}));
    assert_eq!(of(0).len(), 19);
}

#[test]
fn names_are_labels_and_no_two_are_equal() {
    let named = |name: &str, place: usize, hca: Option<&str>| {
        let mut rail = rail(place);
        rail.name = name.to_owned();
        rail.facts.is_hca = hca.is_some();
        rail.facts.netdev = hca.is_none().then(|| name.to_owned());
        rail.facts.hca = hca.map(str::to_owned);
        rail
    };
    let all = [
        named("0eth", 0, None),
        named("Rdma0", 1, None),
        named("ib0:1", 2, None),
        named("n-41", 3, None),
        named("A", 4, None),
        named("mlx5_0", 5, Some("mlx5_0")),
        named("h-mlx5-0", 6, None),
        // It would have the same name.
        named("mlx5-0", 7, Some("mlx5-0")),
    ];
    let shown = shown(all);
    let (_, unnamed) = devices(&shown);
    assert_eq!(unnamed, ["mlx5-0"]);
    let expected = [
        "0eth",
        "n-52646d6130",
        "n-6962303a31",
        "n-6e2d3431",
        "n-41",
        "h-mlx5-0",
        "n-682d6d6c78352d30",
    ];
    assert_eq!(names(&published(&shown, true)), expected);
}

/// Resources of the config file do not change the order in which a claim gets rails.
#[test]
fn rails_are_in_their_order() {
    let shown = vec![
        ("example.com/b".to_owned(), vec![rail(1), rail(3)]),
        ("example.com/a".to_owned(), vec![rail(0), rail(2)]),
    ];
    let spec = published(&shown, true);
    assert_eq!(names(&spec), ["rdma0", "rdma1", "rdma2", "rdma3"]);
    let pool = |at: usize| &spec["devices"][at]["attributes"]["rdmaprep.io/pool"]["string"];
    assert_eq!(
        (pool(0), pool(1)),
        (&json!("example.com/a"), &json!("example.com/b"))
    );
}

/// A server that does not know taints would take such a rail for a free one.
#[test]
fn without_taints_an_unhealthy_rail_is_left_out_unless_away() {
    let mut rails = [rail(0), rail(1), rail(2), rail(3)];
    rails[1].unhealthy = Some("no carrier".to_owned());
    rails[2].unhealthy = Some("held by container 1".to_owned());
    rails[2].facts.is_away = true;
    rails[3].unhealthy = Some("no carrier".to_owned());
    let mut broken = rails.clone();
    let shown = shown(rails);
    assert_eq!(names(&published(&shown, true)).len(), 4);
    assert_eq!(names(&published(&shown, false)), ["rdma0", "rdma2"]);
    let bound = ["rdma3".to_owned()].into();
    let bound = spec("node-1", &devices(&shown).0, &bound, false);
    assert_eq!(names(&bound), ["rdma0", "rdma2", "rdma3"]);
    broken[2].facts.held_back = true;
    assert_eq!(names(&published(&self::shown(broken), false)), ["rdma0"]);
}

/// By the device plugin, or an annotation: a claim would wait for its end.
#[test]
fn rail_that_a_container_has_without_a_claim_is_not_offered() {
    let mut rails = [rail(0), rail(1)];
    (rails[0].facts.is_away, rails[0].facts.is_others) = (true, true);
    rails[1].facts.is_away = true;
    let shown = shown(rails);
    assert_eq!(names(&published(&shown, false)), ["rdma1"]);
    let slice = published(&shown, true);
    let value = "a-container-has-it-without-a-claim";
    assert_eq!(slice["devices"][0]["taints"][0]["value"], value);
    assert!(slice["devices"][1].get("taints").is_none());
}

/// The server allows 64 devices where one has a taint, else 128.
#[test]
fn many_rails_are_not_refused() {
    let many = |n: usize, unhealthy: bool| {
        let mut rails: Vec<Rail> = (0..n).map(|at| rail(at % 8)).collect();
        for (at, rail) in rails.iter_mut().enumerate() {
            (rail.name, rail.facts.place) = (format!("r{at}"), at);
        }
        rails[0].unhealthy = unhealthy.then(|| "no carrier".to_owned());
        published(&shown(rails), true)["devices"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(
        (many(130, false), many(64, true), many(100, true)),
        (128, 64, 99)
    );
}

/// Whatever the kernel and the create hook say.
#[test]
fn no_text_makes_a_slice_that_is_refused() {
    let words = [
        "",
        "-",
        "no carrier",
        "ä: %s/..",
        "held by container 0123456789ab",
        "\n",
        "_a_",
    ];
    for (at, word) in words.iter().cycle().take(70).enumerate() {
        let text = word.repeat(at);
        let mut odd = rail(0);
        odd.unhealthy = Some(text.clone());
        odd.facts.driver = Some(text.clone());
        odd.facts.firmware = Some(format!("{text}.1.1"));
        odd.facts.hca = Some(text);
        published(&shown([odd]), true);
    }
}
