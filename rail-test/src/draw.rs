//! A picture of nodes by rails: green works, amber is worth a look, red fails. A sign says it, too,
//! for who does not tell these colours apart.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::cause::{Culprit, Nic};
use crate::report::Findings;

const GOOD: &str = "#2da44e";
const WARN: &str = "#e3a008";
const BAD: &str = "#d1242f";
const GONE: &str = "#8c959f";

const MARGIN: usize = 16;
const LINE: usize = 20;
const LABEL: usize = 150;
/// The least width, and the height.
const CELL: (usize, usize) = (64, 22);
/// Characters of a rail's name: a subnet's, and more; and of a node's.
const NAME: usize = 24;
const HOST: usize = 20;
/// The most nodes that have a row with a name. Of more, in thin rows, one in so many has it.
const NAMED: usize = 64;
const EACH: usize = 16;
/// Causes that stand above the picture.
const CAUSES: usize = 12;
/// Characters of a line of text.
const WIDE: usize = 110;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Colour {
    Good,
    Warn,
    Bad,
    Gone,
}

impl Colour {
    fn fill(self) -> &'static str {
        match self {
            Colour::Good => GOOD,
            Colour::Warn => WARN,
            Colour::Bad => BAD,
            Colour::Gone => GONE,
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Colour::Good => "",
            Colour::Warn => "!",
            Colour::Bad => "×",
            Colour::Gone => "–",
        }
    }
}

/// Red are the NICs of what is to blame; amber those of a pair that fails alone, or of a warning.
pub fn colour(found: &Findings, (node, rail): Nic) -> Colour {
    if found.missing.contains(&node) {
        return Colour::Gone;
    }
    let mut colour = Colour::Good;
    for cause in &found.causes {
        let is_its = match &cause.culprit {
            Some(Culprit::Node(rank)) => *rank == node,
            Some(Culprit::Rail(of)) => *of == rail,
            Some(Culprit::Nic(rank, of)) => (*rank, *of) == (node, rail),
            Some(Culprit::Pair(a, b, rails)) => [a, b].contains(&&node) && rails.contains(&rail),
            None => false,
        };
        let is_pair = matches!(cause.culprit, Some(Culprit::Pair(..))) && found.nodes > 2;
        match (is_its, cause.breaks && !is_pair) {
            (true, true) => return Colour::Bad,
            (true, false) => colour = Colour::Warn,
            (false, _) => {}
        }
    }
    colour
}

pub fn svg(found: &Findings) -> String {
    let (nodes, rails) = (found.nodes as usize, found.rails.len());
    let tall = if nodes > NAMED { 4 } else { CELL.1 };
    let causes: Vec<&str> = found
        .causes
        .iter()
        .map(|c| c.text.as_str())
        .take(CAUSES)
        .collect();
    let top = MARGIN + LINE * (causes.len().max(1) + 2);
    let longest = found.rails.iter().map(|name| name.chars().count()).max();
    let wide = CELL.0.max(longest.unwrap_or(0).min(NAME) * 8);
    let width = (2 * MARGIN + LABEL + rails * wide).max(2 * MARGIN + WIDE * 7);
    let height = top + LINE + nodes * tall + MARGIN + LINE * 2;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
        font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" \
        fill=\"#ffffff\"/>\n"
    );
    text(&mut out, (MARGIN, MARGIN + 12), "#1f2328", &found.what());
    let none = ["every rail works"];
    let lines = if causes.is_empty() {
        &none[..]
    } else {
        &causes[..]
    };
    for (n, line) in lines.iter().enumerate() {
        let breaks = found.causes.get(n).map(|cause| cause.breaks);
        let fill = match breaks {
            Some(true) => BAD,
            Some(false) => "#9a6700",
            None => GOOD,
        };
        text(&mut out, (MARGIN, MARGIN + 12 + LINE * (n + 1)), fill, line);
    }
    for (n, name) in found.rails.iter().enumerate() {
        let at = (MARGIN + LABEL + n * wide, top + 12);
        let short: String = name.chars().take(NAME).collect();
        text(&mut out, at, "#1f2328", &short);
    }
    for row in 0..nodes {
        let rank = row as u32;
        let y = top + LINE + row * tall;
        if nodes <= NAMED || row % EACH == 0 {
            let name = label(found, rank);
            let below = if nodes <= NAMED { 15 } else { 10 };
            text(&mut out, (MARGIN, y + below), "#1f2328", &name);
        }
        for rail in 0..rails {
            let colour = colour(found, (rank, rail as u8));
            let fill = colour.fill();
            let x = MARGIN + LABEL + rail * wide;
            let gap = if tall > 4 { 3 } else { 1 };
            let _ = writeln!(
                out,
                "<rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{fill}\"><title>{}: \
                {}</title></rect>",
                x,
                wide - 3,
                tall - gap,
                escaped(&found.node(rank)),
                escaped(found.rail(rail as u8)),
            );
            if tall == CELL.1 {
                sign(&mut out, (x + wide / 2 - 5, y + 15), colour);
            }
        }
    }
    legend(&mut out, found, top + LINE + nodes * tall + MARGIN);
    out.push_str("</svg>\n");
    out
}

/// The name of a node in [`LABEL`]: of a long one, the beginning, and its rank.
fn label(found: &Findings, rank: u32) -> String {
    let (name, number) = (found.node(rank), format!(" (rank {rank})"));
    match name.strip_suffix(&number) {
        Some(host) => {
            let room = HOST.saturating_sub(number.len());
            host.chars().take(room).chain(number.chars()).collect()
        }
        None => name,
    }
}

/// Those colours that the picture has.
fn legend(out: &mut String, found: &Findings, y: usize) {
    let mut used: BTreeSet<Colour> = BTreeSet::new();
    for node in 0..found.nodes {
        used.extend((0..found.rails.len()).map(|rail| colour(found, (node, rail as u8))));
    }
    let mut x = MARGIN;
    for colour in used {
        let what = match colour {
            Colour::Good => "works",
            Colour::Warn => "worth a look",
            Colour::Bad => "fails",
            Colour::Gone => "has ended",
        };
        let fill = colour.fill();
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"14\" fill=\"{fill}\"/>"
        );
        sign(out, (x + 3, y + 12), colour);
        text(out, (x + 20, y + 12), "#1f2328", what);
        x += 40 + what.len() * 8;
    }
}

fn sign(out: &mut String, at: (usize, usize), colour: Colour) {
    if !colour.sign().is_empty() {
        text(out, at, "#ffffff", colour.sign());
    }
}

fn text(out: &mut String, (x, y): (usize, usize), fill: &str, words: &str) {
    let short: String = words.chars().take(WIDE).collect();
    let more = if short.len() < words.len() { "…" } else { "" };
    let words = escaped(&short);
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" fill=\"{fill}\">{words}{more}</text>"
    );
}

fn escaped(words: &str) -> String {
    let mut out = String::new();
    for c in words.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
