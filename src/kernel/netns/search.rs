//! Links of other network namespaces that sit on netdevs of this one: macvlans, ipvlans and VLANs of a NIC that a pod has. The
//! kernel lists them nowhere on this side (netdev_adjacent_sysfs_add() in net/core/dev.c links within a namespace alone), but
//! each names the device below: its index, and by IFLA_LINK_NETNSID the namespace in which that counts.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use rdma_model::snapshot::Stranger;

use crate::kernel::links::RouteSocket;
use crate::kernel::netns::{self, NAMED, Netns};

/// How long to look: there may be thousands of namespaces, and a container waits.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// A link of another namespace, which this value keeps open.
pub struct FoundLink {
    pub link: Stranger,
    delete: Box<dyn FnOnce() -> Result<()>>,
}

impl FoundLink {
    pub fn new(link: Stranger, delete: impl FnOnce() -> Result<()> + 'static) -> FoundLink {
        FoundLink { link, delete: Box::new(delete) }
    }

    /// Deletes it in its namespace.
    pub fn delete(self) -> Result<()> {
        (self.delete)()
    }
}

/// What was found, and whether all namespaces that a process has or `ip netns` keeps were searched.
#[derive(Default)]
pub struct Search {
    pub found: Vec<FoundLink>,
    /// A sentence where the search is not complete.
    pub gap: Option<String>,
}

impl Search {
    /// Links elsewhere that sit on netdevs of `home` with an index that `concerns`; `more` are namespaces that may have
    /// neither process nor name.
    pub fn new(home: &Netns, more: Option<Netns>, patience: Duration, concerns: impl Fn(u32) -> bool + Sync) -> Search {
        let deadline = Instant::now() + patience;
        let mut search = Search::default();
        let mut known = vec![home.inode()];
        if let Some(one) = more {
            known.push(one.inode());
            search.search_in(home, &one, "", &concerns, deadline);
        }
        for (path, other) in netns::others(&known) {
            if Instant::now() >= deadline {
                search.gap = Some(
                    "there are more network namespaces than could be searched for links on the NICs, such as macvlans"
                        .to_owned(),
                );
                break;
            }
            search.search_in(home, &other, &keeper(&path), &concerns, deadline);
        }
        search
    }

    /// A namespace that ends meanwhile takes its links along, and one that cannot be entered is none of ours. One whose links
    /// cannot be listed as a whole is a gap.
    fn search_in(
        &mut self,
        home: &Netns,
        other: &Netns,
        keeper: &str,
        concerns: &(impl Fn(u32) -> bool + Sync),
        deadline: Instant,
    ) {
        let Ok(seen) = other.visit(|| Ok(RouteSocket::open()?.strangers(home, concerns, deadline))) else { return };
        let (seen, why) = match seen {
            Ok((seen, true)) => (seen, None),
            Ok((seen, false)) => (seen, Some("they change all the time".to_owned())),
            Err(e) => (Vec::new(), Some(format!("{e:#}"))),
        };
        if let Some(why) = why {
            let whose = if keeper.is_empty() { "the container" } else { keeper };
            self.gap = Some(format!(
                "not all links of the network namespace of {whose} are known, such as macvlans on the NICs: {why}"
            ));
        }
        for stranger in seen {
            let Ok(netns) = other.again() else { continue };
            let link = Stranger { netns: other.inode(), keeper: keeper.to_owned(), ..stranger };
            let index = link.ifindex;
            let delete = move || netns.visit(|| Ok(RouteSocket::open()?.delete_index(index)?));
            self.found.push(FoundLink::new(link, delete));
        }
    }
}

fn keeper(path: &Path) -> String {
    let text = path.to_string_lossy();
    match text.strip_prefix("/proc/").and_then(|rest| rest.split('/').next()) {
        Some(pid) => format!("process {pid}"),
        None => text.strip_prefix(NAMED).map_or(text.to_string(), |name| format!("ip netns {}", &name[1..])),
    }
}
