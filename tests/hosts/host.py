"""A host and its fabric in network namespaces, and what configures the host: managers, daemons,
files."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

FABRIC = "/run/netns/fabric"
# What the fabric has behind its rails.
FAR, FAR6 = "198.19.77.1", "2001:db8:77::1"


class Failure(Exception):
    """What a case says after its name."""


def sh(command, check=True, timeout=120):
    """Standard output and error of a shell's command."""
    done = subprocess.run(
        ["sh", "-ec", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
    )
    text = done.stdout.decode(errors="replace")
    if check and done.returncode:
        raise Failure(
            f"set-up: {command.strip().splitlines()[0][:120]}: exit {done.returncode}:"
            f" {text.strip()[-600:]}"
        )
    return text


def wait_for(condition, what, limit=60.0):
    """Whatever true value `condition` gives; the limit is for what never happens."""
    end = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > end:
            raise Failure(f"{what}: not within {limit:.0f} s")
        time.sleep(0.05)
    return value


def write(path, text, mode=0o644):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


class Daemon:
    """A program in the foreground; started and ended any number of times."""

    def __init__(self, name, command, fabric=False, read_only_sys=False):
        self.name = name
        self.command = command
        self.prefix = ["nsenter", f"--net={FABRIC}", "--"] if fabric else []
        if read_only_sys:
            # Managers then do as in a container: they wait for no udevd.
            inner = 'mount --bind /sys /sys && mount -o remount,bind,ro /sys && exec "$0" "$@"'
            self.prefix += [
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "--",
                "sh",
                "-ec",
                inner,
            ]
        self.process = None

    def start(self):
        with open(f"/log/{self.name}", "ab") as log:
            self.process = subprocess.Popen(
                self.prefix + self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self, with_signal=signal.SIGTERM):
        if self.process is None:
            return
        self.process.send_signal(with_signal)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


class Networkd:
    """systemd-networkd. `nics`: those that it has a file for."""

    def __init__(self, host, files, nics):
        self.nics = nics
        for name, text in files.items():
            write(name if name.startswith("/") else f"/etc/systemd/network/{name}", text)
        sh(
            "mkdir -p /run/systemd/netif/links /run/systemd/netif/leases"
            " /run/systemd/netif/lldp /run/systemd/network"
            " && chown -R systemd-network: /run/systemd/netif"
        )
        host.bus()
        os.environ["SYSTEMD_LOG_LEVEL"] = "info"
        self.daemon = Daemon(
            "networkd", ["/lib/systemd/systemd-networkd"], read_only_sys=not host.udev
        )
        self.daemon.start()

    def pending(self):
        """`failed` is final, too: networkd 252 ends so at times when a link goes down and up within
        some ms, by ip alone as well. What it lacks then is seen in the state.
        """
        if self.daemon.process is None:
            return []
        return [
            f"networkd: {nic} is {state}"
            for nic in self.nics
            if (state := self._state(nic)) not in ("configured", "failed")
        ]

    @staticmethod
    def _state(nic):
        with contextlib.suppress(OSError):
            index = Path(f"/sys/class/net/{nic}/ifindex").read_text().strip()
            text = Path(f"/run/systemd/netif/links/{index}").read_text()
            return re.search(r"^ADMIN_STATE=(.*)$", text, re.MULTILINE)[1]
        return "unknown"

    def reload(self):
        sh("networkctl reload", check=False)

    def restart(self):
        self.daemon.stop()
        self.daemon.start()


class NetworkManager:
    """NetworkManager. connections: arguments of `nmcli connection add`, of type ethernet if
    they name none."""

    def __init__(self, host, connections, nics, up=(), auto_default=False):
        self.nics = nics
        self.is_external = auto_default
        own_profiles = "" if auto_default else "no-auto-default=*\n"
        write(
            "/etc/NetworkManager/NetworkManager.conf",
            "[main]\nplugins=keyfile\nauth-polkit=false\ndhcp=internal\n"
            f"dns=none\n{own_profiles}[keyfile]\nunmanaged-devices="
            + ";".join(f"interface-name:{nic}" for nic in host.all_nics + ["lo"] if nic not in nics)
            + "\n",
        )
        sh(
            "mkdir -p /run/NetworkManager /var/lib/NetworkManager"
            " /etc/NetworkManager/system-connections"
        )
        host.bus()
        self.daemon = Daemon(
            "NetworkManager",
            ["NetworkManager", "--debug", "--log-level=INFO"],
            read_only_sys=not host.udev,
        )
        self.daemon.start()
        self._wait()
        for connection in connections:
            kind = "" if connection.startswith("type ") else "type ethernet "
            sh(f"nmcli connection add {kind}{connection}")
        for name in up:
            sh(f"nmcli --wait 60 connection up {name}")

    @staticmethod
    def _wait():
        wait_for(
            lambda: sh("nmcli -t -f RUNNING general", check=False).strip() == "running",
            "NetworkManager's start",
        )

    def pending(self):
        """What is not activated with a profile: "externally", NetworkManager only watches what
        others have set, as it shall where there is no profile."""
        if self.daemon.process is None:
            return []
        states = {
            nic: sh(f"nmcli -g GENERAL.STATE device show {nic}", check=False).strip()
            for nic in self.nics
        }
        left_alone = ["100 (connected (externally))", "30 (disconnected)"]
        wanted = left_alone if self.is_external else ["100 (connected)"]
        return [
            f"NetworkManager: {nic} is {state}"
            for nic, state in states.items()
            if state not in wanted
        ]

    def reload(self):
        sh("nmcli connection reload; nmcli general reload", check=False)

    def restart(self):
        self.daemon.stop()
        self.daemon.start()
        self._wait()


class Frr:
    """FRR's daemons on the host and on the fabric. Nothing says when they are done: the routes do.
    """

    def __init__(self, daemons, host_text, fabric_text):
        self.nics = []
        self.daemons = []
        for name, text, fabric in (("host", host_text, False), ("fabric", fabric_text, True)):
            write(f"/etc/frr/{name}/frr.conf", text)
            write(f"/etc/frr/{name}/vtysh.conf", "")
            sh(
                f"mkdir -p /run/frr/{name} /var/log/frr && chown -R frr: /run/frr /etc/frr &&"
                f" chmod 755 /run/frr /run/frr/{name}"
            )
            # Of Debian 13 on.
            mgmtd = ["mgmtd"] if Path("/usr/lib/frr/mgmtd").exists() else []
            for program in mgmtd + ["zebra"] + daemons:
                daemon = Daemon(
                    f"frr-{name}-{program}",
                    [f"/usr/lib/frr/{program}", "-N", name, "-A", "127.0.0.1", "--log", "stdout"],
                    fabric=fabric,
                )
                daemon.start()
                if not fabric:
                    self.daemons.append(daemon)
                wait_for(Path(f"/run/frr/{name}/{program}.vty").exists, f"{program} on the {name}")
            # A daemon may not answer at once.
            wait_for(
                lambda n=name: "rror"
                not in sh(f"vtysh -N {n} -f /etc/frr/{n}/frr.conf", check=False),
                "FRR's configuration",
            )

    def pending(self):
        return [
            f"{daemon.name} has ended"
            for daemon in self.daemons
            if daemon.process.poll() is not None
        ]

    def reload(self):
        pass

    def restart(self):
        pass


class Ifupdown2:
    """ifupdown2: writes when it is called, and at no other time."""

    nics = ()

    def __init__(self, text):
        write("/etc/network/interfaces", text)
        sh("mkdir -p /run/network && ifreload -a")

    @staticmethod
    def pending():
        return []

    def reload(self):
        pass

    def restart(self):
        pass


class Host:
    """The host, in this process's namespaces, and what a case says about it."""

    def __init__(self, rails, udev, shared_subnet=False):
        self.rails = [f"r{i}" for i in range(rails)]
        self.all_nics = self.rails + ["m0"]
        self.udev = udev
        self.managers = []
        self.reach = []
        self.foreign_commands = ""
        self.prepare_flags = []
        # An item that managers make and drop by themselves: it is neither lost nor extra.
        self.uncounted = None
        self._awaited = []
        self._bus = None
        self.dhcp = None
        write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
        sh("mkdir -p /run/netns && ip netns add fabric")
        self.on_fabric(f"""ip link set lo up
            sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
              net.ipv6.conf.default.accept_dad=0 \\
              net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
            ip address add {FAR}/32 dev lo; ip address add {FAR6}/128 dev lo
            {"ip link add br0 type bridge; ip link set br0 up" if shared_subnet else ""}""")
        if udev:
            # Debian's rule for NetworkManager: it would leave veths alone.
            write("/etc/udev/rules.d/85-nm-unmanaged.rules", "")
            self._start_udev()
        for nic in self.all_nics:
            sh(f"ip link add {nic} type veth peer name p{nic} netns fabric")
            master = f"; ip link set p{nic} master br0" if shared_subnet and nic != "m0" else ""
            self.on_fabric(f"ip link set p{nic} mtu 9216 up{master}")
        self.on_fabric("ip address add 192.0.2.1/24 dev pm0")
        if udev:
            sh("udevadm trigger --action=add --subsystem-match=net && udevadm settle --timeout=60")
        self.reaches("", "192.0.2.1")

    def m0_by_hand(self):
        """The uplink, by `ip`, where no manager is to have it."""
        sh(
            "ip address add 192.0.2.10/24 dev m0; ip link set m0 up; ip route add default via"
            " 192.0.2.1 dev m0"
        )

    @staticmethod
    def on_fabric(command, check=True):
        inner = command.replace("'", "'\\''")
        return sh(f"nsenter --net={FABRIC} -- sh -ec '{inner}'", check)

    @staticmethod
    def _start_udev():
        sh("mkdir -p /run/udev")
        Daemon("udevd", ["/lib/systemd/systemd-udevd"]).start()
        wait_for(Path("/run/udev/control").exists, "udevd's start")

    def bus(self):
        if self._bus:
            return
        sh("mkdir -p /run/dbus /var/lib/dbus && ln -sf /etc/machine-id /var/lib/dbus/machine-id")
        self._bus = Daemon("dbus", ["dbus-daemon", "--system", "--nofork", "--nopidfile"])
        self._bus.start()
        wait_for(Path("/run/dbus/system_bus_socket").exists, "the bus's start")

    def end_bus(self):
        self._bus.stop()
        sh("rm -f /run/dbus/system_bus_socket")

    def owns_name(self, name):
        """A stand-in with a manager's name on the bus."""
        write(
            "/etc/dbus-1/system.d/stand-in.conf",
            f'<busconfig><policy user="root"><allow own="{name}"/>'
            f'<allow send_destination="{name}"/></policy></busconfig>\n',
        )
        self.bus()
        Daemon("bus-name", ["python3", "-B", "/case/bus_name.py", name]).start()
        asked = (
            "dbus-send --system --print-reply --dest=org.freedesktop.DBus /org/freedesktop/DBus"
            f" org.freedesktop.DBus.NameHasOwner string:{name}"
        )
        wait_for(lambda: "true" in sh(asked, check=False), f"the name {name}")

    # What configures this host.

    def networkd(self, files, nics=None):
        self.managers.append(Networkd(self, files, self.rails if nics is None else nics))

    def netplan(self, text, nics=None):
        write("/etc/netplan/50-case.yaml", text, 0o600)
        # Newer ones tell systemd of their units; there is none.
        write("/usr/local/bin/systemctl", "#!/bin/sh\n", 0o755)
        sh("netplan generate; chmod -R a+rX /run/systemd/network")
        self.networkd({}, nics)

    def network_manager(self, connections, nics=None, up=(), auto_default=False):
        nics = self.rails if nics is None else nics
        self.managers.append(NetworkManager(self, connections, nics, up, auto_default))

    def frr(self, daemons, host_text, fabric_text):
        self.managers.append(Frr(daemons, host_text, fabric_text))

    def ifupdown2(self, text):
        self.managers.append(Ifupdown2(text))

    def foreign(self, commands):
        """What an administrator adds when the managers are done."""
        self.foreign_commands += commands + "\n"

    def reaches(self, source, to, by=()):
        """A destination that this host reaches: from an address, or from any (""); by one of
        several NICs, if it is so."""
        self.reach.append((source, to, by))

    def waits_for(self, pattern):
        """A pattern of `ip route` without which the set-up is not done."""
        self._awaited.append(pattern)

    def is_there(self):
        routes = sh("ip route") if self._awaited else ""
        return all(re.search(pattern, routes) for pattern in self._awaited)

    # The fabric's part.

    def gateways(self):
        """198.18.N.1/24 and 2001:db8:N+1::1/64 on each rail's other end."""
        for i, nic in enumerate(self.rails):
            self.on_fabric(
                f"ip address add 198.18.{i}.1/24 dev p{nic}; ip address add"
                f" 2001:db8:{i + 1}::1/64 dev p{nic}"
            )

    def dhcp_server(self):
        ranges = [
            f"--dhcp-range=198.18.{i}.4,198.18.{i}.4,255.255.255.0,3600"
            for i in range(len(self.rails))
        ]
        self.dhcp = Daemon(
            "dnsmasq",
            [
                "dnsmasq",
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--no-resolv",
                "--no-hosts",
                "--port=0",
                "--user=root",
                "--pid-file=",
                "--leasefile-ro",
                "--no-ping",
                "--dhcp-authoritative",
                "--bind-interfaces",
                "--log-facility=-",
                *[f"--interface=p{nic}" for nic in self.rails],
                *ranges,
            ],
            fabric=True,
        )
        self.dhcp.start()

    def router_advertisements(self):
        """A prefix on each rail, and a route to what is behind them; no default route."""
        text = "".join(
            f"interface p{nic}"
            f" {{ AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; AdvDefaultLifetime 0;"
            f" prefix 2001:db8:{i + 1}::/64 {{ AdvOnLink on; AdvAutonomous on; }}; route"
            f" 2001:db8:77::/48 {{}}; }};\n"
            for i, nic in enumerate(self.rails)
        )
        write("/etc/radvd.conf", text)
        Daemon(
            "radvd",
            [
                "radvd",
                "--nodaemon",
                "--config=/etc/radvd.conf",
                "--logmethod=stderr",
                "--pidfile=/run/radvd.pid",
            ],
            fabric=True,
        ).start()

    def carrier(self, nic, on):
        self.on_fabric(f"ip link set p{nic} {'up' if on else 'down'}")

    def pending(self):
        """What its managers are still at, a line each."""
        return [line for manager in self.managers for line in manager.pending()]


class Container:
    """A network and mount namespace, and the hooks as a runtime calls them."""

    count = 0

    def __init__(self, plan="default"):
        Container.count += 1
        self.id = f"c{Container.count}"
        self.plan = plan
        command = [
            "unshare",
            "--net",
            "--mount",
            "--propagation",
            "private",
            "--",
            "sh",
            "-ec",
            "ip link set lo up; echo ready; exec sleep infinity",
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.process.stdout.readline()
        self.pid = self.process.pid

    def state(self, status, pid):
        state = {
            "ociVersion": "1.0.2",
            "id": self.id,
            "status": status,
            "bundle": "",
            "annotations": {"rdmaprep.io/plan": self.plan},
        }
        if pid:
            state["pid"] = self.pid
        return json.dumps(state).encode()

    def create(self, kill_after=None):
        """The create hook; killed after that many seconds."""
        return rdmaprep(
            "hook", "createRuntime", given=self.state("creating", True), kill_after=kill_after
        )

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self, kill_after=None):
        """Its process ends, and the runtime calls the stop hook; killed after that many seconds."""
        self.end()
        given = self.state("stopped", False)
        return rdmaprep("hook", "poststop", given=given, kill_after=kill_after)

    def inside(self, command, check=False):
        inner = command.replace("'", "'\\''")
        return sh(f"nsenter --net=/proc/{self.pid}/ns/net -- sh -ec '{inner}'", check)


class Ended:
    """How rdmaprep ended."""

    def __init__(self, code, text, seconds):
        self.code, self.text, self.seconds = code, text, seconds


def nics_in_status():
    """What status says of containers and waiting NICs, without what has returned lately."""
    lines = rdmaprep("status").text.splitlines()
    return "\n".join(line for line in lines if not line.startswith("returned:"))


def rdmaprep(*arguments, given=b"", kill_after=None):
    started = time.monotonic()
    process = subprocess.Popen(
        ["rdmaprep", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        text, _ = process.communicate(given, timeout=180 if kill_after is None else kill_after)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        if kill_after is None:
            raise Failure(
                f"rdmaprep {' '.join(arguments)}: did not end within 180 s: {text.decode()[-400:]}"
            ) from None
    seconds = time.monotonic() - started
    with open("/log/rdmaprep", "a", encoding="utf-8") as log:
        log.write(
            f"== {time.strftime('%T')} {' '.join(arguments)}: {process.returncode},"
            f" {seconds:.2f} s\n{text.decode(errors='replace')}"
        )
    return Ended(process.returncode, text.decode(errors="replace").strip(), seconds)
