//! Rails that belong together: one per GPU as far as it goes, the nearest ones, of one NUMA node
//! where that has enough.
//!
//! The kubelet does not say which GPUs the container gets. The Topology Manager keeps `available`
//! to the NUMA nodes of these, so the GPUs near these rails are the ones in question.

use std::collections::BTreeSet;

use crate::rail::Rail;

/// `size` names of `available`, with all of `must` among them, in the order of rails. The same
/// question has the same answer. Fewer where there are not enough.
pub fn preferred(
    rails: &[Rail],
    available: &[String],
    must: &[String],
    size: usize,
) -> Vec<String> {
    let (must, available): (BTreeSet<&String>, BTreeSet<&String>) =
        (must.iter().collect(), available.iter().collect());
    let is_must = |at: &usize| must.contains(&rails[*at].name);
    let all: Vec<usize> = (0..rails.len())
        .filter(|at| is_must(at) || available.contains(&rails[*at].name))
        .collect();
    let nodes: BTreeSet<i64> = all.iter().filter_map(|at| rails[*at].numa).collect();
    let of_node = |node: &i64| {
        all.iter()
            .copied()
            .filter(|at| is_must(at) || rails[*at].numa == Some(*node))
            .collect()
    };
    let groups: Vec<Vec<usize>> = nodes
        .iter()
        .map(of_node)
        .filter(|g: &Vec<usize>| g.len() >= size)
        .collect();
    let choose = |group: &Vec<usize>| {
        let (mut chosen, far) = pick(rails, group, is_must, size);
        chosen.sort_unstable();
        let spread: BTreeSet<Option<i64>> = chosen.iter().map(|at| rails[*at].numa).collect();
        // The last but one leaves larger groups for larger requests.
        (far, spread.len(), group.len(), chosen)
    };
    let best = groups.iter().chain([&all]).map(choose).min();
    best.map(|(.., chosen)| chosen.iter().map(|at| rails[*at].name.clone()).collect())
        .unwrap_or_default()
}

/// The nearest pair of a rail and a GPU that has none yet, again and again; with the sum of their
/// distances. Where each GPU has one, or there is none, the next in order.
fn pick(
    rails: &[Rail],
    group: &[usize],
    is_must: impl Fn(&usize) -> bool,
    size: usize,
) -> (Vec<usize>, usize) {
    let (mut chosen, mut served, mut far) = (Vec::new(), BTreeSet::new(), 0);
    let (must, others): (Vec<usize>, Vec<usize>) =
        group.iter().copied().partition(|at| is_must(at));
    for mut left in [must, others] {
        while chosen.len() < size {
            let free = |at: usize| {
                let gpus = rails[at]
                    .distances
                    .iter()
                    .enumerate()
                    .filter(|(gpu, _)| !served.contains(gpu));
                gpus.map(move |(gpu, distance)| (*distance, at, gpu))
            };
            let nearest = left.iter().flat_map(|at| free(*at)).min();
            let Some((distance, at, gpu)) = nearest else {
                break;
            };
            served.insert(gpu);
            far += usize::from(distance);
            left.retain(|other| *other != at);
            chosen.push(at);
        }
        // A second rail of a GPU: worse than the farthest first one.
        let seconds = left.len().min(size - chosen.len());
        far += 4 * seconds;
        chosen.extend(left.drain(..seconds));
    }
    (chosen, far)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Two nodes with two GPUs each; below each GPU's switch two rails.
    fn rails() -> Vec<Rail> {
        let distance = |rail: usize, gpu: usize| match (rail / 2 == gpu, rail / 4 == gpu / 2) {
            (true, _) => 0,
            (_, true) => 2,
            _ => 3,
        };
        let rail = |at: usize| Rail {
            name: format!("rdma{at}"),
            numa: Some((at / 4) as i64),
            distances: (0..4).map(|gpu| distance(at, gpu)).collect(),
            ..Rail::default()
        };
        (0..8).map(rail).collect()
    }

    fn ask(available: &str, must: &str, size: usize) -> String {
        let words = |text: &str| {
            text.split_whitespace()
                .map(|n| format!("rdma{n}"))
                .collect::<Vec<_>>()
        };
        preferred(&rails(), &words(available), &words(must), size)
            .join(" ")
            .replace("rdma", "")
    }

    #[test]
    fn one_for_each_gpu_then_the_next_in_order() {
        assert_eq!(ask("0 1 2 3 4 5 6 7", "", 1), "0");
        assert_eq!(ask("0 1 2 3 4 5 6 7", "", 2), "0 2", "two GPUs of one node");
        assert_eq!(
            ask("7 6 5 4 3 2 1 0", "", 4),
            "0 2 4 6",
            "in any order of what is free"
        );
        assert_eq!(ask("0 1 2 3 4 5 6 7", "", 5), "0 1 2 4 6");
        assert_eq!(ask("0 1 2 3 4 5 6 7", "", 8), "0 1 2 3 4 5 6 7");
    }

    #[test]
    fn what_is_taken_and_what_must_be_kept() {
        assert_eq!(ask("3 4 5 6 7", "", 2), "4 6", "not across the nodes");
        assert_eq!(ask("0 1 2 3 4 5 6 7", "5", 2), "5 6");
        assert_eq!(ask("0 1 2", "1", 2), "1 2");
        assert_eq!(ask("0 2 4 6", "4 0", 2), "0 4");
        assert_eq!(ask("2 6", "", 3), "2 6", "not enough");
        assert_eq!(ask("", "", 1), "");
    }

    #[test]
    fn without_gpus_the_order_of_rails_within_a_node() {
        let rails: Vec<Rail> = rails()
            .into_iter()
            .map(|r| Rail {
                distances: Vec::new(),
                ..r
            })
            .collect();
        let all: Vec<String> = rails[3..].iter().map(|r| r.name.clone()).collect();
        assert_eq!(preferred(&rails, &all, &[], 2), ["rdma4", "rdma5"]);
        assert_eq!(preferred(&rails, &all[..2], &[], 1), ["rdma3"]);
    }
}
