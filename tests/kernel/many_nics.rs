//! A host with many NICs: memory grows with their number, and no faster. 128 of them, or as many as
//! RDMAPREP_MANY_NICS says (`scripts/test --all`: 512).

use crate::alone;
use nix::sys::resource::{UsageWho, getrusage};
use testkit::{Container, Host};

/// Memory for each NIC beyond the first, in KiB: with it 512 of them take less than 64 MiB of what
/// is released, the program's own 12 MiB and what it reads and prints at a time among that.
const EACH: i64 = 92;
/// For each link besides, in KiB. A message of the kernel's takes the library 20.
const OTHER: i64 = 8;
/// What allocators, threads and tables keep, in KiB.
const SLACK: i64 = 4 << 10;

/// The most memory that any program needed which has ended by now, in KiB.
fn peak() -> i64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss()
}

/// NICs of the host, as many as there are to be, with one address each and their far ends
/// elsewhere.
fn rails(host: &Host, far: &Container, from: usize, to: usize) {
    let pid = far.pid();
    let each = |line: &dyn Fn(usize) -> String| (from..to).map(line).collect::<Vec<_>>().join("\n");
    host.ip(&each(&|i| {
        format!("link add r{i} type veth peer name p{i} netns {pid}")
    }));
    let up = each(&|i| format!("link set p{i} up"));
    far.sh(&format!("ip -batch - << END\n{up}\nEND"));
    host.ip(&each(&|i| {
        format!(
            "link set r{i} up\naddress add 10.{}.{}.1/24 dev r{i}",
            i / 256,
            i % 256
        )
    }));
}

fn there_and_back(host: &Host, count: usize) {
    let names: Vec<String> = (0..count).map(|i| format!("r{i}")).collect();
    host.prepare(&names.join(","));
    let before = host.normal();
    let mut c = Container::new("many");
    let deadline = ["--deadline", "600"];
    let hook = |stage: &str, state: &str| {
        testkit::run(host.command(&["hook", stage]).args(deadline), state).ok()
    };
    hook("createRuntime", &c.state());
    hook("poststart", &c.state());
    assert_eq!(c.sh("ip -o link show type veth").lines().count(), count);
    host.rdmaprep(&["status"]).ok();
    c.kill();
    hook("poststop", &c.stopped());
    testkit::same("the host", &before, &host.normal());
    host.is_clean();
}

#[test]
fn memory_grows_with_the_number_of_nics() {
    let many: usize =
        std::env::var("RDMAPREP_MANY_NICS").map_or(128, |count| count.parse().unwrap());
    alone(|host| {
        let far = Container::new("far");
        rails(host, &far, 0, 1);
        there_and_back(host, 1);
        let one = peak();
        rails(host, &far, 1, many);
        there_and_back(host, many);
        let (all, most) = (peak(), one + SLACK + EACH * many as i64);
        println!("1 NIC: {one} KiB; {many}: {all} KiB, at most {most}");
        assert!(
            all <= most,
            "{many} NICs took {all} KiB, one {one} KiB: more than {EACH} KiB each"
        );
    });
}

fn one_there_and_back(host: &Host) {
    let mut c = Container::new("one");
    c.create(host).ok();
    c.stop(host).ok();
}

#[test]
fn other_links_of_the_host_take_little_memory() {
    const OTHERS: i64 = 1000;
    alone(|host| {
        let far = Container::new("far");
        rails(host, &far, 0, 1);
        // It reads all of each link, and comes before there are others.
        host.prepare("r0");
        one_there_and_back(host);
        let few = peak();
        let pairs = (0..OTHERS / 2).map(|i| format!("link add o{i} type veth peer name b{i}"));
        host.ip(&pairs.collect::<Vec<_>>().join("\n"));
        one_there_and_back(host);
        let (all, most) = (peak(), few + SLACK + OTHER * OTHERS);
        println!("no other links: {few} KiB; {OTHERS}: {all} KiB, at most {most}");
        assert!(
            all <= most,
            "{OTHERS} other links: {all} KiB, none: {few} KiB"
        );
    });
}
