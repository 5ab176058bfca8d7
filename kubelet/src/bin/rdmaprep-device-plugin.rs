//! Flags, signals, one error and its code.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdmaprep::cli::VERSION;
use rdmaprep::disk::files;
use rdmaprep::report;
use rdmaprep_kubelet::device_plugin::{api, session};
use rdmaprep_kubelet::node::Node;
use rdmaprep_kubelet::program::{Machine, ended, say, stopped};
use rdmaprep_kubelet::rail::{Rail, Shown};

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
#[command(name = "rdmaprep-device-plugin", version = VERSION)]
#[command(after_help = EXAMPLE, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    machine: Machine,
    /// The kubelet's folder for device plugins
    #[arg(long, value_name = "FOLDER", default_value = api::KUBELET_DIR)]
    kubelet_dir: PathBuf,
    /// Print the resources and their rails, and end
    #[arg(long)]
    check: bool,
    /// With --check: as JSON
    #[arg(long, requires = "check")]
    json: bool,
}

fn log(line: &str) {
    say(env!("CARGO_BIN_NAME"), line);
}

fn main() -> ExitCode {
    ended(Args::try_parse().map(|args| run(&args)), log)
}

fn run(args: &Args) -> Result<()> {
    let store = args.machine.store()?;
    if args.check {
        let shown = args.machine.node(store, log)?.shown();
        let text = if args.json {
            json(&shown)?
        } else {
            table(&shown)
        };
        return writeln!(std::io::stdout(), "{text}").class(ErrorClass::Other, "writing to stdout");
    }
    files::private_umask();
    // So that its folders can be watched.
    store.make_folders()?;
    args.machine.serve_metrics(&store, log)?;
    let node = Arc::new(args.machine.node(store, log)?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(args, &node))
}

async fn serve(args: &Args, node: &Arc<Node>) -> Result<()> {
    tokio::select! {
        ended = session::run(node, &args.kubelet_dir) => ended,
        ended = args.machine.look(node) => ended,
        ended = stopped() => ended,
    }
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
            .why_not_counted()
            .map_or("healthy".to_owned(), |why| format!("unhealthy: {why}"));
        format!("  {:<15}  NUMA {numa:<2}  {speed:<9}  {state}\n", rail.name)
    };
    let one = |(name, rails): &(String, Vec<Rail>)| {
        let healthy = rails
            .iter()
            .filter(|r| r.why_not_counted().is_none())
            .count();
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
