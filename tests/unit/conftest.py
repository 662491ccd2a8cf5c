"""A unit test opens no socket to anywhere: what does belongs to `tests/integration`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_running = False


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    """Fail a test that opens a socket, except one within the process, by which event loops wake themselves."""
    if _running and event == "socket.__new__" and arguments[1] != socket.AF_UNIX:
        pytest.fail("a unit test opened a socket")


sys.addaudithook(_watch)  # for good: hooks cannot be taken back


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Sockets are closed to a test of this folder and to its fixtures, and to no other that this process runs."""
    global _running
    _running = Path(__file__).parent in item.path.parents
    try:
        return (yield)
    finally:
        _running = False
