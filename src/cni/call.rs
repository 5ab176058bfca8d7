//! A call: its variables and the network configuration. What a configuration has besides is other
//! plugins' or the runtime's.

use rdma_model::escape::is_plain;
use std::collections::BTreeMap;
use std::path::PathBuf;

use rdma_model::error_class::ErrorClass;
use serde::Deserialize;
use serde_json::Value;

use super::{Code, MAX_BYTES, NEWEST, Problem, VERSIONS};

/// The capability by which a runtime hands on the annotations of a pod.
pub const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// The first version with CHECK, and the first with GC and STATUS.
const CHECK: &str = "0.4.0";
const GC: &str = "1.1.0";
/// What a configuration has besides, by the specification and by multus.
const OTHERS: [&str; 5] = ["type", "capabilities", "args", "deviceID", "pciBusID"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

const COMMANDS: [(&str, Command); 6] = [
    ("ADD", Command::Add),
    ("DEL", Command::Del),
    ("CHECK", Command::Check),
    ("GC", Command::Gc),
    ("STATUS", Command::Status),
    ("VERSION", Command::Version),
];

impl Command {
    pub fn name(self) -> &'static str {
        COMMANDS
            .iter()
            .find(|(_, command)| *command == self)
            .map_or("", |(name, _)| name)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub command: Command,
    /// CNI_CONTAINERID; empty for commands about no container, as the next two are.
    pub id: String,
    pub ifname: String,
    /// CNI_NETNS.
    pub netns: Option<PathBuf>,
    /// K8S_POD_UID of CNI_ARGS.
    pub pod: Option<String>,
    pub network: Network,
}

/// The network configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    #[serde(default)]
    pub cni_version: String,
    #[serde(default)]
    pub name: String,
    pub plan: Option<String>,
    /// Whether a pod gets the rails of its claims.
    #[serde(default)]
    pub claims: bool,
    /// Read by ADD and CHECK alone: what is wrong there must not keep a pod from being deleted.
    runtime_config: Option<Value>,
    /// The result of the plugins before this one.
    pub prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid: Option<Vec<ValidAttachment>>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ValidAttachment {
    #[serde(rename = "containerID")]
    pub id: String,
    pub ifname: String,
}

impl Network {
    /// That it has no key of another plugin: a NIC keeps the addresses and the mode that it has on
    /// the host, whatever `ipam` or `mode` says. For ADD, CHECK and STATUS: what is wrong must not
    /// keep a pod from being deleted.
    pub fn check(&self) -> Result<(), Problem> {
        let foreign = self.others.keys().map(String::as_str);
        let foreign: Vec<&str> = foreign
            .filter(|key| !OTHERS.contains(key) && !key.starts_with("cni.dev/"))
            .collect();
        if !foreign.is_empty() {
            let text = format!(
                "the network configuration has {}: rdmaprep knows `plan` and `claims`",
                foreign.join(", ")
            );
            return Err(Problem::new(Code::Config, ErrorClass::Usage, text));
        }
        match &self.runtime_config {
            None | Some(Value::Object(_)) => Ok(()),
            Some(_) => {
                let text = "runtimeConfig of the network configuration is no object";
                Err(Problem::new(Code::Content, ErrorClass::Usage, text))
            }
        }
    }

    /// The pod's annotations, which are untrusted; nothing where the capability is not declared. Of
    /// a pod without any, containerd writes `null`.
    pub fn annotations(&self) -> Result<Option<BTreeMap<String, String>>, Problem> {
        let Some(given) = self
            .runtime_config
            .as_ref()
            .and_then(|config| config.get(ANNOTATIONS))
        else {
            return Ok(None);
        };
        let read = Option::<BTreeMap<String, String>>::deserialize(given).map_err(|e| {
            let text = format!("{ANNOTATIONS} of the network configuration: {e}");
            Problem::new(Code::Content, ErrorClass::Usage, text)
        })?;
        Ok(Some(read.unwrap_or_default()))
    }

    /// The version in which to answer.
    pub fn version(&self) -> &str {
        if VERSIONS.contains(&self.cni_version.as_str()) {
            &self.cni_version
        } else {
            NEWEST
        }
    }
}

impl Call {
    /// `variable` reads the environment. An error comes with the version in which to report it.
    pub fn read(
        variable: impl Fn(&str) -> Option<String>,
        stdin: &[u8],
    ) -> Result<Call, (String, Problem)> {
        let network = network(stdin).map_err(|e| (NEWEST.to_owned(), e))?;
        let version = network.version().to_owned();
        read(variable, network).map_err(|e| (version, e))
    }
}

fn network(stdin: &[u8]) -> Result<Network, Problem> {
    let wrong = |text: String| Problem::new(Code::Content, ErrorClass::Usage, text);
    if stdin.len() > MAX_BYTES {
        return Err(wrong(format!(
            "the network configuration has more than {MAX_BYTES} bytes"
        )));
    }
    serde_json::from_slice(stdin)
        .map_err(|e| wrong(format!("reading the network configuration from stdin: {e}")))
}

fn read(variable: impl Fn(&str) -> Option<String>, network: Network) -> Result<Call, Problem> {
    let named = variable("CNI_COMMAND").unwrap_or_default();
    let found = COMMANDS.iter().find(|(name, _)| *name == named);
    let (_, command) = *found.ok_or_else(|| {
        let known = COMMANDS.map(|(name, _)| name).join(", ");
        bad(format!("CNI_COMMAND is {named:?}: it is one of {known}"))
    })?;
    let mut call = Call {
        command,
        id: String::new(),
        ifname: String::new(),
        netns: None,
        pod: variable("CNI_ARGS").and_then(|args| pod(&args)),
        network,
    };
    if command == Command::Version {
        return Ok(call);
    }
    check_version(command, &call.network.cni_version)?;
    if !is_name(&call.network.name) {
        let text = format!(
            "`name` of the network configuration is {:?}: no name of a network",
            call.network.name
        );
        return Err(Problem::new(Code::Config, ErrorClass::Usage, text));
    }
    if matches!(command, Command::Gc | Command::Status) {
        return Ok(call);
    }
    call.id = variable("CNI_CONTAINERID").unwrap_or_default();
    call.ifname = variable("CNI_IFNAME").unwrap_or_default();
    call.netns = variable("CNI_NETNS")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    if !is_name(&call.id) {
        return Err(bad(format!(
            "CNI_CONTAINERID is {:?}: no id of a container",
            call.id
        )));
    }
    if !is_ifname(&call.ifname) {
        return Err(bad(format!(
            "CNI_IFNAME is {:?}: no name of an interface",
            call.ifname
        )));
    }
    match &call.netns {
        // It goes by the record.
        _ if command == Command::Del => Ok(call),
        None => Err(bad(
            "CNI_NETNS is missing: the path of the container's network namespace".to_owned(),
        )),
        // It is recorded, and looked at from elsewhere.
        Some(path) if path.is_relative() => {
            Err(bad(format!("CNI_NETNS is {path:?}: no absolute path")))
        }
        _ => Ok(call),
    }
}

/// `KEY=VALUE;KEY=VALUE`, as Kubernetes' runtimes write it of the sandbox.
fn pod(args: &str) -> Option<String> {
    let mut uids = args
        .split(';')
        .filter_map(|pair| pair.strip_prefix("K8S_POD_UID="));
    uids.next().map(str::to_owned)
}

fn bad(text: String) -> Problem {
    Problem::new(Code::Variable, ErrorClass::Usage, text)
}

fn check_version(command: Command, version: &str) -> Result<(), Problem> {
    let place = |version: &str| VERSIONS.iter().position(|v| *v == version);
    let from = match command {
        Command::Check => CHECK,
        Command::Gc | Command::Status => GC,
        _ => VERSIONS[0],
    };
    if place(version).is_some_and(|at| Some(at) >= place(from)) {
        return Ok(());
    }
    let is = match version {
        "" => "missing".to_owned(),
        _ => format!("{version:?}"),
    };
    let text = format!(
        "cniVersion of the network configuration is {is}: {} needs {from} or later",
        command.name()
    );
    let details = format!("supported versions: {}", VERSIONS.join(", "));
    Err(Problem {
        details,
        ..Problem::new(Code::Version, ErrorClass::Usage, text)
    })
}

/// Of a container or a network, as the specification has both.
fn is_name(name: &str) -> bool {
    name.len() <= 255
        && is_plain(name, b"_.-")
        && name
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphanumeric())
}

/// As the kernel has it (dev_valid_name() in net/core/dev.c).
fn is_ifname(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.len() < 16
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace())
}
