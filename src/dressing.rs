//! What of a plan reaches a container besides its NICs: the filtered /sys, NCCL's settings, device nodes. What config.json was
//! not told before the runtime read it, the create hook does in the container's mount namespace, while the NICs move.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Instant;

use anyhow::Result;

use crate::bundle::Bundle;
use crate::fault::{Fault, WithFault};
use crate::flow::view_of;
use crate::hook::Hook;
use crate::outfit::{Cover, Dressed, Given, Outfit};
use crate::plan::{EnvVar, Plan};
use crate::report::Report;
use crate::snapshot::CharDevice;
use crate::step::Side;
use crate::tree::Tree;
use crate::view::{self, Sysfs};
use crate::world::dress::dress;
use crate::world::{Live, Scope, World, files, handle};

/// What is to be put on a container.
pub struct Fitting {
    bundle: Bundle,
    outfit: Outfit,
    /// Device nodes that config.json does not have: the engine may have made them in another way.
    nodes: Vec<CharDevice>,
    sysfs: Sysfs,
    /// A runtime with a kernel of its own: nothing can be put into it any more.
    sandboxed: bool,
}

/// Finds out what is lacking. Nothing where there is no config.json, which a hook that is called by hand may not have.
pub fn fit(hook: &Hook, plan: &Plan, pid: i32, live: &mut Live, report: &mut Report) -> Result<Option<Fitting>> {
    let dir = Path::new(&hook.state.bundle);
    let path = dir.join("config.json");
    let text = if dir.is_absolute() { files::read(&path).fault(Fault::State, "reading the bundle")? } else { None };
    let Some(text) = text else {
        let why = format!("{} cannot be read", path.display());
        off(plan.sysfs, &why, report)?;
        return Ok(None);
    };
    let bundle = Bundle::parse(&text, dir, pid).fault(Fault::State, format!("reading {}", path.display()))?;
    // gVisor's gofer has gone to its root before this moment, and its sentry has a /sys of its own.
    let sandboxed = handle::parent_program().is_some_and(|name| name.starts_with("runsc"));
    let sysfs = if sandboxed && plan.sysfs == Sysfs::Auto && !bundle.has_view { Sysfs::Off } else { plan.sysfs };
    let mut fitting =
        Fitting { nodes: bundle.lacking(&plan.devices), bundle, outfit: Outfit::default(), sysfs, sandboxed };
    fitting.outfit.conf = plan.env.iter().filter(|v| !fitting.bundle.env.contains(&v.name)).cloned().collect();
    fitting.outfit.covers = match sysfs {
        _ if fitting.bundle.has_view => {
            report.sysfs = Some("mounted by config.json".to_owned());
            Vec::new()
        }
        Sysfs::Off if sysfs != plan.sysfs => {
            off(plan.sysfs, "the sandbox has a /sys of its own, which is settled before hooks run", report)?;
            Vec::new()
        }
        Sysfs::Off => Vec::new(),
        _ if sandboxed => {
            off(plan.sysfs, "the sandbox's /sys is settled before hooks run: prepare its bundle", report)?;
            Vec::new()
        }
        _ => covers(plan, view(hook, plan, live)?),
    };
    Ok(Some(fitting))
}

/// Without a view, as far as that was asked for and not only tried.
fn off(asked: Sysfs, why: &str, report: &mut Report) -> Result<()> {
    match asked {
        Sysfs::Off => {}
        Sysfs::Auto => report.sysfs = Some(format!("off: {why}")),
        Sysfs::Live | Sysfs::Snapshot => return Err(Fault::Refused.error(format!("--sysfs: {why}"))),
    }
    Ok(())
}

/// The stored view, or one from a fresh look where none was stored, or the plan was narrowed since.
fn view(hook: &Hook, plan: &Plan, live: &mut Live) -> Result<Option<Tree>> {
    let stored = plan.view.as_ref().map(|name| hook.store.view(name)).transpose()?.flatten();
    if stored.is_some() {
        return Ok(stored);
    }
    let seen = live.observe(Side::Host, &Scope::full())?;
    view_of(plan, &seen, live)
}

fn covers(plan: &Plan, view: Option<Tree>) -> Vec<Cover> {
    let below = |mut cover: Cover| {
        cover.at = format!("sys/{}", cover.at);
        cover
    };
    match view {
        None => Vec::new(),
        Some(tree) if plan.sysfs == Sysfs::Snapshot => vec![Cover { at: "sys".to_owned(), tree }],
        Some(tree) => view::covers(&tree).into_iter().map(below).collect(),
    }
}

/// A container that is being dressed on a thread of its own.
pub struct Dressing {
    fitting: Arc<Fitting>,
    done: Receiver<Result<Put>>,
}

/// What was put on, and why /sys was not covered although that was tried.
type Put = (Dressed, Option<String>);

impl Dressing {
    /// Begins. The thread ends with the process at the latest: a file system of the image may keep it waiting for good.
    pub fn begin(fitting: Fitting) -> Dressing {
        let fitting = Arc::new(fitting);
        let (tell, done) = mpsc::sync_channel(1);
        let own = fitting.clone();
        std::thread::spawn(move || drop(tell.send(own.put_on())));
        Dressing { fitting, done }
    }

    /// Waits for the end, but no longer than the hook may.
    pub fn end(self, hook: &Hook, netns: u64, report: &mut Report) -> Result<()> {
        let left = hook.deadline.saturating_duration_since(Instant::now());
        let put = self.done.recv_timeout(left).map_err(|e| match e {
            RecvTimeoutError::Timeout => Fault::Timeout.error("looking at the container's root took too long"),
            RecvTimeoutError::Disconnected => Fault::Other.error("a thread panicked"),
        })?;
        self.fitting.conclude(put?, hook, netns, report)
    }
}

impl Fitting {
    /// Does it. What was only tried for [`Sysfs::Auto`] and cannot be done, as where the container's /sys is not the kernel's, is
    /// left undone, with the reason.
    fn put_on(&self) -> Result<Put> {
        let Outfit { covers, conf } = &self.outfit;
        if self.sandboxed || (covers.is_empty() && conf.is_empty() && self.nodes.is_empty()) {
            let given = if conf.is_empty() { Given::Nothing } else { Given::Refused("it is a sandbox".to_owned()) };
            let lacking = self.nodes.clone();
            return Ok((Dressed { conf: given, kept: Vec::new(), left: Vec::new(), lacking }, None));
        }
        let wearer = &self.bundle.wearer;
        match dress(wearer, &self.outfit, &self.nodes) {
            Err(e) if self.sysfs == Sysfs::Auto && !covers.is_empty() && Fault::of(&e) == Fault::Refused => {
                let rest = Outfit { covers: Vec::new(), conf: conf.clone() };
                Ok((dress(wearer, &rest, &self.nodes)?, Some(format!("{e:#}"))))
            }
            done => Ok((done?, None)),
        }
    }

    /// Tells what was done, writes the profile where the settings could be given in no other way, and refuses a container
    /// without its device nodes.
    fn conclude(&self, (dressed, bare): Put, hook: &Hook, netns: u64, report: &mut Report) -> Result<()> {
        if let Some(flags) = flags(&dressed.lacking) {
            let text =
                format!("the container lacks device nodes: add {flags} to its engine's command, or prepare its bundle");
            return Err(Fault::Refused.error(text));
        }
        report.sysfs = match (bare, self.outfit.covers.len()) {
            (Some(why), _) => Some(format!("off: {why}")),
            (None, 0) => report.sysfs.take(),
            (None, n) => Some(format!("{n} directories covered by the hook")),
        };
        let kept = dressed.kept.iter().map(|line| format!("{line} of the image's /etc/nccl.conf stays"));
        report.notes.extend(kept);
        let rest: Vec<&EnvVar> = match &dressed.conf {
            Given::Refused(_) => self.outfit.conf.iter().collect(),
            _ => Vec::new(),
        };
        report.settings = match &dressed.conf {
            Given::Nothing => None,
            Given::Merged => Some("added to the image's /etc/nccl.conf".to_owned()),
            Given::Overlay => Some("in an /etc/nccl.conf of ours".to_owned()),
            Given::Refused(why) => {
                let path = hook.store.profile(netns);
                files::replace(&path, profile(&rest).as_bytes(), 0o644)?;
                Some(format!("only in {} ({why}): source it", path.display()))
            }
        };
        report.notes.extend(dressed.left.iter().map(|left| format!("not given to the container: {left}")));
        Ok(())
    }
}

/// `--device` for each node.
fn flags(lacking: &[CharDevice]) -> Option<String> {
    let flag = |d: &CharDevice| format!("--device /dev/infiniband/{} ({}:{})", d.name, d.major, d.minor);
    (!lacking.is_empty()).then(|| lacking.iter().map(flag).collect::<Vec<_>>().join(" "))
}

/// For a shell: every value in quotes that nothing is expanded in.
fn profile(settings: &[&EnvVar]) -> String {
    let line = |v: &&EnvVar| format!("export {}='{}'\n", v.name, v.value.replace('\'', "'\\''"));
    settings.iter().map(line).collect()
}
