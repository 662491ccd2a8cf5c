"""Free ports are not given twice, and servers can listen on them."""

from __future__ import annotations

import socket

from headway.local.ports import HOST, free_port, is_free


def test_free_ports_are_given_once() -> None:
    ports = [free_port() for _ in range(200)]
    others = [socket.create_server((HOST, 0)) for _ in range(200)]
    taken = {one.getsockname()[1] for one in others}
    for one in others:
        one.close()
    assert len(set(ports)) == 200
    assert not taken & set(ports)


def test_a_server_listens_on_a_free_port() -> None:
    port = free_port()
    assert is_free(port)
    with socket.create_server((HOST, port)):
        assert not is_free(port)
