"""The faults of links between namespaces lose the packets that they are to lose, silently, and no others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from benchmarks.networking.namespaces import Bridge, Namespace, bridge, flapping, why_not

CONNECT = """
import socket, sys
one = socket.socket()
one.settimeout(float(sys.argv[2]))
try:
    one.connect((sys.argv[1], 9))
except ConnectionRefusedError:
    print("reached")
except TimeoutError:
    print("silence")
"""


@dataclass
class Pair:
    """Two hosts behind a bridge."""

    bridge: Bridge
    one: Namespace
    other: Namespace


@pytest.fixture
def pair() -> Iterator[Pair]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with bridge() as made:
        yield Pair(made, made.add("host-a"), made.add("host-b"))


def reaches(host: Namespace, address: str) -> bool:
    """Return True if a host gets an answer from an address on which nobody listens, within the time of a busy machine."""
    return _answers(host, address, within_s=5.0)


def is_silent(host: Namespace, address: str) -> bool:
    """Return True if a host gets no answer from an address."""
    return not _answers(host, address, within_s=0.3)


def _answers(host: Namespace, address: str, within_s: float) -> bool:
    command = host.inside(sys.executable, "-S", "-c", CONNECT, address, str(within_s))
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert answer in {"reached", "silence"}
    return answer == "reached"


@pytest.mark.slow
def test_packets_to_one_address_are_lost(pair: Pair) -> None:
    service, queue = pair.bridge.address(1), pair.bridge.address(2)
    assert reaches(pair.one, pair.other.address)
    pair.one.lose(service)
    assert is_silent(pair.one, service)
    assert reaches(pair.one, queue)
    pair.one.lose(pair.other.address)
    assert is_silent(pair.one, pair.other.address)
    assert reaches(pair.other, service)
    pair.one.heal()
    assert reaches(pair.one, service)
    assert reaches(pair.one, pair.other.address)


def test_isolated_and_unplugged_hosts(pair: Pair) -> None:
    service = pair.bridge.address(1)
    for host in (pair.one, pair.other):
        host.isolate()
    assert is_silent(pair.one, pair.other.address)
    assert reaches(pair.one, service)
    pair.one.unplug()
    assert is_silent(pair.one, service)
    pair.one.heal()
    pair.other.heal()
    assert reaches(pair.one, pair.other.address)


@pytest.mark.slow
def test_a_limited_link_is_slow_in_both_directions(pair: Pair) -> None:
    pair.one.limit(8.0)
    for direction in (pair.one, pair.other):
        assert _rate_mbit_per_s(pair, direction) == pytest.approx(8.0, rel=0.5)
    pair.one.unlimit()
    assert _rate_mbit_per_s(pair, pair.one) > 80.0


def _rate_mbit_per_s(pair: Pair, sender: Namespace) -> float:
    """The rate at which the other host receives two megabytes after a first one, which the limit lets through at once."""
    receiver = pair.other if sender is pair.one else pair.one
    listen = "import socket\nserver = socket.create_server(('', 7000))\nprint(flush=True)\ngot = server.accept()[0]\n"
    listen += "import time\nleft = 1 << 20\nwhile left > 0: left -= len(got.recv(1 << 16))\n"
    listen += "began, count = time.monotonic(), 0\n"
    listen += "while piece := got.recv(1 << 16): count += len(piece)\n"
    listen += "print(count * 8e-6 / (time.monotonic() - began))"
    send = f"import socket; socket.create_connection(('{receiver.address}', 7000)).sendall(bytes(3 << 20))"
    with subprocess.Popen(
        receiver.inside(sys.executable, "-S", "-c", listen), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        subprocess.run(sender.inside(sys.executable, "-S", "-c", send), check=True)
        return float(server.stdout.readline())


def test_a_flapping_link_is_on_at_the_end(pair: Pair) -> None:
    end = flapping(pair.one)
    deadline = time.monotonic() + 30.0
    while not is_silent(pair.one, pair.other.address):
        assert time.monotonic() < deadline, "it is never off"
    end()
    assert reaches(pair.one, pair.other.address)
