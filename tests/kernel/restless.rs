//! A container whose root changes its network all the time.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::alone;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use testkit::Container;

/// Ends with its guard.
struct Tenant(Child);

impl Tenant {
    /// Runs a shell line in the container's network without end.
    fn at_work(c: &Container, line: &str) -> Tenant {
        let enter = format!("--net=/proc/{}/ns/net", c.pid());
        let line = format!("{line} > /dev/null 2>&1");
        let mut nsenter = Command::new("nsenter");
        nsenter.args([&enter, "sh", "-c", &line]).process_group(0);
        Tenant(nsenter.spawn().unwrap())
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.0.id() as i32);
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// No list of its links or addresses is whole: the kernel says of each that it changed meanwhile.
#[test]
fn nics_come_back_from_a_network_that_changes_all_the_time() {
    alone(|host| {
        host.prepare(&host.rails(3));
        let before = host.look();
        // Their list takes the kernel several parts.
        let many = "seq -f 'link add many%.0f up type veth' 150 | ip -batch -
            seq -f 'address add 198.51.100.1/32 dev many%.0f' 150 | ip -batch -";
        let links = "while :; do ip link add strange type veth; ip link del strange; done";
        let addresses = "yes 'address add 192.0.2.1/32 dev lo
            address del 192.0.2.1/32 dev lo' | ip -force -batch -";
        let mut longest = Duration::ZERO;
        for round in 0..4 {
            let mut c = Container::new("restless");
            c.create(host).ok();
            c.sh(many);
            // By its index alone it is not found.
            if round == 3 {
                c.sh("unshare --net sleep 9 > /dev/null 2>&1 & p=$!
                    until [ $(readlink /proc/$p/ns/net) != $(readlink /proc/$$/ns/net) ]; do :; done
                    ip link set r1 netns $p
                    nsenter --net=/proc/$p/ns/net ip link set r1 netns $$ index 4242
                    kill $p");
            }
            let tenants = [links, links, addresses].map(|line| Tenant::at_work(&c, line));
            std::thread::sleep(Duration::from_millis(100));
            let begun = Instant::now();
            host.hook("poststop", &c.stopped()).ok();
            longest = longest.max(begun.elapsed());
            drop(tenants);
            c.kill();
            host.is_as(&before);
            host.is_clean();
        }
        println!("the longest stop took {longest:?}");
        assert!(longest < Duration::from_secs(4), "{longest:?}");
    });
}
