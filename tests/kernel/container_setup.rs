//! What a container gets besides its NICs: what is left of a plan for it, what its config.json
//! says, and what a hook does when nothing can be put into it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::alone;
use crate::mounted_container::{Container as Mounted, ROOTFS, image};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{Guid, IfName};
use rdma_model::snapshot::{CharDevice, Snapshot};
use rdma_model::tree::Tree;
use rdmaprep::attach::check_on_host;
use rdmaprep::cli::{Global, SelectArgs};
use rdmaprep::config::host::{Config, Host as Policy};
use rdmaprep::config::options::SelectOptions;
use rdmaprep::config::request::Request;
use rdmaprep::container::budget::Budget;
use rdmaprep::container::userspace::container_notes;
use rdmaprep::nccl_env::Options;
use rdmaprep::oci::bundle::Bundle;
use rdmaprep::oci::config::Config as ConfigJson;
use rdmaprep::oci::edit::{self, NoMounts};
use rdmaprep::plan::Plan;
use rdmaprep::select::select;
use rdmaprep::view::{self, Keep};
use serde_json::{Value, json};
use testkit::{Container, Host};

/// A plan for both NICs of the example's host.
fn plan() -> (Plan, Snapshot) {
    let snapshot: Snapshot =
        serde_json::from_str(include_str!("../../examples/snapshot.json")).unwrap();
    let policy = Policy::new(&Global::default(), &Config::default());
    let request = Request::new(
        None,
        &SelectArgs::default(),
        policy,
        SelectOptions::default(),
        |_| None,
    )
    .unwrap();
    let selection = select(&request, &snapshot, &[]).unwrap();
    (
        Plan::new(
            "default",
            &request,
            &snapshot,
            &selection,
            &Options::default(),
        ),
        snapshot,
    )
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.devices.iter().map(|d| d.name.as_str()).collect()
}

#[test]
fn fewer_hcas_than_the_namespace_has_are_noted() {
    let (plan, _) = plan();
    let ib = vec!["ib7".parse().unwrap(), "ib8".parse().unwrap()];
    let given = Plan { ib, ..plan };
    let all = |_: &_| false;
    let left = given
        .clone()
        .narrowed(all, all, |hca| *hca == given.ib[0], None);
    assert_eq!((left.nics.len(), left.ib.len()), (given.nics.len(), 1));
    assert!(left.fewer_note(&given).is_some());
    assert_eq!(given.fewer_note(&given), None);
}

#[test]
fn what_an_annotation_takes_away_is_taken_from_all_of_the_plan() {
    let (mut plan, snapshot) = plan();
    plan.view = Some("0123456789abcdef".into());
    assert_eq!(names(&plan), ["uverbs0", "uverbs1", "rdma_cm"]);
    let same = plan
        .clone()
        .narrowed(|_| false, |_| false, |_| false, Some(&snapshot));
    assert_eq!(same, plan);
    let one = plan.clone().narrowed(
        |_| false,
        |n| n.as_str() == "rdma0",
        |_| false,
        Some(&snapshot),
    );
    assert_eq!(one.nics.len(), 1);
    assert_eq!(
        names(&one),
        ["uverbs1", "rdma_cm"],
        "the node of a NIC that stays on the host is not for the container"
    );
    let hca = one.env.iter().find(|v| v.name == "NCCL_IB_HCA").unwrap();
    assert_eq!(hca.value, "=rxe1");
    assert_eq!(one.view, None, "the stored view shows both");
    let none = plan.narrowed(|_| false, |_| true, |_| true, Some(&snapshot));
    assert_eq!((names(&none), none.env.len()), (vec![], 0));
}

#[test]
fn driver_that_was_reloaded_is_refused_on_the_hosts_network() {
    let (plan, snapshot) = plan();
    let plan = plan.on_host(Some(&snapshot));
    check_on_host(&plan, &snapshot).unwrap();
    let refused = |change: &dyn Fn(&mut Snapshot)| {
        let mut host = snapshot.clone();
        change(&mut host);
        let e = check_on_host(&plan, &host).unwrap_err();
        assert_eq!(ErrorClass::of(&e), ErrorClass::Refused);
        format!("{e:#}")
    };
    let hca = |host: &Snapshot, name: &str| {
        let mut all = host.hcas.iter();
        all.position(|h| h.name.as_str() == name).unwrap()
    };
    let said = refused(&|host| {
        let (a, b) = (hca(host, "rxe0"), hca(host, "rxe1"));
        let node = host.hcas[a].uverbs.take();
        host.hcas[a].uverbs = std::mem::replace(&mut host.hcas[b].uverbs, node);
    });
    assert!(said.contains("rxe0 has another device node now"), "{said}");
    let said = refused(&|host| host.hcas.clear());
    assert!(said.contains("the HCA of rdma0 has gone"), "{said}");
    let said = refused(&|host| host.netdevs.retain(|dev| dev.name.as_str() != "rdma0"));
    assert!(said.contains("rdma0 is not on the host"), "{said}");
    let said = refused(&|host| {
        let mut devs = host.netdevs.iter_mut();
        let dev = devs.find(|dev| dev.name.as_str() == "rdma0").unwrap();
        dev.addresses.clear();
    });
    assert!(said.contains("rdma0 has no 192.0.2.1/24 now"), "{said}");
    let said = refused(&|host| {
        let at = hca(host, "rxe1");
        host.hcas[at].driver = Some("mlx5_core".to_owned());
        host.hcas[at].node_guid = Some(Guid(7));
    });
    assert!(said.contains("rxe1 is another HCA now"), "{said}");
    let said = refused(&|host| host.boot_id = "another".to_owned());
    assert!(said.contains("before the last boot"), "{said}");
}

#[test]
fn node_of_before_a_reload_of_the_driver_is_not_kept() {
    let (mut plan, mut snapshot) = plan();
    let node = |n: u32| CharDevice {
        name: format!("uverbs{n}"),
        major: 231,
        minor: 192 + n,
    };
    plan.ib = vec!["ib7".parse().unwrap()];
    plan.devices.push(node(7));
    let mut hca = snapshot.hcas[0].clone();
    (hca.name, hca.uverbs) = (plan.ib[0].clone(), Some(node(9)));
    snapshot.hcas.push(hca);
    let is_rdma0 = |n: &IfName| n.as_str() == "rdma0";
    let one = plan.narrowed(|_| false, is_rdma0, |_| false, Some(&snapshot));
    assert_eq!(names(&one), ["uverbs1", "uverbs9", "rdma_cm"]);
}

#[test]
fn on_the_hosts_network_soft_roce_keeps_its_nodes() {
    let (plan, mut snapshot) = plan();
    for hca in &mut snapshot.hcas {
        hca.uverbs.as_mut().unwrap().minor += 40;
    }
    let moved = plan.devices.clone();
    let plan = plan.on_host(Some(&snapshot));
    let minors: Vec<u32> = plan.devices[..2].iter().map(|d| d.minor).collect();
    let own: Vec<u32> = moved[..2].iter().map(|d| d.minor + 40).collect();
    assert_eq!((minors, plan.arp), (own, None));
    assert!(Keep::for_plan(&plan).verbs.is_empty() && !plan.moves());
    let one = plan.narrowed(
        |_| false,
        |n| n.as_str() == "rdma0",
        |_| false,
        Some(&snapshot),
    );
    assert_eq!(one.devices[0].minor, moved[1].minor + 40);
}

#[test]
fn a_view_for_other_hcas_is_not_taken_for_the_right_one() {
    let (plan, _) = plan();
    let keep = Keep::for_plan(&plan);
    let link = |name: &str| {
        (
            format!("class/infiniband/{name}"),
            rdma_model::tree::Node::Link("x".into()),
        )
    };
    let view = |names: &[&str]| names.iter().map(|n| link(n)).collect::<Tree>();
    assert!(view::shows(&Tree::default(), &keep), "nothing is hidden");
    assert!(view::shows(&view(&["rxe0", "rxe1"]), &keep));
    for wrong in [&["rxe0"][..], &["rxe0", "rxe1", "rxe2"], &["rxe0", "rxe2"]] {
        assert!(!view::shows(&view(wrong), &keep), "{wrong:?}");
    }
}

fn config() -> Value {
    json!({
        "ociVersion": "1.1.0",
        "root": {"path": "/", "readonly": true},
        "process": {"env": ["NCCL_DEBUG=WARN", "HOME=/root"]},
        "mounts": [{"destination": "/sys", "type": "sysfs", "source": "sysfs"}],
        "linux": {"namespaces": [{"type": "network"}, {"type": "mount"}]},
    })
}

#[test]
fn nothing_is_mounted_where_the_host_would_see_it() {
    let why = |edit: &dyn Fn(&mut Value)| {
        let mut config = config();
        edit(&mut config);
        edit::no_mounts(&config.to_string()).unwrap()
    };
    assert_eq!(why(&|_| {}), None);
    assert_eq!(why(&|c| c["mounts"] = json!([])), Some(NoMounts::NoSysfs));
    assert_eq!(
        why(&|c| c["mounts"][0] =
            json!({"destination": "/sys", "type": "tmpfs", "source": "tmpfs"})),
        Some(NoMounts::NoSysfs)
    );
    let bind = |options: Value| {
        json!({"destination": "/sys/", "type": "bind", "source": "/sys",
            "options": options})
    };
    assert_eq!(
        why(&|c| c["mounts"][0] = bind(json!(["rbind", "ro"]))),
        None
    );
    assert_eq!(
        why(&|c| c["mounts"][0] = bind(json!(["rbind", "rshared"]))),
        Some(NoMounts::Shared)
    );
    assert_eq!(
        why(&|c| c["linux"]["rootfsPropagation"] = json!("shared")),
        Some(NoMounts::Shared)
    );
    assert_eq!(
        why(&|c| c["linux"]["mountLabel"] = json!("system_u:object_r:container_file_t:s0")),
        Some(NoMounts::Labelled)
    );
}

#[test]
fn a_bundle_tells_what_its_container_has() {
    let mut config = config();
    config["linux"]["devices"] = json!([
        {"path": "/dev/infiniband/uverbs0", "type": "c", "major": 231, "minor": 192},
        {"path": "/dev/other", "type": "c", "major": 231, "minor": 193},
        {"path": "/dev/infiniband/rdma_cm", "type": "b", "major": 10, "minor": 260},
    ]);
    let (plan, _) = plan();
    let parse = |config: &Value| {
        let config = ConfigJson::parse(&config.to_string()).unwrap();
        Bundle::new(&config, Path::new("/b"), 7, "/run/rdmaprep/views").unwrap()
    };
    let bundle = parse(&config);
    let lacking: Vec<String> = bundle
        .lacking(&plan.devices)
        .into_iter()
        .map(|d| d.name)
        .collect();
    assert_eq!(
        lacking,
        ["uverbs1", "rdma_cm"],
        "another path, another type"
    );
    assert_eq!(
        (bundle.container.rootfs.as_path(), bundle.container.readonly),
        (Path::new("/"), true)
    );
    assert_eq!(bundle.view, None);
    config["root"] = json!({"path": "rootfs"});
    config["mounts"] = json!([
        {"destination": "/sys/class/infiniband",
            "source": "/run/rdmaprep/views/0123456789abcdef/class/infiniband"},
        {"destination": "/etc", "source": "/x", "options": ["rbind", "ro"]},
    ]);
    let bundle = parse(&config);
    assert_eq!(bundle.view.as_deref(), Some("0123456789abcdef"));
    assert_eq!(
        (bundle.container.rootfs.as_path(), bundle.container.readonly),
        (Path::new("/b/rootfs"), true)
    );
    assert!(bundle.container.hosts_readonly);
    // Docker binds an /etc/hosts that may be written to below a root that may not, and otherwise.
    for (root, options, readonly) in [
        (true, json!(["rbind"]), false),
        (false, json!(["rbind", "ro"]), true),
    ] {
        config["root"]["readonly"] = json!(root);
        config["mounts"] = json!([{"destination": "/etc/hosts", "options": options}]);
        let container = parse(&config).container;
        assert_eq!(
            (container.readonly, container.hosts_readonly),
            (root, readonly)
        );
    }
    for bad in ["", "{}", "[]", "{\"root\": 7}"] {
        let parsed = ConfigJson::parse(bad).and_then(|c| Bundle::new(&c, Path::new("/b"), 7, "/v"));
        assert!(parsed.is_err(), "{bad}");
    }
}

/// The containers here have the mount namespace of the test: as good as one that a hook cannot
/// enter.
#[test]
fn settings_that_cannot_be_given_are_in_a_profile() {
    alone(|host| {
        host.rails(1);
        host.rdmaprep(&["prepare", "--ifaces", "r0", "--debug-all"])
            .ok();
        let before = host.look();
        let mut c = Container::new("c").bundled(host, &config());
        c.create(host).ok();
        let report = host.report("c");
        assert!(
            report["settings"].as_str().unwrap().contains("source it"),
            "{report}"
        );
        assert!(
            report["sysfs"].as_str().unwrap().starts_with("off: "),
            "{report}"
        );
        let profiles = || {
            fs::read_dir(host.run.join("profiles"))
                .unwrap()
                .map(|e| e.unwrap().path())
                .collect::<Vec<_>>()
        };
        let text = fs::read_to_string(&profiles()[0]).unwrap();
        assert!(text.contains("export NCCL_DEBUG_SUBSYS='"), "{text}");
        assert!(
            !text.contains("NCCL_DEBUG="),
            "the container's own value wins: {text}"
        );
        // The report of a second container in the same namespace says the same.
        let mut d = Container::beside("d", &c).bundled(host, &config());
        d.create(host).ok();
        assert_eq!(host.report("d")["settings"], report["settings"]);
        d.stop(host).ok();
        c.stop(host).ok();
        assert_eq!(profiles().len(), 0);
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn container_without_what_it_insists_on_does_not_start() {
    alone(|host| {
        host.rails(1);
        for (mode, edit, code, word) in [
            ("live", "", 3, "no mount namespace of its own"),
            ("snapshot", "", 3, "no mount namespace of its own"),
            ("auto", "broken", 5, "config.json"),
            ("auto", "foreign view", 3, "prepare the bundle again"),
        ] {
            host.rdmaprep(&["prepare", "--ifaces", "r0", "--sysfs", mode])
                .ok();
            let before = host.look();
            let mut config = config();
            match edit {
                "broken" => config = json!({"root": 7}),
                "foreign view" => {
                    let source = format!("{}/views/0123456789abcdef", host.run.display());
                    config["mounts"] = json!([{"destination": "/sys", "source": source}]);
                }
                _ => {}
            }
            let c = Container::new("c").bundled(host, &config);
            c.create(host).fails(code, &[word]);
            host.is_as(&before);
            host.is_clean();
        }
        let c = Container::new("none");
        host.rdmaprep(&["prepare", "--ifaces", "r0", "--sysfs", "live"])
            .ok();
        c.create(host).fails(3, &["no config.json"]);
        host.is_clean();
    });
}

/// Nothing of it is written on the host but below the run folder.
#[test]
fn a_dry_run_writes_nothing() {
    alone(|host: &Host| {
        host.rails(1);
        let before = fs::read_dir(&host.run).map_or(0, Iterator::count);
        host.rdmaprep(&[
            "prepare",
            "--ifaces",
            "r0",
            "--sysfs",
            "snapshot",
            "--dry-run",
        ])
        .ok();
        assert_eq!(fs::read_dir(&host.run).map_or(0, Iterator::count), before);
    });
}

/// The namespace decides over which interface NCCL bootstraps: what is printed for `podman exec` is
/// what the container was given, less what it sets itself.
#[test]
fn env_prints_what_a_container_on_a_bridge_has() {
    alone(|host| {
        host.rails(1);
        host.rdmaprep(&["prepare", "--ifaces", "r0", "--debug-all"])
            .ok();
        let mut c = Container::new("c").bundled(host, &config());
        let pid = c.pid().to_string();
        host.ip(&format!(
            "link add up9 type veth peer name eth0 netns {pid}\nlink set up9 up"
        ));
        for command in [
            "address add 198.51.100.9/24 dev eth0",
            "link set eth0 up",
            "route add default via 198.51.100.1 dev eth0",
        ] {
            c.sh(&format!("ip {command}"));
        }
        c.create(host).ok();
        let env = |more: &[&str]| host.rdmaprep(&[&["env", "--format", "docker"], more].concat());
        let given = env(&["--container", "c"]).ok().out;
        assert!(given.contains("NCCL_SOCKET_IFNAME==eth0\n"), "{given}");
        assert!(given.contains("GLOO_SOCKET_IFNAME=eth0\n"), "{given}");
        assert!(
            !given.contains("NCCL_DEBUG="),
            "its own value wins: {given}"
        );
        // Of no container in particular nothing is guessed.
        let said = env(&[]).ok();
        assert!(!said.out.contains("SOCKET_IFNAME"), "{}", said.out);
        env(&["--container", "d"]).fails(2, &["has no NICs by a plan"]);
        c.stop(host).ok();
    });
}

/// These containers' files cannot be changed here: the hook says so, where the line was asked for.
#[test]
fn container_is_named_in_its_hosts_if_that_is_asked_for() {
    alone(|host| {
        host.rails(1);
        let named = json!({"hostname": "trainer"});
        let frozen = "the container has no mount namespace of its own";
        let asked = &["--hosts-entry"][..];
        for (flags, own, setting, why) in [
            (asked, &named, "A=1", Some(frozen)),
            (
                asked,
                &json!({}),
                "A=1",
                Some("config.json has no hostname"),
            ),
            (
                asked,
                &json!({"hostname": "train er"}),
                "A=1",
                Some("the hostname in config.json is no host name"),
            ),
            (
                asked,
                &named,
                "NCCL_SOCKET_IFNAME==eth7",
                Some("NCCL's bootstrap has no address that peers reach"),
            ),
            (&[], &named, "A=1", None),
        ] {
            let prepare = ["prepare", "--ifaces", "r0"];
            host.rdmaprep(&[&prepare, flags].concat()).ok();
            let mut config = config();
            config
                .as_object_mut()
                .unwrap()
                .extend(own.as_object().unwrap().clone());
            config["process"]["env"] = json!([setting]);
            let mut c = Container::new("c").bundled(host, &config);
            c.sh("ip link add eth0 type veth peer name peer; ip link set peer up");
            c.sh("ip link set eth0 up");
            c.sh("ip address add 198.51.100.9/24 dev eth0; ip route add default dev eth0");
            c.create(host).ok();
            let notes = host.report("c")["notes"].to_string();
            let line = format!("no line in /etc/hosts: {}", why.unwrap_or_default());
            assert_eq!(notes.contains(&line), why.is_some(), "{own}: {notes}");
            c.stop(host).ok();
        }
    });
}

/// The loader is in a file system that only the container's mount namespace has.
#[test]
fn an_image_is_looked_at_in_its_own_namespace() {
    let loader = match cfg!(target_arch = "aarch64") {
        true => "lib/ld-linux-aarch64.so.1",
        false => "lib64/ld-linux-x86-64.so.2",
    };
    alone(|_| {
        image();
        let folder = loader.split('/').next().unwrap();
        let lines = format!(
            "mkdir {folder}; mount -t tmpfs tmpfs {folder}
            head -c 4096 /bin/mount >{loader}; echo ID=debian >etc/os-release"
        );
        // On a machine however busy.
        const PATIENT: Duration = Duration::from_secs(3600);
        let drivers = [("mlx5_0".parse().unwrap(), "mlx5_core".to_owned())];
        for start in [Mounted::new, Mounted::apart] {
            let container = start(&lines);
            assert!(!Path::new(ROOTFS).join(loader).exists());
            let root = container.root();
            let look = || {
                container_notes(
                    &root,
                    &BTreeMap::new(),
                    None,
                    &drivers,
                    &Budget::of(PATIENT),
                )
            };
            let notes = std::thread::scope(|scope| scope.spawn(look).join().unwrap());
            let lack = "the loader of the image finds no libibverbs.so.1: install libibverbs1 and \
                ibverbs-providers in the image";
            assert_eq!(notes, [lack]);
            let gone = rdmaprep::oci::bundle::ContainerRoot { pid: 0, ..root };
            let look = || {
                container_notes(
                    &gone,
                    &BTreeMap::new(),
                    None,
                    &drivers,
                    &Budget::of(PATIENT),
                )
            };
            let notes = std::thread::scope(|scope| scope.spawn(look).join().unwrap());
            assert!(
                notes[0].starts_with("the libraries of the image are unknown"),
                "{notes:?}"
            );
            drop(container);
            fs::remove_dir(Path::new(ROOTFS).join(folder)).unwrap();
        }
    });
}
