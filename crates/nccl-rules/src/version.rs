//! Which release of NCCL reads the settings. Every rule that changed is a method here, with the
//! release from which on it holds; no other module compares numbers. The releases were found by
//! running the published libraries (`tests/interop/nccl_judge.rs`), or in the sources of the tags.

use rdma_model::escape::is_plain;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    major: u16,
    minor: u16,
    patch: u16,
}

impl Version {
    /// The newest release whose behaviour was compared with this module.
    pub const NEWEST: Version = Version::new(2, 32, 3);

    pub const SKIPS_UNTYPED: Version = Version::new(2, 26, 2);

    /// The oldest one of these.
    pub const OLDEST: Version = Version::new(2, 16, 2);

    pub const fn new(major: u16, minor: u16, patch: u16) -> Version {
        Version {
            major,
            minor,
            patch,
        }
    }

    const fn since(self, minor: u16, patch: u16) -> bool {
        self.major > 2
            || self.major == 2 && (self.minor > minor || self.minor == minor && self.patch >= patch)
    }

    pub const fn is_judged(self) -> bool {
        self.since(Version::OLDEST.minor, Version::OLDEST.patch)
    }

    /// The release as which one that was not judged is taken; nothing for a judged one.
    pub fn judged_as(self) -> Option<Version> {
        match self.is_judged() {
            true => (self > Version::NEWEST).then_some(Version::NEWEST),
            false => Some(Version::OLDEST),
        }
    }

    /// For sentences about a release.
    pub fn label(self) -> String {
        match self.judged_as() {
            None => self.to_string(),
            Some(other) => format!("{self} (not judged; as {other})"),
        }
    }

    /// `name:port:rail:plane`, with an empty field as if it were absent, and names cut to 63 bytes
    /// (src/misc/utils.cc, `parseStringList`). Before, all after the first `:` was one number, and
    /// longer names were written past a buffer.
    pub const fn splits_fields(self) -> bool {
        self.since(30, 7)
    }

    /// Entries of NCCL_IB_HCA that are read, and places for ports (MAX_IB_DEVS). All releases look
    /// before each HCA, and not before each port, whether there is room: the last HCA's second port
    /// is written past the places.
    pub const fn max_hcas(self) -> usize {
        if self.since(18, 5) { 32 } else { 16 }
    }

    /// What is written past the places comes out again: what lies there is not used before NCCL has
    /// listed its ports. 2.20 to 2.23 merge ports in between, and from 2.29.7 on devices are made
    /// of them: one HCA is taken for another, garbage for a port, or NCCL crashes.
    pub const fn lists_beyond(self) -> bool {
        !self.merges_ports() && !self.since(29, 7)
    }

    /// Two ports of a card, with one GUID and one link layer, become one device before topology is
    /// known (NCCL_IB_MERGE_NICS; src/transport/net_ib.cc, `ncclIbFindMatchingDev`). It compares
    /// PCI paths, and ends on one that is NULL.
    pub const fn merges_ports(self) -> bool {
        self.since(20, 3) && !self.since(24, 0)
    }

    /// Nothing is merged where some ports would be alone in their device, and others not.
    pub const fn merges_all_or_none(self) -> bool {
        self.since(22, 3)
    }

    /// A numeric variable without a digit is its default; before, 0 (seen in the library).
    pub const fn wants_digits(self) -> bool {
        self.since(32, 0)
    }

    /// A log line longer than its buffer of 1,024 bytes is cut; before, its end was written past it
    /// (src/debug.cc, `ncclDebugLog`).
    pub const fn cuts_log(self) -> bool {
        self.since(20, 3)
    }

    /// An interface must be IFF_RUNNING (src/os/linux.cc, `ncclOsFindInterfaces`).
    pub const fn wants_running(self) -> bool {
        self.since(28, 3)
    }

    /// virbr is among what the automatic choice avoids, and its last resort (src/misc/socket.cc,
    /// `ncclFindInterfaces`).
    pub const fn knows_virbr(self) -> bool {
        self.since(28, 3)
    }

    /// Of the networks, only that of NCCL_NET is initialized; before, each one was, with its
    /// settings (src/plugin/net.cc, `ncclNetInit`).
    pub const fn asks_by_name(self) -> bool {
        self.since(28, 7)
    }

    /// NCCL_NET_PLUGIN is a list, and an empty one is no plugin; before, a name, and an empty one
    /// the default (src/plugin/net.cc, `initPluginLibsOnceFunc`).
    pub const fn lists_plugins(self) -> bool {
        self.since(27, 3)
    }

    /// What NCCL_NET_PLUGIN names is a library itself; before, only the end of a library's name
    /// (src/net.cc, `openNetPluginLib`).
    pub const fn opens_named_plugin(self) -> bool {
        self.since(21, 5)
    }

    /// The first and the last interface of a plugin that is looked for: `ncclNetPlugin_vN`
    /// (src/net.cc, src/plugin/net.cc; the strings of the libraries).
    pub const fn plugin_interfaces(self) -> (u8, u8) {
        match () {
            () if self.since(30, 3) => (6, 12),
            () if self.since(28, 3) => (6, 11),
            () if self.since(26, 2) => (6, 10),
            () if self.since(24, 3) => (5, 9),
            () if self.since(20, 3) => (5, 8),
            () if self.since(19, 1) => (5, 7),
            () => (4, 6),
        }
    }

    /// HCAs are sorted by PCI address (NCCL_IB_DEVICE_PCI_ORDER; src/transport/net_ib/init.cc).
    pub const fn sorts_hcas(self) -> bool {
        self.since(29, 7)
    }

    /// IPv4 subnets are compared the wrong way round: NCCL_COMM_ID takes the first IPv4 address
    /// outside of its subnet (src/os/linux.cc, `matchSubnet`; NCCL's pull request 2047). All of
    /// 2.29 does it.
    pub const fn inverts_subnets(self) -> bool {
        self.since(29, 0) && !self.since(30, 0)
    }

    /// A NCCL_COMM_ID that cannot be read ends the automatic choice of interfaces; before, an
    /// address was used that nothing had set (src/misc/socket.cc, `ncclFindInterfaces`).
    pub const fn ends_at_bad_id(self) -> bool {
        self.since(27, 3)
    }

    /// NCCL_CONF_FILE is read (src/misc/param.cc, `initEnvFunc`).
    pub const fn knows_conf_file(self) -> bool {
        self.since(23, 4)
    }

    /// The modules that are looked for in memory_peers (src/transport/net_ib.cc,
    /// `ncclIbGdrSupport`).
    pub const fn memory_peers(self) -> [&'static str; 2] {
        match self.since(22, 3) {
            true => ["nv_mem", "nv_mem_nc"],
            false => ["nv_mem", "nvidia-peermem"],
        }
    }

    /// nvidia_peermem is looked for among the modules as well, not only in memory_peers
    /// (src/transport/net_ib.cc, `ncclIbGdrSupport`; NCCL's issue 1676).
    pub const fn knows_peermem(self) -> bool {
        self.since(23, 4)
    }

    /// `~/.nccl.conf` is that of $HOME, and there is none without it; before, that of the user
    /// database.
    pub const fn uses_home_variable(self) -> bool {
        self.since(30, 3)
    }

    /// A carriage return at the end of a config file's line is not part of the value.
    pub const fn strips_cr(self) -> bool {
        self.since(30, 3)
    }

    /// NCCL looks for a GID itself where no index is set; before, that was index 0
    /// (src/transport/net_ib.cc, `ncclIbGetGidIndex`; NCCL_IB_GID_INDEX was 0 by default).
    pub const fn finds_gid(self) -> bool {
        self.since(21, 5)
    }

    /// A GID whose type cannot be read, as that of an unused index, is passed over; before, each
    /// connection failed (src/transport/net_ib.cc, `ncclIbRoceGetVersionNum`; NCCL's issue 1573).
    pub const fn skips_untyped(self) -> bool {
        let from = Version::SKIPS_UNTYPED;
        self.since(from.minor, from.patch)
    }

    /// A NCCL_IB_ADDR_RANGE without a slash is written to beside a null pointer
    /// (src/transport/net_ib.cc, `envIbAddrRange`).
    pub const fn needs_slash(self) -> bool {
        self.since(21, 5) && !self.since(23, 4)
    }

    /// InfiniBand ports have a GID, for routers between subnets: NCCL_IB_ROUTABLE_FLID_GID_INDEX
    /// (src/transport/net_ib.cc, `ncclIbGetGidIndex`); before, LIDs alone.
    pub const fn knows_flid(self) -> bool {
        self.since(22, 3)
    }

    /// The GIDs of all ports are read at the start: where one cannot be, there is no NET/IB, and
    /// NCCL goes on over TCP (seen in the library).
    pub const fn reads_gids_at_start(self) -> bool {
        self.since(31, 0)
    }

    /// Without any interface the error is ncclInvalidUsage; before, ncclInternalError
    /// (src/bootstrap.cc, `bootstrapNetInit`).
    pub const fn calls_it_usage(self) -> bool {
        self.since(24, 3)
    }

    /// The ring by which ranks meet may go by a device of the network (NCCL_OOB_NET_ENABLE;
    /// src/bootstrap.cc, `netGetDevice`).
    pub const fn has_net_ring(self) -> bool {
        self.since(23, 4)
    }

    /// NCCL_NET_FORCE_MERGE is read (src/graph/topo.cc).
    pub const fn forces_merges(self) -> bool {
        self.since(24, 3)
    }

    /// NICs that it merges by itself and cannot are left apart; before, they ended it
    /// (src/graph/topo.cc, `ncclTopoMakeVnic`).
    pub const fn leaves_apart(self) -> bool {
        self.since(26, 2)
    }

    /// NICs of different NUMA nodes do not become one (src/graph/topo.cc, `ncclTopoGetVNicParent`).
    pub const fn wants_one_node(self) -> bool {
        self.since(30, 7)
    }

    /// The last digit of a NIC's PCI path is 0, those of its device with NCCL_IB_MERGE_VFS
    /// (`ncclIbGetPciPath`, not in 2.24 to 2.26).
    pub const fn edits_path(self) -> bool {
        self.since(27, 3)
    }

    /// NCCL_NET_MERGE_LEVEL may be P2C (src/graph/topo.cc, `nicPathKvList`).
    pub const fn knows_p2c(self) -> bool {
        self.since(27, 3)
    }

    /// NICs have rails and planes also where no list gives them any: the two ports of an HCA differ
    /// in their planes, as NICs of one name must not (seen with 2.32.3).
    pub const fn has_own_rails(self) -> bool {
        self.since(32, 0)
    }

    /// How many names of a group NCCL_NET_FORCE_MERGE has room for (NCCL_NET_MAX_DEVS_PER_NIC in
    /// src/include/nccl_net.h).
    pub const fn max_forced(self) -> usize {
        if self.since(30, 3) { 8 } else { 4 }
    }

    /// A NCCL_OOB_NET_IFNAME that fits no device ends NCCL; before, the first one was taken.
    pub const fn ends_without_ring(self) -> bool {
        self.since(24, 3)
    }

    /// NCCL_IB_SUBNET_AWARE_ROUTING is read (src/transport/net_ib/connect.cc).
    pub const fn routes_by_subnet(self) -> bool {
        self.since(30, 7)
    }

    /// NCCL_IBVERBS_LIB is opened before libibverbs' own names (src/misc/ibvsymbols.cc).
    pub const fn opens_named_verbs(self) -> bool {
        self.since(30, 3)
    }

    /// All failures to connect are counted together, by NCCL_SOCKET_RETRY_CNT (src/misc/socket.cc);
    /// before, by fixed numbers.
    pub const fn counts_retries(self) -> bool {
        self.since(24, 3)
    }
}

impl Default for Version {
    fn default() -> Self {
        Version::NEWEST
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// What may stand behind `-` or `+`.
fn is_word(text: &str) -> bool {
    !text.is_empty() && is_plain(text, b".")
}

impl FromStr for Version {
    type Err = anyhow::Error;

    /// As releases are written: NCCL's tags (`v2.30.7-1`), its Debian packages
    /// (`2.21.5-1+cuda12.4`), its log (`2.21.5+cuda12.4`) and PyPI (`2.26.2.post1`). What follows
    /// the third number is another build of the same source.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || format!("{text:?} is no release of NCCL, like {}", Version::NEWEST);
        let release = text.strip_prefix('v').unwrap_or(text);
        let (release, build) = release.split_at(release.find(['-', '+']).unwrap_or(release.len()));
        let (release, post) = release
            .split_once(".post")
            .map_or((release, None), |(r, post)| (r, Some(post)));
        let builds = build.split(['-', '+']).skip(1).all(is_word);
        let parts: Vec<&str> = release.split('.').collect();
        ensure!(
            builds && post.is_none_or(is_number) && parts.iter().all(|p| is_number(p)),
            wrong()
        );
        let numbers: Vec<u16> = parts
            .into_iter()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .with_context(wrong)?;
        let [major, minor, patch] = *numbers.as_slice() else {
            anyhow::bail!(wrong())
        };
        ensure!(
            major == 2,
            "{}: 2 is the only major number that is known",
            wrong()
        );
        Ok(Version {
            major,
            minor,
            patch,
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

rdma_model::serde_as_text!(Version);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_ordered_by_number() {
        let read = |t: &str| t.parse::<Version>().unwrap();
        assert!(read("2.9.9") < read("2.18.3") && read("2.18.3") < read("2.18.10"));
        assert_eq!(
            (
                read("2.28.2").wants_running(),
                read("2.28.3").wants_running()
            ),
            (false, true)
        );
        assert_eq!(
            (read("2.18.3").max_hcas(), read("2.18.5").max_hcas()),
            (16, 32)
        );
        assert_eq!(
            serde_json::to_string(&Version::NEWEST).unwrap(),
            "\"2.32.3\""
        );
    }

    #[test]
    fn releases_are_read_as_they_are_written() {
        for (text, release) in [
            ("2.30.7", "2.30.7"),
            ("v2.30.7", "2.30.7"),
            ("v2.30.7-1", "2.30.7"),
            ("2.30.7-1", "2.30.7"),
            ("2.26.2.post1", "2.26.2"),
            ("2.21.5+cuda12.4", "2.21.5"),
            ("2.21.5-1+cuda12.4", "2.21.5"),
        ] {
            assert_eq!(
                text.parse::<Version>().unwrap().to_string(),
                release,
                "{text}"
            );
        }
        for wrong in [
            "", "v", "2", "2.18", "2.18.3.1", "2.x.3", "3.0.0", "2.18.-3", "2.+18.3", "vv2.18.3",
            "2.18.3 ",
        ] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
        for wrong in [
            "2.18.3-",
            "2.18.3+",
            "2.18.3.post",
            "2.18.3.postx",
            "2.18.3rc1",
            "2.18.3+c/d",
            "2.18.99999",
            "V2.18.3",
        ] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }
}
