//! gVisor, as far as something says that its runsc will run a container: a command line,
//! annotations, or the configuration of an engine. Flags of runsc stand in any of these.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use toml::Table;

const ANNOTATIONS: &str = "dev.gvisor.";
/// What the names of containerd-shim-runsc-v1 begin with, as a type of runtimes.
const SHIM: &str = "io.containerd.runsc.";
const PROXY_ANNOTATION: &str = "dev.gvisor.flag.rdmaproxy";

/// The flag is not among those that runsc takes from an annotation by itself
/// (runsc/config/flags.go).
pub const REFUSED: &str = "runsc refuses the annotation dev.gvisor.flag.rdmaproxy, unless it runs \
    with --allow-flag-override";

/// A kernel of the container's own; of two that are known, the later one says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sandbox {
    /// Without access to RDMA devices, as far as is known.
    Plain,
    /// With `--rdmaproxy`: it passes verbs on to the host, and its /sys shows the devices of
    /// `linux.devices`.
    RdmaProxy,
}

impl Sandbox {
    /// By the runtime's command line; nothing where the program is not runsc.
    pub fn of_command(
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Option<Sandbox> {
        let is_runsc = program.file_name()?.as_bytes().starts_with(b"runsc");
        let set = args
            .into_iter()
            .filter_map(|word| proxy_flag(word.as_ref().to_str()?))
            .last();
        is_runsc.then_some(Sandbox::with_proxy(set == Some(true)))
    }

    /// By the annotations of config.json.
    pub fn of_annotations(annotations: &BTreeMap<String, String>) -> Option<Sandbox> {
        let proxy = annotations
            .get(PROXY_ANNOTATION)
            .is_some_and(|value| is_true(value));
        annotations
            .keys()
            .any(|key| key.starts_with(ANNOTATIONS))
            .then_some(Sandbox::with_proxy(proxy))
    }

    /// By the runtime's flags, where they are known, and by the annotations of config.json: runsc
    /// overrides a flag by its annotation, or refuses that.
    pub fn of_both(
        runtime: Option<Sandbox>,
        annotations: &BTreeMap<String, String>,
    ) -> Option<Sandbox> {
        let said = Sandbox::of_annotations(annotations);
        if annotations.contains_key(PROXY_ANNOTATION) {
            said
        } else {
            runtime.max(said)
        }
    }

    /// By a file of containerd-shim-runsc-v1, which turns each value of `runsc_config` into a flag
    /// (gvisor.dev/docs/user_guide/containerd/configuration).
    pub fn of_runsc_toml(text: &str) -> Result<Sandbox, toml::de::Error> {
        let file: Table = toml::from_str(text)?;
        let value = file
            .get("runsc_config")
            .and_then(|flags| flags.get("rdmaproxy"));
        let proxy = value.is_some_and(|value| {
            value.as_bool() == Some(true) || value.as_str().is_some_and(is_true)
        });
        Ok(Sandbox::with_proxy(proxy))
    }

    /// By Docker's daemon.json, of a runtime that it names; nothing for one that it does not name,
    /// or that is not runsc.
    pub fn of_docker(daemon_json: &str, name: &str) -> Option<Sandbox> {
        let daemon: serde_json::Value = serde_json::from_str(daemon_json).ok()?;
        let runtime = daemon.get("runtimes")?.get(name)?;
        if runtime.get("runtimeType").is_some() {
            return None;
        }
        let args = runtime.get("runtimeArgs").and_then(|args| args.as_array());
        let program = runtime
            .get("path")
            .and_then(|path| path.as_str())
            .unwrap_or(name);
        // The shim's links are named after what they execute.
        let program = program.replace("rdmaprep-runtime-", "");
        Sandbox::of_command(
            Path::new(&program),
            args.into_iter().flatten().filter_map(|arg| arg.as_str()),
        )
    }

    fn with_proxy(proxy: bool) -> Sandbox {
        if proxy {
            Sandbox::RdmaProxy
        } else {
            Sandbox::Plain
        }
    }
}

/// A runtime handler of containerd's configuration that runs gVisor, or a runtime of Docker's by
/// the same shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunscHandler {
    /// The file for [`Sandbox::of_runsc_toml`].
    pub config: Option<PathBuf>,
}

impl RunscHandler {
    /// In Docker's daemon.json, of a runtime that it names by a `runtimeType`.
    pub fn of_docker(daemon_json: &str, name: &str) -> Option<RunscHandler> {
        let daemon: serde_json::Value = serde_json::from_str(daemon_json).ok()?;
        let runtime = daemon.get("runtimes")?.get(name)?;
        let is_runsc = runtime.get("runtimeType")?.as_str()?.starts_with(SHIM);
        let config = runtime
            .get("options")
            .and_then(|options| options.get("ConfigPath")?.as_str());
        is_runsc.then(|| RunscHandler {
            config: config.map(PathBuf::from),
        })
    }

    /// In containerd's config.toml and what it imports, of which the later file counts key by key;
    /// nothing for a handler that they do not have, or that is another runtime's.
    pub fn find(files: &[impl AsRef<str>], name: &str) -> Option<RunscHandler> {
        let (mut is_runsc, mut config) = (false, None);
        for file in files
            .iter()
            .filter_map(|text| toml::from_str::<Table>(text.as_ref()).ok())
        {
            let plugins = file
                .get("plugins")
                .and_then(|plugins| plugins.as_table())
                .into_iter()
                .flatten();
            for handler in plugins
                .filter_map(|(_, plugin)| plugin.get("containerd")?.get("runtimes")?.get(name))
            {
                if let Some(kind) = handler.get("runtime_type").and_then(|kind| kind.as_str()) {
                    is_runsc = kind.starts_with(SHIM);
                }
                let path = handler
                    .get("options")
                    .and_then(|options| options.get("ConfigPath")?.as_str());
                config = path.map(PathBuf::from).or(config);
            }
        }
        is_runsc.then_some(RunscHandler { config })
    }
}

/// What a word of a command line makes of the flag.
fn proxy_flag(word: &str) -> Option<bool> {
    let flag = word
        .strip_prefix("--")
        .or(word.strip_prefix('-'))?
        .strip_prefix("rdmaproxy")?;
    if flag.is_empty() {
        Some(true)
    } else {
        flag.strip_prefix('=').map(is_true)
    }
}

/// What Go's flag package takes for true.
fn is_true(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True")
}
