//! `rdmaprep install` and `rdmaprep uninstall`: every file is decided before the first is written.

mod site;

use rdma_model::values::PlanName;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::escape::is_plain;
use rdma_model::snapshot::Netdev;

use super::{host_for_return, say, store};
use crate::cli::{Global, InstallArgs, TargetArgs, TreeArgs, UninstallArgs};
use crate::config::host::{Host, STATE};
use crate::disk::files;
use crate::disk::host_tree::ReadTree;
use crate::install::{self, Command, InstallRequest, MANIFEST, Nic, Target};
use crate::kernel::process::{capabilities, runtime_users};
use crate::link_managers::{self, Managers, networkd_config};
use crate::record::{Record, short_id};
use crate::report::{self, Installed};
use site::Site;

pub(super) fn install(global: &Global, args: &InstallArgs) -> Result<()> {
    require_root(&args.tree)?;
    let host = host(global, &args.tree)?;
    let site = Site::new(&args.tree, &state_dir(global, host.as_ref()))?;
    let found = install::found(&site.etc);
    let (program, mut notes) = program(args, &site)?;
    let mut targets = targets(&args.targets, &found)?;
    // Where that target was found, not named, no one has asked to end what is kept off NICs.
    if args.ifaces.is_empty()
        && !args.targets.network_managers
        && !install::unmanaged::kept_off(&site.etc)?.is_empty()
    {
        targets.retain(|target| *target != Target::NetworkManagers);
    }
    let nics = args
        .ifaces
        .iter()
        .flat_map(|names| names.split([',', ' ']))
        .filter(|name| !name.is_empty());
    let nics = nics.map(|name| nic(name, site.is_host));
    let root = args.tree.root.as_deref().unwrap_or(Path::new("/"));
    let wanted = InstallRequest {
        program,
        default_runtime: args.default_runtime,
        nics: nics.collect::<Result<_>>()?,
        command: command(args)?,
        cdi: args.cdi,
        textfile: textfile(args.textfile.as_deref(), &targets)?,
        rule_without_priority: networkd_config::rule_without_priority(root),
        targets,
    };
    if wanted.targets.contains(&Target::NetworkManagers) && site.is_host {
        have_no_manager(&wanted.nics)?;
    }
    let mut installation = install::install(&wanted, &site.etc, &site.manifest)?;
    if wanted.targets.contains(&Target::NetworkManagers) && site.is_host {
        notes.extend(wanted.nics.iter().filter_map(managed));
        notes.extend(absent(&wanted.nics));
    }
    installation.notes.append(&mut notes);
    let goes = |path: &str| {
        installation
            .changes
            .iter()
            .any(|c| c.path == path && c.after.is_none())
    };
    if site.is_host
        && installation
            .changes
            .iter()
            .any(|c| install::is_runtime(&c.path) && goes(&c.path))
    {
        nobody_calls(goes)?;
    }
    if !args.tree.dry_run {
        site.tidy()?;
    }
    if !args.tree.dry_run
        && (!installation.changes.is_empty() || installation.manifest != site.manifest)
    {
        site.install(&installation)?;
    }
    let done = Installed::new(
        &wanted.targets,
        &found,
        &installation.changes,
        &installation.notes,
        &installation.next,
    );
    print_outcome(&args.tree, &done)
}

pub(super) fn uninstall(global: &Global, args: &UninstallArgs) -> Result<()> {
    require_root(&args.tree)?;
    let host = host(global, &args.tree)?;
    let site = Site::new(&args.tree, &state_dir(global, host.as_ref()))?;
    let (_lock, waits) = match &host {
        Some(host) => no_nic_is_away(host)?,
        None => (None, Vec::new()),
    };
    if site.is_host {
        nobody_calls(install::is_runtime)?;
    }
    let removal = install::uninstall(&site.manifest, &site.etc, args.leave_changed)?;
    if !args.tree.dry_run {
        site.tidy()?;
        site.change(&removal.done.changes)?;
        if !site.manifest.is_empty() {
            site.settle(&removal.done.manifest)?;
        }
    }
    let left = removal.left.join("; ");
    let note =
        (args.leave_changed && !left.is_empty()).then(|| format!("changed since and left: {left}"));
    let mut notes = removal.done.notes.clone();
    notes.extend(note.into_iter().chain(waits));
    let done = Installed {
        left: &removal.left,
        ..Installed::new(&[], &[], &removal.done.changes, &notes, &removal.done.next)
    };
    print_outcome(&args.tree, &done)?;
    if removal.left.is_empty() || args.leave_changed {
        return Ok(());
    }
    Err(ErrorClass::Incomplete.error(format!(
        "changed since and left: {left}; take that out, and run this again; or leave it as it is \
        for good, by `rdmaprep uninstall --leave-changed`"
    )))
}

/// As every command says it. Root itself needs no capability for files: in the build of an image it
/// may have none.
fn require_root(args: &TreeArgs) -> Result<()> {
    let root = args.root.as_deref().unwrap_or(Path::new("/"));
    if root == Path::new("/") && !args.dry_run && !files::is_root() {
        capabilities::require()?;
    }
    Ok(())
}

/// Engines call a runtime by its path as long as they know a container of it, to kill or to remove
/// it. Records know just those with NICs.
fn nobody_calls(path: impl Fn(&str) -> bool) -> Result<()> {
    let calls = runtime_users::users(Path::new("/"))
        .into_iter()
        .filter(|user| path(&user.runtime));
    let calls: Vec<String> = calls
        .map(|user| format!("{} ({})", user.container, user.runtime))
        .collect();
    ensure!(
        calls.is_empty(),
        ErrorClass::Locked.error(format!(
            "engines need the runtime of containers: remove {} first",
            calls.join(", ")
        ))
    );
    Ok(())
}

fn print_outcome(args: &TreeArgs, done: &Installed) -> Result<()> {
    let done = Installed {
        dry_run: args.dry_run,
        ..done.clone()
    };
    say(&if args.json {
        report::json(&done)?
    } else {
        done.text()
    })
}

/// The host's config file says where records are; another tree's is not read.
fn host(global: &Global, args: &TreeArgs) -> Result<Option<Host>> {
    if args.root.is_some() {
        return Ok(None);
    }
    host_for_return(global).map(Some)
}

fn state_dir(global: &Global, host: Option<&Host>) -> PathBuf {
    let Some(Host {
        state_dir: named, ..
    }) = host
    else {
        let named = global.state_dir.clone();
        return named.unwrap_or_else(|| PathBuf::from(STATE));
    };
    // The config file may have come to name another folder since.
    let is_there = |folder: &Path| folder.join(MANIFEST).exists();
    let earlier = global.state_dir.is_none() && !is_there(named) && is_there(Path::new(STATE));
    if earlier {
        PathBuf::from(STATE)
    } else {
        named.clone()
    }
}

/// Fails if containers hold NICs: they need the hooks, the units and the program to return them.
/// While the lock is held, no hook can move a NIC. A sentence for each NIC that is back, and waits
/// for its manager.
fn no_nic_is_away(host: &Host) -> Result<(Option<files::Lock>, Vec<String>)> {
    let store = store(host);
    let lock = match host.run_dir.exists() {
        true => Some(store.lock(Instant::now() + host.lock_timeout)?),
        false => None,
    };
    let records = store.all_records()?;
    let is_back =
        |(_, record): &&(PathBuf, Result<Record>)| record.as_ref().is_ok_and(Record::is_back);
    let away = records.iter().filter(|record| !is_back(record));
    let holders = away.map(|(path, record)| match record {
        Ok(record) => record
            .members
            .first()
            .map_or_else(|| record.netns.to_string(), |m| short_id(&m.id).to_owned()),
        Err(_) => path.display().to_string(),
    });
    let holders: Vec<String> = holders.collect();
    if holders.is_empty() {
        let back = records.iter().filter(is_back);
        let waits = back.flat_map(|(_, record)| record.iter().flat_map(|r| &r.waits_for));
        let waits = waits
            .map(|why| format!("{why}: `rdmaprep restore --all` alone puts back what it lacks"));
        return Ok((lock, waits.collect()));
    }
    Err(ErrorClass::Locked.error(format!(
        "containers hold NICs: {}: stop them, or take their NICs away from them (`rdmaprep \
        restore --all`); then run `rdmaprep uninstall` again",
        holders.join(", ")
    )))
}

fn targets(args: &TargetArgs, found: &[(Target, &str)]) -> Result<Vec<Target>> {
    let named = Target::ALL.into_iter().filter(|target| {
        args.all
            || match target {
                Target::Podman => args.podman,
                Target::Crio => args.crio,
                Target::Docker => args.docker,
                Target::Containerd => args.containerd,
                Target::Systemd => args.systemd,
                Target::NetworkManagers => args.network_managers,
            }
    });
    let mut named: Vec<Target> = named.collect();
    // CRI-O calls poststop when a pod is removed, which may be days after its end: the timer
    // restores NICs before that.
    let is_kubernetes = named
        .iter()
        .any(|t| matches!(t, Target::Crio | Target::Containerd));
    if is_kubernetes
        && !named.contains(&Target::Systemd)
        && found.iter().any(|(t, _)| *t == Target::Systemd)
    {
        named.push(Target::Systemd);
    }
    let targets = if named.is_empty() {
        found.iter().map(|(target, _)| *target).collect()
    } else {
        named
    };
    ensure!(
        !targets.is_empty(),
        ErrorClass::Usage.error(format!(
            "no engine was found on this host: give at least one of {}",
            Target::ALL.map(|t| format!("--{t}")).join(", ")
        ))
    );
    Ok(targets)
}

fn program(args: &InstallArgs, site: &Site) -> Result<(String, Vec<String>)> {
    let program = install::program(args.program.as_deref(), &site.etc)?;
    let own = std::env::current_exe().context("finding the path of rdmaprep")?;
    if !site.is_host || site.etc.exists(&program) {
        return Ok((program, Vec::new()));
    }
    let missing = format!(
        "there is no {program} for hooks to call: install -m 755 {} {program}",
        own.display()
    );
    ensure!(args.tree.dry_run, ErrorClass::Usage.error(missing));
    Ok((program, vec![missing]))
}

fn command(args: &InstallArgs) -> Result<Option<Command>> {
    let Some(regex) = &args.command else {
        return Ok(None);
    };
    let good = regex::Regex::new(regex).is_ok();
    ensure!(
        good,
        ErrorClass::Usage.error(format!("--command {regex:?} does not compile"))
    );
    let plan: PlanName = args.plan.parse().class(ErrorClass::Usage, "--plan")?;
    Ok(Some(Command {
        regex: regex.clone(),
        plan: plan.to_string(),
    }))
}

/// The file for metrics, which stands in a unit's command.
fn textfile(file: Option<&Path>, targets: &[Target]) -> Result<Option<String>> {
    let Some(file) = file else { return Ok(None) };
    let wrong = |why: &str| ErrorClass::Usage.error(format!("--textfile: {why}"));
    ensure!(
        targets.contains(&Target::Systemd),
        wrong("its timer is systemd's: add --systemd")
    );
    let name = file.to_str().filter(|name| is_plain(name, b"/-_.+"));
    let name = name.filter(|_| file.is_absolute());
    let name = name.filter(|name| name.ends_with(".prom"));
    let name = name.ok_or_else(|| {
        let shown = file.display();
        wrong(&format!(
            "{shown}: node_exporter reads a file whose absolute path ends with .prom, and has \
            letters, digits and -_.+ alone"
        ))
    })?;
    Ok(Some(name.to_owned()))
}

/// A NIC of `--ifaces`; by its place, too, where nothing else is there.
fn nic(name: &str, is_host: bool) -> Result<Nic> {
    let name: rdma_model::ids::IfName = name.parse().class(ErrorClass::Usage, "--ifaces")?;
    let pci = is_host
        .then(|| link_managers::own_function(Path::new("/"), &name))
        .flatten();
    Ok(Nic { name, pci })
}

/// A NIC that a manager is kept off has no address after the next boot, where that manager gave it.
fn have_no_manager(nics: &[Nic]) -> Result<()> {
    let root = Path::new("/");
    let mut managers = Managers::of(root);
    for nic in nics {
        let Some(index) = link_managers::index(root, &nic.name) else {
            continue;
        };
        let link = Netdev::new(nic.name.clone(), index);
        if let Some(by) = managers.has_configured(&link) {
            let (name, by) = (&nic.name, by.name());
            return Err(ErrorClass::Refused.error(format!(
                "{by} gives {name} its addresses, and would not after the next boot: leave {name} \
                out of --ifaces; rdmaprep leaves to {by} what is its own"
            )));
        }
    }
    Ok(())
}

/// A container may have it, or its card may come later.
fn absent(nics: &[Nic]) -> Option<String> {
    let root = Path::new("/");
    let is_absent = |nic: &&Nic| link_managers::index(root, &nic.name).is_none();
    let names: Vec<&str> = nics
        .iter()
        .filter(is_absent)
        .map(|nic| nic.name.as_str())
        .collect();
    (!names.is_empty()).then(|| {
        format!(
            "no link of this host is named {}: see that --ifaces spells it right",
            names.join(" or ")
        )
    })
}

fn managed(nic: &Nic) -> Option<String> {
    let root = Path::new("/");
    let by = link_managers::manager_of(root, &nic.name, link_managers::index(root, &nic.name)?)
        .filter(|by| *by != "ifupdown")?;
    Some(format!(
        "{} is {by}'s now: see to it that something else gives it its address at boot",
        nic.name
    ))
}
