//! NCCL_TOPO_FILE: where the kept NICs and the GPUs are, for NCCL that cannot see it in /sys, or
//! must not have to. The file places NICs by name: `<net name="mlx5_0">` is matched before NCCL
//! looks at /sys at all. It says nothing that NCCL finds out by itself: no `<gpu>`, whose numbers
//! would be stale, no speed, GUID or port. NCCL's parser is strict and fails the communicator on
//! what it cannot read: no prolog, no tab, no line end inside a tag, one space between attributes,
//! no entities (src/graph/xml.cc of 2.30.7).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{BusId, HcaName};
use rdma_model::snapshot::{Cpu, PciFunction, Snapshot};

mod element;

use element::{Element, VALUE};

use super::hca::may_be_direct;
use super::levels::Levels;

/// The most elements in a file. NCCL has room for 256 since 2.21 (NCCL_TOPO_XML_MAX_NODES in
/// src/graph/topo.h) and gives up as soon as that is full, even if nothing but end tags is left.
const NODES: usize = 255;

/// Elements that NCCL adds to the file's: its own GPU with a `<nvlink>` for each place that its up
/// to 18 links lead to.
const ADDED: usize = 24;

/// Children of one element up to NCCL 2.29.2 (MAX_SUBS in src/graph/xml.h); 640 since, more than a
/// file can hold.
const CHILDREN: usize = 128;

/// Vendor id of Amazon, whose NICs (EFA) aws-ofi-nccl drives.
const AMAZON: u16 = 0x1d0f;

/// What NCCL appends to the name of an HCA that it uses by its Data Direct function
/// (src/transport/net_ib/init.cc of 2.30.7).
pub const DATA_DIRECT: &str = "_dma";

const X86: &str = "x86_64";

const UNKNOWN: &str = "nothing tells the processor: the file says x86_64 of an unknown vendor, \
    and NCCL will take the way between sockets for a fast one; make the file on the machine that \
    uses it";

#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    system: Element,
    pub unplaced: Vec<(HcaName, String)>,
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Above {
    Cpu(i32),
    Switch(BusId),
}

#[derive(Default)]
struct Tree {
    below: BTreeMap<Above, BTreeSet<BusId>>,
    faces: BTreeMap<BusId, BusId>,
    nets: BTreeMap<BusId, BTreeSet<String>>,
}

pub fn topology(snapshot: &Snapshot, kept: &BTreeSet<HcaName>) -> Topology {
    let levels = Levels::new(snapshot);
    let (mut tree, mut unplaced) = (Tree::default(), Vec::new());
    for gpu in snapshot.gpus() {
        tree.hang(&levels, gpu.address, gpu.address);
    }
    for hca in snapshot.hcas.iter().filter(|h| kept.contains(&h.name)) {
        match hca
            .pci
            .map(|pci| levels.function(pci).map(|f| f.address).ok_or(pci))
        {
            Some(Ok(pci)) => {
                let card = levels.card(pci);
                tree.hang(&levels, card, pci);
                tree.nets
                    .entry(card)
                    .or_default()
                    .insert(hca.name.to_string());
            }
            Some(Err(pci)) => unplaced.push((
                hca.name.clone(),
                format!("its function {pci} is not in the PCI tree"),
            )),
            None => unplaced.push((hca.name.clone(), "no PCI function is behind it".to_owned())),
        }
    }
    let direct = tree.hang_data_direct(&levels, snapshot, kept);
    let (system, mut warnings) = (tree.system(&levels, snapshot), Vec::new());
    warnings.extend(direct);
    let knows_cpu = snapshot
        .cpu
        .as_ref()
        .is_some_and(|c| c.arch != X86 || c.vendor.is_some());
    if !knows_cpu && !system.children.is_empty() {
        warnings.push(UNKNOWN.to_owned());
    }
    warnings.extend(tight(&system));
    Topology {
        system,
        unplaced,
        warnings,
    }
}

impl Topology {
    /// [`ErrorClass::Refused`] where NCCL could not read it: the error names the limit, and how
    /// much there is.
    pub fn xml(&self) -> Result<String> {
        let nodes = self.system.count();
        if nodes > NODES {
            let text = format!(
                "a topology file holds {NODES} elements, these NICs and GPUs need {nodes}: keep \
                fewer NICs"
            );
            return Err(ErrorClass::Refused.error(text));
        }
        self.system.check()?;
        let mut text = String::new();
        self.system.write(&mut text, 0);
        Ok(text)
    }
}

impl Tree {
    /// Puts a device into the tree, with the switches above it. It has the face of a function that
    /// is there.
    fn hang(&mut self, levels: &Levels, at: BusId, function: BusId) {
        let face = levels.function(at).map_or(function, |f| f.address);
        // Functions of one card whose function 0 is hidden are all behind the first one's bridges.
        let face = *self.faces.entry(at).or_insert(face);
        let mut child = at;
        for switch in levels.switches(face) {
            self.faces.insert(switch, switch);
            self.below
                .entry(Above::Switch(switch))
                .or_default()
                .insert(child);
            child = switch;
        }
        self.below
            .entry(Above::Cpu(levels.numa(face)))
            .or_default()
            .insert(child);
    }

    /// Places `NAME_dma`, for which NCCL looks from 2.27.3 on where an HCA has a Data Direct
    /// function: it is known whose that is where there is one function, and one HCA that can have
    /// it. Else the reason why none is placed.
    fn hang_data_direct(
        &mut self,
        levels: &Levels,
        snapshot: &Snapshot,
        kept: &BTreeSet<HcaName>,
    ) -> Option<String> {
        let functions = snapshot.pci.iter().filter(|f| f.is_data_direct());
        let functions: Vec<BusId> = functions.map(|f| f.address).collect();
        let mlx5 = snapshot.hcas.iter().filter(|h| may_be_direct(h));
        let mlx5: Vec<&HcaName> = mlx5.map(|h| &h.name).collect();
        if functions.is_empty() || !mlx5.iter().any(|name| kept.contains(*name)) {
            return None;
        }
        let ([function], [hca]) = (functions.as_slice(), mlx5.as_slice()) else {
            let all: Vec<String> = functions.iter().map(BusId::to_string).collect();
            let whose = match mlx5.as_slice() {
                [hca] => format!(
                    "which of the Data Direct functions {} {hca} has",
                    all.join(", ")
                ),
                _ => format!("whose the Data Direct functions {} are", all.join(", ")),
            };
            return Some(format!(
                "{whose}, only the driver says: the file does not place them, and NCCL from \
                2.27.3 on looks for them in /sys"
            ));
        };
        let card = levels.card(*function);
        self.hang(levels, card, *function);
        let nets = self.nets.entry(card).or_default();
        nets.insert(format!("{hca}{DATA_DIRECT}"));
        None
    }

    fn system(&self, levels: &Levels, snapshot: &Snapshot) -> Element {
        let cpus = self.below.keys().filter_map(|above| match above {
            Above::Cpu(node) => Some(Element {
                tag: "cpu",
                attributes: cpu(*node, snapshot),
                children: self.children(levels, *above),
            }),
            Above::Switch(_) => None,
        });
        Element {
            tag: "system",
            attributes: vec![("version", "1".to_owned())],
            children: cpus.collect(),
        }
    }

    /// In the order of their addresses, as NCCL keeps them.
    fn children(&self, levels: &Levels, above: Above) -> Vec<Element> {
        let pci = |at: &BusId| {
            let face = self.faces.get(at).copied().unwrap_or(*at);
            let mut children = self.children(levels, Above::Switch(*at));
            children.extend(self.nets.get(at).map(nic));
            Element {
                tag: "pci",
                attributes: function(levels, *at, face),
                children,
            }
        };
        self.below
            .get(&above)
            .into_iter()
            .flatten()
            .map(pci)
            .collect()
    }
}

fn nic(names: &BTreeSet<String>) -> Element {
    let net = |name: &String| Element {
        tag: "net",
        attributes: vec![("name", name.clone())],
        children: Vec::new(),
    };
    Element {
        tag: "nic",
        attributes: Vec::new(),
        children: names.iter().map(net).collect(),
    }
}

/// All that NCCL asks for: a processor with nothing but NICs named in the file below it is not
/// looked at by NCCL itself, so that what is missing fails the communicator.
fn cpu(node: i32, snapshot: &Snapshot) -> Vec<(&'static str, String)> {
    let mut attributes = vec![("numaid", node.to_string())];
    let cpumap = snapshot
        .numa_nodes
        .iter()
        .find(|n| n.id == node)
        .map(|n| n.cpumap.clone());
    // NCCL's buffer ends before the map of some 900 processors does; without one it pins nothing.
    let fits = |map: &String| {
        map.len() <= VALUE && map.bytes().all(|b| b.is_ascii_hexdigit() || b == b',')
    };
    attributes.extend(cpumap.filter(fits).map(|map| ("affinity", map)));
    let unknown = Cpu {
        arch: X86.to_owned(),
        ..Cpu::default()
    };
    let cpu = snapshot.cpu.as_ref().unwrap_or(&unknown);
    attributes.push(("arch", plain(&cpu.arch)));
    if cpu.arch == X86 {
        attributes.push((
            "vendor",
            cpu.vendor.as_deref().map_or("unknown".to_owned(), plain),
        ));
        attributes.push(("familyid", family(cpu.family.unwrap_or(0)).to_string()));
        attributes.push(("modelid", cpu.model.unwrap_or(0).to_string()));
    }
    attributes
}

/// A processor's family as NCCL counts it: the extended one times 16, and the base one, of which
/// the kernel makes a plain sum (ncclTopoGetXmlFromCpu() in src/graph/xml.cc; x86_family() in
/// arch/x86/lib/cpu.c).
fn family(sum: u32) -> u32 {
    if sum < 0xf {
        sum
    } else {
        0xf + (sum - 0xf) * 16
    }
}

/// A function's attributes. The ids of bridges tell NCCL which switches of Broadcom are one
/// (ncclTopoFlattenBcmSwitches() in src/graph/topo.cc).
fn function(levels: &Levels, at: BusId, face: BusId) -> Vec<(&'static str, String)> {
    let id = |id: fn(&PciFunction) -> u16| format!("{:#06x}", levels.function(face).map_or(0, id));
    let (speed, width) = levels.link(face);
    vec![
        ("busid", at.to_string()),
        (
            "class",
            format!("{:#08x}", levels.function(face).map_or(0, |f| f.class)),
        ),
        ("vendor", id(|f| f.vendor)),
        ("device", id(|f| f.device)),
        ("subsystem_vendor", id(|f| f.subsystem_vendor)),
        ("subsystem_device", id(|f| f.subsystem_device)),
        ("link_speed", plain(&speed)),
        ("link_width", width.to_string()),
    ]
}

/// A text of /sys as a value: there is no way to escape anything, so what would need it is left
/// out.
fn plain(text: &str) -> String {
    let good = |b: u8| {
        (b == b' ' || b.is_ascii_graphic()) && !matches!(b, b'"' | b'\'' | b'<' | b'>' | b'&')
    };
    if text.bytes().all(good) {
        text.to_owned()
    } else {
        String::new()
    }
}

fn tight(system: &Element) -> Vec<String> {
    let (nodes, children) = (system.count(), system.widest());
    let mut said = Vec::new();
    if (NODES - ADDED + 1..=NODES).contains(&nodes) {
        said.push(format!(
            "{nodes} elements: NCCL adds up to {ADDED} of its own and has room for {NODES}"
        ));
    }
    if children > CHILDREN {
        said.push(format!(
            "{children} elements below one: NCCL up to 2.29.2 reads {CHILDREN}"
        ));
    }
    said
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyChoice {
    pub file: bool,
    pub why: String,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances<'a> {
    /// NCCL_TOPO_FILE as the container has it already; an empty one is a value, too, since
    /// aws-ofi-nccl respects it.
    pub own: Option<&'a str>,
    pub asked: Option<bool>,
    /// Whether the container's /sys leaves NCCL without the places of its NICs.
    pub blind: bool,
}

/// Decides on it for these HCAs. What is set stays, what was asked for is done. On EFA a file of
/// ours would keep aws-ofi-nccl from making its own, which knows the groups of NICs
/// (src/nccl_ofi_rdma.cpp of aws-ofi-nccl 1.21.1).
pub fn wanted(snapshot: &Snapshot, kept: &BTreeSet<HcaName>, by: Circumstances) -> TopologyChoice {
    let levels = Levels::new(snapshot);
    let hcas = snapshot.hcas.iter().filter(|h| kept.contains(&h.name));
    let efa = hcas
        .filter_map(|h| levels.function(h.pci?))
        .any(|f| f.vendor == AMAZON);
    let (file, why) = match (by.own, by.asked) {
        (Some(own), _) => (false, format!("NCCL_TOPO_FILE={own} is set already")),
        (None, Some(false)) => (false, "switched off".to_owned()),
        (None, _) if kept.is_empty() => (false, "no HCA is kept".to_owned()),
        (None, Some(true)) => (true, "asked for".to_owned()),
        (None, None) if efa => (
            false,
            "aws-ofi-nccl makes a better one for EFA if there is none".to_owned(),
        ),
        (None, None) if by.blind => (
            true,
            "the container's /sys does not show where its NICs are".to_owned(),
        ),
        (None, None) => (false, "NCCL reads the same from /sys".to_owned()),
    };
    TopologyChoice { file, why }
}
