//! Points at which a program can be made to fail, and the ways to fail there.

use std::process::Command;
use std::{env, fs};

use testkit::{Said, run};

/// Where the program tells the points that it passes.
const POINTS: &str = "/run/points";

/// How a program may end at any point: by itself, by another's hand, with an error, and after its
/// time.
const EVERYWHERE: [&str; 4] = ["abort", "kill", "error", "hang"];

/// A fault point as the program printed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub number: usize,
    /// What was chosen for it.
    pub way: Option<String>,
    pub name: String,
}

/// One way to fail at one point.
#[derive(Clone, Debug)]
pub struct Crash {
    pub point: Point,
    pub way: &'static str,
    /// Whether the container is dead when the NICs are fetched.
    pub dead: bool,
}

/// The points that the last command passed.
pub fn passed() -> Vec<Point> {
    let points = passed_so_far();
    let _ = fs::remove_file(POINTS);
    points
}

pub fn passed_so_far() -> Vec<Point> {
    let text = fs::read_to_string(POINTS).unwrap_or_default();
    let point = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let number = words.next().unwrap().parse().unwrap();
        let way = Some(words.next().unwrap().to_owned()).filter(|w| w != "-");
        // The files of a container are named after its namespace.
        let name = words.next().unwrap();
        let name = name.find("/run/").map_or(name, |path| {
            name[path..].rfind('/').map_or(name, |n| &name[..path + n])
        });
        Point {
            number,
            way,
            name: name.to_owned(),
        }
    };
    text.lines().map(point).collect()
}

impl Point {
    /// A report comes after the work: a hook that cannot write it has done what it was called for.
    pub fn is_report(&self) -> bool {
        self.name.ends_with("/reports")
    }
}

/// The names of the steps, all of which were begun and done.
pub fn steps(points: &[Point]) -> Vec<&str> {
    let begun: Vec<&str> = points
        .iter()
        .filter_map(|p| p.name.strip_prefix("before step "))
        .collect();
    let done: Vec<&str> = points
        .iter()
        .filter_map(|p| p.name.strip_prefix("after step "))
        .collect();
    assert_eq!(begun, done);
    begun
}

/// How the program ends there: in every way if asked for, else in one by which it is gone and one
/// that it notices, in turn.
fn ways(point: &Point) -> &'static [&'static str] {
    match env::var_os("RDMAPREP_EVERY_CRASH") {
        Some(_) => &EVERYWHERE,
        None if point.number / 4 % 2 == 0 => &["abort", "hang"],
        None => &["kill", "error"],
    }
}

/// Every point in ways that have a meaning there: only what writes finds a disk full.
pub fn crashes(points: &[Point]) -> Vec<Crash> {
    let ways = |p: &Point| {
        let full = p.name.contains("writing") || p.name.contains("pinning");
        ways(p).iter().copied().chain(full.then_some("full"))
    };
    let every = points.iter().flat_map(|p| ways(p).map(move |way| (p, way)));
    every
        .map(|(point, way)| Crash {
            point: point.clone(),
            way,
            dead: (point.number / 2 + way.len()) % 2 == 0,
        })
        .collect()
}

/// Runs it with this chosen for it.
pub fn struck(command: &mut Command, stdin: &str, fault: &str) -> Said {
    run(
        command
            .env("RDMAPREP_FAULT", fault)
            .env("RDMAPREP_FAULT_POINTS", POINTS),
        stdin,
    )
}

impl Crash {
    /// As the program reads it: a hang lasts longer than the deadline, of `seconds`.
    pub fn chosen(&self, seconds: u32) -> String {
        let hang = format!("hang={}100", seconds);
        format!(
            "{}:{}",
            self.point.number,
            if self.way == "hang" { &hang } else { self.way }
        )
    }

    /// Insists that it has struck, at the point that was meant, and that the program ended
    /// accordingly.
    pub fn has_struck(&self, said: &Said) {
        let points = passed();
        assert!(
            self.is_among(&points),
            "{self:?} was not reached: {said:?} {points:#?}"
        );
        match self.way {
            "abort" | "kill" => assert_eq!(said.code, None, "{self:?}: {said:?}"),
            // Its undo comes after the deadline, too: on a slow machine it may leave the rest to
            // `restore`.
            "hang" => assert!(
                matches!(said.code, Some(0 | 1 | 7 | 8)),
                "{self:?}: {said:?}"
            ),
            _ => assert!(said.code.is_some(), "{self:?}: {said:?}"),
        }
    }

    pub fn is_among(&self, points: &[Point]) -> bool {
        points.iter().any(|p| {
            (p.number, &p.name) == (self.point.number, &self.point.name) && p.way.is_some()
        })
    }
}
