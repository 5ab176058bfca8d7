use std::collections::BTreeMap;

use rdma_model::ids::BusId;

use super::{Gpu, Nic, Picture, Place, cut, numa_name, wrapped};
use rdma_model::escape::{WIDTH, printable};

enum Leaf<'p> {
    Switch(&'p Place),
    Gpu(&'p Gpu),
    Nic(&'p Nic),
    DataDirect(&'p Place),
}

/// What is below each switch, or directly on each NUMA node.
type Below<'p> = BTreeMap<(i32, Option<BusId>), BTreeMap<BusId, Vec<Leaf<'p>>>>;

/// The tree, at most [`WIDTH`] columns wide, with the reasons and the rule below it.
pub fn text(picture: &Picture) -> String {
    let mut below: Below = BTreeMap::new();
    let mut put = |place: &Place, leaf| {
        // A switch says where those below it are: they may tell nothing.
        let node = if place.switch.is_some() {
            0
        } else {
            place.numa
        };
        below
            .entry((node, place.switch))
            .or_default()
            .entry(place.address)
            .or_default()
            .push(leaf);
    };
    for switch in &picture.switches {
        put(switch, Leaf::Switch(switch));
    }
    for gpu in &picture.gpus {
        put(&gpu.place, Leaf::Gpu(gpu));
    }
    for (place, nic) in picture
        .nics
        .iter()
        .filter_map(|n| Some((n.place.as_ref()?, n)))
    {
        put(place, Leaf::Nic(nic));
    }
    for place in &picture.data_direct {
        put(place, Leaf::DataDirect(place));
    }
    let mut lines = vec![picture.headline()];
    for numa in picture.numa_nodes() {
        lines.extend([String::new(), numa_name(numa)]);
        draw(&below, (numa, None), "", &mut lines);
    }
    for (why, nics) in picture.apart() {
        lines.extend([String::new(), why.to_owned()]);
        lines.extend(nics.iter().map(|n| format!("   {}", nic(n))));
    }
    lines.extend(foot(picture));
    let width = usize::from(WIDTH);
    lines
        .iter()
        .map(|line| cut(printable(line).trim_end(), width) + "\n")
        .collect::<String>()
        .trim_end()
        .to_owned()
}

impl Picture {
    /// NICs without a place in the tree: why, and which.
    pub(super) fn apart(&self) -> Vec<(&'static str, Vec<&Nic>)> {
        let apart = self.nics.iter().filter(|n| n.place.is_none());
        let (soft, unknown): (Vec<&Nic>, Vec<&Nic>) = apart.partition(|n| n.unplaced.is_none());
        let mut both = vec![
            ("on no PCI function", soft),
            ("on PCI functions that the snapshot lacks", unknown),
        ];
        both.retain(|(_, nics)| !nics.is_empty());
        both
    }
}

impl Nic {
    pub(super) fn address(&self) -> Option<BusId> {
        self.place.as_ref().map(|p| p.address).or(self.unplaced)
    }
}

fn draw(below: &Below, at: (i32, Option<BusId>), indent: &str, lines: &mut Vec<String>) {
    let leaves: Vec<&Leaf> = below
        .get(&at)
        .into_iter()
        .flat_map(|b| b.values().flatten())
        .collect();
    for (number, leaf) in leaves.iter().enumerate() {
        let is_last = number + 1 == leaves.len();
        let (branch, more) = if is_last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        let line = match leaf {
            Leaf::Switch(place) => format!("switch {}{}", place.address, link(place)),
            Leaf::Gpu(gpu) => {
                let shares = gpu
                    .shares
                    .as_ref()
                    .map_or(String::new(), |hca| format!("  shares {hca}"));
                format!(
                    "GPU {}{shares}  {}{}",
                    gpu.number,
                    gpu.place.address,
                    link(&gpu.place)
                )
            }
            Leaf::Nic(one) => nic(one),
            Leaf::DataDirect(place) => {
                format!("Data Direct function {}{}", place.address, link(place))
            }
        };
        lines.push(format!("{indent}{branch}{line}"));
        if let Leaf::Switch(place) = leaf {
            draw(
                below,
                (0, Some(place.address)),
                &format!("{indent}{more}"),
                lines,
            );
        }
    }
}

fn link(place: &Place) -> String {
    place
        .link
        .as_ref()
        .map_or(String::new(), |link| format!("  {link}"))
}

/// What was decided comes first: where a line is too long, its end is cut off.
fn nic(nic: &Nic) -> String {
    let name =
        std::iter::once(nic.hca.to_string()).chain(nic.netdevs.iter().map(|n| n.to_string()));
    let mut words = vec![format!("NIC {}", name.collect::<Vec<_>>().join(" "))];
    words.extend(nic.rail.map(|rail| format!("= rail {rail}")));
    words.extend(nic.dropped.as_ref().map(|drop| format!("✗ {}", drop.code)));
    words.extend(nic.nearest.as_ref().map(|n| format!("→ {}", n.words())));
    words.extend(nic.address().map(|pci| pci.to_string()));
    words.extend(
        nic.rate
            .iter()
            .cloned()
            .chain(nic.place.iter().filter_map(|p| p.link.clone())),
    );
    words.join("  ")
}

fn foot(picture: &Picture) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.extend(picture.hint.iter().flat_map(|hint| hanging("! ", hint)));
    for (code, nics, why) in picture.reasons() {
        let who: Vec<&str> = nics.iter().map(|n| n.as_str()).collect();
        lines.extend(hanging(
            &format!("✗ {code}: "),
            &format!("{}: {why}", who.join(", ")),
        ));
    }
    let alone = numbers(picture, |gpu| picture.lacks(gpu));
    if !alone.is_empty() && !picture.nics.is_empty() {
        lines.extend(hanging(
            "! ",
            &format!("no kept NIC under a switch with GPU {alone}"),
        ));
    }
    let direct = numbers(picture, |gpu| gpu.direct);
    if !direct.is_empty() {
        let text = format!(
            "GPU {direct}: under a switch with a Data Direct function, which NCCL from 2.27.3 on \
            takes for its NIC's place; distances here are those of the NICs"
        );
        lines.extend(hanging("", &text));
    }
    if picture.has_pairs() {
        lines.extend(hanging("", picture.rule));
    }
    lines
}

/// Those of the GPUs, for a sentence.
fn numbers(picture: &Picture, meant: impl Fn(&Gpu) -> bool) -> String {
    let gpus = picture.gpus.iter().filter(|gpu| meant(gpu));
    let numbers: Vec<String> = gpus.map(|gpu| gpu.number.to_string()).collect();
    numbers.join(", ")
}

fn hanging(label: &str, text: &str) -> Vec<String> {
    let indent = label.chars().count();
    let lines = wrapped(text, usize::from(WIDTH) - indent);
    let labels = std::iter::once(label.to_owned()).chain(std::iter::repeat(" ".repeat(indent)));
    labels
        .zip(lines)
        .map(|(label, line)| label + &line)
        .collect()
}
