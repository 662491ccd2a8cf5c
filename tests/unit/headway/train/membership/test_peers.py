"""An abort by another thread ends the groups of its peers, and never those of the next ones."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue

import torch

from headway.train.collectives.backend import CollectiveBackend, Rendezvous
from headway.train.membership.peers import Peers

PATIENCE_S = 30.0


class SlowAbort(CollectiveBackend):
    """A backend whose abort takes until the test lets it end."""

    runs_on_device = True

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.aborts = 0

    def form(self, rendezvous: Rendezvous) -> None:
        """Form nothing: each rank of these tests is alone."""

    def leave(self) -> None:
        """Leave nothing."""

    def abort(self) -> None:
        self.aborts += 1
        self.begun.set()
        assert self.may_end.wait(PATIENCE_S)

    def transfer(
        self, tensors: Sequence[torch.Tensor], *, rank: int, source: int, receivers: Sequence[int]
    ) -> None:
        """Transfer nothing."""


def test_leave_waits_for_the_end_of_an_abort_under_way() -> None:
    backend = SlowAbort()
    peers = Peers(backend, rank=0, world_size=1)
    aborting = threading.Thread(target=peers.abort)
    aborting.start()
    assert backend.begun.wait(PATIENCE_S)
    ended: SimpleQueue[str] = SimpleQueue()
    leaving = threading.Thread(target=lambda: (peers.leave(), ended.put("left")))
    leaving.start()
    leaving.join(0.05)
    assert leaving.is_alive()
    ended.put("aborted")
    backend.may_end.set()
    aborting.join(PATIENCE_S)
    leaving.join(PATIENCE_S)
    assert [ended.get(timeout=PATIENCE_S) for _ in range(2)] == ["aborted", "left"]


def test_abort_after_the_leave_does_not_reach_the_groups_of_the_process() -> None:
    backend = SlowAbort()
    backend.may_end.set()
    peers = Peers(backend, rank=0, world_size=1)
    peers.leave()
    peers.abort()
    assert (peers.aborted, backend.aborts) == (True, 0)
