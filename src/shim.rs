//! `rdmaprep-runtime`: the command line of an OCI runtime, as far as a wrapper must understand it.
//! All arguments are passed on unchanged; the wrapper needs to know whether a container is created,
//! its config.json, and the engine's log.

pub mod exec;
mod runtime_args;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};

pub use runtime_args::read;

/// The name of the wrapper; with a suffix such as `-crun`, of the wrapper of that runtime.
pub const NAME: &str = "rdmaprep-runtime";

const NAMED: [(&str, &str); 5] = [
    ("runc", "runc"),
    ("crun", "crun"),
    ("runsc", "runsc"),
    ("youki", "youki"),
    ("nvidia", "nvidia-container-runtime"),
];

/// Runtimes that pass no inherited descriptor to other processes, as was seen of runc 1.1 and crun
/// 1.21. runsc passes them to its sandbox and its gofer, which run as long as the container;
/// youki's hooks have no environment with the handles.
const DISCREET: [&str; 3] = ["runc", "crun", "nvidia-container-runtime"];

/// The runtimes that are tried, in this order, if the host's config file names none.
const DEFAULT: [&str; 2] = ["runc", "crun"];

/// The search path if PATH is not set.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The suffix of the link's name: `crun`.
    pub named: Option<String>,
    pub args: Vec<OsString>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeCommand {
    /// The config.json of the container that is to be made; none for every other command.
    pub config: Option<PathBuf>,
    /// The id of that container.
    pub id: Option<String>,
    /// The file in which the engine looks for errors.
    pub log: Option<PathBuf>,
    /// Whether its lines are JSON.
    pub json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeChoice {
    Path(PathBuf),
    /// The first of these that is found.
    Names(Vec<String>),
}

impl Call {
    /// `None` if the program was called by its own name and not as a runtime. `rdmaprep runtime` is
    /// parsed here, too: the options behind it are the runtime's, though some have names of
    /// rdmaprep's options.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Option<Call> {
        let mut args = args.into_iter();
        let name = PathBuf::from(args.next()?);
        let named = match name.file_name()?.to_str()?.strip_prefix(NAME) {
            Some("") => None,
            Some(rest) => Some(rest.strip_prefix('-')?.to_owned()),
            None => {
                return (args.next()? == "runtime").then(|| Call {
                    named: None,
                    args: args.collect(),
                });
            }
        };
        Some(Call {
            named,
            args: args.collect(),
        })
    }
}

/// A container has no influence on the choice. [`ErrorClass::Usage`] for an empty name, and for a
/// relative path.
pub fn choose_runtime(named: Option<&str>, configured: Option<&str>) -> Result<RuntimeChoice> {
    if let Some(name) = configured {
        let good = if name.contains('/') {
            name.starts_with('/')
        } else {
            !name.is_empty()
        };
        ensure!(
            good,
            ErrorClass::Usage.error(format!(
                "`runtime` is {name:?}: neither a name nor an absolute path"
            ))
        );
    }
    let path = configured
        .filter(|name| name.contains('/'))
        .map(PathBuf::from);
    let Some(suffix) = named else {
        return Ok(match (path, configured) {
            (Some(path), _) => RuntimeChoice::Path(path),
            (None, Some(name)) => RuntimeChoice::Names(vec![name.to_owned()]),
            (None, None) => RuntimeChoice::Names(DEFAULT.map(str::to_owned).to_vec()),
        });
    };
    let program = NAMED
        .iter()
        .find(|(name, _)| *name == suffix)
        .map(|(_, program)| *program);
    let program = program
        .ok_or_else(|| {
            anyhow::anyhow!(
                "{NAME}-{suffix} names no known runtime; known: {}",
                NAMED.map(|(name, _)| name).join(", ")
            )
        })
        .class(ErrorClass::Usage, "the name of this program")?;
    Ok(path
        .filter(|path| path.file_name() == Some(OsStr::new(program)))
        .map_or_else(
            || RuntimeChoice::Names(vec![program.to_owned()]),
            RuntimeChoice::Path,
        ))
}

/// Whether a runtime's process can keep a file open for its hooks without passing it to other
/// processes of the container.
pub fn is_discreet(program: &Path) -> bool {
    DISCREET
        .iter()
        .any(|name| program.file_name() == Some(OsStr::new(name)))
}

/// Where a program of these names may be: the absolute folders of `path`, one name after the other.
pub fn places(names: &[String], path: &OsStr) -> Vec<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .collect();
    names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .collect()
}

/// A line as runtimes write it into their log: logrus's, which engines read the reason from.
pub fn log_line(json: bool, level: &str, message: &str, time: &str) -> String {
    match json {
        true => {
            format!(
                r#"{{"level":{},"msg":{},"time":{}}}"#,
                quoted(level),
                quoted(message),
                quoted(time)
            )
        }
        false => format!(
            "time={} level={level} msg={}",
            quoted(time),
            quoted(message)
        ),
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The config.json of a bundle, or what is named instead; both as the runtime finds them, from
/// where it was called.
fn config_file(bundle: Option<&OsStr>, named: Option<&OsStr>) -> PathBuf {
    match named {
        Some(file) => Path::new(".").join(file),
        None => Path::new(".")
            .join(bundle.unwrap_or_default())
            .join("config.json"),
    }
}
