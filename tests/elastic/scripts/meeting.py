"""One of two members that meet; started by tests/elastic/test_meeting.py.

    meeting.py RANK ORDER goes_on|dies

The one that dies does so when its address is published and its peer's is not read yet. The other prints what it found.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from headway.contract.orders import order_from_json
from headway.train.collectives.gloo import Gloo
from headway.train.membership.meeting import PeersLost
from headway.train.membership.peers import Peers

rank, order, fate = int(sys.argv[1]), order_from_json(sys.argv[2]), sys.argv[3]


class DyingStore(Store):
    """Kills its process when the address of a peer is asked for."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, bytes(value))

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(key, amount))

    def get(self, key: str) -> bytes:
        if self._store.check(["published"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return bytes(self._store.get(key))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def die() -> None:
    host, _, port = order.store.rpartition(":")
    names = PrefixStore(f"headway/{order.generation}", TCPStore(host, int(port), is_master=False))
    if names.add("here", 1) == order.world_size:
        names.set("all here", "1")
    names.wait(["all here"])
    dist.init_process_group(
        "gloo", store=DyingStore(names), rank=rank, world_size=order.world_size, timeout=timedelta(seconds=30)
    )


if fate == "dies":
    die()
    sys.exit("it should be dead")
began_s = time.monotonic()
try:
    Peers.meet(order, rank, Gloo(), timedelta(seconds=600), 600.0, lambda: False)
    lost = False
except PeersLost:
    lost = True
sys.stdout.write(json.dumps({"lost": lost, "took_s": time.monotonic() - began_s}))
sys.stdout.flush()
os._exit(0)
