//! The picture as SVG: a band for each GPU with the NICs that belong to it, below the switches that
//! they share. Nothing is shown by colour alone: a NIC stands beside its GPU on one band, and what
//! was dropped is dashed, crossed and says so. Light and dark follow the reader's browser.

use std::collections::BTreeMap;

use rdma_model::ids::BusId;

use super::canvas::{Canvas, MONO, SANS};
use super::{Gpu, Nic, Picture, cut, numa_name, wrapped};

const MARGIN: usize = 24;
const PAD: usize = 14;
const SWITCH: usize = 112;
const GPU: usize = 152;
const NIC: usize = 232;
const GAP: usize = 22;
const CARD: usize = 66;
/// The most NICs beside one another.
const ABREAST: usize = 3;
/// Colours of GPUs; more of them begin again with the first.
const COLOURS: usize = 8;

/// A GPU with its NICs, or NICs that belong to none, and the switches that it shares with others,
/// the topmost first.
struct Band<'p> {
    gpu: Option<&'p Gpu>,
    nics: Vec<&'p Nic>,
    shared: Vec<BusId>,
    /// What is to be said of a GPU without a NIC of its own, after what it has: class and words.
    remark: Option<(&'static str, String)>,
}

impl Band<'_> {
    fn slots(&self) -> usize {
        self.nics.len() + usize::from(self.remark.is_some())
    }
}

struct Panel<'p> {
    title: String,
    bands: Vec<Band<'p>>,
}

struct Grid {
    abreast: usize,
    gpus: usize,
    nics: usize,
    width: usize,
}

impl Grid {
    fn for_panels(panels: &[Panel]) -> Grid {
        let (mut most, mut switches) = (0, 0);
        for band in panels.iter().flat_map(|p| &p.bands) {
            switches = switches.max(band.shared.len());
            // Those that belong to no GPU take what room there is.
            if band.gpu.is_some() {
                most = most.max(band.slots());
            }
        }
        let abreast = most.clamp(2, ABREAST);
        let gpus = MARGIN + PAD + switches * (SWITCH + GAP);
        let nics = gpus + GPU + GAP;
        Grid {
            abreast,
            gpus,
            nics,
            width: nics + abreast * (NIC + GAP) - GAP + 2 * PAD + MARGIN,
        }
    }

    fn height(&self, band: &Band) -> usize {
        band.slots().div_ceil(self.abreast).max(1) * (CARD + PAD) + PAD
    }
}

pub fn svg(picture: &Picture) -> String {
    let panels = panels(picture);
    let grid = Grid::for_panels(&panels);
    let mut canvas = Canvas::default();
    canvas.text("head", MARGIN, 44, SANS, &picture.headline());
    let mut y = legend(&mut canvas, &grid, 60) + 12;
    for panel in &panels {
        canvas.text("title", MARGIN, y + 22, SANS, &panel.title);
        y = bands(&mut canvas, picture, &grid, panel, y + 34) + 10;
    }
    y = foot(&mut canvas, picture, &grid, y + 8);
    canvas.finish(grid.width, y + MARGIN, &picture.headline())
}

fn panels(picture: &Picture) -> Vec<Panel<'_>> {
    let mut panels = Vec::new();
    for numa in picture.numa_nodes() {
        let gpus = picture.gpus.iter().filter(|g| g.place.numa == numa);
        let mut bands: Vec<Band> = gpus.map(|gpu| band(picture, gpu)).collect();
        // Those below one switch must stand together.
        bands.sort_by_cached_key(|b| (b.shared.clone(), b.gpu.map(|g| g.number)));
        let mut far: Vec<&Nic> = picture.nics.iter().collect();
        far.retain(|n| {
            n.place.as_ref().is_some_and(|p| p.numa == numa)
                && n.nearest.as_ref().is_none_or(|near| !near.is_close())
        });
        bands.extend(others(far));
        panels.push(Panel {
            title: numa_name(numa),
            bands,
        });
    }
    for (why, nics) in picture.apart() {
        panels.push(Panel {
            title: why.replacen("on", "On", 1),
            bands: others(nics).into_iter().collect(),
        });
    }
    panels
}

fn others(nics: Vec<&Nic>) -> Option<Band<'_>> {
    (!nics.is_empty()).then_some(Band {
        gpu: None,
        nics,
        shared: Vec::new(),
        remark: None,
    })
}

fn band<'p>(picture: &'p Picture, gpu: &'p Gpu) -> Band<'p> {
    let places = picture
        .gpus
        .iter()
        .map(|g| &g.place)
        .chain(picture.nics.iter().filter_map(|n| n.place.as_ref()));
    let mut users: BTreeMap<BusId, usize> = BTreeMap::new();
    for s in places.flat_map(|p| picture.above(p)) {
        *users.entry(s.address).or_default() += 1;
    }
    let mut shared: Vec<BusId> = Vec::new();
    // A switch with nothing but the one below it tells nothing; nor does one that the GPU has for
    // itself.
    let mut below = 1;
    for switch in picture.above(&gpu.place) {
        let count = users.get(&switch.address).copied().unwrap_or(0);
        if count > below {
            shared.insert(0, switch.address);
        }
        below = count;
    }
    let mut nics: Vec<&Nic> = picture.nics_of(gpu.number).collect();
    nics.sort_by_key(|n| n.dropped.is_some());
    let remark = match &gpu.shares {
        Some(hca) => Some(("ink", format!("shares {}", cut(hca.as_str(), 20)))),
        None => picture
            .lacks(gpu)
            .then(|| ("warn", "no NIC kept".to_owned())),
    };
    Band {
        gpu: Some(gpu),
        nics,
        shared,
        remark,
    }
}

fn bands(canvas: &mut Canvas, picture: &Picture, grid: &Grid, panel: &Panel, top: usize) -> usize {
    let height = panel
        .bands
        .iter()
        .map(|b| grid.height(b) + PAD)
        .sum::<usize>()
        + PAD;
    canvas.rect("panel", [MARGIN, top, grid.width - 2 * MARGIN, height], 10);
    let mut tops = Vec::new();
    let mut y = top + PAD;
    for band in &panel.bands {
        tops.push(y);
        y += grid.height(band) + PAD;
    }
    tops.push(y);
    for column in 0..panel
        .bands
        .iter()
        .map(|b| b.shared.len())
        .max()
        .unwrap_or(0)
    {
        let mut from = 0;
        for run in panel
            .bands
            .chunk_by(|a, b| a.shared.get(..=column) == b.shared.get(..=column))
        {
            let to = from + run.len();
            if let Some(at) = run.first().and_then(|b| b.shared.get(column)) {
                switch(canvas, picture, *at, column, [tops[from], tops[to] - PAD]);
            }
            from = to;
        }
    }
    for (band, y) in panel.bands.iter().zip(&tops) {
        draw(canvas, grid, band, *y);
    }
    top + height
}

fn switch(
    canvas: &mut Canvas,
    picture: &Picture,
    at: BusId,
    column: usize,
    [top, bottom]: [usize; 2],
) {
    let x = MARGIN + PAD + column * (SWITCH + GAP);
    let middle = (top + bottom) / 2;
    if column > 0 {
        canvas.line("wire", [x - GAP, middle], [x, middle]);
    }
    canvas.rect("switch", [x, top, SWITCH, bottom - top], 6);
    canvas.text("soft", x + 10, middle - 14, SANS, "switch");
    canvas.text("ink", x + 10, middle + 4, MONO, &at.to_string());
    if let Some(link) = picture.switch(at).and_then(|s| s.link.as_ref()) {
        canvas.text("soft", x + 10, middle + 22, SANS, link);
    }
}

fn draw(canvas: &mut Canvas, grid: &Grid, band: &Band, top: usize) {
    let height = grid.height(band);
    let colour = band
        .gpu
        .map_or("none".to_owned(), |g| format!("g{}", g.number % COLOURS));
    if let Some(last) = band.shared.len().checked_sub(1) {
        let from = MARGIN + PAD + last * (SWITCH + GAP) + SWITCH;
        canvas.line(
            "wire",
            [from, top + height / 2],
            [grid.gpus, top + height / 2],
        );
    }
    let left = grid.gpus;
    canvas.rect(
        &format!("band {colour}"),
        [left, top, grid.width - MARGIN - PAD - left, height],
        10,
    );
    let middle = top + (height - CARD) / 2;
    let slot = |number: usize| {
        let (row, column) = (number / grid.abreast, number % grid.abreast);
        (
            column,
            [
                grid.nics + column * (NIC + GAP),
                top + PAD + row * (CARD + PAD),
            ],
        )
    };
    for (number, nic) in band.nics.iter().enumerate() {
        let (column, [x, y]) = slot(number);
        let from = if column == 0 {
            [left + GPU, middle + CARD / 2]
        } else {
            [x - GAP, y + CARD / 2]
        };
        if band.gpu.is_some() {
            canvas.line(
                &format!("tie {} {colour}", fate(nic)),
                from,
                [x, y + CARD / 2],
            );
        }
        card(canvas, nic, &colour, [x, y]);
    }
    if let Some((class, words)) = &band.remark {
        let (_, [x, y]) = slot(band.nics.len());
        canvas.text(class, x, y + CARD / 2 + 4, SANS, words);
    }
    host(canvas, band.gpu, &colour, [left, middle]);
}

/// The GPU of a band, or why there is none.
fn host(canvas: &mut Canvas, gpu: Option<&Gpu>, colour: &str, [x, y]: [usize; 2]) {
    let Some(gpu) = gpu else {
        canvas.text("soft", x + 22, y + 26, SANS, "no GPU under");
        canvas.text("soft", x + 22, y + 44, SANS, "the same switch");
        return;
    };
    canvas.rect(&format!("card kept {colour}"), [x, y, GPU, CARD], 8);
    canvas.rect(&format!("bar {colour}"), [x, y, 10, CARD], 4);
    canvas.text("name", x + 22, y + 21, SANS, &format!("GPU {}", gpu.number));
    canvas.text("ink", x + 22, y + 39, MONO, &gpu.place.address.to_string());
    if let Some(link) = &gpu.place.link {
        canvas.text("soft", x + 22, y + 56, SANS, link);
    }
}

fn fate(nic: &Nic) -> &'static str {
    if nic.dropped.is_some() {
        "gone"
    } else {
        "kept"
    }
}

fn card(canvas: &mut Canvas, nic: &Nic, colour: &str, [x, y]: [usize; 2]) {
    let fate = fate(nic);
    canvas.rect(&format!("card {fate} {colour}"), [x, y, NIC, CARD], 8);
    let mark = match (&nic.dropped, nic.rail) {
        (None, Some(rail)) => format!("✓ rail {rail}"),
        (None, None) => "✓".to_owned(),
        (Some(_), _) => "✕ dropped".to_owned(),
    };
    if nic.dropped.is_none() {
        canvas.rect(&format!("bar {colour}"), [x, y, 6, CARD], 3);
    }
    canvas.text(
        &format!("name {fate}"),
        x + 16,
        y + 21,
        SANS,
        &cut(nic.hca.as_str(), 15),
    );
    canvas.text(&format!("mark {fate}"), x + NIC - 10, y + 21, SANS, &mark);
    let mut words: Vec<String> = nic.address().iter().map(|pci| pci.to_string()).collect();
    words.extend(nic.netdevs.iter().map(|n| n.to_string()));
    let shade = if nic.dropped.is_some() { "soft" } else { "ink" };
    canvas.text(shade, x + 16, y + 39, MONO, &cut(&words.join(" "), 31));
    let said = match &nic.dropped {
        Some(drop) => format!("{}: {}", drop.code, drop.why),
        None => {
            let mut words = Vec::from_iter(nic.rate.clone());
            words.extend(nic.nearest.as_ref().map(|n| match n.equals {
                1 => n.distance.name().to_owned(),
                equals => format!("{}, tie of {equals}", n.distance.name()),
            }));
            words.extend(nic.place.as_ref().and_then(|p| p.link.clone()));
            words.join(" · ")
        }
    };
    canvas.text("soft", x + 16, y + 56, SANS, &cut(&said, 34));
}

fn legend(canvas: &mut Canvas, grid: &Grid, top: usize) -> usize {
    let mut x = MARGIN;
    for (class, text) in [
        ("card kept none", "✓ kept"),
        ("card gone none", "✕ dropped"),
    ] {
        canvas.rect(class, [x, top, 28, 16], 4);
        canvas.text("soft", x + 36, top + 12, SANS, text);
        x += 110;
    }
    let words = "A band is a GPU with its nearest NICs. PIX: one switch between them, PXB: \
        several, PHB: the processor, SYS: two NUMA nodes. Tie of 2: two GPUs are as near.";
    paragraph(canvas, grid, "soft", words, top + 18)
}

fn paragraph(canvas: &mut Canvas, grid: &Grid, class: &str, text: &str, top: usize) -> usize {
    let lines = wrapped(text, (grid.width - 2 * MARGIN) / 7);
    for (n, line) in lines.iter().enumerate() {
        canvas.text(class, MARGIN, top + (n + 1) * 18, SANS, line);
    }
    top + lines.len() * 18
}

fn foot(canvas: &mut Canvas, picture: &Picture, grid: &Grid, top: usize) -> usize {
    let mut paragraphs: Vec<(&str, String)> = Vec::new();
    paragraphs.extend(picture.data_direct_words().map(|words| ("ink", words)));
    for (code, nics, why) in picture.reasons() {
        let who: Vec<&str> = nics.iter().map(|n| n.as_str()).collect();
        paragraphs.push(("ink", format!("✕ {}: {code}: {why}", who.join(", "))));
    }
    if picture.has_pairs() {
        paragraphs.push(("soft", picture.rule.to_owned()));
    }
    paragraphs.iter().fold(top, |y, (class, text)| {
        paragraph(canvas, grid, class, text, y)
    })
}
