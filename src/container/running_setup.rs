//! A setup as it is carried out, beside the moves of the NICs.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::Result;
use nccl_rules::conf::merge;
use rdma_model::error_class::ErrorClass;
use rdma_model::snapshot::CharDevice;

use super::budget::Budget;
use super::setup::{SetupContext, SetupNotes, SetupPlan};
use super::userspace;
use crate::config::sysfs_mode::SysfsMode;
use crate::container::apply_mounts::apply_mounts;
use crate::container::mounts::{AppliedMounts, ConfOutcome, ContainerMounts};
use crate::nccl_env::format::{self, Format};
use crate::oci::bundle::Bundle;
use crate::oci::state::State;
use crate::store::settings_files::SettingsFile;

pub struct RunningSetup {
    setup: Arc<SetupPlan>,
    done: Receiver<Result<Applied>>,
    /// What its image lacks.
    lacks: Receiver<Vec<String>>,
    /// Nothing is sent: when this is dropped the thread ends, also with a create that fails. A
    /// thread that ends beside moves makes them slower (docs/performance.md).
    until_moved: Sender<()>,
}

/// How long a container waits for a look at its libraries, which is for a note alone.
const LOOK: Duration = Duration::from_millis(100);

struct Applied {
    mounts: AppliedMounts,
    /// Why /sys was not covered, although that was tried.
    uncovered: Option<String>,
}

impl RunningSetup {
    /// Begins. The thread ends with the process at the latest: a file system of the image may keep
    /// it waiting for good.
    pub fn begin(setup: SetupPlan) -> RunningSetup {
        let setup = Arc::new(setup);
        let (sender, done) = mpsc::sync_channel(1);
        let (lacking, lacks) = mpsc::sync_channel(1);
        let (until_moved, ended) = mpsc::channel();
        let running = setup.clone();
        // Without it both channels are closed.
        let _ = Builder::new().spawn(move || {
            drop(sender.send(running.apply()));
            drop(lacking.send(running.lacking_libraries(&Budget::new(Some(&ended)))));
            let _ = ended.recv();
        });
        RunningSetup {
            setup,
            done,
            lacks,
            until_moved,
        }
    }

    /// Waits for the end, but no longer than the hook may. `of` names the file for settings that
    /// can be given in no other way.
    pub fn end(self, context: &SetupContext, of: &SettingsFile) -> (SetupNotes, Result<()>) {
        let applied =
            self.done
                .recv_timeout(time_left(context))
                .unwrap_or_else(|e| {
                    Err(match e {
                        RecvTimeoutError::Timeout => ErrorClass::Timeout
                            .error("looking at the container's root took too long"),
                        RecvTimeoutError::Disconnected => {
                            ErrorClass::Other.error("a thread did not start, or has panicked")
                        }
                    })
                });
        let mut notes = SetupNotes {
            notes: lacks_in_time(&self.lacks, time_left(context).min(LOOK)),
            ..SetupNotes::default()
        };
        // The look ends here at the latest.
        drop(self.until_moved);
        let result =
            applied.and_then(|applied| self.setup.conclude(applied, context, of, &mut notes));
        (notes, result)
    }
}

fn time_left(context: &SetupContext) -> Duration {
    context.deadline.saturating_duration_since(Instant::now())
}

fn lacks_in_time(lacks: &Receiver<Vec<String>>, patience: Duration) -> Vec<String> {
    lacks
        .recv_timeout(patience)
        .unwrap_or_else(|_| vec!["the libraries of the image were not read in time".to_owned()])
}

impl SetupPlan {
    /// What [`SysfsMode::Auto`] alone asks for and cannot be done, as where the container's /sys is
    /// not the kernel's, is left undone, with the reason.
    fn apply(&self) -> Result<Applied> {
        let ContainerMounts {
            covers,
            conf,
            hosts,
        } = &self.additions;
        let is_idle = covers.is_empty() && conf.is_empty() && hosts.is_none();
        if self.sandboxed || (is_idle && self.nodes.is_empty()) {
            let why = "nothing can be put into a sandbox any more";
            return Ok(Applied {
                mounts: self.nothing_put(&self.nodes, why),
                uncovered: None,
            });
        }
        let container = &self.bundle.container;
        let why = match apply_mounts(container, &self.additions, &self.nodes) {
            Err(e) if self.sysfs == SysfsMode::Auto => format!("{e:#}"),
            done => {
                return Ok(Applied {
                    mounts: done?,
                    uncovered: None,
                });
            }
        };
        let rest = ContainerMounts {
            covers: Vec::new(),
            conf: conf.clone(),
            hosts: hosts.clone(),
        };
        Ok(Applied {
            mounts: apply_mounts(container, &rest, &self.nodes)
                // A container that is no process of this kernel has its nodes where we cannot look.
                .unwrap_or_else(|_| self.nothing_put(&[], &why)),
            uncovered: Some(why),
        })
    }

    /// In the container's mount namespace, where this thread stays.
    fn lacking_libraries(&self, budget: &Budget) -> Vec<String> {
        if self.sandboxed || self.drivers.is_empty() {
            return Vec::new();
        }
        let Bundle { container, env, .. } = &self.bundle;
        let program = self.bundle.program.as_deref();
        userspace::container_notes(container, env, program, &self.drivers, budget)
    }

    fn nothing_put(&self, lacking: &[CharDevice], why: &str) -> AppliedMounts {
        let conf = if self.additions.conf.is_empty() {
            ConfOutcome::Nothing
        } else {
            ConfOutcome::Refused(why.to_owned())
        };
        let hosts = &self.additions.hosts;
        AppliedMounts {
            conf,
            hosts: hosts
                .as_ref()
                .map(|_| format!("no line in /etc/hosts: {why}")),
            kept: Vec::new(),
            left: Vec::new(),
            lacking: lacking.to_vec(),
        }
    }

    /// Notes what was done, writes the file where the settings could be given in no other way,
    /// and refuses a container without its device nodes.
    fn conclude(
        &self,
        Applied { mounts, uncovered }: Applied,
        context: &SetupContext,
        of: &SettingsFile,
        notes: &mut SetupNotes,
    ) -> Result<()> {
        if let Some(flags) = flags(&mounts.lacking) {
            let text = format!(
                "the container lacks device nodes: add {flags} to its engine's command, or \
                prepare its bundle"
            );
            return Err(ErrorClass::Refused.error(text));
        }
        notes.sysfs = match (uncovered, self.additions.covers.len()) {
            (Some(why), _) => Some(format!("off: {why}")),
            (None, 0) => None,
            (None, n) => Some(format!("{n} directories covered by the hook")),
        };
        notes.notes.extend(mounts.kept.iter().map(kept));
        notes.notes.extend(mounts.hosts);
        notes.settings = match &mounts.conf {
            ConfOutcome::Nothing => None,
            ConfOutcome::Merged => Some("added to the image's /etc/nccl.conf".to_owned()),
            ConfOutcome::Overlay => Some("in an /etc/nccl.conf of ours".to_owned()),
            ConfOutcome::Refused(_) if self.fills_late(context, notes)? => {
                Some("in the /etc/nccl.conf that the createContainer hook mounted".to_owned())
            }
            ConfOutcome::Refused(why) => {
                let text = format::write(&self.additions.conf, Format::Sh).0;
                let path = context.store.put_settings_file(of, &text)?;
                Some(format!("only in {} ({why}): source it", path.display()))
            }
        };
        notes.notes.extend(mounts.left.iter().map(not_given));
        Ok(())
    }

    /// Whether the settings are in the file that a createContainer hook has mounted in the sandbox.
    fn fills_late(&self, context: &SetupContext, notes: &mut SetupNotes) -> Result<bool> {
        if !self.sandboxed {
            return Ok(false);
        }
        let State { id, bundle, .. } = context.state;
        let (mut kept_lines, mut left) = (Vec::new(), Vec::new());
        let filled = context.store.fill_late_conf(id, bundle, |image| {
            let merged = merge(image, &self.additions.conf);
            (kept_lines, left) = (merged.kept, merged.left);
            if merged.added.is_empty() {
                image.to_vec()
            } else {
                merged.bytes
            }
        })?;
        notes.notes.extend(kept_lines.iter().map(kept));
        notes.notes.extend(left.iter().map(not_given));
        Ok(filled)
    }
}

fn kept(line: impl Display) -> String {
    format!("{line} of the image's /etc/nccl.conf stays")
}

fn not_given(left: impl Display) -> String {
    format!("not given to the container: {left}")
}

/// `--device` for each node.
fn flags(lacking: &[CharDevice]) -> Option<String> {
    let mut flags = Vec::new();
    for d in lacking {
        let (name, major, minor) = (&d.name, d.major, d.minor);
        flags.push(format!("--device /dev/infiniband/{name} ({major}:{minor})"));
    }
    (!flags.is_empty()).then(|| flags.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_is_late_says_nothing_of_the_image() {
        let (lacking, lacks) = mpsc::sync_channel(1);
        let late = ["the libraries of the image were not read in time"];
        assert_eq!(lacks_in_time(&lacks, Duration::ZERO), late);
        // A budget that is spent.
        lacking.send(Vec::new()).unwrap();
        assert!(lacks_in_time(&lacks, LOOK).is_empty());
    }
}
