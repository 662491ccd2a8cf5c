"""Probes over real sockets: what is measured, and what the listener refuses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headway.contract.links import MAX_PROBE_BYTES, SMALL_PROBE_BYTES, PeerProbe, probe_token
from headway.local.ports import free_port
from worker_agent.reach.listener import ProbeListener
from worker_agent.reach.prober import probe
from worker_agent.reach.protocol import OK, REFUSED, ProbeRequest

KEY = "k" * 64


@contextmanager
def listening() -> Iterator[int]:
    stopping, port = threading.Event(), free_port()
    listener = ProbeListener("127.0.0.1", port, KEY, stopping)
    assert listener.listens
    body = threading.Thread(target=listener.run)
    body.start()
    try:
        yield port
    finally:
        stopping.set()
        body.join()


def order(port: int, size: int = SMALL_PROBE_BYTES, key: str = KEY, nonce: int = 1) -> PeerProbe:
    token = probe_token(key, "source", nonce, size)
    return PeerProbe(peer="target", address="127.0.0.1", port=port, nonce=nonce, size_bytes=size, token=token)


def answer(port: int, line: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(line)
        return connection.recv(3)


def test_a_probe_measures_latency_and_with_a_large_answer_bandwidth() -> None:
    with listening() as port:
        small = probe(order(port), "source", "host-a")
        large = probe(order(port, MAX_PROBE_BYTES, nonce=2), "source", "host-a")
    assert (small.failure, small.bytes_per_s) == ("", None)
    assert small.connect_s is not None
    assert 0 <= small.connect_s < 2
    assert large.bytes_per_s is not None
    assert large.bytes_per_s > 1e6


def test_a_port_without_a_listener_is_named_with_both_ends() -> None:
    port = free_port()
    found = probe(order(port), "source", "host-a")
    assert found.failure == f"host-a cannot reach 127.0.0.1:{port}: connection refused"


def test_packets_of_full_size_that_do_not_arrive_are_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def cut_short() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(512)
                connection.sendall(OK + bytes(100))

        body = threading.Thread(target=cut_short)
        body.start()
        found = probe(order(port), "source", "host-a")
        body.join()
    assert "MTU" in found.failure


@pytest.mark.parametrize(
    "request_",
    [
        ProbeRequest("source", 1, SMALL_PROBE_BYTES, "0" * 64),
        ProbeRequest("other", 1, SMALL_PROBE_BYTES, probe_token(KEY, "source", 1, SMALL_PROBE_BYTES)),
        ProbeRequest("source", 1, MAX_PROBE_BYTES, probe_token(KEY, "source", 1, SMALL_PROBE_BYTES)),
        ProbeRequest("source", 1, 1 << 40, probe_token(KEY, "source", 1, 1 << 40)),
        ProbeRequest("source", 1, 1, probe_token("another key", "source", 1, 1)),
    ],
)
def test_a_token_for_something_else_is_refused(request_: ProbeRequest) -> None:
    with listening() as port:
        assert answer(port, request_.line()) == REFUSED


def test_a_token_works_once_and_an_old_one_never() -> None:
    def line(nonce: int) -> bytes:
        return ProbeRequest("source", nonce, 1, probe_token(KEY, "source", nonce, 1)).line()

    with listening() as port:
        assert [answer(port, line(200_000)) for _ in range(2)] == [OK, REFUSED]
        assert answer(port, line(200_000 - 120_001)) == REFUSED
        assert answer(port, line(200_000 - 119_000)) == OK
        assert answer(port, b"GET / HTTP/1.1\r\n") == REFUSED
