"""Operations that gloo forgets when a connection closes, over real connections: an abort ends the waits for them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 120.0

_RANKS = """
import os, signal, sys, threading, time
from datetime import timedelta

import torch
import torch.distributed as dist

from headway.train.collectives.gloo import Gloo
from headway.train.membership.meeting import PeersLost
from headway.train.membership.peers import Peers

rank, what, limit = int(sys.argv[1]), sys.argv[3], timedelta(hours=1)
dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2, timeout=limit)
peers = Peers(Gloo(), rank=rank, world_size=2, timeout=limit)
lost = []
(guarded,) = peers.guarded_groups([[[0, 1]]], lambda: lost.append(True))
# More than the buffers of the system take, so a killed receiver ends a transfer under way.
large = torch.full((64 << 20,), float(rank == 0))
half = torch.zeros(32 << 20)
begin = {
    "tensors": lambda: peers.tensors_from(0, [large], peers._control),
    "messages": lambda: peers.exchange([(1, large)] if rank == 0 else [], [] if rank == 0 else [(0, large)]),
    "guarded": lambda: guarded.broadcast(large, 0).wait(),
    "scattered": lambda: guarded._reduce_scatter_base(half, large).wait(),
}[what]
if rank == 1:
    if what != "scattered":
        threading.Thread(target=begin, daemon=True).start()
        while not large[0]:
            pass
    else:
        dist.group.WORLD._reduce_scatter_base(half, large)
        before = time.monotonic()
        while time.monotonic() - before < 0.05:
            pass
    os.kill(os.getpid(), signal.SIGKILL)
watcher = threading.Thread(target=lambda: (sys.stdin.readline(), peers.abort()), daemon=True)
watcher.start()
try:
    print("begun", flush=True)
    begin()
    print("lost" if lost else "whole", flush=True)
except PeersLost:
    print("lost", flush=True)
peers.leave()
print("left", flush=True)
os._exit(0)  # a thread of gloo waits for the forgotten send
"""


# The gate needs one of them: a wait that gloo forgets lasts until the time limit of the job, and repetitions seldom show it.
@pytest.mark.parametrize(
    "what",
    ["guarded", *(pytest.param(one, marks=pytest.mark.slow) for one in ("tensors", "messages", "scattered"))],
)
def test_wait_for_a_send_to_a_killed_rank_ends_with_the_abort(tmp_path: Path, what: str) -> None:
    store = (tmp_path / "store").as_uri()
    killed = subprocess.Popen([sys.executable, "-c", _RANKS, "1", store, what])
    survivor = subprocess.Popen(
        [sys.executable, "-c", _RANKS, "0", store, what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert killed.wait(PATIENCE_S) == -signal.SIGKILL
        printed, _ = survivor.communicate("abort\n", timeout=PATIENCE_S)
    finally:
        for one in (killed, survivor):
            one.kill()
            one.wait()
    assert printed.split() == ["begun", "lost", "left"]
    assert survivor.returncode == 0
