//! The filtered sysfs: of every captured tree what is written out is read back as the same, nothing
//! leads to a dropped NIC, and no link dangles that did not before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use rdma_model::ids::HcaName;
use rdma_model::snapshot::{CharDevice, Snapshot};
use rdma_model::tree::{Node, Tree, differences};
use rdmaprep::cli::{Global, SelectArgs};
use rdmaprep::config::host::{Config, Host};
use rdmaprep::config::options::SelectOptions;
use rdmaprep::config::request::Request;
use rdmaprep::disk::files;
use rdmaprep::kernel::sysfs::{self, Survey};
use rdmaprep::select::select;
use rdmaprep::view::{self, Keep};
use tempfile::TempDir;
use testkit::trees::made::{LARGE, Shape, Sys};
use testkit::trees::{TREES, captured, realdata, unpacked};

fn facts(survey: &Survey) -> Snapshot {
    sysfs::merge(survey.facts(), None, None)
}

fn written(tree: &Tree) -> TempDir {
    let dir = TempDir::new().unwrap();
    files::write_tree(dir.path(), tree).unwrap();
    dir
}

fn dangling(tree: &Tree) -> BTreeSet<String> {
    let links = tree
        .iter()
        .filter(|(_, node)| matches!(node, Node::Link(_)));
    links
        .filter(|(path, _)| tree.resolve(path).is_none())
        .map(|(path, _)| path.to_owned())
        .collect()
}

/// Half of the HCAs: every other one.
fn half(seen: &Snapshot) -> Keep {
    Keep::hcas(
        seen.hcas
            .iter()
            .map(|h| h.name.clone())
            .step_by(2)
            .collect::<BTreeSet<HcaName>>(),
        seen,
    )
}

#[test]
#[ignore = "needs RDMAPREP_REALDATA"]
fn captured_trees_come_back_as_they_were_written() {
    let trees = captured();
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
        assert_eq!(
            differences(&whole, &again.whole()),
            Vec::<String>::new(),
            "{name}"
        );
        // What is known of the machine is known of the copy, but for what was not exported.
        let (before, after) = (facts(&survey), facts(&again));
        assert_eq!(before.hcas.len(), after.hcas.len(), "{name}");
        assert_eq!(before.pci, after.pci, "{name}");
        // Links that dangled before are the only ones that dangle.
        for path in dangling(&whole) {
            assert!(!root.join(&path).exists(), "{name}: {path} dangles");
        }
        println!(
            "{name}: {} entries, {} dangling",
            whole.len(),
            dangling(&whole).len()
        );
    }
}

#[test]
#[ignore = "needs RDMAPREP_REALDATA"]
fn of_captured_trees_no_dropped_nic_is_left() {
    let trees = captured();
    for (name, ..) in TREES {
        let (_dir, root) = unpacked(&trees, name);
        let survey = Survey::open(&root).unwrap();
        let seen = facts(&survey);
        let keep = half(&seen);
        let whole = survey.whole();
        let view = view::snapshot(&keep, &seen, whole.clone());
        nothing_leads_to_dropped(name, &keep, &seen, &view);
        let new: Vec<String> = dangling(&view)
            .difference(&dangling(&whole))
            .cloned()
            .collect();
        assert_eq!(new, Vec::<String>::new(), "{name}");
        let copy = written(&view);
        assert_eq!(
            differences(&view, &Survey::open(copy.path()).unwrap().whole()),
            Vec::<String>::new(),
            "{name}"
        );

        let links = survey.links();
        let live = view::laid_over(&links, &view::live(&keep, &seen, &links));
        // Every namespace has a class/net of its own, which the kernel fills.
        let live: Tree = live
            .iter()
            .filter(|(p, _)| !p.starts_with("class/net/"))
            .map(|(p, n)| (p.to_owned(), n.clone()))
            .collect();
        nothing_leads_to_dropped(name, &keep, &seen, &live);
        println!("{name}: {} of {} entries", view.len(), whole.len());
    }
}

/// The devices of the GID tables, each put on an HCA of the DGX tree in turn: its netdev stands for
/// the table's.
#[test]
#[ignore = "needs RDMAPREP_REALDATA"]
fn captured_dgx_with_gids_is_selected_and_viewed() {
    let trees = captured();
    let (_dir, root) = unpacked(&trees, "dgx-a100");
    let rows = fs::read_to_string(realdata().join("gid-tables.tsv")).unwrap();
    let mut tables: BTreeMap<(&str, &str), Vec<Vec<&str>>> = BTreeMap::new();
    for row in rows
        .lines()
        .skip(1)
        .map(|row| row.split('\t').collect::<Vec<_>>())
    {
        tables.entry((row[0], row[1])).or_default().push(row);
    }
    let bare = facts(&Survey::open(&root).unwrap());
    let on = |hca: &rdma_model::snapshot::Hca| {
        bare.netdevs
            .iter()
            .find(|n| n.pci == hca.pci)
            .map(|n| n.name.clone())
    };
    let mut right = BTreeSet::new();
    for (hca, rows) in bare.hcas.iter().zip(tables.values()) {
        let netdev = on(hca);
        put_port(
            &root.join(format!("class/infiniband/{}/ports/1", hca.name)),
            netdev.as_ref().map(|n| n.as_str()),
            rows,
        );
        // An IPv4 address with RoCE v2 on a netdev is what selection asks for.
        if rows
            .iter()
            .any(|row| row[5] == "v2" && row[4].contains(":ffff:"))
        {
            right.extend(netdev.map(|_| hca.name.clone()));
        }
    }
    let survey = Survey::open(&root).unwrap();
    let mut seen = facts(&survey);
    for netdev in &mut seen.netdevs {
        let behind = seen
            .hcas
            .iter()
            .flat_map(|h| &h.ports)
            .filter(|p| p.netdev.as_ref() == Some(&netdev.name));
        let v4: BTreeSet<_> = behind
            .flat_map(|p| &p.gids)
            .filter_map(|g| g.address.to_ipv4_mapped())
            .collect();
        let json = v4
            .iter()
            .map(|a| serde_json::json!({"address": a.to_string(), "prefix": 24}))
            .collect();
        netdev.addresses = serde_json::from_value(serde_json::Value::Array(json)).unwrap();
        (netdev.up, netdev.running) = (true, true);
    }
    let host = Host::new(&Global::default(), &Config::default());
    let request = Request::new(
        None,
        &SelectArgs::default(),
        host,
        SelectOptions::default(),
        |_| None,
    )
    .unwrap();
    let chosen: BTreeSet<HcaName> = select(&request, &seen, &[])
        .unwrap()
        .kept()
        .filter_map(|v| v.hca.clone())
        .collect();
    assert_eq!(chosen, right);
    let view = view::snapshot(&Keep::hcas(chosen.clone(), &seen), &seen, survey.whole());
    let left: BTreeSet<HcaName> = view
        .names("class/infiniband")
        .map(|name| name.parse().unwrap())
        .collect();
    assert_eq!(left, chosen);
    for hca in &chosen {
        let port = format!("class/infiniband/{hca}/ports/1");
        for index in 0..TABLE {
            for table in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
                let path = format!("{port}/{table}/{index}");
                let found = view.resolve(&path).and_then(|end| view.get(&end).cloned());
                assert_eq!(
                    found,
                    Some(Node::File(fs::read(root.join(&path)).unwrap().into())),
                    "{path}"
                );
            }
        }
    }
    println!("kept of the DGX: {chosen:?}");
}

/// Entries of a GID table of the DGX.
const TABLE: usize = 16;

fn put_port(port: &Path, netdev: Option<&str>, rows: &[Vec<&str>]) {
    for dir in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
        fs::create_dir_all(port.join(dir)).unwrap();
    }
    fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
    let layer = if netdev.is_some() {
        "Ethernet\n"
    } else {
        "InfiniBand\n"
    };
    fs::write(port.join("link_layer"), layer).unwrap();
    for index in 0..TABLE {
        let row = rows.iter().find(|row| row[3] == index.to_string());
        let (gid, kind, ndev) = match row {
            Some(row) => (row[4], row[5], netdev.unwrap_or_default()),
            None => ("0000:0000:0000:0000:0000:0000:0000:0000", "", ""),
        };
        let kind = match kind {
            "v2" => "RoCE v2\n",
            "v1" => "IB/RoCE v1\n",
            _ => "",
        };
        fs::write(port.join(format!("gids/{index}")), format!("{gid}\n")).unwrap();
        fs::write(port.join(format!("gid_attrs/types/{index}")), kind).unwrap();
        let ndev = if ndev.is_empty() {
            String::new()
        } else {
            format!("{ndev}\n")
        };
        fs::write(port.join(format!("gid_attrs/ndevs/{index}")), ndev).unwrap();
    }
}

/// No file is opened twice, as `strace` sees it, whatever is asked of a large node.
#[test]
fn no_file_is_opened_twice() {
    let dir = TempDir::new().unwrap();
    LARGE.write(dir.path());
    let survey = Survey::open(dir.path()).unwrap();
    let seen = facts(&survey);
    assert_eq!((seen.hcas.len(), seen.pci.len()), (18, 560));
    let log = dir.path().join("log");
    let traced = Command::new("strace")
        .args([
            "-f",
            "--seccomp-bpf",
            "-y",
            "-e",
            "trace=openat,openat2",
            "-e",
            "status=successful",
            "-o",
        ])
        .arg(&log)
        .args([
            env!("CARGO_BIN_EXE_rdmaprep"),
            "sysfs",
            "export",
            "--hca",
            "mlx5_1",
            "--root",
        ])
        .arg(dir.path())
        .stdout(Stdio::null())
        .status();
    testkit::require!(traced.is_ok(), "strace");
    assert!(traced.unwrap().success());
    let log = fs::read_to_string(&log).unwrap();
    // With -y each answer tells the path: "= 5</tmp/x/class/net>".
    let opened = log
        .lines()
        .filter(|line| !line.contains("O_DIRECTORY"))
        .filter_map(|line| line.rsplit_once("= ")?.1.split_once('<'));
    let inside = dir.path().to_str().unwrap();
    let paths: Vec<&str> = opened
        .map(|(_, path)| path.trim_end_matches('>'))
        .filter(|p| p.starts_with(inside))
        .collect();
    assert!(paths.len() > 10_000, "{}", paths.len());
    let mut once = BTreeSet::new();
    let twice: Vec<&str> = paths
        .into_iter()
        .filter(|path| !once.insert(*path))
        .collect();
    assert_eq!(twice, Vec::<&str>::new());
}

// ---- made-up trees

/// `tests/cases/view/NAME/tree.txt` says what is there and what is kept, `expected.txt` what is
/// seen. `UPDATE_GOLDEN=1` writes what comes out; read the diff.
#[test]
fn golden_cases() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/view");
    let mut cases: Vec<_> = fs::read_dir(&root)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    cases.sort();
    assert!(cases.len() >= 15, "cases are missing");
    let mut wrong = Vec::new();
    for case in &cases {
        let dir = TempDir::new().unwrap();
        let text = fs::read_to_string(case.join("tree.txt")).unwrap();
        let words = Sys::new(dir.path()).describe(&text);
        let survey = Survey::open(dir.path()).unwrap();
        let seen = facts(&survey);
        let keep = kept(&words, &seen);
        let (links, whole) = (survey.links(), survey.whole());
        let (live, view) = (
            view::live(&keep, &seen, &links),
            view::snapshot(&keep, &seen, whole.clone()),
        );
        agree(&keep, &links, &live, &whole, &view).unwrap();
        let text = described(&view, &live);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(case.join("expected.txt"), &text).unwrap();
        }
        if fs::read_to_string(case.join("expected.txt")).unwrap_or_default() != text {
            wrong.push(format!("{}:\n{text}", case.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "UPDATE_GOLDEN=1 accepts these:\n{}",
        wrong.join("\n")
    );
}

/// `keep HCA…` and `verbs HCA NODE MAJOR:MINOR`.
fn kept(words: &[Vec<&str>], seen: &Snapshot) -> Keep {
    let lines = |verb: &'static str| words.iter().filter(move |line| line[0] == verb);
    let names = lines("keep")
        .flat_map(|line| &line[1..])
        .map(|name| name.parse().unwrap())
        .collect();
    let node = |line: &Vec<&str>| {
        let (major, minor) = line[3].split_once(':').unwrap();
        let node = CharDevice {
            name: line[2].to_owned(),
            major: major.parse().unwrap(),
            minor: minor.parse().unwrap(),
        };
        (line[1].parse().unwrap(), node)
    };
    Keep {
        verbs: lines("verbs").map(node).collect(),
        ..Keep::hcas(names, seen)
    }
}

/// The snapshot's directories with the number of their files, its links, the contents of ports; and
/// what is mounted live.
fn described(view: &Tree, live: &Tree) -> String {
    let mut lines = vec!["snapshot".to_owned()];
    let mut files: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, node) in view.iter() {
        let (dir, _) = path.rsplit_once('/').unwrap_or(("", path));
        *files.entry(dir).or_default() += usize::from(matches!(node, Node::File(_)));
    }
    for (path, node) in view.iter() {
        match node {
            Node::Dir => lines.push(match files.get(path) {
                Some(n) if *n > 0 => format!("  {path}/ with {n} files"),
                _ => format!("  {path}/"),
            }),
            Node::Link(target) => lines.push(format!("  {path} -> {target}")),
            Node::File(text) if path.contains("/gid") => {
                lines.push(format!("  {path}: {:?}", String::from_utf8_lossy(text)))
            }
            Node::File(_) => {}
        }
    }
    lines.push("live".to_owned());
    for cover in view::covers(live) {
        let names: Vec<&str> = cover.tree.iter().map(|(name, _)| name).collect();
        lines.push(format!(
            "  {}: {}",
            cover.at,
            if names.is_empty() {
                "nothing".to_owned()
            } else {
                names.join(" ")
            }
        ));
    }
    lines.join("\n") + "\n"
}

/// Both carriers show the same of what both show, and neither a link to what it does not show.
fn agree(keep: &Keep, links: &Tree, live: &Tree, whole: &Tree, view: &Tree) -> Result<(), String> {
    let laid = view::laid_over(links, live);
    for dir in [
        "class/infiniband",
        "class/infiniband_verbs",
        "class/pci_bus",
        "bus/pci/devices",
        "dev/char",
    ] {
        let verbs = |node: Option<&Node>| {
            matches!(node,
                Some(Node::Link(to)) if to.contains("/infiniband_verbs/"))
        };
        let names = |tree: &Tree| -> Vec<(String, Option<Node>)> {
            let all = tree
                .names(dir)
                .map(|name| (name.to_owned(), tree.get(&format!("{dir}/{name}")).cloned()));
            all.filter(|(_, node)| {
                (dir != "dev/char" || verbs(node.as_ref())) && matches!(node, Some(Node::Link(_)))
            })
            .collect()
        };
        if names(&laid) != names(view) {
            return Err(format!(
                "{dir}: {:?} live, {:?} in the snapshot",
                names(&laid),
                names(view)
            ));
        }
    }
    // A function is with its driver exactly where it is seen.
    for name in links.names("bus/pci/drivers") {
        for function in links
            .names(&format!("bus/pci/drivers/{name}"))
            .filter(|f| f.contains(':'))
        {
            let both = [
                laid.get(&format!("bus/pci/drivers/{name}/{function}")),
                view.get(&format!("bus/pci/devices/{function}")),
            ];
            if both[0].is_some() != both[1].is_some() {
                return Err(format!("{function} of {name}: {both:?}"));
            }
        }
    }
    let covers = view::covers(live);
    let places: Vec<&str> = covers
        .iter()
        .filter(|c| c.at.starts_with("devices/"))
        .map(|c| c.at.as_str())
        .collect();
    for (path, node) in laid
        .iter()
        .filter(|(path, _)| !path.starts_with("class/net/"))
    {
        let Node::Link(target) = node else { continue };
        if let Some(place) = places
            .iter()
            .find(|place| format!("/{target}/").contains(&format!("/{place}/")))
        {
            return Err(format!("{path} leads below {place}, which is covered"));
        }
    }
    let new: Vec<String> = dangling(view)
        .difference(&dangling(whole))
        .cloned()
        .collect();
    if !new.is_empty() {
        return Err(format!("dangling: {new:?}"));
    }
    match view
        .names("class/infiniband")
        .find(|name| !keep.hcas.iter().any(|h| h.as_str() == *name))
    {
        Some(name) => Err(format!("{name} is seen")),
        None => Ok(()),
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    (
        1..3usize,
        1..3usize,
        0..3usize,
        0..2usize,
        0..4usize,
        1..3usize,
        0..3usize,
        0..6usize,
    )
        .prop_map(
            |(sockets, switches, gpus, nvswitches, cards, functions, vfs, gids)| Shape {
                sockets,
                switches,
                gpus,
                nvswitches,
                cards,
                functions,
                vfs,
                total: 0,
                gids,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever is kept of whatever node: nothing leads to a dropped NIC, both carriers agree, and
    /// what is written out is read back as the same.
    #[test]
    fn of_any_node_no_dropped_nic_is_left(shape in shape(), choice in any::<u16>()) {
        let dir = TempDir::new().unwrap();
        shape.write(dir.path());
        let survey = Survey::open(dir.path()).unwrap();
        let seen = facts(&survey);
        prop_assert_eq!(&seen.warnings, &Vec::<String>::new());
        let chosen = seen.hcas.iter().enumerate().filter(|(i, _)| choice >> i & 1 == 1);
        let keep = Keep::hcas(chosen.map(|(_, h)| h.name.clone()).collect(), &seen);
        let (links, whole) = (survey.links(), survey.whole());
        let (live, view) = (view::live(&keep, &seen, &links),
            view::snapshot(&keep, &seen, whole.clone()));
        let agreed = agree(&keep, &links, &live, &whole, &view);
        prop_assert!(agreed.is_ok(), "{:?}", agreed);
        nothing_leads_to_dropped("made up", &keep, &seen, &view);
        // Every GPU, NVSwitch and bridge is there, and every kept HCA's function.
        for function in seen.pci.iter().filter(|f| f.class >> 16 != 0x02) {
            let at = format!("bus/pci/devices/{}", function.address);
            prop_assert!(view.resolve(&at).is_some(), "{at}");
        }
        for hca in &keep.hcas {
            let at = format!("class/infiniband/{hca}/device/subsystem");
            prop_assert!(view.resolve(&at).is_some(), "{at}");
        }
        let copy = written(&view);
        prop_assert_eq!(differences(&view, &Survey::open(copy.path()).unwrap().whole()),
            Vec::<String>::new());
    }
}

/// No link below class, bus or dev leads to a dropped HCA or to the place of a dropped NIC.
fn nothing_leads_to_dropped(name: &str, keep: &Keep, seen: &Snapshot, view: &Tree) {
    let dropped = seen.hcas.iter().filter(|h| !keep.hcas.contains(&h.name));
    let kept: BTreeSet<_> = seen
        .hcas
        .iter()
        .filter(|h| keep.hcas.contains(&h.name))
        .filter_map(|h| h.pci)
        .collect();
    for hca in dropped {
        let own = format!("/{}", hca.name);
        for (path, node) in view.iter() {
            assert!(!path.ends_with(&own), "{name}: {path}");
            let Node::Link(target) = node else { continue };
            assert!(!target.ends_with(&own), "{name}: {path} -> {target}");
            let Some(place) = hca.pci.filter(|p| {
                !kept
                    .iter()
                    .any(|k| (k.domain, k.bus, k.device) == (p.domain, p.bus, p.device))
            }) else {
                continue;
            };
            assert!(
                !target.contains(&format!("/{place}")),
                "{name}: {path} -> {target}"
            );
        }
    }
}
