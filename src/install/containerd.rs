//! containerd: a runtime of its CRI plugin, for a RuntimeClass. `ctr` and `nerdctl` need no file,
//! they name the runtime themselves. By `containerd config dump` of 1.6.20 and 1.7.24, a plugin's
//! section of an imported file takes the place of the whole section in config.toml, also of what is
//! written there later, and `runtimes` in a file takes the place of the runtimes that are built in.
//! So their config.toml is edited itself. 2.0 merges sections (containerd#9982), and takes no
//! imported file of a higher version than config.toml's.

use anyhow::{Result, ensure};
use rdma_model::error_class::ErrorClass;

use super::configured::{Config, Ours, drop_in, edited};
use super::cri::default_runtime;
use super::daemon::{self, Daemon};
use super::{Ground, InstallRequest, NAME, Part, about, distribution, imports};

pub(super) const DROP_IN: &str = "/etc/containerd/conf.d/rdmaprep.toml";

pub(super) fn part(wanted: &InstallRequest, ground: &Ground) -> Result<Part> {
    let ours = Ours::new(wanted, ground)?;
    let mut all = Part::default();
    let (there, absent): (Vec<Daemon>, Vec<Daemon>) = Daemon::of(ground.tree)
        .into_iter()
        .partition(|daemon| *daemon == Daemon::Own || ground.tree.exists(&daemon.config()));
    for daemon in &absent {
        let text = format!(
            "{} is not there: {} writes it when it starts, unless it has another data folder or \
            engine; start it, then run this again",
            daemon.config(),
            daemon.name()
        );
        let is_only = there.is_empty() && !wanted.targets.iter().any(|t| t.is_other_engine());
        ensure!(!is_only, ErrorClass::Refused.error(text));
        all.notes.push(text);
    }
    for daemon in there {
        let part = match daemon {
            Daemon::Own => own(&ours, ground)?,
            Daemon::K3s | Daemon::Rke2 => distribution::rendered(daemon, &ours, ground)?,
            Daemon::K0s => distribution::k0s(&ours, ground)?,
            Daemon::Microk8s => edited(Config::written(daemon, ground)?, &ours, false)?,
        };
        all.pieces.extend(part.pieces);
        all.notes.extend(part.notes);
    }
    Ok(all)
}

/// The one that is installed by itself.
fn own(ours: &Ours, ground: &Ground) -> Result<Part> {
    let mut config = Config::read(Daemon::Own, ground)?;
    config.others.retain(|(path, _)| path != DROP_IN);
    let without = config.all().find(|(_, d)| config.main.is_without_cri(d));
    if let Some((by, _)) = without {
        let note = format!(
            "{by} disables the CRI plugin: there is nothing to tell containerd; name the runtime \
            to ctr or nerdctl"
        );
        return Ok(Part {
            notes: vec![note],
            ..Part::default()
        });
    }
    config.main.is_known(&config.path)?;
    let known = config.known();
    let mut notes = config.notes(&known);
    let is_second = daemon::is_second(ground.tree);
    let lacks_cdi = known.cdi != Some(true) && config.main.replaces();
    if is_second == Some(false) && lacks_cdi {
        notes.push(format!(
            "containerd 1.7 gives containers CDI devices only with enable_cdi = true below \
            [plugins.{:?}] of {}, and 1.6 none",
            config.main.plugin, config.path
        ));
    }
    if config.main.replaces() {
        let part = edited(config, ours, is_second == Some(true))?;
        return Ok(Part { notes, ..part });
    }
    if config.has(ours) {
        return Ok(ours.part(None, notes));
    }
    config.is_free()?;
    let drop_in = drop_in(DROP_IN, &config.main, ours, &known)?;
    config.main.import(DROP_IN).map_err(about(&config.path))?;
    Ok(ours.part([Some(drop_in), config.piece()].into_iter().flatten(), notes))
}

/// The file that still imports our drop-in by its name: containerd would not start without that.
pub(super) fn importer(ground: &Ground) -> Result<Option<String>> {
    let config = Config::read(Daemon::Own, ground)?;
    let mut all = config.all();
    let found = all.find(|(path, document)| imports::by_name(path, document, DROP_IN));
    Ok(found.map(|(path, _)| path.to_owned()))
}

/// The file that still has one of our runtimes, by other hands than `install`'s.
pub(super) fn caller(ground: &Ground, runtimes: &[&str]) -> Result<Option<String>> {
    for daemon in Daemon::of(ground.tree) {
        let config = Config::read(daemon, ground)?;
        let found = match daemon {
            Daemon::Own | Daemon::Microk8s => config.caller(runtimes),
            _ => distribution::caller(&config, ground, runtimes)?,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The file that makes our runtime the default one, less what an installation put there.
pub(super) fn named(ground: &Ground) -> Result<Option<String>> {
    for daemon in Daemon::of(ground.tree) {
        let config = Config::read(daemon, ground)?;
        let default = |document| config.main.section_of(document).and_then(default_runtime);
        let found = config.all().find(|(_, d)| default(d) == Some(NAME));
        if let Some((path, _)) = found {
            let by = distribution::source(daemon, path, ground)?;
            return Ok(Some(by.unwrap_or_else(|| path.to_owned())));
        }
    }
    Ok(None)
}
