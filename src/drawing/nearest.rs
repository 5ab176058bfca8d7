//! Which GPU a NIC is nearest to, and which NIC a GPU without one of its own.

use nccl_rules::levels::{Distance, Levels};
use rdma_model::ids::HcaName;

use super::{Gpu, Nearest, Nic};

pub(super) fn pair(levels: &Levels, gpus: &[Gpu], nics: &mut [Nic]) {
    let mut nics_of = vec![0; gpus.len()];
    let mut choices: Vec<(usize, Vec<Nearest>)> = Vec::new();
    for (at, nic) in nics.iter().enumerate() {
        let Some(place) = &nic.place else { continue };
        let ways: Vec<_> = gpus
            .iter()
            .map(|g| (g.number, levels.between(place.address, g.place.address)))
            .collect();
        let Some(best) = ways.iter().map(|(_, way)| *way).min() else {
            continue;
        };
        let mut near = ways;
        near.retain(|(_, way)| *way == best);
        let nearest = near.iter().map(|(gpu, _)| Nearest {
            gpu: *gpu,
            distance: best.0,
            hops: best.1,
            equals: near.len(),
        });
        choices.push((at, nearest.collect()));
    }
    choices.sort_by_key(|(at, near)| (nics[*at].dropped.is_some(), near.len() > 1, *at));
    for (at, near) in choices {
        let chosen = near.into_iter().min_by_key(|n| (nics_of[n.gpu], n.gpu));
        if let Some(n) = &chosen {
            nics_of[n.gpu] += 1;
        }
        nics[at].nearest = chosen;
    }
}

/// The kept NIC of another GPU that a GPU without one of its own is nearest to.
pub(super) fn shared(levels: &Levels, gpu: &Gpu, nics: &[Nic]) -> Option<HcaName> {
    let mut best = None;
    for nic in nics.iter().filter(|n| n.dropped.is_none()) {
        let nearest = nic.nearest.as_ref();
        if nearest.is_some_and(|n| n.gpu == gpu.number && n.is_close()) {
            return None;
        }
        if let Some(place) = &nic.place {
            let way = levels.between(place.address, gpu.place.address);
            let this = (way, nic.rail, &nic.hca);
            best = Some(best.map_or(this, |best| this.min(best)));
        }
    }
    let ((distance, _), _, hca) = best?;
    (distance <= Distance::Pxb).then(|| hca.clone())
}

impl Nearest {
    /// Whether data can go there without the processor: then the NIC belongs to the GPU.
    pub fn is_close(&self) -> bool {
        self.distance <= Distance::Pxb
    }

    pub fn words(&self) -> String {
        let tie = if self.equals > 1 {
            format!(", tie of {}", self.equals)
        } else {
            String::new()
        };
        format!(
            "GPU {}, {}, {} links{tie}",
            self.gpu,
            self.distance.name(),
            self.hops
        )
    }
}
