"""Connections to the store of a job."""

from __future__ import annotations

import socket

import pytest

from worker_agent.launcher import connections


def test_who_is_connected_from_elsewhere() -> None:
    with connections.listen("127.0.0.1", 0) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            assert not connections.has_remote_clients(port), "both ends are on this host"


def test_listening_where_others_can_reach_it() -> None:
    with connections.listen("10.1.2.3", 0) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), pytest.raises(OSError, match="in use"):
            connections.listen("10.1.2.3", port)
