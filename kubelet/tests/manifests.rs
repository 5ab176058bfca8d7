//! The manifests for claims in `hooks/kubernetes` say what the program does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use rdmaprep::store::claims::CDI_FOLDER;
use rdmaprep_kubelet::dra::session::KUBELET_DIR;
use rdmaprep_kubelet::dra::{DRIVER, slice};
use rdmaprep_kubelet::rail::{Facts, Rail};
use yaml_rust2::{Yaml, YamlLoader};

fn read(name: &str) -> Vec<Yaml> {
    let path = format!("{}/../hooks/kubernetes/{name}", env!("CARGO_MANIFEST_DIR"));
    YamlLoader::load_from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn of_kind<'y>(all: &'y [Yaml], kind: &str) -> &'y Yaml {
    all.iter()
        .find(|y| y["kind"].as_str() == Some(kind))
        .unwrap()
}

fn texts(list: &Yaml) -> Vec<&str> {
    list.as_vec()
        .unwrap()
        .iter()
        .filter_map(Yaml::as_str)
        .collect()
}

/// The calls of `api_server.rs`, and no more.
#[test]
fn permissions_are_the_calls_that_are_made() {
    let all = read("dra.yaml");
    let rules = of_kind(&all, "ClusterRole")["rules"].as_vec().unwrap();
    let named: Vec<&Yaml> = rules
        .iter()
        .map(|rule| &rule["resourceNames"])
        .filter(|names| !names.is_badvalue())
        .collect();
    assert_eq!(named.len(), 1);
    assert_eq!(texts(named[0]), [DRIVER]);
    let rules: Vec<(Vec<&str>, Vec<&str>)> = rules
        .iter()
        .map(|rule| (texts(&rule["resources"]), texts(&rule["verbs"])))
        .collect();
    let expected = [
        (vec!["resourceclaims"], vec!["get"]),
        (vec!["resourceclaims/status"], vec!["patch"]),
        (vec!["resourceclaims/driver"], vec!["associated-node:patch"]),
        (
            vec!["resourceslices"],
            vec!["list", "watch", "create", "update", "delete"],
        ),
        (vec!["nodes"], vec!["get"]),
        (vec!["events"], vec!["create"]),
    ];
    assert_eq!(rules, expected);
    let account = of_kind(&all, "ServiceAccount")["metadata"]["name"]
        .as_str()
        .unwrap();
    let user = format!("system:serviceaccount:kube-system:{account}");
    let policy = read("dra-policy.yaml");
    let condition = &of_kind(&policy, "ValidatingAdmissionPolicy")["spec"]["matchConditions"][0];
    assert!(condition["expression"].as_str().unwrap().contains(&user));
}

#[test]
fn daemon_has_the_folders_that_it_uses() {
    let all = read("dra.yaml");
    let spec = &of_kind(&all, "DaemonSet")["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    let mounts: Vec<&str> = container["volumeMounts"]
        .as_vec()
        .unwrap()
        .iter()
        .map(|m| m["mountPath"].as_str().unwrap())
        .collect();
    let (plugins, registry) = (
        format!("{KUBELET_DIR}/plugins"),
        format!("{KUBELET_DIR}/plugins_registry"),
    );
    for folder in [
        plugins.as_str(),
        &registry,
        CDI_FOLDER,
        "/etc/cdi",
        "/run/rdmaprep",
        "/etc/rdmaprep",
    ] {
        assert!(mounts.contains(&folder), "{folder}");
    }
    assert_eq!(container["env"][0]["name"].as_str(), Some("NODE_NAME"));
    let program = container["command"][0].as_str().unwrap();
    assert_eq!(program.rsplit('/').next(), Some("rdmaprep-dra"));
}

/// What the folder has, in the kustomization's order. `UPDATE_GOLDEN=1` writes the one file.
#[test]
fn one_file_is_the_kustomization() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../hooks/kubernetes");
    let resources = read("install/kustomization.yaml");
    let names = texts(&resources[0]["resources"]);
    let mut there: Vec<String> = std::fs::read_dir(format!("{folder}/install"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "kustomization.yaml")
        .collect();
    there.sort();
    let mut named = names.clone();
    named.sort();
    assert_eq!(there, named);
    let parts: Vec<String> = names
        .iter()
        .map(|name| std::fs::read_to_string(format!("{folder}/install/{name}")).unwrap())
        .collect();
    let head = "# What the folder install has, as one file: a test compares them.\n";
    let whole = format!("{head}{}", parts.join("---\n"));
    let path = format!("{folder}/install.yaml");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &whole).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), whole);
}

/// As dra.yaml has the driver, and as the programs are called.
#[test]
fn the_installation_runs_the_driver_of_the_example() {
    let (all, example) = (read("install.yaml"), read("dra.yaml"));
    let rules = |all: &[Yaml]| of_kind(all, "ClusterRole")["rules"].clone();
    assert_eq!(rules(&all), rules(&example));
    let account = of_kind(&all, "ServiceAccount")["metadata"].clone();
    let (name, space) = (&account["name"], &account["namespace"]);
    let user = format!(
        "system:serviceaccount:{}:{}",
        space.as_str().unwrap(),
        name.as_str().unwrap()
    );
    let policy = of_kind(&all, "ValidatingAdmissionPolicy");
    let condition = &policy["spec"]["matchConditions"][0]["expression"];
    assert!(condition.as_str().unwrap().contains(&user));
    let subject = &of_kind(&all, "ClusterRoleBinding")["subjects"][0];
    assert_eq!((&subject["name"], &subject["namespace"]), (name, space));
    let spec_of = |all: &[Yaml]| of_kind(all, "DaemonSet")["spec"]["template"]["spec"].clone();
    let (spec, other) = (spec_of(&all), spec_of(&example));
    assert_eq!(&spec["serviceAccountName"], name);
    assert_eq!(spec["nodeSelector"], other["nodeSelector"]);
    for key in ["command", "env", "securityContext", "volumeMounts"] {
        assert_eq!(
            spec["containers"][0][key], other["containers"][0][key],
            "{key}"
        );
    }
    let volumes = spec["volumes"].as_vec().unwrap();
    assert_eq!(&volumes[1..], other["volumes"].as_vec().unwrap());
    assert_eq!(volumes[0]["configMap"]["name"].as_str(), Some("rdmaprep"));
    let image = format!("localhost/rdmaprep:{}", env!("CARGO_PKG_VERSION"));
    let removal = spec_of(&read("remove.yaml"));
    for spec in [&spec, &removal] {
        assert_eq!(spec["hostPID"].as_bool(), Some(true));
        assert_eq!(spec["nodeSelector"], other["nodeSelector"]);
        for container in ["initContainers", "containers"].map(|of| &spec[of][0]) {
            assert_eq!(container["image"].as_str(), Some(&*image));
            let words = texts(&container["command"]);
            let Some(action) = words.get(1) else { continue };
            let read = Command::new(env!("CARGO_BIN_EXE_rdmaprep-node"))
                .args([*action, "--help"])
                .output()
                .unwrap();
            assert!(read.status.success(), "{words:?}");
        }
    }
}

/// They are files of /etc/rdmaprep that can be read.
#[test]
fn the_config_of_the_installation_is_read() {
    let all = read("install.yaml");
    let data = &of_kind(&all, "ConfigMap")["data"];
    let config = data["config.toml"].as_str().unwrap();
    let config = rdmaprep::config::file::ConfigFile::new(config).config();
    assert_eq!(config.unwrap().plans[0].name.as_str(), "default");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device-plugin.toml");
    std::fs::write(&path, data["device-plugin.toml"].as_str().unwrap()).unwrap();
    rdmaprep_kubelet::pools::Pools::read(Some(&path)).unwrap();
}

#[test]
fn pods_claim_what_nodes_offer() {
    let all = read("dra.yaml");
    let class = of_kind(&all, "DeviceClass");
    let selector = class["spec"]["selectors"][0]["cel"]["expression"]
        .as_str()
        .unwrap();
    assert_eq!(selector, format!("device.driver == \"{DRIVER}\""));
    let shown = vec![(
        String::new(),
        vec![Rail {
            name: "rdma0".to_owned(),
            facts: Facts::default(),
            ..Rail::default()
        }],
    )];
    let spec = slice::spec("node", &slice::devices(&shown).0, &Default::default(), true);
    let offered = spec["devices"][0]["attributes"].as_object().unwrap();
    for (file, count) in [("pod-claim.yaml", 1), ("jobset-claim.yaml", 2)] {
        let pod = read(file);
        let template = of_kind(&pod, "ResourceClaimTemplate");
        let devices = &template["spec"]["spec"]["devices"];
        let requests = devices["requests"].as_vec().unwrap();
        let names: Vec<&str> = requests.iter().filter_map(|r| r["name"].as_str()).collect();
        let mut ours = 0;
        for request in requests.iter().map(|request| &request["exactly"]) {
            if request["deviceClassName"] != class["metadata"]["name"] {
                continue;
            }
            ours += 1;
            let cel = request["selectors"][0]["cel"]["expression"]
                .as_str()
                .unwrap();
            let name = cel.split("\"].").nth(1).unwrap();
            let name = name.split(' ').next().unwrap();
            assert!(offered.contains_key(&format!("{DRIVER}/{name}")), "{cel}");
        }
        assert_eq!(ours, count, "{file}");
        let constraints = devices["constraints"].as_vec().unwrap();
        assert_eq!(constraints.len(), count, "{file}");
        for constraint in constraints {
            let matched = constraint["matchAttribute"].as_str().unwrap();
            assert!(offered.contains_key(matched), "{matched}");
            let mut its = texts(&constraint["requests"]).into_iter();
            assert!(its.all(|name| names.contains(&name)), "{file}");
        }
    }
}

/// docs/kubernetes.md lists each attribute.
#[test]
fn attributes_are_documented() {
    let docs = format!("{}/../docs/kubernetes.md", env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_to_string(docs).unwrap();
    let golden = format!("{}/tests/dra/slice.json", env!("CARGO_MANIFEST_DIR"));
    let golden = std::fs::read_to_string(golden).unwrap();
    let spec: serde_json::Value = serde_json::from_str(&golden).unwrap();
    for name in spec["devices"][0]["attributes"].as_object().unwrap().keys() {
        let own = name.rsplit('/').next().unwrap();
        assert!(docs.contains(&format!("{own}`")), "{name}");
    }
    assert!(docs.contains(slice::TAINT));
}

#[test]
fn help_is_within_100_columns_and_errors_are_one_line() {
    let run = |args: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rdmaprep-dra"));
        let done = program.env_clear().args(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code(), text(done.stdout), text(done.stderr))
    };
    let (code, help, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(help.contains("rail_order") && help.lines().all(|l| l.chars().count() <= 100));
    let none = "/dev/null/none";
    for args in [
        vec![],
        vec!["--api-server", "http://192.0.2.1", "--run-dir", none],
        vec!["--api-server", "https://192.0.2.1", "--ca-file", none],
        vec!["--check", "--cdi", none],
    ] {
        let (code, out, said) = run(&args);
        assert_eq!(
            (code, out.as_str(), said.lines().count()),
            (Some(2), "", 1),
            "{args:?}: {said}"
        );
    }
}
