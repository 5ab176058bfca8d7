//! What vendors ship as topology files, against what we write of the same machine: each file is
//! built as a /sys, with two bridges for each of its switches, and what `topo --nccl-xml` writes of
//! that has every GPU and NIC below the same switches. The one captured tree of such a machine is
//! compared with the files of machines with the same board.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nccl_rules::topology_xml::topology;
use rdmaprep::kernel::sysfs;
use regex::Regex;
use tempfile::TempDir;
use testkit::topo_xml::Node;
use testkit::trees::made::Sys;
use testkit::trees::{captured, realdata, unpacked};

/// A vendor's file, read more kindly than NCCL would: they have comments with anything in them, and
/// tabs.
fn kindly(text: &str) -> Node {
    let text = Regex::new("(?s)<!--.*?-->").unwrap().replace_all(text, "");
    let tag = Regex::new(r"(?s)<(/?)(\w+)([^>]*?)(/?)>").unwrap();
    let attribute = Regex::new(r#"(\w+)=["']([^"']*)["']"#).unwrap();
    let mut stack = vec![Node::default()];
    for found in tag.captures_iter(&text) {
        if found[1].is_empty() {
            let attributes = attribute
                .captures_iter(&found[3])
                .map(|a| (a[1].to_owned(), a[2].to_owned()))
                .collect();
            stack.push(Node {
                tag: found[2].to_owned(),
                attributes,
                children: Vec::new(),
            });
        }
        if !found[1].is_empty() || !found[4].is_empty() {
            let done = stack.pop().unwrap();
            stack.last_mut().unwrap().children.push(done);
        }
    }
    assert_eq!(stack.len(), 1);
    stack.pop().unwrap()
}

/// Below which switches, the nearest first, and on which node each GPU and NIC is.
type Shape = BTreeMap<String, Vec<String>>;

/// What a vendor's file becomes as a /sys, and the shape that it tells.
struct Built {
    sys: Sys,
    shape: Shape,
    /// NICs on no PCI function, such as those of a virtual machine's eth0.
    bare: usize,
    next: usize,
    nics: usize,
}

impl Built {
    /// Puts a pci element below `under`, over a downstream port of its own where that is a switch.
    fn put(&mut self, pci: &Node, under: &str, way: &[String]) {
        let at = pci.get("busid").unwrap().to_lowercase();
        let numa = way.last().unwrap();
        let mut above = under.to_owned();
        let inner: Vec<&Node> = pci.children.iter().filter(|c| c.tag == "pci").collect();
        // A root port, or the downstream port of the switch above; no file uses such a domain.
        if way.len() > 1 || !inner.is_empty() {
            self.next += 1;
            above = format!("eeee:{:02x}:{:02x}.0", self.next / 32, self.next % 32);
            self.sys
                .function(&above, under, &[("class", "0x060400"), ("numa", numa)]);
        }
        let gcn = pci.children.iter().any(|c| c.get("gcn").is_some());
        let vendor = pci
            .get("vendor")
            .unwrap_or(if gcn { "0x1002" } else { "0x10de" });
        // Some files give no class: the child says what the device is.
        let has = |tag: &str| pci.children.iter().any(|c| c.tag == tag);
        let guessed = if has("gpu") {
            "0x030200"
        } else if has("nic") {
            "0x020000"
        } else {
            "0x060400"
        };
        let class = pci.get("class").unwrap_or(guessed);
        self.sys.function(
            &at,
            &above,
            &[("class", class), ("vendor", vendor), ("numa", numa)],
        );
        let down = [std::slice::from_ref(&at), way].concat();
        inner.iter().for_each(|child| self.put(child, &at, &down));
        let is_gpu = class.starts_with("0x03") || (class.starts_with("0x12") && vendor == "0x1002");
        if is_gpu {
            self.shape.insert(at.clone(), way.to_vec());
        }
        let mut nets: Vec<String> = pci
            .all("net")
            .filter(|_| inner.is_empty())
            .map(|n| n.get("name").unwrap().replace('/', "-"))
            .collect();
        // Most of them say where a NIC is, and leave its name to NCCL.
        if nets.is_empty() && inner.is_empty() && class.starts_with("0x02") {
            nets.push(format!("unnamed_{}", self.nics));
        }
        for net in nets {
            self.nics += 1;
            self.sys.hca(&net, &at, 1, 0, "");
            self.shape.insert(net, down.clone());
        }
    }
}

fn built(vendor: &Node, root: &Path) -> Built {
    let mut built = Built {
        sys: Sys::new(root),
        shape: Shape::new(),
        bare: 0,
        next: 0,
        nics: 0,
    };
    for (number, cpu) in vendor.all("cpu").enumerate() {
        for pci in cpu.children.iter().filter(|c| c.tag == "pci") {
            built.put(
                pci,
                &format!("pciee{number:02x}:00"),
                &[cpu.get("numaid").unwrap().to_owned()],
            );
        }
        built.bare += cpu.children.iter().filter(|c| c.tag == "nic").count();
    }
    built
}

/// The shape of a file of ours.
fn shape(node: &Node, way: &[String], found: &mut Shape) {
    for child in &node.children {
        match child.tag.as_str() {
            "pci" => {
                let at = child.get("busid").unwrap().to_owned();
                if !child
                    .children
                    .iter()
                    .any(|c| c.tag == "pci" || c.tag == "nic")
                {
                    found.insert(at.clone(), way.to_vec());
                }
                shape(child, &[&[at], way].concat(), found);
            }
            "net" => drop(found.insert(child.get("name").unwrap().to_owned(), way.to_vec())),
            "cpu" => shape(child, &[child.get("numaid").unwrap().to_owned()], found),
            _ => shape(child, way, found),
        }
    }
}

fn ours(root: &Path) -> Node {
    let snapshot = sysfs::tree_snapshot(root).unwrap();
    let all = snapshot.hcas.iter().map(|h| h.name.clone()).collect();
    testkit::topo_xml::read(&topology(&snapshot, &all).xml().unwrap()).unwrap()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files(&entry));
        } else if entry.extension().is_some_and(|e| e == "xml") {
            found.push(entry);
        }
    }
    found.sort();
    found
}

#[test]
#[ignore = "needs RDMAPREP_REALDATA"]
fn captured_vendor_files_give_the_shape_that_vendors_say() {
    let dir = realdata().join("nccl-xml");
    testkit::require!(
        dir.is_dir(),
        "vendors' files in {} (RDMAPREP_REALDATA names another place)",
        dir.display()
    );
    let mut compared = 0;
    for file in files(&dir) {
        let name = file.strip_prefix(&dir).unwrap().display().to_string();
        let vendor = kindly(&fs::read_to_string(&file).unwrap());
        if vendor.all("system").next().is_none() {
            println!(
                "{name}: not compared: no topology, but {}",
                vendor.children[0].tag
            );
            continue;
        }
        let root = TempDir::new().unwrap();
        let built = built(&vendor, root.path());
        if built.shape.is_empty() {
            println!("{name}: not compared: nothing in it says what a device is");
            continue;
        }
        let mut found = Shape::new();
        shape(&ours(root.path()), &[], &mut found);
        assert_eq!(found, built.shape, "{name}");
        compared += 1;
        let bare = if built.bare > 0 {
            format!(", {} NICs on no PCI function left out", built.bare)
        } else {
            String::new()
        };
        println!(
            "{name}: the same {} GPUs and {} NICs{bare}",
            found.len() - built.nics,
            built.nics
        );
    }
    assert!(compared >= 40, "{compared} files");
}

/// GPUs and NICs under each topmost switch, those without a GPU left out.
fn boards(node: &Node) -> Vec<(usize, usize)> {
    let tops = node
        .all("cpu")
        .flat_map(|cpu| cpu.children.iter().filter(|c| c.tag == "pci"));
    let count = |top: &Node, class: &str| {
        top.all("pci")
            .filter(|p| p.get("class").unwrap().starts_with(class))
            .count()
    };
    let mut boards: Vec<_> = tops
        .map(|top| (count(top, "0x03"), count(top, "0x02")))
        .filter(|b| b.0 > 0)
        .collect();
    boards.sort_unstable();
    boards
}

#[test]
#[ignore = "needs RDMAPREP_REALDATA"]
fn captured_dgx_a100_has_the_board_of_other_a100_machines() {
    let trees = captured();
    let (_dir, root) = unpacked(&trees, "dgx-a100");
    let dgx = boards(&ours(&root));
    let vendor = |name: &str| {
        boards(&kindly(
            &fs::read_to_string(realdata().join("nccl-xml").join(name)).unwrap(),
        ))
    };
    for name in ["oci-hpc/topo-flattened.xml", "azhpc-images/ndv4-topo.xml"] {
        assert_eq!(dgx, vendor(name), "{name}");
        println!("dgx-a100 and {name}: the same, (GPUs, NICs) under each topmost switch: {dgx:?}");
    }
    // Amazon gives a machine one NIC for two GPUs.
    let gpus = |boards: Vec<(usize, usize)>| boards.into_iter().map(|b| b.0).collect::<Vec<_>>();
    for name in [
        "aws-ofi-nccl/p4d-24xl-topo.xml",
        "aws-ofi-nccl/p4de-24xl-topo.xml",
    ] {
        assert_eq!(gpus(dgx.clone()), gpus(vendor(name)), "{name}");
        assert!(vendor(name).iter().all(|b| b.1 == 1), "{name}");
        println!(
            "dgx-a100 and {name}: the same GPUs under each topmost switch; one NIC there, not two"
        );
    }
    println!(
        "not compared: the other captured trees: no GPU in them, or no file of such a machine"
    );
}
