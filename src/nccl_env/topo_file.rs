//! A topology file of ours as containers find it, and as it is stored: a tree with one file in it.

use nccl_rules::topology_xml::DATA_DIRECT;
use rdma_model::tree::{Node, Tree};

pub const FILE: &str = "nccl_topo.xml";

/// Where a container finds it: below a file system of its own, so that no mount point is made in
/// its image.
pub const PLACE: &str = "/dev/rdmaprep/nccl_topo.xml";

pub fn tree(xml: &str) -> Tree {
    let mut tree = Tree::default();
    tree.put(FILE, Node::File(xml.as_bytes().into()));
    tree
}

pub fn xml(tree: &Tree) -> Option<&str> {
    match tree.get(FILE)? {
        Node::File(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// The HCAs that it places, as `super::topology` writes them.
pub fn nets(xml: &str) -> impl Iterator<Item = &str> {
    xml.split("<net name=\"")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once('"')?.0))
        .map(|net| net.strip_suffix(DATA_DIRECT).unwrap_or(net))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let text = "<system version=\"1\">\n  <nic>\n    <net name=\"mlx5_0_dma\"/>\n    <net \
            name=\"rxe1\"/>\n  </nic>\n</system>\n";
        assert_eq!(nets(text).collect::<Vec<_>>(), ["mlx5_0", "rxe1"]);
        assert_eq!(xml(&tree(text)), Some(text));
        assert_eq!(nets("<net name=\"torn").count(), 0);
        assert!(PLACE.ends_with(FILE));
    }
}
