"""Members that meet in a store over real connections."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from headway.contract.orders import Order
from headway.lookups import ask_no_name_servers
from headway.train.collectives.gloo import Gloo
from headway.train.membership.meeting import PeersLost, Superseded, leave_marker
from headway.train.membership.peers import Peers

NOWHERE = "127.0.0.1:1"
"""No store: a connection is refused."""
LONG = timedelta(hours=1)
"""Longer than a test may take."""


def order(store: str) -> Order:
    return Order(generation=2, world_size=2, store=store, members={"1.0": 0, "2.1": 1})


def meet(store: str, due: threading.Event, *, wait_s: float = 3600.0) -> None:
    Peers.meet(order(store), 0, Gloo(), LONG, wait_s, due.is_set)


@pytest.fixture
def due() -> threading.Event:
    """Becomes set a moment later: something else is due."""
    event = threading.Event()
    timer = threading.Timer(0.2, event.set)
    timer.start()
    return event


@pytest.fixture
def store() -> TCPStore:
    ask_no_name_servers()
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_a_store_that_is_gone_is_left_for_what_is_due(due: threading.Event) -> None:
    with pytest.raises(Superseded):
        meet(NOWHERE, due)
    with pytest.raises(Superseded):
        leave_marker(order(NOWHERE), "handed over", "1", LONG, due.is_set)


def test_a_member_that_does_not_come_is_left_for_what_is_due(store: TCPStore, due: threading.Event) -> None:
    with pytest.raises(Superseded):
        meet(f"127.0.0.1:{store.port}", due)


def test_a_signal_is_taken_while_members_are_waited_for(store: TCPStore) -> None:
    asked = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: asked.set())
    try:
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        with pytest.raises(Superseded):
            meet(f"127.0.0.1:{store.port}", asked)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_member_that_does_not_come_is_given_up(store: TCPStore) -> None:
    with pytest.raises(PeersLost, match="not all 2 members of generation 2"):
        meet(f"127.0.0.1:{store.port}", threading.Event(), wait_s=0.2)


def test_a_mark_is_for_the_members_of_its_generation(store: TCPStore) -> None:
    leave_marker(order(f"127.0.0.1:{store.port}"), "handed over", "17.5", LONG, lambda: False)
    assert store.get("headway/2/handed over") == b"17.5"


_UNEQUAL = """
import sys
from datetime import timedelta

import torch.distributed as dist

from headway.train.collectives.gloo import Gloo
from headway.train.membership.peers import Peers

rank, limit = int(sys.argv[1]), timedelta(seconds=60)
dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2, timeout=limit)
peers = Peers(Gloo(), rank=rank, world_size=2, timeout=limit)
assert peers.gather(*range(40)) == [list(range(40))] * 2
try:
    peers.gather(*range([1, 44][rank]))
except RuntimeError as error:
    print(error)
"""


def test_ranks_that_exchange_unlike_counts_of_numbers_raise_an_error_and_do_not_abort(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _UNEQUAL, str(rank), store], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert all("1 on rank 0, 44 on rank 1" in one for one in printed), printed
