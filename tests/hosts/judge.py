#!/usr/bin/env python3
"""judge.py CASE [OPTION...]: sets a case's host up, in this process's namespaces, and judges
rdmaprep on it. Prints what differs, and exits with 1, at the first step that fails.

Run by tests/hosts/enter. The options are those of tests/hosts/run.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter

import cases
import state
from host import Container, Ended, Failure, Host, nics_in_status, rdmaprep, sh, wait_for

# Until everything is as it was. For what never happens; `timer` may be needed meanwhile.
BACK_LIMIT = 40
TIMER_PERIOD = 5


class Judge:
    def __init__(self, case, arguments):
        self.case = case
        self.hold = arguments.hold
        self.by_hand = arguments.control
        self.long = arguments.long
        self.rounds = arguments.rounds
        self.stops, self.returns, self.timers, self.create_seconds = [], [], 0, 0.2
        self.host = Host(case.rails, case.udev, case.shared_subnet)
        self.moved = list(self.host.rails)
        self.base = self.foreign = None
        self.lost = Counter()
        self.ways = {}

    # The state before.

    def set_up(self):
        case, host = self.case, self.host
        case.set_up(host)
        wait_for(lambda: not host.pending(), "set-up: the managers")
        wait_for(host.is_there, "set-up: what the case waits for")
        managed = self.settled()
        if host.foreign_commands and not self.by_hand:
            sh(host.foreign_commands)
        self.base = self.settled()
        self.foreign = state.foreign_between(managed, self.base) if case.is_managed else None
        for entry in host.reach:
            source, to, by = entry
            self.ways[entry] = (
                set(by)
                if by
                else {wait_for(lambda s=source, t=to: way(s, t), f"set-up: a way to {to}")["dev"]}
            )
        self.expect_reached(host.reach, "set-up")
        self.base = self.settled()

    def look(self):
        return state.look(self.host.all_nics if not self.by_hand else [])

    def settled(self, limit=60):
        """The state, when it has not changed for a second."""
        end = time.monotonic() + limit
        last, now, since = None, self.look(), 0
        while True:
            before, now = last or now, self.look()
            if last is None or not now == last or now.unfinished() or self.host.pending():
                last, since = now, time.monotonic()
            elif time.monotonic() - since > 1:
                return now
            if time.monotonic() > end:
                self.fail_with(
                    "set-up: the host does not settle",
                    state.differences(before, now, None, False) + self.host.pending(),
                )
            time.sleep(0.1)

    def differences(self):
        lines = state.differences(self.base, self.look(), self.foreign, self.case.has_daemons)
        lost = Counter(self.lost)
        return [line for line in lines if not self.is_excused(line, lost)]

    def is_excused(self, line, lost):
        """Whether a difference is none. `lost`: what may be there again, as often."""
        item = line.removeprefix("extra   ")
        if lost[item] > 0:
            lost[item] -= 1
            return True
        return line[8:] == self.host.uncounted

    def control(self, work):
        """What managers do by themselves when so treated, with every NIC at home, is no
        container's fault."""
        self.until_nothing_is_left()
        work()
        now = self.settled()
        if self.differences():
            # What its owner makes again when its NIC returns.
            self.lost += self.base.exact() - now.exact()
            self.base = now
            if self.foreign is not None:
                self.foreign &= now.exact()
            self.prepare()

    # Steps of every case.

    def prepare(self, nics=None):
        self.moved = nics or list(self.host.rails)
        ended = rdmaprep("prepare", "--ifaces", " ".join(self.moved), *self.host.prepare_flags)
        self.expect_code(ended, 0, "prepare")
        return ended.text

    def attach(self, step):
        container = Container() if not self.by_hand else ByHand(self.moved)
        ended = container.create()
        self.expect_code(ended, 0, f"{step}: create")
        self.create_seconds = ended.seconds
        return container

    def once(self, step="stop", meanwhile=lambda: None, look_inside=True):
        """A container from create to stop, and the host as before."""
        container = self.attach(step)
        if look_inside and not self.by_hand:
            self.expect_inside(container, step)
            self.expect_away(step)
        meanwhile()
        time.sleep(self.case.stay)
        if look_inside and not self.by_hand:
            self.expect_gone(step)
        ended = container.stop()
        self.stops.append(ended.seconds)
        self.expect_code(ended, 0, step)
        self.expect_back(step)

    def expect_code(self, ended, code, step):
        if ended.code != code:
            text = "\n".join(line[:300] for line in ended.text.splitlines()[:6])
            lines = self.differences() if self.base else []
            raise Failure(
                f"{step}: exit {ended.code}: {text}" + "".join(f"\n  {line}" for line in lines[:12])
            )

    def expect_back(self, step, limit=BACK_LIMIT):
        """Everything is as before, by itself or by the timer, and stays so."""
        started = looked = time.monotonic()
        while lines := self.differences() or self.host.pending():
            now = time.monotonic()
            if now - started > limit:
                self.fail_with(f"{step}: not as before after {limit} s", lines)
            if now - looked > TIMER_PERIOD:
                looked = now
                self.timer(step)
            time.sleep(0.1)
        self.returns.append(time.monotonic() - started)
        self.expect_reached(self.host.reach, step)
        time.sleep(self.hold)
        looked, end = 0, time.monotonic() + 10
        while lines := self.differences():
            now = time.monotonic()
            if now - looked > TIMER_PERIOD:
                looked = now
                self.timer(step)
            if now > end:
                self.fail_with(
                    f"{step}: other than before {self.hold:.0f} s after it was as before", lines
                )
            time.sleep(0.2)

    def fail_with(self, text, lines):
        status = rdmaprep("status").text
        shown = lines[:16] + ([f"and {len(lines) - 16} more"] if len(lines) > 16 else [])
        held = [line[:200] for line in status.splitlines()[:4]] if status else []
        raise Failure(
            text
            + "".join(f"\n  {line}" for line in shown)
            + "".join(f"\n  status: {line}" for line in held)
        )

    def timer(self, step="timer"):
        """What the systemd timer runs."""
        self.timers += 1
        self.expect_code(
            rdmaprep("restore", "--all", "--stale"), 0, f"{step}: restore --all --stale"
        )

    def until_nothing_is_left(self):
        """The timer has seen every NIC's manager done, and rdmaprep forgets what was there."""
        end = time.monotonic() + BACK_LIMIT
        while any(nic in (status := nics_in_status()) for nic in self.host.rails):
            if time.monotonic() > end:
                raise Failure(f"timer: after {BACK_LIMIT} s status still says: {status[:300]}")
            self.timer()
            time.sleep(0.2)

    def expect_inside(self, container, step):
        """What the host reached by a NIC that moved is reached from inside by it."""
        mine = [
            entry
            for entry in self.host.reach
            if self.ways[entry] & set(self.moved) and self.may_leave(entry, inside=True)
        ]
        pid = container.pid
        for entry in mine:
            found = way(*entry[:2], pid)
            if found is None or found["dev"] not in self.ways[entry]:
                raise Failure(
                    f"{step}: inside, {shown(entry)} by {found and found['dev']}, not by"
                    f" {' or '.join(self.ways[entry])}"
                )
        self.expect_reached(mine, f"{step}: inside", pid)

    def may_leave(self, entry, inside):
        """Whether the source address of a destination is there."""
        at = [
            item.nic for item in self.base.items if item.effect.startswith(f"address {entry[0]}/")
        ]
        return not at or (at[0] in self.moved) == inside

    def expect_only_planned_addresses(self, container):
        planned = {item.effect for item in self.base.items if item.kind == "address"}
        for item in state.look([], in_namespace(container.pid)).items:
            # The kernel asks again whether another has it.
            address = item.effect.replace(" tentative", "")
            if item.kind == "address" and item.nic in self.moved and address not in planned:
                raise Failure(f"inside, an address that the host has not: {item.effect}")

    def expect_away(self, step):
        """What needs none of the NICs that moved is reached as before."""
        others = [
            entry
            for entry in self.host.reach
            if self.ways[entry] - set(self.moved) and self.may_leave(entry, inside=False)
        ]
        for entry in others:
            found = way(*entry[:2])
            if found is None or found["dev"] not in self.ways[entry]:
                raise Failure(
                    f"{step}: while {' '.join(self.moved)} are away, {shown(entry)} by"
                    f" {found and found['dev']}"
                )
        self.expect_reached(others, f"{step}: while {' '.join(self.moved)} are away")

    def expect_gone(self, step):
        for nic in self.moved:
            if os.path.exists(f"/sys/class/net/{nic}"):
                raise Failure(f"{step}: the host has a {nic} while the container has it")

    def expect_reached(self, entries, step, pid=None, tries=5):
        for _ in range(tries):
            running = [(entry, ping(*entry[:2], pid)) for entry in entries]
            entries = [entry for entry, process in running if process.wait() != 0]
            if not entries:
                return
        raise Failure(f"{step}: not reached: {', '.join(map(shown, entries))}")

    # The steps.

    def alone(self):
        """One NIC without the others."""
        if len(self.host.rails) < 2:
            return
        self.prepare(self.host.rails[:1])
        self.once(f"{self.host.rails[0]} alone")
        self.prepare()

    def killed(self):
        """SIGKILL at a half of the create (and at a quarter and three quarters), and restore
        --all."""
        for share in (0.25, 0.5, 0.75) if self.long else (0.5,):
            step = f"create killed after {share:.0%} of it"
            container = Container()
            container.create(kill_after=self.create_seconds * share)
            # Zebra would take the group up again that has lost a leg (frr_ospf_text in cases.py).
            time.sleep(self.case.stay if self.case.has_daemons else 0)
            container.end()
            self.expect_code(rdmaprep("restore", "--all"), 0, f"{step}: restore --all")
            self.expect_back(step)

    def reloaded(self):
        """Managers read their files again while the NICs are away, and as they return."""

        def as_they_return():
            for _ in range(3):
                time.sleep(0.1)
                for manager in self.host.managers:
                    manager.reload()

        def away():
            for manager in self.host.managers:
                manager.reload()

        self.control(away)
        if self.long:
            self.once("managers reloaded meanwhile", meanwhile=away, look_inside=False)
        self.once_beside("managers reloaded as the NICs return", as_they_return)

    def restarted(self):
        """Managers start again while the NICs are away, and as they return."""

        def restart():
            for manager in self.host.managers:
                manager.restart()

        self.control(restart)
        if self.long:
            self.once("managers restarted meanwhile", meanwhile=restart, look_inside=False)
        self.once_beside("managers restarted as the NICs return", restart)

    def once_beside(self, step, work):
        """`work` beside the stop."""
        container = self.attach(step)
        time.sleep(self.case.stay)
        beside = self.beside(work)
        ended = container.stop()
        self.stops.append(ended.seconds)
        beside.join()
        self.expect_code(ended, 0, step)
        self.expect_back(step)

    @staticmethod
    def beside(work):
        return Beside(work)

    def grown(self):
        """More containers, without growth of anything."""
        hold, self.hold = self.hold, min(self.hold, 1)
        for number in range(self.rounds):
            self.once(f"round {number + 1}", look_inside=False)
        self.hold = hold

    def ended(self):
        """Nothing is held, and nothing is left to restore."""
        self.expect_code(rdmaprep("restore", "--all"), 0, "restore --all at the end")
        self.expect_back("restore --all at the end")

    def run(self):
        self.set_up()
        if self.case.run is not None:
            self.case.run(self)
        else:
            self.prepare()
            self.once()
            self.alone()
            if not self.by_hand:
                self.killed()
            self.grown()
            self.reloaded()
            self.restarted()
        self.ended()


class ByHand(Container):
    """Instead of rdmaprep: NICs go and return, and are set up. What managers do not get back then,
    they never do."""

    def __init__(self, nics):
        super().__init__()
        self.nics = nics

    def create(self, kill_after=None):
        for nic in self.nics:
            sh(f"ip link set {nic} netns {self.pid}")
        return Ended(0, "", 0.2)

    def stop(self):
        for nic in self.nics:
            self.inside(f"ip link set {nic} netns {os.getpid()}", check=True)
            sh(f"ip link set {nic} up")
        self.end()
        return Ended(0, "", 0)


class Beside:
    """A function in a thread; what it raises is raised by join."""

    def __init__(self, work):
        self.error = None

        def guarded():
            try:
                work()
            except Failure as error:
                self.error = error

        self.thread = threading.Thread(target=guarded)
        self.thread.start()

    def join(self):
        self.thread.join()
        if self.error:
            raise self.error


def in_namespace(pid):
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--"] if pid else []


def way(source, to, pid=None):
    """By which device and gateway a packet leaves."""
    command = (
        in_namespace(pid) + ["ip", "-j", "route", "get", to] + (["from", source] if source else [])
    )
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode:
        return None
    found = json.loads(done.stdout)[0]
    return {"dev": found.get("dev"), "gateway": found.get("gateway")}


def ping(source, to, pid=None):
    command = (
        in_namespace(pid)
        + ["ping", "-n", "-c", "1", "-W", "2"]
        + (["-I", source] if source else [])
        + [to]
    )
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def shown(entry):
    source, to, _ = entry
    return f"{to} from {source}" if source else to


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--hold", type=float, default=1.0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    judge = None
    try:
        judge = Judge(cases.CASES[arguments.case], arguments)
        judge.run()
    except Failure as failure:
        print(failure)
        return 1
    if judge.stops:
        print(
            f"stops {statistics.median(judge.stops):.2f} s, then"
            f" {statistics.median(judge.returns):.2f} s"
            f" (at most {max(judge.stops):.2f} and {max(judge.returns):.2f} s), timer"
            f" {judge.timers} times"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
