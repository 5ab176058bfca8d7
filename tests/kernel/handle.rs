//! Handles by value: what a process keeps open is reached, and nothing else in its place; each
//! refusal names its cause.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::alone;
use rdma_model::error_class::ErrorClass;
use rdmaprep::handle::{Handle, Mark};
use rdmaprep::kernel::process::memfd::sealed;
use rdmaprep::kernel::process::pidfd::{Process, start_time};
use rdmaprep::kernel::process::pidfd_getfd::{fetch, handle_for, lives};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use testkit::{Said, only, run};

/// A process that has inherited what this one has open; it ends with it.
struct Keeper(Child);

impl Keeper {
    fn new() -> Keeper {
        Keeper(
            Command::new("cat")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn process(&self) -> Process {
        Process::open(self.pid()).unwrap()
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(fd: OwnedFd) -> String {
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text).unwrap();
    text
}

/// Insists that it is refused, with these words.
fn refused(handle: &Handle, word: &str) {
    let e = fetch(handle, None).unwrap_err();
    assert_eq!(ErrorClass::of(&e), ErrorClass::Refused, "{e:#}");
    assert!(format!("{e:#}").contains(word), "no {word:?} in: {e:#}");
}

#[test]
fn each_reader_starts_at_the_beginning_and_none_can_write() {
    alone(|_| {
        let fd = sealed("test", b"the very bytes").unwrap();
        let keeper = Keeper::new();
        let handle = handle_for(&keeper.process(), &fd).unwrap();
        drop(fd);
        assert!(lives(&handle));
        let (mut one, other) = (
            File::from(fetch(&handle, None).unwrap()),
            fetch(&handle, None).unwrap(),
        );
        let mut first = [0; 8];
        one.read_exact(&mut first).unwrap();
        assert_eq!(text(other), "the very bytes");
        assert!(one.write(b"x").is_err());
        // Of an older kernel.
        let old = Handle {
            process: Mark::Started(start_time(keeper.pid()).unwrap()),
            ..handle
        };
        assert!(lives(&old));
        assert_eq!(text(fetch(&old, None).unwrap()), "the very bytes");
    });
}

#[test]
fn what_is_not_meant_any_more_is_refused() {
    alone(|_| {
        let fd = sealed("test", b"bytes").unwrap();
        let mut keeper = Keeper::new();
        let handle = handle_for(&keeper.process(), &fd).unwrap();
        let boot = handle.boot_id.replace(|c: char| c.is_ascii_hexdigit(), "0");
        refused(
            &Handle {
                boot_id: boot,
                ..handle.clone()
            },
            "made before the last boot",
        );
        refused(
            &Handle {
                ino: handle.ino + 1,
                ..handle.clone()
            },
            "is another object now",
        );
        refused(
            &Handle {
                dev: handle.dev + 1,
                ..handle.clone()
            },
            "is another object now",
        );
        refused(
            &Handle {
                fd: 777,
                ..handle.clone()
            },
            "has closed descriptor 777",
        );
        refused(
            &Handle {
                process: Mark::Started(1),
                ..handle.clone()
            },
            "is another process now",
        );
        refused(
            &Handle {
                process: Mark::Pidfs(1),
                ..handle.clone()
            },
            "is another process now",
        );
        // Neither one that has yet to be reaped, nor one that has gone for good.
        keeper.0.kill().unwrap();
        testkit::until("it has ended", || !lives(&handle));
        refused(&handle, "has gone");
        keeper.end();
        refused(&handle, "has gone");
    });
}

#[test]
fn what_others_can_change_is_refused() {
    alone(|_| {
        let own = Process::current().unwrap();
        let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        for lacking in [
            all,
            SealFlags::WRITE,
            SealFlags::GROW,
            SealFlags::SHRINK,
            SealFlags::SEAL,
        ] {
            let fd =
                memfd_create("loose", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
            fcntl_add_seals(&fd, all - lacking).unwrap();
            refused(&handle_for(&own, &fd).unwrap(), "is not sealed");
            fcntl_add_seals(&fd, all)
                .unwrap_or_else(|e| assert!(!lacking.contains(SealFlags::SEAL), "{e}"));
        }
        // What is no file in memory has no seals: a network namespace, say.
        let netns = File::open("/proc/self/ns/net").unwrap();
        let again = fetch(&handle_for(&own, netns.as_fd()).unwrap(), None).unwrap();
        assert_eq!(
            rustix::fs::fstat(&again).unwrap().st_ino,
            rustix::fs::fstat(&netns).unwrap().st_ino
        );
    });
}

/// Where pids are this test's own: set inside.
const PIDS: &str = "RDMAPREP_TEST_PIDS";

#[test]
fn a_reused_pid_is_not_taken_for_the_old_process() {
    if std::env::var_os(PIDS).is_none() {
        let mut unshare = Command::new("unshare");
        unshare.args([
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--mount-proc",
            "--",
        ]);
        unshare
            .arg(std::env::current_exe().unwrap())
            .args(only(&a_reused_pid_is_not_taken_for_the_old_process));
        let said = run(unshare.env(PIDS, "1"), "");
        assert!(
            said.code == Some(0) && said.out.contains(" 1 passed;"),
            "{said:#?}"
        );
        return;
    }
    let old = sealed("old", b"the old one's").unwrap();
    let number = old.as_raw_fd();
    let mut first = Keeper::new();
    let pid = first.pid();
    let handle = handle_for(&first.process(), &old).unwrap();
    assert!(
        matches!(handle.process, Mark::Pidfs(_))
            == (std::fs::exists("/proc/self/ns/net").unwrap() && pidfs())
    );
    let started = Handle {
        process: Mark::Started(start_time(pid).unwrap()),
        ..handle.clone()
    };
    assert_eq!(text(fetch(&handle, None).unwrap()), "the old one's");
    first.end();
    drop(old);
    let new = sealed("new", b"the new one's").unwrap();
    assert_eq!(
        new.as_raw_fd(),
        number,
        "the new file has the old one's number"
    );
    // A clock tick later at least.
    std::thread::sleep(Duration::from_millis(50));
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
    let second = Keeper::new();
    assert_eq!(second.pid(), pid, "the pid is the old one's");
    // The numbers alone lead to a file of another process.
    let naive = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
    let naive = pidfd_getfd(&naive, number, PidfdGetfdFlags::empty()).unwrap();
    assert_eq!(
        std::fs::read_to_string(format!("/proc/self/fd/{}", naive.as_raw_fd())).unwrap(),
        "the new one's"
    );
    for handle in [handle, started] {
        refused(&handle, &format!("pid {pid} is another process now"));
        assert!(!lives(&handle));
    }
}

/// Whether this kernel gives each process an inode: since Linux 6.9.
fn pidfs() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 9)
}

/// `rdmaprep handle open`, by a process to which the kernel refuses descriptors of others, to print
/// what it got.
fn weak(handle: &Handle, more: &[&str]) -> Said {
    let mut command = Command::new("setpriv");
    command.args([
        "--bounding-set=-all",
        "--inh-caps=-all",
        env!("CARGO_BIN_EXE_rdmaprep"),
        "handle",
        "open",
    ]);
    run(
        command
            .arg(handle.to_string())
            .args(more)
            .args(["--", "cat", "/proc/self/fd/3"]),
        "",
    )
}

#[test]
fn where_the_kernel_refuses_there_are_other_ways() {
    alone(|host| {
        let fd = sealed("test", b"kept").unwrap();
        let keeper = Keeper::new();
        let of_sibling = handle_for(&keeper.process(), &fd).unwrap();
        let words = [
            "that process may do more than this one, and CAP_SYS_PTRACE is missing here",
            "/proc/",
        ];
        weak(&of_sibling, &[]).fails(3, &words);
        let file = host.run.with_file_name("file");
        std::fs::write(&file, "of the file").unwrap();
        let more = ["--file", file.to_str().unwrap()];
        assert_eq!(weak(&of_sibling, &more).ok().out, "of the file");
        // A handle of the past is no reason to read a file.
        weak(
            &Handle {
                fd: of_sibling.fd,
                process: Mark::Started(1),
                ..of_sibling.clone()
            },
            &more,
        )
        .fails(3, &["is another process now"]);
        // A child has inherited it.
        let of_parent = handle_for(&Process::current().unwrap(), &fd).unwrap();
        assert_eq!(weak(&of_parent, &[]).ok().out, "kept");
        // But what it has under that number may be something else.
        weak(
            &Handle {
                ino: of_parent.ino + 1,
                ..of_parent
            },
            &[],
        )
        .fails(3, &["is another object now", "CAP_SYS_PTRACE"]);
    });
}

/// Prints a line when its /proc entries are root's only, and waits.
const UNDUMPABLE: &str = "import ctypes, sys
assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
print(flush=True)
sys.stdin.read()";

/// Set where a test runs as a user without privileges: rdmaprep, for that user to run.
const PLAIN: &str = "RDMAPREP_TEST_PLAIN";

/// The path of rdmaprep if this is a user without privileges; else the test is run again as one. A
/// user namespace that maps root to another number would not do: an undumpable process is shown as
/// root's.
fn as_plain_user(only: [&str; 5]) -> Option<PathBuf> {
    if let Some(program) = std::env::var_os(PLAIN) {
        return Some(program.into());
    }
    if !rustix::process::geteuid().is_root() {
        return Some(env!("CARGO_BIN_EXE_rdmaprep").into());
    }
    let folder = tempfile::tempdir().unwrap();
    let (program, this) = (folder.path().join("rdmaprep"), folder.path().join("test"));
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_rdmaprep"), &program).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), &this).unwrap();
    let mut user = Command::new("setpriv");
    user.args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(this);
    user.args(only).env(PLAIN, program);
    let said = run(user.current_dir("/"), "");
    assert!(
        said.code == Some(0) && said.out.contains(" 1 passed;"),
        "{said:#?}"
    );
    None
}

#[test]
fn a_process_that_is_not_dumpable_is_named() {
    let Some(rdmaprep) = as_plain_user(only(&a_process_that_is_not_dumpable_is_named)) else {
        return;
    };
    let fd = sealed("test", b"kept").unwrap();
    let keeper = Keeper::new();
    let open = |handle: Handle| {
        let mut command = Command::new(&rdmaprep);
        command
            .args(["handle", "open"])
            .arg(handle.to_string())
            .args(["--", "cat", "/proc/self/fd/3"]);
        run(&mut command, "")
    };
    assert_eq!(
        open(handle_for(&keeper.process(), &fd).unwrap()).ok().out,
        "kept"
    );
    let mut python = Command::new("python3");
    python
        .args(["-c", UNDUMPABLE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut keeper = Keeper(python.spawn().unwrap());
    keeper
        .0
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut [0])
        .unwrap();
    let words = [
        "that process is not dumpable, and CAP_SYS_PTRACE is missing here",
        "/proc/",
    ];
    open(handle_for(&keeper.process(), &fd).unwrap()).fails(3, &words);
}

/// Runs its arguments under a filter that refuses pidfd_getfd, whose number is the same everywhere.
const FILTER: &str = r#"
import ctypes, os, struct, sys
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 438), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *s) for s in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn a_seccomp_filter_is_named_and_got_round() {
    alone(|_| {
        let fd = sealed("test", b"kept").unwrap();
        let keeper = Keeper::new();
        let handle = handle_for(&keeper.process(), &fd).unwrap();
        let filtered = |handle: &Handle| {
            let mut python = Command::new("python3");
            python.args([
                "-c",
                FILTER,
                env!("CARGO_BIN_EXE_rdmaprep"),
                "handle",
                "open",
                &handle.to_string(),
            ]);
            run(python.args(["--", "cat", "/proc/self/fd/3"]), "")
        };
        // By way of /proc, which wants less.
        assert_eq!(filtered(&handle).ok().out, "kept");
        filtered(&Handle {
            fd: 777,
            ..handle.clone()
        })
        .fails(3, &["a seccomp filter", "/fd/777: No such file"]);
        filtered(&Handle {
            ino: handle.ino + 1,
            ..handle
        })
        .fails(3, &["a seccomp filter", "is another object now"]);
    });
}

#[test]
fn a_program_gets_it_as_descriptor_3() {
    alone(|host| {
        let fd = sealed("test", b"kept").unwrap();
        let keeper = Keeper::new();
        let handle = handle_for(&keeper.process(), &fd).unwrap().to_string();
        let shell = [
            "--",
            "sh",
            "-c",
            "echo $RDMAPREP_HANDLE_FD; cat <&3; ls /proc/self/fd | wc -l; exit 7",
        ];
        let said = run(host.command(&["handle", "open", &handle]).args(shell), "");
        let open = said
            .out
            .strip_prefix("3\nkept")
            .unwrap_or_else(|| panic!("{said:?}"))
            .trim();
        let without: u32 = testkit::sh("ls /proc/self/fd | wc -l")
            .trim()
            .parse()
            .unwrap();
        assert_eq!(
            (said.code, open),
            (Some(7), (without + 1).to_string().as_str()),
            "it alone is one more: {said:?}"
        );
        run(
            host.command(&["handle", "open", &handle])
                .args(["--", "/nonexistent"]),
            "",
        )
        .fails(2, &["running /nonexistent"]);
        host.rdmaprep(&["handle", "open", &handle])
            .fails(2, &["CMD"]);
        run(
            host.command(&["handle", "open", "h1.x"])
                .args(["--", "true"]),
            "",
        )
        .fails(2, &["\"h1.x\" is no handle"]);
        run(host.command(&["handle", "open"]).args(["--", "true"]), "").fails(2, &["HANDLE"]);
    });
}
