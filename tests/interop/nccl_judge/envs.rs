//! Environments: every rule of the grammar, alone and mixed with others, in every place that NCCL
//! reads.

use proptest::prelude::*;
use proptest::sample::select;

use super::worlds::{Link, Lo, State, World, some_beginning, some_name};
use testkit::nccl_case::{CONF, Env, FILES, HOME};

const IFNAME: &str = "NCCL_SOCKET_IFNAME";
const FAMILY: &str = "NCCL_SOCKET_FAMILY";
const ID: &str = "NCCL_COMM_ID";

/// Any environment for a world; where `automatic`, mostly without a list.
pub fn any(world: &World, automatic: bool) -> BoxedStrategy<Env> {
    let list = ifname(world).boxed();
    let none = prop_oneof![3 => Just(None),
        1 => select(vec!["", "e", "^", "="]).prop_map(|v| Some(v.to_owned()))];
    let ifname = match automatic {
        true => none.boxed(),
        false => prop_oneof![1 => none, 6 => list.clone().prop_map(Some)].boxed(),
    };
    let family = prop_oneof![
        16 => Just(None),
        2 => Just(Some("AF_INET")),
        2 => Just(Some("AF_INET6")),
        1 => select(vec!["", "AF_INET4", "af_inet6", "AF_INET6 "]).prop_map(Some),
    ];
    let id = prop_oneof![if automatic { 12 } else { 3 } => Just(None),
        1 => comm_id(world).prop_map(Some)];
    (ifname, family, id, files(list), prop::bool::weighted(0.25))
        .prop_map(|(ifname, family, id, files, in_files)| {
            let mut env = Env::default();
            if let Some((conf, home, texts)) = files {
                env.vars
                    .extend(home.then(|| ("HOME".to_owned(), HOME.to_owned())));
                env.vars
                    .extend(conf.map(|conf| ("NCCL_CONF_FILE".to_owned(), conf)));
                env.files = texts;
            }
            // What a file has must not always be hidden by the environment.
            let ifname = ifname.filter(|_| env.files.is_empty() || in_files);
            env.vars.extend(ifname.map(|v| (IFNAME.to_owned(), v)));
            env.vars
                .extend(family.map(|v| (FAMILY.to_owned(), v.to_owned())));
            env.vars.extend(id.map(|v| (ID.to_owned(), v)));
            env
        })
        .boxed()
}

fn ifname(world: &World) -> impl Strategy<Value = String> + use<> {
    let suffix = prop_oneof![
        8 => Just(""),
        1 => select(vec![":1", ":", ":-1", ":x"]),
        1 => select(vec!["::1", ":1:2", ":1:2:3", ":1:2:3:4"]),
    ];
    let entry = prop_oneof![
        16 => (some_name(world), suffix).prop_map(|(name, suffix)| name + suffix),
        1 => some_name(world).prop_map(|name| format!(" {name}")),
        1 => some_name(world).prop_map(|name| format!("{name} ")),
        1 => Just(String::new()),
        1 => some_name(world).prop_map(|name| format!(":{name}")),
        1 => some_name(world).prop_map(|name| format!("{name}{}", "x".repeat(63))),
    ];
    let marks = prop_oneof![6 => Just(""), 6 => Just("="), 4 => Just("^"), 3 => Just("^="),
        2 => select(vec!["=^", "==", "^^"])];
    // Names that nothing has, so that the next ones are the last that fit, or the first that do
    // not.
    let fill =
        prop_oneof![7 => Just(0), 1 => Just(14), 1 => Just(15), 1 => Just(16), 1 => Just(17)];
    let list =
        (marks, fill, prop::collection::vec(entry, 1..=3)).prop_map(|(marks, fill, entries)| {
            let fill = (0..fill).map(|i| format!("x{i}"));
            format!(
                "{marks}{}",
                fill.chain(entries).collect::<Vec<_>>().join(",")
            )
        });
    prop_oneof![17 => list, 2 => some_beginning(world), 1 => Just("^=".to_owned()),
        2 => select(vec![",", "=,", ":1", "^,"]).prop_map(str::to_owned)]
}

fn comm_id(world: &World) -> impl Strategy<Value = String> + use<> {
    let n = 1..=4usize;
    prop_oneof![
        3 => (n.clone(), select(vec![":29500", "", ":x", ",10.1.0.9:1"]))
            .prop_map(|(n, port)| format!("10.{n}.0.9{port}")),
        2 => n.clone().prop_map(|n| format!("[2001:db8:{n}::9]:29500")),
        2 => select(vec!["10.99.7.9:1", "10.98.0.1:1", "[2001:db8:99::9]:1", "10.2.1.9:1"])
            .prop_map(str::to_owned),
        3 => some_name(world).prop_map(|name| format!("[fe80::9%{name}]:29500")),
        2 => select(vec!["head:29500", "head6:29500", "head", "localhost:1", "unknown:1"])
            .prop_map(str::to_owned),
        2 => select(vec!["", "x", ":1", ",", "[::1", "2001:db8::1"]).prop_map(str::to_owned),
        2 => select(vec!["198.51.100.1:1", "[2001:db8:77::1]:1", "[fe80::9]:1", "127.0.0.1:1",
            "[::1]:1", "10.3"])
            .prop_map(str::to_owned),
    ]
}

type Files = Option<(
    Option<String>,
    bool,
    std::collections::BTreeMap<String, String>,
)>;

/// What NCCL_CONF_FILE is, whether there is $HOME, and the files.
fn files(list: impl Strategy<Value = String> + Clone + 'static) -> impl Strategy<Value = Files> {
    let line = prop_oneof![
        8 => list.clone().prop_map(|v| format!("{IFNAME}={v}")),
        1 => list.clone().prop_map(|v| format!("#{IFNAME}={v}")),
        1 => list.clone().prop_map(|v| format!(" {IFNAME}={v}")),
        1 => list.clone().prop_map(|v| format!("{IFNAME}=\"{v}\"")),
        1 => list.clone().prop_map(|v| format!("{IFNAME} = {v}")),
        1 => Just("not a line".to_owned()),
        1 => Just(format!("{FAMILY}=AF_INET6")),
        1 => Just(format!("{IFNAME}=")),
        1 => Just(format!("{ID}=10.1.0.9:1")),
    ];
    let end = prop_oneof![5 => Just("\n"), 1 => Just("\r\n")];
    let text = (prop::collection::vec(line, 0..=3), end, prop::bool::ANY)
        .prop_map(|(lines, end, last)| lines.join(end) + if last { end } else { "" });
    let each = prop::option::weighted(0.6, text);
    let conf = prop_oneof![
        3 => Just(None),
        3 => Just(Some(CONF.to_owned())),
        1 => Just(Some(String::new())),
        1 => Just(Some("/run/judge/none".to_owned())),
    ];
    let texts = [each.clone(), each.clone(), each.clone(), each];
    let all = (conf, prop::bool::weighted(0.8), texts).prop_map(|(conf, home, texts)| {
        let files = FILES
            .iter()
            .zip(texts)
            .filter_map(|(path, text)| Some((path.to_string(), text?)));
        (conf, home, files.collect())
    });
    prop::option::weighted(0.4, all)
}

/// The classic failures, each in a world of its own.
pub fn classics() -> Vec<(&'static str, World, Env)> {
    let link = |name, state, address: &str| Link {
        name,
        state,
        addresses: vec![(address.to_owned(), None)],
    };
    let up = |name, address: &str| link(name, State::Up, address);
    let world = |links| World { lo: Lo::Up, links };
    let env = |vars: &[(&str, &str)]| Env {
        vars: vars
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        ..Env::default()
    };
    let two = || {
        world(vec![
            up("docker0", "172.17.0.1/16"),
            up("eth0", "192.0.2.1/24"),
        ])
    };
    let seventeen = (0..16).map(|i| format!("x{i},")).collect::<String>() + "eth0";
    let mut by_file = env(&[]);
    by_file.files.insert(
        "/etc/nccl.conf".to_owned(),
        "NCCL_SOCKET_IFNAME==docker0\r\n".to_owned(),
    );
    let mut labelled = up("eth0", "2001:db8::1/64");
    labelled
        .addresses
        .push(("192.0.2.1/24".to_owned(), Some("eth0:1".to_owned())));
    vec![
        (
            "prefix",
            world(vec![up("eth10", "10.10.0.1/24"), up("eth1", "10.1.0.1/24")]),
            env(&[(IFNAME, "eth1")]),
        ),
        (
            "exact",
            world(vec![up("eth10", "10.10.0.1/24"), up("eth1", "10.1.0.1/24")]),
            env(&[(IFNAME, "=eth1")]),
        ),
        (
            "exclude-docker-takes-lo",
            two(),
            env(&[(IFNAME, "^docker")]),
        ),
        ("missing", two(), env(&[(IFNAME, "=eth1")])),
        (
            "no-carrier",
            world(vec![link("rdma0", State::NoCarrier, "10.0.0.1/24")]),
            env(&[(IFNAME, "=rdma0")]),
        ),
        ("seventeen", two(), env(&[(IFNAME, &seventeen)])),
        ("blank", two(), env(&[(IFNAME, "docker1, eth0")])),
        ("mark-out-of-order", two(), env(&[(IFNAME, "=^docker")])),
        (
            "ib-comes-first",
            world(vec![up("eth0", "192.0.2.1/24"), up("ib0", "10.0.0.1/24")]),
            env(&[]),
        ),
        ("label", world(vec![labelled]), env(&[(IFNAME, "=eth0")])),
        ("crlf", two(), by_file),
        (
            "id-beats-list",
            two(),
            env(&[(ID, "172.17.9.9:29500"), (IFNAME, "=eth0")]),
        ),
        ("empty-id", two(), env(&[(ID, "")])),
        (
            "ipv4-anywhere-first",
            world(vec![
                up("eth0", "2001:db8::1/64"),
                up("eth1", "10.1.0.1/24"),
            ]),
            env(&[]),
        ),
    ]
}
