//! NICs that have come to the host, what their managers say of them, and what they wait for.

use std::time::SystemTime;

use rdma_model::host_objects::HostObjects;
use rdma_model::ids::IfName;
use rdma_model::moved_nic::MovedNic;
use rdma_model::snapshot::{Netdev, Rule, Snapshot};
use rdma_model::step::chosen_by_manager;

use crate::link_managers::{Managers, Word};
use crate::precedence::Precedence;
use crate::restore::to_put_back::{Words, has_its_own, is_strange};
use crate::select::Awaits;

/// NICs that have come to the host.
#[derive(Clone, Copy)]
pub struct Returned<'a> {
    pub held: &'a [MovedNic],
    pub order: &'a Precedence,
    /// What of the host is no NIC's: networkd deletes that of others when a link appears.
    pub host_objects: &'a HostObjects,
    /// Those that came by this restore, and when it began; the others were here before.
    pub arriving: &'a [IfName],
    pub begun: SystemTime,
    /// See [`crate::record::Record::rules_beside`].
    pub rules: Option<&'a [Rule]>,
}

/// A NIC that is on the host, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingNic {
    pub nic: IfName,
    pub why: String,
    /// Whether its manager has begun: what that took for foreign is gone by now.
    pub has_begun: bool,
}

impl<'a> Returned<'a> {
    /// NICs that were on the host before.
    pub fn earlier(held: &'a [MovedNic], order: &'a Precedence) -> Returned<'a> {
        Returned {
            held,
            order,
            host_objects: HostObjects::NONE,
            arriving: &[],
            begun: SystemTime::UNIX_EPOCH,
            rules: None,
        }
    }

    /// What the managers of these NICs say now. A manager whose own is there has begun, whatever it
    /// still waits for.
    pub fn words(&self, managers: &mut Managers, host: &Snapshot) -> Words {
        let mut words = Words::new();
        for held in self.held {
            let name = held.name();
            let (Some(managed), Some(link)) = (&held.managed, host.netdev(name)) else {
                continue;
            };
            let is_arriving = self.arriving.contains(name);
            let since = match is_arriving {
                true => self.begun,
                false => SystemTime::UNIX_EPOCH,
            };
            let word = match managers.word_of(managed, link, since) {
                Word::Configuring | Word::NotBegun if has_its_own(held, host) => {
                    managers.begun_with(managed, link)
                }
                Word::DoneBefore if has_its_own(held, host) => Word::NeverMissedIt,
                Word::External if !is_arriving && has_unknown_address(held, link) => Word::Ended,
                word => word,
            };
            words.insert(name.clone(), word);
        }
        words
    }
}

/// What the managers of NICs say that were on the host before.
pub fn words_of_earlier(held: &[MovedNic], managers: &mut Managers, host: &Snapshot) -> Words {
    Returned::earlier(held, &Precedence::default()).words(managers, host)
}

/// Whether someone has set up a NIC by hand since it is back. NetworkManager forgets then that they
/// had it end the profile.
fn has_unknown_address(held: &MovedNic, link: &Netdev) -> bool {
    let was = &held.before.netdev;
    link.addresses
        .iter()
        .any(|a| is_strange(a, was, link) && !chosen_by_manager(a, link))
}

/// What words mean when they are not waited for any longer: a manager that cannot be asked and says
/// nothing does not run, and one that has missed nothing does nothing more.
pub fn final_words(words: &mut Words, can_be_asked: bool) {
    for word in words.values_mut() {
        *word = match *word {
            Word::NotBegun if !can_be_asked => Word::Absent,
            Word::DoneBefore => Word::NeverMissedIt,
            Word::Idle => Word::Unmanaged,
            word => word,
        };
    }
}

/// For telling what is lost for good: as if each manager had made its own again, by files that may
/// be others.
pub fn assume_managers_done(words: &mut Words) {
    let busy = words.values_mut().filter(|word| !is_final(**word));
    let changed = Word::Changed {
        switches_ipv6_on: true,
    };
    busy.for_each(|word| *word = changed);
}

/// Has the profile of a NIC activated again. Whether that is under way.
pub fn activate(held: &MovedNic, managers: &mut Managers, host: &Snapshot) -> bool {
    let link = host.netdev(held.name());
    let managed = held.managed.as_ref().zip(link);
    managed.is_some_and(|(managed, link)| managers.activate(managed, link))
}

/// Whether a stop need not wait for the manager any longer.
pub(super) fn ends_the_wait(word: Word) -> bool {
    matches!(word, Word::Begun | Word::NeverMissedIt) || is_final(word)
}

/// Whether nothing more is to come.
fn is_final(word: Word) -> bool {
    matches!(
        word,
        Word::Done
            | Word::Changed { .. }
            | Word::Stalled
            | Word::External
            | Word::Ended
            | Word::Unmanaged
            | Word::Absent
    )
}

/// A NIC whose manager is not done.
pub fn why_waiting(
    held: &MovedNic,
    words: &Words,
    host: &Snapshot,
    managers: &mut Managers,
) -> Option<WaitingNic> {
    let name = held.name();
    let managed = held.managed.as_ref()?;
    let word = words.get(name)?;
    let does = match word {
        // When it starts it takes for external what it finds.
        Word::Absent if managed.uuid.is_some() => "does not run",
        word if is_final(*word) => return None,
        Word::Idle => "has no profile that it activates by itself",
        Word::NotBegun | Word::DoneBefore if managed.uuid.is_some() => {
            "has not begun with it (if networking is off: `nmcli networking on`)"
        }
        Word::NotBegun | Word::DoneBefore => "has not begun with it",
        Word::NeverMissedIt => "may not have noticed that it was away",
        _ if awaits_lease(name, host, managers) => "waits for a lease of DHCP",
        _ => "is configuring it",
    };
    let but = match host.netdev(name) {
        Some(dev) if dev.running => String::new(),
        Some(dev) if !dev.up => format!("; {name} is down"),
        _ => format!("; {name} has no carrier"),
    };
    Some(WaitingNic {
        nic: name.clone(),
        why: format!("{name} is back; {} {does}{but}", managed.by.name()),
        has_begun: word.has_begun(),
    })
}

/// Whether that is said of the NIC.
pub fn is_about(why: &str, nic: &IfName) -> bool {
    why.starts_with(&format!("{nic} is back; "))
}

fn awaits_lease(name: &IfName, host: &Snapshot, managers: &mut Managers) -> bool {
    let at_work = host.netdev(name).and_then(|dev| managers.at_work(dev));
    at_work.is_some_and(|at_work| at_work.awaits == Awaits::Lease)
}

pub(super) fn has_carrier(host: &Snapshot, name: &IfName) -> bool {
    host.netdev(name).is_some_and(|dev: &Netdev| dev.running)
}
