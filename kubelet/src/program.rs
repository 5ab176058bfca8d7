//! What the programs share: the flags of the machine, and the look at its rails.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rdma_model::error_class::{ErrorClass, WithClass};
use rdmaprep::config::file::ConfigFile;
use rdmaprep::config::host;
use rdmaprep::disk::files;
use rdmaprep::store::Store;
use rdmaprep::{cdi, cli, report};
use tokio::signal::unix::{SignalKind, signal};

use crate::host::Host;
use crate::metrics;
use crate::node::Node;
use crate::pools::Pools;
use crate::watch::Wakes;

/// Events come in groups: a NIC that moves makes a dozen.
const GROUP: Duration = Duration::from_millis(100);
/// A look that failed is repeated, and that at a rail which may become healthy without a
/// notification: after this time, and then after twice as long each time, up to the other.
const SOON: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(60);

/// A line for the journal, or for the container's log.
pub fn say(program: &str, line: &str) {
    // Nothing is left to write to where that fails.
    let _ = writeln!(std::io::stderr(), "{program}: {}", line.replace('\n', " "));
}

/// One error, and its code.
pub fn ended(run: Result<Result<()>, clap::Error>, log: fn(&str)) -> ExitCode {
    let done = match run {
        Ok(done) => done,
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

/// Returns when the program is to end.
pub async fn stopped() -> Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
    }
}

#[derive(clap::Args)]
pub struct Machine {
    /// Resources and their rails [default: /etc/rdmaprep/device-plugin.toml, where that exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The rails, as `rdmaprep cdi generate` wrote them
    #[arg(long, value_name = "FILE", default_value = cdi::FILE)]
    pub cdi: PathBuf,
    /// Where rdmaprep keeps plans and records [default: that of rdmaprep's config file, or
    /// /run/rdmaprep]
    #[arg(long, value_name = "FOLDER", env = "RDMAPREP_RUN_DIR")]
    run_dir: Option<PathBuf>,
    /// Serve metrics at http://ADDRESS/metrics, to all that reach it
    #[arg(long, value_name = "ADDRESS:PORT", env = "RDMAPREP_METRICS")]
    metrics: Option<SocketAddr>,
}

impl Machine {
    pub fn node(&self, store: Store, log: fn(&str)) -> Result<Node> {
        let pools = Pools::read(self.config.as_deref())?;
        Node::new(Arc::new(Host::new(self.cdi.clone(), store)?), pools, log)
    }

    pub fn serve_metrics(&self, store: &Store, log: fn(&str)) -> Result<()> {
        let address = self.metrics;
        address.map_or(Ok(()), |address| {
            metrics::start(address, store.clone(), log)
        })
    }

    pub fn store(&self) -> Result<Store> {
        Ok(Store::new(&self.run_dir()?, Path::new(host::STATE)))
    }

    /// Where rdmaprep keeps its records here.
    pub fn run_dir(&self) -> Result<PathBuf> {
        let path = Path::new(host::CONFIG);
        let doing = || format!("reading {}", path.display());
        let folders = match files::read_through(path).class(ErrorClass::Usage, doing())? {
            Some(text) => ConfigFile::new(&text).folders(),
            None => host::Config::default(),
        };
        let named = self.run_dir.clone().or(folders.run_dir);
        Ok(named.unwrap_or_else(|| host::RUN.into()))
    }

    /// What may change a rail.
    fn folders(&self) -> Result<Vec<PathBuf>> {
        let run = self.run_dir()?;
        let cdi = self
            .cdi
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
            .to_owned();
        let config = Path::new(host::CONFIG).parent().map(Path::to_owned);
        let own = ["records", "plans", "claims"].map(|name| run.join(name));
        let folders = own.into_iter().chain([cdi]);
        Ok(folders.chain(config).collect())
    }

    /// Looks at the rails whenever something may have changed them; returns only with an error.
    pub async fn look(&self, node: &Node) -> Result<()> {
        let folders = self.folders()?;
        let (files, network, devices) = (
            Wakes::of_folders()?,
            Wakes::of_network()?,
            Wakes::of_devices()?,
        );
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
    }
}
