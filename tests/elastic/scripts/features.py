"""A regression trained by steps with one feature of PyTorch at a time, whose result does not depend on the size."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path

import torch
from faults import Faults
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import headway

SAMPLES, STEPS = 200, 24
BRANCH_ABOVE = 1.5

parser = argparse.ArgumentParser()
parser.add_argument("--feature", required=True)
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()
feature: str = options.feature
low = feature in ("bf16", "scaler")


class Net(nn.Module):
    """Two layers, of which the first may be computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 1)
        if feature in ("unused", "branches"):
            self.unused, self.branch = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        if feature == "checkpointing":
            hidden = checkpoint(lambda h: torch.tanh(self.first(h)), x, use_reentrant=False)
        else:
            hidden = torch.tanh(self.first(x))
        if feature == "branches" and (taken := x[:, 1] > BRANCH_ABOVE).any():
            # Only some ranks take it in most steps, and none in a few.
            return self.last(hidden).squeeze(1) + taken * self.branch(hidden).squeeze(1)  # type: ignore[no-any-return]
        return self.last(hidden).squeeze(1)  # type: ignore[no-any-return]


run = headway.init(timeout_s=120)
torch.manual_seed(1)
inputs = torch.randn(SAMPLES, 4, dtype=torch.float32 if low else torch.float64)
targets = inputs @ torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=inputs.dtype)
model = Net() if low else Net().double()
backend = {"compile": "aot_eager", "compile_after": "aot_eager", "inductor": "inductor"}.get(feature)
trained = torch.compile(model, backend=backend) if backend and feature != "compile_after" else model
parts = [list(model.parameters())]
if feature == "optimizers":
    parts = [list(model.first.parameters()), list(model.last.parameters())]
optimizers = [torch.optim.AdamW(part, lr=0.02) for part in parts]
more = []
if feature == "schedule":
    more = [CosineAnnealingLR(optimizers[0], STEPS)]
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if feature == "ema" else None
if ema is not None:
    more = [ema]
if feature == "scaler":
    # The first scale overflows, and good steps double it soon: both happen in this training.
    more = [torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=5)]
trained, *objects = run.prepare(trained, *optimizers, *more)
if feature == "compile_after":
    trained.compile(backend=backend)
optimizers, more = objects[: len(parts)], objects[len(parts) :]
data = run.indices(
    SAMPLES,
    global_batch=options.batch,
    max_local_batch=3 if feature in ("accumulation", "clipping", "scaler") else None,
    seed=7,
)
first_loss = (model(inputs) - targets).square().mean().item()
dtype = {"bf16": torch.bfloat16, "scaler": torch.float16}.get(feature)
lengths: set[int] = set()
faults = Faults(run)
for _ in run.train_steps(STEPS):
    faults.in_body()
    for indices in data:
        lengths.add(len(indices))
        with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
            loss = (trained(inputs[indices]) - targets[indices]).square().mean()
        (more[0].scale(loss) if feature == "scaler" else loss).backward()
    if feature == "scaler":
        more[0].unscale_(optimizers[0])
    if feature in ("clipping", "scaler"):
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for optimizer in optimizers:
        if feature == "scaler":
            more[0].step(optimizer)
            more[0].update()
        else:
            optimizer.step()
        optimizer.zero_grad()
    if feature == "schedule":
        more[0].step()
    if ema is not None and run.stepped:
        ema.update_parameters(model)

compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"] if backend else 0
facts = {
    "graphs": compiled,
    "lengths": sorted(lengths),
    "first_loss": first_loss,
    "rate": optimizers[0].param_groups[0]["lr"],
    "scale": more[0].get_scale() if feature == "scaler" else 1.0,
    "loss": (model(inputs) - targets).square().mean().item(),
}
(options.result / f"{run.rank}-of-{run.world_size}.json").write_text(json.dumps(facts))
torch.save((ema or model).state_dict(), options.result / f"{run.rank}-of-{run.world_size}.pt")
