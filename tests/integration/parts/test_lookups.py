"""Meetings that ask no name server, and so do not stand where it never answers. Each runs in a process whose resolver is as it began."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.integration.parts.name_servers import is_asked

_RANK = """
import sys
from datetime import timedelta

from torch.distributed import TCPStore

from headway.contract.orders import Order
from headway.train.membership.meeting import open_store
from tests.integration.parts.name_servers import asking, look_up

kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
order = Order(generation=2, world_size=1, store=f"localhost:{kept.port}", members={"1.0": 0})
with asking(int(sys.argv[1])):
    open_store(order, timedelta(minutes=1), lambda: False).set("came", "yes")
    assert kept.get("headway/2/came") == b"yes"
    if sys.argv[2:]:
        look_up()
"""
_KEEPER = """
import socket
import sys
import threading
from pathlib import Path

from tests.integration.parts.name_servers import asking, look_up
from worker_agent.launcher import child
from worker_agent.launcher.program import flush_and_exit

listener = socket.create_server(("localhost", 0))
address = listener.getsockname()

def look_up_beside_the_store():
    from torch.distributed import TCPStore

    TCPStore(*address, is_master=False, wait_for_workers=False).set("kept", "yes")
    with asking(int(sys.argv[1])):
        look_up()
    flush_and_exit(0)

threading.Thread(target=look_up_beside_the_store).start()
child.keep_store(listener, Path("/dev/null"))
"""
_ASKER = """
import sys

from tests.integration.parts.name_servers import asking, look_up

with asking(int(sys.argv[1])):
    look_up()
"""


def run(script: str, server: socket.socket, *arguments: str) -> None:
    """Run the script in a process of its own, which can ask the name server."""
    port = str(server.getsockname()[1])
    subprocess.run([sys.executable, "-c", script, port, *arguments], timeout=120, check=True)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A name server that never answers, but would be asked by a process that looks up a name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        run(_ASKER, one)
        if not is_asked(one):
            pytest.skip("THIS HOST FINDS NAMES WITHOUT GLIBC'S RESOLVER")
        yield one


def test_a_rank_that_opens_its_store_asks_no_name_server(server: socket.socket) -> None:
    run(_RANK, server)
    assert not is_asked(server)


def test_a_rank_asks_name_servers_again_after_it_has_opened_its_store(server: socket.socket) -> None:
    run(_RANK, server, "look up")
    assert is_asked(server)


def test_the_keeper_of_a_store_asks_no_name_server(server: socket.socket) -> None:
    run(_KEEPER, server)
    assert not is_asked(server)
