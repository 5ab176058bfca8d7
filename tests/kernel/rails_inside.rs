//! `test-rails --container`: where it looks, and from where it reaches the store. There is no RDMA
//! here; tests/vm has it.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;
use std::time::Instant;

use crate::alone;
use anyhow::Result;
use nix::sys::signal::Signal;
use rail_agreement::options::{Options, Settings};
use rail_agreement::{Store, Value};
use rdma_model::error_class::ErrorClass;
use rdmaprep::cli::Global;
use rdmaprep::commands::test_rails::inside::{self, Seen};
use rdmaprep::kernel::netns::Netns;
use testkit::hold::{Hold, POOL, whole};
use testkit::{Host, until};

fn find(host: &Host, name: &str) -> Result<Seen> {
    let global = Global {
        config: Some(host.config.clone()),
        state_dir: None,
        run_dir: Some(host.run.clone()),
    };
    inside::find(&global, name)
}

fn one_node() -> Options {
    let settings = Settings {
        rendezvous: Some("file:///nowhere/store".to_owned()),
        nodes: Some("1".to_owned()),
        rank: Some("0".to_owned()),
        run_id: Some("1".to_owned()),
        ..Settings::default()
    };
    Options::new(&settings, |_| None).unwrap().unwrap()
}

fn links() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('r'))
        .collect();
    names.sort();
    names
}

fn here() -> u64 {
    Netns::current().unwrap().inode()
}

/// Notes in which namespace it is called.
struct Witness(Rc<RefCell<Vec<u64>>>);

impl Witness {
    fn note(&self) {
        self.0.borrow_mut().push(here());
    }
}

impl Store for Witness {
    fn put(&mut self, _: &[(String, Value)]) -> Result<()> {
        self.note();
        Ok(())
    }

    fn get(&mut self, _: &[String], _: Instant) -> Result<Option<Vec<Value>>> {
        self.note();
        Ok(None)
    }

    fn check(&mut self, _: &[String]) -> Result<bool> {
        self.note();
        Ok(true)
    }

    fn delete(&mut self, _: &[String]) -> Result<()> {
        self.note();
        Ok(())
    }
}

#[test]
fn its_rails_are_seen_there_and_the_store_from_here() {
    alone(|host| {
        let rails = host.rails(2);
        host.prepare(&rails);
        let hold = Hold::new(host, POOL);
        let seen = find(host, "pool").unwrap();
        let (home, at_home) = (here(), links());
        assert!(!at_home.contains(&"r0".to_owned()), "{at_home:?}");
        seen.inside
            .run(|| {
                assert_ne!(here(), home);
                assert_eq!(links(), ["r0", "r1"]);
                let calls = Rc::default();
                let mut store = seen.inside.store(Box::new(Witness(Rc::clone(&calls))))?;
                let (keys, now) = (["a".to_owned()], Instant::now());
                store.put(&[])?;
                store.put_unconfirmed(&[])?;
                store.put_best_effort(&[]);
                store.get(&keys, now)?;
                store.await_readers(&keys, now)?;
                store.check(&keys)?;
                store.missing(&keys, 1)?;
                store.read(&keys)?;
                store.delete(&keys)?;
                assert!(store.flush(now)? && !store.persists());
                assert_eq!(*calls.borrow(), [home; 10]);
                assert_eq!(seen.inside.on_host(|| Ok(here()))?, home);
                assert_ne!(here(), home);
                Ok(())
            })
            .unwrap();
        // Nothing of it is left on this thread, nor mounted for others.
        assert_eq!((here(), links()), (home, at_home));
        seen.inside.still_runs().unwrap();
        hold.end(Signal::SIGTERM).ok();
    });
}

/// A stop must not take a test for a process that uses the NICs.
#[test]
fn nics_return_while_a_test_is_there() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        host.prepare(&rails);
        let hold = Hold::new(host, POOL);
        let seen = find(host, "pool").unwrap();
        seen.inside
            .run(|| {
                assert_eq!(hold.end(Signal::SIGTERM).ok().out, "");
                until("they have left", || links().is_empty());
                Ok(())
            })
            .unwrap();
        whole(host, &before);
        let ended = seen.inside.still_runs().unwrap_err();
        assert_eq!(
            ended.to_string(),
            "container \"pool\" ended during the test"
        );
        assert_eq!(ErrorClass::of(&ended), ErrorClass::Other);
    });
}

#[test]
fn who_has_no_hca_or_is_not_there_is_named() {
    alone(|host| {
        let rails = host.rails(1);
        host.prepare(&rails);
        let hold = Hold::new(host, POOL);
        let seen = find(host, "pool").unwrap();
        let Err(nothing) = seen.rails(&one_node()) else {
            panic!("rails without RDMA");
        };
        assert_eq!(ErrorClass::of(&nothing), ErrorClass::Nothing);
        let text = nothing.to_string();
        assert!(
            text.starts_with("NCCL would take no HCA in container \"pool\": "),
            "{text}"
        );
        hold.end(Signal::SIGTERM).ok();
        let Err(gone) = find(host, "pool") else {
            panic!("it has ended");
        };
        assert_eq!(ErrorClass::of(&gone), ErrorClass::Usage);
        assert!(format!("{gone:#}").contains("pool"), "{gone:#}");
    });
}
