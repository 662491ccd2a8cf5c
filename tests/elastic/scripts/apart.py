"""A model of two layers whose ranks come apart: by noise in one bias, numbers of the optimizer, or a moving average on rank 0 alone."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from faults import Faults
from torch.utils.data import TensorDataset

import headway

parser = argparse.ArgumentParser()
parser.add_argument("--apart", choices=["noise", "rate", "average", "shadow", "rounding", "estimate"])
parser.add_argument("--from-step", type=int, default=0, help="first step that sets the ranks apart")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--local", nargs="*", default=[], help="tensors that may differ")
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()


class Shadow:
    """A moving average as scripts write it: no module, with tensors in dictionaries and lists."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.shadow = {name: one.detach().clone() for name, one in model.named_parameters()}
        self.copies = [copy.deepcopy(one) for one in model.parameters()]

    def update(self, model: torch.nn.Module) -> None:
        for mine, its in zip(self.shadow.values(), model.parameters(), strict=True):
            mine.lerp_(its.detach(), 0.1)

    def state_dict(self) -> dict[str, object]:
        return {"decay": 0.9, "shadow": self.shadow, "copies": self.copies}

    def load_state_dict(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        self.shadow.update(state["shadow"])


run = headway.init(timeout_s=30)
torch.manual_seed(3)
inputs = torch.randn(40, 4)
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 1))
average = copy.deepcopy(model).requires_grad_(False)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
shadow = Shadow(model)
wrapped, optimizer, *_ = run.prepare(model, sgd, average, shadow, local=options.local)
data = run.loader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), global_batch=8, seed=7)
faults = Faults(run)
for step in run.train_steps(options.steps):
    faults.in_body()
    for batch, target in data:
        ((wrapped(batch) - target) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step >= options.from_step and options.apart == "noise":
        with torch.no_grad():
            model[1].bias.add_(1e-3 * run.rank)
    if step >= options.from_step and options.apart == "rounding":
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(1 + 1e-6 * run.rank)
    if options.apart == "estimate":  # from gradients, as Prodigy and D-Adaptation have it
        optimizer.param_groups[0]["d"] = 1e-6 * (step + 1) * (1 + 1e-6 * run.rank)
    if step >= options.from_step and options.apart == "rate":
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + run.rank)
    if options.apart == "average" and (run.is_main or step < options.from_step):
        for mine, its in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(its.detach(), 0.1)
    if options.apart == "shadow" and (run.is_main or step < options.from_step):
        shadow.update(model)
torch.save(model.state_dict(), options.result / f"{run.rank}-of-{run.world_size}.pt")
