"""The hosts: each function makes one, and says what it reaches and what an administrator adds."""
from dataclasses import dataclass
from typing import Callable, Optional

from host import FAR, FAR6


@dataclass
class Case:
    name: str
    set_up: Callable
    # The first is the one of a short run.
    suites: tuple
    quick: bool
    udev: bool
    rails: int
    shared_subnet: bool
    # A manager that writes whenever a NIC returns owns what is not foreign.
    is_managed: bool
    # Routes and nexthops of routing daemons are theirs.
    has_daemons: bool
    # Instead of the judge's own steps.
    steps: Optional[Callable]


CASES = {}


def case(*suites, quick=False, udev=False, rails=2, shared_subnet=False, managed=True, daemons=False, steps=None):
    def register(function):
        name = function.__name__.replace("_", "-")
        CASES[name] = Case(name, function, suites, quick, udev, rails, shared_subnet, managed, daemons, steps)
        return function
    return register


FOREIGN = """
ip rule add from 198.51.100.0/24 lookup 500 priority 900
ip -6 rule add from 2001:db8:f::/48 lookup 500 priority 900
ip route add 203.0.113.0/24 via 192.0.2.1 dev m0
ip route add 203.0.114.0/24 via 192.0.2.1 dev m0 proto static
ip route add 203.0.115.0/24 via 192.0.2.1 dev m0 table 500 proto 77
"""
FOREIGN_ON_R0 = """
ip address add 198.18.99.1/32 dev r0
ip route add 203.0.116.0/24 dev r0 scope link
ip route add 203.0.117.0/24 dev r0 scope link proto static table 300
ip route add 203.0.118.0/24 dev r0 scope link proto 77
"""


def networkd_static(i, priority="", network="", more=""):
    """A rail with an address and routes of each family, a table of its own, and rules that lead there."""
    return f"""[Match]
Name=r{i}
[Link]
MTUBytes=4200
[Network]
Address=198.18.{i}.10/24
Address=2001:db8:{i + 1}::10/64
LinkLocalAddressing=no
IPv6AcceptRA=no
{network}
[Route]
Destination=198.19.77.0/24
Gateway=198.18.{i}.1
Metric={50 + i}
[Route]
Destination=2001:db8:77::/48
Gateway=2001:db8:{i + 1}::1
Metric={50 + i}
[Route]
Gateway=198.18.{i}.1
Table={101 + i}
[Route]
Destination=198.18.{i}.0/24
Scope=link
PreferredSource=198.18.{i}.10
Table={101 + i}
[RoutingPolicyRule]
From=198.18.{i}.10
Table={101 + i}
{priority}
[RoutingPolicyRule]
From=2001:db8:{i + 1}::10
Family=ipv6
Table={101 + i}
{priority}
{more}"""


def reach_gateways(h, last=10):
    for i in range(len(h.rails)):
        h.reaches(f"198.18.{i}.{last}", f"198.18.{i}.1")
        h.reaches(f"198.18.{i}.{last}", FAR)


@case("bookworm", "trixie", quick=True, udev=True)
def networkd_rules_without_priority(h):
    h.m0_by_hand()
    h.gateways()
    h.networkd({f"10-r{i}.network": networkd_static(i) for i in range(2)})
    reach_gateways(h)
    h.reaches("2001:db8:1::10", "2001:db8:1::1")


@case("bookworm", "trixie", quick=True, rails=3, shared_subnet=True)
def networkmanager_without_route_metric(h):
    """Three ports in one subnet, each with a table and a rule."""
    h.m0_by_hand()
    h.on_fabric("ip address add 198.18.30.99/24 dev br0")
    h.network_manager([
        f"con-name r{i} ifname r{i} mtu 9000 ipv4.method manual ipv4.addresses 198.18.30.{36 + i}/24"
        f" ipv4.routes '198.18.30.0/24 table={101 + i} src=198.18.30.{36 + i}'"
        f" ipv4.routing-rules 'priority 32761 from 198.18.30.{36 + i} table {101 + i}' ipv6.method disabled"
        for i in range(3)])
    for i in range(3):
        h.reaches(f"198.18.30.{36 + i}", "198.18.30.99")
    h.foreign("for r in r0 r1 r2; do sysctl -qw net.ipv4.conf.$r.arp_ignore=2 net.ipv4.conf.$r.arp_announce=1"
              " net.ipv4.conf.$r.arp_filter=1 net.ipv4.conf.$r.rp_filter=0; done")
