//! What rdmaprep can be registered with, and what shows that it is there.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::daemon::Daemon;
use crate::disk::host_tree::ReadTree;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    Podman,
    Crio,
    Docker,
    Containerd,
    /// systemd: the units that restore NICs for which no stop hook ran.
    Systemd,
    NetworkManagers,
}

impl Target {
    pub const ALL: [Target; 6] = [
        Target::Podman,
        Target::Crio,
        Target::Docker,
        Target::Containerd,
        Target::Systemd,
        Target::NetworkManagers,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Target::Podman => "podman",
            Target::Crio => "crio",
            Target::Docker => "docker",
            Target::Containerd => "containerd",
            Target::Systemd => "systemd",
            Target::NetworkManagers => "network-managers",
        }
    }

    /// Whether another one may want the same link or definition.
    pub(super) fn shares(self, other: Target) -> bool {
        use Target::{Containerd, Crio, Docker, Podman};
        let both = [self, other];
        let link = both.iter().all(|t| matches!(t, Crio | Docker | Containerd));
        let definitions = both.iter().all(|t| matches!(t, Podman | Crio));
        self != other && (link || definitions)
    }

    pub(super) fn is_engine(self) -> bool {
        !matches!(self, Target::Systemd | Target::NetworkManagers)
    }

    /// Whether containers can be started without containerd's CRI.
    pub(super) fn is_other_engine(self) -> bool {
        self.is_engine() && self != Target::Containerd
    }

    /// What shows that it is on a host: any of these.
    pub(super) fn traces(self) -> Vec<&'static str> {
        let own: &[&str] = match self {
            Target::Podman => &["/usr/bin/podman", "/usr/local/bin/podman"],
            Target::Crio => &["/usr/bin/crio", "/usr/local/bin/crio"],
            Target::Docker => &[
                "/usr/sbin/dockerd",
                "/usr/bin/dockerd",
                "/usr/local/bin/dockerd",
            ],
            Target::Containerd => {
                return Daemon::ALL
                    .iter()
                    .flat_map(|daemon| daemon.traces())
                    .copied()
                    .collect();
            }
            Target::Systemd => &["/usr/lib/systemd/systemd", "/lib/systemd/systemd"],
            Target::NetworkManagers => &[
                "/usr/sbin/NetworkManager",
                "/usr/lib/systemd/systemd-networkd",
            ],
        };
        own.to_vec()
    }

    /// How a container of it gets a plan's NICs.
    pub fn example(self) -> Option<&'static str> {
        match self {
            Target::Podman => Some(
                "podman run --network none --annotation rdmaprep.io/plan=default IMAGE COMMAND",
            ),
            Target::Docker => Some(
                "docker run --runtime rdmaprep --network none --annotation \
                rdmaprep.io/plan=default IMAGE COMMAND",
            ),
            Target::Crio | Target::Containerd | Target::Systemd | Target::NetworkManagers => None,
        }
    }

    /// What makes it read its files again if it runs; nothing where it does so by itself.
    pub(super) fn next(self) -> Option<&'static str> {
        match self {
            Target::Podman => None,
            Target::Crio => Some("systemctl try-restart crio"),
            Target::Docker => Some("systemctl try-reload-or-restart docker"),
            Target::Systemd => Some("systemctl daemon-reload"),
            // By their files: `daemon::restarts`, `unmanaged::next`.
            Target::Containerd | Target::NetworkManagers => None,
        }
    }
}

/// Whether gVisor's runtime is on a host.
pub fn has_gvisor(tree: &dyn ReadTree) -> bool {
    [
        "/usr/bin/runsc",
        "/usr/sbin/runsc",
        "/usr/local/bin/runsc",
        "/usr/local/sbin/runsc",
    ]
    .iter()
    .any(|p| tree.exists(p))
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
