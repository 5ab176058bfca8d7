//! Containers of engines, by the processes that watch them: whose runtime is rdmaprep, and which
//! pid their init has.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::disk::files;
use crate::kernel::process::status::{pid_namespace, status};
use crate::oci::pod::{CONTAINERDS, TASKS};
use crate::record::is_of_engine;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// Its id, with containerd's namespace before it where there is one: `moby/0123…`.
    pub container: String,
    pub runtime: String,
}

const LONGEST: u64 = 4096;

/// What cannot be read names none.
pub fn users(root: &Path) -> Vec<User> {
    let watchers = watchers(root);
    let watched = watchers.conmons().filter_map(|(_, words)| watched(words));
    watched
        .chain(watchers.bundles().iter().filter_map(|bundle| task(bundle)))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

/// A container that an engine runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Running {
    pub id: String,
    /// As podman and CRI-O call it.
    pub name: Option<String>,
    /// Of its init.
    pub pid: i32,
}

/// What a conmon watches, and containerd's tasks. Each one's init is a child of its own watcher:
/// the number in a file that a killed watcher left may be another process's by now, also another
/// container's.
pub fn running(root: &Path) -> Vec<Running> {
    let watchers = watchers(root);
    let mut all = BTreeSet::new();
    for (watcher, words) in watchers.conmons() {
        all.extend(of_conmon(root, watcher, words));
    }
    for bundle in watchers.bundles() {
        all.extend(of_task(root, &watchers, &bundle));
    }
    all.into_iter().collect()
}

fn of_conmon(root: &Path, watcher: u32, words: &[String]) -> Option<Running> {
    // A session of `podman exec` has a conmon of its own, with the container's id and name.
    let is_exec = words
        .iter()
        .any(|word| ["-e", "--exec"].contains(&word.as_str()));
    let file = after(words, ["-p", "--container-pidfile"]).filter(|_| !is_exec)?;
    let (pid, parent) = init(root, Path::new(&file))?;
    let (id, name) = (after(words, CID)?, after(words, ["-n", "--name"]));
    (parent == watcher).then_some(Running { id, name, pid })
}

fn of_task(root: &Path, watchers: &Watchers, bundle: &Path) -> Option<Running> {
    let id = bundle.file_name()?.to_str()?.to_owned();
    // InitPidFile in process/init.go of containerd-shim-runc-v2.
    let (pid, parent) = init(root, &bundle.join("init.pid"))?;
    let is_its = watchers.is_shim_of(parent, &id, &process(root, pid));
    is_its.then_some(Running {
        id,
        name: None,
        pid,
    })
}

fn process(root: &Path, pid: i32) -> PathBuf {
    root.join("proc").join(pid.to_string())
}

/// The pid in a file, and its parent's.
fn init(root: &Path, file: &Path) -> Option<(i32, u32)> {
    let pid: i32 = files::read(file).ok().flatten()?.trim().parse().ok()?;
    Some((pid, status(&process(root, pid), "PPid:")?))
}

/// The processes that watch containers.
struct Watchers {
    /// The pid and the command line of each.
    all: Vec<(u32, Vec<String>)>,
    /// Where containerd keeps its tasks.
    tasks: BTreeSet<PathBuf>,
}

impl Watchers {
    /// The pids and command lines of podman's and CRI-O's.
    fn conmons(&self) -> impl Iterator<Item = (u32, &[String])> {
        self.all
            .iter()
            .map(|(pid, words)| (*pid, words.as_slice()))
            .filter(|(_, words)| program(words) == "conmon")
    }

    /// Whether that process is the shim of a task with this init. Of a pod's other containers, the
    /// cgroup of the init has the id.
    fn is_shim_of(&self, pid: u32, id: &str, init: &Path) -> bool {
        let Some((_, words)) = self.all.iter().find(|(watcher, _)| *watcher == pid) else {
            return false;
        };
        let is_its = after(words, ["-id", "--id"]).as_deref() == Some(id);
        is_its || cgroups(init).iter().any(|part| part.contains(id))
    }

    /// Of containerd's tasks: one shim may watch all containers of a pod.
    fn bundles(&self) -> Vec<PathBuf> {
        self.tasks
            .iter()
            .flat_map(|tasks| below(tasks))
            .flat_map(|namespace| below(&namespace))
            .collect()
    }
}

fn watchers(root: &Path) -> Watchers {
    let tasks = CONTAINERDS
        .iter()
        .map(|state| root.join(state).join(TASKS))
        .collect();
    let mut found = Watchers {
        all: Vec::new(),
        tasks,
    };
    // A user and a container may call a program of theirs by these names.
    let administrator = fs::metadata(root).ok().map(|meta| meta.uid());
    let host = pid_namespace(&root.join("proc/self"));
    for process in below(&root.join("proc")) {
        let Some(pid) = process
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok())
        else {
            continue;
        };
        let Ok(line) = fs::read(process.join("cmdline")) else {
            continue;
        };
        let words: Vec<String> = line
            .split(|b| *b == 0)
            .map(|w| String::from_utf8_lossy(w).into_owned())
            .collect();
        let is_shim = program(&words).starts_with("containerd-shim");
        if !(is_shim || program(&words) == "conmon")
            // Not by the owner of the folder: that of a process which cannot be dumped is root.
            || status(&process, "Uid:") != administrator
            || pid_namespace(&process) != host
            || is_of_container(&process)
        {
            continue;
        }
        // It is started in TASKS/NAMESPACE/ID, wherever containerd's state is.
        if is_shim {
            let bundle = fs::read_link(process.join("cwd")).unwrap_or_default();
            found.tasks.extend(
                bundle
                    .ancestors()
                    .nth(2)
                    .filter(|tasks| tasks.ends_with(TASKS))
                    .map(Path::to_owned),
            );
        }
        found.all.push((pid, words));
    }
    found
}

fn program(words: &[String]) -> &str {
    words
        .first()
        .and_then(|word| word.rsplit('/').next())
        .unwrap_or_default()
}

/// The parts of the paths of a process's cgroups (cgroups(7)).
fn cgroups(process: &Path) -> Vec<String> {
    let text = files::read(&process.join("cgroup"))
        .ok()
        .flatten()
        .unwrap_or_default();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths
        .flat_map(|path| path.split('/'))
        .map(str::to_owned)
        .collect()
}

/// Whether a process is in the cgroup that an engine made for a container: `docker-ID.scope`,
/// `libpod-ID.scope`, `ID`. One with the host's PIDs may call itself what it likes. That of a
/// watcher is `libpod-conmon-ID.scope` or the like, or of a service.
fn is_of_container(process: &Path) -> bool {
    cgroups(process).iter().any(|part| {
        let id = part.trim_end_matches(".scope").rsplit('-').next();
        id.is_some_and(is_of_engine) && !part.contains("conmon")
    })
}

fn below(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

/// What a shim has written of its container: WriteRuntime() in containerd's
/// cmd/containerd-shim-runc-v2/runc/container.go.
fn task(bundle: &Path) -> Option<User> {
    let file = bundle.join("runtime");
    let is_short = fs::symlink_metadata(&file).is_ok_and(|meta| meta.len() <= LONGEST);
    let runtime = if is_short {
        files::read(&file).ok()??
    } else {
        return None;
    };
    let [namespace, id] =
        [bundle.parent()?, bundle].map(|at| at.file_name().map(|name| name.to_string_lossy()));
    Some(User {
        container: format!("{}/{}", namespace?, id?),
        runtime: runtime.trim().to_owned(),
    })
}

const CID: [&str; 2] = ["-c", "--cid"];

/// conmon(8): `--cid ID --runtime PATH`, or by letters.
fn watched(words: &[String]) -> Option<User> {
    let runtime = after(words, ["-r", "--runtime"])?;
    Some(User {
        container: after(words, CID).unwrap_or_default(),
        runtime,
    })
}

/// The value of an option.
fn after(words: &[String], flags: [&str; 2]) -> Option<String> {
    let at = words
        .iter()
        .position(|word| flags.contains(&word.as_str()))?;
    words.get(at + 1).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn write(path: &Path, content: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Root's.
    fn process(root: &Path, pid: u32, parent: u32, line: &str) {
        let owner = fs::metadata(root).unwrap().uid();
        let process = root.join("proc").join(pid.to_string());
        write(&process.join("cmdline"), line);
        write(
            &process.join("status"),
            &format!("Name:\tx\nPPid:\t{parent}\nUid:\t{owner}\t0\t0\t0\n"),
        );
    }

    #[test]
    fn containers_of_each_engine_are_seen() {
        let tree = tempfile::TempDir::new().unwrap();
        let root = tree.path();
        let user = |container: &str, runtime: &str| User {
            container: container.into(),
            runtime: runtime.into(),
        };
        assert_eq!(users(root), []);
        write(
            &root
                .join("run/containerd")
                .join(TASKS)
                .join("moby/c1/runtime"),
            "/usr/bin/rdmaprep-runtime",
        );
        write(
            &root
                .join("run/docker/containerd/daemon")
                .join(TASKS)
                .join("moby/c2/runtime"),
            "",
        );
        // One of a containerd whose state is elsewhere.
        let bundle = root.join("srv/state").join(TASKS).join("k8s.io/pod");
        write(&bundle.join("runtime"), "/usr/bin/rdmaprep-runtime\n");
        write(&root.join("srv/other/moby/c3/runtime"), "/x");
        process(
            root,
            7,
            1,
            "/usr/bin/containerd-shim-runc-v2\0-namespace\0k8s.io\0-id\0pod\0",
        );
        symlink(&bundle, root.join("proc/7/cwd")).unwrap();
        process(root, 8, 1, "/usr/bin/containerd-shim-runc-v2\0");
        symlink(root.join("srv/other/moby/c3"), root.join("proc/8/cwd")).unwrap();
        process(
            root,
            9,
            1,
            "/usr/bin/conmon\0--api-version\x001\0-c\0p1\0-u\0p1\0-r\0/opt/rdmaprep-runtime\0",
        );
        process(root, 10, 1, "vi\0-r\0/usr/bin/rdmaprep-runtime\0");
        process(root, 11, 1, "conmon\0--version\0");
        // In a container.
        process(
            root,
            12,
            1,
            "conmon\0-c\0p2\0-r\0/usr/bin/rdmaprep-runtime\0",
        );
        fs::create_dir_all(root.join("proc/12/ns")).unwrap();
        symlink("pid:[4026531837]", root.join("proc/12/ns/pid")).unwrap();
        // A user's, who has made it one that cannot be dumped: its folder is root's.
        process(
            root,
            13,
            1,
            "conmon\0-c\0p3\0-r\0/usr/bin/rdmaprep-runtime\0",
        );
        write(
            &root.join("proc/13/status"),
            "PPid:\t1\nUid:\t1000\t1000\t1000\t1000\n",
        );
        fs::create_dir_all(
            root.join("run/containerd")
                .join(TASKS)
                .join("moby/c4/runtime"),
        )
        .unwrap();
        let expected = [
            user("k8s.io/pod", "/usr/bin/rdmaprep-runtime"),
            user("moby/c1", "/usr/bin/rdmaprep-runtime"),
            user("moby/c2", ""),
            user("p1", "/opt/rdmaprep-runtime"),
        ];
        assert_eq!(users(root), expected);
    }

    #[test]
    fn containers_that_run_have_a_pid() {
        let tree = tempfile::TempDir::new().unwrap();
        let root = tree.path();
        let pidfile = root.join("run/p1.pid");
        write(&pidfile, "4711");
        let conmon = format!(
            "/usr/bin/conmon\0-c\0p1\0-n\0job\0-p\0{}\0-r\0/usr/bin/crun\0",
            pidfile.display()
        );
        process(root, 9, 1, &conmon);
        process(root, 10, 1, "/usr/bin/conmon\0-c\0p2\0-p\0/nowhere\0");
        process(root, 4711, 9, "sleep\0");
        // A session of `podman exec`.
        let session = root.join("run/exec.pid");
        write(&session, "4712");
        process(
            root,
            12,
            1,
            &format!(
                "/usr/bin/conmon\0-c\0p1\0-n\0job\0-p\0{}\0-e\0--exec-attach\0",
                session.display()
            ),
        );
        process(root, 4712, 12, "sh\0");
        let bundle = root.join("run/containerd").join(TASKS).join("moby/c1");
        write(&bundle.join("init.pid"), "815");
        process(root, 815, 11, "sleep\0");
        // Of a shim that was killed: another process has that number.
        write(
            &root
                .join("run/containerd")
                .join(TASKS)
                .join("moby/c2/init.pid"),
            "816",
        );
        process(root, 816, 1, "sshd\0");
        process(root, 11, 1, "/usr/bin/containerd-shim-runc-v2\0-id\0c1\0");
        symlink(&bundle, root.join("proc/11/cwd")).unwrap();
        // By now it is that of another container's process.
        write(
            &root
                .join("run/containerd")
                .join(TASKS)
                .join("moby/c3/init.pid"),
            "815",
        );
        write(&root.join("run/p3.pid"), "815");
        let conmon = format!(
            "conmon\0-c\0p3\0-p\0{}\0",
            root.join("run/p3.pid").display()
        );
        process(root, 13, 1, &conmon);
        // Another container of the pod.
        write(
            &root
                .join("run/containerd")
                .join(TASKS)
                .join("moby/c4/init.pid"),
            "817",
        );
        process(root, 817, 11, "sleep\0");
        write(
            &root.join("proc/817/cgroup"),
            "0::/kubepods.slice/cri-containerd-c4.scope\n",
        );
        // A container with the host's PIDs, whose root calls a process conmon.
        let id = "5e".repeat(32);
        write(&root.join("run/p5.pid"), "818");
        let conmon = format!(
            "conmon\0-c\0p5\0-n\0job\0-p\0{}\0",
            root.join("run/p5.pid").display()
        );
        process(root, 14, 1, &conmon);
        write(
            &root.join("proc/14/cgroup"),
            &format!("0::/machine.slice/libpod-{id}.scope/container\n"),
        );
        process(root, 818, 14, "sleep\0");
        write(
            &root.join("proc/9/cgroup"),
            &format!("0::/machine.slice/libpod-conmon-{id}.scope\n"),
        );
        let one = |id: &str, name: Option<&str>, pid| Running {
            id: id.into(),
            name: name.map(str::to_owned),
            pid,
        };
        let expected = [
            one("c1", None, 815),
            one("c4", None, 817),
            one("p1", Some("job"), 4711),
        ];
        assert_eq!(running(root), expected);
    }
}
