//! A hold that fails at any point, on its way in or out: the host gets everything back, the
//! namespace's name included. The points are those that the program tells it has passed.

use std::fs;

use crate::abreast;
use nix::sys::signal::Signal;
use testkit::hold::{Hold, POOL, whole};
use testkit::{Host, Said};

/// Where the program tells the points that it passes.
const POINTS: &str = "/run/points";

/// How the line begins that tells their number.
const COUNT: &str = "a hold:";

fn points() -> Vec<String> {
    fs::read_to_string(POINTS)
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// A hold that gets SIGTERM as soon as it is ready, if it ever is, with this fault. Returns its
/// output, and how many fault points it had passed when it was ready.
fn through(host: &Host, fault: &str) -> (Said, usize) {
    let _ = fs::remove_file(POINTS);
    let mut command = host.command(&[&["hold"], POOL].concat());
    command
        .env("RDMAPREP_FAULT", fault)
        .env("RDMAPREP_FAULT_POINTS", POINTS);
    match Hold::begun(&mut command) {
        Ok(hold) => {
            let passed = points().len();
            (hold.end(Signal::SIGTERM), passed)
        }
        Err(said) => (said, 0),
    }
}

/// Fails at each point in this way; `ended` judges how.
fn everywhere(host: &Host, way: &str, ended: impl Fn(&Said) -> bool) {
    let rails = host.rails(2);
    let before = host.look();
    host.prepare(&rails);
    let (said, begun) = through(host, "");
    said.ok();
    let all = points();
    for point in [
        "before pinning the network namespace at /run/netns/pool",
        "after unmounting /run/netns/pool",
    ] {
        assert!(
            all.iter().any(|p| p.ends_with(point)),
            "no {point:?} in {all:#?}"
        );
    }
    assert!(begun > 20 && all.len() > begun + 20, "{begun} of {all:#?}");
    whole(host, &before);
    for (number, point) in (1..).zip(&all) {
        let (said, _) = through(host, &format!("{number}:{way}"));
        assert!(
            points()
                .iter()
                .any(|p| p.starts_with(&format!("{number} {way} "))),
            "{point} was not reached: {said:?}"
        );
        assert!(ended(&said), "{way} at {point}: {said:?}");
        host.rdmaprep(&["restore", "--all"]).ok();
        whole(host, &before);
    }
    println!(
        "{COUNT} {} points passed ({begun} until it is ready), all failed by {way}, all restored",
        all.len()
    );
}

/// Prints the lines with the counts, which the test harness shows behind the test's name.
fn print_counts(said: Vec<String>) {
    said.iter()
        .flat_map(|said| said.lines())
        .filter_map(|l| l.get(l.find(COUNT)?..))
        .for_each(|line| println!("{line}"));
}

#[test]
fn a_hold_is_killed_anywhere() {
    print_counts(abreast(1, |host, _| {
        everywhere(host, "kill", |said| said.code.is_none())
    }));
}

/// What fails on the way in is undone at once; what fails on the way out may be done by the next
/// try.
#[test]
fn an_error_anywhere_in_a_hold() {
    print_counts(abreast(1, |host, _| {
        everywhere(host, "error", |said| said.code.is_some())
    }));
}
