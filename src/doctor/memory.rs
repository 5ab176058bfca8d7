//! Memory: how much may be pinned, and how a NIC gets at a GPU's.

use nccl_rules::settings::Settings;

use super::facts::{Machine, Nvidia, Starter};
use super::{Check, CheckContext, Finding, Severity};

/// Less than this is used up by the first connections.
const LITTLE: u64 = 64 << 20;

const PINNED: &str = "every buffer of RDMA is pinned: registering memory fails with ENOMEM when \
    the limit is reached";

pub(super) fn memlock(context: &CheckContext, machine: &Machine) -> Vec<Finding> {
    let starters = machine
        .starters
        .iter()
        .filter(|_| !context.is_inside())
        .filter_map(starter);
    let Some(limit) = machine.memlock.filter(|_| !machine.pins_freely) else {
        return starters.collect();
    };
    let severity = if limit < LITTLE {
        Severity::Breaks
    } else {
        Severity::Warning
    };
    let who = if context.is_inside() {
        "the container's init"
    } else {
        "this shell"
    };
    let seen = format!(
        "RLIMIT_MEMLOCK of {who} is {} KiB, and it has no CAP_IPC_LOCK",
        limit >> 10
    );
    let mut own = Finding::new(Check::Memlock, severity, seen, PINNED, "");
    own.fix = match (context.is_inside(), machine.memlock_stays) {
        (true, _) => {
            "the create hook lifts it unless `lift_memlock` in the host's config file is false; \
            or --ulimit memlock=-1:-1"
        }
        (false, true) => {
            "it is for who started this shell to lift, as the hard limit is finite, too: in \
            /etc/security/limits.d, for a service LimitMEMLOCK=infinity"
        }
        (false, false) => {
            own.run.push("ulimit -l unlimited".to_owned());
            "ulimit -l unlimited; for all in /etc/security/limits.d, for a service \
                LimitMEMLOCK=infinity"
        }
    }
    .to_owned();
    starters.chain([own]).collect()
}

/// What a program hands on, with which nothing of RDMA works; it may pin what it likes itself.
fn starter(starter: &Starter) -> Option<Finding> {
    let limit = starter.memlock.filter(|limit| *limit < LITTLE)?;
    let seen = format!(
        "RLIMIT_MEMLOCK of {} (process {}) is {} KiB",
        starter.name,
        starter.pid,
        limit >> 10
    );
    let fix = "LimitMEMLOCK=infinity for its unit, and for what it starts from now on; the create \
        hook lifts it for containers that get NICs by rdmaprep";
    let found = Finding::new(Check::Memlock, Severity::Warning, seen, PINNED, fix);
    let unit = starter.unit.as_ref().map(|unit| {
        let folder = format!("/etc/systemd/system/{unit}.d");
        format!(
            "mkdir -p {folder} && printf '[Service]\\nLimitMEMLOCK=infinity\\n' > \
            {folder}/memlock.conf && systemctl daemon-reload"
        )
    });
    let now = format!(
        "prlimit --pid {} --memlock=unlimited:unlimited",
        starter.pid
    );
    Some(Finding {
        run: unit.into_iter().chain([now]).collect(),
        ..found
    })
}

/// GPUDirect: nvidia_peermem, or dma-buf from NVIDIA's open modules; RCCL's way; GDRCopy.
pub(super) fn peer_memory(context: &CheckContext, machine: &Machine) -> Vec<Finding> {
    let nvidia = machine.nvidia.as_ref();
    let mut found: Vec<Finding> = nvidia
        .and_then(|nvidia| nvidia_memory(context, nvidia))
        .into_iter()
        .collect();
    if machine.amdkfd == Some(false) {
        let seen = "amdgpu is loaded, and the kernel shows no memory_peers/amdkfd";
        let fix = "amdgpu-dkms with the peer memory of MLNX_OFED or of the distribution's kernel; \
            or dma-buf: NCCL_DMABUF_ENABLE=1";
        let unknown = Severity::Unknown;
        found.push(Finding::new(Check::PeerMemory, unknown, seen, COPIES, fix));
    }
    if machine.gdrdrv
        && machine
            .userspace
            .as_ref()
            .is_some_and(|found| !found.gdrdrv)
    {
        let seen = "the host has /dev/gdrdrv, and the container does not";
        let why = "GDRCopy, which UCX uses, and NCCL with NCCL_GDRCOPY_ENABLE=1, is off there";
        let fix = "--device /dev/gdrdrv, where the job uses it";
        let unknown = Severity::Unknown;
        found.push(Finding::new(Check::PeerMemory, unknown, seen, why, fix));
    }
    found
}

const COPIES: &str =
    "NICs do not reach the memory of GPUs: NCCL copies everything through the host's memory";

fn nvidia_memory(context: &CheckContext, nvidia: &Nvidia) -> Option<Finding> {
    let none = Settings::default();
    let settings = context.of.settings.unwrap_or(&none);
    if matches!(settings.get("NCCL_NET_GDR_LEVEL"), Some("LOC" | "0")) {
        let seen = "NCCL_NET_GDR_LEVEL=LOC: NCCL takes no NIC for near enough to a GPU";
        let warning = Severity::Warning;
        return Some(Finding::new(
            Check::PeerMemory,
            warning,
            seen,
            COPIES,
            "unset it",
        ));
    }
    let is_off = settings.get("NCCL_DMABUF_ENABLE") == Some("0");
    let open = if is_off { Some(false) } else { nvidia.open };
    let off = is_off.then_some("NCCL_DMABUF_ENABLE=0 turns dma-buf off");
    let old = context.release().filter(|version| !version.knows_peermem());
    let unseen = old.filter(|version| {
        let mut peers = version.memory_peers().into_iter();
        let there = &nvidia.memory_peers;
        nvidia.peermem && !peers.any(|peer| there.iter().any(|name| name == peer))
    });
    if let Some(version) = unseen {
        let (severity, dma_buf) = match open {
            Some(true) => return None,
            Some(false) => (
                Severity::Warning,
                off.unwrap_or("the driver has no dma-buf"),
            ),
            None => (
                Severity::Unknown,
                "whether the driver has dma-buf is unknown",
            ),
        };
        let seen = format!(
            "nvidia_peermem is loaded, which NCCL {} looks for in \
            /sys/kernel/mm/memory_peers alone, as {}, and that is not here; {dma_buf}",
            version.label(),
            version.memory_peers().join(" or ")
        );
        let fix = "NCCL 2.23.4 or later; or the kernel modules of MLNX_OFED, which have \
            memory_peers; or NVIDIA's open kernel modules";
        return Some(Finding::new(Check::PeerMemory, severity, seen, COPIES, fix));
    }
    let (severity, dma_buf) = match (nvidia.peermem, open) {
        (true, _) | (false, Some(true)) => return None,
        (false, Some(false)) => (
            Severity::Warning,
            off.unwrap_or("the driver is not the open one, which has dma-buf"),
        ),
        (false, None) => (
            Severity::Unknown,
            "whether the driver has dma-buf is unknown",
        ),
    };
    let seen = format!("nvidia_peermem is not loaded, and {dma_buf}");
    let fix = match is_off && nvidia.open == Some(true) {
        true => "unset that; or load nvidia_peermem, and at boot",
        false => "load nvidia_peermem, and at boot; or use NVIDIA's open kernel modules",
    };
    let found = Finding::new(Check::PeerMemory, severity, seen, COPIES, fix);
    Some(found.run("modprobe nvidia_peermem"))
}
