//! By which files a manager configures a link, and whether they are others by now.

use std::path::{Path, PathBuf};

use hmac_sha256::Hash as Sha256;
use rdma_model::ids::Hex;
use rdma_model::manager::{ConfigFiles, Managed, Manager};
use rdma_model::snapshot::Netdev;

use super::state_files::below;
use super::{Managers, Word, activation, networkd, networkd_config};
use crate::disk::files;

impl Managers {
    /// The files by which it configures that link.
    pub(super) fn config_files(&mut self, by: Manager, link: &Netdev) -> Option<ConfigFiles> {
        let file = self.main_file(by, link)?;
        Some(ConfigFiles {
            digest: self.digest(by, &file)?,
            ipv6: self.switches_ipv6(by, link, &file),
            file,
        })
    }

    fn main_file(&mut self, by: Manager, link: &Netdev) -> Option<PathBuf> {
        match (by, &mut self.bus) {
            (Manager::Networkd, _) => networkd::file(&self.root, link.ifindex),
            (Manager::NetworkManager, Some(bus)) => activation::profile(bus, link).ok(),
            _ => None,
        }
    }

    fn switches_ipv6(&mut self, by: Manager, link: &Netdev, file: &Path) -> Option<bool> {
        match (by, &mut self.bus) {
            (Manager::NetworkManager, Some(bus)) => activation::switches_ipv6(bus, link),
            (Manager::Networkd, _) => {
                networkd_config::has_ipv6(&self.texts(by, file)?).then_some(true)
            }
            _ => None,
        }
    }

    fn digest(&self, by: Manager, file: &Path) -> Option<Hex> {
        let mut digest = Sha256::new();
        for text in self.texts(by, file)? {
            digest.update(text);
        }
        Some(Hex(digest.finalize().to_vec()))
    }

    /// The main file's, and those of what adds to it.
    fn texts(&self, by: Manager, main: &Path) -> Option<Vec<String>> {
        let mut all = vec![below(&self.root, main)];
        if by == Manager::Networkd {
            all.extend(networkd::drop_ins(&self.root, main)?);
        }
        let texts = all.iter().map(|file| files::read_through(file).ok()?);
        texts.collect()
    }

    /// [`Word::Changed`] if its files are not those by which a link was configured before. A
    /// profile that NetworkManager makes of what it finds on a link is no other one.
    pub(super) fn changed(&mut self, managed: &Managed, link: &Netdev) -> Option<Word> {
        let was = managed.config_files.as_ref()?;
        let file = self.main_file(managed.by, link)?;
        if self.digest(managed.by, &file)? == was.digest {
            return None;
        }
        let ipv6 = self.switches_ipv6(managed.by, link, &file);
        let switches_ipv6 = ipv6.is_some() && ipv6 != was.ipv6;
        Some(Word::Changed { switches_ipv6 })
    }

    /// Whether it will configure a NIC that is away by other files than before.
    pub fn will_change(&mut self, managed: &Managed) -> bool {
        self.is_running(managed.by) != Some(false)
            && managed.config_files.as_ref().is_some_and(|was| {
                self.digest(managed.by, &was.file)
                    .is_none_or(|now| now != was.digest)
            })
    }
}
