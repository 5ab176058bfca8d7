//! `rdmaprep` as a CNI plugin: calls as CNI runtimes make them, by variables and stdin, on the real
//! kernel.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::alone;
use crate::claims::{self, A, B};
use crate::records::full_run_folder;
use serde_json::{Value, json};
use testkit::{Container, Host, Look, Said, run, sh, until};

const CAPABILITY: &str = "io.kubernetes.cri.pod-annotations";

/// A host with a plan for r0 and r1, and how it is.
fn ready(host: &Host) -> Look {
    let rails = host.rails(2);
    let before = host.look();
    host.prepare(&rails);
    before
}

/// A pod's network namespace, which its runtime keeps by a path; no process is in it.
struct Pod {
    id: String,
    ifname: String,
    netns: Option<PathBuf>,
    /// As Kubernetes' runtimes say it.
    uid: Option<String>,
}

impl Pod {
    fn new(id: &str) -> Pod {
        sh(&format!("ip netns add cni-{id}"));
        Pod {
            id: id.to_owned(),
            ifname: "eth0".to_owned(),
            netns: Some(format!("/run/netns/cni-{id}").into()),
            uid: None,
        }
    }

    /// The call of a runtime that does not know the namespace.
    fn without_netns(&self) -> Pod {
        Pod {
            id: self.id.clone(),
            ifname: self.ifname.clone(),
            netns: None,
            uid: self.uid.clone(),
        }
    }

    fn command(&self, host: &Host, command: &str) -> Command {
        let mut program = host.command(&["cni"]);
        program
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", &self.id)
            .env("CNI_IFNAME", &self.ifname);
        program.envs(self.netns.iter().map(|path| ("CNI_NETNS", path)));
        let args = self.uid.iter().map(|uid| {
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=jobs;K8S_POD_NAME=pod;K8S_POD_UID={uid}")
        });
        program.envs(args.map(|args| ("CNI_ARGS", args)));
        program
    }

    fn call(&self, host: &Host, command: &str, config: &Value) -> Said {
        run(&mut self.command(host, command), &config.to_string())
    }

    fn add(&self, host: &Host, config: &Value) -> Value {
        serde_json::from_str(&self.call(host, "ADD", config).ok().out).unwrap()
    }

    fn sh(&self, line: &str) -> String {
        sh(&format!("ip netns exec cni-{} sh -ec '{line}'", self.id))
    }

    /// What a runtime does behind DEL.
    fn remove(&self) {
        sh(&format!("ip netns delete cni-{}", self.id));
    }
}

/// The configuration of a network that gives each pod the plan `default`.
fn config() -> Value {
    json!({"cniVersion": "1.1.0", "name": "rails", "type": "rdmaprep", "plan": "default"})
}

fn with(config: Value, more: Value) -> Value {
    let (mut config, more) = (config, more);
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    config
}

/// The configuration of a network whose pods ask by annotation.
fn annotated(annotations: Value) -> Value {
    let config = with(
        config(),
        json!({"runtimeConfig": {CAPABILITY: annotations}}),
    );
    with(config, json!({"plan": null}))
}

/// Insists on an error as CNI has it, on stdout, and in one line on stderr.
fn refused(said: Said, exit: i32, code: u32, words: &str) {
    let answer: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    assert_eq!(answer["code"], code, "{answer}");
    assert!(
        answer["msg"].as_str().unwrap().contains(words),
        "no {words:?} in {answer}"
    );
    assert!(
        answer["cniVersion"].is_string() && answer["details"].is_string(),
        "{answer}"
    );
    said.fails(exit, &[words]);
}

fn is_on_host(dev: &str) -> bool {
    sh("ip -br link").contains(&format!("{dev}@"))
}

#[test]
fn attachment_lives_as_long_as_its_namespace() {
    alone(|host| {
        let before = ready(host);
        let pod = Pod::new("one");
        let result = pod.add(host, &config());
        let mac = pod.sh(
            "cat /sys/class/net/r0/address 2>/dev/null || ip -o link show r0 | \
                sed \"s/.*ether //; s/ .*//\"",
        );
        let interface = &result["interfaces"][0];
        assert_eq!(
            (&interface["name"], &interface["sandbox"]),
            (&json!("r0"), &json!("/run/netns/cni-one"))
        );
        assert_eq!(
            (interface["mac"].as_str(), &interface["mtu"]),
            (Some(mac.trim()), &json!(1500))
        );
        let ips = json!([{"address": "10.0.0.1/24", "interface": 0},
            {"address": "10.1.0.1/24", "interface": 1}]);
        assert_eq!(
            (&result["ips"], &result["cniVersion"]),
            (&ips, &json!("1.1.0"))
        );
        let inside = pod.sh("ip -o -4 address");
        assert!(
            inside.contains("10.0.0.1/24") && inside.contains("10.1.0.1/24"),
            "{inside}"
        );

        // The plugin has ended, and no process is inside: the namespace at that path is what
        // counts.
        let status = host.status();
        assert_eq!(status[0]["members"], json!([["one", true]]));
        assert_eq!(
            status[0]["cni"][0],
            json!({"network": "rails", "ifname": "eth0", "netns": "/run/netns/cni-one"})
        );
        assert_eq!(host.rdmaprep(&["restore", "--all", "--stale"]).ok().out, "");
        let said = host.rdmaprep(&["status"]).ok().out;
        assert!(
            said.contains("held by     one\n") && said.contains("network rails, interface eth0"),
            "{said}"
        );
        assert_eq!(pod.call(host, "CHECK", &config()).ok().out, "");
        host.rdmaprep(&["doctor", "--container", "one"])
            .fails(2, &["has its NICs by CNI"]);

        // A runtime may call it again, and gets the same.
        assert_eq!(pod.add(host, &config()), result);
        assert_eq!(host.status()[0]["members"], json!([["one", true]]));

        pod.call(host, "DEL", &config()).ok();
        host.is_as(&before);
        host.is_clean();
        for again in [&pod, &pod.without_netns()] {
            assert_eq!(again.call(host, "DEL", &config()).ok().out, "");
        }
        pod.remove();
        pod.call(host, "DEL", &config()).ok();
        host.is_as(&before);
    });
}

/// A runtime in a mount namespace of its own: here, the path is an empty file.
#[test]
fn attachment_lives_where_its_mount_is_not_seen() {
    alone(|host| {
        let before = ready(host);
        let pod = Pod::new("one");
        pod.add(host, &config());
        sh("umount /run/netns/cni-one");
        assert_eq!(host.status()[0]["members"], json!([["one", true]]));
        assert_eq!(host.rdmaprep(&["restore", "--all", "--stale"]).ok().out, "");
        assert!(!is_on_host("r0"));
        sh("rm /run/netns/cni-one");
        assert!(
            host.rdmaprep(&["restore", "--all", "--stale"])
                .ok()
                .out
                .contains("container one:")
        );
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn del_without_a_namespace_restores_nics() {
    alone(|host| {
        let before = ready(host);
        let pod = Pod::new("one");
        pod.add(host, &config());
        pod.remove();
        assert!(!is_on_host("r0"), "the pin keeps the namespace");
        assert_eq!(host.status()[0]["members"], json!([["one", false]]));
        pod.without_netns().call(host, "DEL", &config()).ok();
        host.is_as(&before);
        host.is_clean();

        // Without DEL it is the timer, as soon as the namespace has gone.
        let pod = Pod::new("two");
        pod.add(host, &config());
        assert_eq!(host.rdmaprep(&["restore", "--all", "--stale"]).ok().out, "");
        pod.remove();
        assert!(
            host.rdmaprep(&["restore", "--all", "--stale"])
                .ok()
                .out
                .contains("container two:")
        );
        host.is_as(&before);
        host.is_clean();
    });
}

/// A namespace of the same path that is another one, and what is none.
#[test]
fn path_of_another_namespace_keeps_no_nics() {
    alone(|host| {
        let before = ready(host);
        let pod = Pod::new("one");
        pod.add(host, &config());
        pod.remove();
        sh("ip netns add cni-one");
        assert_eq!(host.status()[0]["members"], json!([["one", false]]));
        refused(
            pod.call(host, "CHECK", &config()),
            5,
            105,
            "the NICs are in another namespace",
        );
        // The pod's second sandbox gets them.
        pod.add(host, &config());
        assert_eq!(host.status()[0]["members"], json!([["one", true]]));
        pod.call(host, "DEL", &config()).ok();
        host.is_as(&before);
        host.is_clean();
        pod.remove();
        refused(
            pod.call(host, "ADD", &config()),
            5,
            4,
            "CNI_NETNS: opening network namespace /run/netns/cni-one",
        );
        for (path, why) in [
            ("/proc/self/ns/net", "the host's own network namespace"),
            ("/etc/passwd", "no namespace file"),
            ("/proc/self/ns/mnt", "is no network namespace"),
        ] {
            let pod = Pod {
                netns: Some(path.into()),
                ..pod.without_netns()
            };
            refused(pod.call(host, "ADD", &config()), 5, 4, why);
        }
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn nic_of_another_pod_is_refused_by_name() {
    alone(|host| {
        let before = ready(host);
        let (one, two) = (Pod::new("one"), Pod::new("two"));
        one.add(host, &config());
        refused(
            two.call(host, "ADD", &config()),
            9,
            11,
            "r0 is held by container one",
        );
        // What is refused is not attached, and its DEL takes nothing from the other.
        refused(
            two.call(host, "CHECK", &config()),
            5,
            105,
            "container two has no NIC of network rails",
        );
        two.call(host, "DEL", &config()).ok();
        assert_eq!(host.status()[0]["members"], json!([["one", true]]));
        one.call(host, "DEL", &config()).ok();
        two.add(host, &config());
        two.call(host, "DEL", &config()).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn result_of_earlier_plugins_is_passed_on() {
    alone(|host| {
        let before = ready(host);
        let pod = Pod::new("one");
        let earlier = json!({"cniVersion": "0.4.0",
            "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/run/netns/cni-one"}],
            "ips": [{"version": "4", "address": "198.51.100.2/24", "interface": 1}],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dns": {"nameservers": ["198.51.100.1"]}, "later": [1]});
        let config = with(
            config(),
            json!({"cniVersion": "0.4.0", "prevResult": earlier}),
        );
        let result = pod.add(host, &config);
        for key in ["routes", "dns", "later", "cniVersion"] {
            assert_eq!(result[key], earlier[key], "{key}");
        }
        let names: Vec<&str> = result["interfaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["br0", "eth0", "r0", "r1"]);
        let ip = json!({"version": "4", "address": "10.1.0.1/24", "interface": 3});
        assert_eq!(
            (&result["ips"][0], &result["ips"][2]),
            (&earlier["ips"][0], &ip)
        );
        pod.call(host, "DEL", &config).ok();
        // One that cannot be passed on: nothing moves.
        for (bad, why) in [
            (json!([]), "is no object"),
            (json!({"ips": 1}), "has `ips` that is no list"),
        ] {
            refused(
                pod.call(
                    host,
                    "ADD",
                    &with(config.clone(), json!({"prevResult": bad})),
                ),
                2,
                6,
                why,
            );
        }
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn annotations_narrow_and_never_widen() {
    alone(|host| {
        let before = ready(host);
        let pod = Pod::new("one");
        let passed = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}], "ips": []});
        let chained =
            |annotations: Value| with(annotated(annotations), json!({"prevResult": passed}));
        // A pod that does not ask: as if the plugin were not there, also to CHECK.
        for none in [json!({}), json!(null), json!({"other.io/plan": "x"})] {
            assert_eq!(pod.add(host, &chained(none.clone())), passed);
            pod.call(host, "CHECK", &chained(none)).ok();
        }
        // It asks for one of the plan's NICs.
        let one = json!({"rdmaprep.io/plan": "default", "rdmaprep.io/ifaces": "r1 r9"});
        let result = pod.add(host, &chained(one.clone()));
        assert_eq!(
            (&result["interfaces"][1]["name"], &result["interfaces"][2]),
            (&json!("r1"), &json!(null))
        );
        assert!(is_on_host("r0"));
        pod.call(host, "CHECK", &chained(one.clone())).ok();
        pod.call(host, "DEL", &chained(one)).ok();

        let plan = |text: &str| json!({"rdmaprep.io/plan": text});
        for (annotations, exit, code, why) in [
            (
                plan("../default"),
                5,
                105,
                "annotation \"rdmaprep.io/plan\"",
            ),
            (plan("other"), 3, 103, "plan other is not stored"),
            (
                json!({"rdmaprep.io/ifaces": "r0"}),
                5,
                105,
                "none names a plan",
            ),
            (
                json!({"rdmaprep.io/plan": "default", "rdmaprep.io/exclude": "["}),
                5,
                105,
                "rdmaprep.io/exclude",
            ),
            (
                json!({"rdmaprep.io/plan": "default", "rdmaprep.io/ifaces": "eth9"}),
                4,
                104,
                "leave no NIC",
            ),
            (
                json!({"rdmaprep.io/plan": "default", "rdmaprep.io/mtu": "1"}),
                5,
                105,
                "is unknown",
            ),
            (json!({"rdmaprep.io/plan": 7}), 2, 6, "invalid type"),
            (json!("rdmaprep.io/plan=default"), 2, 6, "invalid type"),
        ] {
            refused(
                pod.call(host, "ADD", &chained(annotations)),
                exit,
                code,
                why,
            );
        }
        host.configure("select.ifaces = [\"r0\"]");
        let result = pod.add(host, &chained(plan("auto")));
        assert_eq!(
            (&result["interfaces"][1]["name"], &result["interfaces"][2]),
            (&json!("r0"), &json!(null))
        );
        pod.call(host, "DEL", &chained(plan("auto"))).ok();
        host.configure("");
        // The network's plan is the host's word.
        let config = with(chained(plan("other")), json!({"plan": "default"}));
        refused(
            pod.call(host, "ADD", &config),
            3,
            103,
            "the host gave it plan default",
        );
        host.configure("annotations = [\"ifaces\"]");
        refused(
            pod.call(host, "ADD", &chained(plan("default"))),
            3,
            103,
            "is not among `annotations`",
        );
        host.configure("deny = [\"r0\"]");
        assert_eq!(
            pod.add(host, &self::config())["interfaces"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
        pod.call(host, "DEL", &self::config()).ok();
        // A config file that cannot be read stops those that ask, and no others.
        host.configure("nonsense = 1");
        assert_eq!(pod.add(host, &chained(json!({}))), passed);
        refused(
            pod.call(host, "ADD", &chained(plan("default"))),
            2,
            102,
            "nonsense",
        );
        host.is_as(&before);
        host.is_clean();
    });
}

/// An ADD that is killed with NICs on their way.
fn kill_add(host: &Host, pod: &Pod) {
    let name = format!("cni-{}", pod.id);
    let mut inside = Command::new("ip")
        .args(["netns", "exec", &name, "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let links = format!("/proc/{}/net/dev", inside.id());
    let host_links = fs::read_to_string("/proc/net/dev").unwrap();
    until("it is inside", || {
        fs::read_to_string(&links)
            .is_ok_and(|text| text.lines().count() != host_links.lines().count())
    });
    let mut add = pod
        .command(host, "ADD")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    serde_json::to_writer(add.stdin.take().unwrap(), &config()).unwrap();
    while !fs::read_to_string(&links).unwrap().contains("r0:") {
        assert!(add.try_wait().unwrap().is_none(), "ADD ended");
        std::hint::spin_loop();
    }
    add.kill().unwrap();
    add.wait().unwrap();
    inside.kill().unwrap();
    inside.wait().unwrap();
}

#[test]
fn killed_add_is_undone_by_del_hook_and_timer() {
    alone(|host| {
        let rails = host.rails(8);
        host.prepare(&rails);
        let before = host.look();
        let undo = |name: &str, pod: &Pod| match name {
            "del" => drop(pod.without_netns().call(host, "DEL", &config()).ok()),
            "hook" => {
                let mut c = Container::new("c");
                c.create(host).ok();
                c.stop(host).ok();
            }
            _ => drop(host.rdmaprep(&["restore", "--all", "--stale"]).ok()),
        };
        for name in ["del", "hook", "timer"] {
            let pod = Pod::new(name);
            // It may have been through already.
            let in_the_middle = (0..20).any(|_| {
                kill_add(host, &pod);
                let middle = fs::read_to_string(&host.records()[0])
                    .unwrap()
                    .contains("\"phase\":\"attaching\"");
                if !middle {
                    pod.call(host, "DEL", &config()).ok();
                }
                middle
            });
            assert!(in_the_middle, "no ADD was killed in the middle");
            assert_eq!(
                host.status()[0]["members"],
                json!([[name, false]]),
                "the namespace is no sign of life yet"
            );
            undo(name, &pod);
            host.is_as(&before);
            host.is_clean();
            pod.remove();
        }
    });
}

#[test]
fn gc_restores_what_the_runtime_forgot() {
    alone(|host| {
        let all = host.rails(4);
        let before = host.look();
        for i in 0..3 {
            host.rdmaprep(&[
                "prepare",
                "--plan",
                &format!("p{i}"),
                "--ifaces",
                &format!("r{i}"),
            ])
            .ok();
        }
        host.rdmaprep(&[
            "prepare",
            "--plan",
            "p3",
            "--ifaces",
            all.split(',').next_back().unwrap(),
        ])
        .ok();
        let network = |name: &str, plan: &str| with(config(), json!({"name": name, "plan": plan}));
        let pods = ["a", "b", "other"].map(Pod::new);
        pods[0].add(host, &network("rails", "p0"));
        pods[1].add(host, &network("rails", "p1"));
        pods[2].add(host, &network("others", "p2"));
        let mut container = Container::new("c").annotated(json!({"rdmaprep.io/plan": "p3"}));
        container.create(host).ok();
        let gc = |valid: Value| {
            let config = with(network("rails", "p0"), valid);
            run(
                host.command(&["cni"]).env("CNI_COMMAND", "GC"),
                &config.to_string(),
            )
        };
        refused(gc(json!({})), 2, 7, "lacks cni.dev/valid-attachments");
        gc(
            json!({"cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"},
                {"containerID": "b", "ifname": "net1"}]}),
        )
        .ok();
        // b has another interface; the rest is valid, of another network, or no attachment.
        assert_eq!(
            ["r0", "r1", "r2", "r3"].map(is_on_host),
            [false, true, false, false]
        );
        gc(json!({"cni.dev/valid-attachments": []})).ok();
        assert_eq!(
            ["r0", "r1", "r2", "r3"].map(is_on_host),
            [true, true, false, false]
        );
        pods[2].call(host, "DEL", &network("others", "p2")).ok();
        container.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// Of which no id can be read, so that the last report says whether it may be the container's.
#[test]
fn damaged_record_is_no_matter_once_nics_are_back() {
    alone(|host| {
        let before = ready(host);
        let pod = Pod::new("one");
        let none_valid = with(config(), json!({"cni.dev/valid-attachments": []}));
        for (command, config) in [("DEL", config()), ("GC", none_valid)] {
            pod.add(host, &self::config());
            let path = host.records().remove(0);
            let text = fs::read(&path).unwrap();
            fs::write(&path, &text[..text.len() / 1000]).unwrap();
            for _ in 0..2 {
                let said = pod.call(host, "DEL", &self::config()).ok();
                assert!(said.err.contains("the record is damaged"), "{said:?}");
            }
            fs::write(&path, &text).unwrap();
            pod.call(host, command, &config).ok();
            host.is_as(&before);
            assert_eq!(host.report("one")["command"], format!("cni {command}"));
            fs::write(&path, "{").unwrap();
            let said = pod.call(host, "DEL", &self::config()).ok();
            assert_eq!(said.err, "");
            fs::remove_file(&path).unwrap();
        }
        host.is_clean();
    });
}

#[test]
fn check_reports_what_a_container_changed() {
    alone(|host| {
        ready(host);
        let pod = Pod::new("one");
        pod.add(host, &config());
        // The pod's own sysctls, which its runtime writes after the ADD.
        pod.sh("echo 2 > /proc/sys/net/ipv4/conf/all/rp_filter");
        pod.call(host, "CHECK", &config()).ok();
        let notes = host.report("one")["notes"].to_string();
        assert!(notes.contains("effective ipv4/conf/rp_filter"), "{notes}");
        pod.sh("ip address delete 10.1.0.1/24 dev r1");
        refused(pod.call(host, "CHECK", &config()), 6, 106, "10.1.0.1/24");
        pod.call(host, "DEL", &config()).ok();
        host.is_clean();
    });
}

#[test]
fn status_and_version_answer_without_a_pod() {
    alone(|host| {
        let before = ready(host);
        let call = |command: &str, config: Value| {
            run(
                host.command(&["cni"]).env("CNI_COMMAND", command),
                &config.to_string(),
            )
        };
        assert_eq!(call("STATUS", config()).ok().out, "");
        assert_eq!(call("STATUS", annotated(json!({}))).ok().out, "");
        refused(
            call("STATUS", with(config(), json!({"plan": "gone"}))),
            3,
            50,
            "plan gone is not stored",
        );
        assert_eq!(
            call("STATUS", with(config(), json!({"plan": "auto"})))
                .ok()
                .out,
            ""
        );
        host.configure("nonsense = 1");
        refused(call("STATUS", config()), 2, 50, "nonsense");
        host.configure("");
        let versions = json!(["0.3.1", "0.4.0", "1.0.0", "1.1.0"]);
        let said: Value =
            serde_json::from_str(&call("VERSION", json!({"cniVersion": "0.4.0"})).ok().out)
                .unwrap();
        assert_eq!(
            said,
            json!({"cniVersion": "0.4.0", "supportedVersions": versions})
        );
        // As a runtime calls it: by its name, without arguments.
        let bare = |variables: &[(&str, &str)]| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"));
            run(
                program.env_clear().envs(variables.iter().copied()),
                &config().to_string(),
            )
        };
        let version = bare(&[("CNI_COMMAND", "VERSION")]).ok().out;
        let version: Value = serde_json::from_str(&version).unwrap();
        assert_eq!(version["cniVersion"], "1.1.0");
        let help = bare(&[]);
        assert!(help.code == Some(2) && help.out.is_empty(), "{help:?}");
        host.is_as(&before);
        host.is_clean();
    });
}

/// A container of the pod that has hooks, as the runtime class and CDI make them, shares what CNI
/// brought.
#[test]
fn containers_of_the_pod_join_its_attachment() {
    alone(|host| {
        let before = ready(host);
        let pod = Pod::new("one");
        pod.add(host, &config());
        // The sandbox has the id by which CNI knows the pod.
        let mut sandbox = Container::joining("one", "/run/netns/cni-one");
        sandbox.create(host).ok();
        assert_eq!(
            host.status()[0]["members"],
            json!([["one", true], ["one", true]])
        );
        sandbox.stop(host).ok();
        assert_eq!(host.status()[0]["members"], json!([["one", true]]));
        assert!(!is_on_host("r0"));
        // A second network with the same plan is the same NICs, which return with the last.
        let second = Pod {
            ifname: "net1".to_owned(),
            ..Pod {
                netns: pod.netns.clone(),
                ..pod.without_netns()
            }
        };
        assert_eq!(
            second.add(host, &with(config(), json!({"name": "more"})))["interfaces"][0]["name"],
            "r0"
        );
        pod.call(host, "DEL", &config()).ok();
        assert!(!is_on_host("r0"));
        second
            .call(host, "DEL", &with(config(), json!({"name": "more"})))
            .ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// A full run folder: the answer and the report name it, and nothing has moved.
#[test]
fn add_and_hold_in_a_full_run_folder_name_it() {
    alone(|host| {
        host.rails(1);
        host.prepare("r0");
        let run = full_run_folder(host);
        let before = host.look();
        let pod = Pod::new("one");
        let words = format!("{run} has 0 of 64 KiB");
        refused(pod.call(host, "ADD", &config()), 1, 101, &words);
        let status = host.rdmaprep(&["status"]).ok().out;
        assert!(status.contains(&words), "{status}");
        let held = host.rdmaprep(&["hold", "--plan", "default"]);
        held.fails(1, &[&words]);
        host.is_as(&before);
        fs::remove_file(host.run.join("fill")).unwrap();
        pod.add(host, &config());
        pod.call(host, "DEL", &config()).ok();
        host.is_as(&before);
    });
}

/// The kubelet's order: Prepare, ADD, containers, DEL, Unprepare.
#[test]
fn claims_rails_are_in_the_pod_before_its_containers() {
    alone(|host| {
        let before = ready(host);
        let network = json!({"cniVersion": "1.1.0", "name": "rails", "type": "rdmaprep",
            "claims": true});
        let pod = |id: &str, name: &str| Pod {
            uid: Some(claims::pod_uid(name)),
            ..Pod::new(id)
        };
        claims::bind(host, A, "pod", &["r1"]);
        claims::bind(host, B, "another", &["r0"]);
        // A pod without a claim, or by a network that gives none, has nothing.
        let none = pod("none", "none of these");
        assert!(none.add(host, &network).get("interfaces").is_none());
        let one = pod("one", "pod");
        let chained = with(
            network.clone(),
            json!({"runtimeConfig": {CAPABILITY: null}}),
        );
        let said = one.add(host, &with(chained.clone(), json!({"claims": false})));
        assert!(said.get("interfaces").is_none(), "{said}");
        let said = one.add(host, &chained);
        let names: Vec<&Value> = said["interfaces"].as_array().unwrap().iter().collect();
        assert_eq!(
            (names.len(), &names[0]["name"]),
            (1, &json!("r1")),
            "{said}"
        );
        one.call(host, "CHECK", &chained).ok();
        let link = || one.sh("ip -o link show r1");
        let moved = link();
        // Containers have what their requests name, and move nothing.
        let container = || Container::joining("c", "/run/netns/cni-one");
        let mut job = claims::asks(host, container(), &[("r1", A)]);
        job.create(host).ok();
        let mut foreign = claims::asks(host, container(), &[("r0", B)]);
        foreign.create(host).fails(9, &["is pod another's"]);
        foreign.container.kill();
        job.container.stop(host).ok();
        assert_eq!(link(), moved);
        // The sandbox is made again: they are in the new one before its containers are.
        one.call(host, "DEL", &chained).ok();
        one.remove();
        claims::timer(host);
        assert!(!is_on_host("r1"), "the claim keeps it");
        let again = pod("again", "pod");
        again.add(host, &chained);
        assert!(again.sh("ip -o link show r1").contains("r1@"));
        claims::end(host, A);
        again.call(host, "DEL", &chained).ok();
        again.remove();
        claims::timer(host);
        fs::remove_dir_all(host.run.join("claims")).unwrap();
        host.is_as(&before);
        host.is_clean();
    });
}

/// Which rails are taken is not known then. A pod that has no claim starts.
#[test]
fn claim_that_cannot_be_read_keeps_no_other_pod_from_starting() {
    alone(|host| {
        let before = ready(host);
        claims::bind(host, A, "pod", &["r1"]);
        fs::write(host.run.join(format!("claims/{A}.json")), "{}").unwrap();
        let network = json!({"cniVersion": "1.1.0", "name": "rails", "type": "rdmaprep",
            "claims": true});
        let pod = Pod {
            uid: Some(claims::pod_uid("pod")),
            ..Pod::new("one")
        };
        let said = pod.call(host, "ADD", &network).ok();
        assert!(said.err.contains("claims release"), "{said:?}");
        refused(pod.call(host, "STATUS", &network), 1, 50, "claims release");
        fs::remove_dir_all(host.run.join("claims")).unwrap();
        host.is_as(&before);
    });
}

/// As ADD would fail: others could change what is in them.
#[test]
fn status_fails_for_folders_that_add_refuses() {
    alone(|host| {
        let before = ready(host);
        let pod = Pod::new("one");
        for folder in ["", "records", "reports", "netns", "plans"] {
            let path = host.run.join(folder);
            fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
            for command in ["ADD", "STATUS"] {
                let said = pod.call(host, command, &config());
                assert!(said.code != Some(0), "{command} with {folder:?}: {said:?}");
                assert!(said.err.contains("can be written by others"), "{said:?}");
            }
            fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        }
        pod.call(host, "STATUS", &config()).ok();
        host.is_as(&before);
        host.is_clean();
    });
}
