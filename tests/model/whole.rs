//! Whole creates and stops on a machine in memory, without privileges: as they are, refused at each
//! effect, and cut off at each effect and finished by the next restore.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use rdma_model::error_class::ErrorClass;
use rdma_model::ids::{Hex, IfName};
use rdma_model::snapshot::Snapshot;
use rdma_model::step::{Side, Step, VirtualLink};
use rdmaprep::cli::{Global, SelectArgs};
use rdmaprep::config::host::{Config, Host};
use rdmaprep::config::request::Request;
use rdmaprep::container::facts::ContainerFacts;
use rdmaprep::hook::{self, Hook, Target};
use rdmaprep::kernel::Namespaces;
use rdmaprep::oci::state::State;
use rdmaprep::plan::Plan;
use rdmaprep::report::{Lap, Report};
use rdmaprep::restore::reclaim::reclaim;
use rdmaprep::restore::run;
use rdmaprep::store::Store;
use rdmaprep::store::records::Records;
use rdmaprep::verify;
use tempfile::TempDir;
use testkit::fake_kernel::hosts::{name, plan_for, plan_of, three};
use testkit::fake_kernel::machine::{INIT, Machine, Mishap};
use testkit::fake_kernel::{Kernel, plain, v4};

/// A hook that failed, and what it had done and noted until then.
#[derive(Debug)]
struct Failure {
    error: Error,
    report: Report,
}

type Ended = Result<Report, Box<Failure>>;

/// A machine with a plan for two of its three NICs, and what its host was like.
struct Stage {
    machine: Machine,
    store: Store,
    request: Request,
    before: Snapshot,
    folder: TempDir,
}

impl Stage {
    fn new() -> Stage {
        let kernel = three();
        let plan = plan_for(&kernel, &[0, 2]);
        Stage::of(kernel, &plan)
    }

    fn of(kernel: Kernel, plan: &Plan) -> Stage {
        // Each test writes hundreds of records, and each of them is synced.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            TempDir::new_in(memory)
        } else {
            TempDir::new()
        }
        .unwrap();
        let store = Store::new(&folder.path().join("run"), &folder.path().join("state"));
        store.make_folders().unwrap();
        store.save_plan(plan).unwrap();
        let config = Config::default();
        let host = Host::new(&Global::default(), &config);
        let request = Request::new(
            Some("default"),
            &SelectArgs::default(),
            host,
            config.select,
            |_| None,
        )
        .unwrap();
        let before = kernel.see(Side::Host);
        let machine = Machine::new(kernel, folder.path());
        Stage {
            machine,
            store,
            request,
            before,
            folder,
        }
    }

    /// Nothing where the hook was cut off.
    fn hook(&self, call: impl FnOnce(&Hook, &mut Report) -> Result<()>) -> Option<Ended> {
        let state = State {
            id: "c".to_owned(),
            pid: Some(INIT.into()),
            bundle: String::new(),
            annotations: BTreeMap::new(),
        };
        let begun = Instant::now();
        let deadline = begun + Duration::from_secs(30);
        let facts = ContainerFacts::default();
        let target = Target::Container(&facts);
        let hook =
            Hook::new(target, &state, &self.store, &self.machine, begun).until(deadline, begun);
        let mut report = Report::new("hook");
        let result = self.machine.run(|| call(&hook, &mut report))?;
        Some(match result {
            Ok(()) => Ok(report),
            Err(error) => Err(Box::new(Failure { error, report })),
        })
    }

    fn create(&self) -> Option<Ended> {
        self.hook(|hook, report| hook::create(hook, &self.request, report))
    }

    fn stop(&self) -> Option<Ended> {
        self.hook(hook::stop)
    }

    /// `rdmaprep restore --all`, with what every hook does besides.
    fn restore(&self) {
        let _lock = self.store.lock(Instant::now()).unwrap();
        let mut records = Records::read(&self.store, self.machine.boot_id()).unwrap();
        for path in records.paths() {
            let record = records.at(&path).unwrap().as_ref().unwrap().clone();
            run::restore(&self.machine, &mut records, record).unwrap();
        }
        assert_eq!(
            reclaim(&self.machine, &mut records, None).unwrap(),
            Vec::<String>::new()
        );
    }

    fn has_nics(&self) -> bool {
        let inside = self.machine.inside().unwrap();
        [0, 2].iter().all(|i| inside.netdev(&name(*i)).is_some())
            && inside.netdev(&name(1)).is_none()
    }

    /// The host is what it was, and nothing is left of the container.
    #[track_caller]
    fn is_as_before(&self, when: &str) {
        assert_eq!(
            verify::normal_text(&self.before),
            verify::normal_text(&self.machine.host()),
            "{when}"
        );
        assert_eq!(
            self.store.all_records().unwrap().len(),
            0,
            "{when}: records"
        );
        assert_eq!(
            self.store.all_pins().unwrap(),
            Vec::<u64>::new(),
            "{when}: pins"
        );
    }
}

/// How many effects a whole create has, and a whole stop after it.
fn effects() -> (usize, usize) {
    let stage = Stage::new();
    stage.create().unwrap().unwrap();
    let create = stage.machine.effects();
    stage.machine.kill_init();
    stage.stop().unwrap().unwrap();
    (create, stage.machine.effects() - create)
}

#[test]
fn create_and_stop_leave_the_host_as_it_was() {
    let stage = Stage::new();
    let created = stage.create().unwrap().unwrap();
    assert!(stage.has_nics());
    assert_eq!(
        (created.nics, created.plan.as_deref()),
        (vec![name(0), name(2)], Some("default"))
    );
    assert_eq!(
        created.steps_done + 1,
        stage.machine.effects(),
        "steps and one pin"
    );
    // The other of the two create stages has nothing left to do.
    assert_eq!(stage.create().unwrap().unwrap().steps_done, 0);
    stage.machine.kill_init();
    assert!(stage.stop().unwrap().unwrap().steps_done > 0);
    stage.is_as_before("after a stop");
    assert!(
        stage.machine.inside().is_none(),
        "its namespace has ended with its pin"
    );
}

#[test]
fn create_that_is_refused_anywhere_undoes_everything() {
    let (create, _) = effects();
    for number in 0..create {
        let stage = Stage::new();
        stage.machine.plan_mishap(number, Mishap::Refused);
        let failure = stage.create().unwrap().unwrap_err();
        let when = format!("effect {number} of {create}: {:#}", failure.error);
        assert!(stage.machine.came_to_mishap(), "{when}");
        assert!(
            format!("{:#}", failure.error).contains("everything is undone"),
            "{when}"
        );
        assert_eq!(
            (failure.report.steps_done, failure.report.nics),
            (0, vec![name(0), name(2)]),
            "{when}"
        );
        stage.is_as_before(&when);
        // The same container may try again.
        stage.create().unwrap().unwrap();
        assert!(stage.has_nics(), "{when}");
    }
}

/// What a report has booked to these laps.
fn booked(report: &Report, laps: &[Lap]) -> Duration {
    let of_laps = report.laps.iter().filter(|lap| laps.contains(&lap.name));
    Duration::from_micros(of_laps.map(|lap| lap.micros).sum())
}

#[test]
fn time_of_a_step_that_fails_is_booked_as_its_own() {
    const STEPS: [Lap; 3] = [Lap::Move, Lap::Configure, Lap::GidWait];
    let time = Duration::from_millis(200);
    let (create, _) = effects();
    // The first effect is the pin.
    for number in [1, create - 1] {
        let stage = Stage::new();
        let refused = Mishap::RefusedAfter(time);
        stage.machine.plan_mishap(number, refused);
        let report = stage.create().unwrap().unwrap_err().report;
        assert!(booked(&report, &STEPS) >= time, "{number}: {report:?}");
    }
    let stage = Stage::new();
    stage.create().unwrap().unwrap();
    stage.machine.act(|kernel| {
        kernel
            .does(Step::AddressDelete {
                side: Side::Inside,
                dev: name(0),
                address: plain(v4(0, 0, 1), 24),
            })
            .unwrap();
    });
    stage.machine.plan_mishap(0, Mishap::RefusedAfter(time));
    let report = stage.hook(hook::start).unwrap().unwrap_err().report;
    assert!(booked(&report, &[Lap::Configure]) >= time, "{report:?}");
    assert_eq!(report.steps_done, 0);
}

#[test]
fn create_that_is_cut_off_anywhere_is_undone_by_a_restore() {
    let (create, _) = effects();
    for number in 0..create {
        for mishap in [Mishap::EndsBefore, Mishap::EndsAfter] {
            let stage = Stage::new();
            let when = format!("{mishap:?} {number} of {create}");
            stage.machine.plan_mishap(number, mishap);
            assert!(stage.create().is_none(), "{when}");
            // Either the container goes with its hook, or its runtime tries again.
            if number % 2 == 0 {
                stage.machine.kill_init();
                stage.restore();
                stage.is_as_before(&when);
            } else {
                stage.create().unwrap().unwrap();
                assert!(stage.has_nics(), "{when}");
            }
        }
    }
}

#[test]
fn stop_that_is_cut_off_anywhere_is_finished_by_a_restore() {
    let (_, stop) = effects();
    for number in 0..stop {
        for mishap in [Mishap::EndsBefore, Mishap::EndsAfter, Mishap::Refused] {
            let stage = Stage::new();
            let when = format!("{mishap:?} {number} of {stop}");
            stage.create().unwrap().unwrap();
            stage.machine.kill_init();
            stage.machine.plan_mishap(number, mishap);
            match stage.stop() {
                None => assert_ne!(mishap, Mishap::Refused, "{when}"),
                Some(Ok(_)) => assert_eq!(mishap, Mishap::Refused, "{when}"),
                Some(Err(failure)) => {
                    let class = ErrorClass::of(&failure.error);
                    assert_eq!(
                        (mishap, class),
                        (Mishap::Refused, ErrorClass::Incomplete),
                        "{when}"
                    );
                }
            }
            assert!(stage.machine.came_to_mishap(), "{when}");
            stage.restore();
            stage.is_as_before(&when);
        }
    }
}

/// A machine with a plan for a NIC that is no hardware.
fn stacked() -> (Stage, IfName) {
    let mut kernel = three();
    let (side, dev): (Side, IfName) = (Side::Host, "i1".parse().unwrap());
    let over = Some(name(0).to_string().parse().unwrap());
    let made = VirtualLink {
        kind: "ipvlan".to_owned(),
        data: Hex(vec![2]),
        over,
        mac: None,
        ifindex: Some(202),
    };
    for step in [
        Step::Make {
            side,
            dev: dev.clone(),
            made,
        },
        Step::Link {
            side,
            dev: dev.clone(),
            up: true,
        },
        Step::AddressAdd {
            side,
            dev: dev.clone(),
            address: plain(v4(60, 2, 1), 24),
        },
    ] {
        kernel.does(step).unwrap();
    }
    let plan = plan_of(&kernel, std::slice::from_ref(&dev));
    (Stage::of(kernel, &plan), dev)
}

/// Nothing of its container's has run, so that its NICs come back also where no one can look for
/// the container's links.
#[test]
fn create_that_cannot_record_its_end_is_undone() {
    let (stage, _) = stacked();
    stage.create().unwrap().unwrap();
    let create = stage.machine.effects();
    let (stage, _) = stacked();
    let run = stage.folder.path().join("run");
    let [records, aside] = ["records", "aside"].map(|name| run.join(name));
    let [there, back] = [records.clone(), aside.clone()];
    stage.machine.plan_change(create - 1, move |kernel| {
        fs::rename(&records, &aside).unwrap();
        fs::write(&records, "").unwrap();
        kernel.blind = true;
    });
    stage.machine.plan_change(create, move |kernel| {
        fs::remove_file(&there).unwrap();
        fs::rename(&back, &there).unwrap();
        kernel.blind = false;
    });
    let failure = stage.create().unwrap().unwrap_err();
    let error = format!("{:#}", failure.error);
    assert!(error.contains("everything is undone"), "{error}");
    stage.is_as_before("after the undo");
}

/// A NIC that is no hardware may be in a namespace that was not searched: it is not given on while
/// that is not known, however often the restore is tried.
#[test]
fn stacked_nic_without_a_whole_search_is_held_back() {
    let (stage, dev) = stacked();
    stage.create().unwrap().unwrap();
    stage.machine.act(|kernel| {
        kernel
            .does(Step::Delete {
                side: Side::Inside,
                dev: dev.clone(),
            })
            .unwrap();
        kernel.gap = Some("process 7 changes its links all the time".to_owned());
    });
    stage.machine.kill_init();
    for _ in 0..3 {
        let failure = stage.stop().unwrap().unwrap_err();
        let error = format!("{:#}", failure.error);
        assert!(
            error.contains("process 7") && error.contains("i1 may be there"),
            "{error}"
        );
        assert_eq!(ErrorClass::of(&failure.error), ErrorClass::Incomplete);
    }
    stage.machine.act(|kernel| kernel.gap = None);
    stage.stop().unwrap().unwrap();
    stage.is_as_before("once all was searched");
}
