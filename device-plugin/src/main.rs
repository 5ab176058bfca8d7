//! Flags, signals, one error and its code.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdmaprep::config::file::ConfigFile;
use rdmaprep::config::host;
use rdmaprep::disk::files;
use rdmaprep::store::Store;
use rdmaprep::{cdi, cli, report};
use rdmaprep_device_plugin::host::Host;
use rdmaprep_device_plugin::node::Node;
use rdmaprep_device_plugin::pools::Pools;
use rdmaprep_device_plugin::rail::{Rail, Shown};
use rdmaprep_device_plugin::watch::Wakes;
use rdmaprep_device_plugin::{api, log, session};
use tokio::signal::unix::{SignalKind, signal};

/// Events come in groups: a NIC that moves makes a dozen.
const GROUP: Duration = Duration::from_millis(100);
/// A look that failed is repeated, and that at a rail which may become healthy without a
/// notification: after this time, and then after twice as long each time, up to the other.
const SOON: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(60);

const EXAMPLE: &str = "\
Example: rails of two fabrics, in /etc/rdmaprep/device-plugin.toml

  [[resource]]
  name = \"example.com/rail-a\"
  subnets = [\"192.0.2.0/24\"]

  [[resource]]
  name = \"example.com/rail-b\"
  numa = [1]
  speed_gbps = [400]

  rdmaprep cdi generate
  rdmaprep-device-plugin --check

A resource has the rails that fit all of `rails`, `subnets`, `numa` and `speed_gbps` that it gives.
Without a file, rdmaprep.io/rail has all rails. Exit codes are those of rdmaprep (docs/cli.md).";

/// Counts RDMA NICs for the kubelet, and names their CDI devices to it
#[derive(Parser)]
#[command(name = "rdmaprep-device-plugin", version, after_help = EXAMPLE, max_term_width = 100)]
struct Args {
    /// Resources and their rails [default: /etc/rdmaprep/device-plugin.toml, where that exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The kubelet's folder for device plugins
    #[arg(long, value_name = "FOLDER", default_value = api::KUBELET_DIR)]
    kubelet_dir: PathBuf,
    /// The rails, as `rdmaprep cdi generate` wrote them
    #[arg(long, value_name = "FILE", default_value = cdi::FILE)]
    cdi: PathBuf,
    /// Where rdmaprep keeps plans and records [default: that of rdmaprep's config file, or
    /// /run/rdmaprep]
    #[arg(long, value_name = "FOLDER", env = "RDMAPREP_RUN_DIR")]
    run_dir: Option<PathBuf>,
    /// Print the resources and their rails, and end
    #[arg(long)]
    check: bool,
    /// With --check: as JSON
    #[arg(long, requires = "check")]
    json: bool,
}

fn main() -> ExitCode {
    let done = match Args::try_parse() {
        Ok(args) => run(&args),
        Err(e) => match cli::complaint(&e) {
            Some(text) => Err(ErrorClass::Usage.error(text)),
            None => e.exit(),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log(&report::error_text(&e));
            ExitCode::from(ErrorClass::of(&e).code())
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let pools = Pools::read(args.config.as_deref())?;
    let run = run_dir(args)?;
    let store = Store::new(&run, Path::new(host::STATE));
    let node = |store| Node::new(Arc::new(Host::new(args.cdi.clone(), store)?), pools, log);
    if args.check {
        let shown = node(store)?.shown();
        let text = if args.json {
            json(&shown)?
        } else {
            table(&shown)
        };
        return writeln!(std::io::stdout(), "{text}").class(ErrorClass::Other, "writing to stdout");
    }
    // So that they can be watched.
    store.prepare()?;
    let node = Arc::new(node(store)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let cdi = args
        .cdi
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
        .to_owned();
    let config = Path::new(host::CONFIG).parent().map(Path::to_owned);
    let folders = [run.join("records"), run.join("plans"), cdi]
        .into_iter()
        .chain(config);
    runtime.block_on(serve(args, &node, &folders.collect::<Vec<_>>()))
}

async fn serve(args: &Args, node: &Arc<Node>, folders: &[PathBuf]) -> Result<()> {
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let (files, network, devices) = (
        Wakes::of_folders()?,
        Wakes::of_network()?,
        Wakes::of_devices()?,
    );
    let look = async {
        let mut pause = SOON;
        loop {
            // One that is not there now may come later, or again.
            folders.iter().for_each(|folder| drop(files.watch(folder)));
            // What has changed since it was looked at first is looked at now.
            let looked = node.refresh().await;
            if let Err(e) = &looked {
                node.lost(&format!("{e:#}"));
            }
            tokio::select! {
                woken = files.next() => woken?,
                woken = network.next() => woken?,
                woken = devices.next() => woken?,
                () = tokio::time::sleep(pause), if looked.is_err() || node.is_unreported() => {
                    pause = LATE.min(pause * 2);
                    continue;
                }
            }
            pause = SOON;
            tokio::time::sleep(GROUP).await;
        }
    };
    tokio::select! {
        ended = session::run(node, &args.kubelet_dir) => ended,
        ended = look => ended,
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
    }
}

/// Where rdmaprep keeps its records here.
fn run_dir(args: &Args) -> Result<PathBuf> {
    let path = Path::new(host::CONFIG);
    let doing = || format!("reading {}", path.display());
    let folders = match files::read_through(path).class(ErrorClass::Usage, doing())? {
        Some(text) => ConfigFile::new(&text).folders(),
        None => host::Config::default(),
    };
    let named = args.run_dir.clone().or(folders.run_dir);
    Ok(named.unwrap_or_else(|| host::RUN.into()))
}

fn json(shown: &Shown) -> Result<String> {
    #[derive(serde::Serialize)]
    struct Resource<'a> {
        resource: &'a str,
        rails: &'a [Rail],
    }
    let all: Vec<Resource> = shown
        .iter()
        .map(|(resource, rails)| Resource { resource, rails })
        .collect();
    report::json(&all)
}

fn table(shown: &Shown) -> String {
    let line = |rail: &Rail| {
        let numa = rail.numa.map_or("-".to_owned(), |n| n.to_string());
        let speed = rail
            .speed_gbps
            .map_or("-".to_owned(), |s| format!("{s} Gb/s"));
        let state = rail
            .unhealthy
            .as_ref()
            .map_or("healthy".to_owned(), |why| format!("unhealthy: {why}"));
        format!("  {:<15}  NUMA {numa:<2}  {speed:<9}  {state}\n", rail.name)
    };
    let one = |(name, rails): &(String, Vec<Rail>)| {
        let healthy = rails.iter().filter(|r| r.unhealthy.is_none()).count();
        format!(
            "{name}: {healthy} of {} healthy\n{}",
            rails.len(),
            rails.iter().map(line).collect::<String>()
        )
    };
    shown
        .iter()
        .map(one)
        .collect::<String>()
        .trim_end()
        .to_owned()
}
