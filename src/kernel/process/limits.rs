//! Limits of another process (prlimit(2)).

use anyhow::{Context, Result};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use rustix::thread::CapabilitySet;

use super::capabilities;

/// Sets RLIMIT_MEMLOCK of a process, soft and hard, to unlimited: RDMA pins what it registers.
/// Takes CAP_SYS_RESOURCE.
pub fn lift_memlock(pid: i32) -> Result<()> {
    let process = Pid::from_raw(pid).context("no pid")?;
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    prlimit(Some(process), Resource::Memlock, unlimited)
        .map(drop)
        .context("setting RLIMIT_MEMLOCK")
}

/// What this process can lift a RLIMIT_MEMLOCK to, in bytes; absent: to unlimited. Beyond its hard
/// limit it takes CAP_SYS_RESOURCE in the first user namespace (do_prlimit() in kernel/sys.c).
pub fn memlock_ceiling() -> Result<Option<u64>> {
    let may = capabilities::has_in_first_user(CapabilitySet::SYS_RESOURCE)?;
    Ok(getrlimit(Resource::Memlock).maximum.filter(|_| !may))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn limit_of_a_child_is_lifted() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let result = lift_memlock(pid);
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        child.kill().and_then(|()| child.wait()).unwrap();
        // Without the capability the kernel lets nothing but an unlimited hard limit pass.
        if result.is_ok() || getrlimit(Resource::Memlock).maximum.is_none() {
            result.unwrap();
            let line = limits
                .lines()
                .find(|l| l.starts_with("Max locked memory"))
                .unwrap();
            assert_eq!(line.matches("unlimited").count(), 2, "{line}");
        }
    }
}
