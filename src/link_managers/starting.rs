//! Managers that are just starting, or starting again: what they do with a link is not known yet.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rdma_model::snapshot::Netdev;

use super::state_files::age_of_state;
use super::{Manager, Managers, bus, manages, network_manager, present};

/// A NetworkManager that is restarted is on the bus again after this time, unless the machine is
/// busy.
const RESTART: Duration = Duration::from_millis(300);
/// After this time one that has stopped is not about to start again.
const STOPPED: Duration = Duration::from_secs(10);
/// How long we wait for one that is starting to decide what it does with a link.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// Between two questions.
const MOMENT: Duration = Duration::from_millis(20);

impl Managers {
    /// Waits until a NetworkManager that is starting has decided about each of these links, for
    /// [`PATIENCE`] at most: about a link that it leaves alone it says nothing until its start is
    /// over.
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

    /// Why it is not known whether and by which profile NetworkManager configures a link that its
    /// files say it has. It was asked before, and its answer recorded, or it had none
    /// (`has_answered`). One that is stopped leaves its file of the link, too: we wait for it, as
    /// it may be about to start again.
    pub fn why_unknown(&mut self, link: &Netdev, has_answered: bool) -> Option<&'static str> {
        let by = Manager::NetworkManager;
        if !manages(&self.root, by, link.ifindex) {
            return None;
        }
        let is_starting = self.starts_within(by, RESTART) || self.is_undecided(link);
        if self.is_unreachable || self.bus.as_ref().is_some_and(bus::Bus::is_dead) {
            return Some("D-Bus or a program on it does not answer");
        }
        if self.has_just_stopped(by, link) {
            return Some("it stopped a moment ago, and may be starting again");
        }
        // It had no answer then, and has one now: what was recorded meanwhile lacks it.
        let has_decided_since = !has_answered && self.has_networkmanager_come_to(link);
        (is_starting || has_decided_since).then_some("it is starting")
    }

    /// Started again while the link is away, it has forgotten that one, and takes it for one that
    /// others configure when it returns.
    fn has_just_stopped(&mut self, by: Manager, link: &Netdev) -> bool {
        let is_stopped = self.is_running(by) == Some(false);
        is_stopped && age_of_state(&self.root, link.ifindex).is_some_and(|age| age < STOPPED)
    }

    fn has_networkmanager_come_to(&mut self, link: &Netdev) -> bool {
        let bus = self.bus.as_mut();
        bus.is_some_and(|bus| network_manager::has_come_to(bus, link))
    }

    fn is_undecided(&mut self, link: &Netdev) -> bool {
        let bus = self.bus.as_mut();
        bus.is_some_and(|bus| network_manager::is_undecided(bus, link))
    }

    /// Whether a manager that does not run starts in time. Of one that did not, this is not asked
    /// again: [`Managers`] remembers it as stopped.
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
