"""A model that counts, as that of `count.py`, trained on a stream of shards of unequal sizes."""

from __future__ import annotations

import argparse
import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from counting import Counts
from faults import Faults
from torch.distributed.fsdp import fully_shard
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--reader", choices=["plain", "tar", "stateful", "loader", "datasets"], required=True)
parser.add_argument("--sizes", type=json.loads, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--max-local", type=int)
parser.add_argument("--another-order", action="store_true")
parser.add_argument("--sharded", action="store_true", help="shard the model by FSDP2")
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()
sizes: list[int] = options.sizes
starts = [sum(sizes[:shard]) for shard in range(len(sizes))]


class Stateful(IterableDataset[int]):
    """The numbers of a shard's samples, with a state; in an order of its own where orders differ."""

    def __init__(self, shard: int) -> None:
        self.left = list(range(starts[shard], starts[shard] + sizes[shard]))
        if options.another_order:
            random.shuffle(self.left)

    def __iter__(self) -> Iterator[int]:
        while self.left:
            yield self.left.pop(0)

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]


def members_of(path: Path) -> Iterator[int]:
    """Yield the samples of a tar file, one in each member."""
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            yield int(content.read())


def open_shard(shard: int) -> Any:
    """Open a shard by its reader."""
    if options.reader == "plain":
        return iter(range(starts[shard], starts[shard] + sizes[shard]))
    if options.reader == "tar":
        return members_of(options.result / f"{shard}.tar")
    if options.reader == "stateful":
        return Stateful(shard)
    if options.reader == "datasets":
        return dataset.shard(len(sizes), shard).map(lambda row: {"number": row["number"]})
    return StatefulDataLoader(Stateful(shard), batch_size=None)


if options.reader == "datasets":
    from datasets import IterableDataset as Streamed

    def rows(shards: list[int]) -> Iterator[dict[str, int]]:
        for shard in shards:
            for number in range(starts[shard], starts[shard] + sizes[shard]):
                yield {"number": number}

    dataset = Streamed.from_generator(rows, gen_kwargs={"shards": list(range(len(sizes)))})

run = headway.init(timeout_s=60)
model = Counts(sum(sizes), 1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
how = {"parallelize": lambda model, mesh: fully_shard(model, mesh=mesh)} if options.sharded else {}
wrapped, optimizer = run.prepare(model, optimizer, **how)
stream = run.stream(
    range(len(sizes)),
    open_shard,
    global_batch=options.batch,
    max_local_batch=options.max_local,
    seed=7,
    same_order=not options.another_order,
)
faults = Faults(run)
for _ in run.train_steps(options.steps):
    faults.in_body()
    for batch in stream:
        numbers = batch["number"] if options.reader == "datasets" else batch
        wrapped(numbers).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
counts = wrapped.counts.full_tensor() if options.sharded else model.counts
torch.save(counts.detach(), options.result / f"{run.rank}-of-{run.world_size}.pt")
