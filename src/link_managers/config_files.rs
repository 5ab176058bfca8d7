//! By which files a manager configures a link, and whether they are others by now.

use std::path::{Path, PathBuf};

use hmac_sha256::Hash as Sha256;
use rdma_model::ids::Hex;
use rdma_model::manager::{ConfigFiles, Managed, Manager};
use rdma_model::snapshot::Netdev;

use super::state_files::below;
use super::{Managers, Word, activation, applied, networkd, networkd_config};
use crate::disk::files;

impl Managers {
    /// The files by which it configures that link.
    pub(super) fn config_files(&mut self, by: Manager, link: &Netdev) -> Option<ConfigFiles> {
        let file = self.main_file(by, link)?;
        Some(ConfigFiles {
            digest: self.digest(by, &file)?,
            has_ipv6: self.has_ipv6(by, link, &file),
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

    /// By what NetworkManager has applied: its profile may have been edited since.
    fn has_ipv6(&mut self, by: Manager, link: &Netdev, file: &Path) -> bool {
        match (by, &mut self.bus) {
            (Manager::NetworkManager, Some(bus)) => applied::has_ipv6(bus, link).is_ok_and(|is| is),
            (Manager::Networkd, _) => {
                let texts = self.texts(by, file);
                texts.is_some_and(|texts| networkd_config::has_ipv6(&texts))
            }
            _ => false,
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
        let mut texts = vec![files::read_through(&below(&self.root, main)).ok()??];
        if by == Manager::Networkd {
            let drop_ins = networkd::drop_ins(&self.root, main)?;
            let read = drop_ins.iter().map(|file| files::read_through(file));
            texts.extend(read.map(|text| text.ok().flatten().unwrap_or_default()));
        }
        Some(texts)
    }

    /// [`Word::Changed`] if its files are not those by which a link was configured before, or if it
    /// has applied an edit of that time which switches IPv6 on. A profile that NetworkManager makes
    /// of what it finds on a link is no other one.
    pub(super) fn changed(&mut self, managed: &Managed, link: &Netdev) -> Option<Word> {
        let was = managed.config_files.as_ref()?;
        let file = self.main_file(managed.by, link)?;
        let is_same = self.digest(managed.by, &file)? == was.digest;
        let switches_ipv6_on = !was.has_ipv6 && self.has_ipv6(managed.by, link, &file);
        (!is_same || switches_ipv6_on).then_some(Word::Changed { switches_ipv6_on })
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Whether networkd would configure a NIC by other files after this was done to them.
    fn is_noticed(change: fn(&Path)) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for drop_ins in ["etc", "run"].map(|at| root.join(at).join("systemd/network/r0.network.d"))
        {
            fs::create_dir_all(drop_ins).unwrap();
        }
        fs::write(root.join("etc/systemd/network/r0.network"), "[Match]").unwrap();
        fs::write(root.join(DROP_IN), "[Route]").unwrap();
        let mut managers = Managers::of(root);
        let file = PathBuf::from("/etc/systemd/network/r0.network");
        let managed = Managed {
            by: Manager::Networkd,
            foreign: None,
            config_files: Some(ConfigFiles {
                digest: managers.digest(Manager::Networkd, &file).unwrap(),
                has_ipv6: true,
                file,
            }),
            uuid: None,
            activation: None,
        };
        assert!(!managers.will_change(&managed));
        change(root);
        managers.will_change(&managed)
    }

    const DROP_IN: &str = "run/systemd/network/r0.network.d/x.conf";
    const MASK: &str = "etc/systemd/network/r0.network.d/x.conf";

    #[test]
    fn drop_ins_count_by_name_and_folder() {
        let changes: [fn(&Path); 4] = [
            |root| fs::rename(root.join(DROP_IN), root.join("run/x.conf")).unwrap(),
            |root| fs::rename(root.join(DROP_IN), root.join(DROP_IN.to_owned() + ".off")).unwrap(),
            |root| symlink("/dev/null", root.join(MASK)).unwrap(),
            |root| {
                fs::write(root.join(MASK.to_owned() + ".swp"), [0xff]).unwrap();
                fs::create_dir(root.join(MASK.replace("x.", "y."))).unwrap();
                fs::write(root.join(DROP_IN), "").unwrap();
            },
        ];
        assert!(changes.into_iter().all(is_noticed));
        assert!(!is_noticed(|root| {
            fs::write(root.join(MASK.to_owned() + ".swp"), [0xff]).unwrap();
        }));
    }
}
