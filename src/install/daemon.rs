//! The containerd daemons of a host: one that is installed by itself, and those that distributions
//! of Kubernetes bring along, each with files and a restart of its own.

use super::{Change, Target};
use crate::disk::host_tree::ReadTree;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Daemon {
    Own,
    K3s,
    Rke2,
    K0s,
    Microk8s,
}

/// What a containerd of version 2 has in its program, as that is its Go module. Of 1.6, 1.7 and 2.1
/// of Debian it was in that of 2.1 alone.
const SECOND: &str = "github.com/containerd/containerd/v2/cmd/containerd";
const PROGRAMS: [&str; 2] = ["/usr/bin/containerd", "/usr/local/bin/containerd"];

impl Daemon {
    pub const ALL: [Daemon; 5] = [
        Daemon::Own,
        Daemon::K3s,
        Daemon::Rke2,
        Daemon::K0s,
        Daemon::Microk8s,
    ];

    /// What shows that it is on a host: any of these.
    pub const fn traces(self) -> &'static [&'static str] {
        match self {
            Daemon::Own => &PROGRAMS,
            Daemon::K3s => &["/usr/local/bin/k3s", "/usr/bin/k3s"],
            Daemon::Rke2 => &["/usr/local/bin/rke2", "/usr/bin/rke2", "/opt/rke2/bin/rke2"],
            Daemon::K0s => &["/usr/local/bin/k0s", "/usr/bin/k0s"],
            Daemon::Microk8s => &["/snap/bin/microk8s", "/var/lib/snapd/snap/bin/microk8s"],
        }
    }

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Daemon::Own => "containerd",
            Daemon::K3s => "k3s",
            Daemon::Rke2 => "rke2",
            Daemon::K0s => "k0s",
            Daemon::Microk8s => "microk8s",
        }
    }

    /// Where it keeps what we may write, without a slash at the end.
    const fn folder(self) -> &'static str {
        match self {
            Daemon::Own => "/etc/containerd",
            Daemon::K3s => "/var/lib/rancher/k3s/agent/etc/containerd",
            Daemon::Rke2 => "/var/lib/rancher/rke2/agent/etc/containerd",
            Daemon::K0s => "/etc/k0s",
            Daemon::Microk8s => "/var/snap/microk8s/current/args",
        }
    }

    /// The file that it is configured by, or makes for its containerd.
    pub fn config(self) -> String {
        let name = match self {
            Daemon::Own | Daemon::K3s | Daemon::Rke2 => "config.toml",
            Daemon::K0s => "containerd.toml",
            Daemon::Microk8s => "containerd-template.toml",
        };
        self.within(name)
    }

    pub fn within(self, name: &str) -> String {
        format!("{}/{name}", self.folder())
    }

    /// What is to be said besides of a default runtime in its file.
    pub const fn default_is_from(self) -> &'static str {
        match self {
            Daemon::K3s | Daemon::Rke2 => {
                "; its default is that of --default-runtime, or of a template"
            }
            _ => "",
        }
    }

    /// Those whose program or configuration is in a tree; where there is none, the one that may be
    /// installed later.
    pub fn of(tree: &dyn ReadTree) -> Vec<Daemon> {
        let all = Daemon::ALL.into_iter();
        let by_program: Vec<Daemon> = all.clone().filter(|d| d.has_program(tree)).collect();
        // A file alone may be left over from another time.
        let by_file = all.filter(|d| tree.exists(&d.config())).collect();
        let found = [by_program, by_file, vec![Daemon::Own]];
        found
            .into_iter()
            .find(|all| !all.is_empty())
            .unwrap_or_default()
    }

    fn has_program(self, tree: &dyn ReadTree) -> bool {
        self.traces().iter().any(|path| tree.exists(path))
    }

    /// What makes it read its files again if it runs; nothing where it does so by itself.
    fn restart(self, path: &str) -> Option<&'static str> {
        match self {
            Daemon::Own => Some("systemctl try-restart containerd"),
            // A server is one unit, an agent another; containers run on.
            Daemon::K3s => Some("systemctl try-restart 'k3s*.service'"),
            Daemon::Rke2 => Some("systemctl try-restart 'rke2-*.service'"),
            // It watches the folder of drop-ins (pkg/component/worker/containerd of k0s).
            Daemon::K0s if path == self.config() => Some("systemctl try-restart 'k0s*.service'"),
            Daemon::K0s => None,
            Daemon::Microk8s => Some("snap restart microk8s.daemon-containerd"),
        }
    }
}

/// What makes those daemons whose files changed read them again.
pub(super) fn restarts(changes: &[&Change]) -> Vec<String> {
    let mut all = Vec::new();
    for change in changes.iter().filter(|c| c.target == Target::Containerd) {
        let mut others = Daemon::ALL.into_iter().skip(1);
        let daemon = others
            .rfind(|daemon| change.path.starts_with(daemon.folder()))
            .unwrap_or(Daemon::Own);
        let restart = daemon.restart(&change.path).map(str::to_owned);
        all.extend(restart.filter(|one| !all.contains(one)));
    }
    all
}

/// Whether the containerd that is installed by itself is of version 2 or later; nothing where its
/// program is not there, or a link of another tree leads elsewhere.
pub(super) fn is_second(tree: &dyn ReadTree) -> Option<bool> {
    let mut is_second = None;
    for path in PROGRAMS.iter().filter(|path| tree.exists(path)) {
        if let Ok(holds) = tree.holds(path, SECOND) {
            // Of two, the older one may be the one that runs.
            is_second = Some(holds && is_second != Some(false));
        }
    }
    is_second
}
