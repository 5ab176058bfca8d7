//! Pods with claims of Kubernetes, as `rdmaprep-dra` prepares them.

use std::fs;
use std::path::PathBuf;

use crate::alone;
use serde_json::{Value, json};
use testkit::{Container, Host, Said, run, sh};

pub const A: &str = "aaaaaaaa-0000-4000-8000-000000000000";
pub const B: &str = "bbbbbbbb-0000-4000-8000-000000000000";

fn path(host: &Host, uid: &str) -> PathBuf {
    host.run.join(format!("claims/{uid}.json"))
}

pub fn pod_uid(name: &str) -> String {
    format!("{:0>8x}-0000-4000-8000-000000000000", name.len())
}

/// Prepares a claim of a pod.
pub fn bind(host: &Host, uid: &str, pod: &str, rails: &[&str]) {
    let rail = |name: &&str| json!({"request": "nic", "device": name, "rail": name, "pci": null});
    let rails: Vec<Value> = rails.iter().map(rail).collect();
    let boot = sh("cat /proc/sys/kernel/random/boot_id");
    let binding = json!({"schema": 1, "boot_id": boot.trim(), "namespace": "jobs",
        "claim": {"name": "c", "uid": uid}, "pod": {"name": pod, "uid": pod_uid(pod)},
        "rails": rails});
    fs::create_dir_all(host.run.join("claims")).unwrap();
    fs::write(path(host, uid), binding.to_string()).unwrap();
}

fn change(host: &Host, uid: &str, how: impl FnOnce(&mut Value)) {
    let mut binding: Value = serde_json::from_slice(&fs::read(path(host, uid)).unwrap()).unwrap();
    how(&mut binding);
    fs::write(path(host, uid), binding.to_string()).unwrap();
}

pub fn end(host: &Host, uid: &str) {
    change(host, uid, |binding| binding["ended"] = json!(true));
}

/// A container with devices of claims, as the engine edits its config.json.
pub struct Asks {
    pub container: Container,
    args: Vec<String>,
}

pub fn asks(host: &Host, container: Container, rails: &[(&str, &str)]) -> Asks {
    let cgroup = format!(
        "/kubepods/besteffort/pod{}/{}",
        pod_uid("pod"),
        container.id
    );
    asks_in(host, container, rails, &cgroup)
}

fn asks_in(host: &Host, container: Container, rails: &[(&str, &str)], cgroup: &str) -> Asks {
    let args = |(rail, uid): &(&str, &str)| -> Vec<String> {
        let words = [
            "hook",
            "createRuntime",
            "--plan",
            "default",
            "--rail",
            rail,
            "--claim",
            uid,
        ];
        words.map(str::to_owned).to_vec()
    };
    let hook = |asked| {
        let args: Vec<String> = ["rdmaprep".to_owned()]
            .into_iter()
            .chain(args(asked))
            .collect();
        json!({"path": "/usr/bin/rdmaprep", "args": args})
    };
    let hooks: Vec<Value> = rails.iter().map(hook).collect();
    let config = json!({"ociVersion": "1.0.2", "process": {"args": ["x"], "cwd": "/"},
        "root": {"path": "/"}, "linux": {"cgroupsPath": cgroup},
        "hooks": {"createRuntime": hooks}});
    Asks {
        container: container.annotated(json!({})).bundled(host, &config),
        args: args(&rails[0]),
    }
}

impl Asks {
    pub fn create(&self, host: &Host) -> Said {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        run(&mut host.command(&args), &self.container.state())
    }
}

pub fn has(container: &Container, rail: &str) -> bool {
    container.sh("ip -br link").contains(&format!("{rail}@"))
}

pub fn timer(host: &Host) {
    host.rdmaprep(&["restore", "--all", "--stale"]).ok();
}

/// Init container, restart, and a time in which none of its containers runs.
#[test]
fn nics_of_a_claim_stay_until_its_pod_has_ended() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        host.prepare(&rails);
        bind(host, A, "pod", &["r0", "r1"]);
        let both = [("r0", A), ("r1", A)];
        let pause = Container::new("pause");
        let mut init = asks(host, Container::beside("init", &pause), &both);
        init.create(host).ok();
        let link = || pause.sh("ip -o link show r0");
        let moved = link();
        init.container.stop(host).ok();
        timer(host);
        let mut job = asks(host, Container::beside("job", &pause), &both);
        job.create(host).ok();
        job.container.kill();
        timer(host);
        let mut again = asks(host, Container::beside("job", &pause), &both);
        again.create(host).ok();
        assert_eq!(host.status()[0]["members"], json!([["job", true]]));
        again.container.stop(host).ok();
        assert_eq!(link(), moved, "it was away in between");
        let advice = host.rdmaprep(&["status"]).ok().out;
        assert!(
            advice.contains("delete the pod that has the claim"),
            "{advice}"
        );
        // The sandbox has ended, and another hook looks for NICs of the dead.
        drop(pause);
        timer(host);
        assert!(!sh("ip -br link").contains("r0@"));
        end(host, A);
        timer(host);
        host.is_as(&before);
        host.is_clean();
    });
}

/// Each gets what it asks for; the namespace has the rails of all of the pod's claims.
#[test]
fn two_containers_of_a_pod_have_a_rail_each() {
    alone(|host| {
        let rails = host.rails(3);
        let before = host.look();
        host.prepare(&rails);
        bind(host, A, "pod", &["r0"]);
        bind(host, B, "pod", &["r1"]);
        let mut one = asks(host, Container::new("one"), &[("r0", A)]);
        one.create(host).ok();
        assert!(has(&one.container, "r0") && has(&one.container, "r1"));
        assert!(sh("ip -br link").contains("r2@"));
        let mut two = asks(host, Container::beside("two", &one.container), &[("r1", B)]);
        two.create(host).ok();
        let status = host.status();
        assert_eq!(status[0]["members"], json!([["one", true], ["two", true]]));
        one.container.stop(host).ok();
        two.container.stop(host).ok();
        end(host, A);
        timer(host);
        // The pod has ended, though the other claim has yet to be unprepared.
        host.is_as(&before);
        end(host, B);
        timer(host);
        host.is_as(&before);
        host.is_clean();
    });
}

#[test]
fn what_is_not_prepared_is_refused() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        host.prepare(&rails);
        let fresh = |rails: &[(&str, &str)]| asks(host, Container::new("c"), rails);
        fresh(&[("r0", A)])
            .create(host)
            .fails(3, &["not prepared on this node"]);
        bind(host, A, "pod", &["r0"]);
        fresh(&[("r0", A), ("r1", A)])
            .create(host)
            .fails(3, &["names rails that its claims"]);
        fresh(&[("r1", A)])
            .create(host)
            .fails(3, &["names rails that its claims"]);
        bind(host, B, "other", &["r1"]);
        fresh(&[("r0", A), ("r1", B)])
            .create(host)
            .fails(9, &["is pod other's"]);
        fresh(&[("r0", "../../x")])
            .create(host)
            .fails(3, &["not prepared on this node"]);
        end(host, A);
        fresh(&[("r0", A)])
            .create(host)
            .fails(9, &["has ended, and has yet to return"]);
        fs::write(path(host, B), "{}").unwrap();
        fresh(&[("r0", A)])
            .create(host)
            .fails(1, &[B, "rdmaprep claims release"]);
        host.is_as(&before);
        host.is_clean();
    });
}

/// It names the claim by the annotation of an engine, or shares it: until it is handed on.
#[test]
fn container_of_another_pod_gets_nothing_by_a_claim() {
    alone(|host| {
        let rails = host.rails(1);
        let before = host.look();
        host.prepare(&rails);
        bind(host, A, "pod", &["r0"]);
        let slice = format!(
            "kubepods-pod{}.slice:cri:1",
            pod_uid("other").replace('-', "_")
        );
        let mut other = asks_in(host, Container::new("other"), &[("r0", A)], &slice);
        let taken = "the claim jobs/c is pod pod's: one pod at a time";
        other.create(host).fails(9, &[taken]);
        let none = asks_in(host, Container::new("none"), &[("r0", A)], "/docker/1");
        none.create(host).fails(3, &["names no pod"]);
        let mut pod = asks(host, Container::new("c"), &[("r0", A)]);
        pod.create(host).ok();
        other.create(host).fails(9, &[taken]);
        change(host, A, |b| {
            b["pod"] = json!({"name": "other", "uid": pod_uid("other")})
        });
        other
            .create(host)
            .fails(9, &["another pod runs with this claim"]);
        pod.container.kill();
        other.create(host).ok();
        assert!(has(&other.container, "r0"));
        end(host, A);
        other.container.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// The binding is released, or handed on, while a hook waits for the lock.
#[test]
fn binding_counts_as_it_is_under_the_lock() {
    alone(|host| {
        let rails = host.rails(1);
        let before = host.look();
        host.prepare(&rails);
        bind(host, A, "pod", &["r0"]);
        let lock = fs::File::create(host.run.join("lock")).unwrap();
        lock.lock().unwrap();
        let one = asks(host, Container::new("c"), &[("r0", A)]);
        std::thread::scope(|scope| {
            let created = scope.spawn(|| one.create(host));
            std::thread::sleep(std::time::Duration::from_millis(700));
            fs::remove_file(path(host, A)).unwrap();
            lock.unlock().unwrap();
            created
                .join()
                .unwrap()
                .fails(3, &["not prepared on this node"]);
        });
        host.is_as(&before);
        host.is_clean();
    });
}

/// It is named, also between two of its containers, and not taken for another pod's.
#[test]
fn new_sandbox_of_a_pod_waits_for_the_end_of_its_earlier_one() {
    alone(|host| {
        let rails = host.rails(1);
        let before = host.look();
        host.prepare(&rails);
        bind(host, A, "pod", &["r0"]);
        let pause = Container::new("pause");
        let mut first = asks(host, Container::beside("first", &pause), &[("r0", A)]);
        first.create(host).ok();
        let mut second = asks(host, Container::new("second"), &[("r0", A)]);
        let waits = "an earlier sandbox of this pod lives";
        second
            .create(host)
            .fails(9, &[waits, "container first runs"]);
        first.container.stop(host).ok();
        second
            .create(host)
            .fails(9, &[waits, "is still in its namespace"]);
        assert!(has(&pause, "r0"));
        drop(pause);
        second.create(host).ok();
        assert!(has(&second.container, "r0"));
        // Unprepare comes while it runs: it goes as it ends.
        end(host, A);
        timer(host);
        assert!(has(&second.container, "r0"));
        second.container.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

/// Until its pod has it, and after its pod has ended, as long as the claim is not released.
#[test]
fn rail_of_a_claim_is_no_other_containers() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        host.prepare(&rails);
        bind(host, A, "pod", &["r1"]);
        let mut other = Container::new("other");
        other.create(host).fails(9, &["the claim jobs/c has r1"]);
        end(host, A);
        other.create(host).fails(9, &["the claim jobs/c has r1"]);
        fs::remove_file(path(host, A)).unwrap();
        other.create(host).ok();
        other.stop(host).ok();
        host.is_as(&before);
        host.is_clean();
    });
}

fn listed(host: &Host) -> Value {
    serde_json::from_str(&host.rdmaprep(&["claims", "--json"]).ok().out).unwrap()
}

/// Without its driver, whatever state it is in.
#[test]
fn claim_without_its_driver_is_shown_and_released() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        host.prepare(&rails);
        assert_eq!(
            host.rdmaprep(&["claims"]).ok().out,
            "no claim is prepared here\n"
        );
        bind(host, A, "pod", &["r0"]);
        bind(host, B, "other", &["r1"]);
        let one = asks(host, Container::new("c"), &[("r0", A)]);
        one.create(host).ok();
        fs::write(path(host, B), "{").unwrap();
        let all = listed(host);
        assert_eq!(
            (&all[0]["state"], &all[0]["claim"]),
            (&json!("in_use"), &json!("jobs/c"))
        );
        assert_eq!(
            (&all[1]["state"], &all[1]["uid"]),
            (&json!("damaged"), &json!(B))
        );
        let shown = host.rdmaprep(&["status"]).ok().out;
        assert!(
            shown.contains(&format!("rdmaprep claims release {B}")),
            "{shown}"
        );
        assert!(!shown.contains(A), "{shown}");
        let release = |uid: &str| host.rdmaprep(&["claims", "release", uid]);
        release(A).fails(3, &["container c runs with the claim"]);
        release("x").fails(2, &["no claim with the UID x"]);
        host.rdmaprep(&["claims", "release", B, "--dry-run"]).ok();
        assert!(path(host, B).exists());
        release(B).ok();
        assert!(!path(host, B).exists());
        let mut one = one;
        one.container.kill();
        let shown = host.rdmaprep(&["claims"]).ok().out;
        assert!(shown.contains("in use"), "{shown}");
        let done = host.rdmaprep(&["claims", "release", A, "--json"]).ok().out;
        assert!(done.contains("\"released\": true"), "{done}");
        assert_eq!(listed(host), json!([]));
        host.is_as(&before);
        host.is_clean();
    });
}

/// By an administrator's word, not by the timer: a pod that shares the claim may be next.
#[test]
fn restore_releases_the_claims_of_what_it_returns() {
    alone(|host| {
        let rails = host.rails(1);
        let before = host.look();
        host.prepare(&rails);
        bind(host, A, "pod", &["r0"]);
        let mut one = asks(host, Container::new("c"), &[("r0", A)]);
        one.create(host).ok();
        one.container.kill();
        end(host, A);
        let shown = host.rdmaprep(&["claims"]).ok().out;
        assert!(shown.contains("ended"), "{shown}");
        timer(host);
        host.is_as(&before);
        assert!(path(host, A).exists());
        bind(host, A, "pod", &["r0"]);
        let mut two = asks(host, Container::new("d"), &[("r0", A)]);
        two.create(host).ok();
        two.container.kill();
        host.rdmaprep(&["restore", "--all"]).ok();
        assert!(!path(host, A).exists());
        host.is_as(&before);
        host.is_clean();
    });
}

/// As when its NICs are still in the namespace of the pod that had it before.
#[test]
fn restore_leaves_a_claim_that_is_the_next_pods() {
    alone(|host| {
        let rails = host.rails(1);
        let before = host.look();
        host.prepare(&rails);
        bind(host, A, "pod", &["r0"]);
        let mut one = asks(host, Container::new("c"), &[("r0", A)]);
        one.create(host).ok();
        one.container.kill();
        bind(host, A, "another", &["r0"]);
        let shown = host.rdmaprep(&["claims"]).ok().out;
        assert!(shown.contains("prepared"), "{shown}");
        host.rdmaprep(&["restore", "--all"]).ok();
        assert!(path(host, A).exists());
        host.is_as(&before);
        host.is_clean();
    });
}

/// Which the claim was another pod's until then. What runs goes on, also when it starts again.
#[test]
fn second_claim_of_a_pod_that_runs_is_no_matter_for_the_first() {
    alone(|host| {
        let rails = host.rails(2);
        host.prepare(&rails);
        bind(host, A, "pod", &["r0"]);
        bind(host, B, "another", &["r1"]);
        let pause = Container::new("pause");
        let mut first = asks(host, Container::beside("first", &pause), &[("r0", A)]);
        first.create(host).ok();
        bind(host, B, "pod", &["r1"]);
        first.container.stop(host).ok();
        let again = asks(host, Container::beside("again", &pause), &[("r0", A)]);
        again.create(host).ok();
        let late = asks(host, Container::beside("late", &pause), &[("r1", B)]);
        late.create(host).fails(3, &["r1"]);
    });
}
