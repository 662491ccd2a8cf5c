"""Train a few steps as a rank, and end in the way that is asked.

    ending_rank.py ENDING STEPS SHARDED

`benchmarks.endings` starts it. ENDING is `end`, `error`, `lost` (an exception on rank 1 alone), `exit` (in the middle of an
epoch) or `stop`. With SHARDED 1 FSDP2 shards the model.
"""

import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import headway

ending, steps, sharded = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
CODE = 3


def parallelize(model: Any, mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  # takes a second to import

    fully_shard(model, mesh=mesh)


def end_as_asked() -> None:
    if ending == "exit":
        sys.exit(CODE)
    if ending == "error" or (ending == "lost" and run.rank == 1):
        raise ArithmeticError("the rank was asked to raise an error")
    if ending == "stop":
        os.kill(os.getpid(), signal.SIGTERM)


torch.manual_seed(0)
run = headway.init(timeout_s=30)
model = nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(64, 64), nn.Tanh())], nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
prepared = {"parallelize": parallelize} if sharded else {}
model, optimizer = run.prepare(model, optimizer, **prepared)  # type: ignore[arg-type]
x = torch.randn(16 * steps, 64)
loader = run.loader(TensorDataset(x, x[:, :1]), global_batch=16)
taken = 0
for _ in run.epochs(2 if ending == "end" else 1000):
    for inputs, targets in loader:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if taken == steps + steps // 2:
            end_as_asked()
        optimizer.step()
        taken += 1
        run.report(loss=loss)
