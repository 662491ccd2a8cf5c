"""Network namespaces behind one bridge of this machine, as hosts with an address, a name and an /etc/hosts of their own.

Each fault is silent, as on a real network: packets are lost, and no end is told. A namespace loses the packets to an address
by a neighbour entry with the hardware address of nobody. That works in one direction, and needs no packet filter.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_NETWORKS = range(64, 192)
"""Second number of the bridge's addresses, 10.N.0.0/24."""
_FIRST_HOST = 11
"""Last number of the first host's address; the bridge itself has the numbers below."""
_NOBODY = "02:00:00:00:00:00"
_BURST_BYTES = 262_144
"""Bytes that a limited link sends at once: more than the largest piece that the kernel hands to it."""
_QUEUE_MS = 50
_FLAP_S = 0.7
"""Duration of each state of a flapping link: longer than the first retransmissions of TCP."""
_DISABLED, _FORWARDING = "0", "3"
"""States of a bridge's port."""


def why_not() -> str | None:
    """Return why this machine has no network namespaces, or None if it has."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "NETWORK NAMESPACES NEED ROOT AND `ip` (Debian: iproute2)"
    name = f"hw-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return f"NO NETWORK NAMESPACES: {tried.stderr.strip()}" if tried.returncode else None


def ip(*arguments: str) -> str:
    """Run `ip`, and return its output."""
    done = subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


@dataclass
class Namespace:
    """A network namespace with one address on a bridge.

    `namespace` is its name on this machine, and `port` the end of its link at the bridge.
    """

    name: str
    namespace: str
    address: str
    port: str

    def inside(self, *command: str) -> list[str]:
        """Return the command that runs another one in the namespace, under its host name."""
        run = ["ip", "netns", "exec", self.namespace, "unshare", "--uts"]
        return [*run, "sh", "-c", f'hostname {self.name} && exec "$@"', "sh", *command]

    def isolate(self, *, on: bool = True) -> None:
        """Drop the packets between this host and other isolated ones; the service is still reached."""
        self._set_port("isolated", "on" if on else "off")

    def lose(self, *addresses: str) -> None:
        """Lose all packets from this host to these addresses. Packets from them still arrive."""
        for address in addresses:
            entry = [address, "lladdr", _NOBODY, "dev", "net0", "nud", "permanent"]
            ip("-n", self.namespace, "neigh", "replace", *entry)

    def reach(self, *addresses: str) -> None:
        """Deliver packets to these addresses again."""
        for address in addresses:
            with suppress(subprocess.CalledProcessError):  # nothing was lost
                ip("-n", self.namespace, "neigh", "del", address, "dev", "net0")

    def unplug(self) -> None:
        """Lose all packets from and to this host."""
        self._set_port("state", _DISABLED)

    def plug(self) -> None:
        """Deliver the packets from and to this host again."""
        self._set_port("state", _FORWARDING)

    def limit(self, mbit_per_s: float) -> None:
        """Limit the link's rate in both directions."""
        rate = f"{round(mbit_per_s * 1e6)}bit"
        bucket = ["tbf", "rate", rate, "burst", f"{_BURST_BYTES}b", "latency", f"{_QUEUE_MS}ms"]
        for where in self._ends():
            _tc(*where, "replace", bucket)

    def unlimit(self) -> None:
        """Remove the limit of the link's rate."""
        for where in self._ends():
            with suppress(subprocess.CalledProcessError):  # there was no limit
                _tc(*where, "del", [])

    def heal(self) -> None:
        """Undo all faults of this host's link."""
        self.plug()
        self.isolate(on=False)
        self.unlimit()
        lost = ip("-n", self.namespace, "neigh", "show", "nud", "permanent").splitlines()
        self.reach(*(line.split()[0] for line in lost))

    def kill_all(self) -> None:
        """Kill every process in the namespace."""
        for pid in ip("netns", "pids", self.namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def _set_port(self, what: str, value: str) -> None:
        subprocess.run(["bridge", "link", "set", "dev", self.port, what, value], check=True)

    def _ends(self) -> tuple[tuple[list[str], str], tuple[list[str], str]]:
        return (["-n", self.namespace], "net0"), ([], self.port)


def flapping(host: Namespace) -> Callable[[], None]:
    """Turn the link of a host off and on in turns, and return the function that ends this with a link that is on."""
    over = threading.Event()

    def flap() -> None:
        while not over.wait(_FLAP_S):
            host.unplug()
            over.wait(_FLAP_S)
            host.plug()

    thread = threading.Thread(target=flap, daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return end


def _tc(options: Sequence[str], device: str, verb: str, discipline: Sequence[str]) -> None:
    argv = ["tc", *options, "qdisc", verb, "dev", device, "root", *discipline]
    subprocess.run(argv, check=True, capture_output=True)


class Bridge:
    """A bridge with namespaces. What it creates is removed at the end of `exits`.

    Its address ends with 1. `address(N)` gives it another one, so that hosts can lose the packets to one server alone.
    """

    def __init__(self, number: int, exits: ExitStack) -> None:
        self.number = number
        self.prefix = f"hw{number}"
        self._exits = exits
        self._count = 0

    def address(self, number: int) -> str:
        """Return the bridge's address that ends with this number, which is below that of all hosts."""
        assert 0 < number < _FIRST_HOST, "the other numbers are of hosts"
        address = f"10.{self.number}.0.{number}"
        ip("addr", "replace", f"{address}/24", "dev", self.prefix)
        return address

    def add(self, name: str) -> Namespace:
        """Return a new namespace, in which its name means a loopback address, as Debian's installer writes it."""
        at = _FIRST_HOST + self._count
        self._count += 1
        host = Namespace(name, f"{self.prefix}-{name}", f"10.{self.number}.0.{at}", f"{self.prefix}o{at}")
        files = Path("/etc/netns") / host.namespace
        files.mkdir(parents=True)
        self._exits.callback(shutil.rmtree, files, ignore_errors=True)
        (files / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        ip("netns", "add", host.namespace)
        self._exits.callback(ip, "netns", "del", host.namespace)
        self._exits.callback(host.kill_all)
        inside = f"{self.prefix}i{at}"
        ip("link", "add", host.port, "type", "veth", "peer", "name", inside, "netns", host.namespace)
        # The kernel removes a namespace later, and its links with it; the next bridge may have the same number.
        self._exits.callback(ip, "link", "del", host.port)
        ip("link", "set", host.port, "master", self.prefix, "up")
        for command in (["lo", "up"], [inside, "name", "net0"], ["net0", "up"]):
            ip("-n", host.namespace, "link", "set", *command)
        ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "net0")
        return host


@contextmanager
def bridge() -> Iterator[Bridge]:
    """Create a bridge with a free number, and remove it with its namespaces at the end."""
    with ExitStack() as exits:
        number = _free_number()
        made = Bridge(number, exits)
        exits.callback(ip, "link", "del", made.prefix)
        made.address(1)
        ip("link", "set", made.prefix, "up")
        yield made


def _free_number() -> int:
    """Create the bridge of a number that no other process uses, and return it.

    Raises:
        RuntimeError: there is none.
    """
    first = os.getpid() % len(_NETWORKS)
    number: int
    for number in (*_NETWORKS[first:], *_NETWORKS[:first]):
        with suppress(subprocess.CalledProcessError):
            ip("link", "add", f"hw{number}", "type", "bridge")
            return number
    raise RuntimeError("every bridge hw64 to hw191 exists already; remove unused ones with `ip link del`")
