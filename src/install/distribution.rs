//! Distributions of Kubernetes that write their containerd's file themselves: which files of others
//! they take, and which of these count.

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use toml_edit::DocumentMut;

use super::configured::{Config, OURS, Ours, drop_in, edited, sections};
use super::cri::{Known, Main};
use super::daemon::Daemon;
use super::{Ground, NAME, Part, Paste, Piece, about, imports, toml_document};

/// A line of a file that k0s writes itself, so that drop-ins count: the first one, from 1.30 on.
const K0S_OWN: &str = "# k0s_managed=true";
/// What a template of k3s and rke2 begins with to add to theirs, from September 2023 on.
const BASE: &str = r#"{{ template "base" . }}"#;
/// The templates that k3s and rke2 look for, and what their own one of that name is of: the first
/// one that is there counts (writeContainerdConfig() in pkg/agent/containerd/config.go of k3s).
const TEMPLATES: [(&str, i64); 2] = [("config-v3.toml.tmpl", 3), ("config.toml.tmpl", 2)];

/// k3s and rke2 make the file at each start, from a template. Those of 2026 import a folder of
/// drop-ins (k3s#13680); in older ones a template of the administrator's takes the place of theirs.
pub(super) fn rendered(daemon: Daemon, ours: &Ours, ground: &Ground) -> Result<Part> {
    let config = Config::written(daemon, ground)?;
    let known = config.known();
    let notes = config.notes(&known);
    // The file has a runtime already, that of the base.
    let known = Known { any: true, ..known };
    let name = match config.main.replaces() {
        true => "config.toml",
        false => "config-v3.toml",
    };
    let in_folder = daemon.within(&format!("{name}.d/rdmaprep.toml"));
    let imports = imports::surely(&daemon.config(), &config.main.document, &in_folder);
    // With containerd 1, a section in another file takes the place of all of k3s' own.
    let drop_ins = imports && !config.main.replaces();
    let template = Template::of(daemon, ground)?;
    if let Some(template) = &template {
        let is_read = template.is_read(&config.main, drop_ins.then_some(&in_folder));
        ensure!(is_read, template.unread(daemon, ""));
    }
    if drop_ins {
        if is_in_drop_ins(&config, ours, ground)? {
            return Ok(ours.part(None, notes));
        }
        let piece = drop_in(&in_folder, &config.main, ours, &known)?;
        return Ok(ours.part([piece], notes));
    }
    if config.is_in_another(ours, &known)? {
        return Ok(ours.part(None, notes));
    }
    let lines = sections(&config.main, ours, &known)?;
    let Some(template) = template else {
        let path = daemon.within(&format!("{name}.tmpl"));
        let text = format!("{BASE}\n\n{OURS}\n{lines}");
        return Ok(ours.part([Piece::whole_file(path, text)], notes));
    };
    // The administrator may have added it.
    if config.main.names(&config.main.document, &ours.path) {
        return Ok(ours.part(None, notes));
    }
    let is_told = template.text.contains(&ours.path);
    ensure!(
        !is_told,
        template.unread(daemon, &format!(" says of {NAME}"))
    );
    let by = daemon.name();
    let path = &template.path;
    let text = format!("{path} is not rdmaprep's: add this to it, and restart {by}");
    Err(Paste(lines)).class(ErrorClass::Refused, text)
}

/// k0s merges what is in its folder of drop-ins, and watches that, unless the administrator has
/// made the file his own.
pub(super) fn k0s(ours: &Ours, ground: &Ground) -> Result<Part> {
    let config = Config::written(Daemon::K0s, ground)?;
    if !is_k0s_own(&config.text) {
        is_kept(&config)?;
        return edited(config, ours, false);
    }
    let known = config.known();
    let notes = config.notes(&known);
    if is_in_drop_ins(&config, ours, ground)? {
        return Ok(ours.part(None, notes));
    }
    let known = Known { any: true, ..known };
    let path = Daemon::K0s.within("containerd.d/rdmaprep.toml");
    Ok(ours.part([drop_in(&path, &config.main, ours, &known)?], notes))
}

/// k0s writes the CRI plugin's section to a file in /run only where it writes the main file, too
/// (setupConfig() in pkg/component/worker/containerd/component.go).
fn is_kept(config: &Config) -> Result<()> {
    let mut others = config.others.iter();
    let lost =
        others.find(|(path, d)| path.starts_with("/run/") && config.main.section_of(d).is_some());
    let Some((lost, _)) = lost.filter(|_| config.main.replaces()) else {
        return Ok(());
    };
    let (path, folder) = (&config.path, Daemon::K0s.within("containerd.d"));
    Err(ErrorClass::Refused.error(format!(
        "{path} is not k0s' own any more, so k0s does not write {lost}, which that imports, and \
        which is gone after a boot: move what you have added to files in {folder}, begin {path} \
        with the line `{K0S_OWN}`, restart k0s, then run this again"
    )))
}

fn is_k0s_own(text: &str) -> bool {
    text.lines().any(|line| line == K0S_OWN)
}

/// Whether the administrator has a drop-in with our runtime. [`ErrorClass::Refused`] where he has
/// another one of that name, or one that containerd does not take.
fn is_in_drop_ins(config: &Config, ours: &Ours, ground: &Ground) -> Result<bool> {
    let all = drop_ins(config, ground)?;
    if all.iter().any(|(_, d)| config.main.names(d, &ours.path)) {
        return Ok(true);
    }
    for (path, document) in &all {
        config.main.takes(&config.path, path, document)?;
        config.main.lacks_ours(path, document)?;
    }
    Ok(false)
}

/// The drop-ins that are not ours, in the order in which they count.
fn drop_ins(config: &Config, ground: &Ground) -> Result<Vec<(String, DocumentMut)>> {
    let folder = config.daemon.within(match config.daemon {
        Daemon::K0s => "containerd.d",
        _ if config.main.replaces() => "config.toml.d",
        _ => "config-v3.toml.d",
    });
    let mut all = Vec::new();
    for name in ground.tree.list(&folder)? {
        let path = format!("{folder}/{name}");
        if !name.ends_with(".toml") {
            continue;
        }
        if let Some(text) = ground.text(&ground.tree.followed(&path)?)? {
            all.push((path.clone(), toml_document(&text).map_err(about(&path))?));
        }
    }
    Ok(all)
}

/// A template that is not ours.
struct Template {
    path: String,
    text: String,
    /// Of the base that it may add to.
    version: i64,
}

impl Template {
    /// The one that counts.
    fn of(daemon: Daemon, ground: &Ground) -> Result<Option<Template>> {
        Ok(Template::all(daemon, ground)?.into_iter().next())
    }

    /// Where a link leads is read, as the distribution does.
    fn all(daemon: Daemon, ground: &Ground) -> Result<Vec<Template>> {
        let mut all = Vec::new();
        for (name, version) in TEMPLATES {
            let path = daemon.within(name);
            if let Some(text) = ground.text(&ground.tree.followed(&path)?)? {
                all.push(Template {
                    path,
                    text,
                    version,
                });
            }
        }
        Ok(all)
    }

    /// Whether the file was made from it, as far as that can be seen: it is of the same version,
    /// and still imports the folder of a drop-in.
    fn is_read(&self, main: &Main, drop_in: Option<&String>) -> bool {
        if self.text.contains("\"base\"") {
            return self.version == main.version;
        }
        let mut lines = self.text.lines();
        let version = lines.find_map(|line| {
            let value = line.trim().strip_prefix("version")?.trim_start();
            value.strip_prefix('=')?.trim().parse::<i64>().ok()
        });
        let folder = drop_in.and_then(|path| path.rsplit_once('/'));
        let folder = folder.and_then(|(folder, _)| folder.rsplit('/').next());
        version.is_none_or(|version| version == main.version)
            && folder.is_none_or(|folder| self.text.contains(folder))
    }

    fn unread(&self, daemon: Daemon, what: &str) -> anyhow::Error {
        let (by, path) = (daemon.name(), &self.path);
        ErrorClass::Refused.error(match what {
            "" => format!("{by} has not read {path} yet: restart it, then run this again"),
            what => {
                format!("{by} has not read yet what {path}{what}: restart it, then run this again")
            }
        })
    }
}

/// The file that still has one of our runtimes, by other hands than `install`'s, of a distribution
/// whose main file is made again.
pub(super) fn caller(
    config: &Config,
    ground: &Ground,
    runtimes: &[&str],
) -> Result<Option<String>> {
    let daemon = config.daemon;
    if daemon == Daemon::K0s && !is_k0s_own(&config.text) {
        return Ok(config.caller(runtimes));
    }
    let all = drop_ins(config, ground)?.into_iter();
    let mut calls = all.filter(|(_, d)| runtimes.iter().any(|one| config.main.names(d, one)));
    if let Some((path, _)) = calls.next() {
        return Ok(Some(path));
    }
    if daemon == Daemon::K0s {
        return Ok(None);
    }
    let mut all = Template::all(daemon, ground)?.into_iter();
    let calls = all.find(|t| runtimes.iter().any(|one| t.text.contains(one)));
    Ok(calls.map(|template| template.path))
}

/// Where to change what a file of a daemon's says that it makes again.
pub(super) fn source(daemon: Daemon, path: &str, ground: &Ground) -> Result<Option<String>> {
    if !matches!(daemon, Daemon::K3s | Daemon::Rke2) || path != daemon.config() {
        return Ok(None);
    }
    Ok(Template::of(daemon, ground)?.map(|template| template.path))
}
