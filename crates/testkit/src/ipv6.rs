//! What the kernel has still to do for IPv6 addresses. A work queue does it, at any time on a busy
//! machine.

use serde_json::Value;

use crate::until;

/// IPv6 addresses without their route in table local, where that shell runs. An address with nodad
/// is there before its route, and never tentative (addrconf_dad_start and addrconf_dad_work in
/// net/ipv6/addrconf.c). With `tentative`, also those that are, where there is a carrier.
pub fn unfinished(shell: impl Fn(&str) -> String, tentative: bool) -> Vec<String> {
    let json =
        |line: &str| -> Vec<Value> { serde_json::from_str(&shell(line)).unwrap_or_default() };
    // Of a VRF they are in another table; and a route that is too large ends the list of all.
    let mut routes = json("ip -j -6 route show table local type local");
    routes.extend(json("ip -j -6 route show table all type local"));
    let routed =
        |ip: &Value, dev: &Value| routes.iter().any(|r| &r["dst"] == ip && &r["dev"] == dev);
    let mut unfinished = Vec::new();
    for link in json("ip -j -6 address show up") {
        let carrier = link["flags"]
            .as_array()
            .is_some_and(|f| f.iter().any(|f| f == "LOWER_UP"));
        let waits = |a: &&Value| match (a["dadfailed"].is_null(), a["tentative"].is_null()) {
            (false, _) => false,
            (true, true) => !routed(&a["local"], &link["ifname"]),
            (true, false) => tentative && carrier,
        };
        let all = link["addr_info"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(waits);
        unfinished.extend(all.map(|a| a["local"].to_string()));
    }
    unfinished
}

/// Waits until all of them that are not tentative have their routes: before a test's first look.
pub fn settled(shell: impl Fn(&str) -> String) {
    until("each IPv6 address has its route", || {
        unfinished(&shell, false).is_empty()
    });
}
