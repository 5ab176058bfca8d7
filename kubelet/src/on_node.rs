//! rdmaprep on the node that a pod runs on: put there, and taken away again. All paths are the
//! node's, whose namespaces the caller has entered.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdmaprep::config::host::{RUN, STATE};
use rdmaprep::disk::files;
use rdmaprep::disk::host_tree::HostTree;
use rdmaprep::disk::replace::Replacement;
use rdmaprep::install::{self, Target};
use serde::{Deserialize, Serialize};

/// Where the program goes, and where a package has it.
const PROGRAM: &str = "/usr/local/bin/rdmaprep";
const PACKAGED: &str = "/usr/bin/rdmaprep";
const CONFIG: &str = "/etc/rdmaprep";
const PLUGIN: &str = "/var/lib/kubelet/plugins/rdmaprep.io";
const LOG: &str = "/var/log/rdmaprep.log";
/// Below the state folder: what is this image's on the node.
const MARK: &str = "by-image.json";
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the image and its ConfigMap bring.
pub struct Image {
    program: Vec<u8>,
    /// Files for /etc/rdmaprep, by their names.
    config: BTreeMap<String, String>,
}

impl Image {
    /// Reads all of it: from inside the node's namespaces it cannot be seen.
    pub fn read(program: &Path, config: &Path) -> Result<Image> {
        let content =
            fs::read(program).class(ErrorClass::Usage, format!("reading {}", program.display()))?;
        let mut texts = BTreeMap::new();
        for name in files::list(config)? {
            // A ConfigMap's own folders and links have such names.
            if name.starts_with('.') {
                continue;
            }
            let path = config.join(&name);
            texts.extend(files::read_through(&path)?.map(|text| (name, text)));
        }
        Ok(Image {
            program: content,
            config: texts,
        })
    }
}

/// What was written on the node, and what is still to be run there.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Mark {
    config: BTreeMap<PathBuf, String>,
    folders: Vec<PathBuf>,
    then: Vec<String>,
}

impl Mark {
    fn path() -> PathBuf {
        Path::new(STATE).join(MARK)
    }

    fn read() -> Result<Option<Mark>> {
        let path = Mark::path();
        let Some(text) = files::read(&path)? else {
            return Ok(None);
        };
        let mark = serde_json::from_str(&text);
        Ok(Some(mark.class(
            ErrorClass::Usage,
            format!("reading {}", path.display()),
        )?))
    }

    fn save(&self) -> Result<()> {
        let text = serde_json::to_string(self)?;
        Replacement::with_mode(0o600).write(&Mark::path(), text.as_bytes())
    }

    /// Makes a folder, and the ones above it, and notes those that were not there.
    fn make_folder(&mut self, folder: &Path) -> Result<()> {
        let missing: Vec<&Path> = folder.ancestors().take_while(|f| !f.exists()).collect();
        for folder in missing.into_iter().rev() {
            self.folders.push(folder.to_owned());
            self.save()?;
            files::shared_dir(folder)?;
        }
        Ok(())
    }

    /// Writes the files of the ConfigMap, and removes what an earlier one had. One that an
    /// administrator has written stays.
    fn write_config(&mut self, config: &BTreeMap<String, String>, log: fn(&str)) -> Result<()> {
        let wanted: BTreeMap<PathBuf, &String> = config
            .iter()
            .map(|(name, text)| (Path::new(CONFIG).join(name), text))
            .collect();
        for (path, text) in &wanted {
            let there = files::read(path)?;
            let is_ours = there.is_none() || there.as_ref() == self.config.get(path);
            if there.as_ref() == Some(*text) {
                continue;
            }
            if !is_ours {
                log(&format!(
                    "{} is the node's own, and stays as it is",
                    path.display()
                ));
                continue;
            }
            self.make_folder(Path::new(CONFIG))?;
            self.config.insert(path.clone(), (*text).clone());
            self.save()?;
            Replacement::with_mode(0o644).write(path, text.as_bytes())?;
        }
        let gone: Vec<PathBuf> = self.config.keys().cloned().collect();
        for path in gone.iter().filter(|path| !wanted.contains_key(*path)) {
            self.remove_config(path)?;
        }
        Ok(())
    }

    fn remove_config(&mut self, path: &Path) -> Result<()> {
        if files::read(path)?.as_ref() == self.config.get(path) {
            files::remove(path)?;
        }
        self.config.remove(path);
        self.save()
    }

    /// Runs what makes engines and systemd read their files again. What fails is run by the next
    /// call, which has no files to change any more.
    fn run_all(&mut self, done: Done, log: fn(&str)) -> Result<()> {
        for command in done.next {
            if !self.then.contains(&command) {
                self.then.push(command);
            }
        }
        self.save()?;
        while let Some(command) = self.then.first().cloned() {
            log(&command);
            run("sh", &["-c", &command])?;
            self.then.remove(0);
            self.save()?;
        }
        Ok(())
    }
}

/// What of `install --json` and `uninstall --json` is read.
#[derive(Deserialize)]
struct Done {
    next: Vec<String>,
}

/// Puts the program on the node, registers it with the node's engine, stores the plans of the
/// config file and that plan, unless they are stored, and describes its rails. A second call
/// changes nothing but what is newer in the image: containers keep their NICs, since the path of
/// their hooks stays.
pub fn install(image: &Image, plan: &str, log: fn(&str)) -> Result<()> {
    let is_packaged = Path::new(PACKAGED).exists();
    ensure!(
        !is_packaged,
        ErrorClass::Refused.error(format!(
            "a package has put {PACKAGED} on this node: purge it, or take the label off the node"
        ))
    );
    let mark = Mark::read()?;
    ensure!(
        mark.is_some() || !Path::new(PROGRAM).exists(),
        ErrorClass::Refused.error(format!(
            "{PROGRAM} is on this node, and not from an image: remove it, or take the label off \
            the node"
        ))
    );
    let targets = targets()?;
    let mut mark = mark.unwrap_or_default();
    files::private_dir(Path::new(STATE))?;
    mark.save()?;
    let folder = Path::new(PROGRAM).parent().unwrap_or(Path::new("/"));
    mark.make_folder(folder)?;
    if fs::read(PROGRAM).ok().as_ref() != Some(&image.program) {
        Replacement::with_mode(0o755).write(Path::new(PROGRAM), &image.program)?;
        log(&format!("wrote {PROGRAM}"));
    }
    mark.write_config(&image.config, log)?;
    let mut words = vec!["install", "--json", "--cdi"];
    words.extend(targets);
    let done: Done = asked(&words)?;
    mark.run_all(done, log)?;
    // Those that are stored stay: NICs that containers hold would be missing in new ones. After a
    // boot a unit of systemd runs the same.
    run(PROGRAM, &["prepare", "--configured", "--keep"])?;
    let stored = quietly(&["plan", "show", plan])?;
    // The node's own config file may name none.
    if !stored {
        run(PROGRAM, &["prepare", "--plan", plan])?;
    }
    run(PROGRAM, &["cdi", "generate", "--keep", "--plan", plan])
}

/// The node's engine for pods, and systemd, whose timer restores the NICs of killed containers.
fn targets() -> Result<Vec<&'static str>> {
    let found = install::found(&HostTree::new(Path::new("/"))?);
    let is_there = |target| found.iter().any(|(t, _)| *t == target);
    ensure!(
        is_there(Target::Systemd),
        ErrorClass::Refused.error("this node has no systemd, whose timer restores NICs")
    );
    let mut flags = vec!["--systemd"];
    flags.extend(is_there(Target::Containerd).then_some("--containerd"));
    flags.extend(is_there(Target::Crio).then_some("--crio"));
    ensure!(
        flags.len() > 1,
        ErrorClass::Refused.error("this node has neither containerd nor CRI-O where they belong")
    );
    Ok(flags)
}

/// Undoes [`install`]. [`ErrorClass::Locked`], and nothing is changed, while containers hold NICs.
pub fn remove(log: fn(&str)) -> Result<()> {
    let Some(mut mark) = Mark::read()? else {
        log("nothing of this image is on this node");
        return Ok(());
    };
    if Path::new(PROGRAM).exists() {
        let done: Done = asked(&["uninstall", "--json", "--leave-changed"])?;
        mark.run_all(done, log)?;
    }
    let config: Vec<PathBuf> = mark.config.keys().cloned().collect();
    for path in &config {
        mark.remove_config(path)?;
    }
    files::remove(Path::new(PROGRAM))?;
    remove_traces()?;
    // What something else has put into a folder keeps it. The kubelet makes these for the pod, or
    // the driver in it.
    let made = [CONFIG, "/etc/cdi", "/run/cdi", PLUGIN].map(Path::new);
    for folder in mark.folders.iter().rev().map(PathBuf::as_path).chain(made) {
        let _ = fs::remove_dir(folder);
    }
    files::remove(&Mark::path())?;
    let _ = fs::remove_dir(STATE);
    log("all of this image is off this node");
    Ok(())
}

/// What was archived and logged, as a package's purge does: not where another rdmaprep has NICs
/// away, or has files of engines to give back.
fn remove_traces() -> Result<()> {
    let records = Path::new(RUN).join("records");
    let has_records = records.exists() && !files::list(&records)?.is_empty();
    if has_records || Path::new(STATE).join(install::MANIFEST).exists() {
        return Ok(());
    }
    for entry in fs::read_dir(STATE).context("reading the state folder")? {
        let path = entry?.path();
        if path != Mark::path() {
            files::remove_all(&path)?;
        }
    }
    files::remove_all(Path::new(RUN))?;
    let log = Path::new(LOG);
    let (folder, name) = (log.parent(), log.file_name().and_then(|n| n.to_str()));
    let (Some(folder), Some(name)) = (folder, name) else {
        return Ok(());
    };
    for file in files::list(folder)?.iter().filter(|f| f.starts_with(name)) {
        files::remove(&folder.join(file))?;
    }
    Ok(())
}

fn command(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).env_clear().env("PATH", SEARCH);
    command.stdin(Stdio::null()).current_dir("/");
    command
}

/// What it says goes where our own lines go.
fn run(program: &str, words: &[&str]) -> Result<()> {
    let ended = command(program, words)
        .status()
        .with_context(|| format!("starting {program}"))?;
    ensure!(ended.success(), failed(program, words, ended.code()));
    Ok(())
}

fn quietly(words: &[&str]) -> Result<bool> {
    let mut command = command(PROGRAM, words);
    let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    Ok(ended.context("starting rdmaprep")?.success())
}

/// What it prints as JSON.
fn asked(words: &[&str]) -> Result<Done> {
    let output = command(PROGRAM, words)
        .stderr(Stdio::inherit())
        .output()
        .context("starting rdmaprep")?;
    ensure!(
        output.status.success(),
        failed(PROGRAM, words, output.status.code())
    );
    serde_json::from_slice(&output.stdout).context("reading what rdmaprep printed")
}

/// What went wrong is in the line above it.
fn failed(program: &str, words: &[&str], code: Option<i32>) -> anyhow::Error {
    let class = ErrorClass::ALL
        .into_iter()
        .find(|class| code == Some(class.code().into()))
        .unwrap_or(ErrorClass::Other);
    let code = code.map_or("a signal".to_owned(), |code| code.to_string());
    class.error(format!("`{program} {}` ended with {code}", words.join(" ")))
}
