"""Processes that save checkpoints by themselves, without a job around them."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

from headway.storage.stores import Bytes, Data, Folder, open_storage
from headway.train.checkpoint.replica import Place, Replica
from headway.train.checkpoint.store import Checkpoints, Failed, Saved
from headway.train.data.position import Position

SAVES = 4


class Dying(Folder):
    """A folder whose process is killed at its `at`-th event: at a begin, in the middle or at the end of a write, or
    at a deletion."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self._left = at

    def _event(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def put(self, key: str, data: Data) -> None:
        def dies() -> Iterator[bytes]:
            for piece in [data] if isinstance(data, Bytes) else data:
                whole = bytes(piece)
                yield whole[: len(whole) // 2]
                self._event()
                yield whole[len(whole) // 2 :]
            self._event()

        self._event()
        super().put(key, dies())
        self._event()

    def delete(self, key: str) -> None:
        self._event()
        super().delete(key)


def state(value: int) -> dict[str, Any]:
    return {"weights": torch.full((1000,), float(value)), "value": value}


def save_until_killed(root: str, at: int) -> None:
    """Save 0, 1, …, and note in `done` each that is complete."""
    checkpoints = Checkpoints(Dying(Path(root) / "kept", at), generation=1, keep=1)
    for value in range(SAVES):
        checkpoints.begin(state(value), Position(0, value), samples=value)
        assert isinstance(checkpoints.wait(), Saved)
        with (Path(root) / "done").open("a") as done:
            done.write(f"{value}\n")


def save_on_a_full_disk(root: str) -> None:
    """A small one, one that is too large for the disk, and a small one again."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, most))
    checkpoints = Checkpoints(Folder(Path(root)), generation=1, keep=1)
    results = []
    for samples, size in enumerate([1000, 1_000_000, 1000]):
        checkpoints.begin(
            {"weights": torch.full((size,), float(samples))}, Position(0, samples), samples=samples
        )
        results.append(checkpoints.wait())
        if samples == 1:
            assert len(list(Path(root).iterdir())) == 1, "the last good one, and nothing of the other"
            found = checkpoints.read()
            assert found is not None
            assert found.name.samples == 0
    assert [type(result) for result in results] == [Saved, Failed, Saved]
    assert "File too large" in str(results[1])


def shard(
    rank: int, size: int, port: int, root: str, learning_rate: float
) -> tuple[Replica, Checkpoints, Any]:
    """A model over `size` ranks, its checkpoints, and the group to save them with."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(int(learning_rate * 100))
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    fully_shard(model[0])
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    replica = Replica([model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])])
    assert replica.is_sharded
    replica.check()
    return replica, Checkpoints(open_storage(root), generation=size, keep=3), dist.new_group(backend="gloo")


def whole(replica: Replica) -> dict[str, Any]:
    """The state of all ranks in one piece."""
    model, optimizer, schedule = replica.objects
    states: Any = get_optimizer_state_dict(model, optimizer)  # type: ignore[arg-type]
    tensors = {**model.state_dict()}
    for name, of_rank in states["state"].items():
        tensors |= {f"{name} {kind}": tensor for kind, tensor in of_rank.items()}
    return {
        "tensors": {
            name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            for name, tensor in tensors.items()
        },
        "groups": states["param_groups"],
        "schedule": schedule.state_dict(),
    }


def save_shards(rank: int, size: int, port: int, root: str, result: str) -> None:
    """Train two steps, save after each without waiting, and keep the whole state in `result`."""
    replica, checkpoints, group = shard(rank, size, port, root, 0.1)
    model, optimizer, schedule = replica.objects
    for step in range(2):
        torch.manual_seed(rank)
        model(torch.randn(4, 7)).sum().backward()  # type: ignore[operator]
        optimizer.step()  # type: ignore[attr-defined]
        schedule.step()  # type: ignore[attr-defined]
        place = Place(Position(0, step))
        assert checkpoints.begin(replica.state(place), place.position, samples=step, group=group)
    assert isinstance(checkpoints.wait(), Saved)
    assert isinstance(checkpoints.wait(), Saved)
    kept = whole(replica)
    if rank == 0:
        torch.save(kept, result)
    dist.barrier()
    os._exit(0)


def load_shards(rank: int, size: int, port: int, root: str, result: str, samples: int) -> None:
    """Load what others saved, and compare it with `result` if that is the one."""
    replica, checkpoints, group = shard(rank, size, port, root, 0.5)
    checkpoints.generation = 9
    found = checkpoints.load(replica.state(Place()), group)
    assert found is not None
    assert found.name.samples == samples
    assert replica.take_over(found.state) == Place(Position(0, samples))
    got = whole(replica)
    if samples == 1:
        expected = torch.load(result, weights_only=False)
        torch.testing.assert_close(got["tensors"], expected["tensors"], rtol=0, atol=0)
        assert got["groups"] == expected["groups"]
        assert got["schedule"] == expected["schedule"]
    dist.barrier()
    os._exit(0)
