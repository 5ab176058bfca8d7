use serde::{Deserialize, Serialize};

use crate::snapshot::{LinkOptions, Netdev};

/// Link settings that survive a namespace change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    pub mtu: u32,
    pub txqlen: u32,
    pub group: u32,
    pub promisc: bool,
    pub allmulti: bool,
    pub alias: Option<String>,
    /// What else; absent, as a part of it: left as it is.
    pub options: Option<LinkOptions>,
}

impl Settings {
    pub fn of(dev: &Netdev) -> Settings {
        Settings {
            mtu: dev.mtu,
            txqlen: dev.txqlen,
            group: dev.group,
            promisc: dev.promisc,
            allmulti: dev.allmulti,
            alias: dev.alias.clone(),
            options: dev.options.clone(),
        }
    }

    /// What makes a netdev what it was, out of what it is.
    pub fn back(was: &Netdev, now: &Netdev) -> Option<Settings> {
        let (mut wanted, mut there) = (Settings::of(was), Settings::of(now));
        if wanted.options.is_none() {
            there.options = None;
        }
        let differs = wanted != there;
        // The kernel forgets neighbours when it is given a broadcast address, be it the same.
        let broadcast = |s: &Settings| s.options.as_ref().and_then(|o| o.broadcast.clone());
        if let (true, Some(options)) =
            (broadcast(&wanted) == broadcast(&there), &mut wanted.options)
        {
            options.broadcast = None;
        }
        differs.then_some(wanted)
    }
}
