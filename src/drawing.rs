//! The PCI tree as a picture: where the GPUs and NICs are, which NICs are kept, and which GPU each
//! is nearest to.

use rdma_model::escape::count;
use std::collections::{BTreeMap, BTreeSet};

use nccl_rules::explain::may_be_direct;
use nccl_rules::levels::{Distance, Levels};
use rdma_model::ids::{BusId, HcaName, IfName};
use rdma_model::snapshot::{Hca, Snapshot};
use serde::Serialize;

use crate::select::{Drop, DropCode, Selection};

mod canvas;
mod nearest;
mod svg;
mod text;

pub use svg::svg;
pub use text::text;

pub const SCHEMA: u32 = 1;

/// How a NIC's GPU is chosen; printed below every picture, so that two people draw the same
/// conclusion.
pub const RULE: &str = "nearest GPU: by the way there (PIX, PXB, PHB, SYS), then by links; of \
    equals the GPU that fewer NICs have so far, kept NICs and those without a choice first, then \
    in PCI order; then the lower PCI address";

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Picture {
    pub schema: u32,
    pub gpus: Vec<Gpu>,
    /// RDMA devices: by PCI address, then name; those that are on no PCI function last.
    pub nics: Vec<Nic>,
    pub switches: Vec<Place>,
    /// The functions through which HCAs of ConnectX-8 read GPUs; which is whose, only the driver
    /// says.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data_direct: Vec<Place>,
    pub rule: &'static str,
    /// Why there are no HCAs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// PCI address; of a switch that of its upstream port.
    pub address: BusId,
    /// The switch above; absent where the processor is.
    pub switch: Option<BusId>,
    /// NUMA node; −1 where the platform does not say.
    pub numa: i32,
    /// The most that its link can do: `32 GT/s x16`; absent where nothing says.
    pub link: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// From 0, in PCI order, as nvidia-smi counts.
    pub number: usize,
    pub place: Place,
    /// Where no kept NIC is nearest to it: the nearest kept one that it reaches without the
    /// processor.
    pub shares: Option<HcaName>,
    /// Whether a Data Direct function that may be a kept NIC's is nearer than the processor: NCCL
    /// from 2.27.3 on takes that for the NIC's place.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Nic {
    pub hca: HcaName,
    /// Where it is; absent for software devices, and where the snapshot lacks its PCI function.
    pub place: Option<Place>,
    /// The address of a function that the snapshot lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unplaced: Option<BusId>,
    pub netdevs: Vec<IfName>,
    /// The rate of its ports, shortened: `400G`.
    pub rate: Option<String>,
    /// From 0, in the order of the kept ones; absent: dropped.
    pub rail: Option<usize>,
    /// Why it was dropped; absent: kept.
    pub dropped: Option<Drop>,
    pub nearest: Option<Nearest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nearest {
    pub gpu: usize,
    pub distance: Distance,
    /// Links on the way, in NCCL's tree.
    pub hops: usize,
    /// GPUs that are as near, this one included.
    pub equals: usize,
}

pub type Fates = BTreeMap<HcaName, Option<Drop>>;

/// The fates by a selection. An HCA is kept if any of its ports is; one without a verdict is
/// dropped.
pub fn fates(selection: &Selection, snapshot: &Snapshot) -> Fates {
    let mut fates = Fates::new();
    for verdict in &selection.verdicts {
        let Some(hca) = &verdict.hca else { continue };
        let fate = fates
            .entry(hca.clone())
            .or_insert_with(|| verdict.dropped.clone());
        fate.take_if(|_| verdict.dropped.is_none());
    }
    for hca in &snapshot.hcas {
        drop_unless_known(&mut fates, hca, || drop("nothing was decided about it", ""));
    }
    fates
}

pub fn listed(keep: &BTreeSet<HcaName>, snapshot: &Snapshot) -> Fates {
    let mut fates = Fates::new();
    for hca in &snapshot.hcas {
        let is_out = !keep.contains(&hca.name);
        let dropped = is_out.then(|| drop("it is not in --hca", "add it to --hca (RDMAPREP_HCA)"));
        fates.insert(hca.name.clone(), dropped);
    }
    fates
}

fn drop(why: &str, fix: &str) -> Drop {
    Drop {
        code: DropCode::Excluded,
        also: Vec::new(),
        why: why.to_owned(),
        fix: fix.to_owned(),
    }
}

fn drop_unless_known(fates: &mut Fates, hca: &Hca, otherwise: impl FnOnce() -> Drop) {
    fates
        .entry(hca.name.clone())
        .or_insert_with(|| Some(otherwise()));
}

pub fn picture(snapshot: &Snapshot, fates: &Fates) -> Picture {
    let levels = Levels::new(snapshot);
    let mut gpus: Vec<BusId> = snapshot.gpus().map(|g| g.address).collect();
    gpus.sort_unstable();
    let mut gpus: Vec<Gpu> = gpus
        .iter()
        .enumerate()
        .map(|(number, at)| Gpu {
            number,
            place: place(&levels, *at),
            shares: None,
            direct: false,
        })
        .collect();
    let mut nics: Vec<Nic> = snapshot
        .hcas
        .iter()
        .map(|hca| nic(&levels, hca, snapshot, fates))
        .collect();
    // Rail order, as the selection has it.
    nics.sort_by_cached_key(|n| {
        let address = n.place.as_ref().map(|p| p.address);
        (address.is_none(), address, n.hca.clone())
    });
    let kept = nics.iter_mut().filter(|n| n.dropped.is_none());
    for (rail, nic) in kept.enumerate() {
        nic.rail = Some(rail);
    }
    nearest::pair(&levels, &gpus, &mut nics);
    let data_direct = snapshot.pci.iter().filter(|f| f.is_data_direct());
    let data_direct: Vec<Place> = data_direct.map(|f| place(&levels, f.address)).collect();
    let mut kept = snapshot
        .hcas
        .iter()
        .filter(|hca| matches!(fates.get(&hca.name), Some(None)));
    let reads = kept.any(may_be_direct);
    for gpu in &mut gpus {
        gpu.shares = nearest::shared(&levels, gpu, &nics);
        let at = gpu.place.address;
        let mut ways = data_direct.iter().map(|f| levels.between(f.address, at).0);
        gpu.direct = reads && ways.any(|distance| distance <= Distance::Pxb);
    }
    let places = gpus
        .iter()
        .map(|g| &g.place)
        .chain(nics.iter().filter_map(|n| n.place.as_ref()))
        .chain(&data_direct);
    let switches: BTreeSet<BusId> = places.flat_map(|p| levels.switches(p.address)).collect();
    let switches = switches.into_iter().map(|at| place(&levels, at)).collect();
    Picture {
        schema: SCHEMA,
        gpus,
        nics,
        switches,
        data_direct,
        rule: RULE,
        hint: snapshot.lacks_rdma_driver(),
    }
}

fn place(levels: &Levels, address: BusId) -> Place {
    let (speed, width) = levels.link(address);
    // What is no number says as much as nothing.
    let speed = speed.trim_end_matches(" PCIe");
    let speed = speed.replace(".0 GT/s", " GT/s");
    let link = (!speed.is_empty() && width > 0).then(|| format!("{speed} x{width}"));
    Place {
        address,
        switch: levels.switches(address).first().copied(),
        numa: levels.numa(address),
        link,
    }
}

fn nic(levels: &Levels, hca: &Hca, snapshot: &Snapshot, fates: &Fates) -> Nic {
    let beside = snapshot.netdev_beside(hca).map(|n| n.name.clone());
    let known = hca.pci.filter(|pci| levels.function(*pci).is_some());
    let rate = hca
        .ports
        .iter()
        .find_map(|p| p.rate.as_deref())
        .and_then(|r| r.split(" Gb/sec").next());
    Nic {
        hca: hca.name.clone(),
        place: known.map(|pci| place(levels, pci)),
        unplaced: hca.pci.filter(|_| known.is_none()),
        netdevs: hca
            .ports
            .iter()
            .filter_map(|p| p.netdev.clone())
            .chain(beside)
            .collect(),
        rate: rate.filter(|r| !r.is_empty()).map(|r| format!("{r}G")),
        rail: None,
        dropped: fates.get(&hca.name).cloned().flatten(),
        nearest: None,
    }
}

impl Picture {
    pub fn headline(&self) -> String {
        if self.gpus.is_empty() && self.nics.is_empty() {
            return "no GPU and no RDMA device is here: `rdmaprep doctor` says where to look"
                .to_owned();
        }
        let kept = self.nics.iter().filter(|n| n.dropped.is_none()).count();
        let (gpus, hcas) = (count(self.gpus.len(), "GPU"), count(self.nics.len(), "HCA"));
        format!(
            "{gpus}, {hcas}: {kept} kept, {} dropped",
            self.nics.len() - kept
        )
    }

    /// The NICs that belong to a GPU: it is their nearest, and no processor is between.
    pub fn nics_of(&self, gpu: usize) -> impl Iterator<Item = &Nic> {
        self.nics.iter().filter(move |n| {
            n.nearest
                .as_ref()
                .is_some_and(|n| n.gpu == gpu && n.is_close())
        })
    }

    pub fn lacks(&self, gpu: &Gpu) -> bool {
        let reached = gpu.shares.is_some() || gpu.direct;
        !reached && self.nics_of(gpu.number).all(|n| n.dropped.is_some())
    }

    /// Whether any NIC has a nearest GPU, so that the rule matters.
    pub fn has_pairs(&self) -> bool {
        self.nics.iter().any(|n| n.nearest.is_some())
    }

    pub fn numa_nodes(&self) -> BTreeSet<i32> {
        let places = self
            .gpus
            .iter()
            .map(|g| &g.place)
            .chain(self.nics.iter().filter_map(|n| n.place.as_ref()))
            .chain(&self.data_direct);
        places.map(|p| p.numa).collect()
    }

    pub fn switch(&self, at: BusId) -> Option<&Place> {
        self.switches.iter().find(|s| s.address == at)
    }

    pub fn above(&self, place: &Place) -> Vec<&Place> {
        std::iter::successors(place.switch.and_then(|s| self.switch(s)), |s| {
            self.switch(s.switch?)
        })
        .collect()
    }

    /// Where its Data Direct functions are, as a sentence.
    fn data_direct_words(&self) -> Option<String> {
        let mut all = Vec::new();
        for place in &self.data_direct {
            all.push(match place.switch {
                Some(switch) => format!("{} below switch {switch}", place.address),
                None => format!("{} on {}", place.address, numa_name(place.numa)),
            });
        }
        (!all.is_empty()).then(|| format!("Data Direct functions: {}", all.join(", ")))
    }

    /// What was dropped for which reason, each reason once: its code, who, the sentence with what
    /// to do.
    pub fn reasons(&self) -> Vec<(String, Vec<&HcaName>, String)> {
        let mut reasons: Vec<(&Drop, Vec<&HcaName>)> = Vec::new();
        for (nic, drop) in self
            .nics
            .iter()
            .filter_map(|n| Some((n, n.dropped.as_ref()?)))
        {
            match reasons.iter_mut().find(|(known, _)| *known == drop) {
                Some((_, nics)) => nics.push(&nic.hca),
                None => reasons.push((drop, vec![&nic.hca])),
            }
        }
        reasons
            .into_iter()
            .map(|(d, nics)| (d.code.to_string(), nics, d.sentence()))
            .collect()
    }
}

/// The address's place in a NUMA node, in words.
fn numa_name(numa: i32) -> String {
    if numa < 0 {
        "NUMA node unknown".to_owned()
    } else {
        format!("NUMA node {numa}")
    }
}

/// A text in lines of at most that many characters, broken at blanks.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last().map_or(0, |l| l.chars().count());
        match lines.last_mut() {
            Some(line) if last > 0 && last + 1 + word.chars().count() <= width => {
                line.push_str(&format!(" {word}"))
            }
            Some(line) if last == 0 => line.push_str(word),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| cut(line, width)).collect()
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}
