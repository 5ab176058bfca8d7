//! Visits to network namespaces: whatever happens there, the thread is back afterwards.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::alone;
use anyhow::anyhow;
use rdmaprep::kernel::netns::Netns;
use testkit::{Container, run};

#[test]
fn a_thread_is_home_after_each_visit() {
    alone(|_| {
        let container = Container::new("c");
        let there = Netns::of_process(container.pid() as i32).unwrap();
        let is_home = |home: u64| assert_eq!(Netns::current().unwrap().inode(), home);
        let home = Netns::current().unwrap().inode();
        assert_ne!(there.inode(), home);
        assert_eq!(
            there.visit(|| Ok(Netns::current()?.inode())).unwrap(),
            there.inode()
        );
        is_home(home);
        assert!(there.visit(|| Err::<(), _>(anyhow!("no"))).is_err());
        is_home(home);
        assert!(
            catch_unwind(AssertUnwindSafe(
                || there.visit(|| -> anyhow::Result<()> { panic!("there") })
            ))
            .is_err()
        );
        is_home(home);
        // One of home itself, alone and on another one.
        let own = Netns::current().unwrap();
        let here = || Ok(Netns::current()?.inode());
        assert_eq!(own.visit(here).unwrap(), home);
        there
            .visit(|| {
                assert_eq!(own.visit(here)?, home);
                assert_eq!(here()?, there.inode());
                Ok(())
            })
            .unwrap();
        is_home(home);
        // One within the other.
        there
            .visit(|| {
                there
                    .visit(|| Ok(()))
                    .map(|()| assert_eq!(Netns::current().unwrap().inode(), there.inode()))
            })
            .unwrap();
        is_home(home);
    });
}

/// A user namespace that does not own the network namespace of its processes: what they enter they
/// could not leave.
#[test]
fn without_a_way_home_nothing_is_entered() {
    alone(|host| {
        let program = host.command(&[]).get_program().to_owned();
        let line = r#"unshare --net sleep 60 &
            until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/$$/ns/net)" ]
            do sleep 0.01; done; "$0" --run-dir "$1" --state-dir "$1" doctor --container $!
            code=$?; kill $!; exit $code"#;
        let mut command = std::process::Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "sh", "-c", line])
            .arg(program)
            .arg("/nowhere");
        run(&mut command, "").fails(1, &["entering the network namespace: EPERM"]);
    });
}
