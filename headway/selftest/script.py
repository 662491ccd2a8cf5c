"""One rank of the self-test. Rank 0 writes a line of JSON for each step: its number and the loss of a fixed batch.

    python -m headway.selftest.script KIND FILE WIDTH PACE_S STEPS

KIND is `replicated` or `sharded`. A step takes at least PACE_S seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # as by the agent's launcher: the first DDP imports it, for seconds
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import headway

LAYERS = 8
BATCH = 32
_SAMPLES = 4096


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard each layer by itself, and then the rest."""
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)  # type: ignore[return-value]


def network(width: int) -> nn.Sequential:
    """Return a network of `LAYERS` square layers, with the same values on every rank."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers)


def main(kind: str, file: Path, width: int, pace_s: float, steps: int) -> None:
    """Train until the end, or until a stop."""
    run = headway.init(timeout_s=60.0)
    model = network(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    wrapped, optimizer = run.prepare(model, optimizer, parallelize=shard if kind == "sharded" else None)
    inputs = torch.randn(_SAMPLES, width, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(inputs, inputs.roll(1, dims=1).tanh())
    loader = run.loader(data, global_batch=BATCH, seed=0, balance=False)
    fixed = inputs[:BATCH].to(run.device)
    for step in run.train_steps(steps):
        began_s = time.monotonic()
        for x, y in loader:
            with torch.no_grad():
                fixed_loss = float(wrapped(fixed).square().mean())
            loss = nn.functional.mse_loss(wrapped(x), y)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if run.is_main:
            with file.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"step": step, "loss": fixed_loss}) + "\n")
        time.sleep(max(0.0, pace_s - (time.monotonic() - began_s)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
