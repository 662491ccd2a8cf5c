"""The tools of the fault run do what they say: links, a small disk, a wrong clock."""

from __future__ import annotations

import errno
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.faulting.hosts import SmallDisk, WrongClocks
from benchmarks.faulting.network import Link, ProxyNetwork
from headway.local.ports import HOST

SHORT_S = 0.3
LONG_S = 60.0


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(4096):
            self.request.sendall(data)


@pytest.fixture
def link() -> Iterator[tuple[ProxyNetwork, Link]]:
    """To an echo, by way of a target that nobody listens on."""
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer((HOST, 0), Echo) as server, socket.socket() as nobody:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        nobody.bind((HOST, 0))
        network = ProxyNetwork()
        targets = [nobody.getsockname(), server.server_address]
        yield network, network.add("echo", lambda: targets)
        network.close()
        server.shutdown()


def connected(link: Link) -> socket.socket:
    return socket.create_connection((HOST, link.port), timeout=LONG_S)


def echoed(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(4096)


def test_a_link_leads_to_whichever_target_answers(link: tuple[ProxyNetwork, Link]) -> None:
    for _ in range(3):
        with connected(link[1]) as connection:
            assert echoed(connection, b"hello") == b"hello"


def test_a_cut_ends_open_connections_and_no_later_ones(link: tuple[ProxyNetwork, Link]) -> None:
    network, echo = link
    with connected(echo) as connection:
        assert echoed(connection, b"a") == b"a"
        assert network.cut(echo) == 2
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connected(echo) as connection:
        assert echoed(connection, b"b") == b"b"


def test_a_link_that_refuses_ends_every_connection(link: tuple[ProxyNetwork, Link]) -> None:
    link[1].refuses = True
    with pytest.raises(ConnectionError), connected(link[1]) as connection:  # at once, or with the first word
        echoed(connection, b"a")


def test_what_a_link_swallows_comes_when_it_flows_again(link: tuple[ProxyNetwork, Link]) -> None:
    echo = link[1]
    with connected(echo) as connection:
        assert echoed(connection, b"a") == b"a"
        echo.swallow()
        connection.settimeout(SHORT_S)
        with pytest.raises(TimeoutError):
            echoed(connection, b"b")
        echo.flow()
        connection.settimeout(LONG_S)
        assert connection.recv(4096) == b"b"


def test_link_loses_answer_to_change_once_and_says_whose_it_was(link: tuple[ProxyNetwork, Link]) -> None:
    echo, lost = link[1], []
    echo.lose_answer = lost.append
    with connected(echo) as connection:
        assert echoed(connection, b"GET /") == b"GET /"
        assert echoed(connection, b"POST /") == b""
    assert len(lost) == 1
    with connected(echo) as connection:
        assert echoed(connection, b"POST /") == b"POST /"


def test_a_delay_holds_on_both_ways(link: tuple[ProxyNetwork, Link]) -> None:
    with connected(link[1]) as connection:
        echoed(connection, b"a")
        link[1].delay_s = SHORT_S
        began = time.monotonic()
        assert echoed(connection, b"b") == b"b"
        assert time.monotonic() - began >= 2 * SHORT_S


def test_a_full_disk_takes_nothing_until_it_is_emptied(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk")
    try:
        if not disk.how:
            pytest.skip("this machine lets nobody mount a file system, and root writes everywhere")
        (disk.folder / "before").write_text("kept")
        disk.fill()
        with pytest.raises(OSError) as refused:  # noqa: PT011  # which one depends on how
            (disk.folder / "during").write_text("x" * 10_000)
        assert refused.value.errno in {errno.ENOSPC, errno.EACCES}
        assert (disk.folder / "before").read_text() == "kept"
        disk.empty()
        (disk.folder / "after").write_text("x" * 10_000)
    finally:
        disk.close()


def test_a_wrong_clock_is_wrong_for_the_wall_and_right_for_durations(tmp_path: Path) -> None:
    clocks = WrongClocks(tmp_path / "clocks")
    if not clocks.available:
        pytest.skip("no C compiler")
    env = {**os.environ, **clocks.env("one")}
    script = "import time, datetime as d; print(time.time(), d.datetime.now().timestamp(), time.monotonic())"

    def clock() -> list[float]:
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, check=True)
        return [float(word) for word in done.stdout.split()]

    assert clock()[0] == pytest.approx(time.time(), abs=LONG_S)
    clocks.set("one", -3600.0)
    wall, date, steady = clock()
    assert wall == pytest.approx(time.time() - 3600, abs=LONG_S)
    assert date == pytest.approx(time.time() - 3600, abs=LONG_S)
    assert steady == pytest.approx(time.monotonic(), abs=LONG_S)
