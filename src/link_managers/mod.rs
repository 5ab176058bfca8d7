//! Which programs configure links on this host, and what they say of a link: by what they keep
//! under /run, and over D-Bus.

mod activation;
pub mod advice;
mod bus;
mod config_files;
mod lease;
mod network_manager;
mod networkd;
pub mod networkd_config;
mod rule_key;
mod starting;
mod state_files;
pub mod timer;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use network_manager::applied;
pub use rdma_model::manager::Manager;
use rdma_model::manager::{Foreign, Managed};
use rdma_model::snapshot::Netdev;
use rdma_model::step::NicState;

use crate::select::{Awaits, Configuring};
pub use network_manager::metric::Unordered;
use state_files::once_udev_is_done;
pub use state_files::{
    busy, index, manager_of, manages, may_configure, own_function, present, spares,
};

/// What a manager says of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It has configured the link.
    Done,
    /// It has, by other files than before; and whether these have IPv6, and those had none.
    Changed { switches_ipv6_on: bool },
    /// All that is its own and static is there, though it has not said that it is done: it may wait
    /// for a lease or a router.
    Begun,
    /// It has begun: what it took for foreign is deleted, what it found on the link is its own or
    /// gone.
    Configuring,
    /// It has been at that for long, and there is no bus to ask what it waits for.
    Stalled,
    /// It has not begun with the link, and may yet.
    NotBegun,
    /// It says that it is done, and means the link before it left: a NIC that returns within some
    /// ms may never be missed (NetworkManager on a busy machine).
    DoneBefore,
    /// It has not noticed for some time that the link left, and all of its own is there: it may
    /// notice yet, and then takes it for configured by others.
    NeverMissedIt,
    /// It would take the link, and has no profile that it activates by itself.
    Idle,
    /// Someone has had it end what it had active on the link.
    Ended,
    /// It has found the link configured, and watches it.
    External,
    /// It leaves the link to others.
    Unmanaged,
    /// It does not run.
    Absent,
}

impl Word {
    /// Whether what the manager takes for foreign is gone by now.
    pub fn has_begun(self) -> bool {
        !matches!(self, Word::NotBegun | Word::DoneBefore | Word::Idle)
    }

    /// Whether all that it makes at once is there.
    pub fn has_configured(self) -> bool {
        self.has_changed() || matches!(self, Word::Done | Word::Begun)
    }

    pub fn has_changed(self) -> bool {
        matches!(self, Word::Changed { .. })
    }
}

/// The managers of a host, asked by their files and on its bus.
pub struct Managers {
    root: PathBuf,
    bus: Option<bus::Bus>,
    /// Whether there is a bus that does not answer.
    is_unreachable: bool,
    /// Those that have been waited for in vain.
    stopped: Vec<Manager>,
    /// What is of no link and networkd's own, once it has been asked for.
    own: Option<networkd::Own>,
}

impl Managers {
    /// Connects to the bus only where a manager has a folder below /run: networkd empties its own
    /// when it restarts.
    pub fn of(root: &Path) -> Managers {
        let has_manager = ["run/systemd/netif", "run/NetworkManager"]
            .iter()
            .any(|at| root.join(at).exists());
        let socket = root.join("run/dbus/system_bus_socket");
        let bus = (has_manager && socket.exists()).then(|| bus::Bus::connect(&socket));
        Managers {
            root: root.to_owned(),
            is_unreachable: matches!(bus, Some(Err(_))),
            stopped: Vec::new(),
            bus: bus.and_then(Result::ok),
            own: None,
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether there is a bus: else a manager is only heard by its files.
    pub fn can_be_asked(&self) -> bool {
        self.bus.as_ref().is_some_and(|bus| !bus.is_dead())
    }

    pub fn are_present(&self) -> bool {
        !present(&self.root).is_empty()
    }

    /// Who configures this link, and what of its state is not that one's.
    pub fn managed(&mut self, state: &NicState) -> Option<Managed> {
        let by = self.configured_by(&state.netdev)?;
        let managed = Managed {
            by,
            foreign: self.foreign(by, state),
            config_files: self.config_files(by, &state.netdev),
            uuid: self.uuid(by, &state.netdev),
            activation: self.activation(by, &state.netdev),
        };
        // One that has given it nothing yet only tries: what the link has is not by it.
        let mut addresses = state.netdev.addresses.iter();
        let has_given = addresses.any(|a| a.valid_lft.is_none() && managed.owns_address(a));
        let is_tried = !has_given && self.is_activating(by, &state.netdev);
        (!is_tried).then_some(managed)
    }

    fn is_activating(&mut self, by: Manager, link: &Netdev) -> bool {
        let bus = self.network_manager(by);
        bus.is_some_and(|bus| network_manager::is_activating(bus, link))
    }

    fn uuid(&mut self, by: Manager, link: &Netdev) -> Option<String> {
        activation::uuid(self.network_manager(by)?, link).ok()
    }

    /// The bus, if `by` is NetworkManager.
    fn network_manager(&mut self, by: Manager) -> Option<&mut bus::Bus> {
        self.bus.as_mut().filter(|_| by == Manager::NetworkManager)
    }

    fn activation(&mut self, by: Manager, link: &Netdev) -> Option<String> {
        activation::activation(self.network_manager(by)?, link).ok()
    }

    /// Whether it still has the activation that it had before the NIC left.
    fn is_unaware(&mut self, managed: &Managed, link: &Netdev) -> bool {
        let was = managed.activation.as_ref();
        was.is_some_and(|was| self.activation(managed.by, link).as_ref() == Some(was))
    }

    /// What the manager of a NIC says that came to the host at `since`.
    pub fn word_of(&mut self, managed: &Managed, link: &Netdev, since: SystemTime) -> Word {
        match self.word(managed.by, link, since) {
            Word::Done if self.is_unaware(managed, link) => Word::DoneBefore,
            Word::Done => self.changed(managed, link).unwrap_or(Word::Done),
            Word::Idle if self.is_ended(managed.by, link) => Word::Ended,
            word => word,
        }
    }

    /// [`Word::Begun`], or with other files than before.
    pub fn begun_with(&mut self, managed: &Managed, link: &Netdev) -> Word {
        self.changed(managed, link).unwrap_or(Word::Begun)
    }

    /// Has the profile activated again that was active on a link. Whether its manager does that.
    pub fn activate(&mut self, managed: &Managed, link: &Netdev) -> bool {
        let (Some(uuid), Some(bus)) = (&managed.uuid, &mut self.bus) else {
            return false;
        };
        let is_active = activation::uuid(bus, link).is_ok_and(|active| active == *uuid);
        !is_active
            && !activation::is_ended(bus, link)
            && activation::activate(bus, link, uuid).is_ok()
    }

    /// Whether someone has ended what the manager of a link had active on it.
    pub fn is_ended(&mut self, by: Manager, link: &Netdev) -> bool {
        let bus = self.network_manager(by);
        bus.is_some_and(|bus| activation::is_ended(bus, link))
    }

    /// Which profiles it does not activate on a link that has none of them.
    pub fn ended_profiles(&mut self, link: &Netdev) -> Vec<String> {
        let bus = self.running_network_manager();
        bus.and_then(|bus| activation::ended(bus, link).ok())
            .unwrap_or_default()
    }

    /// Keeps a manager from a link that none had. What it says is as of [`Managers::word`].
    pub fn keep_off(&mut self, link: &Netdev, ended: &[String]) -> Word {
        let bus = self.running_network_manager();
        let word = bus.map_or(Word::Absent, |bus| activation::keep_off(bus, link, ended));
        once_udev_is_done(word, &self.root, link.ifindex)
    }

    fn running_network_manager(&mut self) -> Option<&mut bus::Bus> {
        let by = Manager::NetworkManager;
        let is_there = present(&self.root).contains(&by) && self.is_running(by) == Some(true);
        self.bus.as_mut().filter(|_| is_there)
    }

    /// Who gives this link its addresses; of the link, its name and index count.
    fn configured_by(&mut self, link: &Netdev) -> Option<Manager> {
        let all = [Manager::Networkd, Manager::NetworkManager];
        all.into_iter().find(|by| self.configures(*by, link))
    }

    /// Who has given a link its addresses, and does not only try to.
    pub fn has_configured(&mut self, link: &Netdev) -> Option<Manager> {
        let by = self.configured_by(link)?;
        (!self.is_activating(by, link)).then_some(by)
    }

    /// What `prepare` says of a link that a manager makes, and would again while a container has
    /// it: NetworkManager at once, networkd where it starts again (seen of 252 and 257).
    pub fn made_again(&mut self, link: &Netdev) -> Option<String> {
        let name = &link.name;
        let bus = self.running_network_manager();
        if bus.is_some_and(|bus| network_manager::remakes(bus, link).is_ok_and(|is| is)) {
            return Some(format!(
                "NetworkManager makes {name} again on the host, with the same addresses, while a \
                container has it: `nmcli connection modify \"$(nmcli -g GENERAL.CONNECTION device \
                show {name})\" connection.autoconnect no` keeps it from that; a stop has the \
                profile activated all the same"
            ));
        }
        let is_networkds = manages(&self.root, Manager::Networkd, link.ifindex)
            && networkd_config::makes(&self.root, name);
        is_networkds.then(|| {
            format!(
                "systemd-networkd makes {name} again on the host, with the same addresses, where \
                it starts again while a container has it"
            )
        })
    }

    /// What `prepare` says of a link that NetworkManager will not configure as it is now.
    pub fn modified(&mut self, link: &Netdev) -> Option<String> {
        let bus = self.running_network_manager()?;
        let names = applied::differences(bus, link).ok()?;
        let names = Vec::from_iter(names).join(", ");
        (!names.is_empty()).then(|| {
            format!(
                "{0} has other settings than its profile of NetworkManager ({names}), and gets \
                those of the profile when it is back from a container: `nmcli connection modify` \
                changes that",
                link.name
            )
        })
    }

    /// What `prepare` says of networkd's links that NetworkManager has not been kept off.
    pub fn watched_too(&mut self, links: &[&Netdev]) -> Option<String> {
        let mut watched = links.to_vec();
        watched.retain(|link| self.configured_by(link) == Some(Manager::Networkd));
        let bus = self.running_network_manager()?;
        watched.retain(|link| {
            let word = network_manager::word(bus, link);
            !matches!(word, Word::Unmanaged | Word::NotBegun)
        });
        let names: Vec<&str> = watched.iter().map(|link| link.name.as_str()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "systemd-networkd configures {}, and NetworkManager watches: unless it has \
                `no-auto-default`, it activates profiles of its own on NICs that are back from a \
                container, and deletes their addresses when no lease comes; \
                `unmanaged-devices+=interface-name:{}` below `[keyfile]` in a file in \
                /etc/NetworkManager/conf.d keeps it off",
                names.join(", "),
                names.join(";interface-name:")
            )
        })
    }

    fn configures(&mut self, by: Manager, link: &Netdev) -> bool {
        if !manages(&self.root, by, link.ifindex) || self.is_running(by) == Some(false) {
            return false;
        }
        match (by, &mut self.bus) {
            (Manager::NetworkManager, Some(bus)) => network_manager::configures(bus, link),
            _ => true,
        }
    }

    fn foreign(&mut self, by: Manager, state: &NicState) -> Option<Foreign> {
        let bus = self.bus.as_mut()?;
        match by {
            Manager::Networkd => {
                let own = known(&mut self.own, bus)?;
                networkd::foreign(bus, state, own).ok()
            }
            Manager::NetworkManager => network_manager::foreign(bus, state).ok(),
            Manager::Udev => None,
        }
    }

    /// What is of no link and networkd says it has made. Of a networkd that cannot be asked nothing
    /// is known.
    pub fn networkds(&mut self) -> Option<&networkd::Own> {
        let bus = self.bus.as_mut()?;
        known(&mut self.own, bus)
    }

    /// Nothing where there is no bus to ask.
    fn is_running(&mut self, manager: Manager) -> Option<bool> {
        let name = match manager {
            Manager::Networkd => networkd::NAME,
            Manager::NetworkManager => network_manager::NAME,
            Manager::Udev => return None,
        };
        self.bus.as_mut()?.has(name).ok()
    }

    /// Who has still to configure a link.
    pub fn at_work(&mut self, link: &Netdev) -> Option<Configuring> {
        let mut managers = [Manager::Networkd, Manager::NetworkManager].into_iter();
        managers.find_map(|by| {
            let awaits = self.awaits(by, link)?;
            Some(Configuring { by, awaits })
        })
    }

    fn awaits(&mut self, by: Manager, link: &Netdev) -> Option<Awaits> {
        let is_at_work = match self.word(by, link, SystemTime::UNIX_EPOCH) {
            Word::Configuring => true,
            Word::NotBegun => self.is_running(by) == Some(true),
            Word::Absent => {
                present(&self.root).contains(&by) && self.starts_within(by, starting::PATIENCE)
            }
            // networkd takes away what it gave a link when the carrier goes, and calls it
            // configured all the same (seen of 252 and 257).
            Word::Done => by == Manager::Networkd && link.up && !link.running,
            Word::Idle if self.is_ended(by, link) => return Some(Awaits::Connection),
            _ => false,
        };
        let mut bus = self.bus.as_mut().filter(|_| by == Manager::NetworkManager);
        let is_off = bus.as_deref_mut().is_some_and(network_manager::is_off);
        is_at_work.then(|| match link.running {
            _ if is_off => Awaits::Networking,
            true if lease::is_due(&self.root, bus, link) => Awaits::Lease,
            true => Awaits::Nothing,
            false => Awaits::Carrier,
        })
    }

    /// Whether networkd runs, which deletes rules that it has not made
    /// (ManageForeignRoutingPolicyRules= in networkd.conf(5)).
    pub fn may_delete_rules(&mut self) -> bool {
        present(&self.root).contains(&Manager::Networkd)
            && self.is_running(Manager::Networkd) != Some(false)
    }

    /// What the manager says of a link that came to the host at `since`; [`Word::NotBegun`], too,
    /// where it cannot be asked.
    pub fn word(&mut self, by: Manager, link: &Netdev, since: SystemTime) -> Word {
        if self.is_running(by) == Some(false) {
            return Word::Absent;
        }
        match (by, &mut self.bus) {
            (Manager::Networkd, bus) => {
                let word = networkd::word(&self.root, link.ifindex, since);
                let is_silent = word == Word::Configuring && bus.is_none();
                match is_silent && networkd::is_stalled(&self.root, link.ifindex) {
                    true => Word::Stalled,
                    false => word,
                }
            }
            (Manager::NetworkManager, Some(bus)) => {
                let word = network_manager::word(bus, link);
                once_udev_is_done(word, &self.root, link.ifindex)
            }
            _ => Word::NotBegun,
        }
    }
}

/// What is networkd's, asked for once.
fn known<'a>(own: &'a mut Option<networkd::Own>, bus: &mut bus::Bus) -> Option<&'a networkd::Own> {
    if own.is_none() {
        *own = networkd::own(bus).ok();
    }
    own.as_ref()
}

#[cfg(test)]
mod tests;
