//! Lives of pods with claims at random, on the real kernel: how containers, sandboxes and pods end,
//! in which order and with which hooks, the NICs stay until the claim has ended, and return whole.

use crate::alone;
use crate::claims::{A, B, asks, bind, end, has, timer};
use crate::owners::Rng;
use std::fs;
use testkit::{Container, Host, sh};

/// A container with both claims, or with one, which ends in some way.
fn container(host: &Host, pause: &Container, rng: &mut Rng) {
    let both = [("r0", A), ("r1", B)];
    let asked = match rng.below(3) {
        0 => &both[..],
        1 => &both[..1],
        _ => &both[1..],
    };
    let mut one = asks(host, Container::beside("job", pause), asked);
    one.create(host).ok();
    for rail in ["r0", "r1"] {
        assert!(
            has(pause, rail),
            "the pod has both, whatever one of its containers asks for"
        );
        assert!(!sh("ip -br link").contains(&format!("{rail}@")));
    }
    match rng.below(3) {
        0 => drop(one.container.stop(host).ok()),
        1 => one.container.kill(),
        // Killed, and what an engine calls later than it should.
        _ => {
            one.container.kill();
            timer(host);
            host.hook("poststop", &one.container.stopped()).ok();
        }
    }
    if rng.below(2) == 0 {
        timer(host);
    }
    assert!(has(pause, "r0") && has(pause, "r1"), "they stay");
}

#[test]
fn random_lives_of_pods_leave_the_host_as_it_was() {
    alone(|host| {
        let rails = host.rails(2);
        let before = host.look();
        host.prepare(&rails);
        let mut rng = Rng(38);
        for _ in 0..12 {
            bind(host, A, "pod", &["r0"]);
            bind(host, B, "pod", &["r1"]);
            let mut pause = Container::new("pause");
            for _ in 0..1 + rng.below(4) {
                container(host, &pause, &mut rng);
                if rng.below(4) == 0 {
                    // The sandbox is made again.
                    pause.kill();
                    pause = Container::new("pause");
                    container(host, &pause, &mut rng);
                }
            }
            if rng.below(2) == 0 {
                pause.kill();
            }
            end(host, A);
            end(host, B);
            drop(pause);
            timer(host);
            host.is_as(&before);
            fs::remove_dir_all(host.run.join("claims")).unwrap();
        }
        host.is_clean();
    });
}
