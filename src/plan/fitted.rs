//! A plan's environment, as libraries, a release of NCCL or one container need it.

use std::collections::BTreeMap;

use nccl_rules::version::Version;

use crate::config::libraries::{Libraries, Library};
use crate::nccl_env::{self, Namespace, libraries};
use crate::plan::{Plan, hcas};

impl Plan {
    /// With the settings of these libraries, and without a GID index that none of them reads.
    pub fn for_libraries(mut self, libraries: &Libraries) -> Plan {
        self.libraries = libraries.clone();
        if !libraries::read_gids(libraries) {
            self.leave_index("the plan is for libraries that read none");
        }
        self.fit_libraries(&BTreeMap::new())
    }

    fn leave_index(&mut self, why: &str) {
        let ours = self.gid_index.take();
        self.no_gid_index = ours.map(|_| why.to_owned()).or(self.no_gid_index.take());
    }

    pub(super) fn fit_libraries(mut self, own: &BTreeMap<String, String>) -> Plan {
        let hcas = hcas(&self.nics, &self.ib, &self.ib_ports, self.nccl_version);
        let index = match (&self.no_gid_index, self.gid_index) {
            (Some(why), None) => Err(why.as_str()),
            (_, index) => Ok(index),
        };
        let unset = libraries::fit(&mut self.env, &self.libraries, own, hcas, index);
        self.unset
            .retain(|line| libraries::keeps(line, &self.libraries));
        self.unset.extend(unset);
        if !self.libraries.has(Library::Nccl) {
            let given = &self.libraries;
            let text = format!(
                "NCCL_IB_HCA: --libraries {given} leaves out all settings of NCCL; nccl,{given} \
                has both"
            );
            self.unset.push(text);
        }
        self
    }

    /// With a list of HCAs on which that release of NCCL does not crash, where one is named, now or
    /// before.
    pub fn for_release(mut self, named: Option<Version>) -> Plan {
        self.nccl_version = named.or(self.nccl_version);
        if let Some(release) = self.nccl_version {
            nccl_env::fit_unset(&mut self.unset, release);
            let hcas = hcas(&self.nics, &self.ib, &self.ib_ports, self.nccl_version);
            nccl_env::fit_release(&mut self.env, &BTreeMap::new(), hcas);
        }
        self
    }

    /// The plan as one container gets it, `own` being its environment: with the interface for
    /// NCCL's bootstrap, and without a GID index that it overrides, which then need not be proven.
    pub fn for_container(mut self, own: &BTreeMap<String, String>, namespace: Namespace) -> Plan {
        let hcas = hcas(&self.nics, &self.ib, &self.ib_ports, self.nccl_version);
        nccl_env::fit_container(&mut self.env, own, hcas, namespace);
        let index = own.get(nccl_env::GID_INDEX);
        let ours = self.gid_index.map(|ours| ours.to_string());
        if index.is_some() && index != ours.as_ref() {
            self.leave_index("the container has an NCCL_IB_GID_INDEX of its own");
        }
        self.fit_libraries(own)
    }
}
