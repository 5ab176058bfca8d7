//! The filtered sysfs: of every captured tree what is written out is read back as the same, nothing leads to a dropped NIC, and
//! no link dangles that did not before.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

mod trees_support;

use std::collections::BTreeSet;

use rdmaprep::ident::HcaName;
use rdmaprep::snapshot::Snapshot;
use rdmaprep::tree::{Node, Tree, differences};
use rdmaprep::view::{self, Keep};
use rdmaprep::world::files;
use rdmaprep::world::sysfs::{self, Scope, Survey};
use tempfile::TempDir;
use trees_support::{TREES, captured, unpacked};

fn facts(survey: &Survey) -> Snapshot {
    sysfs::merge(survey.facts(Scope::FULL), None, None)
}

fn written(tree: &Tree) -> TempDir {
    let dir = TempDir::new().unwrap();
    files::write_tree(dir.path(), tree).unwrap();
    dir
}

fn dangling(tree: &Tree) -> BTreeSet<String> {
    let links = tree.iter().filter(|(_, node)| matches!(node, Node::Link(_)));
    links.filter(|(path, _)| tree.resolve(path).is_none()).map(|(path, _)| path.to_owned()).collect()
}

/// Half of the HCAs: every other one.
fn half(seen: &Snapshot) -> Keep {
    Keep::hcas(seen.hcas.iter().map(|h| h.name.clone()).step_by(2).collect::<BTreeSet<HcaName>>(), seen)
}

#[test]
fn captured_trees_come_back_as_they_were_written() {
    let Some(trees) = captured() else { return };
    for (name, ..) in TREES {
        let (_dir, root) = unpacked(&trees, name);
        let survey = Survey::open(&root).unwrap();
        let whole = survey.whole();
        let json = serde_json::to_string(&whole).unwrap();
        let read: Tree = serde_json::from_str(&json).unwrap();
        assert_eq!(read, whole, "{name}");
        if whole.is_empty() {
            panic!("{name}: nothing was exported");
        }
        let copy = written(&read);
        let again = Survey::open(copy.path()).unwrap();
        assert_eq!(differences(&whole, &again.whole()), Vec::<String>::new(), "{name}");
        // What is known of the machine is known of the copy, but for what was not exported.
        let (before, after) = (facts(&survey), facts(&again));
        assert_eq!(before.hcas.len(), after.hcas.len(), "{name}");
        assert_eq!(before.pci, after.pci, "{name}");
        // Links that dangled before are the only ones that dangle.
        for path in dangling(&whole) {
            assert!(!root.join(&path).exists(), "{name}: {path} dangles");
        }
        println!("{name}: {} entries, {} dangling", whole.len(), dangling(&whole).len());
    }
}

#[test]
fn of_captured_trees_no_dropped_nic_is_left() {
    let Some(trees) = captured() else { return };
    for (name, ..) in TREES {
        let (_dir, root) = unpacked(&trees, name);
        let survey = Survey::open(&root).unwrap();
        let seen = facts(&survey);
        let keep = half(&seen);
        let whole = survey.whole();
        let view = view::snapshot(&keep, &seen, &whole);
        nothing_leads_to_dropped(name, &keep, &seen, &view);
        let new: Vec<String> = dangling(&view).difference(&dangling(&whole)).cloned().collect();
        assert_eq!(new, Vec::<String>::new(), "{name}");
        let copy = written(&view);
        assert_eq!(differences(&view, &Survey::open(copy.path()).unwrap().whole()), Vec::<String>::new(), "{name}");

        let links = survey.links();
        let live = view::laid_over(&links, &view::live(&keep, &seen, &links));
        // Every namespace has a class/net of its own, which the kernel fills.
        let live: Tree =
            live.iter().filter(|(p, _)| !p.starts_with("class/net/")).map(|(p, n)| (p.to_owned(), n.clone())).collect();
        nothing_leads_to_dropped(name, &keep, &seen, &live);
        println!("{name}: {} of {} entries", view.len(), whole.len());
    }
}

/// No link below class, bus or dev leads to a dropped HCA or to the place of a dropped NIC.
fn nothing_leads_to_dropped(name: &str, keep: &Keep, seen: &Snapshot, view: &Tree) {
    let dropped = seen.hcas.iter().filter(|h| !keep.hcas.contains(&h.name));
    let kept: BTreeSet<_> = seen.hcas.iter().filter(|h| keep.hcas.contains(&h.name)).filter_map(|h| h.pci).collect();
    for hca in dropped {
        let own = format!("/{}", hca.name);
        for (path, node) in view.iter() {
            assert!(!path.ends_with(&own), "{name}: {path}");
            let Node::Link(target) = node else { continue };
            assert!(!target.ends_with(&own), "{name}: {path} -> {target}");
            let Some(place) =
                hca.pci.filter(|p| !kept.iter().any(|k| (k.domain, k.bus, k.device) == (p.domain, p.bus, p.device)))
            else {
                continue;
            };
            assert!(!target.contains(&format!("/{place}")), "{name}: {path} -> {target}");
        }
    }
}
