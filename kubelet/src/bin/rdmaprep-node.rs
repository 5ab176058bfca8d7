//! Puts rdmaprep on the node that its pod runs on, and takes it away again.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use rdma_model::error_class::{ErrorClass, WithClass};
use rdmaprep::cli::VERSION;
use rdmaprep_kubelet::on_node::{self, Image};
use rdmaprep_kubelet::program::{ended, say, stopped};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const PAGES: &str = "\
hooks/kubernetes/install.yaml and remove.yaml call it, in pods that share the node's processes.
Exit codes are those of rdmaprep (docs/cli.md).";

/// Puts rdmaprep on the node that its pod runs on, and takes it away again
#[derive(Parser)]
#[command(name = "rdmaprep-node", version = VERSION)]
#[command(after_help = PAGES, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Write the program and its configuration, run `install`, store the plans, describe the rails
    Install {
        /// The program
        #[arg(long, value_name = "FILE", default_value = "/usr/bin/rdmaprep")]
        program: PathBuf,
        /// Files for /etc/rdmaprep
        #[arg(long, value_name = "FOLDER", default_value = "/config")]
        config: PathBuf,
        /// The plan of the rails; stored with the others of config.toml, or else without options
        #[arg(long, value_name = "NAME", default_value = "default")]
        plan: String,
        #[command(flatten)]
        host: Host,
    },
    /// Undo `install`; refused (exit code 9) while containers hold NICs
    Remove {
        #[command(flatten)]
        host: Host,
    },
    /// Do nothing until SIGTERM: for a pod whose work its init containers do
    Wait,
}

#[derive(clap::Args)]
struct Host {
    /// A process of the node, in its own namespaces
    #[arg(long, value_name = "PID", default_value_t = 1)]
    host: u32,
}

impl Host {
    /// Its files and its network are ours from here on.
    fn enter(&self) -> Result<()> {
        for (name, kind) in [
            ("net", LinkNameSpaceType::Network),
            ("mnt", LinkNameSpaceType::Mount),
        ] {
            let path = format!("/proc/{}/ns/{name}", self.host);
            let doing = || format!("entering {path} (does the pod have hostPID?)");
            let namespace = File::open(&path).class(ErrorClass::Refused, doing())?;
            move_into_link_name_space(namespace.as_fd(), Some(kind))
                .class(ErrorClass::Refused, doing())?;
        }
        Ok(())
    }
}

fn log(line: &str) {
    say(env!("CARGO_BIN_NAME"), line);
}

fn main() -> ExitCode {
    ended(Args::try_parse().map(|args| run(&args.action)), log)
}

fn run(action: &Action) -> Result<()> {
    match action {
        Action::Install {
            program,
            config,
            plan,
            host,
        } => {
            let image = Image::read(program, config)?;
            host.enter()?;
            on_node::install(&image, plan, log)
        }
        Action::Remove { host } => {
            host.enter()?;
            on_node::remove(log)
        }
        Action::Wait => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(stopped()),
    }
}
