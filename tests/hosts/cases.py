"""The hosts: each function makes one, and says what it reaches and what an administrator adds."""

import re
from dataclasses import dataclass
from typing import Callable, Optional

import steps
from host import FAR, FAR6, Daemon, sh, wait_for, write


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
    # How long each container lives, in seconds.
    stay: int
    # Instead of the judge's own steps.
    run: Optional[Callable]


CASES = {}


def case(
    *suites,
    quick=False,
    udev=False,
    rails=2,
    shared_subnet=False,
    managed=True,
    daemons=False,
    stay=0,
    run=None,
):
    def register(function):
        name = function.__name__.replace("_", "-")
        CASES[name] = Case(
            name, function, suites, quick, udev, rails, shared_subnet, managed, daemons, stay, run
        )
        return function

    return register


FOREIGN = """
ip rule add from 198.51.100.0/24 lookup 500 priority 900
ip rule add from 198.51.101.0/24 lookup 500 priority 901 proto static
ip -6 rule add from 2001:db8:f::/48 lookup 500 priority 900
ip route add 203.0.113.0/24 via 192.0.2.1 dev m0
ip route add 203.0.114.0/24 via 192.0.2.1 dev m0 proto static
ip route add 203.0.115.0/24 via 192.0.2.1 dev m0 table 500 proto 77
ip route add blackhole 203.0.119.0/24
ip route add unreachable 203.0.120.0/24 proto static
ip route add prohibit 203.0.121.0/24 proto 80 metric 7
ip route add throw 203.0.122.0/24 table 500
ip -6 route add blackhole 2001:db8:fb::/48
ip -6 route add unreachable 2001:db8:fc::/48 proto static
ip nexthop add id 100 via 192.0.2.1 dev m0
ip nexthop add id 101 via 192.0.2.2 dev m0
ip nexthop add id 103 blackhole
ip nexthop add id 110 group 100/101,2
ip route add 203.0.123.0/24 nhid 110
ip route add 203.0.124.0/24 nhid 110 proto static table 500
ip route add 203.0.125.0/24 nhid 103
"""
FOREIGN_ON_R0 = """
ip address add 198.18.99.1/32 dev r0
ip route add 203.0.116.0/24 dev r0 scope link
ip route add 203.0.117.0/24 dev r0 scope link proto static table 300
ip route add 203.0.118.0/24 dev r0 scope link proto 77
"""


ARP_SETTINGS = """for r in {}; do
  conf=net.ipv4.conf.$r
  sysctl -qw $conf.arp_ignore=2 $conf.arp_announce=1 $conf.arp_filter=1 $conf.rp_filter=0
done
"""


def netplan(ethernets):
    return f"network:\n  version: 2\n  renderer: networkd\n  ethernets:{ethernets}\n"


def networkd_static(i, priority="", network="", more=""):
    """A rail with an address and routes of each family, a table of its own, and rules that lead
    there."""
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


# systemd-networkd, and netplan's files for it.


@case("bookworm", "trixie", quick=True, udev=True)
def networkd_rules_without_priority(h):
    h.m0_by_hand()
    h.gateways()
    h.networkd({f"10-r{i}.network": networkd_static(i) for i in range(2)})
    reach_gateways(h)
    h.reaches("2001:db8:1::10", "2001:db8:1::1")


@case("trixie", "bookworm", run=steps.bus_ended_while_away)
def networkd_bus_ends_while_away(h):
    h.m0_by_hand()
    h.gateways()
    h.networkd({f"10-r{i}.network": networkd_static(i) for i in range(2)})
    h.foreign(FOREIGN)
    reach_gateways(h)


@case("trixie", "bookworm")
def netplan_rules_without_priority(h):
    """B1 with the real networkd, and without a udevd."""
    h.m0_by_hand()
    h.gateways()
    h.netplan(netplan("".join(f"""
    r{i}:
      addresses: [198.18.{i}.10/24]
      routes:
        - {{to: 198.19.77.0/24, via: 198.18.{i}.1, table: {151 + i}}}
      routing-policy:
        - {{from: 198.18.{i}.10, table: {151 + i}}}""" for i in range(2))))
    reach_gateways(h)


@case("trixie", "bookworm", "forky", udev=True, rails=3, shared_subnet=True)
def netplan_one_subnet_with_tables(h):
    one_subnet_with_tables(h)


@case(
    "bookworm",
    "trixie",
    quick=True,
    rails=3,
    shared_subnet=True,
    run=steps.manager_ended_while_away,
)
def netplan_rules_and_networkd_ends_while_away(h):
    one_subnet_with_tables(h)


def one_subnet_with_tables(h):
    """Three ports in one subnet: a table for each, rules with priority, ARP settings by an
    administrator."""
    h.m0_by_hand()
    h.on_fabric("ip address add 198.18.30.1/24 dev br0")
    h.netplan(netplan("".join(f"""
    r{i}:
      addresses: [198.18.30.{10 + i}/24]
      mtu: 9000
      link-local: []
      routes:
        - {{to: 198.18.30.0/24, scope: link, from: 198.18.30.{10 + i}, table: {101 + i}}}
        - {{to: default, via: 198.18.30.1, table: {101 + i}}}
      routing-policy:
        - {{from: 198.18.30.{10 + i}, table: {101 + i}, priority: {2000 + i}}}
        - {{to: 198.18.31.{i}/32, table: {101 + i}, priority: {2010 + i}}}""" for i in range(3))))
    for i in range(3):
        h.reaches(f"198.18.30.{10 + i}", "198.18.30.1")
        h.reaches(f"198.18.30.{10 + i}", FAR)
    h.foreign(ARP_SETTINGS.format("r0 r1 r2"))


@case("bookworm", "forky", udev=True)
def networkd_point_to_point_31(h):
    h.m0_by_hand()
    for i in range(2):
        h.on_fabric(f"ip address add 198.18.{i}.0/31 dev pr{i}")
    h.networkd({f"10-r{i}.network": f"""[Match]
Name=r{i}
[Link]
MTUBytes=9000
[Network]
Address=198.18.{i}.1/31
LinkLocalAddressing=no
[Route]
Destination=198.18.0.0/15
Gateway=198.18.{i}.0
Metric={100 + i}
[Route]
Destination=198.18.0.0/15
Gateway=198.18.{i}.0
Table={101 + i}
[RoutingPolicyRule]
From=198.18.{i}.1
Table={101 + i}
Priority={1000 + i}
""" for i in range(2)})
    for i in range(2):
        h.reaches(f"198.18.{i}.1", f"198.18.{i}.0")
        h.reaches(f"198.18.{i}.1", FAR)


@case("trixie")
def netplan_host_address_with_on_link_routes(h):
    """A /32 on each rail, and routes to the fabric through a gateway that is in no subnet of the
    host's."""
    h.m0_by_hand()
    for i in range(2):
        h.on_fabric(
            f"ip address add 198.18.{i}.1/32 dev pr{i}; ip route add 198.18.{i}.10/32 dev pr{i}"
        )
    h.netplan(netplan("".join(f"""
    r{i}:
      addresses: [198.18.{i}.10/32]
      routes:
        - {{to: 198.18.{i}.1/32, scope: link}}
        - {{to: 198.19.77.{i}/32, via: 198.18.{i}.1, on-link: true}}
        - {{to: 198.19.77.0/24, via: 198.18.{i}.1, on-link: true, table: {201 + i}}}
      routing-policy:
        - {{from: 198.18.{i}.10/32, table: {201 + i}, priority: {500 + i}}}""" for i in range(2))))
    reach_gateways(h)


@case("bookworm", "trixie", quick=True)
def networkd_dhcp(h):
    """A1 with the real networkd: a lease, and routes by what the lease says."""
    networkd_dhcp_rails(h)


def networkd_dhcp_rails(h):
    h.m0_by_hand()
    h.gateways()
    h.dhcp_server()
    h.networkd({f"10-r{i}.network": f"""[Match]
Name=r{i}
[Network]
DHCP=ipv4
LinkLocalAddressing=no
[DHCPv4]
RouteMetric={600 + i}
UseHostname=no
ClientIdentifier=mac
[Route]
Gateway=_dhcp4
Table={101 + i}
[RoutingPolicyRule]
From=198.18.{i}.4
Table={101 + i}
Priority={1000 + i}
""" for i in range(2)})
    h.prepare_flags = ["--freeze-lifetimes"]
    reach_gateways(h, 4)


@case("bookworm", "trixie", udev=True, quick=True, run=steps.dhcp_server_dead)
def networkd_dhcp_server_dead(h):
    networkd_dhcp_rails(h)


@case("trixie", "bookworm")
def netplan_critical_dhcp(h):
    """netplan's `critical`, which is networkd's KeepConfiguration."""
    h.m0_by_hand()
    h.gateways()
    h.dhcp_server()
    h.netplan(netplan("".join(f"""
    r{i}:
      critical: true
      dhcp4: true
      dhcp4-overrides: {{route-metric: {600 + i}}}
      mtu: 4200""" for i in range(2))))
    h.prepare_flags = ["--freeze-lifetimes"]
    for i in range(2):
        h.reaches(f"198.18.{i}.4", f"198.18.{i}.1")


@case("bookworm", "trixie", shared_subnet=True)
def networkd_ipv4_link_local(h):
    h.m0_by_hand()
    h.on_fabric("ip address add 169.254.200.1/16 dev br0 scope link")
    h.networkd(
        {
            f"10-r{i}.network": f"[Match]\nName=r{i}\n[Network]\nLinkLocalAddressing=ipv4\n"
            for i in range(2)
        }
    )
    h.reaches("", "169.254.200.1", ("r0", "r1"))


@case("trixie", "bookworm", udev=True)
def networkd_router_advertisements(h, more=""):
    h.m0_by_hand()
    h.gateways()
    h.router_advertisements()
    text = "[Network]\nIPv6AcceptRA=yes\n" + more
    h.networkd({f"10-r{i}.network": f"[Match]\nName=r{i}\n{text}" for i in range(2)})
    h.prepare_flags = ["--family", "6", "--freeze-lifetimes"]
    for i in range(2):
        h.reaches("", f"2001:db8:{i + 1}::1")
    h.reaches("", FAR6, ("r0", "r1"))


@case("trixie", "bookworm", udev=True)
def networkd_privacy_addresses(h):
    """The kernel makes temporary addresses, which no plan and no record has."""
    networkd_router_advertisements(h, "IPv6PrivacyExtensions=yes\n")


@case("bookworm", "trixie")
def networkd_multipath(h):
    """One route over both rails: with one of them away, the other one still leads there."""
    h.m0_by_hand()
    h.gateways()
    h.networkd(
        {
            f"10-r{i}.network": f"""[Match]
Name=r{i}
[Network]
Address=198.18.{i}.10/24
"""
            + (
                """[Route]
Destination=198.19.77.0/24
MultiPathRoute=198.18.0.1@r0 10
MultiPathRoute=198.18.1.1@r1 10
"""
                if i == 1
                else ""
            )
            for i in range(2)
        }
    )
    h.reaches("198.18.0.10", "198.18.0.1")
    h.reaches("198.18.1.10", "198.18.1.1")
    h.reaches("", FAR, ("r0", "r1"))


@case("bookworm", "trixie", "forky", quick=True, udev=True)
def networkd_beside_foreign_rules(h):
    """E1: with its defaults, networkd deletes every rule that is not its own when it takes a NIC.
    """
    h.m0_by_hand()
    h.gateways()
    h.networkd({f"10-r{i}.network": networkd_static(i, f"Priority={3000 + i}") for i in range(2)})
    reach_gateways(h)
    h.foreign(FOREIGN + FOREIGN_ON_R0)


@case("trixie", udev=True)
def networkd_that_keeps_foreign_rules(h):
    h.m0_by_hand()
    h.gateways()
    write(
        "/etc/systemd/networkd.conf.d/foreign.conf",
        "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n",
    )
    h.networkd(
        {
            f"10-r{i}.network": networkd_static(
                i, f"Priority={3000 + i}", "KeepConfiguration=static"
            )
            for i in range(2)
        }
    )
    reach_gateways(h)
    h.foreign(FOREIGN + FOREIGN_ON_R0)


# Writes networkd's file for a NIC that has come, and takes it away after it has gone.
WITH_THE_NIC = """#!/bin/sh
exec 9> /run/hook.lock; flock 9
case $1 in
  add) sleep 0.5; mkdir -p /run/systemd/network; cp "/srv/$2.network" "/run/systemd/network/70-$2.network" ;;
  remove) sleep 0.3; [ ! -e "/sys/class/net/$2" ] || exit 0; rm -f "/run/systemd/network/70-$2.network" ;;
esac
networkctl reload
"""
WITH_THE_NIC_RULE = (
    'ACTION=="add|remove", SUBSYSTEM=="net", KERNEL=="r[0-9]", '
    "RUN+=\"/bin/sh -c 'setsid /srv/hook $env{ACTION} $name > /dev/null 2>&1 &'\"\n"
)


@case("trixie", "bookworm", udev=True)
def networkd_files_that_come_with_the_nic(h):
    """As amazon-ec2-net-utils writes them: until then networkd says that it leaves the NIC alone."""
    h.m0_by_hand()
    h.gateways()
    for i in range(2):
        write(f"/srv/r{i}.network", networkd_static(i, f"Priority={3000 + i}"))
    write("/srv/hook", WITH_THE_NIC, 0o755)
    h.networkd({})
    write("/etc/udev/rules.d/90-hook.rules", WITH_THE_NIC_RULE)
    sh("udevadm control --reload; /srv/hook add r0; /srv/hook add r1")
    reach_gateways(h)
    h.foreign(FOREIGN_ON_R0)


@case("trixie", "bookworm", udev=True, run=steps.without_carrier)
def networkd_without_carrier(h):
    h.m0_by_hand()
    h.gateways()
    h.networkd({f"10-r{i}.network": networkd_static(i) for i in range(2)})
    reach_gateways(h)


@case("trixie", "bookworm", run=steps.held_back_before_its_manager_begins)
def networkd_begins_after_a_failed_stop(h):
    """What it deletes then is remembered until it has begun. While it is silent, a rule of its
    protocol is taken for one of its own."""
    h.m0_by_hand()
    h.gateways()
    h.networkd({f"10-r{i}.network": networkd_static(i, f"Priority={3000 + i}") for i in range(2)})
    reach_gateways(h)
    lines = FOREIGN.splitlines()
    h.foreign("\n".join(line for line in lines if not re.match("ip rule.* proto static", line)))


DROPPED = "ip route show 198.19.77.0/24 dev r0; ip -6 rule show from 2001:db8:1::10"


@case(
    "bookworm",
    "trixie",
    quick=True,
    udev=True,
    run=lambda judge: steps.reconfigured_while_away(
        judge,
        "cd /etc/systemd/network; cp 10-r0.network /run/before; sed -zi"
        r" -e 's/\[Route\]\nDestination=198.19.77[^[]*//'"
        r" -e 's/\[RoutingPolicyRule\]\nFrom=2001[^[]*//' 10-r0.network;"
        " networkctl reload",
        DROPPED,
        "cp /run/before /etc/systemd/network/10-r0.network; networkctl reload",
    ),
)
def networkd_profile_changed_while_away(h):
    h.m0_by_hand()
    h.gateways()
    h.networkd({f"10-r{i}.network": networkd_static(i, f"Priority={3000 + i}") for i in range(2)})
    reach_gateways(h)


CHANGED = r"""
[ "$(cat /sys/class/net/r0/mtu)" = 5000 ] || echo "the MTU is $(cat /sys/class/net/r0/mtu)"
[ "$(cat /proc/sys/net/ipv4/conf/r0/accept_local)" = 0 ] || echo "accept_local is as before"
ip nexthop show id 40 2>&1 | grep -v "No such" || true
ip route show 203.0.113.0/24 || true
ip neighbour show 198.18.0.88 dev r0 nud permanent
ip neighbour show 198.18.0.89 dev r0 nud permanent | grep -q . || echo "198.18.0.89 has gone"
"""


@case(
    "trixie",
    "bookworm",
    udev=True,
    run=lambda judge: steps.reconfigured_while_away(
        judge,
        "cd /etc/systemd/network; cp 10-r0.network /run/before; sed -zi"
        r" -e 's/MTUBytes=4200/MTUBytes=5000/' -e 's/AcceptLocal=yes/AcceptLocal=no/'"
        r" -e 's/\[NextHop\][^[]*//' -e 's/\[Route\]\nDestination=203[^[]*//'"
        r" -e 's/\[Neighbor\][^[]*//' 10-r0.network;"
        " networkctl reload",
        CHANGED,
        "cp /run/before /etc/systemd/network/10-r0.network; networkctl reload; sleep 1;"
        " ip neighbour replace 198.18.0.89 lladdr 02:00:00:00:00:89 dev r0",
    ),
)
def networkd_settings_changed_while_away(h):
    h.m0_by_hand()
    h.gateways()
    more = "[NextHop]\nId=40\nGateway=198.18.0.77\n[Route]\nDestination=203.0.113.0/24\nNextHop=40\n"
    more += "[Neighbor]\nAddress=198.18.0.88\nLinkLayerAddress=02:00:00:00:00:88\n"
    more += "[Network]\nIPv4AcceptLocal=yes\n"
    first = networkd_static(0, "Priority=3000", more=more)
    second = networkd_static(1, "Priority=3001")
    h.networkd({"10-r0.network": first, "10-r1.network": second})
    h.foreign("ip neighbour add 198.18.0.89 lladdr 02:00:00:00:00:89 dev r0")
    reach_gateways(h)


def wrong_ipv6(*off):
    """Prints what is not as these values of disable_ipv6, one for each rail."""
    return "\n".join(
        f"[ $(cat /proc/sys/net/ipv6/conf/r{i}/disable_ipv6) = {value} ] || echo r{i} is not {value}"
        for i, value in enumerate(off)
    )


@case(
    "trixie",
    "bookworm",
    "forky",
    run=lambda judge: steps.reconfigured_while_away(
        judge,
        "cd /etc/systemd/network; sed -i s/LinkLocalAddressing=no/LinkLocalAddressing=ipv6/"
        " 10-r0.network; echo IPv4AcceptLocal=yes >> 10-r1.network; networkctl reload",
        wrong_ipv6(0, 1),
        "cd /etc/systemd/network; sed -i s/LinkLocalAddressing=ipv6/LinkLocalAddressing=no/"
        " 10-r0.network; sed -i /IPv4AcceptLocal/d 10-r1.network; networkctl reload; sleep 1;"
        " sysctl -qw net.ipv6.conf.r0.disable_ipv6=1 net.ipv4.conf.r1.accept_local=0",
    ),
)
def networkd_ipv6_switched_on_while_away(h):
    """An administrator's own setting stays where the files say nothing of IPv6."""
    h.m0_by_hand()
    h.gateways()
    text = "[Match]\nName=r{0}\n[Network]\nAddress=198.18.{0}.10/24\nLinkLocalAddressing=no\n"
    h.networkd({f"10-r{i}.network": text.format(i) for i in range(2)})
    h.foreign("sysctl -qw net.ipv6.conf.r0.disable_ipv6=1 net.ipv6.conf.r1.disable_ipv6=1")
    for i in range(2):
        h.reaches(f"198.18.{i}.10", f"198.18.{i}.1")


@case("trixie", "bookworm", run=steps.said_without_carrier)
def networkd_said_without_carrier(h):
    h.m0_by_hand()
    h.gateways()
    h.networkd({f"10-r{i}.network": networkd_static(i) for i in range(2)})


# NetworkManager.


@case("bookworm", "trixie", quick=True, rails=3, shared_subnet=True)
def networkmanager_without_route_metric(h):
    """Three ports in one subnet, each with a table and a rule."""
    h.m0_by_hand()
    h.on_fabric("ip address add 198.18.30.99/24 dev br0")
    h.network_manager(
        [
            f"con-name r{i} ifname r{i} mtu 9000 ipv4.method manual ipv4.addresses"
            f" 198.18.30.{36 + i}/24"
            f" ipv4.routes '198.18.30.0/24 table={101 + i} src=198.18.30.{36 + i}'"
            f" ipv4.routing-rules 'priority 32761 from 198.18.30.{36 + i} table {101 + i}'"
            f" ipv6.method disabled"
            for i in range(3)
        ]
    )
    for i in range(3):
        h.reaches(f"198.18.30.{36 + i}", "198.18.30.99")
    h.foreign(ARP_SETTINGS.format("r0 r1 r2"))


@case("bookworm", "trixie", shared_subnet=True, run=steps.said_of_preferences)
def networkmanager_said_of_preferences(h):
    h.m0_by_hand()
    h.network_manager(
        [
            f"con-name 'rail {i}' ifname r{i} ipv4.method manual ipv4.addresses"
            f" 198.18.30.{36 + i}/24 ipv6.method disabled"
            for i in range(2)
        ]
    )


def networkmanager_static(i, more="", name=""):
    return (
        f"con-name {name or f'r{i}'} ifname r{i} mtu 4200 ipv4.method manual ipv4.addresses"
        f" 198.18.{i}.10/24"
        f" ipv4.routes '198.19.77.0/24 198.18.{i}.1, 0.0.0.0/0 198.18.{i}.1 table={101 + i}'"
        f" ipv4.routing-rules 'priority {3000 + i} from 198.18.{i}.10 table {101 + i}'"
        f" ipv6.method manual ipv6.addresses 2001:db8:{i + 1}::10/64 ipv6.routes"
        f" '2001:db8:77::/48 2001:db8:{i + 1}::1'"
        f" ipv6.routing-rules 'priority {3000 + i} from 2001:db8:{i + 1}::10 table {101 + i}'"
        f" {more}"
    )


@case("trixie", "bookworm", run=steps.said_of_network_manager)
def networkmanager_said_of_an_absent_address(h):
    h.m0_by_hand()
    h.gateways()
    h.network_manager([networkmanager_static(i) for i in range(2)])


@case("trixie", "bookworm", run=steps.deleted_while_a_nic_waits)
def networkmanager_waits_beside_networkd(h):
    """networkd begins with none of these NICs: a rule that goes while they wait is an
    administrator's doing."""
    h.m0_by_hand()
    h.gateways()
    h.networkd({}, [])
    h.network_manager([networkmanager_static(i) for i in range(2)])
    reach_gateways(h)
    h.foreign(FOREIGN)


@case("bookworm", "trixie", "forky", udev=True)
def networkmanager_beside_foreign_things(h):
    h.m0_by_hand()
    h.gateways()
    h.network_manager([networkmanager_static(i) for i in range(2)])
    reach_gateways(h)
    h.reaches("2001:db8:1::10", "2001:db8:1::1")
    h.foreign(FOREIGN + FOREIGN_ON_R0)


@case("bookworm", "trixie")
def networkmanager_changed_at_run_time(h):
    """What `nmcli device modify` adds is in no profile."""
    h.m0_by_hand()
    h.gateways()
    h.network_manager([networkmanager_static(i) for i in range(2)])
    reach_gateways(h)
    h.foreign(
        "nmcli device modify r0 +ipv4.addresses '198.18.0.77/32, 198.18.60.77/24'"
        " +ipv4.routes '203.0.113.0/24 198.18.0.1, 203.0.114.0/24 198.18.0.1 table=101'"
        " +ipv4.routing-rules 'priority 3100 from 198.18.0.77 table 101,"
        " priority 3101 from 198.18.50.0/24 table 101, priority 3102 to 203.0.113.9 table main'"
        " +ipv6.addresses 2001:db8:1::77/128"
    )


@case("trixie", "bookworm", run=steps.other_than_its_profile)
def networkmanager_other_than_its_profile(h):
    h.m0_by_hand()
    h.gateways()
    h.network_manager([networkmanager_static(i) for i in range(2)])
    reach_gateways(h)
    h.foreign("nmcli device modify r0 +ipv4.routes '203.0.113.0/24 198.18.0.1'")


@case("bookworm", "trixie", quick=True, run=steps.manager_too_busy_to_notice)
def networkmanager_too_busy_to_notice(h):
    h.m0_by_hand()
    h.gateways()
    h.network_manager([networkmanager_static(i) for i in range(2)])
    reach_gateways(h)


@case("trixie", "bookworm", run=steps.profile_that_only_tries)
def networkmanager_address_by_hand_beside_a_try(h):
    """The profile waits for a lease; the addresses are an administrator's."""
    h.m0_by_hand()
    h.network_manager(
        [
            f"con-name r{i} ifname r{i} ipv4.method auto ipv4.dhcp-timeout 2147483647"
            " ipv6.method disabled"
            for i in range(2)
        ]
    )
    h.managers[-1].nics = []
    sh("ip address add 198.18.0.10/24 dev r0; ip address add 198.18.1.10/24 dev r1")


@case("trixie", "bookworm", run=steps.profile_that_awaits_a_lease)
def networkmanager_address_beside_a_lease(h):
    """Such a profile is "connecting" until the lease comes, with its own address in place."""
    h.m0_by_hand()
    h.gateways()
    h.network_manager(
        [
            f"con-name r{i} ifname r{i} ipv4.method auto ipv4.addresses 198.18.{i}.10/24"
            f" ipv4.dhcp-timeout 2147483647 ipv4.routes '198.19.77.0/24 198.18.{i}.1'"
            " ipv6.method disabled"
            for i in range(2)
        ]
    )
    h.managers[-1].nics = []
    reach_gateways(h)


@case("trixie", "bookworm")
def networkmanager_beside_a_link_local_address_by_hand(h):
    networkmanager_too_busy_to_notice(h)
    h.foreign("ip address add fe80::99/64 dev r0 noprefixroute")


@case("trixie", "bookworm", run=steps.manager_restarted_at_a_create)
def networkmanager_restarted_at_a_create(h):
    networkmanager_too_busy_to_notice(h)


@case("trixie", "bookworm", run=steps.manager_silent_at_a_create)
def networkmanager_silent_at_a_create(h):
    networkmanager_too_busy_to_notice(h)


@case("bookworm", "trixie", udev=True)
def networkmanager_dhcp(h):
    networkmanager_dhcp_rails(h)


def networkmanager_dhcp_rails(h):
    h.m0_by_hand()
    h.gateways()
    h.dhcp_server()
    h.network_manager(
        [f"con-name r{i} ifname r{i} ipv4.method auto ipv6.method disabled" for i in range(2)]
    )
    h.prepare_flags = ["--freeze-lifetimes"]
    for i in range(2):
        h.reaches(f"198.18.{i}.4", f"198.18.{i}.1")


@case("trixie", "bookworm", run=steps.dhcp_server_dead)
def networkmanager_dhcp_server_dead(h):
    networkmanager_dhcp_rails(h)


@case("bookworm")
def networkmanager_router_advertisements(h):
    h.m0_by_hand()
    h.gateways()
    h.router_advertisements()
    h.network_manager(
        [f"con-name r{i} ifname r{i} ipv4.method disabled ipv6.method auto" for i in range(2)]
    )
    h.prepare_flags = ["--family", "6", "--freeze-lifetimes"]
    for i in range(2):
        h.reaches("", f"2001:db8:{i + 1}::1")


@case("bookworm", "trixie", quick=True)
def networkmanager_dispatcher_script(h):
    """The dispatcher runs it when NetworkManager is done: a route and a rule come later still."""
    h.m0_by_hand()
    h.gateways()
    for i in range(2):
        write(
            f"/etc/NetworkManager/dispatcher.d/99-r{i}",
            f"""#!/bin/sh
case $1.$2 in
  r{i}.up)
    ip route show table {101 + i} | grep -q default ||
      ip route add default via 198.18.{i}.1 dev r{i} table {101 + i}
    ip rule show | grep -q 'from 198.18.{i}.10 ' ||
      ip rule add from 198.18.{i}.10 table {101 + i} ;;
  r{i}.down) ip rule del from 198.18.{i}.10 table {101 + i} ;;
esac
""",
            0o755,
        )
    h.network_manager(
        [
            f"con-name r{i} ifname r{i} ipv4.method manual ipv4.addresses 198.18.{i}.10/24"
            f" ipv6.method disabled"
            for i in range(2)
        ]
    )
    wait_for(lambda: "lookup 102" in sh("ip rule"), "set-up: the dispatcher's script")
    reach_gateways(h)


@case("trixie", "bookworm", udev=True, run=steps.alone)
def networkmanager_dispatcher_rules_of_several_kinds(h):
    """Those of the NIC that stays come between, and the script's have no priority."""
    h.m0_by_hand()
    h.gateways()
    write(
        "/etc/NetworkManager/dispatcher.d/50-rules",
        """#!/bin/sh
case $1.$2 in r0.up) n=0 ;; r1.up) n=1 ;; *) exit 0 ;; esac
ip address replace 198.18.$n.77/32 dev $1
ip rule show | grep -q "iif $1" || ip rule add iif $1 table 30$n
ip rule show | grep -q "198.18.$n.77" || ip rule add from 198.18.$n.77 table 30$n
ip route replace default via 198.18.$n.1 dev $1 table 30$n
""",
        0o755,
    )
    h.network_manager(
        [
            f"con-name r{i} ifname r{i} ipv4.method manual ipv4.addresses 198.18.{i}.10/24"
            f" ipv6.method disabled"
            for i in range(2)
        ]
    )
    for table in ("300", "301"):
        wait_for(
            lambda t=table: "default" in sh(f"ip route show table {t}", check=False),
            "set-up: the dispatcher's script",
        )
    reach_gateways(h)


@case("bookworm", "trixie")
def networkmanager_dispatcher_script_that_takes_its_time(h):
    """Its rules come while ours do, all of one priority, and others of their traffic lie between."""
    h.m0_by_hand()
    h.gateways()
    write(
        "/etc/NetworkManager/dispatcher.d/50-rails",
        """#!/bin/sh
[ "$2" = up ] || exit 0
case $1 in r0) n=0 ;; r1) n=1 ;; *) exit 0 ;; esac
ip addr replace 198.18.$n.77/32 dev $1
sleep 0.$(shuf -i 0-5 -n 1)
ip rule show | grep -q "iif $1" || ip rule add iif $1 table 30$n
ip rule show | grep -q "198.18.$n.77" || ip rule add from 198.18.$n.77 table 30$n
ip route replace default via 198.18.$n.1 dev $1 table 30$n
""",
        0o755,
    )
    h.network_manager(
        [
            f"con-name r{i} ifname r{i} ipv4.method manual ipv4.addresses 198.18.{i}.10/24"
            f" ipv6.method disabled"
            for i in range(2)
        ]
    )
    for i in range(2):
        wait_for(
            lambda: f"198.18.{i}.1 dev" in sh(f"ip route show table 30{i} || true"),
            "set-up: the dispatcher's script",
        )
    reach_gateways(h)


@case("bookworm", "trixie", managed=False)
def networkmanager_with_its_defaults_and_rails_by_hand(h):
    """It has no profile for the rails, and makes one for each that has no address when it sees it:
    one that asks for a lease, and deletes all that is there after 45 s without."""
    defaults_and_rails_by_hand(h)


@case("bookworm", "trixie", managed=False, run=steps.held_back_until_the_timer)
def networkmanager_with_its_defaults_and_the_timer(h):
    defaults_and_rails_by_hand(h)


def defaults_and_rails_by_hand(h):
    h.m0_by_hand()
    h.gateways()
    for i in range(2):
        sh(
            f"ip link set r{i} mtu 4200 up; ip address add 198.18.{i}.10/24 dev r{i};"
            f" ip route add default via 198.18.{i}.1 dev r{i} table {101 + i};"
            f" ip rule add from 198.18.{i}.10 table {101 + i} priority {2000 + i}"
        )
    h.network_manager([], auto_default=True)
    reach_gateways(h)


@case("trixie", "bookworm", managed=False, run=steps.said_of_external_settings)
def networkmanager_said_of_external_settings(h):
    defaults_and_rails_by_hand(h)
    # Its profile goes with what is there, what it calls applied does not.
    h.foreign("".join(f"ip address add 198.18.7{i}.1/24 dev r{i}\n" for i in range(2)))


@case("bookworm", "trixie", quick=True)
def networkmanager_activated_by_hand(h):
    """NetworkManager does not activate these profiles by itself. One is in memory alone."""
    activated_by_hand(h)


@case("trixie", "bookworm", run=steps.dhcp_server_dead)
def networkmanager_activated_by_hand_and_dhcp_server_dead(h):
    activated_by_hand(h)


@case("trixie", "bookworm", run=steps.manager_ended_while_away)
def networkmanager_activated_by_hand_and_ends_while_away(h):
    activated_by_hand(h)


@case("trixie", "bookworm", run=steps.networking_off)
def networkmanager_networking_off(h):
    activated_by_hand(h)


@case("trixie", "bookworm", udev=True, run=steps.udev_late)
def networkmanager_before_udev(h):
    h.m0_by_hand()
    h.gateways()
    h.network_manager([networkmanager_static(i) for i in range(2)])
    reach_gateways(h)


@case("trixie", "bookworm", run=steps.ended_after_a_killed_stop)
def networkmanager_profile_ended_after_a_killed_stop(h):
    h.m0_by_hand()
    h.gateways()
    h.network_manager([networkmanager_static(i) for i in range(2)])
    reach_gateways(h)


def activated_by_hand(h):
    h.m0_by_hand()
    h.gateways()
    h.dhcp_server()
    h.network_manager(
        [
            "con-name r0 ifname r0 ipv4.method auto ipv6.method disabled autoconnect no",
            networkmanager_static(1, "autoconnect no save no"),
        ],
        up=["r0", "r1"],
    )
    h.prepare_flags = ["--freeze-lifetimes"]
    h.reaches("198.18.0.4", "198.18.0.1")
    h.reaches("198.18.1.10", FAR)


@case("trixie", "bookworm")
def networkmanager_profile_ended_by_hand(h):
    """An administrator has ended the profiles, and configured the NICs beside NetworkManager."""
    h.m0_by_hand()
    h.gateways()
    h.network_manager([networkmanager_static(i) for i in range(2)])
    h.managers[-1].is_external = True
    sh("nmcli device disconnect r0; nmcli connection down r1")
    for i in range(2):
        sh(f"ip address add 198.18.{i}.30/24 dev r{i}")
    reach_gateways(h, 30)


@case("trixie", "bookworm", run=steps.ended_while_a_nic_waits)
def networkmanager_profile_ended_while_a_nic_waits(h):
    activated_by_hand(h)


@case("trixie", "bookworm", run=steps.comes_back)
def networkmanager_several_profiles(h):
    """Active is a profile that NetworkManager would not choose by itself."""
    h.m0_by_hand()
    h.gateways()
    h.network_manager(
        [
            networkmanager_static(0, "connection.autoconnect-priority 5", "first"),
            "con-name second ifname r0 ipv4.method manual ipv4.addresses 198.18.0.20/24"
            " ipv6.method disabled autoconnect no",
            networkmanager_static(1),
        ],
        up=["second"],
    )
    h.reaches("198.18.1.10", "198.18.1.1")


@case(
    "bookworm",
    "trixie",
    run=lambda judge: steps.reconfigured_while_away(
        judge,
        "nmcli connection modify r0 -ipv4.routes '198.19.77.0/24 198.18.0.1'",
        "ip route show 198.19.77.0/24 dev r0",
        "nmcli connection modify r0 +ipv4.routes '198.19.77.0/24 198.18.0.1';"
        " nmcli --wait 60 connection up r0",
    ),
)
def networkmanager_profile_changed_while_away(h):
    h.m0_by_hand()
    h.gateways()
    h.network_manager([networkmanager_static(i) for i in range(2)])
    reach_gateways(h)


@case(
    "bookworm",
    "trixie",
    "forky",
    run=lambda judge: steps.reconfigured_while_away(
        judge,
        "nmcli connection modify r0 ipv6.method link-local; nmcli connection modify r1 mtu 4000",
        wrong_ipv6(0, 1),
        "nmcli connection modify r0 ipv6.method disabled; nmcli connection modify r1 mtu 1500;"
        " nmcli --wait 60 connection up r0; nmcli --wait 60 connection up r1",
    ),
)
def networkmanager_ipv6_switched_on_while_away(h):
    h.m0_by_hand()
    h.gateways()
    h.network_manager(
        [
            f"con-name r{i} ifname r{i} mtu 1500 ipv4.method manual ipv4.addresses"
            f" 198.18.{i}.10/24 ipv6.method disabled"
            for i in range(2)
        ]
    )
    for i in range(2):
        h.reaches(f"198.18.{i}.10", f"198.18.{i}.1")


@case("bookworm", "trixie", run=steps.without_carrier)
def networkmanager_without_carrier(h):
    h.m0_by_hand()
    h.gateways()
    h.network_manager([networkmanager_static(i) for i in range(2)])
    reach_gateways(h)


@case("trixie", "bookworm", rails=1, stay=1)
def networkmanager_macvlan(h):
    networkmanager_macvlan_rail(h, "no")


@case("trixie", "bookworm", quick=True, rails=1, run=steps.made_again_while_away)
def networkmanager_macvlan_made_again(h):
    networkmanager_macvlan_rail(h, "yes")


def networkmanager_macvlan_rail(h, autoconnect):
    h.m0_by_hand()
    h.gateways()
    h.network_manager(
        [
            "con-name r0 ifname r0 ipv4.method disabled ipv6.method disabled",
            "type macvlan con-name mv0 ifname mv0 dev r0 mode bridge ipv4.method manual"
            f" ipv4.addresses 198.18.0.10/24 ipv6.method disabled autoconnect {autoconnect}",
        ],
        nics=["r0", "mv0"],
        up=["mv0"],
    )
    macvlan_rail(h)


def macvlan_rail(h):
    h.rails = ["mv0"]
    h.all_nics += ["mv0"]
    h.reaches("198.18.0.10", "198.18.0.1")


@case("trixie", "bookworm", rails=1, stay=1)
def networkd_macvlan(h):
    networkd_macvlan_rail(h)


@case(
    "bookworm",
    "trixie",
    rails=1,
    run=lambda judge: steps.made_again_while_away(judge, judge.host.managers[0].restart),
)
def networkd_macvlan_made_again(h):
    networkd_macvlan_rail(h)


def networkd_macvlan_rail(h):
    h.m0_by_hand()
    h.gateways()
    h.networkd(
        {
            "10-mv0.netdev": "[NetDev]\nName=mv0\nKind=macvlan\n[MACVLAN]\nMode=bridge\n",
            "10-r0.network": "[Match]\nName=r0\n[Network]\nMACVLAN=mv0\nLinkLocalAddressing=no\n",
            "10-mv0.network": "[Match]\nName=mv0\n[Network]\nAddress=198.18.0.10/24\n"
            "LinkLocalAddressing=no\n",
        },
        nics=["r0", "mv0"],
    )
    macvlan_rail(h)


# Two managers on one host.


@case("bookworm", "trixie", quick=True, udev=True)
def networkd_rails_networkmanager_uplink(h):
    """A rule of NetworkManager's for the uplink is a foreign one to networkd, which drops it as it
    starts; NetworkManager makes it again as it starts."""
    h.uncounted = "rule -4 700: from 192.0.2.10 lookup 70 proto static"
    h.gateways()
    h.network_manager(
        [
            "con-name m0 ifname m0 ipv4.method manual ipv4.addresses 192.0.2.10/24"
            " ipv4.gateway 192.0.2.1"
            " ipv4.routes '0.0.0.0/0 192.0.2.1 table=70'"
            " ipv4.routing-rules 'priority 700 from 192.0.2.10 table 70' ipv6.method disabled"
        ],
        nics=["m0"],
    )
    h.networkd({f"10-r{i}.network": networkd_static(i) for i in range(2)})
    reach_gateways(h)
    h.reaches("192.0.2.10", "192.0.2.1")


@case("trixie", "bookworm", udev=True, run=steps.said_of_a_second_manager)
def networkd_rails_that_networkmanager_watches(h):
    """With its defaults it makes a profile of its own for each that comes back, which deletes all
    when no lease comes."""
    h.m0_by_hand()
    h.gateways()
    h.networkd({f"10-r{i}.network": networkd_static(i, f"Priority={3000 + i}") for i in range(2)})
    wait_for(lambda: not h.pending(), "set-up: networkd")
    h.network_manager([], auto_default=True)
    reach_gateways(h)


@case("trixie", "bookworm")
def networkmanager_rails_networkd_uplink(h):
    h.gateways()
    h.networkd(
        {"10-m0.network": """[Match]
Name=m0
[Network]
Address=192.0.2.10/24
Gateway=192.0.2.1
[Route]
Gateway=192.0.2.1
Table=70
[RoutingPolicyRule]
From=192.0.2.10
Table=70
"""},
        nics=["m0"],
    )
    h.network_manager([networkmanager_static(i) for i in range(2)])
    reach_gateways(h)
    h.reaches("192.0.2.10", "192.0.2.1")


# Routing daemons, ifupdown2, and hosts that are configured by hand.


@case("bookworm", "trixie", quick=True, managed=False, daemons=True, stay=3)
def frr_ospf(h):
    h.m0_by_hand()
    sh(
        "ip link set r0 mtu 9000 up; ip link set r1 mtu 9000 up; ip address add 198.18.5.5/32"
        " dev lo"
    )
    for i in range(2):
        sh(f"ip address add 198.18.{i}.1/31 dev r{i}")
        h.on_fabric(f"ip link set pr{i} mtu 9000; ip address add 198.18.{i}.0/31 dev pr{i}")
    h.frr(
        ["ospfd"],
        frr_ospf_text(["r0", "r1"], "198.18.5.5"),
        frr_ospf_text(["pr0", "pr1"], "198.18.6.6"),
    )
    for i in range(2):
        h.reaches(f"198.18.{i}.1", f"198.18.{i}.0")
        h.reaches(f"198.18.{i}.1", FAR, ("r0", "r1"))
    h.waits_for("198.19.77.1 .*proto ospf.*\n.*nexthop.*\n.*nexthop")


@case("bookworm", "trixie", managed=False, daemons=True, stay=3)
def frr_pbr(h):
    """Zebra drops a NIC's rule as it leaves, and makes it again; the uplink's stays."""
    h.m0_by_hand()
    for i in range(2):
        sh(f"ip address add 198.18.{i}.1/24 dev r{i}; ip link set r{i} up")
        h.on_fabric(f"ip address add 198.18.{i}.2/24 dev pr{i}")
        h.reaches(f"198.18.{i}.1", f"198.18.{i}.2")
    policies = {"r0": "10.9.0.0/16 198.18.1.2 r1", "m0": "10.8.0.0/16 192.0.2.1"}
    text = ""
    for nic, policy in policies.items():
        source, to = policy.split(" ", 1)
        text += f"pbr-map OF-{nic} seq 5\n match src-ip {source}\n set nexthop {to}\n!\n"
        text += f"interface {nic}\n pbr-policy OF-{nic}\n!\n"
    h.frr(["pbrd"], text, "interface pr0\n")
    wait_for(lambda: sh("ip rule").count("proto zebra") == 2, "zebra's rules")


# Zebra takes an unused group of nexthops up again for as long as it keeps it, though the kernel
# has taken legs out of it
# meanwhile: the same without any container, at every flap. So here it keeps them for a second, and
# a container lives longer.
def frr_ospf_text(nics, router):
    interfaces = "".join(
        f"interface {nic}\n ip ospf area 0\n ip ospf network point-to-point\n ip ospf"
        f" hello-interval 1\n"
        " ip ospf dead-interval 3\n!\n"
        for nic in nics
    )
    return (
        f"frr defaults datacenter\nzebra nexthop-group keep 1\n{interfaces}interface lo\n ip"
        f" ospf area 0\n!\n"
        f"router ospf\n ospf router-id {router}\n timers throttle spf 10 50 100\n!\n"
    )


@case("bookworm", "forky", managed=False, daemons=True, udev=True, stay=3)
def frr_bgp_unnumbered(h):
    """Sessions over link-local addresses; each rail has a /32 that the fabric knows.

    Not on Debian 13: its zebra 10.3 ends by a signal (process_rtadv) when a NIC that it sends
    router advertisements on leaves, by ip alone as well.
    """
    h.m0_by_hand()
    sh("ip link set r0 up; ip link set r1 up; ip address add 198.18.5.5/32 dev lo")
    for i in range(2):
        sh(f"sysctl -qw net.ipv6.conf.r{i}.accept_ra=0; ip address add 198.18.{i}.10/32 dev r{i}")
        h.on_fabric(
            f"ip address add 198.18.{i}.1/32 dev pr{i}; ip route add 198.18.{i}.10/32 dev pr{i}"
        )
        sh(f"ip route add 198.18.{i}.1/32 dev r{i} scope link")
    # The sessions are connections of the host by these NICs.
    h.prepare_flags = ["--allow-bootstrap-iface"]
    h.frr(
        ["bgpd"],
        frr_bgp_text(["r0", "r1"], 65001, "198.18.5.5"),
        frr_bgp_text(["pr0", "pr1"], 65002, "198.18.6.6", [f"{FAR}/32"]),
    )
    for i in range(2):
        h.reaches(f"198.18.{i}.10", f"198.18.{i}.1")
        h.reaches(f"198.18.{i}.10", FAR, ("r0", "r1"))
    h.waits_for("198.19.77.1 .*proto bgp.*\n.*nexthop.*\n.*nexthop")


def frr_bgp_text(nics, number, router, networks=()):
    neighbours = "".join(
        f" neighbor {nic} interface remote-as external\n neighbor {nic} timers connect 1\n"
        for nic in nics
    )
    announced = "".join(f"  network {network}\n" for network in [f"{router}/32", *networks])
    return (
        f"frr defaults datacenter\nzebra nexthop-group keep 1\nrouter bgp {number}\n bgp"
        f" router-id {router}\n timers bgp 1 3\n"
        f" no bgp ebgp-requires-policy\n bgp bestpath as-path multipath-relax\n{neighbours}"
        f" address-family ipv4 unicast\n{announced} exit-address-family\n!\n"
    )


@case("bookworm", "trixie", managed=False, udev=True)
def ifupdown2_post_up_rules(h):
    h.m0_by_hand()
    h.gateways()
    h.ifupdown2("auto lo\niface lo inet loopback\n" + "".join(f"""
auto r{i}
iface r{i}
    address 198.18.{i}.10/24
    mtu 4200
    post-up ip route add default via 198.18.{i}.1 dev r{i} table {101 + i}
    post-up ip rule add from 198.18.{i}.10/32 table {101 + i}
""" for i in range(2)))
    reach_gateways(h)


@case("trixie", managed=False)
def multipath_by_hand(h):
    h.m0_by_hand()
    h.gateways()
    for i in range(2):
        sh(f"ip link set r{i} up; ip address add 198.18.{i}.10/24 dev r{i}")
        h.reaches(f"198.18.{i}.10", f"198.18.{i}.1")
    sh("ip route add 198.19.77.0/24 nexthop via 198.18.0.1 dev r0 nexthop via 198.18.1.1 dev r1")
    h.reaches("", FAR, ("r0", "r1"))


@case("bookworm", managed=False, udev=True)
def kernel_router_advertisements(h):
    """No manager: the kernel makes addresses and routes of what routers say."""
    h.m0_by_hand()
    h.gateways()
    sh(
        "for r in r0 r1; do sysctl -qw net.ipv6.conf.$r.accept_ra=1"
        " net.ipv6.conf.$r.accept_ra_rt_info_max_plen=64;"
        " ip link set $r up; done"
    )
    h.router_advertisements()
    h.prepare_flags = ["--family", "6", "--freeze-lifetimes"]
    for i in range(2):
        h.reaches("", f"2001:db8:{i + 1}::1")
    h.reaches("", FAR6, ("r0", "r1"))


# What managers and daemons did to a NIC, each by a stand-in that does it at the worst time.


@case("trixie", rails=1)
def stand_in_replaces_address_without_metric(h):
    """A1: a lease is there again, and its address is set without the metric that it had."""
    h.m0_by_hand()
    h.gateways()
    sh("""ip link set r0 up; ip address add 198.18.0.10/24 metric 100 dev r0
        ip route add 198.19.77.0/24 via 198.18.0.1 dev r0 proto dhcp src 198.18.0.10 metric 100""")
    stand_in(
        h,
        "",
        """ip link set r0 up
        ip address replace 198.18.0.10/24 dev r0
        ip route replace 198.19.77.0/24 via 198.18.0.1 dev r0 \\
          proto dhcp src 198.18.0.10 metric 100""",
    )
    reach_gateways(h)


@case("bookworm")
def stand_in_adds_rules_the_other_way_round(h):
    """B1: rules without priority get the next free number, the second rail's first."""
    h.m0_by_hand()
    h.gateways()
    for i in range(2):
        sh(f"""ip link set r{i} up; ip address add 198.18.{i}.10/24 dev r{i}
            ip route add default via 198.18.{i}.1 dev r{i} table {151 + i}
            ip rule add from 198.18.{i}.10 table {151 + i} priority {32764 + i} proto static""")
    gone = "".join(
        f"[ -e /sys/class/net/r{i} ] || ip rule del from 198.18.{i}.10 table {151 + i}\n"
        for i in range(2)
    )
    # One that stayed has its address, its route and its rule.
    back = "".join(f"""ip address show dev r{i} | grep -q 198.18.{i}.10 || {{
        ip link set r{i} up; ip address add 198.18.{i}.10/24 dev r{i}
        ip route add default via 198.18.{i}.1 dev r{i} table {151 + i}
        ip rule add from 198.18.{i}.10 table {151 + i} priority {32765 - i} proto static
        }}
""" for i in (1, 0))
    stand_in(h, gone, back)
    reach_gateways(h)


def stand_in(h, gone, back):
    """Under networkd's name: does `gone` when a rail has left or is down, as a killed create leaves
    it, `back` a little after all are up again, and then gives networkd's sign. Like networkd, it
    misses no event of the kernel's."""
    signs = " ".join(
        f"/run/systemd/netif/links/$(cat /sys/class/net/{nic}/ifindex)" for nic in h.rails
    )
    write(
        "/run/stand-in",
        f"""
signs="{signs}"
configured() {{ for sign in $signs; do echo ADMIN_STATE=configured > $sign; done; }}
up() {{ read flags 2> /dev/null < /sys/class/net/$1/flags && [ $((flags & 1)) = 1 ]; }}
all_up() {{ for nic in {" ".join(h.rails)}; do up $nic || return; done; }}
mkdir -p /run/systemd/netif/links
away=
ip -o monitor link | {{
  configured
  while read -r event; do
    case $event in
      *[0-9]": "r[0-9]*) ;;
      *) continue ;;
    esac
    case $event in
      Deleted*) is_up= ;;
      *,UP,* | *,UP\\>*) is_up=1 ;;
      *) is_up= ;;
    esac
    if [ -z "$is_up" ]; then
      away=1
      rm -f $signs
      {gone or ":"}
    elif [ "$away" ] && all_up; then
      sleep 0.04
      {back}
      configured
      away=
    fi
  done
}}
""",
    )
    h.owns_name("org.freedesktop.network1")
    Daemon("stand-in", ["sh", "/run/stand-in"]).start()
    wait_for(
        lambda: sh("cat /run/systemd/netif/links/*", check=False).startswith("ADMIN"),
        "set-up: the stand-in",
    )


@case("bookworm", rails=1, run=steps.metric_changed_after_stop)
def metric_of_an_address_changes_after_the_stop(h):
    """D1: networkd sets an address that it finds once more, some seconds later, without its
    metric."""
    h.m0_by_hand()
    h.on_fabric("ip address add 169.254.8.1/16 dev pr0")
    sh("ip link set r0 up; ip address add 169.254.8.3/16 metric 2048 scope link dev r0")
    h.reaches("169.254.8.3", "169.254.8.1")


@case("trixie", rails=1, managed=False, daemons=True, run=steps.withdrawn_while_away)
def routes_of_a_daemon_withdrawn_while_away(h):
    """H1: what a daemon had learnt does not come back from a record."""
    h.m0_by_hand()
    h.on_fabric("ip address add 198.18.0.0/31 dev pr0")
    sh("ip link set r0 up; ip address add 198.18.0.1/31 dev r0")
    h.reaches("198.18.0.1", "198.18.0.0")


@case("bookworm", rails=1, managed=False, run=steps.addresses_inside)
def ipv6_off_inside(h):
    """I1: the namespace's default would give the NIC a link-local address."""
    h.m0_by_hand()
    h.gateways()
    sh(
        "ip link set r0 up; ip address add 198.18.0.10/24 dev r0; sysctl -qw"
        " net.ipv6.conf.r0.disable_ipv6=1"
    )
    h.reaches("198.18.0.10", "198.18.0.1")


@case("trixie", rails=1, managed=False, run=steps.addresses_inside)
def accept_ra_off_inside(h):
    """J1: the namespace's default would hear every router."""
    h.m0_by_hand()
    h.gateways()
    sh(
        "sysctl -qw net.ipv6.conf.r0.accept_ra=0; ip link set r0 up; ip address add"
        " 198.18.0.10/24 dev r0"
    )
    h.router_advertisements()
    h.reaches("198.18.0.10", "198.18.0.1")
