//! The real library: one process per release and environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nccl_rules::version::Version;

use testkit::nccl_case::Env;
use testkit::run;

/// The releases that judge: what `scripts/nccl-wheels` fetches. The last one was the newest on 2026-11-21.
pub const RELEASES: [&str; 6] = ["2.18.3", "2.23.4", "2.27.7", "2.29.7", "2.30.7", "2.32.3"];

/// The folder with the releases, if RDMAPREP_NCCL_WHEELS names one.
pub fn wheels() -> Option<PathBuf> {
    let dir = std::env::var_os("RDMAPREP_NCCL_WHEELS").map(PathBuf::from);
    if let Some(dir) = &dir {
        for release in RELEASES {
            let file = dir.join(release).join("libnccl.so.2");
            assert!(file.is_file(), "there is no {}: run scripts/nccl-wheels", file.display());
        }
    }
    dir
}

/// The compiled driver and the libraries.
pub struct Judges {
    driver: PathBuf,
    wheels: PathBuf,
    pub releases: Vec<Version>,
}

impl Judges {
    /// Compiles the driver into `dir`.
    pub fn new(wheels: PathBuf, dir: &Path) -> Judges {
        let driver = dir.join("driver");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/nccl_judge/driver.c");
        run(Command::new("cc").args(["-O1", "-o"]).arg(&driver).arg(source).arg("-ldl"), "").ok();
        Judges { driver, wheels, releases: RELEASES.map(|r| r.parse().unwrap()).to_vec() }
    }

    /// What each release says, in their order.
    pub fn ask(&self, env: &Env) -> Vec<String> {
        let children: Vec<Child> = self.releases.iter().map(|v| self.start(env, *v)).collect();
        let asked = children.into_iter().zip(&self.releases);
        asked.map(|(child, version)| verdict(child, *version, env)).collect()
    }

    fn start(&self, env: &Env, version: Version) -> Child {
        let mut command = Command::new(&self.driver);
        command.arg(self.wheels.join(version.to_string()).join("libnccl.so.2")).env_clear();
        command.envs(&env.vars).env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,NET,ENV");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// `eth0:192.0.2.1` or `error 5`.
fn verdict(child: Child, version: Version, env: &Env) -> String {
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let using = log.lines().find_map(|line| {
        let (_, rest) = line.split_once("NCCL INFO Bootstrap")?;
        let (_, address) = rest.split_once("Using ")?;
        address.rsplit_once('<').map(|(address, _)| address.to_owned())
    });
    let result = log.lines().find_map(|line| line.strip_prefix("RESULT "));
    // NCCL prints the address before it binds to it, which may fail while an IPv6 address is tentative.
    match (using, result) {
        (Some(address), Some(_)) => address,
        (None, Some(code)) if code != "0" => format!("error {code}"),
        _ => panic!("NCCL {version} ended without a word ({:?}) with {env:#?}:\n{log}", output.status),
    }
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
