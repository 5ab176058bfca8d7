"""What some cases do instead of, or beside, the judge's own steps."""

import random
import signal
import time
from pathlib import Path

from host import Container, Failure, nics_in_status, rdmaprep, sh, wait_for, write

# A client asks for a lease after up to a minute; NetworkManager begins again after three quarters
# of one.
LEASE_LIMIT = 150


def unfinished_then(judge, step, spoil, repair):
    """The NICs return to a host where they cannot be complete: the stop is no failure, and the
    timer does the rest."""
    container = judge.attach(step)
    spoil()
    ended = container.stop()
    judge.stops.append(ended.seconds)
    judge.expect_code(ended, 0, step)
    # Duplicate address detection is the kernel's, and ends by itself.
    lines = judge.differences()
    is_tried = any(" tentative " in str(line) for line in lines)
    if lines and not is_tried and not judge.by_hand:
        status = nics_in_status()
        if judge.host.rails[0] not in status:
            raise Failure(f"{step}: r0 is not complete, and status does not say so: {status[:300]}")
    judge.timer(step)
    repair()
    judge.expect_back(f"{step}, and then with", LEASE_LIMIT)


def without_carrier(judge):
    host = judge.host
    judge.prepare()
    unfinished_then(
        judge,
        "without a carrier",
        lambda: host.carrier("r0", False),
        lambda: host.carrier("r0", True),
    )
    judge.once()
    judge.alone()


def dhcp_server_dead(judge):
    def repair():
        text = rdmaprep("prepare", "--dry-run", "--ifaces", "r0").text
        if "waits for a lease of DHCP" not in text or "ip address add" in text:
            raise Failure(f"without a DHCP server: prepare does not say what to wait for: {text}")
        judge.host.dhcp.start()

    judge.prepare()
    unfinished_then(judge, "without a DHCP server", judge.host.dhcp.stop, repair)
    judge.once()


def networking_off(judge):
    judge.prepare()
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = attach_noticed(judge, step)
        sh("nmcli networking off")
        judge.expect_code(container.stop(), 0, step)
        judge.timer(step)
        judge.expect_code(rdmaprep("restore", "--all"), 0, f"{step}: restore --all")
        if "r0" not in nics_in_status():
            raise Failure(f"{step}: networking is off, and status does not say that r0 waits")
        sh("nmcli networking on")
        judge.expect_back(step, LEASE_LIMIT)
        judge.until_nothing_is_left()


def ended_while_a_nic_waits(judge):
    """What an administrator ends while its NIC has no DHCP server stays ended."""
    judge.prepare()
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = attach_noticed(judge, step)
        foretold = rdmaprep("restore", "--all", "--dry-run").text
        if "NetworkManager configures r0 when it is back" not in foretold:
            raise Failure(f"{step}: restore --dry-run tells half of it: {foretold}")
        judge.host.dhcp.stop()
        judge.expect_code(container.stop(), 0, step)
        if "r0" not in nics_in_status():
            raise Failure(f"{step}: there is no lease, and status does not say that r0 waits")
        sh("nmcli device disconnect r0")
        judge.host.dhcp.start()
        judge.until_nothing_is_left()
        judge.timer(step)
        time.sleep(judge.hold)
        if there := sh("ip -4 -br address show r0 | grep 198 || true").strip():
            raise Failure(f"{step}: r0 was disconnected, and has an address: {there}")
        sh("nmcli --wait 60 connection up r0")
        judge.expect_back(step)


def ended_after_a_killed_stop(judge):
    """What an administrator ends on NICs that a killed stop left on the host stays ended, also where
    they then set up the NIC by hand."""
    judge.prepare()
    whole = judge.attach("a whole stop").stop().seconds
    judge.expect_back("a whole stop")
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = attach_noticed(judge, step)
        container.stop(kill_after=whole * random.uniform(0.1, 0.9))
        # What is still in the namespace comes when that ends.
        wait_for(lambda: "r0:connected" in sh("nmcli -g DEVICE,STATE device"), "r0 to be back", 20)
        sh("nmcli device disconnect r0")
        is_by_hand = number % 2
        if is_by_hand:
            sh("ip link set r0 up; ip address add 198.18.77.1/24 dev r0")
            wait_for(lambda: "externally" in sh("nmcli -g GENERAL.STATE device show r0"), "nmcli")
        judge.expect_code(rdmaprep("restore", "--all"), 0, f"{step}: restore --all")
        judge.timer(step)
        time.sleep(judge.hold)
        there = sh("ip -4 -br address show r0 | grep -o '198[^ ]*' || true").split()
        if there != ["198.18.77.1/24"] * is_by_hand:
            raise Failure(f"{step}: r0 was disconnected, and has these addresses: {there}")
        sh("nmcli --wait 60 connection up r0")
        judge.expect_back(step)


def udev_late(judge):
    """NetworkManager takes no link before udev has set it up: on a busy machine that is later."""
    judge.prepare()
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = attach_noticed(judge, step)
        sh("udevadm settle; pkill -STOP udevd")
        beside = judge.beside(lambda: sh("sleep 0.8; pkill -CONT udevd"))
        ended = container.stop()
        beside.join()
        judge.expect_code(ended, 0, step)
        judge.until_nothing_is_left()
        judge.expect_back(step)


def reconfigured_while_away(judge, drop, gone, back):
    """An administrator takes something out of a profile while its NIC is away: it does not return.
    `gone` prints it where it is."""
    judge.prepare()
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = judge.attach(step)
        sh(drop)
        judge.expect_code(container.stop(), 0, step)
        judge.until_nothing_is_left()
        judge.settled()
        time.sleep(judge.hold)
        if there := sh(gone).strip():
            raise Failure(f"{step}: what was taken out of the profile is there: {there[:300]}")
        sh(back)
        judge.expect_back(f"{step}, and then with the earlier profile")


def manager_ended_while_away(judge):
    """What a manager deletes as its NICs leave, it makes again as they return; where it has ended
    meanwhile, or fails then, rdmaprep does."""
    judge.prepare()
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = judge.attach(step)
        for manager in judge.host.managers:
            manager.daemon.stop()
        judge.expect_code(container.stop(), 0, step)
        judge.expect_back(f"{step}, without its manager")
        judge.expect_code(judge.attach(step).stop(), 0, f"{step}, a second time")
        judge.expect_back(f"{step}, without its manager, a second time")
        for manager in judge.host.managers:
            manager.daemon.start()
        # A manager that has just started says other things for some ms.
        for _ in range(60):
            judge.timer(step)
        judge.until_nothing_is_left()
        judge.expect_back(f"{step}, and then with its manager")


def bus_ended_while_away(judge):
    """Whose rules are whose was asked as the NICs left; they return to a host without a bus."""
    judge.prepare()
    container = judge.attach("stop")
    judge.host.end_bus()
    judge.expect_code(container.stop(), 0, "stop")
    judge.expect_back("without a bus")


def held_back_before_its_manager_begins(judge):
    """r1 returns to a manager that does nothing, r0 cannot; the manager begins after the stop."""
    judge.prepare()
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = judge.attach(step)
        rules = sh("ip rule")
        for manager in judge.host.managers:
            manager.daemon.process.send_signal(signal.SIGSTOP)
        sh("ip link add r0 type bridge")
        judge.expect_code(container.stop(), 8, step)
        for manager in judge.host.managers:
            manager.daemon.process.send_signal(signal.SIGCONT)
        wait_for(lambda: sh("ip rule") != rules, "a manager that begins")
        sh("ip link delete r0")
        judge.expect_code(rdmaprep("restore", "--all"), 0, f"{step}: restore --all")
        judge.expect_back(step)


def held_back_until_the_timer(judge):
    """r0 cannot return at the stop; the timer brings it back later."""
    judge.prepare()
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = judge.attach(step)
        sh("ip link add r0 type bridge")
        judge.expect_code(container.stop(), 8, step)
        sh("ip link delete r0")
        judge.timer(step)
        judge.expect_back(step)


def made_again_while_away(judge, meanwhile=lambda: None):
    """A manager makes a NIC again that a container has: `prepare` warns of that, and the way back
    is open."""
    nic = judge.host.rails[0]
    if f" makes {nic} again" not in (text := judge.prepare()):
        raise Failure(f"prepare does not say that {nic} is made again: {text[:300]}")
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = judge.attach(step)
        meanwhile()
        wait_for(lambda: sh(f"ip -4 -o address show {nic} || true").strip(), f"another {nic}")
        judge.expect_code(container.stop(), 0, step)
        judge.expect_back(step)


def other_than_its_profile(judge):
    """`nmcli device modify` has changed a NIC: `prepare` says so, and the NIC gets the profile's
    settings back. What was added alone comes back, and is not spoken of."""
    said = "r0 has other settings than its profile of NetworkManager"
    if said in (text := judge.prepare()):
        raise Failure(f"prepare calls an addition a change: {text[:300]}")
    sh(
        "nmcli device modify r0 ipv4.dns-priority 50 ipv4.routing-rules ''"
        " -ipv4.routes '198.19.77.0/24 198.18.0.1'"
    )
    judge.settled()
    changed = f"{said} (ipv4.dns-priority, ipv4.routes, ipv4.routing-rules)"
    if changed not in (text := judge.prepare()):
        raise Failure(f"prepare does not say that r0 was changed: {text[:300]}")
    judge.expect_code(attach_noticed(judge, "stop").stop(), 0, "stop")
    judge.until_nothing_is_left()
    judge.expect_back("stop")
    if said in (text := judge.prepare()):
        raise Failure(f"prepare says again that r0 was changed: {text[:300]}")


def attach_noticed(judge, step):
    """A container; NetworkManager knows that r0 has left."""
    container = judge.attach(step)
    wait_for(lambda: "r0" not in sh("nmcli -g DEVICE device").split(), "NetworkManager to notice")
    return container


def deleted_while_a_nic_waits(judge):
    """A rule that an administrator deletes while a NIC has no carrier stays deleted."""
    judge.prepare()
    rule = "from 198.51.100.0/24 lookup 500 priority 900"
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = attach_noticed(judge, step)
        judge.host.carrier("r0", False)
        judge.expect_code(container.stop(), 0, step)
        if "r0" not in nics_in_status():
            raise Failure(f"{step}: r0 has no carrier, and status does not say that it waits")
        sh(f"ip rule del {rule}")
        judge.timer(step)
        judge.host.carrier("r0", True)
        judge.until_nothing_is_left()
        if there := sh("ip rule show priority 900").strip():
            raise Failure(f"{step}: what was deleted while r0 waited is there: {there}")
        sh(f"ip rule add {rule}")
        judge.expect_back(step)


def manager_too_busy_to_notice(judge):
    """A manager hears of a NIC that has left only when the NIC is back, and goes on as if it had
    not been away. It is stopped from the first change of a link on, until the stop hook waits."""

    def pause():
        wait_for(lambda: not is_up("r0"), "a NIC that goes down")
        for manager in judge.host.managers:
            manager.daemon.process.send_signal(signal.SIGSTOP)

    def resume():
        wait_for(lambda: all(is_up(nic) for nic in judge.host.rails), "NICs that are up again")
        time.sleep(0.2)
        for manager in judge.host.managers:
            manager.daemon.process.send_signal(signal.SIGCONT)

    judge.prepare()
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        pausing = judge.beside(pause)
        container = judge.attach(step)
        pausing.join()
        resuming = judge.beside(resume)
        ended = container.stop()
        resuming.join()
        judge.expect_code(ended, 0, step)
        judge.expect_back(step)


def manager_silent_at_a_create(judge):
    """A manager that does not say what is its own: its NICs do not leave."""
    judge.prepare()
    [manager] = judge.host.managers
    manager.daemon.process.send_signal(signal.SIGSTOP)
    container = Container()
    refused = container.create()
    manager.daemon.process.send_signal(signal.SIGCONT)
    judge.expect_code(refused, 9, "a create beside a manager that does not answer")
    if "not answer" not in refused.text:
        raise Failure(f"the create says: {refused.text}")
    container.end()
    judge.once()


def is_up(nic):
    try:
        return int(Path(f"/sys/class/net/{nic}/flags").read_text(), 16) & 1
    except (OSError, ValueError):
        return False


def comes_back(judge):
    """A manager that starts again may choose another profile, here as elsewhere."""
    judge.prepare()
    judge.once()
    judge.alone()
    judge.killed()
    judge.grown()


def alone(judge):
    for _ in range(judge.rounds + 1):
        judge.alone()


def metric_changed_after_stop(judge):
    judge.prepare()
    for number in range(judge.rounds + 1):
        judge.once(f"round {number + 1}")
        sh("ip address change 169.254.8.3/16 scope link dev r0")


def withdrawn_while_away(judge):
    number = 0

    def learn():
        nonlocal number
        number += 10
        sh(
            f"ip nexthop add id {number} via 198.18.0.0 dev r0 proto zebra;"
            f" ip route replace 203.0.113.0/24 nhid {number} proto ospf metric 20"
        )

    learn()
    sh(f"ip route add 198.51.100.0/24 nhid {number} proto ospf metric 20")
    # By staticd of FRR.
    sh(f"ip route add 198.51.101.0/24 nhid {number} proto 196 metric 20")
    judge.prepare()
    for _ in range(judge.rounds + 1):
        container = judge.attach("stop")
        judge.expect_code(container.stop(), 0, "stop")
        judge.timer()
        learn()
        nexthops, withdrawn = (
            sh("ip nexthop").splitlines(),
            sh("ip route show 198.51.100.0/24; ip route show 198.51.101.0/24").strip(),
        )
        if len(nexthops) != 1 or withdrawn:
            raise Failure(
                f"stop: {len(nexthops)} nexthops, not 1; a route that was withdrawn while the"
                f" NIC was away: {withdrawn or 'none'}"
            )
    # The kernel takes its route along.
    sh(f"ip nexthop del id {number}")


def addresses_inside(judge):
    """For as long as a router needs to advertise itself, the NIC inside has the host's addresses
    and no other."""
    judge.prepare()
    container = judge.attach("stop")
    end = time.monotonic() + 5
    while time.monotonic() < end:
        judge.expect_only_planned_addresses(container)
        time.sleep(0.2)
    judge.expect_code(container.stop(), 0, "stop")
    judge.expect_back("stop")


def manager_restarted_at_a_create(judge):
    """It has no name on the bus for a moment, or has not decided yet. Its NICs leave when it says
    what is its own, and come back with their profile."""
    judge.prepare()
    [manager] = judge.host.managers
    for number in range(2 * judge.rounds + 1):
        step = f"round {number + 1}"
        restarting = judge.beside(manager.restart)
        time.sleep(0.05 * (number % 8))
        container = Container()
        created = container.create()
        restarting.join()
        if created.code == 9:
            container.end()
        else:
            judge.expect_code(created, 0, step)
            judge.expect_code(container.stop(), 0, step)
        judge.expect_back(step)


def profile_that_awaits_a_lease(judge):
    """It is active again when its NIC is back, and gets the lease when there is one."""
    judge.prepare()

    def state(nic):
        return sh(f"nmcli -g GENERAL.STATE device show {nic}", check=False)

    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = Container()
        judge.expect_code(container.create(), 0, step)
        judge.expect_code(container.stop(), 0, step)
        for nic in judge.host.rails:
            wait_for(lambda nic=nic: "(connecting" in state(nic), f"{step}: {nic} {state(nic)}")
    judge.host.dhcp_server()
    for nic in judge.host.rails:
        wait_for(lambda nic=nic: state(nic).strip() == "100 (connected)", f"the lease of {nic}")
    judge.until_nothing_is_left()
    judge.base = judge.settled()


def profile_that_only_tries(judge):
    """It gives a NIC nothing: what an administrator has given it comes back."""
    judge.prepare()
    # For so long after its start a NetworkManager that tries may still give it something.
    time.sleep(5)
    for number in range(judge.rounds + 1):
        step = f"round {number + 1}"
        container = Container()
        judge.expect_code(container.create(), 0, step)
        judge.expect_code(container.stop(), 0, step)
        for index, nic in enumerate(judge.host.rails):
            wait_for(
                lambda nic=nic, index=index: f"198.18.{index}.10/24" in sh(f"ip -o a show {nic}"),
                f"{step}: the address of {nic}",
                15,
            )
    judge.until_nothing_is_left()
    judge.base = judge.settled()


def absent_address(judge, treat, mend, *said):
    """A NIC that lacks its address for the moment: `prepare`, a create and `doctor` say what helps,
    and not to add an address, to prepare again or to delete the rules."""
    treat()
    wait_for(lambda: "198.18.0.10/24" not in sh("ip -o address show r0"), "r0 without its address")
    time.sleep(judge.hold)
    sh("ip rule add from 198.18.0.10 table 101 proto static priority 3999")
    container = Container()
    texts = {
        "prepare": rdmaprep("prepare", "--dry-run", "--ifaces", "r0").text,
        "create": container.create().text,
        "doctor": rdmaprep("doctor").text,
    }
    container.end()
    sh("ip rule delete priority 3999")
    mend()
    for of, text in texts.items():
        text = " ".join(text.split())
        if lacks := [words for words in said if words not in text]:
            raise Failure(f"{of} does not say {lacks}: {text}")
        # Of r1, which has what it needs, rdmaprep may say so.
        wrong = ["add one", "out of date", "rule delete from 198.18.0.10 "]
        if has := [words for words in wrong if words in text]:
            raise Failure(f"{of} says {has}: {text}")
    judge.expect_back("after that")


def said_without_carrier(judge):
    judge.prepare()
    host = judge.host
    [manager] = [type(manager).__name__ for manager in host.managers]
    manager = {"Networkd": "systemd-networkd"}.get(manager, manager)
    absent_address(
        judge,
        lambda: host.carrier("r0", False),
        lambda: host.carrier("r0", True),
        f"it has no carrier, for which {manager} waits",
        "see to the cable",
    )


def said_of_network_manager(judge):
    # The profiles' rules of IPv6 lead to tables with routes of IPv4 alone.
    if "orphaned_rules" in (text := rdmaprep("doctor").text):
        raise Failure(f"doctor takes the rules of a profile for orphans: {text[:600]}")
    said_without_carrier(judge)
    absent_address(
        judge,
        lambda: sh("nmcli networking off"),
        lambda: sh("nmcli networking on"),
        "networking is off in NetworkManager",
        "`nmcli networking on`",
    )
    absent_address(
        judge,
        lambda: sh("nmcli device disconnect r0"),
        lambda: sh("nmcli device connect r0"),
        "someone has disconnected it in NetworkManager",
        "`nmcli device connect r0`",
    )


def said_of_a_second_manager(judge):
    """What it prints ends what it warns of."""
    text = " ".join(judge.prepare().split())
    if "configures r0, r1, and NetworkManager watches" not in text:
        raise Failure(f"prepare does not say that NetworkManager watches: {text[:600]}")
    line = text.split("when no lease comes; `")[1].split("`")[0]
    write("/etc/NetworkManager/conf.d/rails.conf", f"[keyfile]\n{line}\n")
    judge.host.managers[-1].restart()
    judge.host.managers.pop()
    if "NetworkManager watches" in (text := judge.prepare()):
        raise Failure(f"prepare warns of a manager that is kept off: {text[:600]}")
    judge.once()


def said_of_external_settings(judge):
    """NetworkManager has made the profile of what it found: that differs from nothing."""
    if "other settings" in (text := judge.prepare()):
        raise Failure(f"prepare warns of a profile of no administrator: {text[:300]}")
    judge.once()


def said_of_preferences(judge):
    """What it prints ends what it warns of."""
    text = " ".join(judge.prepare().split())
    if "have no route-metric" not in text:
        raise Failure(f"prepare does not say that preferences change: {text[:600]}")
    if "route-metric 101" not in (said := rdmaprep("doctor", "--ifaces", "r0 r1").text):
        raise Failure(f"doctor does not say that preferences change: {said}")
    sh(text.split("container; `")[1].split("` ends that")[0])
    if "have no route-metric" in (text := judge.prepare()):
        raise Failure(f"prepare warns of profiles that have a metric: {text[:600]}")
    judge.once()
