//! `rdmaprep hook`: a runtime's calls.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rdma_model::error_class::{ErrorClass, WithClass};

use super::config_file::{has_plan, host_for_return, host_or_default};
use super::{deadline_weight, end_report, lacks_plan, request, stdin, store, warn};
use crate::cli::{Global, HookArgs};
use crate::config::device_request::DeviceRequest;
use crate::config::host::Host;
use crate::config::request::{Request, asks_itself};
use crate::container::facts::ContainerFacts;
use crate::deadline;
use crate::disk::files;
use crate::handle::Handle;
use crate::hook::{self, Hook, Target};
use crate::kernel::ThisMachine;
use crate::kernel::netns::Netns;
use crate::kernel::process::capabilities;
use crate::oci::edit::Stage;
use crate::oci::state::{self, State};
use crate::report::Report;

/// It must not fail a container that did not opt in. Options that select NICs count at create
/// alone: which NICs return to the host, only the record decides.
pub(super) fn hook(global: &Global, args: &HookArgs) -> Result<()> {
    // crun runs hooks with umask 0.
    files::private_umask();
    // Before it reads what others wrote. In a container's user namespace this may fail: that is an
    // error only at a stage that has something to do, which is known below.
    let shed = capabilities::shed();
    let begun = Instant::now();
    let state = read_state()?;
    // Runtimes call createContainer after createRuntime, whose hook has done all. Only gVisor's
    // gofer calls it first, and there it has something to do.
    if args.stage == Stage::CreateContainer && !(state.is_of_gofer() && asks(global, args, &state))
    {
        return Ok(());
    }
    shed?;
    let call = HookCall {
        global,
        args,
        state,
        begun,
        known: Instant::now(),
    };
    let mut report = Report::new(format!("hook {}", args.stage.name()));
    report.container = Some(call.state.id.clone());
    let Some((host, result)) = (match args.stage {
        Stage::Prestart | Stage::CreateRuntime => call.create(&mut report)?,
        _ => Some(call.later(&mut report)?),
    }) else {
        return Ok(());
    };
    let store = store(&host);
    // Ids are unique only within a runtime, and a runtime that is about to refuse an id may call
    // the hooks before: the report of the container that has the id stays.
    let is_anothers = result.is_err()
        && ThisMachine::new().is_ok_and(|m| hook::has_namesake(&call.state, &store, &m));
    let id = (!is_anothers).then_some(call.state.id.as_str());
    end_report(&mut report, id, result, begun, &host, &store)
}

/// Where the report goes, and how the hook ended.
type Done = (Host, Result<()>);

struct HookCall<'a> {
    global: &'a Global,
    args: &'a HookArgs,
    state: State,
    begun: Instant,
    /// When the runtime's state was read: the deadline counts from here.
    known: Instant,
}

/// What is asked for a container: what the host gives, less what its annotations take away.
struct Asked {
    request: Request,
    facts: ContainerFacts,
}

impl HookCall<'_> {
    /// Nothing for a container that gets no NICs by this hook.
    fn create(&self, report: &mut Report) -> Result<Option<Done>> {
        let Asked { request, facts } = match self.asked() {
            Ok(Some(asked)) => asked,
            Ok(None) => return Ok(None),
            // A broken config file or a stray variable of the host must not keep every container
            // from starting.
            Err(e) if !asks(self.global, self.args, &self.state) => {
                warn(&[format!(
                    "{e:#}; a container that does not ask for NICs starts all the same"
                )]);
                return Ok(None);
            }
            // Some runtimes drop what hooks print: if it is known where the log is, that has the
            // error as well.
            Err(e) => {
                let Ok(host) = host_for_return(self.global) else {
                    return Err(e);
                };
                return Ok(Some((host, Err(e))));
            }
        };
        let (store, machine) = (store(&request.host), ThisMachine::new()?);
        let store = store.with_handles(handles(&self.args.handles));
        let wait = match self.args.wait {
            Some(seconds) => Duration::from_secs(seconds.into()),
            None => request.host.hook_wait,
        };
        let deadline = self.deadline(|| deadline_weight(&request, &store));
        let target = Target::Container(&facts);
        let hook = Hook::new(target, &self.state, &store, &machine, self.begun);
        let hook = hook.until(deadline, Instant::now() + wait);
        let result = hook::create(&hook, &request, report);
        Ok(Some((request.host, result)))
    }

    /// All but the create.
    fn later(&self, report: &mut Report) -> Result<Done> {
        let host = host_or_default(self.global);
        let (store, machine) = (store(&host), ThisMachine::new()?);
        let facts = ContainerFacts::default();
        let target = Target::Container(&facts);
        let hook = Hook::new(target, &self.state, &store, &machine, self.begun);
        let deadline = self.deadline(|| hook.deadline_weight());
        let hook = hook.until(deadline, Instant::now());
        let result = match self.args.stage {
            Stage::CreateContainer => hook::create_container(&hook, report),
            Stage::Poststart => hook::start(&hook, report),
            _ => hook::stop(&hook, report),
        };
        Ok((host, result))
    }

    fn deadline(&self, weight: impl FnOnce() -> usize) -> Instant {
        let given = self.args.deadline;
        // A deadline on the command line needs no plan.
        let weight = if given.is_some() { 0 } else { weight() };
        let seconds = deadline::for_hook(given, self.args.hook_timeout, weight);
        self.known + Duration::from_secs(seconds.into())
    }

    /// Nothing where the container did not opt in, or where another hook does the work: a CDI
    /// device brings one with `--rail` into config.json, and the first of these does it for all.
    fn asked(&self) -> Result<Option<Asked>> {
        let (args, state) = (self.args, &self.state);
        let named = args.plan.as_deref();
        let mut request = request(self.global, named, &args.select)?.narrow(&state.annotations)?;
        let has_plan = request.plan_name().is_some();
        if args.rail.is_empty() && !has_plan && !asks_itself(None, &state.annotations) {
            return Ok(None);
        }
        let agreed_digest = args.agreed.clone().filter(|digest| !digest.is_empty());
        let facts = ContainerFacts {
            agreed_digest,
            ..ContainerFacts::read(state)?
        };
        if let Some(bundle) = &facts.bundle {
            request = request.for_environment(&bundle.config.environment());
        }
        let config = facts.bundle.as_ref().map(|bundle| &bundle.config);
        if args.rail.is_empty() {
            let by_devices = config.is_some_and(DeviceRequest::brought_hooks);
            ensure!(by_devices || has_plan, lacks_plan());
            return Ok((!by_devices).then_some(Asked { request, facts }));
        }
        ensure!(
            has_plan,
            ErrorClass::State.error(
                "--rail: the hook names no plan (--plan): `rdmaprep cdi generate` writes such hooks"
            )
        );
        let config = config.ok_or_else(|| {
            ErrorClass::State
                .error("--rail: the bundle has no config.json to tell all that is asked for")
        })?;
        request.narrowing.devices =
            DeviceRequest::of_all_if_first(config, args.stage, named, &args.rail)?;
        let is_first = request.narrowing.devices.is_some();
        Ok(is_first.then_some(Asked { request, facts }))
    }
}

/// Whether a container, or the host for all of its containers, asks for NICs: one that cannot have
/// them must not start then. One that shares the host's network namespace has them already.
fn asks(global: &Global, args: &HookArgs, state: &State) -> bool {
    let by_itself = asks_itself(args.plan.as_deref(), &state.annotations);
    by_itself
        || !args.rail.is_empty()
        || has_plan(global) && !shares_host_netns(state).unwrap_or_default()
}

fn shares_host_netns(state: &State) -> Result<bool> {
    Ok(Netns::of_process(state.init()?)?.inode() == Netns::current()?.inode())
}

/// What the runtime's process keeps, by name. A container starts without it as well: what is no
/// handle is passed over.
fn handles(words: &[String]) -> BTreeMap<String, Handle> {
    let mut handles = BTreeMap::new();
    for (name, handle) in words.iter().filter_map(|word| word.split_once('=')) {
        handles.extend(handle.parse().map(|handle| (name.to_owned(), handle)));
    }
    handles
}

fn read_state() -> Result<State> {
    State::parse(
        &stdin(state::MAX_BYTES)
            .class(ErrorClass::State, "reading the runtime's state from stdin")?,
    )
}
