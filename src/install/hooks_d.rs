//! podman and CRI-O: oci-hooks(5) definitions. Both read /usr/share/containers/oci/hooks.d and,
//! unless configured, no other folder. A definition with a stage that an engine does not know makes
//! it refuse the whole folder (Validate() in containers/common's pkg/hooks), and `precreate` is
//! podman's alone: it gets a folder of its own, which containers.conf has to name.

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

use super::{
    Command, Content, DEFAULT_PLACE, Ground, InstallRequest, Part, Piece, about, behind, beside,
    has_gvisor, shim, toml_trouble,
};

const SHARED: &str = "/usr/share/containers/oci/hooks.d";
/// The folder that podman alone reads.
const PODMAN: &str = "/etc/containers/oci/podman-hooks.d";
const CONF: &str = "/etc/containers/containers.conf.d/rdmaprep.conf";

const DEFINITIONS: [(&str, &str); 3] = [
    (
        "createRuntime",
        include_str!("../../hooks/oci-hooks.d/rdmaprep-createRuntime.json"),
    ),
    (
        "poststart",
        include_str!("../../hooks/oci-hooks.d/rdmaprep-poststart.json"),
    ),
    (
        "poststop",
        include_str!("../../hooks/oci-hooks.d/rdmaprep-poststop.json"),
    ),
];
/// gVisor alone has a use for it; other runtimes would start a process that ends at once.
const CREATE_CONTAINER: (&str, &str) = (
    "createContainer",
    include_str!("../../hooks/gvisor-hooks.d/rdmaprep-createContainer.json"),
);
const PRECREATE: (&str, &str) = (
    "precreate",
    include_str!("../../hooks/podman-hooks.d/rdmaprep-precreate.json"),
);
const CRIO_RUNTIME: (&str, &str) = (
    "/etc/crio/crio.conf.d/50-rdmaprep.conf",
    include_str!("../../hooks/kubernetes/crio.conf"),
);

fn shared(wanted: &InstallRequest, ground: &Ground) -> Part {
    let gvisor = has_gvisor(ground.tree).then_some(&CREATE_CONTAINER);
    let pieces = DEFINITIONS
        .iter()
        .chain(gvisor)
        .flat_map(|definition| pieces(SHARED, definition, wanted))
        .collect();
    Part {
        pieces,
        ..Part::default()
    }
}

pub(super) fn crio(wanted: &InstallRequest, ground: &Ground) -> Result<Part> {
    // crio.conf.d(5): each file there counts, whatever its name, and the last one most.
    let files = crio_files(ground)?;
    for path in files.iter().rev() {
        let Some(list) = list(path, &["crio", "runtime", "hooks_dir"], ground)? else {
            continue;
        };
        ensure!(
            list.iter().any(|item| item.as_str() == Some(SHARED)),
            ErrorClass::Refused.error(format!(
                "{path}: its hooks_dir counts: add {SHARED:?} to that"
            ))
        );
        break;
    }
    let mut part = shared(wanted, ground);
    let (runtime, link) = shim(wanted, ground.tree)?;
    // Hooks come too late to give a container device nodes: its runtime has to.
    let text = CRIO_RUNTIME
        .1
        .replace("/usr/bin/rdmaprep-runtime", &runtime);
    part.pieces
        .extend([link, Piece::whole_file(CRIO_RUNTIME.0, text)]);
    part.notes.extend(crio_note(&files, ground)?);
    Ok(part)
}

/// crio.conf.d(5): each file there counts, whatever its name, and the last one most.
fn crio_files(ground: &Ground) -> Result<Vec<String>> {
    let folder = "/etc/crio/crio.conf.d";
    let own = ground.tree.list(folder)?;
    let own = own.iter().map(|name| format!("{folder}/{name}"));
    Ok(["/etc/crio/crio.conf".to_owned()]
        .into_iter()
        .chain(own)
        .filter(|path| path != CRIO_RUNTIME.0)
        .collect())
}

/// Where another runtime is the default one, or gives containers GPUs: ours does not call it.
fn crio_note(files: &[String], ground: &Ground) -> Result<Option<String>> {
    let (mut default, mut programs) = (None, BTreeMap::new());
    for path in files {
        let named = found(path, &["crio", "runtime", "default_runtime"], ground)?;
        let named = named.and_then(|value| value.as_str().map(str::to_owned));
        default = named.or(default);
        let runtimes = found(path, &["crio", "runtime", "runtimes"], ground)?;
        for (name, runtime) in runtimes.iter().filter_map(toml::Value::as_table).flatten() {
            let program = runtime.get("runtime_path").and_then(toml::Value::as_str);
            programs.extend(program.map(|program| (name.clone(), program.to_owned())));
        }
    }
    // Those that create a container by themselves.
    let other = default.filter(|name| !["runc", "crun", "rdmaprep"].contains(&name.as_str()));
    if let Some((name, program)) = other.and_then(|name| programs.remove_entry(&name)) {
        return Ok(Some(behind("CRI-O", &name, &program)));
    }
    let gpus = programs.get("nvidia");
    Ok(gpus.map(|program| beside("CRI-O", "nvidia", program)))
}

pub(super) fn podman(wanted: &InstallRequest, ground: &Ground) -> Result<Part> {
    let mut part = shared(wanted, ground);
    part.pieces.extend(pieces(PODMAN, &PRECREATE, wanted));
    let mut folders = Folders {
        list: vec![SHARED.to_owned()],
        adds: false,
    };
    let (after, before): (Vec<_>, Vec<_>) =
        files(ground)?.into_iter().partition(|path| is_after(path));
    for path in before {
        folders.read(&path, ground)?;
    }
    for folder in [SHARED, PODMAN] {
        if !folders.list.iter().any(|f| f == folder) {
            folders.list.push(folder.to_owned());
        }
    }
    let list = folders
        .list
        .iter()
        .map(|f| Value::from(f.as_str()).to_string())
        .collect::<Vec<_>>()
        .join(", ");
    let text = format!(
        "# By `rdmaprep install`: what containers.conf(5) had, and where rdmaprep's hooks \
        are.\n[engine]\nhooks_dir = [{list}]\n"
    );
    part.pieces.push(Piece::whole_file(CONF, text));
    for path in after {
        folders.read(&path, ground)?;
        folders.have_ours(&path)?;
    }
    Ok(part)
}

fn pieces(folder: &str, (stage, text): &(&str, &str), wanted: &InstallRequest) -> Vec<Piece> {
    let text = text.replace(DEFAULT_PLACE, &wanted.program);
    let by_command = wanted.command.as_ref().and_then(|command| {
        Some(Piece::whole_file(
            format!("{folder}/rdmaprep-command-{stage}.json"),
            conditioned(&text, command)?,
        ))
    });
    [
        Some(Piece::whole_file(
            format!("{folder}/rdmaprep-{stage}.json"),
            text,
        )),
        by_command,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The definition for containers that run a command, which name no plan.
fn conditioned(text: &str, command: &Command) -> Option<String> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    value["when"] = json!({ "commands": [command.regex] });
    let args = value.get_mut("hook")?.get_mut("args")?.as_array_mut()?;
    args.extend(["--plan", &command.plan].map(Value::from));
    Some(serde_json::to_string_pretty(&value).ok()? + "\n")
}

/// The files that podman reads besides [`CONF`], in its order: what a later one says counts
/// (containers.conf(5)).
fn files(ground: &Ground) -> Result<Vec<String>> {
    let folder = "/etc/containers/containers.conf.d";
    let first = [
        "/usr/share/containers/containers.conf",
        "/etc/containers/containers.conf",
    ];
    let names = ground.tree.list(folder)?;
    let own = names
        .iter()
        .filter(|n| n.ends_with(".conf"))
        .map(|n| format!("{folder}/{n}"));
    Ok(first
        .map(str::to_owned)
        .into_iter()
        .chain(own)
        .filter(|path| path != CONF)
        .collect())
}

fn is_after(path: &str) -> bool {
    Path::new(path).parent() == Path::new(CONF).parent() && path > CONF
}

struct Folders {
    list: Vec<String>,
    /// `{append = true}` was an element: podman 5 adds what this file and all later ones say, until
    /// one says `false`.
    adds: bool,
}

impl Folders {
    fn read(&mut self, path: &str, ground: &Ground) -> Result<()> {
        let Some(list) = list(path, &["engine", "hooks_dir"], ground)? else {
            return Ok(());
        };
        let last = list
            .iter()
            .filter_map(|item| item.get("append").and_then(toml::Value::as_bool))
            .next_back();
        self.adds = last.unwrap_or(self.adds);
        if !self.adds {
            self.list.clear();
        }
        self.list.extend(
            list.iter()
                .filter_map(|item| item.as_str().map(str::to_owned)),
        );
        Ok(())
    }

    /// Refuses a file that is read after ours and takes its place: containers would start without
    /// the NICs that they ask for.
    fn have_ours(&self, path: &str) -> Result<()> {
        let lacking = [SHARED, PODMAN]
            .iter()
            .filter(|ours| !self.list.iter().any(|f| f == **ours));
        let lacking: Vec<String> = lacking.map(|folder| format!("{folder:?}")).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let lacking = lacking.join(" and ");
        Err(ErrorClass::Refused.error(format!(
            "{path} is read after {CONF}, and its hooks_dir counts: add {lacking} to that"
        )))
    }
}

fn list(path: &str, keys: &[&str], ground: &Ground) -> Result<Option<Vec<toml::Value>>> {
    let found = found(path, keys, ground)?;
    Ok(found.and_then(|value| value.as_array().cloned()))
}

fn found(path: &str, keys: &[&str], ground: &Ground) -> Result<Option<toml::Value>> {
    let Some(Content::Text(text)) = ground.tree.content(&ground.tree.followed(path)?)? else {
        return Ok(None);
    };
    let value: toml::Table = toml::from_str(&text)
        .map_err(|e: toml::de::Error| toml_trouble(&text, e.message(), e.span()))
        .map_err(about(path))?;
    let value = toml::Value::Table(value);
    let found = keys.iter().try_fold(&value, |value, key| value.get(key));
    Ok(found.cloned())
}
