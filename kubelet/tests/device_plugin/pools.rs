//! Resources: what they cannot be, and to which one a rail belongs.

use std::sync::Arc;

use rdma_model::error_class::ErrorClass;
use rdmaprep_kubelet::node::{Inventory, Node};
use rdmaprep_kubelet::pools::Pools;
use rdmaprep_kubelet::rail::Rail;

use crate::stand_in::{Fake, plugin};

pub const BY_SPEED: &str = "[[resource]]\nname = 'a.example/x'\nspeed_gbps = \
    [400]\n[[resource]]\nname = 'a.example/y'\nspeed_gbps = [200]\n";

#[test]
fn pools_that_cannot_be() {
    let one = |name: &str, more: &str| format!("[[resource]]\nname = '{name}'\n{more}\n");
    let cases = [
        (
            one("a.example/x", "numa = [7]"),
            ErrorClass::Nothing,
            "a.example/x fits none of the 8 rails of this node",
        ),
        (
            one("a.example/x", "numa = [0]") + &one("a.example/y", "rails = ['rdma3']"),
            ErrorClass::Usage,
            "a.example/x and a.example/y share the rail rdma3",
        ),
        (
            one("a.example/x", "rails = ['rdma3', 'rdma8']"),
            ErrorClass::Usage,
            "a.example/x lists rdma8, which the CDI file does not have",
        ),
        (
            one("a.example/x", "speed_gbps = [100]"),
            ErrorClass::Nothing,
            "a.example/x fits none of the 8 rails",
        ),
        (
            one("a.example/x", "") + &one("a.example/x", ""),
            ErrorClass::Usage,
            "two resources are named a.example/x",
        ),
        (
            one("a.example/x", "pkey = 1"),
            ErrorClass::Usage,
            "line 3: unknown field `pkey`",
        ),
        (
            "pools = []".to_owned(),
            ErrorClass::Usage,
            "line 1: unknown field `pools`",
        ),
        (
            one("a.example/x", "rail_order = ['rdma0']"),
            ErrorClass::Usage,
            "line 3: unknown field `rail_order`",
        ),
        (
            "rail_order = ['rdma0', 'rdma0']".to_owned(),
            ErrorClass::Usage,
            "rail_order has an entry more than once",
        ),
        (
            one("a.example/x", "subnets = ['192.0.2.0/33']"),
            ErrorClass::Usage,
            "line 3: ",
        ),
        (
            one("rail", ""),
            ErrorClass::Usage,
            "\"rail\" is no name for a resource: it has to be DOMAIN/NAME",
        ),
        (
            one("kubernetes.io/rail", ""),
            ErrorClass::Usage,
            "\"kubernetes.io/rail\" is no name",
        ),
        (
            one("a.example/rail-", ""),
            ErrorClass::Usage,
            "\"a.example/rail-\" is no name",
        ),
        (
            one("A.example/rail", ""),
            ErrorClass::Usage,
            "\"A.example/rail\" is no name",
        ),
        (
            one("a.example/b/c", ""),
            ErrorClass::Usage,
            "\"a.example/b/c\" is no name",
        ),
    ];
    for (text, class, why) in cases {
        let e = Pools::parse(&text)
            .and_then(|pools| Node::new(Arc::new(Fake::default()), pools, |_| ()))
            .err()
            .expect(&text);
        assert_eq!(ErrorClass::of(&e), class, "{e:#}");
        let said = format!("{e:#}");
        assert!(
            said.starts_with(why) && !said.contains('\n'),
            "{said:?} is not {why:?}"
        );
    }
}

/// A rail that is down has no speed and may have no address: it stays in its resource.
#[test]
fn a_rail_stays_in_its_resource() {
    let mut pools = Pools::parse(BY_SPEED).unwrap();
    let rails = Fake::default().look().unwrap();
    let before = pools.sort(rails.clone());
    let dark: Vec<Rail> = rails
        .into_iter()
        .map(|r| Rail {
            speed_gbps: None,
            ..r
        })
        .collect();
    let now = pools.sort(dark);
    let names = |shown: &[(String, Vec<Rail>)]| -> Vec<Vec<String>> {
        shown
            .iter()
            .map(|(_, rails)| rails.iter().map(|r| r.name.clone()).collect())
            .collect()
    };
    assert_eq!(names(&before), names(&now));
}

/// Where another namespace has the HCAs, their speed is not known: they are no reason to end, and
/// are given when they are back.
#[tokio::test]
async fn a_resource_whose_rails_are_all_away_waits() {
    let plugin = plugin(BY_SPEED);
    ["rdma6", "rdma7"]
        .iter()
        .for_each(|rail| plugin.fake.set_speed(rail, None));
    let node = Node::new(plugin.fake.clone(), Pools::parse(BY_SPEED).unwrap(), |_| ()).unwrap();
    assert_eq!(node.rails("a.example/y"), []);
    plugin.fake.set_speed("rdma7", Some(200));
    node.refresh().await.unwrap();
    assert_eq!(
        node.rails("a.example/y")
            .iter()
            .map(|r| r.name.as_str())
            .collect::<Vec<_>>(),
        ["rdma7"]
    );
}

/// A rail that fits two resources later, and one that comes so: the others are looked at as before.
#[test]
fn a_rail_that_comes_to_fit_two_resources() {
    let text = "[[resource]]\nname = 'a.example/x'\nnuma = [0]\n[[resource]]\nname = \
        'a.example/y'\nspeed_gbps = [200]\n";
    let fake = Fake::default();
    let look = |also: &[&str]| -> Vec<Rail> {
        fake.look()
            .unwrap()
            .into_iter()
            .filter(|r| r.name.as_str() > "rdma1" || also.contains(&&*r.name))
            .collect()
    };
    let mut pools = Pools::parse(text).unwrap();
    pools.check(&look(&[])).unwrap();
    pools.sort(look(&[]));
    ["rdma0", "rdma2"]
        .iter()
        .for_each(|rail| fake.set_speed(rail, Some(200)));
    fake.set("rdma3", Some("no carrier"));
    let shown = pools.sort(look(&["rdma0"]));
    let states: Vec<(&str, Option<&str>)> = shown[0]
        .1
        .iter()
        .map(|r| (r.name.as_str(), r.unhealthy.as_deref()))
        .collect();
    let shared = "a.example/x and a.example/y share the rail rdma0";
    assert_eq!(
        states,
        [
            ("rdma0", Some(shared)),
            ("rdma2", None),
            ("rdma3", Some("no carrier"))
        ]
    );
    assert!(
        shown[1].1.iter().all(|r| r.name.as_str() > "rdma5"),
        "{shown:?}"
    );
    fake.set_speed("rdma0", Some(400));
    assert_eq!(pools.sort(look(&["rdma0"]))[0].1[0].unhealthy, None);
}

/// The same number on all nodes: by the config file alone, never by the order in which a node has
/// its rails.
#[test]
fn number_of_a_rail_is_by_name_or_subnet() {
    let numbers = |text: &str| {
        let rails = Fake::default().look().unwrap();
        let shown = Pools::parse(text).unwrap().sort(rails);
        let rails = shown.into_iter().flat_map(|(_, rails)| rails);
        rails.map(|r| r.facts.number).collect::<Vec<_>>()
    };
    assert_eq!(numbers(""), [None; 8]);
    let some = numbers("rail_order = ['192.0.1.4/32', 'rdma2', 'rdma9', '192.0.0.0/31']");
    let expected = [Some(3), Some(3), Some(1), None, Some(0), None, None, None];
    assert_eq!(some, expected);
}
