//! The real library: one process per release and environment.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nccl_rules::version::Version;

use testkit::nccl_case::Env;
use testkit::run;

/// The releases that always judge; `scripts/nccl-wheels` fetches the newest one as well, and with
/// --all most.
pub const RELEASES: [&str; 6] = ["2.18.3", "2.23.4", "2.27.7", "2.29.7", "2.30.7", "2.32.3"];

/// The folder with the releases, if RDMAPREP_NCCL_WHEELS names one.
pub fn wheels() -> Option<PathBuf> {
    let dir = std::env::var_os("RDMAPREP_NCCL_WHEELS").map(PathBuf::from);
    if let Some(dir) = &dir {
        for release in RELEASES {
            let file = dir.join(release).join("libnccl.so.2");
            assert!(
                file.is_file(),
                "there is no {}: run scripts/nccl-wheels",
                file.display()
            );
        }
    }
    dir
}

/// The compiled driver and the libraries.
pub struct Judges {
    driver: PathBuf,
    wheels: PathBuf,
    /// Where our libibverbs is.
    verbs: PathBuf,
    pub releases: Vec<Version>,
    /// The actions of the driver that start the networks of each release.
    sockets: BTreeMap<Version, String>,
    hcas: BTreeMap<Version, String>,
    /// Those that ask its functions for GIDs.
    gids: BTreeMap<Version, Vec<String>>,
}

/// What a release says of an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// `eth0:192.0.2.1` or `error 5`.
    pub bootstrap: String,
    /// The interfaces for data, in order.
    pub sockets: String,
}

impl Judges {
    /// Compiles the driver and a libibverbs into `dir`.
    pub fn new(wheels: PathBuf, dir: &Path) -> Judges {
        let (driver, verbs) = (dir.join("driver"), dir.join("verbs"));
        let source = |name: &str| {
            format!(
                "{}/tests/interop/nccl_judge/{name}",
                env!("CARGO_MANIFEST_DIR")
            )
        };
        fs::create_dir_all(&verbs).unwrap();
        run(
            Command::new("cc")
                .args(["-O1", "-rdynamic", "-o"])
                .arg(&driver)
                .arg(source("driver.c"))
                .arg("-ldl"),
            "",
        )
        .ok();
        fs::write(
            dir.join("verbs.map"),
            "IBVERBS_1.1 { global: ibv_*; local: *; };\n",
        )
        .unwrap();
        let mut shared = Command::new("cc");
        shared
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(verbs.join("libibverbs.so"))
            .arg(source("verbs.c"));
        run(
            shared.arg(format!(
                "-Wl,--version-script={}",
                dir.join("verbs.map").display()
            )),
            "",
        )
        .ok();
        // A real libmlx5 would take our devices for its own.
        for name in ["libibverbs.so.1", "libmlx5.so", "libmlx5.so.1"] {
            let _ = fs::remove_file(verbs.join(name));
            std::os::unix::fs::symlink("libibverbs.so", verbs.join(name)).unwrap();
        }
        let names = fs::read_dir(&wheels).unwrap().map(|e| e.unwrap());
        let there = names.filter(|e| e.path().join("libnccl.so.2").is_file());
        let mut releases: Vec<Version> = there
            .filter_map(|e| e.file_name().to_str()?.parse().ok())
            .collect();
        releases.sort();
        let actions: Vec<_> = releases
            .iter()
            .map(|v| (*v, actions(&wheels, *v)))
            .collect();
        let sockets = actions
            .iter()
            .map(|(v, [sockets, _])| (*v, sockets.clone()))
            .collect();
        let hcas = actions
            .into_iter()
            .map(|(v, [_, hcas])| (v, hcas))
            .collect();
        let gids = releases
            .iter()
            .map(|v| (*v, gid_actions(&wheels, *v)))
            .collect();
        Judges {
            driver,
            wheels,
            verbs,
            releases,
            sockets,
            hcas,
            gids,
        }
    }

    /// What each release says, in their order.
    pub fn ask(&self, env: &Env) -> Vec<Said> {
        let start = |v: &Version| self.start(env, *v, &["id", &self.sockets[v]]);
        let children: Vec<Child> = self.releases.iter().map(start).collect();
        let asked = children.into_iter().zip(&self.releases);
        asked
            .map(|(child, version)| verdict(child, *version, env))
            .collect()
    }

    /// Which HCA ports each release takes: `a:1 {b:1 b:2}`, a device of two ports in braces; `none`
    /// where it refuses to start its verbs, `signal` where it ends by one.
    pub fn ask_hcas(&self, env: &Env, devices: &Path) -> Vec<String> {
        let env = self.with_verbs(env, devices);
        let children: Vec<Child> = self
            .releases
            .iter()
            .map(|v| self.start(&env, *v, &[&self.hcas[v]]))
            .collect();
        children
            .into_iter()
            .map(|child| hcas(&child.wait_with_output().unwrap()))
            .collect()
    }

    /// Which GID each release takes on the first port of each device: its index, `error 2`, or
    /// `off` where it refuses to start its verbs; none where it ends by a signal.
    pub fn ask_gids(
        &self,
        env: &Env,
        devices: &Path,
        gids: &Path,
    ) -> Vec<Option<BTreeMap<String, String>>> {
        let mut env = self.with_verbs(env, devices);
        env.vars
            .insert("GIDS".to_owned(), gids.display().to_string());
        let start = |v: &Version| {
            let mut actions = vec![self.hcas[v].as_str()];
            actions.extend(self.gids[v].iter().map(String::as_str));
            self.start(&env, *v, &actions)
        };
        let children: Vec<Child> = self.releases.iter().map(start).collect();
        children
            .into_iter()
            .map(|child| chosen(&child.wait_with_output().unwrap()))
            .collect()
    }

    fn with_verbs(&self, env: &Env, devices: &Path) -> Env {
        let mut env = env.clone();
        env.vars
            .insert("VERBS".to_owned(), devices.display().to_string());
        env.vars.insert(
            "LD_LIBRARY_PATH".to_owned(),
            self.verbs.display().to_string(),
        );
        env
    }

    fn start(&self, env: &Env, version: Version, actions: &[&str]) -> Child {
        let mut command = Command::new(&self.driver);
        command
            .arg(library(&self.wheels, version))
            .args(actions)
            .env_clear();
        command
            .envs(&env.vars)
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,NET,ENV");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

fn library(wheels: &Path, version: Version) -> PathBuf {
    wheels.join(version.to_string()).join("libnccl.so.2")
}

/// The structs of a release's networks, ncclNetSocket and ncclNetIb, by its symbols.
fn actions(wheels: &Path, version: Version) -> [String; 2] {
    let symbols = run(Command::new("nm").arg(library(wheels, version)), "")
        .ok()
        .out;
    let since = |text: &str| version >= text.parse().unwrap();
    let form = if since("2.28.0") {
        5
    } else {
        1 + u8::from(since("2.26.0"))
    };
    ["ncclNetSocket", "ncclNetIb"].map(|name| {
        let is_it = |line: &&str| line.split_whitespace().nth(2) == Some(name);
        let line = symbols
            .lines()
            .find(is_it)
            .unwrap_or_else(|| panic!("NCCL {version} has no symbol {name}"));
        format!("{}:{form}", line.split_whitespace().next().unwrap())
    })
}

/// The functions of a release that choose a GID. 2.21 has the part of one that looks for it, and
/// what is before is the setting alone.
fn gid_actions(wheels: &Path, version: Version) -> Vec<String> {
    let symbols = run(Command::new("nm").arg(library(wheels, version)), "")
        .ok()
        .out;
    let find = |begins: &str, form: u8| {
        let mut words = symbols.lines().map(|l| l.split_whitespace());
        let place = words.find_map(|mut words| {
            let (place, kind, name) = (words.next()?, words.next()?, words.next()?);
            (kind.eq_ignore_ascii_case("t") && name.starts_with(begins)).then(|| place.to_owned())
        });
        place.map(|place| format!("{place}:{form}"))
    };
    let whole = ["_ZL17", "_Z17"].map(|begins| {
        find(
            &format!("{begins}ncclIbGetGidIndexP11ibv_contexthP13ibv_port_attrPi"),
            12,
        )
    });
    let part = find("_ZL17ncclIbGetGidIndexP11ibv_contexthiPi", 11);
    let set = find("_Z19ncclParamIbGidIndexv", 10);
    let found: Vec<String> = whole.into_iter().flatten().take(1).collect();
    match found.is_empty() {
        true => set.into_iter().chain(part).collect(),
        false => found,
    }
}

/// By the lines of the driver: `GID FORM DEVICE RESULT INDEX`. Where the setting is asked, and is
/// none, another line of the device follows.
fn chosen(output: &Output) -> Option<BTreeMap<String, String>> {
    let log = log(output);
    let started = log.lines().find_map(|line| line.strip_prefix("STARTED "));
    assert!(
        started.is_some(),
        "NCCL ended ({:?}):\n{log}",
        output.status
    );
    output.status.code()?;
    let mut all = BTreeMap::new();
    for line in log.lines().filter_map(|line| line.strip_prefix("GID ")) {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, device, result, index] = words[..] else {
            panic!("{line:?}");
        };
        let says = match (started, result) {
            (Some("0"), "0") => index.to_owned(),
            (Some("0"), _) => format!("error {result}"),
            _ => "off".to_owned(),
        };
        all.insert(device.to_owned(), says);
    }
    Some(all)
}

fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn verdict(child: Child, version: Version, env: &Env) -> Said {
    let output = child.wait_with_output().unwrap();
    let log = log(&output);
    let using = log.lines().find_map(|line| {
        let (_, rest) = line.split_once("NCCL INFO Bootstrap")?;
        let (_, address) = rest.split_once("Using ")?;
        address
            .rsplit_once('<')
            .map(|(address, _)| address.to_owned())
    });
    let result = log.lines().find_map(|line| line.strip_prefix("RESULT "));
    let sockets = log
        .lines()
        .find_map(|line| line.split_once("NET/Socket : Using "))
        .map_or("", |(_, all)| all);
    let address = |token: &str| Some(token.split_once(']')?.1.rsplit_once('<')?.0.to_owned());
    let sockets = sockets
        .split(' ')
        .filter_map(address)
        .collect::<Vec<_>>()
        .join(" ");
    // NCCL prints the address before it binds to it, which may fail while an IPv6 address is
    // tentative.
    let bootstrap = match (using, result) {
        (Some(address), Some(_)) => address,
        (None, Some(code)) if code != "0" => format!("error {code}"),
        _ => panic!(
            "NCCL {version} ended without a word ({:?}) with {env:#?}:\n{log}",
            output.status
        ),
    };
    Said { bootstrap, sockets }
}

/// NCCL's list: ` [0]={[0] a:1/RoCE, [1] a:2/RoCE} [2]b:1/IB [RO]; OOB …`, with rail and plane
/// behind the port.
fn hcas(output: &Output) -> String {
    let log = log(output);
    let started = log.lines().find_map(|line| line.strip_prefix("STARTED "));
    let list = match started {
        None if output.status.code().is_none() => return "signal".to_owned(),
        None => panic!("NCCL ended without a word ({:?}):\n{log}", output.status),
        Some("0") => log
            .lines()
            .find_map(|line| Some(line.split_once("NET/IB : Using")?.1.rsplit_once("; OOB")?.0)),
        Some(_) => return "none".to_owned(),
    };
    let port = |token: &str| {
        let (opens, token) = (
            token.contains("={"),
            token.rsplit_once(']').map_or(token, |(_, rest)| rest),
        );
        let mut fields = token.split_once('/').map(|(port, _)| port.split(':'));
        let name = fields
            .as_mut()
            .and_then(|f| Some(format!("{}:{}", f.next()?, f.next()?)))
            .unwrap_or_default();
        let gap = if name.is_empty() || token.ends_with('}') || token.ends_with(',') {
            ""
        } else {
            " "
        };
        let then = if token.ends_with(',') {
            " "
        } else if token.ends_with('}') {
            "} "
        } else {
            gap
        };
        format!("{}{name}{then}", if opens { "{" } else { "" })
    };
    list.unwrap_or_default()
        .split_whitespace()
        .map(port)
        .collect::<String>()
        .trim_end()
        .to_owned()
}

/// Puts `text` at `path`, or nothing.
pub fn place(path: &str, text: Option<&[u8]>) {
    match text {
        Some(text) => fs::write(path, text).unwrap(),
        None => match fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => panic!("{path}: {e}"),
            _ => {}
        },
    }
}
