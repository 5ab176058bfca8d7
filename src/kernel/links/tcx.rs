use std::io;

use bpf_hooks::Tcx;
use nix::libc::{EACCES, EINVAL, ENOSYS, EPERM};

use rdma_model::snapshot::{Netdev, Program, ProgramHook};

/// Adds to netdevs of the calling thread's namespace the programs at their tcx hooks. A kernel
/// before 6.6 knows none; a caller that has no CAP_NET_ADMIN in the initial user namespace sees
/// none, and can attach none. Each is a question of two calls that take the lock of all network
/// configuration.
pub fn read<'a>(netdevs: impl Iterator<Item = &'a mut Netdev>) -> io::Result<()> {
    for dev in netdevs {
        for (hook, tcx) in [
            (ProgramHook::TcxIngress, Tcx::Ingress),
            (ProgramHook::TcxEgress, Tcx::Egress),
        ] {
            let found = match bpf_hooks::query(dev.ifindex, tcx) {
                Err(e)
                    if [EPERM, EACCES, EINVAL, ENOSYS]
                        .map(Some)
                        .contains(&e.raw_os_error()) =>
                {
                    return Ok(());
                }
                // One that has gone since is none of ours.
                Err(e) if e.raw_os_error() == Some(nix::libc::ENODEV) => continue,
                other => other?,
            };
            let programs = found.iter().map(|a| Program {
                hook,
                id: a.program,
            });
            dev.programs.get_or_insert_default().extend(programs);
        }
    }
    Ok(())
}

pub fn hook(hook: ProgramHook) -> Option<Tcx> {
    match hook {
        ProgramHook::TcxIngress => Some(Tcx::Ingress),
        ProgramHook::TcxEgress => Some(Tcx::Egress),
        _ => None,
    }
}
