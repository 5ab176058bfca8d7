//! Why the kernel refuses a process the descriptors of another one.

#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// Absent, as for `dumpable`: not readable.
    pub same_user: Option<bool>,
    pub dumpable: Option<bool>,
    /// Whether this one has CAP_SYS_PTRACE in its own user namespace.
    pub capable: bool,
    /// `/proc/sys/kernel/yama/ptrace_scope`; absent: no Yama.
    pub yama: Option<u8>,
    pub filtered: bool,
}

impl Standing {
    /// Why the kernel said EPERM: the likeliest reason, since it does not say which one it was.
    pub fn cause(&self) -> String {
        const CAP: &str = "and CAP_SYS_PTRACE is missing here";
        match self {
            Standing { yama: Some(3), .. } => {
                "Yama lets no process take it: kernel.yama.ptrace_scope is 3, until the next \
                boot"
                    .to_owned()
            }
            Standing {
                capable: true,
                filtered: true,
                ..
            } => "a seccomp filter (a container's, as a rule) refuses pidfd_getfd".to_owned(),
            Standing { capable: true, .. } => {
                "CAP_SYS_PTRACE is missing in that process's user namespace, or a security module \
                refuses"
                    .to_owned()
            }
            Standing {
                same_user: Some(false),
                ..
            } => format!(
                "that process is another user's, \
                {CAP}"
            ),
            Standing {
                dumpable: Some(false),
                ..
            } => format!(
                "that process is not dumpable, \
                {CAP}"
            ),
            Standing {
                yama: Some(scope @ 1..=2),
                ..
            } => {
                format!("Yama refuses it: kernel.yama.ptrace_scope is {scope}, {CAP}")
            }
            Standing { filtered: true, .. } => format!(
                "a seccomp filter refuses pidfd_getfd, \
                {CAP}"
            ),
            _ => format!("that process may do more than this one, {CAP}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_its_cause() {
        let own = Standing {
            same_user: Some(true),
            dumpable: Some(true),
            ..Standing::default()
        };
        let root = Standing {
            capable: true,
            ..own
        };
        for (standing, word) in [
            (
                Standing {
                    yama: Some(3),
                    ..root
                },
                "ptrace_scope is 3",
            ),
            (
                Standing {
                    filtered: true,
                    ..root
                },
                "seccomp",
            ),
            (root, "user namespace"),
            (
                Standing {
                    same_user: Some(false),
                    yama: Some(1),
                    ..own
                },
                "another user's",
            ),
            (
                Standing {
                    dumpable: Some(false),
                    yama: Some(1),
                    ..own
                },
                "not dumpable",
            ),
            (
                Standing {
                    yama: Some(2),
                    ..own
                },
                "ptrace_scope is 2",
            ),
            (
                Standing {
                    yama: Some(1),
                    ..own
                },
                "ptrace_scope is 1",
            ),
            (
                Standing {
                    yama: Some(0),
                    filtered: true,
                    ..own
                },
                "seccomp",
            ),
            (
                Standing {
                    yama: Some(0),
                    ..own
                },
                "may do more than this one, and CAP_SYS_PTRACE is missing",
            ),
        ] {
            assert!(
                standing.cause().contains(word),
                "{standing:?}: {}",
                standing.cause()
            );
        }
    }
}
