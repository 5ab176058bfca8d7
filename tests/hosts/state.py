"""What a host's network is, and how two of its states differ: it shares nothing with rdmaprep.

What only the administrator has made ("foreign") must be the same to the last attribute, and so must
links and their settings. What a manager or daemon owns must be the same in effect: it chooses
metrics and priorities again.
"""

import glob
import json
import subprocess
from collections import Counter
from dataclasses import dataclass

DAEMONS = {"zebra", "bgp", "ospf", "isis", "rip", "eigrp", "babel", "bird", "openr", "pbr"}
# What the kernel counts or derives, or what passes by itself.
PASSING = {
    "ifindex",
    "link_index",
    "link",
    "link_netnsid",
    "operstate",
    "flags",
    "cache",
    "expires",
    "stats64",
    "valid_life_time",
    "preferred_life_time",
    "tentative",
    "dynamic",
    "used",
    "addr_info",
    "parentbus",
    "parentdev",
    "permaddr",
}
# Of a link's flags, those that are set and not found out.
SET_FLAGS = {"UP", "NOARP", "ALLMULTI", "PROMISC", "MULTICAST"}
MAIN_PRIORITY = 32766
# NetworkManager takes a link-local address that goes as its link goes down for one that another host
# has, and the next one of its list in its place (nm-l3-ipv6ll.c of 1.42, "did not complete DAD"). It
# keeps that where the NIC is back before it has noticed that it was away.
CHOSEN = "a link-local address of NetworkManager's choice"
# Written by the kernel, or never readable.
UNREAD_SYSCTLS = ("/stable_secret", "/mc_forwarding", "/base_reachable_time", "/retrans_time")


@dataclass(frozen=True)
class Item:
    """One thing of a host. `exact` has every attribute, `effect` what a packet notices."""

    kind: str
    nic: str
    exact: str
    effect: str
    foreign_to_daemons: bool = True

    def __str__(self):
        return self.exact


class State:
    def __init__(self, items, settings):
        self.items = items
        self.settings = settings

    def exact(self):
        return Counter(i.exact for i in self.items)

    def unfinished(self):
        """Whether duplicate address detection is going on."""
        return any(" tentative" in i.effect for i in self.items)

    def __eq__(self, other):
        return self.exact() == other.exact() and self.settings == other.settings


def _json(command, prefix):
    text = subprocess.run(
        prefix + command.split(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    ).stdout
    return json.loads(text or b"[]")


def _words(attributes):
    """An object of `ip -j` as one line, in an order of its own."""
    words = []
    for key, value in sorted(attributes.items()):
        if key in PASSING or value in (None, [], {}, ""):
            continue
        words.append(
            key
            if value is True
            else f"{key} {value if isinstance(value, str) else json.dumps(value, sort_keys=True)}"
        )
    return " ".join(words)


def _links_and_addresses(prefix):
    items, links = [], {}
    for link in _json("ip -j -d addr show", prefix):
        if not link:
            continue
        name = link["ifname"]
        links[f"link {name}"] = (
            _words(link) + " " + ",".join(sorted(SET_FLAGS & set(link["flags"])))
        )
        for address in link.get("addr_info", []):
            if not address:
                continue
            to = f"{address['local']}/{address['prefixlen']}"
            peer = f" peer {address['address']}" if "address" in address else ""
            pending = "".join(
                f" {flag}" for flag in ("tentative", "dadfailed") if address.get(flag)
            )
            seen = CHOSEN if address.get("noprefixroute") and _is_link_local(to) else to
            effect = f"address {seen}{peer} dev {name}{pending}"
            rest = _words(
                {
                    k: v
                    for k, v in address.items()
                    if k not in ("local", "prefixlen", "family", "address")
                }
            )
            items.append(
                Item("address", name, f"address {to}{peer} dev {name}{pending} {rest}", effect)
            )
    return items, links


def _is_link_local(address):
    return address.startswith("fe80::") and not address.startswith("fe80::/")


def _leg(leg):
    via = leg.get("gateway") or leg.get("via", {}).get("host")
    return (
        (f"via {via} " if via else "")
        + f"dev {leg.get('dev')}"
        + (f" weight {leg['weight']}" if "weight" in leg else "")
    )


def _routes(family, prefix):
    items = []
    for route in _legs_of(_json(f"ip -j -d {family} route show table all", prefix), family):
        legs = route.get("nexthops") or [route]
        table = route.get("table", "main")
        kind = "" if route.get("type", "unicast") == "unicast" else route["type"] + " "
        way = " nexthop ".join(sorted(_leg(leg) for leg in legs)) if "dev" in legs[0] else ""
        source = f" src {route['prefsrc']}" if "prefsrc" in route else ""
        to = route["dst"]
        # It follows from the address.
        seen = CHOSEN if kind == "local " and _is_link_local(to) else to
        way = f"{way}{source} table {table}"
        effect = f"route {family} {kind}{seen} {way}"
        rest = {
            k: v
            for k, v in route.items()
            if k
            not in ("dst", "dev", "gateway", "table", "prefsrc", "nexthops", "type", "via", "nhid")
        }
        nics = ",".join(sorted({leg.get("dev", "") for leg in legs}))
        items.append(
            Item(
                "route",
                nics,
                f"route {family} {kind}{to} {way} {_words(rest)}",
                effect,
                route.get("protocol") not in DAEMONS,
            )
        )
    return items


def _legs_of(routes, family):
    """Each leg for itself where the kernel has it so: it joins IPv6 routes of the same metric,
    which a manager may have chosen for several NICs (fib6_add_rt2node() in net/ipv6/ip6_fib.c)."""
    for route in routes:
        if family != "-6" or "nhid" in route or "nexthops" not in route:
            yield route
            continue
        whole = {k: v for k, v in route.items() if k != "nexthops"}
        for leg in route["nexthops"]:
            weight = {} if leg.get("weight") == 1 else {"weight": leg.get("weight")}
            yield whole | {k: v for k, v in leg.items() if k != "weight"} | weight


def _rules(family, prefix):
    items = []
    for rule in _json(f"ip -j -d {family} rule", prefix):
        selector = {k: v for k, v in rule.items() if k not in ("priority", "protocol")}
        side = (
            "before"
            if rule["priority"] < MAIN_PRIORITY
            else "at" if rule["priority"] == MAIN_PRIORITY else "after"
        )
        effect = f"rule {family} {_rule(selector)} {side} main"
        exact = f"rule {family} {rule['priority']}: {_rule(selector)} proto {rule.get('protocol')}"
        items.append(Item("rule", rule.get("iif", rule.get("oif", "")), exact, effect))
    return items


def _rule(selector):
    """`from SOURCE …` as `ip rule` prints it."""
    left = dict(selector)
    words = ["not"] if left.pop("not", None) is not None else []
    for key, shown in (("src", "from"), ("dst", "to")):
        value, length = left.pop(key, None), left.pop(key + "len", None)
        if value is not None:
            words.append(f"{shown} {value}" + (f"/{length}" if length is not None else ""))
    table = left.pop("table", None)
    if left:
        words.append(_words(left))
    if table is not None:
        words.append(f"lookup {table}")
    return " ".join(words)


def _nexthops(prefix):
    objects = {n["id"]: n for n in _json("ip -j -d nexthop", prefix) if n}
    items = []
    for number, nexthop in objects.items():
        legs = [objects.get(member["id"], {}) for member in nexthop.get("group", [])] or [nexthop]
        way = " nexthop ".join(sorted(_leg(leg) for leg in legs))
        daemon = nexthop.get("protocol") in DAEMONS
        if daemon and "via" not in way:
            # Zebra's view of a NIC: no route has it.
            continue
        items.append(
            Item(
                "nexthop",
                nexthop.get("dev", ""),
                f"nexthop id {number} {way} {_words(nexthop)}",
                f"nexthop {way}",
                not daemon,
            )
        )
    return items


def _neighbours(prefix):
    items = []
    for neighbour in _json("ip -j neigh show nud permanent", prefix):
        text = f"neighbour {_words(neighbour)}"
        items.append(Item("neighbour", neighbour.get("dev", ""), text, text))
    return items


def _read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None


def settings_of(nics):
    """sysctls and device settings of these NICs."""
    settings = {}
    for nic in nics:
        paths = glob.glob(f"/proc/sys/net/*/conf/{nic}/*") + glob.glob(
            f"/proc/sys/net/*/neigh/{nic}/*"
        )
        paths += [
            f"/sys/class/net/{nic}/{name}"
            for name in ("gro_flush_timeout", "napi_defer_hard_irqs", "threaded")
        ]
        paths += glob.glob(f"/sys/class/net/{nic}/queues/*/[rx]ps_*")
        for path in paths:
            value = None if path.endswith(UNREAD_SYSCTLS) else _read(path)
            if value is not None:
                settings[path.removeprefix("/proc/sys/")] = value
    return settings


def look(nics, prefix=()):
    """The state of this host, and the settings of `nics`; or of the namespace that a command after
    `prefix` runs in."""
    prefix = list(prefix)
    items, settings = _links_and_addresses(prefix)
    if not nics:
        settings.clear()
    for family in ("-4", "-6"):
        items += _routes(family, prefix) + _rules(family, prefix)
    items += _nexthops(prefix) + _neighbours(prefix)
    items = _without_temporary(items)
    settings.update(settings_of(nics))
    return State(items, settings)


def _without_temporary(items):
    """The kernel replaces the addresses that it made for privacy, and their routes with them."""
    made = [i for i in items if i.kind == "address" and " temporary" in i.exact]
    gone = {i.exact.split()[1].split("/")[0] for i in made}
    kept = [i for i in items if i not in made]
    return [i for i in kept if i.kind != "route" or not gone & set(i.exact.split())]


def foreign_between(managed, whole):
    """What was added to what a manager had made."""
    return whole.exact() - managed.exact()


def differences(before, after, foreign, of_daemons):
    """What is lost, extra or changed, a line each.

    foreign: how often each thing, to the last attribute, is only the administrator's; None: all is.
    of_daemons: whether routing daemons' routes and nexthops are compared in effect all the same.
    """
    lines = []
    for name in sorted(set(before.settings) | set(after.settings)):
        old, new = before.settings.get(name), after.settings.get(name)
        if old != new:
            lines.append(f"changed {name}: {_shortened(old, new)}")

    left = list(after.items)

    def take(matches):
        for index, item in enumerate(left):
            if matches(item):
                return left.pop(index)
        return None

    strictly = Counter(foreign) if foreign is not None else None
    in_effect = []
    for item in before.items:
        daemons = of_daemons and not item.foreign_to_daemons
        if daemons or (strictly is not None and strictly[item.exact] == 0):
            in_effect.append(item)
            continue
        if strictly is not None:
            strictly[item.exact] -= 1
        if take(lambda other, item=item: other.exact == item.exact) is None:
            lines.append(f"lost    {item.exact}")
    for item in in_effect:
        # A daemon's nexthops are there for its routes, whose legs are compared; here only that
        # they do not grow.
        unneeded = item.kind == "nexthop" and not item.foreign_to_daemons
        if take(lambda other, item=item: other.effect == item.effect) is None and not unneeded:
            lines.append(f"lost    {item.effect}")
    lines += [f"extra   {item.exact}" for item in left]
    return lines


def _shortened(old, new):
    """Two long lines, without the words that both have."""
    if old is None or new is None or len(old) + len(new) < 80:
        return f"{old!r} => {new!r}"
    old_words, new_words = old.split(), new.split()
    return "{} => {}".format(
        " ".join(w for w in old_words if w not in new_words) or "-",
        " ".join(w for w in new_words if w not in old_words) or "-",
    )
