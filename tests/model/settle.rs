//! Restored NICs on a host where a network manager configures links: what is restored again,
//! reported, and waited for.

use rdma_model::drift::Drift;
use rdma_model::moved_nic::MovedNic;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rdma_model::snapshot::{HostPaths, JobAddresses, Snapshot};
use rdma_model::step::{Side, Step};
use rdmaprep::attach::plan_attach;
use rdmaprep::kernel::netns::search::Search;
use rdmaprep::kernel::{Observed, Pin, Scope, World};
use rdmaprep::link_managers::advice::{Outcome, Present, sentence};
use rdmaprep::link_managers::{self, Manager, Managers};
use rdmaprep::precedence::Precedence;
use rdmaprep::restore::settle::{Returned, Settled, settle};
use testkit::fake_kernel::Kernel;
use testkit::fake_kernel::hosts::{name, plan_for, three};

/// A fake kernel that is changed before the looks of these numbers.
struct Fight {
    kernel: Kernel,
    looks: usize,
    /// Looks that read devices, too.
    at_devices: usize,
    before: fn(usize) -> Vec<Step>,
}

impl World for Fight {
    fn has_inside(&self) -> bool {
        false
    }

    fn look(&mut self, side: Side, scope: &Scope) -> anyhow::Result<Observed> {
        self.looks += 1;
        self.at_devices += usize::from(!scope.devices.is_empty());
        (self.before)(self.looks)
            .into_iter()
            .for_each(|step| self.kernel.does(step).unwrap());
        self.kernel.look(side, scope)
    }

    fn host_paths(&mut self, host: &Snapshot, job: &JobAddresses) -> HostPaths {
        self.kernel.host_paths(host, job)
    }

    fn perform(&mut self, step: &Step, deadline: Instant) -> anyhow::Result<()> {
        self.kernel.perform(step, deadline)
    }

    fn pin(&mut self, pin: Pin) -> anyhow::Result<()> {
        self.kernel.pin(pin)
    }

    fn search(&self, side: Side, on: &BTreeSet<u32>) -> anyhow::Result<Search> {
        self.kernel.search(side, on)
    }
}

const NETWORK_MANAGER: &str = "run/NetworkManager/devices/";
/// lo, which is always there.
const NETWORKD: &str = "run/systemd/netif/links/1";
const UDEV: &str = "run/udev/control";

/// A root with these files.
fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    root
}

fn held(kernel: &Kernel) -> Vec<MovedNic> {
    plan_attach(
        &plan_for(kernel, &[0, 1, 2]),
        &kernel.see(Side::Host),
        &kernel.see(Side::Inside),
    )
    .unwrap()
    .held
}

fn settle_there(world: &mut Fight, root: &Path, held: &[MovedNic], patience: Duration) -> Settled {
    let (mut managers, order) = (Managers::of(root), Precedence::default());
    settle(
        world,
        &mut managers,
        Returned::earlier(held, &order),
        patience,
    )
    .unwrap()
}

/// How many looks it took, what differs in the end, and the note about it.
fn settled(
    root: &Path,
    before: fn(usize) -> Vec<Step>,
    patience: Duration,
) -> (usize, usize, Option<String>) {
    let kernel = three();
    let held = held(&kernel);
    let mut world = Fight {
        kernel,
        looks: 0,
        at_devices: 0,
        before,
    };
    let settled = settle_there(&mut world, root, &held, patience);
    (world.looks, settled.drift.len(), settled.fought)
}

/// How many looks a host takes on which all stands still, and how many of them read devices.
fn quiet(root: &Path, patience: Duration) -> (usize, usize) {
    let kernel = three();
    let held = held(&kernel);
    let mut world = Fight {
        kernel,
        looks: 0,
        at_devices: 0,
        before: |_| vec![],
    };
    settle_there(&mut world, root, &held, patience);
    (world.looks, world.at_devices)
}

#[test]
fn devices_are_read_once_where_all_stands_still() {
    let long = Duration::from_secs(5);
    assert_eq!(quiet(root(&[]).path(), long), (1, 1));
    let files = root(&[(UDEV, "")]);
    assert_eq!(quiet(files.path(), long), (2, 1));
    // Without time for a second look the only one reads all.
    assert_eq!(quiet(files.path(), Duration::ZERO), (1, 1));
}

fn strip(_: usize) -> Vec<Step> {
    let side = Side::Host;
    let address = testkit::fake_kernel::plain(testkit::fake_kernel::v4(0, 0, 1), 24);
    vec![Step::AddressDelete {
        side,
        dev: name(0),
        address,
    }]
}

#[test]
fn a_manager_that_may_act_soon_is_awaited() {
    let none = root(&[]);
    let long = Duration::from_secs(5);
    assert_eq!(settled(none.path(), |_| vec![], long), (1, 0, None));
    let udev = root(&[(UDEV, "")]);
    assert_eq!(settled(udev.path(), |_| vec![], long), (2, 0, None));
    // Events that udev has yet to handle keep us for a moment, and no longer.
    let busy = root(&[(UDEV, ""), ("run/udev/queue", "")]);
    let (looks, drift, fought) = settled(busy.path(), |_| vec![], long);
    assert!(
        (3..=12).contains(&looks) && drift == 0 && fought.is_none(),
        "{looks}"
    );
    // So does networkd, which is done with two of three links.
    let state = |index| format!("run/systemd/netif/links/{index}");
    let (one, two, three) = (state(100), state(101), state(102));
    let known = [
        (one.as_str(), "ADMIN_STATE=configured\n"),
        (&two, "ADMIN_STATE=unmanaged\n"),
        (NETWORKD, ""),
    ];
    let (looks, drift, fought) = settled(root(&known).path(), |_| vec![], long);
    assert!(
        (3..=22).contains(&looks) && drift == 0 && fought.is_none(),
        "{looks}"
    );
    let all = [&known[..], &[(three.as_str(), "ADMIN_STATE=configured\n")]].concat();
    assert_eq!(settled(root(&all).path(), |_| vec![], long), (2, 0, None));
}

#[test]
fn what_is_changed_once_is_restored_and_reported() {
    let files = root(&[(NETWORKD, "")]);
    let (_, drift, fought) = settled(
        files.path(),
        |look| if look == 2 { strip(look) } else { vec![] },
        Duration::MAX,
    );
    assert_eq!(drift, 0);
    let note = fought.unwrap();
    assert!(
        note.starts_with("rail0 changed after the restore (address 10.0.0.1/24"),
        "{note}"
    );
    assert!(
        note.contains(", and put back: systemd-networkd, unless "),
        "{note}"
    );
    let rename = |look| match look {
        2 => vec![Step::Rename {
            side: Side::Host,
            dev: name(1),
            name: "eth7".parse().unwrap(),
        }],
        _ => vec![],
    };
    let files = root(&[(UDEV, "")]);
    let (_, drift, fought) = settled(files.path(), rename, Duration::MAX);
    assert_eq!(
        (drift, fought.unwrap().as_str()),
        (
            0,
            "rail1 changed after the restore (name), and put back: udev, unless a .link file in \
            /etc/systemd/network has [Match] OriginalName=rail1 and [Link] NamePolicy=keep"
        )
    );
    // Without a known network manager the first look finds the change as well.
    let (looks, drift, fought) = settled(
        root(&[]).path(),
        |look| if look == 1 { strip(look) } else { vec![] },
        Duration::MAX,
    );
    assert_eq!((looks, drift), (2, 0));
    assert!(
        fought
            .unwrap()
            .ends_with(": no NetworkManager, systemd-networkd or udev is known to do that here")
    );
}

#[test]
fn repeated_changes_are_reverted_once_and_reported() {
    let files = root(&[
        (
            &format!("{NETWORK_MANAGER}101"),
            "[device]\nmanaged=false\n",
        ),
        (NETWORKD, ""),
    ]);
    let strip = |look| {
        let again = |s: Step| {
            if let Step::AddressDelete { .. } = s {
                Some(s)
            } else {
                None
            }
        };
        strip(look).into_iter().filter_map(again).collect()
    };
    let (_, drift, fought) = settled(files.path(), strip, Duration::from_millis(400));
    assert!(drift > 0);
    let note = fought.unwrap();
    assert!(
        note.contains(
            "and again after it was put back: NetworkManager, unless \
            unmanaged-devices+=interface-name:rail0 "
        ),
        "{note}"
    );
}

#[test]
fn managers_are_known_by_what_they_keep() {
    // As NetworkManager 1.52 and systemd 257 leave them in tests/vm/cases-systemd/20-managers.sh.
    let by_user = "[device]\nmanaged=false\n";
    let veth = "[device]\nperm-hw-addr-fake=FE:1E:4E:6C:48:26\nnm-owned=false\n";
    let files = root(&[
        (
            &format!("{NETWORK_MANAGER}7"),
            "[device]\nmanaged=true\nroute-metric-default-effective=100\n",
        ),
        (&format!("{NETWORK_MANAGER}8"), by_user),
        (&format!("{NETWORK_MANAGER}9"), ""),
        (&format!("{NETWORK_MANAGER}10"), veth),
        (
            "run/udev/data/n11",
            "E:ID_NET_DRIVER=veth\nE:NM_UNMANAGED=1\n",
        ),
        ("run/udev/data/n12", "E:NM_UNMANAGED=0\n"),
        // What it leaves when it stops.
        ("run/systemd/netif/state", "OPER_STATE=routable\n"),
    ]);
    let root = files.path();
    fs::create_dir_all(root.join("run/systemd/netif/links")).unwrap();
    assert_eq!(link_managers::present(root), [Manager::NetworkManager]);
    assert!(
        !link_managers::may_configure(root, &[7]),
        "networkd is stopped"
    );
    let all = [7, 8, 9, 10, 11, 12];
    let manages = |manager| all.map(|index| link_managers::manages(root, manager, index));
    let spares = |manager| all.map(|index| link_managers::spares(root, manager, index));
    assert_eq!(
        manages(Manager::NetworkManager),
        [true, false, false, false, false, false]
    );
    assert_eq!(
        spares(Manager::NetworkManager),
        [false, true, true, true, true, false]
    );

    let link = |index: u32, state: &str| {
        fs::write(
            root.join(format!("run/systemd/netif/links/{index}")),
            format!("# Private.\nADMIN_STATE={state}\n"),
        )
        .unwrap();
    };
    [
        (7, "unmanaged"),
        (8, "configured"),
        (9, "pending"),
        (10, "initialized"),
        (11, "configuring"),
    ]
    .iter()
    .for_each(|(index, state)| link(*index, state));
    fs::write(root.join(UDEV), "").unwrap();
    assert_eq!(
        link_managers::present(root),
        [Manager::NetworkManager, Manager::Networkd, Manager::Udev]
    );
    assert_eq!(
        manages(Manager::Networkd),
        [false, true, false, false, true, false]
    );
    assert_eq!(
        spares(Manager::Networkd),
        [true, false, false, false, false, false]
    );
    assert_eq!(
        (manages(Manager::Udev), spares(Manager::Udev)),
        ([false; 6], [false; 6])
    );
    assert!(!link_managers::may_configure(root, &[7, 8]) && !link_managers::busy(root));
    assert!(
        link_managers::may_configure(root, &[7, 12]),
        "of which networkd has not heard"
    );
    assert!(
        [9, 10, 11]
            .iter()
            .all(|index| link_managers::may_configure(root, &[7, *index])),
        "with which networkd is not done"
    );
    fs::write(root.join("run/udev/queue"), "").unwrap();
    assert!(link_managers::busy(root));
}

#[test]
fn message_names_the_possible_manager_and_how_to_exclude_nics() {
    let drift = |dev: &str, field: &str| Drift {
        dev: dev.into(),
        field: field.into(),
        expected: None,
        observed: None,
    };
    let of = |manager, spares: &[&str]| Present {
        manager,
        spares: spares.iter().map(|n| n.parse().unwrap()).collect(),
        configures: Vec::new(),
    };
    let all = |spares: &[&str]| {
        [
            of(Manager::NetworkManager, spares),
            of(Manager::Networkd, spares),
            of(Manager::Udev, &[]),
        ]
    };
    let said = |fields: &[(&str, &str)], spares: &[&str]| {
        let changed: Vec<Drift> = fields
            .iter()
            .map(|(dev, field)| drift(dev, field))
            .collect();
        sentence(&changed, Outcome::PutBack, &all(spares)).unwrap()
    };
    let nm = |names: &str| {
        format!(
            "NetworkManager, unless unmanaged-devices+={names} is below [keyfile] in a file of \
            /etc/NetworkManager/conf.d"
        )
    };
    let networkd = |names: &str| {
        format!(
            "systemd-networkd, unless /etc/systemd/network/05-rdmaprep.network, before its own, \
            has [Match] Name={names} and [Link] Unmanaged=yes"
        )
    };
    let foreign = "systemd-networkd, unless ManageForeignRoutes=no, \
        ManageForeignRoutingPolicyRules=no (if each of its own rules has a Priority=) and (since \
        systemd 256) ManageForeignNextHops=no are below [Network] in /etc/systemd/networkd.conf";
    let address = [("r0", "address 10.0.0.1/24"), ("r1", "address 10.1.0.1/24")];
    let begins = "r0, r1 changed after the restore (address 10.0.0.1/24, address 10.1.0.1/24), \
        and put back: ";
    let both = (nm("interface-name:r0;interface-name:r1"), networkd("r0 r1"));
    assert_eq!(
        said(&address, &[]),
        format!("{begins}{}; or {}", both.0, both.1)
    );
    // A manager that already leaves a NIC alone is not named for it.
    assert_eq!(
        said(&address, &["r0"]),
        format!("{begins}{}; or {}", nm("interface-name:r1"), networkd("r1"))
    );
    let none = "no NetworkManager, systemd-networkd or udev is known to do that here";
    assert_eq!(said(&address, &["r0", "r1"]), format!("{begins}{none}"));
    // Foreign rules go whether it manages the link or not.
    let rule = [
        ("r0", "rule {}"),
        ("r0", "address a"),
        ("r0", "b"),
        ("r0", "c"),
    ];
    assert_eq!(
        said(&rule, &["r0"]),
        format!(
            "r0 changed after the restore (address a, b, c and 1 more), and put back: {foreign}"
        )
    );
    assert_eq!(
        sentence(&[drift("r0", "hca")], Outcome::Lost, &all(&[])),
        None
    );
    assert_eq!(sentence(&[], Outcome::PutBack, &all(&[])), None);
}

#[test]
fn message_takes_no_addresses_from_nics_by_their_manager() {
    let changed = ["r0", "r1"].map(|dev| Drift {
        dev: dev.into(),
        field: "address 10.0.0.1/24".into(),
        expected: None,
        observed: None,
    });
    for (manager, off) in [
        (
            Manager::NetworkManager,
            "unmanaged-devices+=interface-name:r1 is below [keyfile] in a file of \
            /etc/NetworkManager/conf.d",
        ),
        (
            Manager::Networkd,
            "/etc/systemd/network/05-rdmaprep.network, before its own, has [Match] Name=r1 and \
            [Link] Unmanaged=yes",
        ),
    ] {
        let present = Present {
            manager,
            spares: Vec::new(),
            configures: vec!["r0".parse().unwrap()],
        };
        let who = manager.name();
        assert_eq!(
            sentence(&changed, Outcome::PutBack, &[present]).unwrap(),
            format!(
                "r0, r1 changed after the restore (address 10.0.0.1/24), and put back: {who}, \
                unless {off}; or {who}, which configures r0: what its configuration has \
                as well, it leaves"
            )
        );
    }
}
