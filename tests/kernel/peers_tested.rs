//! `prepare --test-rails` on three nodes: what each does with what the rail test says. There is no
//! RDMA here, so a script stands in for that program; tests/vm has the real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::alone;
use rail_agreement::file::FileStore;
use rail_agreement::message::HostName;
use rail_agreement::node::Setup;
use rail_agreement::{Nonce, Offer, Policy, Rail, agree};
use rdmaprep::commands::test_rails::GET;
use serde_json::{Value, json};
use testkit::{Host, Said, run};

/// Answers as the file of its rank says, and keeps what it was asked.
const PROGRAM: &str = r#"#!/bin/sh
here=${0%/*}
for arg; do
  case $arg in
    --version) exit 0 ;;
    --rank=*) rank=${arg#*=} ;;
  esac
done
read -r line || [ "$line" ]
echo "$line" > "$here/asked.$rank"
read -r line < "$here/answer.$rank"
echo "$line"
read -r code < "$here/code.$rank"
[ "$code" = killed ] && kill -KILL $$
exit "$code"
"#;

const DEAD: &str = "r1 of c (rank 2): all its pairs fail (2): its port is down";

struct Job<'a> {
    host: &'a Host,
    folder: PathBuf,
    timeout: &'static str,
}

impl Job<'_> {
    fn new<'h>(host: &'h Host, name: &str) -> Job<'h> {
        let folder = host.run.parent().unwrap().join(name);
        fs::create_dir_all(folder.join("bin")).unwrap();
        // The program beside it is the one that it runs.
        fs::copy(env!("CARGO_BIN_EXE_rdmaprep"), folder.join("bin/rdmaprep")).unwrap();
        let script = folder.join("bin/rdmaprep-rail-test");
        fs::write(&script, PROGRAM).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        Job {
            host,
            folder,
            timeout: "60",
        }
    }

    fn says(&self, rank: usize, code: &str, answer: &Value) {
        let at = |name: &str| self.folder.join(format!("bin/{name}.{rank}"));
        fs::write(at("answer"), format!("{answer}\n")).unwrap();
        fs::write(at("code"), format!("{code}\n")).unwrap();
    }

    fn all_say(&self, answer: &Value) {
        (0..3).for_each(|rank| self.says(rank, "0", answer));
    }

    fn run(&self, rank: usize) -> PathBuf {
        self.folder.join(format!("run{rank}"))
    }

    fn node(&self, rank: usize, program: &Path, how: &str) -> Child {
        let url = format!("file://{}", self.folder.join("store").display());
        let number = rank.to_string();
        let mut command = Command::new(program);
        command
            .env_clear()
            .args(["prepare", "--ifaces", "r0 r1 r2", how]);
        command.args(["--rendezvous", &url, "--rank", &number, "--nodes", "3"]);
        command.args(["--run-id", "job.7", "--rendezvous-timeout", self.timeout]);
        command.arg("--run-dir").arg(self.run(rank));
        command.arg("--state-dir").arg(self.folder.join("state"));
        command.arg("--config").arg(&self.host.config);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::piped()).spawn().unwrap()
    }

    fn all(&self, how: &str) -> Vec<Said> {
        let own = self.folder.join("bin/rdmaprep");
        let nodes: Vec<Child> = (0..3).map(|rank| self.node(rank, &own, how)).collect();
        nodes.into_iter().map(ends).collect()
    }

    fn plan(&self, rank: usize) -> Value {
        let path = self.run(rank).join("plans/default.json");
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    fn nothing_is_stored(&self) {
        for rank in 0..3 {
            assert!(!self.run(rank).join("plans").exists(), "rank {rank}");
        }
    }

    fn all_have(&self, nics: &[&str]) {
        let first = self.plan(0);
        for rank in 0..3 {
            let plan = self.plan(rank);
            let rails = plan["agreement"]["rails"].as_array().unwrap().iter();
            let rails: Vec<&str> = rails.map(|rail| rail[0].as_str().unwrap()).collect();
            assert_eq!(rails, nics, "rank {rank}");
            assert_eq!(plan["agreement"]["digest"], first["agreement"]["digest"]);
        }
    }
}

fn ends(child: Child) -> Said {
    child.wait_with_output().unwrap().into()
}

fn failed(rails: &[&str]) -> Value {
    let rails: Vec<Value> = rails.iter().map(|rail| json!([rail, DEAD])).collect();
    json!({"failed": rails, "unexplained": null, "warnings": ["no rail reaches another rail"]})
}

#[test]
fn a_rail_that_fails_is_left_out_on_all_nodes() {
    alone(|host| {
        host.rails(3);
        let job = Job::new(host, "left-out");
        job.all_say(&failed(&["r1"]));
        for said in job.all("--test-rails") {
            let said = said.ok();
            let words = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains("failed_test"), "{}", said.out);
            assert!(words.contains(DEAD), "{}", said.out);
            assert!(
                said.err.contains("no rail reaches another rail"),
                "{}",
                said.err
            );
        }
        job.all_have(&["r0", "r2"]);
        let asked = fs::read_to_string(job.folder.join("bin/asked.1")).unwrap();
        let asked: Value = serde_json::from_str(&asked).unwrap();
        assert_eq!(
            asked["rails"],
            json!([["r0", "r0"], ["r1", "r1"], ["r2", "r2"]])
        );
    });
}

/// What a node hears of the test is in its offer, so that they cannot store different plans.
#[test]
fn nodes_that_hear_different_verdicts_have_one_plan() {
    alone(|host| {
        host.rails(3);
        let job = Job::new(host, "different");
        job.all_say(&failed(&["r1"]));
        job.says(1, "0", &failed(&[]));
        job.says(2, "0", &failed(&["r2"]));
        for said in job.all("--test-rails=failed") {
            said.ok();
        }
        job.all_have(&["r0"]);
    });
}

#[test]
fn with_strict_or_without_a_rail_nothing_is_stored() {
    alone(|host| {
        host.rails(3);
        let job = Job::new(host, "strict");
        job.all_say(&failed(&["r1"]));
        for said in job.all("--test-rails=strict") {
            said.fails(11, &[DEAD]);
        }
        job.nothing_is_stored();

        let job = Job::new(host, "none");
        job.all_say(&failed(&["r0", "r1", "r2"]));
        for said in job.all("--test-rails") {
            said.fails(11, &[DEAD]);
        }
        job.nothing_is_stored();

        let job = Job::new(host, "unexplained");
        let why = "what c (rank 2) reports cannot be used: it has no parts";
        job.all_say(&json!({"failed": [], "unexplained": why, "warnings": []}));
        for said in job.all("--test-rails") {
            said.fails(11, &[why]);
        }
        job.nothing_is_stored();
    });
}

#[test]
fn a_test_that_dies_on_one_node_fails_on_all_at_once() {
    alone(|host| {
        host.rails(3);
        let job = Job::new(host, "dies");
        let begun = Instant::now();
        let missing = "rank 2 did not tell what they found";
        for rank in 0..2 {
            job.says(rank, "10", &json!({"exit_code": 10, "message": missing}));
        }
        job.says(2, "killed", &json!({}));
        let mut all = job.all("--test-rails");
        let last = all.pop().unwrap();
        last.fails(1, &["the rail test has not said what it found (signal: 9"]);
        for said in all {
            said.fails(10, &[&format!("the rail test: {missing}")]);
        }
        job.nothing_is_stored();
        assert!(
            begun.elapsed() < Duration::from_secs(40),
            "{:?}",
            begun.elapsed()
        );
    });
}

/// The others hear it where they are: in the test.
#[test]
fn a_node_without_the_program_says_so_in_the_test() {
    alone(|host| {
        host.rails(3);
        let mut job = Job::new(host, "lacks");
        job.timeout = "10";
        let lone = job.folder.join("lone");
        fs::create_dir_all(&lone).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_rdmaprep"), lone.join("rdmaprep")).unwrap();
        let node = job.node(2, &lone.join("rdmaprep"), "--test-rails");
        let path = job.folder.join("store");
        let other = |rank: u32| {
            let path = path.clone();
            let offer = Offer {
                rails: vec![Rail("r0".parse().unwrap(), "r0".parse().unwrap())],
                ..Offer::new(
                    Nonce::from_bits([rank as u8; 16]),
                    HostName::sanitized("other"),
                    3,
                    Policy::default(),
                )
            };
            let setup = Setup {
                run: "job.7.test".parse().unwrap(),
                rank,
                offer,
            };
            thread::spawn(move || {
                let until = Instant::now() + Duration::from_secs(60);
                let mut store = FileStore::open(&path, until).unwrap();
                agree(&mut store, setup, until, &mut |_| Ok(()), None).unwrap_err()
            })
        };
        let others = [other(0), other(1)];
        for heard in others {
            let why = format!("{:#}", heard.join().unwrap());
            assert!(
                why.contains("(rank 2) refuses: rdmaprep-rail-test cannot be run"),
                "{why}"
            );
        }
        ends(node).fails(
            4,
            &[
                "rdmaprep-rail-test cannot be run",
                "in no package",
                GET,
                "docs/rail-test.md",
            ],
        );
        job.nothing_is_stored();
        // A command that README and its page have, too.
        for page in ["README.md", "docs/rail-test.md"] {
            let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
            let text = fs::read_to_string(&page).unwrap();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(GET), "{}", page.display());
        }
    });
}

#[test]
fn what_has_no_nodes_to_test_with_is_refused() {
    alone(|host| {
        host.rails(1);
        let prepare = [
            "prepare",
            "--test-rails",
            "--rank",
            "0",
            "--nodes",
            "2",
            "--run-id",
            "a",
        ];
        host.rdmaprep(&["prepare", "--test-rails"])
            .fails(2, &["--test-rails: no nodes to test with"]);
        let with = |more: &[&str]| host.rdmaprep(&[&prepare[..], more].concat());
        let mut step = host.command(&[&prepare[..], &["--rendezvous", "pmi"]].concat());
        run(step.env("PMI_FD", "99"), "").fails(2, &["PMI serves one program of a step"]);
        with(&[
            "--rendezvous",
            "file:///nowhere/x",
            "--snapshot",
            "/dev/null",
        ])
        .fails(2, &["--snapshot has no rails to send over"]);
    });
}
