//! The manifests of `hooks/kubernetes` name what the program supports: the handler that `install`
//! writes, annotations that are read, devices that `cdi generate` writes, commands that exist.

use rdma_model::values::PlanName;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use rdmaprep::cdi::{ALL, KIND};
use rdmaprep::cli::{Cli, Global, SelectArgs};
use rdmaprep::cni::{ANNOTATIONS, Call};
use rdmaprep::config::host::{Config, Host};
use rdmaprep::config::request::{ANNOTATION, Request};
use serde_json::{Value, json};
use tempfile::TempDir;
use yaml_rust2::{Yaml, YamlLoader};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hooks/kubernetes");

/// Every document of every manifest, with its file's name.
fn manifests() -> Vec<(String, Yaml)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(FOLDER).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "yaml") {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let documents = YamlLoader::load_from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            all.extend(
                documents
                    .into_iter()
                    .map(|document| (name.clone(), document)),
            );
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn text(yaml: &Yaml) -> &str {
    yaml.as_str().unwrap_or_else(|| panic!("no text: {yaml:?}"))
}

/// What makes a pod of a manifest: its own metadata and spec, or those of its template.
fn pod(document: &Yaml) -> Option<&Yaml> {
    match text(&document["kind"]) {
        "Pod" => Some(document),
        "Job" => Some(&document["spec"]["template"]),
        _ => None,
    }
}

fn annotations(pod: &Yaml) -> BTreeMap<String, String> {
    let all = &pod["metadata"]["annotations"];
    // A pod that claims its rails, or has them counted, has none.
    let is_counted = !pod["spec"]["containers"][0]["resources"]["limits"].is_badvalue();
    let is_claim = is_counted || pod["spec"]["resourceClaims"].as_vec().is_some();
    assert!(
        is_claim || !all.is_badvalue(),
        "a pod of the example asks by annotation"
    );
    all.as_hash()
        .into_iter()
        .flatten()
        .map(|(key, value)| (text(key).to_owned(), text(value).to_owned()))
        .collect()
}

/// containerd's drop-in as `install` writes it.
fn drop_in() -> toml::Table {
    let root = TempDir::new().unwrap();
    fs::create_dir_all(root.path().join("etc/containerd")).unwrap();
    let program = Command::new(env!("CARGO_BIN_EXE_rdmaprep"))
        .env_clear()
        .args([
            "install",
            "--containerd",
            "--program",
            "/usr/bin/rdmaprep",
            "--root",
        ])
        .arg(root.path())
        .output()
        .unwrap();
    assert!(program.status.success(), "{program:?}");
    fs::read_to_string(root.path().join("etc/containerd/config.toml"))
        .unwrap()
        .parse()
        .unwrap()
}

fn names(table: &toml::Value) -> Vec<&String> {
    table.as_table().unwrap().keys().collect()
}

#[test]
fn the_class_names_the_runtime_that_install_writes() {
    let all = manifests();
    let class = all
        .iter()
        .find(|(_, d)| text(&d["kind"]) == "RuntimeClass")
        .map(|(_, d)| d)
        .unwrap();
    let handler = text(&class["handler"]);

    let containerd = drop_in();
    let runtimes = &containerd["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"];
    let ours = runtimes
        .get(handler)
        .unwrap_or_else(|| panic!("handler {handler} is none of {:?}", names(runtimes)));
    let passed: Vec<&str> = ours["pod_annotations"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|a| a.as_str())
        .collect();
    assert_eq!(passed, [format!("{ANNOTATION}*")]);

    let crio: toml::Table = fs::read_to_string(format!("{FOLDER}/crio.conf"))
        .unwrap()
        .parse()
        .unwrap();
    let runtimes = &crio["crio"]["runtime"]["runtimes"];
    assert_eq!(names(runtimes), [handler]);
    assert_eq!(
        runtimes[handler]["runtime_path"],
        ours["options"]["BinaryName"]
    );

    let selected = class["scheduling"]["nodeSelector"].as_hash().unwrap();
    let label = selected
        .iter()
        .map(|(key, value)| format!("{}={}", text(key), text(value)))
        .next()
        .unwrap();
    assert!(
        readme().contains(&format!("kubectl label node NODE {label}")),
        "{label}"
    );
    let named: Vec<&str> = all
        .iter()
        .filter_map(|(_, d)| pod(d)?["spec"]["runtimeClassName"].as_str())
        .collect();
    assert_eq!(
        named,
        [text(&class["metadata"]["name"]); 3],
        "pod.yaml, job.yaml and network-attachment.yaml"
    );
}

#[test]
fn pods_ask_as_they_are_heard() {
    let host = Host::new(&Global::default(), &Config::default());
    let nothing = Request::new(
        None,
        &SelectArgs::default(),
        host,
        Config::default().select,
        |_| None,
    )
    .unwrap();
    let (mut plans, mut devices) = (Vec::new(), Vec::new());
    for (file, document) in manifests() {
        let Some(pod) = pod(&document) else { continue };
        let asked = annotations(pod);
        // A key that is unknown is an error of the request; one without our prefix would be left
        // out in silence.
        let request = nothing
            .narrow(&asked)
            .unwrap_or_else(|e| panic!("{file}: {e:#}"));
        plans.extend(request.plan_name().map(PlanName::to_string));
        let named: Vec<&str> = pod["spec"]["containers"]
            .as_vec()
            .unwrap()
            .iter()
            .map(|container| text(&container["name"]))
            .collect();
        let networks = asked.get(NETWORKS).into_iter();
        networks.for_each(|name| {
            assert!(
                attachments().iter().any(|(n, _)| n == name),
                "{file}: no network {name}"
            )
        });
        for (key, value) in asked
            .iter()
            .filter(|(key, _)| !key.starts_with(ANNOTATION) && *key != NETWORKS)
        {
            let container = key
                .strip_prefix("cdi-devices.nri.io/container.")
                .unwrap_or_else(|| panic!("{file}: {key}"));
            assert!(
                named.contains(&container),
                "{file}: there is no container {container}"
            );
            let list = YamlLoader::load_from_str(value).unwrap();
            devices.extend(
                list[0]
                    .as_vec()
                    .unwrap()
                    .iter()
                    .map(|device| text(device).to_owned()),
            );
        }
        assert_ne!(
            pod["spec"]["hostNetwork"].as_bool(),
            Some(true),
            "{file}: such a pod is refused"
        );
    }
    assert_eq!(
        plans, ["default"; 3],
        "pod.yaml, job.yaml and network-attachment.yaml"
    );
    assert_eq!(devices, [format!("{KIND}={ALL}")], "pod-cdi.yaml");
}

/// multus's annotation.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// The networks of multus, each with its configuration.
fn attachments() -> Vec<(String, String)> {
    let all = manifests()
        .into_iter()
        .map(|(_, d)| d)
        .filter(|d| text(&d["kind"]) == "NetworkAttachmentDefinition");
    all.map(|d| {
        (
            text(&d["metadata"]["name"]).to_owned(),
            text(&d["spec"]["config"]).to_owned(),
        )
    })
    .collect()
}

/// As a runtime calls the plugin: with the name and the version of the list, and the annotations if
/// their capability is declared.
#[test]
fn networks_are_read_as_the_plugin_is_called() {
    let list: Value =
        serde_json::from_str(&fs::read_to_string(format!("{FOLDER}/pods.conflist")).unwrap())
            .unwrap();
    let chained = list["plugins"].as_array().unwrap().last().unwrap();
    let mut chained = chained.as_object().unwrap().clone();
    let declared = chained.remove("capabilities").unwrap();
    assert_eq!(declared, json!({ANNOTATIONS: true}));
    chained.insert(
        "runtimeConfig".into(),
        json!({ANNOTATIONS: {"rdmaprep.io/plan": "default"}}),
    );
    ["name", "cniVersion"]
        .iter()
        .for_each(|key| drop(chained.insert((*key).into(), list[*key].clone())));
    let call = |config: &str| {
        let pod = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "a"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/n"),
        ];
        let variable = |name: &str| {
            pod.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Call::read(variable, config.as_bytes())
            .unwrap_or_else(|e| panic!("{config}: {e:?}"))
            .network
    };
    let network = call(&Value::from(chained).to_string());
    assert_eq!(network.annotations().unwrap().unwrap().len(), 1);
    let all = attachments();
    assert_eq!(all.len(), 1);
    for (name, config) in all {
        let network = call(&config);
        assert_eq!(
            (network.name, network.plan.as_deref()),
            (name, Some("default"))
        );
        assert!(config.contains("\"type\": \"rdmaprep\""), "{config}");
    }
}

fn jobset(file: &str) -> Yaml {
    let mut all = manifests().into_iter();
    let set = all.find(|(name, d)| name == file && text(&d["kind"]) == "JobSet");
    set.unwrap().1
}

/// Each pod by its claim, which is a template of the same file.
#[test]
fn a_jobset_with_claims_meets_by_its_names() {
    let set = jobset("jobset-claim.yaml");
    let job = &set["spec"]["replicatedJobs"][0];
    let service = text(&set["spec"]["network"]["subdomain"]);
    let (set_name, name) = (text(&set["metadata"]["name"]), text(&job["name"]));
    let job = &job["template"]["spec"];
    let nodes = job["completions"].as_i64().unwrap();
    let spec = &job["template"]["spec"];
    let container = &spec["containers"][0];
    let command = text(&container["command"][2]);
    for word in [
        format!("--master-addr={set_name}-{name}-0-0.{service}"),
        format!("--nnodes={nodes}"),
    ] {
        let mut words = command.split_whitespace();
        assert!(words.any(|w| w == word), "no {word} in {command}");
    }
    let claim = &spec["resourceClaims"][0];
    assert_eq!(container["resources"]["claims"][0]["name"], claim["name"]);
    let template = text(&claim["resourceClaimTemplateName"]);
    let is_it = |(file, d): &(String, Yaml)| {
        file == "jobset-claim.yaml"
            && text(&d["kind"]) == "ResourceClaimTemplate"
            && text(&d["metadata"]["name"]) == template
    };
    assert!(manifests().iter().any(is_it), "no {template}");
}

/// The agreement comes first, on the same nodes, and its command is one.
#[test]
fn a_jobset_agrees_before_it_trains() {
    let set = jobset("jobset.yaml");
    let jobs = set["spec"]["replicatedJobs"].as_vec().unwrap();
    let [rails, train] = &jobs[..] else {
        panic!("{} jobs", jobs.len())
    };
    assert_eq!(text(&train["dependsOn"][0]["name"]), text(&rails["name"]));
    let spec = |job: &Yaml| job["template"]["spec"]["template"]["spec"].clone();
    assert_eq!(spec(rails)["nodeSelector"], spec(train)["nodeSelector"]);
    assert_eq!(
        rails["template"]["spec"]["completions"],
        train["template"]["spec"]["completions"]
    );
    let service = text(&set["spec"]["network"]["subdomain"]);
    for (job, name) in [(rails, "rails"), (train, "train")] {
        let host = format!("{}-{name}-0-0.{service}", text(&set["metadata"]["name"]));
        let spec = spec(job);
        let command = text(&spec["containers"][0]["command"][2]);
        assert!(command.contains(&host), "no {host} in {command}");
    }
    let prepare = spec(rails);
    let command = text(&prepare["containers"][0]["command"][2]);
    let words = command[command.find("rdmaprep ").unwrap()..].split_whitespace();
    Cli::read(words).unwrap_or_else(|e| panic!("{command}: {e}"));
}

#[test]
fn a_job_meets_by_its_services_name() {
    let all = manifests();
    let of = |kind: &str| {
        all.iter()
            .find(|(file, d)| file == "job.yaml" && text(&d["kind"]) == kind)
            .map(|(_, d)| d)
            .unwrap()
    };
    let (service, job, config) = (of("Service"), of("Job"), of("ConfigMap"));
    let name = text(&service["metadata"]["name"]);
    assert_eq!(text(&job["spec"]["template"]["spec"]["subdomain"]), name);
    let job_name = text(&job["metadata"]["name"]);
    assert_eq!(text(&service["spec"]["selector"]["job-name"]), job_name);
    let spec = &job["spec"]["template"]["spec"];
    let command = text(&spec["containers"][0]["command"][2]);
    let nodes = job["spec"]["completions"].as_i64().unwrap();
    for word in [
        format!("--master-addr={job_name}-0.{name}"),
        format!("--nnodes={nodes}"),
    ] {
        assert!(
            command.split_whitespace().any(|w| w == word),
            "no {word} in {command}"
        );
    }
    assert_eq!(job["spec"]["parallelism"].as_i64(), Some(nodes));
    // What it mounts is there.
    let mounted = spec["volumes"]
        .as_vec()
        .unwrap()
        .iter()
        .find_map(|v| v["configMap"]["name"].as_str())
        .unwrap();
    assert_eq!(mounted, text(&config["metadata"]["name"]));
    let (script, _) = config["data"].as_hash().unwrap().iter().next().unwrap();
    assert!(
        command.ends_with(&format!("/{}", text(script))),
        "{command}"
    );
}

fn readme() -> String {
    fs::read_to_string(format!("{FOLDER}/README.md")).unwrap()
}

#[test]
fn the_readme_tells_of_all_files_and_its_commands_are_read() {
    let readme = readme();
    for entry in fs::read_dir(FOLDER).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "README.md" || readme.contains(&format!("| `{name}` |")),
            "{name} is not in README.md"
        );
    }
    let cases = [
        "tests/vm/cases-engines/20-containerd.sh",
        "tests/vm/cases/20-pod.sh",
    ];
    for file in cases {
        assert!(
            readme.contains(file) && Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists(),
            "{file}"
        );
    }
    let mut read = 0;
    let readme = readme.replace("\\\n", "");
    for line in readme.split("```").skip(1).step_by(2).flat_map(str::lines) {
        let line = line.split('#').next().unwrap().trim();
        let Some(at) = line.find("rdmaprep ") else {
            continue;
        };
        let words = line[at..].split_whitespace();
        Cli::read(words).unwrap_or_else(|e| panic!("{line}: {e}"));
        read += 1;
    }
    assert_eq!(read, 4);
}
