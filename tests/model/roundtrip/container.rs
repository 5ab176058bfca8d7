//! What a container does to its NICs.

use super::*;

/// What a container may do to a NIC, by number.
#[derive(Clone, Debug)]
pub(super) struct Mischief {
    nic: usize,
    what: usize,
    value: usize,
}

pub(super) fn mischief() -> impl Strategy<Value = Vec<Mischief>> {
    let one = (0..6usize, 0..20usize, 0..4usize).prop_map(|(nic, what, value)| Mischief {
        nic,
        what,
        value,
    });
    prop::collection::vec(one, 1..6)
}

/// Rules that a container made itself, and keeps.
fn own_rule(line: &str) -> bool {
    line.contains("pref 333") || line.contains("rules of priority 333")
}

fn no_ipv6() -> SysctlValues {
    BTreeMap::from([("ipv6/conf/disable_ipv6".to_owned(), "1".to_owned())]).into()
}

impl Mischief {
    /// Does it; what Linux refuses, does not happen. `now` holds the NICs' names inside.
    fn done(&self, kernel: &mut Kernel, held: &[MovedNic], now: &mut [IfName]) {
        let n = self.nic % held.len();
        let (was, dev) = (&held[n], now[n].clone());
        let hardware = |h: &MovedNic| h.before.netdev.pci.is_some();
        match self.what {
            14 => self.rdma(kernel, was, dev),
            15 if held.iter().all(hardware) => swap(kernel, now, n, (n + 1) % held.len()),
            16 | 17 => {
                let space = kernel.space(Side::Inside).unwrap();
                let id = space.id(&dev).unwrap();
                let dev = &mut space.link(id).dev;
                let foreign = |id| Program {
                    hook: ProgramHook::TcxEgress,
                    id,
                };
                match (self.what, self.value) {
                    (16, 0) => dev.xdp = true,
                    // Its own, and none of the host's.
                    (16, 1) => dev.programs = Some(vec![foreign(99)]),
                    (16, _) => dev.programs.get_or_insert_default().insert(0, foreign(98)),
                    _ => dev.master = Some("eth0".parse().unwrap()),
                }
            }
            _ => {
                let Some(step) = self.step(&kernel.see(Side::Inside), was, dev) else {
                    return;
                };
                if kernel.does(step.clone()).is_ok() {
                    if let Step::Rename { name, .. } = step {
                        now[n] = name;
                    }
                }
            }
        }
    }

    fn rdma(&self, kernel: &mut Kernel, was: &MovedNic, dev: IfName) {
        let side = Side::Inside;
        let Some(hca) = was.nic.hca.clone() else {
            return;
        };
        let _ = kernel.does(Step::RdmaLinkDelete {
            side,
            hca: hca.clone(),
        });
        let (hca, dev) = if self.value == 0 {
            (hca, "eth0".parse().unwrap())
        } else {
            ("mine".parse().unwrap(), dev)
        };
        let _ = kernel.does(Step::RdmaLinkAdd {
            side,
            hca,
            dev,
            uverbs: None,
        });
    }

    #[allow(clippy::too_many_lines, reason = "a table of tricks")]
    fn step(&self, inside: &Snapshot, was: &MovedNic, dev: IfName) -> Option<Step> {
        let side = Side::Inside;
        let is = inside.netdev(&dev).unwrap();
        let hardware = was.before.netdev.pci.is_some();
        let renamed = dev != *was.name();
        let settings = Settings::of(is);
        let text = |s: &str| s.to_owned();
        let to = match self.value {
            0 => format!("x{}", self.nic),
            1 => text("eth9"),
            2 => name(self.nic).to_string(),
            _ => text("rail7"),
        };
        let step = match self.what {
            // Without hardware to know it by, a NIC with another name and another address is a
            // stranger.
            0..=2 if hardware || is.mac == was.before.netdev.mac => Step::Rename {
                side,
                dev,
                name: to.parse().unwrap(),
            },
            3 => Step::Settings {
                side,
                dev,
                settings: Settings {
                    mtu: [1000, 1300, 1500, 9000][self.value],
                    ..settings
                },
            },
            4 if hardware || !renamed => Step::Mac {
                side,
                dev,
                mac: Mac(vec![2, 2, 2, 2, 2, self.value as u8]),
            },
            5 => Step::Settings {
                side,
                dev,
                settings: spoilt(settings),
            },
            6 => match is.addresses.get(self.value) {
                Some(a) => Step::AddressDelete {
                    side,
                    dev,
                    address: a.clone(),
                },
                None => Step::AddressAdd {
                    side,
                    dev,
                    address: plain(v4(77, 0, 1), 24),
                },
            },
            7 => Step::AddressAdd {
                side,
                dev,
                address: plain(v6(77, self.value as u16), 64),
            },
            8 => Step::Link {
                side,
                dev,
                up: self.value == 0,
            },
            9 => Step::AltnameAdd {
                side,
                dev,
                altname: to,
            },
            10 => Step::AltnameAdd {
                side,
                dev,
                altname: was.name().to_string(),
            },
            11 => match is.altnames.first() {
                Some(a) => Step::AltnamesDelete {
                    side,
                    dev,
                    altnames: vec![a.clone()],
                },
                None => Step::AltnameAdd {
                    side,
                    dev,
                    altname: text("eth8"),
                },
            },
            12 => Step::RuleAdd {
                side,
                rule: rule_333(&dev),
            },
            18 => Step::QdiscAdd {
                side,
                dev,
                qdisc: Qdisc {
                    kind: "htb".into(),
                    handle: 0x20000,
                    parent: u32::MAX,
                    options: None,
                },
            },
            19 => Step::Device {
                side,
                dev,
                values: BTreeMap::from([(
                    text("ethtool rings rx"),
                    format!("{}", 64 << self.value),
                )]),
            },
            13 => Step::Sysctls {
                side,
                dev,
                values: no_ipv6(),
            },
            _ => return None,
        };
        Some(step)
    }
}

fn spoilt(settings: Settings) -> Settings {
    let options = LinkOptions {
        flags: LinkOptions::NOARP,
        mode: Some(1),
        broadcast: Some(Mac(vec![2; 6])),
        gso_max_size: Some(9000),
        ..LinkOptions::default()
    };
    Settings {
        promisc: true,
        alias: Some("mine".to_owned()),
        options: Some(options),
        ..settings
    }
}

pub(super) fn rule_333(dev: &IfName) -> Rule {
    let iif = Some(dev.to_string());
    let other = BTreeMap::new();
    Rule {
        family: 4,
        priority: 333,
        source: None,
        destination: None,
        iif,
        oif: None,
        table: 254,
        action: 1,
        tos: 0,
        flags: 0,
        other,
    }
}

/// Two NICs exchange their names.
pub(super) fn swap(kernel: &mut Kernel, now: &mut [IfName], a: usize, b: usize) {
    let side = Side::Inside;
    let mut rename = |dev: &IfName, name: &IfName| {
        kernel.does(Step::Rename {
            side,
            dev: dev.clone(),
            name: name.clone(),
        })
    };
    let spare: IfName = "spare".parse().unwrap();
    if a != b {
        rename(&now[a], &spare).unwrap();
        rename(&now[b], &now[a]).unwrap();
        rename(&spare, &now[b]).unwrap();
        now.swap(a, b);
    }
}

pub(super) fn mischievous(case: &Case, tricks: &[Mischief]) -> Option<Kernel> {
    let mut kernel = case.attached()?;
    let mut now = names(&case.attach.held);
    tricks
        .iter()
        .for_each(|t| t.done(&mut kernel, &case.attach.held, &mut now));
    Some(kernel)
}

#[test]
fn whatever_the_container_did() {
    for_all(
        250,
        (host(4), mischief(), any::<prop::sample::Index>()),
        |(h, tricks, cut)| {
            let case = Case::new(&h);
            let Some(mut kernel) = mischievous(&case, &tricks) else {
                return;
            };
            case.assert_equal(kernel.clone(), "after mischief", |l| !own_rule(l));
            let steps = restore_plan(&kernel, &case.attach.held).all_steps();
            let until = cut.index(steps.len() + 1);
            apply_all(&steps[..until], &mut kernel, soon());
            case.assert_equal(
                kernel,
                &format!("after mischief, home cut off before step {until}"),
                |l| !own_rule(l),
            );
        },
    );
    print_points("mischievous containers");
}
