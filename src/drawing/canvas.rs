//! SVG as text: shapes with classes, and the two style sheets.

use rdma_model::escape::printable;

pub const SANS: &str = "";
/// A font in which addresses stand below one another.
pub const MONO: &str = "mono";

/// Okabe and Ito's colours, which people with any colour vision tell apart, but for their yellow
/// and black, which do not show on every ground; neighbours differ most.
const LIGHT: [&str; 8] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a08c00", "#6e7681",
];
const DARK: [&str; 8] = [
    "#4aa3df", "#f0ad1e", "#19c39a", "#df93be", "#8fd0f7", "#f0803c", "#d6c437", "#a3acb6",
];

#[derive(Default)]
pub struct Canvas(String);

impl Canvas {
    pub fn rect(&mut self, class: &str, [x, y, width, height]: [usize; 4], round: usize) {
        let shape =
            format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"{round}\"");
        self.0
            .push_str(&format!("<rect class=\"{class}\" {shape}/>\n"));
    }

    pub fn line(&mut self, class: &str, [x1, y1]: [usize; 2], [x2, y2]: [usize; 2]) {
        self.0.push_str(&format!(
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>\n"
        ));
    }

    /// Text, its base line at `y`.
    pub fn text(&mut self, class: &str, x: usize, y: usize, font: &str, text: &str) {
        let class = format!("{class} {font}");
        self.0.push_str(&format!(
            "<text class=\"{}\" x=\"{x}\" y=\"{y}\">{}</text>\n",
            class.trim(),
            escaped(text)
        ));
    }

    pub fn finish(self, width: usize, height: usize, title: &str) -> String {
        let root = format!(
            "viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\""
        );
        let (title, style) = (escaped(title), style());
        let ground = format!("<rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>");
        let shapes = self.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" \
            {root}>\n<title>{title}</title>\n<style>\n{style}</style>\n{ground}\n{shapes}</svg>\n"
        )
    }
}

/// Classes, no variables: many programs that show SVG know none.
fn style() -> String {
    let shapes = "text { font: 12px system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif }\n\
         .mono { font: 11px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace }\n\
         .head { font-size: 22px; font-weight: 700 }\n\
         .title, .name { font-size: 15px; font-weight: 700 }\n\
         .mark { text-anchor: end; font-weight: 700 }\n\
         .name.gone { text-decoration: line-through; font-weight: 400 }\n\
         .warn { font-weight: 700 }\n\
         .band { fill-opacity: .14 }\n\
         .card { stroke-width: 2 }\n\
         .card.gone { stroke-width: 1.5; stroke-dasharray: 5 4; fill: none }\n\
         .tie.kept { stroke-width: 5 }\n\
         .tie.gone { stroke-width: 1.5; stroke-dasharray: 3 4 }\n\
         .wire { stroke-width: 2 }\n\
         .panel, .switch { stroke-width: 1 }\n";
    let light = theme(
        [
            "#ffffff", "#f6f8fa", "#e7ebf0", "#c4ccd6", "#1b1f24", "#57606a", "#a3210f",
        ],
        LIGHT,
    );
    let dark = theme(
        [
            "#0d1117", "#151b23", "#212a35", "#3d4855", "#e6edf3", "#9aa5b1", "#ff9d8a",
        ],
        DARK,
    );
    format!("{shapes}{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n")
}

fn theme([paper, panel, switch, line, ink, soft, warn]: [&str; 7], colours: [&str; 8]) -> String {
    let mut text = format!(
        ".paper, .card.kept {{ fill: {paper} }}\n\
         .panel {{ fill: {panel}; stroke: {line} }}\n\
         .switch {{ fill: {switch}; stroke: {line} }}\n\
         .head, .title, .name, .ink, .mark {{ fill: {ink} }}\n\
         .soft, .name.gone, .mark.gone {{ fill: {soft} }}\n\
         .warn {{ fill: {warn} }}\n\
         .wire, .card.gone, .tie.gone, .card.none {{ stroke: {soft} }}\n\
         .band.none {{ fill: none }}\n\
         .bar.none {{ fill: {soft} }}\n"
    );
    for (number, colour) in colours.iter().enumerate() {
        text.push_str(&format!(
            ".band.g{number}, .bar.g{number} {{ fill: {colour} }}\n.kept.g{number} {{ stroke: \
            {colour} }}\n"
        ));
    }
    text
}

fn escaped(text: &str) -> String {
    printable(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
