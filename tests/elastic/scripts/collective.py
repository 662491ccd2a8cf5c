"""One rank of the conformance suite of collective backends; started by tests/elastic/test_collectives.py.

    collective.py BACKEND sums|transfers|some|pairs|hangs|absent|divided|loses|stands|settles|completes|unsettled

It ends with an error if the backend does not do what the interface says.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from headway.contract.orders import Order
from headway.train.collectives.guarded import GuardedGroup
from headway.train.collectives.losses import GROUP_ERRORS, is_loss
from headway.train.collectives.registry import make_backend
from headway.train.host.environment import Environment
from headway.train.membership.meeting import PeersLost
from headway.train.membership.peers import Peers

TIMEOUT_S = 60.0
FREED_WITHIN_S = 30.0

environment = Environment.read(os.environ)
name, scenario = sys.argv[1:]
if name == "nccl":
    torch.cuda.set_device(environment.local_rank)
device = torch.device("cuda", environment.local_rank) if name == "nccl" else torch.device("cpu")
backend = make_backend(name, device)


def meet(generation: int, ranks: list[int]) -> Peers:
    """Meet the processes that were started with these ranks; their new ranks are in this order."""
    assert environment.store is not None
    members = {f"1.{rank}": number for number, rank in enumerate(ranks)}
    order = Order(generation=generation, world_size=len(ranks), store=environment.store, members=members)
    mine = ranks.index(environment.rank)
    return Peers.meet(order, mine, backend, timedelta(seconds=TIMEOUT_S), TIMEOUT_S, lambda: False)


def meet_for_a_loss() -> Peers:
    """Meet as two ranks, of which rank 1 may go at once.

    A member that has met may be gone while another one still connects to it, which then has not met: torch forms groups
    without a barrier. So rank 1 waits for rank 0.
    """
    peers = meet(1, [0, 1])
    store = dist.distributed_c10d._get_default_store()
    if environment.rank == 0:
        store.set("rank 0 has met", "yes")
    else:
        store.wait(["rank 0 has met"], timedelta(seconds=TIMEOUT_S))
    return peers


def summed(value: float) -> float:
    """The sum over all ranks."""
    tensor = torch.full((1000,), value, device=device)
    dist.all_reduce(tensor)
    assert len(set(tensor.tolist())) == 1
    return tensor[0].item()


def sums() -> None:
    """Generation after generation, of other members in another order."""
    for generation, ranks in enumerate([[0, 1, 2], [2, 0, 1], [1, 0], [1]], start=1):
        if environment.rank not in ranks:
            break
        peers = meet(generation, ranks)
        assert peers.rank == dist.get_rank()
        assert summed(1.0 + peers.rank) == sum(range(len(ranks) + 1))
        assert peers.gather(peers.rank) == [[number] for number in range(len(ranks))]
        peers.leave()
        assert not dist.is_initialized()


def transfers() -> None:
    """From rank 1 to the others, whatever the type and the size."""
    peers = meet(1, [0, 1, 2])
    generator = torch.Generator().manual_seed(1)
    state = [
        torch.rand(300, 1000, generator=generator),
        torch.rand(5, generator=generator).to(torch.bfloat16),
        torch.tensor(17),
        torch.arange(6, dtype=torch.uint8).reshape(2, 3),
    ]
    mine = [(one if peers.rank == 1 else torch.zeros_like(one)).to(device) for one in state]
    peers.device_tensors_from(1, [0, 2], mine)
    assert all(torch.equal(one.cpu(), sent) for one, sent in zip(mine, state, strict=True))
    peers.leave()


def some() -> None:
    """From rank 1 to rank 2 alone: rank 0 has no part of it, but may have to be there."""
    peers = meet(1, [0, 1, 2])
    sent = [torch.arange(200_003, dtype=torch.float64), torch.tensor(True), torch.arange(5.0)[3:]]
    mine = [(one if peers.rank == 1 else torch.zeros_like(one)).to(device) for one in sent]
    peers.device_tensors_from(1, [2], mine if peers.rank else [])
    arrived = [torch.equal(one.cpu(), other) for one, other in zip(mine, sent, strict=True)]
    assert arrived == [peers.rank > 0] * 3
    assert summed(1.0) == 3.0
    peers.leave()


def pairs() -> None:
    """The first operation of the group is one of two ranks, while the third waits for their agreement."""
    faulthandler.dump_traceback_later(TIMEOUT_S, exit=True)
    peers = meet(1, [0, 1, 2])
    tensor = torch.full((1000,), float(peers.rank), device=device)
    if peers.rank == 0:
        peers.exchange([(2, tensor)], [])
    elif peers.rank == 2:
        peers.exchange([], [(0, tensor)])
    assert peers.gather(int(tensor.sum())) == [[0], [1000], [0]]
    peers.leave()
    faulthandler.cancel_dump_traceback_later()


def hangs() -> None:
    """Rank 1 stops where rank 0 waits for it: aborted by another thread, rank 0 is free and goes on alone."""
    peers = meet(1, [0, 1])
    assert summed(1.0) == 2.0
    if environment.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    began_s = time.monotonic()
    threading.Timer(0.5, peers.abort).start()
    try:
        summed(1.0)
    except RuntimeError as error:
        sys.stdout.write(f"freed: {error}\n")
    assert 0.5 <= time.monotonic() - began_s < FREED_WITHIN_S
    assert peers.aborted
    peers.leave()
    peers = meet(2, [0])
    assert summed(4.0) == 4.0


def absent() -> None:
    """Rank 2 dies before it connects: the meeting of the others ends with the order for its loss."""
    if environment.rank == 2:
        backend.connect = lambda group=None: os.kill(os.getpid(), signal.SIGKILL)
    began_s = time.monotonic()
    assert environment.store is not None
    members = {f"1.{rank}": rank for rank in range(3)}
    order = Order(generation=1, world_size=3, store=environment.store, members=members)
    lost = threading.Event()

    def superseded() -> bool:
        if not lost.is_set() and dist.is_initialized():
            threading.Timer(2.0, lost.set).start()
        return lost.is_set()

    limit = timedelta(seconds=TIMEOUT_S)
    try:
        Peers.meet(order, environment.rank, backend, limit, TIMEOUT_S, superseded)
    except PeersLost:
        assert time.monotonic() - began_s < TIMEOUT_S
        assert not dist.is_initialized()
    else:
        sys.exit("the loss was not noticed")
    assert meet(2, [environment.rank]).gather(1) == [[1]]


def divided() -> None:
    """Rank 1 stops: an abort ends what rank 0 waits for in a group of its division, and in that of all ranks."""
    peers, told = meet(1, [0, 1, 2]), threading.Event()
    pair, *_ = peers.guarded_groups([[[0, 1], [2]]], told.set)
    assert isinstance(pair, GuardedGroup)
    if environment.rank == 2:
        peers.gather(0)
        return
    whole, part = torch.ones(1000, device=device), torch.ones(1000, device=device)
    dist.all_reduce(part, group=pair)
    assert part.tolist() == [2.0] * 1000
    peers.gather(0)
    if environment.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    threading.Timer(0.5, peers.abort).start()
    began_s = time.monotonic()
    dist.all_reduce(whole, async_op=True)
    dist.all_reduce(part, group=pair)
    peers.leave()
    assert time.monotonic() - began_s < FREED_WITHIN_S
    assert peers.aborted
    assert summed_alone() == 4.0


def summed_alone() -> float:
    """The sum over this rank alone, in a generation of its own."""
    meet(2 + environment.rank, [environment.rank])
    return summed(4.0)


def loses() -> None:
    """Rank 1 dies, and rank 0 learns of it by the exception for that."""
    peers = meet_for_a_loss()
    if environment.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began_s = time.monotonic()
    try:
        peers.device_tensors_from(1, [0], [torch.zeros(1 << 20, device=device)])
    except PeersLost:
        assert time.monotonic() - began_s < FREED_WITHIN_S
    else:
        sys.exit("the loss was not noticed")


def stands() -> None:
    """Rank 1 dies, which a device does not notice: rank 0 learns of it by an abort."""
    peers = meet_for_a_loss()
    if environment.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Timer(0.5, peers.abort).start()
    try:
        peers.device_tensors_from(1, [0], [torch.zeros(1 << 20, device=device)])
    except PeersLost:
        assert peers.aborted
    else:
        sys.exit("the loss was not noticed")
    try:
        summed(1.0)
    except GROUP_ERRORS as error:
        if not is_loss(error):
            raise
    else:
        sys.exit("a group that is gone was used")


def completes() -> None:
    """A rank leaves once the operations that it started are complete on every device, without a wait of the script."""
    peers = meet(1, [0, 1])
    tensors = [torch.full((1000,), 1.0 + peers.rank, device=device) for _ in range(20)]
    for one in tensors:
        dist.all_reduce(one, async_op=True)
    peers.leave()
    assert not peers.aborted
    assert all(one.eq(3.0).all() for one in tensors)


def settles() -> None:
    """Rank 0 leaves once the operations of rank 1 are complete on its device too."""
    backend.runs_on_device = True
    peers = meet(1, [0, 1])
    store = dist.distributed_c10d._get_default_store()  # rank 1 says there what it has done
    if environment.rank == 1:
        time.sleep(0.5)  # an operation takes longer on this device
        store.set("complete", "yes")
    peers.leave()
    assert not peers.aborted
    assert store.check(["complete"])
    assert not dist.is_initialized()


def unsettled() -> None:
    """Rank 1 never completes its operations: after the limit, rank 0 aborts them, and goes on alone."""
    backend.runs_on_device = True
    peers = meet_for_a_loss()
    if environment.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    began_s = time.monotonic()
    peers.settle(limit_s=0.5)
    assert 0.5 <= time.monotonic() - began_s < FREED_WITHIN_S
    assert peers.aborted
    peers.leave()
    peers = meet(2, [0])
    assert summed(4.0) == 4.0


{
    "settles": settles,
    "unsettled": unsettled,
    "sums": sums,
    "some": some,
    "pairs": pairs,
    "transfers": transfers,
    "hangs": hangs,
    "absent": absent,
    "divided": divided,
    "loses": loses,
    "stands": stands,
    "completes": completes,
}[scenario]()
sys.stdout.flush()
os._exit(0)
