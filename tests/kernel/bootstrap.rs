//! `nccl test-bootstrap` on the real kernel: two network namespaces with a cable between them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::alone;
use serde_json::Value;
use testkit::{Container, Host, Said, run, sh};

/// The other node: `n0` here and `m0` there, with addresses of both families.
fn pair(host: &Host) -> Container {
    let there = Container::new("b");
    host.ip(&format!(
        "link add n0 type veth peer name m0 netns {}\nlink set n0 up\naddress add 10.9.0.1/24 dev \
        n0\n\
         address add 2001:db8::1/64 dev n0 nodad",
        there.pid()
    ));
    inside(
        &there,
        "ip link set lo up; ip link set m0 up; ip address add 10.9.0.2/24 dev m0",
    );
    inside(&there, "ip address add 2001:db8::2/64 dev m0 nodad");
    // The kernel gives up after 3 s, not after two minutes; and before that where no host has the
    // address.
    sh("echo 1 > /proc/sys/net/ipv4/tcp_syn_retries; echo 200 > \
        /proc/sys/net/ipv4/neigh/n0/retrans_time_ms");
    there
}

fn enter(there: &Container) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", there.pid()));
    command
}

fn inside(there: &Container, line: &str) {
    run(enter(there).args(["sh", "-ec", line]), "").ok();
}

fn check(host: &Host, args: &[&str]) -> Said {
    host.rdmaprep(&[&["nccl", "test-bootstrap"], args].concat())
}

/// Listens there, and gives the rest of what was said when it has ended.
fn listening(
    host: &Host,
    there: &Container,
    args: &[&str],
) -> impl FnOnce() -> (Option<i32>, String) + use<> {
    let program = host.command(&[&["nccl", "test-bootstrap", "--listen"], args].concat());
    let mut command = enter(there);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .arg("--");
    command.arg(program.get_program()).args(program.get_args());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    while !first.contains("rdmaprep nccl test-bootstrap") && out.read_line(&mut first).unwrap() > 0
    {
    }
    move || {
        std::io::Read::read_to_string(&mut out, &mut first).unwrap();
        (child.wait().unwrap().code(), first)
    }
}

fn ready(host: &Host, args: &[&str]) -> Value {
    let said = check(host, &[args, &["--json"]].concat());
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"))
}

#[test]
fn two_nodes_reach_each_other_over_both_families() {
    alone(|host| {
        let there = pair(host);
        for (address, from, family) in [
            ("10.9.0.2:29500", "10.9.0.1", "AF_INET"),
            ("[2001:db8::2]:29500", "2001:db8::1", "AF_INET6"),
        ] {
            let family = format!("NCCL_SOCKET_FAMILY={family}");
            let rest = listening(host, &there, &["--env", &family]);
            let said = check(host, &[address, "--env", &family]).ok();
            assert!(
                said.out.contains(&format!("leaves from  {from} (n0)")),
                "{}",
                said.out
            );
            assert!(
                said.out.contains("reached; the other node is called from") && said.err.is_empty(),
                "{said:?}"
            );
            let (code, out) = rest();
            assert!(
                code == Some(0) && out.contains(&format!("listening  {address}")),
                "{out}"
            );
            assert!(out.contains("reached from") && out.contains(from), "{out}");
        }
        // A caller that is first waits as long as NCCL does.
        let start = Instant::now();
        let (tried, rest) = std::thread::scope(|scope| {
            let tried = scope.spawn(|| ready(host, &["10.9.0.2:4000"]));
            std::thread::sleep(Duration::from_millis(700));
            let rest = listening(host, &there, &["4000"]);
            (tried.join().unwrap(), rest())
        });
        assert!(
            tried["tries"].as_u64().unwrap() > 1 && start.elapsed() < Duration::from_secs(60),
            "{tried}"
        );
        assert!(
            tried["outcome"]["reached"]["seen_as"]
                .as_str()
                .unwrap()
                .starts_with("10.9.0.1:"),
            "{tried}"
        );
        assert_eq!(rest.0, Some(0));
    });
}

#[test]
fn what_is_refused_is_tried_as_often_as_nccl_tries_it() {
    alone(|host| {
        let _there = pair(host);
        let few = [
            "--env",
            "NCCL_SOCKET_RETRY_CNT=3",
            "--env",
            "NCCL_SOCKET_RETRY_SLEEP_MSEC=20",
        ];
        let said = check(host, &[&["10.9.0.2:1"][..], &few].concat());
        said.fails(
            1,
            &[
                "no way to 10.9.0.2:1 from 10.9.0.1",
                "connection refused",
                "4 tries in",
            ],
        );
        let tried = ready(host, &[&["10.9.0.2:1"][..], &few].concat());
        assert!(tried["millis"].as_u64().unwrap() >= 20 + 40 + 60, "{tried}");
        let failed = &tried["outcome"]["failed"];
        assert!(
            failed["trouble"] == "refused" && failed["unfinished"] == false,
            "{tried}"
        );
        // NCCL would try for a minute; we were asked not to.
        let said = check(host, &["10.9.0.2:1", "--timeout", "1"]);
        said.fails(
            1,
            &["connection refused", "NCCL would go on: 35 tries", "59.5 s"],
        );
        // An old release tries every millisecond.
        let old = ready(
            host,
            &["10.9.0.2:1", "--timeout", "1", "--nccl-version", "2.21.5"],
        );
        assert!(
            old["tries"].as_u64().unwrap() > 50 && old["call"]["rules"] == "fixed",
            "{old}"
        );
    });
}

#[test]
fn a_timeout_is_distinguished_from_a_missing_listener() {
    alone(|host| {
        let there = pair(host);
        // Its answers go nowhere.
        inside(&there, "ip route add blackhole 10.9.0.1/32");
        let start = Instant::now();
        let old = ready(host, &["10.9.0.2:1", "--nccl-version", "2.21.5"]);
        assert!(
            old["tries"] == 3 && old["outcome"]["failed"]["trouble"] == "timed_out",
            "{old}"
        );
        assert!(
            old["outcome"]["failed"]["unfinished"] == false
                && start.elapsed() > Duration::from_secs(5),
            "{old}"
        );
        let said = check(host, &["10.9.0.2:1", "--timeout", "1"]);
        said.fails(
            1,
            &[
                "timed out: packets are dropped",
                "1 try in 1.",
                "NCCL would go on",
            ],
        );
        // No host has that address.
        let none = ready(host, &["10.9.0.77:1", "--nccl-version", "2.21.5"]);
        assert!(
            none["tries"] == 1 && none["outcome"]["failed"]["trouble"] == "host_unreachable",
            "{none}"
        );
        // And there is no way at all.
        let said = check(host, &["192.0.2.1:1"]);
        assert!(said.out.contains("nowhere"), "{}", said.out);
        said.fails(1, &["network unreachable: no route", "1 try in"]);
        assert!(ready(host, &["192.0.2.1"])["call"]["from"].is_null());
    });
}

#[test]
fn another_interface_and_another_subnet_are_reported() {
    alone(|host| {
        let there = pair(host);
        host.ip(
            "link add z type veth peer name zz\nlink set z up\nlink set zz up\naddress add \
            10.7.0.1/24 dev z",
        );
        let rest = listening(host, &there, &[]);
        let said = check(host, &["10.9.0.2", "--env", "NCCL_SOCKET_IFNAME==z"]).ok();
        assert!(
            said.err.contains("call 10.7.0.1 on z")
                && said.err.contains("leaves from 10.9.0.1 over n0"),
            "{said:?}"
        );
        assert_eq!(rest().0, Some(0));
        // No interface is in the subnet of NCCL_COMM_ID: NCCL does not start.
        let id = ["--env", "NCCL_COMM_ID=10.8.0.2:29500"];
        check(host, &[&["10.9.0.2"][..], &id].concat())
            .fails(1, &["NCCL does not start", "10.8.0.2"]);
        check(host, &[&["--listen"][..], &id].concat())
            .fails(1, &["NCCL does not start", "10.8.0.2"]);
        // In the subnet, but of the other node: rank 0 cannot be here.
        let id = ["--env", "NCCL_COMM_ID=10.9.0.2:29500"];
        check(host, &[&["--listen"][..], &id].concat())
            .fails(1, &["listening on 10.9.0.2:29500", "rank 0's node"]);
        // It listens on the address that all callers use, without a HOST.
        let rest = listening(host, &there, &id);
        check(host, &id).ok();
        let (code, out) = rest();
        assert!(
            code == Some(0) && out.contains("the first in the subnet of NCCL_COMM_ID"),
            "{out}"
        );
    });
}

#[test]
fn a_listener_times_out_and_bad_arguments_are_refused() {
    alone(|host| {
        let there = pair(host);
        check(host, &["--listen", "--timeout", "1"])
            .fails(7, &["no connection came to 10.9.0.1:29500 in 1 s"]);
        let said = check(host, &["--listen", "4001", "--timeout", "1", "--json"]);
        let wait: Value = serde_json::from_str(&said.out).unwrap();
        assert!(
            wait["at"] == "10.9.0.1:4001" && wait["by_id"] == false,
            "{wait}"
        );
        check(host, &[]).fails(2, &["HOST is missing"]);
        for wrong in ["2001:db8::2", "10.9.0.2:0", ":1", "a b"] {
            check(host, &[wrong]).fails(2, &["is none of HOST"]);
        }
        check(host, &["10.9.0.2", "--listen", "5"]).fails(2, &["cannot be used with"]);
        check(host, &["unknown.invalid:1"]).fails(1, &["unknown.invalid"]);
        // A listener accepts connections and resets them.
        let reset = "import socket,struct;s=socket.create_server(('10.9.0.2',5));c,_=s.accept();\
                     c.setsockopt(socket.SOL_SOCKET,socket.SO_LINGER,\
                     struct.pack('ii',1,0));c.close()";
        let mut breaker = enter(&there)
            .args(["python3", "-c", reset])
            .spawn()
            .unwrap();
        let few = ["--env", "NCCL_SOCKET_RETRY_SLEEP_MSEC=5"];
        check(host, &[&["10.9.0.2:5"][..], &few].concat())
            .fails(1, &["connection reset: a process takes connections"]);
        breaker.wait().unwrap();
    });
}
