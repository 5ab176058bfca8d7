//! `rdmaprep cni`: a CNI runtime's calls, with the hooks' machinery. The namespace is there, and no
//! container in it yet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::values::PlanName;
use serde_json::Value;

use super::config_file::{has_plan, host_or_default};
use super::{deadline_weight, end_report, lacks_plan, one_error, request, say, stdin, store, warn};
use crate::cli::{Global, SelectArgs};
use crate::cni::{self, ANNOTATIONS, Call, Code, Command, MAX_BYTES, Problem};
use crate::config::device_request::DeviceRequest;
use crate::config::host::Host;
use crate::config::request::{Request, asks_itself};
use crate::deadline;
use crate::disk::files;
use crate::hook::{self, Hook, Target};
use crate::kernel::process::capabilities;
use crate::kernel::{Namespaces, Recipient, RecipientProcess, ThisMachine};
use crate::oci::state::State;
use crate::planner::stored_plan;
use crate::record::{Attachment, Record};
use crate::report::{self, Report};
use crate::store::Store;
use crate::store::records::Records;

/// Seconds after which a runtime gives up: the kubelet waits for a sandbox for some minutes.
const TIMEOUT: u32 = 60;
/// Where the network names none: that of `rdmaprep cdi generate`.
const PLAN_OF_CLAIMS: &str = "default";

/// The answer, or the error, goes to stdout as JSON; stderr has the error in words, as of every
/// command.
pub(super) fn cni(global: &Global) -> Result<()> {
    files::private_umask();
    let call = capabilities::shed()
        .and_then(|_| Ok(stdin(MAX_BYTES)?))
        .map_err(|e: anyhow::Error| (cni::NEWEST.to_owned(), e.into()));
    let call = call.and_then(|text| Call::read(|name| std::env::var(name).ok(), &text));
    let done = call.and_then(|call| {
        let version = call.network.version().to_owned();
        answer(global, &call).map_err(|problem| (version, problem))
    });
    match done {
        Ok(Some(answer)) => say(&report::json(&answer)?),
        Ok(None) => Ok(()),
        Err((version, problem)) => {
            say(&report::json(&problem.json(&version))?)?;
            Err(problem.class.error(problem.text))
        }
    }
}

fn answer(global: &Global, call: &Call) -> Result<Option<Value>, Problem> {
    match call.command {
        Command::Version => Ok(Some(cni::versions(call.network.version()))),
        Command::Status => {
            call.network.check()?;
            status(global, call)
                .map(|()| None)
                .map_err(|e| Problem::from(e).under(Code::Unavailable))
        }
        Command::Add => add(global, call).map(Some),
        Command::Check => check(global, call).map(|()| None),
        Command::Del => del(global, call).map(|()| None),
        Command::Gc => collect(global, call).map(|()| None),
    }
}

/// What is the same of all calls about an attachment.
struct AttachmentCall<'a> {
    call: &'a Call,
    host: Host,
    store: Store,
    machine: ThisMachine,
    state: State,
    attachment: Attachment,
}

impl<'a> AttachmentCall<'a> {
    fn new(call: &'a Call, host: Host) -> Result<AttachmentCall<'a>> {
        let netns = call.netns.clone().unwrap_or_default();
        let attachment = Attachment {
            network: call.network.name.clone(),
            ifname: call.ifname.clone(),
            netns,
        };
        AttachmentCall::about(call, host, &call.id, attachment)
    }

    fn about(
        call: &'a Call,
        host: Host,
        id: &str,
        attachment: Attachment,
    ) -> Result<AttachmentCall<'a>> {
        let state = State {
            id: id.to_owned(),
            pid: None,
            bundle: String::new(),
            annotations: BTreeMap::new(),
        };
        Ok(AttachmentCall {
            call,
            store: store(&host),
            machine: ThisMachine::new()?,
            host,
            state,
            attachment,
        })
    }

    /// Calls a hook, and reports it as hooks are.
    fn run(
        &self,
        recipient: Option<&dyn Recipient>,
        weight: usize,
        run: impl FnOnce(&Hook, &mut Report) -> Result<()>,
    ) -> Result<()> {
        let begun = Instant::now();
        let deadline =
            begun + Duration::from_secs(deadline::for_hook(None, Some(TIMEOUT), weight).into());
        let hook = self
            .hook(recipient, begun)
            .until(deadline, begun + self.host.hook_wait);
        let mut report = Report::new(format!("cni {}", self.call.command.name()));
        report.container = Some(self.state.id.clone());
        let (id, result) = (Some(self.state.id.as_str()), run(&hook, &mut report));
        end_report(&mut report, id, result, begun, &self.host, &self.store)
    }

    fn hook<'s>(&'s self, recipient: Option<&'s dyn Recipient>, begun: Instant) -> Hook<'s> {
        let target = Target::Attachment {
            attachment: &self.attachment,
            recipient,
            pod: self.call.pod.as_deref(),
        };
        Hook::new(target, &self.state, &self.store, &self.machine, begun)
    }

    fn record(&self) -> Result<Option<Record>> {
        self.hook(None, Instant::now()).record()
    }

    fn deadline_weight(&self) -> usize {
        self.hook(None, Instant::now()).deadline_weight()
    }

    /// The namespace of CNI_NETNS, which a pod without a network of its own does not have.
    fn netns(&self) -> Result<RecipientProcess, Problem> {
        let bad = |text| {
            Problem::new(
                Code::Variable,
                ErrorClass::State,
                format!("CNI_NETNS: {text}"),
            )
        };
        let netns =
            RecipientProcess::at(&self.attachment.netns).map_err(|e| bad(format!("{e:#}")))?;
        match netns.netns() == self.machine.host_netns()? {
            true => Err(bad(format!(
                "{} is the host's own network namespace",
                self.attachment.netns.display()
            ))),
            false => Ok(netns),
        }
    }
}

/// The rails of the pod's claims. Where these cannot be read, its containers are refused, and pods
/// without claims are not.
fn claimed(global: &Global, call: &Call) -> Option<DeviceRequest> {
    let pod = call.pod.as_ref().filter(|_| call.network.claims)?;
    let store = store(&host_or_default(global));
    let bindings = ThisMachine::new().and_then(|machine| store.bindings(machine.boot_id()));
    let bindings = bindings.unwrap_or_else(|e| {
        warn(&[format!("{e:#}; this pod gets no NIC by a claim now")]);
        Vec::new()
    });
    let mut asked = DeviceRequest::default();
    for binding in bindings.iter().filter(|binding| !binding.ended) {
        if binding.pod.as_ref().is_some_and(|of| of.uid == *pod) {
            binding.add_to(&mut asked);
        }
    }
    Some(asked).filter(|asked| !asked.claims.is_empty())
}

/// What the pod's claims, or else the configuration, ask for, less what the pod's annotations take
/// away; nothing where neither asks.
fn device_request(global: &Global, call: &Call) -> Result<Option<Request>, Problem> {
    call.network.check()?;
    let claimed = claimed(global, call);
    let named = call.network.plan.as_deref();
    let named = named.or(claimed.is_some().then_some(PLAN_OF_CLAIMS));
    let annotations = call.network.annotations()?;
    let asks = annotations
        .as_ref()
        .map_or(named.is_some(), |all| asks_itself(named, all));
    if let Some(Err(e)) = named.map(str::parse::<PlanName>) {
        let text = format!("`plan` of the network configuration: {e}");
        return Err(Problem::new(Code::Config, ErrorClass::Usage, text));
    }
    let request = match request(global, named, &SelectArgs::default()) {
        // A broken config file of the host must not keep every pod from starting.
        Err(e) if !asks && !has_plan(global) => {
            warn(&[format!(
                "{e:#}; a pod that does not ask for NICs starts all the same"
            )]);
            return Ok(None);
        }
        request => request?,
    };
    let mut mine = request.narrow(annotations.as_ref().unwrap_or(&BTreeMap::new()))?;
    mine.narrowing.devices = claimed;
    match (mine.plan_name(), annotations) {
        (Some(_), _) => Ok(Some(mine)),
        (None, Some(_)) if asks => Err(lacks_plan().into()),
        (None, Some(_)) => Ok(None),
        (None, None) if call.network.claims => Ok(None),
        (None, None) => {
            let text = format!(
                "the network configuration has neither `plan` nor the capability {ANNOTATIONS}"
            );
            Err(Problem::new(Code::Config, ErrorClass::Usage, text))
        }
    }
}

fn add(global: &Global, call: &Call) -> Result<Value, Problem> {
    let (version, before) = (call.network.version(), call.network.prev_result.as_ref());
    let result = |held: &[_]| {
        cni::result(
            version,
            before,
            held,
            call.netns.as_deref().unwrap_or("".as_ref()),
        )
    };
    // Before anything moves.
    let passed = result(&[])?;
    let Some(request) = device_request(global, call)? else {
        return Ok(passed);
    };
    let attachment = AttachmentCall::new(call, request.host.clone())?;
    let netns = attachment.netns()?;
    attachment.run(
        Some(&netns),
        deadline_weight(&request, &attachment.store),
        |hook, report| hook::create(hook, &request, report),
    )?;
    let Some(record) = attachment.record()? else {
        let text = format!("the NICs of container {} were restored meanwhile", call.id);
        return Err(ErrorClass::State.error(text).into());
    };
    result(&record.held)
}

fn check(global: &Global, call: &Call) -> Result<(), Problem> {
    let asked = device_request(global, call)?;
    let attachment = AttachmentCall::new(call, host_or_default(global))?;
    let netns = attachment.netns()?;
    if attachment.record()?.is_none() && asked.is_some() {
        let text = format!(
            "container {} has no NIC of network {}",
            call.id, call.network.name
        );
        return Err(ErrorClass::State.error(text).into());
    }
    Ok(attachment.run(Some(&netns), attachment.deadline_weight(), hook::check)?)
}

/// NICs that do not return whole must not keep the pod from being deleted: their record stays, and
/// the next hook or the timer tries again.
fn del(global: &Global, call: &Call) -> Result<(), Problem> {
    let attachment = AttachmentCall::new(call, host_or_default(global))?;
    Ok(give_back(&attachment)?)
}

fn give_back(attachment: &AttachmentCall) -> Result<()> {
    match attachment.run(None, attachment.deadline_weight(), hook::stop) {
        Err(e) if ErrorClass::of(&e) == ErrorClass::Incomplete => {
            warn(&[format!("{e:#}")]);
            Ok(())
        }
        done => done,
    }
}

/// Attachments of this network that the runtime does not know any more. What cannot be restored
/// must not keep the rest away.
fn collect(global: &Global, call: &Call) -> Result<(), Problem> {
    let Some(valid) = &call.network.valid else {
        let text =
            "the network configuration lacks cni.dev/valid-attachments: nothing is collected";
        return Err(Problem::new(Code::Config, ErrorClass::Usage, text));
    };
    let host = host_or_default(global);
    let (store, machine) = (store(&host), ThisMachine::new()?);
    let records = Records::read(&store, machine.boot_id())?;
    let members = records
        .readable()
        .flat_map(|r| &r.members)
        .filter_map(|m| Some((m.id.clone(), m.cni.clone()?)));
    let gone = members.filter(|(id, cni)| {
        cni.network == call.network.name
            && !valid.iter().any(|v| v.id == *id && v.ifname == cni.ifname)
    });
    let mut failed = Vec::new();
    for (id, attachment) in gone {
        let done =
            AttachmentCall::about(call, host.clone(), &id, attachment).and_then(|a| give_back(&a));
        failed.extend(done.err());
    }
    Ok(one_error(failed)?)
}

/// Whether ADD of a pod that asks would find what it needs. Other pods may hold the NICs: the node
/// is ready all the same.
fn status(global: &Global, call: &Call) -> Result<()> {
    capabilities::require()?;
    let named = call.network.plan.as_deref();
    let request = request(global, named, &SelectArgs::default())?;
    let store = store(&request.host);
    store.writable()?;
    let machine = ThisMachine::new()?;
    Records::read(&store, machine.boot_id())?;
    // Which rails pods have by claims: without that, no one gets a NIC.
    store.bindings(machine.boot_id())?;
    request
        .plan_name()
        .map_or(Ok(()), |plan| stored_plan(&store, &request, plan).map(drop))
}
