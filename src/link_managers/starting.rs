//! Managers that are just starting, or starting again: what they do with a link is not known yet.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rdma_model::snapshot::Netdev;

use super::{Manager, Managers, bus, manages, network_manager, present};

/// Within this a NetworkManager that is restarted has its name on the bus again.
const RESTART: Duration = Duration::from_millis(300);
/// How long it is waited for that one decides what it does with a link.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(20);

impl Managers {
    /// Waits a moment for a NetworkManager that is starting, until it has decided what it does with
    /// these links. What it keeps off stays undecided while it starts.
    pub fn await_start<'a>(&mut self, links: impl Iterator<Item = &'a Netdev>) {
        let until = Instant::now() + PATIENCE;
        let is_present = present(&self.root).contains(&Manager::NetworkManager);
        let bus = self.bus.as_mut().filter(|_| is_present);
        if !bus.is_some_and(network_manager::is_new) {
            return;
        }
        for link in links {
            while self.is_undecided(link) && Instant::now() < until {
                sleep(MOMENT);
            }
        }
    }

    /// Why it is not known whether and by which profile NetworkManager configures a link that it
    /// has. One that is stopped leaves its file of the link, too: it is waited for, as it may just
    /// start again.
    pub fn why_unknown(&mut self, link: &Netdev, is_recorded: bool) -> Option<&'static str> {
        let by = Manager::NetworkManager;
        if !manages(&self.root, by, link.ifindex) {
            return None;
        }
        let starts = self.starts_within(by, RESTART) || self.is_undecided(link);
        if self.is_unreachable || self.bus.as_ref().is_some_and(bus::Bus::is_dead) {
            return Some("D-Bus or a program on it does not answer");
        }
        // By now it has said what it had not when it was asked.
        let bus = self.bus.as_mut().filter(|_| !is_recorded);
        let was_missed = bus.is_some_and(|bus| network_manager::has_come_to(bus, link));
        (starts || was_missed).then_some("it is starting")
    }

    fn is_undecided(&mut self, link: &Netdev) -> bool {
        let bus = self.bus.as_mut();
        bus.is_some_and(|bus| network_manager::is_undecided(bus, link))
    }

    /// Whether a manager that does not run does so in time: it is waited for once.
    pub(super) fn starts_within(&mut self, by: Manager, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        if self.stopped.contains(&by) || self.is_running(by) != Some(false) {
            return false;
        }
        while self.is_running(by) == Some(false) {
            if Instant::now() >= until {
                self.stopped.push(by);
                return false;
            }
            sleep(MOMENT);
        }
        self.is_running(by) == Some(true)
    }
}
