//! `rdmaprep env`: NCCL's settings, and nothing is stored.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdma_model::nic::EnvVar;
use rdma_model::step::Side;

use super::container_id::{running, whole_id};
use super::decision::{decide, for_container, narrowed};
use super::on_host::plan_on_host;
use super::prepare::read_config;
use super::spec::edit;
use super::{is_stored, request, store, warn};
use crate::cli::{EnvArgs, Global};
use crate::config::libraries::Library;
use crate::config::request::Request;
use crate::disk::files;
use crate::doctor::collect;
use crate::kernel::netns::Netns;
use crate::kernel::{Kernel, Scope, World, boot_id};
use crate::nccl_env::{self, Namespace, format, libraries};
use crate::oci::edit::environment;
use crate::plan::Plan;
use crate::planner::stored_plan;
use crate::record::Record;
use crate::store::Store;
use crate::store::records::Records;

/// The option, which counts for stored plans as well.
const LIBRARIES: &str = "libraries";

/// What `prepare` and the hook give to that container, to that bundle, or to any of that plan.
pub(super) fn env(global: &Global, args: &EnvArgs) -> Result<()> {
    let request = request(global, Some(&args.plan), &args.select)?;
    let store = store(&request.host);
    let Settings { env, unset } = match (&args.container, &args.bundle) {
        (Some(id), _) => of_container(args, &request, id, &store)?,
        (None, Some(bundle)) => of_bundle(args, request, bundle, &store)?,
        (None, None) => of_any(args, &request, &store)?,
    };
    let (text, left) = format::write(&env, args.format);
    warn(&left);
    warn(&unset);
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("writing to stdout")
}

struct Settings {
    env: Vec<EnvVar>,
    /// What is not set, and why.
    unset: Vec<String>,
}

impl Settings {
    /// Of what `own` sets, nothing is missing.
    fn new(env: Vec<EnvVar>, plan: &Plan, own: &BTreeMap<String, String>) -> Settings {
        let mut unset = plan.unset.clone();
        unset.retain(|line| {
            line.split_once(':')
                .is_none_or(|(name, _)| !own.contains_key(name))
        });
        unset
            .iter_mut()
            .for_each(|line| line.insert_str(0, "not set: "));
        Settings { env, unset }
    }
}

/// By its record, since its namespace decides as well; and without what it sets otherwise itself.
fn of_container(args: &EnvArgs, request: &Request, id: &str, store: &Store) -> Result<Settings> {
    let why = "a container's NICs are those that it has";
    args.select.refuse_given(&[LIBRARIES], why)?;
    let records = Records::read(store, &boot_id()?)?;
    let asked = id;
    let id = whole_id(&records, id)?;
    let away = records.readable().filter(|r| !r.is_back());
    let record = away.into_iter().find(|r| r.has(&id));
    let given = record.and_then(|record| Some((record, record.given.as_deref().cloned()?)));
    let Some((record, plan)) = given else {
        return of_container_on_host(args, request, asked, store);
    };
    let own = own_environment(record, &id)?;
    let plan = with_libraries(plan, args, request)?.for_container(&own, Namespace::Unknown);
    Ok(Settings::new(nccl_env::given(&plan.env, &own), &plan, &own))
}

fn of_container_on_host(
    args: &EnvArgs,
    request: &Request,
    asked: &str,
    store: &Store,
) -> Result<Settings> {
    let (id, pid) = running(asked)?.map_or((asked.to_owned(), None), |(id, pid)| (id, Some(pid)));
    let host = Kernel::quiet(Netns::current()?, None)?.observe(Side::Host, &Scope::full())?;
    let plan = plan_on_host(store, request, &id, &host)?.ok_or_else(|| {
        ErrorClass::Usage.error(format!("container {id:?} has no NICs by a plan"))
    })?;
    let own = match pid {
        Some(pid) => collect::environment(pid, |_| true)?.into_iter().collect(),
        None => BTreeMap::new(),
    };
    let plan = with_libraries(plan, args, request)?.for_container(&own, Namespace::Seen(&host));
    Ok(Settings::new(nccl_env::given(&plan.env, &own), &plan, &own))
}

/// What the container's config.json sets, with what `spec` has added there.
fn own_environment(record: &Record, id: &str) -> Result<BTreeMap<String, String>> {
    let keeper = record.hold.as_ref().map(|h| h.path.as_path());
    let mut members = record.members.iter().filter(|m| m.id == id);
    let own = members.find(|m| m.bundle.starts_with('/') && keeper != Some(Path::new(&m.bundle)));
    let path = own.map(|m| Path::new(&m.bundle).join("config.json"));
    let text = match &path {
        Some(path) => files::read(path).class(ErrorClass::State, "reading the bundle")?,
        None => None,
    };
    if text.is_none() {
        warn(&[format!(
            "the config.json of {id:?} is not there: what it sets itself is not left out"
        )]);
    }
    Ok(environment(&text.unwrap_or_default()))
}

fn of_bundle(args: &EnvArgs, request: Request, bundle: &Path, store: &Store) -> Result<Settings> {
    // A bundle's topology file is decided here.
    refuse_idle(args, &["topo", LIBRARIES], store)?;
    let text = read_config(bundle)?;
    let request = narrowed(request, &text, None)?;
    let decision = match stored(args, &request, store)? {
        Some(plan) => for_container(plan, &request, &text, store)?,
        None => decide(
            &request,
            &args.plan,
            args.snapshot.as_deref(),
            Some(&text),
            store,
        )?,
    };
    let given = edit(&text, &decision, store, &request, None)?.given;
    Ok(Settings::new(given, &decision.plan, &environment(&text)))
}

/// What holds for all of the plan's containers.
fn of_any(args: &EnvArgs, request: &Request, store: &Store) -> Result<Settings> {
    refuse_idle(args, &[LIBRARIES], store)?;
    let plan = match stored(args, request, store)? {
        Some(plan) => plan,
        None => decide(request, &args.plan, args.snapshot.as_deref(), None, store)?.plan,
    };
    let waiting = libraries::at_start(&plan.libraries);
    if !plan.env.is_empty() && !waiting.is_empty() {
        warn(&[format!(
            "a container's network decides {}: --container has them, and --bundle",
            waiting.join(", ")
        )]);
    }
    let none = BTreeMap::new();
    let plan = plan.for_container(&none, Namespace::Unknown);
    Ok(Settings::new(plan.env.clone(), &plan, &none))
}

fn refuse_idle(args: &EnvArgs, counts: &[&str], store: &Store) -> Result<()> {
    match args.snapshot.is_none() && store.plan(&args.plan)?.is_some() {
        true => args.select.refuse_given(counts, &is_stored(&args.plan)),
        false => Ok(()),
    }
}

/// Of a recorded machine a plan is made.
fn stored(args: &EnvArgs, request: &Request, store: &Store) -> Result<Option<Plan>> {
    let name = request.plan_name().filter(|_| args.snapshot.is_none());
    let Some(name) = name else { return Ok(None) };
    let plan = stored_plan(store, request, name)?;
    plan.map(|plan| with_libraries(plan, args, request))
        .transpose()
}

/// A plan with the settings of the libraries asked for, whatever it was stored with.
fn with_libraries(plan: Plan, args: &EnvArgs, request: &Request) -> Result<Plan> {
    if !args.select.says(LIBRARIES) {
        return Ok(plan);
    }
    let libraries = &request.select.libraries;
    if libraries.has(Library::Nccl) && !plan.libraries.has(Library::Nccl) {
        let text = format!(
            "plan {} is without NCCL's settings: `prepare` it with --libraries {libraries}",
            plan.name
        );
        return Err(ErrorClass::Usage.error(text));
    }
    Ok(plan.for_libraries(libraries))
}
