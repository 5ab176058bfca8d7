//! Flags, signals, one error and its code.
#![forbid(unsafe_code)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdmaprep::cli::VERSION;
use rdmaprep::disk::files;
use rdmaprep::kernel::Namespaces;
use rdmaprep::kernel::ThisMachine;
use rdmaprep::report;
use rdmaprep::store::claims::CDI_FOLDER;
use rdmaprep_kubelet::dra::api_server::{Access, ApiServer};
use rdmaprep_kubelet::dra::binding::Bindings;
use rdmaprep_kubelet::dra::driver::{Driver, GONE_FOR, PATIENCE};
use rdmaprep_kubelet::dra::publish::{Publisher, follow};
use rdmaprep_kubelet::dra::refused::Refusals;
use rdmaprep_kubelet::dra::session::KUBELET_DIR;
use rdmaprep_kubelet::dra::tell::Teller;
use rdmaprep_kubelet::dra::{refused, session, slice};
use rdmaprep_kubelet::program::{Machine, ended, say, stopped};

/// A pod that shares a claim waits for it that long.
const ASK: Duration = Duration::from_secs(20);

const EXAMPLE: &str = "\
Example: the number of a rail is the same on all nodes, in /etc/rdmaprep/device-plugin.toml

  rail_order = [\"192.0.2.0/24\", \"198.51.100.0/24\"]

  rdmaprep cdi generate
  rdmaprep-dra --check

An entry is a subnet, or the name of a rail. Without the list, the attribute `rail` is -1.
Exit codes are those of rdmaprep (docs/cli.md).";

/// Offers RDMA NICs to claims of Kubernetes, and gives them to their pods
#[derive(Parser)]
#[command(name = "rdmaprep-dra", version = VERSION, after_help = EXAMPLE, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    access: Access,
    /// This node, as the API server knows it [default: the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: Option<String>,
    /// The kubelet's --root-dir
    #[arg(long, value_name = "FOLDER", default_value = KUBELET_DIR)]
    kubelet_root: PathBuf,
    /// Where the engine looks for devices of claims
    #[arg(long, value_name = "FOLDER", default_value = CDI_FOLDER)]
    cdi_folder: PathBuf,
    /// Print what the node offers, as JSON, and end
    #[arg(long)]
    check: bool,
}

fn log(line: &str) {
    say(env!("CARGO_BIN_NAME"), line);
}

fn main() -> ExitCode {
    ended(Args::try_parse().map(|args| run(&args)), log)
}

fn run(args: &Args) -> Result<()> {
    let store = args.machine.store()?;
    let name = node_name(args)?;
    let boot_id = ThisMachine::new()?.boot_id().to_owned();
    let bindings = Bindings::new(&store, &args.cdi_folder, &boot_id);
    if args.check {
        let node = args.machine.node(store, log)?;
        let spec = slice::of_node(&name, &node.shown(), &bindings, true);
        let text = report::json(&spec)?;
        return writeln!(std::io::stdout(), "{text}").class(ErrorClass::Other, "writing to stdout");
    }
    let server = Arc::new(ApiServer::new(&args.access)?);
    files::private_umask();
    // So that its folders can be watched.
    store.make_folders()?;
    args.machine.serve_metrics(&store, log)?;
    bindings.prepare()?;
    let node = Arc::new(args.machine.node(store.clone(), log)?);
    let (_, unnamed) = slice::devices(&node.shown());
    if !unnamed.is_empty() {
        let names = unnamed.join(", ");
        log(&format!(
            "not offered, since no device of a slice can have such a name: {names}"
        ));
    }
    let (wakes, woken) = sync_channel(1);
    let (offered, its) = (node.clone(), bindings.clone());
    let at = name.clone();
    let wanted = move |taints| slice::of_node(&at, &offered.shown(), &its, taints);
    let publisher = Publisher::new(server.clone(), &name, wanted, log);
    let (tells, told) = sync_channel(1);
    let refusals = Refusals::new(&args.machine.run_dir()?, Path::new(refused::HOST));
    let refusals = Arc::new(refusals);
    let mut teller = Teller::new(
        server.clone(),
        node.clone(),
        &name,
        store.clone(),
        bindings.clone(),
        refusals.clone(),
    );
    thread::spawn(move || teller.run(&told));
    let driver = Arc::new(Driver {
        node,
        name,
        server,
        store,
        bindings,
        cdi: args.machine.cdi.clone(),
        patience: PATIENCE,
        wakes,
        published: publisher.published(),
        tells,
        asks: tokio::sync::Notify::new(),
        gone: Mutex::default(),
        gone_for: GONE_FOR,
    });
    publish(publisher, woken, &driver);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(args, &driver, &refusals))
}

/// Threads that end with the program.
fn publish<W: Fn(bool) -> serde_json::Value + Send + 'static>(
    mut publisher: Publisher<W>,
    woken: Receiver<()>,
    driver: &Driver,
) {
    thread::spawn(move || publisher.run(&woken));
    let (server, name, wakes) = (
        driver.server.clone(),
        driver.name.clone(),
        driver.wakes.clone(),
    );
    thread::spawn(move || follow(&server, &name, &wakes));
}

async fn serve(args: &Args, driver: &Arc<Driver>, refusals: &Arc<Refusals>) -> Result<()> {
    tokio::select! {
        ended = session::run(driver, &args.kubelet_root) => ended,
        ended = args.machine.look(&driver.node) => ended,
        ended = pass_on(driver) => ended,
        ended = follow_claims(driver) => ended,
        ended = refused::follow(refusals, &driver.tells) => ended,
        ended = stopped() => ended,
    }
}

/// What changes a rail changes the slice, and the claim that has it.
async fn pass_on(driver: &Driver) -> Result<()> {
    let mut shown = driver.node.subscribe();
    loop {
        shown.changed().await?;
        driver.wake();
    }
}

async fn follow_claims(driver: &Arc<Driver>) -> Result<()> {
    loop {
        if let Err(e) = driver.follow_claims().await {
            log(&format!("asking for claims that are bound: {e:#}"));
        }
        let _ = tokio::time::timeout(ASK, driver.asks.notified()).await;
    }
}

fn node_name(args: &Args) -> Result<String> {
    if let Some(name) = &args.node {
        return Ok(name.clone());
    }
    let name = fs::read_to_string("/proc/sys/kernel/hostname")?;
    Ok(name.trim().to_lowercase())
}
